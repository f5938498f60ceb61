"""The route request, its messages and options, and typed dicts for the options."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Literal, Self, TypedDict

import msgspec
from msgspec import field
from msgspec.structs import replace

from routewright.errors import RouterError, ValidationFailed

from .json_scan import scan
from .plain import JsonObject, Struct


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
    response_format: JsonObject | None
    reasoning: Effort | ReasoningBudgetDict | None
    parallel_tool_calls: bool | None
    service_tier: ServiceTier | None
    verbosity: Verbosity | None
    extra: dict[str, JsonObject] | None


Role = Literal["system", "developer", "user", "assistant", "tool"]


class CacheControl(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Asks the vendor to cache the prompt up to this point. Ignored for vendors without cache marks."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    """Time to live after the last use. Default: the vendor's, usually five minutes."""


class TextPart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="text"):
    """Text inside a message."""

    text: str
    cache_control: CacheControl | None = None


class ImageUrl(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An image's URL. It is passed on to providers that may fetch it, and never fetched here."""

    url: str
    """Begins with ``data:image/``, ``https://`` or ``http://``. Callers with a key name public hosts by ``https://``."""
    detail: Literal["auto", "low", "high"] | None = None
    """The resolution at which the model reads the image."""


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
    """A PDF document: its bytes, or a URL that is passed on to providers that may fetch it, and never fetched here."""

    file_data: str
    """Begins with ``data:application/pdf;base64,`` or ``https://``."""
    filename: str | None = None
    """File name that the model sees."""


class FilePart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="file"):
    """A document inside a message, for models with the modality ``file``."""

    file: FileData
    cache_control: CacheControl | None = None


Part = TextPart | ImagePart | AudioPart | FilePart


def text_of(part: Part) -> str:
    """The text of a text part; the data or URL of any other part."""
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
    """The function that a model calls. ``arguments`` is JSON text as the model wrote it."""

    name: str
    arguments: str = ""


class ToolCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call requested by a model."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Reasoning(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model's reasoning, in the form its vendor expects back in the next turn of a tool loop.

    Copy it unchanged from a response into the assistant message. It is sent only to the provider that made it.
    """

    provider: str
    """Provider of the model that produced it."""
    items: list[JsonObject]
    """The vendor's own items, signatures included."""
    text: str | None = None
    """The readable part, if the vendor provides one. Not sent back."""

    def pack(self) -> str:
        """The items as an opaque text in base64, which clients send back unchanged."""
        return b64encode(msgspec.json.encode(replace(self, text=None))).decode()

    @classmethod
    def unpack(cls, text: object) -> Self | None:
        """The reasoning of a ``pack``, or None if the text is none."""
        try:
            raw = b64decode(text if isinstance(text, str) else "", validate=True)
            scan(raw)
            return msgspec.json.decode(raw, type=cls)
        except (ValueError, msgspec.DecodeError, RouterError, RecursionError):
            return None


