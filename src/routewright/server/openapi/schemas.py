"""What may each value be? Schemas of structs: msgspec's, with what the strings below fields say, and the limits."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.inspect import StructType, Type, multi_type_info

from routewright._core.request.rules import NUMBERS, Range
from routewright.docstrings import field_docs, prose

from .limits import LIMITS, WHOLE, Limits

Schema = dict[str, Any]

_AT = "#/components/schemas/{name}"
_HIGHEST = 2**63
"""From here on a bound is none that anybody meets."""
_PYTHON = {"None": "null", "True": "true", "False": "false"}
_WORD = re.compile(r"\b(None|True|False)\b")
_CODE = re.compile(r"`[^`]*`")
_NAME = re.compile(r"\w+")
_NULL = {"type": "null"}
_NUMBERS = frozenset("minimum exclusiveMinimum maximum multipleOf".split())
_BOUNDS = {
    "number": _NUMBERS,
    "integer": _NUMBERS,
    "string": frozenset("minLength maxLength pattern format".split()),
    "array": frozenset("minItems maxItems uniqueItems items".split()),
    "object": frozenset("properties required additionalProperties if then else".split()),
}
"""Keywords that say something of values of a type."""


class Schemas(NamedTuple):
    """Of the types that an interface speaks of."""

    of: tuple[Schema, ...]
    """One for each type, in their order: most refer to the components."""
    components: dict[str, Schema]


def schemas_of(asked: Iterable[Any], answered: Iterable[Any]) -> Schemas:
    """Schemas of the types of requests, and behind them those of answers, of which more is always there."""
    asked, answered = [*asked], [*answered]
    roots, components = msgspec.json.schema_components([*asked, *answered], ref_template=_AT)
    kinds = structs_in([*asked, *answered])
    free = structs_in(asked).keys()
    made = {
        named(name): _described(schema, kinds[_title(schema)], may_lack=_title(schema) in free)
        if _title(schema) in kinds
        else {**_plain(schema), "description": text_of(schema.get("description", ""))}
        for name, schema in components.items()
    }
    return Schemas(tuple(map(_plain, roots)), made)


def named(name: str) -> str:
    """The name of a component. msgspec writes ``Page_TraceItem_``."""
    return name.replace("_", "")


def field_schemas(kind: type[Struct]) -> dict[str, Schema]:
    """Schemas of the fields of a struct of plain values, each by its name on the wire. Null is not among them."""
    schema = msgspec.json.schema_components([kind])[1][kind.__name__]
    described = _described(schema, kind, may_lack=True)["properties"]
    return {name: _without_null(each) for name, each in described.items()}


def structs_in(types: Iterable[Any]) -> dict[str, type[Struct]]:
    """Every struct that some types are made of, by its name."""
    found: dict[str, type[Struct]] = {}
    for each in multi_type_info(types):
        _collect(each, found)
    return found


def text_of(doc: str, kind: type | None = None) -> str:
    """Words of a docstring for readers of JSON: with its spelling of values, and of fields."""
    said = _WORD.sub(lambda found: _PYTHON[found[1]], prose(doc))
    if kind is None or not issubclass(kind, Struct):
        return said
    wires = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    return _CODE.sub(lambda code: _NAME.sub(lambda name: wires.get(name[0], name[0]), code[0]), said)


def _collect(node: object, found: dict[str, type[Struct]]) -> None:
    if isinstance(node, (tuple, list)):
        for each in node:
            _collect(each, found)
    elif isinstance(node, StructType):
        kind = getattr(node.cls, "__origin__", node.cls)
        if kind.__name__ not in found:
            found[kind.__name__] = kind
            _collect([field.type for field in node.fields], found)
    elif isinstance(node, Type):
        _collect([getattr(node, name) for name in node.__struct_fields__], found)


def _title(schema: Schema) -> str:
    title: str = schema.get("title", "")
    return title.partition("[")[0]


def _described(schema: Schema, kind: type[Struct], *, may_lack: bool) -> Schema:
    """The schema of a struct. ``may_lack``: what has a default may be left out; else all that is encoded is there."""
    said, ranges, limits = field_docs(kind), NUMBERS.get(kind, {}), _limits_of(kind)
    lacks = may_lack or kind.__struct_config__.omit_defaults
    names = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    properties = {}
    for wire, raw in schema["properties"].items():
        name = names.get(wire, "")  # the tag of a union is no field
        told = {"description": text_of(said[name], kind)} if name in said else {}
        made = _bounded(_plain(raw), ranges.get(name), limits.get(name, {}))
        properties[wire] = {**made, **told}
        if not lacks:
            properties[wire].pop("default", None)
    doc = inspect.cleandoc(kind.__doc__ or "")
    made = {
        "type": "object",
        "description": text_of(doc, kind),
        "properties": properties,
        "required": schema["required"] if lacks else [*properties],
        **({"additionalProperties": False} if kind.__struct_config__.forbid_unknown_fields else {}),
        **limits.get(WHOLE, {}),
    }
    return {word: value for word, value in made.items() if value not in ([], "")}


def _limits_of(kind: type[Struct]) -> Limits:
    limits: Limits = {}
    for each in reversed(kind.__mro__):
        limits |= LIMITS.get(each, {})
    return limits


def _bounded(schema: Schema, numbers: Range | None, limits: Mapping[str, Any]) -> Schema:
    """The schema with bounds, each where there is a type that it holds for."""
    bounds = {**({} if numbers is None else _bounds(numbers)), **limits}
    if "anyOf" in schema:
        return {**schema, "anyOf": [_bounded(each, None, bounds) for each in schema["anyOf"]]}
    kinds = schema.get("type", [])
    words = {word for kind in ([kinds] if isinstance(kinds, str) else kinds) for word in _BOUNDS.get(kind, ())}
    return schema | {word: value for word, value in bounds.items() if word in words}


def _bounds(numbers: Range) -> Schema:
    made: Schema = {"exclusiveMinimum" if numbers.above else "minimum": numbers.low}
    if numbers.high < _HIGHEST:
        made["maximum"] = numbers.high
    if numbers.whole:
        made["multipleOf"] = 1  # 2000.0 is as good as 2000
    return made


def _plain(schema: Any) -> Any:
    """msgspec's schema in fewer words: no titles, no ``null`` as a default, a null among the types."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {word: _plain(value) for word, value in schema.items() if (word, value) != ("default", None)}
    made.pop("title", None)
    if made.get("items") is False:  # beside maxItems it says nothing, and some generators do not know it
        del made["items"]
    if "$ref" in made:
        made["$ref"] = _named_in(made["$ref"])
    if "enum" in made:
        made = {"type": "string", **made}
    if "discriminator" in made:
        made["discriminator"] = {
            **schema["discriminator"],
            "mapping": {tag: _named_in(ref) for tag, ref in schema["discriminator"]["mapping"].items()},
        }
    return _joined(made)


def _named_in(reference: str) -> str:
    before, _, name = reference.rpartition("/")
    return f"{before}/{named(name)}"


def _joined(schema: Schema) -> Schema:
    """``anyOf`` one plain type and null, as one schema of two types."""
    kinds = schema.get("anyOf", [])
    others = [each for each in kinds if each != _NULL]
    if len(kinds) != 2 or len(others) != 1 or not isinstance(others[0].get("type"), str):
        return schema
    (only,) = others
    made: Schema = {word: value for word, value in schema.items() if word != "anyOf"} | only
    made["type"] = [only["type"], "null"]
    if "enum" in only:
        made["enum"] = [*only["enum"], None]
    return made


def _without_null(schema: Schema) -> Schema:
    kinds = schema.get("type")
    made = {**schema}
    if isinstance(kinds, list):
        (made["type"],) = [each for each in kinds if each != "null"]
    if "enum" in made:
        made["enum"] = [each for each in made["enum"] if each is not None]
    return made
