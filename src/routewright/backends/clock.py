"""What time is it, and when does it run out? The machine's clocks behind the ``Clock`` protocol.

A routed request enters and leaves a deadline or two, and nearly all are left long before their time. So a deadline is
a plain cancel scope and an entry in its event loop's list; the loop itself gets one timer, for the soonest of them.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
import weakref
from heapq import heapify, heappop, heappush
from types import TracebackType
from typing import Self

import anyio

LONGEST_WAIT_S = 86_400.0  # loops cap, refuse or wrap far larger ones: a later deadline is waited for in parts
SHORTEST_WAIT_S = 0.001  # uvloop counts whole milliseconds: a shorter wait would spin
SWEEP_AFTER = 64


class SystemClock:
    """Real time, for asyncio, uvloop and trio. One object serves every thread and event loop.

    >>> clock = SystemClock()
    >>> clock.monotonic() <= clock.monotonic()
    True
    """

    virtual = False

    def __init__(self) -> None:
        self._here = _Here()

    # asked some ten times a request, so without a frame of ours in between
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        """Wait. Zero or less lets other tasks run once."""
        await anyio.sleep(max(seconds, 0.0))

    def deadline(self, at: float, *, shield: bool = False) -> ScopeDeadline:
        """Make a scope that is cancelled at ``at`` on the ``monotonic`` scale, at most a millisecond late.

        With ``shield`` scopes around it cannot cancel it; ``asyncio.Task.cancel`` still can.
        """
        return ScopeDeadline(self._here, at, shield)


class ScopeDeadline:
    """The ``Deadline`` of real time. Where nested ones have both run out, the outer one swallows the cancellation."""

    __slots__ = ("_at", "_here", "_scope", "_shield", "alarms", "expired")

    def __init__(self, here: _Here, at: float, shield: bool) -> None:
        self._here = here
        self._at = at
        self._shield = shield
        self._scope: anyio.CancelScope
        self.alarms: Alarms | None = None
        """Where it waits; None before it is entered and once it was left or has rung."""
        self.expired = False

    def __enter__(self) -> Self:
        at = self._at
        alarms = self._here.alarms_of_this_loop()
        if alarms is None:
            self._scope = _scope_with_timer(at, self._shield)
        else:
            self._scope = alarms.scope(shield=True) if self._shield else alarms.scope()
            if at > time.monotonic():
                alarms.add(at, self)
            else:
                self.ring()
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        alarms = self.alarms
        if alarms is not None:
            self.alarms = None
            alarms.forget_one()
        if error is None:
            return self._scope.__exit__(None, None, None)
        try:
            return self._scope.__exit__(kind, error, trace)
        finally:
            self.expired = self._scope.cancelled_caught

    @property
    def at(self) -> float:
        """When it runs out: later than its place among the alarms says, if it was put off since."""
        return self._at

    def move(self, at: float) -> None:
        """Put the time off, which costs next to nothing, or forward."""
        before, self._at = self._at, at
        if self.alarms is not None:
            if at < before:
                self.alarms.add_again(at, self)
        elif not self._scope.cancel_called:
            self._scope.deadline = _on_loops_scale(at)

    def ring(self) -> None:
        """Cancel what runs inside."""
        self.alarms = None
        self._scope.cancel()


class Alarms:
    """The deadlines of one asyncio loop, soonest first, behind one timer of the loop."""

    __slots__ = ("__weakref__", "_armed", "_entries", "_left", "_order", "loop", "scope")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = weakref.ref(loop)
        self.scope = type(anyio.CancelScope())
        """The class behind anyio's door, which looks for it each time at two thirds of the price of a scope."""
        self._entries: list[tuple[float, int, ScopeDeadline]] = []  # a heap
        self._order = itertools.count()
        self._armed = math.inf
        self._left = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, at: float, deadline: ScopeDeadline) -> None:
        """Ring ``deadline`` at ``at``, after those of the same time that came before."""
        deadline.alarms = self
        heappush(self._entries, (at, next(self._order), deadline))
        if at < self._armed:
            self._arm(at)

    def add_again(self, at: float, deadline: ScopeDeadline) -> None:
        """Ring ``deadline`` earlier than it was put down for; the older entry counts as left."""
        self._left += 1
        self.add(at, deadline)

    def forget_one(self) -> None:
        """Count a deadline that was left early. The entries of such are swept out when they are the most."""
        self._left += 1
        if self._left > SWEEP_AFTER and self._left * 2 > len(self._entries):
            self._entries = [entry for entry in self._entries if entry[2].alarms is not None]
            heapify(self._entries)
            self._left = 0

    def _arm(self, at: float) -> None:
        loop = self.loop()
        if loop is None:
            return
        self._armed = at
        # a delay, since the loop's own scale may differ; timers set earlier are not worth cancelling
        delay = min(max(at - time.monotonic(), SHORTEST_WAIT_S), LONGEST_WAIT_S)
        loop.call_later(delay, self._ring, at)

    def _ring(self, armed_for: float) -> None:
        now = time.monotonic()
        while self._entries and (self._entries[0][0] <= now or self._entries[0][2].alarms is None):
            deadline = heappop(self._entries)[2]
            if deadline.alarms is None:
                self._left -= 1
            elif deadline.at > now:
                heappush(self._entries, (deadline.at, next(self._order), deadline))
            else:
                deadline.ring()
        if armed_for == self._armed:
            self._armed = math.inf
            if self._entries:
                self._arm(self._entries[0][0])


class _Here(threading.local):
    """The alarms of the loop that runs in this thread."""

    alarms: Alarms | None = None

    def alarms_of_this_loop(self) -> Alarms | None:
        """Find or make them; None where no asyncio task runs, which means trio."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        alarms = self.alarms
        if alarms is not None and alarms.loop() is loop:
            return alarms
        if asyncio.current_task(loop) is None:
            return None  # trio as a guest of an asyncio loop
        self.alarms = alarms = Alarms(loop)
        return alarms


def _scope_with_timer(at: float, shield: bool) -> anyio.CancelScope:
    return anyio.CancelScope(deadline=_on_loops_scale(at), shield=shield)


def _on_loops_scale(at: float) -> float:
    return anyio.current_time() + at - time.monotonic()  # trio's clock starts anywhere
