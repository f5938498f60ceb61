"""Request options reach the provider through each route, and reasoning reaches the client and comes back."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from routewright import Caller, Catalogue, Model, Pricing, Router, wire
from routewright.server import create_app
from routewright.server.anthropic import MessageCall, MessageFrames, message_of
from routewright.server.openai import ChatCall, ChunkFrames, completion_of
from routewright.server.vendor_call import CallFrames
from routewright.server.vendor_requests import Directory
from routewright.testing import FakeClock, ScriptedProvider
from tests.tables import table

from .asgi_client import ask, scope_of
from .openai.test_responses import CALLS, THOUGHT, answer

HI = {"role": "user", "content": "Hi"}
CLAUDES = wire.Reasoning(
    "anthropic",
    [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}],
    "Hm.",
)
THINKS = Model(
    id="openai/thinks",
    quality=0.9,
    context_window=100_000,
    modalities=("text", "image", "tool", "audio", "file"),
    reasoning=True,
    structured_output=True,
)
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"

APP = create_app(Router.sandbox(), authenticate=lambda scope: Caller())

pytestmark = pytest.mark.anyio


async def test_parameters_that_reach_no_model_are_listed_as_ignored() -> None:
    provider = ScriptedProvider(["Hello."] * 4, models=[Model(id="other/one", quality=0.9, context_window=9_000)])
    app = create_app(Router(providers=[provider]), authenticate=lambda scope: Caller())
    for path, body in ((CHAT, {"messages": [HI]}), (RESPONSES, {"input": "Hi"})):
        for more in ({}, {"stream": True}):
            told = await ask(app, scope_of(path=path), {"model": "auto", "user": "ann", **body, **more})
            assert (told.status, told.headers["x-routewright-ignored"]) == (200, "user")


@pytest.mark.parametrize(
    ("path", "body", "usage"),
    [
        (
            CHAT,
            {"messages": [HI]},
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 30},
                "completion_tokens_details": {"reasoning_tokens": 8},
            },
        ),
        (
            RESPONSES,
            {"input": "Hi"},
            {
                "input_tokens": 100,
                "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 30},
                "output_tokens": 20,
                "output_tokens_details": {"reasoning_tokens": 8},
                "total_tokens": 120,
            },
        ),
        (
            MESSAGES,
            {"messages": [HI], "max_tokens": 50},
            {
                "input_tokens": 60,
                "output_tokens": 20,
                "cache_read_input_tokens": 10,
                "cache_creation_input_tokens": 30,
            },
        ),
    ],
)
async def test_reasoning_and_cache_write_tokens_are_in_every_usage(
    path: str, body: dict[str, Any], usage: dict[str, Any]
) -> None:
    said: list[wire.Delta | wire.Usage | wire.Finish] = [
        wire.Delta("Hi"),
        wire.Usage(100, 20, cached=10, reasoning=8, written=30),
        wire.Finish("stop"),
    ]
    app = create_app(Router(providers=[ScriptedProvider([said], models=[THINKS])]), authenticate=lambda scope: Caller())
    told = await ask(app, scope_of(path=path), {"model": "openai/thinks", **body})
    assert told.json["usage"] == usage


# Models.


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/anthropic/v1/models/claude-sonnet-4-5-20250929", 200, "anthropic/claude-sonnet-4-5"),
        ("/anthropic/v1/models/openai/gpt-4.1", 200, "openai/gpt-4.1"),
        ("/anthropic/v1/models/claude-9", 404, "not_found_error"),
        ("/openai/v1/models/gpt-4.1-2025-04-14", 200, "openai/gpt-4.1"),
        ("/openai/v1/models/auto:quality", 200, "auto:quality"),
        ("/openai/v1/models/policy:x", 404, "model_not_found"),
    ],
)
async def test_a_model_is_found_by_any_of_its_names(path: str, status: int, said: str) -> None:
    told = await ask(APP, scope_of("GET", path=path))
    assert told.status == status
    error = told.json.get("error", {})
    assert said in (told.json.get("id"), error.get("type"), error.get("code"))


async def test_models_are_listed_in_each_vendors_format() -> None:
    ours = (await ask(APP, scope_of("GET", path="/v1/models"))).json["models"]
    theirs = (await ask(APP, scope_of("GET", path="/anthropic/v1/models"))).json
    assert {model["object"] for model in ours} == {"model"}
    assert all(model["owned_by"] == model["provider"] for model in ours)
    assert any(model["created"] > 1_600_000_000 for model in ours)
    assert [model["id"] for model in theirs["data"]] == [model["id"] for model in ours]
    assert (theirs["first_id"], theirs["last_id"], theirs["has_more"]) == (ours[0]["id"], ours[-1]["id"], False)
    assert all(model["created_at"].endswith("T00:00:00Z") for model in theirs["data"])


async def test_the_mark_of_an_exact_price_is_not_listed() -> None:
    tiny = Pricing(1e-06, 1e-06, exact=True)
    model = Model(id="a/tiny", pricing_per_1m=tiny, price_changes=(wire.PriceChange("2999-01-01", tiny),))
    app = create_app(Router.sandbox(catalogue=Catalogue([model])), authenticate=lambda scope: Caller())
    (row,) = (await ask(app, scope_of("GET", path="/v1/models"))).json["models"]
    prices = [row["pricing_per_1m"], row["price_changes"][0]["pricing_per_1m"]]
    assert prices == [{"input_usd": 1e-06, "output_usd": 1e-06}] * 2


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/embeddings", "invalid_request_error"),
        ("/openai/v1/images/generations", "invalid_request_error"),
        ("/openai/v1/responses/resp_1", "invalid_request_error"),
        ("/v1/messages/batches", "not_found_error"),
        ("/anthropic/v1/files", "not_found_error"),
    ],
)
async def test_unsupported_paths_use_the_vendors_envelope(path: str, kind: str) -> None:
    told = await ask(APP, scope_of("GET", path=path))
    assert (told.status, told.json["error"]["type"]) == (404, kind)
    assert "is not served here" in told.json["error"]["message"]


# Thought.


def test_chat_completions_have_reasoning_beside_the_answer() -> None:
    message = completion_of(answer(reasoning=THOUGHT))["choices"][0]["message"]
    assert message["reasoning_content"] == "Hm."
    assert message["reasoning_details"] == [
        {"type": "reasoning.encrypted", "format": "routewright", "index": 0, "data": THOUGHT.pack()}
    ]
    assert "reasoning_content" not in completion_of(answer())["choices"][0]["message"]


def events_of(frames: CallFrames, *events: Any) -> list[Any]:
    frames.trace_id, frames.model = answer().trace_id, "openai/gpt-4.1"
    said = b"".join(piece for event in events for piece in frames.events(event)).decode()
    return [json.loads(line[6:]) for line in said.split("\n") if line.startswith("data: {")]


def begun() -> tuple[Any, Any]:
    """An exchange and a stream, with neither a server nor a call."""
    return SimpleNamespace(request_id="req_1", clock=FakeClock()), SimpleNamespace(expect_text=lambda: None)


def thought(reasoning: wire.Reasoning) -> wire.ReasoningDelta:
    return wire.ReasoningDelta(1, wire.ReasoningData(reasoning.text or "", reasoning.items, reasoning.provider, 1))


def test_chunks_have_reasoning_before_the_answer() -> None:
    exchange, stream = begun()
    prepared: Any = SimpleNamespace(stream=lambda: stream)
    frames = ChunkFrames(exchange, prepared, ChatCall())
    word = wire.OutputDelta(1, wire.OutputData("Hi", 1))
    chunks = events_of(frames, thought(THOUGHT), word, thought(THOUGHT), word, wire.RouteCompleted(1, answer()))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta.get("reasoning_content") for delta in deltas] == [None, "Hm.", None, "Hm.", None, None]
    assert [each["index"] for delta in deltas for each in delta.get("reasoning_details", ())] == [0, 1]
    assert [delta.get("role") for delta in deltas] == ["assistant", None, None, None, None, None]


def messages(*events: Any, reads: bool = True) -> list[Any]:
    exchange, stream = begun()
    prepared: Any = SimpleNamespace(stream=lambda: stream, tokens=SimpleNamespace(estimate=1))
    reading = MessageCall(Directory({}, list))
    reading.shows_thought = reads
    return events_of(MessageFrames(exchange, prepared, reading), *events)


def test_thinking_streams_as_anthropic_sends_it() -> None:
    piece = wire.ToolCallDelta(1, wire.ToolCallData(0, "c", "f", "{}", 1))
    told = messages(
        thought(CLAUDES), piece, wire.RouteCompleted(1, answer(output="", reasoning=CLAUDES, tool_calls=CALLS))
    )
    assert [(event["type"], event.get("index")) for event in told] == [
        ("message_start", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_stop", 1),
        ("content_block_start", 2),
        ("content_block_delta", 2),
        ("content_block_delta", 2),
        ("content_block_stop", 2),
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert told[1]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert [event["delta"] for event in told[2:4]] == [
        {"type": "thinking_delta", "thinking": "Hm."},
        {"type": "signature_delta", "signature": "s"},
    ]
    assert told[5]["content_block"] == {"type": "redacted_thinking", "data": "x"}


def test_messages_without_thinking_show_no_reasoning() -> None:
    told = messages(thought(CLAUDES), wire.RouteCompleted(1, answer(reasoning=CLAUDES)), reads=False)
    assert [event["type"] for event in told] == ["message_start", "message_delta", "message_stop"]
    assert [each["type"] for each in message_of(answer(reasoning=CLAUDES))["content"]] == ["text"]
    shown = message_of(answer(reasoning=CLAUDES), shows_thought=True)["content"]
    assert [each["type"] for each in shown] == ["thinking", "redacted_thinking", "text"]


def test_reasoning_between_texts_and_calls_keeps_its_place() -> None:
    thoughts: list[dict[str, Any]] = [{"type": "thinking", "thinking": text, "signature": text} for text in "abc"]
    items = [thoughts[0], thoughts[1] | {"at": [3, 0]}, thoughts[2] | {"at": [3, 1]}]
    calls = [*CALLS, wire.ToolCall("call_2", CALLS[0].function)]
    whole = answer(output="Wait.", tool_calls=calls, reasoning=wire.Reasoning("anthropic", items))
    content = message_of(whole, shows_thought=True)["content"]
    kinds = ["thinking", "text", "thinking", "tool_use", "thinking", "text", "tool_use"]
    assert [block["type"] for block in content] == kinds
    assert all("at" not in block for block in content)
    reading = MessageCall(Directory({}, list))
    body = {"model": "auto", "max_tokens": 9, "messages": [HI, {"role": "assistant", "content": content}]}
    turn = reading.decode(json.dumps(body).encode()).messages[1]
    assert turn.reasoning == wire.Reasoning("anthropic", items)
    assert reading.ignored == set()


@table(
    ("fields", "reads"),
    [
        ({}, False),
        ({"tools": [{"name": "f", "input_schema": {}}]}, True),
        ({"thinking": {"type": "adaptive"}}, True),
        ({"thinking": {"type": "disabled"}}, False),
    ],
)
def test_messages_show_reasoning_with_thinking_or_tools(fields: dict[str, Any], reads: bool) -> None:
    reading = MessageCall(Directory({}, list))
    reading.decode(json.dumps({"model": "auto", "max_tokens": 9, "messages": [HI], **fields}).encode())
    assert reading.shows_thought is reads
