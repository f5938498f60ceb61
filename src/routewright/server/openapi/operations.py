"""What is told of each operation: its parameters, its body, its answers. All of it follows from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from routewright.docstrings import summary
from routewright.errors import IdempotencyKeyReused, InternalError, ValidationFailed
from routewright.server.document import openapi
from routewright.server.operation import Operation
from routewright.server.routes import ENDPOINTS
from routewright.wire import ErrorEnvelope, RouteRequest, StreamError

from .answers import LIMITED, errors_of, headers, references
from .examples import EVENTS, OPERATIONS, Shown
from .limits import LIMITS
from .schemas import Schema, field_schemas, schemas_of, text_of

KEY = "Idempotency-Key"
SELF = "/v1/openapi.json"

_IN_PATH = re.compile(r"{(\w+)[.]*}")
_IN_PATHS = {"trace_id": "`tr_` and 26 characters, as `trace_id` of an answer; `trc_` is read as `tr_`."}
_KEY_SAID = (
    "A name for the call, at most 64 bytes in UTF-8: sent again within 24 hours with the same body it brings the first"
    " answer and is billed once; with another it is 409. The field `idempotency_key` does the same."
)
_STREAM_SAID = (
    "With `stream` true: server-sent events, each as the schema says of its lines, the `data` in one. The last is"
    " {last} or `error`; lines that begin with a colon keep the stream open."
)


class Told(NamedTuple):
    """An operation, and where it is."""

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


class Paths(NamedTuple):
    """All addresses, and the schemas that they refer to."""

    paths: dict[str, Any]
    schemas: dict[str, Schema]


def paths() -> Paths:
    """What there is at each address."""
    told = told_operations()
    asked = list(dict.fromkeys(each.operation.body for each in told if each.operation.body is not None))
    events = list(dict.fromkeys(event for each in told for event in get_args(each.operation.events)))
    answered = dict.fromkeys([*(each.operation.answer for each in told), *map(_data_of, events), ErrorEnvelope])
    schemas = schemas_of(asked, answered)
    by_type = dict(zip([*asked, *answered], schemas.of, strict=True))
    found: dict[str, Any] = {}
    for each in told:
        found.setdefault(each.path, {})[each.method] = _described(each, by_type)
    found[SELF] = {"get": _of_itself()}
    return Paths(found, schemas.components | {event.__name__: _event(event, by_type) for event in events})


def _described(told: Told, schemas: Mapping[Any, Schema]) -> dict[str, Any]:
    operation, shown = told.operation, OPERATIONS[told.path]
    return {
        "operationId": operation.act.__name__,
        "tags": [told.path.split("/")[2]],
        "summary": summary(operation.act),
        "description": f"The API key needs the scope `{operation.scope}`.",
        "security": [{"bearer": [operation.scope]}],
        **_if("parameters", [*_parameters(told, shown)]),
        **_if("requestBody", _body(operation, shown, schemas)),
        "responses": {"200": _success(operation, shown, schemas), **errors_of(told.path, operation)},
    }


def _if(word: str, value: Any) -> dict[str, Any]:
    return {word: value} if value else {}


def _parameters(told: Told, shown: Shown) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "description": _IN_PATHS[name], "schema": {"type": "string"}}
        for name in _IN_PATH.findall(told.path)
    ]
    for name, schema in field_schemas(told.operation.query).items():
        said = schema.pop("description", "")
        found.append({"name": name, "in": "query", "description": said, "schema": schema})
    if IdempotencyKeyReused in told.operation.raises:
        limits = LIMITS[RouteRequest]["idempotency_key"]
        found.append({"name": KEY, "in": "header", "description": _KEY_SAID, "schema": {"type": "string", **limits}})
    for each in found:
        if each["name"] in shown.parameters:
            each["example"] = shown.parameters[each["name"]]
    return found


def _body(operation: Operation, shown: Shown, schemas: Mapping[Any, Schema]) -> dict[str, Any] | None:
    if operation.body is None:
        return None
    examples = {name: {"value": value} for name, value in shown.asked.items()}
    content = {"schema": schemas[operation.body], "examples": examples}
    return {"required": True, "content": {"application/json": content}}


def _success(operation: Operation, shown: Shown, schemas: Mapping[Any, Schema]) -> dict[str, Any]:
    answer = {"schema": schemas[operation.answer], "examples": {"plain": {"value": msgspec.to_builtins(shown.answer)}}}
    content: dict[str, Any] = {"application/json": answer}
    said = "The answer."
    if operation.events is not None:
        events = get_args(operation.events)
        (last,) = (each.event for each in events if each.event.endswith(".completed"))
        said = f"The answer, or a stream of it. {_STREAM_SAID.format(last=f'`{last}`')}"
        content["text/event-stream"] = {
            "schema": {"oneOf": [{"$ref": f"#/components/schemas/{each.__name__}"} for each in events]},
            "examples": {each.event: {"value": _shown(each)} for each in EVENTS},
        }
    counted = IdempotencyKeyReused in operation.raises
    return {"description": said, "headers": headers(*(LIMITED if counted else ())), "content": content}


def _event(event: Any, schemas: Mapping[Any, Schema]) -> Schema:
    """An event as its lines are read: all of them are texts, ``data`` one that is JSON."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": schemas[_data_of(event)]}
    return {
        "type": "object",
        "description": text_of(event.__doc__ or "", event),
        "properties": {
            "event": {"type": "string", "const": event.event},
            "id": {"type": "string", "pattern": "^[1-9][0-9]*$", "description": "A number that only ever grows."},
            "data": data,
        },
        "required": ["event", "id", "data"],
    }


def _shown(event: Any) -> dict[str, str]:
    return {"event": event.event, "id": str(event.id), "data": msgspec.json.encode(event.data).decode()}


def _data_of(event: type[Struct]) -> Any:
    if event is StreamError:
        return ErrorEnvelope
    return next(field.type for field in fields(event) if field.name == "data")


def _of_itself() -> dict[str, Any]:
    document = {"schema": {"type": "object"}}
    tag = {"type": "string"}
    return {
        "operationId": openapi.__name__,
        "tags": ["openapi"],
        "summary": summary(openapi),
        "description": "No API key is needed.",
        "security": [],
        "parameters": [
            {"name": "If-None-Match", "in": "header", "description": "An `ETag` from before.", "schema": tag}
        ],
        "responses": {
            "200": {
                "description": "The document.",
                "headers": headers("ETag"),
                "content": {"application/json": document},
            },
            "304": {"description": "It is the one that the client has.", "headers": headers("ETag")},
            **references([ValidationFailed, InternalError]),
        },
    }
