"""P: OpenAI's newest models, over the Responses API upstream. What is sent, read and sent back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import (
    Agent,
    AnthropicProvider,
    Caller,
    Catalogue,
    Model,
    NoCandidates,
    OpenAIProvider,
    Router,
    ValidationFailed,
)
from routewright.backends.providers.features import protocol_at
from routewright.backends.providers.hosts import HOSTS
from routewright.backends.providers.responses import ResponseItems
from routewright.errors import ProviderFault
from routewright.server import create_app
from routewright.wire import (
    Delta,
    FaultKind,
    Finish,
    FunctionCall,
    Message,
    Params,
    Reasoning,
    Thought,
    Tool,
    ToolCall,
    Usage,
)
from tests.backends import openai_server
from tests.backends.provider_calls import all_from, call, chunks_of, read_streamed, summary_of
from tests.backends.responses_server import (
    ResponsesServer,
    answer_to,
    called,
    events_of,
    problems_of,
    refused,
    said,
    sse,
    thought,
    whole,
)
from tests.backends.test_reasoning import remembered
from tests.server.asgi_client import ask, scope_of
from tests.tables import table
from tests.upstream import Answer, Request, of_json

rows = table
SOL = Model(id="openai/gpt-6-sol", reasoning=True, modalities=("text", "image", "tool", "file"))
ASTRA = msgspec.structs.replace(SOL, id="openai/gpt-6-astra")
TOOL = Tool(name="look", parameters={"type": "object", "properties": {}})
IMAGE = "data:image/png;base64,QUJD"
PDF = "data:application/pdf;base64,JVBERi0xLjQK"
TOKENS = Usage(20, 12, 8, 5, 4, tier="default")


@pytest.fixture(scope="module")
def server() -> Iterator[ResponsesServer]:
    with ResponsesServer(lambda request: answer_to(request, whole("hello"))) as running:
        yield running


@pytest.fixture
def fake(server: ResponsesServer) -> ResponsesServer:
    """The server without what came before."""
    server.requests.clear()
    server.problems.clear()
    server.answers.clear()
    server.answer = lambda request: answer_to(request, whole("hello"))
    return server


def provider(**options: Any) -> OpenAIProvider:
    return OpenAIProvider(**{"api_key": "sk-secret-key", "base_url": "http://127.0.0.1:9", **options})


def body_of(*messages: Any, model: Model = SOL, options: Any = None, **rest: Any) -> dict[str, Any]:
    """The body of a call with a tool."""
    upstream = call(*messages, model=model, **{"tools": [TOOL], "stream": False, **rest})
    decoded: dict[str, Any] = json.loads(provider(**(options or {}))._body(upstream))
    return decoded


# --- which API


@rows(
    ("name", "options", "tools", "path"),
    [
        pytest.param("gpt-4.1", {}, True, "chat/completions", id="P openai: a model that does not think"),
        pytest.param("gpt-5.2", {}, True, "chat/completions", id="P openai: thinks beside tools over chat"),
        pytest.param("gpt-5.4-mini", {}, True, "responses", id="P openai: gpt-5.4 with tools"),
        pytest.param("gpt-5.4-mini", {}, False, "chat/completions", id="P openai: gpt-5.4 without tools"),
        pytest.param("gpt-6-astra", {}, True, "responses", id="P openai: gpt-6 with tools"),
        pytest.param("gpt-7", {}, True, "responses", id="P openai: a model of next year"),
        pytest.param("gpt-5.5-pro", {}, False, "responses", id="P openai: a pro model without tools"),
        pytest.param("o3-pro", {}, False, "responses", id="P openai: o3-pro"),
        pytest.param("gpt-5.3-codex", {}, False, "responses", id="P openai: codex"),
        pytest.param("gpt-6-sol", {"api": "chat"}, True, "chat/completions", id="P openai: chat on request"),
        pytest.param("gpt-4.1", {"api": "responses"}, False, "responses", id="P openai: Responses on request"),
        pytest.param("gpt-6-sol", {"name": "azure"}, True, "responses", id="P azure: its name"),
        pytest.param("gpt-6-sol", {"name": "openrouter"}, True, "chat/completions", id="P openrouter"),
        pytest.param("gpt-6-sol", {"name": "mine"}, True, "chat/completions", id="P a gateway: chat"),
        pytest.param("m", {"name": "groq", "api": "responses"}, True, "responses", id="P groq: on request"),
        pytest.param("m", {"name": "vllm", "api": "responses"}, True, "responses", id="P vllm: on request"),
    ],
)
def test_calls_go_over_the_api_that_takes_them(name: str, options: Any, tools: bool, path: str) -> None:
    host = options.get("name", "openai")
    upstream = call(model=Model(id=f"{host}/{name}", reasoning=True), tools=[TOOL] if tools else None)
    assert provider(**options).request(upstream).url.endswith(f"/{path}")


def test_deployments_go_by_the_model_that_they_are_like() -> None:
    azure = OpenAIProvider("k", name="azure", base_url="https://r.openai.azure.com")
    for model in (
        Model(id="azure/prod", like="openai/gpt-6-sol", reasoning=True),
        Model(id="azure/gpt-6-sol", provider_model_id="prod", reasoning=True),
    ):
        request = azure.request(call(model=model, tools=[TOOL], params=Params(reasoning="max")))
        assert request.url == "https://r.openai.azure.com/openai/v1/responses"
        body = json.loads(request.body)
        assert (body["model"], body["reasoning"]["effort"]) == ("prod", "max")
        assert "reasoning_tools" not in azure.unsupported(model)
    plain = Model(id="azure/prod", like="openai/gpt-4.1")
    assert azure.request(call(model=plain, tools=[TOOL])).url.endswith("/chat/completions")


@rows("api", ["Responses", "", None, 1])
def test_an_unknown_api_is_refused(api: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"api: must be one of auto, chat, responses"):
        provider(api=api)


def test_the_address_of_a_call_is_refused_as_a_base() -> None:
    with pytest.raises(ValidationFailed, match="is the address of a single call"):
        provider(base_url="https://llm.example.com/v1/responses")


TOOLED = [m for m in Catalogue().models if m.provider == "openai" and "tool" in (m.modalities or ())]
EFFORTS: tuple[Any, ...] = (None, "none", "minimal", "low", "medium", "high", "max")


@rows("model", TOOLED, ids=[f"P {model.id}" for model in TOOLED])
def test_models_with_tools_take_tools_with_each_effort_that_they_have(model: Model) -> None:
    openai = provider()
    missing = {*openai.unsupported(model)}
    assert "reasoning_tools" not in missing
    for effort in EFFORTS:
        if (effort == "none" and "reasoning_none" in missing) or (effort and not model.reasoning):
            continue
        upstream = call(model=model, tools=[TOOL], params=Params(reasoning=effort), stream=False)
        request = openai.request(upstream)
        body = json.loads(request.body)
        assert body["tools"], effort
        over_responses = request.url.endswith("/responses")
        assert (problems_of(body) if over_responses else openai_server.problems_of(body)) == []
        sent = body.get("reasoning", {}).get("effort") if over_responses else body.get("reasoning_effort")
        assert (sent is None) == (effort is None), "no model is told anything because of its tools"


@rows(
    ("options", "fields", "why"),
    [
        pytest.param({}, {"tools": 1, "params": {"seed": 1}}, "drop params.stop and params.seed", id="P seed, tools"),
        pytest.param({}, {"tools": 1, "params": {"stop": "x"}}, "drop params.stop and params.seed", id="P stop, tools"),
        pytest.param({"api": "responses"}, {"tools": 1, "params": {"stop": "x"}}, "; drop params.stop to admit",
            id="P stop alone"),
        pytest.param({}, {"params": {"seed": 1}}, None, id="P openai: a seed over chat completions"),
        pytest.param({"api": "responses"}, {"params": {"seed": 1}}, "drop params.seed", id="P seed over Responses"),
        pytest.param({"api": "responses"}, {"params": {"stop": ["x"]}}, "drop params.stop", id="P stop over Responses"),
        pytest.param({"api": "chat"}, {"tools": 1},
            r"gpt-6-astra tools \(no tools beside thinking here; OpenAI and Azure have both over the Responses API, "
            r"with api='auto'\); declare no tools", id="P openai: chat completions alone"),
        pytest.param({"api": "chat"}, {"tools": 1, "params": {"reasoning": "high"}, "models": ["openai/gpt-6-sol"]},
            r"gpt-6-sol params \(no tools beside thinking here; .*api='auto'\); drop params.reasoning",
            id="P openai: an effort and tools over chat completions alone"),
        pytest.param({"api": "chat"}, {"tools": 1, "params": {"temperature": 0.5}, "models": ["openai/gpt-6-sol"]},
            r"gpt-6-sol params; drop params.temperature", id="P openai: another parameter"),
    ],
)  # fmt: skip
def test_constraints_filter_what_an_api_does_not_have(options: Any, fields: Any, why: str | None) -> None:
    router = Router(providers=[provider(**options)])
    wishes: Any = {"models": ["openai/gpt-6-astra"], **fields}
    wishes["tools"] = [{"type": "function", "name": "f"}] if "tools" in fields else None
    if why is None:
        assert router.decide("hi", **wishes).model == "openai/gpt-6-astra"
        return
    with pytest.raises(NoCandidates, match=why):
        router.decide("hi", **wishes)


# --- requests


@rows(
    ("rest", "fields"),
    [
        pytest.param({},
            {"model": "gpt-6-sol", "input": [{"type": "message", "role": "user", "content": "hi"}], "store": False,
                "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"},
                "tools": [{"type": "function", "name": "look", "strict": False,
                        "parameters": {"type": "object", "properties": {}}}]},
            id="P openai: nothing stored, reasoning encrypted, strict said"),
        pytest.param({"stream": True}, {"stream": True}, id="P openai: a stream"),
        pytest.param({"max_output_tokens": 16}, {"max_output_tokens": 16}, id="P openai: the least cap"),
        pytest.param({"tool_choice": "look"}, {"tool_choice": {"type": "function", "name": "look"}},
            id="P openai: a tool by name is flat"),
        pytest.param({"tool_choice": "required"}, {"tool_choice": "required"}, id="P openai: any tool"),
        pytest.param(
            {"params": Params(reasoning="max", verbosity="low", parallel_tool_calls=False, service_tier="priority")},
            {"reasoning": {"effort": "max", "summary": "auto"}, "text": {"verbosity": "low"},
                "parallel_tool_calls": False, "service_tier": "priority"}, id="P openai: options"),
        pytest.param({"params": Params(reasoning="none")}, {"reasoning": {"effort": "none"}}, id="P openai: no effort"),
        pytest.param(
            {"params": Params(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {}}})},
            {"text": {"format": {"type": "json_schema", "strict": False, "name": "n", "schema": {}}}},
            id="P openai: a flat schema"),
        pytest.param({"params": Params(response_format={"type": "json_object"})},
            {"text": {"format": {"type": "json_object"}}}, id="P openai: any JSON"),
        pytest.param({"params": Params(extra={"openai": {"prompt_cache_key": "k", "safety_identifier": "u"}})},
            {"prompt_cache_key": "k", "safety_identifier": "u"}, id="P openai: fields of its own"),
        pytest.param(
            {"tools": [Tool(name="f", strict=True, parameters={"type": "object", "additionalProperties": False})]},
            {"tools": [{"type": "function", "name": "f", "strict": True,
                        "parameters": {"type": "object", "additionalProperties": False}}]},
            id="P openai: strict on request"),
    ],
)  # fmt: skip
def test_requests_have_the_fields_of_the_api(rest: Any, fields: dict[str, Any]) -> None:
    body = body_of(**rest)
    assert {name: body.get(name) for name in fields} == fields
    assert problems_of(body) == []


@rows(
    ("messages", "items"),
    [
        pytest.param([{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}],
            [{"type": "message", "role": "system", "content": "s"},
                {"type": "message", "role": "developer", "content": "d"}], id="P openai: instructions in their places"),
        pytest.param([{"role": "user", "name": "ann",
                    "content": [{"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}},
                        {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
                        {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
                        {"type": "file", "file": {"file_data": PDF}},
                        {"type": "file", "file": {"file_data": "https://x.example/a.pdf", "filename": "a.pdf"}}]}],
            [{"type": "message", "role": "user",
                    "content": [{"type": "input_text", "text": "t", "prompt_cache_breakpoint": {"mode": "explicit"}},
                        {"type": "input_image", "image_url": IMAGE, "detail": "low"},
                        {"type": "input_image", "image_url": "https://x.example/a.png", "detail": "auto"},
                        {"type": "input_file", "filename": "document.pdf", "file_data": PDF},
                        {"type": "input_file", "file_url": "https://x.example/a.pdf"}]}], id="P openai: parts"),
        pytest.param([{"role": "assistant", "content": None,
                    "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]},
                {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": ""}],
            [{"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1",
                    "output": [{"type": "input_image", "image_url": IMAGE, "detail": "auto"}]},
                {"type": "message", "role": "assistant", "content": "ab"},
                {"type": "message", "role": "assistant", "content": ""}],
            id="P openai: calls without ids of items, results with images, texts"),
    ],
)  # fmt: skip
def test_messages_become_items(messages: list[Any], items: list[Any]) -> None:
    body = body_of(*msgspec.convert(messages, list[Message]))
    assert body["input"] == items
    assert problems_of(body) == []


def test_other_hosts_get_what_is_common() -> None:
    history = [Message("developer", "d"), Message("user", "hi")]
    body = body_of(
        *history, model=Model(id="vllm/q", reasoning=True), options={"name": "vllm", "api": "responses"}, stream=True
    )
    assert body == {
        "model": "q",
        "input": [
            {"type": "message", "role": "system", "content": "d"},
            {"type": "message", "role": "user", "content": "hi"},
        ],
        "store": False,
        "stream": True,
        "tools": body_of()["tools"],
    }


@rows(
    ("rest", "words"),
    [
        pytest.param({"max_output_tokens": 15}, "at least 16 tokens, got 15", id="P openai: a smaller cap"),
        pytest.param(
            {
                "messages": [
                    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}
                ]
            },
            "sound",
            id="P openai: sound",
        ),
    ],
)
def test_what_the_api_cannot_express_is_not_sent(rest: Any, words: str) -> None:
    messages = msgspec.convert(rest.pop("messages", []), list[Message])
    with pytest.raises(ProviderFault, match=words) as caught:
        body_of(*messages, **rest)
    assert caught.value.kind is FaultKind.REQUEST


# --- answers

CALLS = [called("look", {"x": 1}, "c1"), called("look", {"x": 2}, "c2")]
ANSWERS: list[Any] = [
    pytest.param(whole("Hello."), ("Hello.", [], TOKENS, "stop"), id="P openai: a text"),
    pytest.param(whole(said("One. ", "Two.")), ("One. Two.", [], TOKENS, "stop"), id="P openai: two parts"),
    pytest.param(whole(thought(1, "Hm."), *CALLS),
        ("", [("c1", "look", {"x": 1}), ("c2", "look", {"x": 2})], TOKENS, "tool_calls"),
        id="P openai: parallel calls"),
    pytest.param(whole("I look.", status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        ("I look.", [], TOKENS, "length"), id="P openai: cut by the cap"),
    pytest.param(whole(thought(), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        ("", [], TOKENS, "length"), id="P openai: thinking used up the cap"),
    pytest.param(whole("I", status="incomplete", incomplete_details={"reason": "content_filter"}),
        ("I", [], TOKENS, "content_filter"), id="P openai: filtered"),
    pytest.param(whole("So", service_tier="priority"),
        ("So", [], msgspec.structs.replace(TOKENS, tier="priority"), "stop"), id="P openai: the tier that served it"),
    pytest.param(whole(""), ("", [], TOKENS, "stop"), id="P openai: an empty text is an answer"),
    pytest.param(whole("a", {"type": "web_search_call", "id": "ws_1", "status": "completed"}, "b"),
        ("ab", [], TOKENS, "stop"), id="P openai: an unknown item"),
]  # fmt: skip


def read(response: dict[str, Any], *, stream: bool) -> list[Any]:
    reader = ResponseItems("openai")
    chunks, fault = all_from(reader, sse(*events_of(response)) if stream else json.dumps(response).encode())
    if fault is not None:
        raise fault
    return [chunk for chunk in chunks if chunk != Delta("")]


@rows(("response", "summary"), ANSWERS)
@rows("stream", [False, True])
def test_answers_are_read(response: dict[str, Any], summary: Any, stream: bool) -> None:
    assert summary_of(read(response, stream=stream)) == summary


def reshaped(response: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Answer:
    events = [change(event) for event in json.loads(json.dumps(events_of(response)))]
    return sse(*[event for event in events if event is not None])


def without(*ends: str) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
    return lambda event: None if event["type"].endswith(ends) else event


def fields_gone(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda event: {name: value for name, value in event.items() if name not in names}


def no_output(event: dict[str, Any]) -> dict[str, Any]:
    return event | ({"response": event["response"] | {"output": []}} if event["type"] == "response.completed" else {})


def rotated(event: dict[str, Any]) -> dict[str, Any]:
    event |= {"item_id": f"x{event['sequence_number']}"} if "item_id" in event else {}
    if "item" in event:
        event["item"]["id"] = f"y{event['sequence_number']}"
    return event


def blank_ends(event: dict[str, Any]) -> dict[str, Any]:
    if event["type"].endswith("text.done"):
        event["text"] = ""
    if event["type"].endswith("arguments.done"):
        event["arguments"] = ""
    if event["type"] == "response.output_item.done":
        event["item"] |= {"message": {"content": []}, "function_call": {"arguments": ""}}.get(event["item"]["type"], {})
    return no_output(event)


def early_end(event: dict[str, Any]) -> dict[str, Any]:
    return event | ({"type": "response.output_text.done", "text": "One"} if event.get("delta") == "One" else {})


def whole_in_place(event: dict[str, Any]) -> dict[str, Any]:
    return event["response"] if event["type"] == "response.completed" else event


SHAPES: list[Any] = [
    pytest.param(lambda event: event, id="P openai"),
    pytest.param(without("delta"), id="P proxies: no pieces"),
    pytest.param(without("delta", "output_item.done", "text.done", "arguments.done"), id="P Rapid-MLX: only the end"),
    pytest.param(without("text.done"), id="P llama-stack: no end of the text"),
    pytest.param(without("output_item.added", "part.added"), id="P litellm: items are not announced"),
    pytest.param(no_output, id="P vllm, new-api, ChatGPT: completed with an empty output"),
    pytest.param(blank_ends, id="P agentgateway: ends without content"),
    pytest.param(early_end, id="P OmniRoute: done after the first piece"),
    pytest.param(rotated, id="P Copilot, litellm: ids that change with each event"),
    pytest.param(fields_gone("output_index"), id="P llm-rosetta: no indices"),
    pytest.param(fields_gone("item_id"), id="P llm-rosetta: no ids"),
    pytest.param(lambda event: event | {"output_index": 0}, id="P open-responses-server, kitty: index 0 for all"),
    pytest.param(whole_in_place, id="P sap-proxy: the response is the event"),
    pytest.param(lambda event: event | ({"type": "response.done"} if event["type"] == "response.completed" else {}),
        id="P realtime: response.done"),
]  # fmt: skip


@rows("change", SHAPES)
def test_any_shape_of_a_stream_gives_the_answer_once(change: Any) -> None:
    item = said("One. Two. Three.")
    response = whole(thought(1, "Hm.", "So."), item, called("look", {"x": 1}, "c1"), called("see", {"y": 2}, "c2"))
    chunks, fault = all_from(ResponseItems("openai"), reshaped(response, change))
    assert fault is None
    chunks = [chunk for chunk in chunks if chunk != Delta("")]
    wanted = [("c1", "look", {"x": 1}), ("c2", "see", {"y": 2})]
    assert summary_of(chunks) == ("One. Two. Three.", wanted, TOKENS, "tool_calls")
    thoughts = [chunk for chunk in chunks if isinstance(chunk, Thought)]
    assert "".join(chunk.text for chunk in thoughts) == "Hm.\n\nSo."
    (item,) = [chunk.item for chunk in thoughts if chunk.item]
    assert item["encrypted_content"] == "gAAA1"


def test_names_only_outside_the_data_are_read() -> None:
    stream = b"".join(
        f"event: {event.pop('type')}\ndata: {json.dumps(event)}\n\n".encode() for event in events_of(whole("Hello."))
    )
    assert summary_of(read_streamed(ResponseItems("openai"), stream))[0] == "Hello."


def test_thoughts_of_open_models_are_read_and_go_back() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    response = whole(item, called("look", {}, "c1"))
    for stream in (False, True):
        chunks = read(response, stream=stream)
        assert [chunk for chunk in chunks if isinstance(chunk, Thought)] == [Thought("Hm."), Thought(item=item)]
    answer = remembered("vllm", chunks)
    history = [Message("user", "hi"), answer, Message("tool", "x", tool_call_id="c1")]
    options = {"name": "vllm", "api": "responses"}
    assert body_of(*history, model=Model(id="vllm/q"), options=options)["input"][1] == item


FAILED = {"code": "server_error", "message": "sorry"}


def failing(code: str, message: str = "no") -> dict[str, Any]:
    return whole("par", status="failed", error={"code": code, "message": message})


FAULTS: list[Any] = [
    pytest.param(json.dumps(failing("server_error")).encode(), "server", True, id="P openai: failed"),
    pytest.param(sse(*events_of(failing("server_error"))), "server", True, id="P openai: response.failed"),
    pytest.param(sse(*events_of(failing("rate_limit_exceeded"))), "rate_limited", True,
        id="P openai: at the limit on the way"),
    pytest.param(sse(*events_of(failing("invalid_prompt"))), "refused", True, id="P openai: a flagged prompt"),
    pytest.param(sse(*events_of(failing("bio_policy"))), "refused", True, id="P openai: a policy"),
    pytest.param(sse(*events_of(failing("image_too_large"))), "request", True, id="P openai: an image"),
    pytest.param(sse({"type": "error", "code": "server_error", "message": "x", "param": None}), "server", False,
        id="P openai: an event error"),
    pytest.param(sse({"type": "error", "error": {"type": "rate_limit_error", "message": "x"}}, named=False),
        "rate_limited", False, id="P proxies: an error within an error, unnamed"),
    pytest.param(sse({"type": "error", "code": "context_length_exceeded", "message": "x"}), "context_overflow", False,
        id="P openai: too long, told in the stream"),
    pytest.param(sse(*events_of(whole("Hello."))[:-1]), "truncated", False, id="P proxies: no last event"),
    pytest.param(sse(*events_of(whole("Hello."))[:-1], b"data: [DONE]\n\n"), "truncated", False,
        id="P proxies: only [DONE]"),
    pytest.param(sse(*events_of(whole("par", status="cancelled"))), "truncated", True,
        id="P openai: cancelled by somebody"),
    pytest.param(sse(*events_of(whole("par", status="incomplete"))), "truncated", True,
        id="P openai: incomplete without why"),
    pytest.param(json.dumps(whole("par", status="incomplete", incomplete_details={"reason": "steered"})).encode(),
        "truncated", True, id="P openai: steered"),
    pytest.param(json.dumps(whole(status="queued")).encode(), "truncated", True, id="P openai: in the background"),
    pytest.param(json.dumps(whole("par", status="in_progress")).encode(), "truncated", True, id="P openai: going on"),
    pytest.param(json.dumps(whole(refused())).encode(), "refused", True, id="P openai: a refusal"),
    pytest.param(sse(*events_of(whole(refused()))), "refused", True, id="P openai: a refusal, streamed"),
    pytest.param(sse(*events_of(whole(refused()))[:-1]), "refused", False, id="P openai: a refusal that breaks off"),
    pytest.param(json.dumps(whole()).encode(), "malformed", True, id="P openai: nothing"),
    pytest.param(json.dumps(whole(thought())).encode(), "malformed", True, id="P openai: only thoughts"),
    pytest.param(b'{"error": {"code": "invalid_api_key"}}', "auth", False, id="P proxies: an error with 200"),
    pytest.param(b"{}", "malformed", False, id="P proxies: an empty object"),
    pytest.param(b'{"choices": []}', "malformed", False, id="P proxies: another protocol"),
    pytest.param(b"[", "malformed", False, id="P proxies: broken JSON"),
    pytest.param(sse({"type": "response.output_text.delta", "delta": {"text": "a"}}), "malformed", False,
        id="P a wrong type"),
]  # fmt: skip


@rows(("answer", "kind", "billed"), FAULTS)
def test_a_broken_answer_is_a_fault_with_its_usage(answer: Any, kind: str, billed: bool) -> None:
    chunks, fault = all_from(ResponseItems("openai"), answer)
    assert fault is not None
    assert fault.kind == kind
    assert not any(isinstance(chunk, Finish) for chunk in chunks)
    assert [chunk for chunk in chunks if isinstance(chunk, Usage)] == ([TOKENS] if billed else [])


def test_vllm_calls_an_incomplete_answer_completed() -> None:
    response = whole("par", status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    events = events_of(response)
    events[-1]["type"] = "response.completed"
    assert summary_of(read_streamed(ResponseItems("vllm"), *map(bytes_of_event, events)))[3] == "length"


def bytes_of_event(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


shuffled = st.deferred(
    lambda: st.sampled_from(
        [
            whole("Hello, ", "world. 🦜"),
            whole(thought(1, "Hm."), said("I look. "), *CALLS),
            whole(thought(1), CALLS[0], thought(2, "Then."), CALLS[1]),
            whole(thought(), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            failing("server_error"),
        ]
    )
)


@given(st.data())
def test_an_answer_is_whole_and_billed_or_a_fault(data: st.DataObject) -> None:
    """Any split of the bytes, any order of fields, any shape, and a break anywhere."""
    response = data.draw(shuffled)
    change = data.draw(st.sampled_from([shape.values[0] for shape in SHAPES]))
    events = [change(event) for event in json.loads(json.dumps(events_of(response, data.draw(st.integers(1, 9)))))]
    events = [event for event in events if event is not None]
    kept = data.draw(st.integers(0, len(events)))
    text = b""
    for event in events[:kept]:
        names = data.draw(st.permutations(list(event)))
        text += bytes_of_event({name: event[name] for name in names})
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    try:
        chunks = read_streamed(ResponseItems("openai"), *pieces)
    except ProviderFault:
        assert kept < len(events) or response["error"]
        return
    assert kept == len(events)
    assert summary_of(chunks) == summary_of(read(response, stream=False))


# --- reasoning goes back

TURNS: list[Any] = [
    pytest.param([thought(1, "Hm."), CALLS[0]], id="P openai: before its call"),
    pytest.param([thought(1), CALLS[0], CALLS[1]], id="P openai: before two calls"),
    pytest.param([thought(1), CALLS[0], thought(2), CALLS[1]], id="P openai: between calls"),
    pytest.param([thought(1), said("I look."), CALLS[0]], id="P openai: before a text and a call"),
    pytest.param([thought(1), said("I look."), thought(2), CALLS[0]], id="P openai: between text and call"),
    pytest.param([thought(1), said("So.")], id="P openai: before the answer"),
    pytest.param([thought(1), thought(2), CALLS[0]], id="P openai: two in a row"),
    pytest.param([thought(1), said("I look.", phase="commentary"), CALLS[0], said("So.", phase="final_answer")],
        id="P openai: phases"),
]  # fmt: skip


def resent(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is to be sent back."""
    match item["type"]:
        case "message":
            text = "".join(part["text"] for part in item["content"])
            phase = {"phase": item["phase"]} if "phase" in item else {}
            return {"type": "message", "role": "assistant", "content": text, **phase}
        case "function_call":
            return {name: item[name] for name in ("type", "call_id", "name", "arguments")}
    return item


