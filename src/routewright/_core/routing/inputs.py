"""The requirements of a checked request, and defaults for fields it leaves out (``choice.input_of_call``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from routewright._core.catalogue.models import resolve, resolve_within
from routewright._core.request.read import BITS, keeps_an_hour, needs_of, wishes_of
from routewright._core.request.rules import check_caller_extra, check_public_urls
from routewright.wire import ReasoningBudget, RouteRequest

from .quality import micro
from .request_options import Requirements

RULES = 2  # version of the scoring rules, kept in every ``DecisionInput``: replay needs the same rules


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


def quality_column(qualities: Iterable[float]) -> tuple[int, ...]:
    """A predictor's qualities in millionths; NaN becomes 0."""
    return tuple(0 if quality != quality else micro(float(quality)) for quality in qualities)
