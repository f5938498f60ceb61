"""Says why no model fits, and the smallest change that would admit one (contract 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from routewright.errors import BudgetExceeded, NoCandidates
from routewright.wire import Budget, DecisionInput, Need, Policy, Reason, TokenBounds

from .constraints import (
    REASONS,
    Ask,
    BoolArray,
    Eligible,
    count_reasons,
    failures,
    first_failures,
    named_reasons,
)
from .cost import affordable_output
from .image import filling_of
from .money import budget_nanos, nanos, sayable, usd_text
from .outlook import Outlook
from .pool import Pool
from .tokens import MESSAGE_TOKENS, PRIMING_TOKENS

_FIXED = {Reason.DEPRECATED, Reason.PROVIDER_UNAVAILABLE, Reason.CIRCUIT_OPEN}
"""Reasons that no change of the request removes."""
NAMED = 4
"""So many models of a whitelist are named one by one."""
LEAST_INPUT = PRIMING_TOKENS + MESSAGE_TOKENS + 1
"""No prompt is shorter."""
LEAST_OUTPUT = 16
"""No shorter answer is suggested: it would be none."""
_BUDGET = {Reason.BUDGET_COST, Reason.BUDGET_TOKENS}
_CHANGEABLE = ("models", "regions", "needs", "max_output_tokens", "tokens", "budget_tokens", "budget_nanos")
_NO_NEED = {Need.IMAGE: "send no images", Need.TOOLS: "declare no tools", Need.JSON: "drop params.response_format"}


class Way(NamedTuple):
    """What a request would have to be to admit one model."""

    model: str
    given: DecisionInput
    outside: set[str]
    """Fields in which the policy is in the way, too."""
    effort: tuple[bool, bool, bool, int, int, int]
    """How much it asks of the caller: first of all no other policy, nor the free tier, nor others than were named."""


def refusal(given: DecisionInput, outlook: Outlook, eligible: Eligible, policy: Policy | None = None) -> NoCandidates:
    """Make the error for a request that no model fits. ``policy`` is the one that was laid over it."""
    ask = Ask(given, outlook)
    failed, first = failures(given, ask, eligible), first_failures(given, ask, eligible)
    firsts = named_reasons(first)
    suggestion = _suggestion(given, ways_of(given, outlook, failed, policy), policy)
    listed = _named(given, outlook, firsts, policy) or ", ".join(
        f"{count} {reason}" for reason, count in count_reasons(first).items()
    )
    by_budget = any(set(_reasons(row)) <= _BUDGET for row in failed)
    error = BudgetExceeded if by_budget else NoCandidates
    return error(
        f"no model fits: {len(firsts)} asked, rejected: {listed or 'none'}; {suggestion}",
        detail={
            "rejected_candidates": [
                {"model": model, "reason": str(reason), "estimated_cost_usd": ask.worst_usd(row)}
                for row, (model, reason) in enumerate(zip(outlook.pool.ids, firsts, strict=True))
                if reason is not None
            ],
            "suggestion": suggestion,
        },
    )


def _named(given: DecisionInput, outlook: Outlook, firsts: list[Reason | None], policy: Policy | None) -> str:
    """Each model by its name, where the caller named a few. None of theirs is left where the policy allows others."""
    if given.models is None or len(given.models) > NAMED:
        return ""
    if not given.models:
        return f"all, since {_owner(policy)} allows none of the request's models"
    pool = outlook.pool
    rows = [pool.row[model] for model in given.models if model in pool.row]
    said = [f"{pool.ids[row]} {firsts[row]}" for row in rows]
    ends = [pool.models[row].deprecated_at for row in rows]
    return ", ".join(
        f"{what} since {end}" if firsts[row] is Reason.DEPRECATED else what
        for row, what, end in zip(rows, said, ends, strict=True)
    )


def _suggestion(given: DecisionInput, ways: list[Way], policy: Policy | None) -> str:
    """The changes that admit the model that needs fewest, the cheapest of these first."""
    if not ways:
        return "no change of the request helps: configure a provider or enable a model"
    way = min(ways, key=lambda way: way.effort)
    return f"{' and '.join(_words(given, way, policy))} to admit {way.model}"


def ways_of(given: DecisionInput, outlook: Outlook, failed: BoolArray, policy: Policy | None) -> list[Way]:
    """Every model that some change would admit, with that change."""
    ways = [_way(given, outlook, row, set(_reasons(failed[row])), policy) for row in range(len(outlook.pool))]
    return [way for way in ways if way is not None]


def _way(given: DecisionInput, outlook: Outlook, row: int, reasons: set[Reason], policy: Policy | None) -> Way | None:
    """Change the input question by question, each with what was changed before."""
    pool = outlook.pool
    if reasons & _FIXED or pool.disabled[row]:
        return None
    fitted = _fit_window(_made_eligible(given, pool, row, reasons), outlook, row)
    if fitted is None:
        return None
    changed = _fit_cost(_fit_tokens(fitted, outlook, row, policy), outlook, row, policy)
    outside = _outside(given, changed, pool.ids[row], policy)
    named = changed.models != given.models
    worst = _worst_nanos(Ask(changed, outlook), row) or 0
    effort = (bool(outside), named and bool(pool.free_tier[row]), named, len(_changes(given, changed)), worst, row)
    return Way(pool.ids[row], changed, outside, effort)


def _made_eligible(given: DecisionInput, pool: Pool, row: int, reasons: set[Reason]) -> DecisionInput:
    """Name the model where it has to be named, and ask for nothing that it lacks."""
    models = given.models
    if reasons & {Reason.WHITELIST, Reason.DISABLED}:  # the free tier is routed to where it is named
        # the fallbacks have to be on a whitelist, too
        models = tuple(dict.fromkeys((*(given.models or given.fallback or ()), pool.ids[row])))
    served = pool.models[row].availability.regions
    regions = tuple(region for region in given.regions if region in served)
    return replace(given, models=models, regions=regions, needs=given.needs & int(pool.able[row]))


def _fit_window(given: DecisionInput, outlook: Outlook, row: int) -> DecisionInput | None:
    """Less output if that alone helps, else a shorter input, or both. None: no prompt fits."""
    ask = Ask(given, outlook)
    room, window = ask.room(row), outlook.pool.window[row]
    wanted = outlook.output[row] if given.max_output_tokens is None else given.max_output_tokens
    if wanted <= room and wanted <= outlook.pool.max_output[row]:
        return given
    if given.max_output_tokens is None:
        return _shortened(given, outlook.pool, row, window - outlook.output[row])
    output = min(given.max_output_tokens, outlook.pool.max_output[row], room if room >= LEAST_OUTPUT else window // 2)
    lowered = replace(given, max_output_tokens=output)
    return lowered if output <= room else _shortened(lowered, outlook.pool, row, window - output)


def _shortened(given: DecisionInput, pool: Pool, row: int, tokens: int) -> DecisionInput | None:
    """An input of so many tokens, with its images if these leave room for a text."""
    if tokens < LEAST_INPUT:
        return None
    images = filling_of(given.tokens.images, pool.measures[pool.measure[row]].images)
    needs = given.needs if tokens >= LEAST_INPUT + images else given.needs & ~Need.IMAGE
    return replace(given, needs=int(needs), tokens=TokenBounds(tokens, tokens, tokens, counted=True))


def _fit_tokens(given: DecisionInput, outlook: Outlook, row: int, policy: Policy | None) -> DecisionInput:
    """A larger token budget, or less output where the policy allows no larger one."""
    ask = Ask(given, outlook)
    high = ask.high(row)
    if given.budget_tokens is None or high + ask.held_output(row) <= given.budget_tokens:
        return given
    raised = replace(given, budget_tokens=high + ask.held_output(row))
    shorter = _capped(given, outlook, row, given.budget_tokens - high)
    return raised if shorter is None or not _outside(given, raised, "", policy) else shorter


def _fit_cost(given: DecisionInput, outlook: Outlook, row: int, policy: Policy | None) -> DecisionInput:
    """A larger budget, or less output where the policy allows no larger one."""
    ask = Ask(given, outlook)
    high = ask.high(row)
    if given.budget_nanos is None or nanos(ask.worst_picos(row, high)) <= given.budget_nanos:
        return given
    worst = _worst_nanos(ask, row)
    if worst is None:
        return replace(given, budget_nanos=None)
    raised = replace(given, budget_nanos=sayable(worst))
    price = outlook.pool.dearest(row, high)
    shorter = _capped(given, outlook, row, affordable_output(price, high, given.budget_nanos))
    return raised if shorter is None or not _outside(given, raised, "", policy) else shorter


def _capped(given: DecisionInput, outlook: Outlook, row: int, output: int) -> DecisionInput | None:
    """The output capped at what a budget pays for; None where that is no answer."""
    output = min(output, Ask(given, outlook).room(row), outlook.pool.max_output[row])
    return None if output < LEAST_OUTPUT else replace(given, max_output_tokens=output)


def _outside(given: DecisionInput, changed: DecisionInput, model: str, policy: Policy | None) -> set[str]:
    """The changed fields that the policy has to change, too, to let the request have its way."""
    outside = {"regions"}
    if policy is not None:
        budget = policy.budget or Budget()
        cost, tokens = changed.budget_nanos, changed.budget_tokens
        if policy.models is not None and model not in policy.models:
            outside.add("models")
        if budget.max_cost_usd is not None and (cost is None or cost > budget_nanos(budget.max_cost_usd)):
            outside.add("budget_nanos")
        if budget.max_tokens is not None and tokens is not None and tokens > budget.max_tokens:
            outside.add("budget_tokens")
    return outside & set(_changes(given, changed))


def _changes(given: DecisionInput, changed: DecisionInput) -> list[str]:
    """Names of the fields that differ, in the order of the questions they answer."""
    return [name for name in _CHANGEABLE if getattr(given, name) != getattr(changed, name)]


def _words(given: DecisionInput, way: Way, policy: Policy | None) -> Iterator[str]:
    """What to do about each field that has to change."""
    by = _owner(policy)
    for name in _changes(given, way.given):
        for words in _said(name, given, way):
            if name == "regions":
                yield f"{words} of {by}"
            else:
                yield f"{words}, also in {by}," if name in way.outside else words


def _owner(policy: Policy | None) -> str:
    return "the policy" if policy is None else f"policy {policy.name!r}"


def _said(name: str, given: DecisionInput, way: Way) -> list[str]:
    changed = way.given
    match name:
        case "models" if given.models is None:
            return [f"set models to {list(changed.models or ())}"]
        case "models":
            return [f"add {way.model!r} to models"]
        case "regions":
            dropped = [region for region in given.regions if region not in changed.regions]
            return [f"drop {', '.join(dropped)} from the regions"]
        case "needs":
            return [words for need, words in _NO_NEED.items() if given.needs & ~changed.needs & need]
        case "max_output_tokens":
            verb = "set" if given.max_output_tokens is None else "lower"
            return [f"{verb} params.max_output_tokens to {changed.max_output_tokens}"]
        case "tokens":
            return [f"shorten the input to {changed.tokens.high} tokens"]
        case "budget_tokens":
            return [f"raise budget.maxTokens to {changed.budget_tokens}"]
        case _ if changed.budget_nanos is None:
            return ["drop budget.maxCostUsd (or give the model a price: none is known)"]
        case _:
            return [f"raise budget.maxCostUsd to {usd_text(changed.budget_nanos)}"]


def _worst_nanos(ask: Ask, row: int) -> int | None:
    """What the budget must hold for a row; None where its price is unknown."""
    return nanos(ask.worst_picos(row, ask.high(row))) if ask.outlook.pool.prices[row] else None


def _reasons(row: BoolArray) -> list[Reason]:
    return [reason for reason, fails in zip(REASONS, row.tolist(), strict=True) if fails]
