"""What each vendor receives for every option, and what a provider reports as unsupported."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import AnthropicProvider, GeminiProvider, OpenAIProvider
from routewright._core.catalogue.models import snapshot
from routewright._core.request.read import needs_of
from routewright._core.routing.pool import Pool
from routewright.backends.providers.endpoint import wire_name
from routewright.backends.providers.hosts import DIALS, HOSTS
from routewright.backends.providers.http import HttpProvider
from routewright.backends.providers.reasoning import WORDS, Thinking, find_nearest, merge
from routewright.errors import ProviderFault
from routewright.wire import (
    AudioPart,
    CacheControl,
    Effort,
    Feature,
    FileData,
    FilePart,
    FunctionCall,
    ImagePart,
    ImageUrl,
    InputAudio,
    Message,
    Model,
    Params,
    ReasoningBudget,
    RouteRequest,
    ServiceTier,
    TextPart,
    Tool,
    ToolCall,
    UpstreamCall,
    Verbosity,
)
from tests.tables import table

from . import anthropic_server as anthropic
from . import gemini_server as gemini
from . import openai_server as openai
from . import responses_server as responses
from .provider_calls import call

CAP = 4000
BOUND = 2048
TOOL = Tool(name="f", parameters={"type": "object", "properties": {}})
ASKED: dict[str, Any] = {word: word for word in get_args(Effort)} | {"bound": ReasoningBudget(BOUND)}
FEATURE: dict[str, Feature] = {"none": "reasoning_none", "bound": "reasoning_tokens"}
"""The unsupported feature by effort; ``reasoning`` for all others."""


def others(*names: str) -> list[str]:
    """All other hosts."""
    return [name for name in HOSTS if name not in names]


def made(name: str, url: str = "http://127.0.0.1:9") -> HttpProvider:
    match name:
        case "anthropic":
            return AnthropicProvider("k", base_url=url)
        case "google":
            return GeminiProvider("k", base_url=url)
    return OpenAIProvider("k", name=name, base_url=url)


def model_of(id: str, *, reasoning: bool = True) -> Model:
    return Model(id=id, reasoning=reasoning)


def sent(upstream: UpstreamCall) -> dict[str, Any]:
    """The body of a call, checked with the vendor's official types."""
    name = upstream.model.id.partition("/")[0]
    request = made(name).request(upstream)
    raw = request.body
    body: dict[str, Any] = json.loads(raw)
    match name:
        case "openai" if request.url.endswith("/responses"):
            assert responses.problems_of(body) == []
        case "openai":
            assert openai.problems_of(body) == []
        case "anthropic":
            assert anthropic.problems_of(body) == []
        case "google":
            assert gemini.problems_of(raw) == []
    return body


def base_of(id: str) -> dict[str, Any]:
    """The body of a call without options."""
    name, model = id.partition("/")[0], wire_name(Model(id=id))
    if name == "anthropic":
        said = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        return {"model": model, "max_tokens": CAP, "messages": said}
    if name == "google":
        said = [{"role": "user", "parts": [{"text": "hi"}]}]
        return {"contents": said, "generationConfig": {"maxOutputTokens": CAP}}
    host = HOSTS[name]
    if id in OVER_RESPONSES:
        items = [{"type": "message", "role": "user", "content": "hi"}]
        encrypted = ["reasoning.encrypted_content"]
        return {"model": model, "input": items, "max_output_tokens": CAP, "store": False, "include": encrypted}
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], host.cap_field: CAP, **host.extra_body}


# --- how much it thinks

ORDER = ("minimal", "low", "medium", "high", "max")
GRADES = ("low", "low", "medium", "high", "max")
OFF = {"thinking": {"type": "disabled"}}
ON = {"thinking": {"type": "enabled"}}
SHOWN = {"thinking": {"type": "adaptive", "display": "summarized"}}


def efforts(*words: str, none: Any = None, bound: Any = None, on: Any = None) -> dict[str, Any]:
    """``reasoning_effort`` for minimal, low, medium, high, max."""
    named = zip(ORDER, words * (5 if len(words) == 1 else 1), strict=True)
    return {word: (on or {}) | {"reasoning_effort": sent} for word, sent in named} | {"none": none, "bound": bound}


def toggled(on: Any, off: Any, bound: Any = None) -> dict[str, Any]:
    return dict.fromkeys(ORDER, on) | {"none": off, "bound": bound}


def adaptive(*words: str, none: Any, thinking: Any = SHOWN, bound: Any = None) -> dict[str, Any]:
    named = zip(ORDER, words, strict=True)
    rows = {word: thinking | {"output_config": {"effort": sent}} for word, sent in named}
    return rows | {"none": none, "bound": bound}


