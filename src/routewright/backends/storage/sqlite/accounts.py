"""``Accounts`` in SQLite: limits, budgets and idempotency keys shared by all processes of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from routewright.backends.storage.tables.books.ledger import KNOWN_S, MOST_SNAPSHOTS, SNAPSHOT_S
from routewright.backends.storage.tables.books.write import put_event
from routewright.backends.storage.tables.traces import TraceRows, remove_traces, rows_of_draft
from routewright.backends.storage.tables.write import Writes
from routewright.errors import RouterError
from routewright.protocols import Clock, Facts
from routewright.wire import Ask, Caller, Grant, Left, Replay, RunLimit, Short, Snapshot, StoredEvent

from .connection import Connection
from .transaction import ASK, SETTLE, PendingAsk
from .writer import Request, Writer


class SqliteAccounts:
    """Holds of limits, budgets and idempotency keys. A forked child starts without any."""

    def __init__(self, writer: Writer, writes: Writes, clock: Clock, *, inline: bool) -> None:
        self._writer = writer
        self._writes = writes
        self._clock = clock
        self._inline = inline

    async def admit(self, ask: Ask) -> Grant | Replay | Short:
        """As ``protocols.Accounts`` says."""
        writer, asking = self._writer, PendingAsk(ask, inline=self._inline)
        try:
            writer.put(asking)
            found: Grant | Replay | Short
            if self._inline:
                found = await asking.polled(self._clock, lambda: writer.put(Request(writer.transaction.open, SETTLE)))
            else:
                found = await asking.wait()
            return found
        except BaseException as error:
            if not isinstance(error, RouterError):  # cancelled: return what it was or will be granted
                asking.is_left = True
                writer.put(Request(partial(writer.transaction.leave, asking), SETTLE))
            raise

    async def settle(self, grant: Grant | None, facts: Facts) -> Sequence[StoredEvent]:
        """As ``protocols.Accounts`` says."""
        trace, account = facts.trace, facts.caller.account
        rows = None if trace is None else rows_of_draft(account, trace)  # outside the lock
        work = partial(self._settle, facts, rows)
        done: list[StoredEvent]
        if self._inline:
            done = await self._writer.do(work, facts.durability, order=SETTLE)
            return done
        request = Request(work, SETTLE, facts.durability, awaited=True)
        self._writer.put(request)
        done = await request.wait()
        return done

    def _settle(self, facts: Facts, rows: TraceRows | None, connection: Connection) -> list[StoredEvent]:
        transaction, account, replaced = self._writer.transaction, facts.caller.account, list[str]()
        if rows is not None and (transaction.is_careful or facts.id not in transaction.state.holds):
            replaced = self._writes.replaced(connection, account, rows)
        booked = transaction.settle(facts)  # raises before anything is written
        if replaced:
            remove_traces(connection, account, replaced)
        if facts.trace is not None and (booked.is_void or facts.trace.is_void):  # maybe by a failed transaction
            facts.trace.void(booked.is_void)
            rows = rows_of_draft(account, facts.trace)
        if facts.snapshots and (facts.snapshots is not transaction.snapshots or transaction.is_careful):
            self._put_snapshots(facts.snapshots, connection)
        if rows is not None:
            transaction.traces.append(rows)
        events = booked.events
        for put in facts.events:
            events += put_event(connection, account, put).events
        return events

    def _put_snapshots(self, snapshots: Sequence[Snapshot], connection: Connection) -> None:
        transaction, now = self._writer.transaction, self._clock.time()
        for snapshot in snapshots:
            if transaction.is_careful or now - transaction.put_at.get(snapshot.id, -SNAPSHOT_S) >= SNAPSHOT_S:
                if len(transaction.put_at) >= MOST_SNAPSHOTS:
                    transaction.put_at.clear()
                self._writes.put_snapshot(connection, snapshot, now)
                transaction.put_at[snapshot.id] = now
        transaction.snapshots = snapshots

    async def widen(self, grant: Grant, nanos: int) -> bool:
        """As ``protocols.Accounts`` says."""
        transaction = self._writer.transaction
        widened: bool = await self._writer.do(lambda _: transaction.widen(grant.id, nanos), order=ASK)
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
        if self._clock.monotonic() - transaction.known_at > KNOWN_S:
            return None
        return transaction.state.left(caller, self._clock.time(), run)

    async def look(self, caller: Caller, run: RunLimit | None = None) -> Left:
        """As ``protocols.Accounts`` says."""
        state = self._writer.transaction.state
        left: Left = await self._writer.do(lambda _: state.look(caller, self._clock.time(), run), order=ASK)
        return left
