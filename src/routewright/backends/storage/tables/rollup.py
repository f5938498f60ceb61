"""Roll-ups of traces: usage, cache, fallbacks and latencies by account, hour or day."""

from __future__ import annotations

import msgspec

from routewright._core.analytics.rollup import Rollups, pack_buckets
from routewright.wire import Counted

from .statements import Statements, insert

AT_ONCE = 5_000
"""Traces in a transaction, so that other writers need not wait long."""
_LAST = "SELECT n FROM uncounted ORDER BY n LIMIT 1 OFFSET ?"
_GROUPED = """
SELECT account, shape, sum(traces), sum(cost), sum(charged), sum(input), sum(output), sum(cached)
FROM uncounted WHERE n < ? GROUP BY account, shape ORDER BY account
"""
_shape = msgspec.json.Decoder(tuple[Counted, tuple[str, ...]]).decode


def _make_sql(table: str, keys: str, amounts: str, *, merge: bool = False) -> tuple[str, str]:
    """SQL of a roll-up: one statement adds to a row or creates it, the other removes an empty one."""
    names = keys.split()
    columns = amounts.split()
    total = "merged({0}.{1}, excluded.{1})" if merge else "{0}.{1} + excluded.{1}"
    sets = ", ".join(f"{column} = {total.format(table, column)}" for column in columns)
    where = " AND ".join(f"{name} = ?" for name in names)
    nothing = f"length({columns[0]}) = 0" if merge else f"{columns[0]} <= 0"
    return (
        f"INSERT INTO {table} ({', '.join([*names, *columns])}) VALUES {{}} "
        f"ON CONFLICT ({', '.join(names)}) DO UPDATE SET {sets}",
        f"DELETE FROM {table} WHERE {where} AND {nothing}",
    )


_USAGE = _make_sql(
    "usage",
    "account per group_by environment start value",
    "requests errors cost_nanos charged_nanos input_tokens output_tokens cached_tokens",
)
_CACHE = _make_sql("cache_use", "account environment day age", "lookups saved_nanos")
_FALLBACK = _make_sql("fallback_use", "account environment day kind name", "total counted")
_LATENCY = _make_sql("latency", "account environment day model strategy", "buckets", merge=True)


def roll(connection: Statements, grouped_sql: str | None = None) -> bool:
    """Count uncounted rows, oldest first. True: there are more. ``grouped_sql`` replaces ``_GROUPED`` if others write
    meanwhile: it removes the rows that it returns."""
    row = connection.execute(_LAST, (AT_ONCE,)).fetchone()
    before = 2**62 if row is None else row[0]
    by_account: dict[str, Rollups] = {}
    has_removals = False
    for account, shape, traces, *amounts in connection.execute(grouped_sql or _GROUPED, (before,)).fetchall():
        counted, keys = _shape(shape)
        rollups = by_account.setdefault(account, Rollups())
        has_removals = has_removals or traces < 1
        rollups.count(counted, keys, traces, amounts)
    for account, rollups in by_account.items():
        usage = [
            ((account, per, key.group_by, key.environment, key.start, key.value), sums)
            for per, rows in (("hour", rollups.usage), ("day", rollups.days()))
            for key, sums in rows.items()
        ]
        cache = [((account, *key[:3]), sums) for key, sums in rollups.cache.items()]
        fallback = [((account, *key), sums) for key, sums in rollups.fallback.items()]
        latency = [((account, *key), [pack_buckets(buckets)]) for key, buckets in rollups.latency.items()]
        for (add, drop), rows in ((_USAGE, usage), (_CACHE, cache), (_FALLBACK, fallback), (_LATENCY, latency)):
            insert(connection, add, [(*key, *sums) for key, sums in rows])
            if has_removals:  # some rows may be empty now
                connection.executemany(drop, [key for key, _ in rows])
    if grouped_sql is None:
        connection.execute("DELETE FROM uncounted WHERE n < ?", (before,))
    return row is not None
