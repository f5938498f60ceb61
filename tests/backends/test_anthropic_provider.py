"""The Anthropic provider against a real server: requests, answers and errors."""

from __future__ import annotations

import json
import random
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import AnthropicProvider, Router
from routewright._core.sse import SseEvent
from routewright.backends.providers.anthropic import Blocks, Counts, OpenEnded, closed_form, message_body
from routewright.backends.providers.faults import fault_of_answer
from routewright.errors import NoCandidates, ProviderFault, ValidationFailed
from routewright.wire import (
    Delta,
    Finish,
    FunctionCall,
    FunctionName,
    FunctionSpec,
    ImagePart,
    ImageUrl,
    Message,
    Model,
    NamedToolChoice,
    Params,
    TextPart,
    Thought,
    Tool,
    ToolCall,
    ToolDelta,
    Usage,
)

from . import asking
from .anthropic_server import AnthropicServer, answer, error, events_of, message, problems_of, said, sse, thought, used
from .asking import bytes_of, chunks_of, fault_after, fault_of, kind_of, outcome, read_streamed, summary_of, written
from .vendors import ANTHROPIC, KEY, Vendor

pytestmark = pytest.mark.anyio
MODEL = Model(id="anthropic/claude-haiku-4-5", max_output_tokens=64_000)


@pytest.fixture
def vendor() -> Vendor:
    return ANTHROPIC


call = partial(asking.call, model=MODEL)


def body_of(*messages: Message | str, **rest: Any) -> dict[str, Any]:
    """The body of a call, checked with the official types."""
    body: dict[str, Any] = json.loads(msgspec.json.encode(message_body(call(*messages, **rest))))
    assert problems_of(body) == []
    return body


def unsayable(*messages: Message | str, **rest: Any) -> str:
    """Why a call cannot be expressed."""
    with pytest.raises(ProviderFault) as caught:
        message_body(call(*messages, **rest))
    assert caught.value.kind == "request"
    assert caught.value.status is None
    assert caught.value.__context__ is None
    return caught.value.message.removeprefix("the Messages API ")


# --- what is sent


@pytest.mark.parametrize("stream", [False, True])
async def test_request_has_the_form_of_the_messages_api(
    server: AnthropicServer, provider: AnthropicProvider, stream: bool
) -> None:
    spoken = [
        Message("system", "be brief"),
        Message("developer", "and kind"),
        Message("user", [TextPart("what is this?"), ImagePart(ImageUrl("https://x.example/a.png", "low"))], name="ann"),
        Message("assistant", "let me look", [ToolCall("c1", FunctionCall("look", '{"at": 1}'))]),
        Message("tool", "a parrot", tool_call_id="c1"),
        Message("user", [ImagePart(ImageUrl("data:image/PNG;base64,AAAA"))]),
    ]
    tools = [
        Tool(function=FunctionSpec("look", "Look.", {"type": "object", "properties": {}}, strict=True)),
        Tool(name="flat"),
    ]
    params = Params(0.5, stop=["a", "b"])
    server.answers = [answer(message(said("ok")), stream=stream)]
    sent = call(
        *spoken, stream=stream, params=params, tools=tools, tool_choice="look", max_output_tokens=100,
        model=Model(id="anthropic/x", provider_model_id="claude-haiku-4-5"),
    )  # fmt: skip
    await chunks_of(provider, sent)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in request.headers
    assert request.body == ({"stream": True} if stream else {}) | {
        "model": "claude-haiku-4-5",
        "max_tokens": 100,
        "system": "be brief\n\nand kind",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this?"},
                    {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "let me look"},
                    {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a parrot"}]},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                ],
            },
        ],
        "tools": [
            {
                "name": "look",
                "description": "Look.",
                "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
                "strict": True,
            },
            {"name": "flat", "input_schema": {"type": "object", "properties": {}}},
        ],
        "tool_choice": {"type": "tool", "name": "look"},
        "temperature": 0.5,
        "stop_sequences": ["a", "b"],
    }


def test_the_cap_is_that_of_the_call_or_the_model_or_4096() -> None:
    assert body_of(max_output_tokens=5)["max_tokens"] == 5
    assert body_of()["max_tokens"] == 64_000
    assert body_of(model=Model(id="anthropic/x"))["max_tokens"] == 4096


