"""Calls cancelled at every await, in any state of the storage: nothing stays reserved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from routewright import Catalogue, MemoryStorage, ProviderFault, Router, Settings
from routewright._engine.execute import Execution
from routewright._engine.request_input import RawRequest
from routewright._engine.steps import Steps, begin
from routewright.errors import UpstreamFailed
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Pause
from routewright.wire import Caller, LedgerRows, PutAccount, RateLimits, Stands

from .account_router import ACME, ANSWER, CAP, ONE, SPARE, account
from .faulty_storage import Behind
from .test_cancellation_points import CancelAt

pytestmark = pytest.mark.anyio


def slow(clock: FakeClock) -> Behind:
    """A storage that takes its time before whatever it does."""
    storage = Behind(MemoryStorage(clock=clock), clock)
    storage.takes_s = 0.01
    return storage


async def plain(router: Router) -> None:
    await router.route("hi", caller=ACME, params=CAP, goal="quality", idempotency_key="k")


async def stream(router: Router) -> None:
    async with router.stream("hi", caller=ACME, params=CAP, goal="quality", idempotency_key="k") as stream:
        async for _ in stream:
            pass


async def many(router: Router) -> None:
    await router.route_many(["hi"], caller=ACME, params=CAP, goal="quality", budget={"maxCostUsd": 1.0})


async def joined(router: Router) -> None:
    """Two with one key: one waits for the other."""
    async with anyio.create_task_group() as group:
        group.start_soon(plain, router)
        group.start_soon(plain, router)


SCENES: dict[str, tuple[Any, Any]] = {
    "an answer": ([[Pause(0.5), *ANSWER]], []),
    "a fallback": ([[Pause(0.1), ANSWER[0], ANSWER[1], ProviderFault("auth")]], [[Pause(0.1), *ANSWER]]),
    "a failure": ([[Pause(0.1), ProviderFault("request")]] * 2, []),
}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("call", [plain, stream, many, joined])
async def test_cancelled_at_any_await_a_call_leaves_nothing_taken(
    call: Callable[[Router], Awaitable[None]], scene: str, full: bool
) -> None:
    at, step = (0, 1) if full else (-([*SCENES].index(scene) % 2), 2)  # odd awaits of one scene, even ones of the next
    waited = 1
    while waited >= at:
        at += step
        waited = await cancelled(call, scene, at)
    assert at > 1


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("call", [plain, stream, many, joined])
async def test_cancelled_at_any_time_a_call_leaves_nothing_taken(
    call: Callable[[Router], Awaitable[None]], scene: str, full: bool
) -> None:
    steps, step_s = 0, step_of(full)
    while await cancelled(call, scene, 10**9, after_s=steps * step_s):
        steps += 1
    assert steps > (3 if full else 1)


def step_of(full: bool) -> float:
    """Seconds from one cancellation to the next. Nothing that a call waits for is shorter than 0.01 s."""
    return 0.005 if full else 0.05


async def cancelled(
    call: Callable[[Router], Awaitable[None]], scene: str, at: int, *, after_s: float | None = None
) -> int:
    """Cancel a call as it waits for the ``at``-th time. Says how often it waited in all; 0: it ended before
    ``after_s``."""
    clock = FakeClock()
    storage = slow(clock)
    terms: PutAccount = account(monthly_nanos=10**9, limits=RateLimits(concurrency=2, tokens_per_min=10_000))
    await storage.kept.apply("acme", [terms])
    good, spare = SCENES[scene]
    again = [ANSWER] * 3
    router = Router(
        providers=[
            ScriptedProvider([*good, *again], models=[ONE], clock=clock),
            ScriptedProvider([*spare, *again], models=[SPARE], clock=clock),
        ],
        catalogue=Catalogue(()),
        storage=storage,
        settings=Settings(clock=clock),
    )
    ends = clock.monotonic() + (10**9 if after_s is None else after_s)
    with clock.deadline(ends) as limit, anyio.CancelScope() as scope:
        driver = CancelAt(call(router), at, scope)
        try:
            await driver
        except (Exception, BaseExceptionGroup):  # of the provider; what counts is what is left
            assert scene == "a failure"
    await clock.sleep(1.0)
    await router.flush()
    found = await storage.kept.read("acme", Stands("2026-01-01T00:00:00.000Z"))
    charged = sum(row.charge_nanos for row in await storage.scan("acme", LedgerRows(), after=None, limit=100))
    assert {purse.spent_nanos for purse in found.purses} == {charged}, at
    assert all(purse.reserved_nanos == 0 for purse in found.purses), at
    async with anyio.create_task_group() as group:  # as many as there are slots, and none has another's key
        for _ in range(2):
            group.start_soon(other, router)
    await router.aclose()
    return 0 if after_s is not None and not limit.expired else driver.waited


async def other(router: Router) -> None:
    answer = await router.route("another", caller=Caller("acme"), params=CAP)
    assert answer.output == "an answer"


# Streams that are not closed, and hosted calls


Call = Callable[[Router], Awaitable[None]]


async def bare(router: Router) -> None:
    async for _ in router.stream("hi", caller=ACME, params=CAP, goal="quality", idempotency_key="k"):
        pass


async def text(router: Router) -> None:
    with suppress(UpstreamFailed):  # text cannot be taken back
        async for _ in router.stream("hi", caller=ACME, params=CAP, goal="quality", idempotency_key="k").text():
            pass


async def lingering(router: Router) -> None:
    """Waits for something else between two pieces: cancelled there, the stream is dropped."""
    async for _ in router.stream("hi", caller=ACME, params=CAP, goal="quality", idempotency_key="k"):
        await anyio.lowlevel.checkpoint()


async def closed(router: Router) -> None:
    """Read by one task, and closed by another before its end."""
    stream = router.stream("hi", caller=ACME, params=CAP, goal="quality", idempotency_key="k")

    async def read() -> None:
        async for _ in stream:
            pass

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await router._parts.settings.clock.sleep(0.3)
        await stream.aclose()


async def hosted(router: Router) -> None:
    """What ``Steps`` do, where what they wait for may be cancelled."""
    engine, read = router._parts.engine, RawRequest("hi", {"params": CAP, "idempotency_key": "k"}).read()
    hold = engine.admissions.begin(read, ACME)
    assert hold is not None, "its caller is limited"
    execution = await begin(engine, read, hold, router._parts.hosted("production"))
    assert isinstance(execution, Execution)
    steps = Steps(engine, execution, lambda _: None)
    steps.next()
    steps.feed([chunk for chunk in ANSWER if not isinstance(chunk, str)])  # type: ignore[misc]
    await engine.leave(execution.call, hold)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("call", [bare, text, lingering, closed])
async def test_cancelled_at_any_await_an_unclosed_stream_holds_nothing(call: Call, scene: str) -> None:
    assert await awaits(call, scene) > 1


async def test_cancelled_at_any_await_steps_hold_nothing() -> None:
    assert await awaits(hosted, "an answer") > 1


@pytest.mark.parametrize("call", [bare, hosted])
async def test_cancelled_at_any_time_nothing_stays_taken(call: Call, full: bool) -> None:
    steps, step_s = 0, step_of(full) / 2  # these calls wait less
    while await cancelled(call, "an answer", 10**9, after_s=steps * step_s):
        steps += 1
    assert steps > (5 if full else 1)


async def awaits(call: Call, scene: str) -> int:
    """Cancel a call at each of its awaits; says how many there were."""
    at, waited = 0, 1
    while waited >= at:
        at += 1
        waited = await cancelled(call, scene, at)
    return at
