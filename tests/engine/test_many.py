"""Many requests at once: each has its result, concurrency is limited, and one budget covers all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright import (
    Answer,
    BudgetExceeded,
    Caller,
    Catalogue,
    MemoryStorage,
    Model,
    NoCandidates,
    Pricing,
    ProviderFault,
    Router,
    RouteRequest,
    RouterError,
    Settings,
    ValidationFailed,
)
from routewright._core.request.read import as_request
from routewright._core.routing.constraints import FitCheck
from routewright._core.tokens.estimate import VOCABULARIES, bounds_of, count_request
from routewright.backends.tokens import PackedTokenCounter
from routewright.errors import ContentRefused, UpstreamFailed
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.testing.provider import Script
from routewright.wire import (
    Allow,
    Budget,
    Chunk,
    Delta,
    Finish,
    Message,
    ParamsDict,
    Stage,
    UpstreamCall,
    Usage,
    Verdict,
)

from .scripted_router import GOOD, House, on_one_loop, traces_in
from .test_budget import Meter, Metered, Metering

pytestmark = pytest.mark.anyio

CAP: ParamsDict = {"max_output_tokens": 400}
PROMPT = "How much? " * 20
ASKED = as_request(PROMPT, {})
COUNTED = count_request(PackedTokenCounter(), ASKED, bounds_of(ASKED), VOCABULARIES)


def one_model(script: Script, clock: FakeClock | None = None, **model: Any) -> tuple[Router, ScriptedProvider]:
    """A Router over one model that costs a dollar a million tokens of either kind."""
    clock = clock or FakeClock()
    priced = Model(id="a/one", quality=0.5, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000, **model)
    provider = ScriptedProvider(script, models=[priced], clock=clock)
    return Router(providers=[provider], catalogue=Catalogue(()), settings=Settings(clock=clock)), provider


def answering(seconds: float, output: int = 10) -> Script:
    """Each call takes so long, and uses ten tokens of input and so many of output."""
    return lambda call: [Pause(seconds), Delta("x"), Usage(10, output), Finish("stop")]


def kinds(results: list[Answer | RouterError]) -> list[str]:
    return [type(result).__name__ for result in results]


def text(result: Answer | RouterError) -> str:
    assert isinstance(result, Answer), result
    return result.output


async def test_results_stand_in_the_order_of_the_requests_whichever_ends_first() -> None:
    clock = FakeClock()

    def slower_first(call: UpstreamCall) -> list[Any]:
        number = int(str(call.messages[-1].content))
        return [Pause(10.0 - number), Delta(f"<{number}>"), Finish("stop")]

    router, _ = one_model(slower_first, clock)
    results = await router.route_many([str(number) for number in range(10)], limit=10)
    assert [text(result) for result in results] == [f"<{number}>" for number in range(10)]
    assert clock.monotonic() == pytest.approx(10.0)


@pytest.mark.parametrize(("limit", "took"), [(1, 12.0), (3, 4.0), (8, 2.0), (100, 1.0)])
async def test_at_most_limit_requests_run_at_a_time(limit: int, took: float) -> None:
    clock, most = FakeClock(), 0

    def watch(call: UpstreamCall) -> list[Any]:
        nonlocal most
        most = max(most, provider.open_calls + 1)
        return [Pause(1.0), Delta("x"), Finish("stop")]

    router, provider = one_model(watch, clock)
    await router.route_many(["hi"] * 12, limit=limit)
    assert most <= limit
    assert clock.monotonic() == pytest.approx(took)


async def test_requests_are_read_as_slots_become_free() -> None:
    router, provider = one_model(answering(1.0))
    ahead: list[int] = []

    def requests() -> Iterator[str]:
        for number in range(10):
            ahead.append(number - len(provider.calls))
            yield "hi"

    async def later() -> AsyncIterator[str]:
        for request in requests():
            await anyio.lowlevel.checkpoint()
            yield request

    assert len(await router.route_many(requests(), limit=2)) == 10
    assert max(ahead) <= 2
    provider.calls.clear()
    assert len(await router.route_many(later(), limit=2)) == 10
    assert await router.route_many([]) == []


async def test_all_kinds_of_requests_are_taken_with_options_for_each() -> None:
    router, provider = one_model(lambda call: "x")
    requests = [
        "hi",
        [Message("user", "hi")],
        {"messages": [{"role": "user", "content": "hi"}], "metadata": {"a": 1}},
        RouteRequest([Message("user", "hi")]),
    ]
    with router.tags(team="t"):
        results = await router.route_many(requests, timeout_ms=5_000, caller=Caller("anna"))  # type: ignore[arg-type]
    traces = [result.trace for result in results if isinstance(result, Answer)]
    assert [trace.metadata for trace in traces] == [{"team": "t"}, {"team": "t"}, {"team": "t", "a": 1}, {"team": "t"}]
    assert {trace.account for trace in traces} == {"anna"}
    assert {trace.decision_input.timeout_ms for trace in traces if trace.decision_input} == {5_000}
    assert len(provider.calls) == 4


async def test_the_error_of_a_request_is_its_result_and_others_go_on() -> None:
    house = House(lambda call: ProviderFault("refused") if call.messages[-1].content == "bad" else "fine")
    requests: list[Any] = ["hi", "", {"messages": []}, "bad", 7, {"messages": [], "x": 1}, "hi"]
    results = await house.router.route_many(requests, goal="quality", models=["good/one"])
    assert kinds(results) == [
        *("Answer", "Answer", "ValidationFailed", "ContentRefused", "ValidationFailed", "ValidationFailed", "Answer")
    ]
    assert isinstance(results[3], ContentRefused)
    assert results[3].trace_id is not None
    unknown = await house.router.route_many([{"messages": [{"role": "user", "content": "hi"}], "models": ["no/ne"]}])
    assert kinds(unknown) == ["ValidationFailed"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"requests": "hi"}, "requests: str is one request, not many; pass a list"),
        ({"requests": {"messages": []}}, "requests: dict is one request"),
        ({"requests": 7}, "requests: 7 is not a list of requests"),
        ({"limit": 0}, "limit: must be a whole number of at least 1, got 0"),
        ({"limit": True}, "limit: must be"),
        ({"limit": 2.5}, "limit: must be"),
        ({"budget": {"max_cost_usd": 1}}, "budget.max_cost_usd: .*maxCostUsd"),
        ({"budget": {"maxCostUsd": -1}}, "budget.maxCostUsd: must be a number from 0 to 1000000000"),
        ({"budget": Budget(max_tokens=0.5)}, "budget.max_tokens: must be a whole number"),
        ({"budget": 5}, "budget: must be a dict"),
        ({"caller": "anna"}, "caller: "),
    ],
)
async def test_wrong_arguments_are_refused_before_anything_runs(wrong: dict[str, Any], said: str) -> None:
    router, provider = one_model(lambda call: "x")
    with pytest.raises(ValidationFailed, match=said):
        await router.route_many(**{"requests": ["hi"], **wrong})
    assert provider.calls == []


def test_the_blocking_door_takes_many_too() -> None:
    router = Router.sandbox(answers=lambda call: str(call.messages[-1].content)[::-1])
    with router.blocking as blocking:
        results = blocking.route_many(["ab", "", "cd"], limit=2, budget={"maxCostUsd": 0.01})
    assert [text(result) for result in results] == ["ba", "", "dc"]


# One budget


async def test_the_budget_is_shared_by_all_requests() -> None:
    router, provider = one_model(answering(1.0, output=1_000))
    results = await router.route_many(["hi"] * 10, budget={"maxCostUsd": 0.005})
    served = [result for result in results if isinstance(result, Answer)]
    assert [type(result) for result in results] == [Answer] * len(served) + [BudgetExceeded] * (10 - len(served))
    assert 3 <= len(served) <= 4
    assert sum(result.routing.cost_usd for result in served) <= 0.005
    assert len(provider.calls) == len(served)


async def test_a_request_waits_for_others_and_its_time_begins_when_it_starts() -> None:
    clock = FakeClock()
    router, provider = one_model(answering(50.0), clock)
    results = await router.route_many(["hi"] * 4, limit=4, budget={"maxCostUsd": 0.009})
    assert kinds(results) == ["Answer"] * 4  # in time, although the last began after 150 seconds
    assert clock.monotonic() == pytest.approx(200.0)
    assert len(provider.calls) == 4


class Counts:
    """A guardrail that counts its checks."""

    name, holds = "counts", 1
    stages: Sequence[Stage] = ("input",)

    def __init__(self) -> None:
        self.checks = 0

    def check(self, text: str, stage: Stage) -> Verdict:
        self.checks += 1
        return Allow()


async def test_a_request_that_waits_for_the_budget_is_guarded_once() -> None:
    clock, guardrail = FakeClock(), Counts()
    priced = Model(id="a/one", quality=0.5, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000)
    provider = ScriptedProvider(answering(1.0), models=[priced], clock=clock)
    router = Router(
        providers=[provider], catalogue=Catalogue(()), guardrails=[guardrail], settings=Settings(clock=clock)
    )
    results = await router.route_many(["hi"] * 4, limit=4, budget={"maxCostUsd": 0.009})
    assert kinds(results) == ["Answer"] * 4
    assert clock.monotonic() == pytest.approx(4.0), "one at a time"
    assert guardrail.checks == 4


async def test_a_request_over_the_budget_is_refused_and_later_cheaper_ones_run() -> None:
    router, _ = one_model(answering(1.0))
    message = [{"role": "user", "content": "hi"}]
    dear, cheap = ({"messages": message, "params": {"max_output_tokens": size}} for size in (20_000, 100))
    results = await router.route_many([cheap, dear, cheap, dear, cheap], budget={"maxCostUsd": 0.001})
    assert kinds(results) == ["Answer", "BudgetExceeded", "Answer", "BudgetExceeded", "Answer"]
    refused = results[1]
    assert isinstance(refused, BudgetExceeded)
    assert (await router.trace(str(refused.trace_id))).status == "budget_exceeded"


async def test_invalid_options_are_raised_at_once() -> None:
    router, provider = one_model(answering(0.1))
    with pytest.raises(ValidationFailed, match=r"^goal: "):
        await router.route_many(["hi"], goal="speed")  # type: ignore[arg-type]
    assert provider.calls == []


async def test_the_call_itself_is_held_to_what_it_reserved_and_replays() -> None:
    router, _ = one_model(answering(1.0, output=100))
    for budget_usd, reserved in ((0.002, 2_000_000), (1.0, 8_218_000)):  # all that is left; the worst case
        (answer,) = await router.route_many(["hi"], budget={"maxCostUsd": budget_usd})
        assert isinstance(answer, Answer)
        assert answer.decision.input.budget_nanos == reserved
        assert router.replay(answer).digest == answer.decision.digest


# The end of everything


async def test_cancelling_ends_all_and_leaves_their_traces() -> None:
    clock, storage = FakeClock(), MemoryStorage()
    provider = ScriptedProvider(answering(10.0), models=[GOOD], clock=clock)
    router = Router(providers=[provider], catalogue=Catalogue(()), storage=storage, settings=Settings(clock=clock))
    async with anyio.create_task_group() as group:
        group.start_soon(partial(router.route_many, ["hi"] * 10, limit=3, budget={"maxCostUsd": 1.0}))
        await clock.sleep(15.0)
        group.cancel_scope.cancel()
    assert provider.open_calls == 0
    traces = await traces_in(storage)
    assert sorted(trace.status for trace in traces) == ["cancelled"] * 3 + ["completed"] * 3


@pytest.mark.parametrize("fault", [ZeroDivisionError, KeyboardInterrupt, UpstreamFailed])
async def test_an_exception_of_the_iterable_cancels_all_and_is_raised(fault: Any) -> None:
    router, provider = one_model(answering(10.0))

    def requests() -> Iterator[str]:
        yield "hi"
        yield "hi"
        raise fault("no")

    with pytest.raises(fault):
        await router.route_many(requests())
    assert provider.open_calls == 0


# Against a meter


class Vendor(Meter):
    """The meter of ``test_budget``, but what it tells is not stale: where it has told of some usage, it tells of all of
    it at the end, and bills nothing afterwards."""

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:
        async with super().open(call):
            yield Told(self, call)


class Told(Metered):
    told = ended = False

    async def __anext__(self) -> Chunk:
        if self.ended:
            raise StopAsyncIteration
        chunk = await super().__anext__()
        self.told = self.told or isinstance(chunk, Usage)
        self.ended = isinstance(chunk, Finish)
        return chunk

    async def end(self) -> Chunk:
        chunk = await super().end()
        return self.metering.usage if self.told and isinstance(chunk, Delta) else chunk


class Honest(Meter):
    """A meter that fails before it bills, or tells in the end all that it bills."""

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:
        async with super().open(call):
            yield self.answer(call, self.meters[-1])

    def fault(self, *, answered: bool = False) -> ProviderFault:
        return ProviderFault(self.chance.choice(["connect", "server", "auth", "context_overflow"]))

    async def answer(self, call: UpstreamCall, metering: Metering) -> AsyncIterator[Chunk]:
        metering.output = self.chance.randint(0, call.max_output_tokens or 0)
        await self.clock.sleep(self.chance.choice([0.0, 0.1, 1.0]))
        yield Delta("word")
        yield metering.usage
        yield Finish("stop")


class Market:
    """A Router over random vendors, and random requests to it."""

    def __init__(self, seed: int, kind: type[Meter]) -> None:
        self.chance = Random(seed)
        clock = FakeClock()
        self.meters = [kind(name, self.chance, clock) for name in "abc"[: self.chance.randint(1, 3)]]
        settings = Settings(clock=clock, rng=Random(seed))
        self.router = Router(providers=self.meters, catalogue=Catalogue(()), settings=settings)
        forecast = self.router._parts.fleet("production").board().forecast
        given = self.router.decide(PROMPT).input
        given = replace(given, tokens=COUNTED)  # a smaller budget has it counted, and nobody bills more
        for meter in self.meters:
            meter.prompt = partial(FitCheck(given, forecast).high, forecast.pool.row[meter.model.id])
        self.budget: Any = {}
        if self.chance.random() < 0.8:
            self.budget["maxCostUsd"] = self.chance.choice([0.002, 0.02, 0.1, 1.0])
        if self.chance.random() < 0.3 or not self.budget:
            self.budget["maxTokens"] = self.chance.choice([2_000, 10_000, 50_000])
        self.limit = self.chance.choice([1, 2, 8])

    @property
    def bill_usd(self) -> float:
        return float(sum(meter.bill_usd for meter in self.meters))

    @property
    def tokens(self) -> int:
        return sum(meter.tokens for meter in self.meters)

    @property
    def left(self) -> dict[str, Any]:
        """What the meters leave of the budget, less than a nano-dollar given away to arithmetic on floats."""
        left: dict[str, Any] = {}
        if "maxCostUsd" in self.budget:
            left["maxCostUsd"] = max(0.0, round(self.budget["maxCostUsd"] - self.bill_usd, 9))
        if "maxTokens" in self.budget:
            left["maxTokens"] = self.budget["maxTokens"] - self.tokens
        return left

    def request(self) -> dict[str, Any]:
        chance = self.chance
        request: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "goal": "quality"}
        request["fallback"] = {"maxRetries": chance.randint(0, 2)}
        if chance.random() < 0.5:
            request["params"] = {"max_output_tokens": chance.choice([50, 500, 3_000])}
        if chance.random() < 0.2:
            request["budget"] = {"maxCostUsd": chance.choice([0.001, 0.05])}
        if chance.random() < 0.3:
            request["models"] = [chance.choice(self.meters).model.id]
        return request

    def check(self) -> None:
        assert self.bill_usd <= self.budget.get("maxCostUsd", float("inf")) + 1e-12
        assert self.tokens <= self.budget.get("maxTokens", float("inf"))


@on_one_loop
async def test_no_mix_of_prices_usage_and_faults_consumes_more_than_the_shared_budget(full: bool) -> None:
    refused = served = 0
    for seed in range(10_000 if full else 25):
        market = Market(seed, Vendor)
        requests = [market.request() for _ in range(market.chance.randint(2, 10))]
        results = await market.router.route_many(requests, limit=market.limit, budget=market.budget)
        assert len(results) == len(requests)
        market.check()
        refused += kinds(results).count("BudgetExceeded")
        served += kinds(results).count("Answer")
    least = 100 if full else 5
    assert refused > least
    assert served > least


@on_one_loop
async def test_budget_is_left_only_if_no_request_fits(full: bool) -> None:
    refused = served = 0
    for seed in range(10_000 if full else 25):
        market = Market(seed, Honest)
        # with a cap, since what is expected without one is learned meanwhile
        requests = [{"params": CAP, **market.request()} for _ in range(market.chance.randint(2, 10))]
        results = await market.router.route_many(requests, limit=market.limit, budget=market.budget)
        market.check()
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, NoCandidates):
                refused += 1
                assert not fits(market, request), (seed, request)
            served += isinstance(result, Answer)
    least = 100 if full else 5
    assert refused > least
    assert served > least


def fits(market: Market, request: dict[str, Any]) -> bool:
    """Whether what the meters leave of the budget pays for a request."""
    own, left = request.get("budget", {}), market.left
    budget: Any = {name: min(own.get(name, 1e9), left.get(name, 1e9)) for name in {*own, *left}}
    if budget.get("maxTokens") == 0:
        return False
    try:
        market.router.decide(request, budget=budget)
    except NoCandidates:
        return False
    return True
