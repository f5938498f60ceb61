"""The OpenAI-compatible provider against a real server: requests, answers and errors."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from routewright import Router
from routewright.backends.providers.endpoint import Endpoint, address_of, complete_url
from routewright.backends.providers.environment import providers_from_environment
from routewright.backends.providers.faults import fault_of_answer
from routewright.backends.providers.hosts import HOSTS, Host
from routewright.backends.providers.openai import Completion, OpenAIProvider, read_usage, request_body
from routewright.errors import NoCandidates, ProviderFault, ValidationFailed
from routewright.wire import (
    Chunk,
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

from .asking import body_for, bytes_of, call, chunks_of, fault_after, fault_of, kind_of, read_streamed, written
from .openai_server import USAGE, Answer, OpenAIServer, delta, events, of_json, whole
from .vendors import BAD_ADDRESSES, KEY, OPENAI, PASSWORD, Vendor

pytestmark = pytest.mark.anyio


@pytest.fixture
def vendor() -> Vendor:
    return OPENAI


# --- what is sent


@pytest.mark.parametrize("stream", [False, True])
async def test_request_matches_the_official_types(server: OpenAIServer, provider: OpenAIProvider, stream: bool) -> None:
    spoken = [
        Message("developer", "be brief"),
        Message("system", "and kind"),
        Message("user", [TextPart("what is this?"), ImagePart(ImageUrl("https://x.example/a.png", "low"))], name="ann"),
        Message("assistant", None, [ToolCall("c1", FunctionCall("look", '{"at": 1}'))]),
        Message("tool", "a parrot", tool_call_id="c1"),
        Message("user", [ImagePart(ImageUrl("data:image/png;base64,AAAA"))]),
    ]
    tools = [
        Tool(function=FunctionSpec("look", "Look.", {"type": "object", "properties": {}}, strict=True)),
        Tool(name="flat", parameters={"type": "object"}),
    ]
    params = Params(0.5, 1.0, stop=["a", "b"], seed=42.0, response_format={"type": "json_object"})
    server.answers = [events(delta("ok", finish="stop")) if stream else whole("ok")]
    sent = call(
        *spoken, stream=stream, params=params, tools=tools, tool_choice="look", max_output_tokens=100,
        model=Model(id="openai/big", provider_model_id="big-2026"),
    )  # fmt: skip
    await chunks_of(provider, sent)
    (request,) = server.requests
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"
    assert request.path == "/v1/chat/completions"
    streamed = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    assert request.body == streamed | {
        "model": "big-2026",
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "system", "content": "and kind"},
            {
                "role": "user",
                "name": "ann",
                "content": [
                    {"type": "text", "text": "what is this?"},
                    {"type": "image_url", "image_url": {"url": "https://x.example/a.png", "detail": "low"}},
                ],
            },
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "a parrot"},
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
            },
        ],
        "max_completion_tokens": 100,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Look.",
                    "parameters": {"type": "object", "properties": {}},
                    "strict": True,
                },
            },
            {"type": "function", "function": {"name": "flat", "parameters": {"type": "object"}}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "temperature": 0.5,
        "top_p": 1,
        "stop": ["a", "b"],
        "seed": 42,
        "response_format": {"type": "json_object"},
    }
    assert isinstance(request.body["top_p"], int)
    assert isinstance(request.body["seed"], int)


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("f", {"type": "function", "function": {"name": "f"}}),
        (NamedToolChoice(FunctionName("f")), {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tool_choice_is_a_word_or_an_object(choice: Any, sent: Any) -> None:
    assert body_for("openai", tools=[Tool(name="f")], tool_choice=choice)["tool_choice"] == sent


def test_tool_choice_is_not_sent_without_tools() -> None:
    assert "tool_choice" not in body_for("openai", tool_choice="auto")
    assert "tools" not in body_for("openai", tools=[])


def test_each_host_gets_its_own_dialect() -> None:
    rest = {"max_output_tokens": 5, "params": Params(seed=1.0)}
    mistral = body_for("mistral", **rest)
    assert (mistral["max_tokens"], mistral["random_seed"]) == (5, 1)
    assert not {"max_completion_tokens", "seed", "stream_options"} & set(mistral)
    assert body_for("groq", **rest)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body_for("groq", **rest, stream=False)
    assert body_for("minimax")["reasoning_split"] is True


def test_developer_role_is_sent_as_system_where_it_is_unknown() -> None:
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    sent = request_body(call(Message("developer", "a"), "b"), HOSTS["mistral"])["messages"]
    assert json.loads(msgspec.json.encode(sent)) == messages


def test_reasoning_models_of_openai_are_sent_no_sampling() -> None:
    thinks, params = Model(id="openai/o3", reasoning=True), Params(temperature=1.0, top_p=1.0)
    lacking = OpenAIProvider(KEY).unsupported(thinks)
    assert {"temperature", "top_p"} <= set(lacking)
    assert not {"temperature", "top_p"} & set(OpenAIProvider(KEY).unsupported(Model(id="openai/gpt-4.1")))
    sent = body_for("openai", model=msgspec.structs.replace(thinks, unsupported=lacking), params=params)
    assert not {"temperature", "top_p"} & set(sent)
    assert body_for("openai", params=params)["temperature"] == 1


@pytest.mark.parametrize(
    ("name", "params", "why"),
    [
        ("gpt-5.1", {"reasoning": "low"}, None),
        ("gpt-5.6-sol", {}, None),
        ("gpt-5.6-sol", {"reasoning": "none"}, None),
        ("gpt-5.6-sol", {"reasoning": "low"}, "params; drop params.reasoning to admit"),
        ("gpt-5.5-pro", {}, "tools; declare no tools to admit"),
        ("gpt-6-astra", {"reasoning": "low"}, "tools; declare no tools to admit"),
        ("gpt-6.1-sol", {}, "tools; declare no tools to admit"),
    ],
)
def test_tools_with_reasoning_go_to_models_that_support_both(name: str, params: Any, why: str | None) -> None:
    router, tools = Router(providers=[OpenAIProvider(KEY)]), [{"type": "function", "name": "f"}]
    model = f"openai/{name}"
    if why is None:
        assert router.decide("hi", models=[model], tools=tools, params=params).model == model
        return
    with pytest.raises(NoCandidates, match=why):
        router.decide("hi", models=[model], tools=tools, params=params)


# --- what comes back


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_are_told_apart_by_index(server: OpenAIServer, provider: OpenAIProvider, stream: bool) -> None:
    def piece(index: int, arguments: str, **first: Any) -> dict[str, Any]:
        function = {"arguments": arguments} | ({"name": first.pop("name")} if first else {})
        return {"index": index, "function": function} | first

    calls = [piece(0, '{"a"', id="c1", type="function", name="f"), piece(1, "{}", id="c2", type="function", name="g")]
    if stream:
        server.answers = [
            events(
                delta(role="assistant", content=None, tool_calls=calls[:1]),
                delta(tool_calls=[piece(0, ": 1}")]),
                delta(tool_calls=calls[1:]),
                delta(finish="tool_calls"),
            )
        ]
        middle = [ToolDelta(0, '{"a"', "c1", "f"), ToolDelta(0, ": 1}"), ToolDelta(1, "{}", "c2", "g")]
        assert await chunks_of(provider, call()) == [*middle, Finish("tool_calls")]
    else:
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        server.answers = [whole(message, finish="tool_calls", usage=None)]
        assert await chunks_of(provider, call(stream=False)) == [
            ToolDelta(0, '{"a"', "c1", "f"),
            ToolDelta(1, "{}", "c2", "g"),
            Finish("tool_calls"),
        ]


async def test_tool_calls_without_index_or_id_are_told_apart(server: OpenAIServer, provider: OpenAIProvider) -> None:
    def said(**function: Any) -> dict[str, Any]:
        return delta(tool_calls=[{"function": function}])

    first, second = said(name="f", arguments="1"), said(name="g", arguments={"x": 3})
    server.answers = [events(first, said(arguments="2"), second, delta(finish="stop"))]
    assert await chunks_of(provider, call()) == [
        ToolDelta(0, "1", "call_0", "f"),
        ToolDelta(0, "2"),
        ToolDelta(1, '{"x":3}', "call_1", "g"),
        Finish("tool_calls"),
    ]


async def test_reasoning_is_not_output(server: OpenAIServer, provider: OpenAIProvider) -> None:
    server.answers = [
        events(delta(reasoning_content="hm"), b": comment\n\n", delta("so", reasoning="x"), delta(finish="stop"))
    ]
    async with provider.open(call()) as chunks:
        assert [chunk async for chunk in chunks] == [
            Thought("hm"), Thought("x"), Delta("so"), Delta(""), Finish("stop"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "common"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("function_call", "tool_calls"),
        ("model_length", "length"),
        ("MAX_TOKENS", "length"),
        ("eos", "stop"),
    ],
)
async def test_finish_reasons_are_translated(
    server: OpenAIServer, provider: OpenAIProvider, said: str, common: str
) -> None:
    server.answers = [whole(finish=said, usage=None), events(delta("hello", finish=said))]
    assert await chunks_of(provider, call(stream=False)) == [Delta("hello"), Finish(common)]
    assert await chunks_of(provider, call()) == [Delta("hello"), Finish(common)]


async def test_empty_answer_is_allowed_if_the_reason_explains_it(
    server: OpenAIServer, provider: OpenAIProvider
) -> None:
    silent = {"role": "assistant", "content": None}
    for reason in ("length", "content_filter"):
        server.answers = [whole(silent, finish=reason, usage=None), events(delta(finish=reason))]
        assert await chunks_of(provider, call(stream=False)) == [Finish(reason)]
        assert await chunks_of(provider, call()) == [Finish(reason)]


async def test_content_in_parts_is_its_text(server: OpenAIServer, provider: OpenAIProvider) -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    server.answers = [whole({"role": "assistant", "content": parts}, usage=None)]
    assert await chunks_of(provider, call(stream=False)) == [Delta("ab"), Finish("stop")]


def test_cached_tokens_are_at_most_the_prompt_wherever_they_are_told() -> None:
    base = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    assert read_usage(base | {"cached_tokens": 7, "prompt_tokens_details": None}) == Usage(100, 20, 7)
    assert read_usage(base | {"prompt_tokens_details": {"cached_tokens": 999}}) == Usage(100, 20, 100)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        # OpenAI's guide to prompt caching: of 2,600 tokens 2,000 were read, 400 written and 200 neither; OpenRouter too
        ({"prompt_tokens_details": {"cached_tokens": 2_000, "cache_write_tokens": 400}}, (2_000, 400)),
        # Alibaba's explicit cache
        ({"prompt_tokens_details": {"cached_tokens": 0, "cache_creation_input_tokens": 1_605}}, (0, 1_605)),
        # proxies that put all of Anthropic's input into prompt_tokens
        ({"prompt_tokens_details": {"cached_tokens": 100, "cache_creation_tokens": 50}}, (100, 50)),
        ({"cache_creation_input_tokens": 70, "prompt_tokens_details": {"cached_tokens": 5}}, (5, 70)),
        ({"prompt_tokens_details": {"cache_write_tokens": "9"}, "cache_creation_input_tokens": -1}, (0, 0)),
        # counted beside the prompt after all: never more than there is
        ({"prompt_tokens_details": {"cached_tokens": 2_500, "cache_write_tokens": 400}}, (2_500, 100)),
    ],
)
def test_tokens_written_to_a_cache_are_part_of_the_prompt(said: dict[str, Any], read: tuple[int, int]) -> None:
    base = {"prompt_tokens": 2_600, "completion_tokens": 20, "total_tokens": 2_620}
    assert read_usage(base | said) == Usage(2_600, 20, cached=read[0], written=read[1])


# --- what is not an answer


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
@pytest.mark.parametrize(
    "said", [None, {}, {"content": None}, {"content": []}, {"content": [{"type": "thinking", "thinking": []}]}]
)
def test_an_answer_without_content_is_malformed(said: Any, reason: str) -> None:
    def document(place: str) -> dict[str, Any]:
        return {"choices": [{"index": 0, "finish_reason": reason} | ({} if said is None else {place: said})]}

    assert kind_of(Completion("x").read, json.dumps(document("message")).encode()) == "malformed"
    assert kind_of(read_streamed, Completion("x"), bytes_of(events(document("delta")))) == "malformed"


NATIVELY_BROKEN = delta(finish="stop")
"""As OpenRouter passes it on."""
NATIVELY_BROKEN["choices"][0]["native_finish_reason"] = "network_error"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (events(delta("half"), delta(finish="error")), "truncated"),
        (events(delta("half"), delta(finish="abort")), "truncated"),
        (events(delta("half"), delta(finish="function_call_filter: MALFORMED_FUNCTION_CALL")), "malformed"),
        (events(delta("half"), NATIVELY_BROKEN), "truncated"),
        (events(delta("half"), delta(refusal="I cannot")), "refused"),
    ],
)
async def test_error_event_in_a_stream_comes_after_the_chunks_before_it(
    server: OpenAIServer, provider: OpenAIProvider, answer: Answer, kind: str
) -> None:
    server.answers = [answer]
    came, fault = await fault_after(provider)
    assert (came, fault.kind) == ([Delta("half")], kind)


def test_an_end_mark_without_a_finish_reason_is_truncated() -> None:
    for said in ([], [delta("half")]):
        assert kind_of(read_streamed, Completion("x"), bytes_of(events(*said))) == "truncated"


async def test_refusal_field_is_a_refusal(server: OpenAIServer, provider: OpenAIProvider) -> None:
    server.answers = [whole({"role": "assistant", "content": None, "refusal": "I cannot"})]
    assert (await fault_of(provider, call(stream=False))).kind == "refused"


STATUSES: list[tuple[int, Any, str]] = [
    (400, {"error": {"message": "no", "type": "invalid_request_error", "code": None}}, "request"),
    (400, {"error": {"code": "context_length_exceeded", "message": "..."}}, "context_overflow"),
    (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens."}, "context_overflow"),
    (400, {"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}, "context_overflow"),
    (400, {"error": {"code": "content_policy_violation"}}, "refused"),
    (400, {"error": {"code": "content_filter", "message": "..."}}, "refused"),
    (400, {"error": {"code": "data_inspection_failed"}}, "refused"),
    (400, {"error": {"message": "Incorrect API key provided"}}, "auth"),
    (400, {"error": {"message": "Model Not Exist"}}, "model_not_found"),
    (401, {"error": {"code": "invalid_api_key"}}, "auth"),
    (402, {"error": {"message": "Insufficient Balance"}}, "auth"),
    (403, {"error": {"message": "no"}}, "auth"),
    (403, {"error": {"message": "Your input was flagged", "code": 403}}, "refused"),
    (403, {"error": {"code": "model_not_found"}}, "model_not_found"),
    (404, {"error": {"code": "model_not_found"}}, "model_not_found"),
    (404, {"error": {"message": "The model `x` does not exist"}}, "model_not_found"),
    (429, {"error": {"code": "insufficient_quota"}}, "auth"),
    (529, {"error": {"type": "overloaded_error"}}, "server"),
]


@pytest.mark.parametrize(("status", "body", "kind"), STATUSES)
def test_status_and_body_determine_the_kind_of_fault(status: int, body: Any, kind: str) -> None:
    assert fault_of_answer("openai", status, {}, json.dumps(body)).kind == kind


# --- keys and hosts


def test_key_is_read_from_the_variable_of_the_host() -> None:
    (key,) = OpenAIProvider(name="mistral", environ={"MISTRAL_API_KEY": KEY})._keys.keys
    assert key.reveal() == KEY
    with pytest.raises(ValidationFailed, match="mistral needs a key; set MISTRAL_API_KEY, or give api_key="):
        OpenAIProvider(name="mistral", environ={"MISTRAL_API_KEY": " "})
    with pytest.raises(ValidationFailed, match="DEEPINFRA_API_KEY or DEEPINFRA_TOKEN"):
        OpenAIProvider(name="deepinfra", environ={})


@pytest.mark.parametrize("address", [f"http://{PASSWORD}@x/v1", *BAD_ADDRESSES])
def test_an_invalid_address_names_its_variable_without_credentials(address: str) -> None:
    with pytest.raises(ValidationFailed, match=r"^OLLAMA_HOST: ") as caught:
        OpenAIProvider(name="ollama", environ={"OLLAMA_HOST": address})
    assert PASSWORD not in written(caught.value)


def test_unknown_host_names_the_nearest() -> None:
    with pytest.raises(ValidationFailed, match="there is no known host 'mistrall'; did you mean 'mistral'"):
        OpenAIProvider(KEY, name="mistrall")


def test_host_must_be_a_host_with_an_address() -> None:
    with pytest.raises(ValidationFailed, match=r"^base_url: '' is not an address"):
        OpenAIProvider(KEY, host=Host(name="x", base_url=""))
    said = r"^host: must be a Host, got str; pass the name of a known one as name=\.\.\., or base_url=\.\.\.$"
    with pytest.raises(ValidationFailed, match=said):
        OpenAIProvider(KEY, host="4921")  # type: ignore[arg-type]  # the point


def test_the_address_of_a_single_call_is_refused_with_a_hint() -> None:
    with pytest.raises(ValidationFailed) as caught:
        OpenAIProvider(KEY, name="mine", base_url="https://llm.example.com/v1/chat/completions/")
    assert str(caught.value) == (
        "base_url: https://llm.example.com/v1/chat/completions/ is the address of a single call; "
        "write https://llm.example.com/v1"
    )


@pytest.mark.parametrize("base_url", ["https://llm.example.com/?", "https://llm.example.com/v1/#"])
def test_nothing_is_appended_behind_an_empty_query_or_fragment(base_url: str) -> None:
    assert address_of(Endpoint(name="mine", base_url="", url_path="/v1/openai"), base_url, {}) == base_url


@pytest.mark.parametrize(("name", "provider"), [("anthropic", "AnthropicProvider"), ("google", "GeminiProvider")])
def test_a_vendor_with_another_protocol_is_refused_naming_its_provider(name: str, provider: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        OpenAIProvider(KEY, name=name)
    assert str(caught.value) == f"name: {name} has its own protocol; use {provider}"


def test_many_tool_calls_are_read_in_linear_time() -> None:
    pieces = [{"id": f"c{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(40_000)]
    document = json.dumps({"choices": [{"message": {"tool_calls": pieces}, "finish_reason": "stop"}]})
    answer = Completion("x")
    started = time.process_time()
    assert len(list(answer.take(document))) == 40_000
    assert time.process_time() - started < 2.0  # it takes a twentieth of that; where it is squared, ten seconds


def test_environment_creates_a_provider_for_each_configured_host() -> None:
    environ = {
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": "https://proxy.example/v1",
        "GROQ_API_KEY": KEY,
        "XAI_API_KEY": "",
        "OLLAMA_HOST": "0.0.0.0",
        "VLLM_API_KEY": KEY,
    }
    assert [repr(provider) for provider in providers_from_environment(environ)] == [
        "OpenAIProvider(name='openai', base_url='https://proxy.example/v1')",
        "OpenAIProvider(name='groq', base_url='https://api.groq.com/openai/v1')",
        "OpenAIProvider(name='ollama', base_url='http://127.0.0.1:11434/v1')",
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("gpu-box", "http://gpu-box:11434/v1"),
        ("gpu-box:9999", "http://gpu-box:9999/v1"),
        ("http://gpu-box:9999/", "http://gpu-box:9999/v1"),
        ("https://llm.example.com", "https://llm.example.com/v1"),
        ("https://llm.example.com/api/v2/", "https://llm.example.com/api/v2"),
        ("[::1]:5", "http://[::1]:5/v1"),
        ("0.0.0.0:5", "http://127.0.0.1:5/v1"),
    ],
)
def test_address_of_a_local_server_is_completed(written: str, meant: str) -> None:
    assert complete_url(written, "http://127.0.0.1:11434/v1") == meant
    given = OpenAIProvider(name="ollama", base_url=written, environ={"OLLAMA_HOST": "http://other"})
    assert repr(given) == f"OpenAIProvider(name='ollama', base_url={meant!r})"


def test_every_known_host_can_be_created() -> None:
    for host in HOSTS.values():
        provider = OpenAIProvider(
            KEY, name=host.name, environ={"AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com"}
        )
        assert provider._url.startswith("https://") or not host.needs_key
        assert host.key_variables


async def test_an_unknown_host_is_asked_for_usage_until_it_refuses(server: OpenAIServer) -> None:
    provider = OpenAIProvider(KEY, name="mine", base_url=server.url, models=[Model(id="mine/x")])
    refused = {"error": {"message": "Unrecognized request argument supplied: stream_options"}}
    other = {"error": {"message": "Unrecognized request argument supplied: seed"}}
    server.answers = [events(delta("a", finish="stop"), USAGE), of_json(other, 400), of_json(refused, 400)]
    assert Usage(9, 3) in await chunks_of(provider, call())
    assert (await fault_of(provider)).status == 400, "what it refuses besides is not sent again"
    assert Delta("h") in await chunks_of(provider, call())
    assert Delta("h") in await chunks_of(provider, call())
    assert ["stream_options" in request.body for request in server.requests] == [True, True, True, False, False]
    await provider.aclose()


async def test_a_call_is_retried_once_without_the_usage_option(server: OpenAIServer) -> None:
    provider = OpenAIProvider(KEY, name="mine", base_url=server.url, models=[Model(id="mine/x")])
    refused = of_json({"error": {"message": "no stream_options"}}, 400)
    server.answers = [refused, refused]
    assert (await fault_of(provider)).status == 400
    assert len(server.requests) == 2
    await provider.aclose()


def piece(index: int | None, arguments: str = "", id: str | None = None, name: str | None = None) -> dict[str, Any]:
    """An event with a piece of a tool call."""
    return delta(tool_calls=[{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}])


@pytest.mark.parametrize(
    ("pieces", "given"),
    [
        (
            [piece(0, "1", "a", "f"), piece(0, "2"), piece(0, "3", "b", "g"), piece(0, "4"), piece(1, "5", "c", "h")],
            [
                ToolDelta(0, "1", "a", "f"), ToolDelta(0, "2"), ToolDelta(1, "3", "b", "g"), ToolDelta(1, "4"),
                ToolDelta(2, "5", "c", "h"),
            ],
        ),
        (
            [piece(0, "1", "a", "f"), piece(0, "2", "x"), piece(0, "3", "y", "")],
            [ToolDelta(0, "1", "a", "f"), ToolDelta(0, "2"), ToolDelta(0, "3")],
        ),
        (
            [piece(0, "1", "a", "f"), piece(0, "2", "a", "f")],
            [ToolDelta(0, "1", "a", "f"), ToolDelta(0, "2", "", "f")],
        ),
        (
            [piece(0, "1"), piece(0, "2", "a"), piece(0, "3", None, "f")],
            [ToolDelta(0, "1", "call_0"), ToolDelta(0, "2", "a"), ToolDelta(0, "3", "", "f")],
        ),
        (
            [piece(0, "1", "a", "f"), piece(1, "2", "a", "g"), piece(1, "3", "a"), piece(2, "4", "a_1", "h")],
            [
                ToolDelta(0, "1", "a", "f"), ToolDelta(1, "2", "a_1", "g"), ToolDelta(1, "3"),
                ToolDelta(2, "4", "a_1_2", "h"),
            ],
        ),
        (
            [piece(1, "1", "a", "f"), piece(None, "2", "b", "g"), piece(None, "3")],
            [ToolDelta(1, "1", "a", "f"), ToolDelta(2, "2", "b", "g"), ToolDelta(2, "3")],
        ),
    ],
    ids=["one index for all", "an id a piece", "all said again", "said late", "one id for all", "some without index"],
)  # fmt: skip
async def test_tool_calls_are_told_apart_with_any_numbering(
    server: OpenAIServer, provider: OpenAIProvider, pieces: list[dict[str, Any]], given: list[Chunk]
) -> None:
    server.answers = [events(*pieces, delta(finish="tool_calls"))]
    assert await chunks_of(provider, call()) == [*given, Finish("tool_calls")]


REFUSAL = {"role": "assistant", "content": None, "refusal": "I cannot"}
TOLD = {"usage": USAGE["usage"]}


@pytest.mark.parametrize(
    "answer",
    [
        whole(REFUSAL),
        whole({"role": "assistant", "content": None}),
        whole("half", finish="error"),
        events(delta(refusal="I cannot") | TOLD),
        events(USAGE, {"error": {"message": "boom"}}),
        events({"error": {"message": "boom"}} | TOLD),
        events(USAGE, "{"),
    ],
)
async def test_usage_is_given_before_a_fault(server: OpenAIServer, provider: OpenAIProvider, answer: Answer) -> None:
    server.answers = [answer]
    async with provider.open(call()) as chunks:
        assert await anext(chunks) == Usage(9, 3)
        with pytest.raises(ProviderFault):
            await anext(chunks)


async def test_after_the_finish_reason_only_usage_counts(server: OpenAIServer, provider: OpenAIProvider) -> None:
    late = [delta("more", finish="length"), piece(0, "{}", "a", "f"), delta(refusal="I cannot")]
    server.answers = [events(delta("all", finish="stop"), *late, USAGE)]
    assert await chunks_of(provider, call()) == [Delta("all"), Usage(9, 3), Finish("stop")]


def test_a_server_without_a_key_is_sent_none() -> None:
    provider = OpenAIProvider(name="vllm", environ={})
    assert "authorization" not in provider.request(call()).reveal()