@rows("output", TURNS)
@rows("stream", [False, True])
def test_reasoning_goes_back_in_its_place(output: list[dict[str, Any]], stream: bool) -> None:
    answer = remembered("openai", read(whole(*output), stream=stream))
    calls = [item["call_id"] for item in output if item["type"] == "function_call"]
    results = [Message("tool", "x", tool_call_id=id) for id in calls] or [Message("user", "on")]
    body = body_of(Message("user", "hi"), answer, *results)
    if output[-1].get("phase") == "final_answer":  # a turn of ours ends with its calls, so its last text comes before
        assert [item.get("phase") for item in body["input"][1:-1]] == [None, "commentary", None, "final_answer"]
    assert body["input"][1 : 1 + len(output)] == list(map(resent, output))
    assert problems_of(body) == []


ODD = [None, "x", [1], ["a", 2], [9, 9], [-5, -5], {"chars": 1}, [3, 0], [0, 1], [2, 2], [10**9, 0]]


@rows("places", [(one, other) for one in ODD for other in ODD])
def test_a_forged_position_loses_and_repeats_nothing(places: Any) -> None:
    calls = [ToolCall("c1", FunctionCall("look", "{}")), ToolCall("c2", FunctionCall("look", "{}"))]
    items = [thought(number) | {"at": place} for number, place in enumerate(places)]
    items += [{"type": "message", "phase": 5}, {"type": "reasoning"}, {"type": "reasoning", "encrypted_content": 7}]
    answer = Message("assistant", "One. Two.", calls, reasoning=Reasoning("openai", items))
    results = [Message("tool", "x", tool_call_id=id) for id in ("c1", "c2")]
    body = body_of(Message("user", "hi"), answer, *results)
    assert problems_of(body) == []
    sent = body["input"]
    assert "".join(item["content"] for item in sent if item.get("role") == "assistant") == "One. Two."
    assert [item["call_id"] for item in sent if item["type"] == "function_call"] == ["c1", "c2"]
    numbers = [item["id"] for item in sent if item["type"] == "reasoning"]
    assert numbers == sorted({*numbers})


