"""Copies a store from a file into an empty database, table by table.

Each piece of rows is one transaction that also stores its position, so a stopped copy can continue. The target cannot
be used before the copy is complete and compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psycopg

from routewright.backends.clock import SystemClock
from routewright.backends.storage.sqlite import transaction as sqlite
from routewright.backends.storage.sqlite.file import connect
from routewright.backends.storage.sqlite.schema import check_version, id_of
from routewright.backends.storage.sqlite.sync import translate
from routewright.backends.storage.tables.statements import Statements
from routewright.errors import StorageUnavailable, ValidationFailed

from .connections import Address, Connection, Tables
from .schema import alone, finish, make_tables
from .transaction import AccountTransaction

PIECE = 1_000
"""Rows in a transaction."""
LEASE_S = 30.0
_FROM = {
    "setting": "(SELECT * FROM setting WHERE name <> 'id') AS setting",  # each store has its own id
    "body": "trace JOIN body USING (n)",
    "kept": "claim JOIN kept USING (account, claim, n)",
}
"""Sources of rows, if not simply the table."""
_TABLES = """
setting name; policy_version content; learned fleet, model; snapshot id; account account; key account, id;
purse account, name; ledger account, at, name; kept account, claim; uncounted n;
usage account, per, group_by, environment, start, value; cache_use account, environment, day, age;
fallback_use account, environment, day, kind, name; latency account, environment, day, model, strategy;
trace account, created_at, id; body account, created_at, id; tag account, key, value, created_at, id;
feedback account, trace_id; agent_state account, environment, id; incident id; told account, once;
event account, id; delivery endpoint, event; endpoint id; subscription type, endpoint
"""  # subscriptions last, so that nothing is delivered anew
_KEYS: dict[str, str] = dict(line.split(maxsplit=1) for line in _TABLES.split(";"))
"""The tables in order of copying, and the key columns of their pieces."""
_TOTALS = {
    "purse": "SELECT account, sum(spent), sum(granted) FROM purse GROUP BY account",
    "ledger": "SELECT account, sum(cost), sum(charge), sum(credit) FROM ledger GROUP BY account",
}
_NUMBERS = """
SELECT setval('trace_n', (SELECT coalesce(max(n & ((1::bigint << 40) - 1)), 0) + 1 FROM trace), false),
    setval(pg_get_serial_sequence('event', 'n'), (SELECT coalesce(max(n), 0) + 1 FROM event), false),
    setval(pg_get_serial_sequence('uncounted', 'n'), (SELECT coalesce(max(n), 0) + 1 FROM uncounted), false)
