"""What a person is shown of traces: a list of them, and one with all that is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from routewright._core.moment import timestamp
from routewright._core.money import usd_text
from routewright.wire import DecisionInput, DecisionSpan, PutFeedback, Trace, TraceItem
from routewright.wire.figures import time_short

from .blocks import Block, Line, Row, Table, facts
from .candidates import candidate_table
from .content_page import content_page
from .figures import LIST_PRICE, USUAL_TIME, about, cost, dollars, tokens
from .span_tree import STATUS_STYLES, span_table

_HEAD = ("trace", "created (UTC)", "status", "model", "duration", "cost", "")


def list_page(items: Sequence[TraceItem]) -> list[Block]:
    """Traces, one line each."""
    rows = [Row(_cells(item), STATUS_STYLES.get(item.status, "plain")) for item in items]
    return [Table(rows, _HEAD, frozenset({4, 5}))]


def show_page(trace: Trace, feedback: PutFeedback | None) -> list[Block]:
    """All that is in a trace: what came of it, its spans, among whom was chosen, what a user said."""
    decision = next((span for span in trace.spans if isinstance(span, DecisionSpan)), None)
    chosen = None if decision is None or not decision.candidates else decision.candidates[0].model
    return [
        Line(f"Trace {trace.id}", "title"),
        Line(),
        *_header(trace, chosen, feedback),
        Line(),
        span_table(trace),
        *([] if decision is None else _decision(decision, chosen, trace.selected_model)),
        *([] if trace.content is None else content_page(trace.content)),
    ]


def _cells(item: TraceItem) -> tuple[str, ...]:
    created = item.created_at[:19].replace("T", " ")
    spent = about(item.cost_usd) if item.cost_usd else ""
    notes = ", ".join(_notes(item))
    return (item.id, created, item.status, item.selected_model or "", time_short(item.duration_ms), spent, notes)


def _notes(item: TraceItem) -> Iterator[str]:
    if item.error is not None:
        yield item.error
    flags = {"fallback": item.fallback_used, "cache hit": item.cache_hit, "compromised": item.compromised}
    yield from (said for said, holds in flags.items() if holds)
    yield from (word for word in (item.kind, item.environment) if word not in ("route", "production"))


def _header(trace: Trace, chosen: str | None, feedback: PutFeedback | None) -> list[Block]:
    status = trace.status if trace.error is None else f"{trace.status}: {trace.error}"
    style = STATUS_STYLES.get(trace.status, "good" if trace.status == "completed" else "plain")
    table = facts(
        {
            "status": status,
            "model": _model(trace, chosen),
            "cost": _cost(trace),
            "tokens": tokens(trace.tokens) if trace.selected_model else "",
            "duration": _duration(trace),
            "created": trace.created_at.replace("T", " ").replace("Z", " UTC"),
            "asked for": f"{trace.goal} goal, {trace.strategy} strategy" if trace.goal else "",
            "budget": _budget(trace.decision_input),
            "policy": ", ".join(filter(None, (trace.policy_version, trace.policy_id))),
            "account": _account(trace),
            "metadata": _metadata(trace.metadata),
            "children": ", ".join(trace.children),
            "feedback": "" if feedback is None else _feedback(feedback),
        }
    )
    table.rows[0] = table.rows[0]._replace(style=style)
    return [table]


def _model(trace: Trace, chosen: str | None) -> str:
    if trace.selected_model is None:
        return "none answered"
    stood_in = f", in place of {chosen}" if trace.fallback_used and chosen is not None else ""
    return f"{trace.selected_model}{stood_in}{', from the cache' if trace.cache_hit else ''}"


def _cost(trace: Trace) -> str:
    if trace.environment == "sandbox":
        return cost(trace) + LIST_PRICE
    if trace.charged_usd in (0, trace.cost_usd):
        return cost(trace)
    return f"{cost(trace)}, of which {dollars(trace.charged_usd)} is charged"


def _duration(trace: Trace) -> str:
    waited = trace.environment == "production" or trace.selected_model is None
    return time_short(trace.duration_ms) + ("" if waited else USUAL_TIME)


def _budget(given: DecisionInput | None) -> str:
    if given is None:
        return ""
    limits = [] if given.budget_nanos is None else [f"${usd_text(given.budget_nanos)}"]
    return ", ".join(limits if given.budget_tokens is None else [*limits, f"{given.budget_tokens:,} tokens"])


def _account(trace: Trace) -> str:
    key = "" if trace.key_id is None else f"key {trace.key_id}"
    said = ", ".join(filter(None, (trace.account, trace.environment, key)))
    return f"{said}, compromised: the key was revoked" if trace.compromised else said


def _metadata(metadata: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value if _is_plain(value) else _json(value)}" for key, value in metadata.items())


def _is_plain(value: object) -> bool:
    """A text that reads the same without quotes."""
    return isinstance(value, str) and value.isprintable() and value != "" and not set(value) & set(',="')


def _feedback(feedback: PutFeedback) -> str:
    comment = "" if feedback.comment is None else f", {_json(feedback.comment)}"
    return f"{feedback.score:g}{comment}, at {timestamp(feedback.at)[:16].replace('T', ' ')} UTC"


def _decision(span: DecisionSpan, chosen: str | None, served: str | None) -> Iterator[Block]:
    yield Line()
    yield Line(f"Decision {span.digest}", "title")
    if chosen is not None:
        yield Line()
        yield candidate_table(span.candidates, chosen=chosen, served=served)
    if span.rejected:
        most_first = sorted(span.rejected.items(), key=lambda each: -each[1])
        yield Line()
        yield facts({"rejected": ", ".join(f"{count:,} by {reason}" for reason, count in most_first)})


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
