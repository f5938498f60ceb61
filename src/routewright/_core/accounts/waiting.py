"""Admits the calls of one owner. A call that needs money or an idempotency key held by another waits in a FIFO queue.
Waiting costs nothing until something is freed that somebody waits for."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from routewright.errors import RouterError
from routewright.wire import Ask, Grant, Replay, Short

from .payer import Hold
from .state import FreedName, State, Wait

MOST_TRIED = 64  # tries at a time, so that nobody else waits long
MOST_WAITING = 10_000  # more are refused at once


class Asking(Protocol):
    """An ask, and its answer: ``result`` or ``error``."""

    ask: Ask
    result: Grant | Replay | Short | None
    error: Exception | None
    waits: Wait | None
    takes: bool
    """True if this ask created the hold of its call."""


A = TypeVar("A", bound=Asking)


class Waiting(Generic[A]):
    """Asks that wait, in a queue for each purse and key, and those that were answered. One thread at a time."""

    def __init__(self, state: State, owner: int) -> None:
        self._state = state
        self._owner = owner
        self._queues: dict[FreedName, deque[A]] = {}
        self.answered: list[A] = []  # since somebody emptied the list

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def admit(self, asking: A, now: float) -> None:
        """Answer an ask at ``now`` (Unix seconds), or let it wait."""
        waits = self._try(asking, now)
        if waits is not None:
            self.wait(asking, waits)

    def wait(self, asking: A, waits: Wait) -> None:
        """Let an ask wait at the end of a queue. It is refused if it may not wait or too many others do."""
        if len(self) >= MOST_WAITING:
            self._answer(asking, waits.turn_away())
        elif asking.ask.waits_s <= 0:
            self._answer(asking, waits.give_up())
        else:
            asking.waits = waits
            self.join(asking, waits.on)

    def join(self, asking: A, name: FreedName, *, first: bool = False) -> None:
        """Put an ask at the end of a queue, or ``first`` in it."""
        queue = self._queues.setdefault(name, deque())
        if first:
            queue.appendleft(asking)
        else:
            queue.append(asking)
        self._count(name)

    def leave(self, asking: A) -> None:
        """Take an ask out of its queue, if it is in one."""
        name = None if asking.waits is None else asking.waits.on
        if name is not None and asking in self._queues.get(name, ()):
            self._queues[name].remove(asking)
            self._count(name)
            self._state.freed[name] = None  # who comes next may have been waiting for it alone

    def give_up(self, asking: A, now: float) -> None:
        """Answer an ask that may wait no longer."""
        self.leave(asking)
        waits = self._try(asking, now)
        if waits is not None:
            self._answer(asking, waits.give_up())

    def retry(self, now: float) -> None:
        """Try the first of each queue in which something was freed, and those behind while there is room."""
        freed, tries = self._state.freed, 0
        while freed and tries < MOST_TRIED:
            name = next(iter(freed))
            queue = self._queues.get(name)
            if not queue:
                del freed[name]
                continue
            first, tries = queue.popleft(), tries + 1
            self._state.queued.pop(name, None)  # those behind it do not stand before it
            try:
                waits = self._try(first, now)
            except BaseException:
                self.join(first, name, first=True)
                raise
            self._count(name)
            if waits is not None:
                self.join(first, waits.on, first=waits.on == name)
                if waits.on == name:  # there is not enough yet
                    freed.pop(name, None)

    def _try(self, asking: A, now: float) -> Wait | None:
        """Answer an ask, or return what it has to wait for."""
        held = asking.ask.id in self._state.holds
        try:
            found = self._state.admit(asking.ask, self._owner, now)
        except RouterError as error:
            self._answer(asking, error)
            return None
        if isinstance(found, Wait):
            if asking.waits is not None:
                asking.waits = found  # it may wait for something else now
            return found
        if isinstance(found, Hold):
            asking.takes = not held
            self._answer(asking, self._state.grant(asking.ask, found))
        else:
            self._answer(asking, found)
        return None

    def _answer(self, asking: A, found: Grant | Replay | Short | RouterError) -> None:
        if isinstance(found, RouterError):
            asking.error = found
        else:
            asking.result = found
        self.answered.append(asking)

    def _count(self, name: FreedName) -> None:
        queue = self._queues.get(name)
        if queue:
            self._state.queued[name] = len(queue)
        else:
            self._queues.pop(name, None)
            self._state.queued.pop(name, None)
