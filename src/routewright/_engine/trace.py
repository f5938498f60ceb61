"""Where finished calls leave their traces. A store that answers at once is written before the answer goes out; any
other is written in batches behind it, and the queue is read before the store, so that a trace can be read at once."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice

from routewright.errors import NotFound, PreconditionFailed
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    CatalogueSnapshot,
    FeedbackByTrace,
    HealthSnapshot,
    PolicySnapshot,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    SnapshotById,
    Trace,
    TraceById,
    Write,
)

from .crew import Job
from .outcome import Facts
from .worker import Worker

BATCH = 256
QUEUE = 20_000
DELAY_S = 0.02
_REMEMBERED = 1_000

Snapshot = CatalogueSnapshot | PolicySnapshot | HealthSnapshot

_log = logging.getLogger(__name__)


class TraceLog:
    """The way from a finished call into the storage."""

    def __init__(self, storage: Storage, worker: Worker) -> None:
        self._storage = storage
        self._immediate = bool(getattr(storage, "immediate", False))
        self._queue: deque[tuple[str, Facts]] = deque()
        self._kept: set[str] = set()
        self._drain_soon = Job(worker, self.flush, DELAY_S)
        self.lost = 0
        """Traces that found the queue full."""

    async def put(self, facts: Facts, snapshots: list[Snapshot]) -> None:
        """Keep a call's trace, with the snapshots that its decision names. Never fails a call."""
        account = facts.admitted.caller.account
        try:
            new = [snapshot for snapshot in snapshots if snapshot.id not in self._kept]
            if new:
                await self._keep(new)
            if self._immediate:
                await self._storage.apply(account, [PutTrace(facts)])
                return
        except Exception:
            _log.exception("a trace could not be written")
            self.lost += 1
            return
        if len(self._queue) >= QUEUE:
            self.lost += 1
            return
        self._queue.append((account, facts))
        self._drain_soon.poke()

    async def flush(self) -> None:
        """Write all that waits. What fails stays in the queue for the next time."""
        while self._queue:
            batch = list(islice(self._queue, BATCH))
            by_account: dict[str, list[Write]] = {}
            for account, facts in batch:
                by_account.setdefault(account, []).append(PutTrace(facts.trace))
            for account, writes in by_account.items():
                await self._storage.apply(account, writes)
            for _ in batch:
                self._queue.popleft()

    async def trace(self, account: str, trace_id: str) -> Trace:
        """Read one trace. Raises ``NotFound`` alike for an unknown one and another account's."""
        for owner, facts in self._queue:
            if facts.id == trace_id and owner == account:
                return facts.trace
        found: Trace | None = await self._storage.read(account, TraceById(trace_id))
        if found is None:
            raise NotFound(f"no trace {trace_id!r}")
        return found

    async def feedback(self, account: str, feedback: PutFeedback) -> None:
        """Keep what a user thought of an answer. Raises ``NotFound`` if there is no such trace."""
        await self.flush()
        try:
            await self._storage.apply(account, [feedback])
        except PreconditionFailed as error:
            raise NotFound(f"no trace {feedback.trace_id!r}") from error

    async def feedback_on(self, account: str, trace_id: str) -> PutFeedback | None:
        """What was said of a trace, if anything."""
        found: PutFeedback | None = await self._storage.read(account, FeedbackByTrace(trace_id))
        return found

    async def snapshot(self, snapshot_id: str) -> Snapshot | None:
        """Read a snapshot by its id."""
        found: Snapshot | None = await self._storage.read(SYSTEM_ACCOUNT, SnapshotById(snapshot_id))
        return found

    async def _keep(self, new: list[Snapshot]) -> None:
        await self._storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot) for snapshot in new])
        if len(self._kept) > _REMEMBERED:
            self._kept.clear()
        self._kept.update(snapshot.id for snapshot in new)
