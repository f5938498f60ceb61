"""Which answers the comparators treat as equal."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import ValidationFailed
from routewright._core.cache.comparators import judge_request, read_judgement
from routewright.cache import JsonEquality, NormalisedEquality, NumericEquality
from tests.tables import table

COMPARATORS = [NormalisedEquality(), NumericEquality(), JsonEquality()]
texts = st.text(max_size=60)
answers = texts | st.text("*_`\"' .!-5,e{}[]\n", max_size=12) | st.from_regex(r"-?[0-9]{1,4}(\.[0-9])? ?(km|%)?")
numbers = st.decimals(-(10**9), 10**9, places=3).map(str)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(COMPARATORS), answers, answers)
def test_comparisons_are_symmetric(comparator: Any, one: str, other: str) -> None:
    assert comparator.compare("?", one, other) is comparator.compare("?", other, one)


@given(st.sampled_from(COMPARATORS), answers)
def test_every_answer_equals_itself(comparator: Any, answer: str) -> None:
    assert comparator.compare("?", answer, answer) is not False


# --- words


@table(
    ("one", "other", "same"),
    [
        ("Paris", " paris.\n", True),
        ("**Paris**", "Paris", True),
        ("_Paris_ and ***Rome***", "Paris and Rome", True),
        ('"Paris."', "Paris", True),
        ("ﬁne", "fine", True),  # a ligature
        ("cafe\u0301", "CAF\u00c9", True),  # one accent, spelt in two ways
        ("Paris", "It is Paris", None),
        # marks that carry a value
        ("3.5", "35", None),
        (".5", "5", None),
        ("5'", "5", None),
        ("10²", "102", None),
        ("x₂", "x²", None),
        ("snake_case", "snakecase", None),
        ("__init__", "init", None),
        ("[1]", "1", None),
        ("Yes?", "Yes", None),
    ],
)
def test_emphasis_quotes_and_stops_are_ignored(one: str, other: str, same: bool | None) -> None:
    assert NormalisedEquality().compare("?", one, other) is same


@given(st.lists(st.text("abcXYZ019-%$.!*_äß", min_size=1, max_size=6), max_size=6), st.sampled_from(" \n\t"))
def test_inner_white_space_and_case_are_ignored(words: list[str], space: str) -> None:
    spread = (space * 2).join(words).swapcase()
    assert NormalisedEquality().compare("?", " ".join(words), spread) is True


@given(st.text("abc", min_size=1), st.text("abc", min_size=1))
def test_different_words_are_never_equal(one: str, other: str) -> None:
    assert (NormalisedEquality().compare("?", one, other) is True) is (one == other)


# --- numbers


@table(
    ("one", "other", "same"),
    [
        ("It is $1,250.", "**$1250.00**", True),
        ("-3", "3", False),
        ("\u22123", "-3", True),  # the minus sign of typography
        ("1e3", "1000", True),
        ("1_000", "1000", True),
        ("12345678901", "12345678902", False),
        # units, and words that turn the number round
        ("5 km", "5 miles", None),
        ("about 5 km", "5", None),
        ("50%", "51%", False),
        ("-$5", "$5", None),
        ("5!", "5", None),
        ("5½", "5", None),
        # what is no number, or more than one
        ("between 3 and 5", "3", None),
        ("1,25", "125", None),
        ("02134", "2134", None),
        ("x5", "5", None),
        ("many", "3", None),
        ("it was he who said on Monday 5", "it was he who said on Monday 6", None),
        ("x" * 90 + "3", "3", None),
    ],
)
def test_numbers_are_compared_by_value_within_one_unit(one: str, other: str, same: bool | None) -> None:
    assert NumericEquality().compare("?", one, other) is same
    assert NumericEquality().compare("?", other, one) is same


@given(numbers, numbers, st.sampled_from(["", " km", "%", " $"]))
def test_numbers_are_equal_if_and_only_if_their_values_are(one: str, other: str, unit: str) -> None:
    told = NumericEquality().compare("?", f"It is {one}{unit}.", f"**{other}**{unit}")
    assert told is (float(one) == float(other))
    assert NumericEquality().compare("?", one + unit, f"{one}0{unit}") is True


def test_a_tolerance_is_a_share() -> None:
    assert NumericEquality(tolerance=0.01).compare("?", "100", "100.9") is True
    assert NumericEquality(tolerance=0.01).compare("?", "100", "102") is False


@table("tolerance", [-0.1, 1, float("nan"), float("inf")])
def test_a_tolerance_of_one_or_more_is_refused(tolerance: float) -> None:
    with pytest.raises(ValidationFailed, match="tolerance"):
        NumericEquality(tolerance=tolerance)


# --- JSON


@given(values, values)
def test_json_is_equal_if_and_only_if_its_values_are(one: Any, other: Any) -> None:
    told = JsonEquality().compare("?", json.dumps(one, sort_keys=True), json.dumps(other, indent=1))
    assert told is (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


@given(values, st.data())
def test_any_changed_value_in_json_differs(value: Any, data: st.DataObject) -> None:
    changed = _changed(value, data)
    assert JsonEquality().compare("?", json.dumps(value), json.dumps(changed)) is False


def _changed(value: Any, data: st.DataObject) -> Any:
    """The value with one part of it changed."""
    match value:
        case dict() if value:
            key = data.draw(st.sampled_from(sorted(value)))
            return {**value, key: _changed(value[key], data)}
        case list() if value:
            place = data.draw(st.integers(0, len(value) - 1))
            return [*value[:place], _changed(value[place], data), *value[place + 1 :]]
        case bool():
            return data.draw(st.sampled_from([not value, int(value)]))
        case int():
            return value + 1
        case str():
            return value + data.draw(st.sampled_from([" ", "x"]))
    return "null"


@table(
    ("one", "other", "same"),
    [
        ('{"a": 1}', '```json\n{"a": 1.0}\n```', True),
        ('{"a": 1}', '```JSON\n{"a": 2}\n```', False),
        ("[1, 2]", "[2, 1]", False),
        ("0.1", "0.10000000000000001", False),
        ("9007199254740993", "9007199254740992", False),
        ("1e2", "100", True),
        ("{", "{}", None),
        ("Paris", '"Paris"', None),
        ("[Infinity]", "[1]", None),
        ('{"a": 1, "a": 2}', '{"a": 2}', None),
        ("1" * 5_000, "1" * 5_000, True),
        ('```python\n{"a": 1}\n```', '{"a": 1}', None),
    ],
)
def test_json_in_odd_forms(one: str, other: str, same: bool | None) -> None:
    assert JsonEquality().compare("?", one, other) is same
    assert JsonEquality().compare("?", other, one) is same


# --- all of them


@table("part", ["*", "*a ", "`", "_a_", '"', "\n", " ", "1,", "1", "[", "```\n", "½", "."])
@table("comparator", COMPARATORS, ids=lambda comparator: type(comparator).__name__)
def test_any_text_is_compared_quickly(comparator: Any, part: str) -> None:
    text, start = part * (100_000 // len(part)), time.process_time()
    comparator.compare("?", text, text + "x")
    assert time.process_time() - start < 1


# --- the judge


@table(
    ("said", "means"),
    [
        ("YES", True),
        ("no.", False),
        ("YES, but", None),
        ("YES\nNO", None),
        ("The answer says YES", None),
        ('{"answer": "YES"}', None),
        ("", None),
    ],
)
def test_a_judgement_is_one_word(said: str, means: bool | None) -> None:
    assert read_judgement(said) is means


@given(texts, texts, texts)
def test_no_answer_escapes_from_the_judges_prompt(question: str, cached: str, live: str) -> None:
    system, asked = judge_request(question, cached, live)
    assert isinstance(asked.content, str)
    assert json.loads(asked.content) == {"question": question, "first": cached, "second": live}
    assert system == judge_request("", "", "")[0]
    assert [system.role, asked.role] == ["system", "user"]


def test_a_text_too_long_to_judge_is_refused() -> None:
    same = "x" * 8_000
    judge_request("?", same, same)
    with pytest.raises(ValidationFailed, match="too many to judge"):
        judge_request("?", f"{same}1", f"{same}2")
