"""The requirements of a checked request, and defaults for fields it leaves out (``choice.input_of_call``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import astuple, replace

from routewright._core.catalogue.models import resolve, resolve_within
from routewright._core.money import budget_nanos
from routewright._core.request.read import BITS, keeps_an_hour, needs_of, wishes_of
from routewright._core.request.rules import check_caller_extra, check_public_urls
from routewright.wire import Budget, Fallback, JsonObject, Params, PolicyRules, ReasoningBudget, Requested, RouteRequest

from .quality import micro
from .request_options import Requirements

RULES = 2  # version of the scoring rules, kept in every ``DecisionInput``: replay needs the same rules

_NO_RULES = PolicyRules()


class Defaults(NamedTuple):
    """Values for requests and policies that set none."""

    output_cap: int
    timeout_ms: int = 60_000
    max_retries: int = 1
    predicts: bool = False
    """The host predicts qualities for each prompt, so that no plan holds for a class of requests."""


def requirements_of(request: RouteRequest) -> Requirements:
    """The requirements of a checked request beyond text."""
    needs = needs_of(request)
    wishes = wishes_of(request)
    hour = bool(wishes) and keeps_an_hour(request)
    if request.params is None:
        return Requirements(needs, None, wishes, None, None, hour)
    cap = request.params.max_output_tokens
    reasoning = request.params.reasoning
    bound = int(reasoning.max_tokens) if isinstance(reasoning, ReasoningBudget) else None
    effort = reasoning if isinstance(reasoning, str) else None
    return Requirements(needs, None if cap is None else int(cap), wishes, effort, bound, hour)


def caller_requirements(
    requirements: Requirements, request: RouteRequest, caller_extra: Mapping[str, frozenset[str]] | None
) -> Requirements:
    """Add what only callers with a key require. Raises ``ValidationFailed`` for URLs and vendor fields that they may
    not send. ``request``: as the caller sent it, without a policy's vendor fields; without ``caller_extra`` they are
    the host's."""
    if caller_extra is not None and request.params is not None and request.params.extra:
        check_caller_extra(request.params.extra, caller_extra)
    if not requirements.needs & (BITS.IMAGE_URL | BITS.FILE_URL):
        return requirements
    check_public_urls(request.messages)
    return requirements._replace(needs=requirements.needs | BITS.CALLER_URL)


def with_ids(request: RouteRequest, aliases: Mapping[str, str], rows: Mapping[str, int]) -> RouteRequest:
    """Replace aliases by model ids. Raises ``ValidationFailed`` for an unknown model, and for a fallback or preferred
    model outside the whitelist."""
    fallback = request.fallback
    prefer = request.prefer
    models = None if request.models is None else resolve(request.models, aliases, rows, "models")
    if fallback is not None and fallback.models is not None:
        chain = resolve_within(fallback.models, models, aliases, rows, "fallback.models", "the chain")
        fallback = replace(fallback, models=chain)
    if prefer is not None:
        prefer = resolve_within(prefer, models, aliases, rows, "prefer", "the preference")
    return replace(request, models=models, fallback=fallback, prefer=prefer)


def request_fields(
    request: RouteRequest, requirements: Requirements | None, rules: PolicyRules | None, max_retries: int
) -> JsonObject:
    """The fields of a ``DecisionInput`` that a request and the policy applied to it determine, except time and
    budgets. ``max_retries`` is the default."""
    fallback = request.fallback or Fallback()
    rules = rules or _NO_RULES
    needs = {} if requirements is None else requirements._asdict()
    return {
        "goal": request.goal or "cost",
        "strategy": request.strategy or "balanced",
        "models": None if request.models is None else tuple(request.models),
        "fallback": None if fallback.models is None else tuple(fallback.models),
        "max_retries": max_retries if fallback.max_retries is None else int(fallback.max_retries),
        "prefer": tuple(request.prefer or ()),
        **needs,
        "regions": tuple(rules.regions or ()),
        "weights": None if rules.weights is None else tuple(int(share) for share in astuple(rules.weights)),
        "min_quality": None if rules.min_quality is None else micro(rules.min_quality),
        "max_latency_ms": None if rules.max_latency_ms is None else int(rules.max_latency_ms),
    }


def limits_of(budget: Budget | None) -> tuple[int | None, int | None]:
    """A budget in nano-dollars and tokens."""
    if budget is None:
        return None, None
    cost_nanos = None if budget.max_cost_usd is None else budget_nanos(budget.max_cost_usd)
    return cost_nanos, None if budget.max_tokens is None else int(budget.max_tokens)


def requested_of(request: RouteRequest, defaults: Defaults) -> Requested:
    """What a checked request with model ids sets itself, before a policy is applied."""
    fallback = request.fallback or Fallback()
    cost_nanos, tokens = limits_of(request.budget)
    return Requested(
        goal=request.goal or "cost",
        strategy=request.strategy or "balanced",
        models=None if request.models is None else tuple(request.models),
        fallback=None if fallback.models is None else tuple(fallback.models),
        prefer=tuple(request.prefer or ()),
        max_retries=None if fallback.max_retries is None else int(fallback.max_retries),
        timeout_ms=None if request.timeout_ms is None else int(request.timeout_ms),
        budget_nanos=cost_nanos,
        budget_tokens=tokens,
        params=None if request.params is None else _without_text(request.params),
        default_timeout_ms=defaults.timeout_ms,
        default_retries=defaults.max_retries,
    )


def _without_text(params: Params) -> Params:
    form = params.response_format
    return replace(
        params,
        stop=[""] if params.stop else params.stop,
        response_format=None if form is None else {"type": form.get("type")},
        extra=None,
    )


def quality_column(qualities: Iterable[float]) -> tuple[int, ...]:
    """A predictor's qualities in millionths; NaN becomes 0."""
    return tuple(0 if quality != quality else micro(float(quality)) for quality in qualities)
