"""Conversations that one vendor made, or a client sent, as the next vendor takes them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import (
    Agent,
    AnthropicProvider,
    CallableProvider,
    Catalogue,
    GeminiProvider,
    MemoryStorage,
    Model,
    OpenAIProvider,
    Pricing,
    Router,
    ValidationFailed,
)
from routewright._core.request.compatibility import complete_message
from routewright._core.request.read import as_request, decode_request
from routewright.backends.providers.hosts import HOSTS
from routewright.backends.providers.http import HttpProvider
from routewright.backends.providers.openai import request_body
from routewright.backends.providers.tool_ids import in_order, with_ids
from routewright.wire import (
    FilePart,
    Finish,
    FunctionCall,
    ImagePart,
    ImageUrl,
    Message,
    Params,
    Reasoning,
    TextPart,
    Tool,
    ToolCall,
    ToolDelta,
    UpstreamCall,
)
from routewright.wire.request import FileData
from tests.tables import table
from tests.upstream import Answer, Request, Upstream, of_json

from .rules import RULES

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
JPEG = "/9j/4AAQSkZJRgABAQEASABIAAD/2wBDAP//"
PDF = "JVBERi0xLjQKJcOkw7zDtsOfCjIgMCBvYmoK"
MODELS = {
    name: Model(
        id=id,
        modalities=("text", "tool", "image", "audio", "file"),
        quality=0.5,
        pricing_per_1m=Pricing(1.0, 1.0),
        context_window=100_000,
        reasoning=True,
    )
    for name, id in {
        "chat": "openai/gpt-5.1",
        "responses": "openai/gpt-6-sol",
        "anthropic": "anthropic/claude-sonnet-5",
        "gemini": "google/gemini-3-pro",
    }.items()
}
PROVIDERS: dict[str, HttpProvider] = {
    "chat": OpenAIProvider("key", api="chat"),
    "responses": OpenAIProvider("key", api="responses"),
    "anthropic": AnthropicProvider("key"),
    "gemini": GeminiProvider("key"),
}
protocols = pytest.mark.parametrize("protocol", PROVIDERS)


def body_of(protocol: str, messages: list[Message], *tools: Tool) -> dict[str, Any]:
    """The body for a request, as it is read and then sent."""
    request = as_request(messages, {"tools": [*tools]} if tools else {})
    call = UpstreamCall(MODELS[protocol], request.messages, Params(), request.tools, None, None, 9.0)
    body: dict[str, Any] = json.loads(PROVIDERS[protocol].request(call).body)
    assert RULES[protocol](body) == []
    return body


def calling(*calls: tuple[str, str]) -> Message:
    return Message("assistant", None, [ToolCall(id, FunctionCall("f", arguments)) for id, arguments in calls])


def result(id: str, content: Any = "ok") -> Message:
    return Message("tool", content, tool_call_id=id)


def calls_in(protocol: str, body: dict[str, Any]) -> list[tuple[str, Any]]:
    """The id and arguments of each call."""
    match protocol:
        case "chat":
            calls = [call for message in body["messages"] for call in message.get("tool_calls", ())]
            return [(call["id"], json.loads(call["function"]["arguments"])) for call in calls]
        case "responses":
            items = [item for item in body["input"] if item["type"] == "function_call"]
            return [(item["call_id"], json.loads(item["arguments"])) for item in items]
        case "anthropic":
            blocks = [block for turn in body["messages"] for block in turn["content"] if block["type"] == "tool_use"]
            return [(block["id"], block["input"]) for block in blocks]
    parts = [part["functionCall"] for turn in body["contents"] for part in turn["parts"] if "functionCall" in part]
    return [(part["id"], part["args"]) for part in parts]


def answered_in(protocol: str, body: dict[str, Any]) -> list[str]:
    """The ids that results name."""
    match protocol:
        case "chat":
            return [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
        case "responses":
            return [item["call_id"] for item in body["input"] if item["type"] == "function_call_output"]
        case "anthropic":
            blocks = [block for turn in body["messages"] for block in turn["content"]]
            return [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    parts = [part for turn in body["contents"] for part in turn["parts"]]
    return [part["functionResponse"]["id"] for part in parts if "functionResponse" in part]


# --- C: arguments


ARGUMENTS = [
    pytest.param('{"order": 7}', {"order": 7}, id="C sound: stays"),
    pytest.param(' \n{"a": 1}\n', {"a": 1}, id="C Qwen: blanks around the object"),
    pytest.param("", {}, id="C OpenRouter: empty, of a call without parameters"),
    pytest.param(" \n", {}, id="C vLLM: blank"),
    pytest.param("\u3000", {}, id="C GLM: a wide blank"),
    pytest.param("null", {"INVALID_JSON": "null"}, id="C langroid: null as text"),
    pytest.param('{"order": 7', {"INVALID_JSON": '{"order": 7'}, id="C cut off by the output cap"),
    pytest.param("[1]", {"INVALID_JSON": "[1]"}, id="C sglang: a list"),
    pytest.param('"Beijing"', {"INVALID_JSON": '"Beijing"'}, id="C sglang: a string"),
    pytest.param('"{\\"a\\": 1}"', {"INVALID_JSON": '"{\\"a\\": 1}"'}, id="C encoded twice"),
    pytest.param('{}{"a": 1}', {"INVALID_JSON": '{}{"a": 1}'}, id="C Anthropic proxies: an empty input first"),
    pytest.param("{'a': 1}", {"INVALID_JSON": "{'a': 1}"}, id="C Hermes: a dict of Python"),
    pytest.param('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}, id="C no number"),
    pytest.param('{"a": "\\ud83d"}', {"INVALID_JSON": '{"a": "\\ud83d"}'}, id="C Claude Code: no low surrogate"),
    pytest.param("[" * 100_000, {"INVALID_JSON": "[" * 100_000}, id="C nested without end"),
    pytest.param('```json\n{"a": 1}\n```', {"INVALID_JSON": '```json\n{"a": 1}\n```'}, id="C DeepSeek: a fence"),
]  # fmt: skip


@protocols
@table(("arguments", "sent"), ARGUMENTS)
def test_arguments_of_a_history_are_an_object(protocol: str, arguments: str, sent: dict[str, Any]) -> None:
    body = body_of(protocol, [Message("user", "a"), calling(("c1", arguments)), result("c1"), Message("user", "b")])
    assert calls_in(protocol, body) == [("c1", sent)]


@protocols
def test_encoders_take_arguments_of_calls_made_by_hand(protocol: str) -> None:
    messages = [Message("user", "a"), calling(("c1", "{"), ("c2", " ")), result("c1"), result("c2")]
    call = UpstreamCall(MODELS[protocol], messages, Params(), None, None, None, 9.0)
    body = json.loads(PROVIDERS[protocol].request(call).body)
    if protocol in ("anthropic", "gemini"):  # the others have no form of their own for them
        assert [arguments for _, arguments in calls_in(protocol, body)] == [{"INVALID_JSON": "{"}, {}]


@pytest.mark.parametrize(
    "function",
    [
        pytest.param({"name": "f"}, id="C agno: arguments left out"),
        pytest.param({"name": "f", "arguments": None}, id="C GLM-4.6: null"),
        pytest.param({"name": "f", "arguments": ""}, id="C empty"),
    ],
)
def test_missing_arguments_are_an_empty_object(function: dict[str, Any]) -> None:
    history: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    bodies = as_request(history, {}), decode_request(json.dumps({"messages": history}).encode())
    for request in bodies:
        assert [call.function.arguments for call in request.messages[0].tool_calls or ()] == ["{}"]


def test_a_sound_history_stays_the_same_objects() -> None:
    image = ImagePart(ImageUrl(PNG_URL))
    messages = [Message("user", [TextPart("a"), image]), calling(("c1", '{"a": 1}')), result("c1")]
    assert all(complete_message(message) is message for message in messages)
    assert with_ids(messages) is messages


def odd_model(*turns: list[tuple[str, str, str]]) -> CallableProvider:
    """A model whose turns are calls: id, name and arguments; at the end it answers. It refuses bad arguments."""
    rest = [*turns]

    async def answer(call: UpstreamCall) -> Any:
        texts = [made.function.arguments for message in call.messages for made in message.tool_calls or ()]
        assert all(isinstance(json.loads(text), dict) for text in texts)
        if not rest:
            return "done"
        turn = rest.pop(0)
        deltas = [ToolDelta(place, arguments, id, name) for place, (id, name, arguments) in enumerate(turn)]
        return [*deltas, Finish("tool_calls")]

    return CallableProvider(answer, models=[MODELS["chat"]], name="openai")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arguments", "observed"),
    [
        pytest.param("", "ran", id="C empty"),
        pytest.param(" \n", "ran", id="C blank"),
        pytest.param("null", "not one JSON object", id="C null as text"),
        pytest.param('{"order": 7', "not one JSON object", id="C cut off"),
        pytest.param("[1]", "not one JSON object", id="C a list"),
    ],
)
async def test_a_run_tells_the_model_of_bad_arguments_and_goes_on_with_any_vendor(
    arguments: str, observed: str
) -> None:
    def f() -> str:
        return "ran"

    bodies: dict[str, dict[str, Any]] = {}

    async def watch(call: UpstreamCall) -> Any:
        if any(message.role == "tool" for message in call.messages):
            for protocol, provider in PROVIDERS.items():
                sent = UpstreamCall(MODELS[protocol], call.messages, Params(), call.tools, None, None, 9.0)
                bodies[protocol] = json.loads(provider.request(sent).body)
            return "done"
        return [ToolDelta(0, arguments, "c" * 46, "f"), Finish("tool_calls")]

    provider = CallableProvider(watch, models=[MODELS["chat"]], name="openai")
    async with Router(providers=[provider], catalogue=Catalogue(())) as router:
        answer = await Agent(router, tools=[f]).run("go")
    assert (answer.status, answer.output) == ("completed", "done")
    (step,) = [step for step in answer.steps if step.action == "tool_call"]
    assert observed in str(step.output)
    assert {protocol: RULES[protocol](body) for protocol, body in bodies.items()} == {
        protocol: [] for protocol in PROVIDERS
    }
    sent = {} if observed == "ran" else {"INVALID_JSON": arguments}
    assert [calls_in(protocol, body)[0][1] for protocol, body in bodies.items()] == [sent] * len(PROVIDERS)


@pytest.mark.anyio
@pytest.mark.parametrize("is_old", [False, True], ids=["C a run is resumed", "C a run of an older version is resumed"])
async def test_pending_calls_of_a_client_have_an_object_for_blank_arguments(
    is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = Tool(name="theirs", parameters={"type": "object"})
    provider = odd_model([("c1", "theirs", " "), ("c2", "theirs", "{")])
    async with Router(providers=[provider], catalogue=Catalogue(()), storage=MemoryStorage()) as router:
        agent = Agent(router, tools=[tool])
        with monkeypatch.context() as patch:
            if is_old:  # which stored the arguments as the model wrote them
                patch.setattr("routewright._core.agent.machine.complete_call", lambda call: call)
            answer = await agent.run("go")
        assert answer.marker == "tool_calls_pending"
        assert [call.function.arguments for call in answer.pending_tool_calls] == ["{}", "{"]
        resumed = await agent.resume(answer.trace_id, results={"c1": "one", "c2": "two"})
    assert (resumed.status, resumed.output) == ("completed", "done")


# --- H: ids


IDS = [
    pytest.param(["chatcmpl-tool-" + "a" * 32], id="H vLLM: 46 characters"),
    pytest.param(["call_" + "b" * 36], id="H litellm of Gemini: 41 characters"),
    pytest.param(["fc_" + "0" * 50], id="H agno: an item's id, 53 characters"),
    pytest.param(["call_1|fc_" + "0" * 76], id="H Codex proxies: both ids in one, 86 characters"),
    pytest.param(["call_x__thought__" + "A" * 3_000], id="H litellm: a signature in the id"),
    pytest.param(["functions.get_weather:0", "functions.get_weather:1"], id="H Kimi: dots and colons"),
    pytest.param(["http_request", "http_request"], id="H Bedrock: the tool's name, twice in a turn"),
    pytest.param(["x" * 46 + "1", "x" * 46 + "2"], id="H long ids that differ at the end"),
    pytest.param(["é", "e"], id="H other alphabets"),
    pytest.param(["a.b", "a_2e_b", "a_b"], id="H another that looks like the replaced one"),
    pytest.param(["a b", "\n", "a\nb"], id="H blanks and line ends"),
]


@protocols
@table("ids", IDS)
def test_ids_of_calls_and_results_fit_together(protocol: str, ids: list[str]) -> None:
    turn = [calling(*((id, json.dumps({"n": n})) for n, id in enumerate(ids))), *(result(id) for id in ids)]
    body = body_of(protocol, [Message("user", "a"), *turn, Message("user", "b"), *turn, Message("user", "c")])
    sent = calls_in(protocol, body)
    assert [arguments for _, arguments in sent] == [{"n": n} for n in range(len(ids))] * 2
    assert len({id for id, _ in sent}) == 2 * len(ids), "different calls stay different"
    assert answered_in(protocol, body) == [id for id, _ in sent]


@protocols
def test_a_replaced_id_stays_the_same_in_later_turns(protocol: str) -> None:
    turn = [calling(("x" * 80, "{}"), ("same", "{}")), result("x" * 80), result("same")]
    messages = [Message("user", "a"), *turn, Message("user", "b")]
    first = calls_in(protocol, body_of(protocol, messages))
    assert calls_in(protocol, body_of(protocol, [*messages, *turn, Message("user", "c")]))[:2] == first


def test_a_result_belongs_to_the_last_call_of_its_id() -> None:
    unanswered = [calling(("x", "{}")), Message("assistant", "never mind")]
    old, _, new, answer = with_ids([*unanswered, calling(("x", "{}")), result("x")])
    assert (old.tool_calls or [])[0].id == "x"
    assert (new.tool_calls or [])[0].id == answer.tool_call_id != "x"


ORDERS: list[Any] = [
    pytest.param([calling(("a", "{}")), calling(("b", "{}")), result("a"), result("b")], id="K Messages: two turns"),
    pytest.param([Message("assistant", "one", [ToolCall("a", FunctionCall("f", "{}"))]), calling(("b", "{}")),
            result("b"), result("a")], id="P Responses: comments between calls"),
    pytest.param([calling(("a", "{}")), Message("developer", "now"), result("a")], id="N Codex: a developer between"),
    pytest.param([calling(("a", "{}")), Message("user", "wait"), result("a")], id="N Codex: the user between"),
    pytest.param([calling(("a", "{}"), ("b", "{}")), result("b"), result("a")], id="N Codex: as tools end"),
    pytest.param([calling(("a", "{}")), result("a"), result("a", "later")], id="N Codex: a result twice"),
    pytest.param([calling(("x" * 99, "{}")), Message("user", "wait"), result("x" * 99)], id="H with a replaced id"),
]  # fmt: skip


@pytest.mark.parametrize("turns", ORDERS)
def test_results_follow_their_calls(turns: list[Message]) -> None:
    body = body_of("chat", [Message("user", "a"), *turns, Message("user", "b")])
    assert [id for id, _ in calls_in("chat", body)] == answered_in("chat", body)


def test_a_result_without_its_call_stays_where_it_is() -> None:
    messages = [result("b"), Message("user", "a"), calling(("a", "{}"), ("b", "{}")), result("a"), result("c")]
    assert in_order(messages) is messages


def test_many_calls_of_one_id_take_linear_time() -> None:
    calls = calling(*[("x", "{}")] * 4_000)
    began = time.process_time()
    (renamed, *_) = with_ids([calls, *[result("x")] * 4_000])
    assert time.process_time() - began < 2.0  # it takes a hundredth of that; where it is squared, ten times as long
    assert len({call.id for call in renamed.tool_calls or ()}) == 4_000


def test_an_id_that_looks_like_a_shortened_one_is_another() -> None:
    long = "x" * 50
    (first, _) = with_ids([calling((long, "{}")), result(long)])
    short = (first.tool_calls or [])[0].id
    calls, own, other = with_ids([calling((long, "{}"), (short, "{}")), result(short), result(long)])
    one, two = (call.id for call in calls.tool_calls or ())
    assert one != two
    assert (other.tool_call_id, own.tool_call_id) == (one, two)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=6), st.sampled_from(["openai", "mistral", "vllm"]))
def test_any_ids_become_different_ids_of_the_hosts_form(ids: list[str], host: str) -> None:
    messages = [Message("user", "a"), calling(*((id, "{}") for id in ids)), *(result(id) for id in ids)]
    call = UpstreamCall(MODELS["chat"], messages, Params(), None, None, None, 9.0)
    _, asked, *results = request_body(call, HOSTS[host])["messages"]
    sent = [made["id"] for made in asked["tool_calls"]]
    assert len({*sent}) == len(ids)
    assert all(map(HOSTS[host].id_form.fullmatch, sent))
    assert [message["tool_call_id"] for message in results] == sent


# --- F: schemas

PROPERTIES = {"type": "object", "properties": {}}
OBJECT = {"type": "object"}
STRING = {"type": "string"}
KEYWORDS = {"items": STRING, "type": {"type": "string", "default": None, "enum": ["array"]}}
SCHEMAS: list[Any] = [
    pytest.param(OBJECT, PROPERTIES, id="F MCP's Go SDK: an object, and nothing else"),
    pytest.param({}, PROPERTIES, id="F empty"),
    pytest.param(None, PROPERTIES, id="F none"),
    pytest.param({"$schema": "http://json-schema.org/draft-07/schema#", "title": "Empty", "type": "object"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Empty", **PROPERTIES},
        id="F openai-agents: with a title"),
    pytest.param({"$schema": "x"}, {"$schema": "x", **PROPERTIES}, id="F Claude's agent SDK: $schema alone"),
    pytest.param({"properties": {"a": STRING}}, {**OBJECT, "properties": {"a": STRING}}, id="F no type"),
    pytest.param({"type": None}, PROPERTIES, id="F a type of null"),
    pytest.param({"type": ["object", "null"]}, PROPERTIES, id="F Codex: a nullable root"),
    pytest.param({"anyOf": [PROPERTIES, {"type": "null"}]}, PROPERTIES, id="F grok2api: a root of object or null"),
    pytest.param({**OBJECT, "properties": None, "required": None}, PROPERTIES, id="F PraisonAI: required is null"),
    pytest.param({"$ref": "#/definitions/F", "definitions": {"F": {**OBJECT, "properties": {"a": STRING}}}},
        {**OBJECT, "properties": {"a": STRING}, "definitions": {"F": {**OBJECT, "properties": {"a": STRING}}}},
        id="F zod-to-json-schema: a root that is a reference"),
    pytest.param({**OBJECT, "properties": {"a": {"type": "array"}}},
        {**OBJECT, "properties": {"a": {"type": "array", "items": {}}}}, id="F ruflo: an array without items"),
    pytest.param({**OBJECT, "properties": {"a": {"anyOf": [{"type": ["array", "null"]}, {"type": "string"}]}}},
        {**OBJECT, "properties": {"a": {"anyOf": [{"type": ["array", "null"], "items": {}}, {"type": "string"}]}}},
        id="F scrapling: an array within anyOf"),
    pytest.param({**OBJECT, "properties": {"p": {"additionalProperties": {"type": "array"}}}},
        {**OBJECT, "properties": {"p": {"additionalProperties": {"type": "array", "items": {}}}}},
        id="F docker: an array within additionalProperties"),
    pytest.param({**OBJECT, "properties": {"a": {"type": "array", "prefixItems": [STRING]}}},
        {**OBJECT, "properties": {"a": {"type": "array", "prefixItems": [STRING], "items": {}}}},
        id="F pydantic: a tuple"),
    pytest.param({**OBJECT, "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}},
        {**OBJECT, "properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}], "items": {}}}},
        id="F draft 7: a tuple"),
    pytest.param({**OBJECT, "properties": {"a": OBJECT}}, {**OBJECT, "properties": {"a": PROPERTIES}},
        id="F rig: a nested object alone"),
    pytest.param({**OBJECT, "properties": {"a": True}}, {**OBJECT, "properties": {"a": {}}},
        id="F Hermes: a boolean schema"),
    pytest.param({**OBJECT, "properties": {"coin": {"type": "string"}, "required": ["coin"]}},
        {**OBJECT, "properties": {"coin": STRING}}, id="F Hyperliquid: required within properties"),
    pytest.param({**OBJECT, "properties": KEYWORDS}, {**OBJECT, "properties": KEYWORDS},
        id="F Notion: names that are keywords"),
]  # fmt: skip


@protocols
@table(("schema", "sent"), SCHEMAS)
def test_schemas_of_tools_are_complete(protocol: str, schema: Any, sent: dict[str, Any]) -> None:
    for tool in (Tool(name="f", parameters=schema), Tool(function=Tool(name="f", parameters=schema).function_spec)):
        body = body_of(protocol, [Message("user", "a")], tool)
        match protocol:
            case "chat":
                assert body["tools"][0]["function"]["parameters"] == sent
            case "responses":
                assert body["tools"][0]["parameters"] == sent
            case "anthropic":
                assert body["tools"][0]["input_schema"] == sent
            case _:
                assert body["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"] == sent


def test_nested_objects_of_strict_tools_stay_open() -> None:
    nested = {"type": "object", "properties": {"a": {"type": "object"}}}
    tools = as_request("a", {"tools": [Tool(name="f", parameters=nested, strict=True)]}).tools or []
    assert tools[0].parameters == nested, "closed, it would take only an empty object"


def test_sound_tools_stay_as_they_are() -> None:
    tools = [Tool(name="f", parameters={"type": "object", "properties": {"a": STRING}})]
    assert as_request("a", {"tools": tools}).tools == tools


# --- L: media types

PNG_URL = f"data:image/png;base64,{PNG}"
JPEG_URL = f"data:image/jpeg;base64,{JPEG}"
URLS = [
    pytest.param(f"data:image/jpg;base64,{JPEG}", JPEG_URL, id="L browsers: image/jpg"),
    pytest.param(f"data:image/pjpeg;base64,{JPEG}", JPEG_URL, id="L Internet Explorer: image/pjpeg"),
    pytest.param("data:image/jpg;base64,AAAA", "data:image/jpeg;base64,AAAA", id="L image/jpg of unknown bytes"),
    pytest.param(f"data:image/x-png;base64,{PNG}", PNG_URL, id="L image/x-png"),
    pytest.param(f"data:IMAGE/PNG;base64,{PNG}", PNG_URL, id="L upper case"),
    pytest.param(f"Data:image/png;BASE64,{PNG}", PNG_URL, id="L upper case of the scheme and base64"),
    pytest.param(f"data:image/png;charset=utf-8;base64,{PNG}", PNG_URL, id="L a charset"),
    pytest.param(f"data:image/png;name=a.png;base64,{PNG}", PNG_URL, id="L LangChain: a name"),
    pytest.param(f" data: image/png ; base64 , {PNG} ", PNG_URL, id="L blanks"),
    pytest.param(f"data:image/png;base64,{PNG[:60]}\r\n{PNG[60:]}", PNG_URL, id="L base64 in lines"),
    pytest.param(f"data:;base64,{PNG}", PNG_URL, id="L FileReader: no type"),
    pytest.param(f"data:application/octet-stream;base64,{JPEG}", JPEG_URL, id="L octet-stream"),
    pytest.param(f"data:image/*;base64,{JPEG}", JPEG_URL, id="L Android: image/*"),
    pytest.param(f"data:image/png;base64,{JPEG}", JPEG_URL, id="L Claude: the bytes are a jpeg"),
    pytest.param(f"data:image/jpeg,{JPEG}", JPEG_URL, id="L base64 without the word"),
    pytest.param("https://x.example/a.jpg", "https://x.example/a.jpg", id="L an address stays"),
]


def images_in(value: Any) -> Iterator[str]:
    """The images of a body as URLs."""
    match value:
        case {"media_type": kind, "data": data} | {"mimeType": kind, "data": data}:
            yield f"data:{kind};base64,{data}"
        case {"type": "url", "url": url} | {"fileUri": url} | {"image_url": {"url": url}} | {"image_url": str(url)}:
            yield url
        case {"file_data": url}:
            yield url
        case dict():
            for inner in value.values():
                yield from images_in(inner)
        case list():
            for inner in value:
                yield from images_in(inner)


@protocols
@table(("url", "sent"), URLS)
def test_images_have_the_common_name_of_their_type(protocol: str, url: str, sent: str) -> None:
    image = ImagePart(ImageUrl(url))
    assert [*images_in(body_of(protocol, [Message("user", [TextPart("look"), image])]))] == [sent]
    if url.startswith("data:"):  # addresses in results are not taken everywhere
        drawn = [Message("user", "draw"), calling(("c1", "{}")), result("c1", [TextPart("a chart"), image])]
        assert [*images_in(body_of(protocol, drawn))] == [sent]


@protocols
@table(
    "url",
    [
        pytest.param(f"data:application/pdf;base64,{PDF}", id="L sound"),
        pytest.param(f"data:application/x-pdf;base64,{PDF}", id="L application/x-pdf"),
        pytest.param(f"data:application/pdf;name=a.pdf;base64,{PDF}", id="L LangChain: a name"),
        pytest.param(f"data:application/octet-stream;base64,{PDF}", id="L FileReader: octet-stream"),
        pytest.param(f"data:;base64,{PDF}", id="L no type"),
        pytest.param(f"data:APPLICATION/PDF;charset=binary;base64,{PDF}", id="L upper case and a charset"),
    ],
)
def test_documents_have_the_common_name_of_their_type(protocol: str, url: str) -> None:
    body = body_of(protocol, [Message("user", [TextPart("read"), FilePart(FileData(url))])])
    assert [*images_in(body)] == [f"data:application/pdf;base64,{PDF}"]


@pytest.mark.parametrize("url", ["data:;base64,AAAA", "data:text/plain;base64,AAAA", "ftp://x/a.png", ""])
def test_other_urls_are_refused_as_before(url: str) -> None:
    with pytest.raises(ValidationFailed, match="must begin with"):
        as_request([Message("user", [ImagePart(ImageUrl(url))])], {})


# --- 4 x 4: what each protocol made goes to each other one

ODD_ID = "functions.look:0|" + "x" * 46
THOUGHTS = {
    "chat": "thought-of-chat",
    "responses": "sealed-by-responses",
    "anthropic": "c2lnLWFudGhyb3BpYw==",
    "gemini": "c2lnLWdlbWluaQ==",
}
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def chat_turn() -> Answer:
    made = [("", "look", ""), (ODD_ID, "look", '{"order": 7'), ("c3", "look", '{"a": 1}')]
    calls = [{"id": id, "type": "function", "function": {"name": name, "arguments": text}} for id, name, text in made]
    message = {"role": "assistant", "content": "I look.", "reasoning_content": THOUGHTS["chat"], "tool_calls": calls}
    return of_json({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USAGE})


def responses_turn() -> Answer:
    calls = [("call_" + "x" * 59, ""), ("c.2", '{"order": 7'), ("c3", '{"a": 1}')]
    output = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": THOUGHTS["responses"]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
        },
        *(
            {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": "look", "arguments": text}
            for id, text in calls
        ),
    ]
    usage = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    return of_json({"id": "resp_1", "object": "response", "status": "completed", "output": output, "usage": usage})


def anthropic_turn() -> Answer:
    content = [
        {"type": "thinking", "thinking": "I think.", "signature": THOUGHTS["anthropic"]},
        {"type": "text", "text": "I look."},
        *({"type": "tool_use", "id": f"toolu_{'x' * 50}{n}", "name": "look", "input": {}} for n in range(2)),
    ]
    usage = {"input_tokens": 9, "output_tokens": 3}
    return of_json({"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage})


def gemini_turn() -> Answer:
    parts = [
        {"text": "I think.", "thought": True},
        {"text": "I look."},
        {"functionCall": {"name": "look", "args": {}}, "thoughtSignature": THOUGHTS["gemini"]},
        {"functionCall": {"id": "x" * 70, "name": "look", "args": {"a": 1}}},
    ]
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 3}
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    return of_json({"candidates": [candidate], "usageMetadata": usage})


TURNS = {"chat": chat_turn, "responses": responses_turn, "anthropic": anthropic_turn, "gemini": gemini_turn}
PATHS = {"chat/completions": "chat", "responses": "responses", "messages": "anthropic", "generateContent": "gemini"}


def protocol_of(request: Request) -> str:
    return next(protocol for end, protocol in PATHS.items() if request.path.endswith(end))


@pytest.fixture(scope="module")
def fake() -> Iterator[Upstream]:
    """All vendors on one server, which makes a turn with calls until there are results."""

    def answer(request: Request) -> Answer:
        protocol = protocol_of(request)
        server.problems += RULES[protocol](request.body)
        return TURNS[protocol]()

    with Upstream(answer) as server:
        yield server


@pytest.fixture
def upstreams(fake: Upstream) -> list[HttpProvider]:
    fake.problems.clear()
    fake.requests.clear()
    return [
        OpenAIProvider("key", base_url=fake.url, models=[MODELS["chat"], MODELS["responses"]]),
        AnthropicProvider("key", base_url=fake.root, models=[MODELS["anthropic"]]),
        GeminiProvider("key", base_url=fake.root, models=[MODELS["gemini"]]),
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("taker", MODELS)
@pytest.mark.parametrize("maker", MODELS)
async def test_what_one_protocol_made_goes_to_each_other(
    maker: str, taker: str, fake: Upstream, upstreams: list[HttpProvider]
) -> None:
    look = Tool(name="look", parameters={"type": "object"})
    image = ImagePart(ImageUrl(f"data:image/jpg;base64,{JPEG}"))
    messages: list[Any] = [Message("user", [TextPart("look at this"), image])]
    async with Router(providers=upstreams, catalogue=Catalogue(())) as router:
        for round_number in range(2):  # the second history has the ids and thoughts of two turns
            answer = await router.route(messages, tools=[look], models=[MODELS[maker].id])
            calls = answer.tool_calls or []
            assert len(calls) >= 2, round_number
            results = [result(call.id, [TextPart("seen"), image]) for call in calls]
            turn = Message("assistant", answer.output or None, calls, reasoning=answer.reasoning)
            messages += [turn, *results, Message("user", "and then?")]
        await router.route(messages, tools=[look], models=[MODELS[taker].id])
    assert fake.problems == []
    sent = fake.requests[-1]
    assert protocol_of(sent) == taker
    others = {mark for protocol, mark in THOUGHTS.items() if protocol != taker}
    assert not any(mark in sent.raw.decode() for mark in others), "reasoning goes to its own vendor alone"
    if maker == taker != "chat":
        assert THOUGHTS[taker] in sent.raw.decode()


# --- any history

_ids = st.sampled_from(["c1", "call_0", "x" * 46, "y" * 46, "a.b", "functions.f:0", "é", "abcDEF123"])
_arguments = st.sampled_from(["", " ", "{}", '{"a": 1}', "null", "[", '{"a"', "1"]) | st.text(max_size=8)
_images = st.sampled_from([param.values[0] for param in URLS]).map(lambda url: ImagePart(ImageUrl(str(url))))
_data = st.sampled_from([f"data:image/jpg;base64,{JPEG}", f"data:;base64,{PNG}"]).map(
    lambda url: ImagePart(ImageUrl(url))
)
_texts = st.sampled_from(["", " ", "a", "b\nc"]).map(TextPart)
_users: st.SearchStrategy[Any] = st.sampled_from(["a", "b c"]) | st.lists(_texts | _images, min_size=1, max_size=3).map(
    lambda parts: [*parts, TextPart("and?")]
)
_results: st.SearchStrategy[Any] = st.sampled_from(["", "ok", '{"n": 1}']) | st.lists(
    _texts | _data, min_size=1, max_size=2
)
_thoughts = st.none() | st.sampled_from(["openai", "anthropic", "google", "other"]).map(
    lambda provider: Reasoning(provider, [{"type": "thinking", "thinking": "t", "signature": "s"}])
)


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    messages = [Message("user", draw(_users))]
    for _ in range(draw(st.integers(0, 3))):
        ids = draw(st.lists(_ids, min_size=1, max_size=3))
        calls = [ToolCall(id, FunctionCall("f", draw(_arguments))) for id in ids]
        text = draw(st.none() | st.sampled_from(["", "I call."]))
        messages.append(Message("assistant", text, calls, reasoning=draw(_thoughts)))
        messages += [result(id, draw(_results)) for id in ids]
        if draw(st.booleans()):
            messages.append(Message("assistant", "so it is"))
            messages.append(Message("user", draw(_users)))
    return messages


@protocols
@given(histories())
def test_any_history_goes_to_each_protocol(protocol: str, messages: list[Message]) -> None:
    body_of(protocol, messages, Tool(name="f"))
