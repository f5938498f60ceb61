"""In-memory storage: the default, and the reference implementation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

from routewright import wire
from routewright._core.accounts.ledger import BOOKED, MONEY, before
from routewright._core.analytics.rollup import Rollups
from routewright._core.attempts.statistics import added
from routewright._core.policy import Versions
from routewright._core.trace.decision_record import record_of_trace
from routewright._core.trace.filter import check_terms
from routewright._core.webhooks.outbox import OF_WEBHOOKS, Outbox
from routewright._core.write_batch import UNNAMED_S, check_batch, check_digests, check_place, ids_of
from routewright._runtime.fork import Guard
from routewright._runtime.loop import at_once
from routewright.backends.clock import SystemClock
from routewright.errors import UnsupportedWrite
from routewright.protocols import BaseStorage, Clock, Facts, TraceDraft
from routewright.wire import SYSTEM_ACCOUNT, Snapshot, Written
from routewright.wire.problems import check_bounds
from routewright.wire.timestamps import timestamp
from routewright.wire.trace import copied

from .accounts import AccountRecord, CompleteTrace, MemoryAccounts, select_drafts

K = TypeVar("K")
T = TypeVar("T")
TEXT_BYTES = 64 * 1024 * 1024
"""Captured prompts and answers of an account."""
BATCH = 128
"""Dropped traces counted at a time, in half the time that each would take alone. Less than one call in a hundred waits
for them."""
_by_key = attrgetter("key")


_TraceWrite = wire.PutFeedback | wire.PutSnapshot | wire.DeleteTraces | wire.SetRetention
_PolicyWrite = wire.PutPolicyVersion | wire.PutPolicyRecord
_ReadyWrite = CompleteTrace | _TraceWrite | _PolicyWrite | wire.AddLearned | MONEY | BOOKED | OF_WEBHOOKS


class MemoryStorage(BaseStorage):
    """A storage that is lost with the process. It keeps the ``newest`` rows of each kind for each account, and rows in
    use.

        router = Router(storage=MemoryStorage(newest=1_000))

    A trace takes about 2 kB, and its captured prompt and answer. An account with more than ``text_bytes`` of those
    loses its oldest traces, except for the last one. With more than ``accounts`` accounts, the one with the oldest last
    write is dropped. Feedback is removed with its trace. Without a retention, traces are only removed for newer ones;
    analytics still count them.

    Reads and scans see the state before or after a batch, and return copies. Redactors run only when a complete trace
    is read, in the reader's task.

    ``clock`` drives rate limits and leases: pass the Router's ``FakeClock``.
    """

    def __init__(
        self, *, newest: int = 10_000, accounts: int = 1_000, text_bytes: int = TEXT_BYTES, clock: Clock | None = None
    ) -> None:
        check_bounds("MemoryStorage", newest=newest, accounts=accounts, text_bytes=text_bytes)
        self.clock = clock or SystemClock()
        self.guard = Guard()
        self._newest = newest
        self._max_accounts = accounts
        self._text_bytes = text_bytes
        self._accounts: OrderedDict[str, AccountRecord] = OrderedDict()  # least recently used first
        self._digests: dict[str, tuple[str, str]] = {}
        """Account and id of each key."""
        self._outbox = Outbox(newest)
        self._system = self._new_record()
        self._retention = wire.SetRetention()
        self._versions = Versions()
        self._policies: dict[str, wire.PolicyRecord] = {}
        self._learned: OrderedDict[tuple[str, str], wire.LearnedModel] = OrderedDict()
        self._snapshot_uses: dict[str, int] = {}
        """Number of traces that name a health snapshot."""
        self.accounts: MemoryAccounts = MemoryAccounts(self, newest)
        """Limits, budgets and idempotency keys (``protocols.Accounts``)."""

    def keep(self, account: str, draft: TraceDraft, snapshots: Sequence[Snapshot]) -> None:
        """Keep a trace, which is built when it is read (``protocols.ImmediateStorage``)."""
        with self.guard.lock:
            record = self._accounts.get(account)
            if record is None or account == SYSTEM_ACCOUNT:
                record = self.account_of(account)
            else:
                self._accounts.move_to_end(account)
            self.keep_trace(record, draft, snapshots)
            if record.books.account is not None:
                self._settle(account, record, draft)

    def keep_trace(self, record: AccountRecord, draft: TraceDraft, snapshots: Sequence[Snapshot] = ()) -> bool:
        """``keep`` under the lock for an existing account. The trace replaces one with its id, which is removed from
        the roll-ups. Returns True if there was none."""
        if (previous := record.traces.get(draft.id)) is not None:
            check_place(draft.id, draft.environment, previous.environment)
        system = self._system.snapshots
        for snapshot in snapshots:
            if snapshot.id in system:
                system.move_to_end(snapshot.id)
            else:
                self._put(system, snapshot.id, (snapshot, 0.0))
        record.traces[draft.id] = draft
        record.text_bytes += draft.text_bytes
        snapshot_ids = draft.snapshot_ids
        if snapshot_ids is not None:
            self._snapshot_uses[snapshot_ids[1]] = self._snapshot_uses.get(snapshot_ids[1], 0) + 1
        if previous is not None:
            record.text_bytes -= previous.text_bytes
            self._release_snapshot(previous)  # last, since both may name the same snapshot
            self._count_out(record, previous)
        record.uncounted[draft.id] = draft
        while len(record.traces) > self._newest or (record.text_bytes > self._text_bytes and len(record.traces) > 1):
            self._drop(record, next(iter(record.traces)))
        return previous is None

    @property
    def has_endpoints(self) -> bool:
        """False while no webhook endpoint is registered."""
        return self._outbox.has_endpoints

    def account_of(self, account: str) -> AccountRecord:
        """The account to write to, now the most recently used one. Called under the lock.

        If there are too many, it drops the least recently written one; if that was created explicitly, only its traces.
        """
        if account == SYSTEM_ACCOUNT:
            return self._system
        if (record := self._accounts.get(account)) is not None:
            self._accounts.move_to_end(account)
            return record
        new_record = self._accounts[account] = self._new_record()
        if len(self._accounts) <= self._max_accounts:
            return new_record
        for name, record in self._accounts.items():  # the new one at last
            if record.traces or not record.books.is_set_up:
                for draft in record.traces.values():
                    self._release_snapshot(draft)
                if record.books.is_set_up:
                    record.forget_traces()
                else:
                    del self._accounts[name]
                break
        return new_record

    def look_up(self, account: str) -> AccountRecord:
        """The account to read from; an unknown one is empty. Called under the lock."""
        return self._system if account == SYSTEM_ACCOUNT else self._accounts.get(account) or self._new_record()

    async def apply(self, account: str, writes: Sequence[wire.Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``)."""
        batch = [CompleteTrace(write) if isinstance(write, wire.PutTrace) else write for write in writes]
        with self.guard.lock:
            present = self.look_up(account)
            traces, snapshots = ids_of(writes)
            places = {id: present.traces[id].environment for id in traces if id in present.traces}
            ids = {id for id in snapshots if id in present.snapshots}
            check_batch("MemoryStorage", account, writes, places, ids, partial(self._before, account, present))
            check_digests(account, writes, self._digests.get)
            record = self.account_of(account)
            return [self._write(account, record, write) for write in batch]

    async def read(self, account: str, query: wire.Query) -> Any:
        """Answer a query for one thing (``protocols.Storage``)."""
        with self.guard.lock:
            record = self.look_up(account)
            match query:
                case wire.TraceById(id, environment):
                    draft = record.traces.get(id)
                case wire.FeedbackByTrace(trace_id, environment):
                    draft = record.traces.get(trace_id)
                    is_selected = environment in (None, draft and draft.environment)
                    return record.feedback.get(trace_id) if is_selected else None
                case wire.FeedbackByTraces(trace_ids):
                    return [record.feedback[id] for id in trace_ids if id in record.feedback]
                case wire.SnapshotById(id):
                    return record.snapshots.get(id, (None,))[0]
                case wire.SnapshotsById(ids):
                    return [record.snapshots[id][0] for id in ids if id in record.snapshots]
                case wire.PolicyVersions():
                    return self._versions.find(query) if account == SYSTEM_ACCOUNT else []
                case wire.PolicyRecords():
                    return [self._policies[name] for name in sorted(self._policies) if account == SYSTEM_ACCOUNT]
                case wire.LearnedSince():
                    rows = sorted(self._learned.items()) if account == SYSTEM_ACCOUNT else ()
                    return [row for (fleet, _), row in rows if fleet == query.fleet and row.epoch >= query.epoch]
                case wire.CurrentRetention():
                    return self._retention
                case wire.RollupKeys():
                    return self._count_all(record).rollup_keys()
                case wire.UsageCounts():
                    return self._count_all(record).usage_counts(query)
                case wire.CacheCounts():
                    return self._count_all(record).cache_counts(query)
                case wire.FallbackCounts():
                    return self._count_all(record).fallback_counts(query)
                case wire.LatencyCounts():
                    return self._count_all(record).latency_counts(query)
                case wire.KeyByDigest(digests):
                    owners = [self._digests[digest] for digest in digests if digest in self._digests]
                    keys = [self.look_up(name).books.key(key_id) for name, key_id in owners]
                    return next(iter(keys), None) if account == SYSTEM_ACCOUNT else None
                case wire.AllAccounts():
                    terms = [entry.books.account for entry in self._accounts.values() if account == SYSTEM_ACCOUNT]
                    return sorted((terms for terms in terms if terms is not None), key=attrgetter("name"))
                case wire.LedgerSums():
                    self._count_all(record)
                    return record.books.answer(query)
                case wire.Stands():
                    return self.accounts.state.standing(account, query)
                case wire.Endpoints():
                    return self._outbox.endpoints(account, query)
                case wire.Keys() | wire.Incidents() | wire.AgentState():
                    return record.books.answer(query)
                case _:
                    raise UnsupportedWrite(f"MemoryStorage knows no query {type(query).__name__}")
        return None if draft is None or environment not in (None, draft.environment) else record.mark(draft.trace)

    async def scan(self, account: str, query: wire.Scan, *, after: str | None, limit: int) -> list[Any]:
        """Up to ``limit`` traces after the key ``after`` (``protocols.Storage``)."""
        with self.guard.lock:
            record = self.look_up(account)
            match query:
                case wire.LedgerRows() | wire.Events():
                    self._count_all(record)
                    return record.books.scan(query, after, limit)
                case wire.Deliveries():
                    return self._outbox.deliveries(account, query, after, limit)
                case wire.TraceItems() | wire.Traces() | wire.Decisions():
                    check_terms("MemoryStorage", query.terms)
                    drafts = list(record.traces.values())
                case _:
                    raise UnsupportedWrite(f"MemoryStorage knows no scan {type(query).__name__}")
        is_forward = isinstance(query, wire.Decisions) and not query.newest_first
        rest = (draft for draft in drafts if after is None or (draft.key > after if is_forward else draft.key < after))
        ordered = sorted(rest, key=_by_key, reverse=not is_forward)
        matches = islice(select_drafts(ordered, query, record.mark), max(0, limit))
        if isinstance(query, wire.Decisions):
            return [record_of_trace(draft.wordless) for draft in matches]
        if isinstance(query, wire.Traces):
            return [record.mark(draft.trace) for draft in matches]
        return [copied(record.mark(draft.wordless).item) for draft in matches]

    async def sweep(self, now: float) -> int:
        """Remove expired rows (``protocols.Storage``)."""
        ages = {"production": self._retention.production_s, "sandbox": self._retention.sandbox_s}
        limits = {of: timestamp(max(0.0, now - age)) for of, age in ages.items() if age is not None}
        with self.guard.lock:
            self.accounts.tidy(now)
            expired = [
                (record, trace_id)
                for record in self._all_records()
                for trace_id, draft in record.traces.items()
                if draft.key < limits.get(draft.environment, "")
            ]
            for record, trace_id in expired:
                self._drop(record, trace_id)
            ids = [draft.snapshot_ids for record in self._all_records() for draft in record.traces.values()]
            names = {name for snapshot_ids in ids if snapshot_ids is not None for name in snapshot_ids}
            snapshots = self._system.snapshots
            free = [name for name, (_, at) in snapshots.items() if at < now - UNNAMED_S and name not in names]
            for snapshot_id in free:
                del snapshots[snapshot_id]
            others = self._outbox.sweep(now) + sum(record.books.sweep(now) for record in self._all_records())
        return len(expired) + len(free) + others

    async def aclose(self) -> None:
        """Nothing to release."""

    def _all_records(self) -> list[AccountRecord]:
        return [self._system, *self._accounts.values()]

    def _new_record(self) -> AccountRecord:
        return AccountRecord(self._newest, self._outbox)

    def _before(self, account: str, record: AccountRecord, write: wire.Write) -> object:
        """The present state of a write's subject (``write_batch.Booked``)."""
        if isinstance(write, wire.PutIncident):
            return record.books.incident(write.incident.id)
        if isinstance(write, wire.PutEndpoint):
            return self._outbox.taken(write.endpoint.id)
        if isinstance(write, wire.PutPolicyRecord):
            return self._policies.get(write.record.name)
        return before(self.accounts, account, write)

    def _write(self, account: str, record: AccountRecord, write: _ReadyWrite) -> Written:
        match write:
            case CompleteTrace():
                created = self.keep_trace(record, write)
                if write.rows and record.books.account is not None:
                    self._settle(account, record, write)
                return Written(created)
            case wire.PutFeedback(trace_id):
                return Written(self._put(record.feedback, trace_id, write))
            case wire.PutSnapshot(snapshot, at=at):
                _, old_at = record.snapshots.get(snapshot.id, (None, at))
                return Written(self._put(record.snapshots, snapshot.id, (snapshot, max(at, old_at))))
            case wire.PutPolicyVersion():
                return Written(self._versions.put(write)[1])
            case wire.PutPolicyRecord(policy):
                created = policy.name not in self._policies
                self._policies[policy.name] = policy
                return Written(created)
            case wire.AddLearned(fleet, models):
                for model, more in models.items():
                    key = fleet, model
                    self._put(self._learned, key, added(model, self._learned.get(key), more))
                return Written(created=False, count=len(models))
            case wire.DeleteTraces():
                return Written(created=False, count=self._delete(record, write))
            case wire.SetRetention():
                self._retention = write
                return Written(created=False)
            case wire.PutKey(key):
                if (old_key := record.books.key(key.id)) is not None:
                    del self._digests[old_key.digest]
                self._digests[key.digest] = key.account, key.id
                return self.accounts.change(account, write)
            case wire.PutAccount() | wire.RevokeKey() | wire.AddCredit():
                return self.accounts.change(account, write)
            case wire.DeleteResults(environment):
                self._outbox.delete(account, environment)
                return record.books.put(write)
            case wire.PutIncident() | wire.PutEvent() | wire.PutAgentState():
                return record.books.put(write)
            case _:
                return self._outbox.write(account, write)

    def _put(self, rows: OrderedDict[K, T], key: K, value: T) -> bool:
        created = key not in rows
        rows[key] = value
        rows.move_to_end(key)
        if len(rows) > self._newest:
            rows.popitem(last=False)
        return created

    def _delete(self, record: AccountRecord, selection: wire.DeleteTraces) -> int:
        check_terms("MemoryStorage", selection.terms)
        match = None if selection.id is None else record.traces.get(selection.id)
        candidates = list(record.traces.values()) if selection.id is None else [] if match is None else [match]
        drafts = [
            *islice(select_drafts(sorted(candidates, key=_by_key), selection, record.mark), max(0, selection.limit))
        ]
        for draft in drafts:
            self._count_out(record, draft)
            self._drop(record, draft.id)
        return len(drafts)

    def _drop(self, record: AccountRecord, trace_id: str) -> None:
        """Remove a trace. It stays counted."""
        draft = record.traces.pop(trace_id)
        record.text_bytes -= draft.text_bytes
        record.feedback.pop(trace_id, None)
        self._release_snapshot(draft)
        if record.uncounted.pop(trace_id, None) is not None:
            record.due.append(draft)
            if draft.text_bytes or len(record.due) >= BATCH:  # texts would exceed their limit
                self._count(record)

    def _count_all(self, record: AccountRecord) -> Rollups:
        """The roll-ups, including all traces."""
        record.due += record.uncounted.values()
        record.uncounted.clear()
        self._count(record)
        return record.rollups

    def _count(self, record: AccountRecord) -> None:
        """Count and book the traces that are due."""
        for draft in record.due:
            self._book(record, draft)
        record.rollups.count_all((draft.counted, draft.rollup_keys) for draft in record.due)
        record.rollups.keep_newest(self._newest)
        record.due.clear()

    def _book(self, record: AccountRecord, draft: TraceDraft) -> None:
        for row in draft.rows:
            record.books.book(row)

    def _settle(self, account: str, record: AccountRecord, draft: TraceDraft) -> None:
        """Bill an account that was created after the call began."""
        rows = tuple(draft.rows)
        if rows:
            caller = wire.Caller(account, draft.environment, rows[0].key_id)
            at_once(self.accounts.settle(None, Facts(draft.id, caller, rows[0].at, rows=rows)))
            record.due.append(record.uncounted.pop(draft.id))
            self._count(record)

    def _count_out(self, record: AccountRecord, draft: TraceDraft) -> None:
        if record.uncounted.pop(draft.id, None) is None:
            record.rollups.count(draft.counted, draft.rollup_keys, sign=-1)
        else:
            self._book(record, draft)

    def _release_snapshot(self, draft: TraceDraft) -> None:
        """Remove a health snapshot with the last trace that names it."""
        if draft.snapshot_ids is None:
            return
        health = draft.snapshot_ids[1]
        self._snapshot_uses[health] -= 1
        if not self._snapshot_uses[health]:
            del self._snapshot_uses[health]
            if not self._system.snapshots.get(health, (None, 0.0))[1]:  # it was only put with traces
                self._system.snapshots.pop(health, None)
