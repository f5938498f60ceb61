"""Which address is served by what (spec 4), and how the query of an address is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

from msgspec import Struct
from msgspec.structs import fields

from routewright._core.request.json_scan import quoted
from routewright._core.request.problems import did_you_mean, shown
from routewright._core.request.read import converted
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
    AgentEvent,
    AgentRequest,
    AgentResponse,
    CacheReport,
    Caller,
    Decided,
    FallbackReport,
    LatencyReport,
    Page,
    Policy,
    RouteEvent,
    RouteRequest,
    RouteResponse,
    Scope,
    StreamError,
    Trace,
    TraceItem,
    UsageReport,
)

from . import anthropic, endpoints, openai, responses
from .admin import PROBES
from .endpoints import DatesQuery, Models, NoQuery, Service, TracesQuery, UsageQuery
from .errors import envelope
from .exchange import JSON, Exchange
from .fields import wrong

Q = TypeVar("Q", bound=Struct)

Serve = Callable[[Service, Exchange], Awaitable[None]]
"""Answers an exchange."""
Act = Callable[[Service, Exchange, Caller, Any], Awaitable[None]]
"""Answers an exchange, once it is known who asks and with which parameters."""

_MOST_PARAMETERS = 64


class Operation(Struct, frozen=True):
    """A method at an address of ``/v1``: who may ask, what it takes, what it answers. It serves an exchange when called
    with one; the OpenAPI document is made of it."""

    act: Act
    """Its docstring is its description."""
    scope: Scope
    """That a key needs."""
    answer: Any
    """The type of what a 200 holds."""
    query: type[Struct] = NoQuery
    body: type[Struct] | None = None
    events: Any = None
    """The type of the events that a 200 holds where a stream was asked for."""
    raises: tuple[type[RouterError], ...] = ()
    """Errors that it can end in, but for those of its parameters and body, of authentication, and of the server."""

    async def __call__(self, service: Service, exchange: Exchange) -> None:
        """Answer. Raises ``AuthenticationFailed``, ``PermissionDenied``, ``ValidationFailed`` and what the act does."""
        caller = await service.auth.caller(exchange, self.scope)
        raw = exchange.scope.get("query_string")
        asked = parameters(raw, self.query, exchange.limits.query_bytes) if raw else self.query()
        await self.act(service, exchange, caller, asked)


async def openapi(service: Service, exchange: Exchange) -> None:
    """This interface as an OpenAPI 3.1 document, for everybody."""
    from .openapi import document_at  # which nothing else needs

    parameters(exchange.scope.get("query_string", b""), NoQuery, exchange.limits.query_bytes)
    body, tag = document_at(exchange.scope.get("root_path", ""))
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    known = [each.strip().removeprefix("W/") for each in (exchange.header(b"if-none-match") or "").split(",")]
    if tag in known or known == ["*"]:
        await exchange.start(304, JSON, headers)
        await exchange.piece(b"", more=False)
    else:
        await exchange.respond(body, 200, JSON, headers)


def parameters(raw: bytes, shape: type[Q], most_bytes: int) -> Q:
    """The parameters of a query. Raises ``ValidationFailed`` for what the shape does not have."""
    if len(raw) > most_bytes:
        raise wrong("query", f"is {len(raw)} bytes long", f"send at most {most_bytes}")
    pairs = [pair for pair in raw.split(b"&") if pair]
    if len(pairs) > _MOST_PARAMETERS:
        raise wrong("query", f"has {len(pairs)} parameters", f"send at most {_MOST_PARAMETERS}")
    given: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = map(_unquoted, pair.partition(b"="))
        if name in given:
            raise wrong(quoted(name), "is given twice", "give it once")
        given[name] = value
    known = shape.__struct_encode_fields__
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or (f"known: {', '.join(known)}" if known else "it takes none")
            raise wrong(quoted(name), "is not a parameter of this address", hint)
    for field in fields(shape):
        name, text = field.encode_name, given.get(field.encode_name)
        if text is not None and field.type in (int, int | None):
            if not (len(text) <= 20 and text.isascii() and text.removeprefix("-").isdecimal()):
                raise wrong(name, f"must be a whole number, got {shown(text)}", "for example 50")
            given[name] = int(text)
    return converted(given, shape, "")


def _unquoted(part: bytes) -> str:
    try:
        return unquote_to_bytes(part.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        pass
    raise wrong("query", "is not UTF-8 behind its percent signs", "encode it as UTF-8")


_CALL = (
    *(InsufficientBalance, QuotaExhausted, BlockedByPolicy, ContentRefused, IdempotencyKeyReused),
    *(NoCandidates, BudgetExceeded, RateLimited, UpstreamFailed, RouterTimeoutError),
)
"""What a call of models can end in."""
_CHOICE = (NoCandidates, BudgetExceeded, RateLimited, RouterTimeoutError)
"""What choosing alone can end in: counting tokens takes time."""
_CURSORS = (CursorInvalid, CursorExpired)
ENDPOINTS: dict[str, dict[str, Serve]] = {
    "/v1/route": {
        "POST": Operation(endpoints.route, "route", RouteResponse, body=RouteRequest, events=RouteEvent, raises=_CALL)
    },
    "/v1/agents/run": {
        "POST": Operation(
            endpoints.run_agent,
            "agents",
            AgentResponse,
            body=AgentRequest,
            events=AgentEvent | StreamError,
            raises=_CALL,
        )
    },
    "/v1/decide": {"POST": Operation(endpoints.decide, "route", Decided, body=RouteRequest, raises=_CHOICE)},
    "/v1/models": {"GET": Operation(endpoints.models, "models:read", Models)},
    "/v1/policies": {"GET": Operation(endpoints.policies, "policies:read", list[Policy])},
    "/v1/traces": {"GET": Operation(endpoints.traces, "traces:read", Page[TraceItem], TracesQuery, raises=_CURSORS)},
    "/v1/traces/{trace_id}": {"GET": Operation(endpoints.trace, "traces:read", Trace)},
    "/v1/analytics/usage": {"GET": Operation(endpoints.usage, "analytics:read", UsageReport, UsageQuery)},
    "/v1/analytics/cache": {"GET": Operation(endpoints.cache, "analytics:read", CacheReport, DatesQuery)},
    "/v1/analytics/fallback": {"GET": Operation(endpoints.fallback, "analytics:read", FallbackReport, DatesQuery)},
    "/v1/analytics/latency": {"GET": Operation(endpoints.latency, "analytics:read", LatencyReport, DatesQuery)},
    "/v1/openapi.json": {"GET": openapi},
    "/v1/chat/completions": {"POST": openai.completions},
    "/v1/responses": {"POST": responses.responses},
    "/v1/messages": {"POST": anthropic.messages},
    "/v1/messages/count_tokens": {"POST": anthropic.count_tokens},
    openai.PATH: {"POST": openai.completions},
    responses.PATH: {"POST": responses.responses},
    "/openai/v1/models": {"GET": openai.models},
    "/openai/v1/models/{model...}": {"GET": openai.model},
    anthropic.MESSAGES: {"POST": anthropic.messages},
    anthropic.COUNT_TOKENS: {"POST": anthropic.count_tokens},
    "/anthropic/v1/models": {"GET": anthropic.models},
    "/anthropic/v1/models/{model...}": {"GET": anthropic.model},
}
"""What serves a method at an address. What is an ``Operation`` is described whole in ``/v1/openapi.json``."""
NOT_OFFERED = {
    "openai": "assistants audio batches completions conversations embeddings evals files fine_tuning images "
    "moderations realtime responses threads uploads vector_stores videos".split(),
    "anthropic": "complete files messages skills".split(),
}
"""What vendors have below ``/v1`` beside what is served here."""
_BODIES: dict[str, Callable[[RouterError], bytes]] = {
    "/openai/": openai.envelope,
    "/anthropic/": anthropic.body,
    "/v1/messages": anthropic.body,
    "/v1/chat/": openai.envelope,
    **{f"/v1/{name}": openai.envelope for name in NOT_OFFERED["openai"]},
}
"""How an error's body is written below some addresses; elsewhere it is our own envelope."""
_NOTHING = (
    "there is nothing at this address; /v1/openapi.json lists what there is below /v1; the base URL of clients of "
    "OpenAI ends with /openai/v1, that of clients of Anthropic with /anthropic"
)
_NO_PROBE = "probes are not answered here: start the server with --health, or with --admin-port for a port of their own"

