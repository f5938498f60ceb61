"""Accounts, keys and rows of the ledger as they lie in their tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from routewright.errors import StorageCorrupt
from routewright.wire import Account, Incident, Key, LedgerRow, StoredEvent, Tokens

T = TypeVar("T")

ROW = "name, at, kind, key_id, provider, model, input, output, cached, cost, charge, credit, least, most, overrun, note"
"""The columns of a row of the ledger."""

ACCOUNT_TERMS = "plan", "limits", "prepaid", "monthly_nanos"
KEY_TERMS = "scopes", "limits", "budget_nanos", "monthly_nanos", "revoked_at"
"""What limits whom it is of: it is always written, and a body without one of these is damaged, not without limits."""

encode = msgspec.json.Encoder().encode
_account = msgspec.json.Decoder(Account).decode
_fields = msgspec.json.Decoder(dict[str, Any]).decode
_key = msgspec.json.Decoder(Key).decode
_incident = msgspec.json.Decoder(Incident).decode
_event = msgspec.json.Decoder(StoredEvent).decode
_names = msgspec.json.Decoder(list[str]).decode
_plain = attrgetter(
    "at", "kind", "key_id", "provider", "model", "tokens.input", "tokens.output", "tokens.cached",
    "cost_nanos", "charge_nanos", "credit_nanos",
)  # fmt: skip


@lru_cache(maxsize=1_000)
def account_of(body: bytes) -> Account:
    """The account that a row holds. Each call needs it, and it seldom changes."""
    return _whole(_read(_account, "an account", body), "an account", body, ACCOUNT_TERMS)


@lru_cache(maxsize=10_000)
def key_of(body: bytes) -> Key:
    """The key that a row holds, likewise."""
    return _whole(_read(_key, "a key", body), "a key", body, KEY_TERMS)


def incident_of(body: bytes) -> Incident:
    """The incident that a row holds."""
    return _read(_incident, "an incident", body)


def event_of(body: bytes) -> StoredEvent:
    """The event that a row holds."""
    return _read(_event, "an event", body)


def names_of(text: str) -> list[str]:
    """The names of purses that a row holds."""
    return _read(_names, "a reservation", text)


@lru_cache(maxsize=1_000)
def text_of(names: tuple[str, ...]) -> str:
    """How names of purses are kept."""
    return encode(names).decode()


def name_of(request_id: str, attempt: int | str) -> str:
    """What a row of the ledger is called."""
    return f"{request_id}/{attempt}"


def row_of(columns: Sequence[Any]) -> LedgerRow:
    """The row of ``ROW`` columns."""
    name, at, kind, key_id, provider, model, read, written, cached, cost, charge, credit, least, most, over, note = (
        columns
    )
    request_id, _, attempt = name.rpartition("/")
    return LedgerRow(
        request_id=request_id, attempt=int(attempt), kind=kind, at=at, key_id=key_id, model=model, provider=provider,
        tokens=Tokens(read, written, cached), cost_nanos=cost, charge_nanos=charge, credit_nanos=credit,
        cost_range_nanos=None if least is None else (least, most), overrun_nanos=over, note=note,
    )  # fmt: skip


def columns_of(row: LedgerRow) -> tuple[Any, ...]:
    """The ``ROW`` columns of a row."""
    least, most = row.cost_range_nanos or (None, None)
    return name_of(row.request_id, row.attempt), *_plain(row), least, most, row.overrun_nanos, row.note


def _whole(found: T, what: str, body: bytes, terms: Sequence[str]) -> T:
    """What was read, if none of its terms is missing. Raises ``StorageCorrupt``."""
    if _fields(body).keys() >= {*terms}:
        return found
    raise _damaged(what)


def _damaged(what: str) -> StorageCorrupt:
    return StorageCorrupt(f"{what} is damaged: restore a backup; 'routewright store check' says what else is damaged")


def _read(decode: Callable[[Any], T], what: str, body: bytes | str) -> T:
    try:
        return decode(body)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise _damaged(what) from error
