"""Keeps everything in the process: the reference for what a storage does, and the default."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from routewright._core.batch import UNNAMED_S, check_batch, ids_of
from routewright._core.filter import selects
from routewright._core.moment import timestamp
from routewright._core.problem import shown
from routewright._core.rollup import Rollups
from routewright.errors import Problem, UnsupportedWrite, ValidationFailed
from routewright.fork import Guard
from routewright.protocols import TraceDraft
from routewright.wire import (
    SYSTEM_ACCOUNT,
    CacheCounts,
    CurrentRetention,
    DecisionInput,
    DeleteTraces,
    Environment,
    FallbackCounts,
    FeedbackByTrace,
    LatencyCounts,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    Query,
    RollupKeys,
    Scan,
    Selection,
    SetRetention,
    Snapshot,
    SnapshotById,
    Trace,
    TraceById,
    TraceItems,
    Traces,
    UsageCounts,
    Write,
    Written,
)

T = TypeVar("T")
VALUES = 1_000
"""Of a group so many are told apart within an hour, those that came first: so no flood of names drives the hours before
out of the roll-ups, nor makes each trace take longer. A report names a hundred."""
Kept = PutTrace | TraceDraft
"""A trace that is counted in the roll-ups, or a draft."""


class _Account:
    def __init__(self) -> None:
        self.traces: OrderedDict[str, Kept] = OrderedDict()
        self.uncounted: dict[str, TraceDraft] = {}
        """Drafts that are not in the roll-ups yet: they are made into traces for that only when somebody asks."""
        self.rollups = Rollups(VALUES)
        self.feedback: OrderedDict[str, PutFeedback] = OrderedDict()
        self.snapshots: OrderedDict[str, tuple[Snapshot, float]] = OrderedDict()
        """With the time at which they were last put, 0 of those that came with a trace."""


class MemoryStorage:
    """A storage that ends with the process. Of each kind the newest ``newest`` of an account are kept.

        router = Router(storage=MemoryStorage(newest=1_000))

    Of more than ``accounts`` accounts the one that was not written to for longest goes. Feedback goes with its trace.
    A read or scan that meets a writer sees the state before or after its batch. What is read is a copy. A trace takes
    about 2 kB. Unless a retention is set, traces go only for newer ones; the analytics count them still.
    """

    def __init__(self, *, newest: int = 10_000, accounts: int = 1_000) -> None:
        _at_least_one("newest", newest)
        _at_least_one("accounts", accounts)
        self._newest = newest
        self._most_accounts = accounts
        self._accounts: OrderedDict[str, _Account] = OrderedDict()  # the one used last at the end
        self._system = _Account()
        self._retention = SetRetention()
        self._named: Counter[str] = Counter()
        self._guard = Guard()

    def keep(self, account: str, draft: TraceDraft, snapshots: Sequence[Snapshot]) -> None:
        """Keep a trace that is made when it is read (``protocols.ImmediateStorage``)."""
        with self._guard.lock:
            system = self._system.snapshots
            for snapshot in snapshots:
                if snapshot.id in system:
                    system.move_to_end(snapshot.id)
                else:
                    self._put(system, snapshot.id, (snapshot, 0.0))
            kept = self._used(account)
            self._put_trace(kept, draft.id, draft)
            kept.uncounted[draft.id] = draft

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``)."""
        with self._guard.lock:
            before = self._account(account)
            traces, snapshots = ids_of(writes)
            check_batch(
                "MemoryStorage",
                account,
                writes,
                {trace_id: _environment(before.traces[trace_id]) for trace_id in traces if trace_id in before.traces},
                {snapshot_id for snapshot_id in snapshots if snapshot_id in before.snapshots},
            )
            kept = self._used(account)
            return [self._write(kept, write) for write in writes]

    async def read(self, account: str, query: Query) -> Any:
        """Answer a query for one thing (``protocols.Storage``)."""
        with self._guard.lock:
            kept = self._account(account)
            match query:
                case TraceById(id, environment):
                    found = kept.traces.get(id)
                case FeedbackByTrace(trace_id):
                    return kept.feedback.get(trace_id)
                case SnapshotById(id):
                    return kept.snapshots.get(id, (None,))[0]
                case CurrentRetention():
                    return self._retention
                case RollupKeys():
                    return self._counted(kept).rollup_keys()
                case UsageCounts():
                    return self._counted(kept).usage_counts(query)
                case CacheCounts():
                    return self._counted(kept).cache_counts(query)
                case FallbackCounts():
                    return self._counted(kept).fallback_counts(query)
                case LatencyCounts():
                    return self._counted(kept).latency_counts(query)
                case _:
                    raise UnsupportedWrite(f"MemoryStorage knows no query {type(query).__name__}")
        return None if found is None or environment not in (None, _environment(found)) else _whole(found)

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> list[Any]:
        """Up to ``limit`` traces behind the key ``after`` (``protocols.Storage``)."""
        if not isinstance(query, TraceItems | Traces):
            raise UnsupportedWrite(f"MemoryStorage knows no scan {type(query).__name__}")
        with self._guard.lock:
            kept = list(self._account(account).traces.values())
        behind = (each for each in kept if after is None or _key(each) < after)
        found = islice(_selected(sorted(behind, key=_key, reverse=True), query), limit)
        return [trace if isinstance(query, Traces) else trace.item for trace in found]

    async def sweep(self, now: float) -> int:
        """Remove what is past its time (``protocols.Storage``)."""
        ages = {"production": self._retention.production_s, "sandbox": self._retention.sandbox_s}
        before = {of: timestamp(max(0.0, now - age)) for of, age in ages.items() if age is not None}
        with self._guard.lock:
            old = [
                (kept, trace_id)
                for kept in self._everything()
                for trace_id, each in kept.traces.items()
                if _key(each) < before.get(_environment(each), "")
            ]
            for kept, trace_id in old:
                self._drop(kept, trace_id)
            free = self._free_snapshots(now - UNNAMED_S)
            for snapshot_id in free:
                del self._system.snapshots[snapshot_id]
        return len(old) + len(free)

    async def aclose(self) -> None:
        """Nothing is held that would have to be freed."""

    def _everything(self) -> list[_Account]:
        return [self._system, *self._accounts.values()]

    def _account(self, account: str) -> _Account:
        """What is kept of an account; of an unknown one an empty one that is not kept."""
        return self._system if account == SYSTEM_ACCOUNT else self._accounts.get(account) or _Account()

    def _used(self, account: str) -> _Account:
        """The account to write to, now the one used last; the one used first may have to go for it."""
        if account == SYSTEM_ACCOUNT:
            return self._system
        kept = self._accounts.get(account)
        if kept is not None:
            self._accounts.move_to_end(account)
            return kept
        kept = self._accounts[account] = _Account()
        if len(self._accounts) > self._most_accounts:
            _, dropped = self._accounts.popitem(last=False)
            for each in dropped.traces.values():
                self._name(each, -1)
        return kept

    def _write(self, kept: _Account, write: Write) -> Written:
        match write:
            case PutTrace(trace):
                mine = PutTrace(trace.copy(), rollup_keys=write.rollup_keys)
                created = self._put_trace(kept, trace.id, mine)
                self._count(kept, mine)
                return Written(created)
            case PutFeedback(trace_id):
                return Written(self._put(kept.feedback, trace_id, write))
            case PutSnapshot(snapshot, at=at):
                _, before = kept.snapshots.get(snapshot.id, (None, at))
                return Written(self._put(kept.snapshots, snapshot.id, (snapshot, max(at, before))))
            case DeleteTraces():
                return Written(created=False, count=self._delete(kept, write))
            case SetRetention():
                self._retention = write
                return Written(created=False)

    def _put(self, kept: OrderedDict[str, T], key: str, value: T) -> bool:
        created = key not in kept
        kept[key] = value
        kept.move_to_end(key)
        if len(kept) > self._newest:
            kept.popitem(last=False)
        return created

    def _put_trace(self, kept: _Account, trace_id: str, put: Kept) -> bool:
        """Keep a trace, which the caller counts, in the place of one of its id, which goes out of the roll-ups."""
        before = kept.traces.get(trace_id)
        if before is not None:
            self._count_out(kept, trace_id, before)
            self._name(before, -1)
        kept.traces[trace_id] = put
        self._name(put, 1)
        if len(kept.traces) > self._newest:
            self._drop(kept, next(iter(kept.traces)))
        return before is None

    def _delete(self, kept: _Account, which: DeleteTraces) -> int:
        only = None if which.id is None else kept.traces.get(which.id)
        asked = list(kept.traces.values()) if which.id is None else [] if only is None else [only]
        found = [trace.id for trace in islice(_selected(sorted(asked, key=_key), which), which.limit)]
        for trace_id in found:
            self._count_out(kept, trace_id, kept.traces[trace_id])
            self._drop(kept, trace_id)
        return len(found)

    def _drop(self, kept: _Account, trace_id: str) -> None:
        """Forget a trace. It stays counted."""
        draft = kept.uncounted.pop(trace_id, None)
        if draft is not None:
            self._count(kept, draft)
        self._name(kept.traces.pop(trace_id), -1)
        kept.feedback.pop(trace_id, None)

    def _counted(self, kept: _Account) -> Rollups:
        """The roll-ups, with all drafts in them."""
        drafts, kept.uncounted = kept.uncounted, {}
        for draft in drafts.values():
            self._count(kept, draft)
        return kept.rollups

    def _count(self, kept: _Account, put: Kept) -> None:
        kept.rollups.add(put.trace if isinstance(put, PutTrace) else put.wordless, put.rollup_keys)
        kept.rollups.keep_newest(self._newest)

    def _count_out(self, kept: _Account, trace_id: str, put: Kept) -> None:
        if kept.uncounted.pop(trace_id, None) is None:
            kept.rollups.add(put.trace, put.rollup_keys, sign=-1)

    def _name(self, put: Kept, by: int) -> None:
        """Count the traces that name a health snapshot, which came with one of them and goes with the last: there are
        many of these."""
        given = _decision_input(put)
        if given is None:
            return
        self._named[given.health] += by
        if not self._named[given.health]:
            del self._named[given.health]
            _, at = self._system.snapshots.get(given.health, (None, 0.0))
            if not at:
                self._system.snapshots.pop(given.health, None)

    def _free_snapshots(self, before: float) -> list[str]:
        """Those that were put before then and that no trace names."""
        given = [_decision_input(each) for kept in self._everything() for each in kept.traces.values()]
        named = {name for each in given if each is not None for name in (each.catalogue, each.health, each.policy)}
        put = self._system.snapshots.items()
        return [snapshot_id for snapshot_id, (_, at) in put if at < before and snapshot_id not in named]


def _at_least_one(setting: str, number: object) -> None:
    if type(number) is not int or number < 1:
        raise ValidationFailed.of(Problem(f"MemoryStorage.{setting}", f"is {shown(number)}", "keep at least 1"))


def _environment(put: Kept) -> Environment:
    return put.trace.environment if isinstance(put, PutTrace) else put.environment


def _decision_input(put: Kept) -> DecisionInput | None:
    return put.trace.decision_input if isinstance(put, PutTrace) else put.decision_input


def _key(put: Kept) -> str:
    return put.trace.key if isinstance(put, PutTrace) else put.key


def _whole(put: Kept) -> Trace:
    return put.trace.copy() if isinstance(put, PutTrace) else put.trace


def _selected(kept: Sequence[Kept], asked: Selection) -> Iterator[Trace]:
    return (trace for trace in map(_whole, kept) if selects(asked, trace))
