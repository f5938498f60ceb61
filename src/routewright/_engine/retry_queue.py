"""Queue of small writes that are retried until the storage takes them: releases, keys given up, policy events."""

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
"""Between two tries at a storage that is unavailable."""
LONGEST_S = 10.0
"""A write that takes longer is given up and tried again."""
MOST = 10_000
"""Batches that may be queued. With more the storage has been away, and never took most of the reservations that they
release; the others end with their leases, after this process."""

_log = logging.getLogger(__name__)


class _Batch(NamedTuple):
    account: str
    writes: Sequence[Write]
    since: float
    """On the monotonic scale."""
    tried: Signal


class RetryQueue:
    """Releases what calls held that came to nothing. Safe to use from several loops and threads.

    A forked child begins with an empty queue: the parent writes its own.
    """

    def __init__(self, storage: Storage, worker: Worker, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._immediate = isinstance(storage, ImmediateStorage)
        self._guard = Guard()
        self._job = Job(worker, self._drain, 0.0)
        self.retries = True
        """Whether the background tries again what failed."""
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing."""
        self._queue: list[_Batch] = []

    def put(self, account: str, writes: Sequence[Write]) -> Signal:
        """Queue writes. Never fails, nor waits. The signal is set once they were tried."""
        batch = _Batch(account, writes, self._clock.monotonic(), Signal())
        if self._immediate:
            try:
                with storage_faults():
                    at_once(self._storage.apply(account, writes))
            except RouterError as error:
                done = not self._stays(batch, error)
            else:
                done = True
            if done:
                batch.tried.set()
                return batch.tried
        with self._guard.lock:
            fits = len(self._queue) < MOST
            if fits:
                self._queue.append(batch)
        if not fits or not self._job.poke():
            batch.tried.set()
        return batch.tried

    async def write(self) -> bool:
        """Try what is queued. True: some of it still is, since the storage is unavailable."""
        with self._guard.lock:
            queue, self._queue = deque(self._queue), []
        left: list[_Batch] = []
        hung: set[str] = set()
        while queue:
            batch = queue.popleft()
            if batch.account in hung:
                left.append(batch)
                continue
            try:
                if not await self._is_done(batch):
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

    async def _is_done(self, batch: _Batch) -> bool:
        """Apply a batch. False: the storage did not answer, so the account's other batches are not tried now."""
        with storage_faults(), self._clock.deadline(self._clock.monotonic() + LONGEST_S):
            await self._storage.apply(batch.account, batch.writes)
            return True
        return False

    def _stays(self, batch: _Batch, error: RouterError) -> bool:
        """Whether to try a failed batch again."""
        is_away = isinstance(error, StorageUnavailable)
        refused_for_good = isinstance(error, (UnsupportedWrite, PreconditionFailed))
        if is_away or not (refused_for_good or is_lost(self._clock.monotonic() - batch.since)):
            return True
        if not isinstance(error, UnsupportedWrite):  # a storage that keeps none of it has nothing to release
            _log.warning("writes that release what calls held were refused: %s", error)
        return False

    async def _drain(self) -> None:
        waits = await self.write()
        self._job.delay = min(max(self._job.delay, 0.01) * 2, LONGEST_DELAY_S) if waits else 0.0
        if waits and self.retries:
            self._job.poke()
