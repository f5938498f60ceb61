"""What simulations need of a stored trace, decoded without the rest."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import Raw, Struct

from routewright import wire
from routewright.wire.money import nanos_of

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


_candidates = msgspec.msgpack.Decoder(list[wire.Candidate]).decode
_line = msgspec.msgpack.Decoder(_Line).decode
_trace = msgspec.json.Decoder(wire.Trace).decode


@lru_cache(1_024)
def _chosen(candidates: bytes) -> wire.Candidate:
    """The first candidate. Calls of one plan have the same."""
    return _candidates(candidates)[0]


def record_of(body: bytes) -> wire.DecisionRecord:
    """Decode a stored body of either form. Raises ``msgspec.MsgspecError``."""
    if body[:1] == b"{":
        return record_of_trace(_trace(body))
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
    attempts = [span for span in trace.spans if isinstance(span, wire.ModelSpan)]
    decisions = (span for span in trace.spans if isinstance(span, wire.DecisionSpan) and span.candidates)
    is_whole = len(attempts) == 1 and trace.status == "completed" and attempts[0].finish_reason in _WHOLE
    return wire.DecisionRecord(
        trace.id,
        trace.created_at,
        trace.decision_input,
        next((span.candidates[0] for span in decisions), None),
        trace.cache_hit,
        nanos_of(trace.cost_usd),
        nanos_of(trace.charged_usd),
        trace.duration_ms,
        trace.tokens.output if is_whole else None,
        msgspec.json.encode(trace.metadata),
    )
