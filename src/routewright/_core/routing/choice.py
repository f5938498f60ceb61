"""Decides for one call: by the compiled plan of its class where that certainly holds, else by an input of its own.

    class_choice(call, budget)   a look-up and a few comparisons
    input_of_call(call)          the input of the long way, ``decide.choose``, which may raise ``CountTokens``

Nothing here changes the call. Money that its caller has left is an argument: it is known late, and may be too little
when it is asked for."""

from __future__ import annotations

from functools import partial

from msgspec.structs import astuple

from routewright._core.call import Call
from routewright._core.money import PICOS_PER_NANO, budget_nanos
from routewright.wire import Budget, DecisionInput, Fallback, JsonObject, Policy, TokenBounds

from .budget import Room, limit_to
from .decide import Choice, find_plan, pays_for_any
from .inputs import RULES, Defaults
from .logarithms import SIZE_CLASSES, size_class
from .plan import Plan
from .quality import micro


def class_choice(call: Call, budget: Room | None, defaults: Defaults) -> Choice | None:
    """The compiled plan of the call's class, if it certainly is that of the call within ``budget``. Calls that list
    models have no class: the number of classes must not be up to clients."""
    if defaults.predicts or call.has_lists or (call.warm is not None and call.warm.prefixes):
        return None
    request = call.request
    board = call.board
    bounds = call.bounds
    size = SIZE_CLASSES[bounds.estimate] if bounds.estimate < len(SIZE_CLASSES) else size_class(bounds.estimate)
    retries = None if request.fallback is None else request.fallback.max_retries
    key = (call.snapshot_ids[2], request.goal, request.strategy, call.asks, size, retries, call.day, call.workload)
    entry = board.lineage.plans[key]
    if entry is not None and entry.version == board.version:
        plan = entry.value
    else:
        plan = find_plan(board, key, partial(input_of_call, call, defaults))
    return Choice(plan, None, budget) if plan is not None and covers(plan, bounds, call.timeout_ms, budget) else None


def covers(plan: Plan, tokens: TokenBounds, timeout_ms: int, budget: Room | None = None) -> bool:
    """True if a call of the plan's class is certainly decided the same way."""
    high = tokens.high
    if high > plan.max_high or timeout_ms < plan.max_latency_ms or tokens.counted or tokens.images:
        return False
    if budget is None or (budget.nanos is None and budget.tokens is None):
        return True
    if high > plan.flat_to:  # rejections could not be counted later
        return False
    if budget.tokens is not None and high + plan.worst_held > budget.tokens:
        return False
    return budget.nanos is None or high * plan.worst_input + plan.worst_output <= budget.nanos * PICOS_PER_NANO


def input_of_call(call: Call, defaults: Defaults) -> DecisionInput:
    """The input of a decision for the call alone: everything that it depends on, and no text."""
    request = call.request
    budget = request.budget or Budget()
    fallback = request.fallback or Fallback()
    return DecisionInput(
        catalogue=call.board.pool.snapshot.id,
        health=call.board.forecast.health.id,
        policy=None if call.policy is None else call.policy.id,
        as_of=call.as_of,
        tokens=call.bounds,
        goal=request.goal or "cost",
        strategy=request.strategy or "balanced",
        models=None if request.models is None else tuple(request.models),
        fallback=None if fallback.models is None else tuple(fallback.models),
        max_retries=defaults.max_retries if fallback.max_retries is None else int(fallback.max_retries),
        default_output_cap=defaults.output_cap,
        budget_nanos=None if budget.max_cost_usd is None else budget_nanos(budget.max_cost_usd),
        budget_tokens=None if budget.max_tokens is None else int(budget.max_tokens),
        timeout_ms=call.timeout_ms,
        rules=RULES,
        prefer=tuple(request.prefer or ()),
        workload=call.workload,
        warm=() if call.warm is None else call.warm.prefixes,
        policy_class=call.policy_class,
        assignment=call.assignment,
        **({} if call.asks is None else call.asks._asdict()),
        **({} if call.policy is None else _own_rules(call.policy.policy)),
    )


def _own_rules(policy: Policy) -> JsonObject:
    """The fields that only a policy can set."""
    return {
        "regions": tuple(policy.regions or ()),
        "weights": None if policy.weights is None else tuple(int(share) for share in astuple(policy.weights)),
        "min_quality": None if policy.min_quality is None else micro(policy.min_quality),
        "max_latency_ms": None if policy.max_latency_ms is None else int(policy.max_latency_ms),
    }


def limit_to_money(call: Call, own_input: DecisionInput, left_nanos: int) -> DecisionInput | None:
    """The input reduced to the money that is left; None if that certainly pays for no model."""
    inputs = limit_to(own_input, Room(left_nanos, None))
    if inputs == own_input:
        return own_input
    picos = (inputs.budget_nanos or 0) * PICOS_PER_NANO
    is_enough = call.board.forecast.costs_at_most(inputs.tokens.high, inputs.max_output_tokens, picos)
    return inputs if is_enough or pays_for_any(inputs, call.board) else None
