"""The system clock and its deadlines. On asyncio, a heap holds the deadlines and one timer fires for the soonest."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import weakref
from asyncio import CancelledError, get_running_loop
from contextvars import Context
from heapq import heapify, heappop, heappush
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, Self

import anyio

from routewright._runtime.loop import current_task, this_task

LONGEST_WAIT_S = 86_400.0  # loops cap, refuse or wrap very long delays, so a later deadline takes several timers
SHORTEST_WAIT_S = 0.001  # uvloop has millisecond timers: a shorter wait would spin
SWEEP_AFTER = 64


class PendingDeadline(Protocol):
    """A pending deadline."""

    entry: Entry | None
    """Its entry in the heap, never later than the deadline. Any other entry for it is void."""

    def ring(self, now: float) -> float:
        """Cancel the body if the deadline has passed. Returns when to ring again, or infinity for never."""
        ...


Entry = tuple[float, int, PendingDeadline]
"""Time, tie-breaker and deadline."""
ErrorType = type[BaseException]


class Alarms:
    """The deadlines of one asyncio loop, in a heap with one timer. Use it only from the loop's thread."""

    __slots__ = ("armed", "entries", "loop", "order", "room", "scope", "shields", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)
        self.entries: list[Entry] = []  # a heap
        self.armed = inf
        """The time the timer is set for."""
        self.timer: weakref.ref[asyncio.Handle] | None = None
        """A weak reference, because the handle references the loop."""
        self.room = SWEEP_AFTER
        """Void entries are removed once there are more entries than this."""
        self.order = itertools.count()
        self.scope = type(anyio.CancelScope())
        """The concrete scope class. ``anyio.CancelScope`` looks it up each time, for two thirds of a scope's cost."""
        self.shields = weakref.WeakKeyDictionary[asyncio.Task[object], list[ScopeDeadline]]()
        """The shields each task is in, innermost last."""

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, at: float, alarm: PendingDeadline) -> None:
        """Ring ``alarm`` at ``at`` instead of its current time. A time in the past means as soon as possible."""
        alarm.entry = entry = (at, next(self.order), alarm)
        heappush(self.entries, entry)
        if at < self.armed:
            self.arm(at)
        if len(self.entries) > self.room:
            self.sweep()

    def sweep(self) -> None:
        """Remove void entries: their deadline was exited, or has a newer entry."""
        self.entries[:] = [entry for entry in self.entries if entry[2].entry is entry]
        heapify(self.entries)
        self.room = max(SWEEP_AFTER, 2 * len(self.entries))

    def arm(self, at: float) -> None:
        """Set the timer, replacing the current one."""
        if (loop := self.loop()) is None:
            return
        before = None if self.timer is None else self.timer()
        if before is not None:
            before.cancel()
        self.armed = at
        # a delay, because the loop's clock may differ; an empty context, because a timer would keep a request's alive
        delay = at - monotonic()
        if delay > 0:
            delay = min(max(delay, SHORTEST_WAIT_S), LONGEST_WAIT_S)
            self.timer = weakref.ref(loop.call_later(delay, self._ring, context=Context()))
        else:
            self.timer = weakref.ref(loop.call_soon(self._ring, context=Context()))

    def _ring(self) -> None:
        # One timer serves all deadlines, so it rings for whichever is first, and most of those are void: their call
        # ended or moved its deadline. Arming it inside the loop, as `add` does, would set a timer for each of them;
        # `armed` at minus infinity keeps `add` from it until the end. An alarm may ring without effect, because the
        # body swallows cancellations: it says when to ring again, and goes back into the heap rather than to a timer of
        # its own. The `finally` arms the next one even if an alarm raises, else no later deadline of this loop would
        # ever hold (P5: the deadline bounds the whole call). See test_there_is_one_timer,
        # test_exited_alarms_are_swept_and_set_no_timer and test_a_body_that_swallows_cancellations_is_cancelled_again.
        now = monotonic()
        entries = self.entries
        self.armed = -inf
        try:
            while entries and (entries[0][0] <= now or entries[0][2].entry is not entries[0]):
                entry = heappop(entries)
                alarm = entry[2]
                if alarm.entry is entry:
                    alarm.entry = None
                    again = alarm.ring(now)
                    if again < inf:
                        self.add(again, alarm)
        finally:
            self.armed = inf
            if entries:
                self.arm(entries[0][0])


