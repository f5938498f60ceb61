"""What fits a JSON schema? A small value, made within bounds however large, wrong or circular the schema is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from math import ceil, inf, isfinite
from typing import Any, TypeGuard

MOST_VALUES = 1_000
"""Values in one example, those inside others too."""
MOST_DEPTH = 32
MOST_CHARACTERS = 1_000
"""In one text."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_FORMATS = {
    "date-time": "2026-01-01T12:00:00Z",
    "date": "2026-01-01",
    "time": "12:00:00Z",
    "duration": "P1D",
    "decimal": "0",
    "email": "sandbox@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
"""One text of each format."""


def example_of(schema: Any) -> Any:
    """A small value that fits a JSON schema's plain parts: const, enum, local references, anyOf, type, properties,
    required, items, bounds, the least sizes, and the common formats. What is beyond these or the limits above is left
    out; nothing is refused."""
    return _Example(schema).value(schema, 0)


class _Example:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = MOST_VALUES

    def value(self, schema: Any, depth: int) -> Any:
        """One value; null where the bounds are reached."""
        self._left -= 1
        if self._left < 0 or depth > MOST_DEPTH:
            return None
        if not isinstance(schema, Mapping):  # true fits everything, false nothing
            return "sandbox"
        if "const" in schema:
            return self._copy(schema["const"], depth)
        if options := _list(schema.get("enum")):
            return self._copy(options[0], depth)
        inner = self._inner(schema)
        if inner is not None:
            return self.value(inner, depth + 1)
        match _kind(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer":
                return ceil(_number(schema))
            case "number":
                return _number(schema)
            case "boolean":
                return False
            case "null":
                return None
            case _:
                return _text(schema)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            properties = {}
        names: Iterable[Any] = _list(schema.get("required")) if "required" in schema else properties
        made: dict[str, Any] = {}
        for name in names:
            if self._left <= 0:
                break
            if isinstance(name, str):
                made[name[:MOST_CHARACTERS]] = self.value(properties.get(name), depth + 1)
        return made

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        first = _list(schema.get("prefixItems"))
        made = [self.value(each, depth + 1) for each in first if self._left > 0]
        more = min(_whole(schema.get("minItems")) - len(first), self._left)
        return made + [self.value(schema.get("items"), depth + 1) for _ in range(more) if self._left > 0]

    def _inner(self, schema: Mapping[str, Any]) -> Any:
        """The schema that stands for this one, if another does."""
        if isinstance(schema.get("$ref"), str):
            return self._referred(schema["$ref"])
        for word in ("anyOf", "oneOf", "allOf"):
            if options := _list(schema.get(word)):
                return {"type": "null"} if word != "allOf" and {"type": "null"} in options else options[0]
        return None

    def _referred(self, pointer: str) -> Any:
        """A place in the same schema; elsewhere nothing is looked up."""
        place = self._root
        for part in pointer[:MOST_CHARACTERS].removeprefix("#").split("/")[1:]:
            place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
        return {} if place is None else place

    def _copy(self, given: Any, depth: int) -> Any:
        """A value that the schema itself holds, as much of it as is within the bounds."""
        self._left -= 1
        if self._left < 0 or depth > MOST_DEPTH:
            return None
        if isinstance(given, str):
            return given[:MOST_CHARACTERS]
        if isinstance(given, list):
            return [self._copy(each, depth + 1) for each in given[: self._left] if self._left > 0]
        if isinstance(given, dict):
            names = list(islice(given, self._left))
            return {name: self._copy(given[name], depth + 1) for name in names if self._left > 0}
        return given


def _kind(schema: Mapping[str, Any]) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    return kind[0] if isinstance(kind, list) and kind else kind


def _list(given: Any) -> list[Any]:
    return given[:MOST_VALUES] if isinstance(given, list) else []


def _is_number(given: Any) -> TypeGuard[int | float]:
    return type(given) is int or (type(given) is float and isfinite(given))


def _whole(given: Any) -> int:
    return max(0, ceil(given)) if _is_number(given) else 0


def _number(schema: Mapping[str, Any]) -> Any:
    """Zero, or what is near the bounds and within them."""
    given = {word: schema[word] for word in _BOUNDS if _is_number(schema.get(word))}
    step = given.pop("multipleOf", 0)
    try:
        tries = [0, *given.values(), *(end + 1 for end in given.values()), *(end - 1 for end in given.values())]
        tries += [sum(given.values()) / len(given)] if given else []
        steps = [ceil(each / step) * step for each in tries] if step > 0 else tries
        return next((each for each in steps if _is_within(given, each)), 0)
    except OverflowError:
        return 0


def _is_within(given: Mapping[str, Any], value: Any) -> bool:
    if not given.get("minimum", -inf) <= value <= given.get("maximum", inf):
        return False
    return bool(given.get("exclusiveMinimum", -inf) < value < given.get("exclusiveMaximum", inf))


def _text(schema: Mapping[str, Any]) -> str:
    form = schema.get("format")
    if isinstance(form, str) and form in _FORMATS:
        return _FORMATS[form]
    size = min(max(len("sandbox"), _whole(schema.get("minLength"))), MOST_CHARACTERS)
    if _is_number(schema.get("maxLength")):
        size = min(size, _whole(schema["maxLength"]))
    return ("sandbox" * -(-size // len("sandbox")))[:size]