class Message(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One turn of a chat."""

    role: Role
    content: str | list[Part] | None = None
    """Text or parts. May be null or left out only in an assistant turn with ``tool_calls``."""
    tool_calls: list[ToolCall] | None = None
    """Role ``assistant`` only: the calls that the model requested."""
    tool_call_id: str | None = None
    """Role ``tool`` only: ``id`` of the call that this message answers."""
    name: str | None = None
    """Name of the speaker."""
    reasoning: Reasoning | None = None
    """Role ``assistant`` only: the ``reasoning`` of the model's response, unchanged."""


class FunctionSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function that a model may call."""

    name: str
    description: str | None = None
    """Tells the model what the function does."""
    parameters: JsonObject | None = None
    """JSON Schema of type ``object``."""
    strict: bool | None = None
    """True: arguments must match the schema exactly."""


class Tool(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool declaration, nested (``function``) or flat (``name``, ``description`` ...). ``function_spec`` reads
    both."""

    type: Literal["function"] = "function"
    function: FunctionSpec | None = None
    """Nested form; leave out the flat fields."""
    name: str | None = None
    """Flat form, with ``description``, ``parameters`` and ``strict``."""
    description: str | None = None
    """Tells the model what the function does."""
    parameters: JsonObject | None = None
    """JSON Schema of type ``object``."""
    strict: bool | None = None
    """True: arguments must match the schema exactly."""
    cache_control: CacheControl | None = None
    """Asks the vendor to cache all tools up to this one."""

    @property
    def function_spec(self) -> FunctionSpec:
        """The declaration in its nested form, whichever form was given."""
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
    """Replaces the default fallback chain. ``models=[]`` disables fallback."""

    models: list[str] | None = None
    """Models to try, in order. Default: the next best models that fit."""
    max_retries: float | None = field(default=None, name="maxRetries")
    """Retries of the same model after a transient fault. Default: 1."""
    on_partial: OnPartial | None = None
    """What to do if a stream breaks: ``restart`` streams the next model's answer from the beginning, ``error``
    fails."""


class Budget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Hard limit on the cost and tokens of all attempts of a call together."""

    max_cost_usd: float | None = field(default=None, name="maxCostUsd")
    """Limit in US dollars."""
    max_tokens: float | None = field(default=None, name="maxTokens")
    """Limit on input and output tokens together."""


class CacheOpts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a call may be answered from the cache. Give ``max_error`` or ``threshold``, not both."""

    mode: Literal["semantic", "exact"] = "semantic"
    """``exact`` matches only an identical request; ``semantic`` also matches similar questions."""
    max_error: float | None = None
    """Highest share of all requests that may get a wrong cached answer. Default: 0.01. Ignored in mode ``exact``."""
    threshold: float | None = None
    """Lowest similarity at which a cached answer is used. Ignored in mode ``exact``."""
    ttl_seconds: float = 3600
    """How long an answer is kept."""
    explore: float = 0.02
    """Share of hits that are answered live anyway, to measure how often cached answers are right."""
    namespace: str | None = None
    """Requests share cached answers only within a namespace."""


class ReasoningBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """A limit on a model's reasoning tokens."""

    max_tokens: float
    """Models whose vendor does not support such a limit are excluded."""


class Params(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sampling parameters that are passed on to the model."""

    temperature: float | None = None
    """Sampling temperature."""
    top_p: float | None = None
    """Nucleus sampling: sample from the most likely tokens up to this probability mass."""
    max_output_tokens: float | None = None
    """Limit on output tokens, reasoning included."""
    stop: str | list[str] | None = None
    """Sequences at which the answer stops; they are not part of it."""
    seed: float | None = None
    """Makes sampling repeatable, as far as the vendor supports it."""
    response_format: JsonObject | None = None
    """Type ``text``, ``json_object``, or ``json_schema`` with a schema."""
    reasoning: Effort | ReasoningBudget | None = None
    """Reasoning effort, or a limit in tokens. Models that do not support it are excluded."""
    parallel_tool_calls: bool | None = None
    """False: at most one tool call per answer. Models that cannot guarantee this are excluded."""
    service_tier: ServiceTier | None = None
    """Vendor's scheduling and price tier. If the vendor has no such tier, it is ignored and listed in
    ``ignored_params``."""
    verbosity: Verbosity | None = None
    """Length of answers. Ignored and listed likewise where it is not supported."""
    extra: dict[str, JsonObject] | None = None
    """Vendor-specific fields by provider name, sent unchanged to that provider only. Callers with a key may send those
    that are known to be harmless."""


class RouteRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Body of ``POST /v1/route``; all inputs of ``Router.route`` are converted to it (spec 2.1)."""

    messages: list[Message]
    """The chat, at most 1,000 messages."""
    goal: Goal | None = None
    """What to optimize for. Default: ``cost``, or ``quality`` with the strategy ``quality-first``."""
    strategy: Strategy | None = None
    """How quality, cost, latency and stability are weighted. Default: ``balanced``."""
    policy_id: str | None = None
    """Id or name of a policy. Its goal and strategy override those of the request."""
    models: list[str] | None = None
    """Ids or aliases of the models to choose from. Default: all available models."""
    fallback: Fallback | None = None
    """Replaces the default fallback chain."""
    budget: Budget | None = None
    """Hard limit over all attempts."""
    cache: bool | CacheOpts | None = None
    """True, or options: the answer may come from the cache. Default: false."""
    stream: bool = False
    """Over HTTP: answer with server-sent events."""
    tools: list[Tool] | None = None
    """Functions that the model may call. Names must be unique."""
    tool_choice: str | NamedToolChoice | None = None
    """``auto``, ``none``, ``required``, or a declared tool by its name or as an object."""
    params: Params | None = None
    """Sampling parameters passed on to the model."""
    metadata: JsonObject | None = None
    """Tags kept in the trace: any JSON object up to 16 KiB."""
    timeout_ms: float | None = None
    """Time limit for the whole call: decision, attempts, retries, fallbacks and stream. Default: 60,000."""
    idempotency_key: str | None = None
    """At most 64 bytes in UTF-8. Repeating a request with the same key within 24 hours makes and bills it only once."""
    prefer: str | list[str] | None = None
    """Ids or aliases of models to try first, in order, if they pass every constraint."""

    @classmethod
    def _convert(cls, value: Any, source: Any) -> Any:
        """Convert as the Router does: null counts as absent. Raises ``ValueError`` with every problem and its hint."""
        from .conversion import convert_value
        from .problems import problem_in_json

        try:
            return convert_value(value, cls, "")
        except ValidationFailed as error:
            raise ValueError("\n".join(str(problem_in_json(problem)) for problem in error.problems)) from None
