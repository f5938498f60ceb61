"""Which address is served by what (spec 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from routewright.errors import (
    BlockedByPolicy,
    BudgetExceeded,
    ContentRefused,
    CursorExpired,
    CursorInvalid,
    IdempotencyKeyReused,
    InsufficientBalance,
    MethodNotAllowed,
    NoCandidates,
    NotFound,
    QuotaExhausted,
    RateLimited,
    RouterError,
    RouterTimeoutError,
    UpstreamFailed,
)
from routewright.wire import (
    CacheReport,
    FallbackReport,
    LatencyReport,
    Page,
    Policy,
    RouteEvent,
    RouteRequest,
    RouteResponse,
    Trace,
    TraceItem,
    UsageReport,
)

from . import anthropic, document, endpoints, openai
from .endpoints import DatesQuery, Decided, Models, TracesQuery, UsageQuery
from .errors import envelope
from .operation import Operation, Serve


class Endpoint(NamedTuple):
    """What serves a method at an address."""

    path: str
    """With a name in braces where its last part is a parameter; one that ends with dots may hold slashes."""
    serve: Serve
    parameter: str = ""


_CALL = (
    *(InsufficientBalance, QuotaExhausted, BlockedByPolicy, ContentRefused, IdempotencyKeyReused),
    *(NoCandidates, BudgetExceeded, RateLimited, UpstreamFailed, RouterTimeoutError),
)
"""What a call of models can end in."""
_CHOICE = (NoCandidates, BudgetExceeded, RateLimited, RouterTimeoutError)
"""What choosing alone can end in: counting tokens takes time."""
ENDPOINTS: dict[str, dict[str, Serve]] = {
    "/v1/route": {
        "POST": Operation(endpoints.route, "route", RouteResponse, body=RouteRequest, events=RouteEvent, raises=_CALL)
    },
    "/v1/decide": {"POST": Operation(endpoints.decide, "route", Decided, body=RouteRequest, raises=_CHOICE)},
    "/v1/models": {"GET": Operation(endpoints.models, "models:read", Models)},
    "/v1/policies": {"GET": Operation(endpoints.policies, "policies:read", list[Policy])},
    "/v1/traces": {
        "GET": Operation(
            endpoints.traces, "traces:read", Page[TraceItem], TracesQuery, raises=(CursorInvalid, CursorExpired)
        )
    },
    "/v1/traces/{trace_id}": {"GET": Operation(endpoints.trace, "traces:read", Trace)},
    "/v1/analytics/usage": {"GET": Operation(endpoints.usage, "analytics:read", UsageReport, UsageQuery)},
    "/v1/analytics/cache": {"GET": Operation(endpoints.cache, "analytics:read", CacheReport, DatesQuery)},
    "/v1/analytics/fallback": {"GET": Operation(endpoints.fallback, "analytics:read", FallbackReport, DatesQuery)},
    "/v1/analytics/latency": {"GET": Operation(endpoints.latency, "analytics:read", LatencyReport, DatesQuery)},
    "/v1/openapi.json": {"GET": document.openapi},
    "/openai/v1/chat/completions": {"POST": openai.completions},
    "/openai/v1/models": {"GET": openai.models},
    "/openai/v1/models/{model...}": {"GET": openai.model},
    "/anthropic/v1/messages": {"POST": anthropic.messages},
    "/anthropic/v1/messages/count_tokens": {"POST": anthropic.count_tokens},
}
"""What serves a method at an address. What is an ``Operation`` is described in ``/v1/openapi.json``."""
TELL: dict[str, Callable[[RouterError], bytes]] = {
    "/": envelope,
    "/openai/": openai.envelope,
    "/anthropic/": anthropic.body,
}
"""How an error's body is written, by what an address begins with; the longest such beginning holds."""
_TELL = sorted(TELL.items(), key=lambda item: -len(item[0]))
_NOTHING = (
    "there is nothing at this address; /v1/openapi.json lists what there is below /v1; the base URL of clients of "
    "OpenAI ends with /openai/v1, that of clients of Anthropic with /anthropic"
)
_EXACT = {
    (method, path): Endpoint(path, serve)
    for path, methods in ENDPOINTS.items()
    for method, serve in methods.items()
    if not path.endswith("}")
}
_BEFORE = {path.partition("{")[0]: path for path in ENDPOINTS if path.endswith("}")}
"""Addresses that end with a parameter, by what stands before it."""


def find(method: str, path: str) -> Endpoint:
    """What serves an address. Raises ``NotFound`` and ``MethodNotAllowed``."""
    found = _EXACT.get((method, path))
    if found is not None:
        return found
    known, parameter = (path, "") if path in ENDPOINTS else _with_parameter(path)
    methods = ENDPOINTS[known]
    serve = methods.get("GET" if method == "HEAD" else method)
    if serve is None:
        error = MethodNotAllowed(f"this address takes {' and '.join(methods)}")
        error.headers = {"Allow": ", ".join(methods)}
        raise error
    return Endpoint(known, serve, parameter)


def told_at(path: str, error: RouterError) -> bytes:
    """The body of an error, in the words of the address."""
    return next((tell for beginning, tell in _TELL if path.startswith(beginning)), envelope)(error)


def _with_parameter(path: str) -> tuple[str, str]:
    for before, known in _BEFORE.items():
        rest = path.removeprefix(before)
        if rest and rest != path and (known.endswith("...}") or "/" not in rest):
            return known, rest
    raise NotFound(_NOTHING)
