"""Accounts by the rules of ``_core/accounts`` in a transaction, and the storage's access to its database.

``tick`` (accounts.sql) does the frequent cases in one step. The others are done here: calls whose hold has expired,
replaced traces, crossed thresholds, terms and credit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict, astuple

from routewright import wire
from routewright._core.accounts.holds import Hold
from routewright._core.accounts.log import load
from routewright._core.accounts.purses import BALANCE, DAY, level_of, purses_of
from routewright._core.accounts.settlement import Booked
from routewright._core.accounts.state import State
from routewright._core.accounts.terms import limits_of
from routewright._core.idempotency import scope_of
from routewright.backends.storage.tables.ledger import MAX_SNAPSHOTS, SNAPSHOT_S, TableShelf
from routewright.backends.storage.tables.statements import upsert
from routewright.backends.storage.tables.traces import remove_traces, rows_of_draft
from routewright.backends.storage.tables.write import Writes, is_durable, put_event
from routewright.errors import InternalError, RouterError
from routewright.protocols import Clock, Facts
from routewright.wire import RunLimit, StoredEvent, Write, Written
from routewright.wire.timestamps import timestamp

from .connections import LOCK, NO_PARTITION, PATIENCE_S, Database, Tables, array_of, call, state_of
from .request_queue import Ending, pack, put_traces, release_of
from .schema import Store

_HOLD = """
SELECT id, account, key_id, came_at, ends_at, parties, tokens, slots, nanos, purses, claim, fingerprint, owner,
    taken_at, run, run_limit, late FROM hold WHERE
"""
_NO_OWNER = "NOT EXISTS (SELECT FROM owner WHERE owner.id = hold.owner)"
_ABANDONED = f"""
SELECT account FROM hold
WHERE owner IN (SELECT id FROM owner WHERE until < ? AND id <> ?) OR {_NO_OWNER} ORDER BY random() LIMIT ?
"""
"""In random order, so that one locked account seldom delays the others."""
_SILENT = "SELECT id FROM owner WHERE until < ? AND id <> ? FOR UPDATE SKIP LOCKED"
"""Skips those whose holds another process ends."""
FORGET_OWNERS = "DELETE FROM owner WHERE id = ANY (?) AND NOT EXISTS (SELECT FROM hold WHERE owner = owner.id)"
"""An owner may have a hold of a call that never received its grant."""
EXPIRES = 100
"""Most holds that are ended in one transaction, since calls wait for it."""
_READ_RESULTS = "SELECT claim, fingerprint, call, result, until FROM kept WHERE account = ? AND claim = ANY (?)"
_PUT_RESULTS = upsert("kept", "account claim", "environment fingerprint call until result")
_ACCOUNT = """
UPDATE account SET requests = ?, tokens = ?, slots = ?, daily = ?, weekly = ?, monthly = ?, prepaid = ?,
    tag_limits = ?::jsonb WHERE account = ?
