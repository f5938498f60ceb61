"""Table of vendors: addresses, key variables, and differences between hosts with OpenAI's chat completions API.

The facts are from the vendors' public documentation; the comment above a row has the titles of the pages. Where nothing
is documented, the row uses what no host rejects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from routewright._core.request.rules import CALLER_EXTRA
from routewright.wire import Feature, JsonObject, Model

from .endpoint import Endpoint
from .reasoning import Thinking, at, name_of, thinking_of
from .tool_ids import COMMON_ID

DIALS: tuple[Feature, ...] = (
    "parallel_tool_calls", "flex", "priority", "verbosity", "cache_control", "file_url", "http_url",
)  # fmt: skip
"""Features that a host supports only if its row has them in ``takes``."""
_LOW_TO_HIGH = "low medium high"
_TIERS = {word: word for word in ("auto", "default", "flex", "priority")}
Oddity = Literal[
    "audio_as_url",  # audio is sent as ``data:`` URLs, not as base64
    "cache_breakpoints",  # marks of the prompt cache are sent in OpenAI's form, not as ``cache_control``
    "images_in_results",  # tool results keep their images; for other hosts, a user message after them has the images
    "no_names",  # messages are sent without names
    "no_text_parts",  # text parts are joined
    "no_tool_by_name",  # a choice of one tool is sent as ``required``, with only that tool
    "strict_turns",  # consecutive messages of one role are joined, and system messages come first
    "thought_needed",  # tool calls are sent with blank reasoning, which the common chat format has no field for
]
Api = Literal["auto", "chat", "responses"]
ResponsesTrait = Literal["auto", "encrypted", "file_url"]
"""``auto``: the vendor's own, which takes the calls that its chat completions refuses; ``encrypted``: reasoning comes
encrypted on request, to be sent back, and with summaries; ``file_url``: documents can be sent by URL."""


@dataclass(frozen=True, kw_only=True)
class Host(Endpoint):
    """One vendor's dialect of chat completions, and of the Responses API."""

    cap_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    seed_field: str = "seed"
    key_header: Literal["authorization", "api-key"] = "authorization"
    developer_role: bool = False
    """True if the role ``developer`` is supported. Else it is sent as ``system``."""
    oddities: tuple[Oddity, ...] = ()
    """Differences from most hosts."""
    id_form: re.Pattern[str] = COMMON_ID
    """The form of tool-call ids. Others are replaced."""
    usage_on_request: bool = False
    """True if streams report usage on request (``stream_options``). False: they always report it, or the host rejects
    the field. If a host rejects it anyway, it is not sent again."""
    thinking: tuple[Thinking, ...] = (Thinking(words=_LOW_TO_HIGH),)
    """Encodings of the reasoning effort. The first row that matches a model's name applies."""
    thought: Literal["", "reasoning_content", "reasoning", "reasoning_details", "content"] = ""
    """The message field that returns earlier reasoning to the host; empty: it is not sent."""
    takes: Mapping[Feature, str] = field(default_factory=dict)
    """The supported features of ``DIALS``, each with a regular expression that is searched in model names."""
    tiers: Mapping[str, str] = field(default_factory=dict)
    """The host's names of service tiers, by ours. Other tiers are not sent."""
    cache_ttl: bool = False
    """True if cache marks can have a lifetime."""
    files: bool = False
    """True if documents are supported."""
    file_body: JsonObject = field(default_factory=dict)
    """Extra fields for requests with documents."""
    unsupported: tuple[Feature, ...] = ()
    """Features that the host rejects or ignores."""
    unsupported_reasoning: tuple[Feature, ...] = ()
    """More such features, for reasoning models."""
    extra_body: JsonObject = field(default_factory=dict)
    """Extra fields for all requests."""

    responses: tuple[ResponsesTrait, ...] = ()
    """What the host's Responses API does besides what all do. Empty: nothing is documented."""

    def list_missing(self, model: Model, api: Api = "auto") -> frozenset[Feature]:
        """Features that the host does not support for a model over an API."""
        name = name_of(self.thinking, model)
        dials = (dial for dial in DIALS if dial not in self.takes or not re.search(self.takes[dial], name))
        reasoning = (*self.unsupported_reasoning, *thinking_of(self.thinking, model).missing) if model.reasoning else ()
        missing: set[Feature] = {*self.unsupported, *reasoning, *dials}
        if self.uses_responses(model, api, tools=True):
            missing.discard("reasoning_tools")
            missing.add("tools_stop")
        if self.uses_responses(model, api, tools=False):
            missing.update(("stop", "seed"))
            missing.difference_update(self.responses)
        return frozenset(missing)

    def uses_responses(self, model: Model, api: Api, *, tools: bool) -> bool:
        """True if calls of a model, with or without tools, go over the Responses API."""
        if api != "auto" or "auto" not in self.responses:
            return api == "responses"
        row = thinking_of(self.thinking, model)
        return not row.chat or (tools and not row.tools and model.reasoning is not False)


