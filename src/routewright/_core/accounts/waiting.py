"""FIFO queues, within one process, for calls that wait for money or an idempotency key held by other calls.

Waiting costs nothing until something is freed that somebody waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .state import FreedName, State, Wait

T = TypeVar("T")

MOST_TRIED = 64
"""Tries at a time, so that nobody else waits long."""


class Waiting(Generic[T]):
    """The queues, one for each purse and key. ``T`` is whatever stands for an ask. One thread at a time."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._queues: dict[FreedName, deque[T]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def join(self, asking: T, name: FreedName, *, first: bool = False) -> None:
        """Wait at the end of a queue; or again, ``first`` in it."""
        queue = self._queues.setdefault(name, deque())
        if first:
            queue.appendleft(asking)
        else:
            queue.append(asking)
        self._count(name)

    def leave(self, asking: T) -> None:
        """Wait no more."""
        for name, queue in list(self._queues.items()):
            if asking in queue:
                queue.remove(asking)
                self._count(name)
                self._state.freed[name] = None  # who comes next may have been waiting for it alone

    def retry(self, ask: Callable[[T], Any], answer: Callable[[T, Any], None]) -> None:
        """Try the first of each queue in which something was freed, and those behind as long as there is room. Those
        that need not wait any more are answered with what ``ask`` gave. If it raises, all others wait on."""
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
                found = ask(first)
            except BaseException:
                queue.appendleft(first)
                self._queues[name] = queue
                self._count(name)
                raise
            self._count(name)
            if not isinstance(found, Wait):
                answer(first, found)
                continue
            if found.on == name:  # there is not enough yet
                queue.appendleft(first)
                self._queues[name] = queue
                freed.pop(name, None)
            else:
                self._queues.setdefault(found.on, deque()).append(first)
            self._count(found.on)

    def _count(self, name: FreedName) -> None:
        queue = self._queues.get(name)
        if queue:
            self._state.queued[name] = len(queue)
        else:
            self._queues.pop(name, None)
            self._state.queued.pop(name, None)
