"""Many rows a statement. Python gives its lock away at each, and has to wait for it behind a busy event loop: with a
statement a row the writer would starve."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from .connection import Statements

_IDS_AT_ONCE = (1, 4, 16, 100, 500)
"""Parameters of one statement: a few sizes, likewise; the last id is said again until it is one of them."""
_ROWS_AT_ONCE = 64
"""Rows of one statement, at most: powers of two, so that statements are prepared once."""


def insert(connection: Statements, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows; their values go where ``sql`` has braces."""
    place, left = 0, len(rows)
    while left:
        size = min(1 << left.bit_length() - 1, _ROWS_AT_ONCE)
        part = rows[place : place + size]
        connection.execute(_for_rows(sql, len(part[0]), size), [*chain.from_iterable(part)])
        place, left = place + size, left - size


def rows_where(connection: Statements, sql: str, ids: Sequence[Any], *first: str) -> list[Any]:
    """The rows of these ids, whose marks go where ``sql`` has braces; each column of tuples has its own. Not by
    ``json_each``: that cuts a text at a NUL."""
    found: list[Any] = []
    for place in range(0, len(ids), _IDS_AT_ONCE[-1]):
        piece = ids[place : place + _IDS_AT_ONCE[-1]]
        size = _IDS_AT_ONCE[bisect_left(_IDS_AT_ONCE, len(piece))]
        padded = [*piece, *[piece[-1]] * (size - len(piece))]
        values = chain.from_iterable(zip(*padded, strict=True)) if isinstance(padded[0], tuple) else padded
        found += connection.execute(_for_ids(sql, size), (*first, *values)).fetchall()
    return found


@lru_cache(maxsize=256)
def _for_rows(sql: str, columns: int, rows: int) -> str:
    group = f"({', '.join('?' * columns)})"
    return sql.format(", ".join([group] * rows))


@lru_cache(maxsize=256)
def _for_ids(sql: str, ids: int) -> str:
    marks = ", ".join("?" * ids)
    return sql.format(marks, marks)
