"""Renders the candidates and the span tree of a trace, for ``route --trace`` and ``traces show``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec import to_builtins

from routewright import wire
from routewright.wire import Candidate, ModelSpan, Span, SpanStatus, Trace, TraceStatus
from routewright.wire.timestamps import time_short

from .show import Block, Line, Row, Style, Table, cell, cost, dollars, heading, listing, tokens

STATUS_STYLES: dict[TraceStatus, Style] = {"failed": "bad", "budget_exceeded": "bad", "cancelled": "dim"}
"""Styles of statuses that are not plain."""
_MARKS: dict[SpanStatus, tuple[str, Style]] = {"ok": ("", "plain"), "error": (" ✗", "bad"), "cancelled": (" ~", "dim")}
_FIELDS = {
    wire.DecisionSpan: "token_count",
    wire.CacheSpan: "mode similarity age_s saved_usd",
    wire.FallbackSpan: "reason to_model used",
    wire.GuardrailSpan: "rule stage action count",
    wire.ModelSpan: "attempt provider error finish_reason repair hedge probe ttft_ms usage_estimated saved_usd",
    wire.StepSpan: "number",
    wire.SubTraceSpan: "trace_id",
    wire.ToolSpan: "still_running",
}
"""Fields of a span that the tree shows, by span type."""
_USUAL = (("attempt", 1), ("provider", "sandbox"))


def candidate_table(candidates: Sequence[Candidate], served: str | None) -> Table:
    """Candidates, best first. ``served`` is the model that answered."""
    rows = [{**to_builtins(candidate), "served": candidate.model == served} for candidate in candidates]
    columns = "model score quality cost_usd latency_s stability served"
    return listing(rows, columns, lambda candidate: "good" if candidate["served"] else "plain")


def trace_page(trace: Trace) -> list[Block]:
    """The span tree, headed by the trace's id."""
    return [Line(), Line(f"Trace {trace.id}", "title"), Line(), span_table(trace)]


def span_table(trace: Trace) -> Table:
    """The span tree, with start and duration of each span."""
    times = (time_short(0), time_short(trace.duration_ms))
    rows = [Row((trace.kind, *times, f"{trace.status}, {cost(trace)}"), STATUS_STYLES.get(trace.status, "plain"))]
    ids = {span.id for span in trace.spans}
    children = defaultdict[int | None, list[Span]](list)
    for span in trace.spans:  # a span whose parent is missing or not older goes to the root
        parent = span.parent_id
        children[parent if parent is not None and parent in ids and parent < span.id else None].append(span)
    for prefix, span in _branches(children, None, ""):
        mark, style = _MARKS[span.status]
        name = span.name if span.name == span.type else f"{span.type} {span.name}"
        times = (time_short(span.start_ms), time_short(span.duration_ms))
        rows.append(Row((f"{prefix} {name}{mark}", *times, ", ".join(_details(span))), style))
    return Table(rows, "span | >start | >duration |", prose=True)


def _branches(children: Mapping[int | None, list[Span]], parent: int | None, prefix: str) -> Iterator[tuple[str, Span]]:
    """The spans below a parent, in tree order, each with its branch lines."""
    spans = children.get(parent, [])
    for number, span in enumerate(spans, 1):
        is_last = number == len(spans)
        yield f"{prefix}{'└─' if is_last else '├─'}", span
        yield from _branches(children, span.id, f"{prefix}{'  ' if is_last else '│ '} ")


def _details(span: Span) -> Iterator[str]:
    if isinstance(span, wire.DecisionSpan):
        yield f"{sum(span.rejected.values())} rejected"
    if isinstance(span, wire.CacheSpan):
        yield "hit" if span.hit else "miss"
    for name in _FIELDS[type(span)].split():
        value = getattr(span, name)
        if value is True:
            yield heading(name)
        elif value and (name, value) not in _USUAL:
            text = cell(name, value)
            yield f"error: {text}" if name == "error" else text if isinstance(value, str) else f"{heading(name)} {text}"
    if isinstance(span, ModelSpan) and span.tokens is not None:
        yield tokens(span.tokens)
    if isinstance(span, ModelSpan | wire.SubTraceSpan) and span.cost_usd:
        yield cost(span) if isinstance(span, ModelSpan) else dollars(span.cost_usd)
