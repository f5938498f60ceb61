"""The sandbox's examples fit the plain parts of a schema, and no schema is too much for it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from routewright import Router
from routewright.backends.providers.sandbox import MOST_CHARACTERS, MOST_DEPTH, MOST_VALUES, example_of

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        (True, "sandbox"),
        ({"properties": {"a": True, "b": {"type": "null"}}}, {"a": "sandbox", "b": None}),
        ({"type": "array", "minItems": 2, "items": {"type": "boolean"}}, [False, False]),
        ({"type": "array"}, []),
        ({"type": ["integer", "null"], "minimum": 2.5}, 3),
        ({"type": "number", "maximum": -1}, -1),
        ({"type": "number", "exclusiveMaximum": 0}, -1),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, 0.25),
        ({"type": "integer", "exclusiveMinimum": 3, "multipleOf": 5}, 5),
        ({"type": "integer", "minimum": 7, "maximum": 12}, 7),
        ({"type": "integer", "minimum": 12, "maximum": 7}, 0),
        ({"type": "string", "format": "date"}, "2026-01-01"),
        ({"type": "string", "format": "unheard-of"}, "sandbox"),
        ({"type": "array", "prefixItems": [{"type": "integer"}, True], "minItems": 2, "items": False}, [0, "sandbox"]),
        ({"type": "array", "prefixItems": [True], "minItems": 2, "items": {"type": "null"}}, ["sandbox", None]),
        ({"type": "string", "minLength": 9}, "sandboxsa"),
        ({"type": "string", "maxLength": 3}, "san"),
        ({"enum": [{"deep": [1]}, 2]}, {"deep": [1]}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, 0),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 5}}}, 5),
        ({"allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "integer"}}}, 0),
    ],
)
def test_an_example_is_small_and_fits(schema: Any, example: Any) -> None:
    assert example_of(schema) == example


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "minItems": 10**9, "items": schema}
    return schema


BOMBS: dict[str, Any] = {
    "many items": {"type": "array", "minItems": 10**9, "items": {"type": "object", "required": ["a"]}},
    "many items of many": nested(6),
    "deeper than Python": nested(5_000),
    "a long text": {"type": "array", "minItems": 3, "items": {"type": "string", "minLength": 10**9}},
    "a circle": {**NODE, "$defs": {"node": NODE}},
    "a reference to itself": {"$ref": "#"},
    "a wide object": {"properties": {f"p{number}": True for number in range(300_000)}},
    "wrong everywhere": {"type": "object", "required": [1, {}, "a"], "properties": ["a"], "anyOf": 3, "enum": {}},
    "no sizes": {"type": "array", "minItems": "many", "items": []},
    "no type": {"type": []},
    "no reference": {"$ref": "https://example.com/schema"},
    "not a schema": 5,
    "a tuple": {"prefixItems": [{"type": "string"}] * 300_000, "type": "array"},
    "a huge bound": {"type": "number", "exclusiveMinimum": 10**400, "maximum": 1e308, "multipleOf": 1e-308},
}


def weigh(value: Any) -> tuple[int, int]:
    """How many values there are in one, and how deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    weights = [weigh(each) for each in inner]
    return 1 + sum(count for count, _ in weights), 1 + max((depth for _, depth in weights), default=0)


@pytest.mark.parametrize("name", BOMBS)
def test_no_schema_is_too_much(name: str) -> None:
    started = time.perf_counter()
    example = example_of(BOMBS[name])
    assert time.perf_counter() - started < 5  # some milliseconds; without a bound it never ends
    values, depth = weigh(example)
    assert values <= MOST_VALUES + 1
    assert depth <= MOST_DEPTH + 2
    assert len(json.dumps(example)) <= MOST_VALUES * (MOST_CHARACTERS + 20)


@pytest.mark.anyio
async def test_a_long_answer_is_cut_at_its_cap_in_no_time() -> None:
    router = Router.sandbox(answers={"Go on.": "word " * 100_000})
    started = time.perf_counter()
    answer = await router.route("Go on.", params={"max_output_tokens": 20})
    assert time.perf_counter() - started < 2.5
    assert answer.finish_reason == "length"
    assert 15 <= answer.routing.tokens.output <= 20
