"""The system's clock, and the alarms of an asyncio loop: a heap, and one timer for the soonest deadline."""

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

from routewright.loop import current_task, this_task

LONGEST_WAIT_S = 86_400.0  # loops cap, refuse or wrap far larger ones: a later deadline is waited for in parts
SHORTEST_WAIT_S = 0.001  # uvloop counts whole milliseconds: a shorter wait would spin
SWEEP_AFTER = 64


class Waiting(Protocol):
    """A deadline that waits for its time."""

    entry: Entry | None
    """Where it waits. Its time is never later than the true one. Entries that are not this one are void."""

    def ring(self, now: float) -> float:
        """Cancel what runs inside if the true time has come. Returns when to come again; infinity: never."""
        ...


class Shield(Protocol):
    """A scope that holds back the deadlines that its task entered before."""

    order: int
    held: list[Waiting]
    """Those whose time has come meanwhile."""


Entry = tuple[float, int, Waiting]
"""Time, tie-breaker, and whose it is."""


class Alarms:
    """The deadlines of one asyncio loop, soonest first, behind one timer. Only the loop's own thread touches them."""

    __slots__ = ("armed", "entries", "loop", "order", "room", "scope", "shields", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)
        self.entries: list[Entry] = []  # a heap
        self.armed = inf
        """The time that the timer is set for."""
        self.timer: weakref.ref[asyncio.Handle] | None = None
        """Kept weakly like the loop, which it holds."""
        self.room = SWEEP_AFTER
        """With more entries than this, void ones are swept out."""
        self.order = itertools.count()
        self.scope = type(anyio.CancelScope())
        """The class behind anyio's door, which looks for it each time at two thirds of the price of a scope."""
        self.shields = weakref.WeakKeyDictionary[asyncio.Task[Any], list[Shield]]()
        """The shields that a task is in, the innermost last."""

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, at: float, alarm: Waiting) -> None:
        """Ring ``alarm`` at ``at``, in place of the time that it stands for. In the past means as soon as possible."""
        alarm.entry = entry = (at, next(self.order), alarm)
        heappush(self.entries, entry)
        if at < self.armed:
            self.arm(at)
        if len(self.entries) > self.room:
            self.sweep()

    def sweep(self) -> None:
        """Drop void entries: of deadlines that were left, or have another."""
        self.entries[:] = [entry for entry in self.entries if entry[2].entry is entry]
        heapify(self.entries)
        self.room = max(SWEEP_AFTER, 2 * len(self.entries))

    def drop_shield(self, task: asyncio.Task[Any], shield: Shield) -> None:
        """A task has left a shield: alarms that were held back ring before it waits again."""
        shields = self.shields[task]
        shields.remove(shield)
        if not shields:
            del self.shields[task]
        for alarm in shield.held:
            self.add(-inf, alarm)

    def arm(self, at: float) -> None:
        """Set the timer, in place of a later one."""
        loop = self.loop()
        if loop is None:
            return
        before = None if self.timer is None else self.timer()
        if before is not None:
            before.cancel()
        self.armed = at
        # a delay, since the loop's own scale may differ; in no context, since a timer would keep that of a request
        delay = at - monotonic()
        if delay > 0:
            delay = min(max(delay, SHORTEST_WAIT_S), LONGEST_WAIT_S)
            self.timer = weakref.ref(loop.call_later(delay, self._ring, context=Context()))
        else:
            self.timer = weakref.ref(loop.call_soon(self._ring, context=Context()))

    def _ring(self) -> None:
        now, entries = monotonic(), self.entries
        self.armed = -inf  # the timer is set once, below
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
    """Find or make those of the loop that runs in this thread."""
    alarms = here.alarms
    if alarms is None or alarms.loop() is not loop:
        here.alarms = alarms = Alarms(loop)
    return alarms


class _Here(threading.local):
    """The alarms of the loop that ran last in this thread: of all clocks, since shields hold back those of any."""

    alarms: Alarms | None = None


here = _Here()

LONGEST_PAUSE_S = 0.05
"""How long an alarm that was not left waits at most until it rings again. The first pause is the shortest wait, each
further one twice the one before."""


FIRST_LOOK_S = 0.5
"""An alarm is first looked at after this long, even if its time comes later. Most calls have ended by then, and one
that is brought forward to no earlier than that (a provider's farewell) needs no second entry."""


class SystemClock:
    """Real time, for asyncio, uvloop and trio. One object serves every thread and event loop.

    >>> clock = SystemClock()
    >>> clock.monotonic() <= clock.monotonic()
    True
    """

    virtual = False

    # asked some ten times a request, so without a frame of ours in between
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        """Wait. Zero or less lets other tasks run once."""
        await anyio.sleep(max(seconds, 0.0))

    def deadline(self, at: float, *, shield: bool = False, scoped: bool = False) -> Alarm | ScopeDeadline:
        """Make a deadline that cancels what runs in it at ``at`` on the ``monotonic`` scale, at most 1 ms late.

        With ``shield`` scopes and deadlines around it cannot cancel it; ``asyncio.Task.cancel`` still can. On asyncio
        it cancels natively, through shields inside it, unless ``scoped``; on trio it is always a scope.
        """
        if shield or scoped:
            return ScopeDeadline(at, shield=shield)
        alarm = Alarm()
        alarm.at = at
        alarm.expired = False
        return alarm


