"""Circuits through the Router: failing models are skipped, and healthy ones are not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import anyio
import pytest

from routewright import (
    Answer,
    Caller,
    MemoryStorage,
    Model,
    Policy,
    Pricing,
    ProviderFault,
    Router,
    Settings,
)
from routewright.errors import ContentRefused, RouterTimeoutError, UpstreamFailed
from routewright.router import StepCall, StepDone
from routewright.testing import Pause, ScriptedProvider
from routewright.wire import Delta, FallbackDict, Finish, ModelSpan, PolicyWeights, UpstreamCall, Usage

from .scripted_router import GOOD, SPARE, House, said

pytestmark = pytest.mark.anyio

ONCE: FallbackDict = {"maxRetries": 0}
BEST = Policy(name="best", weights=PolicyWeights(quality=100, cost=0, latency=0, stability=0))
"""The better model is chosen however often it failed, unless its circuit is open."""


class Switch:
    """A provider's script that can be turned off and on."""

    def __init__(self, fault: str = "server", **how: Any) -> None:
        self.up = True
        self.fault = ProviderFault(fault, **how)
        self.takes_s = 0.0

    def __call__(self, call: UpstreamCall) -> Any:
        if not self.up:
            return said(Pause(self.takes_s), self.fault)
        return said(Pause(self.takes_s), Delta("Blue."), Usage(10, 5), Finish("stop"))


def house_of(good: Any, spare: Any = None, **router: Any) -> House:
    return House(good, spare or Switch(), policies=[BEST], **router)


async def ask(house: House, **options: Any) -> Answer[None]:
    answer: Answer[None] = await house.router.route("hi", **{"policy_id": "best", "fallback": ONCE, **options})
    return answer


async def opened() -> tuple[Switch, House]:
    """A house whose better model has an open circuit."""
    good = Switch()
    house = house_of(good)
    good.up = False
    for _ in range(5):
        assert (await ask(house)).routing.selected_model == SPARE.id
    assert len(house.good.calls) == 5
    return good, house


def kept_away(answer: Answer[None]) -> list[str]:
    """Models that the decision was kept from."""
    return [each.model for each in answer.decision.rejected if each.reason == "circuit_open"]


def circuit_open(house: House) -> list[str]:
    """Models that are kept away from, by the snapshot that decisions are made from."""
    board = house.router._parts.hosted("production").board()
    return [board.forecast.pool.ids[row] for row in board.forecast.open]


def probes(answer: Answer[None]) -> list[bool]:
    return [span.probe for span in answer.trace.spans if isinstance(span, ModelSpan)]


async def test_five_faults_open_a_circuit_and_the_next_decision_goes_elsewhere_at_once() -> None:
    _, house = await opened()
    assert house.clock.monotonic() == 0.0
    answer = await ask(house)
    assert answer.decision.model == SPARE.id
    assert kept_away(answer) == [GOOD.id]
    assert (answer.response.fallback_model, len(house.good.calls)) == (None, 5)
    assert {model.id: model.availability.status for model in house.router.models()}[GOOD.id] == "degraded"


async def test_a_probe_is_one_call_though_fifty_requests_come_in_the_same_instant() -> None:
    good, house = await opened()
    good.up, good.takes_s = True, 1.0
    await house.clock.advance(10.0)
    answers: list[Answer[None]] = []

    async def one() -> None:
        answers.append(await ask(house))

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(one)
    assert len(house.good.calls) == 6
    by = [answer.routing.selected_model for answer in answers]
    assert (by.count(GOOD.id), by.count(SPARE.id)) == (1, 49)
    assert [probes(answer) for answer in answers if answer.routing.selected_model == GOOD.id] == [[True]]
    after = await ask(house)
    assert (after.routing.selected_model, probes(after), kept_away(after)) == (GOOD.id, [False], [])


@pytest.mark.parametrize(("told_s", "alone_s"), [(2.0, 2.0), (6.0, 6.0), (86_400.0, 300.0)])
async def test_a_model_is_left_alone_by_every_call_until_its_retry_after_has_passed(
    told_s: float, alone_s: float
) -> None:
    good = Switch("rate_limited", retry_after=told_s)
    house = house_of(good)
    good.up = False
    for n in range(5):
        answer = await ask(house)
        assert answer.routing.selected_model == SPARE.id
        assert kept_away(answer) == ([GOOD.id] if n else [])
    assert len(house.good.calls) == 1
    good.up = True
    await house.clock.advance(alone_s - 0.1)
    assert (await ask(house)).routing.selected_model == SPARE.id
    await house.clock.advance(0.2)
    assert (await ask(house)).routing.selected_model == GOOD.id


