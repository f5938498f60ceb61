"""``SqliteStorage``: one file for all processes of a machine."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio

from routewright import wire
from routewright._runtime.loop import Threads
from routewright.backends.clock import SystemClock
from routewright.backends.storage.tables import upkeep as cleanup
from routewright.backends.storage.tables.ledger import ASK, MAX_AGE_S, MAX_SNAPSHOTS, SETTLE, SNAPSHOT_S, PendingAsk
from routewright.backends.storage.tables.read import REPORTS, answer, read_page
from routewright.backends.storage.tables.rollup import roll
from routewright.backends.storage.tables.traces import TraceRows, remove_traces, rows_of_draft
from routewright.backends.storage.tables.write import Writes, is_durable, put_event
from routewright.errors import RouterError, StorageCorrupt
from routewright.protocols import BaseStorage, Clock, Facts
from routewright.wire import Ask, Caller, Grant, Left, Period, Replay, RunLimit, Short, StoredEvent, Write, Written
from routewright.wire.problems import check_lease

from .background import BackgroundWork
from .connections import Connections, Reading
from .file import Connect, Connection, connect, file_of
from .sync import fault_of, is_transient, translate
from .transaction import AccountTransaction
from .writer import Request, Writer

T = TypeVar("T")

READERS = 16
"""Concurrent reads in each event loop; more wait."""
_QUICK = (wire.TraceById, wire.FeedbackByTrace, wire.SnapshotById, wire.CurrentRetention, wire.KeyByDigest)
"""Queries that read a few pages: a thread would take longer."""


class SqliteStorage(BaseStorage):
    """A storage in a file, which is created at first use.

        router = Router(storage=SqliteStorage("traces.db"))

    Several processes may use one file on a local disk. Applied writes survive the process; ``committed`` ones survive a
    power cut, too. Only reads by id wait for the disk in the event loop. Traces are kept for 30 days, sandbox traces
    for one day; ``TraceStore.retain`` or ``Settings.retention`` change that.

    ``busy_s``: how long to wait for another writing process. ``clock``: pass the Router's ``FakeClock``; then
    everything runs in the caller's thread. ``connect`` replaces ``sqlite3.connect``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_s: float = 5.0,
        clock: Clock | None = None,
        connect: Connect = connect,
        lease_s: float = 30.0,
    ) -> None:
        check_lease("SqliteStorage", lease_s)
        self.path = file_of(path)
        """Path of the file."""
        self._inline = clock is not None and clock.virtual
        self._connections = Connections(self.path, connect, busy_s)
        clock = clock or SystemClock()
        self._keeper = BackgroundWork(self._connections, inline=self._inline)
        self._writer = Writer(
            self._connections, partial(AccountTransaction, self.path, clock, lease_s), self._keeper, inline=self._inline
        )
        self._writes = Writes()
        self.accounts: SqliteAccounts = SqliteAccounts(self._writer, self._writes, clock, inline=self._inline)
        """Limits, budgets and idempotency keys (``protocols.Accounts``)."""
        self.takes_drafts = True
        self._threads = Threads("reads of a storage", READERS)

    def __repr__(self) -> str:
        return f"SqliteStorage({str(self.path)!r})"

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``)."""
        durability: wire.Durability = "committed" if is_durable(writes) else "buffered"
        work = partial(self._writes.batch, account, list(writes), self._writer.transaction)
        deletes = any(isinstance(write, wire.DeleteTraces) for write in writes)
        return await self._writer.do(work, durability, _scrub_of(writes), gentle=deletes)

    async def read(self, account: str, query: wire.Query) -> Any:
        """Answer a query for one thing (``protocols.Storage``)."""
        if isinstance(query, wire.Stands):
            state = self._writer.transaction.state
            return await self._writer.do(lambda _: state.standing(account, query), order=ASK)
        if isinstance(query, REPORTS):
            while await self._writer.do(roll):
                pass
        work = partial(answer, account, query)
        is_for_decision = isinstance(query, wire.LearnedSince) or (isinstance(query, wire.AgentState) and query.informs)
        if (is_for_decision or isinstance(query, _QUICK)) and not self._inline:
            try:
                result = self._connections.read(work, patient=False)
            except sqlite3.Error as error:
                if is_for_decision or not is_transient(error):
                    raise fault_of(error, self.path) from error
            else:
                if result is not None and not is_for_decision and self._writer.sync.is_needed:
                    await self._in_thread(self._writer.sync.sync_for_readers)
                return result
        return await self._run(work)

    async def scan(self, account: str, query: wire.Scan, *, after: str | None, limit: int) -> list[Any]:
        """Up to ``limit`` rows after the key ``after`` (``protocols.Storage``)."""
        return await self._run(partial(read_page, account, query, after, limit))

    async def sweep(self, now: float) -> int:
        """Remove expired rows, a few hundred traces a transaction (``protocols.Storage``)."""
        await self._writer.do(self._writer.transaction.open)  # ends abandoned holds
        await self._writer.do(partial(cleanup.forget_unseen, now))
        removed = 0
        previous: object = None
        if await self._run(partial(cleanup.is_due, now)):
            for remove in (cleanup.remove_results, cleanup.remove_events):
                while count := await self._writer.do(partial(remove, now), gentle=True):
                    removed += count
            await self._writer.do(partial(cleanup.remove_marks, now), scrub=lambda _: removed > 0)
        while batch := await self._run(partial(cleanup.find_old_traces, now)):
            if batch == previous:
                raise StorageCorrupt(f"{self.path}: expired traces cannot be removed; run 'routewright store check'")
            previous = batch
            for number, piece in enumerate(batch, start=1):
                scrub = bool if number == len(batch) else None
                removed += await self._writer.do(partial(cleanup.remove_old, piece), scrub=scrub, gentle=True)
        while freed := await self._writer.do(partial(cleanup.remove_snapshots, now)):
            removed += sum(freed)
        return removed

    async def aclose(self) -> None:
        """Close the file after all pending writes. The next use opens it again."""
        with suppress(RouterError):
            await self._writer.drain()
        await self._in_thread(self._close)

    def _close(self) -> None:
        self._keeper.close()
        self._connections.close()
        self._writer.sync.renew()

    async def _run(self, work: Callable[[Connection], T]) -> T:
        """Run a query. Cancelling interrupts it."""
        reading = Reading()
        try:
            return await self._in_thread(partial(self._read_synced, work, reading))
        except anyio.get_cancelled_exc_class():
            reading.leave()
            raise

    def _read_synced(self, work: Callable[[Connection], T], reading: Reading) -> T:
        with translate(self.path):
            result = self._connections.read(work, reading=reading)
        self._writer.sync.sync_for_readers()  # return nothing that a power cut could undo
        return result

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return work() if self._inline else await self._threads.run(work)


class SqliteAccounts:
    """Holds of limits, budgets and idempotency keys. A forked child starts without any."""

    def __init__(self, writer: Writer, writes: Writes, clock: Clock, *, inline: bool) -> None:
        self._writer = writer
        self._writes = writes
        self._clock = clock
        self._inline = inline

    async def admit(self, ask: Ask) -> Grant | Replay | Short:
        """As ``protocols.Accounts`` says."""
        writer = self._writer
        pending = PendingAsk(ask, inline=self._inline)
        try:
            writer.put(pending)
            answer: Grant | Replay | Short
            if self._inline:
                answer = await pending.poll(self._clock, lambda: writer.put(Request(writer.transaction.open, SETTLE)))
            else:
                answer = await pending.wait()
            return answer
        except BaseException as error:
            if not isinstance(error, RouterError):  # cancelled: return what it was or will be granted
                pending.is_left = True
                writer.put(Request(partial(writer.transaction.leave, pending), SETTLE))
            raise

    async def settle(self, grant: Grant | None, facts: Facts) -> Sequence[StoredEvent]:
        """As ``protocols.Accounts`` says."""
        rows = None if facts.trace is None else rows_of_draft(facts.caller.account, facts.trace)  # outside the lock
        return await self._writer.do(partial(self._settle, facts, rows), facts.durability, order=SETTLE)

    def _settle(self, facts: Facts, rows: TraceRows | None, connection: Connection) -> list[StoredEvent]:
        transaction = self._writer.transaction
        account = facts.caller.account
        replaced: list[str] = []
        if rows is not None and (transaction.is_careful or facts.id not in transaction.state.holds):
            replaced = self._writes.replaced(connection, account, rows)
        booking = transaction.settle(facts)  # raises before anything is written
        if replaced:
            remove_traces(connection, account, replaced)
        if facts.trace is not None and (booking.is_void or facts.trace.is_void):  # maybe by a failed transaction
            facts.trace.void(booking.is_void)
            rows = rows_of_draft(account, facts.trace)
        if facts.snapshots and (facts.snapshots is not transaction.snapshots or transaction.is_careful):
            now = self._clock.time()
            for snapshot in facts.snapshots:
                if transaction.is_careful or now - transaction.put_at.get(snapshot.id, -SNAPSHOT_S) >= SNAPSHOT_S:
                    if len(transaction.put_at) >= MAX_SNAPSHOTS:
                        transaction.put_at.clear()
                    self._writes.put_snapshot(connection, snapshot, now)
                    transaction.put_at[snapshot.id] = now
            transaction.snapshots = facts.snapshots
        if rows is not None:
            transaction.traces.append(rows)
        events = booking.events
        for write in facts.events:
            events += put_event(connection, account, write).events
        return events

    async def widen(self, grant: Grant, nanos: int) -> bool:
        """As ``protocols.Accounts`` says."""
        transaction = self._writer.transaction
        widened = await self._writer.do(lambda _: transaction.widen(grant.id, nanos), order=ASK)
        if widened:
            grant.nanos = nanos
        return widened

    def release(self, grant: Grant, tokens: int | None = 0) -> None:
        """As ``protocols.Accounts`` says."""
        transaction = self._writer.transaction
        self._writer.put(Request(lambda _: transaction.release(grant.id, tokens), SETTLE))

    def left(self, caller: Caller, run: RunLimit | None = None) -> Left | None:
        """As ``protocols.Accounts`` says."""
        transaction = self._writer.transaction
        if self._clock.monotonic() - transaction.current_at > MAX_AGE_S:
            return None
        return transaction.state.left(caller, self._clock.time(), run)

    async def look(self, caller: Caller, run: RunLimit | None = None) -> Left:
        """As ``protocols.Accounts`` says."""
        state = self._writer.transaction.state
        return await self._writer.do(lambda _: state.look(caller, self._clock.time(), run), order=ASK)

    def spent_shares(self, caller: Caller) -> Mapping[Period, int] | None:
        """As ``protocols.Accounts`` says."""
        return self._writer.transaction.state.spent_shares(caller, self._clock.time())


def _scrub_of(writes: Sequence[Write]) -> Callable[[Any], bool] | None:
    """Tells from a batch's result whether its removed rows must be erased from the disk, too."""
    for write in writes:
        match write:
            case wire.DeleteTraces(limit=limit):  # the only write of its batch; only the last of many erases
                return lambda written: bool(written[0].count < limit)
            case wire.DeleteResults():
                return bool
    return None