def budgets(tokens: Any, *counts: int, none: Any) -> dict[str, Any]:
    named = zip((*ORDER, "bound"), counts, strict=True)
    return {word: tokens(count) for word, count in named} | {"none": none}


def of_claude(count: int) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", "budget_tokens": count}}


def of_gemini(**thinking: Any) -> dict[str, Any]:
    return {"generationConfig": {"maxOutputTokens": CAP, "thinkingConfig": thinking}}


def levels(*words: str) -> dict[str, Any]:
    named = zip(ORDER, words, strict=True)
    rows = {word: of_gemini(includeThoughts=True, thinkingLevel=sent) for word, sent in named}
    return rows | {"none": None, "bound": None}


def of_budget(count: int) -> dict[str, Any]:
    return of_gemini(includeThoughts=True, thinkingBudget=count)


def of_qwen(count: int) -> dict[str, Any]:
    return {"enable_thinking": True, "thinking_budget": count}


def of_openrouter(bound: Any) -> dict[str, Any]:
    rows = {word: {"reasoning": {"effort": word}} for word in ("none", "minimal", "low", "medium", "high")}
    return rows | {"max": {"reasoning": {"effort": "xhigh"}}, "bound": bound}


OVER_RESPONSES = ("openai/gpt-5-pro", "openai/gpt-5.3-codex", "openai/gpt-5.5-pro")


def over_responses(*words: str) -> dict[str, Any]:
    rows = {name: {"reasoning": {"effort": word, "summary": "auto"}} for name, word in zip(ORDER, words, strict=True)}
    return rows | {"none": None, "bound": None}


