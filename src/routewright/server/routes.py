"""The table of routes (spec 4), and the reading of query parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from routewright import errors
from routewright.errors import RouterError
from routewright.wire import Caller, Scope
from routewright.wire.conversion import convert_value
from routewright.wire.json_scan import quoted
from routewright.wire.problems import did_you_mean, shown

from . import anthropic, endpoints, openai, responses
from .admin import PROBES
from .endpoints import DatesQuery, NoQuery, Service, TracesQuery, UsageQuery
from .errors import envelope
from .exchange import JSON, Exchange
from .fields import wrong

Q = TypeVar("Q", bound=Struct)

Serve = Callable[[Service, Exchange], Awaitable[None]]
"""Answers an exchange."""
Act = Callable[[Service, Exchange, Caller, Any], Awaitable[None]]
"""Answers an exchange of an authenticated caller with its query parameters."""

_MOUNTS = 16
"""Mount points whose documents are cached."""


class Operation(Struct, frozen=True):
    """A method of a path below ``/v1``. It is called with an exchange; ``docs/_openapi.py`` has its shapes."""

    act: Act
    """Its docstring is the description."""
    scope: Scope
    """Required scope of the API key."""
    query: type[Struct] = NoQuery

    async def __call__(self, service: Service, exchange: Exchange) -> None:
        """Answer. Raises ``AuthenticationFailed``, ``PermissionDenied``, ``ValidationFailed`` and what the act does."""
        caller = await service.auth.caller(exchange, self.scope)
        raw = exchange.scope.get("query_string")
        query = parameters(raw, self.query, exchange.limits.query_bytes) if raw else self.query()
        await self.act(service, exchange, caller, query)


async def openapi(service: Service, exchange: Exchange) -> None:
    """This interface as an OpenAPI 3.1 document, for everybody."""
    parameters(exchange.scope.get("query_string", b""), NoQuery, exchange.limits.query_bytes)
    body, tag = document_at(exchange.scope.get("root_path", ""))
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    etags = [etag.strip().removeprefix("W/") for etag in (exchange.header(b"if-none-match") or "").split(",")]
    if tag in etags or etags == ["*"]:
        await exchange.start(304, JSON, headers)
        await exchange.send_piece(b"", more=False)
    else:
        await exchange.respond(body, 200, JSON, headers)


@lru_cache(_MOUNTS)
def document_at(root_path: str) -> tuple[bytes, str]:
    """The document of a server at a mount point, and its ``ETag``."""
    document = msgspec.json.decode(files("routewright.server").joinpath("openapi.json").read_bytes())
    body = msgspec.json.encode({**document, "servers": [{"url": quote("/" + root_path.strip("/"), errors="replace")}]})
    return body, f'"{sha256(body).hexdigest()[:32]}"'


def parameters(raw: bytes, shape: type[Q], limit: int) -> Q:
    """Read the parameters of a query. Raises ``ValidationFailed`` for unknown and invalid ones."""
    if len(raw) > limit:
        raise wrong("query", f"is {len(raw)} bytes long", f"send at most {limit}")
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise wrong("query", "is not percent-encoded UTF-8", "encode it as UTF-8") from None
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise wrong(quoted(name), "is sent twice", "send it once")
        values[name] = value
    names = shape.__struct_encode_fields__
    for name in values:
        if name not in names:
            hint = did_you_mean(name, names) or (f"known: {', '.join(names)}" if names else "there are none")
            raise wrong(quoted(name), "is not a parameter of this address", hint)
    for field in fields(shape):
        name = field.encode_name
        text = values.get(name)
        if text is not None and field.type in (int, int | None):
            if not (len(text) <= 20 and text.isascii() and text.removeprefix("-").isdecimal()):
                raise wrong(name, f"must be a whole number, got {shown(text)}", "for example 50")
            values[name] = int(text)
    return convert_value(values, shape, "")


ENDPOINTS: dict[str, dict[str, Serve]] = {
    "/v1/route": {"POST": Operation(endpoints.route, "route")},
    "/v1/agents/run": {"POST": Operation(endpoints.run_agent, "agents")},
    "/v1/decide": {"POST": Operation(endpoints.decide, "route")},
    "/v1/models": {"GET": Operation(endpoints.models, "models:read")},
    "/v1/policies": {"GET": Operation(endpoints.policies, "policies:read")},
    "/v1/traces": {"GET": Operation(endpoints.traces, "traces:read", TracesQuery)},
    "/v1/traces/{trace_id}": {"GET": Operation(endpoints.trace, "traces:read")},
    "/v1/analytics/usage": {"GET": Operation(endpoints.usage, "analytics:read", UsageQuery)},
    "/v1/analytics/cache": {"GET": Operation(endpoints.cache, "analytics:read", DatesQuery)},
    "/v1/analytics/fallback": {"GET": Operation(endpoints.fallback, "analytics:read", DatesQuery)},
    "/v1/analytics/latency": {"GET": Operation(endpoints.latency, "analytics:read", DatesQuery)},
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
"""By path and method. Only each ``Operation`` is fully described in ``/v1/openapi.json``."""
NOT_OFFERED = {
    "openai": "assistants audio batches completions conversations embeddings evals files fine_tuning images "
    "moderations realtime responses threads uploads vector_stores videos".split(),
    "anthropic": "complete files messages skills".split(),
}
"""Parts of the vendors' APIs that are not served here."""
_BODIES: dict[str, Callable[[RouterError], bytes]] = {
    "/openai/": openai.envelope,
    "/anthropic/": anthropic.body,
    "/v1/messages": anthropic.body,
    "/v1/chat/": openai.envelope,
    **{f"/v1/{name}": openai.envelope for name in NOT_OFFERED["openai"]},
}
"""Encoders of error bodies by the start of the path; others use our own envelope."""
_NOTHING = (
    "not found; /v1/openapi.json lists the paths below /v1; the base URL ends with /openai/v1 for OpenAI's clients, "
    "and with /anthropic for Anthropic's"
)
_NO_PROBE = "health checks are not served here; start the server with --health, or with --admin-port"

