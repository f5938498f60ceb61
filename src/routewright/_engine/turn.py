"""Who is next where calls wait for money that others hold? First come, first served, within this process."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from routewright.fork import Guard, renew_in_children
from routewright.loop import Signal
from routewright.protocols import Clock

LOOK_S = 0.1
"""How often the first looks whether another process has given something back."""


class Turns:
    """The queues of accounts, one for each purse that is short. Safe to use from several loops and threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = Guard()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with no queues."""
        self._queues: dict[tuple[str, str], deque[Signal]] = {}
        self._changed: dict[str, Signal] = {}

    def is_waited_for(self, account: str, purse: str) -> bool:
        """Whether somebody waits for what others hold of a purse, behind whom to queue."""
        return (account, purse) in self._queues

    @asynccontextmanager
    async def first(self, account: str, purse: str) -> AsyncIterator[None]:
        """Be the first in the queue, once all who came before have left it."""
        mine, name = Signal(), (account, purse)
        with self._guard.lock:
            queue = self._queues.setdefault(name, deque())
            queue.append(mine)
            if queue[0] is mine:
                mine.set()
        try:
            await mine.wait()
            yield
        finally:
            self._leave(name, mine)

    async def change(self, account: str) -> None:
        """Wait until a call of the account has ended here, or may have ended elsewhere."""
        with self._guard.lock:
            changed = self._changed.setdefault(account, Signal())
        with self._clock.deadline(self._clock.monotonic() + LOOK_S):
            await changed.wait()

    def changed(self, account: str) -> None:
        """Say that a call has ended, so that there may be room."""
        if account in self._changed:
            with self._guard.lock:
                changed = self._changed.pop(account, None)
            if changed is not None:
                changed.set()

    def _leave(self, name: tuple[str, str], mine: Signal) -> None:
        with self._guard.lock:
            queue = self._queues[name]
            queue.remove(mine)
            if queue:
                queue[0].set()
            else:
                del self._queues[name]