"""
_IS_STARTED = "SELECT to_regclass('copying') IS NOT NULL"
_BEGIN = """
CREATE TABLE copying (name text PRIMARY KEY, after bytea, rows bigint NOT NULL, done boolean NOT NULL);
DELETE FROM store
"""
_READ_PROGRESS = "SELECT after, rows, done FROM copying WHERE name = %s"
_WRITE_PROGRESS = """
INSERT INTO copying VALUES (%s, %s, %s, %s)
ON CONFLICT (name) DO UPDATE SET after = excluded.after, rows = excluded.rows, done = excluded.done
"""
_BYTEA = 17
_EPOCH = date(1970, 1, 1).toordinal()


class _Progress(NamedTuple):
    """Of one table."""

    after: bytes | None
    """Key of the last row."""
    rows: int
    is_done: bool


class _Source(NamedTuple):
    id: bytes
    holds: int
    """Running calls."""
    file: Statements


def copy(source: Path, target: Address, report: Callable[[str], object]) -> tuple[dict[str, int], list[str]]:
    """Copy a store that is not in use. ``report`` is called with progress. Returns the number of rows by table, and the
    differences between copy and source: without any, the copy may be used. Raises ``ValidationFailed`` for a target
    that is not empty, and kinds of ``StorageUnavailable``, after which the same call continues."""
    with _open_store(source) as store, target.translate(), target.connect() as connection:
        if store.holds:
            hint = f"stop what uses it, wait {LEASE_S:g} s, and copy it again"
            raise StorageUnavailable(f"{source} is in use: {store.holds} calls hold money or limits; {hint}")
        with alone(target) as transaction:
            _begin(target, transaction, store.id)
        connection.execute("SET synchronous_commit = off")  # a lost piece is lost with its position
        rows = {}
        for name in _KEYS:
            rows[name] = _copy_table(name, store, connection)
            report(f"{name}: {rows[name]:,} rows")
        problems = [*_compare(store, Tables(connection))]
        if not problems:
            with alone(target) as transaction:
                _end(transaction)
        return rows, problems


@contextmanager
def _open_store(source: Path) -> Iterator[_Source]:
    """Open a consistent view of a store."""
    with translate(source), closing(connect(str(source))) as file:
        check_version(file, source)
        file.execute("BEGIN IMMEDIATE")
        accounts = sqlite.AccountTransaction(source, SystemClock(), LEASE_S)
        accounts.open(file)
        holds = len(accounts.state.holds)
        file.execute("ROLLBACK")
        file.execute("BEGIN")
        yield _Source(id_of(file) or b"", holds, file)


def _begin(target: Address, connection: Connection, source: bytes) -> None:
    """Prepare the target, or check that it is an unfinished copy of the same source."""
    is_new = make_tables(target, connection)
    if connection.execute(_IS_STARTED).fetchone() == (True,):
        if connection.execute(_READ_PROGRESS, ("",)).fetchone() != (source, 0, False):
            raise ValidationFailed.at("target", f"{target} is an unfinished copy of another store", "name an empty one")
        return
    names = [] if is_new else [name for name in _KEYS if connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone()]
    if names:
        raise ValidationFailed.at("target", f"{target} is not empty: it has rows in {names[0]}", "name an empty one")
    connection.execute(_BEGIN)
    connection.execute(_WRITE_PROGRESS, ("", source, 0, False))


def _copy_table(name: str, source: _Source, target: Connection) -> int:
    """Copy the missing rows of a table, and return how many it has."""
    # In one transaction for all rows, whatever stops the copy would send it back to the start. So each piece of rows is
    # a transaction that also writes the key of its last row: after a crash both are there or neither, and the same call
    # continues behind that key. Pages by OFFSET would read all rows before them again. Proved by
    # `test_a_copy_stopped_anywhere_continues`.
    progress = _Progress(*(target.execute(_READ_PROGRESS, (name,)).fetchone() or (None, 0, False)))
    target_columns = target.execute(f"SELECT * FROM {name} LIMIT 0").description or ()
    probe: Any = source.file.execute(f"SELECT * FROM {name} LIMIT 0")
    source_names = {column[0] for column in probe.description}
    columns = [column for column in target_columns if column.name in source_names]
    keys = _KEYS[name].split(", ")
    names = ", ".join(column.name for column in columns)
    select = f"SELECT {_KEYS[name]}, {names} FROM {_FROM.get(name, name)} "
    pages = f"ORDER BY {_KEYS[name]} LIMIT {PIECE}"
    condition = f"WHERE ({_KEYS[name]}) > ({', '.join('?' * len(keys))}) "
    while not progress.is_done:
        last_key = () if progress.after is None else msgspec.msgpack.decode(progress.after)
        source_rows = source.file.execute(select + (condition if last_key else "") + pages, last_key).fetchall()
        piece = [_row(name, row[: len(keys)], row[len(keys) :], columns) for row in source_rows]
        after = msgspec.msgpack.encode(source_rows[-1][: len(keys)]) if source_rows else progress.after
        progress = _Progress(after, progress.rows + len(piece), len(source_rows) < PIECE)
        with target.transaction():
            if name in ("trace", "tag"):
                index = keys.index("created_at")
                target.execute("SELECT make_days(%s)", (sorted({row[index][:10] for row in source_rows}),))
            with target.cursor() as cursor, cursor.copy(f"COPY {name} ({names}) FROM STDIN") as stream:
                for row in piece:
                    stream.write_row(row)
            target.execute(_WRITE_PROGRESS, (name, *progress))
    return progress.rows


def _row(name: str, key: Sequence[Any], row: Sequence[Any], columns: Sequence[psycopg.Column]) -> list[Any]:
    """A row in PostgreSQL's form."""
    values: list[Any] = [
        value.encode() if column.type_code == _BYTEA and isinstance(value, str) else value
        for value, column in zip(row, columns, strict=True)
    ]
    if name in ("trace", "body"):  # the day in the upper bits of n
        values[0] = (date.fromisoformat(key[1][:10]).toordinal() - _EPOCH) << 40 | values[0] & (1 << 40) - 1
    return values


def _compare(source: _Source, target: Statements) -> Iterator[str]:
    for name in _KEYS:
        expected = source.file.execute(f"SELECT count(*) FROM {_FROM.get(name, name)}").fetchone()[0]
        actual = target.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        if expected != actual:
            yield f"{name} has {expected:,} rows, but {actual:,} in the copy: the source was changed meanwhile"
    for name, sql in _TOTALS.items():
        mine, theirs = (
            {account: sums for account, *sums in store.execute(sql).fetchall()} for store in (source.file, target)
        )
        for account in sorted({*mine, *theirs}):
            if mine.get(account) != theirs.get(account):
                yield f"{name} of {account!r} sums to {mine.get(account)}, but to {theirs.get(account)} in the copy"


def _end(connection: Connection) -> None:
    """Turn the copy into a store."""
    now = time.time()
    transaction = AccountTransaction(Tables(connection), now, now)
    sql = "SELECT account, NULL FROM account UNION ALL SELECT account, id FROM key"
    for account, key_id in connection.execute(sql).fetchall():
        transaction.refresh_terms(account, key_id)  # sets the columns of limits
    connection.execute(_NUMBERS)
    connection.execute("DROP TABLE copying")
    connection.execute("ANALYZE")
    finish(connection)
