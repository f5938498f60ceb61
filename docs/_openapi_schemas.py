"""JSON Schemas of structs: msgspec's, with docstrings as descriptions, and the limits of ``_core/request/rules.py``.

Limits that a schema cannot express, such as a length in bytes, are described at the field."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Struct
from msgspec.inspect import StructType, Type, multi_type_info
from msgspec.structs import fields

from routewright import wire
from routewright._core.agent.request import BLANK, MOST_TASK
from routewright._core.analytics.rollup import GROUPS
from routewright._core.request.rules import FUNCTION_NAME, MAX_KEY_BYTES, MAX_MESSAGES, MAX_STOPS, NUMBERS, Range
from routewright._core.trace import filter
from routewright.server.endpoints import DatesQuery, TracesQuery, UsageQuery
from routewright.trace import LIMIT
from routewright.wire.docstrings import field_docs, prose
from routewright.wire.problems import FORMATS

Schema = dict[str, Any]
Limits = dict[str, Schema]
"""Schema keywords by field."""

WHOLE: Final = ""
"""Stands for the struct itself."""

_SOME: Final = {"minLength": 1}
_IDS: Final = {"uniqueItems": True, "items": {"type": "string", **_SOME}}
_NAME: Final = {"pattern": f"^{FUNCTION_NAME.pattern}$"}
_NULL: Final = {"type": "null"}
_TIME: Final = {"format": "date-time"}
_DAY: Final = {"format": "date"}
_DAYS: Final = {"start_date": _DAY, "end_date": _DAY}
_A_DAY: Final = {**_DAY, "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}

_SAID: Final[dict[str, Any]] = {"properties": {"content": {"type": ["string", "array"]}}, "required": ["content"]}
_CALLED: Final = {"properties": {"tool_calls": {"type": "array"}}, "required": ["tool_calls"]}
_TURN: Final = {
    "if": {"properties": {"role": {"const": "tool"}}},
    "then": {
        "properties": {
            **_SAID["properties"],
            "tool_calls": _NULL,
            "tool_call_id": {"type": "string"},
            "reasoning": _NULL,
        },
        "required": ["content", "tool_call_id"],
    },
    "else": {
        "properties": {"tool_call_id": _NULL},
        "if": {"properties": {"role": {"const": "assistant"}}},
        "then": {"anyOf": [_SAID, _CALLED]},
        "else": {
            "properties": {**_SAID["properties"], "tool_calls": _NULL, "reasoning": _NULL},
            "required": ["content"],
        },
    },
}
"""Combinations of fields in a message. Conditions, here and below, since many client generators drop fields beside
``anyOf`` at the top of a schema."""

_FLAT: Final = ("description", "name", "parameters", "strict")
_TOOL: Final = {
    "if": {"properties": {"function": {"type": "object"}}, "required": ["function"]},
    "then": {"properties": dict.fromkeys(_FLAT, _NULL)},
    "else": {"properties": {"name": {"type": "string"}}, "required": ["name"]},
}
_ONE_BOUND: Final = {
    "if": {"properties": {"max_error": {"type": "number"}}, "required": ["max_error"]},
    "then": {"properties": {"threshold": _NULL}},
}

_JSON_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", **_NAME},
        "schema": {"type": "object", "description": "A JSON schema."},
        "description": {},
        "strict": {},
    },
    "required": ["name", "schema"],
    "additionalProperties": False,
}
_RESPONSE_FORMAT: Final = {
    "properties": {"type": {"type": "string", "enum": [*FORMATS]}, "json_schema": {"type": ["object", "null"]}},
    "required": ["type"],
    "additionalProperties": False,
    "if": {"properties": {"type": {"const": "json_schema"}}},
    "then": {"properties": {"json_schema": _JSON_SCHEMA}, "required": ["json_schema"]},
    "else": {"properties": {"json_schema": _NULL}},
}

_VALUE = r'(?:"(?:[^"\\]|\\[\s\S])*"|[^,="<>!\s][^,]*)'
_EQUAL = "|".join((*filter.TEXTS, *filter.FLAGS))
_COMPARED = "|".join((*filter.NUMBERS, r'metadata\.[^=!<>,"]+'))
_TERM = rf"\s*(?:(?:{_EQUAL})\s*!?=|(?:{_COMPARED})\s*(?:[=<>]|[!<>]=))\s*{_VALUE}\s*"
_FILTER: Final = {"maxLength": filter.MAX_CHARS, "pattern": f"^(?:{_TERM}(?:,{_TERM}){{0,{filter.MAX_TERMS - 1}}})?$"}


def _any_case(text: str) -> str:
    """A case-insensitive pattern for a text."""
    return "".join(f"[{each}{each.upper()}]" if each.isalpha() else each for each in text)


LIMITS: dict[type, Limits] = {
    wire.RouteRequest: {
        "messages": {"minItems": 1, "maxItems": MAX_MESSAGES},
        "policy_id": _SOME,
        "models": {**_IDS, "minItems": 1},
        "tool_choice": _NAME,
        "idempotency_key": {**_SOME, "maxLength": MAX_KEY_BYTES},
        "prefer": {**_SOME, **_IDS},
    },
    wire.AgentRequest: {
        "task": {"pattern": f"[^{BLANK}]", "maxLength": MOST_TASK},
        "idempotency_key": {**_SOME, "maxLength": MAX_KEY_BYTES},
    },
    wire.Message: {
        "content": {"minItems": 1},
        "tool_calls": {"minItems": 1},
        "tool_call_id": _SOME,
        "name": _SOME,
        WHOLE: _TURN,
    },
    wire.ImageUrl: {"url": {"pattern": f"^({_any_case('https://')}|{_any_case('data:image/')})"}},
    wire.FileData: {
        "file_data": {"pattern": f"^({_any_case('https://')}|{_any_case('data:application/pdf;base64,')})"}
    },
    wire.InputAudio: {"data": {"pattern": "^[^:.]+$"}},
    wire.ToolCall: {"id": _SOME},
    wire.FunctionCall: {"name": _SOME},
    wire.FunctionName: {"name": _NAME},
    wire.FunctionSpec: {"name": _NAME},
    wire.Tool: {"name": _NAME, WHOLE: _TOOL},
    wire.Fallback: {"models": _IDS},
    wire.Params: {
        "stop": {**_SOME, "maxItems": MAX_STOPS, "items": {"type": "string", **_SOME}},
        "response_format": _RESPONSE_FORMAT,
    },
    wire.CacheOpts: {"namespace": _SOME, WHOLE: _ONE_BOUND},
    TracesQuery: {
        "since": _TIME,
        "until": _TIME,
        "filter": _FILTER,
        "limit": {"minimum": int(LIMIT.low), "maximum": int(LIMIT.high)},
        "cursor": {"pattern": "^[A-Za-z0-9_-]+$", "maxLength": filter.MAX_CURSOR_CHARS},
    },
    DatesQuery: dict.fromkeys(_DAYS, _A_DAY),
    UsageQuery: {"group_by": {"pattern": rf"^(?:{'|'.join(GROUPS)}|metadata\.[\s\S]+)$"}},
    wire.TraceItem: {"created_at": _TIME},
    wire.UsageReport: _DAYS,
    wire.CacheReport: _DAYS,
    wire.FallbackReport: _DAYS,
    wire.LatencyReport: _DAYS,
    wire.UsageRow: {"bucket_start": _TIME},
}
"""Limits of a struct and its subclasses by field; ``WHOLE`` is for limits between fields."""

_REF = "#/components/schemas/"
_HIGHEST = 2**63
"""Higher bounds are left out."""
_PYTHON = {"None": "null", "True": "true", "False": "false"}
_PYTHON_WORD = re.compile(r"\b(None|True|False)\b")
_CODE, _WORD = re.compile(r"`[^`]*`"), re.compile(r"\w+")
_OF_NUMBERS = frozenset("minimum exclusiveMinimum maximum multipleOf".split())
_KEYWORDS = {
    "number": _OF_NUMBERS,
    "integer": _OF_NUMBERS,
    "string": frozenset("minLength maxLength pattern format".split()),
    "array": frozenset("minItems maxItems uniqueItems items".split()),
    "object": frozenset("properties required additionalProperties if then else".split()),
}
"""Keywords that apply to a type."""


class Schemas(NamedTuple):
    """The schemas of an interface."""

    of: tuple[Schema, ...]
    """One for each type in order, mostly references to the components."""
    components: dict[str, Schema]


def schemas_of(asked: Iterable[Any], answered: Iterable[Any]) -> Schemas:
    """Schemas of request types, then of answer types. Answers have all their fields."""
    asked, types = [*asked], [*asked, *answered]
    roots, components = msgspec.json.schema_components(types, ref_template=f"{_REF}{{name}}")
    kinds, free = structs_in(types), structs_in(asked)
    made: dict[str, Schema] = {}
    for name, schema in components.items():
        title = schema.get("title", "").partition("[")[0]
        if title == "Pricing":  # `ListedModel.of` leaves it out
            del schema["properties"]["exact"]
        if title in kinds:
            described = _described(schema, kinds[title], asked=title in free)
        else:
            described = {**_plain(schema), "description": text_of(schema.get("description", ""))}
        made[name.replace("_", "")] = described
    return Schemas(tuple(map(_plain, roots)), made)


def field_schemas(kind: type[Struct]) -> dict[str, Schema]:
    """Schemas of a flat struct's fields by wire name, without null."""
    schema = msgspec.json.schema_components([kind])[1][kind.__name__]
    found = _described(schema, kind, asked=True)["properties"]
    for each in found.values():
        if isinstance(each.get("type"), list):
            (each["type"],) = [kind for kind in each["type"] if kind != "null"]
        if "enum" in each:
            each["enum"] = [value for value in each["enum"] if value is not None]
    return dict(found)


