"""``join_traces``: a trace and its sub-traces as one tree of spans."""

from __future__ import annotations

from typing import Any

from routewright._core.trace.spans import join_traces
from routewright.wire import FallbackSpan, Span, StepSpan, SubTraceSpan, Trace


def trace(id: str, *spans: Span) -> Trace:
    return Trace(
        id=id, status="completed", created_at="2026-01-01T00:00:00.000Z", duration_ms=100.0, environment="production",
        account="default", spans=list(spans),
    )  # fmt: skip


def moved(id: int, parent: int | None = None, start_ms: float = 0.0, to: str = "b") -> FallbackSpan:
    return FallbackSpan(
        id=id, parent_id=parent, name="fallback", start_ms=start_ms, used=True, from_model="a", to_model=to, reason="x"
    )


def named(id: int, trace_id: str, parent: int, start_ms: float) -> SubTraceSpan:
    return SubTraceSpan(id=id, parent_id=parent, name="m", start_ms=start_ms, trace_id=trace_id)


def step(id: int, start_ms: float) -> StepSpan:
    return StepSpan(id=id, name="llm_call", start_ms=start_ms, number=id)


def shape(found: Trace) -> list[tuple[Any, ...]]:
    return [(span.id, span.parent_id, span.type, span.start_ms) for span in found.spans]


RUN = trace("tr_run", step(1, 5.0), named(2, "tr_a", 1, 5.0), step(3, 40.0), named(4, "tr_b", 3, 40.0))


def test_the_spans_of_a_sub_trace_go_below_its_span() -> None:
    whole = join_traces(RUN, {"tr_a": trace("tr_a", moved(1), moved(2, 1, 10.0)), "tr_b": trace("tr_b", moved(1))})
    assert shape(whole) == [
        (1, None, "step", 5.0),
        (2, 1, "sub_trace", 5.0),
        (3, 2, "fallback", 5.0),
        (4, 3, "fallback", 15.0),
        (5, None, "step", 40.0),
        (6, 5, "sub_trace", 40.0),
        (7, 6, "fallback", 40.0),
    ]


def test_the_span_of_a_missing_sub_trace_stays() -> None:
    assert join_traces(RUN, {}) == RUN


def test_joining_a_tree_is_idempotent() -> None:
    below = {"tr_a": trace("tr_a", moved(1)), "tr_b": trace("tr_b", moved(1))}
    whole = join_traces(RUN, below)
    assert join_traces(whole, below) == whole
