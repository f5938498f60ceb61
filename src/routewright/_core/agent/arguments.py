"""Checks the arguments of a tool call against its JSON schema, as far as tools use JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

MOST_SHOWN = 5
MOST_DEPTH = 20
MOST_VISITS = 10_000
"""Pairs of a value and a schema. What comes after them, or is deeper, is not checked."""
_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    "string": ("a string", lambda value: isinstance(value, str)),
    "integer": ("an integer", lambda value: _is_number(value) and value == int(value)),
    "number": ("a number", lambda value: _is_number(value)),
    "boolean": ("a boolean", lambda value: isinstance(value, bool)),
    "array": ("an array", lambda value: isinstance(value, list)),
    "object": ("an object", lambda value: isinstance(value, dict)),
    "null": ("null", lambda value: value is None),
}


def misfits(value: Any, schema: Mapping[str, Any] | None) -> list[str]:
    """The first errors of a value, in words for the model."""
    return [] if schema is None else list(islice(_Check(schema).errors(value, schema, "", 0), MOST_SHOWN))


class _Check:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._defs = _mapping(schema.get("$defs"))
        self._visits = 0

    def errors(self, value: Any, schema: Any, at: str, depth: int) -> Iterator[str]:
        if not isinstance(schema, Mapping) or depth > MOST_DEPTH or self._visits >= MOST_VISITS:
            return
        self._visits += 1
        where = at or "the arguments"
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield from self.errors(value, self._defs.get(reference.rpartition("/")[2]), at, depth + 1)
        options = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(options, list) and all(any(self.errors(value, each, at, depth + 1)) for each in options):
            yield f"{where} fits none of its alternatives"
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if isinstance(kinds, list) and all(kind in _KINDS and not _KINDS[kind][1](value) for kind in kinds):
            yield f"{where} must be {' or '.join(_KINDS[kind][0] for kind in kinds)}"
            return
        choices = schema.get("enum")
        if isinstance(choices, list) and value not in choices:
            yield f"{where} must be one of {choices!r}"
        if isinstance(value, dict):
            yield from self._errors_of_object(value, schema, at, depth)
        elif isinstance(value, list):
            for place, each in enumerate(value):
                yield from self.errors(each, schema.get("items"), f"{at}[{place}]", depth + 1)
        elif _is_number(value):
            for bound, is_beyond in (("minimum", value.__lt__), ("maximum", value.__gt__)):
                if _is_number(schema.get(bound)) and is_beyond(schema[bound]) is True:
                    yield f"{where} is beyond its {bound} {schema[bound]}"

    def _errors_of_object(self, value: dict[str, Any], schema: Mapping[str, Any], at: str, depth: int) -> Iterator[str]:
        properties, required = _mapping(schema.get("properties")), schema.get("required")
        for name in required if isinstance(required, list) else []:
            if name not in value:
                yield f"{_below(at, name)} is missing"
        for name, each in value.items():
            if name in properties:
                yield from self.errors(each, properties[name], _below(at, name), depth + 1)
            elif schema.get("additionalProperties") is False:
                yield f"{_below(at, name)} is not known; known are {', '.join(properties)}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _below(at: str, name: object) -> str:
    return f"{at}.{name}" if at else str(name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # NaN
