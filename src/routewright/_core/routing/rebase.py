"""The input of a stored decision under another policy. Needs no text, since inputs have none."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from routewright import wire
from routewright._core.policy import apply_policy, class_of
from routewright._core.request.read import BITS

from .inputs import limits_of, request_fields, requirements_of

_OF_MESSAGES = (
    BITS.IMAGE | BITS.IMAGE_URL | BITS.HTTP_URL | BITS.AUDIO | BITS.FILE | BITS.FILE_URL | BITS.CALLER_URL
)  # needs that come from the messages, which no policy changes
_NOTHING = wire.Requested()


def rebase(
    decision_input: wire.DecisionInput,
    old: wire.PolicySnapshot | None,
    new: wire.PolicySnapshot | None,
    metadata: Mapping[str, object],
) -> wire.DecisionInput:
    """The input of the same request under the policy ``new``; None: without one. ``old`` is the policy (or its class)
    that the input names; None: it has none, and is taken to have set what differs from the defaults. Raises
    ``ValidationFailed`` if the policy refuses the request."""
    # What a policy changes cannot be read back from the result: a list of models may be the request's or the policy's,
    # a temperature overrides the policy's even if it is the default. So the request is rebuilt from what it set, and
    # goes through the same `apply_policy` as the original one: two copies of these rules would drift apart.
    # test_rebasing_is_applying_the_other_policy
    name = ""
    rules = new
    if new is not None:
        rules, name = class_of(new, metadata, decision_input.spent)
        if rules.id == decision_input.policy and name == decision_input.policy_class:
            return decision_input
    needs = decision_input.needs
    requested = decision_input.requested or _infer(decision_input)
    request = wire.RouteRequest(
        messages=[],
        goal=requested.goal,
        strategy=requested.strategy,
        models=_as_list(requested.models),
        fallback=wire.Fallback(_as_list(requested.fallback), requested.max_retries),
        prefer=[*requested.prefer],
        timeout_ms=requested.timeout_ms,
        params=requested.params,
        tools=[wire.Tool()] if needs & BITS.TOOLS else None,
        tool_choice="required" if needs & BITS.TOOL_CHOICE else None,
    )
    if rules is not None:
        request = apply_policy(request, rules)
    asks = requirements_of(request)
    is_own = decision_input.requested is None  # without a policy, all needs and wishes are the request's
    asks = asks._replace(
        needs=asks.needs | (needs if is_own else needs & _OF_MESSAGES),
        wishes=asks.wishes | decision_input.wishes & (BITS.CACHE_CONTROL | (BITS.VERBOSITY if is_own else 0)),
        hour_cache=decision_input.hour_cache,
    )
    before = limits_of(None if old is None else old.policy.budget)
    after = limits_of(request.budget)
    return replace(
        decision_input,
        policy=None if rules is None else rules.id,
        policy_class=name,
        timeout_ms=requested.default_timeout_ms if request.timeout_ms is None else int(request.timeout_ms),
        budget_nanos=_limit(decision_input.budget_nanos, requested.budget_nanos, before[0], after[0]),
        budget_tokens=_limit(decision_input.budget_tokens, requested.budget_tokens, before[1], after[1]),
        requested=None if rules is None else decision_input.requested,
        **request_fields(request, asks, None if rules is None else rules.policy, requested.default_retries),
    )


def _as_list(models: tuple[str, ...] | None) -> list[str] | None:
    return None if models is None else [*models]


def _limit(stored: int | None, requested: int | None, before: int | None, after: int | None) -> int | None:
    """The limit under the new policy. A stored limit below those of request and old policy is what the caller's purse
    or a shared budget left; it still applies."""
    limits = [limit for limit in (requested, after) if limit is not None]
    if stored is not None and stored not in (requested, before):
        limits.append(stored)
    return min(limits, default=None)


def _infer(decision_input: wire.DecisionInput) -> wire.Requested:
    """What a request without a policy probably set itself, beside its needs: what differs from the defaults."""
    wishes = decision_input.wishes
    bound = decision_input.thinking_tokens
    params = wire.Params(
        max_output_tokens=decision_input.max_output_tokens,
        reasoning=decision_input.effort if bound is None else wire.ReasoningBudget(bound),
        service_tier="flex" if wishes & BITS.FLEX else "priority" if wishes & BITS.PRIORITY else None,
    )
    names = "goal", "strategy", "models", "fallback", "prefer", "budget_nanos", "budget_tokens"
    timeout_ms = decision_input.timeout_ms
    retries = decision_input.max_retries
    return wire.Requested(
        **{name: getattr(decision_input, name) for name in names},
        max_retries=None if retries == _NOTHING.default_retries else retries,
        timeout_ms=None if timeout_ms == _NOTHING.default_timeout_ms else timeout_ms,
        params=params,
    )
