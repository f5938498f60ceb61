"""The Responses API: how a body is translated, and the response and events it gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from routewright import Message, Params, Router, wire
from routewright._core.request.rules import complete_request
from routewright.errors import UpstreamFailed, ValidationFailed
from routewright.server.openai import envelope
from routewright.server.responses import ResponseCall, ResponseFrames, response_of
from routewright.server.vendor_requests import Directory
from routewright.testing import FakeClock
from tests.tables import table

from .clients import HI, raw, sandbox, sdk, site_of
from .test_stream import Breaking

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ROUTER = Router.sandbox()
KNOWN = Directory(ROUTER.model_names(), ROUTER.models, ROUTER.caller_extra)
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_current_weather",
    "description": "Get the current weather in a given location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["location", "unit"],
    },
}
BOSTON = '{"location":"Boston, MA","unit":"celsius"}'
THOUGHT = wire.Reasoning("google", [{"signature": "s"}], "Hm.")


def made(**fields: Any) -> tuple[wire.RouteRequest, ResponseCall]:
    reading = ResponseCall(KNOWN)
    request = reading.decode(json.dumps({"model": "gpt-4.1", "input": "Hi", **fields}).encode())
    return complete_request(request), reading


def chat(*items: Any, **fields: Any) -> list[Message]:
    return made(input=[*items], **fields)[0].messages


def refusal(**fields: Any) -> dict[str, Any]:
    reading = ResponseCall(KNOWN)
    with pytest.raises(ValidationFailed) as caught:
        complete_request(reading.decode(json.dumps({"model": "auto", "input": "Hi", **fields}).encode()))
    error: dict[str, Any] = json.loads(envelope(reading.in_words(caught.value, 0.0)))["error"]
    return error


# Requests, those of OpenAI's reference among them.


def test_every_honoured_field_is_translated() -> None:
    request, reading = made(
        instructions="Be brief.",
        max_output_tokens=70,
        temperature=0.5,
        top_p=0.9,
        text={"format": {"type": "json_schema", "name": "w", "schema": {"type": "object"}, "strict": True}},
        reasoning={"effort": "xhigh", "summary": "auto"},
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        service_tier="flex",
        include=["reasoning.encrypted_content"],
        store=False,
        truncation="disabled",
        stream_options={},
        metadata={"team": "blue"},
        prompt_cache_key="k",
        user="ann",
    )
    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": {"type": "object"}, "strict": True}}
    assert request.params == Params(
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=70,
        response_format=form,
        reasoning="max",
        parallel_tool_calls=False,
        service_tier="flex",
        extra={"openai": {"prompt_cache_key": "k", "user": "ann"}},
    )
    assert request.messages == [Message("system", "Be brief."), Message("user", "Hi")]
    assert request.models == ["openai/gpt-4.1"]
    assert (request.tool_choice, request.metadata) == ("required", {"team": "blue"})
    assert reading.ignored == set()


def test_a_format_without_a_schema_is_passed_on() -> None:
    assert made(text={"format": {"type": "json_object"}})[0].params == wire.Params(
        response_format={"type": "json_object"}, extra=None
    )


def test_the_parts_of_openais_reference_are_understood() -> None:
    (message,) = chat(
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "what is in these?"},
                {"type": "input_image", "image_url": "https://upload.example.com/boardwalk.jpg", "detail": "auto"},
                {"type": "input_file", "file_url": "https://www.example.com/letter.pdf"},
                {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"},
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            ],
        }
    )
    assert message.content == [
        wire.TextPart("what is in these?"),
        wire.ImagePart(wire.ImageUrl("https://upload.example.com/boardwalk.jpg", "auto")),
        wire.FilePart(wire.FileData("https://www.example.com/letter.pdf")),
        wire.FilePart(wire.FileData("data:application/pdf;base64,JVBERi0=", "a.pdf")),
        wire.AudioPart(wire.InputAudio("UklGRg==", "wav")),
    ]


def test_items_of_one_assistant_turn_become_one_message() -> None:
    call = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "f",
        "arguments": "{}",
        "status": "completed",
    }
    turns = chat(
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": THOUGHT.pack()},
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [_said("Wait.")]},
        call,
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": "Yes."},
        {"role": "developer", "content": "So?"},
    )
    calls = [wire.ToolCall(id, wire.FunctionCall("f", "{}")) for id in ("c1", "c2")]
    assert turns == [
        Message("user", "Hi"),
        Message("assistant", "Wait.", tool_calls=calls, reasoning=wire.Reasoning("google", [{"signature": "s"}])),
        Message("tool", "1", tool_call_id="c1"),
        Message("tool", "2", tool_call_id="c2"),
        Message("assistant", "No."),
        Message("assistant", "Yes."),
        Message("developer", "So?"),
    ]


def test_foreign_reasoning_is_left_out_and_listed_as_ignored() -> None:
    foreign = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAAB"}
    request, reading = made(
        input=[{"role": "user", "content": "Hi"}, foreign, {"role": "assistant", "content": "Yes."}]
    )
    assert [message.reasoning for message in request.messages] == [None, None]
    assert reading.ignored == {"encrypted_content"}


def _said(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


@table(
    ("choice", "ours"),
    [
        ("auto", "auto"),
        ("none", "none"),
        (
            {"type": "function", "name": "get_current_weather"},
            wire.NamedToolChoice(wire.FunctionName("get_current_weather")),
        ),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}, "required"),
    ],
)
def test_tool_choice_is_translated(choice: Any, ours: Any) -> None:
    request, reading = made(tools=[WEATHER, {"type": "function", "name": "f", "parameters": None}], tool_choice=choice)
    assert request.tool_choice == ours
    if ours == "required":
        assert [tool.name for tool in request.tools or ()] == ["f"]
    assert reading.ignored <= {"type"}


@table(
    ("fields", "param", "said"),
    [
        ({"input": None}, "input", "is missing"),
        ({"input": []}, "input", "at least one message"),
        ({"input": 5}, "input", "a string or an array"),
        ({"input": [{"role": "user", "content": [{"type": "video"}]}]}, "input[0].content[0].type", "'input_text'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
            "input[0].content[0].file_id",
            "no files are stored here",
        ),
        ({"input": [{"type": "item_reference", "id": "rs_1"}]}, "input[0].type", "send the whole chat"),
        (
            {"input": [{"type": "web_searches", "id": "ws_1"}]},
            "input[0].type",
            "supported: 'message', 'reasoning', calls of functions",
        ),
        (
            {"input": [{"role": "user", "content": "Hi"}, {"role": "user", "content": []}]},
            "input[1]",
            "at least one part",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", 'web_search = "disabled"'),
        (
            {"tool_choice": {"type": "web_search_preview"}},
            "tool_choice.type",
            "function, custom, allowed_tools",
        ),
        ({"metadata": {"x": "y" * 20_000}}, "metadata", "16384"),
        ({"routewright": {"gaol": 1}}, "routewright.gaol", "did you mean 'goal'"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole chat as 'input'"),
        ({"background": True}, "background", "'stream': true"),
    ],
)
def test_a_wrong_field_is_refused_at_its_path(fields: dict[str, Any], param: str, said: str) -> None:
    error = refusal(**fields)
    assert error["param"] == param
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"


def test_fields_without_a_meaning_are_listed_as_ignored() -> None:
    fields = {
        "store": True,
        "truncation": "auto",
        "max_tool_calls": 3,
        "top_logprobs": 2,
        "include": ["x", {}],
        "new": 1,
    }
    _, reading = made(**fields, background=False, service_tier="scale")
    assert reading.ignored == {*fields, "service_tier"}
    assert made(store=False, background=False, previous_response_id=None)[1].ignored == set()


# Responses.


def answer(**fields: Any) -> wire.RouteResponse:
    routing = wire.Routing("openai/gpt-4.1", [], "inline@2026-01-01", "", 0.0, 1.0, False, wire.Tokens(36, 87, 5))
    facts: dict[str, Any] = {
        "trace_id": "tr_01M8C6JWDD00NGVQYRM6K89MHN",
        "output": "Hi there! How can I assist you today?",
        "routing": routing,
        "usage": wire.WindowUsage(1, 1),
        "primary_model": "openai/gpt-4.1",
        "fallback_model": None,
        "cache_hit": False,
        "finish_reason": "stop",
    }
    return wire.RouteResponse(**facts | fields)


CALLS = [wire.ToolCall("call_1", wire.FunctionCall("get_current_weather", BOSTON))]


def test_a_response_is_as_the_sdk_reads_it() -> None:
    reading = made(tools=[WEATHER], metadata={"a": "b"}, temperature=0.5, reasoning={"effort": "low"})[1]
    told = TypeAdapter(Response).validate_python(response_of(answer(tool_calls=CALLS, reasoning=THOUGHT), reading.echo))
    assert [item.type for item in told.output] == ["reasoning", "message", "function_call"]
    assert (told.status, told.object, told.metadata, told.temperature) == ("completed", "response", {"a": "b"}, 0.5)
    assert told.usage is not None
    assert (told.usage.total_tokens, told.usage.input_tokens_details.cached_tokens) == (123, 5)
    assert told.reasoning is not None
    assert told.reasoning.effort == "low"
    assert told.tools[0].type == "function"


def test_the_output_can_be_sent_back_as_input() -> None:
    output = response_of(answer(output="", tool_calls=CALLS, reasoning=THOUGHT), {})["output"]
    result = {"type": "function_call_output", "call_id": "call_1", "output": "15"}
    request, reading = made(input=[{"role": "user", "content": "Hi"}, *output, result])
    assert request.messages[1] == Message(
        "assistant", None, tool_calls=CALLS, reasoning=wire.Reasoning("google", [{"signature": "s"}])
    )
    assert reading.ignored == set()


@table("reason", ["length", "budget"])
def test_a_truncated_answer_is_incomplete(reason: str) -> None:
    told = response_of(answer(finish_reason=reason), {})
    assert (told["status"], told["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


# Streams. The order of events is that of the examples in OpenAI's reference.

BEGUN = "created in_progress output_item.added"
ENDED = "output_item.done completed"
TEXT = f"{BEGUN} content_part.added {'output_text.delta ' * 2}output_text.done content_part.done {ENDED}".split()
PIECE = "function_call_arguments.delta "
CALL = f"{BEGUN} {PIECE * 3}function_call_arguments.done {ENDED}".split()
SUMMARY = "part.added text.delta text.done part.done".split()
REASONING = ["output_item.added", *(f"reasoning_summary_{step}" for step in SUMMARY), "output_item.done"]


def kinds_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def events_of(raw: bytes) -> Iterator[dict[str, Any]]:
    """Each as the SDK has it, too."""
    for number, event in enumerate(raw.decode().split("\n\n")[:-1]):
        name, data = (line.split(": ", 1)[1] for line in event.split("\n"))
        told = json.loads(data)
        EVENT.validate_python(told)
        assert (told["type"], told["sequence_number"]) == (name, number)
        yield told


def told_by(*events: Any) -> list[dict[str, Any]]:
    frames = begun()
    return [*events_of(b"".join(piece for event in events for piece in frames.events(event)))]


def begun() -> ResponseFrames:
    """The frames of a call that has begun, with neither a server nor a stream."""
    exchange: Any = SimpleNamespace(request_id="req_1", clock=FakeClock())
    stream: Any = SimpleNamespace(expect_text=lambda: None)
    prepared: Any = SimpleNamespace(stream=lambda: stream)
    frames = ResponseFrames(exchange, prepared, made()[1])
    frames.trace_id, frames.model = answer().trace_id, "openai/gpt-4.1"
    return frames


def _text(text: str) -> wire.OutputDelta:
    return wire.OutputDelta(1, wire.OutputData(text, 1))


def _piece(index: int, arguments: str, id: str = "", name: str = "") -> wire.ToolCallDelta:
    return wire.ToolCallDelta(1, wire.ToolCallData(index, id, name, arguments, 1))


def test_a_text_streams_as_in_the_reference() -> None:
    told = told_by(_text("Hi there! "), _text("How can I assist you today?"), wire.RouteCompleted(1, answer()))
    assert kinds_of(told) == TEXT
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == answer().output
    assert {event["item_id"] for event in told if "item_id" in event} == {told[2]["item"]["id"]}


def test_a_call_streams_as_in_the_reference() -> None:
    pieces = _piece(0, BOSTON[:9], "call_1", "get_current_weather"), _piece(0, BOSTON[9:])
    told = told_by(*pieces, wire.RouteCompleted(1, answer(output="", tool_calls=CALLS)))
    assert kinds_of(told) == CALL
    (item,) = told[-1]["response"]["output"]
    assert (item["call_id"], item["arguments"], item["status"]) == ("call_1", BOSTON, "completed")


def test_reasoning_streams_before_the_text() -> None:
    thought = wire.ReasoningDelta(1, wire.ReasoningData("Hm.", [{"signature": "s"}], "google", 1))
    told = told_by(thought, _text("Hi"), wire.RouteCompleted(1, answer(output="Hi", reasoning=THOUGHT)))
    assert kinds_of(told)[2:8] == REASONING
    assert [item["type"] for item in told[-1]["response"]["output"]] == ["reasoning", "message"]
    assert told[7]["item"]["encrypted_content"] == THOUGHT.pack()
    silent = told_by(
        wire.ReasoningDelta(1, wire.ReasoningData("", [{"a": 1}], "google", 1)),
        wire.RouteCompleted(1, answer(output="")),
    )
    assert kinds_of(silent)[2:4] == ["output_item.added", "output_item.done"]


def test_interleaved_calls_stay_apart() -> None:
    pieces = [_piece(0, "{", "a", "f"), _piece(1, "{", "b", "g"), _piece(0, "}"), _piece(1, "}"), _text("So.")]
    told = told_by(*pieces, wire.RouteCompleted(1, answer(output="So.")))
    output = told[-1]["response"]["output"]
    assert [(item.get("call_id"), item.get("arguments")) for item in output] == [("a", "{}"), ("b", "{}"), (None, None)]
    done = [event["output_index"] for event in told if event["type"] == "response.output_item.done"]
    assert done == [0, 1, 2]


def test_an_empty_answer_is_a_message_without_text() -> None:
    told = told_by(wire.RouteCompleted(1, answer(output="", finish_reason="length")))
    assert told[-1]["type"] == "response.incomplete"
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_a_stream_that_breaks_ends_with_an_error_that_the_sdk_raises() -> None:
    breaking = Breaking()
    site, told = site_of(breaking.provider), list[Any]()

    def read(stream: Any) -> None:
        for event in stream:
            told.append(event.type)
            if told[-1] == "response.output_text.delta":
                breaking.was_read.set()

    with sdk(site, site.key()) as own:
        stream = own.responses.create(model="auto", input="Hi", stream=True)
        with pytest.raises(openai.APIError, match="every attempt failed"):
            read(stream)
    assert told == [f"response.{kind}" for kind in TEXT[:5]]


def test_an_error_is_an_error_event_and_a_failed_response() -> None:
    lines = begun().error_frame(UpstreamFailed("no")).decode().split("\n")
    error, failed = (json.loads(line[6:]) for line in lines if line[:5] == "data:")
    assert (error["type"], error["code"], failed["type"]) == ("error", "router.upstream_failed", "response.failed")
    assert failed["sequence_number"] == error["sequence_number"] + 1
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"


def test_headers_and_errors_are_those_of_chat_completions() -> None:
    with raw(sandbox()) as client:
        whole = client.post("/responses", json={"model": "auto", "input": HI, "store": True})
        missing = client.post("/responses", json={"model": "nope", "input": HI})
        again = client.get(f"/responses/{whole.json()['id']}")
    assert whole.headers["X-Routewright-Ignored"] == "store"
    assert float(whole.headers["X-Routewright-Cost-Usd"]) > 0
    assert whole.json()["id"].removeprefix("resp_") == whole.headers["X-Routewright-Trace-Id"].removeprefix("tr_")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert (again.status_code, again.json()["error"]["type"]) == (404, "invalid_request_error")
    assert "responses are not stored" in again.json()["error"]["message"]
