"""Checks of a store's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from routewright._core.accounts.keys import compromised_from
from routewright._core.accounts.purses import RUN, is_temporary
from routewright.errors import RouterError
from routewright.wire.problems import shown

from .ledger import account_of, event_of, incident_of, key_of, names_of
from .read import decode_trace

T = TypeVar("T")

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
    """Yield the problems of a store, one sentence each. ``bodies`` selects number, id, body and content of traces;
    ``mistaken`` selects, by table, the rows whose amounts are not numbers."""
    for n, trace_id, body, content in rows(bodies):
        trace = _read(decode_trace, trace_id, body, None, content)
        if trace is None or trace.id != trace_id:
            yield f"trace {trace_id!r} (row {n}) cannot be read"
    columns: tuple[tuple[str, str, Callable[[bytes], list[str | None]]], ...] = (
        ("account", BODIES, lambda body: [account_of(body).name]),
        ("event", EVENTS, lambda body: [event_of(body).id]),
        ("incident", _INCIDENTS, lambda body: [incident_of(body).id]),
        ("key", KEYS, _columns_of_key),
    )
    for kind, sql, columns_of in columns:
        for account, *values, body in rows(sql):
            if _read(columns_of, body) != values:
                yield f"{kind} {shown(values[0])} of {shown(account)} cannot be read"
    odd = False
    for table, sql in mistaken.items():  # cannot be summed
        for account, name in rows(sql):
            odd = True
            yield f"{table} {shown(name)} of {shown(account)} has an amount that is no whole number of nano-dollars"
    if not odd:
        yield from _check_purses(rows)


def _check_purses(rows: Rows) -> Iterator[str]:
    """Purses that differ from the sums of the ledger. Not checked are runs, whose exact spending is unknown,
    and removed purses of past days, weeks and tags."""
    stored = {(account, name): amounts for account, name, *amounts in rows(PURSES)}
    totals = {"spent": Purses(), "granted": Purses()}
    for account, _, charge, purses in rows(CHARGES):
        with suppress(RouterError):  # an unreadable row is missing from its purses, which differ then
            for name in names_of(purses):
                totals["spent"][account, name] += charge
    for account, credit in rows(CREDITS):
        totals["granted"][account, "account"] += credit
    for key in sorted({*stored, *totals["spent"], *totals["granted"]}):
        account, name = key
        booked = dict(zip(("spent", "granted"), stored.get(key, (0, 0)), strict=True))
        due = {kind: purses[key] for kind, purses in totals.items()}
        if name.startswith(RUN) or (key not in stored and is_temporary(name)):
            due["spent"] = booked["spent"]
        for kind in booked:
            if booked[kind] != due[kind]:
                purse = f"purse {shown(name)} of {shown(account)}"
                yield f"{purse} has {kind} {booked[kind]}, but the ledger sums to {due[kind]}"


def _columns_of_key(body: bytes) -> list[str | None]:
    key = key_of(body)
    return [key.id, key.digest, None if key.revoked_at is None else compromised_from(key.revoked_at)]


def _read(decode: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return decode(*arguments)
    except (RouterError, msgspec.MsgspecError, ValueError, TypeError):
        return None