def alarms_of(loop: asyncio.AbstractEventLoop) -> Alarms:
    """Get or create the alarms of the loop that runs in this thread."""
    alarms = here.alarms
    if alarms is None or alarms.loop() is not loop:
        here.alarms = alarms = Alarms(loop)
    return alarms


class _Here(threading.local):
    """The alarms of this thread's last loop, shared by all clocks because a shield holds back all alarms."""

    alarms: Alarms | None = None


here = _Here()

LONGEST_PAUSE_S = 0.05
"""The longest pause before an alarm whose body still runs rings again. Pauses start at ``SHORTEST_WAIT_S`` and
double."""


FIRST_LOOK_S = 0.5
"""The longest time until an alarm's first heap entry is due, even for a later deadline. Most calls end before it, and a
deadline moved forward needs a second entry only if the new time is earlier than this."""


class SystemClock:
    """Real time, for asyncio, uvloop and trio. One object serves every thread and event loop.

    >>> clock = SystemClock()
    >>> clock.monotonic() <= clock.monotonic()
    True
    """

    virtual = False

    # called about ten times per request, so without a Python frame
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        """Wait. Zero or less yields to other tasks once."""
        await anyio.sleep(max(seconds, 0.0))

    def deadline(self, at: float, *, shield: bool = False, scoped: bool = False) -> Alarm | ScopeDeadline:
        """Create a deadline that cancels its body at ``at`` on the ``monotonic`` scale, at most 1 ms late.

        With ``shield``, enclosing scopes and deadlines cannot cancel the body; ``asyncio.Task.cancel`` still can. On
        asyncio the deadline cancels the task itself, even through cancel scopes with a shield inside it, unless
        ``scoped``. On trio it is always a cancel scope.
        """
        if shield or scoped:
            return ScopeDeadline(at, shield=shield)
        alarm = Alarm()
        alarm.at = at
        alarm.expired = False
        return alarm


