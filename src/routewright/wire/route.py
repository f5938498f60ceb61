"""The route request and its response (spec 2.1, 2.2). Wire spellings are aliases; numbers arrive as floats."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from .chat import Message, NamedToolChoice, Tool, ToolCall

Goal = Literal["cost", "quality", "stability"]
Strategy = Literal["balanced", "cost-optimized", "quality-first", "latency-optimized"]
OnPartial = Literal["restart", "error"]


class Fallback(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Replaces the default chain. ``models=[]`` means no fallback; ``max_retries`` are further tries of one model."""

    models: list[str] | None = None
    max_retries: float | None = field(default=None, name="maxRetries")
    on_partial: OnPartial | None = None


class Budget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A promise over all attempts of a call: US dollars, and tokens (input and output together)."""

    max_cost_usd: float | None = field(default=None, name="maxCostUsd")
    max_tokens: float | None = field(default=None, name="maxTokens")


class CacheOpts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a call may be answered from the cache: ``max_error`` or ``threshold``, not both; ``ttl_seconds``."""

    mode: Literal["semantic", "exact"] = "semantic"
    max_error: float | None = None
    threshold: float | None = None
    ttl_seconds: float = 3600
    explore: float = 0.02
    namespace: str | None = None


class Params(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sampling parameters that are passed on to the model."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: float | None = None
    stop: str | list[str] | None = None
    seed: float | None = None
    response_format: dict[str, Any] | None = None


class RouteRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Body of ``POST /v1/route`` and the one shape behind everything ``Router.route`` accepts (spec 2.1)."""

    messages: list[Message]
    goal: Goal | None = None
    strategy: Strategy | None = None
    policy_id: str | None = None
    models: list[str] | None = None
    fallback: Fallback | None = None
    budget: Budget | None = None
    cache: bool | CacheOpts | None = None
    stream: bool = False
    tools: list[Tool] | None = None
    tool_choice: str | NamedToolChoice | None = None
    params: Params | None = None
    metadata: dict[str, Any] | None = None
    timeout_ms: float | None = None
    idempotency_key: str | None = None


class Tokens(Struct, frozen=True):
    """Token counts of a call; ``cached`` are those of ``input`` that the provider read from its prompt cache."""

    input: int = 0
    output: int = 0
    cached: int = 0


class Routing(Struct, frozen=True):
    """How the request was served (spec 2.2)."""

    selected_model: str
    fallback_chain: list[str]
    policy_version: str
    decision_reason: str
    cost_usd: float
    """Sum over every attempt that produced tokens."""
    latency_ms: float
    """The whole call, as the router saw it."""
    cache_hit: bool
    tokens: Tokens


class WindowUsage(Struct, frozen=True):
    """What is left of the request window; without a limit 2^53 - 1 and the end of the minute."""

    rate_limit_remaining: int
    """Requests, of the account's limit or the key's, whichever has fewer left."""
    rate_limit_reset_unix: int
    """When all of that limit is free again if nobody asks for more, in Unix seconds."""


class RouteResponse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fuller response shape with the short form's fields (spec 2.2)."""

    trace_id: str
    output: str
    routing: Routing
    usage: WindowUsage
    primary_model: str
    fallback_model: str | None
    cache_hit: bool
    tool_calls: list[ToolCall] | None = None
    finish_reason: str | None = None
