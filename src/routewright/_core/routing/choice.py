"""Decides for one call: by the compiled plan of its class where that certainly holds, else by an input of its own.

    class_choice(call, budget)   a look-up and a few comparisons
    input_of_call(call)          the input of the long way, ``decide.choose``, which may raise ``CountTokens``

Nothing here changes the call. Money that its caller has left is an argument: it is known late, and may be too little
when it is asked for."""

from __future__ import annotations

from functools import partial

from routewright._core.call import Call
from routewright._core.money import PICOS_PER_NANO
from routewright.wire import DecisionInput, TokenBounds

from .budget import Room, limit_to
from .decide import Choice, find_plan, pays_for_any
from .inputs import RULES, Defaults, limits_of, request_fields
from .logarithms import SIZE_CLASSES, size_class
from .plan import Plan


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
    cost_nanos, tokens = (None, None) if request.budget is None else limits_of(request.budget)
    rules = None if call.policy is None else call.policy.policy
    return DecisionInput(
        catalogue=call.board.pool.snapshot.id,
        health=call.board.forecast.health.id,
        policy=None if call.policy is None else call.policy.id,
        as_of=call.as_of,
        tokens=call.bounds,
        default_output_cap=defaults.output_cap,
        budget_nanos=cost_nanos,
        budget_tokens=tokens,
        timeout_ms=call.timeout_ms,
        rules=RULES,
        workload=call.workload,
        warm=() if call.warm is None else call.warm.prefixes,
        policy_class=call.policy_class,
        assignment=call.assignment,
        requested=None if call.applied_policy is None else call.applied_policy.requested,
        spent=None if call.applied_policy is None else call.applied_policy.spent,
        **request_fields(request, call.asks, rules, defaults.max_retries),
    )


def limit_to_money(call: Call, own_input: DecisionInput, left_nanos: int) -> DecisionInput | None:
    """The input reduced to the money that is left; None if that certainly pays for no model."""
    inputs = limit_to(own_input, Room(left_nanos, None))
    if inputs == own_input:
        return own_input
    picos = (inputs.budget_nanos or 0) * PICOS_PER_NANO
    is_enough = call.board.forecast.costs_at_most(inputs.tokens.high, inputs.max_output_tokens, picos)
    return inputs if is_enough or pays_for_any(inputs, call.board) else None
