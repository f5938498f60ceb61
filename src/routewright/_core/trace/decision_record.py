"""What simulations need of a stored trace."""

from __future__ import annotations

import msgspec

from routewright import wire
from routewright.wire.money import nanos_of

from .spans import CallLine

_WHOLE = ("stop", "tool_calls")
"""Finish reasons of answers that no limit cut."""


_line = msgspec.msgpack.Decoder(CallLine).decode
_trace = msgspec.json.Decoder(wire.Trace).decode


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
        None if line.choice is None else line.choice.models[0],
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
        next((span.candidates[0].model for span in decisions), None),
        trace.cache_hit,
        nanos_of(trace.cost_usd),
        nanos_of(trace.charged_usd),
        trace.duration_ms,
        trace.tokens.output if is_whole else None,
        msgspec.json.encode(trace.metadata),
    )