_NO_EFFORT = {"reasoning_effort": "none"}
_NO_THINKING = {"thinking": {"type": "disabled"}}
_THINKING = {"thinking": {"type": "enabled"}}
_TEMPLATE = "chat_template_kwargs.enable_thinking"
# A model's page lists its efforts and APIs. From GPT-5.4 on, only the Responses API supports tools with reasoning
# ("Function tools with reasoning_effort are not supported for gpt-5.6-sol in /v1/chat/completions. To use function
# tools, use /v1/responses or set reasoning_effort to 'none'"). It alone has the pro and codex models.
_OPENAI_THINKING = (
    Thinking(models=r"gpt-5-pro", words="high", tools=False, chat=False),
    Thinking(models=r"gpt-5\.\d-pro", words="medium high xhigh", tools=False, chat=False),
    Thinking(models=r"gpt-5(\.1)?-codex(?!-max)", words=_LOW_TO_HIGH, tools=False, chat=False),
    Thinking(models=r"codex", words="low medium high xhigh", tools=False, chat=False),
    Thinking(models=r"gpt-5(?!\.)", words="minimal low medium high"),
    Thinking(models=r"gpt-5\.1", words=_LOW_TO_HIGH, off=_NO_EFFORT),
    Thinking(models=r"gpt-5\.[23]", words="low medium high xhigh", off=_NO_EFFORT),
    Thinking(models=r"gpt-5\.[45]", words="low medium high xhigh", off=_NO_EFFORT, tools=False),
    Thinking(models=r"gpt-5\.|gpt-6-(sol|luna)", words="low medium high xhigh max", off=_NO_EFFORT, tools=False),
    Thinking(models=r"gpt-([6-9]|1\d)", words="low medium high xhigh max", tools=False),
    Thinking(models=r"^o\d-pro", words=_LOW_TO_HIGH, tools=False, chat=False),
    Thinking(words=_LOW_TO_HIGH),
)
_OPENAI_EXTRA = CALLER_EXTRA | {"store", "metadata", "prompt_cache_retention"}
_NEW_GPT = r"gpt-([5-9]|1\d)(?!\d)"
_TEMPLATED = Thinking(words=_LOW_TO_HIGH, on=at(_TEMPLATE, True), off=at(_TEMPLATE, False))
_GPT_OSS = Thinking(models="gpt-oss", words=_LOW_TO_HIGH)
_OPENROUTER = Thinking(
    words="minimal low medium high xhigh", effort="reasoning.effort", off=at("reasoning.effort", "none")
)
_SWITCHED = Thinking(on={"enable_thinking": True}, off={"enable_thinking": False}, bound="thinking_budget")

