"""What the workers of a service share: the coordination beside a storage, and news of changed accounts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from ._engine.standby import NoAnswer, answer_of
from .backends.coordination.memory import MemoryCoordination
from .fork import Guard
from .protocols import Clock, Coordination, LocalStorage, Storage
from .wire import ACCOUNT_TOPIC, Notice

T = TypeVar("T")
RECHECK_S = 2.0
"""A change of an account or a key holds everywhere after this time, announced or not (reliability P12)."""
ANNOUNCE_S = 0.25
"""Time limit of an announcement."""
_LEASE_S = 1.0
"""An announcer holds no slots; those who do say how long their leases are."""

_log = logging.getLogger(__name__)


class Companions(Generic[T]):
    """One object for each storage, for as long as the storage lives. Thread-safe."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Storage, T] = WeakKeyDictionary()
        self._guard = Guard()

    def of(self, storage: Storage, make: Callable[[], T]) -> T:
        """The one of a storage, made if there is none. A storage that is not hashable or weakly referable gets a new
        one each time."""
        made = make()
        with self._guard.lock:
            try:
                return self._made.setdefault(storage, made)
            except TypeError:
                return made


_shared: Companions[dict[Clock | None, MemoryCoordination]] = Companions()


def coordination_of(storage: Storage, clock: Clock, lease_s: float) -> Coordination:
    """The default coordination of a storage. For a storage in a file it is a file beside it, shared by all processes of
    the machine; otherwise an object that all users of the storage share in this process, with the longest lease that
    one of them asked for."""
    name = clock if clock.virtual else None
    if isinstance(storage, LocalStorage):
        from .backends.coordination.sqlite import SqliteCoordination  # which memory does not need

        return SqliteCoordination(limits_path(storage.path), clock=name, lease_s=lease_s)
    made = MemoryCoordination(clock=name, lease_s=lease_s)
    there = _shared.of(storage, dict).setdefault(name, made)  # one step, whatever other threads do
    there.lengthen(lease_s)
    return there


def limits_path(store: Path) -> Path:
    """The file beside a store that holds its windows and slots. It may be removed while nothing runs."""
    return store.with_name(f"{store.name}.limits")


class Announcer:
    """Announces changes of accounts in a storage. Thread-safe.

    Uses the ``given`` coordination, or else the storage's default one. A file beside a store is opened at the first
    announcement and never created: if it is not there, nobody listens.
    """

    def __init__(self, storage: Storage, given: Coordination | None, clock: Clock) -> None:
        self._storage = storage
        self._given = given
        self._clock = clock
        self._own: Coordination | None = None
        self._guard = Guard()

    async def tell(self, account: str) -> None:
        """Have everybody look an account up again. A failure is logged and not raised: the change is made, and holds
        within ``RECHECK_S`` all the same."""
        told = await answer_of(partial(self._announce, Notice(ACCOUNT_TOPIC, account)), self._clock, ANNOUNCE_S)
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
        if isinstance(self._storage, LocalStorage) and not limits_path(self._storage.path).is_file():
            return None
        with self._guard.lock:
            if self._own is None:
                self._own = coordination_of(self._storage, self._clock, _LEASE_S)
            return self._own
