"""Captured content is exactly what the redactor returned for each text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.guardrails.capture import WITHHELD, content_of, redact_patterns
from routewright._core.guardrails.texts import PIECE_CHARS
from routewright.protocols import Redactor
from routewright.wire import Content, FunctionCall, ImagePart, ImageUrl, Message, Part, TextPart, ToolCall
from tests.tables import table

MAIL = "anna@example.com"
CARD = "4111 1111 1111 1111"
KEY = "sk-proj-" + "A1b2C3d4" * 4
TALK = [
    Message("system", "one"),
    Message("developer", "two"),
    Message("user", [TextPart("three"), ImagePart(ImageUrl("https://four", "high")), TextPart("five")], name="six"),
    Message("assistant", None, tool_calls=[ToolCall("seven", FunctionCall("eight", "nine"))]),
    Message("tool", "ten", tool_call_id="seven"),
    Message("assistant", "eleven", tool_calls=[ToolCall("twelve", FunctionCall("thirteen", "fourteen"))]),
]
CALLS = [ToolCall("fifteen", FunctionCall("sixteen", "seventeen"))]
WORDS = {*"one two three four five six seven eight nine ten eleven twelve thirteen".split()}
WORDS |= {*"fourteen fifteen sixteen seventeen".split()}


def hidden(text: str) -> str:
    return "*"


def json_of(content: Content) -> str:
    return msgspec.json.encode(content).decode()


# --- every text, in every shape


def test_every_captured_text_comes_from_the_redactor() -> None:
    assert content_of(str.upper, TALK, "eighteen", CALLS) == Content(
        messages=[
            Message("system", "ONE"),
            Message("developer", "TWO"),
            Message("user", [TextPart("THREE"), TextPart("[image]"), TextPart("FIVE")], name="SIX"),
            Message("assistant", None, tool_calls=[ToolCall("SEVEN", FunctionCall("EIGHT", "NINE"))]),
            Message("tool", "TEN", tool_call_id="SEVEN"),
            Message("assistant", "ELEVEN", tool_calls=[ToolCall("TWELVE", FunctionCall("THIRTEEN", "FOURTEEN"))]),
        ],
        output="EIGHTEEN",
        tool_calls=[ToolCall("FIFTEEN", FunctionCall("SIXTEEN", "SEVENTEEN"))],
    )


def test_the_redactor_is_called_once_for_each_text_and_sees_no_image() -> None:
    seen: list[str] = []

    def note(text: str) -> str:
        seen.append(text)
        return text

    content_of(note, TALK, "eighteen", CALLS)
    assert sorted(seen) == sorted([*WORDS - {"four"}, "seven", "eighteen"]), "of seven there are two"


def test_content_that_is_not_captured_never_reaches_the_redactor() -> None:
    def never(text: str) -> str:
        raise AssertionError("it was asked")

    assert content_of(never, None, None, None) == Content()
    assert content_of(str.upper, None, "done", None) == Content(output="DONE")
    assert content_of(str.upper, [Message("user", "hi")], None, None) == Content(messages=[Message("user", "HI")])
    assert content_of(str.upper, None, "", []) == Content(output=""), "an answer of tool calls alone says nothing"


# --- the redactor that there is


def test_the_default_redactor_removes_the_built_in_patterns() -> None:
    said = f"{MAIL}, +49 30 901820, {CARD}, DE89 3704 0044 0532 0130 00, {KEY}, and Anna."
    assert redact_patterns(said) == "[email], [phone], [card], [iban], [api_key], and Anna."
    assert redact_patterns("Why is the sky blue?") == "Why is the sky blue?"
    assert redact_patterns("") == ""


def test_the_default_redactor_rests_between_the_pieces_of_a_long_text() -> None:
    rests = list[int]()
    text = "Write to anna@example.com. " * (4 * PIECE_CHARS // 27)
    assert redact_patterns(text, lambda: rests.append(1)).count("[email]") == text.count("@")
    assert len(rests) >= 3
    assert redact_patterns("anna@example.com", lambda: rests.clear()) == "[email]"
    assert rests


# --- the redactor that fails


class Holding(str):
    """A text with another one in its pocket."""

    def __new__(cls, text: str, original: str) -> Holding:
        made = super().__new__(cls, text)
        made.original = original
        return made

    original: str

    def __str__(self) -> str:
        return self.original


def fails_with(error: BaseException) -> Redactor:
    def redact(text: str) -> str:
        raise error

    return redact


def gives(value: Any) -> Redactor:
    def redact(text: str) -> str:
        made: str = value(text) if callable(value) else value
        return made

    return redact


FAILING: dict[str, Redactor] = {
    "raises": fails_with(ValueError("no")),
    "exits": fails_with(SystemExit(3)),
    "gives None": gives(None),
    "gives half of a surrogate pair": gives("\ud800"),
    "gives half of a pair behind the text": gives(lambda text: text + "\udfff"),
    "takes no text": lambda: "*",  # type: ignore[dict-item]
}


@table("redact", FAILING.values(), ids=list(FAILING))
def test_a_text_the_redactor_fails_on_becomes_a_note(redact: Redactor) -> None:
    content = content_of(redact, TALK, "eighteen", CALLS)
    assert content.output == WITHHELD
    assert not WORDS & {*re.findall("[a-z]+", json_of(content).replace(WITHHELD, ""))}


@table("redact", FAILING.values(), ids=list(FAILING))
def test_other_texts_are_not_affected(redact: Redactor) -> None:
    def at_times(text: str) -> str:
        return redact(text) if "secret" in text else text.upper()

    asked = [Message("system", "secret"), Message("user", [TextPart("hi"), TextPart("secret")])]
    content = content_of(at_times, asked, "fine", [ToolCall("c1", FunctionCall("look", "secret"))])
    assert content.messages == [Message("system", WITHHELD), Message("user", [TextPart("HI"), TextPart(WITHHELD)])]
    assert content.output == "FINE"
    assert content.tool_calls == [ToolCall("C1", FunctionCall("LOOK", WITHHELD))]


def test_a_str_subclass_carries_nothing_along() -> None:
    content = content_of(lambda text: Holding("*", text), [Message("user", "hi")], "fine", None)
    assert type(content.output) is str
    assert content == Content(messages=[Message("user", "*")], output="*")


def test_a_keyboard_interrupt_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        content_of(fails_with(KeyboardInterrupt()), [Message("user", "hi")], None, None)


# --- any call at all

texts = st.text(st.characters(codec="utf-8"), max_size=20).map("canary".__add__)
parts: st.SearchStrategy[Part] = texts.map(TextPart) | texts.map(lambda text: ImagePart(ImageUrl(text)))
calls = st.lists(st.builds(ToolCall, texts, st.builds(FunctionCall, texts, texts)), max_size=3)
messages = st.builds(
    Message,
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    texts | st.lists(parts, max_size=3) | st.none(),
    calls | st.none(),
    texts | st.none(),
    texts | st.none(),
)


@given(st.lists(messages, max_size=4), texts, calls, st.sampled_from([hidden, *FAILING.values()]))
def test_no_text_bypasses_the_redactor(
    asked: list[Message], output: str, made: list[ToolCall], redact: Callable[[str], str]
) -> None:
    content = content_of(redact, asked, output, made)
    assert "canary" not in json_of(content)
    assert "canary" not in repr(content)
    assert content.messages is not None
    assert [message.role for message in content.messages] == [message.role for message in asked]


@given(st.lists(messages, max_size=4), texts, calls)
def test_an_identity_redactor_changes_only_images(asked: list[Message], output: str, made: list[ToolCall]) -> None:
    content = content_of(str, asked, output, made)
    assert (content.output, content.tool_calls or []) == (output, made)
    assert content.messages is not None
    for mine, before in zip(content.messages, asked, strict=True):
        if isinstance(before.content, list):
            said = [part.text if isinstance(part, TextPart) else "[image]" for part in before.content]
            assert mine.content == list(map(TextPart, said))
            mine = msgspec.structs.replace(mine, content=before.content)
        assert mine == before
