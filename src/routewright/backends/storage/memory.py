"""Keeps everything in the process: the reference for what a storage does, and the default."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Any, TypeVar

from routewright._core.problem import shown
from routewright.errors import PreconditionFailed, Problem, UnsupportedWrite, ValidationFailed
from routewright.fork import Guard
from routewright.protocols import TraceDraft
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Environment,
    FeedbackByTrace,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    Query,
    Scan,
    Snapshot,
    SnapshotById,
    Trace,
    TraceById,
    Traces,
    Write,
    Written,
)

T = TypeVar("T")


class _Account:
    def __init__(self) -> None:
        self.traces: OrderedDict[str, Trace | TraceDraft] = OrderedDict()
        self.feedback: OrderedDict[str, PutFeedback] = OrderedDict()
        self.snapshots: OrderedDict[str, Snapshot] = OrderedDict()


class MemoryStorage:
    """A storage that ends with the process. Of each kind the newest ``newest`` of an account are kept.

        router = Router(storage=MemoryStorage(newest=1_000))

    Of more than ``accounts`` accounts the one that was not written to for longest goes. Feedback goes with its trace.
    A read or scan that meets a writer sees the state before or after its batch. What is read is a copy. A trace takes
    about 2 kB.
    """

    def __init__(self, *, newest: int = 10_000, accounts: int = 1_000) -> None:
        _at_least_one("newest", newest)
        _at_least_one("accounts", accounts)
        self._newest = newest
        self._most_accounts = accounts
        self._accounts: OrderedDict[str, _Account] = OrderedDict()  # the one used last at the end
        self._system = _Account()
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
                    self._put(system, snapshot.id, snapshot)
            self._put_trace(self._used(account), draft)

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``)."""
        with self._guard.lock:
            before = self._account(account)
            created: dict[str, Environment | None] = {}
            for index, write in enumerate(writes):
                _check(before, write, index, created)
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
                    return kept.snapshots.get(id)
                case _:
                    raise UnsupportedWrite(f"MemoryStorage knows no query {type(query).__name__}")
        return None if found is None or environment not in (None, found.environment) else _whole(found)

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> list[Trace]:
        """Up to ``limit`` things behind the key ``after`` (``protocols.Storage``)."""
        if not isinstance(query, Traces):
            raise UnsupportedWrite(f"MemoryStorage knows no scan {type(query).__name__}")
        with self._guard.lock:
            traces = list(self._account(account).traces.values())
        wanted = (
            trace
            for trace in sorted(traces, key=lambda trace: trace.id, reverse=True)
            if (after is None or trace.id < after) and query.environment in (None, trace.environment)
        )
        return [_whole(trace) for trace in islice(wanted, limit)]

    async def sweep(self, now: float) -> int:
        """Nothing here has a time to end at; numbers bound it instead."""
        return 0

    async def aclose(self) -> None:
        """Nothing is held that would have to be freed."""

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
            for trace in dropped.traces.values():
                self._name(trace, -1)
        return kept

    def _write(self, kept: _Account, write: Write) -> Written:
        match write:
            case PutTrace(trace):
                return Written(self._put_trace(kept, trace.copy()))
            case PutFeedback(trace_id):
                return Written(self._put(kept.feedback, trace_id, write))
            case PutSnapshot(snapshot):
                return Written(self._put(kept.snapshots, snapshot.id, snapshot))

    def _put(self, kept: OrderedDict[str, T], key: str, value: T) -> bool:
        created = key not in kept
        kept[key] = value
        if len(kept) > self._newest:
            kept.popitem(last=False)
        return created

    def _put_trace(self, kept: _Account, trace: Trace | TraceDraft) -> bool:
        before = kept.traces.get(trace.id)
        kept.traces[trace.id] = trace
        self._name(trace, 1)
        if before is not None:
            self._name(before, -1)
        if len(kept.traces) > self._newest:
            trace_id, dropped = kept.traces.popitem(last=False)
            kept.feedback.pop(trace_id, None)
            self._name(dropped, -1)
        return before is None

    def _name(self, trace: Trace | TraceDraft, by: int) -> None:
        """Count the traces that name a health snapshot, which goes with the last of them: there are many of these."""
        given = trace.decision_input
        if given is None:
            return
        self._named[given.health] += by
        if not self._named[given.health]:
            del self._named[given.health]
            self._system.snapshots.pop(given.health, None)


def _at_least_one(setting: str, number: object) -> None:
    if type(number) is not int or number < 1:
        raise ValidationFailed.of(Problem(f"MemoryStorage.{setting}", f"is {shown(number)}", "keep at least 1"))


def _whole(trace: Trace | TraceDraft) -> Trace:
    return trace.copy() if isinstance(trace, Trace) else trace.trace


def _check(kept: _Account, write: Write, index: int, created: dict[str, Environment | None]) -> None:
    """Raise if a write is unknown or does not find what it expects; ``created`` are those made earlier in the batch."""
    match write:
        case PutTrace(trace):
            key, present = trace.id, trace.id in created or trace.id in kept.traces
            created[key] = trace.environment
        case PutFeedback(trace_id, environment=environment):
            found = kept.traces.get(trace_id)
            of = created.get(trace_id) or (None if found is None else found.environment)
            key, present = trace_id, of is not None and environment in (None, of)
        case PutSnapshot(snapshot):
            key, present = snapshot.id, snapshot.id in created or snapshot.id in kept.snapshots
            created[key] = None
        case _:
            raise UnsupportedWrite(f"MemoryStorage knows no write {type(write).__name__}")
    if write.expect is not None and present != (write.expect == "present"):
        raise PreconditionFailed(f"{key} was expected to be {write.expect} and is not", index=index)
