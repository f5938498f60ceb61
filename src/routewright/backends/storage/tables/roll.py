"""Roll-ups: what was counted since is added to the sums that analytics read. In the background, and before a report.

Traces that are counted alike are added up by SQLite, so that a busy hour costs as much as its kinds of calls.
"""

from __future__ import annotations

import msgspec

from routewright._core.analytics.rollup import Rollups, packed
from routewright.wire import Counted

from .connection import Statements
from .many import insert

AT_ONCE = 5_000
"""Traces a transaction, so that nobody else waits long to write."""
_LAST = "SELECT n FROM uncounted ORDER BY n LIMIT 1 OFFSET ?"
_GROUPED = """
SELECT account, shape, sum(traces), sum(cost), sum(charged), sum(input), sum(output), sum(cached)
FROM uncounted WHERE n < ? GROUP BY account, shape ORDER BY account
"""
_shape = msgspec.json.Decoder(tuple[Counted, tuple[str, ...]]).decode


def _sums(table: str, keys: str, amounts: str, *, merge: bool = False) -> tuple[str, str]:
    """A roll-up as SQL: one adds to a row, or makes it, the other removes a row of which nothing is left."""
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
    """Add what is not counted yet, the oldest first. True: there is more. ``taken`` stands in the place of ``_GROUPED``
    where others write meanwhile, and removes what it gives."""
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
    """Add sums to the roll-ups. ``less``: some are negative, and rows of which nothing is left go."""
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
