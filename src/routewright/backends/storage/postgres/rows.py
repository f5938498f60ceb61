"""What ``tick`` and ``put_traces`` (accounts.sql) are given: JSON for what is short, bytes for the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from routewright._core.account import is_made
from routewright._core.accounts.ledger import charged
from routewright._core.accounts.payer import MONTH
from routewright._core.accounts.state import scope_of
from routewright._core.moment import timestamp
from routewright.backends.storage.tables.books.shelf import ROW, columns_of
from routewright.backends.storage.tables.traces import COLUMNS, TraceRows
from routewright.protocols import Facts
from routewright.wire import Ask, Caller, Grant

from .connection import Tables, safe

_NAMES = ROW.split(", ")
_UNSAFE = re.compile(rb"\\u000[01]")
_encode = msgspec.json.Encoder().encode


def packed(value: Any) -> bytes:
    """JSON that PostgreSQL takes: its texts are safe."""
    said = _encode(value)
    return _encode(_safe(value)) if _UNSAFE.search(said) else said


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, dict):
        return {_safe(name): _safe(each) for name, each in value.items()}
    return [*map(_safe, value)] if isinstance(value, list | tuple) else value


def put_traces(tables: Tables, traces: Sequence[TraceRows]) -> None:
    """Put traces that are new."""
    blobs: list[bytes | None] = []
    rows = [trace_of(each, blobs) for each in traces]
    tables.raw.execute("SELECT put_traces(%s::jsonb, %s::bytea[])", (packed(rows).decode(), blobs))


def trace_of(rows: TraceRows, blobs: list[bytes | None]) -> dict[str, Any]:
    """A trace, whose bytes are added to ``blobs``. PostgreSQL counts from 1."""
    shape, *sums = rows.counted[1:]
    first = len(blobs) + 1
    blobs += (*rows.body, shape)
    row = dict(zip(COLUMNS, rows.columns, strict=True))
    row |= {"blob": first, "content": first + 1, "keys": first + 2, "shape": first + 3, "sums": sums}
    row["named"] = rows.named
    if rows.tags:
        row["tags"] = [{"key": key, "value": value, "number": number} for _, key, value, *_, number in rows.tags]
    return row


def end_of(place: int, grant: Grant, facts: Facts, blobs: list[bytes | None]) -> dict[str, Any]:
    """How a call ended that was granted."""
    caller = facts.caller
    is_paid = caller.environment == "production"
    runs = is_paid and facts.run is not None
    rows, charge, run_nanos = charged(facts.rows, facts, grant.nanos, runs=runs)
    result = None
    if facts.claim is not None and facts.result is not None:
        blobs.append(facts.result)
        result = len(blobs)
    return {
        "i": place, "account": caller.account, "id": facts.id, "is_release": False, "nanos": grant.nanos,
        "used": facts.tokens, "charge": charge, "run": run_nanos, "month": facts.created_at[:MONTH],
        "created_at": facts.created_at, "tells": bool(facts.event_ids), "is_open": not is_paid or not rows,
        "environment": caller.environment, "result": result,
        "rows": [dict(zip(_NAMES, columns_of(row), strict=True)) for row in rows],
    }  # fmt: skip


def release_of(place: int, account: str, call: str, tokens: int | None) -> dict[str, Any]:
    """A call that came to nothing."""
    return {"i": place, "account": account, "id": call, "is_release": True, "used": tokens, "rows": []}


def caller_of(place: int, caller: Caller, month: str, windows: bool) -> dict[str, Any]:  # of a key
    """Whose limits hold, and which purses pay."""
    return {
        "i": place, "account": caller.account, "key": caller.key_id, "month": month,
        "pays": caller.environment == "production", "is_made": caller.key_id is not None and is_made(caller.key_id),
        "window_": f"account:{caller.environment}:{caller.account}" if windows else None,
        "key_window": None if caller.key_id is None or not windows else f"key:{caller.account}\0{caller.key_id}",
    }  # fmt: skip


def ask_of(
    place: int, ask: Ask, caller: int, kind: str, *, again: bool, waits: bool, behind: Sequence[str]
) -> dict[str, Any]:
    """What a call asks for."""
    claim, run = ask.claim, ask.run
    return {
        "i": place, "caller": caller, "id": ask.id, "came_at": ask.at, "lasts": ask.lasts_s, "tokens": ask.tokens,
        "nanos": ask.nanos, "claim": None if claim is None else scope_of(ask.caller, claim.key).hex(),
        "fingerprint": None if claim is None else claim.fingerprint, "run": None if run is None else run.id,
        "run_limit": None if run is None else run.limit_nanos, "slot": int(ask.slot and ask.windows), "again": again,
        "waits": waits,
        "behind": behind, "kind": kind,
    }  # fmt: skip


def month_of(at: float) -> str:
    """The month that pays for a call that came then."""
    return timestamp(at)[:MONTH]