def structs_in(types: Iterable[Any]) -> dict[str, type[Struct]]:
    """All structs within some types, by name."""
    found: dict[str, type[Struct]] = {}

    def collect(node: object) -> None:
        if isinstance(node, tuple | list):
            for each in node:
                collect(each)
        elif isinstance(node, StructType):
            kind = getattr(node.cls, "__origin__", node.cls)
            if kind.__name__ not in found:
                found[kind.__name__] = kind
                collect([field.type for field in node.fields])
        elif isinstance(node, Type):
            collect([getattr(node, name) for name in node.__struct_fields__])

    collect(multi_type_info(types))
    return found


def text_of(doc: str, kind: type | None = None) -> str:
    """A docstring with JSON's spelling of values and wire names of fields."""
    said = _PYTHON_WORD.sub(lambda found: _PYTHON[found[1]], prose(doc))
    if kind is None or not issubclass(kind, Struct):
        return said
    wires = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    return _CODE.sub(lambda code: _WORD.sub(lambda name: wires.get(name[0], name[0]), code[0]), said)


def _described(schema: Schema, kind: type[Struct], *, asked: bool) -> Schema:
    """The schema of a struct. ``asked``: of a request, where fields with a default are optional and nullable."""
    docs, ranges, config = field_docs(kind), NUMBERS.get(kind, {}), kind.__struct_config__
    limits: Limits = {}
    for each in reversed(kind.__mro__):
        limits |= LIMITS.get(each, {})
    may_lack = asked or config.omit_defaults
    unset = {field.encode_name for field in fields(kind) if field.default is UNSET}
    always = [name for name, each in schema["properties"].items() if not may_lack or "default" not in each]
    names = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    properties = {}
    for written, raw in schema["properties"].items():
        name = names.get(written, "")  # the tag of a union is no field
        bounds = {**(_bounds(ranges[name]) if name in ranges else {}), **limits.get(name, {})}
        kinds = raw.get("anyOf", [raw])
        may_be_null = asked and written not in schema.get("required", ())
        nullable = {"anyOf": [*kinds, _NULL]} if may_be_null and _NULL not in kinds else raw
        properties[written] = made = _bounded(_plain(nullable), bounds)
        if name in docs:
            made["description"] = text_of(docs[name], kind)
        if not may_lack:
            made.pop("default", None)
    whole = {
        "type": "object",
        "description": text_of(inspect.cleandoc(kind.__doc__ or ""), kind),
        "properties": properties,
        "required": schema["required"] if asked else [name for name in always if name not in unset],
        **({"additionalProperties": False} if config.forbid_unknown_fields else {}),
        **limits.get(WHOLE, {}),
    }
    return {word: value for word, value in whole.items() if value not in ([], "")}