@rows(
    ("maker", "model", "options", "kept"),
    [
        pytest.param("openai", SOL, {}, True, id="P openai: its own"),
        pytest.param(
            "openai", msgspec.structs.replace(SOL, id="azure/gpt-6-sol"), {"name": "azure"}, False, id="P azure"
        ),
        pytest.param("azure", SOL, {}, False, id="P openai: azure's"),
        pytest.param("anthropic", SOL, {}, False, id="P openai: anthropic's"),
        pytest.param("openrouter", SOL, {}, False, id="P openai: openrouter's"),
    ],
)
def test_reasoning_goes_to_its_vendor_alone(maker: str, model: Model, options: Any, kept: bool) -> None:
    calls = [ToolCall("c1", FunctionCall("look", "{}"))]
    answer = Message("assistant", None, calls, reasoning=Reasoning(maker, [thought()], "hm"))
    history = Message("user", "hi"), answer, Message("tool", "x", tool_call_id="c1")
    body = body_of(*history, model=model, options=options)
    assert [item["type"] for item in body["input"]][1:2] == (["reasoning"] if kept else ["function_call"])
    assert json.dumps(body).count("gAAA") == kept
    for other in (AnthropicProvider("k"), OpenAIProvider("k", name="openrouter"), provider(api="chat")):
        upstream = call(*history, model=Model(id=f"{other.name}/m", reasoning=True), tools=[TOOL])
        assert b"gAAA" not in other.request(upstream).body


