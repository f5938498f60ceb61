"""The deadlines of one asyncio loop: a heap, and one timer for the soonest of them.

Deadlines are entered and left for every attempt of a call, and nearly all are left long before their time. So entering
one pushes an entry, leaving it makes the entry void, and a later time is looked at when the entry comes up.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from contextvars import Context
from heapq import heapify, heappop, heappush
from math import inf
from time import monotonic
from typing import Any, Protocol

import anyio

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
