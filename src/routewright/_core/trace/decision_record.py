"""What simulations need of a stored trace, decoded without the rest."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import Raw, Struct

from routewright import wire
from routewright.wire.money import NANOS_PER_USD

_WHOLE = ("stop", "tool_calls")
"""Finish reasons of answers that no limit cut."""


class _Attempt(Struct, array_like=True, gc=False):
    """The first fields of an ``AttemptLine``, up to the reason for its end."""

    number: int
    model: str
    provider: Raw
    status: Raw
    start_ms: Raw
    spent_ms: Raw
    first_ms: Raw
    tokens: Raw
    cost_nanos: Raw
    cost_range: Raw
    finish_reason: str | None


class _Choice(Struct, array_like=True, gc=False):
    candidates: Raw


class _Look(Struct, array_like=True, gc=False):
    hit: bool


class _Line(Struct, array_like=True, gc=False):
    """The fields of a ``CallLine`` in their order; ``Raw`` ones are not decoded."""

    id: str
    status: str
    created_at: str
    duration_ms: float
    environment: Raw
    account: Raw
    key_id: Raw
    policy_version: Raw
    decision_input: wire.DecisionInput
    choice: _Choice | None
    selected_model: Raw
    fallback_used: Raw
    cost_nanos: int
    charged_nanos: int
    tokens: tuple[int, int, int]
    attempts: list[_Attempt]
    error: Raw = Raw()
    policy_id: Raw = Raw()
    metadata: bytes | None = None
    traceparent: Raw = Raw()
    asks_cache: Raw = Raw()
    hits: Raw = Raw()
    looked: _Look | None = None


class _Span(Struct, gc=False):
    type: str
    finish_reason: str | None = None
    candidates: list[wire.Candidate] = []


class _Body(Struct, gc=False):
    """The fields of a trace that is stored as JSON."""

    id: str
    status: str
    created_at: str
    duration_ms: float
    decision_input: wire.DecisionInput | None = None
    cache_hit: bool = False
    cost_usd: float = 0.0
    charged_usd: float = 0.0
    tokens: wire.Tokens = wire.Tokens()
    metadata: Raw = Raw(b"{}")
    spans: list[_Span] = []


_candidates = msgspec.msgpack.Decoder(list[wire.Candidate]).decode
_line = msgspec.msgpack.Decoder(_Line).decode
_body = msgspec.json.Decoder(_Body).decode


@lru_cache(1_024)
def _chosen(candidates: bytes) -> wire.Candidate:
    """The first candidate. Calls of one plan have the same."""
    return _candidates(candidates)[0]


def record_of(body: bytes) -> wire.DecisionRecord:
    """Decode a stored body of either form. Raises ``msgspec.MsgspecError``."""
    if body[:1] == b"{":
        return _record_of_body(_body(body))
    line = _line(body)
    attempts = line.attempts
    is_whole = len(attempts) == 1 and line.status == "completed" and attempts[0].finish_reason in _WHOLE
    return wire.DecisionRecord(
        line.id,
        line.created_at,
        line.decision_input,
        None if line.choice is None else _chosen(bytes(line.choice.candidates)),
        line.looked is not None and line.looked.hit,
        line.cost_nanos,
        line.charged_nanos,
        line.duration_ms,
        line.tokens[1] if is_whole else None,
        line.metadata,
    )


def record_of_trace(trace: wire.Trace) -> wire.DecisionRecord:
    """The same of a trace."""
    return _record_of_body(_body(msgspec.json.encode(trace)))


def _record_of_body(body: _Body) -> wire.DecisionRecord:
    attempts = [span for span in body.spans if span.type == "model"]
    is_whole = len(attempts) == 1 and body.status == "completed" and attempts[0].finish_reason in _WHOLE
    return wire.DecisionRecord(
        body.id,
        body.created_at,
        body.decision_input,
        next((span.candidates[0] for span in body.spans if span.candidates), None),
        body.cache_hit,
        round(body.cost_usd * NANOS_PER_USD),
        round(body.charged_usd * NANOS_PER_USD),
        body.duration_ms,
        body.tokens.output if is_whole else None,
        bytes(body.metadata),
    )
