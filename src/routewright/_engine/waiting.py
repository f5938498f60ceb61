"""Finished calls that are on their way into the storage, and what has to be written of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from routewright._core.call import Call
from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.loop import Signal, at_once, is_closed, this_loop
from routewright.protocols import ImmediateStorage
from routewright.wire import Durability, Event, PutEvent, PutTrace, Settle, Snapshot, Write, Written

from .stored import checked_written

if TYPE_CHECKING:
    from .ending import Ending


_SEEMS_DOWN = 3
"""So many accounts that cannot be written to, and none that can: the others need not be tried."""


class Happening(NamedTuple):
    """An event that a call caused."""

    event: Event
    once: str | None = None
    """Of the events of this name one is told within ``quiet_s``, whichever process saw it first."""
    quiet_s: float = 0.0

    def write(self, at: float, durability: Durability) -> PutEvent:
        """Keep it."""
        return PutEvent(self.event.stored, self.once, self.quiet_s, at, durability)


class Waiting(NamedTuple):
    """A finished call on its way into the storage."""

    account: str
    call: Call
    snapshots: list[Snapshot]
    happened: Sequence[Happening]
    ending: Ending | None
    """What its batch has to do besides."""
    at: float
    """Unix seconds."""
    tried: Signal | None
    """Set once it was written, could not be for now, or was given up: for who waits for that."""

    def write(self, durability: Durability) -> PutTrace:
        """Its trace, to be written."""
        return PutTrace(self.call.trace, rollup_keys=self.call.rollup_keys, durability=durability)

    def besides(self, durability: Durability) -> list[Write]:
        """What to write besides its trace."""
        writes: list[Write] = [] if self.ending is None else self.ending.writes(self.call)
        rows = tuple(self.call.rows)
        if rows:
            key_id = self.call.caller.key_id  # it may have been set up since the call began
            writes.append(Settle(id=self.call.id, at=rows[0].at, rows=rows, key_id=key_id, durability=durability))
        return [*writes, *(each.write(self.at, durability) for each in self.happened)]

    @property
    def again_at(self) -> float:
        """When it is to be tried again, on the monotonic scale, if it was refused."""
        return -inf if self.ending is None else self.ending.again_at

    def written(self) -> None:
        """Tell those who wait for what it held."""
        if self.ending is not None:
            self.ending.written()


class Pass:
    """One go through the queue, in one event loop."""

    def __init__(self) -> None:
        self._loop = this_loop()
        self.ended = Signal()

    @property
    def is_lost(self) -> bool:
        """Its loop was closed under it, so it will never end."""
        return is_closed(self._loop)


class Round:
    """How one go through the queue goes."""

    def __init__(self, *, patient: bool) -> None:
        """``patient``: there will be others."""
        self.patient = patient
        self.down: set[str] = set()
        """Accounts that cannot be written to."""
        self.wrote = False
        self.left = False
        """Something was refused that is tried again."""

    @property
    def waits(self) -> bool:
        """Some of what it was about is not written."""
        return self.left or bool(self.down)

    def seems_down(self, account: str) -> bool:
        """Whether an account need not be tried."""
        return account in self.down or (not self.wrote and len(self.down) >= _SEEMS_DOWN)


def release(ended: Iterable[Waiting]) -> None:
    """Let calls go on that wait for their traces to be written."""
    for waiting in ended:
        if waiting.tried is not None:
            waiting.tried.set()


def events_in(written: Iterable[Written]) -> list[Event]:
    """The events that writes led to."""
    return [stored.event for each in written for stored in each.events]


def keep_now(storage: ImmediateStorage, ended: Waiting, durability: Durability) -> list[Event]:
    """Keep a trace, and what goes with it, in a storage that never waits. Gives what is to be told."""
    events = _besides_now(storage, ended, durability) if ended.ending is not None or ended.happened else []
    storage.keep(ended.account, ended.call, ended.snapshots)
    return events


def _besides_now(storage: ImmediateStorage, ended: Waiting, durability: Durability) -> list[Event]:
    try:
        return _applied_now(storage, ended, durability)
    except PreconditionFailed:
        if ended.ending is None or not ended.ending.lose_claim(ended.call):
            raise
        return _applied_now(storage, ended, durability)
    except UnsupportedWrite:
        if ended.ending is not None:
            raise
        return [each.event for each in ended.happened]


def _applied_now(storage: ImmediateStorage, ended: Waiting, durability: Durability) -> list[Event]:
    writes = ended.besides(durability)
    return events_in(checked_written(storage, writes, at_once(storage.apply(ended.account, writes))))
