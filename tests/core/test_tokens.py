"""Token bounds hold, the estimate is close, and the range fits each vocabulary."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import wire
from routewright._core.tokens import estimate as tokens
from routewright._core.tokens.estimate import (
    Vocabulary,
    bounds_of,
    count_overhead,
    count_request,
    estimate_text,
    length,
    measure_of,
    prompt_texts,
)
from routewright.backends import tokens as packed
from tests.tables import table

DATA = Path(__file__).parents[1] / "data"
TEXTS: dict[str, str] = json.loads((DATA / "texts.json").read_text(encoding="utf-8"))
OTHERS: dict[str, Any] = json.loads((DATA / "vocabularies.json").read_text(encoding="utf-8"))
COUNTER = packed.PackedTokenCounter()
ENCODINGS: tuple[Vocabulary, ...] = ("o200k_base", "cl100k_base")

WEATHER = wire.Tool(
    function=wire.FunctionSpec("weather", "Says the weather.", {"type": "object", "properties": {"city": {}}})
)
IMAGE = wire.ImagePart(wire.ImageUrl("https://example.com/cat.png"))


def request(*texts: str, **rest: Any) -> wire.RouteRequest:
    return wire.RouteRequest(messages=[wire.Message("user", text) for text in texts], **rest)


# Pieces at which a bound could fail: long tokens, tokens over a line break, spaces outside ASCII, unpaired surrogates.
SHORT = [
    " ", "\n", "\r\n", "\t", "\xa0", "\u3000", ";\n/", "'s", "a", "A", "é", "的", "0", " the", "😀", "\x00",
    "\ufdfa", "\ud83d",
]  # fmt: skip
LONG = [" สำนักเลขานุการองค์กร", "translatesAutoresizingMaskIntoConstraints", "-" * 112, " " * 128]
ANY_TEXT = st.one_of(
    st.text(),
    st.lists(st.sampled_from(SHORT + LONG)).map("".join),
    st.builds(lambda piece, times: piece * times, st.sampled_from(SHORT) | st.text(max_size=5), st.integers(0, 2_500)),
)


def test_bounds_hold_for_any_text_in_both_vocabularies(full: bool) -> None:
    @settings(max_examples=100_000 if full else 40, deadline=None)
    @given(st.lists(ANY_TEXT, min_size=1, max_size=2))
    def hold(texts: list[str]) -> None:
        asked = request(*texts)
        bounds = count_request(COUNTER, asked, bounds_of(asked), ENCODINGS)
        assert bounds.o200k is not None
        assert bounds.cl100k is not None
        assert bounds.low <= min(bounds.o200k, bounds.cl100k)
        assert max(bounds.o200k, bounds.cl100k) <= bounds.high
        assert bounds.low <= bounds.estimate <= bounds.high

    hold()


LENGTHS = (tokens.WHOLE_CHARACTERS + 1, tokens.ENCODED_CHARACTERS + 1, 1_000_000)


@pytest.mark.parametrize("name", ["english", "python", "german", "hindi", "chinese", "whitespace"])
def test_bounds_of_a_very_long_prompt_come_from_a_sample_and_hold(name: str, full: bool) -> None:
    for size in LENGTHS if full else LENGTHS[:1]:
        text = (TEXTS[name] * (size // len(TEXTS[name]) + 1))[:size]
        thirds = [text[start : start + size // 3 + 1] for start in range(0, size, size // 3 + 1)]
        for asked in (request(text), request("", *thirds)):
            before = bounds_of(asked)
            after = count_request(COUNTER, asked, before)
            found = (after.o200k or 0, after.cl100k or 0)
            assert before.low <= min(found) <= max(found) <= after.high <= before.high
            assert after.high <= len(text.encode()) + count_overhead(asked)
            exact = estimate_text(text)
            assert abs(before.estimate / exact - 1) < 0.02


def test_a_sample_holds_no_word_that_is_not_in_the_prompt() -> None:
    taken = tokens.WHOLE_CHARACTERS // tokens.SLICES
    piece = ("end" + " word" * (taken // 5 - 1)).ljust(taken - 1, ".") + " "  # with what is not looked at behind it
    asked = request((piece + "....") * tokens.SLICES)
    assert bounds_of(asked).low == (taken // 5 - 1) * tokens.SLICES


@pytest.mark.parametrize("text", ["a word " * 2_300_000, "ein Wörtchen " * 1_200_000, "的" * 5_300_000], ids=len)
def test_only_a_sample_of_sixteen_megabytes_is_scanned(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    encode, looked_at = tokens._utf8, 0

    def counted(text: str) -> bytes:
        nonlocal looked_at
        looked_at += len(text)
        return encode(text)

    monkeypatch.setattr(tokens, "_utf8", counted)
    bounds_of(request(text))
    assert 0 < looked_at <= tokens.WHOLE_CHARACTERS * (1 + 1 / tokens.SLICES)


def test_the_upper_bound_covers_the_chat_format() -> None:
    plain = bounds_of(request("hi"))
    assert plain.high == len("hi") + count_overhead(request("hi")) == 2 + 3 + 4
    assert bounds_of(request("hi", "hi")).high == plain.high + 2 + 4
    named = wire.RouteRequest(messages=[wire.Message("user", "hi", name="ann")])
    assert bounds_of(named).high == plain.high + 3 + 1
    call = wire.ToolCall("call_1", wire.FunctionCall("weather", '{"city": "Rome"}'))
    calling = wire.RouteRequest(messages=[wire.Message("assistant", None, tool_calls=[call])])
    assert bounds_of(calling).high == 3 + 4 + 8 + len("weather") + len('{"city": "Rome"}')


def test_tool_declarations_count_as_their_json_in_both_forms() -> None:
    spec = WEATHER.function_spec
    flat = wire.Tool(name=spec.name, description=spec.description, parameters=spec.parameters)
    nested, written_flat = request("hi", tools=[WEATHER]), request("hi", tools=[flat])
    assert prompt_texts(nested) == prompt_texts(written_flat)
    assert json.loads(prompt_texts(nested)[1]) == {
        "name": "weather",
        "description": "Says the weather.",
        "parameters": spec.parameters,
    }
    assert count_overhead(nested) == count_overhead(request("hi")) + 12


def test_prompt_texts_are_contents_names_calls_and_schema() -> None:
    call = wire.ToolCall("call_1", wire.FunctionCall("weather", "{}"))
    asked = wire.RouteRequest(
        messages=[
            wire.Message("system", "be kind"),
            wire.Message("user", [wire.TextPart("look"), IMAGE, wire.TextPart("here")], name="ann"),
            wire.Message("assistant", None, tool_calls=[call]),
            wire.Message("tool", "sunny", tool_call_id="call_1"),
        ],
        params=wire.Params(response_format={"type": "json_object"}),
    )
    assert prompt_texts(asked) == [
        *("be kind", "look", "here", "ann", "weather", "{}", "sunny"),
        '{"type":"json_object"}',
    ]


class FixedCounter:
    """Finds so many tokens in every text, or as many as it has characters."""

    def __init__(self, tokens: Any = None) -> None:
        self.tokens = tokens

    def count(self, text: str, encoding: str) -> int:
        found: int = len(text) if self.tokens is None else self.tokens
        return found


def test_a_request_is_counted_only_in_the_requested_encodings() -> None:
    asked = request("one", "three", tools=[WEATHER])
    bounds = bounds_of(asked)
    characters = sum(map(len, prompt_texts(asked))) + count_overhead(asked)
    once = count_request(FixedCounter(), asked, bounds, ENCODINGS[:1])
    assert once == replace(bounds, o200k=characters, counted=True)
    both = count_request(FixedCounter(), asked, bounds)
    assert (both.o200k, both.cl100k) == (characters, characters)


@table(("found", "side"), [(0, "low"), (10**12, "high")])
def test_a_count_outside_the_bounds_is_clamped(found: int, side: str) -> None:
    for asked in (
        request(TEXTS["hindi"] * 10),
        wire.RouteRequest([wire.Message("user", [wire.TextPart("look" * 5_000), IMAGE])]),
    ):
        bounds = bounds_of(asked)
        after = count_request(FixedCounter(found), asked, bounds)
        assert bounds.low <= after.low <= after.high <= bounds.high
        assert after.o200k == after.cl100k == max(getattr(bounds, side), count_overhead(asked))


@table("found", [-1, 2.5, math.nan, "7", None])
def test_an_invalid_count_is_refused_with_the_counter(found: Any) -> None:
    class Wrong(FixedCounter):
        def __repr__(self) -> str:
            return "Wrong()"

        def count(self, text: str, encoding: str) -> int:
            return found  # type: ignore[no-any-return]

    asked = request("hello")
    with pytest.raises(ValueError, match=re.escape(f"Wrong() counted {found!r} tokens in o200k_base; ")):
        count_request(Wrong(), asked, bounds_of(asked))


GPT, OLD_GPT, LLAMA, OTHER = (
    measure_of("openai/gpt-4o", "o200k_base"),
    measure_of("openai/gpt-4", "cl100k_base"),
    measure_of("groq/llama-4", None),
    measure_of("me/mine", None),
)


def test_a_length_is_exact_if_counted_and_else_the_bounds() -> None:
    bounds = wire.TokenBounds(10, 1_000, 240, o200k=300)
    assert length(bounds, GPT) == (300, 300, 300)
    assert length(bounds, OLD_GPT) == length(bounds, OTHER) == (10, 1_000, 1_000)
    assert length(replace(bounds, cl100k=310), OLD_GPT) == (310, 310, 310)


def test_a_vendor_s_margin_bounds_what_its_vocabulary_needs_and_less_of_it_fills_a_window() -> None:
    counted = wire.TokenBounds(10, 1_000, 240, o200k=300, cl100k=302, counted=True, single=40)
    assert length(counted, LLAMA) == (10, 318, 318)
    assert length(counted, OTHER) == (10, 916, 405)
    assert length(replace(counted, high=350), OTHER) == (10, 350, 350)
    assert length(replace(counted, cl100k=None), OTHER) == (10, 1_000, 1_000)


VENDOR_MODELS = {
    "claude": "anthropic/claude-opus-5",
    "claude-3": "anthropic/claude-sonnet-4-6",
    "claude-4.7": "anthropic/claude-fable-5",
    "qwen": "alibaba/qwen-max",
    "qwen-3.5": "groq/qwen/qwen3.8-27b",
    "deepseek": "deepinfra/deepseek-ai/DeepSeek-V3.2",
    "mistral": "mistral/mistral-large-4",
    "tekken": "mistral/ministral-3b-2512",
    "gemini": "google/gemini-3.8-flash",
    "llama3": "deepinfra/meta-llama/Llama-3.3-70B-Instruct",
}


@table("name", OTHERS["counts"])
def test_each_vendor_s_bound_holds_in_its_real_vocabulary(name: str) -> None:
    asked = request((TEXTS | OTHERS["texts"])[name])
    bounds = count_request(COUNTER, asked, bounds_of(asked))
    assert OTHERS["counts"][name].keys() == VENDOR_MODELS.keys()
    for vocabulary, found in OTHERS["counts"][name].items():
        for model in (VENDOR_MODELS[vocabulary], "me/mine"):
            low, high, _ = length(bounds, measure_of(model, None))
            assert low <= found + count_overhead(asked) <= high <= bounds.high, vocabulary


def test_the_bound_for_unknown_vendors_is_about_three_times_the_count_on_prose_and_the_bytes_in_other_scripts() -> None:
    for name, least, most in (("english", 2.9, 3.0), ("python", 2.9, 4.0), ("json", 2.4, 3.4)):
        after = count_request(COUNTER, request(TEXTS[name]), bounds_of(request(TEXTS[name])))
        assert least <= after.high / max(after.o200k or 1, after.cl100k or 1) <= most, name
    for name in ("hindi", "chinese", "russian", "thai"):
        before = bounds_of(request(TEXTS[name]))
        assert count_request(COUNTER, request(TEXTS[name]), before).high == before.high, name


@table("piece", ["的", "a", " ", "-", "é", "का", "\n"])
def test_a_long_text_without_spaces_is_not_counted(piece: str) -> None:
    class Never(FixedCounter):
        def count(self, text: str, encoding: str) -> int:
            raise AssertionError("that would take seconds")

    asked = request("short", piece * (2 * tokens.UNBROKEN_CHARACTERS // len(piece)))
    bounds = bounds_of(asked)
    assert count_request(Never(), asked, bounds) == replace(bounds, counted=True)


def published(asked: wire.RouteRequest) -> int:
    """What OpenAI's published rule for messages gives, for a prompt of messages alone."""
    total = 3
    for message in asked.messages:
        total += 3 + COUNTER.count(message.role, "o200k_base")
        if isinstance(message.content, str):
            total += COUNTER.count(message.content, "o200k_base")
        if message.name is not None:
            total += 1 + COUNTER.count(message.name, "o200k_base")
    return total


