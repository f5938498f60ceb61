"""Keeps everything in the process: the reference for what a storage does, and the default."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from routewright._core.batch import UNNAMED_S, check_batch, check_place, ids_of
from routewright._core.filter import check_terms, matches
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
from routewright.wire.trace import copied

T = TypeVar("T")
TEXT_BYTES = 64 * 1024 * 1024
"""Captured prompts and answers of an account."""
VALUES = 1_000
"""Of a group so many are told apart within an hour, those that came first: so no flood of names drives the hours before
out of the roll-ups, nor makes each trace take longer. A report names a hundred."""
_by_key = attrgetter("key")


class _Whole:
    """A trace that was given as one, read as a draft is. Making it fails for what cannot be copied or counted."""

    def __init__(self, write: PutTrace) -> None:
        self.wordless = write.trace.copy()
        """It may hold its content, and is not to be given away."""
        self.id = self.wordless.id
        self.key = self.wordless.key
        self.rollup_keys = write.rollup_keys
        content = self.wordless.content
        self.text_bytes = 0 if content is None else len(msgspec.json.encode(content))
        Rollups().add(self.wordless, self.rollup_keys)

    @property
    def environment(self) -> Environment:
        return self.wordless.environment

    @property
    def decision_input(self) -> DecisionInput | None:
        return self.wordless.decision_input

    @property
    def trace(self) -> Trace:
        return self.wordless.copy()


_Ready = _Whole | PutFeedback | PutSnapshot | DeleteTraces | SetRetention


class _Account:
    def __init__(self) -> None:
        self.traces: OrderedDict[str, TraceDraft] = OrderedDict()
        self.text_bytes = 0
        self.uncounted: dict[str, TraceDraft] = {}
        """Those that are not in the roll-ups yet: drafts are made into traces for that only when somebody asks."""
        self.rollups = Rollups(VALUES)
        self.feedback: OrderedDict[str, PutFeedback] = OrderedDict()
        self.snapshots: OrderedDict[str, tuple[Snapshot, float]] = OrderedDict()
        """With the time at which they were last put, 0 of those that came with a trace."""


class MemoryStorage:
    """A storage that ends with the process. Of each kind the newest ``newest`` of an account are kept.

        router = Router(storage=MemoryStorage(newest=1_000))

    A trace takes about 2 kB, and what was captured of its prompt and answer: where that adds up to more than
    ``text_bytes`` in an account, its oldest traces go until only the last is left. Of more than ``accounts`` accounts
    the one that was not written to for longest goes. Feedback goes with its trace. Unless a retention is set, traces go
    only for newer ones; the analytics count them still.

    A read or scan that meets a writer sees the state before or after its batch. What is read is a copy. A redactor is
    asked only for traces that are read whole, by who reads them, and never keeps others waiting.
    """

    def __init__(self, *, newest: int = 10_000, accounts: int = 1_000, text_bytes: int = TEXT_BYTES) -> None:
        _at_least_one("newest", newest)
        _at_least_one("accounts", accounts)
        _at_least_one("text_bytes", text_bytes)
        self._newest = newest
        self._most_accounts = accounts
        self._text_bytes = text_bytes
        self._accounts: OrderedDict[str, _Account] = OrderedDict()  # the one used last at the end
        self._system = _Account()
        self._retention = SetRetention()
        self._named: Counter[str] = Counter()
        self._guard = Guard()

    def keep(self, account: str, draft: TraceDraft, snapshots: Sequence[Snapshot]) -> None:
        """Keep a trace that is made when it is read (``protocols.ImmediateStorage``)."""
        with self._guard.lock:
            there = self._account(account).traces.get(draft.id, draft)
            check_place(draft.id, draft.environment, there.environment)
            system = self._system.snapshots
            for snapshot in snapshots:
                if snapshot.id in system:
                    system.move_to_end(snapshot.id)
                else:
                    self._put(system, snapshot.id, (snapshot, 0.0))
            self._put_trace(self._used(account), draft)

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``)."""
        whole = [_Whole(write) if isinstance(write, PutTrace) else write for write in writes]
        with self._guard.lock:
            before = self._account(account)
            traces, snapshots = ids_of(writes)
            check_batch(
                "MemoryStorage",
                account,
                writes,
                {trace_id: before.traces[trace_id].environment for trace_id in traces if trace_id in before.traces},
                {snapshot_id for snapshot_id in snapshots if snapshot_id in before.snapshots},
            )
            kept = self._used(account)
            return [self._write(kept, write) for write in whole]

    async def read(self, account: str, query: Query) -> Any:
        """Answer a query for one thing (``protocols.Storage``)."""
        with self._guard.lock:
            kept = self._account(account)
            match query:
                case TraceById(id, environment):
                    found = kept.traces.get(id)
                case FeedbackByTrace(trace_id, environment):
                    found = kept.traces.get(trace_id)
                    of = None if found is None else found.environment
                    return kept.feedback.get(trace_id) if environment in (None, of) else None
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
        return None if found is None or environment not in (None, found.environment) else found.trace

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> list[Any]:
        """Up to ``limit`` traces behind the key ``after`` (``protocols.Storage``)."""
        if not isinstance(query, TraceItems | Traces):
            raise UnsupportedWrite(f"MemoryStorage knows no scan {type(query).__name__}")
        check_terms("MemoryStorage", query.terms)
        with self._guard.lock:
            kept = list(self._account(account).traces.values())
        behind = (each for each in kept if after is None or each.key < after)
        found = islice(_selected(sorted(behind, key=_by_key, reverse=True), query), max(0, limit))
        return [each.trace if isinstance(query, Traces) else copied(each.wordless.item) for each in found]

    async def sweep(self, now: float) -> int:
        """Remove what is past its time (``protocols.Storage``)."""
        ages = {"production": self._retention.production_s, "sandbox": self._retention.sandbox_s}
        before = {of: timestamp(max(0.0, now - age)) for of, age in ages.items() if age is not None}
        with self._guard.lock:
            old = [
                (kept, trace_id)
                for kept in self._everything()
                for trace_id, each in kept.traces.items()
                if each.key < before.get(each.environment, "")
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

    def _write(self, kept: _Account, write: _Ready) -> Written:
        match write:
            case _Whole():
                return Written(self._put_trace(kept, write))
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

    def _put_trace(self, kept: _Account, put: TraceDraft) -> bool:
        """Keep a trace in the place of one of its id, which goes out of the roll-ups."""
        before = kept.traces.get(put.id)
        kept.traces[put.id] = put
        kept.text_bytes += put.text_bytes
        self._name(put, 1)
        if before is not None:
            kept.text_bytes -= before.text_bytes
            self._name(before, -1)  # only now, as both may name the same snapshot
            self._count_out(kept, before)
        kept.uncounted[put.id] = put
        while len(kept.traces) > self._newest or (kept.text_bytes > self._text_bytes and len(kept.traces) > 1):
            self._drop(kept, next(iter(kept.traces)))
        return before is None

    def _delete(self, kept: _Account, which: DeleteTraces) -> int:
        check_terms("MemoryStorage", which.terms)
        only = None if which.id is None else kept.traces.get(which.id)
        asked = list(kept.traces.values()) if which.id is None else [] if only is None else [only]
        found = [*islice(_selected(sorted(asked, key=_by_key), which), max(0, which.limit))]
        for each in found:
            self._count_out(kept, each)
            self._drop(kept, each.id)
        return len(found)

    def _drop(self, kept: _Account, trace_id: str) -> None:
        """Forget a trace. It stays counted."""
        dropped = kept.traces.pop(trace_id)
        kept.text_bytes -= dropped.text_bytes
        kept.feedback.pop(trace_id, None)
        self._name(dropped, -1)
        if kept.uncounted.pop(trace_id, None) is not None:
            self._count(kept, dropped)

    def _counted(self, kept: _Account) -> Rollups:
        """The roll-ups, with all traces in them."""
        while kept.uncounted:
            self._count(kept, kept.uncounted.pop(next(iter(kept.uncounted))))
        return kept.rollups

    def _count(self, kept: _Account, put: TraceDraft) -> None:
        kept.rollups.add(put.wordless, put.rollup_keys)
        kept.rollups.keep_newest(self._newest)

    def _count_out(self, kept: _Account, put: TraceDraft) -> None:
        if kept.uncounted.pop(put.id, None) is None:
            kept.rollups.add(put.wordless, put.rollup_keys, sign=-1)

    def _name(self, put: TraceDraft, by: int) -> None:
        """Count the traces that name a health snapshot, which came with one of them and goes with the last: there are
        many of these."""
        given = put.decision_input
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
        given = [each.decision_input for kept in self._everything() for each in kept.traces.values()]
        named = {name for each in given if each is not None for name in (each.catalogue, each.health, each.policy)}
        put = self._system.snapshots.items()
        return [snapshot_id for snapshot_id, (_, at) in put if at < before and snapshot_id not in named]


def _at_least_one(setting: str, number: object) -> None:
    if type(number) is not int or number < 1:
        raise ValidationFailed.of(Problem(f"MemoryStorage.{setting}", f"is {shown(number)}", "keep at least 1"))


def _selected(kept: Iterable[TraceDraft], asked: Selection) -> Iterator[TraceDraft]:
    """Those that are asked for. Only for the terms of a filter a trace is made, without its content."""
    for each in kept:
        created_at = each.key.removesuffix(each.id)
        if (
            asked.environment in (None, each.environment)
            and (asked.since is None or created_at >= asked.since)
            and (asked.until is None or created_at < asked.until)
            and (not asked.terms or matches(each.wordless, asked.terms))
        ):
            yield each
