"""Which JSON schemas strict mode accepts, and which it cannot express."""

from __future__ import annotations

from typing import Any

from routewright._core.structured_output import property_names, resolve_root, strict_form
from tests.tables import table

TEXT = {"type": "string"}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def strict_object(**properties: Any) -> dict[str, Any]:
    return {**an_object(**properties), "additionalProperties": False}


def test_every_property_is_required_and_no_other_is_accepted() -> None:
    assert strict_form(an_object(a=TEXT, b=an_object(c=TEXT))) == strict_object(a=TEXT, b=strict_object(c=TEXT))
    closed = {**an_object(a=TEXT), "additionalProperties": False}
    assert strict_form(closed) == strict_object(a=TEXT)


@table(
    ("written", "strict"),
    [
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"enum": [1, None]}, {"type": ["integer", "null"], "enum": [1, None]}),
        ({"type": "integer", "minimum": 0, "multipleOf": 5}, {"type": "integer", "minimum": 0, "multipleOf": 5}),
        ({"type": "array", "items": {**TEXT, "title": "Item"}}, {"type": "array", "items": TEXT}),
        ({"anyOf": [{**TEXT, "title": "A"}, {"type": "null"}]}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"oneOf": [an_object(a=TEXT)], "discriminator": {}}, {"anyOf": [strict_object(a=TEXT)]}),
        ({"allOf": [{"const": 1}], "description": "one"}, {"type": "integer", "enum": [1], "description": "one"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
    ],
)
def test_rewritten_keywords_keep_their_meaning(written: dict[str, Any], strict: dict[str, Any]) -> None:
    assert strict_form(an_object(a=written)) == strict_object(a=strict)


@table(
    "written",
    [
        {},
        True,
        {"type": "object"},
        {"type": "object", "additionalProperties": TEXT},
        {**an_object(b=TEXT), "additionalProperties": True},
        {"type": "array", "prefixItems": [TEXT], "items": False},
        {"type": "array", "items": TEXT, "uniqueItems": True},
        {"type": "string", "format": "uri"},
        {"oneOf": [TEXT]},
        {"allOf": [TEXT, TEXT]},
        {"enum": [{"a": 1}]},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/unknown"},
        {"$ref": "#/$defs/node", "minLength": 1},
        {"not": TEXT},
    ],
)
def test_an_unsupported_keyword_makes_the_whole_schema_loose(written: Any) -> None:
    assert strict_form(an_object(a=written)) is None
    assert strict_form({**an_object(a=TEXT), "$defs": {"node": written}}) is None


@table(
    ("optional", "said"),
    [
        ({**TEXT, "default": "x"}, {**TEXT, "description": 'Default: "x"'}),
        ({**TEXT, "default": "", "description": "Unit."}, {**TEXT, "description": 'Unit. (default: "")'}),
        ({"type": ["string", "null"], "default": None}, {"type": ["string", "null"], "description": "Default: null"}),
        (
            {"anyOf": [TEXT, {"type": "null"}], "default": None},
            {"anyOf": [TEXT, {"type": "null"}], "description": "Default: null"},
        ),
        (TEXT, None),  # nothing that could be given means the same as leaving it out
        ({**TEXT, "default": None}, None),
        ({**TEXT, "default": "x" * 500}, None),
        (True, None),
    ],
)
def test_an_optional_property_is_required_if_it_has_a_default(optional: Any, said: Any) -> None:
    strict = strict_form({**an_object(a=TEXT, b=optional), "required": ["a"]})
    assert strict == (None if said is None else strict_object(a=TEXT, b=said))


def test_a_reference_with_a_description_is_wrapped() -> None:
    node = an_object(a=TEXT)
    schema = {
        **an_object(
            plain={"$ref": "#/$defs/node", "title": "Node"}, told={"$ref": "#/$defs/node", "description": "The second."}
        ),
        "$defs": {"node": node},
    }
    assert strict_form(schema) == {
        **strict_object(
            plain={"$ref": "#/$defs/node"}, told={"anyOf": [{"$ref": "#/$defs/node"}], "description": "The second."}
        ),
        "$defs": {"node": strict_object(a=TEXT)},
    }


def test_a_schema_is_not_changed() -> None:
    schema = {**an_object(a={**TEXT, "default": "x", "title": "A"}), "required": []}
    before = repr(schema)
    strict_form(schema)
    assert repr(schema) == before


def test_a_reference_at_the_top_is_resolved() -> None:
    alone = {"$ref": "#/$defs/a", "$defs": {"a": an_object(b=TEXT)}}
    assert resolve_root(alone) == an_object(b=TEXT)
    node = an_object(next={"$ref": "#/$defs/node"})
    circle = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    assert resolve_root(circle) == {**node, "$defs": {"node": node}}
    two = {"$ref": "#/$defs/a", "$defs": {"a": an_object(b={"$ref": "#/$defs/b"}), "b": TEXT}}
    assert resolve_root(two) == {**an_object(b={"$ref": "#/$defs/b"}), "$defs": {"b": TEXT}}
    for odd in (TEXT, {"$ref": "#/$defs/c", "$defs": {}}, {"$ref": 5}, {"$ref": "#/$defs/a", "$defs": {"a": True}}):
        assert resolve_root(odd) == odd


def test_property_names_of_a_schema_are_collected() -> None:
    schema = {**an_object(a=an_object(b=TEXT)), "$defs": {"c": {"anyOf": [an_object(d=TEXT), True]}}}
    assert property_names(schema) == {"a", "b", "d"}
