"""Admits the calls of one owner. A call that needs money or an idempotency key held by another waits in a FIFO queue.
A waiting call costs nothing until what it waits for is freed."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from routewright.errors import RouterError
from routewright.wire import Ask, Grant, Replay, Short

from .holds import FreedName, Hold, Wait
from .state import State

MOST_TRIED = 64  # tries per ``retry``, to bound its duration
MOST_WAITING = 10_000  # further calls are refused at once


class PendingAsk(Protocol):
    """An ask, and its answer: ``result`` or ``error``."""

    ask: Ask
    result: Grant | Replay | Short | None
    error: Exception | None
    waits: Wait | None
    takes: bool
    """True if this ask created the hold of its call."""


A = TypeVar("A", bound=PendingAsk)


class WaitQueue(Generic[A]):
    """Waiting asks, with a queue per purse and key, and answered ones. Not thread-safe."""

    def __init__(self, state: State, owner: int) -> None:
        self._state = state
        self._owner = owner
        self._queues: dict[FreedName, deque[A]] = {}
        self.answered: list[A] = []  # emptied by the owner

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def admit(self, pending: A, now: float) -> None:
        """Answer an ask at ``now`` (Unix seconds), or queue it."""
        wait = self._try(pending, now)
        if wait is not None:
            self.wait(pending, wait)

    def wait(self, pending: A, wait: Wait) -> None:
        """Queue an ask. Refuse it if it may not wait or the queues are full."""
        if len(self) >= MOST_WAITING:
            self._answer(pending, wait.turn_away())
        elif pending.ask.waits_s <= 0:
            self._answer(pending, wait.give_up())
        else:
            pending.waits = wait
            self.join(pending, wait.on)

    def join(self, pending: A, name: FreedName, *, first: bool = False) -> None:
        """Add an ask to the end of a queue, or to the front with ``first``."""
        queue = self._queues.setdefault(name, deque())
        if first:
            queue.appendleft(pending)
        else:
            queue.append(pending)
        self._count(name)

    def leave(self, pending: A) -> None:
        """Remove an ask from its queue, if any."""
        name = None if pending.waits is None else pending.waits.on
        if name is not None and pending in self._queues.get(name, ()):
            self._queues[name].remove(pending)
            self._count(name)
            self._state.freed[name] = None  # the next one may have waited only for this ask

    def give_up(self, pending: A, now: float) -> None:
        """Try an ask whose wait timed out once more, then answer it."""
        self.leave(pending)
        wait = self._try(pending, now)
        if wait is not None:
            self._answer(pending, wait.give_up())

    def retry(self, now: float) -> None:
        """Try the asks of freed queues in order, while there is room."""
        # To try every waiting call whenever a call ends would cost the square of their number. So a call that ends
        # notes which purse or key it freed, and only those queues are tried, each from the front until a call still
        # does not fit; nobody is overtaken and nobody waits needlessly
        # (test_no_call_waits_needlessly_and_none_is_overtaken). A call that now lacks another purse moves to that
        # queue, without keeping its place in the first: two calls that wait for each other's purses would deadlock
        # (test_two_calls_that_wait_for_each_others_purses_do_not_deadlock). The storage stands still meanwhile, so the
        # tries are bounded (test_the_tries_of_one_retry_are_bounded), and an exception puts the call back to the front
        # (test_a_failing_try_loses_no_waiting_call).
        freed = self._state.freed
        tries = 0
        while freed and tries < MOST_TRIED:
            name = next(iter(freed))
            queue = self._queues.get(name)
            if not queue:
                del freed[name]
                continue
            pending = queue.popleft()
            tries += 1
            self._state.queued.pop(name, None)  # it must not queue behind later asks
            try:
                wait = self._try(pending, now)
            except BaseException:
                self.join(pending, name, first=True)
                raise
            self._count(name)
            if wait is not None:
                self.join(pending, wait.on, first=wait.on == name)
                if wait.on == name:  # still not enough
                    freed.pop(name, None)

    def _try(self, pending: A, now: float) -> Wait | None:
        """Answer an ask, or return what it must wait for."""
        was_held = pending.ask.id in self._state.holds
        try:
            answer = self._state.admit(pending.ask, self._owner, now)
        except RouterError as error:
            self._answer(pending, error)
            return None
        if isinstance(answer, Wait):
            if pending.waits is not None:
                pending.waits = answer  # may be something else now
            return answer
        if isinstance(answer, Hold):
            pending.takes = not was_held
            self._answer(pending, self._state.grant(pending.ask, answer))
        else:
            self._answer(pending, answer)
        return None

    def _answer(self, pending: A, answer: Grant | Replay | Short | RouterError) -> None:
        if isinstance(answer, RouterError):
            pending.error = answer
        else:
            pending.result = answer
        self.answered.append(pending)

    def _count(self, name: FreedName) -> None:
        queue = self._queues.get(name)
        if queue:
            self._state.queued[name] = len(queue)
        else:
            self._queues.pop(name, None)
            self._state.queued.pop(name, None)
