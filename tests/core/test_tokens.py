"""Bounds hold, the estimate is close, and a range says what is known of each vocabulary."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright._core import tokens
from routewright._core.tokens import (
    Vocabulary,
    bounds_of,
    count_request,
    estimate_text,
    fillings,
    image_count,
    overhead,
    prompt_texts,
    ranges,
)
from routewright.backends import tokens as packed
from routewright.wire import (
    FunctionCall,
    FunctionSpec,
    ImagePart,
    ImageUrl,
    Message,
    Params,
    RouteRequest,
    TextPart,
    TokenBounds,
    Tool,
    ToolCall,
)

DATA = Path(__file__).parents[1] / "data"
TEXTS: dict[str, str] = json.loads((DATA / "texts.json").read_text(encoding="utf-8"))
OTHERS: dict[str, Any] = json.loads((DATA / "vocabularies.json").read_text(encoding="utf-8"))
COUNTER = packed.PackedTokenCounter()
ENCODINGS: tuple[Vocabulary, ...] = ("o200k_base", "cl100k_base")

WEATHER = Tool(function=FunctionSpec("weather", "Says the weather.", {"type": "object", "properties": {"city": {}}}))
IMAGE = ImagePart(ImageUrl("https://example.com/cat.png"))


def request(*texts: str, **rest: Any) -> RouteRequest:
    return RouteRequest(messages=[Message("user", text) for text in texts], **rest)


def prompts(name: str, key: str) -> list[str]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line)[key] for line in lines]


DEVELOPMENT = {
    "pair_gsm8k": prompts("pair_gsm8k", "prompt"),
    "multi_zeroeval": prompts("multi_zeroeval", "prompt"),
    "intent_banking77": prompts("intent_banking77", "text"),
}

# Pieces at which a bound could fail: long tokens, tokens over a line break, spaces outside ASCII, unpaired surrogates.
SHORT = [
    " ",
    "\n",
    "\r\n",
    "\t",
    "\xa0",
    "\u3000",
    ";\n/",
    "'s",
    "a",
    "A",
    "é",
    "的",
    "0",
    " the",
    "😀",
    "\x00",
    "\ufdfa",
    "\ud83d",
]
LONG = [" สำนักเลขานุการองค์กร", "translatesAutoresizingMaskIntoConstraints", "-" * 112, " " * 128]
ANY_TEXT = st.one_of(
    st.text(),
    st.lists(st.sampled_from(SHORT + LONG)).map("".join),
    st.builds(lambda piece, times: piece * times, st.sampled_from(SHORT) | st.text(max_size=5), st.integers(0, 2_500)),
)


def test_bounds_hold_for_any_text_in_both_vocabularies(full: bool) -> None:
    @settings(max_examples=100_000 if full else 300, deadline=None)
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


def test_bounds_hold_for_development_prompts(full: bool) -> None:
    every = [prompt for name in DEVELOPMENT for prompt in DEVELOPMENT[name]]
    chosen = [*TEXTS.values(), *(every if full else every[::25]), "\n\n".join(every)]
    for asked in map(request, chosen):
        bounds = count_request(COUNTER, asked, bounds_of(asked), ENCODINGS)
        assert bounds.low <= min(bounds.o200k or 0, bounds.cl100k or 0)
        assert max(bounds.o200k or 0, bounds.cl100k or 0) <= bounds.high


def test_lower_bound_of_a_long_prompt_is_within_two_of_its_length() -> None:
    asked = request("\n\n".join(DEVELOPMENT["pair_gsm8k"]))
    bounds = count_request(COUNTER, asked, bounds_of(asked))
    assert bounds.o200k is not None
    assert bounds.low > bounds.o200k / 2


LENGTHS = (tokens.WHOLE_CHARACTERS + 1, tokens.ENCODED_CHARACTERS + 1, 1_000_000)


@pytest.mark.parametrize("name", ["english", "python", "german", "hindi", "chinese", "whitespace"])
def test_bounds_of_a_very_long_prompt_come_from_a_sample_and_hold(name: str) -> None:
    for length in LENGTHS:
        text = (TEXTS[name] * (length // len(TEXTS[name]) + 1))[:length]
        thirds = [text[start : start + length // 3 + 1] for start in range(0, length, length // 3 + 1)]
        for asked in (request(text), request("", *thirds)):
            before = bounds_of(asked)
            after = count_request(COUNTER, asked, before)
            found = (after.o200k or 0, after.cl100k or 0)
            assert before.low <= min(found) <= max(found) <= after.high <= before.high
            assert after.high <= len(text.encode()) + overhead(asked)
            exact = estimate_text(text)
            assert abs(before.estimate / exact - 1) < 0.02


def test_a_sample_is_taken_from_all_over_a_prompt() -> None:
    half = tokens.ENCODED_CHARACTERS
    mixed = bounds_of(request(TEXTS["english"] * (half // len(TEXTS["english"])), "的" * half))
    whole = estimate_text(TEXTS["english"] * (half // len(TEXTS["english"])) + "的" * half)
    assert abs(mixed.estimate / whole - 1) < 0.05


def test_a_sample_holds_no_word_that_is_not_in_the_prompt() -> None:
    taken = tokens.WHOLE_CHARACTERS // tokens.SLICES
    piece = ("end" + " word" * (taken // 5 - 1)).ljust(taken - 1, ".") + " "  # with what is not looked at behind it
    asked = request((piece + "....") * tokens.SLICES)
    assert bounds_of(asked).low == (taken // 5 - 1) * tokens.SLICES


@pytest.mark.parametrize("text", ["a word " * 2_300_000, "ein Wörtchen " * 1_200_000, "的" * 5_300_000], ids=len)
def test_of_sixteen_megabytes_little_is_looked_at(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    encode, looked_at = tokens._utf8, 0

    def counted(text: str) -> bytes:
        nonlocal looked_at
        looked_at += len(text)
        return encode(text)

    monkeypatch.setattr(tokens, "_utf8", counted)
    bounds_of(request(text))
    assert 0 < looked_at <= tokens.WHOLE_CHARACTERS * (1 + 1 / tokens.SLICES)


def test_upper_bound_covers_what_surrounds_the_text() -> None:
    plain = bounds_of(request("hi"))
    assert plain.high == len("hi") + overhead(request("hi")) == 2 + 3 + 4
    assert bounds_of(request("hi", "hi")).high == plain.high + 2 + 4
    named = RouteRequest(messages=[Message("user", "hi", name="ann")])
    assert bounds_of(named).high == plain.high + 3 + 1
    call = ToolCall("call_1", FunctionCall("weather", '{"city": "Rome"}'))
    calling = RouteRequest(messages=[Message("assistant", None, tool_calls=[call])])
    assert bounds_of(calling).high == 3 + 4 + 8 + len("weather") + len('{"city": "Rome"}')


def test_tool_declarations_count_as_their_json_however_they_are_written() -> None:
    spec = WEATHER.function_spec
    flat = Tool(name=spec.name, description=spec.description, parameters=spec.parameters)
    nested, written_flat = request("hi", tools=[WEATHER]), request("hi", tools=[flat])
    assert prompt_texts(nested) == prompt_texts(written_flat)
    assert json.loads(prompt_texts(nested)[1]) == {
        "name": "weather",
        "description": "Says the weather.",
        "parameters": spec.parameters,
    }
    assert overhead(nested) == overhead(request("hi")) + 12


def test_prompt_texts_are_contents_names_calls_and_schema() -> None:
    call = ToolCall("call_1", FunctionCall("weather", "{}"))
    asked = RouteRequest(
        messages=[
            Message("system", "be kind"),
            Message("user", [TextPart("look"), IMAGE, TextPart("here")], name="ann"),
            Message("assistant", None, tool_calls=[call]),
            Message("tool", "sunny", tool_call_id="call_1"),
        ],
        params=Params(response_format={"type": "json_object"}),
    )
    assert prompt_texts(asked) == [
        *("be kind", "look", "here", "ann", "weather", "{}", "sunny"),
        '{"type":"json_object"}',
    ]


def test_an_image_widens_the_bounds_by_its_stated_range() -> None:
    plain = bounds_of(request("what is this?"))
    pictured = bounds_of(
        RouteRequest(messages=[Message("user", [TextPart("what is this?"), IMAGE]), Message("user", [IMAGE])])
    )
    assert pictured.low == plain.low + 2 * 85
    assert pictured.high == plain.high + 4 + 2 * 6_000
    assert pictured.estimate == plain.estimate + 4 + 2 * 1_000


def test_counting_a_prompt_with_images_tightens_its_bounds_but_claims_nothing_exact() -> None:
    asked = RouteRequest(messages=[Message("user", [TextPart(TEXTS["english"]), IMAGE])])
    before = bounds_of(asked)
    after = count_request(COUNTER, asked, before)
    plain = request(TEXTS["english"])
    assert image_count(asked) == 1
    assert (after.o200k, after.cl100k) == (None, None)
    assert after.low == before.low
    assert after.high == count_request(COUNTER, plain, bounds_of(plain)).high + 6_000 < before.high


class FixedCounter:
    """Finds so many tokens in every text, or as many as it has characters."""

    def __init__(self, tokens: Any = None) -> None:
        self.tokens = tokens

    def count(self, text: str, encoding: str) -> int:
        found: int = len(text) if self.tokens is None else self.tokens
        return found


def test_a_request_is_counted_with_any_counter_and_only_in_what_is_asked_for() -> None:
    asked = request("one", "three", tools=[WEATHER])
    bounds = bounds_of(asked)
    characters = sum(map(len, prompt_texts(asked))) + overhead(asked)
    once = count_request(FixedCounter(), asked, bounds, ENCODINGS[:1])
    assert once == replace(bounds, o200k=characters, counted=True)
    both = count_request(FixedCounter(), asked, bounds)
    assert (both.o200k, both.cl100k) == (characters, characters)


def test_counting_moves_neither_the_lower_bound_nor_the_estimate() -> None:
    asked = request(TEXTS["english"])
    before = bounds_of(asked)
    after = count_request(COUNTER, asked, before)
    assert (after.low, after.estimate) == (before.low, before.estimate)
    assert (after.o200k or 0) < after.high < before.high / 2


@pytest.mark.parametrize(("found", "side"), [(0, "low"), (10**12, "high")])
def test_a_count_outside_the_bounds_is_taken_for_the_bound(found: int, side: str) -> None:
    for asked in (request(TEXTS["hindi"] * 10), RouteRequest([Message("user", [TextPart("look" * 5_000), IMAGE])])):
        bounds = bounds_of(asked)
        after = count_request(FixedCounter(found), asked, bounds)
        assert bounds.low <= after.low <= after.high <= bounds.high
        if not image_count(asked):
            assert after.o200k == after.cl100k == max(getattr(bounds, side), overhead(asked))


@pytest.mark.parametrize("found", [-1, 2.5, math.nan, "7", None])
def test_what_is_no_count_is_refused_by_name(found: Any) -> None:
    class Wrong(FixedCounter):
        def __repr__(self) -> str:
            return "Wrong()"

        def count(self, text: str, encoding: str) -> int:
            return found  # type: ignore[no-any-return]

    asked = request("hello")
    with pytest.raises(ValueError, match=re.escape(f"Wrong() counted {found!r} tokens in o200k_base; ")):
        count_request(Wrong(), asked, bounds_of(asked))


def test_a_range_is_exact_where_counted_and_else_the_bounds() -> None:
    bounds = TokenBounds(10, 1_000, 240, o200k=300)
    assert ranges(bounds) == ((300, 300), (10, 1_000), (10, 1_000))
    assert ranges(replace(bounds, cl100k=310)) == ((300, 300), (310, 310), (10, 1_000))
    assert ranges(TokenBounds(10, 1_000, 240)) == ((10, 1_000),) * 3


def test_a_window_is_filled_by_the_count_and_by_a_third_more_of_it_in_a_vocabulary_that_was_not_counted() -> None:
    counted = TokenBounds(10, 1_000, 240, o200k=300, cl100k=302)
    assert fillings(counted) == (300, 302, 403)
    assert fillings(replace(counted, high=350)) == (300, 302, 350)
    assert fillings(replace(counted, cl100k=None)) == (300, 1_000, 1_000)
    assert fillings(TokenBounds(10, 1_000, 240, counted=True)) == (1_000,) * 3


@pytest.mark.parametrize("name", OTHERS["counts"])
def test_the_bound_for_other_vendors_holds_in_real_vocabularies(name: str) -> None:
    asked = request((TEXTS | OTHERS["texts"])[name])
    *_, (low, high) = ranges(count_request(COUNTER, asked, bounds_of(asked)))
    for vocabulary, tokens_found in OTHERS["counts"][name].items():
        assert low <= tokens_found + overhead(asked) <= high, vocabulary


def test_the_bound_for_other_vendors_is_about_twice_the_count_on_prose_and_the_bytes_in_other_scripts() -> None:
    for name, least, most in (("english", 2.0, 2.1), ("python", 2.0, 3.0), ("json", 2.0, 2.4)):
        after = count_request(COUNTER, request(TEXTS[name]), bounds_of(request(TEXTS[name])))
        assert least <= after.high / max(after.o200k or 1, after.cl100k or 1) <= most, name
    for name in ("hindi", "chinese", "russian", "thai"):
        before = bounds_of(request(TEXTS[name]))
        assert count_request(COUNTER, request(TEXTS[name]), before).high == before.high, name


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_lower_bound_rests_on_facts_of_the_tables(encoding: str) -> None:
    table = packed._encoder(encoding).token_byte_values()
    assert max(map(len, table)) == tokens.LONGEST_TOKEN
    assert max((b" " + token).translate(tokens._WORDS).count(b" w") for token in table) == 1


WITHIN = {
    **dict.fromkeys(["english", "english_question", "german", "chinese", "python", "typescript"], 15),
    **dict.fromkeys(["json", "json_indented", "french", "spanish", "russian", "arabic", "hebrew", "hindi"], 15),
    **dict.fromkeys(["thai", "japanese", "korean", "emoji_chat", "markdown", "numbers"], 15),
    "whitespace": 30,
}


@pytest.mark.parametrize("name", TEXTS)
def test_estimate_is_close_for_every_kind_of_text(name: str) -> None:
    exact = COUNTER.count(TEXTS[name], "o200k_base")
    off = 100 * (estimate_text(TEXTS[name]) / exact - 1)
    assert abs(off) <= WITHIN[name], f"{name}: {off:+.1f} % of {exact} tokens"


@pytest.mark.parametrize("name", DEVELOPMENT)
def test_estimate_is_close_over_development_prompts(name: str) -> None:
    pairs = [(estimate_text(prompt), COUNTER.count(prompt, "o200k_base")) for prompt in DEVELOPMENT[name][::5]]
    assert abs(sum(guess for guess, _ in pairs) / sum(exact for _, exact in pairs) - 1) <= 0.10
    assert sum(abs(guess / exact - 1) <= 0.30 for guess, exact in pairs) >= 0.9 * len(pairs)


@example(" ")
@given(st.text())
def test_estimate_is_at_most_a_token_a_byte(text: str) -> None:
    assert 0 <= estimate_text(text) <= len(text.encode())
    assert (estimate_text(text) > 0) == bool(text)
