"""What is owed to the storage: small things that have to be done there, again and again until they could."""

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

from .crew import Job
from .stored import storage_faults
from .worker import Worker

LONGEST_DELAY_S = 5.0
"""Between two tries at a storage that is unavailable."""
LONGEST_S = 10.0
MOST = 10_000
"""That may wait. Where it is more the storage has been away, and most of what it is asked to give back it never took;
what it did is free with its lease, once this process has ended."""

_log = logging.getLogger(__name__)


class _Owed(NamedTuple):
    account: str
    writes: Sequence[Write]
    since: float
    """On the monotonic scale."""
    tried: Signal


class Spool:
    """Gives back what calls held that ended before they came to anything. Safe to use from several loops and threads.

    What waits at a fork is the parent's.
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
        self._queue: list[_Owed] = []

    def put(self, account: str, writes: Sequence[Write]) -> Signal:
        """Have it done. Never fails, nor waits. What is given back is set once it was tried."""
        owed = _Owed(account, writes, self._clock.monotonic(), Signal())
        if self._immediate and self._is_done_now(owed):
            owed.tried.set()
            return owed.tried
        with self._guard.lock:
            fits = len(self._queue) < MOST
            if fits:
                self._queue.append(owed)
        if not fits or not self._job.poke():
            owed.tried.set()
        return owed.tried

    async def write(self) -> bool:
        """Try what waits. True: some of it still does, since the storage is unavailable."""
        with self._guard.lock:
            queue, self._queue = deque(self._queue), []
        left: list[_Owed] = []
        hung: set[str] = set()
        while queue:
            owed = queue.popleft()
            if owed.account in hung:
                left.append(owed)
                continue
            try:
                if not await self._is_done(owed):
                    hung.add(owed.account)
                    left.append(owed)
            except RouterError as error:
                if self._stays(owed, error):
                    left.append(owed)
            except BaseException:
                with self._guard.lock:
                    self._queue = [owed, *queue, *left, *self._queue]
                raise
            owed.tried.set()
        with self._guard.lock:
            self._queue = [*left, *self._queue]
        return bool(left)

    async def _is_done(self, owed: _Owed) -> bool:
        """Do it. False: the storage did not answer, and those behind it do not wait any longer."""
        with storage_faults(), self._clock.deadline(self._clock.monotonic() + LONGEST_S):
            await self._storage.apply(owed.account, owed.writes)
            return True
        return False

    def _is_done_now(self, owed: _Owed) -> bool:
        """Do it, where nobody waits for the storage. False: it is to be tried again."""
        try:
            with storage_faults():
                at_once(self._storage.apply(owed.account, owed.writes))
        except RouterError as error:
            return not self._stays(owed, error)
        return True

    def _stays(self, owed: _Owed, error: RouterError) -> bool:
        """Whether to try again what was not done."""
        is_away = isinstance(error, StorageUnavailable)
        refused_for_good = isinstance(error, (UnsupportedWrite, PreconditionFailed))
        if is_away or not (refused_for_good or is_lost(self._clock.monotonic() - owed.since)):
            return True
        if not isinstance(error, UnsupportedWrite):  # a storage that keeps none of it has nothing to do
            _log.warning("what is owed to the storage could not be done: %s", error)
        return False

    async def _drain(self) -> None:
        waits = await self.write()
        self._job.delay = min(max(self._job.delay, 0.01) * 2, LONGEST_DELAY_S) if waits else 0.0
        if waits and self.retries:
            self._job.poke()
