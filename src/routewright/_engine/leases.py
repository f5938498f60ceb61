"""Renews the leases of what calls hold while they run: reservations, idempotency keys and slots."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable
from functools import partial

from routewright.errors import StorageUnavailable, UnsupportedWrite
from routewright.fork import Guard, renew_in_children
from routewright.identity import Ids
from routewright.loop import is_cancelled
from routewright.protocols import Clock, Coordination, Storage
from routewright.wire import SYSTEM_ACCOUNT, KeepLease

from .worker import Worker

RENEWALS = 3
"""Renewals of a lease before it would end."""
LONGEST = 0.2
"""Share of a lease that a renewal may take: two in a row, with the pause between them, fit into it."""

_log = logging.getLogger(__name__)


class Leases:
    """Renews the leases of one Router's calls in the background, while there are any. A forked child has its own.

    What a process leaves behind when it ends is free again after ``lease_s``.
    """

    def __init__(
        self,
        storage: Storage,
        coordination: Coordination,
        worker: Worker,
        ids: Ids,
        clock: Clock,
        lease_s: float,
        keep_dropped: Callable[[], object],
    ) -> None:
        """``keep_dropped`` is called before each renewal: it ends calls that nobody holds any more."""
        self.lease_s = lease_s
        self._storage = storage
        self._coordination = coordination
        self._worker = worker
        self._ids = ids
        self._clock = clock
        self._guard = Guard()
        self._keeps = False
        self._keep_dropped = keep_dropped
        renew_in_children(self)

    def renew(self) -> None:
        """Begin as another owner."""
        self._id: str | None = None
        self._holding = 0
        self.since = self._clock.monotonic()
        """Calls that began before belong to the parent of this process."""

    @property
    def id(self) -> str:
        """The owner's name in the storage and the coordination."""
        if self._id is None:
            with self._guard.lock:  # else what one of two threads held would be renewed by nobody
                if self._id is None:
                    self._begin()
                    self._id = self._ids("own_")
        return self._id

    def hold(self) -> None:
        """Renew from now on, until ``let_go`` was called as often."""
        with self._guard.lock:
            self._holding += 1

    def let_go(self) -> None:
        """Undo one ``hold``."""
        with self._guard.lock:
            self._holding -= 1

    async def renew_leases(self) -> None:
        """Keep what is held for another ``lease_s``."""
        mine = self._id
        if self._holding and mine is not None:
            await self._tried("dropped calls", self._end_dropped)
            write = KeepLease(mine, self.lease_s, self._clock.monotonic())
            await self._tried("leases", partial(self._storage.apply, SYSTEM_ACCOUNT, [write]))
            await self._tried("slots", partial(self._coordination.renew, mine))

    async def _end_dropped(self) -> None:
        self._keep_dropped()

    async def _tried(self, what: str, renew: Callable[[], Awaitable[object]]) -> None:
        """Renew in bounded time, and log what fails: one odd fault must not cost a running call what it holds."""
        limit_s = self.lease_s * LONGEST
        try:
            with self._clock.deadline(self._clock.monotonic() + limit_s):
                await renew()
                return
            _log.warning("%s could not be renewed within %g s", what, limit_s)
        except (StorageUnavailable, UnsupportedWrite) as error:
            _log.debug("%s could not be renewed: %s", what, error)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            _log.warning("%s could not be renewed: %s", what, type(error).__name__)

    def _begin(self) -> None:
        if self._keeps:
            self._worker.home()  # a child renews anew
        else:
            self._worker.start_daemon(_keep, weakref.ref(self), self._clock, self.lease_s / RENEWALS)
            self._keeps = True


async def _keep(held: weakref.ref[Leases], clock: Clock, every_s: float) -> None:
    """Renew until the ``Leases`` are collected; they hold the worker that this runs in."""
    while True:
        await clock.sleep(every_s)
        leases = held()
        if leases is None:
            return
        await leases.renew_leases()
        del leases