def test_system_messages_anywhere_go_to_system() -> None:
    body = body_of(Message("system", "a"), "b", Message("developer", [TextPart("c"), TextPart("d")]), "e")
    assert body["system"] == "a\n\nc\n\nd"
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "e"}]}
    ]
    assert "system" not in body_of("b")


def test_tool_results_come_first_in_the_turn_after_their_calls() -> None:
    calls = [ToolCall("c1", FunctionCall("f", "")), ToolCall("c2", FunctionCall("f", "{}"))]
    results = [Message("tool", "1", tool_call_id="c1"), Message("tool", "", tool_call_id="c2")]
    body = body_of("a", Message("assistant", None, calls), results[0], "b", Message("system", "s"), results[1])
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert [block["input"] for block in body["messages"][1]["content"]] == [{}, {}]
    assert body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "1"}]},
        {"type": "tool_result", "tool_use_id": "c2"},
        {"type": "text", "text": "b"},
    ]


def test_blank_texts_are_left_out() -> None:
    body = body_of("a", Message("assistant", " \n"), Message("user", [TextPart(""), TextPart("b")]))
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]
    assert unsayable(Message("system", "a"), Message("user", "  ")).startswith("needs a message that is neither")


def test_ids_of_other_vendors_are_made_valid() -> None:
    spoken = [Message("assistant", None, [ToolCall(id, FunctionCall("f", "{}")) for id in ("a.b", "a|b", "a_b")])]
    spoken += [Message("tool", "1", tool_call_id=id) for id in ("a.b", "a|b", "a_b")]
    turns = body_of("x", *spoken)["messages"]
    ids = [block["id"] for block in turns[1]["content"]]
    assert ids == [block["tool_use_id"] for block in turns[2]["content"]] == ["a_2e_b", "a_7c_b", "a_b"]


@pytest.mark.parametrize("arguments", ["[]", "1", "canary", '{"a": canary}', "[" * 100_000, "null"])
def test_invalid_arguments_are_refused_without_being_shown(arguments: str) -> None:
    why = unsayable("a", Message("assistant", None, [ToolCall("c1", FunctionCall("f", arguments))]))
    assert why == "supports only tool calls with a JSON object as arguments"


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ("required", {"type": "any"}),
        ("f", {"type": "tool", "name": "f"}),
        (NamedToolChoice(FunctionName("f")), {"type": "tool", "name": "f"}),
    ],
)
def test_tool_choice_is_translated(choice: Any, sent: Any) -> None:
    assert body_of(tools=[Tool(name="f")], tool_choice=choice)["tool_choice"] == sent
    assert "tool_choice" not in body_of(tool_choice=choice)


def test_images_stay_in_their_tool_result() -> None:
    image = ImagePart(ImageUrl("data:image/png;base64,AAAA"))
    result = Message("tool", [TextPart("a chart"), image], tool_call_id="c1")
    sent = body_of("draw", Message("assistant", None, [ToolCall("c1", FunctionCall("draw", "{}"))]), result)
    assert sent["messages"][-1]["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "c1",
            "content": [
                {"type": "text", "text": "a chart"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            ],
        }
    ]


@pytest.mark.parametrize(
    ("url", "got"),
    [
        ("data:image/svg+xml;base64,AAAA", "'image/svg+xml'"),
        ("data:image/png,AAAA", "'another data: URL'"),
        (f"data:image/{'x' * 100};base64,", repr("image/" + "x" * 34)),
    ],
)
def test_unsupported_images_are_refused_by_type(url: str, got: str) -> None:
    why = unsayable(Message("user", [ImagePart(ImageUrl(url))]))
    assert why == f"supports images as base64 of image/jpeg, image/png, image/gif, image/webp, got {got}"
    system = Message("system", [ImagePart(ImageUrl("https://x.example/a.png"))])
    assert unsayable(system, "a") == "supports only text in system messages"


