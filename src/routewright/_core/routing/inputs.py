"""Turns a request into the input of a decision: everything that counts, and no text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import astuple, replace

from routewright._core.catalogue.models import resolve, resolve_within
from routewright._core.money import budget_nanos
from routewright._core.request.read import needs_of
from routewright.wire import DecisionInput, Policy, PolicySnapshot, RouteRequest, TokenBounds

from .pool import Pool
from .quality import micro

RULES = 2
"""Version of the scoring rules, in every ``DecisionInput``: other rules cannot replay it."""
DEFAULT_RETRIES = 1
DEFAULT_TIMEOUT_MS = 60_000


def with_ids(request: RouteRequest, aliases: Mapping[str, str], known: Mapping[str, int]) -> RouteRequest:
    """Put ids in the place of aliases.

    Raises ``ValidationFailed`` for a model that the catalogue does not know, and for one of the chain or of those
    preferred that is outside the whitelist.
    """
    fallback, prefer, models = request.fallback, request.prefer, request.models
    if models is not None:
        models = resolve(models, aliases, known, "models")
    if fallback is not None and fallback.models is not None:
        chain = resolve_within(fallback.models, models, aliases, known, "fallback.models", "the chain")
        fallback = replace(fallback, models=chain)
    if prefer is not None:
        prefer = resolve_within(prefer, models, aliases, known, "prefer", "the preference")
    return replace(request, models=models, fallback=fallback, prefer=prefer)


def input_of(
    request: RouteRequest,
    tokens: TokenBounds,
    *,
    pool: Pool,
    health: str,
    policy: PolicySnapshot | None,
    as_of: str,
    default_output_cap: int,
) -> DecisionInput:
    """Make the input from a checked request that names ids and that its policy has been laid over."""
    params, budget, fallback = request.params, request.budget, request.fallback
    chain = None if fallback is None else fallback.models
    retries = None if fallback is None else fallback.max_retries
    output = None if params is None else params.max_output_tokens
    cost = None if budget is None else budget.max_cost_usd
    total = None if budget is None else budget.max_tokens
    return DecisionInput(
        catalogue=pool.snapshot.id,
        health=health,
        policy=None if policy is None else policy.id,
        as_of=as_of,
        tokens=tokens,
        needs=needs_of(request),
        goal=request.goal or "cost",
        strategy=request.strategy or "balanced",
        models=None if request.models is None else tuple(request.models),
        fallback=None if chain is None else tuple(chain),
        max_retries=DEFAULT_RETRIES if retries is None else int(retries),
        max_output_tokens=None if output is None else int(output),
        default_output_cap=default_output_cap,
        budget_nanos=None if cost is None else budget_nanos(cost),
        budget_tokens=None if total is None else int(total),
        timeout_ms=int(request.timeout_ms or DEFAULT_TIMEOUT_MS),
        rules=RULES,
        prefer=tuple(request.prefer or ()),
        **({} if policy is None else _own_rules(policy.policy)),
    )


def _own_rules(policy: Policy) -> dict[str, Any]:
    """What a policy alone can ask for."""
    weights, quality, latency = policy.weights, policy.min_quality, policy.max_latency_ms
    return {
        "regions": tuple(policy.regions or ()),
        "weights": None if weights is None else tuple(int(share) for share in astuple(weights)),
        "min_quality": None if quality is None else micro(quality),
        "max_latency_ms": None if latency is None else int(latency),
    }


def quality_column(qualities: Iterable[float]) -> tuple[int, ...]:
    """A predictor's qualities as the decision keeps them, in millionths. What is no number counts as nothing."""
    return tuple(0 if quality != quality else micro(float(quality)) for quality in qualities)
