"""Policies that people write by hand, checked by pydantic: TOML, JSON, or a Python file with a list ``policies``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from routewright.wire import (
    Budget,
    CacheOpts,
    Capability,
    Goal,
    GuardrailAction,
    OnPartial,
    PatternKind,
    Policy,
    PolicyFallback,
    PolicyGuardrail,
    PolicyWeights,
    Stage,
    Strategy,
)

from ._core.policy import check_apart, checked_policy
from ._core.request.problems import shown
from .config import STRICT, Name, Share, Strict, Switch, shaped, within
from .document import Document, path_of, read, read_module
from .errors import Problem, ValidationFailed


def _cache_kind(value: object) -> str:
    return "<switch>" if isinstance(value, bool) else "<table>"


class WeightsEntry(Strict):
    """What counts how much in the score: whole per cent that make 100."""

    quality: Annotated[int, STRICT, within(PolicyWeights, "quality")]
    """Of the answer, by the catalogue or your own prediction."""
    cost: Annotated[int, STRICT, within(PolicyWeights, "cost")]
    """Expected, of the request."""
    latency: Annotated[int, STRICT, within(PolicyWeights, "latency")]
    """Expected, to the whole answer."""
    stability: Annotated[int, STRICT, within(PolicyWeights, "stability")]
    """Share of calls that succeed."""


class FallbackEntry(Strict):
    """A policy's own chain."""

    models: tuple[str, ...] | None = None
    """The chain, in this order: ids and aliases of models that the policy allows; `[]` for none."""
    max_retries: Annotated[int, STRICT, within(PolicyFallback, "max_retries")] | None = None
    """Further tries of one model."""
    on_partial: OnPartial | None = None
    """What follows when a model fails within its answer."""
    on_refusal: Literal["fail", "fallback"] = "fail"
    """`fallback`: ask the next model when a provider's moderation refuses."""
    hedge: Switch = False
    """Ask the next model, too, where the first shows no life for longer than it usually takes."""


class BudgetEntry(Strict):
    """A policy's budget per request."""

    max_cost_usd: Annotated[float, STRICT, within(Budget, "max_cost_usd")] | None = None
    """Dollars for all attempts together."""
    max_tokens: Annotated[int, STRICT, within(Budget, "max_tokens")] | None = None
    """Input and output tokens together."""


class CacheEntry(Strict):
    """How a policy's requests may be answered from the cache. Checked, without effect yet."""

    mode: Literal["semantic", "exact"] = "semantic"
    """Answers of similar requests, or of the same alone."""
    max_error: Share | None = None
    """Share of requests that may get a wrong answer; or else ..."""
    threshold: Share | None = None
    """... how similar a request must be."""
    ttl_seconds: Annotated[float, STRICT, within(CacheOpts, "ttl_seconds")] = 3600
    """How long an answer is kept."""
    explore: Share = 0.02
    """Share of hits that are answered anew, to measure the error."""
    namespace: str | None = None
    """Keeps answers apart."""


class GuardrailEntry(Strict):
    """What a policy redacts or blocks."""

    patterns: tuple[PatternKind, ...] | None = None
    """Kinds of data to look for."""
    deny: tuple[str, ...] | None = None
    """Words and phrases to look for, in any case."""
    action: GuardrailAction
    """What is done with what is found."""
    stages: tuple[Stage, ...] | None = None
    """Where to look: by default in both."""

    def guardrail(self) -> PolicyGuardrail:
        """The guardrail as the library knows it."""
        return PolicyGuardrail(
            patterns=_list(self.patterns), deny=_list(self.deny), action=self.action, stages=_list(self.stages)
        )


CacheSetting = Annotated[
    Annotated[bool, Tag("<switch>")] | Annotated[CacheEntry, Tag("<table>")], Discriminator(_cache_kind)
]


