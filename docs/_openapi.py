"""``/v1`` as an OpenAPI 3.1 document, made from the routes, the structs, and their docstrings.

``_generate.py`` writes it to the file that ``/v1/openapi.json`` serves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, get_args

import msgspec
from docs._openapi_examples import ERRORS, EVENTS, OPERATIONS, REQUEST_ID, Shown
from docs._openapi_schemas import LIMITS, Schema, field_schemas, schemas_of, text_of
from msgspec import Struct
from msgspec.structs import fields

from routewright import __version__, errors, wire
from routewright.errors import RouterError
from routewright.server import routes
from routewright.server.endpoints import Models
from routewright.server.routes import ENDPOINTS, Operation, Serve
from routewright.wire import ErrorEnvelope, RouteRequest, StreamError, error_envelope
from routewright.wire.docstrings import summary

VENDOR_ROUTES = {
    path: (method.lower(), serve)
    for path, methods in ENDPOINTS.items()
    for method, serve in methods.items()
    if path.startswith("/v1/") and not isinstance(serve, Operation) and serve is not routes.openapi
}
"""Paths for other vendors' clients."""
SELF = "/v1/openapi.json"

_ABOUT = """Routes chat requests across many language models: explainable decisions, hard budgets, traces.

Every request but the one for this document needs an API key. Every answer has an `X-Request-Id`. All errors have the
same envelope, with a `code` for programs. Unknown paths are `not_found`; a wrong method is `method_not_allowed`, with
the right ones in `Allow`. Fields and parameters that are not described here are refused. `HEAD` is answered wherever
`GET` is."""
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key: `sk_live_...`, or `sk_test_...` for the sandbox, whose answers are canned and free.",
}
_IN_PATH = re.compile(r"{(\w+)[.]*}")
_IN_PATHS = {"trace_id": "`tr_` and 26 characters, as `trace_id` of an answer; `trc_` is accepted for `tr_`."}
_KEY = "Idempotency-Key"
_KEY_SAID = (
    "A name for the call, at most 64 bytes in UTF-8. Repeated within 24 hours with the same body, it returns the first"
    " answer and is billed once; with another body it is a 409. The field `idempotency_key` is equivalent."
)
_STREAM_SAID = (
    "With `{field}` true: server-sent events with the lines of the schema, `data` in one line. The last event is"
    " `{last}` or `error`; lines that begin with a colon keep the connection alive."
)

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_HEADERS: dict[str, tuple[str, Schema]] = {
    "X-Request-Id": ("Id of the request, also in errors and the operator's log.", {**_TEXT, "pattern": "^req_"}),
    "X-RateLimit-Limit": ("The limit for one minute.", _COUNT),
    "X-RateLimit-Remaining": ("What is left of the limit.", _COUNT),
    "X-RateLimit-Reset": ("When all of it is available again without further requests, in Unix seconds.", _COUNT),
    "X-RateLimit-Resource": (
        "What the limit counts. The headers describe the limit with the smallest share left. Without a limit there are"
        " none.",
        {**_TEXT, "enum": ["requests", "tokens"]},
    ),
    "X-Routewright-Cache": (
        "If the request uses the response cache: `miss`, or `hit` with the mode, the age of the answer in seconds and,"
        " for a similar question, the similarity.",
        _TEXT,
    ),
    "Retry-After": ("Seconds until the same call is admitted, if nobody else calls.", _COUNT),
    "WWW-Authenticate": ("How to authenticate.", {**_TEXT, "const": "Bearer"}),
    "ETag": ("Version of the document, for `If-None-Match`.", _TEXT),
}
_LIMITED = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Resource")
_BESIDES: dict[int, tuple[str, ...]] = {
    errors.AuthenticationFailed.status: ("WWW-Authenticate",),
    errors.RateLimited.status: (*_LIMITED, "Retry-After"),
    **dict.fromkeys((400, 402, 403, 409, 422, 500, 502, 504), _LIMITED),
}
"""Headers of a status, besides the request's id. Those of limits need a counted call."""