LOW_TO_HIGH = efforts("low", "low", "medium", "high", "high")
NONE = {"reasoning_effort": "none"}
NOTHING = toggled(None, None)
TEMPLATE = {"chat_template_kwargs": {"enable_thinking": True}}
TEMPLATED = efforts(
    "low", "low", "medium", "high", "high", on=TEMPLATE, none={"chat_template_kwargs": {"enable_thinking": False}}
)
THINKING: dict[str, dict[str, Any]] = {
    "openai/o3": LOW_TO_HIGH,
    "openai/gpt-5": efforts("minimal", "low", "medium", "high", "high"),
    "openai/gpt-5-mini-2025-08-07": efforts("minimal", "low", "medium", "high", "high"),
    "openai/gpt-5-pro": over_responses("high", "high", "high", "high", "high"),
    "openai/gpt-5.1": efforts("low", "low", "medium", "high", "high", none=NONE),
    "openai/gpt-5.2": efforts("low", "low", "medium", "high", "xhigh", none=NONE),
    "openai/gpt-5.3-codex": over_responses("low", "low", "medium", "high", "xhigh"),
    "openai/gpt-5.4-mini": efforts("low", "low", "medium", "high", "xhigh", none=NONE),
    "openai/gpt-5.5-pro": over_responses("medium", "medium", "medium", "high", "xhigh"),
    "openai/gpt-5.6-sol": efforts("low", "low", "medium", "high", "max", none=NONE),
    "openai/gpt-6-luna": efforts("low", "low", "medium", "high", "max", none=NONE),
    "openai/gpt-6-astra": efforts("low", "low", "medium", "high", "max"),
    "openai/gpt-6.1-sol": efforts("low", "low", "medium", "high", "max"),
    "azure/gpt-5.1": efforts("low", "low", "medium", "high", "high", none=NONE),
    "azure/my-deployment": LOW_TO_HIGH,
    "mistral/mistral-large-4": efforts("high", none=NONE),
    "mistral/magistral-medium-2509": NOTHING,
    "deepseek/deepseek-v4-pro": efforts("low", "low", "high", "high", "max", on=ON, none=OFF),
    "groq/openai/gpt-oss-120b": LOW_TO_HIGH,
    "groq/qwen/qwen3.8-27b": toggled({"reasoning_effort": "default", "reasoning_format": "parsed"}, NONE),
    "groq/llama": NOTHING,
    "xai/grok-4.20-0309-reasoning": NOTHING,
    "xai/grok-4.3": efforts("low", "low", "medium", "high", "high", none=NONE),
    "xai/grok-4.5": LOW_TO_HIGH,
    "xai/grok-4.7": efforts("low", "low", "medium", "high", "xhigh"),
    "togetherai/openai/gpt-oss-20b": LOW_TO_HIGH,
    "togetherai/zai-org/GLM-5.3": efforts("low", "low", "medium", "high", "max"),
    "togetherai/Qwen/Qwen3.6-Plus": toggled({"reasoning": {"enabled": True}}, {"reasoning": {"enabled": False}}),
    "togetherai/MiniMaxAI/MiniMax-M2.5": NOTHING,
    "deepinfra/Qwen/Qwen3.8-27B": efforts("low", "low", "medium", "high", "high", none=NONE),
    "cerebras/gpt-oss-120b": LOW_TO_HIGH,
    "cerebras/qwen-3.8-27b": efforts("low", "low", "medium", "high", "high", none=NONE),
    "cerebras/gemma-4-31b": NOTHING,
    "perplexity/sonar-deep-research": efforts("minimal", "low", "medium", "high", "high"),
    "moonshotai/kimi-k3.1-pro": efforts("low", "low", "high", "high", "max"),
    "moonshotai/kimi-k2.6": toggled(ON, OFF),
    "moonshotai/kimi-k2.7-code": NOTHING,
    "alibaba/qwen3.8-max": {word: {"enable_thinking": True, "reasoning_effort": effort} for word,
        effort in zip(ORDER, ("low", "low", "medium", "xhigh", "xhigh"), strict=True)} | {
        "none": {"enable_thinking": False}, "bound": of_qwen(BOUND)},
    "alibaba/qwen-plus": budgets(of_qwen, 1024, 2000, 2000, 2000, 2000, BOUND, none={"enable_thinking": False}),
    "alibaba/qwen3-235b-a22b-thinking-2507": budgets(lambda count: {"thinking_budget": count}, 1024, 2000, 2000, 2000,
        2000, BOUND, none=None),
    "alibaba/qwen3-coder-plus": NOTHING,
    "zai/glm-4.6": toggled(ON, OFF),
    "zai/glm-5.2": efforts("low", "low", "high", "high", "max", on=ON, none=OFF),
    "zai/glm-5.3": efforts("low", "low", "high", "high", "max", on=ON),
    "minimax/MiniMax-M2.5": NOTHING,
    "minimax/MiniMax-M3": toggled({"thinking": {"type": "adaptive"}}, OFF),
    "cohere/command-a-reasoning-08-2025": efforts("high", none=NONE),
    "stepfun/step-3.5-flash": NOTHING,
    "stepfun/step-3.7-flash": LOW_TO_HIGH,
    "xiaomi/mimo-v2.6-pro": toggled(ON, OFF),
    "upstage/solar-pro3": LOW_TO_HIGH,
    "inception/mercury-2": LOW_TO_HIGH,
    "ai21/jamba": NOTHING,
    "openrouter/anthropic/claude-opus-4.5": of_openrouter({"reasoning": {"max_tokens": BOUND}}),
    "openrouter/anthropic/claude-opus-5": of_openrouter(None),
    "openrouter/openai/gpt-5": of_openrouter(None),
    "openrouter/google/gemini-2.5-flash": of_openrouter({"reasoning": {"max_tokens": BOUND}}),
    "ollama/qwen3": efforts("low", "low", "medium", "high", "high", none=NONE),
    "ollama/gpt-oss:20b": LOW_TO_HIGH,
    "vllm/Qwen/Qwen3.5-9B": TEMPLATED,
    "vllm/openai/gpt-oss-20b": LOW_TO_HIGH,
    "llamacpp/qwen": TEMPLATED,
    "lmstudio/qwen/qwen3.8-27b": LOW_TO_HIGH,
    "anthropic/claude-3-7-sonnet-20250219": budgets(of_claude, 1024, 2000, 2000, 2000, 2000, BOUND, none={}),
    "anthropic/claude-haiku-4-5": budgets(of_claude, 1024, 2000, 2000, 2000, 2000, BOUND, none={}),
    "anthropic/claude-opus-4-6": adaptive(*GRADES, thinking={"thinking": {"type": "adaptive"}}, none={},
        bound=of_claude(BOUND)),
    "anthropic/claude-opus-4-8": adaptive(*GRADES, none=OFF),
    "anthropic/claude-sonnet-5": adaptive(*GRADES, none=OFF),
    "anthropic/claude-haiku-5-5": adaptive(*GRADES, none=OFF),
    "anthropic/claude-sonnet-5-5": adaptive(*GRADES, none=None),
    "anthropic/claude-opus-5-5": adaptive(*GRADES, none=None),
    "anthropic/claude-fable-5": adaptive(*GRADES, none=None),
    "google/gemini-2.5-pro": budgets(of_budget, 1024, 2000, 2000, 2000, 2000, BOUND, none=None),
    "google/gemini-2.5-flash": budgets(of_budget, 1024, 2000, 2000, 2000, 2000, BOUND,
        none=of_gemini(thinkingBudget=0)),
    "google/gemini-3-pro-preview": levels("low", "low", "high", "high", "high"),
    "google/gemini-3.1-pro-preview": levels("low", "low", "medium", "high", "high"),
    "google/gemini-3.6-flash": levels("minimal", "low", "medium", "high", "high"),
    "google/gemini-3.8-flash": levels("low", "low", "medium", "high", "high"),
    "google/gemini-4-argon": levels("low", "low", "medium", "high", "high"),
    "google/gemma-4-31b-it": NOTHING,
}  # fmt: skip
"""The fields for each effort, and for a budget of 2,048 tokens with a cap of 4,000; None: not expressible."""


