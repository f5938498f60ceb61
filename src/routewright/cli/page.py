"""What a person is shown of an answer, a decision, a refusal, a list of models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from routewright import Answer
from routewright._core.money import usd_text
from routewright._core.routing.decision import Decision
from routewright.wire import DecisionInput, Model, Reason
from routewright.wire.figures import time_short

from .blocks import Block, Line, Row, Table, facts
from .candidates import candidate_table
from .figures import LIST_PRICE, USUAL_TIME, aligned, dollars, tokens

CANDIDATES_SHOWN = 6
NAMED = 3
"""Models named for each reason of rejection."""


def answer_page(answer: Answer) -> list[Block]:
    """How an answer came about, in a few lines."""
    response, routing = answer.response, answer.routing
    sandbox = answer.trace.environment == "sandbox"
    stood_in = "" if response.fallback_model is None else f", in place of {response.primary_model}, which failed"
    named = {
        "model": routing.selected_model + stood_in,
        "cost": dollars(routing.cost_usd) + (LIST_PRICE if sandbox else ""),
        "tokens": tokens(routing.tokens),
        "time": time_short(routing.latency_ms) + (USUAL_TIME if sandbox else ""),
        "trace": response.trace_id,
    }
    if response.finish_reason in ("length", "budget"):
        named["ended by"] = f"{response.finish_reason}: the answer is cut"
    if answer.tool_calls:
        named["calls"] = ", ".join(f"{call.function.name}({call.function.arguments})" for call in answer.tool_calls)
    return [Line(), facts(named)]


def decision_page(decision: Decision) -> list[Block]:
    """Why this model: the candidates in their order, who follows on a failure, who was rejected."""
    given, candidates, rejected = decision.input, decision.candidates, decision.rejected
    asked = len(candidates) + len(rejected)
    aim = f"{given.goal} goal, {given.strategy} strategy" if given.weights is None else "the policy's own weights"
    title = f"Decision: {aim}; {len(candidates)} of {asked} models fit"
    why = {each.model: each.reason for each in rejected}
    named = {
        "preferred": ", then ".join(f"{each} ({why[each]})" if each in why else each for each in given.prefer),
        "fallback": ", then ".join(decision.chain) or "none",
        "input": _input(given),
        "limits": _limits(decision),
        "rejected": "" if rejected else "none",
        "digest": decision.digest,
    }
    reasons = _rejections((each.model, each.reason, None) for each in rejected)
    shown = candidate_table(
        candidates[:CANDIDATES_SHOWN], chosen=decision.model, further=len(candidates[CANDIDATES_SHOWN:])
    )
    return [Line(), Line(title, "title"), Line(), shown, Line(), facts(named), *reasons]


def refusal_page(detail: Mapping[str, Any]) -> list[Block]:
    """Who was rejected, and why, where nobody fits. ``detail`` is that of the error."""
    rejected = [
        # a price explains nothing but a budget
        (each["model"], each["reason"], each["estimated_cost_usd"] if each["reason"] == Reason.BUDGET_COST else None)
        for each in detail["rejected_candidates"]
    ]
    return [Line(f"Decision: none of {len(rejected)} models fits", "title"), *_rejections(rejected), Line()]


def models_page(models: Sequence[Model], today: str) -> list[Block]:
    """The models as a table, one line each."""
    prices = [model.pricing_per_1m for model in models]
    inputs = aligned([None if price is None else price.input_usd for price in prices])
    outputs = aligned([None if price is None else price.output_usd for price in prices])
    rows = [
        _model_row(model, (paid, earned), today) for model, paid, earned in zip(models, inputs, outputs, strict=True)
    ]
    return [Table(rows, _MODEL_HEAD, frozenset({1, 2, 3, 4}))]


_MODEL_HEAD = ("model", "context", "in $/1M", "out $/1M", "quality", "besides text", "availability")


def _input(given: DecisionInput) -> str:
    tokens = given.tokens
    if tokens.counted:
        return f"{tokens.best} tokens, counted"
    return f"about {tokens.best} tokens; at least {tokens.low}, at most {tokens.high}, so counting changes nothing"


def _limits(decision: Decision) -> str:
    given, limits = decision.input, []
    if given.budget_nanos is not None:
        limits.append(f"${usd_text(given.budget_nanos)}")
    if given.budget_tokens is not None:
        limits.append(f"{given.budget_tokens} tokens")
    if decision.output_cap is not None:
        limits.append(f"at most {decision.output_cap} tokens of output")
    if not decision.fallback_affordable:
        limits.append("which pays for no fallback after it")
    return ", ".join(limits)


def _rejections(rejected: Iterable[tuple[str, str, float | None]]) -> list[Block]:
    """One line a reason: how many, and some of them; with a price the cheapest."""
    by_reason: dict[str, list[tuple[str, float | None]]] = {}
    for model, reason, cost_usd in rejected:
        by_reason.setdefault(str(reason), []).append((model, cost_usd))
    if not by_reason:
        return []
    most_first = sorted(by_reason.items(), key=lambda each: -len(each[1]))
    rows = [Row((str(len(models)), reason, _some(models)), "dim") for reason, models in most_first]
    return [Line(), Table(rows, ("rejected", "by", "among them"), frozenset({0}), prose=True)]


def _some(models: list[tuple[str, float | None]]) -> str:
    cheapest = sorted(models, key=lambda each: each[1] or 0.0)[:NAMED]
    named = [model if cost is None else f"{model} {dollars(cost)}" for model, cost in cheapest]
    return ", ".join(named) + (" ..." if len(models) > NAMED else "")


def _model_row(model: Model, prices: tuple[str, str], today: str) -> Row:
    quality = "" if model.quality is None else f"{model.quality:.2f}"
    window = "" if model.context_window is None else f"{model.context_window:,}"
    more = " ".join(kind for kind in model.modalities or () if kind != "text")
    cells = (model.id, window, *prices, quality, more, _availability(model, today))
    return Row(cells, "plain" if is_current(model, today) else "dim")


def is_current(model: Model, today: str) -> bool:
    """Neither disabled nor given up by its vendor."""
    return not model.disabled and (model.deprecated_at is None or model.deprecated_at[:10] > today)


def _availability(model: Model, today: str) -> str:
    retires = None if model.deprecated_at is None else model.deprecated_at[:10]
    if model.disabled:
        return "disabled"
    if not is_current(model, today):
        return f"deprecated {retires}"
    if model.availability.status == "unavailable":
        return "no key"
    status = "free offer, by name" if model.free_tier else model.availability.status
    return status if retires is None else f"until {retires}"