"""
_KEY = """
UPDATE key SET requests = ?, tokens = ?, slots = ?, daily = ?, weekly = ?, monthly = ?, budget = ?
WHERE account = ? AND id = ?
"""
_END = "SELECT end_calls(%s::jsonb, '{}', %s, %s)"
_PURSES = "SELECT name, spent, granted, reserved FROM purse WHERE account = ? AND name = ANY (?)"


class Shelf(TableShelf):
    """The ledger in PostgreSQL, with answers in one table."""

    def look_up(self, account: str, claims: Sequence[bytes]) -> None:
        """As ``TableShelf`` says."""
        self._flush_results()
        self._results.update(dict.fromkeys(claims))
        for claim, *row in self.connection.execute(_READ_RESULTS, (account, list(claims))).fetchall():
            self._results[claim] = row

    def delete_results(self, account: str, environments: Sequence[wire.Environment]) -> int:
        """As ``TableShelf`` says."""
        sql = "DELETE FROM kept WHERE account = ? AND environment = ANY (?) RETURNING 1"
        return len(self.connection.execute(sql, (account, list(environments))).fetchall())

    def _flush_results(self) -> None:
        self.connection.executemany(_PUT_RESULTS, self._new_results)
        self._new_results = []


class AccountTransaction:
    """The accounts in one transaction. ``at``: its time on the clock of windows and leases; ``now``: in Unix time."""

    def __init__(self, tables: Tables, at: float, now: float) -> None:
        self._tables = tables
        self._at = at
        self._now = now
        self.shelf = Shelf()
        self.shelf.begin(tables)
        self._state: State = self.shelf.state
        self._state.begin(0, at, at)
        self.deletes = False

    def lock(self, *accounts: str) -> None:
        """Lock accounts."""
        self._tables.raw.execute(LOCK, (list(accounts),))

    def settle(self, facts: Facts) -> Booked:
        """Book a call, with or without its hold."""
        # A settlement may come twice, because its reply was lost, or after the hold had expired and was booked as
        # such. The hold is the proof that a call is not booked: `tick` deletes it in the statement that writes the
        # ledger, and skips a call without one. Those come here, under the lock of their account, and `settle` leaves
        # out the attempts that the ledger has and replaces the row of the expired hold. If another call has taken the
        # idempotency key meanwhile, that one is billed instead (P1). See `test_a_repeated_settlement_changes_nothing`,
        # `test_concurrent_settlements_of_a_call_count_once` and
        # `test_an_expired_call_that_settles_late_is_booked_once`.
        account = facts.caller.account
        hold = self._load("account = ? AND id = ?", account, facts.id)
        if facts.claim is not None:
            self._load("account = ? AND claim = ?", account, scope_of(facts.caller, facts.claim.key))
        booking = self.shelf.settle(facts, self._now)
        if hold:
            self._end([release_of(0, account, facts.id, facts.tokens)])
        self._flush()
        return booking

    def expire(self, but: int, spare_s: float | None) -> list[str]:
        """End some holds of processes that are gone or were silent for a lease, except for process ``but``. New
        processes are safe: ``tick`` writes them with their holds. ``spare_s``: the lease of processes that may have
        been disconnected. Returns the account of each hold."""
        # Ending all holds of a dead process in one transaction would lock all its accounts as long as the longest lock
        # lasts, while their calls wait. So only a few are ended at a time, of random accounts
        # (`test_holds_of_a_dead_process_are_freed_in_batches_without_delaying_other_accounts`). A process that could
        # not reach the server looks dead to whoever reconnects first. Hence `spare`: if nobody was heard for half a
        # lease, each silent process gets one more (`test_the_first_process_to_reconnect_ends_no_calls_of_others`).
        rows = self._tables.execute(_ABANDONED, (self._at, but, EXPIRES)).fetchall()
        accounts = sorted({name for (name,) in rows})
        self.lock(*accounts)
        if spare_s is not None:
            self._tables.execute("SELECT spare(?, ?, ?)", (but, self._at, spare_s))
        silent = [owner for (owner,) in self._tables.execute(_SILENT, (self._at, but)).fetchall()]
        where = f"account = ANY (?) AND (owner = ANY (?) OR {_NO_OWNER}) LIMIT ?"
        self._load(where, accounts, silent, EXPIRES)
        expired = self._expire([*self._state.holds.values()])
        self._tables.execute(FORGET_OWNERS, (silent,))
        return expired

    def expire_overdue(self, owner: int, lease_s: float) -> list[str]:
        """End a process's holds of calls that should have ended a lease ago. Returns their ids."""
        overdue = "owner = ? AND ends_at < ?"
        before = self._at - lease_s
        rows = self._tables.execute(f"SELECT account FROM hold WHERE {overdue}", (owner, before)).fetchall()
        self.lock(*(name for (name,) in rows))
        self._load(overdue, owner, before)
        holds = [*self._state.holds.values()]
        self._expire(holds)
        return [hold.id for hold in holds]

    def _expire(self, holds: Sequence[Hold]) -> list[str]:
        for hold in holds:
            self.shelf.expire(hold)
        self._end([release_of(index, hold.account, hold.id, None) for index, hold in enumerate(holds)])
        self._flush()
        return [hold.account for hold in holds]

    def standing(self, account: str, query: wire.Stands) -> wire.Standing:
        """The standing of an account, with the purses that would pay for a call."""
        terms = self.shelf.account(account)
        key = None if query.key_id is None else self.shelf.key(account, query.key_id)
        limits = purses_of(terms, key, query.at[:DAY], query.run, query.tags)
        rows = self._tables.execute(_PURSES, (account, [*limits])).fetchall()
        totals = {name: (spent, granted, reserved) for name, spent, granted, reserved in rows}
        purses = []
        for name, limit in limits.items():
            total = totals.get(name, (0, 0, 0))
            most = total[1] if limit == BALANCE else limit
            purses.append(wire.Purse(level_of(name), name, most, total[0], total[2]))
        return wire.Standing(terms, key, tuple(purses))

    # ``tables/write.AccountTransaction``

    def refresh_terms(self, account: str, key_id: str | None = None) -> None:
        """Store the limits of changed terms in their columns."""
        if key_id is None:
            if (terms := self.shelf.account(account)) is not None:
                limits = *astuple(limits_of(terms)), *terms.period_nanos, terms.prepaid
                tag_limits = pack([*map(asdict, terms.tag_limits)]).decode()
                self._tables.execute(_ACCOUNT, (*limits, tag_limits, account))
        elif (key := self.shelf.key(account, key_id)) is not None:
            limits = *astuple(key.limits or wire.RateLimits()), *key.period_nanos, key.budget_nanos
            self._tables.execute(_KEY, (*limits, account, key_id))

    def credit(self, account: str, credit: wire.AddCredit) -> bool:
        """Add to a balance. False: already done."""
        credited = self.shelf.credit(account, credit)
        self._flush()
        return credited

    def _load(self, where: str, *parameters: Any) -> bool:
        """Load holds. True if there are any."""
        rows = self._tables.execute(_HOLD + where, parameters).fetchall()
        for *columns, run, run_limit, late in rows:
            hold = Hold(*columns)
            hold.parties = tuple(hold.parties)
            hold.purses = tuple(hold.purses)
            if run is not None:
                hold.run = RunLimit(run, run_limit)
            if late:
                self._state.expired[hold.id] = self._at
            if hold.id not in self._state.holds:
                load(self._state, self._at, (), {}, [hold])
        return bool(rows)

    def _end(self, ends: Sequence[dict[str, Any]]) -> None:
        self._tables.raw.execute(_END, (pack(ends).decode(), self._now, timestamp(self._now)[:DAY]))

    def _flush(self) -> None:
        self.shelf.flush(timestamp(self._now))


