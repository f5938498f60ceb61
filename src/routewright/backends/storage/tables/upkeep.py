"""Removal of expired rows, of all accounts."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from routewright._core.accounts.ledger import WEEK_S
from routewright._core.accounts.purses import PURSE_S
from routewright._core.attempts.statistics import epoch_at
from routewright._core.webhooks.outbox import HISTORY_S
from routewright._core.write_batch import UNNAMED_S
from routewright.wire import Environment, TraceItems
from routewright.wire.timestamps import timestamp

from .read import retention_of
from .selection import rows_of
from .statements import Statements
from .traces import KEYS, forget

ROWS_AT_ONCE = 500
"""Rows that one transaction removes."""

_OLD_EVENT = "FROM event WHERE created_at < ?"
_OLD_DELIVERY = "FROM delivery WHERE ended_at <= ?"
_OLD_NOTICE = "FROM told WHERE until <= ?"
_OLD_PURSE = "FROM purse WHERE at < ?"
_OLD_STATE = "FROM agent_state WHERE until <= ?"
_OLDEST_RESULTS = "SELECT n, account, claim, until FROM kept ORDER BY n LIMIT ?"
"""In the order of expiry, unless the wall clock was set back."""

IS_DUE = f"""
SELECT EXISTS (SELECT 1 {_OLD_EVENT}) OR EXISTS (SELECT 1 {_OLD_NOTICE}) OR EXISTS (SELECT 1 {_OLD_PURSE})
OR EXISTS (SELECT 1 {_OLD_STATE}) OR EXISTS (SELECT 1 {_OLD_DELIVERY})
OR EXISTS (SELECT 1 FROM (SELECT until FROM kept ORDER BY n LIMIT {ROWS_AT_ONCE}) WHERE until <= ?)
"""
OLD_EVENTS = f"DELETE FROM event WHERE n IN (SELECT n {_OLD_EVENT} LIMIT ?) RETURNING n"
OLD_DELIVERIES = (
    f"DELETE FROM delivery WHERE (endpoint, event) IN (SELECT endpoint, event {_OLD_DELIVERY} LIMIT ?) RETURNING 1"
)
OLD_NOTICES = f"DELETE {_OLD_NOTICE}"
OLD_PURSES = f"DELETE {_OLD_PURSE}"
OLD_STATES = f"DELETE {_OLD_STATE}"
"""All of these look at all accounts."""

UNSEEN_S = 30 * 24 * 3600.0
"""Learned rows of a model are removed after this time without an attempt."""
PIECE = 100
"""Traces that one transaction removes."""
SEARCHED = 20_000
"""Traces of an account and environment in one search."""

ACCOUNTS = """
WITH RECURSIVE names(name) AS (
    SELECT min(account) FROM trace
    UNION ALL
    SELECT (SELECT min(account) FROM trace WHERE account > name) FROM names WHERE name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL
"""
_FREE_SNAPSHOTS = """
DELETE FROM snapshot WHERE named <= 0 AND at < ?
AND NOT EXISTS (SELECT 1 FROM snapshot AS later WHERE later.base = snapshot.id)
RETURNING length(body)
"""
"""Not ``body IS NOT NULL``, which is always true after ``RETURNING`` in SQLite 3.40."""


class OldTraces(NamedTuple):
    """Expired traces of an account by their ``KEYS``."""

    account: str
    keys: list[tuple[str, str, int]]


def find_old_traces(now: float, connection: Statements, longest_s: float = inf) -> list[OldTraces]:
    """Find expired traces in pieces of at most ``PIECE``, and at most ``SEARCHED`` of an account. Repeat until none are
    left."""
    limits = retention_of(connection)
    ages: list[tuple[Environment, float | None]] = [("production", limits.production_s), ("sandbox", limits.sandbox_s)]
    pieces: list[OldTraces] = []
    for (account,) in connection.execute(ACCOUNTS).fetchall():
        for environment, age in ages:
            if age is None or age >= longest_s:
                continue
            selection = TraceItems(environment=environment, until=timestamp(max(0.0, now - age)))
            keys = rows_of(connection, KEYS, account, selection, SEARCHED, order="ASC")
            pieces += [OldTraces(account, keys[start : start + PIECE]) for start in range(0, len(keys), PIECE)]
    return pieces


def remove_old(old: OldTraces, connection: Statements) -> int:
    """Remove those that still exist, and return how many. They stay counted."""
    return len(forget(connection, old.account, old.keys))


def remove_snapshots(now: float, connection: Statements) -> list[bool]:
    """Remove unused snapshots; repeat until there are none, since each may free its base. Returns for each whether it
    was ever put."""
    return [bool(put) for (put,) in connection.execute(_FREE_SNAPSHOTS, (now - UNNAMED_S,)).fetchall()]


def is_due(now: float, connection: Statements) -> bool:
    """True if there is anything to remove."""
    ages = _before(now, WEEK_S), now, _before(now, PURSE_S), now, now - HISTORY_S, now
    return bool(connection.execute(IS_DUE, ages).fetchone()[0])


def remove_results(now: float, connection: Statements) -> int:
    """Remove expired answers under idempotency keys, and return how many. Repeat until there are none."""
    rows = connection.execute(_OLDEST_RESULTS, (ROWS_AT_ONCE,)).fetchall()
    old = [(n, account, claim) for n, account, claim, until in rows if until <= now]
    connection.executemany("DELETE FROM kept WHERE account = ? AND n = ?", [(account, n) for n, account, _ in old])
    sql = "DELETE FROM claim WHERE account = ? AND claim = ? AND n = ?"
    connection.executemany(sql, [(account, claim, n) for n, account, claim in old])
    return len(old)


def remove_events(now: float, connection: Statements) -> int:
    """Remove expired events and deliveries, and return how many. Repeat until there are none."""
    deliveries = connection.execute(OLD_DELIVERIES, (now - HISTORY_S, ROWS_AT_ONCE)).fetchall()
    return len(deliveries) + len(connection.execute(OLD_EVENTS, (_before(now, WEEK_S), ROWS_AT_ONCE)).fetchall())


def remove_marks(now: float, connection: Statements) -> None:
    """Remove expired marks of notifications, states of agent runs, and purses of runs and past periods."""
    connection.execute(OLD_NOTICES, (now,))
    connection.execute(OLD_PURSES, (_before(now, PURSE_S),))
    connection.execute(OLD_STATES, (now,))


def _before(now: float, age_s: float) -> str:
    return timestamp(max(0.0, now - age_s))


def forget_unseen(now: float, connection: Statements) -> None:
    """Remove learned rows of models without an attempt in the last ``UNSEEN_S``."""
    connection.execute("DELETE FROM learned WHERE epoch < ?", (epoch_at(now - UNSEEN_S),))
