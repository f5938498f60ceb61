"""``PostgresStorage``: what is kept in a database, for all machines that share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

from routewright._core.accounts.books import MONEY
from routewright._core.moment import timestamp
from routewright._core.request.problems import shown
from routewright._core.trace.ids import milliseconds_of
from routewright.backends.clock import SystemClock
from routewright.backends.storage.tables.books.write import put_event
from routewright.backends.storage.tables.read import DAY_S, answer, page, trace_by_id
from routewright.backends.storage.tables.traces import remove_traces, rows_of_draft
from routewright.backends.storage.tables.write import Writes
from routewright.errors import RouterError, StorageUnavailable, ValidationFailed
from routewright.protocols import Clock, Facts
from routewright.wire import (
    SYSTEM_ACCOUNT,
    CacheCounts,
    DeleteTraces,
    FallbackCounts,
    LatencyCounts,
    PutKey,
    PutTrace,
    Query,
    RollupKeys,
    Scan,
    Snapshot,
    Stands,
    StoredEvent,
    Trace,
    TraceById,
    UsageCounts,
    Write,
    Written,
)

from .accounts import PostgresAccounts
from .connection import LOST, NO_PARTITION, Database, Tables
from .desk import Desk
from .news import PostgresCoordination
from .rows import put_traces
from .schema import Store
from .server import Server, transact
from .upkeep import Keeper, count, sweep
from .writer import Writer

T = TypeVar("T")
READERS = 16
"""So many ask at a time in each event loop, besides the accounts; more wait."""


class PostgresStorage:
    """A storage in a PostgreSQL database, 14 or later, which ``routewright store create`` has prepared.

        router = Router(storage=PostgresStorage("postgresql://routewright@db.example/routewright"))

    Any number of processes and machines may share it. What was applied as ``committed`` outlives a crash of the
    server. Connections are opened at first use; a pooler in transaction mode may stand in between.

    ``lease_s``: how long a process may be silent that holds something. ``clock``: pass a ``FakeClock`` that the Router
    has, then everything is done at once in the caller's thread, at the clock's time; otherwise the server's clock says
    what time it is.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, lease_s: float = 30.0) -> None:
        if type(lease_s) not in (int, float) or not 0 < lease_s < inf:
            raise ValidationFailed.at(
                "PostgresStorage.lease_s", f"is {shown(lease_s)}", "take a number of seconds above 0"
            )
        self._inline = clock is not None and clock.virtual
        self._clock = clock or SystemClock()
        database = Database(Store(url), "questions to PostgreSQL", READERS, inline=self._inline)
        self._address, self._pool, self._in_thread = database.address, database.pool, database.run
        self._keeper = Keeper(self._transact, self._clock, inline=self._inline)
        self._writes = Writes(put_traces)  # type: ignore[arg-type]  # what runs its statements is a Tables here
        server = partial(Server, self._address, self._clock, self._settle, self._keep_snapshots, inline=self._inline)
        self._writer = Writer(server, self._clock, lease_s, inline=self._inline)
        self.accounts = PostgresAccounts(self._writer, self._keeper, self._clock, inline=self._inline)
        """Limits, budgets and idempotency keys (``protocols.Accounts``)."""
        self.takes_drafts = True
        """``PutTrace`` may hold a ``TraceDraft``, whose trace is never made then."""
        self.coordination = PostgresCoordination(database, clock=self._clock)
        """News for all who use the database (``protocols.Coordination``)."""

    def __repr__(self) -> str:
        return f"PostgresStorage({str(self._address)!r})"

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``)."""
        batch = list(writes)
        committed = any(getattr(each, "durability", None) == "committed" for each in batch)

        def work(tables: Tables, desk: Desk) -> list[Written]:
            if not committed:
                tables.raw.execute("SET LOCAL synchronous_commit = off")
            return self._writes.batch(account, batch, desk, tables)

        # a digest belongs to one key, of whichever account
        locked = [account, SYSTEM_ACCOUNT] if any(isinstance(each, PutKey) for each in batch) else [account]
        if all(isinstance(each, DeleteTraces) for each in batch):
            locked = []  # calls go on meanwhile
        days = {each.trace.key[:10] for each in batch if isinstance(each, PutTrace)}
        done: list[Written] = await self._in_thread(partial(self._transact, work, locked, days))
        if any(isinstance(each, MONEY) for each in batch):
            self._writer.forget(account)
        if days:
            self._keeper.wrote()
        return done

    async def read(self, account: str, query: Query) -> Any:
        """Answer a query for one thing (``protocols.Storage``)."""
        if isinstance(query, UsageCounts | CacheCounts | FallbackCounts | LatencyCounts | RollupKeys):
            await self._in_thread(partial(count, self._transact))
        if isinstance(query, TraceById) and (made_ms := milliseconds_of(query.id)):
            days = timestamp(max(0.0, made_ms / 1000 - DAY_S)), timestamp(made_ms / 1000 + DAY_S)
            ask = partial(trace_by_id, account=account, asked=query, between=days)
            found: Trace | None = await self._in_thread(partial(self._transact, lambda tables, _: ask(tables)))
            if found is not None:
                return found
        if isinstance(query, Stands):
            return await self._in_thread(partial(self._transact, lambda _, desk: desk.standing(account, query)))
        return await self._in_thread(partial(self._transact, lambda tables, _: answer(account, query, tables)))

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> list[Any]:
        """Up to ``limit`` things behind the key ``after`` (``protocols.Storage``)."""
        ask = partial(page, account, query, after, limit)
        found: list[Any] = await self._in_thread(partial(self._transact, lambda tables, _: ask(tables)))
        return found

    async def sweep(self, now: float) -> int:
        """Remove what is past its time (``protocols.Storage``).

        Where traces are kept for a week or longer, whole days go: some stay for up to a day more.
        """
        removed = await self._in_thread(partial(sweep, self._transact, now))
        await self._writer.tidy()
        return removed

    async def aclose(self) -> None:
        """Give the connections back. They are opened again if it is used again."""
        with suppress(StorageUnavailable):
            await self._writer.close()
        await self._in_thread(self._keeper.close)
        self._pool.close()

    def _transact(
        self, work: Callable[[Tables, Desk], T], locked: Sequence[str] = (), days: set[str] | None = None
    ) -> T:
        """Do some work in a transaction; once more where a day has no partition yet, and where nothing was asked for
        but an answer and the connection had been closed meanwhile."""
        given = self._clock.time() if self._inline else None
        for is_last in (False, True):
            try:
                with (
                    self._address.translated(),
                    self._pool.connection() as connection,
                    connection.transaction(),
                ):
                    done: T = transact(connection, work, locked, given)
                    return done
            except RouterError as error:
                code = getattr(error.__cause__, "sqlstate", None) or LOST
                if is_last or code not in (NO_PARTITION, LOST) or (code == LOST and locked):
                    raise
                if code == LOST:
                    self._pool.close()
                else:
                    self._transact(partial(_make_days, sorted(days or ())))
        raise AssertionError("the last try returns or raises")

    def _settle(self, facts: Facts, tables: Tables, desk: Desk) -> Sequence[StoredEvent]:
        """Book a call that ``tick`` left alone, with its trace in the place of an earlier one."""
        account, trace = facts.caller.account, facts.trace
        rows = None if trace is None else rows_of_draft(account, trace)
        replaced = [] if rows is None else self._writes.replaced(tables, account, rows)
        booked = desk.settle(facts)
        if replaced:
            remove_traces(tables, account, replaced)
        if trace is not None and (booked.is_void or trace.is_void):
            trace.void(booked.is_void)
            rows = rows_of_draft(account, trace)
        if rows is not None:
            put_traces(tables, [rows])
        events = booked.events
        for put in facts.events:
            events += put_event(tables, account, put).events
        return events

    def _keep_snapshots(self, snapshots: Sequence[Snapshot], tables: Tables, _: Desk) -> None:
        for snapshot in sorted(snapshots, key=attrgetter("id")):  # locked in one order
            self._writes.put_snapshot(tables, snapshot, self._clock.time())


def _make_days(days: Sequence[str], tables: Tables, _: Desk) -> None:
    tables.raw.execute("SELECT make_days(%s)", (days,))
