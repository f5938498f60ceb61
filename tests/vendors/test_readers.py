"""Answers as real servers send them, read by every protocol's reader and by the record of an attempt. The letter of a
row is its kind: A finish reasons, B usage, D halves of characters, E numbering of tool calls, J the last event."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import CallableProvider, Model, PatternGuardrail, Pricing, Router
from routewright._core.attempts.record import Attempt
from routewright._core.routing.plan import Leg
from routewright.backends.providers.answer import Function, Piece, Reader, ToolCalls, decode_body
from routewright.backends.providers.anthropic import Blocks
from routewright.backends.providers.gemini import GeneratedContent
from routewright.backends.providers.openai import Completion
from routewright.backends.providers.responses import ResponseItems
from routewright.errors import ProviderFault
from routewright.wire import Delta, Finish, TokenBounds, Usage
from tests.backends.provider_calls import read_streamed
from tests.engine.scripted_router import House
from tests.tables import table

pytestmark = pytest.mark.anyio
PROMPT = TokenBounds(90, 110, 100)
"""Estimated at 100 tokens."""
LONG = "word " * 200
"""Estimated at more than 100 tokens."""
EM = "\U0001f600"


class Whole(NamedTuple):
    """A collected answer."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reason: str | None = "stop"
    thought: str = ""


class Bill(NamedTuple):
    """Its tokens; None for estimated ones."""

    input: int | None
    output: int | None


def collect(chunks: Iterable[Any]) -> Attempt:
    attempt = Attempt(1, Leg("x/m", "x"), None)
    for chunk in chunks:
        attempt.take(chunk)
    return attempt


def whole_of(attempt: Attempt) -> Whole:
    calls = tuple((call.function.name, call.function.arguments) for call in attempt.tool_calls or ())
    thoughts = "".join(thought.text for thought in attempt.thoughts or ())
    return Whole(attempt.output, calls, attempt.finish_reason, thoughts)


def bill_of(attempt: Attempt) -> Bill:
    """Tokens; estimated input is 100, estimated output is never told as 3."""
    usage = attempt.settle(PROMPT)
    assert usage.input > 0
    return Bill(
        None if usage.input == 100 else usage.input,
        None if attempt.usage_estimated and usage.output != 3 else usage.output,
    )


def read(reader: Reader, *pieces: bytes) -> Whole | str:
    """An answer, or the kind of its fault."""
    try:
        return whole_of(collect(read_streamed(reader, *pieces)))
    except ProviderFault as fault:
        return str(fault.kind)


def sse(*events: Any, end: bytes = b"\n\n") -> bytes:
    """Events of JSON, or of bytes that are not."""
    datas = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return b"\n\n".join(b"data: " + data for data in datas) + end


DONE = b"[DONE]"


# --- chat completions


def chat() -> Completion:
    return Completion("x")


