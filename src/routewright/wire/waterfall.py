"""A trace as an HTML page: what became of the call, what took how long, and between which models it was decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from reprlib import Repr
from typing import Any, assert_never

from .figures import counted, time_short, tokens_short, usd_between, usd_short
from .html import (
    Html,
    cell,
    chip,
    column,
    dim,
    element,
    facts,
    heading,
    joined,
    lines,
    more,
    page,
    percent,
    short,
    strong,
    table,
)
from .ranking import ranking, rejections
from .trace import CacheSpan, DecisionSpan, FallbackSpan, GuardrailSpan, ModelSpan, Span, SpanStatus, Trace, TraceStatus

SPANS_SHOWN = 100
CHILDREN_SHOWN = 20
METADATA_SHOWN = 20
DECISIONS_SHOWN = 5
_DEPTH_SHOWN = 8
_LAST = 98.8
"""Per cent of the time at which a bar begins at the latest, so that the shortest one is still seen."""

_STATUS: dict[TraceStatus, str] = {
    "running": "fair",
    "completed": "good",
    "partial": "fair",
    "failed": "bad",
    "budget_exceeded": "bad",
    "cancelled": "fair",
}
_SPAN_STATUS: dict[SpanStatus, str] = {"ok": "good", "error": "bad", "cancelled": "fair"}

_VALUES = Repr()
_VALUES.maxstring = _VALUES.maxother = _VALUES.maxlong = 60


def trace_html(trace: Trace) -> str:
    """The page of one trace."""
    return page(f"Trace {trace.id}", trace_body(trace))


def trace_body(trace: Trace) -> Html:
    """The page without its style, to be put into another one."""
    spans = sorted(trace.spans, key=lambda span: (span.start_ms, span.id))
    decisions = [span for span in spans if isinstance(span, DecisionSpan)]
    return joined(
        [
            element("div", *_head(trace), class_="rw-part"),
            _waterfall(spans, trace.duration_ms) if spans else element("div", dim("no spans")),
            *(_decision(span, trace.selected_model) for span in decisions[:DECISIONS_SHOWN]),
            *lines(more(len(decisions) - DECISIONS_SHOWN, "decision")),
        ]
    )


def _head(trace: Trace) -> Iterator[Html]:
    name = joined([chip(trace.status, _STATUS.get(trace.status, "")), strong(f"{trace.kind} {trace.id}")], " ")
    yield facts(name, f"error {trace.error}" if trace.error else "")
    yield facts(
        strong(trace.selected_model or "no model"),
        "by a fallback" if trace.fallback_used else "",
        "from the cache" if trace.cache_hit else "",
        time_short(trace.duration_ms),
        usd_between(trace.cost_usd, trace.cost_range_usd),
        f"charged {usd_short(trace.charged_usd)}" if trace.charged_usd != trace.cost_usd else "",
        tokens_short(trace.tokens),
        "compromised" if trace.compromised else "",
    )
    yield facts(
        dim("goal ", trace.goal),
        dim("strategy ", trace.strategy),
        dim("policy ", trace.policy_version),
        dim(trace.environment),
        dim("account ", trace.account),
        dim(trace.created_at),
    )
    if trace.metadata:
        yield element("div", dim("metadata "), _metadata(trace.metadata))
    if trace.children:
        yield element("div", dim("sub-traces "), _children(trace.children))


def _metadata(metadata: Mapping[str, Any]) -> Html:
    said = [chip(f"{short(str(key))} = {_value(value)}") for key, value in list(metadata.items())[:METADATA_SHOWN]]
    return joined([*said, more(len(metadata) - METADATA_SHOWN, "key")], " ")


def _children(children: Sequence[str]) -> Html:
    return joined([*children[:CHILDREN_SHOWN], more(len(children) - CHILDREN_SHOWN, "trace")], ", ")


def _value(value: object) -> str:
    return short(value if isinstance(value, str) else _VALUES.repr(value))


def _waterfall(spans: Sequence[Span], whole_ms: float) -> Html:
    shown = spans[:SPANS_SHOWN]
    end_ms = max(whole_ms, *(span.start_ms + span.duration_ms for span in spans))
    parents = {span.id: span.parent_id for span in spans}
    head = (
        column("span", style="width:27%"),
        column(f"0 to {time_short(end_ms)}", style="width:27%"),
        column("start", class_="rw-number", style="width:5.5em"),
        column("took", class_="rw-number", style="width:5.5em"),
        column("what"),
    )
    rows = [_row(span, end_ms, _depth(span, parents)) for span in shown]
    waits = any(_first_ms(span) is not None for span in shown)
    legend = dim("The light part of a bar lasts until the first token.") if waits else ""
    notes = lines(more(len(spans) - SPANS_SHOWN, "span"), legend)
    return joined([heading("Spans"), table("waterfall", head, rows), *notes])


def _depth(span: Span, parents: Mapping[int, int | None]) -> int:
    """How deep it lies, at most as deep as is shown: so what is its own ancestor does no harm either."""
    above, depth = span.parent_id, 0
    while above is not None and depth < _DEPTH_SHOWN:
        above, depth = parents.get(above), depth + 1
    return depth


def _row(span: Span, end_ms: float, depth: int) -> Html:
    swatch = element("span", class_=f"rw-swatch rw-{span.type}", aria_hidden="true")
    name = strong(span.name) if span.name != span.type else ""
    status = chip(span.status, _SPAN_STATUS.get(span.status, "")) if span.status != "ok" else ""
    return element(
        "tr",
        cell("└ " if depth else "", swatch, joined([span.type, name], " "), style=f"padding-left:{1.2 * depth:.1f}em"),
        cell(_bar(span, end_ms)),
        cell(time_short(span.start_ms), class_="rw-number"),
        cell(time_short(span.duration_ms), class_="rw-number"),
        cell(joined([status, joined(_says(span), " · ")], " ")),
    )


def _bar(span: Span, end_ms: float) -> Html:
    left, width = percent(span.start_ms, end_ms), percent(span.duration_ms, end_ms)
    left = min(left, _LAST)
    style = f"left:{left:.2f}%;width:{min(width, 100 - left):.2f}%"
    first_ms, inside = _first_ms(span), Html()
    if first_ms is not None:
        inside = element("div", class_="rw-wait", style=f"width:{percent(first_ms, span.duration_ms):.2f}%")
    bar = element("div", inside, class_=f"rw-bar rw-{span.type} rw-{span.status}", style=style)
    return element("div", bar, class_="rw-track", aria_hidden="true")


def _first_ms(span: Span) -> float | None:
    """When the first of an answer came. The sandbox does not wait, so there it says nothing."""
    return span.ttft_ms if isinstance(span, ModelSpan) and span.provider != "sandbox" else None


def _says(span: Span) -> list[str]:
    """What it is about, in short; empty texts count for nothing."""
    match span:
        case DecisionSpan():
            return [f"{sum(span.rejected.values()):,} models rejected", f"input tokens: {span.token_count}"]
        case CacheSpan():
            return _cache_says(span)
        case FallbackSpan():
            return [f"{span.from_model} → {span.to_model}", span.reason, "" if span.used else "brought no answer"]
        case GuardrailSpan():
            return [f"{span.rule}: {span.action}", span.stage, counted(span.count, "time")]
        case ModelSpan():
            return _model_says(span)
        case other:
            assert_never(other)


def _cache_says(span: CacheSpan) -> list[str]:
    return [
        "hit" if span.hit else "miss",
        span.mode or "",
        "" if span.similarity is None else f"similarity {span.similarity:.3f}",
        "" if span.age_s is None else f"{time_short(span.age_s * 1000)} old",
        "" if span.saved_usd is None else f"saved {usd_short(span.saved_usd)}",
    ]


def _model_says(span: ModelSpan) -> list[str]:
    first_ms = _first_ms(span)
    kinds = (("repair", span.repair), ("hedge", span.hedge), ("probe", span.probe))
    return [
        span.error or "",
        f"attempt {span.attempt} at {span.provider}",
        *(kind for kind, holds in kinds if holds),
        "" if span.model == span.name else span.model,
        "" if first_ms is None else f"first token {time_short(first_ms)}",
        "" if span.tokens is None else tokens_short(span.tokens),
        "estimated" if span.usage_estimated else "",
        usd_between(span.cost_usd, span.cost_range_usd) if span.cost_usd or span.cost_range_usd else "",
        f"finish {span.finish_reason}" if span.finish_reason else "",
    ]


def _decision(span: DecisionSpan, served: str | None) -> Html:
    models = [each.model for each in span.candidates]
    roles = dict(zip(models, ("chosen", "runner-up"), strict=False))
    if served in models[1:]:
        roles[served] = "runner-up, served" if served in roles else "served"
    return joined([ranking(span.candidates, roles), rejections(span.rejected)])