_ALWAYS = (
    errors.ValidationFailed,
    errors.AuthenticationFailed,
    errors.PermissionDenied,
    errors.InternalError,
    errors.StorageUnavailable,
)
"""Errors of every authenticated request."""
_OF_BODIES = (errors.InvalidJson, errors.RequestTimedOut, errors.BodyTooLarge, errors.UnsupportedMediaType)
NO_REQUESTS = {
    *(errors.MalformedRequest, errors.HeadersTooLarge, errors.Overloaded),  # refusals of a connection
    *(RouterError, errors.SignatureError),  # the root, and an error of receivers of webhooks
}
"""Errors that answer no request."""


class Shapes(NamedTuple):
    """What an operation takes and answers."""

    answer: Any
    """Type of a 200's body."""
    body: type[Struct] | None = None
    events: Any = None
    """Type of the events of a streamed 200."""
    raises: tuple[type[RouterError], ...] = ()
    """Possible errors, except those of parameters, body, authentication and the server."""


_CHOICE = (errors.NoCandidates, errors.BudgetExceeded, errors.RateLimited, errors.RouterTimeoutError)
"""Errors of a decision; counting tokens takes time."""
_CALL = (
    *_CHOICE,
    *(errors.InsufficientBalance, errors.QuotaExhausted, errors.BlockedByPolicy, errors.ContentRefused),
    *(errors.IdempotencyKeyReused, errors.UpstreamFailed),
)
"""Errors of a call."""
_CURSORS = (errors.CursorInvalid, errors.CursorExpired)
SHAPES = {
    "/v1/route": Shapes(wire.RouteResponse, wire.RouteRequest, wire.RouteEvent, _CALL),
    "/v1/agents/run": Shapes(wire.AgentResponse, wire.AgentRequest, wire.AgentEvent | wire.StreamError, _CALL),
    "/v1/decide": Shapes(wire.Decided, wire.RouteRequest, raises=_CHOICE),
    "/v1/models": Shapes(Models),
    "/v1/policies": Shapes(list[wire.Policy]),
    "/v1/traces": Shapes(wire.Page[wire.TraceItem], raises=_CURSORS),
    "/v1/traces/{trace_id}": Shapes(wire.Trace),
    "/v1/analytics/usage": Shapes(wire.UsageReport),
    "/v1/analytics/cache": Shapes(wire.CacheReport),
    "/v1/analytics/fallback": Shapes(wire.FallbackReport),
    "/v1/analytics/latency": Shapes(wire.LatencyReport),
}
"""By path."""


def openapi() -> bytes:
    """The document of a server that is mounted at ``/``, encoded."""
    operations = told_operations()
    shapes = [SHAPES[path] for path, _, _ in operations]
    asked = list(dict.fromkeys(each.body for each in shapes if each.body is not None))
    events = list(dict.fromkeys(event for each in shapes for event in get_args(each.events)))
    answered = dict.fromkeys([*(each.answer for each in shapes), *map(_data_of, events), ErrorEnvelope])
    schemas = schemas_of(asked, answered)
    by_type = dict(zip([*asked, *answered], schemas.of, strict=True))
    paths: dict[str, Any] = {}
    for path, method, operation in operations:
        paths.setdefault(path, {})[method] = _described(path, operation, by_type)
    for path, (method, serve) in VENDOR_ROUTES.items():
        paths[path] = {method: _vendor_call(path, serve)}
    paths[SELF] = {"get": _of_itself()}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RouterError)]
    of_requests = _by_status(kind for kind in kinds if kind not in NO_REQUESTS)
    told = {
        "openapi": "3.1.0",
        "info": {
            "title": "routewright",
            "version": __version__,
            "description": "\n\n".join(" ".join(each.split()) for each in _ABOUT.split("\n\n")),
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.components | {event.__name__: _event(event, by_type) for event in events},
            "responses": {_name(status): _answer(status, kinds) for status, kinds in of_requests.items()},
            "headers": {name: {"description": said, "schema": schema} for name, (said, schema) in _HEADERS.items()},
            "securitySchemes": {"bearer": _BEARER},
        },
    }
    return msgspec.json.encode(told)


