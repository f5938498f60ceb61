"""Checks of the books, and removal of expired answers and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from routewright._core.account import compromised_from
from routewright._core.accounts.books import WEEK_S
from routewright._core.request.problems import shown
from routewright._core.timestamps import timestamp
from routewright._core.webhooks.outbox import KEPT_S
from routewright.backends.storage.tables.connection import Statements
from routewright.backends.storage.tables.read import whole
from routewright.errors import RouterError, StorageCorrupt

from .ledger import account_of, event_of, incident_of, key_of, names_of
from .outbox import OLD as _OLD_DELIVERY

ROWS_AT_ONCE = 500
"""Rows that one transaction removes."""

_OLD_EVENT = "FROM event WHERE created_at < ?"
_OLD_TOLD = "FROM told WHERE until <= ?"
_OLD_RUN = "FROM purse WHERE at < ?"
_OLD_STATE = "FROM agent_state WHERE until <= ?"
_OLDEST_KEPT = "SELECT n, account, claim, until FROM kept ORDER BY n LIMIT ?"
"""In the order of expiry, unless the wall clock was set back."""

IS_DUE = f"""
SELECT EXISTS (SELECT 1 {_OLD_EVENT}) OR EXISTS (SELECT 1 {_OLD_TOLD}) OR EXISTS (SELECT 1 {_OLD_RUN})
OR EXISTS (SELECT 1 {_OLD_STATE}) OR EXISTS (SELECT 1 {_OLD_DELIVERY})
OR EXISTS (SELECT 1 FROM (SELECT until FROM kept ORDER BY n LIMIT {ROWS_AT_ONCE}) WHERE until <= ?)
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
    """Remove expired answers under idempotency keys, and return how many. Repeat until there are none."""
    rows = connection.execute(_OLDEST_KEPT, (ROWS_AT_ONCE,)).fetchall()
    old = [(n, account, claim) for n, account, claim, until in rows if until <= now]
    connection.executemany("DELETE FROM kept WHERE account = ? AND n = ?", [(account, n) for n, account, _ in old])
    sql = "DELETE FROM claim WHERE account = ? AND claim = ? AND n = ?"
    connection.executemany(sql, [(account, claim, n) for n, account, claim in old])
    return len(old)


def remove_events(now: float, connection: Statements) -> int:
    """Remove expired events and deliveries, and return how many. Repeat until there are none."""
    deliveries = connection.execute(OLD_DELIVERIES, (now - KEPT_S, ROWS_AT_ONCE)).fetchall()
    return len(deliveries) + len(connection.execute(OLD_EVENTS, (_week_before(now), ROWS_AT_ONCE)).fetchall())


def remove_marks(now: float, connection: Statements) -> None:
    """Remove expired marks of notifications, and spending and states of agent runs."""
    connection.execute(OLD_TOLD, (now,))
    connection.execute(OLD_RUNS, (_week_before(now),))
    connection.execute(OLD_STATES, (now,))


def _week_before(now: float) -> str:
    return timestamp(max(0.0, now - WEEK_S))


SHOWN = 20
"""Most problems of a store that are reported."""
Rows = Callable[[str], Iterable[Any]]
"""Iterates over the rows of a statement. There may be millions."""
Purses = Counter[tuple[str, str]]
"""Amounts by account and purse."""

BODIES = "SELECT account, account, body FROM account"
KEYS = "SELECT account, id, digest, compromised_from, body FROM key"
EVENTS = "SELECT account, id, body FROM event"
PURSES = "SELECT account, name, spent, granted FROM purse WHERE name NOT LIKE 'told:%'"
CHARGES = "SELECT account, name, charge, purses FROM ledger WHERE purses IS NOT NULL"
CREDITS = "SELECT account, credit FROM ledger WHERE kind = 'credit'"
LIVE_DIGESTS = "SELECT digest FROM key WHERE compromised_from IS NULL"
"""All of these look at all accounts."""
_INCIDENTS = "SELECT '_system', id, body FROM incident"


class Check(NamedTuple):
    """Result of checking a store."""

    version: int
    traces: int
    """0, like the version, if the damage hides it."""
    bytes: int
    problems: list[str]
    """Empty if the store is sound."""


def problems_of(rows: Rows, bodies: str, mistaken: Mapping[str, str]) -> Iterator[str]:
    """Problems of a store, one sentence each. ``bodies`` selects number, id, body and content of traces; ``mistaken``,
    by table, the rows whose amounts are not numbers."""
    yield from _traces(rows, bodies)
    yield from _unreadable(rows, BODIES, "account", lambda name, body: account_of(body).name == name)
    yield from _unreadable(rows, EVENTS, "event", lambda name, body: event_of(body).id == name)
    yield from _unreadable(rows, _INCIDENTS, "incident", lambda name, body: incident_of(body).id == name)
    yield from _keys(rows)
    odd = False
    for table, sql in mistaken.items():  # cannot be summed
        for account, name in rows(sql):
            odd = True
            yield f"{table} {shown(name)} of {shown(account)} has an amount that is no whole number of nano-dollars"
    if not odd:
        yield from _purses(rows)


def _traces(rows: Rows, sql: str) -> Iterator[str]:
    for n, trace_id, body, content in rows(sql):
        try:
            readable = whole(trace_id, body, content=content).id == trace_id
        except StorageCorrupt:
            readable = False
        if not readable:
            yield f"trace {trace_id!r} (row {n}) cannot be read"


def _unreadable(rows: Rows, sql: str, what: str, is_whole: Callable[[str, bytes], bool]) -> Iterator[str]:
    for account, name, body in rows(sql):
        if not _holds(is_whole, name, body):
            yield f"{what} {shown(name)} of {shown(account)} cannot be read"


def _keys(rows: Rows) -> Iterator[str]:
    for account, name, digest, since, body in rows(KEYS):

        def is_whole(name: str, body: bytes, digest: str = digest, since: str | None = since) -> bool:
            key = key_of(body)
            revoked = None if key.revoked_at is None else compromised_from(key.revoked_at)
            return (key.id, key.digest, revoked) == (name, digest, since)

        if not _holds(is_whole, name, body):
            yield f"key {shown(name)} of {shown(account)} cannot be read"


def _purses(rows: Rows) -> Iterator[str]:
    """Purses that differ from the sums of the ledger. The exact spending of runs is unknown, so it is not checked."""
    found = {(account, name): amounts for account, name, *amounts in rows(PURSES)}
    spent, granted = _spent(rows), Purses()
    for account, credit in rows(CREDITS):
        granted[account, "account"] += credit
    for whose in sorted({*found, *spent, *granted}):
        account, name = whose
        was = dict(zip(("spent", "granted"), found.get(whose, (0, 0)), strict=True))
        due = {"spent": spent[whose], "granted": granted[whose]}
        if name.startswith("run:"):
            due["spent"] = was["spent"]
        for what in was:
            if was[what] != due[what]:
                purse = f"purse {shown(name)} of {shown(account)}"
                yield f"{purse} has {what} {was[what]}, but the ledger sums to {due[what]}"


def _spent(rows: Rows) -> Purses:
    spent: Purses = Counter()
    for account, _, charge, purses in rows(CHARGES):
        for name in _names(purses):
            spent[account, name] += charge
    return spent


def _names(purses: str) -> list[str]:
    try:
        return names_of(purses)
    except RouterError:
        return []  # its purses then differ


def _holds(is_whole: Callable[[str, bytes], bool], name: str, body: bytes) -> bool:
    try:
        return is_whole(name, body)
    except (RouterError, msgspec.MsgspecError, ValueError, TypeError):
        return False
