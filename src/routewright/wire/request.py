"""The request, its messages and options, and the dicts that options may be."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from msgspec import field

from routewright.errors import ValidationFailed

from .plain import Struct


class BudgetDict(TypedDict, total=False):
    """A ``Budget`` as a dict."""

    maxCostUsd: float | None
    maxTokens: float | None


class FallbackDict(TypedDict, total=False):
    """A ``Fallback`` as a dict."""

    models: list[str] | None
    maxRetries: float | None
    on_partial: OnPartial | None


class CacheOptsDict(TypedDict, total=False):
    """A ``CacheOpts`` as a dict."""

    mode: Literal["semantic", "exact"]
    max_error: float | None
    threshold: float | None
    ttl_seconds: float
    explore: float
    namespace: str | None


class ReasoningBudgetDict(TypedDict):
    """A ``ReasoningBudget`` as a dict."""

    max_tokens: float


class ParamsDict(TypedDict, total=False):
    """A ``Params`` as a dict."""

    temperature: float | None
    top_p: float | None
    max_output_tokens: float | None
    stop: str | list[str] | None
    seed: float | None
    response_format: dict[str, Any] | None
    reasoning: Effort | ReasoningBudgetDict | None
    parallel_tool_calls: bool | None
    service_tier: ServiceTier | None
    verbosity: Verbosity | None
    extra: dict[str, dict[str, Any]] | None


Role = Literal["system", "developer", "user", "assistant", "tool"]


class CacheControl(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Asks the vendor to cache the prompt up to here. Ignored by vendors without cache marks."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    """Lifetime since the last use. Default: the vendor's, usually five minutes."""


class TextPart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="text"):
    """A run of text inside a message."""

    text: str
    cache_control: CacheControl | None = None


class ImageUrl(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where an image is: an ``https:`` address or a ``data:`` URL. Passed on to the provider, never fetched here."""

    url: str
    """Begins with ``https://``, ``http://`` or ``data:image/``."""
    detail: Literal["auto", "low", "high"] | None = None
    """How closely the model looks."""


class ImagePart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="image_url"):
    """An image inside a message."""

    image_url: ImageUrl
    cache_control: CacheControl | None = None


class InputAudio(Struct, frozen=True, forbid_unknown_fields=True):
    """Recorded speech or sound."""

    data: str
    """Base64."""
    format: Literal["wav", "mp3"]


class AudioPart(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="input_audio"
):
    """Audio inside a message, for models with the modality ``audio``."""

    input_audio: InputAudio
    cache_control: CacheControl | None = None


class FileData(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A PDF document: its bytes, or an address that is passed on to the provider, never fetched here."""

    file_data: str
    """Begins with ``data:application/pdf;base64,`` or ``https://``."""
    filename: str | None = None
    """File name shown to the model."""


class FilePart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="file"):
    """A document inside a message, for models with the modality ``file``."""

    file: FileData
    cache_control: CacheControl | None = None


Part = TextPart | ImagePart | AudioPart | FilePart


def text_of(part: Part) -> str:
    """The text of a text part; the URL or data of any other part."""
    match part:
        case TextPart():
            return part.text
        case ImagePart():
            return part.image_url.url
        case AudioPart():
            return part.input_audio.data
        case FilePart():
            return part.file.file_data


class FunctionCall(Struct, frozen=True, forbid_unknown_fields=True):
    """The function a model wants called; ``arguments`` is JSON text as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, forbid_unknown_fields=True):
    """One function call requested by a model."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Reasoning(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model's reasoning, in its vendor's format, to send back in the next turn of a tool loop.

    Copy it unchanged from a response into the assistant message. It is sent only to the provider that made it.
    """

    provider: str
    """Name of the provider that made it."""
    items: list[dict[str, Any]]
    """The vendor's own items, signatures included."""
    text: str | None = None
    """The readable part, if the vendor gives any. Not sent back."""