class Told(NamedTuple):
    """An operation with its path and method."""

    path: str
    method: str
    operation: Operation


def told_operations() -> list[Told]:
    """Every operation, in the order of the table."""
    return [
        Told(path, method.lower(), each)
        for path, methods in ENDPOINTS.items()
        for method, each in methods.items()
        if isinstance(each, Operation)
    ]


def _described(path: str, operation: Operation, schemas: Mapping[Any, Schema]) -> dict[str, Any]:
    shown, shapes = OPERATIONS[path], SHAPES[path]
    takes_key = errors.IdempotencyKeyReused in shapes.raises
    scope = operation.scope
    told = _head(path, operation.act.__name__, operation.act, f"The API key needs the scope `{scope}`.", scope)
    parameters = [
        {"name": name, "in": "path", "required": True, "description": _IN_PATHS[name], "schema": _TEXT}
        for name in _IN_PATH.findall(path)
    ]
    for name, schema in field_schemas(operation.query).items():
        said = schema.pop("description", "")
        parameters.append({"name": name, "in": "query", "description": said, "schema": schema})
    if takes_key:
        schema = {**_TEXT, **LIMITS[RouteRequest]["idempotency_key"]}
        parameters.append({"name": _KEY, "in": "header", "description": _KEY_SAID, "schema": schema})
    for each in parameters:
        if each["name"] in shown.parameters:
            each["example"] = shown.parameters[each["name"]]
    if parameters:
        told["parameters"] = parameters
    kinds = [*_ALWAYS, *shapes.raises]
    if shapes.body is not None:
        examples = {name: {"value": value} for name, value in shown.asked.items()}
        content = {"schema": schemas[shapes.body], "examples": examples}
        told["requestBody"] = {"required": True, "content": {"application/json": content}}
        kinds += _OF_BODIES
    kinds += [errors.NotFound] if path.endswith("}") else []
    of_call = (*_LIMITED, *(("X-Routewright-Cache",) if path == "/v1/route" else ())) if takes_key else ()
    success = _success(shapes, shown, schemas, headers=_headers(*of_call))
    return {**told, "responses": {"200": success, **_references(kinds)}}


def _head(path: str, id: str, serve: Any, said: str, scope: str) -> dict[str, Any]:
    return {
        "operationId": id,
        "tags": [path.split("/")[2]],
        "summary": summary(serve),
        "description": said,
        "security": [{"bearer": [scope]}],
    }


def _success(shapes: Shapes, shown: Shown, schemas: Mapping[Any, Schema], *, headers: dict[str, Any]) -> dict[str, Any]:
    answer = {"schema": schemas[shapes.answer], "examples": {"plain": {"value": msgspec.to_builtins(shown.answer)}}}
    said, content = "The answer.", {"application/json": answer}
    if shapes.events is not None:
        events = get_args(shapes.events)
        *_, last = (each.event for each in events if each.event.endswith(".completed"))
        field = next(each for each in ("stream", "stream_steps") if hasattr(shapes.body, each))
        said = f"The answer, or a stream of it. {_STREAM_SAID.format(field=field, last=last)}"
        content["text/event-stream"] = {
            "schema": {"oneOf": [{"$ref": f"#/components/schemas/{each.__name__}"} for each in events]},
            "examples": {
                each.event: {
                    "value": {"event": each.event, "id": str(each.id), "data": msgspec.json.encode(each.data).decode()}
                }
                for each in EVENTS
                if isinstance(each, events)
            },
        }
    return {"description": said, "headers": headers, "content": content}


