"""The interface of a connection that the tables need, and statements with many rows.

Python releases its lock at each statement and has to wait for it behind a busy event loop, so with one row a statement
the writer would starve.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol, TypeAlias

_IDS_AT_ONCE = (1, 4, 16, 100, 500)
"""Numbers of ids in one statement. The last id is repeated up to one of them, so that statements can be cached."""
_ROWS_AT_ONCE = 64
"""Most rows in one statement. Numbers are powers of two, so that statements can be cached."""


class Cursor(Protocol):
    """The rows of a statement."""

    def fetchone(self) -> Any:
        """One row; None: there is none left."""

    def fetchall(self) -> list[Any]:
        """All rows."""


Row: TypeAlias = tuple[Any, ...]
"""The values of a row, in the order of its columns."""


class Statements(Protocol):
    """Runs statements in the common dialect of SQLite and PostgreSQL, with question marks for values."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Run one."""

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> Any:
        """Run one for each row of parameters."""


def insert(connection: Statements, sql: str, rows: Sequence[Row]) -> None:
    """Insert rows; their values go where ``sql`` has braces."""
    start = 0
    while start < len(rows):
        size = min(1 << (len(rows) - start).bit_length() - 1, _ROWS_AT_ONCE)
        part = rows[start : start + size]
        connection.execute(_for_rows(sql, len(part[0]), size), [*chain.from_iterable(part)])
        start += size


def select_rows(connection: Statements, sql: str, ids: Sequence[Any], *constants: str) -> list[Any]:
    """Select the rows of these ids. Their placeholders go where ``sql`` has braces; each column of tuples has its own.
    Not by ``json_each``, which cuts a text at a NUL."""
    rows: list[Any] = []
    for start in range(0, len(ids), _IDS_AT_ONCE[-1]):
        piece = ids[start : start + _IDS_AT_ONCE[-1]]
        size = _IDS_AT_ONCE[bisect_left(_IDS_AT_ONCE, len(piece))]
        padded = [*piece, *[piece[-1]] * (size - len(piece))]
        values = chain.from_iterable(zip(*padded, strict=True)) if isinstance(padded[0], tuple) else padded
        rows += connection.execute(_for_ids(sql, size), (*constants, *values)).fetchall()
    return rows


def upsert(table: str, keys: str, columns: str) -> str:
    """SQL that inserts a row, or replaces the columns of the row with the same keys."""
    names = [*keys.split(), *columns.split()]
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
        f"ON CONFLICT ({', '.join(keys.split())}) DO UPDATE SET "
        + ", ".join(f"{column} = excluded.{column}" for column in columns.split())
    )


@lru_cache(maxsize=256)
def _for_rows(sql: str, columns: int, rows: int) -> str:
    return sql.format(", ".join([f"({', '.join('?' * columns)})"] * rows))


@lru_cache(maxsize=256)
def _for_ids(sql: str, ids: int) -> str:
    marks = ", ".join("?" * ids)
    return sql.format(marks, marks)
