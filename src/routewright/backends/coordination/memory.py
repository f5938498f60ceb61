"""``MemoryCoordination``: news within one process."""

from __future__ import annotations

from collections import deque

from routewright._runtime.fork import Guard, renew_in_children
from routewright._runtime.loop import Signal
from routewright.backends.clock import SystemClock
from routewright.protocols import Clock
from routewright.wire import Heard, Notice

HEAR_S = 5.0
"""The longest that a listener waits for news."""
NOTICE_S = 60.0
"""How long a notice is kept."""


class MemoryCoordination:
    """News for all Routers, event loops and threads of one process.

        coordination = MemoryCoordination()
        await coordination.announce(Notice("account", "acme"))

    It is lost with the process; a forked child starts empty. ``clock``: pass the Router's ``FakeClock``.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._now = self._clock.monotonic
        self._guard = Guard()
        self._last_number = 0
        """Number of the last notice; a forked child continues from it."""
        renew_in_children(self)

    def __repr__(self) -> str:
        return "MemoryCoordination()"

    def renew(self) -> None:
        """Start empty, as a forked child does."""
        self._notices: deque[tuple[int, float, Notice]] = deque()
        self._listening: list[Signal] = []

    async def announce(self, notice: Notice) -> None:
        """Publish news (``protocols.Coordination``)."""
        with self._guard.lock:
            now = self._now()
            self._last_number += 1
            self._notices.append((self._last_number, now, notice))
            while self._notices[0][1] <= now - NOTICE_S:
                self._notices.popleft()
            while self._listening:
                self._listening.pop().set()

    async def hear(self, after: int | None) -> Heard:
        """News since ``after``, of at most the last minute (``protocols.Coordination``)."""
        signal = Signal()
        with self._guard.lock:
            heard = self._read_since(after)
            if after is None or heard.notices:
                return heard
            self._listening.append(signal)
        try:
            with self._clock.deadline(self._now() + HEAR_S):
                await signal.wait()
        finally:
            with self._guard.lock:
                if signal in self._listening:
                    self._listening.remove(signal)
        with self._guard.lock:
            return self._read_since(after)

    def _read_since(self, after: int | None) -> Heard:
        notices = [] if after is None else [notice for number, _, notice in self._notices if number > after]
        return Heard(tuple(notices), self._last_number)

    async def aclose(self) -> None:
        """Does nothing: others may share it."""
