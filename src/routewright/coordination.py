"""Where the workers of a service meet who share a storage."""

from __future__ import annotations

from pathlib import Path

from .backends.coordination.memory import MemoryCoordination
from .companion import Companions
from .protocols import Clock, Coordination, LocalStorage, Storage

_Meetings = dict[Clock | None, MemoryCoordination]
_meetings: Companions[_Meetings] = Companions()


def coordination_of(storage: Storage, clock: Clock, lease_s: float) -> Coordination:
    """What goes with a storage: a file beside one that is in a file, so that all processes of the machine are exact
    together, and otherwise what all who have the same storage object share in this process, with the longest lease that
    one of them asked for."""
    if not isinstance(storage, LocalStorage):
        return _met(storage, clock, lease_s)
    from .backends.coordination.sqlite import SqliteCoordination  # which memory does not need

    path = limits_path(storage.path)
    return SqliteCoordination(path, clock=clock if clock.virtual else None, lease_s=lease_s)


def _met(storage: Storage, clock: Clock, lease_s: float) -> MemoryCoordination:
    name = clock if clock.virtual else None
    made = MemoryCoordination(clock=name, lease_s=lease_s)
    there = _meetings.of(storage, dict).setdefault(name, made)  # one step, whatever other threads do
    there.lengthen(lease_s)
    return there


def limits_path(store: Path) -> Path:
    """The file beside a store that holds its windows and slots. It may be removed where nothing runs."""
    return store.with_name(f"{store.name}.limits")