def test_reasoning_of_chat_completions_is_not_sent_over_responses() -> None:
    items: list[Any] = [{"reasoning_content": "hm"}, {"type": "thinking", "thinking": "x", "signature": "s"}]
    answer = Message("assistant", "so", reasoning=Reasoning("openai", items))
    assert len(body_of(Message("user", "hi"), answer, Message("user", "on"))["input"]) == 3


# --- over the wire


def conversation(request: Request) -> dict[str, Any]:
    """Two calls at once, then one more after thinking again, then the answer."""
    results = [item for item in request.body["input"] if item.get("type") == "function_call_output"]
    if not results:
        return whole(thought(1, "Both."), said("I look. ", phase="commentary"), *CALLS)
    if len(results) == 2:
        return whole(thought(2), called("look", {"x": 3}, "c3"))
    return whole(thought(3), said("It is 6.", phase="final_answer"))


def look(x: int) -> str:
    """Look something up."""
    return str(x)


def test_an_agent_thinks_between_parallel_calls(fake: ResponsesServer) -> None:
    fake.answer = lambda request: answer_to(request, conversation(request))
    only = Model(id="openai/gpt-6-astra")
    router = Router(providers=[OpenAIProvider("k", base_url=fake.url, models=[only])])
    run = Agent(router, tools=[look]).blocking.run("How much?")
    assert (run.status, run.output) == ("completed", "It is 6.")
    assert fake.problems == []
    last = fake.requests[-1].body["input"]
    assert [item.get("id") or item.get("call_id") or item["role"] for item in last[1:]] == [
        "user", "rs_1", "assistant", "c1", "c2", "c1", "c2", "rs_2", "c3", "c3",
    ]  # fmt: skip
    assert "effort" not in fake.requests[0].body["reasoning"]


