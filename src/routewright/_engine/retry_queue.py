"""Queue of small writes that are retried until the storage takes them: releases, ended claims, policy events."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from routewright._core.salvage import is_lost
from routewright.errors import PreconditionFailed, RouterError, StorageUnavailable, UnsupportedWrite
from routewright.fork import Guard, renew_in_children
from routewright.loop import Signal, at_once
from routewright.protocols import Clock, ImmediateStorage, Storage
from routewright.wire import Write

from .storage import storage_faults
from .worker import Job, Worker

LONGEST_DELAY_S = 5.0
"""The longest pause between two tries at a storage that is unavailable."""
LONGEST_S = 10.0
"""A write that takes longer is abandoned and tried again."""
MOST = 10_000
"""Batches that may be queued. By then the storage has been away for long, and never took most of the reservations that
they release; the others end with their leases."""

_log = logging.getLogger(__name__)


class _Batch(NamedTuple):
    account: str
    writes: Sequence[Write]
    since: float
    """On the monotonic scale."""
    tried: Signal


class RetryQueue:
    """Writes that end what calls held. Safe to use from several loops and threads.

    A forked child begins with an empty queue: the parent writes its own.
    """

    def __init__(self, storage: Storage, worker: Worker, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._immediate = isinstance(storage, ImmediateStorage)
        self._guard = Guard()
        self._job = Job(worker, self._drain, 0.0)
        self.retries = True
        """Whether the background retries failed writes."""
        renew_in_children(self)

    def renew(self) -> None:
        """Start with an empty queue."""
        self._queue: list[_Batch] = []

    def put(self, account: str, writes: Sequence[Write]) -> Signal:
        """Queue writes. Never fails nor waits. The signal is set once they were tried."""
        batch = _Batch(account, writes, self._clock.monotonic(), Signal())
        stays = True
        if self._immediate:
            try:
                with storage_faults():
                    at_once(self._storage.apply(account, writes))
                stays = False
            except RouterError as error:
                stays = self._stays(batch, error)
        with self._guard.lock:
            is_queued = stays and len(self._queue) < MOST
            if is_queued:
                self._queue.append(batch)
        if not is_queued or not self._job.poke():
            batch.tried.set()
        return batch.tried

    async def write(self) -> bool:
        """Try all queued writes. True: some are still queued, since the storage is unavailable."""
        with self._guard.lock:
            queue, self._queue = deque(self._queue), []
        left: list[_Batch] = []
        hung: set[str] = set()  # accounts whose writes were not answered in time: their other batches wait
        while queue:
            batch = queue.popleft()
            if batch.account in hung:
                left.append(batch)
                continue
            answered = False
            try:
                with storage_faults(), self._clock.deadline(self._clock.monotonic() + LONGEST_S):
                    await self._storage.apply(batch.account, batch.writes)
                    answered = True
                if not answered:
                    hung.add(batch.account)
                    left.append(batch)
            except RouterError as error:
                if self._stays(batch, error):
                    left.append(batch)
            except BaseException:
                with self._guard.lock:
                    self._queue = [batch, *queue, *left, *self._queue]
                raise
            batch.tried.set()
        with self._guard.lock:
            self._queue = [*left, *self._queue]
        return bool(left)

    def _stays(self, batch: _Batch, error: RouterError) -> bool:
        """True if a failed batch is tried again."""
        is_final = isinstance(error, UnsupportedWrite | PreconditionFailed)
        is_away = isinstance(error, StorageUnavailable)
        if is_away or not (is_final or is_lost(self._clock.monotonic() - batch.since)):
            return True
        if not isinstance(error, UnsupportedWrite):  # a storage without such writes has nothing to release
            _log.warning("writes that release what calls held were refused: %s", error)
        return False

    async def _drain(self) -> None:
        waits = await self.write()
        self._job.delay = min(max(self._job.delay, 0.01) * 2, LONGEST_DELAY_S) if waits else 0.0
        if waits and self.retries:
            self._job.poke()