@pytest.mark.parametrize(
    ("model", "params", "sent"),
    [
        ("claude-haiku-4-5", Params(0.0), {"temperature": 0}),
        ("claude-haiku-4-5", Params(1.0), {"temperature": 1}),
        ("claude-haiku-4-5", Params(1.0, 0.5), {"top_p": 0.5}),
        ("claude-haiku-4-5", Params(0.5, 1.0), {"temperature": 0.5}),
        ("claude-haiku-4-5", Params(1.0, 1.0), {}),
        ("claude-3-5-haiku-20241022", Params(0.5, 0.5), {"temperature": 0.5, "top_p": 0.5}),
        ("claude-opus-5-5", Params(1.0, 1.0), {}),
        ("claude-opus-5-5", Params(0.5), {"temperature": 0.5}),
        ("glm-5", Params(1.0, 1.0), {"temperature": 1, "top_p": 1}),
    ],
)
def test_default_sampling_is_left_out_where_it_would_be_refused(
    model: str, params: Params, sent: dict[str, float]
) -> None:
    body = body_of(model=Model(id=f"anthropic/{model}"), params=params)
    assert {name: body[name] for name in ("temperature", "top_p") if name in body} == sent


def test_unsupported_sampling_is_refused_with_its_values() -> None:
    assert unsayable(params=Params(1.5)) == "supports a temperature from 0 to 1, got 1.5"
    why = "supports only one of temperature and top_p for this model, got 0.5 and 0.25"
    assert unsayable(params=Params(0.5, 0.25)) == why


@pytest.mark.parametrize(
    ("model", "taken"),
    [
        ("claude-sonnet-4-5", True),
        ("claude-haiku-4-5", True),
        ("glm-5", True),
        ("claude-opus-4-6", False),
        ("claude-sonnet-5", False),
        ("claude-fable-latest", False),
    ],
)
def test_a_prefill_is_sent_without_trailing_white_space_where_supported(model: str, taken: bool) -> None:
    begun, upstream = Message("assistant", "{ \n"), Model(id=f"anthropic/{model}")
    if taken:
        end = body_of("a", begun, model=upstream)["messages"][-1]
        assert end == {"role": "assistant", "content": [{"type": "text", "text": "{"}]}
        return
    why = unsayable("a", begun, model=upstream)
    assert why == "does not support a final assistant's message for this model"
    assert body_of("a", begun, "b", model=upstream)["messages"][1]["content"] == [{"type": "text", "text": "{ \n"}]


def test_stop_sequences_are_a_list_without_blank_ones() -> None:
    assert body_of(params=Params(stop="x"))["stop_sequences"] == ["x"]
    assert "stop_sequences" not in body_of(params=Params(stop=[]))
    said = r"does not support a stop sequence of only white space, got '\n'"
    assert unsayable(params=Params(stop=["x", "\n"])) == said
    assert unsayable(params=Params(1.5, stop="\n")) == "supports a temperature from 0 to 1, got 1.5"


@pytest.mark.parametrize(
    ("model", "lacking"),
    [
        ("claude-3-opus-20240229", ""),
        ("claude-3-5-haiku-20241022", ""),
        ("claude-opus-4-20250514", ""),
        ("claude-opus-4-1-20250805", ""),
        ("claude-haiku-4-5", ""),
        ("claude-haiku-4-5-20251001", ""),
        ("claude-sonnet-4-6", ""),
        ("claude-opus-4-7", "temperature top_p"),
        ("us.anthropic.claude-opus-4-8-v1:0", "temperature top_p"),
        ("claude-opus-5", "temperature top_p"),
        ("claude-sonnet-5@20260630", "temperature top_p"),
        ("claude-fable-5", "temperature top_p"),
        ("claude-haiku-5-5", "temperature top_p"),
        ("claude-sonnet-5-5", "temperature top_p tool_choice"),
        ("claude-sonnet-5.5", "temperature top_p tool_choice"),
        ("claude-opus-5-5", "temperature top_p tool_choice"),
        ("claude-fable-5-1", "temperature top_p tool_choice"),
        ("claude-mythos-preview", "temperature top_p tool_choice"),
        ("claude-opus-latest", "temperature top_p tool_choice"),
        ("glm-5", ""),
    ],
)
def test_unsupported_features_follow_from_the_version(model: str, lacking: str) -> None:
    features = AnthropicProvider(KEY).unsupported(Model(id=f"anthropic/{model}"))
    wishes = {"flex", "priority", "verbosity"} | (set() if "claude" in model else {"parallel_tool_calls"})
    assert set(features) == {"seed", "json_object", "http_url", *lacking.split()} | wishes


