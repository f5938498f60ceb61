"""Says why no model fits, and the smallest change that would admit one (contract 3)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from routewright._core.money import usd_text
from routewright._core.policy import Laid
from routewright._core.request.problems import listed
from routewright._core.selector import Known
from routewright.errors import BudgetExceeded, NoCandidates
from routewright.wire import DecisionInput, Need, Policy, PolicySnapshot, Reason

from .board import Board
from .constraints import REASONS, Ask, Eligible, count_reasons, failures, first_failures, named_reasons
from .outlook import Outlook
from .quality import quality_text
from .scale import BoolArray
from .what_if import Obstacles, Ruling, Way, dropped_needs, way_of, ways_of

_NO_POLICY = PolicySnapshot("", "", Policy(name=""))
NAMED = 4
"""So many models of a whitelist are named one by one."""
_BUDGET = {Reason.BUDGET_COST, Reason.BUDGET_TOKENS}
_NO_NEED = {
    Need.IMAGE: "send no images",
    Need.IMAGE_URL: "send images as data: URLs",
    Need.TOOLS: "declare no tools",
    Need.TOOL_CHOICE: "drop tool_choice",
    Need.JSON: "drop params.response_format",
    Need.TEMPERATURE: "drop params.temperature",
    Need.TOP_P: "drop params.top_p",
    Need.STOP: "drop params.stop",
    Need.SEED: "drop params.seed",
}


def refusal(given: DecisionInput, board: Board, eligible: Eligible, laid: Laid | None) -> NoCandidates:
    """Make the error for a request that no model fits. ``laid`` is the policy over it."""
    outlook, ruling = board.outlook, _ruling(given, board, laid)
    ask = Ask(given, outlook)
    failed, first = failures(given, ask, eligible), first_failures(given, ask, eligible)
    firsts, reasons = named_reasons(first), [set(reasons_of(row)) for row in failed]
    unserved = _unserved(given, board, firsts)
    suggestion = _suggestion(given, ways_of(given, outlook, reasons, ruling), ruling, unserved)
    said = _named(given, outlook, firsts, ruling) or ", ".join(
        f"{count} {reason}" for reason, count in count_reasons(first).items()
    )
    error = BudgetExceeded if any(why <= _BUDGET for why in reasons) else NoCandidates
    return error(
        f"no model fits: {len(firsts)} asked, rejected: {said or 'none'}; {suggestion}",
        detail={
            "rejected_candidates": [
                {"model": model, "reason": str(reason), "estimated_cost_usd": ask.worst_usd(row)}
                for row, (model, reason) in enumerate(zip(outlook.pool.ids, firsts, strict=True))
                if reason is not None
            ],
            "suggestion": suggestion,
        },
    )


def admission(
    given: DecisionInput, board: Board, row: int, reasons: set[Reason], laid: Laid | None
) -> tuple[DecisionInput, str] | None:
    """What would admit one row: the input as it would be, and the change in words. None: nothing would."""
    ruling = _ruling(given, board, laid)
    way = way_of(given, board.outlook, row, reasons, ruling)
    if way is None:
        return None
    said = " and ".join(_words(given, way, ruling)).removesuffix(",")
    probe_at_ms = board.outlook.open.get(row)
    if probe_at_ms is not None:
        at = datetime.fromtimestamp(probe_at_ms / 1000, UTC).strftime("%H:%M:%S UTC")
        said = f"{said} and " if said else ""
        said += f"wait until {at}, when its circuit lets a call through"
    return way.given, said


def _ruling(given: DecisionInput, board: Board, laid: Laid | None) -> Ruling:
    known = Known(board.outlook.pool.models, board.boards.aliases)
    return Ruling(laid or Laid(_NO_POLICY, given.models), known)


def _named(given: DecisionInput, outlook: Outlook, firsts: list[Reason | None], ruling: Ruling) -> str:
    """Each model by its name, where the caller named a few. None of theirs is left where the policy allows others."""
    if given.models is None or len(given.models) > NAMED:
        return ""
    if not given.models:
        return f"all, since {_owner(ruling)} allows none of the request's models"
    pool = outlook.pool
    rows = [pool.row[model] for model in given.models if model in pool.row]
    said = [f"{pool.ids[row]} {firsts[row]}" for row in rows]
    ends = [pool.models[row].deprecated_at for row in rows]
    return ", ".join(
        f"{what} since {end}" if firsts[row] is Reason.DEPRECATED else what
        for row, what, end in zip(rows, said, ends, strict=True)
    )


def _unserved(given: DecisionInput, board: Board, firsts: list[Reason | None]) -> str:
    """What to set in the environment for the few models that were named and whose provider is not there; nothing where
    that would not help."""
    if given.models is None or len(given.models) > NAMED:
        return ""
    pool, variables = board.outlook.pool, board.boards.variables
    rows = [pool.row[model] for model in given.models if model in pool.row]
    missing = dict.fromkeys(pool.models[row].provider for row in rows if firsts[row] is Reason.PROVIDER_UNAVAILABLE)
    found = {name: variables[name] for name in missing if name in variables}
    if not found:
        return ""
    return f"set {' and '.join(found.values())} in the environment to have the models of {' and '.join(found)}"


def _suggestion(given: DecisionInput, ways: list[Way], ruling: Ruling, unserved: str) -> str:
    """The fewest changes that admit a model; of several the one nearest to what was asked, then the cheapest."""
    if not ways:
        return f"no change of the request helps: {unserved or 'configure a provider or enable a model'}"
    way = min(ways, key=lambda way: way.effort)
    return f"{' and '.join(_words(given, way, ruling))} to admit {way.model}" + (unserved and f"; or {unserved}")


def _words(given: DecisionInput, way: Way, ruling: Ruling) -> Iterator[str]:
    """What to do about each field that has to change."""
    by = _owner(ruling)
    for name in way.changes:
        if name == "models":
            yield from _naming(given, way, ruling)
        elif name in ("regions", "min_quality", "max_latency_ms"):
            yield _of_policy(name, given, way.given, by)
        else:
            also = f", also in {by}," if name in way.outside else ""
            yield from (f"{words}{also}" for words in _said(name, given, way.given))


def _naming(given: DecisionInput, way: Way, ruling: Ruling) -> Iterator[str]:
    """Who has to name the model, the request or the policy or both, and what else of the policy keeps it out."""
    asked = ruling.laid.asked
    if given.models is None:
        yield f"set 'models' to {list(way.given.models or ())}"
    elif asked is not None and way.model not in asked:
        yield f"add {way.model!r} to 'models'"
    if way.obstacles is not None:
        yield from _cleared(way.model, way.obstacles, ruling)


def _cleared(model: str, obstacles: Obstacles, ruling: Ruling) -> Iterator[str]:
    """What to do about each thing of a policy's that keeps a model out."""
    by = _owner(ruling)
    if obstacles.unpicked:
        yield f"set models of {by} to {[model]}" if ruling.policy.models is None else f"add {model!r} to models of {by}"
    if obstacles.excluding:
        yield f"drop {listed(obstacles.excluding)} from exclude of {by}"
    if obstacles.lacking:
        yield f"drop {listed(obstacles.lacking)} from capabilities of {by}"


def _of_policy(name: str, given: DecisionInput, changed: DecisionInput, by: str) -> str:
    """What to do about a field that a policy alone has."""
    if name == "regions":
        dropped = [region for region in given.regions if region not in changed.regions]
        return f"drop {', '.join(dropped)} from the regions of {by}"
    if name == "min_quality":
        return f"lower min_quality of {by} to {quality_text(changed.min_quality or 0)}"
    if changed.max_latency_ms is None:
        return f"drop max_latency_ms of {by}"
    return f"raise max_latency_ms of {by} to {changed.max_latency_ms}"


def _said(name: str, given: DecisionInput, changed: DecisionInput) -> list[str]:
    """What to do about a field of the request's."""
    match name:
        case "needs":
            return [_NO_NEED[need] for need in dropped_needs(given, changed)]
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


def _owner(ruling: Ruling) -> str:
    return f"policy {ruling.policy.name!r}" if ruling.policy.name else "the policy"


def reasons_of(row: BoolArray) -> list[Reason]:
    """The questions that one row of ``failures`` fails, in their order."""
    return [reason for reason, fails in zip(REASONS, row.tolist(), strict=True) if fails]
