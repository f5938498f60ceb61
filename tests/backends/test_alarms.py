"""Alarms: asyncio deadlines that cancel natively. Every test leaves its task's cancellation count unchanged.

Needs only pytest and anyio. Each test runs on every kind of event loop, in an uncancelled task and in one that cleans
up after a cancellation.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import importlib.util
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from math import inf
from time import monotonic
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from routewright.backends.clock import (
    LONGEST_PAUSE_S,
    SWEEP_AFTER,
    Alarm,
    Alarms,
    ScopeDeadline,
    SystemClock,
    alarms_of,
)

HAS_UVLOOP, HAS_TRIO = (importlib.util.find_spec(name) is not None for name in ("uvloop", "trio"))
LOOPS = ["asyncio"]
if HAS_UVLOOP:
    LOOPS.append("uvloop")
if sys.version_info >= (3, 12):
    LOOPS.append("eager")
SOON, LATER = 0.004, 60.0

Body = Callable[["Here"], Awaitable[None]]
Run = Callable[[Body], None]


class Here:
    """What a body works with."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self.before = task.cancelling()

    def soon(self) -> Alarm:
        return self.after(SOON)

    def after(self, seconds: float) -> Alarm:
        made = self.clock.deadline(monotonic() + seconds)
        assert isinstance(made, Alarm)
        return made

    def shield(self, seconds: float = LATER) -> ScopeDeadline:
        made = self.clock.deadline(monotonic() + seconds, shield=True)
        assert isinstance(made, ScopeDeadline)
        return made

    @property
    def calls(self) -> int:
        """Calls of ``Task.cancel`` that stand."""
        return self.task.cancelling() - self.before


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    if kind == "uvloop":
        import uvloop

        made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return made
    loop = asyncio.new_event_loop()
    if kind == "eager" and sys.version_info >= (3, 12):
        loop.set_task_factory(asyncio.eager_task_factory)
    return loop


