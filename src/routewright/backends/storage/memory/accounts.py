"""``Accounts`` in memory: the rules of ``_core/accounts``, and the rows of each account."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routewright import wire
from routewright._core.accounts.eviction import Eviction
from routewright._core.accounts.holds import Hold, PurseName, Wait
from routewright._core.accounts.keys import is_compromised
from routewright._core.accounts.ledger import MONEY, Books
from routewright._core.accounts.purses import DAY, PURSE_S, RUN, is_over
from routewright._core.accounts.settlement import End, Expired, end_hold, expire_hold, expired_row, settle
from routewright._core.accounts.state import State
from routewright._core.accounts.wait_queue import WaitQueue
from routewright._core.analytics.rollup import Rollups, counted_of
from routewright._core.idempotency import KeptResult
from routewright._core.trace.filter import matches
from routewright._core.webhooks.outbox import Outbox
from routewright._runtime.fork import Guard, renew_in_children
from routewright._runtime.loop import Signal
from routewright.protocols import Clock, Facts, TraceDraft
from routewright.wire import Ask, Caller, Grant, LedgerRow, Left, Period, Replay, RunLimit, Short, StoredEvent, Written
from routewright.wire.timestamps import timestamp

VALUES = 1_000
"""Distinct values of a group within an hour, the first ones. It keeps a flood of names from evicting earlier hours and
from slowing down writes. Reports name a hundred."""


class AccountRecord:
    """One account: its books, traces, feedback and snapshots."""

    def __init__(self, newest: int, outbox: Outbox) -> None:
        self.books = Books(newest, outbox.emit)
        self.traces: OrderedDict[str, TraceDraft] = OrderedDict()
        self.text_bytes = 0
        self.uncounted: dict[str, TraceDraft] = {}
        """Drafts that are not in the roll-ups yet. They are only counted when a report asks."""
        self.due: list[TraceDraft] = []
        """Those whose traces were dropped. They are counted in batches."""
        self.rollups = Rollups(VALUES)
        self.feedback: OrderedDict[str, wire.PutFeedback] = OrderedDict()
        self.snapshots: OrderedDict[str, tuple[wire.Snapshot, float]] = OrderedDict()
        """Each with the time of its last put; 0 for those of a trace."""

    def mark(self, trace: wire.Trace) -> wire.Trace:
        """Mark a trace as compromised if its key was revoked before it or within a day after it."""
        revoked_at = self.books.revoked_since(trace.key_id)
        if revoked_at is None or trace.compromised or not is_compromised(trace.created_at, revoked_at):
            return trace
        return replace(trace, compromised=True)

    def forget_traces(self) -> None:
        """Remove all traces."""
        self.traces.clear()
        self.uncounted.clear()
        self.feedback.clear()
        self.text_bytes = 0


class CompleteTrace:
    """A complete trace with the interface of a draft. Raises for one that cannot be copied or counted."""

    def __init__(self, write: wire.PutTrace) -> None:
        self.wordless = write.trace.copy()
        """May have its content. Never returned to callers."""
        self.id = self.wordless.id
        self.key = self.wordless.key
        self.rollup_keys = write.rollup_keys
        content = self.wordless.content
        self.rows: tuple[LedgerRow, ...] = write.rows
        self.text_bytes = 0 if content is None else len(msgspec.json.encode(content))
        self.counted = counted_of(self.wordless)
        Rollups().count(self.counted, self.rollup_keys)

    line = None
    is_void = False

    def void(self, is_void: bool) -> None:
        """Does nothing for a complete trace."""

    @property
    def environment(self) -> wire.Environment:
        """The trace's environment."""
        return self.wordless.environment

    @property
    def snapshot_ids(self) -> tuple[str, str, str | None] | None:
        """Snapshots of its decision input."""
        source = self.wordless.decision_input
        return None if source is None else (source.catalogue, source.health, source.policy)

    @property
    def trace(self) -> wire.Trace:
        """A new copy."""
        return self.wordless.copy()


def select_drafts(
    drafts: Iterable[TraceDraft], selection: wire.Selection, mark: Callable[[wire.Trace], wire.Trace]
) -> Iterator[TraceDraft]:
    """The selected drafts. Only filters build a trace, without content and as ``mark``."""
    for draft in drafts:
        created_at = draft.key.removesuffix(draft.id)
        if (
            selection.environment in (None, draft.environment)
            and (selection.since is None or created_at >= selection.since)
            and (selection.until is None or created_at < selection.until)
            and (not selection.terms or matches(mark(draft.wordless), selection.terms))
        ):
            yield draft


