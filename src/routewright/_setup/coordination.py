"""Notices of failing models, and objects that users of one storage share in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, WeakMethod

from routewright._runtime.fork import Guard
from routewright.backends.coordination.memory import MemoryCoordination
from routewright.protocols import BaseStorage, Clock, Coordination, Storage, options_of
from routewright.wire import CIRCUIT_TOPIC

T = TypeVar("T")
Hear = Callable[[str], None]
RECHECK_S = 2.0
"""A change of an account or key is effective everywhere after this time (reliability P12)."""

_log = logging.getLogger(__name__)


class Companions(Generic[T]):
    """One object for each storage, for as long as the storage lives. Thread-safe."""

    def __init__(self) -> None:
        self._companions: WeakKeyDictionary[Storage, T] = WeakKeyDictionary()
        self._guard = Guard()

    def of(self, storage: Storage, make: Callable[[], T]) -> T:
        """The object of a storage, made if need be. A storage that cannot be hashed or weakly referenced gets a new one
        each time."""
        companion = make()
        with self._guard.lock:
            try:
                return self._companions.setdefault(storage, companion)
            except TypeError:
                return companion


_shared: Companions[dict[Clock | None, MemoryCoordination]] = Companions()


def coordination_of(storage: Storage, clock: Clock) -> Coordination:
    """The default coordination of a storage: its own, or one that all its users share in this process."""
    own = options_of(storage, BaseStorage).coordination
    if own is not None:
        return own
    name = clock if clock.virtual else None
    return _shared.of(storage, dict).setdefault(name, MemoryCoordination(clock=name))  # one step, for other threads


async def listen(coordination: Coordination, hear: WeakMethod[Hear], clock: Clock) -> None:
    """Call ``hear`` with notices from other processes about paused models, until its owner is gone."""
    position = None
    while hear() is not None:
        try:
            news = await coordination.hear(position)
            position = news.last
            hear_one = hear()
            for notice in news.notices:
                if hear_one is not None and notice.topic == CIRCUIT_TOPIC:
                    hear_one(notice.message)
            del hear_one
        except Exception as error:  # its message may hold secrets
            _log.debug("notices of other processes cannot be read (%s)", type(error).__name__)
            await clock.sleep(RECHECK_S)