def test_requests_with_sampling_or_forced_tools_avoid_the_newest_models() -> None:
    router = Router(providers=[AnthropicProvider(KEY)])
    cold = router.decide("hi", params={"temperature": 0.0})
    assert {model.removeprefix("anthropic/claude-") for model in cold.chain} <= {
        "haiku-4-5", "sonnet-4-5", "sonnet-4-6", "opus-4-5", "opus-4-6",
    }  # fmt: skip
    forced = router.decide("hi", tools=[{"type": "function", "name": "f"}], tool_choice="required")
    assert not {"anthropic/claude-opus-5-5", "anthropic/claude-sonnet-5-5"} & set(forced.chain)


@pytest.mark.parametrize(
    ("params", "rest"),
    [
        ({"max_output_tokens": 1024}, {}),
        ({"temperature": 0.5}, {}),
        ({"top_p": 0.9}, {}),
        ({}, {"tools": [{"type": "function", "name": "f"}], "tool_choice": "required"}),
        ({}, {"tools": [{"type": "function", "name": "f"}], "tool_choice": "f"}),
    ],
)
def test_what_older_models_cannot_combine_with_reasoning_is_refused(params: Any, rest: Any) -> None:
    router, named = Router(providers=[AnthropicProvider(KEY)]), ["anthropic/claude-haiku-4-5"]
    thinking: Any = {"reasoning": "low", **params}
    assert router.decide("hi", models=named, params=params, **rest).model == named[0]
    with pytest.raises(NoCandidates, match=r"1 asked, .* params; drop params\.reasoning to admit"):
        router.decide("hi", models=named, params=thinking, **rest)


# --- structured output


def test_a_schema_is_sent_as_output_config() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    closed = schema | {"additionalProperties": False}
    assert body_of(params=Params(response_format=form))["output_config"] == {
        "format": {"type": "json_schema", "schema": closed}
    }
    assert "output_config" not in body_of(params=Params(response_format={"type": "text"}))


def test_json_without_a_schema_is_refused() -> None:
    why = unsayable(params=Params(response_format={"type": "json_object"}))
    assert why == "supports only a response_format with a JSON schema, got 'json_object'"


def test_a_schema_is_closed_and_unsupported_keywords_go_to_the_description() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 9, "description": "A digit"},
            "s": {"type": "string", "format": "date", "pattern": "^a+$"},
            "t": {"type": "string", "format": "color", "pattern": r"(?=a)b", "minLength": 2},
            "l": {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 1, "maxItems": 3},
            "o": {"oneOf": [{"type": "null"}, {"const": 1}]},
            "p": {"type": ["object", "null"], "properties": {"q": {"enum": ["x"]}}, "additionalProperties": True},
        },
        "$defs": {"e": {"type": "array", "items": {"type": "string"}, "minItems": 2}},
    }
    assert closed_form(schema) == {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "description": "A digit; minimum: 1; maximum: 9"},
            "s": {"type": "string", "format": "date", "pattern": "^a+$"},
            "t": {"type": "string", "description": 'format: "color"; pattern: "(?=a)b"; minLength: 2'},
            "l": {
                "type": "array",
                "items": {"$ref": "#/$defs/e"},
                "minItems": 1,
                "description": "maxItems: 3",
            },
            "o": {"anyOf": [{"type": "null"}, {"const": 1}]},
            "p": {
                "type": ["object", "null"],
                "properties": {"q": {"enum": ["x"]}},
                "additionalProperties": False,
            },
        },
        "$defs": {"e": {"type": "array", "items": {"type": "string"}, "description": "minItems: 2"}},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "array", "items": {"type": "object"}},
    ],
)
def test_a_schema_that_cannot_be_closed_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(OpenEnded):
        closed_form(schema)
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    why = unsayable(params=Params(response_format=form))
    assert why == "supports a response_format only with named properties and values of known types"
    if schema["type"] == "object":
        strict = Tool(name="f", parameters=schema, strict=True)
        assert unsayable(tools=[strict]).startswith("supports a strict tool only with")
        assert body_of(tools=[msgspec.structs.replace(strict, strict=None)])["tools"][0]["input_schema"] == schema