class PolicyEntry(Strict):
    """One policy."""

    name: Name
    """How requests call it; without `@`."""
    id: str = ""
    """The other way to call it. Made from the name, so it stays the same everywhere."""
    goal: Goal | None = None
    """In the place of the request's."""
    strategy: Strategy | None = None
    """In the place of the request's."""
    weights: WeightsEntry | None = None
    """In the place of goal and strategy, which must then be left out."""
    models: tuple[str, ...] | None = None
    """What is allowed: ids, aliases, globs, `provider:x`, `tag:x`, `capability:x`."""
    exclude: tuple[str, ...] | None = None
    """What of these is not, in the same words."""
    capabilities: tuple[Capability, ...] | None = None
    """Only models that can do all of these."""
    regions: tuple[Name, ...] | None = None
    """Only models known to be served from all of these."""
    min_quality: Annotated[float, STRICT, within(Policy, "min_quality")] | None = None
    """Only models of at least this quality."""
    max_latency_ms: Annotated[int, STRICT, within(Policy, "max_latency_ms")] | None = None
    """Only models whose whole answer is expected within this time."""
    prefer: tuple[str, ...] | None = None
    """Tried first, in this order, where they pass: ids and aliases of models that the policy allows."""
    fallback: FallbackEntry | None = None
    """The chain, in the place of ours."""
    budget: BudgetEntry | None = None
    """The most that a request may use."""
    cache: CacheSetting | None = None
    """Whether and how answers may come from the cache. Checked, without effect yet."""
    timeout_ms: Annotated[int, STRICT, within(Policy, "timeout_ms")] | None = None
    """For everything."""
    guardrails: tuple[GuardrailEntry, ...] | None = None
    """What is redacted or blocked, in this order. Several tables."""

    def policy(self) -> Policy:
        """The policy as the library knows it."""
        return Policy(
            name=self.name,
            id=self.id,
            goal=self.goal,
            strategy=self.strategy,
            weights=None if self.weights is None else PolicyWeights(**self.weights.model_dump()),
            models=_list(self.models),
            exclude=_list(self.exclude),
            capabilities=_list(self.capabilities),
            regions=_list(self.regions),
            min_quality=self.min_quality,
            max_latency_ms=self.max_latency_ms,
            prefer=_list(self.prefer),
            fallback=None if self.fallback is None else _fallback(self.fallback),
            budget=None if self.budget is None else Budget(self.budget.max_cost_usd, self.budget.max_tokens),
            cache=CacheOpts(**self.cache.model_dump()) if isinstance(self.cache, CacheEntry) else self.cache,
            timeout_ms=self.timeout_ms,
            guardrails=None if self.guardrails is None else [each.guardrail() for each in self.guardrails],
        )


class PoliciesFile(Strict):
    """Policies."""

    policies: tuple[PolicyEntry, ...]


def read_policies(given: str | Path) -> list[Policy]:
    """Read policies from a file: TOML, JSON, or Python with a list ``policies`` of dicts or of ``Policy``.

    A Python file is run, so take none from others. Raises ``ValidationFailed`` naming file, line and key. Whether the
    models exist is asked by the Router, which knows those of its providers, too.
    """
    document = read_document(given)
    with document.naming():
        return policies_of(document)


def read_document(given: str | Path) -> Document:
    """Read a file of policies, whatever it says. Raises ``ValidationFailed`` naming file and line."""
    path = path_of(given)
    return read_module(path, "policies") if path.suffix.lower() == ".py" else read(path)


def policies_of(document: Document) -> list[Policy]:
    """What a file says, checked. Raises ``ValidationFailed`` naming the key."""
    policies = [checked_policy(policy, place) for place, policy in enumerate(_policies(document))]
    check_apart(policies)
    return policies


def _policies(document: Document) -> list[Policy]:
    """What the file says, where a file of Python may have made some by itself."""
    content = document.content
    if not isinstance(content, dict) or "policies" not in content:
        shaped(content, PoliciesFile)
    items: Sequence[Any] = content["policies"]
    if not isinstance(items, list | tuple):  # an iterator, say, which is empty once it was looked at
        raise ValidationFailed.of(Problem("policies", f"must be an array, got {shown(items)}", ""))
    plain = [{"name": "made"} if isinstance(item, Policy) else item for item in items]
    entries = shaped(content | {"policies": plain}, PoliciesFile).policies
    return [item if isinstance(item, Policy) else entry.policy() for item, entry in zip(items, entries, strict=True)]


def _list(words: Sequence[Any] | None) -> list[Any] | None:
    return None if words is None else [*words]


def _fallback(entry: FallbackEntry) -> PolicyFallback:
    return PolicyFallback(_list(entry.models), entry.max_retries, entry.on_partial, entry.on_refusal, entry.hedge)
