"""Can a JSON schema be held to by the letter? Vendors' strict mode takes a part of JSON Schema, and refuses the rest.

What it takes: objects whose properties are all required and have no others beside them, arrays of one kind of item,
``anyOf``, ``enum``, references to ``$defs``, bounds of numbers and lengths of arrays, patterns and the common formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.json import encode

MOST_DEFAULT_CHARS = 200
"""A longer default value is not written into a description."""

_AS_THEY_ARE = frozenset(
    "type description minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minItems maxItems pattern".split()
)
_ONLY_NOTES = frozenset("title default examples discriminator deprecated readOnly writeOnly $comment".split())
"""What no answer fits more or less for."""
_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid".split())
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_DEFINED = "#/$defs/"


class _Loose(Exception):
    """The schema says what strict mode cannot."""


def rooted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with what it refers to at its top in the place of the reference: vendors want an object there."""
    reference, defined = schema.get("$ref"), schema.get("$defs")
    if not isinstance(reference, str) or not isinstance(defined, Mapping):
        return dict(schema)
    name = reference.removeprefix(_DEFINED)
    if not isinstance(defined.get(name), Mapping):
        return dict(schema)
    top: dict[str, Any] = {**defined[name], **{word: value for word, value in schema.items() if word != "$ref"}}
    others = {other: value for other, value in defined.items() if other != name}
    if _quoted(reference) not in encode([defined[name], others]):
        top["$defs"] = others
    return {word: value for word, value in top.items() if word != "$defs" or value}


def strict_form(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema as strict mode takes it, for the same values; None where it cannot say them.

    A property that may be left out becomes required: to give its default, which goes into its description, is the same.
    """
    defined = schema.get("$defs", {})
    top = {word: value for word, value in schema.items() if word != "$defs"}
    try:
        made = _strict(top, defined)
        if defined:
            made["$defs"] = {name: _strict(inner, defined) for name, inner in defined.items()}
    except _Loose:
        return None
    return made


def property_names(schema: object) -> set[str]:
    """Names of all properties in a schema: words of its author's."""
    if isinstance(schema, list):
        return set().union(*map(property_names, schema))
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("properties")
    own = set(named) if isinstance(named, Mapping) else set()
    return own.union(*map(property_names, schema.values()))


def _strict(schema: object, defined: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(schema, Mapping):  # true and false
        raise _Loose
    if "$ref" in schema:
        return _referring(schema, defined)
    made: dict[str, Any] = {}
    for word, value in schema.items():
        if word not in _ONLY_NOTES:
            made |= {word: value} if word in _AS_THEY_ARE else _part(word, value, schema, defined)
    if made.get("type") == "object" and "properties" not in made:
        raise _Loose  # any object
    if made.get("type") == "array" and "items" not in made:
        raise _Loose
    if "type" not in made and "anyOf" not in made:
        raise _Loose  # anything
    return made


def _part(word: str, value: Any, schema: Mapping[str, Any], defined: Mapping[str, Any]) -> dict[str, Any]:
    """What a word of a schema becomes."""
    match word:
        case "properties":
            return _properties(schema, defined)
        case "required":
            return {}  # all are
        case "additionalProperties" if value is False:
            return {}
        case "items":
            return {"items": _strict(value, defined)}
        case "anyOf":
            return {"anyOf": [_strict(each, defined) for each in value]}
        case "oneOf" if "discriminator" in schema:  # no value is of two
            return {"anyOf": [_strict(each, defined) for each in value]}
        case "allOf" if len(value) == 1 and not schema.keys() & {"type", "properties", "anyOf"}:
            return _strict(value[0], defined)
        case "enum":
            return _choice(value)
        case "const":
            return _choice([value])
        case "format" if value in _FORMATS:
            return {"format": value}
    raise _Loose


def _properties(schema: Mapping[str, Any], defined: Mapping[str, Any]) -> dict[str, Any]:
    required = schema.get("required", ())
    made = {
        name: _strict(inner if name in required else _with_default(inner), defined)
        for name, inner in schema["properties"].items()
    }
    return {"properties": made, "required": [*made], "additionalProperties": False}


def _with_default(schema: Any) -> dict[str, Any]:
    """What may be left out, with words on what leaving it out means. Loose where nothing given means the same."""
    if not isinstance(schema, Mapping) or "default" not in schema:
        raise _Loose
    if schema["default"] is None and not _takes_null(schema):
        raise _Loose
    default = encode(schema["default"]).decode()
    if len(default) > MOST_DEFAULT_CHARS:
        raise _Loose
    said = schema.get("description")
    return {**schema, "description": f"{said} (default: {default})" if said else f"Default: {default}"}


def _takes_null(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "null" or (isinstance(kind, list) and "null" in kind) or {"type": "null"} in schema.get("anyOf", ())


def _referring(schema: Mapping[str, Any], defined: Mapping[str, Any]) -> dict[str, Any]:
    """A reference stands alone in strict mode; what is said of it goes around it."""
    reference = schema["$ref"]
    if not isinstance(reference, str) or reference.removeprefix(_DEFINED) not in defined:
        raise _Loose
    if schema.keys() - {"$ref", "description"} - _ONLY_NOTES:
        raise _Loose
    if "description" not in schema:
        return {"$ref": reference}
    return {"anyOf": [{"$ref": reference}], "description": schema["description"]}


def _choice(values: list[Any]) -> dict[str, Any]:
    if not all(type(value) in _KINDS for value in values):
        raise _Loose
    kinds = list(dict.fromkeys(_KINDS[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": values}


def _quoted(reference: str) -> bytes:
    return encode(reference)
