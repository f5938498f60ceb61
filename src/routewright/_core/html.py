"""A decision and an answer as HTML pages for notebooks. Of texts only the answer's own is shown, never the prompt's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from routewright.wire import Candidate, Reason, RouteResponse, ToolCall, Trace
from routewright.wire.figures import counted, time_short, tokens_short, usd_between
from routewright.wire.html import Html, dim, element, facts, joined, lines, more, page, short, strong
from routewright.wire.ranking import ranking, rejections
from routewright.wire.waterfall import trace_body

OUTPUT_SHOWN = 4_000
"""Characters of an answer; the whole of it is in ``answer.output``."""
CALLS_SHOWN = 10


class Decided(Protocol):
    """What is shown of a ``Decision``."""

    @property
    def model(self) -> str:
        """The chosen one."""

    @property
    def chain(self) -> list[str]:
        """Those that follow it."""

    @property
    def reason(self) -> str:
        """Why it was chosen."""

    @property
    def candidates(self) -> list[Candidate]:
        """All that fit, best first."""

    @property
    def rejected_counts(self) -> dict[Reason, int]:
        """How many do not, by reason."""

    @property
    def output_cap(self) -> int | None:
        """Output tokens it is asked for at most."""

    @property
    def fallback_affordable(self) -> bool:
        """Whether the budget pays for another attempt."""


def decision_html(decision: Decided) -> str:
    """The page of one decision."""
    return page("Decision", _decision(decision, decision.candidates))


def answer_html(response: RouteResponse, decision: Decided, trace: Trace) -> str:
    """The page of an answer: its text, how it was served, and behind two folds why and how."""
    candidates = decision.candidates
    took = f"{counted(len(trace.spans), 'span')}, {time_short(trace.duration_ms)}"
    return page(
        "Answer",
        _output(response.output),
        _calls(response.tool_calls or []),
        element("div", *_routing(response, trace), class_="rw-part"),
        _fold(f"Decision: {decision.model}, of {len(candidates):,} that fit", _decision(decision, candidates)),
        _fold(f"Trace: {took}", trace_body(trace)),
    )


def _decision(decision: Decided, candidates: Sequence[Candidate]) -> Html:
    counts = decision.rejected_counts
    fit, asked = len(candidates), len(candidates) + sum(counts.values())
    way = joined([strong(decision.model), *decision.chain], " → ")
    parts = [
        facts(way, "" if decision.chain else "no fallback", f"{fit:,} of {asked:,} models fit"),
        element("div", decision.reason),
        _cap(decision),
    ]
    best = ranking(candidates, _roles(decision, candidates))
    return joined([element("div", *parts, class_="rw-part"), best, rejections(counts)])


def _cap(decision: Decided) -> Html:
    if decision.output_cap is None:
        return Html()
    after = "" if decision.fallback_affordable else "the budget pays for no fallback after it"
    return facts(dim(f"output cap: {counted(decision.output_cap, 'token')}"), after)


def _roles(decision: Decided, candidates: Sequence[Candidate]) -> dict[str, str]:
    """What becomes of each model, as ``explain`` says it."""
    roles = {model: f"fallback {place}" for place, model in enumerate(decision.chain, start=1)}
    others = [each.model for each in candidates if each.model != decision.model]
    return {**roles, **dict.fromkeys(others[:1], "runner-up"), decision.model: "chosen"}


def _output(text: str) -> Html:
    if not text:
        return Html()
    note = more(len(text) - OUTPUT_SHOWN, "character", "in answer.output")
    return joined([element("div", text[:OUTPUT_SHOWN], class_="rw-text"), *lines(note)])


def _calls(calls: Sequence[ToolCall]) -> Html:
    said = [f"calls {short(each.function.name)}({short(each.function.arguments, 1_000)})" for each in calls]
    boxes = [element("div", each, class_="rw-text") for each in said[:CALLS_SHOWN]]
    return joined([*boxes, *lines(more(len(calls) - CALLS_SHOWN, "call", "in answer.tool_calls"))])


def _routing(response: RouteResponse, trace: Trace) -> list[Html]:
    routing = response.routing
    stood_in = "" if response.fallback_model is None else f"in place of {response.primary_model}, which failed"
    return [
        facts(
            strong(routing.selected_model),
            stood_in,
            "from the cache" if routing.cache_hit else "",
            time_short(routing.latency_ms),
            usd_between(routing.cost_usd, trace.cost_range_usd),
            tokens_short(routing.tokens),
            f"finish {response.finish_reason}" if response.finish_reason else "",
            trace.environment,
        ),
        facts(dim("policy ", routing.policy_version), dim("trace ", response.trace_id)),
    ]


def _fold(title: str, inside: Html) -> Html:
    return element("details", element("summary", title), inside)