MESSAGES = st.lists(
    st.builds(
        wire.Message,
        st.sampled_from(["system", "user", "assistant"]),
        ANY_TEXT,
        name=st.none() | st.text(min_size=1, max_size=64),
    ),
    min_size=1,
    max_size=6,
)


def test_messages_and_names_follow_the_published_rule_within_the_bound(full: bool) -> None:
    @settings(max_examples=100_000 if full else 40, deadline=None)
    @given(MESSAGES)
    def hold(messages: list[wire.Message]) -> None:
        asked = wire.RouteRequest(messages=messages)
        bounds = bounds_of(asked)
        exact = published(asked)
        assert exact <= bounds.high
        assert count_request(COUNTER, asked, bounds, ENCODINGS[:1]).o200k == exact

    hold()


@table("encoding", ENCODINGS)
def test_the_lower_bound_rests_on_facts_of_the_tables(encoding: str) -> None:
    table = packed._encoder(encoding).token_byte_values()
    assert max(map(len, table)) == tokens.LONGEST_TOKEN
    assert max((b" " + token).translate(tokens._WORDS).count(b" w") for token in table) == 1


@table("name", TEXTS)
def test_estimate_is_within_15_percent_for_every_kind_of_text(name: str) -> None:
    exact = COUNTER.count(TEXTS[name], "o200k_base")
    off = 100 * (estimate_text(TEXTS[name]) / exact - 1)
    assert abs(off) <= 15, f"{name}: {off:+.1f} % of {exact} tokens"


@table("piece", [*SHORT, "1", "-", "=", "ส", "๘", ". ", "1 ", "- "])
def test_any_repeated_text_has_an_estimate_above_zero(piece: str) -> None:
    assert all(estimate_text(piece * times) > 0 for times in (*range(1, 200), 5_000))


@given(st.binary(max_size=200), st.integers(0, 50))
def test_the_sum_of_weights_is_exact_for_any_length(data: bytes, times: int) -> None:
    weights = (data * times).translate(tokens._WEIGHTS)
    assert tokens._sum(weights) == sum(weights)
    heaviest = bytes([max(tokens._WEIGHTS)]) * len(weights)
    assert tokens._sum(heaviest) == sum(heaviest)
