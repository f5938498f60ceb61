"""Renders the candidates and the span tree of a trace, for ``route --trace`` and ``traces show``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from routewright.wire import (
    CacheSpan,
    Candidate,
    DecisionSpan,
    FallbackSpan,
    GuardrailSpan,
    ModelSpan,
    Span,
    SpanStatus,
    StepSpan,
    SubTraceSpan,
    ToolSpan,
    Trace,
    TraceStatus,
)
from routewright.wire.analytics import time_short

from .show import Bar, Block, Line, Row, Style, Table, aligned, cost, dollars, tokens

STATUS_STYLES: dict[TraceStatus, Style] = {"failed": "bad", "budget_exceeded": "bad", "cancelled": "dim"}
"""Styles of statuses that are not plain."""
_MARKS: dict[SpanStatus, tuple[str, Style]] = {"ok": ("", "plain"), "error": (" ✗", "bad"), "cancelled": (" ~", "dim")}
_COUNTED = {"exact": "counted", "estimated": "estimated", "bounds": "bounded"}
_CANDIDATES = ("", "model", "score", "quality", "est. cost", "est. time", "stable")


def candidate_table(shown: Sequence[Candidate], *, chosen: str, served: str | None = None, further: int = 0) -> Table:
    """Candidates, best first. ``served`` is the model that answered; ``further`` counts the candidates not shown."""
    rows = []
    costs = aligned([candidate.cost_usd for candidate in shown])
    for place, (each, priced) in enumerate(zip(shown, costs, strict=True)):
        role = "runner-up" if place == 1 else ""
        if each.model in (chosen, served):
            role = "chosen" if each.model == chosen else "served"
        cells = (
            role,
            each.model,
            f"{each.score:.3f}",
            f"{each.quality:.2f}",
            priced if each.cost_usd is None else f"${priced}",
            f"{each.latency_s:.1f} s{' late' if each.late else ''}",
            f"{each.stability:.2f}",
        )
        rows.append(Row(cells, "good" if role == "chosen" else "plain"))
    if further:
        rows.append(Row(("", f"and {further} more", "", "", "", "", ""), "dim"))
    return Table(rows, _CANDIDATES, frozenset({2, 3, 4, 5, 6}))


def trace_page(trace: Trace) -> list[Block]:
    """The span tree, headed by the trace's id."""
    return [Line(), Line(f"Trace {trace.id}", "title"), Line(), span_table(trace)]


def span_table(trace: Trace) -> Table:
    """The span tree, with a time bar for each span."""
    whole = max([trace.duration_ms, *(span.start_ms + span.duration_ms for span in trace.spans)]) or 1.0
    times = (time_short(0), time_short(trace.duration_ms), Bar(0.0, trace.duration_ms / whole))
    rows = [Row((trace.kind, *times, f"{trace.status}, {cost(trace)}"), STATUS_STYLES.get(trace.status, "plain"))]
    known, children = {span.id for span in trace.spans}, defaultdict[int | None, list[Span]](list)
    for span in trace.spans:  # a span whose parent is missing or not older goes to the root
        parent = span.parent_id
        children[parent if parent is not None and parent in known and parent < span.id else None].append(span)
    for lines, span in _branches(children, None, ""):
        mark, style = _MARKS[span.status]
        name = span.name if span.name == span.type else f"{span.type} {span.name}"
        bar = Bar(span.start_ms / whole, span.duration_ms / whole)
        times = (time_short(span.start_ms), time_short(span.duration_ms), bar)
        rows.append(Row((f"{lines} {name}{mark}", *times, ", ".join(_says(span))), style))
    return Table(rows, ("span", "start", "duration", "", ""), frozenset({1, 2}), prose=True)


def _branches(children: Mapping[int | None, list[Span]], parent: int | None, lines: str) -> Iterator[tuple[str, Span]]:
    """The spans below a parent, in tree order, each with its branch lines."""
    below = children.get(parent, [])
    for place, span in enumerate(below, 1):
        is_last = place == len(below)
        yield f"{lines}{'└─' if is_last else '├─'}", span
        yield from _branches(children, span.id, f"{lines}{'  ' if is_last else '│ '} ")


def _says(span: Span) -> Iterator[str]:
    match span:
        case DecisionSpan():
            yield f"{sum(span.rejected.values())} rejected"
            yield f"input {_COUNTED[span.token_count]}"
        case CacheSpan():
            yield "hit" if span.hit else "miss"
            if span.mode is not None:
                yield span.mode
            if span.similarity is not None:
                yield f"similarity {span.similarity:.3f}"
            if span.age_s is not None:
                yield f"{time_short(span.age_s * 1000)} old"
            if span.saved_usd is not None:
                yield f"{dollars(span.saved_usd)} saved"
        case FallbackSpan():
            yield f"{span.reason}, on to {span.to_model}{'' if span.used else ', in vain'}"
        case GuardrailSpan():
            times = "once" if span.count == 1 else f"{span.count} times"
            yield f"{span.rule} in the {span.stage}: {span.action}, {times}"
        case ModelSpan():
            yield from _model_says(span)
        case StepSpan():
            yield f"step {span.number}"
        case SubTraceSpan():
            yield span.trace_id
            if span.cost_usd:
                yield dollars(span.cost_usd)
        case ToolSpan():
            if span.still_running:
                yield "still running"
        case other:
            assert_never(other)


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
    if span.saved_usd:
        yield f"{dollars(span.saved_usd)} saved"
