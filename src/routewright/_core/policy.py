"""What a policy makes of a request, and how its versions are named (contract 2)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

import msgspec

from routewright.errors import NoCandidates, Problem, ValidationFailed
from routewright.wire import Budget, CacheOpts, Fallback, Policy, PolicyFallback, PolicySnapshot, RouteRequest

from .catalogue import content_id
from .ids import ALPHABET
from .problem import did_you_mean

N = TypeVar("N", int, float)


def policy_id(name: str) -> str:
    """The id of a policy that brings none: ``pol_`` and 26 characters from the hash of its name."""
    number = int.from_bytes(blake2b(name.encode(), digest_size=17).digest(), "big")
    return "pol_" + "".join(ALPHABET[(number >> shift) & 31] for shift in range(0, 130, 5))


def find_policy(key: str, policies: Sequence[Policy]) -> Policy:
    """Look a policy up by id or name. Raises ``ValidationFailed`` naming the nearest."""
    for policy in policies:
        if key in (policy.id, policy.name):
            return policy
    known = [name for policy in policies for name in (policy.id, policy.name)]
    hint = did_you_mean(key, known) or "pass it to Router(policies=...)"
    raise ValidationFailed.of(Problem("policy_id", f"unknown policy {key!r}", hint))


def under_policy(request: RouteRequest, policy: Policy) -> RouteRequest:
    """The request as the policy lets it be. Raises ``NoCandidates`` where the two model lists share nothing."""
    return msgspec.structs.replace(
        request,
        **_direction(request, policy),
        models=_common_models(request, policy),
        budget=_smaller_budget(request.budget, policy.budget),
        timeout_ms=_smaller(request.timeout_ms, policy.timeout_ms),
        fallback=_fallback(request.fallback, policy),
        cache=_narrower(request.cache, policy.cache),
    )


def _direction(request: RouteRequest, policy: Policy) -> dict[str, str | None]:
    """Goal and strategy: the policy's where it names either, with its defaults for the other, else the request's."""
    if policy.goal is None and policy.strategy is None:
        return {"goal": request.goal, "strategy": request.strategy}
    strategy = policy.strategy or "balanced"
    return {"goal": policy.goal or ("quality" if strategy == "quality-first" else "cost"), "strategy": strategy}


def _common_models(request: RouteRequest, policy: Policy) -> list[str] | None:
    if request.models is None or policy.models is None:
        return policy.models if request.models is None else request.models
    common = [model for model in request.models if model in policy.models]
    if not common:
        raise NoCandidates(
            f"models {request.models} and those of policy {policy.name!r}, {policy.models}, have none in common; "
            "ask for one of the policy's",
            detail={"rejected_candidates": [], "suggestion": f"ask for one of {policy.models}"},
        )
    return common


def _smaller_budget(asked: Budget | None, given: Budget | None) -> Budget | None:
    if asked is None or given is None:
        return given if asked is None else asked
    return Budget(_smaller(asked.max_cost_usd, given.max_cost_usd), _smaller(asked.max_tokens, given.max_tokens))


def _smaller(first: N | None, second: N | None) -> N | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _fallback(asked: Fallback | None, policy: Policy) -> Fallback | None:
    """The request's chain replaces the policy's, within the policy's models."""
    if asked is None and policy.fallback is None:
        return None
    asked, given = asked or Fallback(), policy.fallback or PolicyFallback()
    models = given.models if asked.models is None else asked.models
    if asked.models is not None and policy.models is not None:
        models = [model for model in asked.models if model in policy.models]
    return Fallback(
        models,
        given.max_retries if asked.max_retries is None else asked.max_retries,
        asked.on_partial or given.on_partial,
    )


def _narrower(asked: bool | CacheOpts | None, given: bool | CacheOpts | None) -> bool | CacheOpts | None:
    """A request may switch a policy's cache off or tighten it, never widen it."""
    if given is None or asked is False:
        return asked
    if given is False:
        return False
    if asked is None or asked is True:
        return given
    if given is True:
        return asked
    return msgspec.structs.replace(
        asked,
        mode="exact" if "exact" in (asked.mode, given.mode) else "semantic",
        ttl_seconds=min(asked.ttl_seconds, given.ttl_seconds),
        **_narrower_bound(asked, given),
    )


def _narrower_bound(asked: CacheOpts, given: CacheOpts) -> dict[str, float | None]:
    """The stricter of two bounds of one sort; where they are of two sorts, the policy's."""
    if given.threshold is not None:
        return {"max_error": None, "threshold": max(asked.threshold or 0.0, given.threshold)}
    if given.max_error is not None:
        return {"max_error": _smaller(asked.max_error, given.max_error), "threshold": None}
    return {"max_error": asked.max_error, "threshold": asked.threshold}


def publish(policies: Sequence[Policy], today: str) -> list[PolicySnapshot]:
    """Give policies their ids, dates and versions. ``today`` as ``YYYY-MM-DD``, for those that bring no date.

    Raises ``ValidationFailed`` for names that are empty, hold an ``@`` or stand twice.
    """
    published: list[PolicySnapshot] = []
    for policy in policies:
        _check_name(policy.name, published)
        full = msgspec.structs.replace(
            policy, id=policy.id or policy_id(policy.name), created_at=policy.created_at or f"{today}T00:00:00Z"
        )
        version = f"{policy.name}@{(full.created_at or today)[:10]}"
        if any(full.id in (other.policy.id, other.policy.name) for other in published):
            raise ValidationFailed.of(Problem("policies", f"id {full.id!r} stands twice", "give each policy its own"))
        published.append(PolicySnapshot("pos_" + content_id([version, full]), version, full))
    return published


def _check_name(name: str, published: Sequence[PolicySnapshot]) -> None:
    if not name or "@" in name:
        problem = Problem(
            "policies", f"name {name!r}", "a name is not empty and holds no '@', which parts off the date"
        )
        raise ValidationFailed.of(problem)
    if any(name == snapshot.policy.name for snapshot in published):
        raise ValidationFailed.of(Problem("policies", f"{name!r} stands twice", "give each policy its own name"))
