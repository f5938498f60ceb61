"""The dicts that options may be, in wire spelling, so that type checkers and editors know their keys. The struct of the
same name says what each means."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from .request import Effort, OnPartial, ServiceTier, Verbosity


class BudgetDict(TypedDict, total=False):
    """A ``Budget`` as a dict."""

    maxCostUsd: float | None
    maxTokens: float | None


class FallbackDict(TypedDict, total=False):
    """A ``Fallback`` as a dict."""

    models: list[str] | None
    maxRetries: float | None
    on_partial: OnPartial | None


class CacheOptsDict(TypedDict, total=False):
    """A ``CacheOpts`` as a dict."""

    mode: Literal["semantic", "exact"]
    max_error: float | None
    threshold: float | None
    ttl_seconds: float
    explore: float
    namespace: str | None


class ReasoningBudgetDict(TypedDict):
    """A ``ReasoningBudget`` as a dict."""

    max_tokens: float


class ParamsDict(TypedDict, total=False):
    """A ``Params`` as a dict."""

    temperature: float | None
    top_p: float | None
    max_output_tokens: float | None
    stop: str | list[str] | None
    seed: float | None
    response_format: dict[str, Any] | None
    reasoning: Effort | ReasoningBudgetDict | None
    parallel_tool_calls: bool | None
    service_tier: ServiceTier | None
    verbosity: Verbosity | None
    extra: dict[str, dict[str, Any]] | None
