"""The sandbox's examples satisfy the simple parts of a schema, and no schema breaks it."""

from __future__ import annotations

import json
import time
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Network
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, Field

from routewright import Router
from routewright._core.request.rules import URLS
from routewright.backends.providers.environment import providers_from_environment
from routewright.backends.providers.hosts import ENDPOINTS
from routewright.backends.providers.http import HttpProvider
from routewright.backends.providers.sandbox import MOST_CHARACTERS, MOST_DEPTH, MOST_VALUES, SandboxProvider, example_of
from routewright.catalogue import Catalogue
from routewright.errors import NoCandidates
from routewright.wire import Model
from tests.tables import table

pytestmark = pytest.mark.anyio
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}


@table(
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
        ({"allOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"properties": {"b": {"const": 2}}}]},
         {"a": 1}),
        ({"type": "object", "properties": {"a": True, "b": True}, "anyOf": [{"required": ["b"]}]}, {"b": "sandbox"}),
        ({"type": "integer", "minimum": 3.2, "maximum": 4.5}, 4),
        ({"type": "string", "pattern": r"^[A-Z]{3}-\d{2}$", "maxLength": 6}, "sandbo"),
    ],
)  # fmt: skip
def test_an_example_is_small_and_matches_the_schema(schema: Any, example: Any) -> None:
    assert example_of(schema) == example


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "minItems": 10**9, "items": schema}
    return schema


BOMBS: dict[str, Any] = {
    "many items": {"type": "array", "minItems": 10**9, "items": {"type": "object", "required": ["a"]}},
    "deeper than Python": nested(5_000),
    "a long text": {"type": "array", "minItems": 3, "items": {"type": "string", "minLength": 10**9}},
    "a circle": {**NODE, "$defs": {"node": NODE}},
    "a reference to itself": {"$ref": "#"},
    "wrong everywhere": {"type": "object", "required": [1, {}, "a"], "properties": ["a"], "anyOf": 3, "enum": {}},
    "no sizes": {"type": "array", "minItems": "many", "items": []},
    "no reference": {"$ref": "https://example.com/schema"},
    "not a schema": 5,
    "a tuple": {"prefixItems": [{"type": "string"}] * 300_000, "type": "array"},
    "a huge bound": {"type": "number", "exclusiveMinimum": 10**400, "maximum": 1e308, "multipleOf": 1e-308},
}


