"""Statements with many rows. Python releases its lock at each statement and has to wait for it behind a busy event
loop, so with one row a statement the writer would starve."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

from routewright._core.analytics.rollup import Rollups, packed
from routewright.wire import Counted

from .connection import Statements

_IDS_AT_ONCE = (1, 4, 16, 100, 500)
"""Numbers of ids in one statement. The last id is repeated up to one of them, so that statements can be cached."""
_ROWS_AT_ONCE = 64
"""Most rows in one statement. Numbers are powers of two, so that statements can be cached."""


def insert(connection: Statements, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows; their values go where ``sql`` has braces."""
    place, left = 0, len(rows)
    while left:
        size = min(1 << left.bit_length() - 1, _ROWS_AT_ONCE)
        part = rows[place : place + size]
        connection.execute(_for_rows(sql, len(part[0]), size), [*chain.from_iterable(part)])
        place, left = place + size, left - size


def rows_where(connection: Statements, sql: str, ids: Sequence[Any], *first: str) -> list[Any]:
    """The rows of these ids, whose placeholders go where ``sql`` has braces; each column of tuples has its own. Not by
    ``json_each``, which cuts a text at a NUL."""
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


AT_ONCE = 5_000
"""Traces in a transaction, so that other writers need not wait long."""
_LAST = "SELECT n FROM uncounted ORDER BY n LIMIT 1 OFFSET ?"
_GROUPED = """
SELECT account, shape, sum(traces), sum(cost), sum(charged), sum(input), sum(output), sum(cached)
FROM uncounted WHERE n < ? GROUP BY account, shape ORDER BY account
"""
_shape = msgspec.json.Decoder(tuple[Counted, tuple[str, ...]]).decode


def _sums(table: str, keys: str, amounts: str, *, merge: bool = False) -> tuple[str, str]:
    """SQL of a roll-up: one statement adds to a row or creates it, the other removes an empty one."""
    names, columns = keys.split(), amounts.split()
    added = (
        f"merged({table}.{each}, excluded.{each})" if merge else f"{table}.{each} + excluded.{each}" for each in columns
    )
    sets = ", ".join(f"{column} = {value}" for column, value in zip(columns, added, strict=True))
    where = " AND ".join(f"{name} = ?" for name in names)
    nothing = f"length({columns[0]}) = 0" if merge else f"{columns[0]} = 0"
    return (
        f"INSERT INTO {table} ({', '.join([*names, *columns])}) VALUES {{}} "
        f"ON CONFLICT ({', '.join(names)}) DO UPDATE SET {sets}",
        f"DELETE FROM {table} WHERE {where} AND {nothing}",
    )


_USAGE = _sums(
    "usage",
    "account per group_by environment start value",
    "requests errors cost_nanos charged_nanos input_tokens output_tokens cached_tokens",
)
_CACHE = _sums("cache_use", "account environment day age", "lookups saved_nanos")
_FALLBACK = _sums("fallback_use", "account environment day kind name", "total counted")
_LATENCY = _sums("latency", "account environment day model strategy", "buckets", merge=True)


def roll(connection: Statements, taken: str | None = None) -> bool:
    """Count uncounted rows, oldest first. True: there are more. ``taken`` replaces ``_GROUPED`` if others write
    meanwhile: it removes the rows that it returns."""
    row = connection.execute(_LAST, (AT_ONCE,)).fetchone()
    before = 2**62 if row is None else row[0]
    by_account: dict[str, Rollups] = {}
    less = False
    for account, shape, traces, *amounts in connection.execute(taken or _GROUPED, (before,)).fetchall():
        counted, keys = _shape(shape)
        rollups = by_account.setdefault(account, Rollups())
        less = less or traces < 1
        rollups.count(counted, keys, traces, amounts)
    for account, rollups in by_account.items():
        _add(connection, account, rollups, less=less)
    if taken is None:
        connection.execute("DELETE FROM uncounted WHERE n < ?", (before,))
    return row is not None


def _add(connection: Statements, account: str, rollups: Rollups, *, less: bool) -> None:
    """Add sums to the roll-ups. ``less``: some are negative, so empty rows are removed."""
    usage = [
        ((account, per, key.group_by, key.environment, key.start, key.value), sums)
        for per, rows in (("hour", rollups.usage), ("day", rollups.days()))
        for key, sums in rows.items()
    ]
    cache = [((account, *key[:3]), sums) for key, sums in rollups.cache.items()]
    fallback = [((account, *key), sums) for key, sums in rollups.fallback.items()]
    latency = [((account, *key), [packed(buckets)]) for key, buckets in rollups.latency.items()]
    for (add, drop), rows in ((_USAGE, usage), (_CACHE, cache), (_FALLBACK, fallback), (_LATENCY, latency)):
        insert(connection, add, [(*key, *sums) for key, sums in rows])
        if less:
            connection.executemany(drop, [key for key, _ in rows])
