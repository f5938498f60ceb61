"""``PostgresStorage``: one database for many machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from routewright import wire
from routewright._core.accounts.ledger import MONEY
from routewright._core.accounts.purses import DAY, purses_of, spent_shares
from routewright.backends.clock import SystemClock
from routewright.backends.storage.tables.ledger import MAX_AGE_S
from routewright.backends.storage.tables.read import DAY_S, REPORTS, answer, read_page, trace_by_id
from routewright.backends.storage.tables.traces import rows_of_draft
from routewright.errors import RouterError, StorageUnavailable
from routewright.protocols import BaseStorage, Clock, Facts
from routewright.wire import Ask, Caller, Grant, Left, Period, Replay, RunLimit, Short, StoredEvent, Write, Written
from routewright.wire.ids import milliseconds_of
from routewright.wire.problems import check_lease
from routewright.wire.timestamps import timestamp

from .connections import LONG_S, Tables
from .request_queue import Ending, PendingAsk
from .transaction import AccountTransaction, Server
from .upkeep import BackgroundWork, PostgresCoordination, count, sweep
from .writer import Writer


class PostgresStorage(BaseStorage):
    """A storage in a PostgreSQL database (14 or later), created with ``routewright store create``.

        router = Router(storage=PostgresStorage("postgresql://routewright@db.example/routewright"))

    Any number of processes and machines may share it. Writes applied as ``committed`` survive a crash of the server.
    Connections are opened at first use; a pooler in transaction mode is supported.

    ``lease_s``: after this time without a sign of life, a process loses its holds. ``clock``: pass the Router's
    ``FakeClock``; then everything runs in the caller's thread at its time. Otherwise the server's clock counts.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, lease_s: float = 30.0) -> None:
        check_lease("PostgresStorage", lease_s)
        inline = clock is not None and clock.virtual
        self._clock = clock or SystemClock()
        self._server = Server(url, self._clock, inline=inline)
        self._database = self._server.database
        self._at_length = partial(self._server.transact, patience_s=LONG_S)
        self._keeper = BackgroundWork(self._at_length, self._clock, self._database.renewals, inline=inline)
        self._writer = Writer(self._server, self._clock, lease_s, inline=inline)
        self.accounts: PostgresAccounts = PostgresAccounts(self._writer, self._keeper, self._clock, inline=inline)
        """Limits, budgets and idempotency keys (``protocols.Accounts``)."""
        self.takes_drafts = True
        self.coordination: PostgresCoordination = PostgresCoordination(self._database, clock=self._clock)
        """News for all who use the database (``protocols.Coordination``)."""

    def __repr__(self) -> str:
        return f"PostgresStorage({str(self._server)!r})"

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``)."""
        batch = list(writes)
        trace_times = [write.trace.key for write in batch if isinstance(write, wire.PutTrace)]
        deletes = any(isinstance(write, wire.DeleteTraces) for write in batch)
        locked = [] if deletes else [account]  # calls continue during a deletion
        if any(isinstance(write, wire.PutKey) for write in batch):
            locked.append(wire.SYSTEM_ACCOUNT)  # digests are unique over all accounts
        transact = self._at_length if deletes else self._server.transact
        work = partial(self._server.apply, account, batch)
        results: list[Written] = await self._database.run(partial(transact, work, locked, trace_times=trace_times))
        if any(isinstance(write, MONEY) for write in batch):
            self._writer.forget(account)
        if trace_times:
            self._keeper.note_write()
        return results

    async def read(self, account: str, query: wire.Query) -> Any:
        """Answer a query for one thing (``protocols.Storage``)."""
        transact = self._server.transact
        if isinstance(query, REPORTS):
            transact = self._at_length
            await self._database.run(partial(count, transact))
        return await self._database.run(partial(transact, partial(_answer, account, query)))

    async def scan(self, account: str, query: wire.Scan, *, after: str | None, limit: int) -> list[Any]:
        """Up to ``limit`` rows after the key ``after`` (``protocols.Storage``)."""
        work = partial(read_page, account, query, after, limit)
        rows: list[Any] = await self._database.run(partial(self._at_length, lambda tables, _: work(tables)))
        return rows

    async def sweep(self, now: float) -> int:
        """Remove expired rows (``protocols.Storage``).

        With a retention of a week or longer, whole days of traces are removed, up to a day late.
        """
        removed = await self._database.run(partial(sweep, self._at_length, now))
        await self._writer.tidy()
        return removed

    async def aclose(self) -> None:
        """Close the connections. The next use opens new ones."""
        with suppress(StorageUnavailable):
            await self._writer.close()
        await self._database.run(self._keeper.close)
        self._database.close()


class PostgresAccounts:
    """Holds of limits, budgets and idempotency keys. A forked child starts without any."""

    def __init__(self, writer: Writer, keeper: BackgroundWork, clock: Clock, *, inline: bool) -> None:
        self._writer = writer
        self._keeper = keeper
        self._clock = clock
        self._inline = inline

    async def admit(self, ask: Ask) -> Grant | Replay | Short:
        """As ``protocols.Accounts`` says."""
        pending = PendingAsk(ask, inline=self._inline)
        try:
            answer: Grant | Replay | Short = await self._send(pending)
            return await self._writer.replay(ask) if isinstance(answer, Replay) else answer
        except BaseException as error:
            if not isinstance(error, RouterError):  # cancelled: return what it was or will be granted
                self._writer.leave(pending)
            raise

    async def _send(self, pending: PendingAsk) -> Any:
        self._writer.put(pending)
        return await (pending.poll(self._clock, self._writer.look_again) if self._inline else pending.wait())

    async def settle(self, grant: Grant | None, facts: Facts) -> Sequence[StoredEvent]:
        """As ``protocols.Accounts`` says."""
        account = facts.caller.account
        trace = None
        if facts.trace is not None:
            trace = rows_of_draft(account, facts.trace)
            self._keeper.note_write()
        ending = Ending(account, facts.id, grant, facts, trace, awaited=not self._inline)
        self._writer.put(ending)
        return await ending.wait()

    async def widen(self, grant: Grant, nanos: int) -> bool:
        """As ``protocols.Accounts`` says."""
        pending = self._writer.make_widening(grant, nanos)
        widened = pending is not None and await self._send(pending) is not None
        if widened:
            grant.nanos = nanos
        return widened

    def release(self, grant: Grant, tokens: int | None = 0) -> None:
        """As ``protocols.Accounts`` says."""
        with suppress(StorageUnavailable):  # its lease ends
            self._writer.put(Ending(grant.caller.account, grant.id, grant, tokens=tokens))

    def left(self, caller: Caller, run: RunLimit | None = None) -> Left | None:
        """As ``protocols.Accounts`` says."""
        entry = self._writer.balances.get((caller, run))
        if entry is None or self._clock.monotonic() - entry[1] > MAX_AGE_S:
            return None
        return entry[0]

    async def look(self, caller: Caller, run: RunLimit | None = None) -> Left:
        """As ``protocols.Accounts`` says."""
        ask = Ask(id="", caller=caller, at=self._clock.time(), lasts_s=0.0, run=run)
        left: Left = await self._send(PendingAsk(ask, "looks", inline=self._inline))
        return left

    def spent_shares(self, caller: Caller) -> Mapping[Period, int] | None:
        """As ``protocols.Accounts`` says."""
        entry = self._writer.spent.get((caller.account, caller.environment, caller.key_id))
        if entry is None or entry.day != timestamp(self._clock.time())[:DAY]:
            return None
        limits = purses_of(entry.left.account, entry.left.key, entry.day)
        return spent_shares([(*purse, nanos) for purse, nanos in zip(limits.items(), entry.nanos, strict=False)])


def _answer(account: str, query: wire.Query, tables: Tables, transaction: AccountTransaction) -> Any:
    """Answer a query. A trace is searched around the time in its id first, then in all partitions."""
    if isinstance(query, wire.TraceById) and (created_ms := milliseconds_of(query.id)):
        days = timestamp(max(0.0, created_ms / 1000 - DAY_S)), timestamp(created_ms / 1000 + DAY_S)
        if (trace := trace_by_id(tables, account=account, query=query, between=days)) is not None:
            return trace
    return transaction.standing(account, query) if isinstance(query, wire.Stands) else answer(account, query, tables)
