"""Retention: the periodic sweep of the storage, and the snapshots that its traces need."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import inf

from routewright.errors import RouterError, StorageUnavailable
from routewright.loop import is_cancelled
from routewright.protocols import Clock, Storage
from routewright.wire import SYSTEM_ACCOUNT, CurrentRetention, Durability, PutSnapshot, SetRetention, Snapshot

EVERY_S = 600.0
DAY_S = 24 * 3600
REMEMBERED = 1_000
"""Snapshots whose last write is remembered."""
KEPT_S = 6 * 3600.0
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
                kept = await storage.read(SYSTEM_ACCOUNT, CurrentRetention())
                production, sandbox = _days(kept.production_s), _days(kept.sandbox_s)
                _log.info(
                    "keeping traces %s, those of the sandbox %s (change with Settings.retention)", production, sandbox
                )
                logged = True
            await storage.sweep(clock.time())
            fails = False
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            bug = not isinstance(error, RouterError)  # in the storage: its author needs the traceback
            level, kind = logging.DEBUG if fails else logging.WARNING, type(error).__name__
            _log.log(level, "the retention sweep failed: %s: %s", kind, error, exc_info=bug)
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
        self._kept_at: dict[str, float] = {}
        self._refused_at: dict[str, float] = {}

    async def keep(self, snapshots: Iterable[Snapshot]) -> None:
        """Put the snapshots that are due. Raises ``StorageUnavailable``; a refused snapshot fails no trace."""
        now = self._clock.time()
        due = {
            each.id: PutSnapshot(each, at=now, durability=self._durability)
            for each in snapshots
            if now - self._kept_at.get(each.id, -inf) > KEPT_S and now - self._refused_at.get(each.id, -inf) > RETRY_S
        }
        if due:
            for times in (self._kept_at, self._refused_at):
                if len(times) > REMEMBERED:
                    times.clear()
            await self._try([*due.values()])

    async def _try(self, writes: Sequence[PutSnapshot]) -> None:
        """Put all; if that is refused, each alone, to find the ones that are."""
        try:
            await self._put(writes)
        except StorageUnavailable:
            raise
        except Exception as error:  # of a custom storage, or for one of the writes: the others are tried alone
            if len(writes) > 1:
                for write in writes:
                    await self._try([write])
                return
            (write,) = writes
            if write.snapshot.id not in self._refused_at:
                self._note(error)
            self._refused_at[write.snapshot.id] = write.at
        else:
            for write in writes:
                self._kept_at[write.snapshot.id] = write.at
                self._refused_at.pop(write.snapshot.id, None)
