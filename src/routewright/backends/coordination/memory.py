"""``MemoryCoordination``: rate limits, slots and news of one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from routewright._core.limiter import Limiter
from routewright._core.window import check_seconds
from routewright.backends.clock import SystemClock
from routewright.fork import Guard, renew_in_children
from routewright.loop import Signal
from routewright.protocols import Clock
from routewright.wire import Denied, Heard, Notice, Take, Taken

HEAR_S = 5.0
"""The longest that a listener waits for news."""
NOTICE_S = 60.0
"""How long a notice is kept."""


class _Kept:
    """State. A forked child begins with none, and numbers its notices apart from those of its parent."""

    def __init__(self, lease_s: float) -> None:
        self.guard = Guard()
        self._lease_s = lease_s
        self.limiter: Limiter
        self._said = 0
        renew_in_children(self)

    def renew(self) -> None:
        """Forget it all."""
        before = getattr(self, "limiter", None)
        self.limiter = Limiter(self._lease_s, before.next if before else 1)
        self._notices: deque[tuple[int, float, Notice]] = deque()
        self._listening: list[Signal] = []

    def lengthen(self, lease_s: float) -> None:
        """Let leases be at least so long from now on, in children too."""
        self._lease_s = max(self._lease_s, lease_s)
        self.limiter.lengthen(lease_s)

    def announce(self, notice: Notice, now: float) -> None:
        """Keep a notice for a while, and wake the listeners."""
        self._said += 1
        self._notices.append((self._said, now, notice))
        while self._notices[0][1] <= now - NOTICE_S:
            self._notices.popleft()
        while self._listening:
            self._listening.pop().set()

    def since(self, after: int | None) -> Heard:
        """Notices after that number. None: no notices, only the number to start from."""
        found = [] if after is None else [notice for number, _, notice in self._notices if number > after]
        return Heard(tuple(found), self._said)

    def listen(self, signal: Signal) -> None:
        """Set ``signal`` at the next notice."""
        self._listening.append(signal)

    def leave(self, signal: Signal) -> None:
        """Set it no more."""
        if signal in self._listening:
            self._listening.remove(signal)


class MemoryCoordination:
    """Windows, slots and news for all Routers, event loops and threads of one process, exact to the last request.

        coordination = MemoryCoordination()
        taken = await coordination.take([Take("key:mine", "requests", limit=60)], owner="me")

    It ends with the process, and a forked child begins with nothing. Nothing ever waits but ``hear``. ``lease_s``: an
    owner of slots who has not renewed them for so long loses them. ``clock``: pass a ``FakeClock`` that the Router has.
    """

    def __init__(self, *, clock: Clock | None = None, lease_s: float = 30.0) -> None:
        check_seconds(lease_s, "MemoryCoordination.lease_s")
        self._clock = clock or SystemClock()
        self._now = self._clock.monotonic
        self._kept = _Kept(lease_s)

    def __repr__(self) -> str:
        return "MemoryCoordination()"

    async def take(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        """Take all of it or nothing (``protocols.Coordination``)."""
        kept = self._kept
        with kept.guard.lock:
            return kept.limiter.take(takes, owner, self._now())  # asked inside: time must not run backwards there

    async def end(self, taken: Taken, tokens: int | None = None) -> None:
        """Give back its slots, and correct its tokens (``protocols.Coordination``)."""
        self.give_back(taken, tokens)

    def give_back(self, taken: Taken, tokens: int | None = None) -> None:
        """The same for callers that cannot wait (``protocols.ImmediateCoordination``)."""
        with self._kept.guard.lock:
            self._kept.limiter.end(taken.id, tokens)

    async def renew(self, owner: str) -> None:
        """Keep an owner's slots (``protocols.Coordination``)."""
        with self._kept.guard.lock:
            self._kept.limiter.renew(owner, self._now())

    def lengthen(self, lease_s: float) -> None:
        """Let leases be at least so long from now on."""
        with self._kept.guard.lock:
            self._kept.lengthen(lease_s)

    async def announce(self, notice: Notice) -> None:
        """Publish news (``protocols.Coordination``)."""
        with self._kept.guard.lock:
            self._kept.announce(notice, self._now())

    async def hear(self, after: int | None) -> Heard:
        """News since ``after``, of at most the last minute (``protocols.Coordination``)."""
        signal = Signal()
        with self._kept.guard.lock:
            heard = self._kept.since(after)
            if after is None or heard.notices:
                return heard
            self._kept.listen(signal)
        try:
            with self._clock.deadline(self._now() + HEAR_S):
                await signal.wait()
        finally:
            with self._kept.guard.lock:
                self._kept.leave(signal)
        with self._kept.guard.lock:
            return self._kept.since(after)

    async def aclose(self) -> None:
        """Nothing: others may share it."""
