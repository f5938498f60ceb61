"""A budget holds against real usage, whatever a provider reports and wherever it stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from math import inf
from random import Random
from typing import Any

import pytest

from routewright import Catalogue, MemoryStorage, Model, Policy, Pricing, ProviderFault, Router, RouterError, Settings
from routewright._core.money import MOST_USD_PER_1M
from routewright._core.routing.constraints import FitCheck
from routewright.errors import NoCandidates
from routewright.testing import FakeClock, Pause
from routewright.wire import (
    Chunk,
    Delta,
    FaultKind,
    Finish,
    ModelSpan,
    PolicyFallback,
    PriceChange,
    PriceTier,
    UpstreamCall,
    Usage,
)

from .scripted_router import GOOD, House, said, traces_in

pytestmark = pytest.mark.anyio


MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC).timestamp()


def exact(usd: float) -> Fraction:
    return Fraction(str(usd))


class Metering:
    """What one call has used, by the meter."""

    def __init__(self, day: str, chance: Random, given: int) -> None:
        self.day = day
        self.input = given
        self.cached = chance.choice([0, chance.randint(0, given)])
        self.written = chance.choice([0, chance.randint(0, given - self.cached)])
        self.output = self.reasoning = 0

    @property
    def usage(self) -> Usage:
        return Usage(self.input, self.output, self.cached, self.reasoning, self.written)

    def usd(self, model: Model) -> Fraction:
        """By the price that held when the call began."""
        change = model.price_changes[0] if model.price_changes else None
        price = model.pricing_per_1m if change is None or self.day < change.starts else change.pricing_per_1m
        assert price is not None
        at = next((tier for tier in price.tiers if self.input > tier.above_tokens), price)
        longer, dearer = exact(at.input_usd) / exact(price.input_usd), exact(at.output_usd) / exact(price.output_usd)
        inputs = (price.input_usd, price.cached_input_usd or price.input_usd, price.cache_write_usd or price.input_usd)
        new, read, kept = (min(exact(usd) * longer, Fraction(MOST_USD_PER_1M)) for usd in inputs)
        outputs = (price.output_usd, price.reasoning_usd or price.output_usd)
        spoken, thought = (min(exact(usd) * dearer, Fraction(MOST_USD_PER_1M)) for usd in outputs)
        fresh, said = self.input - self.cached - self.written, self.output - self.reasoning
        given = fresh * new + self.cached * read + self.written * kept
        return (given + said * spoken + self.reasoning * thought) / 10**6


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
            pricing_per_1m=self.pricing(),
            price_changes=chance.choice([None, (PriceChange("2026-12-01", self.pricing()),)]),
            reasoning=True,
            ttft_s=1.0,
        )
        self.prompt: Callable[[], int] = lambda: 0
        self.calls = 0
        self.meters: list[Metering] = []

    def pricing(self) -> Pricing:
        chance = self.chance
        return Pricing(
            chance.choice([0.001, 1.0, 30.0]),
            chance.choice([0.5, 4.0, 90.0]),
            chance.choice([None, 0.1, 50.0]),
            chance.choice([None, 1.25, 40.0]),
            tiers=chance.choice([(), (PriceTier(100, chance.choice([0.5, 20.0]), chance.choice([1.0, 60.0])),)]),
            reasoning_usd=chance.choice([None, 0.25, 120.0]),
        )

    @property
    def bill_usd(self) -> Fraction:
        return sum((call.usd(self.model) for call in self.meters), Fraction(0))

    @property
    def tokens(self) -> int:
        return sum(call.input + call.output for call in self.meters)

    def models(self) -> Sequence[Model]:
        return [self.model]

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:
        self.calls += 1
        day = datetime.fromtimestamp(self.clock.time(), UTC).date().isoformat()
        if self.chance.random() < 0.3:
            await self.clock.sleep(self.chance.choice([0.0, 1.0, 30.0]))
            raise self.fault()
        self.meters.append(Metering(day, self.chance, self.prompt()))
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
        self.metering = meter.meters[-1]
        self.left = meter.chance.choice([0, call.max_output_tokens, meter.chance.randint(0, call.max_output_tokens)])
        self.last: list[Chunk] = []
        self.early = False
        """The last that was told is a count of which nobody can see that it is not the last."""

    def __aiter__(self) -> Metered:
        return self

    async def __anext__(self) -> Chunk:
        chance, meter, metering = self.meter.chance, self.meter, self.metering
        while not self.last and self.left and chance.random() < 0.8:
            piece = chance.randint(1, self.left)
            self.left -= piece
            metering.output += piece
            metering.reasoning += chance.choice([0, 0, piece])
            await meter.clock.sleep(chance.choice([0.0, 0.0, 0.1, 15.0]))
            told = chance.random()
            if told < 0.3:
                self.early = False
                return Delta("word " * chance.randint(1, 3))
            if told < 0.5:
                self.early = True
                return Usage(chance.randint(0, metering.input), chance.randint(0, metering.output))
        return await self.end()

    async def end(self) -> Chunk:
        chance, meter = self.meter.chance, self.meter
        if self.last:
            self.left = 0
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
        if self.early or chance.random() < 0.7:
            return self.metering.usage
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
    several = estimated = turned = 0
    for seed in range(10_000 if full else 100):
        chance = Random(seed)
        clock, storage = FakeClock(MIDNIGHT - chance.choice([0.05, 5.0, 20.0, 40_000.0])), MemoryStorage()
        meters = [Meter(name, chance, clock) for name in "abc"[: chance.randint(2, 3)]]
        settings = Settings(clock=clock, rng=Random(seed))
        router = Router(providers=meters, catalogue=Catalogue(()), settings=settings, storage=storage)
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
        forecast = router._parts.fleet("production").board().forecast
        for meter in meters:
            meter.prompt = partial(FitCheck(decision.input, forecast).high, forecast.pool.row[meter.model.id])
        await ask(router, chance, **options)
        several += sum(meter.calls for meter in meters) > 1
        turned += len({call.day for meter in meters for call in meter.meters}) > 1
        bill_usd = sum((meter.bill_usd for meter in meters), Fraction(0))
        assert bill_usd <= budget.get("maxCostUsd", inf) + 1e-12, seed
        assert sum(meter.tokens for meter in meters) <= budget.get("maxTokens", inf), seed
        await router.flush()
        (trace,) = await traces_in(storage)
        low, high = trace.cost_range_usd or (trace.cost_usd, trace.cost_usd)
        assert low <= trace.cost_usd <= high, seed
        rounded = 1e-9 * len(trace.spans)  # up, to a nano-dollar an attempt
        assert low - rounded - 1e-12 <= bill_usd <= high + 1e-12, seed
        estimated += trace.cost_range_usd is not None
    assert min(several, estimated) > seed / 10
    assert turned > seed / 50, "midnight falls between two attempts"


async def test_a_broken_answer_with_little_usage_is_priced_by_its_text() -> None:
    text = "The sky scatters blue light more than red. " * 50
    house = House([said(Usage(10, 1), Delta(text), ProviderFault("reset"))], [said(Delta("x"), Finish("stop"))])
    answer = await house.router.route("hi", goal="quality", fallback={"maxRetries": 0})
    span = answer.trace.spans[1]
    assert span.tokens.output > 400  # type: ignore[union-attr]
    assert span.usage_estimated  # type: ignore[union-attr]


@pytest.mark.parametrize("answered", [False, True])
async def test_a_fault_after_headers_counts_at_the_worst_case_and_one_before_is_free(answered: bool) -> None:
    house = House([ProviderFault("auth", answered=answered)], [said(Delta("x"), Usage(1, 1), Finish("stop"))])
    await house.router.route("hi", goal="quality", budget={"maxCostUsd": 0.02})
    assert GOOD.pricing_per_1m is not None
    used = house.good.calls[0].max_output_tokens or 0
    left_usd = 0.02 - (used * GOOD.pricing_per_1m.output_usd / 1e6 if answered else 0.0)
    cap = house.spare.calls[0].max_output_tokens or 0
    assert cap == pytest.approx(min(4_096, left_usd / 8e-6), abs=20)


async def test_a_call_that_is_cut_off_counts_at_the_worst_case() -> None:
    house = House([said(Pause(100.0))], [said(Delta("x"), Usage(1, 1), Finish("stop"))])
    await house.router.route("hi", goal="quality", budget={"maxCostUsd": 0.02})
    first, second = house.good.calls[0].max_output_tokens or 0, house.spare.calls[0].max_output_tokens or 0
    assert first * 4e-6 + second * 8e-6 <= 0.02


@pytest.mark.parametrize(
    "last", [[Finish("stop")], [Usage(10, 2_000), Finish("stop")], [Finish("stop"), Usage(10, 2_000)]]
)
async def test_usage_is_final_only_if_no_text_follows(last: list[Chunk]) -> None:
    text = "The sky scatters blue light more than red. " * 50
    house = House([[Usage(10, 1), Delta(text), *last]])
    answer = await house.router.route("hi", goal="quality")
    (span,) = (span for span in answer.trace.spans if isinstance(span, ModelSpan))
    counted = len(last) == 2
    assert span.usage_estimated is not counted
    assert answer.routing.tokens.output == 2_000 if counted else 400 < answer.routing.tokens.output < 2_000


async def test_early_usage_does_not_lower_the_worst_case_of_a_filtered_answer() -> None:
    filtered: list[Chunk] = [Usage(10, 1), Delta("some words"), Finish("content_filter")]
    policy = Policy(name="p", fallback=PolicyFallback(on_refusal="fallback"))
    house = House([filtered], [said(Delta("x"), Usage(1, 1), Finish("stop"))], policies=[policy])
    await house.router.route("hi", policy_id="p", budget={"maxCostUsd": 0.02})
    first, second = house.good.calls[0].max_output_tokens or 0, house.spare.calls[0].max_output_tokens or 0
    assert first * 4e-6 + second * 8e-6 <= 0.02