def _event(event: Any, schemas: Mapping[Any, Schema]) -> Schema:
    """An event by its lines: all are texts, ``data`` is JSON."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": schemas[_data_of(event)]}
    return {
        "type": "object",
        "description": text_of(event.__doc__ or "", event),
        "properties": {
            "event": {"type": "string", "const": event.event},
            "id": {"type": "string", "pattern": "^[1-9][0-9]*$", "description": "An increasing number."},
            "data": data,
        },
        "required": ["event", "id", "data"],
    }


def _data_of(event: type[Struct]) -> Any:
    if event is StreamError:
        return ErrorEnvelope
    return next(field.type for field in fields(event) if field.name == "data")


def _of_itself() -> dict[str, Any]:
    described = {"description": "The document.", "headers": _headers("ETag")}
    return {
        **_head("/v1/openapi", "openapi", routes.openapi, "No API key is needed.", ""),
        "security": [],
        "parameters": [
            {"name": "If-None-Match", "in": "header", "description": "An `ETag` from before.", "schema": _TEXT}
        ],
        "responses": {
            "200": {**described, "content": {"application/json": {"schema": {"type": "object"}}}},
            "304": {**described, "description": "The client's copy is current."},
            **_references([errors.ValidationFailed, errors.InternalError]),
        },
    }


def _vendor_call(path: str, serve: Serve) -> dict[str, Any]:
    """An operation with the body and answer of a vendor's API."""
    asked = "input" if path.endswith("responses") else "messages"
    body = {"type": "object", "required": ["model", asked], "properties": {"model": {**_TEXT, "minLength": 1}}}
    shown: dict[str, Any] = {"model": "auto", asked: [{"role": "user", "content": "Hello"}]}
    if "messages" in path:
        shown["max_tokens"] = 100
    answer = {"schema": {"type": "object"}, "examples": {}}
    said = "Fields, events and errors are the vendor's own. The API key needs the scope `route`."
    return {
        **_head(path, path.removeprefix("/v1/").replace("/", "_"), serve, said, "route"),
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": body, "examples": {"plain": {"value": shown}}}},
        },
        "responses": {
            "200": {
                "description": "The answer; with `stream` true, if supported, the vendor's server-sent events.",
                "headers": _headers(*_LIMITED),
                "content": {"application/json": answer},
            },
            "default": {"description": "An error in the vendor's envelope."},
        },
    }


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *names)}


def _references(kinds: Iterable[type[RouterError]]) -> dict[str, Any]:
    """Error responses by status, each with its possible codes."""
    return {
        str(status): {
            "$ref": f"#/components/responses/{_name(status)}",
            "description": ", ".join(dict.fromkeys(f"`{kind.code}`" for kind in found)),
        }
        for status, found in _by_status(kinds).items()
    }


def _by_status(kinds: Iterable[type[RouterError]]) -> dict[int, list[type[RouterError]]]:
    found: dict[int, list[type[RouterError]]] = {}
    for kind in sorted(kinds, key=lambda kind: kind.status):
        found.setdefault(kind.status, []).append(kind)
    return found


def _name(status: int) -> str:
    return HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "")


def _answer(status: int, kinds: list[type[RouterError]]) -> dict[str, Any]:
    meanings: dict[str, str] = {}  # that of the first error with a code, whose subclasses share it
    for kind in kinds:
        meanings.setdefault(kind.code, summary(kind))
    error = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "enum": [*meanings]},
            "type": {"type": "string", "enum": [*dict.fromkeys(kind.type for kind in kinds)]},
        },
    }
    body = {"type": "object", "properties": {"error": error}}
    again = " The same request may succeed later." if any(kind.retryable for kind in kinds) else ""
    examples = {}
    for each in ERRORS:
        if each.status == status:
            each.request_id = REQUEST_ID
            examples[each.code] = {"value": msgspec.to_builtins(error_envelope(each))}
    schema = {"allOf": [{"$ref": "#/components/schemas/ErrorEnvelope"}, body]}
    return {
        "description": " ".join(f"`{code}`: {said}" for code, said in meanings.items()) + again,
        "headers": _headers(*_BESIDES.get(status, ())),
        "content": {"application/json": {"schema": schema, "examples": examples}},
    }