_TABLE = (
    # Data residency; Reasoning models; Flex processing; Fast mode; Prompt caching; File inputs. Regional addresses cost
    # 10 % more for models released since March 2026.
    Host(
        name="openai", fetches_urls=True, caller_extra=_OPENAI_EXTRA,
        base_url="https://api.openai.com/v1", key_variables=("OPENAI_API_KEY",),
        url_variable="OPENAI_BASE_URL",
        regions={name: f"https://{name}.api.openai.com/v1" for name in ("us", "eu", "au", "in", "jp", "ae")},
        cap_field="max_completion_tokens", developer_role=True, usage_on_request=True,
        unsupported_reasoning=("temperature", "top_p"), thinking=_OPENAI_THINKING,
        takes={
            "parallel_tool_calls": r"^(?!o\d)",
            "flex": rf"^o[34]|{_NEW_GPT}",
            "priority": "",
            "verbosity": _NEW_GPT,
            "cache_control": r"gpt-(5\.[6-9]|[6-9]|1\d)(?!\d)",
        },
        tiers=_TIERS, oddities=("cache_breakpoints",), files=True, responses=("auto", "encrypted", "file_url"),
    ),
    # Azure OpenAI v1 API; Content filtering; Flex processing; Priority processing. The name of a deployment replaces
    # the model's.
    Host(
        name="azure", fetches_urls=True, caller_extra=_OPENAI_EXTRA,
        own_domains=(".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com"),
        base_url="", key_variables=("AZURE_OPENAI_API_KEY",), url_variable="AZURE_OPENAI_ENDPOINT",
        url_path="/openai/v1", key_header="api-key", cap_field="max_completion_tokens", developer_role=True,
        usage_on_request=True, unsupported_reasoning=("temperature", "top_p"), thinking=_OPENAI_THINKING,
        takes={"parallel_tool_calls": r"^(?!o\d)", "flex": "", "priority": "", "verbosity": _NEW_GPT}, tiers=_TIERS,
        files=True, responses=("auto", "encrypted"),
    ),
    # Chat completion API reference (unknown fields are rejected; errors of the API: "Tool call id was ... but must be
    # a-z, A-Z, 0-9, with a length of 9", "Unexpected role 'user' after role 'tool'"); Regional inference; Reasoning.
    Host(
        name="mistral", fetches_urls=True,
        base_url="https://api.mistral.ai/v1", key_variables=("MISTRAL_API_KEY",),
        regions={"eu": "https://api.eu.mistral.ai/v1"}, seed_field="random_seed",
        oddities=("images_in_results", "no_names"), id_form=re.compile("[a-zA-Z0-9]{9}"),
        thinking=(Thinking(models="magistral"), Thinking(words="high", off=_NO_EFFORT)), thought="content",
        takes={"parallel_tool_calls": ""},
    ),
    # Thinking mode (temperature and top_p are ignored; errors of the API: "Thinking mode does not support this
    # tool_choice", "The `reasoning_content` in the thinking mode must be passed back"); Create chat completion (no
    # seed; error for text parts: "invalid type: sequence, expected a string").
    Host(
        name="deepseek", base_url="https://api.deepseek.com", key_variables=("DEEPSEEK_API_KEY",),
        usage_on_request=True, oddities=("no_text_parts", "thought_needed"), unsupported=("seed", "json_schema"),
        unsupported_reasoning=("temperature", "top_p", "tool_choice"),
        thinking=(Thinking(words="low high max", on=_THINKING, off=_NO_THINKING),), thought="reasoning_content",
    ),
    # OpenAI compatibility (names in messages are rejected); Reasoning; Service tiers.
    Host(
        name="groq", fetches_urls=True,
        base_url="https://api.groq.com/openai/v1", key_variables=("GROQ_API_KEY",),
        cap_field="max_completion_tokens", oddities=("no_names",), usage_on_request=True,
        thinking=(
            _GPT_OSS,
            Thinking(models="qwen", on={"reasoning_effort": "default", "reasoning_format": "parsed"}, off=_NO_EFFORT),
        ),
        takes={"parallel_tool_calls": "", "flex": ""}, tiers={"auto": "auto", "default": "on_demand", "flex": "flex"},
    ),
    # Reasoning (stop is rejected); Priority processing; Regional endpoints (10 % more, and the newest models only).
    Host(
        name="xai", fetches_urls=True,
        base_url="https://api.x.ai/v1", key_variables=("XAI_API_KEY",),
        regions={"us": "https://us.api.x.ai/v1"}, cap_field="max_completion_tokens", usage_on_request=True,
        unsupported_reasoning=("stop",),
        thinking=(
            Thinking(models=r"grok-4\.3", words=_LOW_TO_HIGH, off=_NO_EFFORT),
            Thinking(models=r"grok-4\.[56]", words=_LOW_TO_HIGH),
            Thinking(models=r"grok-(4\.[7-9]|[5-9])", words="low medium high xhigh"),
        ),
        takes={"parallel_tool_calls": "", "priority": ""}, tiers={"default": "default", "priority": "priority"},
        responses=("encrypted",),
    ),
    # OpenAI compatibility; Reasoning.
    Host(
        name="togetherai", fetches_urls=True,
        base_url="https://api.together.ai/v1", key_variables=("TOGETHER_API_KEY",),
        thinking=(
            _GPT_OSS,
            Thinking(models=r"GLM-5\.3|Kimi-K3", words="low medium high max"),
            Thinking(models="MiniMax"),
            Thinking(on=at("reasoning.enabled", True), off=at("reasoning.enabled", False)),
        ),
        thought="reasoning_content",
    ),
    Host(
        name="deepinfra", fetches_urls=True,
        base_url="https://api.deepinfra.com/v1/openai",
        key_variables=("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN"),
        thinking=(_GPT_OSS, Thinking(words=_LOW_TO_HIGH, off=_NO_EFFORT)),
    ),
    # Chat completions; Reasoning; Image inputs (only as data).
    Host(
        name="cerebras", base_url="https://api.cerebras.ai/v1", key_variables=("CEREBRAS_API_KEY",),
        cap_field="max_completion_tokens", developer_role=True, unsupported=("image_url",),
        thinking=(_GPT_OSS, Thinking(models="qwen", words=_LOW_TO_HIGH, off=_NO_EFFORT)), thought="reasoning",
        takes={"parallel_tool_calls": ""},
    ),
    # Chat completions (no seed, no tools; error of the API: "After the (optional) system message(s), user or tool
    # message(s) should alternate with assistant message(s)").
    Host(
        name="perplexity", fetches_urls=True,
        base_url="https://api.perplexity.ai", key_variables=("PERPLEXITY_API_KEY", "PPLX_API_KEY"),
        oddities=("strict_turns",), unsupported=("seed", "tool_choice"),
        thinking=(Thinking(words="minimal low medium high"),),
    ),
    # Create chat completion (images as data or files); Model parameters (fixed sampling with reasoning; errors of the
    # API: "tool_choice 'required' is incompatible with thinking enabled", "thinking is enabled but reasoning_content is
    # missing in assistant tool call message"); Thinking effort (K3 and K2.7 always reason).
    Host(
        name="moonshotai", base_url="https://api.moonshot.ai/v1", key_variables=("MOONSHOT_API_KEY",),
        regions={"intl": "https://api.moonshot.ai/v1", "cn": "https://api.moonshot.cn/v1"},
        cap_field="max_completion_tokens", oddities=("thought_needed",), unsupported=("image_url",),
        unsupported_reasoning=("temperature", "top_p", "tool_choice"),
        thinking=(
            Thinking(models="kimi-k3", words="low high max"),
            Thinking(models=r"kimi-k2\.[56]", on=_THINKING, off=_NO_THINKING),
        ),
        thought="reasoning_content",
    ),
    # OpenAI compatible - Chat; Select region (error of the API: "The tool_choice parameter does not support being set
    # to required or object in thinking mode"); Deep thinking; API compatibility upgrades (max_completion_tokens limits
    # reasoning and answer together; for some models, max_tokens limits only the answer); Context cache.
    Host(
        name="alibaba", fetches_urls=True,
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        key_variables=("DASHSCOPE_API_KEY",),
        regions={
            "intl": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
            "us": "https://dashscope-us.aliyuncs.com/compatible-mode/v1",
            "cn": "https://dashscope.aliyuncs.com/compatible-mode/v1",
            "hk": "https://cn-hongkong.dashscope.aliyuncs.com/compatible-mode/v1",
        },
        usage_on_request=True, unsupported_reasoning=("tool_choice",), cap_field="max_completion_tokens",
        thinking=(
            Thinking(models="coder"),
            Thinking(models="thinking|qwq|qvq", bound="thinking_budget"),
            replace(_SWITCHED, models=r"qwen3\.8", words="low medium xhigh"),
            _SWITCHED,
        ),
        thought="reasoning_content", takes={"parallel_tool_calls": "", "cache_control": ""}, oddities=("audio_as_url",),
    ),
    # Chat completion (only automatic tool choice; no seed); Thinking mode.
    Host(
        name="zai", fetches_urls=True,
        base_url="https://api.z.ai/api/paas/v4", key_variables=("ZAI_API_KEY",),
        regions={"intl": "https://api.z.ai/api/paas/v4", "cn": "https://open.bigmodel.cn/api/paas/v4"},
        unsupported=("seed", "tool_choice", "json_schema"),
        thinking=(
            Thinking(models=r"glm-5\.3", words="low high max", on=_THINKING),
            Thinking(models=r"glm-5\.2", words="low high max", on=_THINKING, off=_NO_THINKING),
            Thinking(on=_THINKING, off=_NO_THINKING),
        ),
        thought="reasoning_content",
    ),
    # OpenAI API compatible; Error codes. M2 always reasons.
    Host(
        name="minimax", fetches_urls=True,
        base_url="https://api.minimax.io/v1", key_variables=("MINIMAX_API_KEY",),
        regions={"intl": "https://api.minimax.io/v1", "cn": "https://api.minimaxi.com/v1"},
        cap_field="max_completion_tokens",
        extra_body={"reasoning_split": True},  # else the answer contains the reasoning
        thinking=(Thinking(models="M3", on=at("thinking.type", "adaptive"), off=_NO_THINKING),),
        thought="reasoning_details",
    ),
    # Using Cohere models via the OpenAI SDK (tool_choice is not listed as supported; the only efforts are none and
    # high).
    Host(
        name="cohere", fetches_urls=True,
        base_url="https://api.cohere.ai/compatibility/v1",
        key_variables=("COHERE_API_KEY", "CO_API_KEY"), developer_role=True, unsupported=("tool_choice",),
        thinking=(Thinking(words="high", off=_NO_EFFORT),),
    ),
    Host(
        name="stepfun", fetches_urls=True,
        base_url="https://api.stepfun.com/v1",
        key_variables=("STEPFUN_API_KEY",),
        thinking=(Thinking(models=r"step-3\.7", words=_LOW_TO_HIGH),),
    ),
    Host(
        name="xiaomi", fetches_urls=True,
        base_url="https://api.xiaomimimo.com/v1", key_variables=("XIAOMI_API_KEY", "MIMO_API_KEY"),
        cap_field="max_completion_tokens", thinking=(Thinking(on=_THINKING, off=_NO_THINKING),),
        thought="reasoning_content", oddities=("audio_as_url",),
    ),
    Host(name="upstage", base_url="https://api.upstage.ai/v1/solar", key_variables=("UPSTAGE_API_KEY",)),
    Host(name="inception", base_url="https://api.inceptionlabs.ai/v1", key_variables=("INCEPTION_API_KEY",)),
    Host(name="ai21", base_url="https://api.ai21.com/studio/v1", key_variables=("AI21_API_KEY",), thinking=()),
    # Usage accounting (streams always report it); Provider routing; In-region routing; Reasoning tokens; Prompt
    # caching; PDF inputs. Only OpenRouter itself knows which models cannot disable reasoning.
    Host(
        name="openrouter", fetches_urls=True,
        base_url="https://openrouter.ai/api/v1", key_variables=("OPENROUTER_API_KEY",),
        regions={"eu": "https://eu.openrouter.ai/api/v1", "us": "https://us.openrouter.ai/api/v1"},
        extra_body={"provider": {"require_parameters": True}},  # else some of its hosts ignore unsupported parameters
        thinking=(
            replace(
                _OPENROUTER,
                models=r"^anthropic/claude-(\w+-)?[34](\.[0-6])?(?![.\d])|^google/gemini-2\.5|^qwen/",
                bound="reasoning.max_tokens",
            ),
            _OPENROUTER,
        ),
        thought="reasoning_details",
        takes={"parallel_tool_calls": "", "verbosity": rf"^openai/{_NEW_GPT}", "cache_control": "", "file_url": ""},
        cache_ttl=True, files=True, responses=("encrypted", "file_url"),
        file_body={"plugins": [{"id": "file-parser", "pdf": {"engine": "native"}}]},  # the other engines are billed
    ),
    # OpenAI compatibility.
    Host(
        name="ollama", base_url="http://127.0.0.1:11434/v1", key_variables=("OLLAMA_API_KEY",),
        url_variable="OLLAMA_HOST", needs_key=False, usage_on_request=True, unsupported=("tool_choice", "image_url"),
        thinking=(_GPT_OSS, Thinking(words=_LOW_TO_HIGH, off=_NO_EFFORT)), thought="reasoning",
    ),
    # OpenAI-compatible server; Tool calling.
    Host(
        name="vllm", base_url="http://127.0.0.1:8000/v1", key_variables=("VLLM_API_KEY",), url_variable="VLLM_BASE_URL",
        needs_key=False, usage_on_request=True, thinking=(_GPT_OSS, _TEMPLATED), thought="reasoning",
        takes={"parallel_tool_calls": "", "http_url": ""},
    ),
    # llama.cpp HTTP server (a tool's name as the choice is treated as "auto").
    Host(
        name="llamacpp", base_url="http://127.0.0.1:8080/v1", key_variables=("LLAMACPP_API_KEY",),
        url_variable="LLAMACPP_BASE_URL", needs_key=False, oddities=("no_tool_by_name",), usage_on_request=True,
        thinking=(_GPT_OSS, _TEMPLATED), thought="reasoning_content",
        takes={"parallel_tool_calls": "", "http_url": ""}, caller_extra=CALLER_EXTRA | {"repeat_penalty", "typical_p"},
    ),
    # OpenAI compatibility endpoints; Authentication; Tool use (a tool's name is not a valid choice); Structured output
    # (error of the API: "'response_format.type' must be 'json_schema' or 'text'"); Image input (only as data). "none"
    # does not disable reasoning for every model.
    Host(
        name="lmstudio", base_url="http://127.0.0.1:1234/v1", key_variables=("LM_API_TOKEN", "LMSTUDIO_API_KEY"),
        url_variable="LMSTUDIO_BASE_URL", needs_key=False, oddities=("no_tool_by_name",), usage_on_request=True,
        unsupported=("image_url", "json_object"),
    ),
)  # fmt: skip

HOSTS = {host.name: host for host in _TABLE}
"""All hosts by name."""

# Vendors with their own protocol.
ANTHROPIC = Endpoint(
    name="anthropic", fetches_urls=True, caller_extra=frozenset(("top_k", "metadata")),
    base_url="https://api.anthropic.com", key_variables=("ANTHROPIC_API_KEY",), url_variable="ANTHROPIC_BASE_URL",
)  # fmt: skip
GOOGLE = Endpoint(
    name="google", fetches_urls=True,
    base_url="https://generativelanguage.googleapis.com",
    key_variables=("GOOGLE_API_KEY", "GEMINI_API_KEY"),  # the first one set counts, as in Google's packages
    url_variable="GOOGLE_GEMINI_BASE_URL",
    caller_extra=frozenset(f"generationConfig.{name}" for name in ("topK", "presencePenalty", "frequencyPenalty")),
)  # fmt: skip
ENDPOINTS: dict[str, Endpoint] = {ANTHROPIC.name: ANTHROPIC, GOOGLE.name: GOOGLE, **HOSTS}
"""All vendors by name."""
