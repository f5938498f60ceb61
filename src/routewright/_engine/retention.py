"""Retention: the periodic sweep of the storage, and the snapshots that its traces need."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import inf

from routewright._runtime.loop import is_cancelled
from routewright.errors import RouterError
from routewright.protocols import Clock, Storage
from routewright.wire import SYSTEM_ACCOUNT, CurrentRetention, Durability, PutSnapshot, SetRetention, Snapshot

from .storage import write_all

EVERY_S = 600.0
DAY_S = 24 * 3600
REMEMBERED = 1_000
"""Snapshots whose last write is remembered."""
PUT_AGAIN_S = 6 * 3600.0
"""A snapshot is put again after this time: one that no trace has named for a day is swept."""
RETRY_S = 60.0
"""Pause before a refused snapshot is tried again: its traces cannot be replayed without it."""

_log = logging.getLogger(__name__)


async def sweep(storage: Storage, change: SetRetention | None, clock: Clock) -> None:
    """Apply a ``change`` of the retention, then sweep the storage periodically, for ever. Of several failures in a row
    the first is logged as a warning, since old traces then stay."""
    logged = fails = False
    while True:
        try:
            if change is not None:
                await storage.apply(SYSTEM_ACCOUNT, [change])
                change = None
            if not logged:
                retention = await storage.read(SYSTEM_ACCOUNT, CurrentRetention())
                production, sandbox = _days(retention.production_s), _days(retention.sandbox_s)
                _log.info(
                    "keeping traces %s, those of the sandbox %s (change with Settings.retention)", production, sandbox
                )
                logged = True
            await storage.sweep(clock.time())
            fails = False
        except (Exception, asyncio.CancelledError) as error:  # a custom storage may raise anything
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            is_bug = not isinstance(error, RouterError)  # in the storage: its author needs the traceback
            level, kind = logging.DEBUG if fails else logging.WARNING, type(error).__name__
            _log.log(level, "the retention sweep failed: %s: %s", kind, error, exc_info=is_bug)
            fails = True
        await clock.sleep(EVERY_S)


def _days(seconds: float | None) -> str:
    if seconds is None:
        return "for ever"
    return f"for {seconds / DAY_S:g} day{'' if seconds == DAY_S else 's'}"


class Snapshots:
    """Writes the snapshots that traces name: each once, and again before it could be swept. One ``keep`` at a time."""

    def __init__(
        self,
        put: Callable[[Sequence[PutSnapshot]], Awaitable[object]],
        note: Callable[[Exception], object],
        clock: Clock,
        durability: Durability,
    ) -> None:
        """``put`` applies writes; ``note`` takes the first of several refusals."""
        self._put = put
        self._note = note
        self._clock = clock
        self._durability: Durability = durability
        self._put_at: dict[str, float] = {}
        self._refused_at: dict[str, float] = {}

    async def keep(self, snapshots: Iterable[Snapshot]) -> None:
        """Put the snapshots that are due. Raises ``StorageUnavailable``; a refused snapshot fails no trace."""
        now = self._clock.time()
        due = {
            snapshot.id: PutSnapshot(snapshot, at=now, durability=self._durability)
            for snapshot in snapshots
            if now - self._put_at.get(snapshot.id, -inf) > PUT_AGAIN_S
            and now - self._refused_at.get(snapshot.id, -inf) > RETRY_S
        }
        if due:
            for times in (self._put_at, self._refused_at):
                if len(times) > REMEMBERED:
                    times.clear()
            await write_all([*due.values()], self._put_all, self._refuse)

    async def _put_all(self, writes: Sequence[PutSnapshot]) -> None:
        await self._put(writes)
        for write in writes:
            self._put_at[write.snapshot.id] = write.at
            self._refused_at.pop(write.snapshot.id, None)

    def _refuse(self, write: PutSnapshot, error: Exception) -> None:
        if write.snapshot.id not in self._refused_at:
            self._note(error)
        self._refused_at[write.snapshot.id] = write.at
