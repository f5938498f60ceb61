"""The route response, and the error and list envelopes (spec 2.2, 2.8, 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import field

from routewright.errors import RouterError

from .foreign import no_attribute
from .plain import JsonObject, Struct
from .request import Reasoning, ToolCall


class Tokens(Struct, frozen=True, gc=False, omit_defaults=True):
    """Token counts of a call. ``cached`` is the part of ``input`` read from the provider's prompt cache."""

    # a default factory instead of 0 keeps zeros on the wire despite omit_defaults
    input: int = field(default_factory=int)
    output: int = field(default_factory=int)
    cached: int = field(default_factory=int)
    reasoning: int = 0
    """Part of ``output`` used for reasoning. Left out of responses if 0."""
    written: int = 0
    """Part of ``input`` written to the provider's prompt cache. Left out of responses if 0."""


class Routing(Struct, frozen=True, omit_defaults=True):
    """How the request was served (spec 2.2)."""

    selected_model: str
    """The model that served the request."""
    fallback_chain: list[str]
    """Fallback models, in order."""
    policy_version: str
    """``<policy_name>@<date>``; ``inline@<date>`` without a policy."""
    decision_reason: str
    """One sentence that explains the choice with its numbers."""
    cost_usd: float
    """Sum over every attempt that produced tokens."""
    latency_ms: float
    """Duration of the whole call, measured by the router."""
    cache_hit: bool
    tokens: Tokens
    ignored_params: list[str] = []
    """Optional parameters that the model's vendor does not support, such as ``verbosity``."""
    saved_usd: float = 0.0
    """Saved by the vendor's cache: ``tokens.cached`` at the full price minus their cost. Left out if 0."""


class WindowUsage(Struct, frozen=True, gc=False):
    """State of the request rate limit. Without a limit: 2^53 - 1, and the end of the minute."""

    rate_limit_remaining: int
    """Remaining requests of the account or the key, whichever has fewer."""
    rate_limit_reset_unix: int
    """Unix seconds at which the full limit is available again if no more requests arrive."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise no_attribute(self, name)


class RouteResponse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a successful route response (spec 2.2)."""

    trace_id: str
    output: str
    """The model's text."""
    routing: Routing
    usage: WindowUsage
    primary_model: str
    """The model that was chosen."""
    fallback_model: str | None
    """The fallback model that served the request. Null: the primary model did."""
    cache_hit: bool
    tool_calls: list[ToolCall] | None = None
    """Tool calls requested by the model."""
    finish_reason: str | None = None
    """Why the answer ended: ``stop``, ``length``, ``tool_calls``, ``budget`` (cut by the budget's cap), or ``other``
    for an unknown vendor reason."""
    reasoning: Reasoning | None = None
    """The model's reasoning, if its vendor expects it back in the next turn."""


_T = TypeVar("_T")


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    """Content of the error envelope."""

    code: str
    message: str
    type: str
    request_id: str | None = None
    trace_id: str | None = None
    detail: JsonObject | None = None


class ErrorEnvelope(Struct, frozen=True):
    """Any error response."""

    error: ErrorBody


class Page(Struct, Generic[_T], frozen=True):
    """One page of a list. ``next_cursor`` is opaque and valid for 24 hours."""

    data: list[_T]
    next_cursor: str | None = None
    has_more: bool = False


def error_envelope(error: RouterError) -> ErrorEnvelope:
    """Wrap an error for the caller, without provider addresses."""
    return ErrorEnvelope(ErrorBody(**error.body["error"]))
