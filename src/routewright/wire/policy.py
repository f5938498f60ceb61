"""Routing policies (spec 2.7), which a request names by ``policy_id``, and the verdicts of guardrails."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .request import Budget, CacheOpts, Goal, OnPartial, Strategy

Stage = Literal["input", "output"]
"""Where a text is checked: on its way to a model, or on its way back."""
GuardrailAction = Literal["redact", "block"]
PatternKind = Literal["email", "phone", "card", "iban", "api_key"]


class Allow(Struct, frozen=True):
    """Nothing was found."""


class Redaction(Struct, frozen=True):
    """What stands from ``start`` up to ``end``, in characters, is replaced by a word."""

    start: int
    end: int
    rule: str
    replacement: str = "[redacted]"


class Redact(Struct, frozen=True):
    """The text may pass without these parts. They stand in its order and do not overlap."""

    parts: tuple[Redaction, ...]


class Block(Struct, frozen=True):
    """The text may not pass."""

    rule: str


Verdict = Allow | Redact | Block


class PolicyFallback(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A policy's chain. ``on_refusal="fallback"`` asks another provider when one refuses the content."""

    models: list[str] | None = None
    max_retries: float | None = None
    on_partial: OnPartial | None = None
    on_refusal: Literal["fail", "fallback"] = "fail"
    hedge: bool = False
    """Ask the next model, too, where the first shows no life for longer than it usually takes."""


class PolicyWeights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts how much in the score, in per cent: whole numbers that make 100."""

    quality: float
    cost: float
    latency: float
    stability: float


class PolicyGuardrail(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a policy redacts or blocks: kinds of data, words, or both."""

    patterns: list[PatternKind] | None = None
    deny: list[str] | None = None
    """Words and phrases."""
    action: GuardrailAction
    stages: list[Stage] | None = None
    """Default: input and output."""


Capability = Literal["image", "tools", "json", "reasoning"]


class Policy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Named rules. Goal and strategy override a request's; limits and lists can only be narrowed by it."""

    name: str
    """Without ``@``, which parts the name from the date in ``policy_version``."""
    id: str = ""
    """Default: ``pol_`` and 26 characters made from the name."""
    created_at: str | None = None
    """RFC 3339. Default: when the storage first saw this content."""
    goal: Goal | None = None
    strategy: Strategy | None = None
    weights: PolicyWeights | None = None
    """In the place of the table that goal and strategy stand for."""
    models: list[str] | None = None
    """What is allowed: ids, aliases, globs (``openai/*``), ``provider:openai``, ``tag:eu``, ``capability:image``."""
    exclude: list[str] | None = None
    """What of these is not, written in the same ways."""
    capabilities: list[Capability] | None = None
    """Only models that can do all of these."""
    regions: list[str] | None = None
    """Only models known to be served from all of these."""
    min_quality: float | None = None
    """Only models of at least this quality, 0 to 1."""
    max_latency_ms: float | None = None
    """Only models whose whole answer is expected within this time."""
    prefer: list[str] | None = None
    """Ids and aliases of models that are tried first, in this order, after those that the request prefers."""
    fallback: PolicyFallback | None = None
    budget: Budget | None = None
    cache: bool | CacheOpts | None = None
    timeout_ms: float | None = None
    guardrails: list[PolicyGuardrail] | None = None
    """In this order: each sees what the one before has left."""