@pytest.fixture(params=[0, 1], ids=["", "leaving"])
def run(request: pytest.FixtureRequest, kind: str) -> Run:
    """Runs a body in a task, and sees that it leaves nothing behind."""

    async def main(body: Body, failed: list[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        for _ in range(request.param):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: failed.append(context))
        await body(Here())
        assert task.cancelling() == request.param
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.sleep(0.002)
        assert not alarms_of(loop).shields

    def run(body: Body) -> None:
        failed: list[Any] = []
        with asyncio.Runner(loop_factory=partial(new_loop, kind)) as runner:
            runner.run(main(body, failed))
        assert not failed

    return run


@pytest.fixture(params=LOOPS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def here(run: Run) -> Run:
    """Runs an asynchronous test of a class that is ``in_tasks``."""
    return run


def in_tasks(tests: type) -> type:
    """Have each asynchronous test of a class run in a task by ``run``."""

    def in_a_task(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(test)
        def made(self: Any, here: Run, **rest: Any) -> None:
            here(lambda given: test(self, given, **rest))

        return made

    for name, test in [*vars(tests).items()]:
        if name.startswith("test_") and asyncio.iscoroutinefunction(test):
            setattr(tests, name, in_a_task(test))
    return tests


@contextmanager
def raising(kind: type[BaseException], match: str | None = None) -> Iterator[pytest.ExceptionInfo[Any]]:
    """What a deadline inside lets through."""
    with pytest.raises(kind, match=match) as caught:
        yield caught


async def swallow(times: int, seconds: float = LATER) -> list[float]:
    """Wait on after so many cancellations; when they came."""
    came: list[float] = []
    while len(came) < times:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            came.append(monotonic())
    return came


@in_tasks
class TestTime:
    """Later is a store, earlier an entry of its own, infinity none."""

    async def test_moved_earlier_it_rings_at_the_new_time(self, here: Here) -> None:
        with here.after(LATER) as limit:
            limit.move(monotonic() + SOON)
            await asyncio.sleep(LATER)
        assert limit.expired

    async def test_moved_later_it_keeps_its_entry_and_rings_at_the_new_time(self, here: Here) -> None:
        later = monotonic() + 5 * SOON
        with here.soon() as limit:
            entry = limit.entry
            limit.move(later)
            assert limit.entry is entry
            await asyncio.sleep(LATER)
        assert limit.expired
        assert monotonic() >= later

    async def test_parked_past_its_time_and_resumed_it_rings(self, here: Here) -> None:
        with here.soon() as limit:
            limit.move(inf)
            await asyncio.sleep(3 * SOON)
            assert limit.entry is None
            assert alarms_of(here.loop).armed == inf
            resumed = monotonic() + SOON
            limit.move(resumed)
            await asyncio.sleep(LATER)
        assert limit.expired
        assert monotonic() >= resumed

    async def test_infinity_never_sets_a_timer(self, here: Here) -> None:
        with here.clock.deadline(inf) as limit, here.clock.deadline(inf, scoped=True) as scope:
            for each in (limit, scope):
                each.move(inf)
                assert each.entry is None
            await asyncio.sleep(0.002)
            limit.move(monotonic() + SOON)
            await asyncio.sleep(LATER)
        assert limit.expired
        assert not scope.expired

    @pytest.mark.parametrize("ago", [0.0, 5.0, inf])
    def test_in_the_past_it_rings_at_the_first_wait_even_if_another_is_due(self, run: Run, ago: float) -> None:
        async def behind_another(here: Here) -> None:
            with here.after(0.001) as outer:
                while monotonic() < outer.at:
                    pass
                with here.after(-ago):
                    await asyncio.sleep(0)
                    pytest.fail("it came behind the wait")
            assert outer.expired

        async def alone(here: Here) -> None:
            with here.after(-ago) as limit:
                await asyncio.sleep(0)
                pytest.fail("it came behind the wait")
            assert limit.expired

        run(alone)
        run(behind_another)

    async def test_exited_alarms_are_swept_and_set_no_timer(self, here: Here) -> None:
        alarms = alarms_of(here.loop)
        for n in range(4 * SWEEP_AFTER + 9):
            with here.clock.deadline(monotonic() + LATER * (1 + n % 3), scoped=n > 2 * SWEEP_AFTER):
                assert len(alarms) <= SWEEP_AFTER
        with here.soon():
            await asyncio.sleep(LATER)
        await asyncio.sleep(0.003)  # the one that has rung was to come again
        assert not alarms.entries
        assert alarms.armed == inf

    async def test_there_is_one_timer(self, here: Here) -> None:
        alarms, earlier = alarms_of(here.loop), list[asyncio.Handle]()
        with here.after(LATER):
            for seconds in (LATER / 2, LATER / 3, -1):
                assert alarms.timer is not None
                earlier += filter(None, [alarms.timer()])
                with here.after(seconds), suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            assert [timer.cancelled() for timer in earlier] == [True] * 3

    async def test_its_timer_holds_no_context(self, here: Here) -> None:
        request = contextvars.ContextVar[object]("request")
        request.set(here)

        def contexts() -> int:
            return sum(isinstance(each, contextvars.Context) and request in each for each in gc.get_objects())

        before = contexts()
        with here.after(SOON):
            assert contexts() == before

    async def test_entering_and_leaving_calls_three_functions(self, here: Here) -> None:
        entered: list[str] = []

        def note(frame: Any, event: str, arg: object) -> None:
            if event == "call":
                entered.append(frame.f_code.co_name)

        with here.after(LATER):  # which sets the timer
            sys.setprofile(note)
            with here.clock.deadline(monotonic() + 2 * LATER) as limit:
                limit.move(inf)
            sys.setprofile(None)
        assert entered == ["deadline", "__enter__", "move", "__exit__"]


@in_tasks
class TestOutside:
    """A cancellation from elsewhere wins, and one that nobody sent is left to those inside and around."""

    @pytest.mark.parametrize("first", ["alarm", "cancel"])
    @pytest.mark.parametrize("wait", ["future", "turn"])
    async def test_a_cancel_in_the_same_loop_iteration_wins(self, here: Here, first: str, wait: str) -> None:
        if first == "cancel":
            here.loop.call_soon(here.task.cancel)
        with raising(asyncio.CancelledError), here.after(-1) as limit:
            if first == "alarm":
                here.loop.call_soon(here.task.cancel)
            await (asyncio.sleep(0) if wait == "turn" else asyncio.sleep(LATER))
        assert here.calls == 1
        here.task.uncancel()
        assert not limit.expired

    async def test_a_cancel_while_the_task_unwinds_wins(self, here: Here) -> None:
        with raising(asyncio.CancelledError), here.soon() as limit:
            try:
                await asyncio.sleep(LATER)
            finally:
                here.loop.call_soon(here.task.cancel)
                await asyncio.sleep(0.01)
        assert here.calls == 1
        here.task.uncancel()
        assert not limit.expired

    async def test_a_cancel_called_before_and_raised_inside_wins(self, here: Here) -> None:
        here.task.cancel()
        with raising(asyncio.CancelledError), here.after(-1) as limit:
            await asyncio.sleep(LATER)
        here.task.uncancel()
        assert not limit.expired

    @pytest.mark.parametrize("first", ["alarm", "scope"])
    @pytest.mark.parametrize("wait", ["future", "turn"])
    async def test_a_scope_cancelled_in_the_same_loop_iteration_wins(self, here: Here, first: str, wait: str) -> None:
        with anyio.CancelScope() as scope:
            if first == "scope":
                scope.cancel()
            with here.after(-1) as limit:
                here.loop.call_soon(scope.cancel)
                await (asyncio.sleep(0) if wait == "turn" else asyncio.sleep(LATER))
            pytest.fail("the alarm swallowed the cancellation")
        assert scope.cancelled_caught
        assert not limit.expired

    @pytest.mark.parametrize("outer_scoped", [False, True])
    async def test_an_alarm_and_a_scope_due_together_expire_the_outer(self, here: Here, outer_scoped: bool) -> None:
        at = monotonic() + SOON
        with here.clock.deadline(at, scoped=outer_scoped) as outer:
            with here.clock.deadline(at, scoped=not outer_scoped) as inner:
                await asyncio.sleep(LATER)
            pytest.fail("the inner one swallowed the cancellation")
        assert (outer.expired, inner.expired) == (True, False)


@in_tasks
class TestUntilLeft:
    """A rung alarm rings again until it is left; all its rings are taken back."""

    @pytest.mark.parametrize("forward", [False, True])
    async def test_a_body_that_swallows_cancellations_is_cancelled_again(self, here: Here, forward: bool) -> None:
        begun = monotonic()
        with here.clock.deadline(begun + (2.3 * SOON if forward else SOON)) as limit:
            limit.move(begun + SOON)  # where it had a later entry, that is void when it comes up between the rings
            due = begun + SOON
            for calls in (1, 2, 3, 4):
                (came,) = await swallow(1)
                assert came >= due
                assert here.calls == calls
                assert limit.entry is not None
                due = limit.entry[0]
            await asyncio.sleep(LATER)
        assert limit.expired

    async def test_pauses_double_up_to_the_longest(self, here: Here) -> None:
        with here.after(LATER) as limit:
            now = monotonic() + 2 * LATER
            pauses = [limit.ring(now) - now for _ in range(9)]
            assert pauses == pytest.approx([0.001, 0.002, 0.004, 0.008, 0.016, 0.032, *[LONGEST_PAUSE_S] * 3])
            assert here.calls == 9
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(0)

    async def test_an_alarm_that_rang_cannot_be_moved_later(self, here: Here) -> None:
        with here.soon() as limit:
            await swallow(1)
            limit.move(monotonic() + LATER)
            await swallow(1)
            limit.move(inf)
            await asyncio.sleep(LATER)
        assert limit.expired

    async def test_a_body_may_uncancel_itself(self, here: Here) -> None:
        with here.soon() as limit:
            await swallow(1)
            here.task.uncancel()
        assert not limit.expired

    async def test_a_task_that_has_ended_is_not_rung_for_ever(self, here: Here) -> None:
        async def opened(here: Here) -> AsyncIterator[Alarm]:
            with here.soon() as limit:
                yield limit

        left = opened(here)
        other = here.loop.create_task(anext(left))  # type: ignore[arg-type, var-annotated]
        limit = await other
        await asyncio.sleep(3 * SOON)
        assert limit.entry is None
        assert alarms_of(here.loop).armed == inf
        await left.aclose()  # type: ignore[attr-defined]


async def stubborn(answer: str) -> str:
    """Swallows one cancellation, and answers."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(LATER)
    return answer


@in_tasks
class TestBodyEnds:
    """The alarm has rung, and the body ends in its own way."""

    @pytest.mark.parametrize("first", ["alarm", "result"])
    @pytest.mark.parametrize("leave", [False, True])
    async def test_with_a_result_in_the_same_loop_iteration(self, here: Here, first: str, leave: bool) -> None:
        """Where the wait is over already, the cancellation is raised in its place: it never stays pending."""

        result = here.loop.create_future()

        def give() -> None:
            if not result.done():
                result.set_result(None)

        if first == "result":
            here.loop.call_soon(give)
        reached: list[str] = []
        with here.after(-1) as limit:
            if first == "alarm":
                here.loop.call_soon(give)
            try:
                await result
                reached.append("result")
            except asyncio.CancelledError:
                reached.append("cancelled")
                if not leave:
                    raise
        assert reached == ["cancelled"]
        assert limit.expired == (not leave)

    async def test_with_an_error_and_a_cancel_by_another_task(self, here: Here) -> None:
        with raising(ValueError, match="mine"), here.soon():
            await stubborn("")
            here.loop.call_soon(here.task.cancel)
            await swallow(1)
            raise ValueError("mine")
        assert here.calls == 1
        here.task.uncancel()

    async def test_with_a_cancellation_that_nobody_sent(self, here: Here) -> None:
        invented = asyncio.CancelledError("mine")
        with raising(asyncio.CancelledError) as caught, here.after(LATER) as limit:
            raise invented
        assert caught.value is invented
        assert invented.args == ("mine",)
        assert not limit.expired


@in_tasks
class TestOwner:
    """An alarm is its task's and its loop's."""

    async def _open(self, here: Here, seconds: float) -> AsyncIterator[Alarm]:
        with here.after(seconds) as limit:
            yield limit

    async def test_exited_in_another_thread_it_does_not_touch_the_loop(self, here: Here) -> None:
        opened: Any = self._open(here, SOON)
        limit = await anext(opened)
        entries = [*alarms_of(here.loop).entries]

        def close() -> None:
            with suppress(StopIteration):
                opened.aclose().send(None)

        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        assert limit.entry is None
        assert alarms_of(here.loop).entries == entries
        await asyncio.sleep(3 * SOON)

    async def test_exited_in_another_loop_it_uncancels_nothing(self, here: Here) -> None:
        async def leave(opened: Any) -> None:
            with pytest.raises(asyncio.CancelledError):
                await opened.athrow(asyncio.CancelledError())

        opened = self._open(here, SOON)
        limit = await anext(opened)
        await swallow(1)
        thread = threading.Thread(target=asyncio.run, args=[leave(opened)])
        thread.start()
        thread.join()
        assert limit.entry is None
        assert here.calls == 1
        here.task.uncancel()
        assert not limit.expired

    async def test_exited_in_another_task_it_uncancels_but_swallows_nothing(self, here: Here) -> None:
        async def leave(opened: Any) -> None:
            with pytest.raises(asyncio.CancelledError):
                await opened.athrow(asyncio.CancelledError())

        opened = self._open(here, SOON)
        limit = await anext(opened)
        await swallow(7)  # the next is 50 ms away
        assert here.calls == 7
        await here.loop.create_task(leave(opened))
        assert not limit.expired
        assert here.calls == 0

    @pytest.mark.skipif(not HAS_TRIO, reason="needs trio")
    def test_trio_as_a_guest_of_a_loop_uses_scopes(self, kind: str) -> None:
        import trio

        clock, expired = SystemClock(), list[bool]()

        async def guest() -> None:
            with clock.deadline(monotonic() + SOON) as limit:
                await trio.sleep(LATER)
            expired.append(limit.expired)
            with clock.deadline(inf) as limit:
                limit.move(monotonic() + SOON)
                await trio.sleep(LATER)
            expired.append(limit.expired)

        async def host() -> None:
            with clock.deadline(monotonic() + LATER):  # there is a heap
                over = asyncio.get_running_loop().create_future()
                trio.lowlevel.start_guest_run(
                    guest,
                    run_sync_soon_threadsafe=asyncio.get_running_loop().call_soon_threadsafe,
                    done_callback=lambda outcome: over.set_result(outcome.unwrap()),
                    host_uses_signal_set_wakeup_fd=True,
                )
                await over

        with asyncio.Runner(loop_factory=partial(new_loop, kind)) as runner:
            runner.run(host())
        assert expired == [True, True]


@in_tasks
class TestShield:
    """A shield holds back what was entered before it, until it is left."""

    @pytest.mark.parametrize("rung", [False, True])
    async def test_an_alarm_around_a_shield_rings_when_the_shield_is_exited(self, here: Here, rung: bool) -> None:
        done: list[str] = []
        with here.soon() as limit:
            if rung:
                await swallow(1)
            with here.shield() as shield:
                await asyncio.sleep(4 * SOON)
                done.append("clean-up")
            await asyncio.sleep(0)
            done.append("behind")
        assert done == ["clean-up"]
        assert (limit.expired, shield.expired) == (True, False)

    async def test_an_alarm_inside_a_shield_rings(self, here: Here) -> None:
        with here.shield() as shield, here.soon() as limit:
            await asyncio.sleep(LATER)
        assert (limit.expired, shield.expired) == (True, False)

    async def test_nested_shields_and_those_of_other_clocks_hold_it_back(self, here: Here) -> None:
        with here.soon() as limit:
            with here.shield():
                with SystemClock().deadline(monotonic() + LATER, shield=True):
                    await asyncio.sleep(2 * SOON)
                await asyncio.sleep(2 * SOON)
            await asyncio.sleep(LATER)
        assert limit.expired

    async def test_a_shield_of_another_task_holds_nothing_back(self, here: Here) -> None:
        async def clean_up(here: Here) -> None:
            with here.shield():
                await asyncio.sleep(LATER)

        with here.soon() as limit:
            other = here.loop.create_task(clean_up(here))
            await asyncio.sleep(0)
            await asyncio.sleep(LATER)
        assert limit.expired
        assert not other.done()
        other.cancel()
        await asyncio.wait([other])


async def fail() -> None:
    try:
        await asyncio.sleep(LATER)
    finally:
        raise ValueError("mine")


@in_tasks
class TestNeighbours:
    """Everything else that counts cancellations, inside an alarm and around it."""

    async def test_around_a_task_group_whose_task_fails_as_it_is_cancelled(self, here: Here) -> None:
        """On 3.13 the group cancels its parent once more: taken back with the rings, where nobody else has cancelled.

        In a task that was cancelled before it stays pending, as it does without an alarm: one turn raises it.
        """

        with raising(BaseExceptionGroup) as caught, here.soon() as limit:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.sleep(LATER)
        assert [type(error) for error in caught.value.exceptions] == [ValueError]
        assert not limit.expired
        assert here.calls == 0
        if here.before and sys.version_info >= (3, 13):
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(0)

    async def test_in_a_task_of_a_cancelled_group(self, here: Here) -> None:
        async def wait(limit: Alarm, ended: list[str]) -> None:
            try:
                with limit:
                    await asyncio.sleep(LATER)
                ended.append("expired")
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        ended: list[str] = []
        async with anyio.create_task_group() as group:
            limits = [here.after(LATER), here.after(SOON)]
            for limit in limits:
                group.start_soon(wait, limit, ended)
            await asyncio.sleep(0)
            while monotonic() < limits[1].at:
                pass
            group.cancel_scope.cancel()  # before the loop comes to the second alarm
        assert ended == ["cancelled", "cancelled"]
        assert not any(limit.expired for limit in limits)

    @pytest.mark.parametrize(("outer", "inner"), [(SOON, LATER), (LATER, SOON), (SOON, SOON)])
    @pytest.mark.parametrize("around", ["timeout", "scope", "alarm"])
    def test_with_timeouts_of_other_libraries(self, run: Run, outer: float, inner: float, around: str) -> None:
        """The outer one of two that have run out expires; with different times the sooner one."""

        async def others(here: Here, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
            if around == "timeout":
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds) as timeout:
                        await work()
                return timeout.expired()
            if around == "scope":
                with anyio.move_on_after(seconds) as scope:
                    await work()
                return scope.cancelled_caught
            with here.after(seconds) as limit:
                await work()
            return limit.expired

        async def body(here: Here) -> None:
            at = monotonic()
            seen: list[bool] = []

            async def alarmed() -> None:
                limit = here.clock.deadline(at + inner)
                try:
                    with limit:
                        while monotonic() < at + min(inner, outer) + 0.005:
                            pass  # so that both have run out in one turn, if they do
                        await asyncio.sleep(LATER)
                finally:
                    seen.append(limit.expired)

            assert await others(here, outer, alarmed) == (outer <= inner)
            assert seen == [inner < outer]

        run(body)
        if around == "alarm":
            return

        async def inside_out(here: Here) -> None:
            seen: list[bool] = []
            with here.after(outer) as limit:

                async def work() -> None:
                    await asyncio.sleep(LATER)

                seen.append(await others(here, inner, work))
            assert limit.expired == (outer < LATER and not seen)
            if inner < outer:
                assert seen == [True]

        run(inside_out)


def test_a_loop_that_ended_in_an_alarm_is_not_kept(kind: str) -> None:
    """A task that is dropped with its loop leaves its alarm at some later time, wherever that is."""
    clock = SystemClock()

    async def main() -> Alarm:
        limit = clock.deadline(monotonic() + LATER)
        assert isinstance(limit, Alarm)

        async def wait() -> None:
            with limit:
                await asyncio.sleep(LATER)

        asyncio.get_running_loop().create_task(wait())
        await asyncio.sleep(0)
        assert limit.entry is not None
        return limit

    with asyncio.Runner(loop_factory=partial(new_loop, kind)) as runner:
        limit = runner.run(main())
    assert limit.entry is None
    assert isinstance(limit.alarms, Alarms)
    assert not limit.expired
