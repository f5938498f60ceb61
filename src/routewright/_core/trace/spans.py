"""Spans of a trace: its compact stored form, the spans made from that, and one tree of a trace with its sub-traces
(spec 2.6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, json, msgpack
from msgspec.structs import replace

from routewright import wire
from routewright._core.guardrails.screen import Hit
from routewright._core.money import usd
from routewright._core.routing.decision import digest_of
from routewright._core.routing.plan import OutputPlan
from routewright.wire import JsonObject
from routewright.wire.money import usd_short
from routewright.wire.timestamps import time_short


def join_traces(trace: wire.Trace, below: Mapping[str, wire.Trace]) -> wire.Trace:
    """Insert the spans of sub-traces below the spans that refer to them. Missing sub-traces are skipped."""
    has_spans = {span.parent_id for span in trace.spans}

    def walk() -> Iterator[tuple[int, float, wire.Span]]:  # id and start of the sub-trace span (0: none), span
        for span in trace.spans:
            yield 0, 0.0, span
            child = below.get(span.trace_id) if isinstance(span, wire.SubTraceSpan) else None
            if child is not None and span.id not in has_spans:
                yield from ((span.id, span.start_ms, child_span) for child_span in child.spans)

    ids: dict[tuple[int, int | None], int] = {}
    spans: list[wire.Span] = []
    for owner, start_ms, span in walk():
        ids[owner, span.id] = len(spans) + 1
        parent = ids.get((owner, span.parent_id), ids[0, owner] if owner else span.parent_id)
        spans.append(replace(span, id=len(spans) + 1, parent_id=parent, start_ms=round(start_ms + span.start_ms, 3)))
    return replace(trace, spans=spans)


CACHE_HEADER = "X-Routewright-Cache"
_candidates = msgpack.Decoder(list[wire.Candidate]).decode


class Flag:
    """Bits of ``AttemptLine.flags``."""

    ESTIMATED = 1
    REPAIR = 2
    HEDGE = 4
    PROBE = 8


class MoveLine(Struct, array_like=True, gc=False):
    """A move to the next model: its ``FallbackSpan``."""

    from_model: str
    reason: str
    used: bool
    fault: str | None = None


class AttemptLine(Struct, array_like=True, gc=False):
    """One attempt: its ``ModelSpan``, and the ``FallbackSpan`` before it. Times in milliseconds."""

    number: int
    model: str
    provider: str
    status: wire.SpanStatus
    start_ms: float
    """From the start of the call."""
    spent_ms: float
    first_ms: float | None
    """From the start of the attempt."""
    tokens: tuple[int, int, int] | None
    cost_nanos: int
    cost_range: tuple[int, int] | None
    finish_reason: str | None
    fault: str | None
    flags: int
    instead: MoveLine | None = None
    """For a fallback."""
    hits: tuple[Hit, ...] = ()
    hits_ms: float = 0.0
    """Time of the matches, from the start of the call."""
    saved_nanos: int = 0
    """Saved by the vendor's cache."""


class ChoiceLine(Struct, array_like=True, gc=False):
    """The decision, without its input."""

    candidates: Raw
    """The best candidates as encoded ``list[Candidate]``, shared by all calls of a plan."""
    models: list[str]
    score: int
    cap: int | None
    fallback_affordable: bool
    rejected: dict[str, int]
    token_count: Any
    took_ms: float


class LookLine(Struct, array_like=True, gc=False):
    """A cache look-up: its ``CacheSpan``."""

    hit: bool
    mode: Literal["exact", "semantic"]
    start_ms: float
    """From the start of the call."""
    spent_ms: float
    key: bytes
    entry_id: str | None = None
    """Trace id of the call that created the entry; for a miss, of the nearest entry."""
    age_s: float | None = None
    saved_nanos: int = 0
    similarity: float | None = None
    compared: tuple[str, ...] = ()
    refused_by: str | None = None
    risk: float | None = None
    max_error: float | None = None
    explored: bool = False
    features: tuple[float, ...] = ()
    """Inputs of the risk estimate."""
    namespace: str | None = None

    @property
    def header(self) -> str:
        """Value of the header ``X-Routewright-Cache``."""
        if not self.hit:
            return "miss"
        near = "" if self.similarity is None else f"; similarity={self.similarity:.3f}"
        return f"hit; mode={self.mode}; age={self.age_s or 0:.0f}{near}"


