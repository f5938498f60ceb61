"""Keeps everything in the process: the reference for what a storage does, and the default."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Any, TypeVar

from routewright._core.problem import shown
from routewright.errors import PreconditionFailed, Problem, UnsupportedWrite, ValidationFailed
from routewright.wire import (
    SYSTEM_ACCOUNT,
    CatalogueSnapshot,
    FeedbackByTrace,
    HealthSnapshot,
    PolicySnapshot,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    Query,
    Scan,
    SnapshotById,
    Trace,
    TraceById,
    TraceDraft,
    Traces,
    Write,
    Written,
)

T = TypeVar("T")
Snapshot = CatalogueSnapshot | PolicySnapshot | HealthSnapshot


class _Account:
    def __init__(self) -> None:
        self.traces: OrderedDict[str, Trace | TraceDraft] = OrderedDict()
        self.feedback: OrderedDict[str, PutFeedback] = OrderedDict()
        self.snapshots: OrderedDict[str, Snapshot] = OrderedDict()


class MemoryStorage:
    """A storage that ends with the process. Of each kind the newest ``newest`` of an account are kept.

        router = Router(storage=MemoryStorage(newest=1_000))

    Feedback goes with its trace. A scan that meets a writer sees the state before or after its batch.
    """

    immediate = True
    """Nothing here waits, so traces need no queue in front of it."""

    def __init__(self, *, newest: int = 10_000) -> None:
        if type(newest) is not int or newest < 1:
            raise ValidationFailed.of(Problem("newest", f"is {shown(newest)}", "keep at least 1"))
        self._newest = newest
        self._accounts: dict[str, _Account] = {}
        self._named: Counter[str] = Counter()
        self._lock = threading.Lock()

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``)."""
        with self._lock:
            kept = self._accounts.get(account)
            if kept is None:
                kept = self._accounts[account] = _Account()
            created: set[str] = set()
            for index, write in enumerate(writes):
                _check(kept, write, index, created)
            return [self._write(kept, write) for write in writes]

    async def read(self, account: str, query: Query) -> Any:
        """Answer a query for one thing (``protocols.Storage``)."""
        kept = self._accounts.get(account) or _Account()
        match query:
            case TraceById(id, environment):
                found = kept.traces.get(id)
                return None if found is None or environment not in (None, found.environment) else _whole(found)
            case FeedbackByTrace(trace_id):
                return kept.feedback.get(trace_id)
            case SnapshotById(id):
                return kept.snapshots.get(id)
            case _:
                raise UnsupportedWrite(f"MemoryStorage knows no query {type(query).__name__}")

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> list[Any]:
        """Up to ``limit`` things behind the key ``after`` (``protocols.Storage``)."""
        if not isinstance(query, Traces):
            raise UnsupportedWrite(f"MemoryStorage knows no scan {type(query).__name__}")
        with self._lock:
            kept = self._accounts.get(account) or _Account()
            newest_first = sorted(kept.traces.values(), key=lambda trace: trace.id, reverse=True)
        wanted = (
            trace
            for trace in newest_first
            if (after is None or trace.id < after) and query.environment in (None, trace.environment)
        )
        return [_whole(trace) for trace in islice(wanted, limit)]

    async def sweep(self, now: float) -> int:
        """Nothing here has a time to end at; numbers bound it instead."""
        return 0

    async def aclose(self) -> None:
        """Nothing is held that would have to be freed."""

    def _write(self, kept: _Account, write: Write) -> Written:
        match write:
            case PutTrace(trace):
                return Written(self._put_trace(kept, trace))
            case PutFeedback(trace_id):
                return Written(self._put(kept.feedback, trace_id, write))
            case PutSnapshot(snapshot):
                created = snapshot.id not in kept.snapshots  # few, or dropped with the last trace that names them
                kept.snapshots[snapshot.id] = snapshot
                return Written(created)

    def _put(self, kept: OrderedDict[str, T], key: str, value: T) -> bool:
        created = key not in kept
        kept[key] = value
        while len(kept) > self._newest:
            kept.popitem(last=False)
        return created

    def _put_trace(self, kept: _Account, trace: Trace | TraceDraft) -> bool:
        before = kept.traces.get(trace.id)
        kept.traces[trace.id] = trace
        self._name(trace, 1)
        if before is not None:
            self._name(before, -1)
        while len(kept.traces) > self._newest:
            trace_id, dropped = kept.traces.popitem(last=False)
            kept.feedback.pop(trace_id, None)
            self._name(dropped, -1)
        return before is None

    def _name(self, trace: Trace | TraceDraft, by: int) -> None:
        """Count the traces that name a health snapshot, which goes with the last of them: there are many of these."""
        if trace.decision_input is None:
            return
        snapshot_id = trace.decision_input.health
        self._named[snapshot_id] += by
        if not self._named[snapshot_id]:
            del self._named[snapshot_id]
            system = self._accounts.get(SYSTEM_ACCOUNT)
            if system is not None:
                system.snapshots.pop(snapshot_id, None)


def _whole(trace: Trace | TraceDraft) -> Trace:
    return trace if isinstance(trace, Trace) else trace.trace


def _check(kept: _Account, write: Write, index: int, created: set[str]) -> None:
    """Raise if a write is unknown or does not find what it expects; ``created`` are ids made earlier in the batch."""
    match write:
        case PutTrace(trace):
            key, present = trace.id, trace.id in kept.traces
        case PutFeedback(trace_id, environment=environment):
            found = kept.traces.get(trace_id)
            key, present = trace_id, found is not None and environment in (None, found.environment)
        case PutSnapshot(snapshot):
            key, present = snapshot.id, snapshot.id in kept.snapshots
        case _:
            raise UnsupportedWrite(f"MemoryStorage knows no write {type(write).__name__}")
    if write.expect is not None and (present or key in created) != (write.expect == "present"):
        raise PreconditionFailed(f"{key} was expected to be {write.expect} and is not", index=index)
    if not isinstance(write, PutFeedback):
        created.add(key)