_ELSEWHERE = "ask the vendor itself"
_INSTEAD = {
    "completions": "send messages to chat/completions",
    "complete": "send messages to messages",
    "messages": "send each message by itself",
    "responses": "nothing is stored, so that a response cannot be asked for again: send the whole chat as 'input'",
    "conversations": "nothing is stored: send the whole chat as 'input'",
}
"""What to do in the place of what is not offered."""


class Endpoint(NamedTuple):
    """What serves a method at an address."""

    path: str
    """With a name in braces where its last part is a parameter; one that ends with dots may hold slashes."""
    serve: Serve
    parameter: str = ""


EXACT = {
    (method, path): Endpoint(path, serve)
    for path, methods in ENDPOINTS.items()
    for method, serve in methods.items()
    if not path.endswith("}")
}
"""The addresses without a parameter. The others, and ``HEAD``, are for ``find``."""
_BEFORE = {path.partition("{")[0]: path for path in ENDPOINTS if path.endswith("}")}
"""Addresses that end with a parameter, by what stands before it."""


def find(method: str, path: str) -> Endpoint:
    """What serves an address. Raises ``NotFound`` and ``MethodNotAllowed``."""
    known, parameter = (path, "") if path in ENDPOINTS else _with_parameter(path)
    methods = ENDPOINTS[known]
    serve = methods.get("GET" if method == "HEAD" else method)
    if serve is None:
        error = MethodNotAllowed(f"this address takes {' and '.join(methods)}")
        error.headers = {"Allow": ", ".join(methods)}
        raise error
    return Endpoint(known, serve, parameter)


def _with_parameter(path: str) -> tuple[str, str]:
    for before, known in _BEFORE.items():
        rest = path.removeprefix(before)
        if rest and rest != path and (known.endswith("...}") or "/" not in rest):
            return known, rest
    vendor, _, rest = path.lstrip("/").partition("/v1/")
    name = (rest or path.removeprefix("/v1/")).partition("/")[0]
    if any(name in names for of, names in NOT_OFFERED.items() if path.startswith("/v1/") or vendor == of):
        raise NotFound(f"this server answers chats and does not offer {name!r}: {_INSTEAD.get(name, _ELSEWHERE)}")
    raise NotFound(_NO_PROBE if path in PROBES else _NOTHING)


def body_at(path: str, error: RouterError) -> bytes:
    """The body of an error, in the words of the address."""
    return next((body for beginning, body in _BODIES.items() if path.startswith(beginning)), envelope)(error)
