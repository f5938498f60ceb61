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

from .accounts import KeptAccount, MemoryAccounts, Whole, selected

K = TypeVar("K")
T = TypeVar("T")
TEXT_BYTES = 64 * 1024 * 1024
"""Captured prompts and answers of an account."""
BATCH = 128
"""Dropped traces counted at a time, in half the time that each would take alone. Less than one call in a hundred waits
for them."""
_by_key = attrgetter("key")


_OfTraces = wire.PutFeedback | wire.PutSnapshot | wire.DeleteTraces | wire.SetRetention
_Ready = Whole | _OfTraces | wire.PutPolicyVersion | wire.AddLearned | MONEY | BOOKED | OF_WEBHOOKS


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
        self._most_accounts = accounts
        self._text_bytes = text_bytes
        self._accounts: OrderedDict[str, KeptAccount] = OrderedDict()  # least recently used first
        self._digests: dict[str, tuple[str, str]] = {}
        """Account and id of each key."""
        self._outbox = Outbox(newest)
        self._system = self._empty()
        self._retention = wire.SetRetention()
        self._versions = Versions()
        self._learned: OrderedDict[tuple[str, str], wire.LearnedModel] = OrderedDict()
        self._named: dict[str, int] = {}
        """Number of traces that name a health snapshot."""
        self.accounts: MemoryAccounts = MemoryAccounts(self, newest)
        """Limits, budgets and idempotency keys (``protocols.Accounts``)."""

    def keep(self, account: str, draft: TraceDraft, snapshots: Sequence[Snapshot]) -> None:
        """Keep a trace, which is built when it is read (``protocols.ImmediateStorage``)."""
        with self.guard.lock:
            kept = self._accounts.get(account)
            if kept is None or account == SYSTEM_ACCOUNT:
                kept = self.account_of(account)
            else:
                self._accounts.move_to_end(account)
            self.keep_trace(kept, draft, snapshots)
            if kept.books.account is not None:
                self._settle(account, kept, draft)

    def keep_trace(self, kept: KeptAccount, draft: TraceDraft, snapshots: Sequence[Snapshot] = ()) -> bool:
        """``keep`` under the lock for an existing account. The trace replaces one with its id, which is removed from
        the roll-ups. Returns True if there was none."""
        before = kept.traces.get(draft.id)
        if before is not None:
            check_place(draft.id, draft.environment, before.environment)
        system = self._system.snapshots
        for snapshot in snapshots:
            if snapshot.id in system:
                system.move_to_end(snapshot.id)
            else:
                self._put(system, snapshot.id, (snapshot, 0.0))
        kept.traces[draft.id] = draft
        kept.text_bytes += draft.text_bytes
        named = draft.snapshot_ids
        if named is not None:
            self._named[named[1]] = self._named.get(named[1], 0) + 1
        if before is not None:
            kept.text_bytes -= before.text_bytes
            self._unname(before)  # last, since both may name the same snapshot
            self._count_out(kept, before)
        kept.uncounted[draft.id] = draft
        while len(kept.traces) > self._newest or (kept.text_bytes > self._text_bytes and len(kept.traces) > 1):
            self._drop(kept, next(iter(kept.traces)))
        return before is None

    @property
    def has_endpoints(self) -> bool:
        """False while no webhook endpoint is registered."""
        return self._outbox.has_endpoints

    def account_of(self, account: str) -> KeptAccount:
        """The account to write to, now the most recently used one. Called under the lock.

        If there are too many, it drops the least recently written one; if that was created explicitly, only its traces.
        """
        if account == SYSTEM_ACCOUNT:
            return self._system
        kept = self._accounts.get(account)
        if kept is not None:
            self._accounts.move_to_end(account)
            return kept
        new = self._accounts[account] = self._empty()
        if len(self._accounts) <= self._most_accounts:
            return new
        for name, kept in self._accounts.items():  # the new one at last
            if kept.traces or not kept.books.is_set_up:
                for each in kept.traces.values():
                    self._unname(each)
                if kept.books.is_set_up:
                    kept.forget_traces()
                else:
                    del self._accounts[name]
                break
        return new

    def look_up(self, account: str) -> KeptAccount:
        """The account to read from; an unknown one is empty. Called under the lock."""
        return self._system if account == SYSTEM_ACCOUNT else self._accounts.get(account) or self._empty()

    async def apply(self, account: str, writes: Sequence[wire.Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``)."""
        whole = [Whole(write) if isinstance(write, wire.PutTrace) else write for write in writes]
        with self.guard.lock:
            present = self.look_up(account)
            traces, snapshots = ids_of(writes)
            check_batch(
                "MemoryStorage",
                account,
                writes,
                {trace_id: present.traces[trace_id].environment for trace_id in traces if trace_id in present.traces},
                {snapshot_id for snapshot_id in snapshots if snapshot_id in present.snapshots},
                partial(self._before, account, present),
            )
            check_digests(account, writes, self._digests.get)
            kept = self.account_of(account)
            return [self._write(account, kept, write) for write in whole]

    async def read(self, account: str, query: wire.Query) -> Any:
        """Answer a query for one thing (``protocols.Storage``)."""
        with self.guard.lock:
            kept = self.look_up(account)
            match query:
                case wire.TraceById(id, environment):
                    found = kept.traces.get(id)
                case wire.FeedbackByTrace(trace_id, environment):
                    found = kept.traces.get(trace_id)
                    of = None if found is None else found.environment
                    return kept.feedback.get(trace_id) if environment in (None, of) else None
                case wire.SnapshotById(id):
                    return kept.snapshots.get(id, (None,))[0]
                case wire.PolicyVersions(contents):
                    return self._versions.of(contents) if account == SYSTEM_ACCOUNT else []
                case wire.LearnedSince():
                    rows = sorted(self._learned.items()) if account == SYSTEM_ACCOUNT else ()
                    return [row for (of, _), row in rows if of == query.fleet and row.epoch >= query.epoch]
                case wire.CurrentRetention():
                    return self._retention
                case wire.RollupKeys():
                    return self._counted(kept).rollup_keys()
                case wire.UsageCounts():
                    return self._counted(kept).usage_counts(query)
                case wire.CacheCounts():
                    return self._counted(kept).cache_counts(query)
                case wire.FallbackCounts():
                    return self._counted(kept).fallback_counts(query)
                case wire.LatencyCounts():
                    return self._counted(kept).latency_counts(query)
                case wire.KeyByDigest(digests):
                    known = [self._digests[each] for each in digests if each in self._digests]
                    keys = [self.look_up(name).books.key(key_id) for name, key_id in known]
                    return next(iter(keys), None) if account == SYSTEM_ACCOUNT else None
                case wire.AllAccounts():
                    terms = [each.books.account for each in self._accounts.values() if account == SYSTEM_ACCOUNT]
                    return sorted((each for each in terms if each is not None), key=attrgetter("name"))
                case wire.LedgerSums():
                    self._counted(kept)
                    return kept.books.answer(query)
                case wire.Stands():
                    return self.accounts.state.standing(account, query)
                case wire.Endpoints():
                    return self._outbox.endpoints(account, query)
                case wire.Keys() | wire.Incidents() | wire.AgentState():
                    return kept.books.answer(query)
                case _:
                    raise UnsupportedWrite(f"MemoryStorage knows no query {type(query).__name__}")
        return None if found is None or environment not in (None, found.environment) else kept.seen(found.trace)

    async def scan(self, account: str, query: wire.Scan, *, after: str | None, limit: int) -> list[Any]:
        """Up to ``limit`` traces after the key ``after`` (``protocols.Storage``)."""
        with self.guard.lock:
            kept = self.look_up(account)
            match query:
                case wire.LedgerRows() | wire.Events():
                    self._counted(kept)
                    return kept.books.scan(query, after, limit)
                case wire.Deliveries():
                    return self._outbox.deliveries(account, query, after, limit)
                case wire.TraceItems() | wire.Traces():
                    check_terms("MemoryStorage", query.terms)
                    drafts = list(kept.traces.values())
                case _:
                    raise UnsupportedWrite(f"MemoryStorage knows no scan {type(query).__name__}")
        behind = (each for each in drafts if after is None or each.key < after)
        found = islice(selected(sorted(behind, key=_by_key, reverse=True), query, kept.seen), max(0, limit))
        if isinstance(query, wire.Traces):
            return [kept.seen(each.trace) for each in found]
        return [copied(kept.seen(each.wordless).item) for each in found]

    async def sweep(self, now: float) -> int:
        """Remove expired rows (``protocols.Storage``)."""
        ages = {"production": self._retention.production_s, "sandbox": self._retention.sandbox_s}
        before = {of: timestamp(max(0.0, now - age)) for of, age in ages.items() if age is not None}
        with self.guard.lock:
            self.accounts.tidy()
            old = [
                (kept, trace_id)
                for kept in self._everything()
                for trace_id, each in kept.traces.items()
                if each.key < before.get(each.environment, "")
            ]
            for kept, trace_id in old:
                self._drop(kept, trace_id)
            ids = [each.snapshot_ids for kept in self._everything() for each in kept.traces.values()]
            named = {name for each in ids if each is not None for name in each}
            put = self._system.snapshots.items()
            free = [name for name, (_, at) in put if at < now - UNNAMED_S and name not in named]
            for snapshot_id in free:
                del self._system.snapshots[snapshot_id]
            others = self._outbox.sweep(now) + sum(kept.books.sweep(now) for kept in self._everything())
        return len(old) + len(free) + others

    async def aclose(self) -> None:
        """Nothing to release."""

    def _everything(self) -> list[KeptAccount]:
        return [self._system, *self._accounts.values()]

    def _empty(self) -> KeptAccount:
        return KeptAccount(self._newest, self._outbox)

    def _before(self, account: str, kept: KeptAccount, write: wire.Write) -> object:
        """The present state of a write's subject (``write_batch.Booked``)."""
        if isinstance(write, wire.PutIncident):
            return kept.books.incident(write.incident.id)
        if isinstance(write, wire.PutEndpoint):
            return self._outbox.taken(write.endpoint.id)
        return before(self.accounts, account, write)

    def _write(self, account: str, kept: KeptAccount, write: _Ready) -> Written:
        match write:
            case Whole():
                created = self.keep_trace(kept, write)
                if write.rows and kept.books.account is not None:
                    self._settle(account, kept, write)
                return Written(created)
            case wire.PutFeedback(trace_id):
                return Written(self._put(kept.feedback, trace_id, write))
            case wire.PutSnapshot(snapshot, at=at):
                _, before = kept.snapshots.get(snapshot.id, (None, at))
                return Written(self._put(kept.snapshots, snapshot.id, (snapshot, max(at, before))))
            case wire.PutPolicyVersion():
                return Written(self._versions.put(write)[1])
            case wire.AddLearned(fleet, models):
                for model, more in models.items():
                    key = fleet, model
                    self._put(self._learned, key, added(model, self._learned.get(key), more))
                return Written(created=False, count=len(models))
            case wire.DeleteTraces():
                return Written(created=False, count=self._delete(kept, write))
            case wire.SetRetention():
                self._retention = write
                return Written(created=False)
            case wire.PutKey(key):
                last = kept.books.key(key.id)
                if last is not None:
                    del self._digests[last.digest]
                self._digests[key.digest] = key.account, key.id
                return self.accounts.change(account, write)
            case wire.PutAccount() | wire.RevokeKey() | wire.AddCredit():
                return self.accounts.change(account, write)
            case wire.DeleteResults(environment):
                self._outbox.delete(account, environment)
                return kept.books.put(write)
            case wire.PutIncident() | wire.PutEvent() | wire.PutAgentState():
                return kept.books.put(write)
            case _:
                return self._outbox.write(account, write)

    def _put(self, kept: OrderedDict[K, T], key: K, value: T) -> bool:
        created = key not in kept
        kept[key] = value
        kept.move_to_end(key)
        if len(kept) > self._newest:
            kept.popitem(last=False)
        return created

    def _delete(self, kept: KeptAccount, which: wire.DeleteTraces) -> int:
        check_terms("MemoryStorage", which.terms)
        only = None if which.id is None else kept.traces.get(which.id)
        asked = list(kept.traces.values()) if which.id is None else [] if only is None else [only]
        found = [*islice(selected(sorted(asked, key=_by_key), which, kept.seen), max(0, which.limit))]
        for each in found:
            self._count_out(kept, each)
            self._drop(kept, each.id)
        return len(found)

    def _drop(self, kept: KeptAccount, trace_id: str) -> None:
        """Remove a trace. It stays counted."""
        dropped = kept.traces.pop(trace_id)
        kept.text_bytes -= dropped.text_bytes
        kept.feedback.pop(trace_id, None)
        self._unname(dropped)
        if kept.uncounted.pop(trace_id, None) is not None:
            kept.due.append(dropped)
            if dropped.text_bytes or len(kept.due) >= BATCH:  # texts would exceed their limit
                self._count(kept)

    def _counted(self, kept: KeptAccount) -> Rollups:
        """The roll-ups, including all traces."""
        kept.due += kept.uncounted.values()
        kept.uncounted.clear()
        self._count(kept)
        return kept.rollups

    def _count(self, kept: KeptAccount) -> None:
        """Count and book the traces that are due."""
        for put in kept.due:
            self._book(kept, put)
        kept.rollups.count_all((put.counted, put.rollup_keys) for put in kept.due)
        kept.rollups.keep_newest(self._newest)
        kept.due.clear()

    def _book(self, kept: KeptAccount, put: TraceDraft) -> None:
        for row in put.rows:
            kept.books.book(row)

    def _settle(self, account: str, kept: KeptAccount, put: TraceDraft) -> None:
        """Bill an account that was created after the call began."""
        rows = tuple(put.rows)
        if rows:
            caller = wire.Caller(account, put.environment, rows[0].key_id)
            at_once(self.accounts.settle(None, Facts(put.id, caller, rows[0].at, rows=rows)))
            kept.due.append(kept.uncounted.pop(put.id))
            self._count(kept)

    def _count_out(self, kept: KeptAccount, put: TraceDraft) -> None:
        if kept.uncounted.pop(put.id, None) is None:
            kept.rollups.count(put.counted, put.rollup_keys, sign=-1)
        else:
            self._book(kept, put)

    def _unname(self, gone: TraceDraft) -> None:
        """Remove a health snapshot with the last trace that names it."""
        if gone.snapshot_ids is None:
            return
        _, health, _ = gone.snapshot_ids
        self._named[health] -= 1
        if not self._named[health]:
            del self._named[health]
            _, at = self._system.snapshots.get(health, (None, 0.0))
            if not at:
                self._system.snapshots.pop(health, None)