@pytest.mark.parametrize(
    "odd",
    [
        {"properties": []}, {"properties": None}, {"pattern": 5}, {"format": {}}, {"anyOf": 1},
        {"oneOf": True}, {"allOf": None}, {"$defs": "x"}, {"description": 5, "minLength": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_an_invalid_schema_is_a_fault_of_the_request(odd: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}} | odd
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert unsayable(params=Params(response_format=form)).startswith("supports a response_format only with")
    assert unsayable(tools=[Tool(name="f", parameters=schema, strict=True)]).startswith(
        "supports a strict tool only with"
    )


def test_closing_a_schema_leaves_the_original_unchanged() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
    before = json.dumps(schema)
    closed_form(schema)
    assert json.dumps(schema) == before


# --- what comes back


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_have_id_and_name_first_and_complete_arguments(
    server: AnthropicServer, provider: AnthropicProvider, stream: bool
) -> None:
    content = [thought("hm"), said("I look."), used("look", {"at": "naïve 🦜"}), used("wait", {}, "toolu_2")]
    server.answers = [answer(message(*content, stop="tool_use"), stream=stream)]
    chunks = await chunks_of(provider, call(stream=stream))
    calls = [("toolu_1", "look", {"at": "naïve 🦜"}), ("toolu_2", "wait", {})]
    assert summary_of(chunks) == ("I look.", calls, Usage(9, 3), "tool_calls")
    firsts = [chunk for chunk in chunks if isinstance(chunk, ToolDelta) and chunk.id]
    assert firsts == [ToolDelta(0, "", "toolu_1", "look"), ToolDelta(1, "", "toolu_2", "wait")]


async def test_signatures_pings_and_unknown_events_are_signs_of_life(
    server: AnthropicServer, provider: AnthropicProvider
) -> None:
    start, ping, *rest = events_of(message(thought("hm"), {"type": "redacted_thinking", "data": "x"}, said("so")))
    new = [
        {"type": "weather", "delta": 7, "index": "x"},
        {"type": "content_block_start", "index": 9, "content_block": {"type": "song", "text": 4}},
        {"type": "content_block_delta", "index": 9, "delta": {"type": "song_delta", "text": 4}},
        {"type": "content_block_delta", "index": 9, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_stop", "index": 9},
    ]
    server.answers = [sse(start, ping, b": comment\n\n", *new, *rest)]
    async with provider.open(call()) as chunks:
        given = [chunk async for chunk in chunks]
    life = Delta("")
    assert given == [
        Usage(9, 1), *[life] * (1 + len(new)),
        life, Thought("hm"), life, Thought(item=thought("hm")),  # what it begins with, is signed with and ends in
        life, Thought(item={"type": "redacted_thinking", "data": "x"}),
        life, Delta("so"), life, Usage(9, 3), Finish("stop"),
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "common"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "length"),
        ("refusal", "content_filter"),
    ],
)
async def test_stop_reasons_are_translated(
    server: AnthropicServer, provider: AnthropicProvider, reason: str, common: str, stream: bool
) -> None:
    server.answers = [answer(message(said("x"), stop=reason), stream=stream)]
    assert await chunks_of(provider, call(stream=stream)) == [
        *([Usage(9, 1), Delta("x")] if stream else []), Usage(9, 3), *([] if stream else [Delta("x")]), Finish(common),
    ]  # fmt: skip


def test_a_complete_answer_may_have_an_unknown_reason_but_needs_one() -> None:
    document: dict[str, Any] = {"type": "message", "content": [said("x")], "stop_reason": "a_new_word"}
    assert list(Blocks("x").read(json.dumps(document).encode()))[-1] == Finish("a_new_word")
    document["stop_reason"] = None
    with pytest.raises(ProviderFault, match="without a stop reason") as caught:
        list(Blocks("x").read(json.dumps(document).encode()))
    assert caught.value.kind == "truncated"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", ["refusal", "max_tokens", "stop_sequence"])
async def test_empty_answer_is_allowed_if_the_reason_explains_it(
    server: AnthropicServer, provider: AnthropicProvider, reason: str, stream: bool
) -> None:
    details = {"stop_details": {"type": "refusal", "category": "cyber", "explanation": "no"}}
    server.answers = [answer(message(stop=reason, **details if reason == "refusal" else {}), stream=stream)]
    assert summary_of(await chunks_of(provider, call(stream=stream)))[0] == ""


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_after_tool_results_may_be_empty(
    server: AnthropicServer, provider: AnthropicProvider, stream: bool
) -> None:
    asked = Message("assistant", tool_calls=[ToolCall("c1", FunctionCall("look", "{}"))])
    messages = [Message("user", "look"), asked, Message("tool", "done", tool_call_id="c1")]
    server.answers = [answer(message(), stream=stream)] * 2
    chunks = await chunks_of(provider, call(*messages, stream=stream))
    assert summary_of(chunks) == ("", [], Usage(9, 3), "stop")
    with pytest.raises(ProviderFault, match="neither text nor tool calls"):
        await chunks_of(provider, call(stream=stream))


def test_usage_includes_cached_input_and_reasoning() -> None:
    usage = {
        "input_tokens": 50,
        "cache_read_input_tokens": 100_000,
        "cache_creation_input_tokens": 248,
        "cache_creation": {"ephemeral_5m_input_tokens": 148, "ephemeral_1h_input_tokens": 100},
        "output_tokens": 503,
        "output_tokens_details": {"thinking_tokens": 480},
        "service_tier": "standard",
    }
    message(said("x"), usage=usage)  # valid by the official types
    assert Counts().add(usage) == Usage(100_298, 503, 100_000, 480, 248, 100, tier="default")
    thought = {"output_tokens_details": {"thinking_tokens": 9}}
    assert Counts().add({"input_tokens": 1, "output_tokens": 1} | thought) == Usage(1, 1, 0, 1)


def test_usage_of_a_stream_is_merged_and_repeated_only_if_changed() -> None:
    counts = Counts()
    assert counts.add({"input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 1}) == Usage(12, 1, 7)
    assert counts.add({"output_tokens": 1}) is None
    assert counts.add({"input_tokens": None, "cache_read_input_tokens": 0, "output_tokens": 4}) == Usage(12, 4, 7)
    assert counts.add({"input_tokens": 6, "output_tokens": 9}) == Usage(13, 9, 7)
    assert counts.add({"output_tokens": 0}) == Usage(13, 0, 7), "what a refusal took back"


def test_input_reported_only_at_the_end_counts() -> None:
    counts = Counts()
    assert counts.add({"input_tokens": 0}) is None
    assert counts.add({"input_tokens": 0, "output_tokens": 0}) == Usage(0, 0)
    assert counts.add({"input_tokens": 7, "output_tokens": 2}) == Usage(7, 2)


_json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=5,
)
_answer_blocks = st.lists(
    st.one_of(
        st.builds(said, st.text(max_size=12)),
        st.builds(thought, st.text(max_size=5)),
        st.builds(used, st.just("f"), st.dictionaries(st.text(max_size=4), _json_values, max_size=3)),
    ),
    max_size=4,
)
_counts = st.fixed_dictionaries(
    {"input_tokens": st.integers(0, 99), "output_tokens": st.integers(1, 99)},
    optional={
        "cache_read_input_tokens": st.integers(0, 99),
        "cache_creation_input_tokens": st.integers(0, 99),
        "output_tokens_details": st.fixed_dictionaries({"thinking_tokens": st.integers(0, 99)}),
    },
)
_reasons = st.sampled_from(["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "pause_turn"])


@st.composite
def _answers(draw: st.DrawFn) -> dict[str, Any]:
    """Answers of all shapes with unique tool call ids."""
    blocks = draw(_answer_blocks)
    blocks = [block | ({"id": f"toolu_{at}"} if "id" in block else {}) for at, block in enumerate(blocks)]
    return message(*blocks, stop=draw(_reasons), usage=draw(_counts))


def _streamed(whole: dict[str, Any], size: int) -> bytes:
    return bytes_of(sse(*events_of(whole, size)))


@given(_answers(), st.integers(1, 6))
def test_plain_and_streamed_forms_of_an_answer_are_the_same(whole: dict[str, Any], size: int) -> None:
    plain = outcome(Blocks("x").read, json.dumps(whole).encode())
    assert outcome(read_streamed, Blocks("x"), _streamed(whole, size)) == plain
    if isinstance(plain, str):
        assert plain.startswith("malformed")
        assert not any(block["type"] in ("text", "tool_use") for block in whole["content"])


@given(_answers(), st.randoms(use_true_random=False))
def test_a_stream_in_any_pieces_is_the_same(whole: dict[str, Any], chance: random.Random) -> None:
    data = _streamed(whole, 3)
    cuts = sorted(chance.sample(range(len(data)), min(20, len(data))))
    pieces = [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]
    assert outcome(read_streamed, Blocks("x"), *filter(None, pieces)) == outcome(read_streamed, Blocks("x"), data)


def test_a_tool_call_may_have_all_its_input_at_the_start() -> None:
    events: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": 1, "content_block": used("f", {"a": 1})},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    reader = Blocks("x")
    chunks = [chunk for event in events for chunk in reader.add(SseEvent(json.dumps(event)))]
    assert summary_of(chunks)[1] == [("toolu_1", "f", {"a": 1})]


def test_after_the_stop_reason_only_usage_counts() -> None:
    reader, late = Blocks("x"), events_of(message(said("late"), used("f", {})))
    ended = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 2}}
    chunks = [chunk for event in (ended, *late) for chunk in reader.add(SseEvent(json.dumps(event)))]
    assert [chunk for chunk in chunks if chunk != Delta("")] == [Usage(9, 1), Usage(9, 3), Finish("length")]


# --- what is not an answer


@pytest.mark.parametrize("block", [thought("hm"), {"type": "text", "text": 5}])
def test_a_complete_answer_without_text_is_malformed(block: dict[str, Any]) -> None:
    document = {"type": "message", "content": [block], "stop_reason": "end_turn"}
    assert kind_of(Blocks("x").read, json.dumps(document).encode()) == "malformed"


_START, *_ = events_of(message())


@pytest.mark.parametrize(
    "broken",
    [
        events_of(message())[1:],
        events_of(message(thought("hm")))[1:],
        [{"type": "content_block_delta", "index": 0}],
        [{"type": "content_block_stop"}],
        [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": 5}}],
        [error("strange_error")],
    ],
    ids=["nothing said", "thought alone", "no delta", "no index", "text that is none", "an error of no known type"],
)
async def test_an_invalid_stream_is_malformed_after_its_usage(
    server: AnthropicServer, provider: AnthropicProvider, broken: list[dict[str, Any]]
) -> None:
    server.answers = [sse(_START, *broken)]
    came, fault = await fault_after(provider)
    assert (came[0], fault.kind, fault.answered) == (Usage(9, 1), "malformed", True)


def test_an_end_without_a_reason_is_truncated() -> None:
    assert kind_of(Blocks("x").add, SseEvent('{"type": "message_stop"}', "message_stop")) == "truncated"


STATUSES: list[tuple[int, Any, str]] = [
    (400, error("invalid_request_error", "messages.0: Input should be an object"), "request"),
    (
        400,
        error("invalid_request_error", "You have reached your specified API usage limits. You will regain access on"),
        "auth",
    ),
    (
        400,
        error("invalid_request_error", "You have reached your specified workspace API usage limits."),
        "auth",
    ),
    (400, error("invalid_request_error", "no", details={"error_code": "organization_on_hold"}), "auth"),
    (400, error("invalid_request_error", "no", details={"error_code": "image_dimensions_too_large"}), "request"),
    (402, error("billing_error"), "auth"),
    (403, error("permission_error"), "auth"),
    (404, error("not_found_error", "Not found"), "request"),
    (429, error("rate_limit_error", details={"error_code": "ramp_limit_exceeded"}), "rate_limited"),
    (429, error("rate_limit_error", details={"error_code": "enforced_spend_limit_reached"}), "auth"),
    (429, error("rate_limit_error", details={"error_code": "contract_spend_limit_reached"}), "auth"),
    (429, error("rate_limit_error", details=None), "rate_limited"),
    (500, error("api_error", "Internal server error"), "server"),
    (504, error("timeout_error"), "server"),
]


@pytest.mark.parametrize(("status", "body", "kind"), STATUSES)
def test_status_and_body_determine_the_kind_of_fault(status: int, body: Any, kind: str) -> None:
    fault = fault_of_answer("anthropic", status, {}, json.dumps(body))
    assert fault.kind == kind
    assert fault.message.startswith(f"anthropic answered {status} ")


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (error("overloaded_error", "Overloaded"), "server"),
        (error("api_error", "Internal server error"), "server"),
        (error("timeout_error"), "server"),
        (error("rate_limit_error"), "rate_limited"),
        (error("authentication_error"), "auth"),
        (error("billing_error"), "auth"),
        (error("invalid_request_error", "Output blocked by content filtering policy"), "refused"),
        (error("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"), "context_overflow"),
        (error("invalid_request_error", "no"), "malformed"),
    ],
)
def test_an_error_in_an_answer_is_classified_by_type(event: dict[str, Any], kind: str) -> None:
    document = json.dumps(event).encode()
    assert kind_of(Blocks("x").read, document) == kind_of(read_streamed, Blocks("x"), bytes_of(sse(event))) == kind


def test_an_event_is_an_error_by_name_or_type() -> None:
    for event in (SseEvent('{"message": "boom"}', "error"), SseEvent(json.dumps(error("overloaded_error")))):
        with pytest.raises(ProviderFault, match="x answered 200 with an error"):
            list(Blocks("x").add(event))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_cannot_be_expressed_is_not_sent(
    server: AnthropicServer, provider: AnthropicProvider, stream: bool
) -> None:
    fault = await fault_of(provider, call("my secret", stream=stream, params=Params(2.0)))
    assert (fault.kind, fault.answered) == ("request", False)
    assert "secret" not in written(fault)
    assert server.requests == []


# --- keys, hosts and addresses


@pytest.mark.parametrize("base_url", ["https://llm.example.com", "https://llm.example.com/v1/"])
def test_an_address_may_have_the_version(base_url: str) -> None:
    provider = AnthropicProvider(KEY, base_url=base_url)
    assert provider.request(call()).url == "https://llm.example.com/v1/messages"


def test_another_host_gets_no_key_of_anthropics() -> None:
    environ = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "https://proxy.example"}
    provider = AnthropicProvider(name="mine", base_url="https://llm.example.com", environ=environ)
    request = provider.request(call(model=Model(id="mine/glm-5")))
    assert (request.url, "x-api-key" in request.reveal()) == ("https://llm.example.com/v1/messages", False)
    with pytest.raises(ValidationFailed, match=r"^name: there is no known host 'mine'; pass base_url="):
        AnthropicProvider(KEY, name="mine")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_router_answers_with_its_usage_at_its_price(
    server: AnthropicServer, provider: AnthropicProvider, stream: bool
) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 20, "output_tokens": 5}
    server.answer = lambda request: answer(message(said("ok"), usage=usage), stream=bool(request.body.get("stream")))
    router = Router(providers=[provider])
    chosen = "anthropic/claude-haiku-4-5"
    if stream:
        async with router.stream("hi", models=[chosen]) as stream_of:
            assert "".join([text async for text in stream_of.text()]) == "ok"
        answered = stream_of.result
    else:
        answered = await router.route("hi", models=[chosen])
    assert answered.output == "ok"
    assert answered.routing.tokens.input == 30
    assert answered.routing.tokens.cached == 20
    assert answered.routing.cost_usd == pytest.approx((10 * 1.0 + 20 * 0.1 + 5 * 5.0) / 1e6)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_router_returns_reasoning_in_a_tool_loop(
    server: AnthropicServer, provider: AnthropicProvider, stream: bool
) -> None:
    blocks = [said("I ask. "), thought("Let me see."), used("f", {}), thought("Once more."), used("f", {}, "toolu_2")]
    server.answer = lambda request: answer(message(*blocks, stop="tool_use"), stream=bool(request.body.get("stream")))
    router, tools = Router(providers=[provider]), [{"type": "function", "name": "f"}]
    rest: Any = {"models": ["anthropic/claude-opus-5"], "params": {"reasoning": "low"}, "tools": tools}
    asked: list[Any] = [{"role": "user", "content": "hi"}]
    if stream:
        async with router.stream(asked, **rest) as stream_of:
            events = [event async for event in stream_of]
        answered = stream_of.result
        assert "reasoning.delta" in [event.event for event in events]
    else:
        answered = await router.route(asked, **rest)
    told = answered.response.to_dict()
    assert told["reasoning"]["text"] == "Let me see.Once more."
    turn = {"role": "assistant", "content": told["output"], "tool_calls": told["tool_calls"]}
    results = [{"role": "tool", "content": "1", "tool_call_id": call["id"]} for call in told["tool_calls"]]
    await router.route([*asked, turn | {"reasoning": told["reasoning"]}, *results], **rest)
    assert server.requests[-1].body["messages"][1] == {"role": "assistant", "content": blocks}