class CallLine(Struct, array_like=True, gc=False):
    """One call."""

    id: str
    status: wire.TraceStatus
    created_at: str
    duration_ms: float
    environment: wire.Environment
    account: str
    key_id: str | None
    policy_version: str
    decision_input: wire.DecisionInput
    choice: ChoiceLine | None
    selected_model: str | None
    fallback_used: bool
    cost_nanos: int
    charged_nanos: int
    tokens: tuple[int, int, int]
    attempts: list[AttemptLine]
    error: str | None = None
    policy_id: str | None = None
    metadata: bytes | None = None
    """As JSON."""
    traceparent: str | None = None
    asks_cache: bool = False
    hits: tuple[Hit, ...] = ()
    looked: LookLine | None = None
    passed_by: str | None = None
    shadow: wire.ShadowDecision | None = None

    @property
    def model(self) -> str | None:
        """The model that served the request, else the last one tried."""
        return self.selected_model or (self.attempts[-1].model if self.attempts else None)


def trace_of(line: CallLine, content: wire.Content | None = None) -> wire.Trace:
    """The trace of a call."""
    return wire.Trace(**_shared_fields(line), spans=spans_of(line), content=content)


def item_of(line: CallLine) -> wire.TraceItem:
    """The trace without its spans."""
    return wire.TraceItem(**_shared_fields(line))


def _shared_fields(line: CallLine) -> JsonObject:
    cost_range_usd = None
    ranges = [attempt.cost_range or (attempt.cost_nanos, attempt.cost_nanos) for attempt in line.attempts]
    if any(attempt.cost_range for attempt in line.attempts):
        cost_range_usd = usd(sum(low for low, _ in ranges)), usd(sum(high for _, high in ranges))
    return {
        "id": line.id,
        "status": line.status,
        "created_at": line.created_at,
        "duration_ms": line.duration_ms,
        "environment": line.environment,
        "account": line.account,
        "key_id": line.key_id,
        "policy_id": line.policy_id,
        "policy_version": line.policy_version,
        "goal": line.decision_input.goal,
        "strategy": line.decision_input.strategy,
        "selected_model": line.selected_model,
        "fallback_used": line.fallback_used,
        "cache_hit": line.looked is not None and line.looked.hit,
        "cost_usd": usd(line.cost_nanos),
        "cost_range_usd": cost_range_usd,
        "charged_usd": usd(line.charged_nanos),
        "tokens": wire.Tokens(*line.tokens),
        "metadata": {} if line.metadata is None else json.decode(line.metadata),
        "error": line.error,
        "decision_input": line.decision_input,
        "traceparent": line.traceparent,
    }


def spans_of(line: CallLine) -> list[wire.Span]:
    """Spans of the call, in order."""
    spans: list[wire.Span] = []
    if line.choice is not None:
        output = OutputPlan(line.choice.cap, line.choice.fallback_affordable)
        spans.append(
            wire.DecisionSpan(
                id=1,
                name="decision",
                start_ms=0.0,
                duration_ms=line.choice.took_ms,
                candidates=_candidates(line.choice.candidates),
                rejected=line.choice.rejected.copy(),  # calls may share the line
                digest=digest_of(line.decision_input, line.choice.models, output, line.choice.score),
                token_count=line.choice.token_count,
                passed_by=line.passed_by,
                shadow=line.shadow or UNSET,
            )
        )
    spans += _guardrail_spans(len(spans), line.hits, 0.0, None)
    if line.looked is not None:
        spans.append(_cache_span(len(spans) + 1, line.looked))
    for attempt in line.attempts:
        if attempt.instead is not None:
            spans.append(
                wire.FallbackSpan(
                    id=len(spans) + 1,
                    name="fallback",
                    start_ms=attempt.start_ms,
                    used=attempt.instead.used,
                    from_model=attempt.instead.from_model,
                    to_model=attempt.model,
                    reason=attempt.instead.reason,
                    fault=attempt.instead.fault,
                )
            )
        spans.append(_model_span(len(spans) + 1, attempt))
        spans += _guardrail_spans(len(spans), attempt.hits, attempt.hits_ms, spans[-1].id)
    return spans


