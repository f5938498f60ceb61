"""Checks the arguments of a tool call against the first level of its JSON schema: names, types and choices. What lies
deeper is for the tool to check. Functions check all of it with pydantic, MCP servers on their side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def misfits(arguments: Mapping[str, Any], schema: Mapping[str, Any] | None) -> list[str]:
    """What is wrong with arguments, in words for the model; empty if nothing is."""
    schema = schema or {}
    properties, required = schema.get("properties"), schema.get("required")
    known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    found = [f"{name} is missing" for name in _listed(required) if name not in arguments]
    for name, value in arguments.items():
        wanted = known.get(name)
        wanted = wanted if isinstance(wanted, Mapping) else {}
        kinds, choices = [*map(str, _listed(wanted.get("type")))], _listed(wanted.get("enum"))
        if name not in known and schema.get("additionalProperties") is False:
            found.append(f"{name} is not known; known are {', '.join(known)}")
        elif kinds and not any(kind not in _KINDS or _KINDS[kind](value) for kind in kinds):
            told = [f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}" for kind in kinds]
            found.append(f"{name} must be {' or '.join(told)}")
        elif choices and value not in choices:
            found.append(f"{name} must be one of {choices!r}")
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