def test_every_host_has_models_in_the_table() -> None:
    assert {id.partition("/")[0] for id in THINKING} == {*HOSTS, "anthropic", "google"}
    assert all({*row} == {*ASKED} for row in THINKING.values())


@table("id", THINKING)
def test_each_reasoning_effort_is_sent_in_the_vendors_form(id: str) -> None:
    model, provider = model_of(id), made(id.partition("/")[0])
    for word, fields in THINKING[id].items():
        upstream = call(model=model, params=Params(reasoning=ASKED[word]), max_output_tokens=CAP, stream=False)
        lacking = FEATURE.get(word, "reasoning") in provider.unsupported(model)
        assert lacking == (fields is None), f"{word}: what cannot be sent is an unsupported feature"
        if fields is not None:
            assert sent(upstream) == base_of(id) | fields, word
            continue
        with pytest.raises(ProviderFault, match=r"the model (always reasons|does not support a reasoning)") as caught:
            sent(upstream)
        assert caught.value.kind == "request"


@table("name", ["openai", "deepseek", "anthropic", "google"])
def test_turning_reasoning_off_changes_nothing_for_a_model_without_it(name: str) -> None:
    plain = model_of(f"{name}/m", reasoning=False)
    assert not {"reasoning", "reasoning_none", "reasoning_tokens"} & {*made(name).unsupported(plain)}
    asked = call(model=plain, params=Params(reasoning="none"))
    assert made(name)._body(asked) == made(name)._body(call(model=plain))


def test_the_nearest_effort_is_sent_and_of_two_the_stronger() -> None:
    assert find_nearest("medium", ["low", "high"]) == "high"
    assert find_nearest("minimal", ["low", "high"]) == "low"
    assert find_nearest("max", ["low", "xhigh"]) == "xhigh"
    assert all(find_nearest(word, WORDS) == word for word in WORDS)


def test_a_reasoning_budget_is_kept_and_leaves_room_for_the_answer() -> None:
    row = Thinking(bound="thinking.budget", least=1024, most=5000)
    assert row.fields(ReasoningBudget(9000), 2000) == {"thinking": {"budget": 1999}}
    assert row.fields(ReasoningBudget(9000), None) == {"thinking": {"budget": 5000}}
    assert row.fields("minimal", 1025) == {"thinking": {"budget": 1024}}
    assert row.fields("high", None) == {"thinking": {"budget": 5000}}
    with pytest.raises(
        ProviderFault, match="reasons with at least 1024 tokens, so the output cap must be larger, got 1024"
    ):
        row.fields("high", 1024)
    with pytest.raises(ProviderFault, match="needs a reasoning budget of at least 1024 tokens, got 1000"):
        row.fields(ReasoningBudget(1000), None)


BESIDE: tuple[Feature, ...] = (
    "reasoning_none", "reasoning_tools", "reasoning_tool_choice", "reasoning_sampling", "reasoning_brief",
    "reasoning_tokens_brief",
)  # fmt: skip


@table(
    ("id", "lacking"),
    [
        ("openai/gpt-5.1", ""),
        ("openai/gpt-5.4-mini", ""),
        ("azure/gpt-5.6-sol", ""),
        ("openai/gpt-5.5-pro", "none"),
        ("openai/gpt-6-astra", "none"),
        ("openai/gpt-6.1-sol", "none"),
        ("deepseek/deepseek-v4-pro", ""),
        ("anthropic/claude-haiku-4-5", "tool_choice sampling brief tokens_brief"),
        ("anthropic/claude-opus-4-6", "tool_choice sampling tokens_brief"),
        ("anthropic/claude-opus-4-8", "tool_choice"),
        ("google/gemini-2.5-flash", ""),
    ],
)
def test_what_cannot_be_combined_with_reasoning_is_a_feature_of_its_own(id: str, lacking: str) -> None:
    said = {*made(id.partition("/")[0]).unsupported(model_of(id))} & {*BESIDE}
    assert said == {f"reasoning_{word}" for word in lacking.split()}
    plain = made(id.partition("/")[0]).unsupported(model_of(id, reasoning=False))
    assert not {*BESIDE} & {*plain}