@pytest.mark.parametrize("seed", range(3))
async def test_a_flapping_provider_is_back_in_service_within_sixteen_seconds(seed: int, full: bool) -> None:
    chance, good, served = Random(seed), Switch(), list[float]()
    house = house_of(good)
    good.takes_s = 0.25
    phases: list[tuple[float, float]] = []

    async def weather() -> None:
        for _ in range(200 if full else 6):
            good.up = False
            await house.clock.sleep(chance.choice([1.0, 7.0, 20.0, 90.0]) + chance.random())
            good.up = True
            began = house.clock.monotonic()
            await house.clock.sleep(chance.choice([3.0, 12.0, 18.0, 45.0]) + chance.random())
            phases.append((began, house.clock.monotonic()))
        good.up = False

    async def call() -> None:
        answer = await ask(house)
        if answer.routing.selected_model == GOOD.id:
            served.append(house.clock.monotonic())

    async with anyio.create_task_group() as calls, anyio.create_task_group() as group:
        group.start_soon(weather)
        while len(phases) < (200 if full else 6):
            calls.start_soon(call)
            await house.clock.sleep(1.0)
    long = [(began, ended) for began, ended in phases if ended - began > 16]
    assert long
    for began, _ in long:
        assert any(began <= at <= began + 16 for at in served), began


# --- what is no provider's fault


async def times_out(house: House) -> None:
    with pytest.raises(RouterTimeoutError):
        await ask(house, timeout_ms=200)


async def cancels(house: House) -> None:
    with house.clock.deadline(house.clock.monotonic() + 0.1) as limit:
        await ask(house)
    assert limit.expired


async def is_refused(house: House) -> None:
    with pytest.raises(ContentRefused):
        await ask(house)


async def falls_back(house: House) -> None:
    assert (await ask(house)).routing.selected_model == SPARE.id


async def leaves_the_stream(house: House) -> None:
    async with house.router.stream("hi", policy_id="best") as stream:
        async for _ in stream.text():
            break


HARMLESS: list[tuple[Any, Callable[[House], Awaitable[None]]]] = [
    (said(Pause(100.0)), times_out),
    (said(Pause(100.0)), cancels),
    (ProviderFault("refused"), is_refused),
    (said(Finish("content_filter")), is_refused),
    (ProviderFault("request"), falls_back),
    (ProviderFault("local"), falls_back),
    (ProviderFault("context_overflow"), falls_back),  # whose window may hold it
    (said(Delta("half"), Pause(5.0), Finish("stop")), leaves_the_stream),
]


@pytest.mark.parametrize(("script", "call"), HARMLESS, ids=lambda each: getattr(each, "__name__", ""))
async def test_faults_caused_by_the_caller_open_no_circuit(
    script: Any, call: Callable[[House], Awaitable[None]]
) -> None:
    def spare(asked: UpstreamCall) -> Any:
        return said(Pause(100.0)) if call is times_out else "Blue."

    house = house_of(lambda asked: script, spare)
    for _ in range(25):
        await call(house)
    assert circuit_open(house) == []
    assert len(house.good.calls) == 25
    assert house.left_open == 0


async def test_a_thousand_refused_prompts_of_one_account_harm_no_other(full: bool) -> None:
    def good(call: UpstreamCall) -> Any:
        return ProviderFault("refused") if call.messages[0].content == "poison" else "Blue."

    house, models = house_of(good), set()
    bad, well = (house.router.as_caller(Caller(account=name)) for name in ("bad", "well"))
    for n in range(1_000 if full else 200):
        with pytest.raises(ContentRefused):
            await bad.route("poison", policy_id="best")
        if n % 10 == 0:
            models.add((await well.route("hi", policy_id="best")).routing.selected_model)
    assert models == {GOOD.id}
    assert circuit_open(house) == []


# --- credentials


def siblings(script: Any, storage: MemoryStorage | None = None) -> House:
    """A house whose good provider has another model besides."""
    twin = Model(id="good/twin", quality=0.8, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000, ttft_s=1.0)
    house = house_of(script)
    house.good = ScriptedProvider(script, models=[GOOD, twin], clock=house.clock)
    settings = Settings(clock=house.clock, rng=Random(7))
    house.router = Router(providers=[house.good, house.spare], settings=settings, policies=[BEST], storage=storage)
    return house


