"""Structured output: how a type is requested, parsed and retried."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import Message, Params, RouteRequest, ValidationFailed
from routewright._core.structured_output import (
    Fit,
    Form,
    Misfit,
    Unfit,
    describe_misfits,
    repair_of,
    unfence,
    with_output,
)
from routewright._core.tokens.estimate import bounds_of
from tests.tables import table

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def point(body: bytes) -> Any:
    value = json.loads(body)
    if value.get("x") == "secret":
        raise Unfit([Misfit("must be a number", "'secret' is no number", "x", "x")])
    if value.get("x") == "odd":
        raise KeyError("odd")
    return value


def anything(body: bytes) -> Any:
    return json.loads(body)


def misfits(form: Form, answer: str) -> Unfit:
    found = form.read(answer)
    assert isinstance(found, Unfit)
    return found


def test_a_schema_is_sent_with_its_name_and_strict_if_possible() -> None:
    assert Form("Point", POINT, point).response_format == {
        "type": "json_schema",
        "json_schema": {"name": "Point", "schema": {**POINT, "additionalProperties": False}, "strict": True},
    }
    loose = {"type": "object", "additionalProperties": True}
    assert Form("Any", loose, point).response_format["json_schema"] == {"name": "Any", "schema": loose, "strict": False}


@table(("name", "sent"), [("Box[int]", "Box_int_"), ("Größe", "Gr__e"), ("a" * 99, "a" * 64), ("", "answer")])
def test_a_name_is_rewritten_for_vendors(name: str, sent: str) -> None:
    assert Form(name, POINT, point).response_format["json_schema"]["name"] == sent


def test_a_value_other_than_an_object_is_wrapped() -> None:
    item = {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}
    form = Form("list", item, anything)
    assert form.response_format["json_schema"]["schema"] == {
        "type": "object",
        "properties": {"value": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
        "required": ["value"],
        "additionalProperties": False,
        "$defs": {"n": {"type": "integer"}},
    }
    assert form.read('{"value": [1, 2]}') == Fit([1, 2])
    assert describe_misfits(misfits(form, '{"values": [1, 2]}')) == "value: is missing"


def test_an_unwrapped_value_is_accepted_unless_it_is_an_object() -> None:
    assert Form("list", {"type": "array"}, anything).read("[1, 2]") == Fit([1, 2])
    assert describe_misfits(misfits(Form("any", {}, anything), '{"x": 1}')) == "value: is missing"
    assert describe_misfits(misfits(Form("Point", POINT, point), "[1, 2]")) == "is not one JSON object"


def test_a_misfit_has_its_path_in_the_whole_answer() -> None:
    form = Form("list", {"type": "array"}, lambda body: point(b'{"x": "secret"}'))
    assert describe_misfits(misfits(form, '{"value": []}')) == "value.x: must be a number"


@given(
    JSON, st.sampled_from(["{}", "```json\n{}\n```", "```\n{}```", "  \n{}\n ", "```{}```", "```JSON \r\n{}\n```\n"])
)
def test_a_code_fence_is_removed(value: Any, around: str) -> None:
    text = json.dumps(value, indent=1)
    assert unfence(around.replace("{}", text)) == text


@table(
    "answer", ["", "No.", '{"x": 1', '{"x": NaN}', "[]", "null", '{"x": 1} and more', "```json\n```", '{"a":' * 9_999]
)
def test_what_is_not_one_json_object_does_not_fit(answer: str) -> None:
    assert describe_misfits(misfits(Form("Point", POINT, point), answer)) == "is not one JSON object"


def test_a_failing_validator_is_a_misfit_without_its_message() -> None:
    assert (
        describe_misfits(misfits(Form("P", POINT, point), '{"x": "odd"}'))
        == "fails with KeyError in a check of its type"
    )


def test_a_misfit_keeps_no_frame_alive() -> None:
    found = misfits(Form("P", POINT, point), '{"x": "secret"}')
    assert found.__traceback__ is None
    assert found.__context__ is None


def test_errors_hide_the_answer_and_the_model_gets_details() -> None:
    answer = '{"x": "secret"}'
    found = misfits(Form("Point", POINT, point), answer)
    assert describe_misfits(found) == "x: must be a number"
    back = repair_of(answer, found)
    assert [message.role for message in back.messages] == ["assistant", "user"]
    assert back.messages[0].content == answer
    assert "- x: 'secret' is no number\n" in str(back.messages[1].content)


def test_errors_list_three_misfits_and_prompts_ten() -> None:
    found = Unfit([Misfit(f"told {place}", f"said {place}") for place in range(12)])
    assert describe_misfits(found) == "told 0; told 1; told 2; and 9 more"
    assert "- said 9\n- and 2 more\n" in str(repair_of("{}", found).messages[-1].content)


@given(st.text(max_size=200), st.text(max_size=200))
def test_the_bounds_of_a_repair_cover_what_it_adds(prompt: str, answer: str) -> None:
    back = repair_of(answer, Unfit([Misfit("a", "b")]))
    before = bounds_of(RouteRequest([Message("user", prompt)]))
    after = bounds_of(RouteRequest([Message("user", prompt), *back.messages]))
    assert before.high + back.bounds.high >= after.high


def test_the_format_is_added_to_a_requests_params() -> None:
    form = Form("Point", POINT, point)
    request = RouteRequest([Message("user", "hi")], params=Params(temperature=0.5))
    asked = Params(temperature=0.5, response_format=form.response_format)
    for choice in (None, "auto", "none"):
        assert with_output(replace(request, tool_choice=choice), form).params == asked


@table(
    "asked",
    [
        {"params": Params(response_format={"type": "json_object"})},
        {"params": Params(response_format={"type": "text"})},
        {"tool_choice": "required"},
        {"tool_choice": "look_up"},
    ],
)
def test_a_request_with_another_format_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ValidationFailed, match=r"^output_type: cannot be combined with"):
        with_output(RouteRequest([Message("user", "hi")], **asked), Form("Point", POINT, point))