def test_a_reasoning_claude_is_not_sent_a_default_temperature() -> None:
    told = Params(temperature=1.0, top_p=0.95, reasoning="low")
    upstream = call(model=model_of("anthropic/claude-haiku-4-5"), params=told, max_output_tokens=CAP)
    body = json.loads(made("anthropic")._body(upstream))
    assert "temperature" not in body
    assert body["top_p"] == 0.95


@given(
    id=st.sampled_from([*THINKING]),
    params=st.builds(
        Params,
        reasoning=st.none() | st.sampled_from([*ASKED.values()]) | st.integers(512, 10**6).map(ReasoningBudget),
        temperature=st.sampled_from([None, 0.5, 1]),
        max_output_tokens=st.none() | st.integers(513, 10**5),
    ),
    choice=st.sampled_from([None, "auto", "required", "f"]),
)
def test_what_a_decision_admits_can_be_sent(id: str, params: Params, choice: str | None) -> None:
    provider = made(id.partition("/")[0])
    model = Model(
        id=id,
        reasoning=True,
        modalities=("text", "tool"),
        unsupported=tuple(provider.unsupported(Model(id=id, reasoning=True))),
    )
    tools = None if choice is None else [TOOL]
    asked = RouteRequest([Message("user", "hi")], params=params, tools=tools, tool_choice=choice)
    pool = Pool(snapshot([model], "2026-11-20"), "2026-11-20")
    needs = needs_of(asked)
    if int(pool.able[0]) & needs == needs:
        cap = params.max_output_tokens
        provider._body(call(model=model, params=params, tools=tools, tool_choice=choice, max_output_tokens=cap))


def test_a_reasoning_claude_takes_no_prefill() -> None:
    begun = [Message("user", "a"), Message("assistant", "b")]
    model = model_of("anthropic/claude-haiku-4-5")
    made("anthropic")._body(call(*begun, model=model, max_output_tokens=CAP))
    with pytest.raises(ProviderFault, match="a final assistant's message"):
        made("anthropic")._body(call(*begun, model=model, params=Params(reasoning="low"), max_output_tokens=CAP))


# --- tools, tiers, verbosity

