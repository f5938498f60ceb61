"""Structured output: parsed, repaired once, with fallback, within budget and time, and not in traces and errors."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, field_validator
from pydantic_core import PydanticCustomError

from routewright import (
    Catalogue,
    MemoryStorage,
    NoCandidates,
    Router,
    Settings,
    Tool,
    UpstreamCall,
    ValidationFailed,
)
from routewright._core.structured_output import Fit, Form, Unfit, describe_misfits
from routewright._setup.output import form_of
from routewright.backends.providers.sandbox import example_of
from routewright.errors import UpstreamFailed
from routewright.testing import FakeClock, Pause, ScriptedProvider
from routewright.testing.provider import Line
from routewright.wire import Delta, FallbackSpan, Finish, Message, ModelSpan, ToolDelta, Usage
from tests.tables import table

from .scripted_router import GOOD, SPARE, House, said, traces_in

pytestmark = pytest.mark.anyio

SECRET = "marmalade"


class Item(BaseModel):
    name: str
    price: float = Field(gt=0)


class Invoice(BaseModel):
    total: float
    lines: list[Item] = []
    currency: Literal["EUR", "USD"] = "EUR"


class Point(msgspec.Struct):
    x: int
    y: int = 0
    kind: Literal["a", "b"] = "a"


@dataclasses.dataclass
class Place:
    name: str
    at: Point


class Address(TypedDict):
    city: str
    street: NotRequired[str]


class Colour(Enum):
    RED = "red"


class Tree(BaseModel):
    value: int
    parts: list[Tree] = []


class Words(RootModel[list[str]]):
    pass


class Careful(BaseModel):
    word: str
    by_name: dict[str, int] = {}

    @field_validator("word")
    @classmethod
    def check(cls, word: str) -> str:
        match word:
            case "value":
                raise ValueError(SECRET)
            case "custom":
                raise PydanticCustomError("missing", SECRET)
            case "odd":
                raise KeyError(SECRET)
        return word


class CarefulStruct(msgspec.Struct, forbid_unknown_fields=True):
    word: Literal["value", "fine"]

    def __post_init__(self) -> None:
        if self.word == "value":
            raise ValueError(f"Expected {SECRET}")


JSON_MODELS = [msgspec.structs.replace(model, structured_output=True) for model in (GOOD, SPARE)]


class Office(House):
    """A ``House`` whose models give JSON."""

    def __init__(self, good: Any, spare: Any = (), **router: Any) -> None:
        super().__init__(good, spare)
        self.good = ScriptedProvider(good, models=JSON_MODELS[:1], clock=self.clock)
        self.spare = ScriptedProvider(spare, models=JSON_MODELS[1:], clock=self.clock)
        self.router = Router(providers=[self.good, self.spare], settings=Settings(clock=self.clock), **router)

    async def invoice(self, **options: Any) -> Any:
        return await self.router.route("Read it.", goal="quality", output_type=Invoice, **options)


def whole(text: str, *, reason: str = "stop", output: int = 50, pause_s: float = 0.0) -> list[Line]:
    return said(Pause(pause_s), Delta(text), Usage(100, output), Finish(reason))


FINE = whole('{"total": 3.5}')
WRONG = whole(f'{{"total": "{SECRET}"}}')


def attempts(answer: Any) -> list[ModelSpan]:
    return [span for span in answer.trace.spans if isinstance(span, ModelSpan)]


# Types


@table(
    ("output_type", "answer", "value"),
    [
        (
            Invoice,
            '{"total": 1, "lines": [{"name": "a", "price": 2}]}',
            Invoice(total=1, lines=[Item(name="a", price=2)]),
        ),
        (Point, '{"x": 1}', Point(1)),
        (Place, '{"name": "a", "at": {"x": 1}}', Place("a", Point(1))),
        (Address, '{"city": "Bonn"}', {"city": "Bonn"}),
        (Tree, '{"value": 1, "parts": [{"value": 2}]}', Tree(value=1, parts=[Tree(value=2)])),
        (Words, '{"value": ["a"]}', Words(["a"])),
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (list[int], "[1, 2]", [1, 2]),
        (list[Point], '{"value": [{"x": 1}]}', [Point(1)]),
        (Literal["a", "b"], '{"value": "b"}', "b"),
        (int | None, '{"value": null}', None),
        (Colour, '{"value": "red"}', Colour.RED),
        (tuple[int, str], '{"value": [1, "a"]}', (1, "a")),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (date, '{"value": "2026-01-01"}', date(2026, 1, 1)),
        (Annotated[int, Field(gt=3)], '{"value": 4}', 4),
    ],
)
def test_output_types_may_come_from_msgspec_or_pydantic(output_type: Any, answer: str, value: object) -> None:
    assert form_of(output_type).read(answer) == Fit(value)


def _class_of(kinds: Sequence[Any]) -> Any:
    fields: list[Any] = [(f"f{place}", kind) for place, kind in enumerate(kinds)]
    return dataclasses.make_dataclass("Made", [*fields, ("last", int, 3)])


LEAVES: Any = st.sampled_from(
    [
        *(str, int, float, bool, None, Colour, date, timedelta, Decimal, UUID, Invoice, Tree, Literal["a", 1]),
        *(Annotated[int, Field(gt=3, le=9)], Annotated[str, Field(min_length=12)], Annotated[float, Field(lt=-0.5)]),
    ]
)
TYPES: Any = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(list.__class_getitem__),
        inner.map(lambda one: dict.__class_getitem__((str, one))),
        inner.map(lambda one: Annotated[list.__class_getitem__(one), Field(min_length=2)]),
        st.tuples(inner, inner).map(lambda two: tuple[two]),  # type: ignore[valid-type]
        inner.map(lambda one: one | None if one is not None else int),
        st.lists(inner, max_size=3).map(_class_of),
    ),
    max_leaves=6,
)


@given(TYPES)
def test_schemas_are_fully_strict_or_not_strict_at_all(output_type: Any) -> None:
    form = form_of(output_type)
    asked = form.response_format["json_schema"]
    if asked["strict"]:
        _check_strict(asked["schema"])
    assert asked["schema"]["type"] == "object"
    assert isinstance(form.read(json.dumps(example_of(asked["schema"]))), Fit)


def _check_strict(schema: Any) -> None:
    if isinstance(schema, list):
        for each in schema:
            _check_strict(each)
    if not isinstance(schema, dict):
        return
    assert not {"default", "title", "const", "oneOf", "allOf", "prefixItems", "uniqueItems"} & schema.keys()
    if schema.get("type") == "object":
        assert schema["additionalProperties"] is False
        assert schema["required"] == [*schema["properties"]]
    for word, value in schema.items():
        for inner in value.values() if word in ("properties", "$defs") else [value]:
            _check_strict(inner)


@table("output_type", [object(), complex | Point, 5, Invoice(total=1), ScriptedProvider, print])
def test_a_type_that_json_cannot_hold_is_refused_by_name(output_type: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"has no JSON schema: .*; pass a type that JSON can hold") as caught:
        form_of(output_type)
    assert caught.value.problems[0].path == "output_type"


def test_a_string_is_no_type() -> None:
    with pytest.raises(ValidationFailed, match="output_type: 'Invoice' is a string; pass the type itself"):
        form_of("Invoice")


def misfits(form: Form, answer: str) -> Unfit:
    found = form.read(answer)
    assert isinstance(found, Unfit)
    return found


@table(
    ("output_type", "answer", "said"),
    [
        (Invoice, '{"lines": [{"name": 1, "price": 0}]}', "total: Field required; lines[0].name: Input "),
        (Invoice, f'{{"total": 1, "currency": "{SECRET}"}}', "currency: Input should be 'EUR' or 'USD'"),
        (Careful, f'{{"word": "a", "by_name": {{"{SECRET}": "a"}}}}', "by_name[...]: Input should be a valid integer"),
        (Careful, '{"word": "value"}', "word: fails a check (value_error)"),
        (Careful, '{"word": "custom"}', "word: fails a check (its own)"),
        (Careful, '{"word": "odd"}', "fails with KeyError in a check of its type"),
        (UUID, f'{{"value": "{SECRET}"}}', "value: fails a check (uuid_parsing)"),
        (Point, f'{{"x": "{SECRET}"}}', "x: Expected `int`, got `str`"),
        (Point, "{}", "Object missing required field `x`"),
        (Point, f'{{"x": 1, "kind": "{SECRET}"}}', "kind: is none of the choices"),
        (CarefulStruct, '{"word": "value"}', "fails a check of its type"),
        (CarefulStruct, f'{{"word": "fine", "{SECRET}": 1}}', "has a field that is not one of its type"),
        (dict[str, Point], f'{{"{SECRET}": {{"x": "a"}}}}', "[...].x: Expected `int`, got `str`"),
        (list[Point], '{"value": [{"x": "a"}]}', "value[0].x: Expected `int`, got `str`"),
        (list[Point], '[{"x": "a"}]', "is not one JSON object"),
        (list[Point], SECRET, "is not one JSON object"),
    ],
)  # fmt: skip
def test_a_misfit_is_described_by_path_and_expectation_only(output_type: Any, answer: str, said: str) -> None:
    found = describe_misfits(misfits(form_of(output_type), answer))
    assert found.startswith(said)
    assert SECRET not in found


# Routing


async def test_an_answer_is_a_value_of_its_type() -> None:
    house = Office([FINE])
    answer = await house.invoice()
    assert answer.data == Invoice(total=3.5)
    assert answer.output == '{"total": 3.5}'
    (call,) = house.good.calls
    assert call.params.response_format == form_of(Invoice).response_format
    assert not call.stream


async def test_a_model_gets_one_repair_request() -> None:
    house = Office([WRONG, FINE])
    answer = await house.invoice(fallback={"maxRetries": 0})
    assert answer.data == Invoice(total=3.5)
    assert answer.routing.selected_model == "good/one"
    assert answer.routing.cost_usd == pytest.approx(2 * (100 * 1.0 + 50 * 4.0) / 1e6)
    first, second = house.good.calls
    assert first.messages == [Message("user", "Read it.")]
    assert second.messages[:2] == [Message("user", "Read it."), Message("assistant", f'{{"total": "{SECRET}"}}')]
    assert "total: Input should be a valid number" in str(second.messages[2].content)
    assert len(second.messages) == 3
    assert [(span.error, span.finish_reason, span.repair) for span in attempts(answer)] == [
        ("invalid_output", "stop", False),
        (None, "stop", True),
    ]


async def test_after_a_failed_repair_the_next_model_gets_the_original_prompt() -> None:
    house = Office([WRONG, WRONG], [FINE])
    answer = await house.invoice()
    assert answer.data == Invoice(total=3.5)
    assert len(house.good.calls) == 2
    assert house.spare.calls[0].messages == [Message("user", "Read it.")]
    spans = [span for span in answer.trace.spans if isinstance(span, FallbackSpan)]
    assert [(span.used, span.reason) for span in spans] == [(True, "upstream_5xx")]


async def test_if_no_answer_fits_the_error_says_why_without_the_text(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    house = Office([WRONG] * 2, [WRONG] * 2, storage=storage)
    with caplog.at_level(logging.DEBUG), pytest.raises(UpstreamFailed, match="ask for a simpler output_type") as caught:
        await house.invoice()
    error = caught.value
    said = {(each["error"], each["message"]) for each in error.detail["attempts"]}
    assert [each["model"] for each in error.detail["attempts"]] == ["good/one", "good/one", "spare/two", "spare/two"]
    (kept,) = said
    assert kept[0] == "invalid_output"
    assert kept[1].startswith("invalid_output: total: Input should be a valid number")
    assert error.__context__ is None
    (trace,) = await traces_in(storage)
    assert trace.cost_usd > 0
    for text in (str(error), repr(error.detail), caplog.text, msgspec.json.encode(trace).decode()):
        assert SECRET not in text
        assert "Read it." not in text


@pytest.mark.parametrize(("budget", "reason"), [({}, "length"), ({"budget": {"maxTokens": 3_000}}, "budget")])
async def test_an_answer_that_was_cut_falls_back_at_once(budget: dict[str, Any], reason: str) -> None:
    house = Office([whole('{"total": 3', reason="length")], [FINE])
    answer = await house.invoice(**budget)
    assert answer.routing.selected_model == "spare/two"
    assert attempts(answer)[0].finish_reason == reason
    assert len(house.good.calls) == 1


async def test_a_cut_answer_says_what_to_allow() -> None:
    cut = whole("{", reason="length")
    with pytest.raises(UpstreamFailed, match=r"reached the output cap; raise params\.max_output_tokens"):
        await Office([cut], [cut]).invoice()


async def test_tool_calls_are_not_parsed() -> None:
    house = Office([said(ToolDelta(0, "{}", "call_1", "look_up"), Usage(10, 5), Finish("tool_calls"))])
    tool_model = msgspec.structs.replace(JSON_MODELS[0], modalities=("text", "tool"))
    house.good._models = (tool_model,)
    answer = await house.invoice(tools=[Tool(name="look_up")])
    assert answer.tool_calls
    assert answer.data is None


async def test_models_without_structured_output_are_not_called() -> None:
    with pytest.raises(NoCandidates, match="response_format"):
        await House([FINE]).router.route("Read it.", output_type=Invoice)


async def test_a_misfit_does_not_count_against_the_model() -> None:
    house = Office([WRONG, WRONG] * 30, [FINE] * 30)
    for _ in range(30):
        await house.invoice(models=["good/one", "spare/two"], fallback={"models": ["spare/two"]})
        await house.clock.advance(1.0)
    assert len(house.good.calls) == 60
    status = {model.id: model.availability.status for model in house.router.models()}
    assert status["good/one"] == "available"


# Time and money


async def test_a_misfit_without_usage_is_billed_by_estimate() -> None:
    house = Office([said(Finish("stop")), said(Delta('{"total": 1}'), Finish("stop"))])
    answer = await house.invoice()
    first, second = attempts(answer)
    assert first.tokens is not None
    assert second.tokens is not None
    assert first.usage_estimated
    assert first.cost_usd > 0
    assert second.tokens.input > first.tokens.input  # the repair's prompt is longer


async def test_no_mix_of_answers_and_repairs_consumes_more_than_the_budget(full: bool) -> None:
    repairs = 0
    for seed in range(5_000 if full else 60):
        clock = FakeClock()
        meter = Meter(seed)
        models = [
            msgspec.structs.replace(model, id=f"m/{place}", ttft_s=1.0) for place, model in enumerate(JSON_MODELS)
        ]
        provider = ScriptedProvider(meter.turn, models=models, name="m")
        router = Router(providers=[provider], catalogue=Catalogue(()), settings=Settings(clock=clock))
        budget: Any = {
            "maxCostUsd": meter.chance.choice([0.002, 0.01, 0.05]),
            "maxTokens": meter.chance.choice([2_000, 9_000]),
        }
        with suppress(UpstreamFailed, NoCandidates):
            await router.route("Read it. " * 20, output_type=Invoice, budget=budget)
        assert meter.spent_usd <= budget["maxCostUsd"], seed
        assert meter.spent_tokens <= budget["maxTokens"], seed
        repairs += meter.repairs
    assert repairs > (30 if full else 10)


class Meter:
    """What a vendor bills: every byte of a prompt may be a token, and every token of an answer's cap be used."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.spent_usd = 0.0
        self.spent_tokens = 0
        self.repairs = 0

    def turn(self, call: UpstreamCall) -> list[Line]:
        assert call.max_output_tokens is not None
        prompt = sum(len(str(message.content).encode()) + 4 for message in call.messages)
        prompt += len(msgspec.json.encode(call.params.response_format))
        output = self.chance.choice([1, 50, call.max_output_tokens])
        output = min(output, call.max_output_tokens)
        price = call.model.pricing_per_1m
        assert price is not None
        self.spent_usd += (prompt * price.input_usd + output * price.output_usd) / 1e6
        self.spent_tokens += prompt + output
        self.repairs += len(call.messages) > 1
        usage = [Usage(prompt, output)] if self.chance.random() < 0.7 else []
        text = "x" * self.chance.choice([0, 10, 1_000])
        return [Delta(text), *usage, Finish(self.chance.choice(["stop", "stop", "length"]))]


# The sandbox, and plain code


@table("output_type", [Invoice, Point, Place, Address, Tree, list[int], Literal["a", "b"], date])
def test_the_sandbox_answers_with_valid_values(output_type: Any) -> None:
    with Router.sandbox().blocking as router:
        answer = router.route("Read it.", output_type=output_type)
    assert isinstance(form_of(output_type).read(answer.output), Fit)
    assert [span.error for span in attempts(answer)] == [None]


async def test_the_sandbox_shows_a_repair() -> None:
    answer = await Router.sandbox(answers={"Read it.": "no JSON"}).route("Read it.", output_type=Invoice)
    assert isinstance(answer.data, Invoice)
    assert [span.repair for span in attempts(answer)] == [False, True]
    assert all(span.latency_ms > 100 for span in attempts(answer))


async def test_a_request_that_asks_for_another_format_too_is_refused_before_anything_is_called() -> None:
    house = Office([FINE])
    with pytest.raises(ValidationFailed, match="output_type"):
        await house.invoice(params={"response_format": {"type": "json_object"}})
    assert house.good.calls == []