LEASE_S = 30.0
"""Holds of calls that should have ended this long ago are ended and logged: a defect lost them."""
EVICT_EVERY = 16
"""Steps between evictions of unused state."""
TIDY_EVERY = 1_024
"""Asks between two calls of ``tidy``."""


class _PendingAsk(Struct, eq=False):
    """An ask that waits for others to release something."""

    ask: Ask
    answered: Signal
    result: Grant | Replay | Short | None = None
    error: Exception | None = None
    waits: Wait | None = None
    takes: bool = False


class Store(Protocol):
    """The part of a storage that ``MemoryAccounts`` uses. The methods are called under the lock of ``guard``."""

    clock: Clock
    guard: Guard

    def account_of(self, account: str) -> AccountRecord:
        """Return an account to write to."""

    def look_up(self, account: str) -> AccountRecord:
        """Return an account to read from, an empty one if it is unknown."""

    def keep_trace(self, record: AccountRecord, draft: TraceDraft, snapshots: Sequence[wire.Snapshot]) -> object:
        """Keep a trace with the snapshots it names."""


class MemoryAccounts:
    """Holds of limits, budgets and idempotency keys. A forked child starts without any."""

    owner = 1
    """Owner of all holds: this process."""

    def __init__(self, storage: Store, newest: int) -> None:
        self._storage = storage
        self._newest = newest
        self._clock = storage.clock
        self._lock = storage.guard
        self._granted: dict[str, int] = {}
        self._spent: dict[PurseName, int] = {}
        self._runs: OrderedDict[PurseName, int] = OrderedDict()
        """Spending of the most recent agent runs, least recently used first."""
        renew_in_children(self)

    def renew(self) -> None:
        """Start without holds: the parent's calls continue there."""
        self.state = State(self)
        self._eviction = Eviction(self.state)
        self._queue: WaitQueue[_PendingAsk] = WaitQueue(self.state, self.owner)
        self._asks = 0

    # Accounts

    async def admit(self, ask: Ask) -> Grant | Replay | Short:
        """As ``protocols.Accounts`` says."""
        with self._lock.lock:
            self._begin()
            answer = self.state.admit(ask, self.owner, self._clock.time())
            if isinstance(answer, Hold):
                return self.state.grant(ask, answer)
            if not isinstance(answer, Wait):
                return answer
            pending = _PendingAsk(ask, Signal())
            self._queue.wait(pending, answer)
            self._end()
        if not pending.answered.is_set:
            try:
                with self._clock.deadline(self._clock.monotonic() + ask.waits_s):
                    await pending.answered.wait()
            except BaseException:
                with self._lock.lock:
                    self._begin()
                    self._queue.leave(pending)
                    if pending.takes:
                        end_hold(self.state, End(ask.id, 0))
                    self._end()
                raise
            with self._lock.lock:
                if not pending.answered.is_set:
                    self._begin()
                    self._queue.give_up(pending, self._clock.time())
                    self._end()
        if pending.error is not None:
            raise pending.error
        assert pending.result is not None, "it was answered"
        return pending.result

    async def settle(self, grant: Grant | None, facts: Facts) -> Sequence[StoredEvent]:
        """As ``protocols.Accounts`` says."""
        with self._lock.lock:
            at = max(self.state.at, self._clock.monotonic())
            self.state.begin(self.owner, at, at + LEASE_S)
            record = self._storage.account_of(facts.caller.account)
            if facts.trace is not None:  # it may be refused: then nothing else is done
                self._storage.keep_trace(record, facts.trace, facts.snapshots)
            booking = settle(self.state, self, facts, self._clock.time())
            for row in booking.rows:
                record.books.book(row, booking.purses)
            if booking.keeps is not None:
                record.books.put_result(*booking.keeps)
            if facts.trace is not None and facts.trace.is_void != booking.is_void:
                facts.trace.void(booking.is_void)
            for event in booking.events:
                record.books.emit(event)
            events = booking.events
            for write in facts.events:
                events += record.books.put(write).events
            self._end()
        return events

    async def widen(self, grant: Grant, nanos: int) -> bool:
        """As ``protocols.Accounts`` says."""
        with self._lock.lock:
            self._begin()
            hold = self.state.holds.get(grant.id)
            widened = hold is not None and self.state.widen(hold, nanos) is None
            self._end()
        if widened:
            grant.nanos = nanos
        return widened

    def release(self, grant: Grant, tokens: int | None = 0) -> None:
        """As ``protocols.Accounts`` says."""
        with self._lock.lock:
            if grant.id in self.state.holds:
                self._begin()
                end_hold(self.state, End(grant.id, tokens))
                self._end()

    def left(self, caller: Caller, run: RunLimit | None = None) -> Left | None:
        """As ``protocols.Accounts`` says."""
        return self.state.left(caller, self._clock.time(), run)

    async def look(self, caller: Caller, run: RunLimit | None = None) -> Left:
        """As ``protocols.Accounts`` says."""
        with self._lock.lock:
            return self.state.look(caller, self._clock.time(), run)

    def spent_shares(self, caller: Caller) -> Mapping[Period, int] | None:
        """As ``protocols.Accounts`` says."""
        return self.state.spent_shares(caller, self._clock.time())

    # What the storage asks of it, under its lock

    def change(self, account: str, write: MONEY) -> Written:
        """Apply a write that changes what the callers of an account may take."""
        self._begin()
        books = self._storage.account_of(account).books
        match write:
            case wire.AddCredit(id, nanos, at, note):
                row = LedgerRow(request_id=id, attempt=0, kind="credit", at=at, credit_nanos=nanos, note=note)
                written = Written(books.book(row))
                if written.created:
                    self._granted[account] = self._granted.get(account, 0) + nanos
            case wire.PutAccount() | wire.PutKey() | wire.RevokeKey():
                written = books.put(write)
        self.state.forget(account)
        self._end()
        return written

    # The shelf

    def account(self, name: str) -> wire.Account | None:
        """As ``StoredAccounts`` says."""
        return self._storage.look_up(name).books.account

    def key(self, account: str, key_id: str) -> wire.Key | None:
        """As ``StoredAccounts`` says."""
        return self._storage.look_up(account).books.key(key_id)

    def sums(self, account: str, purse: str) -> tuple[int, int]:
        """As ``StoredAccounts`` says."""
        spent = self._runs if purse.startswith(RUN) else self._spent
        return spent.get((account, purse), 0), self._granted.get(account, 0) if purse == "account" else 0

    def read_result(self, account: str, claim: bytes, now: float) -> KeptResult | None:
        """As ``StoredAccounts`` says."""
        return self._storage.look_up(account).books.read_result(claim, now)

    def attempts(self, account: str, call: str) -> set[int]:
        """As ``Shelf`` says."""
        return self._storage.look_up(account).books.attempts(call)

    def unbook(self, account: str, call: str) -> Expired | None:
        """As ``Shelf`` says."""
        return self._storage.account_of(account).books.unbook(call)

    def read_threshold(self, account: str, name: str) -> int:
        """As ``Shelf`` says."""
        return self._storage.look_up(account).books.thresholds.get(name, 0)

    def put_threshold(self, account: str, name: str, threshold: int) -> None:
        """As ``Shelf`` says."""
        self._storage.account_of(account).books.thresholds[name] = threshold

    def _begin(self) -> None:
        """Begin a step at the present time; every ``EVICT_EVERY`` steps, evict unused state."""
        at = max(self.state.at, self._clock.monotonic())
        self.state.begin(self.owner, at, at + LEASE_S)
        self._asks += 1
        if not self._asks % EVICT_EVERY:
            self._eviction.step(at)
            if not self._asks % TIDY_EVERY:
                self._tidy()

    def tidy(self, now: float) -> None:
        """Evict unused state, end lost holds, and drop purses of past periods. Called under the lock."""
        self._begin()
        self._tidy()
        self._end()
        day = timestamp(max(0.0, now - PURSE_S))[:DAY]
        for key in [key for key in self._spent if is_over(key[1], day)]:
            del self._spent[key]

    def _tidy(self) -> None:
        for hold in self.state.overdue(self.owner, LEASE_S):
            expire_hold(self.state, hold.id)
            books = self._storage.account_of(hold.account).books
            row = expired_row(hold, books.unbook(hold.id))
            if row is not None:
                books.book(row, hold.purses)

    def _end(self) -> None:
        """Store charges, and retry waiting asks for what was freed."""
        if self.state.charged:
            for purse in self.state.charged:
                spent = self._runs if purse.is_of_run else self._spent
                key = purse.account, purse.name
                spent[key] = spent.get(key, 0) + (purse.charged or 0)
                purse.charged = None
                if purse.is_of_run:
                    self._runs.move_to_end(key)
                    if len(self._runs) > self._newest:
                        self._runs.popitem(last=False)
            self.state.charged.clear()
        while self.state.freed:
            self._queue.retry(self._clock.time())
        if self._queue.answered:
            for pending in self._queue.answered:
                pending.answered.set()
            self._queue.answered.clear()
