"""Tables of what vendors answer, whole or streamed, and what it is read as: chunks, usage and finish, or a fault."""

from __future__ import annotations

import json
import random
import time
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from google.genai.types import FinishReason
from hypothesis import given
from hypothesis import strategies as st

from routewright import AnthropicProvider, GeminiProvider
from routewright._core.sse import SseEvent
from routewright.backends.providers.answer import Reader, decode_body
from routewright.backends.providers.anthropic import Blocks, Counts
from routewright.backends.providers.gemini import GeneratedContent
from routewright.backends.providers.gemini import read_usage as read_google
from routewright.backends.providers.openai import Completion
from routewright.backends.providers.usage import read_usage
from routewright.wire import Chunk, Delta, Finish, FunctionCall, Message, Thought, ToolCall, ToolDelta, Usage
from tests.tables import table
from tests.upstream import Answer, of_json

from . import anthropic_server as anthropic
from . import gemini_server as google
from .anthropic_server import events_of, message, said, sse, thought, used
from .conversations import names, objects
from .gemini_server import called, checked, generated
from .openai_server import USAGE, delta, events, whole
from .provider_calls import all_from, bytes_of, call, came_from, outcome, read_streamed, summary_of

TOLD = Usage(9, 3)
SILENT = {"role": "assistant", "content": None}
SPENT = {"usage": USAGE["usage"]}
REFUSED = SILENT | {"refusal": "I cannot"}


class Row(NamedTuple):
    """The same in each of several forms: chunks, perhaps before a fault of some kind."""

    chunks: list[Chunk]
    answers: tuple[Answer, ...]
    kind: str | None = None


def gives(*chunks: Chunk, of: Answer | tuple[Answer, ...]) -> Row:
    return Row(list(chunks), of if isinstance(of, tuple) else (of,))


def fails(kind: str, *chunks: Chunk, of: Answer | tuple[Answer, ...]) -> Row:
    return Row(list(chunks), of if isinstance(of, tuple) else (of,), kind)


def check(reader: Any, row: Row) -> None:
    for answer in row.answers:
        chunks, fault = came_from(reader(), answer)
        assert (chunks, fault and fault.kind) == (row.chunks, row.kind)


# --- chat completions


def piece(index: int | None, arguments: str = "", id: str | None = None, name: str | None = None) -> dict[str, Any]:
    """An event with a piece of a tool call."""
    return delta(tool_calls=[{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}])


def bare(**function: Any) -> dict[str, Any]:
    """An event with a piece of a tool call that has neither index nor id."""
    return delta(tool_calls=[{"function": function}])


def calling(*pieces: dict[str, Any]) -> Answer:
    return events(*pieces, delta(finish="tool_calls"))


def chosen(place: str, told: Any, finish: str = "stop", **more: Any) -> dict[str, Any]:
    """A document with one choice."""
    return {"choices": [{"index": 0, "finish_reason": finish, **more} | ({} if told is None else {place: told})]}


def both_of(told: Any, finish: str = "stop", **more: Any) -> tuple[Answer, ...]:
    """A message and a delta that say the same."""
    plain, streamed = chosen("message", told, finish, **more), chosen("delta", told, finish, **more)
    return of_json(plain), events(streamed), events(streamed, done=False)


def native(reason: str) -> dict[str, Any]:
    """An end as OpenRouter passes it on."""
    ended = delta(finish="stop")
    ended["choices"][0]["native_finish_reason"] = reason
    return ended


