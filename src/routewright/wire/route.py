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
    """The chain, in this order. Default: the next best that fit."""
    max_retries: float | None = field(default=None, name="maxRetries")
    """Further tries of the same model on a fault that may pass. Default: 1."""
    on_partial: OnPartial | None = None
    """What follows where a stream breaks: ``restart`` gives the next model's answer from its start."""


class Budget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A promise over all attempts of a call: US dollars, and tokens (input and output together)."""

    max_cost_usd: float | None = field(default=None, name="maxCostUsd")
    """US dollars."""
    max_tokens: float | None = field(default=None, name="maxTokens")
    """Input and output together."""


class CacheOpts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a call may be answered from the cache: ``max_error`` or ``threshold``, not both; ``ttl_seconds``."""

    mode: Literal["semantic", "exact"] = "semantic"
    """``exact``: only the same request again."""
    max_error: float | None = None
    """Share of all requests that may get a wrong cached answer. Default: 0.01."""
    threshold: float | None = None
    """Similarity from which on an answer is taken."""
    ttl_seconds: float = 3600
    """So long an answer is kept."""
    explore: float = 0.02
    """Share of the hits that are answered live all the same, to see whether they were right."""
    namespace: str | None = None
    """Keeps entries apart."""


class Params(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sampling parameters that are passed on to the model."""

    temperature: float | None = None
    """How much chance there is in the answer."""
    top_p: float | None = None
    """Only the likeliest words, up to this share."""
    max_output_tokens: float | None = None
    """The longest answer, thinking included."""
    stop: str | list[str] | None = None
    """What ends the answer, and is not in it."""
    seed: float | None = None
    """For answers that are alike where the rest is."""
    response_format: dict[str, Any] | None = None
    """``text``, ``json_object``, or ``json_schema`` with a schema."""


class RouteRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Body of ``POST /v1/route`` and the one shape behind everything ``Router.route`` accepts (spec 2.1)."""

    messages: list[Message]
    """The chat, at most 1,000 messages."""
    goal: Goal | None = None
    """What matters most. Default: ``cost``; ``quality`` with the strategy ``quality-first``."""
    strategy: Strategy | None = None
    """How goals are weighed. Default: ``balanced``."""
    policy_id: str | None = None
    """Id or name of a policy, whose goal and strategy hold in the place of those here."""
    models: list[str] | None = None
    """Only these models, by ids or aliases. Default: all that can be called."""
    fallback: Fallback | None = None
    """In the place of the default chain."""
    budget: Budget | None = None
    """A hard limit over all attempts."""
    cache: bool | CacheOpts | None = None
    """Whether the answer may come from the cache. Default: no."""
    stream: bool = False
    """Over HTTP: answer with server-sent events."""
    tools: list[Tool] | None = None
    """Functions that the model may call, each of another name."""
    tool_choice: str | NamedToolChoice | None = None
    """``auto``, ``none``, ``required``, the name of a declared tool, or the common object that names one."""
    params: Params | None = None
    """Passed on to the model."""
    metadata: dict[str, Any] | None = None
    """Tags, kept in the trace: any JSON of at most 16 KiB."""
    timeout_ms: float | None = None
    """For everything: choice, tries, pauses, fallbacks, the stream. Default: 60,000."""
    idempotency_key: str | None = None
    """At most 64 bytes in UTF-8: under one key the same call is made and billed once in 24 hours."""
    prefer: str | list[str] | None = None
    """Models that are tried first, in this order, where they pass every constraint: an id, an alias, or a list."""


class Tokens(Struct, frozen=True):
    """Token counts of a call; ``cached`` are those of ``input`` that the provider read from its prompt cache."""

    input: int = 0
    output: int = 0
    cached: int = 0


class Routing(Struct, frozen=True):
    """How the request was served (spec 2.2)."""

    selected_model: str
    """The one that served."""
    fallback_chain: list[str]
    """Those that would have followed, in order."""
    policy_version: str
    """``<policy_name>@<date>``; ``inline@<date>`` without a policy."""
    decision_reason: str
    """One sentence from the decision's own numbers."""
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
    """The model's text."""
    routing: Routing
    usage: WindowUsage
    primary_model: str
    """The one that was chosen."""
    fallback_model: str | None
    """The one that served in its place; None: nobody had to."""
    cache_hit: bool
    tool_calls: list[ToolCall] | None = None
    """What the model wants called."""
    finish_reason: str | None = None
    """Why the answer ended: ``stop``, ``length``, ``tool_calls``, ``budget`` where the budget's cap cut it, or
    ``other`` for a vendor's word that nobody knows."""
