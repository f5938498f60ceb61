"""What the service tells the world about: the ``data`` of pushed events (spec 6.3, contract 11)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import Struct

from .route import Budget

FallbackReason = Literal["upstream_5xx", "timeout", "budget", "safety"]


class FallbackTriggered(Struct, frozen=True):
    """The primary model failed and a fallback served the request."""

    type: ClassVar[str] = "router.fallback_triggered"
    trace_id: str
    primary_model: str
    fallback_model: str
    reason: FallbackReason
    primary_latency_ms: float
    metadata: dict[str, Any]


class BudgetRefused(Struct, frozen=True):
    """A request was rejected by a budget."""

    type: ClassVar[str] = "router.budget_exceeded"
    trace_id: str
    rejected_candidates: list[dict[str, Any]]
    budget: Budget | None
    metadata: dict[str, Any]


class PolicyChanged(Struct, frozen=True):
    """A policy was published, in another version than before or for the first time, or it was taken away."""

    type: ClassVar[str] = "router.policy_changed"
    policy_id: str
    name: str
    from_version: str | None
    """None: it is new."""
    to_version: str | None
    """None: it is gone."""


PushedEvent = FallbackTriggered | BudgetRefused | PolicyChanged