class Alarm:
    """The ``Deadline`` of an asyncio task, made by ``SystemClock.deadline``. Belongs to the task that enters it.

    Where nested ones have both run out, the outer one expires.
    """

    __slots__ = ("_baseline", "_instead", "_order", "_rings", "_task", "alarms", "at", "entry", "expired")

    # without __init__: entering and leaving an alarm is three calls, counting the one that makes it
    at: float
    expired: bool
    alarms: Alarms
    entry: Entry | None
    """Where it waits. None while it is parked at infinity, held back by a shield, or not entered."""
    _task: asyncio.Task[Any] | None
    _instead: ScopeDeadline | None

    def __enter__(self) -> Self:
        self.entry = self._task = self._instead = None
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
        if baseline and task._must_cancel:  # called before and raised in here, so it counts as if it came later
            self._baseline = baseline - 1
        self._rings = 0
        self._order = order = next(alarms.order)
        at, now = self.at, monotonic()
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        task = self._task
        if task is None:
            scope = self._instead
            assert scope is not None, "it was entered"
            try:
                return scope.__exit__(kind, error, trace)
            finally:
                self.expired = scope.expired
        # no more than this, since a coroutine that was dropped may be closed in any thread
        self.entry = self._task = None
        if not self._rings:
            return None
        return self._settle(task, error)

    def move(self, at: float) -> None:
        """Put the time off, which is a store, or forward. One that has rung stays rung."""
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
        """Cancel the task if the time has come and no shield was entered since; say when to come again."""
        task = self._task
        if task is None:
            return inf
        if self.at > now and not self._rings:
            return self.at
        shields = self.alarms.shields.get(task)
        if shields and shields[-1].order > self._order:
            shields[-1].held.append(self)
            return inf
        if not task.cancel():  # it has ended, and left a generator behind
            return inf
        self._rings += 1
        return now + min(SHORTEST_WAIT_S * (1 << min(self._rings - 1, 10)), LONGEST_PAUSE_S)

    def _settle(self, task: asyncio.Task[Any], error: BaseException | None) -> bool | None:
        """Take the rings back, and swallow the cancellation if it is theirs alone."""
        try:
            loop = get_running_loop()
        except RuntimeError:
            return None
        if loop is not self.alarms.loop():
            return None
        while self._rings and task.cancelling() > self._baseline:  # the body may have taken some back
            task.uncancel()
            self._rings -= 1
        if not isinstance(error, CancelledError) or current_task(loop) is not task:
            return None
        if anyio.current_effective_deadline() == -inf:
            _word_as_scopes_do(error)
            return None
        if task.cancelling() > self._baseline:
            return None
        self.expired = True
        return True

    def _enter_scope(self) -> Self:
        self._instead = ScopeDeadline(self.at, shield=False).__enter__()
        return self


class ScopeDeadline:
    """A ``Deadline`` that is a cancel scope: on trio, with a shield, and where a scope is asked for.

    While a shield stands, the alarms that its task entered before do not ring.
    """

    __slots__ = ("_scope", "_shield", "_task", "alarms", "at", "entry", "expired", "held", "order")

    def __init__(self, at: float, *, shield: bool) -> None:
        self.at = at
        self.expired = False
        self.alarms: Alarms | None = None
        """Where it waits while it is entered; None on trio, whose scopes keep time themselves."""
        self.entry: Entry | None = None
        self.held: list[Waiting] = []
        """Alarms whose time came while this shield stood."""
        self._shield = shield
        self._scope: anyio.CancelScope
        self._task: asyncio.Task[Any] | None = None

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.entry = None
        alarms, self.alarms = self.alarms, None
        if alarms is not None and self._shield and self._task is not None and this_task() is self._task:
            alarms.drop_shield(self._task, self)
        self._task = None
        if error is None:
            return self._scope.__exit__(None, None, None)
        try:
            return self._scope.__exit__(kind, error, trace)
        finally:
            self.expired = self._scope.cancelled_caught

    def move(self, at: float) -> None:
        """Put the time off, or forward. One that has run out stays so."""
        self.at = at
        if self.alarms is not None:
            if at < (inf if self.entry is None else self.entry[0]):
                self.alarms.add(at, self)
        elif not self._scope.cancel_called:
            self._scope.deadline = _on_loops_scale(at)

    def ring(self, now: float) -> float:
        """Cancel what runs inside if the time has come; say when to come again."""
        if self.at > now:
            return self.at
        self._scope.cancel()
        return inf


def _on_loops_scale(at: float) -> float:
    return anyio.current_time() + at - monotonic()  # trio's clock starts anywhere


def _word_as_scopes_do(error: CancelledError) -> None:
    """Make the alarm's cancellation one that a cancelled scope around it takes for its own.

    Both came in one turn of the loop, where asyncio makes one error of them. Scopes know theirs by its message.
    """
    older = CancelledError("Cancelled by cancel scope around a deadline")  # so up to anyio 4.9 at least
    older.__context__ = error.__context__
    error.args = ("Cancelled via cancel scope around a deadline",)
    error.__context__ = older
