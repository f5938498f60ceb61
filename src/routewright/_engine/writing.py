"""Writes finished calls into the storage, many at a time; of one that is refused as much as is taken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import anyio

from routewright._core.call import Call
from routewright._core.salvage import Part, is_lost, next_part
from routewright.errors import PreconditionFailed, StorageUnavailable, UnsupportedWrite
from routewright.loop import is_cancelled
from routewright.protocols import Clock, Storage
from routewright.wire import SYSTEM_ACCOUNT, Durability, Event, Write, Written

from .capture import redacting
from .snapshot import Snapshots
from .stored import checked_written
from .trouble import Trouble, said
from .waiting import Round, Waiting, events_in, release

if TYPE_CHECKING:
    from .ending import Ending

BATCH = 256
LONGEST_S = 10.0
"""What takes longer is given up and tried again, as all that is written may be."""
PROBE_S, PAUSE_S = 2.0, 3.0
"""Where a batch was never answered, its account is let alone for the second, and then has the first for one call: so it
holds the others up for little, and is heard of within five seconds of its recovery. Each further time it has twice as
long, as the storage may be slow."""
AT_ONCE = 32
"""Accounts that are written to at a time."""

_log = logging.getLogger(__name__)


class _Hung(NamedTuple):
    """An account whose last batch was never answered."""

    again_at: float
    bound_s: float
    """How long the next may take."""


class Writing:
    """One pass at a time writes with it. What is done with, or given up, is handed to ``forget``."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        durability: Durability,
        trouble: Trouble,
        tell: Callable[[Call, Sequence[Event]], None],
        forget: Callable[[Sequence[Waiting]], None],
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._durability: Durability = durability
        self._trouble = trouble
        self._tell = tell
        self._forget = forget
        self._snapshots = Snapshots(partial(self._apply, SYSTEM_ACCOUNT), trouble.note, clock, durability)
        self._hung: dict[str, _Hung] = {}
        self._books = True
        """Whether the storage keeps more than traces, as far as is known."""

    async def write(self, queues: list[list[Waiting]], round: Round) -> None:
        """Write what waits, a list for each account."""
        try:
            await self._snapshots.keep(snapshot for queue in queues for each in queue for snapshot in each.snapshots)
        except StorageUnavailable as error:
            self._trouble.note(error)
            for queue in queues:
                round.down.add(queue[0].account)
                release(queue)
            return
        while queues and not round.wrote:
            await self._write_queue(queues.pop(), round)
        if queues:
            async with anyio.create_task_group() as group:
                for _ in range(min(len(queues), AT_ONCE)):
                    group.start_soon(self._write_queues, queues, round)

    def forgive(self) -> None:
        """Try all accounts again, those that the storage stood still for, too."""
        self._hung.clear()

    async def traces_of(self, batch: Iterable[Waiting]) -> list[Write]:
        """Their traces, to be written."""
        calls = list(batch)

        def make() -> list[Write]:
            return [each.write(self._durability) for each in calls]

        return await redacting(make, [each.call.captured for each in calls], self._clock)

    async def _write_queues(self, queues: list[list[Waiting]], round: Round) -> None:
        """Write one account after the other. Several of these share the queues, so that their batches are committed
        together."""
        while queues:
            await self._write_queue(queues.pop(), round)

    async def _write_queue(self, queue: list[Waiting], round: Round) -> None:
        """Write what waits of one account."""
        place, account = 0, queue[0].account
        while place < len(queue):
            batch = queue[place : place + (1 if account in self._hung else BATCH)]
            place += len(batch)
            if not round.seems_down(account):
                try:
                    await self._write(batch, round)
                except StorageUnavailable as error:
                    round.down.add(account)
                    self._trouble.note(error)
            release(batch)  # not where this pass is cancelled: what it leaves is for the next

    async def _write(self, batch: list[Waiting], round: Round) -> None:
        """Write calls of one account; where they are refused, one by one, to find those that are to blame."""
        try:
            await self._write_whole(batch)
            round.wrote = True
        except StorageUnavailable:
            raise
        except Exception as error:  # a host's storage may raise anything, and no bill is lost for that
            if len(batch) > 1:
                for waiting in batch:
                    await self._write([waiting], round)
            else:
                await self._write_one(batch[0], error, round)

    async def _write_whole(self, batch: list[Waiting]) -> None:
        """Write all there is of calls, or nothing."""
        traces = await self.traces_of(batch)
        besides = [each.besides(self._durability) if self._keeps(each) else [] for each in batch]
        more = [write for each in besides for write in each]
        writes = [*traces, *more]  # traces first: a storage may write many that follow each other at once
        written = await self._apply(batch[0].account, writes)
        rest = checked_written(self._storage, writes, written)[len(traces) :] if more else []
        self._forget(batch)
        for waiting, part in zip(batch, besides, strict=True):
            mine, rest = rest[: len(part)], rest[len(part) :]
            waiting.written()
            told = events_in(mine) if self._keeps(waiting) else [each.event for each in waiting.happened]
            self._tell(waiting.call, told)

    def _keeps(self, waiting: Waiting) -> bool:
        """Whether the storage is to be asked for more than a trace: always for what is owed."""
        return self._books or waiting.ending is not None

    async def _write_one(self, waiting: Waiting, error: Exception, round: Round) -> None:
        """Of a call that is refused as it is, write what can be."""
        ending = waiting.ending
        if ending is None and self._books and isinstance(error, UnsupportedWrite):
            self._books = False
            _log.info("the storage keeps traces alone: %s", error)
            await self._write([waiting], round)
        elif ending is None or ending.is_booked:
            self._trouble.refuse(error)
            self._give_up(waiting)
        elif isinstance(error, PreconditionFailed) and ending.lose_claim(waiting.call):
            await self._write([waiting], round)  # another took its key over
        else:
            await self._write_bill(waiting, ending, error, round)

    async def _write_bill(self, waiting: Waiting, ending: Ending, error: Exception, round: Round) -> None:
        """Of a call that is refused as it is, write what it owes (``next_part``); later, where that is refused too."""
        now = self._clock.monotonic()
        waited_s = ending.waited_s(now) if round.patient else inf
        part, fault = next_part(Part.WHOLE, waited_s), error
        while part is not None:
            try:
                events = await self._write_part(waiting, ending, part)
            except StorageUnavailable:
                raise
            except Exception as refused:  # as above: less of it is tried
                fault = refused
                part = next_part(part, inf if isinstance(fault, UnsupportedWrite) else waited_s)
            else:
                await self._write_rest(waiting, events)
                round.wrote = True
                return
        self._trouble.note(fault)
        if round.patient and not is_lost(waited_s) and not isinstance(fault, UnsupportedWrite):
            ending.put_off(now)
            round.left = True
            return
        self._trouble.refuse(fault)
        self._trouble.lose_bill(waiting.call, waiting.account, said(fault))
        self._give_up(waiting)

    async def _write_part(self, waiting: Waiting, ending: Ending, part: Part) -> list[Event]:
        """Write a part of what a call owes. Gives what is to be told."""
        writes = ending.part(waiting.call, part)
        try:
            written = await self._apply(waiting.account, writes)
        except PreconditionFailed:
            ending.lose_claim(waiting.call)
            raise
        events = events_in(checked_written(self._storage, writes, written))
        ending.booked(part)
        if part is Part.BOUND:
            _log.warning("the bill of call %s was refused as it was: it is booked without detail", waiting.call.id)
        return events

    async def _write_rest(self, waiting: Waiting, events: list[Event]) -> None:
        """Write the trace of a call whose bill is booked, if it is taken by itself."""
        try:
            events += await self._write_trace(waiting)
        except StorageUnavailable:
            raise
        except Exception as error:  # as above: the bill is booked, and the trace is counted as refused
            self._trouble.refuse(error)
        self._tell(waiting.call, events)
        self._give_up(waiting)

    async def _write_trace(self, waiting: Waiting) -> list[Event]:
        """Write a trace and its events, or the trace alone where the storage keeps no events. Gives what is to be
        told."""
        trace = await self.traces_of([waiting])
        writes = [*trace, *(each.write(waiting.at, self._durability) for each in waiting.happened)]
        try:
            return events_in(checked_written(self._storage, writes, await self._apply(waiting.account, writes)))
        except UnsupportedWrite:
            if not waiting.happened:
                raise
        checked_written(self._storage, trace, await self._apply(waiting.account, trace))
        return [each.event for each in waiting.happened]

    def _give_up(self, waiting: Waiting) -> None:
        """Try it no more."""
        self._forget([waiting])
        waiting.written()

    async def _apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        now, hung = self._clock.monotonic(), self._hung.get(account)
        if hung is not None and now < hung.again_at:
            raise StorageUnavailable(f"the storage stood still for this account {PAUSE_S:g} s ago or less")
        bound_s = LONGEST_S if hung is None else hung.bound_s
        try:
            with self._clock.deadline(now + bound_s):
                done = await self._storage.apply(account, writes)
                self._hung.pop(account, None)
                return done
            next_s = PROBE_S if hung is None else min(2 * bound_s, LONGEST_S)
            self._hung[account] = _Hung(now + bound_s + PAUSE_S, next_s)
            raise StorageUnavailable(f"the storage took longer than {bound_s:g} s")
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise StorageUnavailable(f"{type(self._storage).__name__} cancelled itself") from error
