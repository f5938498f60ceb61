"""Do the books of a file add up? Every purse is what its rows come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from routewright._core.account import compromised_from
from routewright._core.request.problems import shown
from routewright.backends.storage.sqlite.connection import Connection
from routewright.errors import RouterError

from .bodies import account_of, event_of, incident_of, key_of, names_of

Purses = Counter[tuple[str, str]]
"""Amounts by account and purse."""

BODIES = "SELECT account, account, body FROM account"
KEYS = "SELECT account, id, digest, compromised_from, body FROM key"
EVENTS = "SELECT account, id, body FROM event"
PURSES = "SELECT account, name, spent, granted FROM purse WHERE name NOT LIKE 'told:%'"
CHARGES = "SELECT account, name, charge, purses FROM ledger WHERE purses IS NOT NULL"
CREDITS = "SELECT account, credit FROM ledger WHERE kind = 'credit'"
_TYPES = {
    "purse": ("name", "spent, granted, told"),
    "ledger": ("name", "cost, charge, credit"),
}
"""Of tables with money what their rows are called, and which columns hold whole numbers."""
MISTAKEN = {
    table: f"SELECT account, {name} FROM {table} WHERE typeof(account) <> 'text' OR typeof({name}) <> 'text'"
    + "".join(f" OR typeof({each}) <> 'integer'" for each in numbers.split(", "))
    for table, (name, numbers) in _TYPES.items()
}
"""All of these look at all accounts."""
_INCIDENTS = "SELECT '_system', id, body FROM incident"


def problems_of(connection: Connection) -> Iterator[str]:
    """What is wrong, each in a sentence."""
    yield from _unreadable(connection, BODIES, "account", lambda name, body: account_of(body).name == name)
    yield from _unreadable(connection, EVENTS, "event", lambda name, body: event_of(body).id == name)
    yield from _unreadable(connection, _INCIDENTS, "incident", lambda name, body: incident_of(body).id == name)
    yield from _keys(connection)
    mistaken = [*_mistaken(connection)]
    yield from mistaken or _purses(connection)


def _unreadable(connection: Connection, sql: str, what: str, is_whole: Callable[[str, bytes], bool]) -> Iterator[str]:
    for account, name, body in connection.execute(sql).fetchall():
        if not _holds(is_whole, name, body):
            yield f"{what} {shown(name)} of {shown(account)} cannot be read"


def _keys(connection: Connection) -> Iterator[str]:
    for account, name, digest, since, body in connection.execute(KEYS).fetchall():

        def is_whole(name: str, body: bytes, digest: str = digest, since: str | None = since) -> bool:
            key = key_of(body)
            revoked = None if key.revoked_at is None else compromised_from(key.revoked_at)
            return (key.id, key.digest, revoked) == (name, digest, since)

        if not _holds(is_whole, name, body):
            yield f"key {shown(name)} of {shown(account)} cannot be read"


def _mistaken(connection: Connection) -> Iterator[str]:
    """Rows with something else in the place of money, which cannot be added up."""
    for table, sql in MISTAKEN.items():
        for account, name in _each(connection, sql):
            yield f"{table} {shown(name)} of {shown(account)} holds what is no whole number of nano-dollars"


def _purses(connection: Connection) -> Iterator[str]:
    """Purses that are not what they come to. What a run has spent is not known to the nano, so it is not looked at."""
    found = {(account, name): amounts for account, name, *amounts in connection.execute(PURSES).fetchall()}
    spent, granted = _spent(connection), _granted(connection)
    for whose in sorted({*found, *spent, *granted}):
        account, name = whose
        was = dict(zip(("spent", "granted"), found.get(whose, (0, 0)), strict=True))
        due = {"spent": spent[whose], "granted": granted[whose]}
        if name.startswith("run:"):
            due["spent"] = was["spent"]
        for what in was:
            if was[what] != due[what]:
                yield f"purse {shown(name)} of {shown(account)} has {what} {was[what]}, and it comes to {due[what]}"


def _spent(connection: Connection) -> Purses:
    spent: Purses = Counter()
    for account, _, charge, purses in _each(connection, CHARGES):
        for name in _names(purses):
            spent[account, name] += charge
    return spent


def _granted(connection: Connection) -> Purses:
    granted: Purses = Counter()
    for account, credit in connection.execute(CREDITS).fetchall():
        granted[account, "account"] += credit
    return granted


def _each(connection: Connection, sql: str) -> Iterator[tuple[Any, ...]]:
    """Rows one by one: there may be millions."""
    cursor = connection.execute(sql)
    while (row := cursor.fetchone()) is not None:
        yield row


def _names(purses: str) -> list[str]:
    try:
        return names_of(purses)
    except RouterError:
        return []  # which then do not add up


def _holds(is_whole: Callable[[str, bytes], bool], name: str, body: bytes) -> bool:
    try:
        return is_whole(name, body)
    except (RouterError, msgspec.MsgspecError, ValueError, TypeError):
        return False
