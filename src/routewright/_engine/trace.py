"""Where finished calls leave their traces. A store that answers at once is written before the answer goes out; any
other is written in batches behind it, and the queue is read before the store, so that a trace can be read at once."""

from __future__ import annotations

import logging
import threading
from itertools import islice
from typing import NamedTuple

from routewright._core.scan import quoted
from routewright.errors import NotFound, PreconditionFailed
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Caller,
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


class Waiting(NamedTuple):
    """A finished call on its way into the storage."""

    account: str
    facts: Facts
    snapshots: list[Snapshot]


class TraceLog:
    """The way from a finished call into the storage. Safe to use from several loops and threads."""

    def __init__(self, storage: Storage, worker: Worker) -> None:
        self._storage = storage
        self._immediate = bool(getattr(storage, "immediate", False))
        self._lock = threading.Lock()
        self._queue: dict[str, Waiting] = {}  # by trace id, in the order of their ends
        self._in_flight: dict[str, Waiting] = {}
        self._kept: set[str] = set()
        self._drain_soon = Job(worker, self.flush, DELAY_S)
        self.lost = 0
        """Traces that found the queue full."""

    async def put(self, facts: Facts, snapshots: list[Snapshot]) -> None:
        """Keep a call's trace, with the snapshots that its decision names. Never fails a call, nor holds it up."""
        ended = Waiting(facts.admitted.caller.account, facts, snapshots)
        if self._immediate:
            await self._put_now(ended)
            return
        with self._lock:
            if len(self._queue) >= QUEUE:
                self.lost += 1
                return
            self._queue[facts.id] = ended
        self._drain_soon.poke()

    async def flush(self) -> None:
        """Write all that waits. What fails goes back into the queue for the next time, and is raised."""
        while batch := self._take():
            try:
                await self._write(batch)
            except BaseException:
                self._give_back(batch)
                raise
            with self._lock:
                for trace_id in batch:
                    self._in_flight.pop(trace_id, None)

    async def trace(self, caller: Caller, trace_id: str) -> Trace:
        """Read one trace. Raises ``NotFound`` alike for an unknown one and one of another account or environment."""
        waiting = self._find(caller, trace_id)
        if waiting is not None:
            return waiting.facts.trace
        found: Trace | None = await self._storage.read(caller.account, TraceById(trace_id, caller.environment))
        if found is None:
            raise NotFound(f"no trace {quoted(trace_id)}")
        return found

    async def feedback(self, caller: Caller, feedback: PutFeedback) -> None:
        """Keep what a user thought of an answer. Raises ``NotFound`` if the caller has no such trace."""
        waiting = self._find(caller, feedback.trace_id)
        writes: list[Write] = [] if waiting is None else [PutTrace(waiting.facts.trace)]
        try:
            await self._storage.apply(caller.account, [*writes, feedback])
        except PreconditionFailed as error:
            raise NotFound(f"no trace {quoted(feedback.trace_id)}") from error

    async def feedback_on(self, account: str, trace_id: str) -> PutFeedback | None:
        """What was said of a trace, if anything."""
        found: PutFeedback | None = await self._storage.read(account, FeedbackByTrace(trace_id))
        return found

    async def snapshot(self, snapshot_id: str) -> Snapshot | None:
        """Read a snapshot by its id."""
        found: Snapshot | None = await self._storage.read(SYSTEM_ACCOUNT, SnapshotById(snapshot_id))
        return found

    async def _put_now(self, ended: Waiting) -> None:
        try:
            await self._keep(ended.snapshots)
            await self._storage.apply(ended.account, [PutTrace(ended.facts)])
        except Exception:
            _log.exception("a trace could not be written")
            self.lost += 1

    def _take(self) -> dict[str, Waiting]:
        """Move the next batch from the queue into flight, where it can still be read."""
        with self._lock:
            batch = dict(islice(self._queue.items(), BATCH))
            for trace_id in batch:
                del self._queue[trace_id]
            self._in_flight |= batch
        return batch

    def _give_back(self, batch: dict[str, Waiting]) -> None:
        with self._lock:
            for trace_id in batch:
                self._in_flight.pop(trace_id, None)
            self._queue = batch | self._queue

    def _find(self, caller: Caller, trace_id: str) -> Waiting | None:
        with self._lock:
            waiting = self._queue.get(trace_id) or self._in_flight.get(trace_id)
        if waiting is None or (waiting.account, waiting.facts.environment) != (caller.account, caller.environment):
            return None
        return waiting

    async def _write(self, batch: dict[str, Waiting]) -> None:
        by_account: dict[str, list[Write]] = {}
        for account, facts, snapshots in batch.values():
            await self._keep(snapshots)
            by_account.setdefault(account, []).append(PutTrace(facts.trace))
        for account, writes in by_account.items():
            await self._storage.apply(account, writes)

    async def _keep(self, snapshots: list[Snapshot]) -> None:
        new = [snapshot for snapshot in snapshots if snapshot.id not in self._kept]
        if not new:
            return
        await self._storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot) for snapshot in new])
        if len(self._kept) > _REMEMBERED:
            self._kept.clear()
        self._kept.update(snapshot.id for snapshot in new)