@pytest.mark.anyio
@rows("stream", [False, True])
async def test_the_door_of_the_same_api_passes_reasoning_through(fake: ResponsesServer, stream: bool) -> None:
    fake.answer = lambda request: answer_to(request, conversation(request))
    app = create_app(Router(providers=[OpenAIProvider("k", base_url=fake.url)]), authenticate=lambda scope: Caller())
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
    asked: dict[str, Any] = {"model": "openai/gpt-6-astra", "tools": [tool], "stream": stream}
    items: list[Any] = [{"role": "user", "content": "hi"}]
    for _ in range(2):
        body = json.dumps(asked | {"input": items}).encode()
        client = await ask(app, scope_of("POST", "/openai/v1/responses"), body)
        assert client.status == 200, client.body
        last = client.body.split(b"data: ")[-1]
        response = json.loads(last)["response"] if stream else client.json
        items += response["output"]
        calls = [item["call_id"] for item in response["output"] if item["type"] == "function_call"]
        items += [{"type": "function_call_output", "call_id": id, "output": "1"} for id in calls]
    assert fake.problems == []
    sent = fake.requests[-1].body["input"]
    assert [item["type"] for item in sent[:4]] == ["message", "reasoning", "message", "function_call"]
    assert sent[1]["encrypted_content"] == "gAAA1"
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 5}