def _bounded(schema: Schema, bounds: Schema) -> Schema:
    """Add bounds, each where the type supports it."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_bounded(each, bounds) for each in schema["anyOf"]]}
    kinds = schema.get("type", [])
    words = {word for kind in ([kinds] if isinstance(kinds, str) else kinds) for word in _KEYWORDS.get(kind, ())}
    return schema | {word: value for word, value in bounds.items() if word in words}


def _bounds(numbers: Range) -> Schema:
    made: Schema = {"exclusiveMinimum" if numbers.above else "minimum": numbers.low}
    if numbers.high < _HIGHEST:
        made["maximum"] = numbers.high
    if numbers.whole:
        made["multipleOf"] = 1  # 2000.0 is as good as 2000
    return made


def _plain(schema: Any) -> Any:
    """msgspec's schema simplified: no titles, no null as default, ``anyOf`` of a plain type and null as two types.
    Component names lose their underscores (msgspec writes ``Page_TraceItem_``)."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if isinstance(schema, str) and schema.startswith(_REF):
        return _REF + schema.removeprefix(_REF).replace("_", "")
    if not isinstance(schema, dict):
        return schema
    made = {word: _plain(value) for word, value in schema.items() if (word, value) != ("default", None)}
    made.pop("title", None)
    if made.get("items") is False:  # redundant with maxItems, and unknown to some generators
        del made["items"]
    if "enum" in made:
        made = {"type": "string", **made}
    match made.get("anyOf"):
        case [only, {"type": "null"}] | [{"type": "null"}, only] if isinstance(only.get("type"), str):
            del made["anyOf"]
            made |= {**only, "type": [only["type"], "null"]}
            if "enum" in only:
                made["enum"] = [*only["enum"], None]
    return made
