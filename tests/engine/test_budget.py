"""A budget holds against what providers really consume, whatever they tell of it and wherever they break off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from random import Random
from typing import Any

import pytest

from routewright import Catalogue, Model, Policy, Pricing, ProviderFault, Router, RouterError, Settings
from routewright._core.constraints import Ask
from routewright.errors import NoCandidates
from routewright.testing import FakeClock, Pause
from routewright.wire import Chunk, Delta, FaultKind, Finish, ModelSpan, PolicyFallback, UpstreamCall, Usage

from .support import GOOD, House, said

pytestmark = pytest.mark.anyio


class Meter:
    """A vendor with a meter: it bills the prompt once it begins to answer, and each token when it makes it.

    What it tells is true only in the usage before a ``Finish``; what it hands over may lag behind what it made.
    """

    def __init__(self, name: str, chance: Random, clock: FakeClock) -> None:
        self.name = name
        self.chance = chance
        self.clock = clock
        self.model = Model(
            id=f"{name}/m",
            quality=chance.random(),
            context_window=100_000,
            max_output_tokens=chance.choice([500, 4_000]),
            pricing_per_1m=Pricing(chance.choice([0.0, 1.0, 30.0]), chance.choice([0.5, 4.0, 90.0])),
            ttft_s=1.0,
        )
        self.prompt: Callable[[], int] = lambda: 0
        self.calls = 0
        self.input = self.output = 0

    @property
    def bill_usd(self) -> float:
        price = self.model.pricing_per_1m
        assert price is not None
        return (self.input * price.input_usd + self.output * price.output_usd) / 1e6

    def models(self) -> Sequence[Model]:
        return [self.model]

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.calls += 1
        if self.chance.random() < 0.3:
            await self.clock.sleep(self.chance.choice([0.0, 1.0, 30.0]))
            raise self.fault()
        self.input += self.prompt()
        yield Metered(self, call)

    def fault(self, *, answered: bool = False) -> ProviderFault:
        kinds = [kind for kind in FaultKind if kind is not FaultKind.REFUSED]
        return ProviderFault(self.chance.choice(kinds), answered=answered)

    async def aclose(self) -> None: ...


class Metered:
    """One answer of it."""

    def __init__(self, meter: Meter, call: UpstreamCall) -> None:
        assert call.max_output_tokens is not None, "a budget caps every call"
        self.meter = meter
        self.left = meter.chance.choice([0, call.max_output_tokens, meter.chance.randint(0, call.max_output_tokens)])
        self.made = 0
        self.last: list[Chunk] = []

    def __aiter__(self) -> Metered:
        return self

    async def __anext__(self) -> Chunk:
        chance, meter = self.meter.chance, self.meter
        while not self.last and self.left and chance.random() < 0.8:
            piece = chance.randint(1, self.left)
            self.left -= piece
            self.made += piece
            meter.output += piece
            await meter.clock.sleep(chance.choice([0.0, 0.0, 0.1, 15.0]))
            told = chance.random()
            if told < 0.3:
                return Delta("word " * chance.randint(0, 3))
            if told < 0.5:
                return Usage(chance.randint(0, meter.prompt()), chance.randint(0, self.made))
        return await self.end()

    async def end(self) -> Chunk:
        chance, meter = self.meter.chance, self.meter
        if self.last:
            return self.last.pop()
        match chance.randint(0, 5):
            case 0:
                raise meter.fault(answered=True)
            case 1:
                raise StopAsyncIteration
            case 2:
                await meter.clock.sleep(500)
            case 3:
                raise ZeroDivisionError
        self.last = [Finish(chance.choice(["stop", "length", "content_filter"]))]
        if chance.random() < 0.7:
            return Usage(meter.prompt(), self.made)
        return Delta("")


async def ask(router: Router, chance: Random, **options: Any) -> None:
    try:
        if chance.random() < 0.5:
            await router.route("How much? " * 20, goal="quality", **options)
        else:
            async with router.stream("How much? " * 20, goal="quality", **options) as stream:
                async for _ in stream:
                    if chance.random() < 0.02:
                        break
    except RouterError:
        pass


async def test_no_mix_of_prices_usage_and_faults_consumes_more_than_the_budget(full: bool) -> None:
    several = 0
    for seed in range(10_000 if full else 300):
        chance, clock = Random(seed), FakeClock()
        meters = [Meter(name, chance, clock) for name in "abc"[: chance.randint(2, 3)]]
        settings = Settings(clock=clock, rng=Random(seed))
        router = Router(providers=meters, catalogue=Catalogue(()), settings=settings)
        budget: dict[str, Any] = {}
        if chance.random() < 0.8:
            budget["maxCostUsd"] = chance.choice([0.001, 0.01, 0.05, 0.3])
        if chance.random() < 0.3 or not budget:
            budget["maxTokens"] = chance.choice([800, 3_000, 20_000])
        options = {"budget": budget, "fallback": {"maxRetries": chance.randint(0, 3)}}
        try:
            decision = router.decide("How much? " * 20, goal="quality", **options)  # type: ignore[arg-type]
        except NoCandidates:
            continue
        outlook = router._parts.fleet("production").board().outlook
        for meter in meters:
            meter.prompt = partial(Ask(decision.input, outlook).high, outlook.pool.row[meter.model.id])
        await ask(router, chance, **options)
        several += sum(meter.calls for meter in meters) > 1
        assert sum(meter.bill_usd for meter in meters) <= budget.get("maxCostUsd", inf) + 1e-12, seed
        assert sum(meter.input + meter.output for meter in meters) <= budget.get("maxTokens", inf), seed
    assert several > seed / 10


async def test_a_broken_answer_that_told_of_little_is_paid_by_its_text() -> None:
    text = "The sky scatters blue light more than red. " * 50
    house = House([said(Usage(10, 1), Delta(text), ProviderFault("reset"))], [said(Delta("x"), Finish("stop"))])
    answer = await house.router.route("hi", goal="quality", fallback={"maxRetries": 0})
    span = answer.trace.spans[1]
    assert span.tokens.output > 400  # type: ignore[union-attr]
    assert span.usage_estimated  # type: ignore[union-attr]


@pytest.mark.parametrize("answered", [False, True])
async def test_a_fault_after_headers_is_taken_at_its_worst_and_one_before_is_free(answered: bool) -> None:
    house = House([ProviderFault("auth", answered=answered)], [said(Delta("x"), Usage(1, 1), Finish("stop"))])
    await house.router.route("hi", goal="quality", budget={"maxCostUsd": 0.02})
    assert GOOD.pricing_per_1m is not None
    used = house.good.calls[0].max_output_tokens or 0
    left_usd = 0.02 - (used * GOOD.pricing_per_1m.output_usd / 1e6 if answered else 0.0)
    cap = house.spare.calls[0].max_output_tokens or 0
    assert cap == pytest.approx(min(4_096, left_usd / 8e-6), abs=20)


async def test_a_call_that_is_cut_off_is_taken_at_its_worst() -> None:
    house = House([said(Pause(100.0))], [said(Delta("x"), Usage(1, 1), Finish("stop"))])
    await house.router.route("hi", goal="quality", budget={"maxCostUsd": 0.02})
    first, second = house.good.calls[0].max_output_tokens or 0, house.spare.calls[0].max_output_tokens or 0
    assert first * 4e-6 + second * 8e-6 <= 0.02


@pytest.mark.parametrize(
    "last", [[Finish("stop")], [Usage(10, 2_000), Finish("stop")], [Finish("stop"), Usage(10, 2_000)]]
)
async def test_usage_is_the_last_word_only_where_no_text_follows_it(last: list[Chunk]) -> None:
    text = "The sky scatters blue light more than red. " * 50
    house = House([[Usage(10, 1), Delta(text), *last]])
    answer = await house.router.route("hi", goal="quality")
    (span,) = (span for span in answer.trace.spans if isinstance(span, ModelSpan))
    counted = len(last) == 2
    assert span.usage_estimated is not counted
    assert answer.routing.tokens.output == 2_000 if counted else 400 < answer.routing.tokens.output < 2_000


async def test_usage_that_was_told_too_early_does_not_spare_a_filtered_answer_its_worst() -> None:
    filtered: list[Chunk] = [Usage(10, 1), Delta("some words"), Finish("content_filter")]
    policy = Policy(name="p", fallback=PolicyFallback(on_refusal="fallback"))
    house = House([filtered], [said(Delta("x"), Usage(1, 1), Finish("stop"))], policies=[policy])
    await house.router.route("hi", policy_id="p", budget={"maxCostUsd": 0.02})
    first, second = house.good.calls[0].max_output_tokens or 0, house.spare.calls[0].max_output_tokens or 0
    assert first * 4e-6 + second * 8e-6 <= 0.02
