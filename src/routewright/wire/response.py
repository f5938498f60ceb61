"""The route response, and the error and list envelopes (spec 2.2, 2.8, 7)."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from msgspec import field

from routewright.errors import RouterError

from .plain import Struct
from .request import Reasoning, ToolCall


class Tokens(Struct, frozen=True, gc=False, omit_defaults=True):
    """Token counts of a call; ``cached`` are those of ``input`` that the provider read from its prompt cache."""

    # zeros that are written all the same: of fields without a default value nothing is left out
    input: int = field(default_factory=int)
    output: int = field(default_factory=int)
    cached: int = field(default_factory=int)
    reasoning: int = 0
    """Reasoning tokens, part of ``output``. Only in responses, if there are any."""
    written: int = 0
    """Tokens written to the provider's prompt cache, part of ``input``. Only in responses, if there are any."""


class Routing(Struct, frozen=True, omit_defaults=True):
    """How the request was served (spec 2.2)."""

    selected_model: str
    """The model that served the request."""
    fallback_chain: list[str]
    """Planned fallbacks, in order."""
    policy_version: str
    """``<policy_name>@<date>``; ``inline@<date>`` without a policy."""
    decision_reason: str
    """One sentence from the decision's own numbers."""
    cost_usd: float
    """Sum over every attempt that produced tokens."""
    latency_ms: float
    """Duration of the whole call in the router."""
    cache_hit: bool
    tokens: Tokens
    ignored_params: list[str] = []
    """Parameters that the model's vendor does not support, such as ``verbosity``."""
    saved_usd: float = 0.0
    """What the vendor's cache saved: ``tokens.cached`` at the full price, less what they cost. If anything."""


class WindowUsage(Struct, frozen=True, gc=False):
    """What is left of the request window; without a limit 2^53 - 1 and the end of the minute."""

    rate_limit_remaining: int
    """Requests left in the limit of the account or the key, whichever is less."""
    rate_limit_reset_unix: int
    """When the whole limit is free again without further requests, in Unix seconds."""


class RouteResponse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fuller response shape with the short form's fields (spec 2.2)."""

    trace_id: str
    output: str
    """The model's text."""
    routing: Routing
    usage: WindowUsage
    primary_model: str
    """The chosen model."""
    fallback_model: str | None
    """The fallback that served the request. None: the chosen model did."""
    cache_hit: bool
    tool_calls: list[ToolCall] | None = None
    """Tool calls requested by the model."""
    finish_reason: str | None = None
    """Why the answer ended: ``stop``, ``length``, ``tool_calls``, ``budget`` if the budget's cap cut it, or ``other``
    for an unknown reason of the vendor."""
    reasoning: Reasoning | None = None
    """The model's reasoning, if its vendor wants it back in the next turn."""


_T = TypeVar("_T")


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    """Inside of the error envelope."""

    code: str
    message: str
    type: str
    request_id: str | None = None
    trace_id: str | None = None
    detail: dict[str, Any] | None = None


class ErrorEnvelope(Struct, frozen=True):
    """Any error response."""

    error: ErrorBody


class Page(Struct, Generic[_T], frozen=True):
    """One page of a list; ``next_cursor`` is opaque and lives 24 hours."""

    data: list[_T]
    next_cursor: str | None = None
    has_more: bool = False


def error_envelope(error: RouterError) -> ErrorEnvelope:
    """Convert an error to the envelope for callers. Omits addresses of upstreams."""
    return ErrorEnvelope(ErrorBody(**error.body["error"]))
