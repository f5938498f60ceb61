"""Rate limits while what the workers share is away: each goes on by itself, with its part of every limit (contract 13).

The local one is kept warm: it counts all that this worker takes of the shared one, so that its part is not whole again
when it is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from typing import NamedTuple, TypeVar

from routewright.errors import StorageUnavailable
from routewright.loop import is_cancelled
from routewright.protocols import Clock, Coordination
from routewright.wire import Denied, Heard, Notice, Take, Taken

T = TypeVar("T")

TIMEOUT_S = 0.25
"""The shared coordination counts as away if it takes longer."""
PROBE_S = 0.05
"""So long one call waits to see whether it is back, while the others do not."""
AGAIN_S = 2.0
"""So often one does."""
SAY_EVERY_S = 60.0
NO_LIMIT = 2**62
"""Of the local one, where it only counts."""

_log = logging.getLogger(__name__)


class NoAnswer(NamedTuple):
    """There is none."""

    why: str
    """The class of what was raised, or given: its message may hold secrets."""


async def answer_of(ask: Callable[[], Awaitable[T]], clock: Clock, timeout_s: float) -> T | NoAnswer:
    """What a coordination gives in time. An exception is no answer, nor is a cancellation that nobody asked for."""
    try:
        with clock.deadline(clock.monotonic() + timeout_s):
            return await ask()
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        return NoAnswer(type(error).__name__)
    return NoAnswer(f"no answer within {timeout_s:g} s")


class LimitCounts(NamedTuple):
    """How rate limits are shared, in this process."""

    degraded: bool
    """True while the shared coordination is away and this process applies its part of every limit."""
    alone: int
    """Calls decided that way, admitted or refused."""


class TakenTwice(Taken, frozen=True):
    """What both were told of, or only the local one."""

    local: Taken
    shared: Taken | None


class StandbyCoordination:
    """A shared coordination, and a local one that stands in for it. ``workers``: how many share it; each goes on with
    so much of every limit, but at least 1. ``lease_s``: of slots there; nobody waits for their renewal, so it has a
    third of that, as long as until the next.

    Whatever the shared one raises, or gives that is no answer, it is away then; its words are told to nobody.
    """

    def __init__(
        self, shared: Coordination, local: Coordination, clock: Clock, workers: int, lease_s: float = 30.0
    ) -> None:
        self._shared = shared
        self._local = local
        self._clock = clock
        self._workers = workers
        self._renewal_s = lease_s / 3
        self.degraded = False
        """The shared one is away."""
        self.degraded_takes = 0
        """Calls that the local one decided."""
        self._fell_at = self._again_at = -inf
        self._why = ""
        self._unreported: deque[tuple[Taken, int | None]] = deque()
        """Ends not yet reported to the shared one. Their slots are renewed with their owner's others until they are."""
        self._said = False
        """The last value of ``degraded`` that was logged."""
        self._said_at = -inf

    async def take(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        """Take all of it or nothing (``protocols.Coordination``)."""
        began = self._clock.monotonic()
        if self.degraded and began < self._again_at:
            return await self._take_alone(takes, owner)
        self._again_at = began + AGAIN_S
        result = await self._take_shared(takes, owner, PROBE_S if self.degraded else TIMEOUT_S)
        if isinstance(result, Denied) and self._unreported:  # perhaps by slots that were given back while it was away
            await self._pay_all()
            result = await self._take_shared(takes, owner, TIMEOUT_S)
        if isinstance(result, NoAnswer):
            return await self._take_alone(takes, owner)
        if began >= self._fell_at:
            self.degraded = False
        self._tell(began)
        return result if isinstance(result, Denied) else await self._count(result, takes, owner)

    async def end(self, taken: Taken, tokens: int | None = None) -> None:
        """Give back its slots, and correct its tokens (``protocols.Coordination``), of the shared one as soon as it is
        back."""
        if not isinstance(taken, TakenTwice):
            return
        await self._local.end(taken.local, tokens)
        if taken.shared is None:
            return
        if self.degraded:
            self._unreported.append((taken.shared, tokens))
        elif await self._pay(taken.shared, tokens):
            await self._pay_all()

    async def renew(self, owner: str) -> None:
        """Keep an owner's slots (``protocols.Coordination``)."""
        await self._local.renew(owner)
        if not isinstance(await self._asked(partial(self._shared.renew, owner), self._renewal_s), NoAnswer):
            await self._pay_all()

    async def announce(self, notice: Notice) -> None:
        """Publish news (``protocols.Coordination``). Nothing stands in for that."""
        told = await self._asked(partial(self._shared.announce, notice), TIMEOUT_S)
        if isinstance(told, NoAnswer):
            raise StorageUnavailable(f"the news could not be spread: {told.why}")

    async def hear(self, after: int | None) -> Heard:
        """News since ``after`` (``protocols.Coordination``). Nothing stands in for that."""
        heard: object = await answer_of(partial(self._shared.hear, after), self._clock, inf)
        if isinstance(heard, Heard):
            return heard
        why = heard.why if isinstance(heard, NoAnswer) else f"{type(heard).__name__} in the place of an answer"
        raise StorageUnavailable(f"no news could be heard: {why}")

    async def aclose(self) -> None:
        """Close both."""
        await self._local.aclose()
        await self._shared.aclose()

    async def _take_shared(self, takes: Sequence[Take], owner: str, timeout_s: float) -> Taken | Denied | NoAnswer:
        """Take of what all share."""
        said: object = await self._asked(partial(self._shared.take, takes, owner), timeout_s)
        if isinstance(said, Taken | Denied | NoAnswer):
            return said
        return self._noted(NoAnswer(f"{type(said).__name__} in the place of an answer"))

    async def _take_alone(self, takes: Sequence[Take], owner: str) -> Taken | Denied:
        """Take of this worker's part."""
        self.degraded_takes += 1
        self._tell(self._clock.monotonic())
        parts = [Take(each.name, each.resource, self._part(each.limit), each.amount) for each in takes]
        result = await self._local.take(parts, owner)
        return result if isinstance(result, Denied) else TakenTwice(result.id, result.states, result, None)

    def _part(self, limit: int) -> int:
        return max(1, limit // self._workers) if limit > 0 else limit

    async def _count(self, taken: Taken, takes: Sequence[Take], owner: str) -> TakenTwice:
        """Count in the local one what the shared one admitted."""
        try:
            counted = [Take(each.name, each.resource, NO_LIMIT, each.amount) for each in takes]
            local = await self._local.take(counted, owner)
        except BaseException:
            self._unreported.append((taken, None))
            raise
        assert isinstance(local, Taken), "there was no limit"
        return TakenTwice(taken.id, taken.states, local, taken)

    async def _pay_all(self) -> None:
        while self._unreported and await self._pay(*self._unreported.popleft()):
            pass

    async def _pay(self, taken: Taken, tokens: int | None) -> bool:
        """Report an end to the shared one. If that fails or is cancelled, it stays pending; True: it did not."""
        heard = False
        try:
            end = partial(self._shared.end, taken, tokens)
            heard = not isinstance(await self._asked(end, TIMEOUT_S), NoAnswer)
        finally:
            if not heard:
                self._unreported.append((taken, tokens))
        return heard

    async def _asked(self, ask: Callable[[], Awaitable[T]], timeout_s: float) -> T | NoAnswer:
        """What the shared one gives, in time."""
        return self._noted(await answer_of(ask, self._clock, timeout_s))

    def _noted(self, said: T | NoAnswer) -> T | NoAnswer:
        """The same; without an answer, the shared one is away."""
        if isinstance(said, NoAnswer):
            self._fall(said.why)
        return said

    def _fall(self, why: str) -> None:
        now = self._clock.monotonic()
        self.degraded, self._why = True, why
        self._fell_at, self._again_at = now, now + AGAIN_S
        self._tell(now)

    def _tell(self, now: float) -> None:
        """Log what has changed, one line a minute at most."""
        if self.degraded == self._said or now < self._said_at + SAY_EVERY_S:
            return
        self._said, self._said_at = self.degraded, now
        if self.degraded:
            part = f"one part in {self._workers} of every limit"
            _log.warning("limits are not shared for now, and this worker goes on with %s: %s", part, self._why)
        else:
            _log.info("limits are shared again")
