"""Calls cancelled at every await, also in pauses, fallbacks and probes: no leaks, and the Router still works."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple

import anyio
import pytest

from routewright._core.attempts.breaker import State

from .chaos_matrix import Pair

pytestmark = pytest.mark.anyio


class CancelAt:
    """Awaits something, and cancels the scope around it as it waits for the ``at``-th time."""

    def __init__(self, awaited: Awaitable[Any], at: int, scope: anyio.CancelScope) -> None:
        self._awaited = awaited
        self._at = at
        self._scope = scope
        self.waited = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._awaited.__await__()
        resume: Callable[[Any], Any] = inner.send
        given: Any = None
        while True:
            try:
                waits_for = resume(given)
            except StopIteration as done:
                return done.value
            self.waited += 1
            if self.waited == self._at:
                self._scope.cancel()
            try:
                resume, given = inner.send, (yield waits_for)
            except BaseException as error:
                resume, given = inner.throw, error


class Scene(NamedTuple):
    """What is going on as the call is made."""

    good: Any = ()
    spare: Any = ()
    half_open: bool = False


SCENES = {
    "a pause before a second try": Scene(["rate_limited_second", None]),
    "a second try over a broken stream": Scene(["reset_mid_body", "stall_mid_answer"]),
    "a fallback": Scene("silent", ["server_error", None]),
    "the last of the chain": Scene("connect_refused", "stall_mid_answer"),
    "the body of an error": Scene(["error_body_stalls", None]),
    "a connection being made": Scene("handshake_stall"),
    "a probe that fails": Scene("unavailable", half_open=True),
    "a probe that is silent": Scene([*["unavailable"] * 5, "silent"], half_open=True),
    "a probe that succeeds": Scene(["unavailable"] * 5, half_open=True),
    "an answer": Scene(),
}


async def plain(pair: Pair) -> None:
    await pair.router.route("hi", goal="quality")


async def events(pair: Pair) -> None:
    async with pair.router.stream("hi", goal="quality") as stream:
        async for _ in stream:
            pass


async def text(pair: Pair) -> None:
    async with pair.router.stream("hi", goal="quality") as stream:
        async for _ in stream.text():
            pass


async def many(pair: Pair) -> None:
    await pair.router.route_many(["hi", "ho", "ha"], limit=2, goal="quality")


async def read_back(pair: Pair) -> None:
    trace_id = (await pair.router.route("hi", goal="quality")).trace_id
    await pair.router.feedback(trace_id, 1.0)
    await pair.router.trace(trace_id)


async def flushed(pair: Pair) -> None:
    await plain(pair)
    await pair.router.flush()


async def closed(pair: Pair) -> None:
    await plain(pair)
    await pair.router.aclose()


CALLS: list[Callable[[Pair], Awaitable[None]]] = [plain, events, text, many, read_back, flushed, closed]


@pytest.mark.parametrize("scene", SCENES.values(), ids=list(SCENES))
@pytest.mark.parametrize("call", CALLS)
async def test_cancelled_at_any_await_a_call_leaves_nothing(
    scene: Scene, call: Callable[[Pair], Awaitable[None]], full: bool
) -> None:
    at, step = (0, 1) if full else (-(CALLS.index(call) % 2), 2)  # odd awaits of one call, even ones of the next
    runs = caught = 0
    waited = 1
    while waited >= at:
        at += step
        waited, was_caught = await cancelled(scene, call, at)
        runs, caught = runs + 1, caught + was_caught
    assert caught >= min(runs - 2, 3), "it was cancelled, indeed"


async def cancelled(scene: Scene, call: Callable[[Pair], Awaitable[None]], at: int) -> tuple[int, bool]:
    """Make the call, and cancel it as it waits for the ``at``-th time. How often it waited, and whether it ended so."""
    tasks = running()
    pair = Pair(scene.good, scene.spare)
    if scene.half_open:
        for _ in range(3):
            await plain(pair)
        await pair.clock.advance(10.0)
    with anyio.CancelScope() as scope:
        awaited = CancelAt(outcome(call(pair)), at, scope)
        await awaited
    assert pair.left_open == 0, at
    assert State.HALF_OPEN not in states(pair), at
    await pair.router.aclose()
    await anyio.lowlevel.checkpoint()
    await pair.clock.advance(3.0)
    assert running() <= tasks, at
    return awaited.waited, scope.cancelled_caught


async def outcome(call: Awaitable[None]) -> None:
    """Whatever becomes of it, but a cancellation."""
    try:
        await call
    except Exception:
        return


def states(pair: Pair) -> set[State]:
    """Those of the circuits of the fleet; none once the Router is closed."""
    return {
        circuit.state
        for fleet in pair.router._parts.fleets()
        for circuit in (*fleet.circuits._models.values(), *fleet.circuits._credentials.values())
    }


def running() -> int:
    """Tasks that are alive."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        import trio

        return trio.lowlevel.current_statistics().tasks_living
