"""Decisions, answers and traces as HTML pages. Of texts only the answer's own is shown, never the prompt's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from reprlib import Repr
from typing import TYPE_CHECKING, assert_never

from routewright.wire import (
    CacheSpan,
    Candidate,
    DecisionSpan,
    FallbackSpan,
    GuardrailSpan,
    ModelSpan,
    Reason,
    RouteResponse,
    Span,
    StepSpan,
    SubTraceSpan,
    ToolSpan,
    Trace,
)
from routewright.wire.analytics import counted, time_short, tokens_short, usd_between, usd_short

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

if TYPE_CHECKING:
    from routewright import Decision

OUTPUT_SHOWN = 4_000
"""Characters of an answer; the whole of it is in ``answer.output``."""
CALLS_SHOWN = 10
CANDIDATES_SHOWN = 6
REASONS_SHOWN = 20
SPANS_SHOWN = 100
CHILDREN_SHOWN = 20
METADATA_SHOWN = 20
DECISIONS_SHOWN = 5
_DEPTH_SHOWN = 8
_LAST = 98.8
"""Latest start of a bar, in per cent of the time, so that the shortest one is still visible."""

_LEGEND = "Bar and number below a figure: its term of the score, 0 to 1, more is better."
_LOOKS = {
    "running": "fair", "completed": "good", "partial": "fair", "failed": "bad", "budget_exceeded": "bad",
    "ok": "good", "error": "bad", "cancelled": "fair",
}  # fmt: skip
"""How the status of a trace or a span looks."""

_VALUES = Repr()
_VALUES.maxstring = _VALUES.maxother = _VALUES.maxlong = 60


def decision_html(decision: Decision) -> str:
    """The page of a decision."""
    return page("Decision", _decision(decision))


def answer_html(response: RouteResponse, decision: Decision, trace: Trace) -> str:
    """The page of an answer: its text, how it was served, and the folded decision and trace."""
    calls = response.tool_calls or []
    said = [f"calls {short(each.function.name)}({short(each.function.arguments, 1_000)})" for each in calls]
    routing = response.routing
    took = f"{counted(len(trace.spans), 'span')}, {time_short(trace.duration_ms)}"
    served = [
        facts(
            strong(routing.selected_model),
            "" if response.fallback_model is None else f"in place of {response.primary_model}, which failed",
            "from the cache" if routing.cache_hit else "",
            time_short(routing.latency_ms),
            usd_between(routing.cost_usd, trace.cost_range_usd),
            tokens_short(routing.tokens),
            f"finish {response.finish_reason}" if response.finish_reason else "",
            trace.environment,
        ),
        facts(dim("policy ", routing.policy_version), dim("trace ", response.trace_id)),
    ]
    return page(
        "Answer",
        element("div", response.output[:OUTPUT_SHOWN], class_="rw-text") if response.output else Html(),
        *lines(more(len(response.output) - OUTPUT_SHOWN, "character", "in answer.output")),
        *(element("div", each, class_="rw-text") for each in said[:CALLS_SHOWN]),
        *lines(more(len(calls) - CALLS_SHOWN, "call", "in answer.tool_calls")),
        element("div", *served, class_="rw-part"),
        _fold(f"Decision: {decision.model}, of {len(decision.candidates):,} that fit", _decision(decision)),
        _fold(f"Trace: {took}", _trace(trace)),
    )


def trace_html(trace: Trace) -> str:
    """The page of a trace."""
    return page(f"Trace {trace.id}", _trace(trace))


def _fold(title: str, inside: Html) -> Html:
    return element("details", element("summary", title), inside)


def _decision(decision: Decision) -> Html:
    candidates, counts = decision.candidates, decision.rejected_counts
    fit = len(candidates)
    asked = fit + sum(count for reason, count in counts.items() if reason != "whitelist")
    parts = [
        facts(
            joined([strong(decision.model), *decision.chain], " → "),
            "" if decision.chain else "no fallback",
            f"{fit:,} of {asked:,} models fit",
        ),
        element("div", decision.reason),
    ]
    if decision.output_cap is not None:
        after = "" if decision.fallback_affordable else "the budget pays for no fallback after it"
        parts.append(facts(dim(f"output cap: {counted(decision.output_cap, 'token')}"), after))
    roles = {model: f"fallback {place}" for place, model in enumerate(decision.chain, start=1)}
    others = [each.model for each in candidates if each.model != decision.model]
    roles |= {**dict.fromkeys(others[:1], "runner-up"), decision.model: "chosen"}
    return joined([element("div", *parts, class_="rw-part"), _ranking(candidates, roles), _rejections(counts)])


def _ranking(candidates: Sequence[Candidate], roles: Mapping[str, str]) -> Html:
    """The best few, best first. ``roles``: what became of a model, by its id."""
    if not candidates:
        return Html()
    head = (column(name, class_="rw-number") for name in ("score", "quality", "cost", "latency", "stability"))
    rows = []
    for each in candidates[:CANDIDATES_SHOWN]:
        figures = (
            f"{each.quality:.2f}",
            "unknown" if each.cost_usd is None else usd_short(each.cost_usd),
            f"{each.latency_s:.1f} s{' late' if each.late else ''}",
            f"{each.stability:.2f}",
        )
        role = roles.get(each.model, "")
        model = strong(each.model) if role.startswith("chosen") else each.model
        cells = [
            cell(element("div", model), element("div", dim(role))),
            cell(strong(f"{each.score:.3f}"), class_="rw-number"),
        ]
        for figure, term in zip(figures, each.terms, strict=True):
            fill = element("span", class_="rw-fill", style=f"width:{percent(term, 1):.1f}%")
            bar = element("span", fill, class_="rw-term", aria_hidden="true")
            cells.append(cell(element("div", figure), element("div", bar, dim(f"{term:.2f}")), class_="rw-number"))
        rows.append(element("tr", *cells))
    notes = (more(len(candidates) - CANDIDATES_SHOWN, "model", "that fit"), dim(_LEGEND))
    return joined([heading("Best candidates"), table("ranking", [column("model"), *head], rows), *lines(*notes)])


def _rejections(counts: Mapping[Reason, int] | Mapping[str, int]) -> Html:
    chips = [chip(f"{reason} {count:,}") for reason, count in counts.items()]
    said = joined(chips[:REASONS_SHOWN], " ") or dim("none")
    return joined([heading(f"Rejected: {sum(counts.values()):,}"), *lines(said)])


def _trace(trace: Trace) -> Html:
    is_run = trace.kind == "agent"  # whose tools may overlap, so its tree is in the order of ids
    spans = sorted(trace.spans, key=lambda span: (0.0 if is_run else span.start_ms, span.id))
    decisions = [span for span in spans if isinstance(span, DecisionSpan) and not is_run]
    decided: list[Html] = []
    for span in decisions[:DECISIONS_SHOWN]:
        models, served = [each.model for each in span.candidates], trace.selected_model
        roles = dict(zip(models, ("chosen", "runner-up"), strict=False))
        if served in models[1:]:
            roles[served] = "runner-up, served" if served in roles else "served"
        decided += (_ranking(span.candidates, roles), _rejections(span.rejected))
    return joined(
        [
            element("div", *_head(trace), class_="rw-part"),
            _waterfall(spans, trace.duration_ms) if spans else element("div", dim("no spans")),
            *decided,
            *lines(more(len(decisions) - DECISIONS_SHOWN, "decision")),
        ]
    )


def _head(trace: Trace) -> Iterator[Html]:
    name = joined([chip(trace.status, _LOOKS.get(trace.status, "")), strong(f"{trace.kind} {trace.id}")], " ")
    yield facts(name, f"error {trace.error}" if trace.error else "")
    is_run = trace.kind == "agent"
    models = dict.fromkeys(span.model for span in trace.spans if isinstance(span, SubTraceSpan) and span.model)
    steps = sum(isinstance(span, StepSpan) and span.parent_id is None for span in trace.spans)
    yield facts(
        strong(", ".join(models) if is_run and models else trace.selected_model or "no model"),
        counted(steps, "step") if is_run else "",
        "by a fallback" if trace.fallback_used else "",
        "from the cache" if trace.cache_hit else "",
        time_short(trace.duration_ms),
        usd_between(trace.cost_usd, trace.cost_range_usd),
        f"charged {usd_short(trace.charged_usd)}" if trace.charged_usd != trace.cost_usd and not is_run else "",
        tokens_short(trace.tokens),
        "compromised" if trace.compromised else "",
    )
    yield facts(
        dim("goal ", trace.goal) if trace.goal else "",
        dim("strategy ", trace.strategy) if trace.strategy else "",
        dim("policy ", trace.policy_version) if trace.policy_version else "",
        dim(trace.environment),
        dim("account ", trace.account),
        dim(trace.created_at),
    )
    if trace.metadata:
        shown = list(trace.metadata.items())[:METADATA_SHOWN]
        said = {key: value if isinstance(value, str) else _VALUES.repr(value) for key, value in shown}
        chips = [chip(f"{short(str(key))} = {short(value)}") for key, value in said.items()]
        left = more(len(trace.metadata) - METADATA_SHOWN, "key")
        yield element("div", dim("metadata "), joined([*chips, left], " "))
    if trace.children and not is_run:  # the spans name those of a run
        left = more(len(trace.children) - CHILDREN_SHOWN, "trace")
        yield element("div", dim("sub-traces "), joined([*trace.children[:CHILDREN_SHOWN], left], ", "))


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
    """How deep it is nested, at most as deep as is shown: so a span that is its own ancestor does no harm."""
    above, depth = span.parent_id, 0
    while above is not None and depth < _DEPTH_SHOWN:
        above, depth = parents.get(above), depth + 1
    return depth


def _row(span: Span, end_ms: float, depth: int) -> Html:
    swatch = element("span", class_=f"rw-swatch rw-{span.type}", aria_hidden="true")
    name = strong(span.name) if span.name != span.type else ""
    status = chip(span.status, _LOOKS.get(span.status, "")) if span.status != "ok" else ""
    left = min(percent(span.start_ms, end_ms), _LAST)
    width = min(percent(span.duration_ms, end_ms), 100 - left)
    first_ms, inside = _first_ms(span), Html()
    if first_ms is not None:
        inside = element("div", class_="rw-wait", style=f"width:{percent(first_ms, span.duration_ms):.2f}%")
    style = f"left:{left:.2f}%;width:{width:.2f}%"
    bar = element("div", inside, class_=f"rw-bar rw-{span.type} rw-{span.status}", style=style)
    return element(
        "tr",
        cell("└ " if depth else "", swatch, joined([span.type, name], " "), style=f"padding-left:{1.2 * depth:.1f}em"),
        cell(element("div", bar, class_="rw-track", aria_hidden="true")),
        cell(time_short(span.start_ms), class_="rw-number"),
        cell(time_short(span.duration_ms), class_="rw-number"),
        cell(joined([status, joined(_says(span), " · ")], " ")),
    )


def _first_ms(span: Span) -> float | None:
    """Time to the first token. The sandbox does not wait, so it has none."""
    return span.ttft_ms if isinstance(span, ModelSpan) and span.provider != "sandbox" else None


def _says(span: Span) -> list[str]:
    """The span in short; empty texts are left out."""
    match span:
        case DecisionSpan():
            return [f"{sum(span.rejected.values()):,} models rejected", f"input tokens: {span.token_count}"]
        case CacheSpan():
            return [
                "hit" if span.hit else "miss",
                span.mode or "",
                "" if span.similarity is None else f"similarity {span.similarity:.3f}",
                "" if span.age_s is None else f"{time_short(span.age_s * 1000)} old",
                "" if span.saved_usd is None else f"saved {usd_short(span.saved_usd)}",
            ]
        case FallbackSpan():
            return [f"{span.from_model} → {span.to_model}", span.reason, "" if span.used else "brought no answer"]
        case GuardrailSpan():
            return [f"{span.rule}: {span.action}", span.stage, counted(span.count, "time")]
        case ModelSpan():
            first_ms = _first_ms(span)
            return [
                span.error or "",
                f"attempt {span.attempt} at {span.provider}",
                *(kind for kind in ("repair", "hedge", "probe") if getattr(span, kind)),
                "" if span.model == span.name else span.model,
                "" if first_ms is None else f"first token {time_short(first_ms)}",
                "" if span.tokens is None else tokens_short(span.tokens),
                "estimated" if span.usage_estimated else "",
                usd_between(span.cost_usd, span.cost_range_usd) if span.cost_usd or span.cost_range_usd else "",
                f"finish {span.finish_reason}" if span.finish_reason else "",
            ]
        case StepSpan():
            return [f"step {span.number}"]
        case SubTraceSpan():
            tokens = "" if span.tokens is None else tokens_short(span.tokens)
            return [span.trace_id, tokens, usd_short(span.cost_usd) if span.cost_usd else ""]
        case ToolSpan():
            return ["still running"] if span.still_running else []
        case other:
            assert_never(other)
