"""Removal of expired traces and unused snapshots."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from routewright._core.timestamps import timestamp
from routewright._core.write_batch import UNNAMED_S
from routewright.wire import Environment, TraceItems

from .connection import Statements
from .read import retention_of
from .selection import rows_of
from .traces import KEYS, forget

PIECE = 100
"""Traces that one transaction removes."""
SEARCHED = 20_000
"""Traces of an account and environment in one search."""

ACCOUNTS = """
WITH RECURSIVE found(name) AS (
    SELECT min(account) FROM trace
    UNION ALL
    SELECT (SELECT min(account) FROM trace WHERE account > name) FROM found WHERE name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL
"""
_FREE_SNAPSHOTS = """
DELETE FROM snapshot WHERE named <= 0 AND at < ?
AND NOT EXISTS (SELECT 1 FROM snapshot AS later WHERE later.base = snapshot.id)
RETURNING length(body)
"""


class Old(NamedTuple):
    """Expired traces of an account by their ``KEYS``."""

    account: str
    keys: list[tuple[str, str, int]]


def old_traces(now: float, connection: Statements, longest_s: float = inf) -> list[Old]:
    """Find expired traces in pieces of at most ``PIECE``, and at most ``SEARCHED`` of an account. Repeat until none are
    left. Accounts in ``skipped`` are skipped."""
    kept = retention_of(connection)
    ages: list[tuple[Environment, float | None]] = [("production", kept.production_s), ("sandbox", kept.sandbox_s)]
    found: list[Old] = []
    for (account,) in connection.execute(ACCOUNTS).fetchall():
        for environment, age in ages:
            if age is None or age >= longest_s:
                continue
            until = timestamp(max(0.0, now - age))
            asked = TraceItems(environment=environment, until=until)
            keys = rows_of(connection, KEYS, account, asked, SEARCHED, order="ASC")
            found += [Old(account, keys[place : place + PIECE]) for place in range(0, len(keys), PIECE)]
    return found


def remove_old(old: Old, connection: Statements) -> int:
    """Remove those that still exist, and return how many. They stay counted."""
    return len(forget(connection, old.account, old.keys))


def remove_snapshots(now: float, connection: Statements) -> list[bool]:
    """Remove unused snapshots; repeat until there are none, since each may free its base. Returns for each whether it
    was ever put."""
    # not "IS NOT NULL", which is always true after RETURNING in SQLite 3.40
    return [bool(put) for (put,) in connection.execute(_FREE_SNAPSHOTS, (now - UNNAMED_S,)).fetchall()]