@pytest.mark.anyio
async def test_a_refused_option_is_left_out_from_then_on(fake: ResponsesServer) -> None:
    openai = OpenAIProvider("k", base_url=fake.url)
    upstream = call(model=SOL, tools=[TOOL])
    for message, param in (
        ("Your organization must be verified to generate reasoning summaries.", "reasoning.summary"),
        ("Encrypted content is not supported with this model.", "include"),
    ):
        fake.answers.append(of_json({"error": {"message": message, "param": param, "code": "unsupported_value"}}, 400))
        assert summary_of(await chunks_of(openai, upstream))[0] == "hello"
    assert [sorted({"include", "reasoning"} & {*request.body}) for request in fake.requests] == [
        ["include", "reasoning"], ["include", "reasoning"], ["include", "reasoning"], ["reasoning"],
    ]  # fmt: skip
    assert fake.requests[-1].body["reasoning"] == {}
    assert summary_of(await chunks_of(openai, upstream))[0] == "hello"
    assert len(fake.requests) == 5


@rows(
    ("name", "protocol"),
    [
        ("gpt-4.1", "chat completions"),
        ("gpt-6-sol", "Responses with tools, else chat completions"),
        ("o3-pro", "Responses"),
    ],
)
def test_the_protocol_of_a_model_is_known(name: str, protocol: str) -> None:
    assert protocol_at("openai", Model(id=f"openai/{name}")) == protocol


def test_only_openai_and_azure_are_called_by_it_unasked() -> None:
    assert {host.name for host in HOSTS.values() if "auto" in host.responses} == {"openai", "azure"}
