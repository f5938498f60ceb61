"""What a storage asks of its database: transactions by the rules in Python, and ``tick`` (accounts.sql)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from routewright.backends.storage.tables.books.shelf import MOST_SNAPSHOTS, SNAPSHOT_S
from routewright.backends.storage.tables.books.write import put_event
from routewright.backends.storage.tables.traces import remove_traces, rows_of_draft
from routewright.backends.storage.tables.write import Writes
from routewright.errors import InternalError, RouterError
from routewright.protocols import Clock
from routewright.wire import Snapshot, StoredEvent, Write, Written

from .asking import Ending, packed, put_traces
from .connection import NO_PARTITION, PATIENCE_S, Database, Tables, array_of, call, state_of
from .desk import Desk
from .schema import Store

T = TypeVar("T")
READERS = 16
"""So many ask at a time in each event loop, besides the accounts; more wait."""
_TICK, _FORMATS = b"SELECT tick($1, $2, $3, $4, $5, $6)", (0, 0, 0, 0, 0, 1)
_BEGIN = """
SELECT extract(epoch FROM clock_timestamp())::float8, set_config('statement_timeout', %s, true),
    set_config('idle_in_transaction_session_timeout', '10s', true)
"""
"""A client that is gone, stands still or waits no longer keeps others from an account no longer."""


class Server:
    """Asks the database. With ``inline`` in the caller's thread, and the clock's time counts; else the server's."""

    def __init__(self, url: str, clock: Clock, *, inline: bool) -> None:
        self.database = Database(Store(url), "questions to PostgreSQL", READERS, inline=inline)
        self._writes = Writes(put_traces)  # type: ignore[arg-type]  # what runs its statements is a Tables here
        self._clock = clock
        self._inline = inline
        self._put_at: dict[str, float] = {}
        """When snapshots were put last."""

    def __str__(self) -> str:
        return str(self.database.address)

    @property
    def now(self) -> float | None:
        """The time that counts. None: that of the server's clock."""
        return self._clock.time() if self._inline else None

    def transact(
        self,
        work: Callable[[Tables, Desk], T],
        locked: Sequence[str] = (),
        *,
        made_at: Iterable[str] = (),
        patience_s: float = PATIENCE_S,
    ) -> T:
        """Do some work in a transaction that has the locks of accounts. ``made_at``: when the traces were made that it
        puts. Raises what the work does, and kinds of ``StorageUnavailable``."""

        def once() -> T:
            database = self.database
            with (
                database.address.translated(),
                database.connection(patience_s) as connection,
                connection.transaction(),
            ):
                ((moment, *_),) = connection.execute(_BEGIN, (f"{patience_s:g}s",)).fetchall()
                tables, at = Tables(connection), self.now or moment
                desk = Desk(tables, at, at)
                if locked:
                    desk.lock(*locked)
                return work(tables, desk)

        return self._with_days(once, made_at)

    def apply(self, account: str, batch: Sequence[Write], tables: Tables, desk: Desk) -> list[Written]:
        """Apply writes inside a transaction."""
        if not any(getattr(each, "durability", None) == "committed" for each in batch):
            tables.raw.execute("SET LOCAL synchronous_commit = off")
        return self._writes.batch(account, batch, desk, tables)

    def tick(self, values: Sequence[Any], blobs: Sequence[bytes | None]) -> dict[str, Any]:
        """What ``tick`` answers."""
        given = [*map(packed, values), array_of(blobs)]

        def once() -> bytes:
            with self.database.address.translated(), self.database.connection() as connection:
                return call(connection, _TICK, given, _FORMATS)

        answer = self._with_days(once, (each["created_at"] for each in values[-1]))
        decoded: dict[str, Any] = msgspec.json.decode(answer)
        return decoded

    def settle(self, ending: Ending) -> Sequence[StoredEvent]:
        """Book a call by the rules in Python, in a transaction of its own."""
        facts = ending.facts
        assert facts is not None, "only settlements are booked"
        self.put_snapshots([ending])
        made_at = [facts.created_at if ending.trace is None else ending.trace.columns[1]]
        return self.transact(partial(self._settle, ending), [ending.account], made_at=made_at)

    def put_snapshots(self, ends: Iterable[Ending]) -> None:
        """Put what the traces of calls name, unless that was done not long ago."""
        now = time.monotonic()
        new = {
            snapshot.id: snapshot
            for ending in ends
            for snapshot in (() if ending.facts is None else ending.facts.snapshots)
            if now - self._put_at.get(snapshot.id, -inf) >= SNAPSHOT_S
        }
        if new:
            self.transact(partial(self._put_snapshots, [*new.values()]))
            if len(self._put_at) >= MOST_SNAPSHOTS:
                self._put_at.clear()
            self._put_at |= dict.fromkeys(new, now)

    @staticmethod
    def fault_of(error: Exception) -> RouterError:
        """What to raise in the place of an error."""
        if isinstance(error, RouterError):
            return error
        fault = InternalError(f"PostgresStorage failed with {type(error).__name__}: {error}")
        fault.__cause__ = error
        return fault

    def _with_days(self, work: Callable[[], T], made_at: Iterable[str]) -> T:
        """Do some work; once more where days have no partition yet, which they are given."""
        try:
            return work()
        except RouterError as error:
            days = sorted({each[:10] for each in made_at})
            if not days or state_of(error) != NO_PARTITION:
                raise
        self.transact(lambda tables, _: tables.raw.execute("SELECT make_days(%s)", (days,)))
        return work()

    def _settle(self, ending: Ending, tables: Tables, desk: Desk) -> Sequence[StoredEvent]:
        """Book a call that ``tick`` left alone, with its trace in the place of an earlier one."""
        facts = ending.facts
        assert facts is not None, "only settlements are booked"
        account, trace = ending.account, facts.trace
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

    def _put_snapshots(self, snapshots: Sequence[Snapshot], tables: Tables, _: Desk) -> None:
        for snapshot in sorted(snapshots, key=attrgetter("id")):  # locked in one order
            self._writes.put_snapshot(tables, snapshot, self._clock.time())