def _cache_span(span_id: int, looked: LookLine) -> wire.CacheSpan:
    return wire.CacheSpan(
        id=span_id,
        name="cache",
        start_ms=round(looked.start_ms, 3),
        duration_ms=round(looked.spent_ms, 3),
        hit=looked.hit,
        mode=looked.mode,
        similarity=looked.similarity,
        age_s=looked.age_s,
        saved_usd=usd(looked.saved_nanos) if looked.hit else None,
        entry_trace_id=looked.entry_id,
        compared=[*looked.compared],
        refused_by=looked.refused_by,
        risk=looked.risk,
        max_error=looked.max_error,
        explored=looked.explored,
        features=[round(feature, 4) for feature in looked.features],
        namespace=looked.namespace,
        key=looked.key.hex(),
    )


def _guardrail_spans(last: int, hits: tuple[Hit, ...], start_ms: float, parent: int | None) -> list[wire.GuardrailSpan]:
    return [
        wire.GuardrailSpan(
            id=last + place,
            parent_id=parent,
            name=hit.guardrail,
            start_ms=start_ms,
            status="error" if hit.action == "block" else "ok",
            rule=hit.rule,
            stage=hit.stage,
            action=hit.action,
            count=hit.count,
        )
        for place, hit in enumerate(hits, start=1)
    ]


def _model_span(span_id: int, attempt: AttemptLine) -> wire.ModelSpan:
    flags = attempt.flags
    ranged = attempt.cost_range
    return wire.ModelSpan(
        id=span_id,
        name=attempt.model,
        start_ms=attempt.start_ms,
        duration_ms=attempt.spent_ms,
        status=attempt.status,
        model=attempt.model,
        provider=attempt.provider,
        attempt=attempt.number,
        latency_ms=attempt.spent_ms,
        ttft_ms=attempt.first_ms,
        tokens=None if attempt.tokens is None else wire.Tokens(*attempt.tokens),
        usage_estimated=bool(flags & Flag.ESTIMATED),
        cost_usd=usd(attempt.cost_nanos),
        cost_range_usd=None if ranged is None else (usd(ranged[0]), usd(ranged[1])),
        finish_reason=attempt.finish_reason,
        error=attempt.fault,
        repair=bool(flags & Flag.REPAIR),
        hedge=bool(flags & Flag.HEDGE),
        probe=bool(flags & Flag.PROBE),
        saved_usd=usd(attempt.saved_nanos) if attempt.saved_nanos else UNSET,
    )


def describe_course(trace: wire.TraceItem) -> list[str]:
    """What happened after the decision, a line each: the look-up in the cache, the attempts, the guardrails, the end. A
    ``TraceItem`` has the end alone."""
    lines = [line for span in getattr(trace, "spans", ()) if (line := _course_of(span))]
    role = " from the cache" if trace.cache_hit else ", a fallback" if trace.fallback_used else ""
    model = f"{trace.selected_model}{role}"
    who = {"completed": f"{model} served the call", "cancelled": f"the caller left while {model} answered"}
    end = trace.status if trace.selected_model is None else who.get(trace.status, trace.status)
    why = f" with {trace.error}" if trace.error is not None else ""
    cost = f", {usd_short(trace.cost_usd)}" if trace.cost_usd else ""
    return ["then:", *lines, f"  {end}{why}; {time_short(trace.duration_ms)}{cost} in all"]


def _course_of(span: wire.Span) -> str | None:
    match span:
        case wire.CacheSpan(hit=hit, mode=mode):
            likeness = "" if span.similarity is None else f", similarity {span.similarity:.3f}"
            return f"  the cache had {'this' if hit else 'no'} answer ({mode}{likeness})"
        case wire.ModelSpan():
            kinds = [name for name in ("hedge", "probe", "repair") if getattr(span, name)]
            how = {"ok": "answered", "error": f"failed ({span.error})", "cancelled": "was left"}[span.status]
            used = "" if span.tokens is None else f": {span.tokens.input} + {span.tokens.output} tokens"
            cost = f", {usd_short(span.cost_usd)}" if span.cost_usd else ""
            return f"  {' '.join([span.model, *kinds])} {how} after {time_short(span.latency_ms)}{used}{cost}"
        case wire.GuardrailSpan():
            return f"  guardrail {span.name}: {span.rule} in the {span.stage}, {span.action}"
    return None