_ELSEWHERE = "use the vendor's own API"
_INSTEAD = {
    "completions": "send messages to chat/completions",
    "complete": "send messages to messages",
    "messages": "send each message by itself",
    "responses": "responses are not stored; send the whole chat as 'input'",
    "conversations": "nothing is stored; send the whole chat as 'input'",
}
"""Replacements for what is not offered."""


class Endpoint(NamedTuple):
    """Result of a look-up."""

    path: str
    """As in the table. The last part may be a parameter in braces; with dots it may contain slashes."""
    serve: Serve
    parameter: str = ""


EXACT = {
    (method, path): Endpoint(path, serve)
    for path, methods in ENDPOINTS.items()
    for method, serve in methods.items()
    if not path.endswith("}")
}
"""Paths without a parameter. ``find`` handles the others, and ``HEAD``."""
_BEFORE = {path.partition("{")[0]: path for path in ENDPOINTS if path.endswith("}")}
"""Paths that end with a parameter, by the part before it."""


def find(method: str, path: str) -> Endpoint:
    """Look a path up. Raises ``NotFound`` and ``MethodNotAllowed``."""
    pattern = path
    parameter = ""
    if path not in ENDPOINTS:
        for before, pattern in _BEFORE.items():
            parameter = path.removeprefix(before)
            if parameter and parameter != path and (pattern.endswith("...}") or "/" not in parameter):
                break
        else:
            vendor = path.lstrip("/").partition("/v1/")[0]
            rest = path.lstrip("/").partition("/v1/")[2]
            name = (rest or path.removeprefix("/v1/")).partition("/")[0]
            if any(name in names for owner, names in NOT_OFFERED.items() if path.startswith("/v1/") or vendor == owner):
                raise errors.NotFound(f"{name!r} is not served here; {_INSTEAD.get(name, _ELSEWHERE)}")
            raise errors.NotFound(_NO_PROBE if path in PROBES else _NOTHING)
    methods = ENDPOINTS[pattern]
    if (serve := methods.get("GET" if method == "HEAD" else method)) is None:
        error = errors.MethodNotAllowed(f"this address takes {' and '.join(methods)}")
        error.headers = {"Allow": ", ".join(methods)}
        raise error
    return Endpoint(pattern, serve, parameter)


def body_at(path: str, error: RouterError) -> bytes:
    """The body of an error in the format of the path's API."""
    return next((body for beginning, body in _BODIES.items() if path.startswith(beginning)), envelope)(error)
