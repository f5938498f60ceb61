"""Applies writes to the tables inside a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from routewright._core.snapshot_delta import change
from routewright._core.write_batch import check_batch, check_digests, check_place, ids_of
from routewright.protocols import Facts
from routewright.wire import (
    AddLearned,
    Caller,
    DeleteTraces,
    Environment,
    HealthSnapshot,
    PutFeedback,
    PutPolicyVersion,
    PutSnapshot,
    PutTrace,
    SetRetention,
    Snapshot,
    Trace,
    Write,
    Written,
)

from .books.ledger import PUT_ROWS, columns_of
from .books.write import AccountTransaction, BookWrites, holder_of
from .connection import Statements
from .read import SETTING
from .rollups import insert, rows_where
from .shared import add_learned, put_version
from .traces import BY_IDS, TraceRows, add_traces, delete, put_traces

LONGEST_CHAIN = 32
"""Longest chain of health snapshots that are stored as changes."""
_encode = msgspec.json.Encoder().encode
_PUT_SNAPSHOT = """
INSERT INTO snapshot (id, body, base, depth, at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET body = excluded.body, base = excluded.base, depth = excluded.depth, at = excluded.at
"""
_PRESENT = "SELECT id FROM snapshot WHERE body IS NOT NULL AND id IN ({}) ORDER BY id /* FOR UPDATE OF snapshot */"
_PUT_SETTING = """
INSERT INTO setting (name, body) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body
"""


class Writes:
    """Applies batches. For one thread at a time."""

    def __init__(self, add: Callable[[Statements, Sequence[TraceRows]], None] = add_traces) -> None:
        self._add = add
        """Inserts new traces."""
        self._health: HealthSnapshot | None = None
        """The last put. The next is stored as changes to it."""

    def batch(
        self, account: str, writes: Sequence[Write], transaction: AccountTransaction, connection: Statements
    ) -> list[Written]:
        """Apply a batch. Raises ``PreconditionFailed`` and ``UnsupportedWrite`` before anything is written."""
        traces, snapshots = ids_of(writes)
        environments = _environments(connection, account, traces)
        books = BookWrites(connection, account, transaction)
        present = {found for (found,) in rows_where(connection, _PRESENT, snapshots)}
        check_batch("SqliteStorage", account, writes, environments, present, books.before)
        check_digests(account, writes, partial(holder_of, connection))
        results: list[Written] = []
        for run in _runs(writes):
            match run[0]:
                case PutTrace():
                    results += put_traces(connection, account, run, environments, self._add)
                    _book(connection, account, run, transaction)
                case PutFeedback() as feedback:
                    gone = "DELETE FROM feedback WHERE account = ? AND trace_id = ? RETURNING 1"
                    there = connection.execute(gone, (account, feedback.trace_id)).fetchall()
                    sql = "INSERT INTO feedback (account, trace_id, body) VALUES (?, ?, ?)"
                    connection.execute(sql, (account, feedback.trace_id, _encode(feedback)))
                    results.append(Written(not there))
                case PutSnapshot(snapshot, at=at):
                    results.append(self.put_snapshot(connection, snapshot, at))
                case PutPolicyVersion() as asked:
                    results.append(put_version(connection, asked))
                case AddLearned() as more:
                    results.append(add_learned(connection, more))
                case DeleteTraces() as which:
                    results.append(delete(connection, account, which))
                    transaction.deletes = transaction.deletes or results[-1].count < which.limit  # the last of many
                case SetRetention() as retention:
                    connection.execute(_PUT_SETTING, (SETTING, _encode(retention)))
                    results.append(Written(created=False))
                case other:
                    results.append(books.put(other))
        return results

    def replaced(self, connection: Statements, account: str, rows: TraceRows) -> list[str]:
        """The id of an existing trace that a new one replaces. Raises ``PreconditionFailed`` if the environments
        differ."""
        there = _environments(connection, account, [rows.id])
        for environment in there.values():
            check_place(rows.id, rows.environment, environment)
        return [*there]

    def put_snapshot(self, connection: Statements, snapshot: Snapshot, at: float) -> Written:
        """Store a snapshot, if possible as changes to the last one of health."""
        sql = (
            "UPDATE snapshot SET at = CASE WHEN at > ? THEN at ELSE ? END WHERE id = ? AND body IS NOT NULL RETURNING 1"
        )
        if connection.execute(sql, (at, at, snapshot.id)).fetchall():
            return Written(created=False)
        base, depth, body = None, 0, _encode(snapshot)
        if isinstance(snapshot, HealthSnapshot):
            last, self._health = self._health, snapshot
            if last is not None and last.id != snapshot.id:
                sql = "SELECT depth FROM snapshot WHERE id = ? AND body IS NOT NULL"
                row = connection.execute(sql, (last.id,)).fetchone()  # its batch may have failed
                changes = _encode(change(last, snapshot))
                if row is not None and row[0] < LONGEST_CHAIN and len(changes) * 2 <= len(body):
                    base, depth, body = last.id, row[0] + 1, changes
        connection.execute(_PUT_SNAPSHOT, (snapshot.id, body, base, depth, at))
        return Written(created=True)


def _runs(writes: Sequence[Write]) -> Iterator[Sequence[Any]]:
    """Single writes, and runs of traces with different ids."""
    run: dict[str, PutTrace] = {}
    for write in writes:
        if run and not (isinstance(write, PutTrace) and write.trace.id not in run):
            yield [*run.values()]
            run = {}
        if isinstance(write, PutTrace):
            run[write.trace.id] = write
        else:
            yield [write]
    if run:
        yield [*run.values()]


def _book(connection: Statements, account: str, writes: Sequence[PutTrace], transaction: AccountTransaction) -> None:
    """Book the cost of traces whose calls had no hold. Accounts that were created since are charged."""
    rows = [row for write in writes for row in write.rows]
    if rows and connection.execute("SELECT 1 FROM account WHERE account = ?", (account,)).fetchone() is None:
        insert(
            connection, f"INSERT {PUT_ROWS} ON CONFLICT DO NOTHING", [(account, *columns_of(row), None) for row in rows]
        )
        return
    for write in writes:
        if write.rows:
            given: Any = write.trace
            trace = given if isinstance(given, Trace) else given.line
            caller = Caller(account, trace.environment, trace.key_id)
            transaction.settle(Facts(trace.id, caller, trace.created_at, rows=write.rows))


def _environments(connection: Statements, account: str, ids: Sequence[str]) -> dict[str, Environment]:
    return dict(rows_where(connection, f"SELECT id, environment {BY_IDS}", ids, account))