def weigh(value: Any) -> tuple[int, int]:
    """The number of values in a value, and its depth."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    weights = [weigh(each) for each in inner]
    return 1 + sum(count for count, _ in weights), 1 + max((depth for _, depth in weights), default=0)


@pytest.mark.parametrize("name", BOMBS)
def test_any_schema_is_handled_in_bounded_time(name: str) -> None:
    started = time.perf_counter()
    example = example_of(BOMBS[name])
    assert time.perf_counter() - started < 5  # some milliseconds; without a bound it never ends
    values, depth = weigh(example)
    assert values <= MOST_VALUES + 1
    assert depth <= MOST_DEPTH + 2
    assert len(json.dumps(example)) <= MOST_VALUES * (MOST_CHARACTERS + 20)


class Kind(Enum):
    RED = "r"
    BLUE = "b"


class Inner(BaseModel):
    x: int = Field(gt=3, lt=5)
    y: str | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(multiple_of=7, ge=8)


class Dog(BaseModel):
    kind: Literal["dog"]


class Tree(BaseModel):
    value: float
    branches: list[Tree] = []


class Everything(BaseModel):
    name: str = Field(min_length=9, max_length=12)
    colour: Kind
    inner: Inner
    several: list[Inner] = Field(min_length=2)
    pair: tuple[int, str]
    by_name: dict[str, int]
    different: set[int]
    either: int | str
    optional: Inner | None
    pet: Cat | Dog = Field(discriminator="kind")
    tree: Tree
    at: datetime
    day: date
    lasts: timedelta
    price: Decimal
    id: UUID
    network: IPv4Network


class Plain(msgspec.Struct):
    code: Annotated[str, msgspec.Meta(max_length=4)]
    few: Annotated[list[int], msgspec.Meta(min_length=2)]
    by_name: dict[Annotated[str, msgspec.Meta(min_length=2)], int]


@pytest.mark.parametrize(
    "kind",
    [
        Everything,
        Plain,
        int,
        str | None,
        Kind,
        Literal["a", 3],
        list[Inner],
        tuple[int, str],
        dict[str, int],
        Cat | Dog,
    ],
)
async def test_an_answer_of_any_type_is_accepted(kind: Any) -> None:
    answer: Any = await Router.sandbox().route("hi", output_type=kind)
    assert len(answer.trace.spans) == 2  # the first model's first answer fits
    if isinstance(kind, type):
        assert isinstance(answer.data, kind)


async def test_json_is_returned_if_requested() -> None:
    router, schema = Router.sandbox(), Everything.model_json_schema()
    plain = await router.route("hi", params={"response_format": {"type": "json_object"}})
    assert isinstance(json.loads(plain.output), dict)
    form = {"type": "json_schema", "json_schema": {"name": "everything", "schema": schema}}
    shaped = await router.route("hi", params={"response_format": form})
    Everything.model_validate_json(shaped.output)


async def test_a_long_answer_is_cut_at_its_cap_quickly() -> None:
    router = Router.sandbox(answers={"Go on.": "word " * 100_000})
    started = time.perf_counter()
    answer = await router.route("Go on.", params={"max_output_tokens": 20})
    assert time.perf_counter() - started < 2.5
    assert answer.finish_reason == "length"
    assert 15 <= answer.routing.tokens.output <= 20


# What vendors do not take.


def test_the_sandbox_has_the_unsupported_features_of_each_vendor() -> None:
    models = Catalogue().models
    environ = {
        name: "https://llm.example.com" if name == each.url_variable else "key"
        for each in ENDPOINTS.values()
        for name in (*each.key_variables, each.url_variable)
        if name is not None
    }
    providers = providers_from_environment(environ)
    real = {provider.name: provider for provider in providers if isinstance(provider, HttpProvider)}
    own, seen = SandboxProvider(models), set[str]()
    for model in models:
        if model.provider in real:
            not_fetched = set() if ENDPOINTS[model.provider].fetches_urls else {*URLS}
            assert set(own.unsupported(model)) == not_fetched.union(real[model.provider].unsupported(model)), model.id
            seen.add(model.provider)
    assert {"anthropic", "google", "openai", "mistral"} <= seen
    assert own.unsupported(Model(id="mine/one", reasoning=True)) == ()


@pytest.mark.parametrize(
    ("model", "params", "dropped"),
    [
        ("anthropic/claude-sonnet-4-6", {"seed": 1}, "params.seed"),
        ("anthropic/claude-sonnet-4-6", {"response_format": {"type": "json_object"}}, "params.response_format"),
        ("openai/o3", {"temperature": 0.5}, "params.temperature"),
        ("openai/gpt-6-luna", {"temperature": 0.5, "reasoning": "low"}, "params.temperature"),
    ],
)
def test_the_sandbox_refuses_what_production_refuses(model: str, params: Any, dropped: str) -> None:
    with pytest.raises(NoCandidates, match=f"drop {dropped} to admit {model}"):
        Router.sandbox().decide("Hi", models=[model], params=params)


async def test_the_sandbox_names_the_parameters_that_the_vendor_ignores() -> None:
    wishes: Any = {"service_tier": "flex", "verbosity": "low"}
    answer = await Router.sandbox().route("Hi", models=["anthropic/claude-sonnet-4-6"], params=wishes)
    assert answer.routing.ignored_params == ["service_tier", "verbosity"]


@pytest.mark.parametrize("tool", [{"name": "now"}, {"name": "now", "parameters": {}}])
async def test_a_tool_without_parameters_is_called_with_an_empty_object(tool: Any) -> None:
    answer = await Router.sandbox().route("Hi", tools=[tool], tool_choice="required")
    assert answer.tool_calls is not None
    assert answer.tool_calls[0].function.arguments == "{}"
