"""Bounds hold, the estimate is close, and a range says what is known of each vocabulary."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routewright._core import tokens
from routewright._core.tokens import (
    MARGIN,
    Vocabulary,
    bounds_of,
    count_request,
    counted,
    estimate_text,
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


@pytest.mark.timeout(900)
def test_bounds_hold_for_any_text_in_both_vocabularies(full: bool) -> None:
    @settings(max_examples=100_000 if full else 300, deadline=None)
    @given(st.lists(ANY_TEXT, min_size=1, max_size=2))
    def hold(texts: list[str]) -> None:
        asked = request(*texts)
        bounds = count_request(COUNTER, asked, bounds_of(asked), encodings=ENCODINGS)
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
        bounds = count_request(COUNTER, asked, bounds_of(asked), encodings=ENCODINGS)
        assert bounds.low <= min(bounds.o200k or 0, bounds.cl100k or 0)
        assert max(bounds.o200k or 0, bounds.cl100k or 0) <= bounds.high


def test_lower_bound_of_a_long_prompt_is_within_two_of_its_length() -> None:
    asked = request("\n\n".join(DEVELOPMENT["pair_gsm8k"]))
    bounds = count_request(COUNTER, asked, bounds_of(asked))
    assert bounds.o200k is not None
    assert bounds.low > bounds.o200k / 2


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
    asked = RouteRequest(messages=[Message("user", [TextPart(TEXTS["hindi"]), IMAGE])])
    before = bounds_of(asked)
    after = count_request(COUNTER, asked, before)
    exact = [overhead(asked) + COUNTER.count(TEXTS["hindi"], encoding) for encoding in ENCODINGS]
    assert image_count(asked) == 1
    assert (after.o200k, after.cl100k) == (None, None)
    assert before.low <= after.low <= min(exact) + 85
    assert max(exact) + 6_000 <= after.high <= before.high
    assert after.high - after.low < before.high - before.low


class LengthCounter:
    """Takes every character for a token."""

    def count(self, text: str, encoding: str) -> int:
        return len(text)


def test_a_request_is_counted_with_any_counter_and_only_in_what_is_asked_for() -> None:
    asked = request("one", "three", tools=[WEATHER])
    bounds = bounds_of(asked)
    characters = sum(map(len, prompt_texts(asked))) + overhead(asked)
    assert count_request(LengthCounter(), asked, bounds) == counted(bounds, characters)
    both = count_request(LengthCounter(), asked, bounds, encodings=ENCODINGS)
    assert (both.o200k, both.cl100k) == (characters, characters)


def test_counting_changes_neither_bounds_nor_estimate() -> None:
    bounds = TokenBounds(10, 1_000, 240)
    assert counted(bounds, 230) == TokenBounds(10, 1_000, 240, o200k=230, counted=True)
    assert counted(counted(bounds, None, 250), 230) == TokenBounds(10, 1_000, 240, o200k=230, cl100k=250, counted=True)


def test_range_is_exact_where_counted_and_has_a_margin_for_other_vendors() -> None:
    bounds = TokenBounds(10, 1_000, 240, o200k=300)
    assert ranges(bounds) == ((300, 300), (10, 1_000), (200, 450))
    assert ranges(counted(bounds, None, 310)) == ((300, 300), (310, 310), (200, 450))


def test_range_without_a_count_is_the_plain_bounds() -> None:
    bounds = TokenBounds(10, 1_000, 240)
    assert ranges(bounds) == ((10, 1_000),) * 3


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**7), st.booleans())
def test_every_range_stays_inside_the_bounds(below: int, exact: int, above: int, both: bool) -> None:
    bounds = TokenBounds(exact - min(below, exact), exact + above, exact, exact, exact if both else None)
    for low, high in ranges(bounds):
        assert bounds.low <= low <= exact <= high <= bounds.high
    low, high = ranges(bounds)[2]
    assert low >= math.floor(exact / MARGIN)
    assert high <= math.ceil(exact * MARGIN)


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


@given(st.text())
def test_estimate_is_at_most_a_token_a_byte(text: str) -> None:
    assert 0 <= estimate_text(text) <= len(text.encode())
    assert (estimate_text(text) > 0) == bool(text)
