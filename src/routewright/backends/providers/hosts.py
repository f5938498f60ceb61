"""Hosts that speak OpenAI's chat completions: their addresses, key variables and differences.

Facts from the vendors' public documentation; the comment above a row gives the titles of the pages that describe them.
Where nothing is documented, the setting is the one that no host refuses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from routewright.wire import Feature

from .endpoint import Endpoint


@dataclass(frozen=True, kw_only=True)
class Host(Endpoint):
    """One vendor's dialect of chat completions."""

    cap_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    seed_field: str = "seed"
    key_header: Literal["authorization", "api-key"] = "authorization"
    developer_role: bool = False
    """Takes the role ``developer``; else it is sent as ``system``."""
    message_names: bool = True
    """Takes names in messages; else they are left out."""
    text_in_parts: bool = True
    """Takes text in parts; else the parts are joined."""
    turns_of_one_role: bool = True
    """Takes consecutive messages of one role, and system messages anywhere; else those of one role are joined, and
    system messages come first."""
    any_call_id: bool = True
    """Takes any id of a tool call; else only nine letters and digits, and other ids are changed to that."""
    images_in_results: bool = False
    """Takes images in tool results; else a user message shows them after the results."""
    thought_needed: bool = False
    """Refuses tool calls of a model that reasons if its thought does not come back with them. The common chat format
    has no field for thought, so a blank is sent."""
    tool_by_name: bool = True
    """Takes a tool's name as the choice; else only that tool is sent, and a call is required."""
    usage_on_request: bool = False
    """Reports the usage of streams if ``stream_options`` asks for it. Where False, it reports usage unasked, or refuses
    the field. A host that refuses it all the same is not asked again."""
    unsupported: tuple[Feature, ...] = ()
    """What the host does not take, or takes and ignores."""
    unsupported_reasoning: tuple[Feature, ...] = ()
    """What it does not take for models that reason, in addition."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Sent with every request."""


