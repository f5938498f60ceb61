"""Who hears that an account has changed? Those who share a coordination: without one given, those beside the store."""

from __future__ import annotations

import logging
from functools import partial

from ._engine.standby import NoAnswer, answer_of
from .authentication import RECHECK_S
from .coordination import coordination_of, limits_path
from .fork import Guard
from .protocols import Clock, Coordination, LocalStorage, Storage
from .wire import ACCOUNT_TOPIC, Notice

TELL_S = 0.25
"""So long a change waits to be told."""

LEASE_S = 1.0
"""It holds no slots, so those who do say how long their leases are."""

_log = logging.getLogger(__name__)


class Announcer:
    """Tells of changes in a storage. To be used from any thread.

    Where no coordination is ``given`` it is the one that Routers have by default. A file beside a store is opened when
    there is something to tell, and never made, since who listens has made it.
    """

    def __init__(self, storage: Storage, given: Coordination | None, clock: Clock) -> None:
        self._storage = storage
        self._given = given
        self._clock = clock
        self._own: Coordination | None = None
        self._guard = Guard()

    async def tell(self, account: str) -> None:
        """Let all who know an account ask for it anew. Who cannot be told does so within ``RECHECK_S``: the change is
        made, and no fault may take what came of it, a new key say, from who made it."""
        told = await answer_of(partial(self._announce, Notice(ACCOUNT_TOPIC, account)), self._clock, TELL_S)
        if isinstance(told, NoAnswer):
            _log.warning("a change was not announced (%s): it holds within %g s", told.why, RECHECK_S)

    async def aclose(self) -> None:
        """Close what was not given."""
        with self._guard.lock:
            own, self._own = self._own, None
        if own is not None:
            await own.aclose()

    async def _announce(self, notice: Notice) -> None:
        there = self._beside() if self._given is None else self._given
        if there is not None:
            await there.announce(notice)

    def _beside(self) -> Coordination | None:
        storage = self._storage
        if isinstance(storage, LocalStorage) and not limits_path(storage.path).is_file():
            return None
        with self._guard.lock:
            if self._own is None:
                self._own = coordination_of(storage, self._clock, LEASE_S)
            return self._own