class Message(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One turn of a chat. ``content`` is null only where an assistant turn carries tool calls."""

    role: Role
    content: str | list[Part] | None = None
    """Text or parts. May be None only if ``tool_calls`` are given."""
    tool_calls: list[ToolCall] | None = None
    """For the role ``assistant``: the calls it requested."""
    tool_call_id: str | None = None
    """For the role ``tool``: the ``id`` of the call it answers."""
    name: str | None = None
    """Name of the speaker."""
    reasoning: Reasoning | None = None
    """For the role ``assistant``: the reasoning, unchanged from the response."""


class FunctionSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function that a model may call; ``parameters`` is a JSON schema object."""

    name: str
    description: str | None = None
    """For the model."""
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None
    """Whether arguments are held to the schema by the letter."""


class Tool(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool declaration, nested (``function``) or flat (``name`` ...). Read it through ``function_spec``."""

    type: Literal["function"] = "function"
    function: FunctionSpec | None = None
    """The nested form; leave the fields of the flat form out."""
    name: str | None = None
    """The flat form: this field and the next three."""
    description: str | None = None
    """For the model."""
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None
    """Whether arguments are held to the schema by the letter."""
    cache_control: CacheControl | None = None
    """Keep all tools up to this one in the vendor's cache."""

    @property
    def function_spec(self) -> FunctionSpec:
        """The declaration in the nested form."""
        if self.function is not None:
            return self.function
        return FunctionSpec(self.name or "", self.description, self.parameters, self.strict)


class FunctionName(Struct, frozen=True, forbid_unknown_fields=True):
    """A function named in ``tool_choice``."""

    name: str


class NamedToolChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """The object form of ``tool_choice``."""

    function: FunctionName
    type: Literal["function"] = "function"


Goal = Literal["cost", "quality", "stability"]
Strategy = Literal["balanced", "cost-optimized", "quality-first", "latency-optimized"]
OnPartial = Literal["restart", "error"]
Effort = Literal["none", "minimal", "low", "medium", "high", "max"]
ServiceTier = Literal["auto", "default", "flex", "priority"]
Verbosity = Literal["low", "medium", "high"]


class Fallback(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Replaces the default chain. ``models=[]`` means no fallback; ``max_retries`` are further tries of one model."""

    models: list[str] | None = None
    """The chain, in this order. Default: the next best that fit."""
    max_retries: float | None = field(default=None, name="maxRetries")
    """Retries of the same model after a transient fault. Default: 1."""
    on_partial: OnPartial | None = None
    """What to do if a stream breaks off: ``restart`` sends the next model's answer from its start."""


class Budget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A hard limit over all attempts of a call, in US dollars, in tokens, or in both."""

    max_cost_usd: float | None = field(default=None, name="maxCostUsd")
    """US dollars."""
    max_tokens: float | None = field(default=None, name="maxTokens")
    """Input and output together."""


class CacheOpts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a call may be answered from the cache: ``max_error`` or ``threshold``, not both; ``ttl_seconds``."""

    mode: Literal["semantic", "exact"] = "semantic"
    """``exact`` matches only an identical request."""
    max_error: float | None = None
    """Share of all requests that may get a wrong cached answer. Default: 0.01. The mode ``exact`` ignores it."""
    threshold: float | None = None
    """Minimum similarity of a hit. The mode ``exact`` ignores it."""
    ttl_seconds: float = 3600
    """How long an answer is kept."""
    explore: float = 0.02
    """Share of the hits that are answered live anyway, to check whether the cached answer was right."""
    namespace: str | None = None
    """Requests share entries only within a namespace."""


class ReasoningBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """A limit on a model's reasoning before it answers."""

    max_tokens: float
    """Tokens. Models whose vendor takes no such limit are rejected."""


class Params(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sampling parameters that are passed on to the model."""

    temperature: float | None = None
    """Randomness of the answer."""
    top_p: float | None = None
    """Nucleus sampling: the probability mass to sample from."""
    max_output_tokens: float | None = None
    """Limit of the answer's length in tokens, reasoning included."""
    stop: str | list[str] | None = None
    """Strings that end the answer. They are not part of it."""
    seed: float | None = None
    """Makes answers to the same request repeatable, as far as the model can."""
    response_format: dict[str, Any] | None = None
    """``text``, ``json_object``, or ``json_schema`` with a schema."""
    reasoning: Effort | ReasoningBudget | None = None
    """How much the model reasons before it answers. Models that do not support the value are rejected."""
    parallel_tool_calls: bool | None = None
    """False allows at most one tool call per answer. Models that cannot promise that are rejected."""
    service_tier: ServiceTier | None = None
    """How the vendor schedules and prices the call. Ignored, and listed as ignored, if the vendor has no such tier."""
    verbosity: Verbosity | None = None
    """Length of answers. Ignored, and listed as ignored, if the vendor has no such option."""
    extra: dict[str, dict[str, Any]] | None = None
    """Vendor-specific fields by provider name, sent unchanged to that provider only."""


class RouteRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Body of ``POST /v1/route``; ``Router.route`` converts everything it accepts to this (spec 2.1)."""

    messages: list[Message]
    """The chat, at most 1,000 messages."""
    goal: Goal | None = None
    """What matters most. Default: ``cost``; ``quality`` with the strategy ``quality-first``."""
    strategy: Strategy | None = None
    """How goals are weighed. Default: ``balanced``."""
    policy_id: str | None = None
    """Id or name of a policy. Its goal and strategy replace those of the request."""
    models: list[str] | None = None
    """Allowed models, as ids or aliases. Default: all available models."""
    fallback: Fallback | None = None
    """Replaces the default chain."""
    budget: Budget | None = None
    """A hard limit over all attempts."""
    cache: bool | CacheOpts | None = None
    """Whether the answer may come from the cache. Default: no."""
    stream: bool = False
    """Over HTTP: answer with server-sent events."""
    tools: list[Tool] | None = None
    """Functions that the model may call. Names are unique."""
    tool_choice: str | NamedToolChoice | None = None
    """``auto``, ``none``, ``required``, the name of a declared tool, or an object that names one."""
    params: Params | None = None
    """Passed on to the model."""
    metadata: dict[str, Any] | None = None
    """Tags stored in the trace: any JSON object of at most 16 KiB."""
    timeout_ms: float | None = None
    """Limit for the whole call: decision, attempts, pauses, fallbacks and stream. Default: 60,000."""
    idempotency_key: str | None = None
    """At most 64 bytes in UTF-8. Within 24 hours, a call with the same key is made and billed only once."""
    prefer: str | list[str] | None = None
    """Models to try first, in this order, if they pass every constraint: an id, an alias, or a list."""

    @classmethod
    def _made_of(cls, value: Any, source: Any) -> Any:
        """As the Router reads it: null is absent, and problems have hints, in the words of HTTP."""
        from routewright._core.request.problems import problem_in_json
        from routewright._core.request.read import converted

        try:
            return converted(value, cls, "")
        except ValidationFailed as error:
            raise ValueError("\n".join(str(problem_in_json(each)) for each in error.problems)) from None
