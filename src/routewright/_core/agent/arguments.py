"""Checks the arguments of a tool call against its JSON schema, as far as tools use JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

MOST_TOLD = 5
_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": lambda value: _is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def misfits(value: Any, schema: Mapping[str, Any] | None) -> list[str]:
    """What is wrong with a value, in words for the model; empty: nothing that is checked."""
    return [] if schema is None else list(islice(_found(value, schema, schema.get("$defs") or {}, "", 0), MOST_TOLD))


def _found(value: Any, schema: Any, defs: Mapping[str, Any], at: str, depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth > 20:
        return
    where = at or "the arguments"
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield from _found(value, defs.get(reference.rpartition("/")[2]), defs, at, depth + 1)
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and all(any(_found(value, each, defs, at, depth + 1)) for each in options):
        yield f"{where} fits none of its alternatives"
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(kinds, list) and not any(_KINDS.get(kind, _anything)(value) for kind in kinds):
        yield f"{where} must be {' or '.join(map(str, kinds))}"
        return
    choices = schema.get("enum")
    if isinstance(choices, list) and value not in choices:
        yield f"{where} must be one of {choices!r}"
    if isinstance(value, dict):
        yield from _of_object(value, schema, defs, at, depth)
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from _found(each, schema.get("items"), defs, f"{at}[{place}]", depth + 1)
    elif _is_number(value):
        for bound, is_beyond in (("minimum", value.__lt__), ("maximum", value.__gt__)):
            if _is_number(schema.get(bound)) and is_beyond(schema[bound]) is True:
                yield f"{where} is beyond its {bound} {schema[bound]}"


def _of_object(
    value: dict[str, Any], schema: Mapping[str, Any], defs: Mapping[str, Any], at: str, depth: int
) -> Iterator[str]:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    for name in required if isinstance(required, list) else []:
        if name not in value:
            yield f"{_below(at, name)} is missing"
    for name, each in value.items():
        if name in properties:
            yield from _found(each, properties[name], defs, _below(at, name), depth + 1)
        elif schema.get("additionalProperties") is False:
            yield f"{_below(at, name)} is not known; known are {', '.join(properties)}"


def _below(at: str, name: object) -> str:
    return f"{at}.{name}" if at else str(name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # NaN


def _anything(value: Any) -> bool:
    return True
