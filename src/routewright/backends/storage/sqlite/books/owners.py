"""Whose leases run, over all accounts: ``_core/lease.py`` over a table that has a row for each process or two."""

from __future__ import annotations

from collections.abc import Sequence

from routewright._core.lease import is_held
from routewright.backends.storage.sqlite.connection import Connection

_KEEP = "INSERT OR REPLACE INTO owner (name, until, lease_s) VALUES (?, ?, ?)"
_ALL = "SELECT name, until, lease_s FROM owner"
_LAST = "SELECT until - lease_s FROM owner ORDER BY n DESC LIMIT 1"


def keep(connection: Connection, owner: str, lease_s: float, clock_s: float) -> None:
    """Let a lease begin anew."""
    connection.execute(_KEEP, (owner, clock_s + lease_s, lease_s))


def lives(connection: Connection, owner: str, clock_s: float) -> bool:
    """Whether the lease of an owner runs."""
    row = connection.execute(f"{_ALL} WHERE name = ?", (owner,)).fetchone()
    return row is not None and is_held(row[1], row[2], clock_s)


def gone(connection: Connection, clock_s: float) -> list[str]:
    """Owners whose leases do not run."""
    rows = connection.execute(_ALL).fetchall()
    return [name for name, until, lease_s in rows if not is_held(until, lease_s, clock_s)]


def last_clock(connection: Connection) -> float:
    """What the clock said when somebody last spoke."""
    row = connection.execute(_LAST).fetchone()
    return 0.0 if row is None else float(row[0])


def forget(connection: Connection, owners: Sequence[str]) -> None:
    """Forget owners, who must hold nothing."""
    connection.executemany("DELETE FROM owner WHERE name = ?", [(name,) for name in owners])
