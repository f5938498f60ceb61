"""The connection on which the accounts are asked: ``tick`` (accounts.sql), and what is done in transactions besides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Any

import msgspec
import psycopg

from routewright.errors import InternalError, RouterError
from routewright.protocols import Clock, Facts
from routewright.wire import Snapshot, StoredEvent

from .asking import Ending
from .connection import Address, Connection, Tables, array_of, call
from .desk import Desk
from .rows import packed

SNAPSHOT_S = 6 * 3600.0
"""A snapshot is put again after this time: one that no trace has named for a day is swept."""
MOST_SNAPSHOTS = 1_000
_TICK, _FORMATS = b"SELECT tick($1, $2, $3, $4, $5, $6)", (0, 0, 0, 0, 0, 1)
_BEGIN = """
SELECT extract(epoch FROM clock_timestamp())::float8, set_config('statement_timeout', '60s', true),
    set_config('idle_in_transaction_session_timeout', '10s', true)
"""
"""A client that is gone or stands still keeps others from an account no longer."""
Keep = Callable[[Sequence[Snapshot], Tables, Desk], None]
Settle = Callable[[Facts, Tables, Desk], Sequence[StoredEvent]]


class Server:
    """One connection, made when it is needed. ``settle`` books a call that ``tick`` leaves alone, ``keep`` puts
    snapshots; with ``inline`` the clock's time counts. To be used by one thread at a time."""

    def __init__(self, address: Address, clock: Clock, settle: Settle, keep: Keep, *, inline: bool) -> None:
        self._address = address
        self._clock = clock
        self._settle = settle
        self._keep = keep
        self._inline = inline
        self._connection: Connection | None = None
        self._put_at: dict[str, float] = {}
        """When snapshots were put last."""

    def __str__(self) -> str:
        return str(self._address)

    @property
    def now(self) -> float | None:
        """The time that counts. None: that of the server's clock."""
        return self._clock.time() if self._inline else None

    def tick(self, values: Sequence[Any], blobs: Sequence[bytes | None]) -> dict[str, Any]:
        """What ``tick`` answers. A day that has no partition yet is given one."""
        given = [*map(packed, values), array_of(blobs)]
        connection = self._connected()
        try:
            try:
                answer = call(connection, _TICK, given, _FORMATS)
            except psycopg.errors.CheckViolation:
                self._make_days(each["created_at"] for each in values[-1])
                answer = call(connection, _TICK, given, _FORMATS)
        except psycopg.Error:
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self.close()
            raise
        decoded: dict[str, Any] = msgspec.json.decode(answer)
        return decoded

    def settle(self, ending: Ending) -> Sequence[StoredEvent]:
        """Book a call by the rules in Python, in a transaction of its own."""
        facts = ending.facts
        assert facts is not None, "only settlements are booked"
        work = partial(self._settle, facts)
        self.put_snapshots([ending])
        try:
            events: Sequence[StoredEvent] = self.transact(work, ending.account)
        except psycopg.errors.CheckViolation:
            self._make_days([facts.created_at if ending.trace is None else ending.trace.columns[1]])
            events = self.transact(work, ending.account)
        return events

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
            self.transact(partial(self._keep, [*new.values()]))
            if len(self._put_at) >= MOST_SNAPSHOTS:
                self._put_at.clear()
            self._put_at |= dict.fromkeys(new, now)

    def transact(self, work: Callable[[Tables, Desk], Any], *accounts: str) -> Any:
        """Do some work in a transaction that has the locks of accounts."""
        connection = self._connected()
        try:
            with connection.transaction():
                return transact(connection, work, accounts, self.now)
        except psycopg.Error:
            if connection.closed:
                self.close()
            raise

    def close(self) -> None:
        """Give the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def fault_of(self, error: Exception) -> RouterError:
        """What to raise in the place of an error."""
        if isinstance(error, RouterError):
            return error
        if isinstance(error, psycopg.Error):
            fault = self._address.fault_of(error)
        else:
            fault = InternalError(f"PostgresStorage failed with {type(error).__name__}: {error}")
        fault.__cause__ = error
        return fault

    def _make_days(self, times: Iterable[str]) -> None:
        self._connected().execute("SELECT make_days(%s)", (sorted({each[:10] for each in times}),))

    def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connection = self._address.connect()
        return connection


def transact(
    connection: Connection,
    work: Callable[[Tables, Desk], Any],
    accounts: Sequence[str],
    given: float | None,
) -> Any:
    """Do some work inside a transaction that has the locks of accounts. ``given``: its moment; None: the server's."""
    tables = Tables(connection)
    ((moment, *_),) = connection.execute(_BEGIN).fetchall()
    if given is not None:
        moment = given
    desk = Desk(tables, moment, moment)
    if accounts:
        desk.lock(*accounts)
    return work(tables, desk)
