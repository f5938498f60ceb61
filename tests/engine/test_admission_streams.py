"""Unclosed streams and host-made calls, cancelled at every await: nothing stays reserved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest

from routewright import Router
from routewright._engine.request_input import RawRequest
from routewright._engine.steps import HostedProgress, begin
from routewright.errors import UpstreamFailed
from routewright.testing.provider import Pause
from routewright.wire import Delta, OutputDelta

from .test_admission import ACME, ANSWER, CAP, Bank, account
from .test_cancel_admission import SCENES, cancelled, step_of

pytestmark = pytest.mark.anyio
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
    begun = await begin(engine, read, hold, router._parts.hosted("production"))
    assert isinstance(begun, HostedProgress)
    begun.advance()
    begun.feed([chunk for chunk in ANSWER if not isinstance(chunk, str)])  # type: ignore[misc]
    call = begun.call
    engine.records.conclude(call, begun)
    await engine.leave(call, hold)


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


async def test_a_dropped_stream_releases_its_money_without_another_call() -> None:
    bank = Bank([Delta("some words"), Pause(100.0)], terms=[account(monthly_nanos=10**9)])
    bank.behind()
    await bank.open()
    stream = bank.router.stream("hi", caller=ACME, params=CAP)
    while not isinstance(await anext(stream), OutputDelta):
        pass
    assert (await bank.purse())[2] > 0
    del stream
    await bank.clock.sleep(1.0)
    (row,) = await bank.rows()
    assert await bank.purse() == (10**9, row.charge_nanos, 0)
