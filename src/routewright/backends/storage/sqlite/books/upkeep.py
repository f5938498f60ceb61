"""What is done to these tables now and then: reservations of the gone end, results and events go when they are old."""

from __future__ import annotations

from routewright._core.books import WEEK_S
from routewright._core.ledger import expire
from routewright._core.moment import timestamp
from routewright.backends.storage.sqlite.connection import Connection

from .owners import forget, gone, last_clock
from .shelf import TableShelf

SOME = 500
"""Things that one transaction removes."""

_OLD_CLAIM = "FROM claim WHERE until <= ? AND (result IS NOT NULL OR owner NOT IN (SELECT name FROM owner))"
_OLD_EVENT = "FROM event WHERE created_at < ?"
_OLD_TOLD = "FROM told WHERE until <= ?"
_OLD_RUN = "FROM purse WHERE at < ? AND reserved = 0"
"""A run's purse, which nothing is held in."""

IS_DUE = f"SELECT {' OR '.join(f'EXISTS (SELECT 1 {old})' for old in (_OLD_CLAIM, _OLD_EVENT, _OLD_TOLD, _OLD_RUN))}"
HOLDING = "SELECT DISTINCT account FROM hold WHERE owner = ?"
OLD_CLAIMS = f"DELETE FROM claim WHERE n IN (SELECT n {_OLD_CLAIM} LIMIT ?) RETURNING typeof(result) <> 'null'"
OLD_EVENTS = f"DELETE FROM event WHERE n IN (SELECT n {_OLD_EVENT} LIMIT ?) RETURNING n"
OLD_TOLD, OLD_RUNS = f"DELETE {_OLD_TOLD}", f"DELETE {_OLD_RUN}"
"""All of these look at all accounts."""


def is_due(now: float, connection: Connection) -> bool:
    """Whether there is anything to remove, or an owner that is gone."""
    week_before = _week_before(now)
    due = connection.execute(IS_DUE, (now, week_before, now, week_before)).fetchone()[0]
    return bool(due) or bool(gone(connection, last_clock(connection)))


def end_abandoned(connection: Connection) -> None:
    """End the reservations of owners that were gone when somebody last said what time it is, over all accounts."""
    clock_s = last_clock(connection)
    lost = gone(connection, clock_s)
    names = {name for owner in lost for (name,) in connection.execute(HOLDING, (owner,)).fetchall()}
    for account in sorted(names):
        shelf = TableShelf(connection, account)
        for hold in shelf.abandoned(clock_s):
            shelf.at = hold.at
            expire(shelf, hold)
        shelf.flush()
    forget(connection, lost)


def remove_results(now: float, connection: Connection) -> list[bool]:
    """Remove results of idempotency keys that are past their time, and say of each that it was one: a call whose owner
    was gone is none. Ask again until there are none."""
    return [bool(was) for (was,) in connection.execute(OLD_CLAIMS, (now, SOME)).fetchall()]


def remove_events(now: float, connection: Connection) -> int:
    """Remove events that are past their time, and say how many. Ask again until there are none."""
    return len(connection.execute(OLD_EVENTS, (_week_before(now), SOME)).fetchall())


def remove_marks(now: float, connection: Connection) -> None:
    """Forget when something was last told of, and what runs have spent, where that is long past."""
    connection.execute(OLD_TOLD, (now,))
    connection.execute(OLD_RUNS, (_week_before(now),))


def _week_before(now: float) -> str:
    return timestamp(max(0.0, now - WEEK_S))
