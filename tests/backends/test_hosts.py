"""Hosts known by name: their URLs, the requests each accepts, and how their answers, usage and errors are read."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, get_args
from urllib.parse import urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import Policy, Pricing, Router
from routewright._core.sse import SseEvent
from routewright._core.tokens.estimate import MESSAGE_TOKENS, overhead
from routewright.backends.providers.environment import providers_from_environment
from routewright.backends.providers.hosts import HOSTS
from routewright.backends.providers.openai import Completion, OpenAIProvider, _with_short_ids, read_usage, request_body
from routewright.backends.tokens import PackedTokenCounter
from routewright.errors import ContentRefused, NoCandidates, ProviderFault, ValidationFailed
from routewright.testing import ScriptedProvider
from routewright.wire import (
    Availability,
    Chunk,
    Delta,
    Feature,
    Finish,
    FunctionCall,
    FunctionName,
    ImagePart,
    ImageUrl,
    Message,
    Model,
    NamedToolChoice,
    RouteRequest,
    TextPart,
    Thought,
    Tool,
    ToolCall,
    Usage,
)

from .asking import body_for, call
from .openai_server import Answer, OpenAIServer, delta, events, of_json, whole

KEY = "sk-Canary/0123456789+abcdef"
RESOURCE = "https://my-resource.openai.azure.com"


# --- the table


@pytest.mark.parametrize("host", HOSTS.values(), ids=lambda host: host.name)
def test_every_row_has_valid_addresses_variables_and_features(host: Any) -> None:
    addresses = [*host.regions.values(), *([host.base_url] if host.base_url else [])]
    for address in addresses:
        parts = urlsplit(address)
        assert parts.scheme == ("https" if host.needs_key else "http"), address
        assert parts.hostname
        assert not address.endswith("/")
    assert host.base_url or host.url_variable
    assert host.key_variables
    assert set(host.unsupported) | set(host.unsupported_reasoning) <= set(get_args(Feature))
    assert not set(host.unsupported) & set(host.unsupported_reasoning)


def test_a_request_that_a_host_would_ignore_goes_elsewhere() -> None:
    price = Pricing(1.0, 1.0)
    cheap = Model(id="ollama/small", quality=0.9, modalities=("text", "tool"), pricing_per_1m=Pricing(0.0, 0.0))
    other = Model(id="other/big", quality=0.1, modalities=("text", "tool"), pricing_per_1m=price)
    ollama = OpenAIProvider(name="ollama", environ={}, models=[cheap])
    router = Router(providers=[ollama, ScriptedProvider((), name="other", models=[other])])
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": tools}
    assert router.decide(asked).model == "ollama/small"
    assert router.decide({**asked, "tool_choice": "required"}).model == "other/big"


def test_names_are_left_out_where_unsupported() -> None:
    named = Message("user", "hi", name="ann")
    assert body_for("mistral", named)["messages"] == [{"role": "user", "content": "hi"}]
    assert body_for("groq", named)["messages"] == [{"role": "user", "content": "hi"}]
    assert body_for("openai", named)["messages"] == [{"role": "user", "content": "hi", "name": "ann"}]
    assert named.name == "ann"


@pytest.mark.parametrize("choice", ["f", NamedToolChoice(FunctionName("f"))])
def test_a_chosen_tool_is_sent_alone_where_it_cannot_be_named(choice: Any) -> None:
    tools = [Tool(name="e"), Tool(name="f"), Tool(name="g")]
    body = body_for("llamacpp", tools=tools, tool_choice=choice)
    assert body["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["f"]
    assert len(body_for("openai", tools=tools, tool_choice=choice)["tools"]) == 3
    for word in ("auto", "none", "required"):
        body = body_for("llamacpp", tools=tools, tool_choice=word)
        assert (body["tool_choice"], len(body["tools"])) == (word, 3)


ASKED = Message(
    "assistant",
    None,
    [ToolCall("call_0fypS1hVX", FunctionCall("f", "{}")), ToolCall("abcDEF123", FunctionCall("f", "{}"))],
)
RESULTS = [Message("tool", "1", tool_call_id="call_0fypS1hVX"), Message("tool", "2", tool_call_id="abcDEF123")]


def test_ids_of_tool_calls_and_results_are_shortened_where_required() -> None:
    asked, *answers = body_for("mistral", ASKED, *RESULTS)["messages"]
    ids = [made["id"] for made in asked["tool_calls"]]
    assert ids == [answer["tool_call_id"] for answer in answers]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", id) for id in ids)
    assert ids[1] == "abcDEF123", "what fits is kept"
    assert ids[0] != ids[1]
    assert body_for("openai", ASKED)["messages"][0]["tool_calls"][0]["id"] == "call_0fypS1hVX"
    plain = Message("assistant", "hi")
    assert _with_short_ids(plain) is plain, "most messages have no ids, and a copy of each takes time"


def test_text_parts_are_joined_where_unsupported_unless_there_are_images() -> None:
    image = ImagePart(ImageUrl("https://example.com/a.png"))
    said = [
        Message("user", [TextPart("a"), TextPart("b")]),
        Message("user", [TextPart("c"), image]),
        Message("user", ""),
    ]
    texts = [message["content"] for message in body_for("deepseek", *said)["messages"]]
    assert texts[0] == "a\n\nb"
    assert [part["type"] for part in texts[1]] == ["text", "image_url"]
    assert texts[2] == ""
    assert len(body_for("openai", *said)["messages"][0]["content"]) == 2


def test_consecutive_messages_of_one_role_are_joined_where_required() -> None:
    image = ImagePart(ImageUrl("https://example.com/a.png"))
    said = [
        Message("user", "a"),
        Message("developer", "s"),
        Message("user", [TextPart("b")]),
        Message("assistant", "c"),
        ASKED,
        RESULTS[0],
        RESULTS[1],
        Message("system", "t"),
        Message("user", "d"),
        Message("user", [TextPart("e"), image]),
    ]
    told = body_for("perplexity", *said)["messages"]
    assert [(message["role"], message["content"]) for message in told[:3]] == [
        ("system", "s\n\nt"),
        ("user", "a\n\nb"),
        ("assistant", "c"),
    ]
    assert [message["role"] for message in told[3:]] == ["assistant", "tool", "tool", "user"]
    assert [part.get("text") for part in told[6]["content"]] == ["d", "e", None]
    assert len(body_for("openai", *said)["messages"]) == len(said)


CHART = ImagePart(ImageUrl("data:image/png;base64,AAAA"))
PLAN = ImagePart(ImageUrl("https://example.com/plan.png", "low"))
DRAWN = [
    Message("user", "Draw both."),
    Message("assistant", None, tool_calls=[ToolCall(id, FunctionCall("draw", "{}")) for id in ("a", "b", "c")]),
    Message("tool", [TextPart("A chart."), CHART], tool_call_id="a"),
    Message("tool", [PLAN, CHART], tool_call_id="b"),
    Message("tool", "Failed.", tool_call_id="c"),
    Message("user", "Well?"),
]


def of_image(part: ImagePart) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(msgspec.json.encode(part))
    return sent


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize("host", sorted(HOSTS.keys() - {"mistral"}))
def test_images_of_tool_results_go_to_a_user_message_after_them(host: str) -> None:
    sent = body_for(host, *DRAWN)["messages"]
    assert [each["role"] for each in sent[:6]] == ["user", "assistant", "tool", "tool", "tool", "user"]
    assert [each["content"] for each in sent[2:5]] == ["A chart.", "(attachments, which are shown below)", "Failed."]
    assert [each["tool_call_id"] for each in sent[2:5]] == ["a", "b", "c"]
    of_a, of_b = text("Attachments of the tool call a:"), text("Attachments of the tool call b:")
    shown = [of_a, of_image(CHART), of_b, of_image(PLAN), of_image(CHART)]
    assert sent[5]["content"][:5] == shown
    assert [text("Well?")] == sent[5]["content"][5:] or sent[6:] == [{"role": "user", "content": "Well?"}]
    assert body_for(host, *DRAWN[:5])["messages"][5]["content"] == shown


def test_text_added_for_images_of_results_is_within_the_bound_of_the_prompt() -> None:
    """Budgets rely on this."""
    id = "call_" + "Q7x" * 20
    result, bare = Message("tool", [CHART], tool_call_id=id), Message("tool", [CHART], tool_call_id="")
    plain = body_for("mistral", bare)["messages"]
    written = body_for("openai", result)["messages"]
    added = [written[0]["content"], written[1]["content"][0]["text"]]
    assert [each["role"] for each in plain + written] == ["tool", "tool", "user"]
    room = overhead(RouteRequest([result])) - overhead(RouteRequest([Message("tool", "", tool_call_id=id)]))
    counter = PackedTokenCounter()
    assert MESSAGE_TOKENS + sum(counter.count(each, "o200k_base") for each in added) <= room


def test_images_stay_in_tool_results_where_no_user_message_may_follow() -> None:
    sent = body_for("mistral", *DRAWN)["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "tool", "tool", "tool", "user"]
    assert sent[2]["content"] == [text("A chart."), of_image(CHART)]
    assert sent[3]["content"] == [of_image(PLAN), of_image(CHART)]


def test_images_follow_the_results_of_their_turn() -> None:
    again = [
        Message("assistant", None, tool_calls=[ToolCall("d", FunctionCall("draw", "{}"))]),
        Message("tool", [TextPart("One."), TextPart("Two."), CHART], tool_call_id="d"),
    ]
    sent = body_for("openai", *DRAWN[:5], *again)["messages"]
    roles = ["user", "assistant", "tool", "tool", "tool", "user", "assistant", "tool", "user"]
    assert [each["role"] for each in sent] == roles
    assert sent[7]["content"] == [text("One."), text("Two.")]
    assert sent[8]["content"] == [text("Attachments of the tool call d:"), of_image(CHART)]


@given(st.lists(st.text(), min_size=2, max_size=2, unique=True))
def test_short_ids_of_two_calls_differ_as_the_calls_do(ids: list[str]) -> None:
    said = [Message("tool", "", tool_call_id=id) for id in ids]
    first, second = body_for("mistral", *said)["messages"]
    assert first["tool_call_id"] != second["tool_call_id"]


@pytest.mark.parametrize("host", ["deepseek", "moonshotai"])
def test_tool_calls_get_blank_reasoning_where_it_is_required(host: str) -> None:
    said = [Message("user", "hi"), ASKED, *RESULTS, Message("assistant", "so")]

    def thoughts(model: Model, *messages: Message) -> list[Any]:
        body = request_body(msgspec.structs.replace(call(*messages), model=model), HOSTS[host])
        return [message.get("reasoning_content") for message in json.loads(msgspec.json.encode(body))["messages"]]

    reasoning, plain = Model(id="x/m", reasoning=True), Model(id="x/m")
    assert thoughts(reasoning, *said) == [None, " ", None, None, " "]
    assert set(thoughts(plain, *said)) == {None}
    assert set(thoughts(reasoning, Message("user", "hi"), Message("assistant", "so"))) == {None}


def test_openrouter_is_told_to_require_all_parameters() -> None:
    assert body_for("openrouter")["provider"] == {"require_parameters": True}


def test_the_cap_has_the_field_name_of_the_host() -> None:
    named = {
        name: next(field for field in body_for(name, max_output_tokens=5) if field.startswith("max")) for name in HOSTS
    }
    newer = {"openai", "azure", "groq", "xai", "cerebras", "moonshotai", "minimax", "alibaba", "xiaomi"}
    assert {name for name, field in named.items() if field == "max_completion_tokens"} == newer


# --- regions


@pytest.mark.parametrize(
    ("name", "region", "url"),
    [
        ("openai", "eu", "https://eu.api.openai.com/v1"),
        ("alibaba", "us", "https://dashscope-us.aliyuncs.com/compatible-mode/v1"),
        ("moonshotai", "cn", "https://api.moonshot.cn/v1"),
        ("zai", "cn", "https://open.bigmodel.cn/api/paas/v4"),
        ("minimax", "cn", "https://api.minimaxi.com/v1"),
        ("openrouter", "eu", "https://eu.openrouter.ai/api/v1"),
    ],
)
def test_a_region_has_its_own_address(name: str, region: str, url: str) -> None:
    provider = OpenAIProvider(KEY, name=name, region=region, environ={"OPENAI_BASE_URL": "https://proxy.example/v1"})
    assert provider.request(call()).url == f"{url}/chat/completions"
    assert provider.region == region


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "zai", "region": "mars"}, "region: zai has no region 'mars'; take one of 'intl', 'cn'"),
        ({"name": "groq", "region": "eu"}, "region: groq has no region 'eu'; leave it out, or give base_url=..."),
        ({"region": 7}, "region: openai has no region 7; take one of 'us', 'eu', 'au', 'in', 'jp', 'ae'"),
        (
            {"region": "eu", "base_url": "https://x.example"},
            "region: 'eu' has an address of its own; give region or base_url",
        ),
    ],
)
def test_an_invalid_region_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        OpenAIProvider(KEY, environ={}, **given)
    assert str(caught.value) == said


def test_models_of_a_region_satisfy_policies_with_that_region() -> None:
    policies = [Policy(name="eu", regions=["eu"]), Policy(name="us", regions=["us"])]
    router = Router(providers=[OpenAIProvider(KEY, region="eu"), OpenAIProvider(KEY, name="groq")], policies=policies)
    where = {model.id: model.availability.regions for model in router.models()}
    assert where["openai/gpt-4.1"] == ("eu",)
    assert where["groq/openai/gpt-oss-20b"] == ()
    assert router.decide("hi", policy_id="eu").model.startswith("openai/")
    with pytest.raises(NoCandidates):
        router.decide("hi", policy_id="us")


def test_the_region_of_a_provider_overrides_the_declared_one() -> None:
    model = Model(id="openai/gpt-4.1", availability=Availability(regions=("us", "eu")))
    router = Router(providers=[OpenAIProvider(KEY, region="eu", models=[model])])
    (found,) = [each for each in router.models() if each.id == model.id]
    assert found.availability.regions == ("eu",)


# --- Azure


@pytest.mark.parametrize(
    "given",
    [
        RESOURCE,
        f"{RESOURCE}/",
        f" {RESOURCE}/openai",
        f"{RESOURCE}/openai/v1/",
    ],
)
def test_azures_address_is_completed_from_any_form(given: str) -> None:
    environ = {"AZURE_OPENAI_ENDPOINT": given, "AZURE_OPENAI_API_KEY": KEY}
    for provider in (OpenAIProvider(name="azure", environ=environ), *providers_from_environment(environ)):
        assert provider.request(call()).url == f"{RESOURCE}/openai/v1/chat/completions"
    stripped = given.strip()
    assert (
        OpenAIProvider(KEY, name="azure", base_url=stripped).request(call()).url.startswith(f"{RESOURCE}/openai/v1/c")
    )


def test_an_address_with_another_path_is_unchanged() -> None:
    provider = OpenAIProvider(KEY, name="azure", base_url="https://gateway.example/open/azure")
    assert provider.request(call()).url == "https://gateway.example/open/azure/chat/completions"


@pytest.mark.parametrize(
    "path", ["/?api-version=2024-10-21", "/openai/deployments/mine/chat/completions?api-version=1"]
)
def test_an_azure_address_of_another_api_is_refused_with_a_hint(path: str) -> None:
    with pytest.raises(ValidationFailed, match=r"base_url: .*; give https://RESOURCE\.openai\.azure\.com, with"):
        OpenAIProvider(KEY, name="azure", base_url=f"{RESOURCE}{path}")


def test_azure_has_its_own_key_header_and_the_deployment_as_the_model() -> None:
    request = OpenAIProvider(KEY, name="azure", base_url=RESOURCE).request(call(model="azure/my-deployment"))
    assert request.reveal()["api-key"] == KEY
    assert "authorization" not in request.reveal()
    assert KEY not in repr(request.headers)
    assert json.loads(request.body)["model"] == "my-deployment"


def test_azure_needs_both_variables() -> None:
    with pytest.raises(ValidationFailed) as caught:
        OpenAIProvider(KEY, name="azure", environ={})
    assert str(caught.value) == (
        "base_url: azure has an address of your own only; set AZURE_OPENAI_ENDPOINT, or give base_url=..."
    )
    for environ in ({"AZURE_OPENAI_API_KEY": KEY}, {"AZURE_OPENAI_ENDPOINT": RESOURCE}):
        assert providers_from_environment(environ) == []


FILTERED_PROMPT = {
    "error": {
        "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "type": None,
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
        "innererror": {
            "code": "ResponsibleAIPolicyViolation",
            "content_filter_result": {"violence": {"filtered": True, "severity": "high"}},
        },
    }
}
PROMPT_RESULTS = {"choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]}
FILTERED_ANSWER = delta(finish="content_filter")
OFFSETS = {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"start_offset": 0}}]}


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        yield running
    assert running.problems == []


@pytest.fixture
async def azure(server: OpenAIServer, anyio_backend: str) -> AsyncIterator[OpenAIProvider]:
    model = Model(id="azure/my-deployment", like="openai/gpt-4.1")
    made = OpenAIProvider(KEY, name="azure", base_url=server.url.removesuffix("/v1"), models=[model])
    yield made
    await made.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answer",
    [
        of_json(FILTERED_PROMPT, 400),
        events(PROMPT_RESULTS, delta("half"), FILTERED_ANSWER),
        whole({"role": "assistant", "content": None}, finish="content_filter"),
    ],
    ids=["prompt", "stream", "answer"],
)
async def test_azures_content_filter_is_a_refusal(server: OpenAIServer, azure: OpenAIProvider, answer: Answer) -> None:
    server.answers = [answer]
    with pytest.raises(ContentRefused):
        await Router(providers=[azure]).route("hi")
    assert len(server.requests) == 1
    assert server.requests[0].path == "/openai/v1/chat/completions"


@pytest.mark.anyio
async def test_annotations_of_azures_filter_are_not_output(server: OpenAIServer, azure: OpenAIProvider) -> None:
    server.answers = [events(PROMPT_RESULTS, delta("all"), OFFSETS, delta(finish="stop"))]
    answer = await Router(providers=[azure]).route("hi")
    assert answer.output == "all"


# --- their own words


def take(document: Any) -> list[Chunk]:
    return list(Completion("x").take(json.dumps(document)))


thoughts = pytest.mark.parametrize(
    "thought",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"content": "", "reasoning_content": "hm"},
        {"content": None, "reasoning_content": "hm"},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
    ],
    ids=["deepseek", "groq", "openrouter", "minimax", "xai", "vllm", "mistral"],
)


@thoughts
def test_reasoning_in_any_form_is_not_output(thought: dict[str, Any]) -> None:
    assert take(delta(**thought)) == [Thought("hm")]
    answer = Completion("x")
    chunks = [*answer.take(json.dumps(delta(**thought))), *answer.take(json.dumps(delta("so", finish="stop")))]
    assert [*chunks, answer.end()] == [Thought("hm"), Delta("so"), Finish("stop")]
    message = {"role": "assistant", **thought} | ({} if isinstance(thought.get("content"), list) else {"content": "so"})
    plain = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    said = [] if isinstance(thought.get("content"), list) else [Delta("so")]
    assert take(plain) == [Thought("hm"), *said]


@pytest.mark.parametrize("content", [{}, {"content": ""}, {"content": None}], ids=["none", "empty", "null"])
@thoughts
def test_an_answer_with_only_reasoning_is_malformed(thought: dict[str, Any], content: dict[str, Any]) -> None:
    answer = Completion("x")
    for document in (delta(**content), delta(**content | thought), delta(**content, finish="stop")):
        list(answer.take(json.dumps(document)))
    with pytest.raises(ProviderFault, match="neither content nor tool calls"):
        answer.end()


def test_an_end_mark_may_be_followed_by_white_space() -> None:
    answer = Completion("x")
    list(answer.take(json.dumps(delta("a", finish="stop"))))
    assert list(answer.add(SseEvent("[DONE] "))) == [Finish("stop")]


def test_an_empty_text_without_reasoning_is_an_answer() -> None:
    answer = Completion("x")
    list(answer.take(json.dumps(delta("", finish="stop"))))
    assert answer.end() == Finish("stop")


@pytest.mark.parametrize(
    ("said", "read"),
    [
        # DeepSeek
        (
            {
                "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, "prompt_cache_hit_tokens": 64,
                "prompt_cache_miss_tokens": 36, "completion_tokens_details": {"reasoning_tokens": 12},
            },
            Usage(100, 20, cached=64, reasoning=12),
        ),
        # Moonshot
        ({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, "cached_tokens": 50}, Usage(100, 20, 50)),
        # OpenRouter
        (
            {
                "prompt_tokens": 194, "completion_tokens": 2, "total_tokens": 196, "cost": 0.95, "is_byok": False,
                "cost_details": {"upstream_inference_cost": 19}, "completion_tokens_details": {"reasoning_tokens": 0},
                "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 100, "audio_tokens": 0},
            },
            Usage(194, 2, cached=20, written=100),
        ),
        # OpenAI, of a recording
        (
            {
                "prompt_tokens": 60, "completion_tokens": 2, "total_tokens": 62,
                "prompt_tokens_details": {"cached_tokens": 20, "audio_tokens": 50},
            },
            Usage(60, 2, cached=20, audio=40),
        ),
        # Groq
        (
            {
                "queue_time": 0.04, "prompt_tokens": 24, "prompt_time": 0.001, "completion_tokens": 51,
                "completion_time": 0.3, "total_tokens": 75, "prompt_tokens_details": {"cached_tokens": 16},
            },
            Usage(24, 51, cached=16),
        ),
        # Perplexity: Sonar, then what deep research bills beside
        (
            {"prompt_tokens": 8, "completion_tokens": 400, "total_tokens": 408, "search_context_size": "low"},
            Usage(8, 400),
        ),
        (
            {
                "prompt_tokens": 33, "completion_tokens": 7_163, "total_tokens": 7_196, "citation_tokens": 20_016,
                "num_search_queries": 29, "reasoning_tokens": 73_997,
            },
            Usage(33 + 20_016, 7_163 + 73_997, reasoning=73_997),
        ),
        # xAI
        (
            {
                "prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135, "num_sources_used": 0,
                "prompt_tokens_details": {"text_tokens": 32, "image_tokens": 0, "cached_tokens": 6},
                "completion_tokens_details": {"reasoning_tokens": 94, "accepted_prediction_tokens": 0},
            },
            Usage(32, 103, cached=6, reasoning=94),
        ),
        # Alibaba
        (
            {
                "prompt_tokens": 3_019, "completion_tokens": 104, "total_tokens": 3_123,
                "prompt_tokens_details": {"cached_tokens": 2_048, "cache_creation_input_tokens": 0},
            },
            Usage(3_019, 104, cached=2_048),
        ),
        # MiniMax
        (
            {
                "total_tokens": 249, "total_characters": 0, "prompt_tokens": 26, "completion_tokens": 223,
                "completion_tokens_details": {"reasoning_tokens": 214},
            },
            Usage(26, 223, reasoning=214),
        ),
    ],
    ids=["deepseek", "moonshot", "openrouter", "openai", "groq", "sonar", "deep research", "xai", "alibaba", "minimax"],
)  # fmt: skip
def test_usage_is_read_in_the_form_of_each_host(said: dict[str, Any], read: Usage) -> None:
    assert read_usage(said) == read


def test_groqs_usage_is_read_from_x_groq() -> None:
    counts = {"prompt_tokens": 24, "completion_tokens": 51, "total_tokens": 75}
    last = delta(finish="stop") | {"x_groq": {"id": "req_1", "usage": counts}}
    assert take(last) == [Usage(24, 51)]
    assert take(delta("a") | {"x_groq": {"id": "req_1"}}) == [Delta("a")]
    assert take({"choices": [], "usage": counts, "x_groq": {"usage": {"prompt_tokens": 1}}}) == [Usage(24, 51)]


def test_usage_of_moonshots_streams_is_read_from_the_choice() -> None:
    last = delta(finish="stop")
    last["choices"][0]["usage"] = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12, "cached_tokens": 4}
    assert take(last) == [Usage(9, 3, cached=4)]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}, "choices": None}, "auth"),
        (200, {"base_resp": {"status_code": 1002, "status_msg": "rate limit"}}, "rate_limited"),
        (200, {"base_resp": {"status_code": 1026, "status_msg": "input new_sensitive"}}, "refused"),
        (200, {"base_resp": {"status_code": 2013, "status_msg": "invalid params"}}, "request"),
        (200, {"base_resp": {"status_code": 9999, "status_msg": "?"}}, "malformed"),
        (200, {"x_groq": {"id": "req_1", "error": "over capacity"}}, "server"),
        (400, {"error": {"code": "tool_use_failed", "message": "Failed to call a function."}}, "malformed"),
        (400, {"error": {"code": "Arrearage", "message": "Access denied", "type": "Arrearage"}}, "auth"),
        (404, {"error": {"code": "DeploymentNotFound", "message": "It does not exist"}}, "model_not_found"),
        (413, {"error": {"code": "rate_limit_exceeded", "message": "Request too large"}}, "rate_limited"),
        (429, {"error": {"type": "exceeded_current_quota_error", "message": "check your balance"}}, "auth"),
        (429, {"error": {"type": "engine_overloaded_error", "message": "overloaded"}}, "rate_limited"),
        (429, {"error": {"code": "1113", "message": "Insufficient balance or no resource package."}}, "auth"),
        (429, {"error": {"code": "1302", "message": "Rate limit reached"}}, "rate_limited"),
        (400, {"error": {"code": "1301", "message": "potentially unsafe or sensitive content"}}, "refused"),
        (401, {"error": {"code": "1002", "message": "Authorization Token is invalid"}}, "auth"),
    ],
)  # fmt: skip
def test_errors_are_read_in_the_form_of_each_host(status: int, body: Any, kind: str) -> None:
    provider = OpenAIProvider(KEY)
    with pytest.raises(ProviderFault) as caught:
        provider.read(provider.request(call()), status, {}, json.dumps(body).encode())
    assert caught.value.kind == kind


def test_status_code_0_of_minimax_is_not_an_error() -> None:
    good = {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
    assert take(good | {"base_resp": {"status_code": 0, "status_msg": ""}}) == [Delta("hi")]
