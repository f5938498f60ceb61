"""The machine's clock behind the ``Clock`` protocol: what time is it, and when does a deadline run out?

In an asyncio task a deadline is an alarm. It rings with ``Task.cancel``; when it is left it takes its calls back with
``Task.uncancel`` and compares ``Task.cancelling`` with the number found on entry: if that is higher, somebody else
cancels the task too, and wins. An alarm rings in a callback of the loop, never while its task runs. So the cancellation
is raised where the task waits, and none is pending when the body ends, whether or not something swallowed it.

Cancel scopes serve where that does not work: on trio, as shields, and for code that shields itself with scopes.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import CancelledError, get_running_loop
from heapq import heappush
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Self

import anyio

from routewright.loop import current_task, this_task

from .alarms import SHORTEST_WAIT_S, Alarms, Entry, Waiting, alarms_of, here

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
