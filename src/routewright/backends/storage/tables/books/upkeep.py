"""What is done to these tables now and then: answers and events go when they are old."""

from __future__ import annotations

from routewright._core.accounts.books import WEEK_S
from routewright._core.moment import timestamp
from routewright._core.webhooks.outbox import KEPT_S
from routewright.backends.storage.tables.connection import Statements

from .outbox import OLD as _OLD_DELIVERY

SOME = 500
"""Things that one transaction removes."""

_OLD_EVENT = "FROM event WHERE created_at < ?"
_OLD_TOLD = "FROM told WHERE until <= ?"
_OLD_RUN = "FROM purse WHERE at < ?"
_OLD_STATE = "FROM agent_state WHERE until <= ?"
_OLDEST_KEPT = "SELECT n, account, claim, until FROM kept ORDER BY n LIMIT ?"
"""They are kept in the order in which they go, as long as the wall clock is not set back."""

IS_DUE = f"""
SELECT EXISTS (SELECT 1 {_OLD_EVENT}) OR EXISTS (SELECT 1 {_OLD_TOLD}) OR EXISTS (SELECT 1 {_OLD_RUN})
OR EXISTS (SELECT 1 {_OLD_STATE}) OR EXISTS (SELECT 1 {_OLD_DELIVERY})
OR EXISTS (SELECT 1 FROM (SELECT until FROM kept ORDER BY n LIMIT {SOME}) WHERE until <= ?)
"""
OLD_EVENTS = f"DELETE FROM event WHERE n IN (SELECT n {_OLD_EVENT} LIMIT ?) RETURNING n"
OLD_DELIVERIES = (
    f"DELETE FROM delivery WHERE (endpoint, event) IN (SELECT endpoint, event {_OLD_DELIVERY} LIMIT ?) RETURNING 1"
)
OLD_TOLD, OLD_RUNS, OLD_STATES = f"DELETE {_OLD_TOLD}", f"DELETE {_OLD_RUN}", f"DELETE {_OLD_STATE}"
"""All of these look at all accounts."""


def is_due(now: float, connection: Statements) -> bool:
    """True if there is anything to remove."""
    week_before = _week_before(now)
    return bool(connection.execute(IS_DUE, (week_before, now, week_before, now, now - KEPT_S, now)).fetchone()[0])


def remove_results(now: float, connection: Statements) -> int:
    """Remove answers under idempotency keys that are past their time, and say how many. Ask again until there are
    none."""
    rows = connection.execute(_OLDEST_KEPT, (SOME,)).fetchall()
    old = [(n, account, claim) for n, account, claim, until in rows if until <= now]
    connection.executemany("DELETE FROM kept WHERE account = ? AND n = ?", [(account, n) for n, account, _ in old])
    sql = "DELETE FROM claim WHERE account = ? AND claim = ? AND n = ?"
    connection.executemany(sql, [(account, claim, n) for n, account, claim in old])
    return len(old)


def remove_events(now: float, connection: Statements) -> int:
    """Remove events and deliveries that are past their time, and say how many. Ask again until there are none."""
    deliveries = connection.execute(OLD_DELIVERIES, (now - KEPT_S, SOME)).fetchall()
    return len(deliveries) + len(connection.execute(OLD_EVENTS, (_week_before(now), SOME)).fetchall())


def remove_marks(now: float, connection: Statements) -> None:
    """Forget when something was last told of, what runs have spent, and where they were, where that is long past."""
    connection.execute(OLD_TOLD, (now,))
    connection.execute(OLD_RUNS, (_week_before(now),))
    connection.execute(OLD_STATES, (now,))


def _week_before(now: float) -> str:
    return timestamp(max(0.0, now - WEEK_S))