async def test_a_refused_key_keeps_away_all_models_of_its_provider_at_once() -> None:
    house = siblings(lambda call: ProviderFault("auth", status=401))
    assert (await ask(house)).routing.selected_model == SPARE.id
    answer = await ask(house)
    assert (answer.decision.model, len(house.good.calls)) == (SPARE.id, 1)
    assert kept_away(answer) == [GOOD.id, "good/twin"]


# --- when all are open


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_cancelled_probe_makes_room_for_another(streamed: bool) -> None:
    good, house = await opened()
    good.up, good.takes_s = True, 5.0
    await house.clock.advance(10.0)

    async def probe() -> None:
        if not streamed:
            await ask(house)
            return
        async with house.router.stream("hi", policy_id="best", fallback=ONCE) as stream:
            async for _ in stream:
                pass

    with house.clock.deadline(house.clock.monotonic() + 1.0) as limit:
        await probe()
    assert limit.expired
    answer = await ask(house)
    assert (answer.routing.selected_model, probes(answer)) == (GOOD.id, [True])
    assert (len(house.good.calls), house.left_open) == (7, 0)


# --- load, and replay


async def test_calls_against_dead_providers_stay_within_the_retry_budget(full: bool) -> None:
    house = house_of(lambda call: ProviderFault("server"), lambda call: ProviderFault("server"))
    calls, batches = 0, 200 if full else 20

    async def one() -> None:
        with pytest.raises(UpstreamFailed):
            await house.router.route("hi", policy_id="best", fallback={"maxRetries": 5})

    async with anyio.create_task_group() as group:
        for _ in range(batches):
            for _ in range(50):
                group.start_soon(one)
            calls += 50
            await house.clock.sleep(0.1)
    attempts = len(house.good.calls) + len(house.spare.calls)
    seconds = house.clock.monotonic() + 10
    assert calls <= attempts <= calls * 2 + 0.2 * calls + 10 * seconds
    assert house.left_open == 0


async def test_decisions_taken_with_open_circuits_are_replayed_alike() -> None:
    storage = MemoryStorage()
    house = siblings(lambda call: ProviderFault("auth", status=401), storage)
    await ask(house)
    answer = await ask(house)
    await house.clock.advance(10.0)
    later = await ask(house)
    await house.router.flush()
    again = Router(providers=[], catalogue=None, storage=storage, settings=Settings(clock=house.clock))
    for each in (answer, later):
        for router in (house.router, again):
            replayed = router.replay(each.trace)
            assert replayed.digest == each.decision.digest
            assert [(r.model, r.reason) for r in replayed.rejected] == [
                (r.model, r.reason) for r in each.decision.rejected
            ]


FAULTS = ["auth", "connect", "rate_limited", "server", "malformed", "timeout"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_report_names_the_fault_and_counts_the_calls_that_went_past_the_model(fault: str) -> None:
    house = house_of(lambda call: ProviderFault(fault), storage=MemoryStorage())
    calls = 9
    for _ in range(calls):
        assert (await ask(house)).output == "Blue."
    failed = len(house.good.calls)
    assert failed == (1 if fault == "auth" else 5)
    report = await house.router.traces.fallback_report()
    assert (report.triggered, report.reasons) == (failed, {fault: failed})
    assert report.passed_by == {GOOD.id: calls - failed}
    traces = (await house.router.traces.query()).data
    await house.router.traces.delete(trace_id=traces[0].id)
    assert (await house.router.traces.fallback_report()).passed_by == {GOOD.id: calls - failed - 1}


async def test_a_call_is_past_a_model_only_if_it_would_have_been_chosen() -> None:
    house = house_of(lambda call: ProviderFault("auth"))
    await ask(house)
    await ask(house, models=[SPARE.id])
    await ask(house, goal="cost", policy_id=None, prefer=[SPARE.id])
    await ask(house)
    assert (await house.router.traces.fallback_report()).passed_by == {GOOD.id: 1}


async def test_a_circuit_that_opens_after_the_decision_is_a_fallback_past_the_model() -> None:
    house = house_of(lambda call: ProviderFault("auth"))
    steps = house.router.steps("hi", policy_id="best", fallback=ONCE)
    await ask(house)
    assert isinstance(step := steps.next(), StepCall)
    assert step.model == SPARE.id
    steps.feed([Delta("Blue."), Usage(10, 5), Finish("stop")])
    assert isinstance(steps.next(), StepDone)
    answer = steps.result
    assert (answer.response.fallback_model, answer.trace.fallback_used) == (SPARE.id, True)
    report = await house.router.traces.fallback_report()
    assert (report.reasons, report.passed_by) == ({"auth": 1, "circuit_open": 1}, {GOOD.id: 1})
