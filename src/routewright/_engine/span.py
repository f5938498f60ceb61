"""The spans of a call's trace: what it did, in order (spec 2.6, contract 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from routewright._core.decision import Decision
from routewright._core.fault import FAULTS
from routewright._core.guardrail import Hit
from routewright._core.money import usd
from routewright.wire import (
    CacheSpan,
    DecisionSpan,
    FallbackReason,
    FallbackSpan,
    GuardrailSpan,
    ModelSpan,
    Span,
    Tokens,
    Usage,
)

from .attempt import Attempt

if TYPE_CHECKING:
    from .outcome import Facts

BEST_KEPT = 5
"""Candidates in a trace; replay gives the whole table."""


def spans_of(facts: Facts) -> list[Span]:
    """What a call did, in order."""
    spans: list[Span] = []
    if facts.decision is not None:
        took_ms = _since_start(facts, facts.attempts[0].started_at if facts.attempts else facts.ended_at)
        spans.append(_decision_span(facts.decision, took_ms))
    spans += _guardrail_spans(facts, len(spans), facts.admitted.hits, facts.admitted.started_at, None)
    if facts.admitted.asks_cache:
        spans.append(CacheSpan(id=len(spans) + 1, name="cache", start_ms=0.0, hit=False))
    for place, attempt in enumerate(facts.attempts):
        before = _before(attempt, facts.attempts[:place])
        from_model = facts.decision.model if before is None and facts.decision is not None else attempt.model
        from_model = from_model if before is None else before.model
        if from_model != attempt.model and (not attempt.call.hedge or attempt is facts.served):
            spans.append(_fallback_span(facts, len(spans) + 1, from_model, before, attempt))
        spans.append(_model_span(facts, len(spans) + 1, attempt))
        spans += _guardrail_spans(facts, len(spans), attempt.hits, attempt.ended_at, spans[-1].id)
    return spans


def _guardrail_spans(facts: Facts, before: int, hits: Sequence[Hit], at: float, parent: int | None) -> list[Span]:
    return [
        GuardrailSpan(
            id=before + place,
            parent_id=parent,
            name=hit.guardrail,
            start_ms=_since_start(facts, at),
            status="error" if hit.action == "block" else "ok",
            rule=hit.rule,
            stage=hit.stage,
            action=hit.action,
            count=hit.count,
        )
        for place, hit in enumerate(hits, start=1)
    ]


def _fallback_span(
    facts: Facts, span_id: int, from_model: str, before: Attempt | None, attempt: Attempt
) -> FallbackSpan:
    return FallbackSpan(
        id=span_id,
        name="fallback",
        start_ms=_since_start(facts, attempt.started_at),
        used=attempt is facts.served,
        from_model=from_model,
        to_model=attempt.model,
        reason=reason_after(before),
    )


def _model_span(facts: Facts, span_id: int, attempt: Attempt) -> ModelSpan:
    spent_ms = round((attempt.ended_at - attempt.started_at) * 1000 + attempt.unslept_ms, 3)
    first_ms = None if attempt.first_at is None else round((attempt.first_at - attempt.started_at) * 1000, 3)
    failed, ranged = attempt.fault is not None, attempt.cost_range_nanos
    return ModelSpan(
        id=span_id,
        name=attempt.model,
        start_ms=_since_start(facts, attempt.started_at),
        duration_ms=spent_ms,
        status="error" if failed else "cancelled" if attempt.finish_reason is None else "ok",
        model=attempt.model,
        provider=attempt.provider,
        attempt=attempt.call.number,
        latency_ms=spent_ms,
        ttft_ms=first_ms,
        tokens=tokens_of(attempt.usage),
        usage_estimated=attempt.usage_estimated,
        cost_usd=usd(attempt.cost_nanos),
        cost_range_usd=None if ranged is None else (usd(ranged[0]), usd(ranged[1])),
        finish_reason=attempt.finish_reason,
        error=attempt.fault,
        repair=attempt.call.repair is not None,
        hedge=attempt.call.hedge,
        probe=attempt.call.probe,
    )


def _since_start(facts: Facts, at: float) -> float:
    return round((at - facts.admitted.started_at) * 1000, 3)


def _decision_span(decided: Decision, took_ms: float) -> DecisionSpan:
    return DecisionSpan(
        id=1,
        name="decision",
        start_ms=0.0,
        duration_ms=took_ms,
        candidates=decided.front[:BEST_KEPT],
        rejected={str(reason): count for reason, count in decided.rejected_counts.items()},
        digest=decided.digest,
        token_count=decided.token_count,
    )


def _before(attempt: Attempt, earlier: list[Attempt]) -> Attempt | None:
    """The one whose fault led to an attempt, or that it ran beside."""
    after = attempt.call.after
    if after is None:
        return earlier[0] if earlier else None
    return next((each for each in reversed(earlier) if each.call.row == after.row), None)


def reason_after(before: Attempt | None) -> FallbackReason:
    """Why another model was called after an attempt, or in the place of one that was not made as faults came before."""
    if before is None:
        return "upstream_5xx"
    return "timeout" if before.fault is None else FAULTS[before.fault].reason  # a hedge was quicker


def tokens_of(usage: Usage | None) -> Tokens | None:
    return None if usage is None else Tokens(usage.input, usage.output, usage.cached)