_TABLE = (
    # Data residency; Reasoning models. Regional addresses cost 10 % more for models released since March 2026.
    Host(
        name="openai",
        base_url="https://api.openai.com/v1",
        key_variables=("OPENAI_API_KEY",),
        url_variable="OPENAI_BASE_URL",
        regions={name: f"https://{name}.api.openai.com/v1" for name in ("us", "eu", "au", "in", "jp", "ae")},
        cap_field="max_completion_tokens",
        developer_role=True,
        usage_on_request=True,
        unsupported_reasoning=("temperature", "top_p"),
    ),
    # Azure OpenAI v1 API; Content filtering. The name of a deployment stands in for the model's.
    Host(
        name="azure",
        base_url="",
        key_variables=("AZURE_OPENAI_API_KEY",),
        url_variable="AZURE_OPENAI_ENDPOINT",
        url_path="/openai/v1",
        key_header="api-key",
        cap_field="max_completion_tokens",
        developer_role=True,
        usage_on_request=True,
        unsupported_reasoning=("temperature", "top_p"),
    ),
    # Chat completion API reference (fields it does not know are refused; "Tool call id was ... but must be a-z, A-Z,
    # 0-9, with a length of 9", says the API, and "Unexpected role 'user' after role 'tool'"); Regional inference.
    Host(
        name="mistral",
        base_url="https://api.mistral.ai/v1",
        key_variables=("MISTRAL_API_KEY",),
        regions={"eu": "https://api.eu.mistral.ai/v1"},
        seed_field="random_seed",
        message_names=False,
        any_call_id=False,
        images_in_results=True,
    ),
    # Thinking mode (temperature and top_p are not heeded; "Thinking mode does not support this tool_choice", says the
    # API, and "The `reasoning_content` in the thinking mode must be passed back"); Create chat completion (there is no
    # seed; of text in parts the API says "invalid type: sequence, expected a string").
    Host(
        name="deepseek",
        base_url="https://api.deepseek.com",
        key_variables=("DEEPSEEK_API_KEY",),
        usage_on_request=True,
        text_in_parts=False,
        thought_needed=True,
        unsupported=("seed", "json_schema"),
        unsupported_reasoning=("temperature", "top_p", "tool_choice"),
    ),
    # OpenAI compatibility (names in messages are refused).
    Host(
        name="groq",
        base_url="https://api.groq.com/openai/v1",
        key_variables=("GROQ_API_KEY",),
        cap_field="max_completion_tokens",
        message_names=False,
        usage_on_request=True,
    ),
    # Reasoning (stop is refused); Regional endpoints (10 % more, and the newest models only).
    Host(
        name="xai",
        base_url="https://api.x.ai/v1",
        key_variables=("XAI_API_KEY",),
        regions={"us": "https://us.api.x.ai/v1"},
        cap_field="max_completion_tokens",
        usage_on_request=True,
        unsupported_reasoning=("stop",),
    ),
    # OpenAI compatibility.
    Host(name="togetherai", base_url="https://api.together.ai/v1", key_variables=("TOGETHER_API_KEY",)),
    Host(
        name="deepinfra",
        base_url="https://api.deepinfra.com/v1/openai",
        key_variables=("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN"),
    ),
    # Chat completions; Image inputs (as data alone).
    Host(
        name="cerebras",
        base_url="https://api.cerebras.ai/v1",
        key_variables=("CEREBRAS_API_KEY",),
        cap_field="max_completion_tokens",
        developer_role=True,
        unsupported=("image_url",),
    ),
    # Chat completions (neither a seed nor tools; "After the (optional) system message(s), user or tool message(s)
    # should alternate with assistant message(s)", says the API).
    Host(
        name="perplexity",
        base_url="https://api.perplexity.ai",
        key_variables=("PERPLEXITY_API_KEY", "PPLX_API_KEY"),
        turns_of_one_role=False,
        unsupported=("seed", "tool_choice"),
    ),
    # Create chat completion (images as data or files); Model parameters (sampling is fixed where a model thinks;
    # "tool_choice 'required' is incompatible with thinking enabled", says the API, and "thinking is enabled but
    # reasoning_content is missing in assistant tool call message").
    Host(
        name="moonshotai",
        base_url="https://api.moonshot.ai/v1",
        key_variables=("MOONSHOT_API_KEY",),
        regions={"intl": "https://api.moonshot.ai/v1", "cn": "https://api.moonshot.cn/v1"},
        cap_field="max_completion_tokens",
        thought_needed=True,
        unsupported=("image_url",),
        unsupported_reasoning=("temperature", "top_p", "tool_choice"),
    ),
    # OpenAI compatible - Chat; Select region ("The tool_choice parameter does not support being set to required or
    # object in thinking mode", says the API).
    Host(
        name="alibaba",
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        key_variables=("DASHSCOPE_API_KEY",),
        regions={
            "intl": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
            "us": "https://dashscope-us.aliyuncs.com/compatible-mode/v1",
            "cn": "https://dashscope.aliyuncs.com/compatible-mode/v1",
            "hk": "https://cn-hongkong.dashscope.aliyuncs.com/compatible-mode/v1",
        },
        usage_on_request=True,
        unsupported_reasoning=("tool_choice",),
    ),
    # Chat completion (the model chooses tools by itself; there is no seed).
    Host(
        name="zai",
        base_url="https://api.z.ai/api/paas/v4",
        key_variables=("ZAI_API_KEY",),
        regions={"intl": "https://api.z.ai/api/paas/v4", "cn": "https://open.bigmodel.cn/api/paas/v4"},
        unsupported=("seed", "tool_choice", "json_schema"),
    ),
    # OpenAI API compatible; Error codes.
    Host(
        name="minimax",
        base_url="https://api.minimax.io/v1",
        key_variables=("MINIMAX_API_KEY",),
        regions={"intl": "https://api.minimax.io/v1", "cn": "https://api.minimaxi.com/v1"},
        cap_field="max_completion_tokens",
        extra_body={"reasoning_split": True},  # else thoughts stand inside the answer
    ),
    # Using Cohere models via the OpenAI SDK (tool_choice is not among what is supported).
    Host(
        name="cohere",
        base_url="https://api.cohere.ai/compatibility/v1",
        key_variables=("COHERE_API_KEY", "CO_API_KEY"),
        developer_role=True,
        unsupported=("tool_choice",),
    ),
    Host(name="stepfun", base_url="https://api.stepfun.com/v1", key_variables=("STEPFUN_API_KEY",)),
    Host(name="xiaomi", base_url="https://api.xiaomimimo.com/v1", key_variables=("XIAOMI_API_KEY", "MIMO_API_KEY")),
    Host(name="upstage", base_url="https://api.upstage.ai/v1/solar", key_variables=("UPSTAGE_API_KEY",)),
    Host(name="inception", base_url="https://api.inceptionlabs.ai/v1", key_variables=("INCEPTION_API_KEY",)),
    Host(name="ai21", base_url="https://api.ai21.com/studio/v1", key_variables=("AI21_API_KEY",)),
    # Usage accounting (streams report it unasked); Provider routing; In-region routing.
    Host(
        name="openrouter",
        base_url="https://openrouter.ai/api/v1",
        key_variables=("OPENROUTER_API_KEY",),
        regions={"eu": "https://eu.openrouter.ai/api/v1", "us": "https://us.openrouter.ai/api/v1"},
        extra_body={"provider": {"require_parameters": True}},  # else some hosts behind it leave out what they lack
    ),
    # OpenAI compatibility.
    Host(
        name="ollama",
        base_url="http://127.0.0.1:11434/v1",
        key_variables=("OLLAMA_API_KEY",),
        url_variable="OLLAMA_HOST",
        needs_key=False,
        usage_on_request=True,
        unsupported=("tool_choice", "image_url"),
    ),
    # OpenAI-compatible server; Tool calling.
    Host(
        name="vllm",
        base_url="http://127.0.0.1:8000/v1",
        key_variables=("VLLM_API_KEY",),
        url_variable="VLLM_BASE_URL",
        needs_key=False,
        usage_on_request=True,
    ),
    # llama.cpp HTTP server (a tool's name is taken for "auto").
    Host(
        name="llamacpp",
        base_url="http://127.0.0.1:8080/v1",
        key_variables=("LLAMACPP_API_KEY",),
        url_variable="LLAMACPP_BASE_URL",
        needs_key=False,
        tool_by_name=False,
        usage_on_request=True,
    ),
)

HOSTS = {host.name: host for host in _TABLE}
"""By name."""