MADE = [
    {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
    {"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{ }"}},
]
COUNTS = {"prompt_tokens": 24, "completion_tokens": 51, "total_tokens": 75}
OFFSETS = {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"start_offset": 0}}]}
FILTERED = {"choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]}
THINKING = {"type": "thinking", "thinking": []}
NOTHING: list[Any] = [None, {}, {"content": None}, {"content": []}, {"content": [THINKING]}]
CHAT: dict[str, Row] = {
    "pieces of calls by index": gives(ToolDelta(0, '{"a"', "c1", "f"), ToolDelta(0, ": 1}"),
        ToolDelta(1, "", "c2", "g"), ToolDelta(1, "{}"), Finish("tool_calls"),
        of=calling(piece(0, '{"a"', "c1", "f"), piece(0, ": 1}"), piece(1, "{}", "c2", "g"))),
    "whole calls": gives(ToolDelta(0, '{"a": 1}', "c1", "f"), ToolDelta(1, "{ }", "c2", "g"), Finish("tool_calls"),
        of=(whole(SILENT | {"tool_calls": MADE}, finish="tool_calls", usage=None),
            events(delta(role="assistant", content=None, tool_calls=MADE), delta(finish="tool_calls")))),
    "calls without index or id": gives(ToolDelta(0, "1", "call_0", "f"), ToolDelta(0, "2"),
        ToolDelta(1, '{"x":3}', "call_1", "g"), Finish("tool_calls"),
        of=events(bare(name="f", arguments="1"), bare(arguments="2"), bare(name="g", arguments={"x": 3}),
            delta(finish="stop"))),
    "all said again": gives(ToolDelta(0, "1", "a", "f"), ToolDelta(0, "2", "", "f"), Finish("tool_calls"),
        of=calling(piece(0, "1", "a", "f"), piece(0, "2", "a", "f"))),
    "said late": gives(ToolDelta(0, "1", "call_0"), ToolDelta(0, "2", "a"), ToolDelta(0, "3", "", "f"),
        Finish("tool_calls"), of=calling(piece(0, "1"), piece(0, "2", "a"), piece(0, "3", None, "f"))),
    "one id for all": gives(ToolDelta(0, "1", "a", "f"), ToolDelta(1, "2", "a_1", "g"), ToolDelta(1, "3"),
        ToolDelta(2, "4", "a_1_2", "h"), Finish("tool_calls"),
        of=calling(piece(0, "1", "a", "f"), piece(1, "2", "a", "g"), piece(1, "3", "a"), piece(2, "4", "a_1", "h"))),
    **{f"it ends with {word}": gives(Delta("hello"), Finish(common),
            of=(whole(finish=word, usage=None), events(delta("hello", finish=word)))) for word,
        common in {"stop": "stop", "length": "length", "content_filter": "content_filter",
            "function_call": "tool_calls", "model_length": "length", "MAX_TOKENS": "length", "eos": "stop"}.items()},
    **{f"empty, which {word} explains": gives(Finish(word),
            of=(whole(SILENT, finish=word, usage=None), events(delta(finish=word)))) for word in ("length",
            "content_filter")},
    "text in parts": gives(Delta("ab"), Finish("stop"),
        of=whole(SILENT | {"content": [THINKING, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            usage=None)),
    "an empty text is one": gives(Finish("stop"), of=events(delta("", finish="stop"))),
    "white space after the end mark": gives(Delta("a"), Finish("stop"),
        of=events(delta("a", finish="stop"), "[DONE] ", done=False)),
    "annotations of Azure's filter": gives(Delta("all"), Finish("stop"),
        of=events(FILTERED, delta("all"), OFFSETS, delta(finish="stop"))),
    "usage in x_groq": gives(Delta("a"), Usage(24, 51), Finish("stop"),
        of=events(delta("a") | {"x_groq": {"id": "req_1"}},
            delta(finish="stop") | {"x_groq": {"id": "r", "usage": COUNTS}})),
    "a refusal": fails("refused", TOLD, of=(whole(REFUSED), events(delta(refusal="I cannot") | SPENT))),
    "a refusal after the finish reason": fails("refused", Delta("all"),
        of=events(delta("all", finish="stop"), delta(refusal="I cannot"))),
    "a refusal in the middle": fails("refused", Delta("half"), of=events(delta("half"), delta(refusal="I cannot"))),
    **{f"half, then {word}": fails(kind, Delta("half"), of=events(delta("half"), delta(finish=word))) for word,
        kind in {"error": "truncated", "abort": "truncated",
            "function_call_filter: MALFORMED_FUNCTION_CALL": "malformed"}.items()},
    "half, then a broken network": fails("truncated", Delta("half"), of=events(delta("half"), native("network_error"))),
    "usage before an end that is none": fails("truncated", TOLD, of=whole("half", finish="error")),
    "usage before silence": fails("malformed", TOLD, of=whole(SILENT)),
    "usage before an error": fails("malformed", TOLD, of=events(USAGE, {"error": {"message": "boom"}})),
    "usage beside an error": fails("malformed", TOLD, of=events({"error": {"message": "boom"}} | USAGE)),
    "usage before broken JSON": fails("malformed", TOLD, of=events(USAGE, "{")),
    "an end mark alone": fails("truncated", of=events()),
    "an end mark without a reason": fails("truncated", Delta("half"), of=events(delta("half"))),
    **{f"nothing said: {told}, {reason}": fails("malformed", of=both_of(told, reason)) for told in NOTHING for reason
        in ("stop", "tool_calls")},
}  # fmt: skip


@table("row", CHAT.values(), ids=CHAT)
def test_a_chat_completion_is_read(row: Row) -> None:
    check(partial(Completion, "x"), row)


THOUGHTS: dict[str, dict[str, Any]] = {
    "deepseek": {"reasoning_content": "hm"},
    "groq": {"reasoning": "hm"},
    "openrouter": {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    "minimax": {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    "xai": {"content": "", "reasoning_content": "hm"},
    "vllm": {"content": None, "reasoning_content": "hm"},
    "mistral": {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
}


@table("told", THOUGHTS.values(), ids=THOUGHTS)
def test_reasoning_in_any_form_is_not_output(told: dict[str, Any]) -> None:
    thinks = [Thought("hm"), Delta("so"), Finish("stop")]
    assert came_from(Completion("x"), events(delta(**told), delta("so", finish="stop"))) == (thinks, None)
    alone = isinstance(told.get("content"), list)
    plain = chosen("message", {"role": "assistant", **told} | ({} if alone else {"content": "so"}))
    reader = Completion("x")
    reader.take(json.dumps(plain))
    assert reader.chunks == thinks[: 1 if alone else 2]
    for content in ({}, {"content": ""}, {"content": None}):
        pieces = (delta(**content), delta(**content | told), delta(**content, finish="stop"))
        fault = came_from(Completion("x"), events(*pieces))[1]
        assert fault is not None
        assert "neither content nor tool calls" in fault.message, "reasoning alone is no answer"


def test_a_comment_and_reasoning_are_signs_of_life() -> None:
    answer = events(delta(reasoning_content="hm"), b": comment\n\n", delta("so", reasoning="x"), delta(finish="stop"))
    assert all_from(Completion("x"), answer)[0] == [Thought("hm"), Thought("x"), Delta("so"), Delta(""), Finish("stop")]


def test_many_tool_calls_are_read_in_linear_time() -> None:
    pieces = [{"id": f"c{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(40_000)]
    document = json.dumps(chosen("message", {"tool_calls": pieces}))
    reader, started = Completion("x"), time.process_time()
    reader.take(document)
    assert len(reader.chunks) == 40_000
    assert time.process_time() - started < 2.0  # it takes a twentieth of that; where it is squared, ten seconds


def prompt(input: int, output: int, **details: int) -> dict[str, Any]:
    """Usage with details of the prompt."""
    base = {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}
    return base | ({"prompt_tokens_details": details} if details else {})


def reasoned(count: int) -> dict[str, Any]:
    return {"completion_tokens_details": {"reasoning_tokens": count}}


CHAT_USAGE: list[tuple[dict[str, Any], Usage]] = [
    # cached tokens are at most the prompt, wherever they are told
    (prompt(100, 20) | {"cached_tokens": 7, "prompt_tokens_details": None}, Usage(100, 20, 7)),
    (prompt(100, 20, cached_tokens=999), Usage(100, 20, 100)),
    # OpenAI's guide to prompt caching: of 2,600 tokens 2,000 were read, 400 written and 200 neither; OpenRouter too
    (prompt(2_600, 20, cached_tokens=2_000, cache_write_tokens=400), Usage(2_600, 20, cached=2_000, written=400)),
    # Alibaba's explicit cache
    (prompt(2_600, 20, cached_tokens=0, cache_creation_input_tokens=1_605), Usage(2_600, 20, written=1_605)),
    # proxies that put all of Anthropic's input into prompt_tokens
    (prompt(2_600, 20, cached_tokens=100, cache_creation_tokens=50), Usage(2_600, 20, cached=100, written=50)),
    (prompt(2_600, 20, cached_tokens=5) | {"cache_creation_input_tokens": 70}, Usage(2_600, 20, cached=5, written=70)),
    (prompt(2_600, 20) | {"prompt_tokens_details": {"cache_write_tokens": "x"}, "cache_creation_input_tokens": -1},
     Usage(2_600, 20)),
    # counted beside the prompt after all: never more than there is
    (prompt(2_600, 20, cached_tokens=2_500, cache_write_tokens=400), Usage(2_600, 20, cached=2_500, written=100)),
    # DeepSeek
    (prompt(100, 20) | {"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36} | reasoned(12),
     Usage(100, 20, cached=64, reasoning=12)),
    # Moonshot
    (prompt(100, 20) | {"cached_tokens": 50}, Usage(100, 20, 50)),
    # OpenRouter
    (prompt(194, 2, cached_tokens=20, cache_write_tokens=100, audio_tokens=0) | reasoned(0) | {"cost": 0.95,
         "is_byok": False, "cost_details": {"upstream_inference_cost": 19}}, Usage(194, 2, cached=20, written=100)),
    # OpenAI, of a recording
    (prompt(60, 2, cached_tokens=20, audio_tokens=50), Usage(60, 2, cached=20, audio=40)),
    # Groq
    (prompt(24, 51, cached_tokens=16) | {"queue_time": 0.04, "prompt_time": 0.001}, Usage(24, 51, cached=16)),
    # Perplexity: Sonar, then what deep research bills beside
    (prompt(8, 400) | {"search_context_size": "low"}, Usage(8, 400)),
    (prompt(33, 7_163) | {"citation_tokens": 20_016, "num_search_queries": 29, "reasoning_tokens": 73_997},
     Usage(33 + 20_016, 7_163 + 73_997, reasoning=73_997)),
    # xAI
    (prompt(32, 9, text_tokens=32, image_tokens=0, cached_tokens=6) | {"total_tokens": 135, "num_sources_used": 0} | {
         "completion_tokens_details": {"reasoning_tokens": 94, "accepted_prediction_tokens": 0}},
     Usage(32, 103, cached=6, reasoning=94)),
    # Alibaba
    (prompt(3_019, 104, cached_tokens=2_048, cache_creation_input_tokens=0), Usage(3_019, 104, cached=2_048)),
    # MiniMax
    (prompt(26, 223) | {"total_characters": 0} | reasoned(214), Usage(26, 223, reasoning=214)),
]  # fmt: skip


def test_usage_of_chat_completions_is_read_in_the_form_of_each_host() -> None:
    assert [(told, read_usage(told)) for told, _ in CHAT_USAGE] == CHAT_USAGE


# --- messages


def both(*content: dict[str, Any], **more: Any) -> tuple[Answer, Answer]:
    """A message, whole and streamed."""
    return tuple(anthropic.answer(message(*content, **more), stream=stream) for stream in (False, True))  # type: ignore[return-value]


STOPS = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "model_context_window_exceeded": "length",
    "pause_turn": "length", "refusal": "content_filter",
}  # fmt: skip
_START, *_ = events_of(message())
BEGUN = Usage(9, 1)
DETAILS = {"stop_details": {"type": "refusal", "category": "cyber", "explanation": "no"}}
NEWS: list[dict[str, Any]] = [
    {"type": "weather", "delta": 7, "index": "x"},
    {"type": "content_block_start", "index": 9, "content_block": {"type": "song", "text": 4}},
    {"type": "content_block_delta", "index": 9, "delta": {"type": "song_delta", "text": 4}},
    {"type": "content_block_delta", "index": 9, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    {"type": "content_block_stop", "index": 9},
]
BROKEN: dict[str, list[dict[str, Any]]] = {
    "nothing said": events_of(message())[1:],
    "thought alone": events_of(message(thought("hm")))[1:],
    "no delta": [{"type": "content_block_delta", "index": 0}],
    "no index": [{"type": "content_block_stop"}],
    "text that is none": [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": 5}}],
    "an error of no known type": [anthropic.error("strange_error")],
}


def test_stop_reasons_of_messages_are_translated() -> None:
    for reason, common in STOPS.items():
        plain, streamed = both(said("x"), stop=reason)
        assert came_from(Blocks("x"), plain) == ([Delta("x"), TOLD, Finish(common)], None)
        assert came_from(Blocks("x"), streamed) == ([BEGUN, Delta("x"), TOLD, Finish(common)], None)
    for reason in ("refusal", "max_tokens", "stop_sequence"):
        for answer in both(stop=reason, **DETAILS if reason == "refusal" else {}):
            assert summary_of(came_from(Blocks("x"), answer)[0])[0] == "", "the reason explains it"


def test_tool_calls_of_messages_have_id_and_name_first_and_complete_arguments() -> None:
    content = [thought("hm"), said("I look."), used("look", {"at": "naïve 🦜"}), used("wait", {}, "toolu_2")]
    calls = [("toolu_1", "look", {"at": "naïve 🦜"}), ("toolu_2", "wait", {})]
    for answer in both(*content, stop="tool_use"):
        chunks, _ = came_from(Blocks("x"), answer)
        assert summary_of(chunks) == ("I look.", calls, TOLD, "tool_calls")
        firsts = [chunk for chunk in chunks if isinstance(chunk, ToolDelta) and chunk.id]
        assert firsts == [ToolDelta(0, "", "toolu_1", "look"), ToolDelta(1, "", "toolu_2", "wait")]


def test_signatures_pings_and_unknown_events_are_signs_of_life() -> None:
    hidden, life = {"type": "redacted_thinking", "data": "x"}, Delta("")
    start, ping, *rest = events_of(message(thought("hm"), hidden, said("so")))
    chunks, fault = all_from(Blocks("x"), sse(start, ping, b": comment\n\n", *NEWS, *rest))
    assert fault is None
    assert chunks == [
        BEGUN, *[life] * (1 + len(NEWS)),
        life, Thought("hm"), life, Thought(item=thought("hm")),  # what it begins with, is signed with and ends in
        life, Thought(item=hidden), life, Delta("so"), life, TOLD, Finish("stop"),
    ]  # fmt: skip


def test_a_whole_message_may_have_an_unknown_reason_but_needs_one_and_text() -> None:
    document: dict[str, Any] = {"type": "message", "content": [said("x")], "stop_reason": "a_new_word"}
    assert came_from(Blocks("x"), of_json(document))[0][-1] == Finish("a_new_word")
    assert str(came_from(Blocks("x"), of_json(document | {"stop_reason": None}))[1]).startswith("truncated")
    for block in (thought("hm"), {"type": "text", "text": 5}):
        fault = came_from(Blocks("x"), of_json(document | {"content": [block], "stop_reason": "end_turn"}))[1]
        assert str(fault).startswith("malformed")


def test_an_answer_after_tool_results_may_be_empty() -> None:
    asked = Message("assistant", tool_calls=[ToolCall("c1", FunctionCall("look", "{}"))])
    messages = [Message("user", "look"), asked, Message("tool", "done", tool_call_id="c1")]
    for answer in both():
        chunks, _ = came_from(AnthropicProvider("k")._reader(call(*messages), {}), answer)
        assert summary_of(chunks) == ("", [], TOLD, "stop")
        assert "neither text nor tool calls" in str(came_from(AnthropicProvider("k")._reader(call(), {}), answer)[1])


@table("broken", BROKEN.values(), ids=BROKEN)
def test_an_invalid_stream_of_messages_is_malformed_after_its_usage(broken: list[dict[str, Any]]) -> None:
    came, fault = came_from(Blocks("x"), sse(_START, *broken))
    assert fault is not None
    assert (came[0], fault.kind, fault.answered) == (BEGUN, "malformed", True)


def test_an_end_without_a_reason_is_truncated_and_an_event_is_an_error_by_name_or_type() -> None:
    fault = came_from(Blocks("x"), sse({"type": "message_stop"}))[1]
    assert fault is not None
    assert fault.kind == "truncated"
    for error in ('{"message": "boom"}', json.dumps(anthropic.error("overloaded_error"))):
        fault = came_from(Blocks("x"), sse(f"event: error\ndata: {error}\n\n".encode()))[1]
        assert "x answered 200 with an error" in str(fault)
    unnamed = f"data: {json.dumps(anthropic.error('overloaded_error'))}\n\n".encode()
    assert "x answered 200 with an error" in str(came_from(Blocks("x"), sse(unnamed))[1])


def test_usage_of_messages_is_merged_and_repeated_only_if_changed() -> None:
    usage = {
        "input_tokens": 50, "cache_read_input_tokens": 100_000, "cache_creation_input_tokens": 248,
        "cache_creation": {"ephemeral_5m_input_tokens": 148, "ephemeral_1h_input_tokens": 100}, "output_tokens": 503,
        "output_tokens_details": {"thinking_tokens": 480}, "service_tier": "standard",
    }  # fmt: skip
    message(said("x"), usage=usage)  # valid by the official types
    assert Counts().add(usage) == Usage(100_298, 503, 100_000, 480, 248, 100, tier="default")
    thinking = {"output_tokens_details": {"thinking_tokens": 9}}
    assert Counts().add({"input_tokens": 1, "output_tokens": 1} | thinking) == Usage(1, 1, 0, 1)
    counts = Counts()
    assert counts.add({"input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 1}) == Usage(12, 1, 7)
    assert counts.add({"output_tokens": 1}) is None
    assert counts.add({"input_tokens": None, "cache_read_input_tokens": 0, "output_tokens": 4}) == Usage(12, 4, 7)
    assert counts.add({"input_tokens": 6, "output_tokens": 9}) == Usage(13, 9, 7)
    assert counts.add({"output_tokens": 0}) == Usage(13, 0, 7), "what a refusal took back"
    late = Counts()
    assert late.add({"input_tokens": 0}) is None
    assert late.add({"input_tokens": 0, "output_tokens": 0}) is None
    assert late.add({"output_tokens": 1}) == Usage(0, 1), "input not known yet"
    assert late.add({"input_tokens": 7, "output_tokens": 2}) == Usage(7, 2), "input reported only at the end"


_json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=5,
)
_blocks = st.lists(
    st.one_of(
        st.builds(said, st.text(max_size=12)),
        st.builds(thought, st.text(max_size=5)),
        st.builds(used, st.just("f"), st.dictionaries(st.text(max_size=4), _json_values, max_size=3)),
    ),
    max_size=4,
)
_few = st.integers(0, 99)
_counts = st.fixed_dictionaries(
    {"input_tokens": _few, "output_tokens": st.integers(1, 99)},
    optional={
        "cache_read_input_tokens": _few,
        "cache_creation_input_tokens": _few,
        "output_tokens_details": st.fixed_dictionaries({"thinking_tokens": _few}),
    },
)


@st.composite
def _messages(draw: st.DrawFn) -> dict[str, Any]:
    """Messages of all shapes with unique tool call ids."""
    blocks = [block | ({"id": f"toolu_{at}"} if "id" in block else {}) for at, block in enumerate(draw(_blocks))]
    reasons = st.sampled_from(["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "pause_turn"])
    return message(*blocks, stop=draw(reasons), usage=draw(_counts))


@given(_messages(), st.integers(1, 6), st.randoms(use_true_random=False))
def test_a_message_is_the_same_whole_and_streamed_in_any_pieces(
    document: dict[str, Any], size: int, chance: random.Random
) -> None:
    plain = outcome(decode_body, Blocks("x"), json.dumps(document).encode())
    data = bytes_of(sse(*events_of(document, size)))
    assert outcome(read_streamed, Blocks("x"), data) == plain
    cuts = sorted(chance.sample(range(len(data)), min(20, len(data))))
    pieces = [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]
    assert outcome(read_streamed, Blocks("x"), *filter(None, pieces)) == plain
    if isinstance(plain, str):
        assert plain.startswith("malformed")
        assert not any(block["type"] in ("text", "tool_use") for block in document["content"])


# --- generated content

CONTENT_ENDS = {
    "stop": "STOP",
    "length": "MAX_TOKENS CONTINUATION",
    "content_filter": "SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII ESCALATION MODEL_ARMOR IMAGE_SAFETY "
    "IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION",
}
CONTENT_FAULTS = {
    "malformed": "MALFORMED_FUNCTION_CALL MALFORMED_RESPONSE UNEXPECTED_TOOL_CALL TOO_MANY_TOOL_CALLS NO_IMAGE",
    "request": "LANGUAGE MISSING_THOUGHT_SIGNATURE",
    "auth": "PUP_LIMITED_DISABLED",
    "truncated": "OTHER IMAGE_OTHER FINISH_REASON_UNSPECIFIED",
}
CANARY = "canary in the prompt"
CALLS = [called("f", {"a": [1, 2.5]}, "x1"), called("g"), called("g", {"b": None}), called("h", {}, "x1")]
MUSED = {"text": "hm", "thought": True}
BLOCKED = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 9}}
INPUT, THOUGHT = {"promptTokenCount": 9}, {"promptTokenCount": 9, "candidatesTokenCount": 2, "thoughtsTokenCount": 5}


def ended(word: str, *parts: Any, usage: Any = None) -> dict[str, Any]:
    """A document with any finish reason."""
    document = generated(*parts, finish="STOP", usage=usage)
    document["candidates"][0]["finishReason"] = word
    return document


def in_both(document: dict[str, Any]) -> tuple[Answer, Answer]:
    return of_json(document), google.events(document)


def with_second(document: dict[str, Any]) -> dict[str, Any]:
    second = {"index": 1, "content": {"parts": [{"text": "second"}]}, "finishReason": "OTHER"}
    document["candidates"].append(second)
    return checked(document)


def function(**fields: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [{"functionCall": fields}]}}]}


CONTENT: dict[str, Row] = {
    "calls get unique ids": gives(Delta("so "), ToolDelta(0, '{"a":[1,2.5]}', "x1", "f"),
        ToolDelta(1, "{}", "call_1", "g"), ToolDelta(2, '{"b":null}', "call_2", "g"), ToolDelta(3, "{}", "x1_3", "h"),
        Finish("tool_calls"),
        of=(google.events(generated("so "), *map(generated, CALLS), generated(finish="STOP")),
            google.whole("so ", *CALLS, usage=None))),
    **{f"it ends with {word}": gives(Delta("half"), TOLD, Finish(common),
            of=(google.whole("half", finish=word),
                google.events(generated("half"), generated(finish=word, usage=google.USAGE)))) for common,
        words in CONTENT_ENDS.items() for word in words.split()},
    "an unknown word": gives(Delta("x"), Finish("A_NEW_REASON"), of=in_both(ended("A_NEW_REASON", "x"))),
    "no word": gives(Delta("x"), Finish("other"), of=in_both(ended(f"as you said: {CANARY}", "x"))),
    "empty, cut": gives(Finish("length"), of=in_both(generated(finish="MAX_TOKENS"))),
    "empty, filtered": gives(Finish("content_filter"), of=in_both(generated(finish="SAFETY"))),
    "the last reason counts": gives(Delta("a"), Delta("b"), TOLD, Finish("length"),
        of=google.events(generated("a", finish="STOP"), generated("b", finish="MAX_TOKENS", usage=google.USAGE))),
    "usage when it changes": gives(Delta("a"), Usage(9, 0), Delta("b"), Usage(9, 7, reasoning=5), Finish("stop"),
        of=google.events(generated("a", usage=INPUT), generated("b", usage=INPUT), generated(usage=THOUGHT),
            generated(finish="STOP", usage=THOUGHT))),
    "the first candidate counts": gives(Delta("first"), Finish("stop"),
        of=of_json(with_second(generated("first", finish="STOP")))),
    "feedback without a block": gives(Delta("x"), TOLD, Finish("stop"),
        of=google.whole("x", promptFeedback={"safetyRatings": []})),
    "feedback beside a candidate": gives(Delta("x"), TOLD, Finish("stop"),
        of=google.whole("x", promptFeedback={"blockReason": "OTHER"})),
    "a blocked prompt": fails("refused", Usage(9, 0), of=in_both(checked(BLOCKED))),
    "no reason": fails("truncated", of=google.whole("x", finish=None, usage=None)),
    "no content": fails("malformed", of=of_json({"candidates": [{"finishReason": "STOP"}]})),
    "no parts": fails("malformed", of=in_both(generated(finish="STOP"))),
    "empty text": fails("malformed", of=of_json(generated("", finish="STOP"))),
    "thoughts alone": fails("malformed", of=of_json(generated(MUSED, finish="STOP"))),
    "a call without a name": fails("malformed", of=of_json(function(args={}))),
    "arguments that are none": fails("malformed", of=of_json(function(name="f", args="{}"))),
}  # fmt: skip


@table("row", CONTENT.values(), ids=CONTENT)
def test_generated_content_is_read(row: Row) -> None:
    check(partial(GeneratedContent, "google"), row)


def test_finish_reasons_without_an_answer_are_faults_after_the_usage() -> None:
    known = {word for words in (*CONTENT_ENDS.values(), *CONTENT_FAULTS.values()) for word in words.split()}
    assert {reason.value for reason in FinishReason} == known
    for kind, words in CONTENT_FAULTS.items():
        for word in words.split():
            for answer in in_both(ended(word, usage=google.USAGE)):
                came, fault = came_from(GeneratedContent("google"), answer)
                assert fault is not None
                assert (came, fault.kind, fault.status) == ([TOLD], kind, 200)
                assert fault.message == f"google broke off with {word!r}"


def test_the_reason_of_a_blocked_prompt_is_shown_if_there_is_one() -> None:
    for feedback, shown in (
        (BLOCKED, "google refused the prompt: prohibited_content"),
        ({"promptFeedback": {"blockReason": "BLOCKED_REASON_UNSPECIFIED"}}, "google refused the prompt"),
    ):
        fault = came_from(GeneratedContent("google"), google.events(feedback))[1]
        assert fault is not None
        assert fault.message == shown


def test_thoughts_are_not_output_and_unknown_parts_are_signs_of_life() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    image, signed = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}, {"text": "", "thoughtSignature": "AAAA"}
    answer = google.events(
        generated(MUSED), generated(code), generated(image), '{"candidates": [{"content": {"parts": [{"new": 1}]}}]}',
        generated("so", MUSED), generated(signed, finish="STOP"),
    )  # fmt: skip
    assert all_from(GeneratedContent("google"), answer)[0] == [
        Thought("hm"), *[Delta("")] * 3, Delta("so"), Thought("hm"),
        Thought(item={"thoughtSignature": "AAAA", "at": [2, 0]}), Finish("stop"),
    ]  # fmt: skip
    reader = GeneratedContent("google")
    reader.add(SseEvent(json.dumps(generated("a", "b"))))
    assert [msgspec.structs.asdict(chunk) for chunk in reader.chunks] == [{"text": "a"}, {"text": "b"}]


CONTENT_USAGE: list[tuple[dict[str, Any], Usage | None]] = [
    ({"promptTokenCount": 100, "candidatesTokenCount": 20}, Usage(100, 20)),
    ({"promptTokenCount": 100}, Usage(100, 0)),
    ({"promptTokenCount": 100, "candidatesTokenCount": 20, "thoughtsTokenCount": 15, "totalTokenCount": 135},
     Usage(100, 35, reasoning=15)),
    ({"promptTokenCount": 100, "candidatesTokenCount": 20, "cachedContentTokenCount": 60}, Usage(100, 20, cached=60)),
    ({"promptTokenCount": 100, "cachedContentTokenCount": 999}, Usage(100, 0, cached=100)),
    ({"promptTokenCount": 100, "cachedContentTokenCount": 40,
         "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 30}, {"modality": "AUDIO", "tokenCount": 70}, "x"],
         "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 40}]}, Usage(100, 0, cached=40, audio=30)),
    ({"promptTokenCount": 9, "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 70}]}, Usage(9, 0, audio=9)),
    ({"promptTokenCount": 9, "promptTokensDetails": {"modality": "AUDIO"}}, Usage(9, 0)),
    ({"promptTokenCount": 100, "thoughtsTokenCount": "x"}, None),
    ({"promptTokenCount": 100, "toolUsePromptTokenCount": -1}, None),
    ({"promptTokenCount": 100, "toolUsePromptTokenCount": 30, "candidatesTokenCount": 1}, Usage(130, 1)),
]  # fmt: skip


def test_usage_of_content_counts_thoughts_as_output_and_the_cache_as_input() -> None:
    assert [(told, read_google(told)) for told, _ in CONTENT_USAGE] == CONTENT_USAGE


def test_an_error_in_a_stream_of_content_comes_after_the_chunks_before_it() -> None:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.074824224s"}
    errors: list[tuple[dict[str, Any], str, float | None]] = [
        ({"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded."}, "server", None),
        ({"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [delay]}, "rate_limited", 34.074824224),
        ({"status": "INTERNAL"}, "server", None),
    ]
    for error, kind, wait in errors:
        answer = google.events(generated("half"), {"error": error, "usageMetadata": google.USAGE})
        came, fault = came_from(GeneratedContent("google"), answer)
        assert fault is not None
        assert came == [Delta("half"), TOLD]
        assert (fault.kind, fault.retry_after, fault.answered) == (kind, wait, True)


_texts = st.text(min_size=1, max_size=12)
_parts = st.lists(
    _texts
    | _texts.map(lambda text: {"text": text, "thought": True})
    | st.builds(called, names, st.none() | objects, st.none() | names),
    max_size=6,
)
_content_counts = st.fixed_dictionaries(
    {"promptTokenCount": st.integers(1, 99), "candidatesTokenCount": _few},
    optional={"thoughtsTokenCount": _few, "cachedContentTokenCount": _few},
)


@given(_parts, _content_counts, st.sampled_from(["STOP", "MAX_TOKENS", "SAFETY", "OTHER"]), st.integers(1, 4))
def test_content_is_the_same_whole_and_streamed(
    parts: list[Any], usage: dict[str, int], finish: str, step: int
) -> None:
    document = generated(*parts, finish=finish, usage=usage)
    pieces = [generated(*parts[at : at + step], usage={"promptTokenCount": 1}) for at in range(0, len(parts), step)]
    streamed = bytes_of(google.events(*pieces, generated(finish=finish, usage=usage)))
    plain = outcome(decode_body, GeneratedContent("google"), json.dumps(document).encode())
    assert outcome(read_streamed, GeneratedContent("google"), streamed) == plain


# --- the tier that served

TIERS: list[tuple[Any, str]] = [
    ("default", "default"), ("flex", "flex"), ("priority", "priority"), ("on_demand", "default"), ("fast", "priority"),
    ("scale", ""), (None, ""), (5, ""), ("standard", "default"), ("batch", ""),
]  # fmt: skip


def test_usage_names_the_tier_that_served_in_our_words() -> None:
    for word, tier in TIERS:
        field = {"service_tier": word}
        used_up = anthropic.COUNTED | field
        answers: list[tuple[Reader, Answer]] = [
            (Completion("x"), whole("x", **field)),
            (Completion("x"), events(delta("x") | field, delta(finish="stop"), USAGE)),
        ]
        if word in ("standard", "priority", "batch"):  # what Anthropic's types know; Google says it in a header
            answers.append((Blocks("x"), anthropic.answer(message(said("x"), usage=used_up), stream=False)))
            named = GeminiProvider("k")._reader(call(), {"x-gemini-service-tier": word})
            answers.append((named, google.whole("x")))
        for reader, answer in answers:
            assert Usage(9, 3, tier=tier) in came_from(reader, answer)[0]