class Alarm:
    """The ``Deadline`` of an asyncio task, made by ``SystemClock.deadline``. Belongs to the task that enters it.

    If nested deadlines have both passed, the outer one expires.
    """

    __slots__ = ("_baseline", "_instead", "_order", "_rings", "_task", "alarms", "at", "entry", "expired")

    # no __init__, for speed: an alarm takes three calls, to create, enter and exit it
    at: float
    expired: bool
    alarms: Alarms
    entry: Entry | None
    """Its entry in the heap. None while it is set to infinity, held back by a shield, or not entered."""
    _task: asyncio.Task[Any] | None
    _instead: ScopeDeadline | None

    def __enter__(self) -> Self:
        self.entry = None
        self._task = self._instead = None
        try:
            loop = get_running_loop()
        except RuntimeError:
            return self._enter_scope()
        task = current_task(loop)
        if task is None:  # trio as a guest of this loop
            return self._enter_scope()
        alarms = here.alarms
        if alarms is None or alarms.loop() is not loop:
            alarms = alarms_of(loop)
        self.alarms = alarms
        self._task = task
        self._baseline = baseline = task.cancelling()
        if baseline and task._must_cancel:  # requested before, but raised in the body: count it as if it came later
            self._baseline = baseline - 1
        self._rings = 0
        self._order = order = next(alarms.order)
        at = self.at
        now = monotonic()
        if at > now:
            if at < inf:
                at = min(at, now + FIRST_LOOK_S)
                entry: Entry = (at, order, self)
                self.entry = entry
                heappush(alarms.entries, entry)
                if at < alarms.armed:
                    alarms.arm(at)
                if len(alarms.entries) > alarms.room:
                    alarms.sweep()
        else:
            alarms.add(-inf, self)
        return self

    def __exit__(self, kind: ErrorType | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        task = self._task
        if task is None:
            scope = self._instead
            assert scope is not None, "it was entered"
            try:
                return scope.__exit__(kind, error, trace)
            finally:
                self.expired = scope.expired
        # nothing more here: a dropped coroutine may be closed in any thread
        self.entry = self._task = None
        if not self._rings:
            return None
        return self._settle(task, error)

    def move(self, at: float) -> None:
        """Change the deadline. Moving it later only stores the time. An alarm that has rung stays rung."""
        self.at = at
        entry = self.entry
        if entry is not None and at >= entry[0]:
            return
        if self._task is not None:
            if at < inf:
                self.alarms.add(at, self)
        elif self._instead is not None:
            self._instead.move(at)

    def ring(self, now: float) -> float:
        """Cancel the task if the deadline has passed and no shield was entered since. Returns when to ring again."""
        task = self._task
        if task is None:
            return inf
        if self.at > now and not self._rings:
            return self.at
        shields = self.alarms.shields.get(task)
        if shields and shields[-1].order > self._order:
            shields[-1].held.append(self)
            return inf
        if not task.cancel():  # the task has ended, but a generator was not closed
            return inf
        self._rings += 1
        return now + min(SHORTEST_WAIT_S * (1 << min(self._rings - 1, 10)), LONGEST_PAUSE_S)

    def _settle(self, task: asyncio.Task[object], error: BaseException | None) -> bool | None:
        """Undo the alarm's cancellations. Swallows the error if the alarm alone caused it."""
        try:
            loop = get_running_loop()
        except RuntimeError:
            return None
        if loop is not self.alarms.loop():
            return None
        while self._rings and task.cancelling() > self._baseline:  # the body may have undone some
            task.uncancel()
            self._rings -= 1
        if not isinstance(error, CancelledError) or current_task(loop) is not task:
            return None
        if anyio.current_effective_deadline() == -inf:
            # Both cancellations were requested in one iteration of the loop, and asyncio merges them into one error.
            # The enclosing scope recognizes its own by the message, of which anyio 4.9 and before have the older one.
            older = CancelledError("Cancelled by cancel scope around a deadline")
            older.__context__ = error.__context__
            error.args = ("Cancelled via cancel scope around a deadline",)
            error.__context__ = older
            return None
        if task.cancelling() > self._baseline:
            return None
        self.expired = True
        return True

    def _enter_scope(self) -> Self:
        self._instead = ScopeDeadline(self.at, shield=False).__enter__()
        return self


class ScopeDeadline:
    """A ``Deadline`` based on a cancel scope: used on trio, and for ``shield`` and ``scoped``.

    While a shield is in place, alarms that its task entered earlier do not ring.
    """

    __slots__ = ("_scope", "_shield", "_task", "alarms", "at", "entry", "expired", "held", "order")

    def __init__(self, at: float, *, shield: bool) -> None:
        self.at = at
        self.expired = False
        self.alarms: Alarms | None = None
        """Set while it is entered on asyncio. None on trio, where the scope keeps time itself."""
        self.entry: Entry | None = None
        self.held: list[PendingDeadline] = []
        """Alarms that were due while this shield was in place."""
        self._shield = shield
        self._scope: anyio.CancelScope
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Self:
        at = self.at
        self._task = task = this_task()
        if task is None:
            self._scope = anyio.CancelScope(deadline=_on_loops_scale(at), shield=self._shield)
        else:
            self.alarms = alarms = alarms_of(task.get_loop())
            self._scope = alarms.scope(shield=self._shield)
            self.order = next(alarms.order)
            if not at > monotonic():
                self._scope.cancel()
            elif at < inf:
                alarms.add(at, self)
            if self._shield:
                alarms.shields.setdefault(task, []).append(self)
        self._scope.__enter__()
        return self

    def __exit__(self, kind: ErrorType | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        self.entry = None
        alarms, self.alarms = self.alarms, None
        if alarms is not None and self._shield and self._task is not None and this_task() is self._task:
            shields = alarms.shields[self._task]
            shields.remove(self)
            if not shields:
                del alarms.shields[self._task]
            for alarm in self.held:  # they ring before the task waits again
                alarms.add(-inf, alarm)
        self._task = None
        if error is None:
            return self._scope.__exit__(None, None, None)
        try:
            return self._scope.__exit__(kind, error, trace)
        finally:
            self.expired = self._scope.cancelled_caught

    def move(self, at: float) -> None:
        """Change the deadline. One that has expired stays expired."""
        self.at = at
        if self.alarms is not None:
            if at < (inf if self.entry is None else self.entry[0]):
                self.alarms.add(at, self)
        elif not self._scope.cancel_called:
            self._scope.deadline = _on_loops_scale(at)

    def ring(self, now: float) -> float:
        """Cancel the body if the deadline has passed. Returns when to ring again."""
        if self.at > now:
            return self.at
        self._scope.cancel()
        return inf


def _on_loops_scale(at: float) -> float:
    return anyio.current_time() + at - monotonic()  # trio's clock has an arbitrary start