TOOLS_OF: dict[str, dict[str, Any]] = {
    "anthropic": {"tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]},
    "google": {
        "tools": [
            {"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"type": "object", "properties": {}}}]}
        ]
    },
}
CHAT_TOOLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
}
PARALLEL: dict[str, bool] = {
    "openai/gpt-4.1": True, "openai/gpt-5.1": True, "openai/o3": False, "azure/gpt-4.1": True, "mistral/m": True,
    "groq/m": True, "xai/m": True, "cerebras/m": True, "alibaba/m": True, "openrouter/m": True, "vllm/m": True,
    "llamacpp/m": True, "anthropic/claude-opus-5": True, "anthropic/glm-5": False,
}  # fmt: skip
"""Models that support ``parallel_tool_calls``; no others do."""


@table("value", [True, False])
def test_parallel_tool_calls_are_turned_off_where_supported(value: bool) -> None:
    unnamed = [f"{name}/m" for name in [*HOSTS, "google"] if not any(id.startswith(name) for id in PARALLEL)]
    for id in [*PARALLEL, *unnamed]:
        name, model = id.partition("/")[0], model_of(id, reasoning=False)
        params = Params(parallel_tool_calls=value)
        body = sent(call(model=model, params=params, tools=[TOOL], max_output_tokens=CAP, stream=False))
        takes = PARALLEL.get(id, False)
        assert ("parallel_tool_calls" in made(name).unsupported(model)) != takes, id
        fields: dict[str, Any] = {}
        if name == "anthropic" and not value:
            fields = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
        elif takes and name != "anthropic":
            fields = {"parallel_tool_calls": value}
        assert body == base_of(id) | TOOLS_OF.get(name, CHAT_TOOLS) | fields, id
        bare = sent(call(model=model, params=params, max_output_tokens=CAP, stream=False))
        assert bare == base_of(id), "without tools there is nothing to say"


def test_turning_parallel_tool_calls_off_keeps_the_tool_choice() -> None:
    params, model = Params(parallel_tool_calls=False), Model(id="anthropic/claude-opus-4-5")
    for choice, word in (("required", {"type": "any"}), ("f", {"type": "tool", "name": "f"})):
        body = json.loads(made("anthropic")._body(call(model=model, params=params, tools=[TOOL], tool_choice=choice)))
        assert body["tool_choice"] == word | {"disable_parallel_tool_use": True}
    body = json.loads(made("anthropic")._body(call(model=model, params=params, tools=[TOOL], tool_choice="none")))
    assert body["tool_choice"] == {"type": "none"}


TIERS: dict[str, dict[str, str]] = {
    "openai/gpt-5.1": {"auto": "auto", "default": "default", "flex": "flex", "priority": "priority"},
    "openai/gpt-4.1": {"auto": "auto", "default": "default", "priority": "priority"},
    "azure/gpt-5.1": {"auto": "auto", "default": "default", "flex": "flex", "priority": "priority"},
    "groq/m": {"auto": "auto", "default": "on_demand", "flex": "flex"},
    "xai/m": {"default": "default", "priority": "priority"},
    "google/gemini-3.5-flash": {"default": "standard", "flex": "flex", "priority": "priority"},
    "anthropic/claude-opus-5": {"auto": "auto", "default": "standard_only"},
}


def test_a_service_tier_is_sent_in_the_vendors_words() -> None:
    for id in [*TIERS, *(f"{name}/m" for name in others("openai", "azure", "groq", "xai"))]:
        name, model, words = id.partition("/")[0], model_of(id, reasoning=False), TIERS.get(id, {})
        field = "serviceTier" if name == "google" else "service_tier"
        for tier in get_args(ServiceTier):
            upstream = call(model=model, params=Params(service_tier=tier), max_output_tokens=CAP, stream=False)
            assert sent(upstream) == base_of(id) | ({field: words[tier]} if tier in words else {}), id
        lacking = {"flex", "priority"} - words.keys()
        assert lacking == {"flex", "priority"} & {*made(name).unsupported(model)}, id


VERBOSE = ("openai/gpt-5-mini", "openai/gpt-6-astra", "azure/gpt-5.2", "openrouter/openai/gpt-5.5")
TERSE = (
    "openai/gpt-4.1", "openai/o3", "azure/gpt-35-turbo", "openrouter/meta/llama", "anthropic/claude-opus-5",
    "google/gemini-3.5-flash", *(f"{name}/m" for name in others("openai", "azure", "openrouter")),
)  # fmt: skip


def test_verbosity_is_sent_where_it_is_supported() -> None:
    for id in VERBOSE + TERSE:
        model, takes = model_of(id, reasoning=False), id in VERBOSE
        for value in get_args(Verbosity):
            upstream = call(model=model, params=Params(verbosity=value), max_output_tokens=CAP, stream=False)
            assert sent(upstream) == base_of(id) | ({"verbosity": value} if takes else {}), id
        assert ("verbosity" in made(id.partition("/")[0]).unsupported(model)) != takes, id


# --- marks for the vendor's cache, parts

MARK = CacheControl("ephemeral", "1h")
PDF = "data:application/pdf;base64,QUJD"
MARKED: dict[str, dict[str, Any]] = {
    "openai/gpt-5.6-sol": {"prompt_cache_breakpoint": {"mode": "explicit"}},
    "openai/gpt-5.5": {},
    "alibaba/qwen3.8-max": {"cache_control": {"type": "ephemeral"}},
    "openrouter/anthropic/claude-opus-5": {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
}


def test_cache_marks_are_sent_only_to_hosts_with_a_prompt_cache() -> None:
    image = ImagePart(ImageUrl("https://x.example/a.png"), MARK)
    spoken = Message("user", [TextPart("a", MARK), image, TextPart("b")])
    marked = Tool(name="f", parameters={"type": "object", "properties": {}}, cache_control=MARK)
    shown = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}
    for id in [*MARKED, *(f"{name}/m" for name in others("openai", "alibaba", "openrouter", "deepseek", "perplexity"))]:
        mark = MARKED.get(id, {})
        body = sent(call(spoken, model=model_of(id, reasoning=False), tools=[marked], stream=False))
        parts = [{"type": "text", "text": "a"} | mark, shown | mark, {"type": "text", "text": "b"}]
        assert body["messages"] == [{"role": "user", "content": parts}], id
        assert body["tools"] == [CHAT_TOOLS["tools"][0] | (mark if id.startswith("openrouter") else {})], id
        lacking = "cache_control" in made(id.partition("/")[0]).unsupported(model_of(id))
        assert lacking == (not mark), id


def test_cache_marks_are_where_claude_reads_them() -> None:
    short = CacheControl("ephemeral")
    asked = [ToolCall("c1", FunctionCall("f", "{}"))]
    said = [
        Message("system", "plain"),
        Message("system", [TextPart("rules", MARK), TextPart(" ", MARK)]),
        Message("user", [TextPart("a"), FilePart(FileData(PDF, "a.pdf"), short)]),
        Message("assistant", None, asked),
        Message("tool", [TextPart("x", MARK), TextPart("y")], tool_call_id="c1"),
    ]
    marked = Tool(name="f", parameters={"type": "object", "properties": {}}, cache_control=short)
    upstream = call(*said, model=Model(id="anthropic/claude-opus-5"), tools=[marked], stream=False)
    body = sent(upstream)
    hour, minutes = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}, {"cache_control": {"type": "ephemeral"}}
    assert body["system"] == [{"type": "text", "text": "plain"}, {"type": "text", "text": "rules"} | hour]
    source = {"type": "base64", "media_type": "application/pdf", "data": "QUJD"}
    assert body["messages"][0]["content"][1] == {"type": "document", "source": source, "title": "a.pdf"} | minutes
    (result,) = body["messages"][2]["content"]
    assert result["content"] == [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    assert result["cache_control"] == hour["cache_control"]
    assert body["tools"][0]["cache_control"] == minutes["cache_control"]


@table("marked", [None, "system", "user", "tool"])
def test_a_repeated_prompt_is_marked_for_the_cache_of_claude(marked: str | None) -> None:
    def part(role: str) -> list[Any]:
        return [TextPart(role, MARK if role == marked else None)]

    said = [Message("system", part("system")), Message("user", part("user"))]
    said += [Message("assistant", "x"), Message("user", "more"), Message("user", "and more")]
    tools = [Tool(name="f", cache_control=MARK if marked == "tool" else None)]
    upstream = call(*said, model=Model(id="anthropic/claude-opus-5"), tools=tools, stream=False)
    plain, again = [sent(msgspec.structs.replace(upstream, repeats=repeats)) for repeats in (False, True)]
    if marked is None:
        plain["messages"][-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    assert again == plain
    assert json.dumps(again).count("cache_control") == 1


def test_gemini_is_sent_no_cache_marks() -> None:
    said = Message("user", [TextPart("hi", MARK)])
    upstream = call(said, model=Model(id="google/gemini-3.5-flash"), max_output_tokens=CAP, stream=False)
    assert sent(upstream) == base_of("google/gemini-3.5-flash")


AUDIO = AudioPart(InputAudio("QUJD", "mp3"))
CHAT_AUDIO = {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}}
URL_AUDIO = {"type": "input_audio", "input_audio": {"data": "data:audio/mp3;base64,QUJD", "format": "mp3"}}
FILE = FilePart(FileData(PDF))
ADDRESS = FilePart(FileData("https://x.example/a", "b.pdf"))
CHAT_FILE = {"type": "file", "file": {"file_data": PDF, "filename": "document.pdf"}}
PARTS: list[tuple[str, Any, Any]] = [
    ("openai/gpt-5.1", FILE, CHAT_FILE),
    ("openai/gpt-audio", AUDIO, CHAT_AUDIO),
    ("azure/gpt-5.1", FILE, CHAT_FILE),
    ("openrouter/m", FILE, CHAT_FILE),
    ("openrouter/m", ADDRESS, {"type": "file", "file": {"file_data": "https://x.example/a", "filename": "b.pdf"}}),
    ("openrouter/m", AUDIO, CHAT_AUDIO),
    ("xiaomi/m", AUDIO, URL_AUDIO),
    ("alibaba/m", AUDIO, URL_AUDIO),
    ("vllm/m", AUDIO, CHAT_AUDIO),
    ("mistral/m", FILE, None),
    ("xai/m", FILE, None),
    ("anthropic/claude-opus-5", ADDRESS,
     {"type": "document", "source": {"type": "url", "url": "https://x.example/a"}, "title": "b.pdf"}),
    ("anthropic/claude-opus-5", AUDIO, None),
    ("google/gemini-3.5-flash", FILE, {"inlineData": {"mimeType": "application/pdf", "data": "QUJD"}}),
    ("google/gemini-3.5-flash", ADDRESS,
     {"fileData": {"fileUri": "https://x.example/a", "mimeType": "application/pdf"}}),
    ("google/gemini-3.5-flash", AUDIO, {"inlineData": {"mimeType": "audio/mp3", "data": "QUJD"}}),
]  # fmt: skip


def test_documents_and_audio_are_sent_in_the_vendors_form() -> None:
    for id, part, form in PARTS:
        upstream = call(Message("user", [part]), model=Model(id=id), stream=False)
        if form is None:
            with pytest.raises(ProviderFault, match=r"does not support (documents|sound)") as caught:
                sent(upstream)
            assert caught.value.kind == "request"
            continue
        body = sent(upstream)
        (turn,) = body["messages"] if "messages" in body else body["contents"]
        assert turn["content" if "content" in turn else "parts"] == [form], id


def test_openrouter_reads_documents_without_a_billed_engine() -> None:
    native = [{"id": "file-parser", "pdf": {"engine": "native"}}]
    body = json.loads(made("openrouter")._body(call(Message("user", [FILE]), model=Model(id="openrouter/m"))))
    assert body["plugins"] == native
    assert "plugins" not in json.loads(made("openrouter")._body(call(model=Model(id="openrouter/m"))))


def test_documents_by_address_go_only_to_hosts_that_fetch_them() -> None:
    for name in [*HOSTS, "anthropic", "google"]:
        fetches = name in ("openrouter", "anthropic", "google")
        assert ("file_url" in made(name).unsupported(Model(id=f"{name}/gemini-3.5-flash"))) != fetches, name


# --- fields of the caller's own


@table(
    ("id", "own", "field"),
    [
        ("openai/gpt-5.1", {"prompt_cache_key": "k", "reasoning_effort": "low"}, "prompt_cache_key"),
        ("openrouter/m", {"provider": {"sort": "price"}}, "provider"),
        ("anthropic/claude-opus-5", {"thinking": {"display": "omitted"}}, "thinking"),
        ("google/gemini-3.5-flash", {"generationConfig": {"topK": 3}}, "generationConfig"),
    ],
)
def test_extra_fields_are_merged_in_last(id: str, own: dict[str, Any], field: str) -> None:
    extra = {id.partition("/")[0]: own, "other": {"nothing": 1}}
    params = Params(reasoning="high", extra=extra)
    plain = call(model=model_of(id), params=Params(reasoning="high"), max_output_tokens=CAP, stream=False)
    before = sent(plain)
    body = sent(call(model=model_of(id), params=params, max_output_tokens=CAP, stream=False))
    assert body == merge(before, own)
    assert "nothing" not in body
    if isinstance(before.get(field), dict):
        assert before[field].keys() <= body[field].keys(), "what is not named is kept"


# --- no dial lets a call exceed its bounds

EFFORTS = st.none() | st.sampled_from(list(ASKED.values())) | st.integers(1, 10**6).map(ReasoningBudget)


@given(
    id=st.sampled_from([*THINKING]),
    params=st.builds(
        Params,
        reasoning=EFFORTS,
        parallel_tool_calls=st.sampled_from([None, True, False]),
        service_tier=st.sampled_from([None, *get_args(ServiceTier)]),
        verbosity=st.sampled_from([None, *get_args(Verbosity)]),
    ),
    tools=st.sampled_from([None, [TOOL]]),
    cap=st.integers(1, 10**6),
)
def test_every_request_has_the_cap_and_asks_for_one_answer(
    id: str, params: Params, tools: list[Tool] | None, cap: int
) -> None:
    name = id.partition("/")[0]
    try:
        body = json.loads(made(name)._body(call(model=model_of(id), params=params, tools=tools, max_output_tokens=cap)))
    except ProviderFault:
        return  # nothing is sent
    flat = json.dumps(body)
    assert not {"n", "candidateCount", "best_of"} & body.keys()
    if name == "google":
        config = body["generationConfig"]
        assert config["maxOutputTokens"] == cap
        assert config.get("thinkingConfig", {}).get("thinkingBudget", 0) < cap
        assert "candidateCount" not in flat
        return
    field = "max_output_tokens" if "input" in body else "max_tokens" if name == "anthropic" else HOSTS[name].cap_field
    assert body[field] == cap
    budgets = [body.get("thinking", {}).get("budget_tokens"), body.get("thinking_budget")]
    budgets.append((body.get("reasoning") or {}).get("max_tokens"))
    assert all(each is None or 1 <= each < cap for each in budgets)


def test_hosts_name_only_known_optional_features() -> None:
    for host in HOSTS.values():
        assert {*host.takes} <= {*DIALS}
        assert {*host.tiers} <= {*get_args(ServiceTier)}
        assert {"flex", "priority"} & {*host.takes} == {"flex", "priority"} & {*host.tiers}
        for row in host.thinking:
            assert {*row.words.split()} <= {*WORDS}