T = TypeVar("T")
READERS = 16
"""Concurrent queries in each event loop, besides the accounts; more wait."""
_TICK = b"SELECT tick($1, $2, $3, $4, $5, $6)"
_BEGIN = """
SELECT extract(epoch FROM clock_timestamp())::float8, set_config('statement_timeout', %s, true),
    set_config('idle_in_transaction_session_timeout', '10s', true), set_config('jit', 'off', true)
"""
"""The timeouts release the locks of clients that are gone or hang. Compiling a page's query takes 20 times as long as
the page."""


class Server:
    """Queries the database. With ``inline`` in the caller's thread at the clock's time, else at the server's."""

    def __init__(self, url: str, clock: Clock, *, inline: bool) -> None:
        self.database = Database(Store(url), "questions to PostgreSQL", READERS, inline=inline)
        self._writes = Writes(put_traces)  # type: ignore[arg-type]  # its Statements is a Tables here
        self._clock = clock
        self._inline = inline
        self._put_at: dict[str, float] = {}
        """Time of each snapshot's last put."""

    def __str__(self) -> str:
        return str(self.database.address)

    @property
    def now(self) -> float | None:
        """The present time. None: the server's."""
        return self._clock.time() if self._inline else None

    def transact(
        self,
        work: Callable[[Tables, AccountTransaction], T],
        locked: Sequence[str] = (),
        *,
        trace_times: Iterable[str] = (),
        patience_s: float = PATIENCE_S,
    ) -> T:
        """Run work in a transaction with locked accounts. ``trace_times``: of the traces that it puts. Raises what
        the work raises, and kinds of ``StorageUnavailable``."""

        def once() -> T:
            database = self.database
            with database.address.translate(), database.connection(patience_s) as connection, connection.transaction():
                ((moment, *_),) = connection.execute(_BEGIN, (f"{patience_s:g}s",)).fetchall()
                tables = Tables(connection)
                at = self.now or moment
                transaction = AccountTransaction(tables, at, at)
                if locked:
                    transaction.lock(*locked)
                return work(tables, transaction)

        return self._with_days(once, trace_times)

    def apply(
        self, account: str, batch: Sequence[Write], tables: Tables, transaction: AccountTransaction
    ) -> list[Written]:
        """Apply writes inside a transaction."""
        if not is_durable(batch):
            tables.raw.execute("SET LOCAL synchronous_commit = off")
        return self._writes.batch(account, batch, transaction, tables)

    def tick(self, values: Sequence[Any], blobs: Sequence[bytes | None]) -> dict[str, Any]:
        """Call ``tick``."""
        parameters = [*map(pack, values), array_of(blobs)]

        def once() -> bytes:
            with self.database.address.translate(), self.database.connection() as connection:
                return call(connection, _TICK, parameters, (0, 0, 0, 0, 0, 1))

        answer: dict[str, Any] = msgspec.json.decode(self._with_days(once, (row["created_at"] for row in values[-1])))
        return answer

    def settle(self, ending: Ending) -> Sequence[StoredEvent]:
        """Book a call that ``tick`` has skipped, in a transaction, by the rules in Python. Its trace may replace an
        earlier one."""
        facts = ending.facts
        assert facts is not None, "only settlements are booked"
        self.put_snapshots([ending])

        def book(tables: Tables, transaction: AccountTransaction) -> Sequence[StoredEvent]:
            account = ending.account
            trace = facts.trace
            rows = None if trace is None else rows_of_draft(account, trace)
            replaced = [] if rows is None else self._writes.replaced(tables, account, rows)
            booking = transaction.settle(facts)
            if replaced:
                remove_traces(tables, account, replaced)
            if trace is not None and (booking.is_void or trace.is_void):
                trace.void(booking.is_void)
                rows = rows_of_draft(account, trace)
            if rows is not None:
                put_traces(tables, [rows])
            events = booking.events
            for write in facts.events:
                events += put_event(tables, account, write).events
            return events

        trace_times = [facts.created_at if ending.trace is None else ending.trace.columns[1]]
        return self.transact(book, [ending.account], trace_times=trace_times)

    def put_snapshots(self, ends: Iterable[Ending]) -> None:
        """Put the snapshots of calls, unless that was done recently."""
        now = time.monotonic()
        snapshots = {
            snapshot.id: snapshot
            for ending in ends
            for snapshot in (() if ending.facts is None else ending.facts.snapshots)
            if now - self._put_at.get(snapshot.id, -inf) >= SNAPSHOT_S
        }

        def put(tables: Tables, _: AccountTransaction) -> None:
            for snapshot in sorted(snapshots.values(), key=attrgetter("id")):  # lock in one order
                self._writes.put_snapshot(tables, snapshot, self._clock.time())

        if snapshots:
            self.transact(put)
            if len(self._put_at) >= MAX_SNAPSHOTS:
                self._put_at.clear()
            self._put_at |= dict.fromkeys(snapshots, now)

    @staticmethod
    def fault_of(error: Exception) -> RouterError:
        """The library's error for any error."""
        if isinstance(error, RouterError):
            return error
        fault = InternalError(f"PostgresStorage failed with {type(error).__name__}: {error}")
        fault.__cause__ = error
        return fault

    def _with_days(self, work: Callable[[], T], trace_times: Iterable[str]) -> T:
        """Run work. If partitions of days are missing, create them and run it again."""
        try:
            return work()
        except RouterError as error:
            days = sorted({time[:10] for time in trace_times})
            if not days or state_of(error) != NO_PARTITION:
                raise
        self.transact(lambda tables, _: tables.raw.execute("SELECT make_days(%s)", (days,)))
        return work()
