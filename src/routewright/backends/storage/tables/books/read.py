"""Answers to queries about accounts, money, agent states and events."""

from __future__ import annotations

from typing import Any

from routewright._core.accounts.books import INCIDENTS
from routewright.backends.storage.tables.connection import Statements
from routewright.backends.storage.tables.selection import CREATED_AT_CHARS
from routewright.errors import UnsupportedWrite
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AgentState,
    AllAccounts,
    Endpoints,
    Incidents,
    Key,
    KeyByDigest,
    Keys,
    LedgerRow,
    LedgerRows,
    LedgerSum,
    LedgerSums,
    LedgerSumsOfAll,
    StoredEvent,
    Tokens,
)

from . import outbox
from .ledger import ROW, account_of, event_of, incident_of, key_of, row_of

BY_DIGEST = "SELECT body FROM key WHERE digest = ?"
ACCOUNTS = "SELECT body FROM account ORDER BY account"
"""These two look at all accounts."""

_KEYS = "SELECT body FROM key WHERE account = ? ORDER BY created_at, id"
_INCIDENTS = "SELECT body FROM incident ORDER BY started_at DESC, id DESC LIMIT ?"
_AMOUNTS = "input output cached cost charge credit coalesce(least,cost) coalesce(most,cost)".split()
_LOW_BITS = 31
_HALVES = ", ".join(f"sum({each} >> {_LOW_BITS}), sum({each} & {2**_LOW_BITS - 1})" for each in _AMOUNTS)
"""Separate sums of high and low bits, since SQLite fails on sums over 63 bits."""
_SUMS = f"""
SELECT substr(at, 1, 10) AS day, provider, model, kind, count(*), {_HALVES} FROM ledger
WHERE account = ? AND at >= ? AND at < ? GROUP BY day, provider, model, kind ORDER BY day, provider, model, kind
"""
SUMS_OF_ALL = _SUMS.replace("account = ? AND ", "")
"""This looks at all rows of all accounts, for reconciling a month."""
_AFTER_ANY = "U"
"""Sorts after the ``T`` in timestamps of a day, and after every digit."""


def answer(account: str, query: object, connection: Statements) -> Any:
    """Answer a query. Raises ``UnsupportedWrite`` for an unknown kind."""
    match query:
        case LedgerSums(first, last):
            rows = connection.execute(_SUMS, (account, first, last + _AFTER_ANY)).fetchall()
            return [_sum_of(row) for row in rows]
        case LedgerSumsOfAll(first, last):
            asked = (first, last + _AFTER_ANY)
            rows = connection.execute(SUMS_OF_ALL, asked).fetchall() if account == SYSTEM_ACCOUNT else []
            return [_sum_of(row) for row in rows]
        case KeyByDigest(digests):
            return _key(connection, digests) if account == SYSTEM_ACCOUNT else None
        case AgentState():
            return _state(connection, account, query)
        case Endpoints():
            return outbox.endpoints(connection, account, query)
        case Keys():
            return [key_of(body) for (body,) in connection.execute(_KEYS, (account,)).fetchall()]
        case AllAccounts():
            found = connection.execute(ACCOUNTS).fetchall() if account == SYSTEM_ACCOUNT else []
            return [account_of(body) for (body,) in found]
        case Incidents():
            found = connection.execute(_INCIDENTS, (INCIDENTS,)).fetchall() if account == SYSTEM_ACCOUNT else []
            return [incident_of(body) for (body,) in found]
    raise UnsupportedWrite(f"SqliteStorage knows no query {type(query).__name__}")


def rows_page(
    account: str, query: LedgerRows, after: str | None, limit: int, connection: Statements
) -> list[LedgerRow]:
    """Ledger rows after the key ``after``, newest first."""
    table, clauses = "ledger", [("account = ?", [account])]
    if query.request_id is not None:
        table, name = "ledger INDEXED BY ledger_by_name", f"{query.request_id}/"
        clauses.append(("name > ? AND name < ? AND rtrim(name, '-0123456789') = ?", [name, name + _AFTER_ANY, name]))
    if query.since is not None:
        clauses.append(("at >= ?", [query.since]))
    if query.until is not None:
        clauses.append(("at < ?", [query.until]))
    if after is not None:
        clauses.append(("(at, name) < (?, ?)", [after[:CREATED_AT_CHARS], after[CREATED_AT_CHARS:]]))
    where = " AND ".join(sql for sql, _ in clauses)
    values = [value for _, each in clauses for value in each]
    sql = f"SELECT {ROW} FROM {table} WHERE {where} ORDER BY at DESC, name DESC LIMIT ?"
    return [row_of(row) for row in connection.execute(sql, (*values, max(0, limit))).fetchall()]


def events_page(account: str, after: str | None, limit: int, connection: Statements) -> list[StoredEvent]:
    """Events after the key ``after``, newest first."""
    behind = "" if after is None else " AND id < ?"
    values = [account] if after is None else [account, after]
    sql = f"SELECT body FROM event WHERE account = ?{behind} ORDER BY id DESC LIMIT ?"
    return [event_of(body) for (body,) in connection.execute(sql, (*values, max(0, limit))).fetchall()]


def _key(connection: Statements, digests: tuple[str, ...]) -> Key | None:
    rows = (connection.execute(BY_DIGEST, (digest,)).fetchone() for digest in digests)
    return next((key_of(row[0]) for row in rows if row is not None), None)


def _sum_of(row: tuple[Any, ...]) -> LedgerSum:
    day, provider, model, kind, rows, *halves = row
    amounts = [(high << _LOW_BITS) + low for high, low in zip(halves[::2], halves[1::2], strict=True)]
    read, written, cached, *money = amounts
    return LedgerSum(day, provider, model, kind, rows, Tokens(read, written, cached), *money)


def _state(connection: Statements, account: str, asked: AgentState) -> bytes | None:
    """The newest matching state."""
    name, value = ("claim", asked.claim) if asked.id is None else ("id", asked.id)
    environments = ("production", "sandbox") if asked.environment is None else (asked.environment,)
    sql = (
        f"SELECT body FROM agent_state WHERE account = ? AND environment IN ({', '.join('?' * len(environments))}) "
        f"AND {name} = ? ORDER BY until DESC LIMIT 1"
    )
    row = connection.execute(sql, (account, *environments, value)).fetchone()
    return None if row is None else row[0]
