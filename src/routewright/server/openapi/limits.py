"""Bounds that a schema states beyond types and numbers, as ``_core/request/rules.py`` and its like check them.

What a schema cannot say, such as a length in bytes, is said where the field is declared, and refused all the same.
"""

from __future__ import annotations

from typing import Any, Final

from routewright._core.analytics.rollup import GROUPS
from routewright._core.request.problems import CHOICES
from routewright._core.request.rules import FUNCTION_NAME, MAX_KEY_BYTES, MAX_MESSAGES, MAX_STOPS
from routewright._core.trace import filter
from routewright.server.endpoints import DatesQuery, TracesQuery, UsageQuery
from routewright.trace import LIMIT
from routewright.wire import (
    CacheOpts,
    CacheReport,
    Fallback,
    FallbackReport,
    FunctionCall,
    FunctionName,
    FunctionSpec,
    ImageUrl,
    LatencyReport,
    Message,
    Params,
    RouteRequest,
    Tool,
    ToolCall,
    TraceItem,
    UsageReport,
    UsageRow,
)

Limits = dict[str, dict[str, Any]]

WHOLE: Final = ""
"""In the place of a field: the struct itself."""

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
        "properties": {**_SAID["properties"], "tool_calls": _NULL, "tool_call_id": {"type": "string"}},
        "required": ["content", "tool_call_id"],
    },
    "else": {
        "properties": {"tool_call_id": _NULL},
        "if": {"properties": {"role": {"const": "assistant"}}},
        "then": {"anyOf": [_SAID, _CALLED]},
        "else": {"properties": {**_SAID["properties"], "tool_calls": _NULL}, "required": ["content"]},
    },
}
"""What goes together in a message. Said as conditions, here and below: beside alternatives at the top of a schema many
generators of clients leave its fields out, or the whole of it."""

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

_FORMATS: Final = CHOICES["params.response_format.type"]
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
    "properties": {"type": {"type": "string", "enum": [*_FORMATS]}, "json_schema": {"type": ["object", "null"]}},
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
_FILTER: Final = {
    "maxLength": filter.MAX_CHARS,
    "pattern": f"^(?:{_TERM}(?:,{_TERM}){{0,{filter.MAX_TERMS - 1}}})?$",
}

LIMITS: dict[type, Limits] = {
    RouteRequest: {
        "messages": {"minItems": 1, "maxItems": MAX_MESSAGES},
        "policy_id": _SOME,
        "models": {**_IDS, "minItems": 1},
        "tool_choice": _NAME,
        "idempotency_key": {**_SOME, "maxLength": MAX_KEY_BYTES},
        "prefer": {**_SOME, **_IDS},
    },
    Message: {
        "content": {"minItems": 1},
        "tool_calls": {"minItems": 1},
        "tool_call_id": _SOME,
        "name": _SOME,
        WHOLE: _TURN,
    },
    ImageUrl: {"url": {"pattern": "^([hH][tT][tT][pP][sS]?://|[dD][aA][tT][aA]:[iI][mM][aA][gG][eE]/)"}},
    ToolCall: {"id": _SOME},
    FunctionCall: {"name": _SOME},
    FunctionName: {"name": _NAME},
    FunctionSpec: {"name": _NAME},
    Tool: {"name": _NAME, WHOLE: _TOOL},
    Fallback: {"models": _IDS},
    Params: {
        "stop": {**_SOME, "maxItems": MAX_STOPS, "items": {"type": "string", **_SOME}},
        "response_format": _RESPONSE_FORMAT,
    },
    CacheOpts: {
        "namespace": _SOME,
        WHOLE: _ONE_BOUND,
    },
    TracesQuery: {
        "since": _TIME,
        "until": _TIME,
        "filter": _FILTER,
        "limit": {"minimum": int(LIMIT.low), "maximum": int(LIMIT.high)},
        "cursor": {"pattern": "^[A-Za-z0-9_-]+$", "maxLength": filter.MAX_CURSOR_CHARS},
    },
    DatesQuery: dict.fromkeys(_DAYS, _A_DAY),
    UsageQuery: {"group_by": {"pattern": rf"^(?:{'|'.join(GROUPS)}|metadata\.[\s\S]+)$"}},
    TraceItem: {"created_at": _TIME},
    UsageReport: _DAYS,
    CacheReport: _DAYS,
    FallbackReport: _DAYS,
    LatencyReport: _DAYS,
    UsageRow: {"bucket_start": _TIME},
}
"""Of a struct and those made of it, by its fields; ``WHOLE``: what holds between them."""
