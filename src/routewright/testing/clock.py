"""A virtual clock for tests: hours of waiting pass in milliseconds, in a deterministic order.

Time stands still while any task can run. When all tasks wait, it moves to the next timer.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel

from routewright._runtime.fork import Guard
from routewright._runtime.loop import this_loop

if TYPE_CHECKING:
    import trio

START = 1_767_225_600.0  # 2026-01-01T00:00:00Z
QUIET_PASSES = 5  # for loops that hide their ready callbacks: all tasks must be seen waiting this often in a row


class FakeClock:
    """Virtual time for asyncio and trio. Pass it as a ``Clock``; background work then runs in your loop.

    ``monotonic()`` starts at 0, ``time()`` at ``start`` (Unix seconds). Time moves by itself when every task waits;
    with ``autojump=False`` only ``advance`` and ``jump`` move it. Waits that end at the same moment end in the order in
    which they started, each once the tasks woken by the previous one wait again.

    Tasks that wait for a real socket, process or thread do not hold time back: use ``autojump=False`` with them. A
    clock may serve several loops, in turn or in several threads; they share the time, but each loop knows only its own
    tasks.

    >>> clock = FakeClock()
    >>> anyio.run(clock.sleep, 5 * 3600)
    >>> clock.monotonic()
    18000.0
    """

    virtual = True
    """No thread can wait for this clock."""

    def __init__(self, start: float = START, *, autojump: bool = True) -> None:
        self.autojump = autojump
        self._start = start
        self._now = 0.0
        self._order = itertools.count()
        self._schedules: dict[object, Schedule] = {}
        self._guard = Guard()

    def time(self) -> float:
        """Unix seconds."""
        return self._start + self._now

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait for virtual time to pass. Zero or less lets other tasks run once."""
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        woken = anyio.Event()
        timer = self._set_timer(self._now + seconds, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()

    def deadline(self, at: float, *, shield: bool = False, scoped: bool = False) -> FakeDeadline:
        """Make a scope that is cancelled at ``at`` on the ``monotonic`` scale; with ``shield``, by nothing else."""
        return FakeDeadline(self, at, shield)

    async def advance(self, seconds: float) -> None:
        """Move time by ``seconds``, firing timers on the way, until all tasks wait again.

        Never returns if a task never waits.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"time cannot be advanced by {seconds} seconds; pass a finite number, zero or more")
        schedule = self._schedule()
        target = self._now + seconds
        with schedule.held():
            await schedule.settle()
            while schedule.next_at() <= target:
                self._move(schedule.next_at(), schedule)
                await schedule.settle()
            self._move(target, schedule)

    async def jump(self) -> bool:
        """Move time to the next timer, and let tasks run. False if there is none."""
        schedule = self._schedule()
        with schedule.held():
            await schedule.settle()
            if schedule.next_at() == math.inf:
                return False
            self._move(schedule.next_at(), schedule)
            await schedule.settle()
        return True

    def _set_timer(self, at: float, action: Callable[[], object]) -> Timer:
        timer = Timer(action)
        if at < math.inf:
            self._schedule().add(at, next(self._order), timer)
        return timer

    def _move(self, at: float, mover: Schedule) -> None:
        with self._guard.lock:
            self._now = max(self._now, at)
            other_schedules = [schedule for schedule in self._schedules.values() if schedule is not mover]
        for schedule in other_schedules:
            schedule.wake()

    def _schedule(self) -> Schedule:
        key: Any = this_loop()
        schedule = self._schedules.get(key)
        if schedule is None:
            kind = AsyncioSchedule if isinstance(key, asyncio.AbstractEventLoop) else TrioSchedule
            with self._guard.lock:  # drop loops that ended with timers set
                self._schedules = {key: other for key, other in self._schedules.items() if other.wake()}
                schedule = self._schedules[key] = kind(self, key)
        return schedule


class FakeDeadline:
    """The ``Deadline`` of virtual time. If nested ones have both run out, the outer one swallows the cancellation."""

    def __init__(self, clock: FakeClock, at: float, shield: bool) -> None:
        self._clock = clock
        self._at = at
        self._scope: anyio.CancelScope
        self._shield = shield
        self._timer: Timer | None = None
        self.expired = False

    def __enter__(self) -> Self:
        self._scope = anyio.CancelScope(shield=self._shield)
        if self._at > self._clock.monotonic():
            self._timer = self._clock._set_timer(self._at, self._scope.cancel)
        else:
            self._scope.cancel()
        self._scope.__enter__()
        return self

    def move(self, at: float) -> None:
        """Change the deadline."""
        self._at = at
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = self._clock._set_timer(at, self._scope.cancel)

    def __exit__(self, *raised: Any) -> bool | None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            return self._scope.__exit__(*raised)
        finally:
            self.expired = self._scope.cancelled_caught


class Timer:
    """An action at a time, unless cancelled before."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        """Drop the action. Safe to call twice."""
        self.action = None


class Schedule(ABC):
    """The timers of one event loop, and the watch that detects when all its tasks wait."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._timers: list[tuple[float, int, Timer]] = []  # a heap
        self._settling: list[anyio.Event] = []
        self._holds = 0
        self._watching = False

    def add(self, at: float, order: int, timer: Timer) -> None:
        """Set a timer for a finite time."""
        heappush(self._timers, (at, order, timer))
        self.watch()

    def next_at(self) -> float:
        """When the next timer goes off; infinity if none is set."""
        while self._timers and self._timers[0][2].action is None:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else math.inf

    async def settle(self) -> None:
        """Wait until nothing is due and every other task waits."""
        settled = anyio.Event()
        self._settling.append(settled)
        self.watch()
        await settled.wait()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep time from moving by itself."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self.watch()

    def watch(self) -> None:
        """Start to watch for all tasks to wait, if there is anything to do then."""
        if not self._watching and self._is_needed():
            self._watching = True
            self._start_watch()

    def act_when_idle(self) -> bool:
        """All tasks wait: do the next thing. False: nothing is left to do, so the watch ends."""
        if self.next_at() <= self._clock.monotonic():
            self._fire()
        elif self._settling:
            settling, self._settling = self._settling, []
            for settled in settling:
                settled.set()
        elif self._may_jump():
            self._clock._move(self.next_at(), self)
            self._fire()
        self._watching = self._is_needed()
        return self._watching

    @abstractmethod
    def wake(self) -> bool:
        """Look again at what is due; from any thread. False if the loop is gone."""

    @abstractmethod
    def _start_watch(self) -> None: ...

    def _is_needed(self) -> bool:
        return bool(self._settling) or self.next_at() <= self._clock.monotonic() or self._may_jump()

    def _may_jump(self) -> bool:
        return self._clock.autojump and not self._holds and self.next_at() < math.inf

    def _fire(self) -> None:
        timer = heappop(self._timers)[2]
        if timer.action is not None:
            timer.action()
            timer.cancel()


class AsyncioSchedule(Schedule):
    """Watches by callbacks that look at what else the loop is about to run, one a pass."""

    def __init__(self, clock: FakeClock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(clock)
        self._loop = loop
        self._quiet_passes = 0

    def wake(self) -> bool:
        """Look again at what is due; from any thread. False if the loop is gone."""
        try:
            self._loop.call_soon_threadsafe(self.watch)
        except RuntimeError:  # closed
            return False
        return True

    def _start_watch(self) -> None:
        self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        if self._is_busy() or self.act_when_idle():
            self._loop.call_soon(self._pass)

    def _is_busy(self) -> bool:
        # this callback was queued before the loop polled, so what the poll found is queued behind it
        ready = getattr(self._loop, "_ready", None)
        if ready is not None:
            return any(
                not isinstance(getattr(handle._callback, "__self__", None), AsyncioSchedule) for handle in tuple(ready)
            )
        waiters = [getattr(task, "_fut_waiter", None) for task in asyncio.all_tasks(self._loop)]
        waiting = all(waiter is not None and not waiter.done() for waiter in waiters)
        self._quiet_passes = self._quiet_passes + 1 if waiting else 0
        if self._quiet_passes < QUIET_PASSES:
            return True
        self._quiet_passes = 0
        return False


class TrioSchedule(Schedule):
    """Watches by a system task."""

    def __init__(self, clock: FakeClock, token: trio.lowlevel.TrioToken) -> None:
        import trio.testing

        super().__init__(clock)
        self._trio = trio
        self._token = token

    def wake(self) -> bool:
        """Look again at what is due; from any thread. False if the run is over."""
        try:
            self._token.run_sync_soon(self.watch, idempotent=True)
        except self._trio.RunFinishedError:
            return False
        return True

    def _start_watch(self) -> None:
        self._trio.lowlevel.spawn_system_task(self._watch)

    async def _watch(self) -> None:
        with self._trio.CancelScope(shield=True):  # clean-up at the end of the run may still sleep
            while True:
                await self._trio.testing.wait_all_tasks_blocked()
                if not self.act_when_idle():
                    return