def delta(content: str | None = None, finish: Any = None, **more: Any) -> dict[str, Any]:
    fields = ({} if content is None else {"content": content}) | more
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(
    index: Any = None, arguments: Any = None, id: Any = None, name: Any = None, finish: Any = None
) -> dict[str, Any]:
    """A piece of a tool call, without the fields that are None."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fields = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    return delta(finish=finish, tool_calls=[fields | {"function": function}])


def counts(prompt: Any = 9, output: Any = 3, **more: Any) -> dict[str, Any]:
    fields = {"prompt_tokens": prompt, "completion_tokens": output} | more
    return {"choices": [], "usage": {name: value for name, value in fields.items() if value != "missing"}}


def begin(index: int | None, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def piece(index: int, **fields: Any) -> dict[str, Any]:
    kind = {"text": "text_delta", "thinking": "thinking_delta", "partial_json": "input_json_delta"}[next(iter(fields))]
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind} | fields}


def stop(reason: Any, **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def started(**usage: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"usage": usage}}


STOPPED = {"type": "message_stop"}
TEXT = {"type": "text", "text": ""}


def blocks() -> Blocks:
    return Blocks("x")


def content(*parts: Any, finish: str | None = None, usage: Any = None) -> dict[str, Any]:
    listed = [{"text": part} if isinstance(part, str) else part for part in parts]
    candidate = {"content": {"parts": listed}} | ({} if finish is None else {"finishReason": finish})
    return {"candidates": [candidate]} | ({} if usage is None else {"usageMetadata": usage})


def gemini() -> GeneratedContent:
    return GeneratedContent("x")


def tokens(**fields: Any) -> dict[str, Any]:
    return {"candidates": [], "usageMetadata": fields}


ROWS: list[Any] = [
    # --- A
    pytest.param(chat, [delta("one ", "stop"), delta("two ", "stop"), delta("three", "stop"), DONE],
        Whole("one two three"), id="A one-api: stop with every piece"),
    pytest.param(chat, [delta("one ", "stop"), delta("two", "stop")], Whole("one two"),
        id="A local servers: and without a mark"),
    pytest.param(chat, [delta("", "stop"), delta("one "), delta("two"), DONE], Whole("one two"),
        id="A gateways: stop with an empty first piece"),
    pytest.param(chat, [delta("", "stop", role="assistant"), delta("one"), delta("", "length"), DONE],
        Whole("one", reason="length"), id="A gateways: another one at the end"),
    pytest.param(chat, [delta("hi", "stop"), call(0, '{"x": 1}', "a", "f"), DONE],
        Whole("hi", (("f", '{"x": 1}'),), "tool_calls"), id="A SGLang: stop, then a tool call"),
    pytest.param(chat,
        [call(0, "", "a", "f", "tool_calls"), call(0, '{"x"', finish="tool_calls"),
            call(0, ": 1}", finish="tool_calls"), DONE], Whole("", (("f", '{"x": 1}'),), "tool_calls"),
        id="A Qwen: tool_calls with every piece of the arguments"),
    pytest.param(chat, [delta("a", "length"), delta("b"), delta("", "stop"), DONE], Whole("ab"),
        id="A any: length, more, stop"),
    pytest.param(chat, [delta("a"), delta("b", "length"), delta("", "stop"), DONE], Whole("ab", reason="length"),
        id="A new-api: its own stop after the vendor's length"),
    pytest.param(chat, [delta("a", "length"), delta("b", "length"), delta("", "stop"), DONE],
        Whole("ab", reason="length"), id="A new-api: its own stop after length with every piece"),
    pytest.param(chat, [delta("a", "stop"), delta("", "length"), DONE], Whole("a", reason="length"),
        id="A any: stop, then length"),
    pytest.param(chat, [delta("a", "null"), delta("b", "None"), delta("", ""), delta("", "stop"), counts(), DONE],
        Whole("ab"), id="A Alibaba: the word null until the end"),
    pytest.param(chat, [delta("a"), delta("", "stop"), delta("", "null"), DONE], Whole("a"),
        id="A Alibaba: null after the end"),
    pytest.param(chat, [delta("a", "null"), DONE], "truncated", id="A Alibaba: null alone"),
    pytest.param(chat, [delta("a", "error"), delta("b"), delta("", "stop"), DONE], "truncated",
        id="A OpenRouter: an error inside"),
    pytest.param(chat, [delta("a", "stop"), delta("b", "abort"), DONE], "truncated", id="A vLLM: abort after stop"),
    pytest.param(chat, [delta("a", "stop"), {"choices": [], "error": {"message": "boom"}}], "malformed",
        id="A any: error after stop"),
    pytest.param(chat, [delta("a", "content_filter"), delta("", "stop"), DONE], Whole("a", reason="content_filter"),
        id="A Azure: filtered, then stop"),
    pytest.param(blocks,
        [started(input_tokens=9), begin(0, TEXT), piece(0, text="one "), stop("end_turn"), piece(0, text="two"),
            begin(1, {"type": "tool_use", "id": "a", "name": "f", "input": {}}), piece(1, partial_json='{"x": 1}'),
            {"type": "content_block_stop", "index": 1}, STOPPED], Whole("one two", (("f", '{"x": 1}'),), "tool_calls"),
        id="A proxies of Anthropic: blocks after an early reason"),
    pytest.param(blocks,
        [begin(0, TEXT), stop("end_turn"), piece(0, text="a"), stop("max_tokens"), stop(None), STOPPED],
        Whole("a", reason="length"), id="A proxies of Anthropic: a second reason"),
    pytest.param(blocks,
        [begin(0, {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}), stop("tool_use"), STOPPED],
        Whole("", (("f", '{"x":1}'),), "tool_calls"), id="A proxies of Anthropic: a block without its end"),
    pytest.param(blocks, [begin(0, TEXT), piece(0, text="a"), stop("end_turn"), DONE], Whole("a"),
        id="A proxies: [DONE]"),
    pytest.param(blocks,
        [begin(0, {"type": "tool_use", "id": "a", "name": "f", "input": '{"x": 1}'}), stop("tool_use"), STOPPED],
        Whole("", (("f", '{"x": 1}'),), "tool_calls"), id="C claude-code-proxy: an input that is a text"),
    pytest.param(chat, [b"", delta("a"), b" ", delta("b"), b"null", delta("", "stop"), b"", DONE], Whole("ab"),
        id="A AgentRouter, gateways: events of null or nothing between the pieces"),
    pytest.param(blocks, [b"", begin(0, TEXT), b"", piece(0, text="a"), stop("end_turn"), b"", STOPPED], Whole("a"),
        id="A proxies of Anthropic: empty events"),
    pytest.param(gemini, [b"", content("a"), b"", content("b", finish="STOP"), b""], Whole("ab"), id="A Gemini: too"),
    pytest.param(gemini,
        [content(finish="STOP"), content("a"), content("b", finish="STOP"), content(finish="MAX_TOKENS")],
        Whole("ab", reason="length"), id="A CLIProxyAPI: STOP with empty blocks"),
    pytest.param(gemini, [content("a", finish="STOP"), content("b")], Whole("ab"), id="A Gemini: STOP before the end"),
    pytest.param(gemini, [content("a", finish="FINISH_REASON_UNSPECIFIED"), content("b", finish="STOP"), DONE],
        Whole("ab"), id="A Gemini: unspecified until the end, and an end mark"),
    pytest.param(gemini, [content("a", finish="OTHER"), content("b", finish="STOP")], "truncated",
        id="A Gemini: OTHER"),
    # --- D
    pytest.param(chat, [delta("hello \ud83d"), delta("\ude00 bye"), delta("", "stop"), DONE], Whole(f"hello {EM} bye"),
        id="D Node gateways: a text cut by UTF-16 units"),
    pytest.param(chat,
        [delta("\ud83d"), counts(), delta(""), delta("\ude00\ud83d"),
            delta("\ude00", "stop", content_filter_results={}), DONE], Whole(EM * 2),
        id="D Node gateways: with usage between"),
    pytest.param(chat, [delta("a\ud83d"), delta("b\ude00", "stop"), DONE], Whole("a\ufffdb\ufffd"),
        id="D any: no other half"),
    pytest.param(chat, [delta("a\ud83d"), delta("", "stop"), DONE], Whole("a\ufffd"), id="D any: a half at the end"),
    pytest.param(chat, [delta("a\ud83d", "stop")], Whole("a\ufffd"), id="D any: a half at the end without a mark"),
    pytest.param(chat, [delta("a\ud83d"), call(0, "{}", "c", "f"), delta("\ude00", "stop"), DONE],
        Whole("a\ufffd\ufffd", (("f", "{}"),), "tool_calls"), id="D any: a tool call between"),
    pytest.param(chat,
        [delta(reasoning_content="hm \ud83d"), delta(reasoning_content="\ude00"), delta("a\ud83d"),
            delta("\ude00", "stop"), DONE], Whole(f"a{EM}", thought=f"hm {EM}"), id="D Node gateways: reasoning"),
    pytest.param(chat, [delta(reasoning_content="hm \ud83d"), delta("\ude00", "stop"), DONE],
        Whole("\ufffd", thought="hm \ufffd"), id="D any: halves of two texts"),
    pytest.param(chat,
        [call(0, '{"x": "\ud83d', "a", "f"), call(1, '{"y": "\ud83d', "b", "g"), call(0, '\ude00"}'),
            call(1, '\ude00"}'), delta(finish="tool_calls"), DONE],
        Whole("", (("f", f'{{"x": "{EM}"}}'), ("g", f'{{"y": "{EM}"}}')), "tool_calls"),
        id="D Node gateways: arguments, interleaved"),
    pytest.param(chat, [call(0, "{}", "\ud83d", "f\ud83d"), delta(finish="tool_calls"), DONE],
        Whole("", (("f\ufffd", "{}"),), "tool_calls"), id="D any: a tool's name"),
    pytest.param(chat, [delta("a") | {"logprobs": [{"token": "\ud83d"}]}, delta("b", "stop") | {"x": "\ude00"}, DONE],
        Whole("ab"), id="D vLLM: logprobs"),
    pytest.param(chat, [b'{"choices": [{"delta": {"content": "a"}, "logprobs": NaN, "finish_reason": "stop"}]}', DONE],
        Whole("a"), id="D vLLM: NaN in a field nobody reads"),
    pytest.param(chat,
        [b'{"choices": [{"delta": {"content": "hi \xf0\x9f"}}]}', b'{"choices": [{"delta": {"content": "\x98\x80!"}}]}',
            delta("", "stop"), DONE], Whole(f"hi {EM}!"), id="D llama.cpp: a text cut by bytes"),
    pytest.param(chat, [b'{"choices": [{"delta": {"content": "\xed\xa0 \xff"}, "finish_reason": "stop"}]}', DONE],
        Whole("\ufffd\ufffd \ufffd"), id="D bytes that are no UTF-8"),
    pytest.param(blocks,
        [begin(0, {"type": "thinking", "thinking": ""}), piece(0, thinking="hm \ud83d"),
            piece(0, thinking="\ude00\ud83d"), {"type": "content_block_stop", "index": 0}, begin(1, TEXT),
            piece(1, text="a \ud83d"), {"type": "ping"}, piece(1, text="\ude00"),
            begin(2, {"type": "tool_use", "id": "a", "name": "f"}), piece(2, partial_json='{"x": "\ud83d'),
            piece(2, partial_json='\ude00"}'), stop("tool_use"), STOPPED],
        Whole(f"a {EM}", (("f", f'{{"x": "{EM}"}}'),), "tool_calls", f"hm {EM}\ufffd"),
        id="D proxies of Anthropic: thought, text and arguments"),
    pytest.param(gemini,
        [content("a \ud83d"), content("\ude00", {"text": "hm \ud83d", "thought": True}, finish="STOP")],
        Whole(f"a {EM}", thought="hm \ufffd"), id="D proxies of Gemini: text and thought"),
]  # fmt: skip


@table(("reader", "events", "expected"), [row for row in ROWS if not str(row.id).startswith("D")])
def test_the_last_finish_reason_counts(reader: Any, events: list[Any], expected: Whole | str) -> None:
    check(reader, events, expected)


@table(("reader", "events", "expected"), [row for row in ROWS if str(row.id).startswith("D")])
def test_halves_of_a_character_are_joined(reader: Any, events: list[Any], expected: Whole | str) -> None:
    check(reader, events, expected)


def check(reader: Callable[[], Reader], events: list[Any], expected: Whole | str) -> None:
    body = sse(*events)
    assert read(reader(), body) == expected
    assert read(reader(), *(body[at : at + 1] for at in range(len(body)))) == expected


# --- D, in one document

DOCUMENTS: list[Any] = [
    pytest.param(chat,
        {"choices": [{"message": {"content": "a\ud83d\ude00\ud83d", "reasoning_content": "\ude00"},
                    "finish_reason": "stop"}]}, Whole(f"a{EM}\ufffd", thought="\ufffd"), id="D vLLM, plain"),
    pytest.param(blocks,
        {"content": [{"type": "thinking", "thinking": "\ud83d"}, {"type": "text", "text": "a\ud83d"}],
            "stop_reason": "end_turn"}, Whole("a\ufffd", thought="\ufffd"), id="D Anthropic, plain"),
    pytest.param(gemini, content("a\ud83d", "\ude00", finish="STOP"), Whole(f"a{EM}"), id="D Gemini, plain"),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "document", "expected"), DOCUMENTS)
def test_halves_in_a_document_are_no_fault(reader: Callable[[], Reader], document: Any, expected: Whole) -> None:
    assert whole_of(collect(decode_body(reader(), json.dumps(document).encode()))) == expected


def test_halves_in_arguments_that_are_objects_are_joined() -> None:
    arguments = {"x": "\ud83d", "y": "\ud83d\ude00"}
    answers: list[tuple[Reader, list[Any]]] = [
        (chat(), [call(0, arguments, "a", "f"), delta(finish="stop"), DONE]),
        (
            blocks(),
            [begin(0, {"type": "tool_use", "id": "a", "name": "f", "input": arguments}), stop("tool_use"), STOPPED],
        ),
        (gemini(), [content({"functionCall": {"name": "f", "args": arguments}}, finish="STOP")]),
    ]
    for reader, events in answers:
        whole = read(reader, sse(*events))
        assert isinstance(whole, Whole)
        assert json.loads(whole.calls[0][1]) == {"x": "\ufffd", "y": EM}


def completed(*output: Any, **usage: Any) -> dict[str, Any]:
    response = {"status": "completed", "output": list(output), "usage": usage}
    return {"type": "response.completed", "response": response}


def test_the_responses_api_is_read_alike() -> None:
    def said(text: str) -> dict[str, Any]:
        return {"type": "response.output_text.delta", "output_index": 0, "delta": text}

    text = {"type": "message", "content": [{"type": "output_text", "text": f"a{EM}" + LONG}]}
    for end in (b"", b"\n", b"\n\n"):
        for usage, bill in (
            ({"input_tokens": 0, "output_tokens": 0}, Bill(None, None)),
            ({"input_tokens": 9}, Bill(9, None)),
        ):
            events = [said("a\ud83d"), said("\ude00" + LONG), completed(text, **usage)]
            attempt = collect(read_streamed(ResponseItems("x"), sse(*events, end=end)))
            assert (attempt.output, attempt.finish_reason, bill_of(attempt)) == (f"a{EM}{LONG}", "stop", bill)
    failed = {"type": "response.failed", "response": {"status": "failed", "error": {"message": "no \ud83d"}}}
    assert read(ResponseItems("x"), sse(failed)) == "malformed"


def test_an_error_with_a_half_character_is_classified() -> None:
    event = {"error": {"code": "rate_limit_exceeded", "message": "no \ud83d"}}
    for body in (sse(event), b"event: error\n" + sse(event)):
        fault = came_from_stream(chat(), body)
        assert (fault.kind, fault.body.isascii()) == ("rate_limited", True)


def test_an_error_may_stand_in_fields_of_its_own() -> None:
    fields = {"error_type": "BadRequestError", "error_message": "This model's maximum context length is 163840 tokens."}
    choices: list[Any] | None
    for choices in (None, []):  # DeepInfra, Venice
        assert read(chat(), sse({"id": "c", "choices": choices} | fields, DONE)) == "context_overflow"
    assert read(chat(), sse(delta("a", "stop") | {"error_type": None, "error_message": ""}, DONE)) == Whole("a")


def came_from_stream(reader: Reader, body: bytes) -> ProviderFault:
    with pytest.raises(ProviderFault) as caught:
        read_streamed(reader, body)
    return caught.value


# --- B

SAID = delta(LONG, "stop")
GEMINI = content(LONG, finish="STOP")
BILLS: list[Any] = [
    pytest.param(chat, [SAID, counts(), DONE], Bill(9, 3), id="B OpenAI: as it should be"),
    pytest.param(chat, [SAID, counts(0, 0), DONE], Bill(None, None), id="B llama.cpp: 0/0"),
    pytest.param(chat, [SAID, counts(), counts(0, 0), DONE], Bill(9, 3), id="B one-api: zeros after the real usage"),
    pytest.param(chat, [counts(0, 0), SAID, counts(), DONE], Bill(9, 3), id="B DeepSeek: zeros before the real usage"),
    pytest.param(chat, [SAID | counts(0, 0) | {"choices": SAID["choices"]}, counts(), DONE], Bill(9, 3),
        id="B Kimi: beside"),
    pytest.param(chat, [SAID, counts(9, 0), DONE], Bill(9, None), id="B any: output 0"),
    pytest.param(chat, [SAID, counts(), counts(9, 0), DONE], Bill(9, 3), id="B any: output 0 after the real one"),
    pytest.param(chat, [SAID, counts(9, "missing"), DONE], Bill(9, None), id="B any: no output"),
    pytest.param(chat, [SAID, counts(0, 3), DONE], Bill(None, 3), id="B TGI: input 0"),
    pytest.param(chat, [SAID, counts(), counts(0, 3), DONE], Bill(9, 3), id="B any: input 0 after the real one"),
    pytest.param(chat, [SAID, counts(None, 3), DONE], Bill(None, 3), id="B any: input null"),
    pytest.param(chat, [SAID, counts(9, 0, total_tokens=12), DONE], Bill(9, 3), id="B any: output in the total"),
    pytest.param(chat, [SAID, counts(0, 3, total_tokens=12), DONE], Bill(9, 3), id="B any: input in the total"),
    pytest.param(chat, [SAID, counts(0, 0, total_tokens=12), DONE], Bill(None, None), id="B any: the total alone"),
    pytest.param(chat, [SAID, counts("9", "3"), DONE], Bill(9, 3), id="B gateways: texts"),
    pytest.param(chat, [SAID, counts(9.0, "3.0"), DONE], Bill(9, 3), id="B gateways: fractions"),
    pytest.param(chat, [SAID, counts(-1, 3), DONE], Bill(None, 3), id="B any: input -1"),
    pytest.param(chat, [SAID, counts(0, 0, input_tokens=9, output_tokens=3), DONE], Bill(9, 3),
        id="B new-api: other names"),
    pytest.param(chat, [SAID, {"choices": [], "usage": None}, counts(), DONE], Bill(9, 3),
        id="B vLLM: null, then real"),
    pytest.param(chat,
        [{"choices": [SAID["choices"][0] | {"usage": {"prompt_tokens": 9, "completion_tokens": 3}}]}, DONE], Bill(9, 3),
        id="B Moonshot: in the choice"),
    pytest.param(chat,
        [delta("a") | {"usage": {"prompt_tokens": 9, "completion_tokens": 1}},
            SAID | {"usage": {"prompt_tokens": 9, "completion_tokens": 3}}, DONE], Bill(9, 3),
        id="B vLLM: sums with every piece"),
    pytest.param(chat, [call(0, '{"x": 1}', "a", "f"), delta(finish="stop"), counts(9, 0), DONE], Bill(9, None),
        id="B: a call"),
    pytest.param(chat, [call(0, "{}", "a", "f"), delta(finish="stop") | {"usage": counts()["usage"]}, DONE], Bill(9, 3),
        id="B Ollama: a call without arguments"),
    pytest.param(chat, [delta("", "stop"), counts(9, 0), DONE], Bill(9, 0), id="B OpenAI: an empty answer"),
    pytest.param(blocks,
        [started(input_tokens=0, output_tokens=0), begin(0, TEXT), piece(0, text=LONG),
            stop("end_turn", input_tokens=9, output_tokens=3), STOPPED], Bill(9, 3), id="B GLM: at the end"),
    pytest.param(blocks,
        [started(input_tokens=9, output_tokens=1), begin(0, TEXT), piece(0, text=LONG),
            stop("end_turn", input_tokens=0, output_tokens=0), STOPPED], Bill(9, None),
        id="B proxies of Anthropic: zeros at the end"),
    pytest.param(blocks, [begin(0, TEXT), piece(0, text=LONG), stop("end_turn", output_tokens=3), STOPPED],
        Bill(None, 3), id="B proxies of Anthropic: no input"),
    pytest.param(blocks,
        [started(input_tokens=0, output_tokens=0), begin(0, TEXT), piece(0, text=LONG), stop("end_turn"), STOPPED],
        Bill(None, None), id="B proxies of Anthropic: 0/0"),
    pytest.param(gemini, [GEMINI, tokens(promptTokenCount=9, candidatesTokenCount=3)], Bill(9, 3),
        id="B Gemini: as it should be"),
    pytest.param(gemini, [GEMINI, tokens(promptTokenCount=0, candidatesTokenCount=0)], Bill(None, None),
        id="B Gemini: 0/0"),
    pytest.param(gemini, [GEMINI, tokens(promptTokenCount=9)], Bill(9, None), id="B Gemini: no output"),
    pytest.param(gemini, [GEMINI, tokens(promptTokenCount=9, candidatesTokenCount=0)], Bill(9, None),
        id="B Gemini: output 0"),
    pytest.param(gemini, [GEMINI, tokens(candidatesTokenCount=3)], Bill(None, 3), id="B Gemini: no input"),
    pytest.param(gemini, [GEMINI, tokens(promptTokenCount=9, totalTokenCount=12)], Bill(9, 3),
        id="B Gemini: in the total"),
    pytest.param(gemini,
        [GEMINI | {"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 3}},
            tokens(promptTokenCount=0, candidatesTokenCount=0)], Bill(9, 3), id="B Gemini: zeros after the real usage"),
    pytest.param(gemini, [GEMINI, tokens(promptTokenCount="9", candidatesTokenCount=3.0)], Bill(9, 3),
        id="B Gemini: texts"),
]  # fmt: skip


@table(("reader", "events", "bill"), BILLS)
def test_zeros_are_not_reported(reader: Callable[[], Reader], events: list[Any], bill: Bill) -> None:
    assert bill_of(collect(read_streamed(reader(), sse(*events)))) == bill


def test_what_is_not_known_of_usage_is_estimated_and_so_is_its_cost() -> None:
    for usage, range_is_known in (
        (Usage(9, 3), True),
        (Usage(9, 0), False),
        (Usage(0, 3), False),
        (Usage(0, 0), False),
    ):
        attempt = collect([Delta(LONG), usage, Finish("stop")])
        attempt.settle(PROMPT)
        assert (attempt.unsure is None) is range_is_known
        assert attempt.usage_estimated is not range_is_known


# --- E

F1, F2, G2 = ("f", '{"x": "1"}'), ("f", '{"x": "2"}'), ("g", '{"x": "2"}')
CALLS: list[Any] = [
    pytest.param([call(0, F1[1], None, "f"), call(0, G2[1], None, "g")], (F1, G2),
        id="E gateways: index 0 for two calls without ids"),
    pytest.param([call(0, F1[1], None, "f"), call(0, F2[1], None, "f")], (F1, F2), id="E gateways: and with one name"),
    pytest.param(
        [call(0, "", None, "f"), call(0, '{"x":'), call(0, ' "1"}'), call(0, "", None, "f"), call(0, '{"x": "2"}')],
        (F1, F2), id="E gateways: and in pieces"),
    pytest.param([call(0, F1[1], "a", "f"), call(0, F2[1], "b", "f")], (F1, F2),
        id="E Ollama: index 0 for two calls with ids"),
    pytest.param([call(0, '{"x"', "a", "f"), call(0, '{"x"', "b", "g"), call(0, ': "1"}', "a"), call(0, ': "2"}', "b")],
        (F1, G2), id="E any: index 0 for two interleaved calls with ids"),
    pytest.param(
        [call(0, "", "a", "f"), call(1, '{"x":'), call(2, ' "1"}'), call(3, "", "b", "g"), call(4, '{"x": "2"}')],
        (F1, G2), id="E Nebius, Cerebras: a higher index with every piece"),
    pytest.param([call(0, "", "a", "f"), call(1, '{"x":', "a", "f"), call(2, ' "1"}', "a", "f")], (F1,),
        id="E any: and id and name"),
    pytest.param(
        [call(None, "", "a", "f"), call(None, '{"x":', "a"), call(None, ' "1"}', "a"), call(None, G2[1], "b", "g")],
        (F1, G2), id="E gateways: no index, the id with every piece"),
    pytest.param([call(None, '{"x":', "a", "f"), call(None, ' "1"}', "a", "f"), call(None, "", "a", "f"),
            call(None, G2[1], "b", "g")], (F1, G2), id="E Fireworks: no index, id and name with every piece"),
    pytest.param([call(None, '{"x"', "a", "f"), call(None, '{"x"', "b", "g"), call(None, ': "1"}', "a"),
            call(None, ': "2"}', "b")], (F1, G2), id="E any: no index, interleaved by ids"),
    pytest.param(
        [call(0, '{"x":', "a", "f"), call(0, ' "1"}', "a", "f"), call(0, "", "a", "f"), call(1, G2[1], "b", "g")],
        (F1, G2), id="E Fireworks: id and name with every piece"),
    pytest.param([call(0, "", None, "f"), call(0, '{"x":', None, "f"), call(0, ' "1"}', None, "f")], (F1,),
        id="E MiniMax at NVIDIA: the name with every piece"),
    pytest.param([call(None, '{"x":', None, "f"), call(None, ' "1"}', None, "f"), call(None, G2[1], None, "g")],
        (F1, G2), id="E any: nothing but the name with every piece"),
    pytest.param([call("0", '{"x":', "a", "f"), call("0", ' "1"}'), call("1", G2[1], "b", "g")], (F1, G2),
        id="E any: texts"),
    pytest.param([call(0, '{"x":', "a", "f"), call(1, '{"x":', "b", "g"), call(0, ' "1"}'), call(1, ' "2"}')], (F1, G2),
        id="E OpenAI: interleaved by index"),
    pytest.param([call(0, F1[1], "a", "f"), call(1, '{"x":'), call(1, ' "2"}', "b"), call(1, None, None, "g")],
        (F1, G2), id="E any: the name last"),
    pytest.param([call(0, {"x": "1"}, "a", "f"), call(1, {"x": "2"}, "b", "g")],
        (("f", '{"x":"1"}'), ("g", '{"x":"2"}')), id="E Ollama: objects"),
    pytest.param([call(0, "", "a", "f"), call(0, '{"x'), call(0, '{"x": "1'), call(0, F1[1])], (F1,),
        id="E DeepSeek at Qianfan: all arguments so far with every piece"),
    pytest.param([call(0, '{"x":', "a", "f"), call(0, ' "1"}'), call(0, F1[1])], (F1,),
        id="E GLM: all arguments again at the end"),
    pytest.param([call(0, '{"x": ', "a", "f"), call(0, '{"x": 1}'), call(0, "}")], (("f", '{"x": {"x": 1}}'),),
        id="E OpenAI: an object that begins like the arguments"),
    pytest.param(
        [call(0, "{}", "a", "f"), call(0, '{"x":'), call(0, ' "1"}'), call(1, "{}", "b", "g"), call(1, G2[1], "b")],
        (F1, G2), id="E Bedrock's gateways, LiteLLM: {} before the arguments"),
    pytest.param([call(0, "", "a", "f"), call(0, "{}", "a", "f"), call(0, F1[1], "a", "f"), call(1, G2[1], "b", "g")],
        (F1, G2), id="E Gemini: {} before the arguments, with the name"),
    pytest.param([call(0, "{}", "a", "f"), call(0, ""), call(1, {}, "b", "g"), call(2, F1[1], "c", "f")],
        (("f", "{}"), ("g", "{}"), F1), id="E Ollama: {} alone"),
    pytest.param([call(0, "", "a", "get_"), call(0, "", None, "weather"), call(0, "{}")], (("get_weather", "{}"),),
        id="E any: a name in two pieces"),
    pytest.param([call(0, F1[1], "a", "f"), call(1, G2[1], "a", "g"), call(2, F1[1], "a", "f")], (F1, G2, F1),
        id="E any: one id for all"),
    pytest.param([delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}] * 2 + [
                    {"index": 0, "function": {"name": "g", "arguments": "{}"}}])], (("f", "{}"), ("g", "{}")),
        id="E any: the same call twice, in one piece"),
]  # fmt: skip


@table(("events", "calls"), CALLS)
def test_tool_calls_are_told_apart_in_any_numbering(events: list[Any], calls: tuple[tuple[str, str], ...]) -> None:
    assert read(chat(), sse(*events, delta(finish="stop"), DONE)) == Whole("", calls, "tool_calls")


def test_calls_of_a_document_are_one_for_one() -> None:
    for extra in ({}, {"index": 0}, {"id": "a"}, {"id": ""}, {"index": None, "id": None}):
        calls = [extra | {"function": {"name": "f", "arguments": arguments}} for arguments in ("", "{}", "{}", F1[1])]
        document = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
        attempt = collect(decode_body(chat(), json.dumps(document).encode()))
        assert [call.function.arguments for call in attempt.tool_calls or ()] == ["", "{}", "{}", F1[1]]
        assert len({call.id for call in attempt.tool_calls or ()}) == 4


def test_a_long_call_takes_linear_time() -> None:
    tools = ToolCalls()
    tools.add(Piece(0, "a", Function("f", '{"x": "')))
    began = time.process_time()
    for text in ["{", "}", '{"x', "{\\n"] * 25_000:
        tools.add(Piece(0, None, Function("f", text)))
        tools.add(Piece(0, None, Function(None, text)))
    assert time.process_time() - began < 3.0  # it takes a twentieth of that; where it is squared, a minute


# --- J

LAST: list[Any] = [
    pytest.param(chat, [delta("a"), delta("b", "stop")], Whole("ab"), id="J chat: the finish reason"),
    pytest.param(chat, [delta("a"), delta("", "stop"), counts()], Whole("a"), id="J chat: usage"),
    pytest.param(chat, [delta("a"), delta("", "stop"), DONE], Whole("a"), id="J chat: the end mark"),
    pytest.param(chat, [delta("a"), {"error": {"code": "rate_limit_exceeded"}}], "rate_limited", id="J chat: an error"),
    pytest.param(gemini, [content("a"), content("b", finish="STOP")], Whole("ab"), id="J Gemini: the finish reason"),
    pytest.param(blocks, [begin(0, TEXT), piece(0, text="a"), stop("end_turn"), STOPPED], Whole("a"),
        id="J Anthropic: the end"),
    pytest.param(blocks, [begin(0, TEXT), piece(0, text="a"), stop("end_turn")], Whole("a"),
        id="J Anthropic: the reason"),
]  # fmt: skip


@table("end", [b"", b"\n", b"\r", b"\r\n", b"\r\n\r\n"], ids=repr)
@table(("reader", "events", "expected"), LAST)
def test_a_stream_may_end_without_its_last_blank_line(
    reader: Callable[[], Reader], events: list[Any], expected: Whole | str, end: bytes
) -> None:
    body = sse(*events, end=end)
    assert read(reader(), body) == expected
    assert read(reader(), *(body[at : at + 1] for at in range(len(body)))) == expected


def test_a_stream_without_its_end_is_cut_off_anywhere() -> None:
    events = [delta("one"), delta("two"), delta("", "stop")]
    body = sse(*events, end=b"")
    for end in range(len(body)):
        assert read(chat(), body[:end]) == "truncated"
    assert read(chat(), body) == Whole("onetwo")


def test_usage_of_the_last_event_is_booked() -> None:
    chunks = read_streamed(chat(), sse(delta(LONG, "stop"), counts(), end=b""))
    assert bill_of(collect(chunks)) == Bill(9, 3)


def scripted(answer: list[Any]) -> Router:
    """A Router over a function."""
    model = Model(
        id="x/m", quality=0.5, pricing_per_1m=Pricing(1.0, 1.0), context_window=10_000, structured_output=True
    )
    return Router(providers=[CallableProvider(lambda call: answer, models=[model])])


async def test_zeros_of_a_provider_are_billed_by_an_estimate() -> None:
    costs = []
    for usage in ([], [Usage(0, 0)], [Usage(0, 0), Usage(0, 0)]):
        async with scripted([Delta(LONG), *usage, Finish("stop")]) as router:
            answer = await router.route("hi", budget={"maxCostUsd": 1.0})
        costs.append(answer.routing.cost_usd)
    assert costs[0] > 0.0001
    assert {*costs} == {costs[0]}


async def test_content_after_a_finish_behind_guardrails_is_a_fault() -> None:
    more: list[Any] = [Delta("one"), Finish("stop"), Delta("two"), Finish("stop")]
    for guardrails, output in (([], "onetwo"), ([PatternGuardrail("email")], "whole")):
        house = House([more] * 3, [[Delta("whole"), Finish("stop")]], guardrails=guardrails)
        assert (await house.router.route("hi", goal="quality")).output == output


# --- properties

_words = st.lists(st.sampled_from(["one ", "zwölf ", EM, "\u0930", "x"]), min_size=1, max_size=6)
_reasons = st.sampled_from([None, None, "", "null", "stop"])


class Oddities(NamedTuple):
    """What a server does otherwise."""

    early: list[str | None]
    """Finish reasons of the pieces before the last."""
    usage: list[tuple[int, int]]
    is_cut: bool
    """Characters are cut in two."""
    is_marked: bool
    """There is an end mark."""
    end: bytes
    at: int
    """Where the body is split."""
    is_reversed: bool
    """The fields of a document are in another order."""


_oddities = st.builds(
    Oddities,
    st.lists(_reasons, min_size=12, max_size=12),
    st.lists(st.sampled_from([(0, 0), (9, 0), (0, 3), (9, 3)]), max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n", b"\r\n", b""]),
    st.integers(1, 40),
    st.booleans(),
)


def units(text: str) -> list[str]:
    """Its UTF-16 units, in twos where that cuts a character."""
    data = text.encode("utf-16-le")
    cuts = [0, *range(2, len(data), 4), len(data)]
    return [data[start:end].decode("utf-16-le", "surrogatepass") for start, end in pairwise(cuts)]


def turned(value: Any) -> Any:
    """The value with all fields in reverse."""
    if isinstance(value, dict):
        return {key: turned(inner) for key, inner in reversed(value.items())}
    return [turned(inner) for inner in value] if isinstance(value, list) else value


def streamed(protocol: Any, texts: list[str], oddities: Oddities) -> list[Any]:
    """An answer of a text, a tool call without arguments and usage."""
    pieces = units("".join(texts)) if oddities.is_cut else texts
    early = iter(oddities.early * len(pieces))
    events: list[Any]
    if protocol is chat:
        events = [delta(text, next(early)) for text in pieces]
        events += [call(0, '{"x"', "a", "f", next(early)), call(0, ": 1}", finish=next(early)), delta("", "stop")]
        events += [counts(*usage) for usage in oddities.usage] + ([DONE] if oddities.is_marked else [])
    elif protocol is gemini:
        reasons = {"stop": "STOP", "null": "FINISH_REASON_UNSPECIFIED"}
        events = [content(text, finish=reasons.get(next(early) or "")) for text in pieces]
        events += [content({"functionCall": {"name": "f", "args": {"x": 1}}}), content(finish="STOP")]
        events += [tokens(promptTokenCount=usage[0], candidatesTokenCount=usage[1]) for usage in oddities.usage]
    else:
        events = [begin(0, TEXT)]
        for text in pieces:
            reason = next(early)
            events += [piece(0, text=text)] + (
                [] if reason is None else [stop({"stop": "end_turn"}.get(reason, reason))]
            )
        events += [
            begin(1, {"type": "tool_use", "id": "a", "name": "f", "input": {}}),
            piece(1, partial_json='{"x": 1}'),
        ]
        events += [stop("tool_use", input_tokens=usage[0], output_tokens=usage[1]) for usage in oddities.usage]
        events += [stop("tool_use")] + ([STOPPED] if oddities.is_marked else [])
    return [turned(event) if oddities.is_reversed else event for event in events]


@pytest.mark.parametrize("protocol", [chat, blocks, gemini], ids=["chat", "Anthropic", "Gemini"])
@given(_words, _oddities, st.integers(0, 400))
def test_an_answer_is_whole_and_billed_or_a_fault(
    protocol: Any, texts: list[str], oddities: Oddities, missing: int
) -> None:
    body = sse(*streamed(protocol, texts, oddities), end=oddities.end)
    pieces = [body[at : at + oddities.at] for at in range(0, len(body), oddities.at)]
    attempt = collect(read_streamed(protocol(), *pieces))
    assert attempt.output == "".join(texts)
    assert [json.loads(call.function.arguments) for call in attempt.tool_calls or ()] == [{"x": 1}]
    assert attempt.finish_reason == "tool_calls"
    usage = attempt.settle(PROMPT)
    reported = [{count[index] for count in oddities.usage} - {0} for index in (0, 1)]
    assert usage.input == (9 if reported[0] else 100)
    assert usage.output == 3 if reported[1] else usage.output > 0
    if not {"stop"} & {*oddities.early}:  # what is cut before its only reason is never an answer
        end = body.index({chat: b'"stop"', gemini: b"STOP"}.get(protocol, b'"stop_reason": "tool_use"'))
        assert read(protocol(), body[: max(end - missing, 0)]) in ("truncated", "malformed")
