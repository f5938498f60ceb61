"""How an answer is translated, whole and in blocks."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from routewright import wire
from routewright.errors import (
    BodyTooLarge,
    IdempotencyKeyReused,
    InsufficientBalance,
    InternalError,
    MethodNotAllowed,
    NoCandidates,
    NotFound,
    PermissionDenied,
    RateLimited,
    RequestTimedOut,
    RouterError,
    RouterTimeoutError,
    UpstreamFailed,
    ValidationFailed,
)
from routewright.server.anthropic import MessageCall, MessageFrames, body, message_of
from tests.tables import table


def response(output: str = "Hi", finish: str | None = "stop", *arguments: str) -> wire.RouteResponse:
    calls = [wire.ToolCall(f"call_{place}", wire.FunctionCall("f", text)) for place, text in enumerate(arguments)]
    return wire.RouteResponse(
        trace_id="tr_01ABC",
        output=output,
        routing=wire.Routing("test/one", [], "inline@2026-11-20", "", 0.0, 1.0, False, wire.Tokens(10, 5, 4)),
        usage=wire.WindowUsage(1, 1),
        primary_model="test/one",
        fallback_model=None,
        cache_hit=False,
        tool_calls=calls or None,
        finish_reason=finish,
    )


def told(response: wire.RouteResponse) -> dict[str, Any]:
    return message_of(response)


@table(
    ("finish", "calls", "reason"),
    [
        ("stop", (), "end_turn"),
        (None, (), "end_turn"),
        ("other", (), "end_turn"),
        ("length", (), "max_tokens"),
        ("budget", (), "max_tokens"),
        ("content_filter", (), "refusal"),
        ("tool_calls", ("{}",), "tool_use"),
        ("stop", ("{}",), "tool_use"),
        ("length", ('{"a": ',), "max_tokens"),
    ],
)
def test_finish_reasons_become_stop_reasons(finish: str | None, calls: tuple[str, ...], reason: str) -> None:
    assert told(response("Hi", finish, *calls))["stop_reason"] == reason


def test_a_message_has_every_field_that_clients_read() -> None:
    message = told(response())
    assert message == {
        "id": "msg_01ABC",
        "type": "message",
        "role": "assistant",
        "model": "test/one",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 6,
            "output_tokens": 5,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 0,
        },
    }


@table(
    ("arguments", "given"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ('{"a": ', {"INVALID_JSON": '{"a": '}),
        ("[1]", {"INVALID_JSON": "[1]"}),
    ],
)
def test_arguments_are_an_object_whatever_the_model_wrote(arguments: str, given: dict[str, Any]) -> None:
    assert told(response("", "tool_calls", arguments))["content"] == [
        {"type": "tool_use", "id": "call_0", "name": "f", "input": given}
    ]


def piece(index: int, arguments: str = "", id: str = "", name: str = "") -> wire.ToolCallData:
    return wire.ToolCallData(index, id, name, arguments, 1)


def blocks_of(*said: str | wire.ToolCallData) -> list[dict[str, Any]]:
    """The blocks that a client puts together; checks that they begin, go on and stop in order."""
    idle: Any = SimpleNamespace(expect_text=lambda: None)
    prepared: Any = SimpleNamespace(stream=lambda: idle, tokens=SimpleNamespace(estimate=1))
    frames = MessageFrames(idle, prepared, MessageCall())
    deltas = [
        wire.OutputDelta(1, wire.OutputData(each, 1)) if isinstance(each, str) else wire.ToolCallDelta(1, each)
        for each in said
    ]
    events = [event for each in (*deltas, wire.RouteCompleted(1, response())) for event in frames.events(each)]
    return put_together(event for event in events if event.startswith(b"event: content_block"))


def put_together(events: Iterable[bytes]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    open_: set[int] = set()
    for event in events:
        data = msgspec.json.decode(event.split(b"data: ")[1])
        index = data["index"]
        match data["type"]:
            case "content_block_start":
                assert index == len(found)
                found.append({**data["content_block"], "json": ""})
                open_.add(index)
            case "content_block_delta":
                assert index in open_
                found[index]["json"] += data["delta"].get("partial_json", "")
                if found[index]["type"] == "text":
                    found[index]["text"] += data["delta"]["text"]
            case "content_block_stop":
                open_.remove(index)
    assert not open_
    return found


def test_text_and_calls_are_consecutive_blocks() -> None:
    found = blocks_of("Let ", "me", piece(0, "", "a", "f"), piece(0, '{"x":'), piece(0, "1}"), "Done")
    assert [each["type"] for each in found] == ["text", "tool_use", "text"]
    assert (found[0]["text"], found[1]["json"], found[2]["text"]) == ("Let me", '{"x":1}', "Done")
    assert (found[1]["id"], found[1]["name"], found[1]["input"]) == ("a", "f", {})


def test_interleaved_calls_keep_their_own_arguments() -> None:
    found = blocks_of(
        piece(0, '{"x":', "a", "f"), piece(1, '{"y":', "b", "g"), piece(0, "1}"), piece(1, "2}"), piece(2, "", "c", "h")
    )
    assert [(each["name"], each["json"]) for each in found] == [("f", '{"x":1}'), ("g", '{"y":2}'), ("h", "{}")]


def test_a_call_begins_once_its_name_is_known() -> None:
    (found,) = blocks_of(piece(0, '{"x"', "a"), piece(0, ":1}", "", "f"))
    assert (found["id"], found["name"], found["json"]) == ("a", "f", '{"x":1}')


SAID = st.lists(
    st.text(min_size=1, max_size=4) | st.tuples(st.integers(0, 3), st.sampled_from('{ } "a" : 1 ,'.split()))
)


@given(SAID)
def test_no_text_is_lost_and_every_block_is_closed(said: list[Any]) -> None:
    pieces = [each if isinstance(each, str) else piece(each[0], each[1], f"c{each[0]}", "f") for each in said]
    found = blocks_of(*pieces)
    texts = "".join(each for each in said if isinstance(each, str))
    assert "".join(each["text"] for each in found if each["type"] == "text") == texts


@table(
    ("error", "kind"),
    [
        (ValidationFailed, "invalid_request_error"),
        (InsufficientBalance, "billing_error"),
        (PermissionDenied, "permission_error"),
        (NotFound, "not_found_error"),
        (MethodNotAllowed, "invalid_request_error"),
        (RequestTimedOut, "timeout_error"),
        (IdempotencyKeyReused, "conflict_error"),
        (BodyTooLarge, "request_too_large"),
        (NoCandidates, "invalid_request_error"),
        (RateLimited, "rate_limit_error"),
        (InternalError, "api_error"),
        (UpstreamFailed, "api_error"),
        (RouterTimeoutError, "timeout_error"),
    ],
)
def test_every_error_has_its_type(error: type[RouterError], kind: str) -> None:
    made = error("It failed", detail={"why": 1}, request_id="req_1", trace_id="tr_1")
    assert msgspec.json.decode(body(made)) == {
        "type": "error",
        "error": {
            "type": kind,
            "message": "It failed",
            "details": {"why": 1, "error_code": error.code, "trace_id": "tr_1"},
        },
        "request_id": "req_1",
    }


def test_errors_repeat_no_api_key() -> None:
    assert b"0123456789" not in body(NotFound("there is no sk_live_0123456789"))
