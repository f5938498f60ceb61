"""Joins a trace with its sub-traces into one tree of spans (spec 2.6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from routewright.wire import Span, SubTraceSpan, Trace


def joined(trace: Trace, below: Mapping[str, Trace]) -> Trace:
    """The trace with its sub-traces' spans below the spans that name them. Missing ones stay as they are."""
    has_spans = {span.parent_id for span in trace.spans}

    def walk() -> Iterator[tuple[int, float, Span]]:  # whose trace it is, by the span that names it; its start there
        for span in trace.spans:
            yield 0, 0.0, span
            child = below.get(span.trace_id) if isinstance(span, SubTraceSpan) else None
            if child is not None and span.id not in has_spans:
                yield from ((span.id, span.start_ms, each) for each in child.spans)

    ids: dict[tuple[int, int | None], int] = {}
    spans: list[Span] = []
    for owner, start_ms, span in walk():
        ids[owner, span.id] = len(spans) + 1
        parent = ids.get((owner, span.parent_id), ids[0, owner] if owner else span.parent_id)
        spans.append(replace(span, id=len(spans) + 1, parent_id=parent, start_ms=round(start_ms + span.start_ms, 3)))
    return replace(trace, spans=spans)
