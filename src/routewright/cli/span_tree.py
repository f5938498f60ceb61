"""The span tree of a trace: what was done, whose part it was, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from routewright.wire import (
    CacheSpan,
    DecisionSpan,
    FallbackSpan,
    GuardrailSpan,
    ModelSpan,
    Span,
    SpanStatus,
    Trace,
    TraceStatus,
)
from routewright.wire.figures import time_short

from .bars import Bar
from .blocks import Block, Line, Row, Style, Table
from .figures import cost, dollars, tokens

_HEAD = ("span", "start", "duration", "", "")
_MARKS: dict[SpanStatus, str] = {"ok": "", "error": " ✗", "cancelled": " ~"}
_STYLES: dict[SpanStatus, Style] = {"ok": "plain", "error": "bad", "cancelled": "dim"}
STATUS_STYLES: dict[TraceStatus, Style] = {"failed": "bad", "budget_exceeded": "bad", "cancelled": "dim"}
"""Of those that are not plain."""
_COUNTED = {"exact": "counted", "estimated": "estimated", "bounds": "bounded"}

_Branch = tuple[int, str, bool]
"""The place of a span, the lines of those above it, and whether it is their last."""


def trace_page(trace: Trace) -> list[Block]:
    """The span tree under the name of its trace."""
    return [Line(), Line(f"Trace {trace.id}", "title"), Line(), span_table(trace)]


def span_table(trace: Trace) -> Table:
    """The span tree, with a bar for the time of each."""
    whole = max([trace.duration_ms, *(span.start_ms + span.duration_ms for span in trace.spans)]) or 1.0
    cells = (trace.kind, time_short(0), time_short(trace.duration_ms), Bar(0.0, trace.duration_ms / whole))
    root = Row((*cells, f"{trace.status}, {cost(trace)}"), STATUS_STYLES.get(trace.status, "plain"))
    rows = [_row(lines, span, whole) for lines, span in _branches(trace.spans)]
    return Table([root, *rows], _HEAD, frozenset({1, 2}), prose=True)


def _row(lines: str, span: Span, whole: float) -> Row:
    cells = (
        f"{lines} {_name(span)}{_MARKS[span.status]}",
        time_short(span.start_ms),
        time_short(span.duration_ms),
        Bar(span.start_ms / whole, span.duration_ms / whole),
        _says(span),
    )
    return Row(cells, _STYLES[span.status])


def _branches(spans: Sequence[Span]) -> Iterator[tuple[str, Span]]:
    """Every span once, each below the one that it belongs to, with the lines that lead there."""
    children = _children(spans)
    left = _level(children[None], "")
    while left:
        place, lines, last = left.pop()
        yield f"{lines}{'└─' if last else '├─'}", spans[place]
        left += _level(children.get(place, []), f"{lines}{'  ' if last else '│ '} ")


def _children(spans: Sequence[Span]) -> dict[int | None, list[int]]:
    """Places of spans by that of their parent. One whose parent is not there, or began after it, has none."""
    places: dict[int, int] = {}
    for place, span in enumerate(spans):
        places.setdefault(span.id, place)
    children: dict[int | None, list[int]] = {None: []}
    for place, span in enumerate(spans):
        began_before = span.parent_id is not None and span.parent_id < span.id
        parent = places.get(span.parent_id) if began_before and span.parent_id is not None else None
        children.setdefault(parent, []).append(place)
    return children


def _level(places: Sequence[int], lines: str) -> list[_Branch]:
    """Brothers, the first of them to be taken first."""
    return [(place, lines, place == places[-1]) for place in reversed(places)]


def _name(span: Span) -> str:
    return span.name if span.name == span.type else f"{span.type} {span.name}"


def _says(span: Span) -> str:
    match span:
        case DecisionSpan():
            return f"{sum(span.rejected.values())} rejected, input {_COUNTED[span.token_count]}"
        case CacheSpan():
            return ", ".join(_cache_says(span))
        case FallbackSpan():
            return f"{span.reason}, on to {span.to_model}{'' if span.used else ', in vain'}"
        case GuardrailSpan():
            times = "once" if span.count == 1 else f"{span.count} times"
            return f"{span.rule} in the {span.stage}: {span.action}, {times}"
        case ModelSpan():
            return ", ".join(_model_says(span))
        case other:
            assert_never(other)


def _cache_says(span: CacheSpan) -> Iterator[str]:
    yield "hit" if span.hit else "miss"
    if span.mode is not None:
        yield span.mode
    if span.similarity is not None:
        yield f"similarity {span.similarity:.3f}"
    if span.age_s is not None:
        yield f"{time_short(span.age_s * 1000)} old"
    if span.saved_usd is not None:
        yield f"{dollars(span.saved_usd)} saved"


def _model_says(span: ModelSpan) -> Iterator[str]:
    if span.attempt > 1:
        yield f"attempt {span.attempt}"
    if span.error or span.finish_reason or span.status == "cancelled":
        yield f"error: {span.error}" if span.error else span.finish_reason or "left"
    if span.provider not in ("sandbox", span.model.partition("/")[0]):
        yield f"by {span.provider}"
    marks = {"mending its answer": span.repair, "hedge": span.hedge, "probe": span.probe}
    yield from (said for said, holds in marks.items() if holds)
    if span.ttft_ms is not None and span.provider != "sandbox":
        yield f"first token at {time_short(span.ttft_ms)}"
    if span.tokens is not None:
        yield f"{tokens(span.tokens)}{' (estimated)' if span.usage_estimated else ''}"
    if span.cost_usd or span.cost_range_usd:
        yield cost(span)
