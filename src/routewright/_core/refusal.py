"""Says why no model fits, and the smallest change that would admit one (contract 3)."""

from __future__ import annotations

from functools import partial

from routewright.errors import BudgetExceeded, NoCandidates
from routewright.wire import DecisionInput, Reason

from .constraints import REASONS, Ask, BoolArray, Eligible, count_reasons, failures, first_reasons
from .money import nanos, usd_text
from .outlook import Outlook

_FIXED = {Reason.DISABLED, Reason.DEPRECATED, Reason.PROVIDER_UNAVAILABLE, Reason.CIRCUIT_OPEN}
"""Reasons that no change of the request removes."""
NAMED = 4
"""So many models of a whitelist are named one by one."""
_NOTHING_IN_COMMON = (
    "the request's models and its policy's have none in common: ask for models of the policy (Router.policies())"
)
_BUDGET = {Reason.BUDGET_COST, Reason.BUDGET_TOKENS}
_NO_NEED = {
    Reason.MODALITY: "send no images",
    Reason.TOOLS: "declare no tools",
    Reason.RESPONSE_FORMAT: "drop params.response_format",
}


def refusal(given: DecisionInput, outlook: Outlook, eligible: Eligible) -> NoCandidates:
    """Make the error for a request that no model fits."""
    failed = failures(given, outlook, eligible)
    ask = Ask(given, outlook)
    firsts = first_reasons(failed)
    suggestion = _suggestion(given, ask, failed) if given.models != () else _NOTHING_IN_COMMON
    listed = _named(given, outlook, firsts) or ", ".join(
        f"{count} {reason}" for reason, count in count_reasons(failed).items()
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


def _named(given: DecisionInput, outlook: Outlook, firsts: list[Reason | None]) -> str:
    """Each model by its name, where the caller named a few."""
    if given.models is None or len(given.models) > NAMED:
        return ""
    pool = outlook.pool
    rows = [pool.row[model] for model in given.models if model in pool.row]
    said = [f"{pool.ids[row]} {firsts[row]}" for row in rows]
    ends = [pool.models[row].deprecated_at for row in rows]
    return ", ".join(
        f"{what} since {end}" if firsts[row] is Reason.DEPRECATED else what
        for row, what, end in zip(rows, said, ends, strict=True)
    )


def _suggestion(given: DecisionInput, ask: Ask, failed: BoolArray) -> str:
    """The changes that admit the model that needs fewest, the cheapest of these first."""
    free = ask.outlook.pool.free_tier
    ways = [(row, reasons) for row, reasons in enumerate(map(_reasons, failed)) if not _FIXED & set(reasons)]
    open_ways = [(row, reasons) for row, reasons in ways if not (free[row] and Reason.WHITELIST in reasons)]
    if not open_ways:
        return "no change of the request helps: configure a provider or enable a model"
    row, reasons = min(open_ways, key=partial(_effort, ask))
    changes = [_change(given, ask, row, reason) for reason in reasons]
    return f"{' and '.join(changes)} to admit {ask.outlook.pool.ids[row]}"


def _effort(ask: Ask, way: tuple[int, list[Reason]]) -> tuple[bool, int, int, int]:
    """How much a way asks of the caller: first of all not to give up the models that were named."""
    row, reasons = way
    return Reason.WHITELIST in reasons, len(reasons), _worst_nanos(ask, row) or 0, row


def _change(given: DecisionInput, ask: Ask, row: int, reason: Reason) -> str:
    """What to do about one reason."""
    outlook, high = ask.outlook, ask.high(row)
    match reason:
        case Reason.WHITELIST:
            return f"add {outlook.pool.ids[row]!r} to models"
        case Reason.REGION:
            return f"allow a region besides {', '.join(given.regions)}"
        case Reason.CONTEXT:
            return _context_change(given, ask, row)
        case Reason.BUDGET_TOKENS:
            return f"raise budget.maxTokens to {high + ask.held_output(row)}"
        case Reason.BUDGET_COST:
            worst = _worst_nanos(ask, row)
            if worst is None:
                return "drop budget.maxCostUsd (no price is known)"
            return f"raise budget.maxCostUsd to {usd_text(worst)}"
        case Reason.MODALITY | Reason.TOOLS | Reason.RESPONSE_FORMAT:
            return _NO_NEED[reason]
        case _:
            raise AssertionError(reason)


def _context_change(given: DecisionInput, ask: Ask, row: int) -> str:
    """Less output if that alone helps, else a shorter input, or both."""
    outlook, high = ask.outlook, ask.high(row)
    most, window = outlook.pool.max_output[row], outlook.pool.window[row]
    if given.max_output_tokens is None:
        return f"shorten the input to {window - outlook.output[row]} tokens"
    output = min(given.max_output_tokens, most, window - high if high < window else window // 2)
    changes = []
    if output < given.max_output_tokens:
        changes.append(f"lower params.max_output_tokens to {output}")
    if high + output > window:
        changes.append(f"shorten the input to {window - output} tokens")
    return " and ".join(changes)


def _worst_nanos(ask: Ask, row: int) -> int | None:
    """What the budget must hold for a row; None where its price is unknown."""
    return nanos(ask.worst_picos(row, ask.high(row))) if ask.outlook.pool.prices[row] else None


def _reasons(row: BoolArray) -> list[Reason]:
    return [reason for reason, fails in zip(REASONS, row.tolist(), strict=True) if fails]
