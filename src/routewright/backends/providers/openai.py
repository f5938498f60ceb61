"""Chat completions, the protocol of OpenAI and of many other hosts, and the choice between it and the Responses API."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Unpack, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from routewright import wire
from routewright._core.catalogue.models import models_of
from routewright._core.request.read import are_plain
from routewright.errors import ProviderFault, ValidationFailed
from routewright.wire.problems import did_you_mean, no_choice

from .answer import Piece, Reader
from .discovery import SERVERS, Listing
from .endpoint import address_in_region, check_arguments, wire_name
from .faults import dicts_of, fault_in_answer, reason_of, text_of
from .hosts import HOSTS, Api, Host
from .http import HttpOptions, HttpProvider
from .reasoning import effort_of, merge, thinking_of, tier_of, with_extra
from .responses import INCLUDE, SUMMARY, ResponseItems, response_body
from .tool_ids import in_order, with_ids
from .usage import read_usage

_OTHERS = {"anthropic": "AnthropicProvider", "google": "GeminiProvider"}
"""Providers of known vendors with another protocol."""
_USAGE_FIELD = "stream_options"
_OPTIONAL = {
    _USAGE_FIELD: re.compile(_USAGE_FIELD),
    INCLUDE: re.compile(r"encrypted.content is not supported|[\"']include\b", re.IGNORECASE),
    SUMMARY: re.compile(r"reasoning\.summary|reasoning summar", re.IGNORECASE),
}
"""Fields that a host may refuse, with the words of such an error: for OpenAI's summaries of reasoning, an organization
has to be verified."""
_TOOL_CHOICES = ("auto", "none", "required")
_NO_PARAMS = wire.Params()
_REASONING = attrgetter("reasoning")
_SHOWN_BELOW = "(attachments, which are shown below)"
"""Replaces a tool result without text."""
_FILE_NAME = "document.pdf"
"""Required name of documents without one."""
_GROWING = ("text", "summary", "data")
"""Fields of ``reasoning_details`` that arrive in pieces."""
_LISTED_BYTES = 16 << 20
"""Longest list of a server's models."""


class OpenAIProvider(HttpProvider):
    """Serves models over chat completions or the Responses API, of OpenAI or another host.

        OpenAIProvider()                                    # key from OPENAI_API_KEY
        OpenAIProvider(name="mistral")                      # key from MISTRAL_API_KEY
        OpenAIProvider("sk-...", name="mine", base_url="https://llm.example.com/v1", models=[...])
        OpenAIProvider(["sk-1...", "sk-2..."])              # uses the next key if one is refused or at its limit
        OpenAIProvider(region="eu")                         # the host's address for this region
        OpenAIProvider(proxy="http://proxy:3128", verify="corporate-ca.pem")

    Without ``models`` it serves the catalogue's models under its name. Ollama, vLLM, llama.cpp and LM Studio are asked
    for their models before the first call.

    ``api``: with ``"auto"``, calls that OpenAI and Azure refuse over chat completions (tools beside thinking from
    GPT-5.4 on, all of the pro and codex models) go over the Responses API, and all others over chat completions;
    ``"chat"`` and ``"responses"`` choose one of them for all calls. The Responses API stores nothing
    (``store: false``).

    Keys are read when the provider is created; a variable may have several, separated by commas. Raises
    ``ValidationFailed`` if the host needs a key and there is none. ``headers`` are sent with every request, and kept
    secret like keys. ``proxy`` and ``verify`` are those of ``AutoTransport``; by default the environment's.
    ``timeout``: longest wait in seconds for the next piece of an answer, which may be all of it; then the next model is
    tried. ``max_retries``: how often the Router retries a model of this provider, unless the request or its policy say
    it. None: the Router's default. ``fetches_urls``: whether the server may be sent URLs of images and files: True for
    requests of the process itself, ``"callers"`` also for those of callers with a key. By default only vendors that
    fetch them on their own machines are sent any. ``caller_extra``: more fields that callers with a key may send in
    ``params.extra``; a name with a dot is a field inside an object.
    """

    def __init__(
        self,
        api_key: str | Sequence[str] | None = None,
        *,
        name: str = "openai",
        base_url: str | None = None,
        region: str | None = None,
        host: Host | None = None,
        api: Api = "auto",
        **options: Unpack[HttpOptions],
    ) -> None:
        check_arguments(name, base_url)
        if not isinstance(host, Host | None):
            hint = "pass the name of a known one as name=..., or base_url=..."
            raise ValidationFailed.at("host", f"must be a Host, got {type(host).__name__}", hint)
        self._host = dataclasses.replace(host or _host_of(name, base_url), name=name)
        if api not in get_args(Api):
            raise ValidationFailed.of(no_choice("api", api, get_args(Api)))
        self._api: Api = api if api != "auto" or "auto" in self._host.responses else "chat"
        self._choices: dict[tuple[object, ...], bool] = {}
        """The choice of ``auto`` by the names of a model, and whether there are tools."""
        self._refused: set[str] = set()
        """Optional fields that the host has refused, which are not sent again."""
        super().__init__(self._host, api_key, address_in_region(self._host, region, base_url), **options)
        self.region = region
        """Region of all calls (``protocols.BaseProvider``)."""
        self._server = None if self._models else SERVERS.get(name if host is None else host.name)
        self._listing = Listing()

    @property
    def discovers(self) -> bool:
        """True for a local server without given models (``protocols.DiscoveringProvider``)."""
        return self._server is not None

    async def discover(self) -> None:
        """Ask a local server for its models (``protocols.DiscoveringProvider``)."""
        if self._server is None:
            return
        try:
            models = self._listing.select(self.name, await self._server.list(self.name, self._ask, self._listing))
        except (ProviderFault, msgspec.MsgspecError, LookupError, TypeError) as error:
            detail = (error.public or error.message) if isinstance(error, ProviderFault) else ""
            reason = detail or "it is another kind of server"
            hint = f"start it with '{self._server.start}', or set {self._host.url_variable}"
            if "proxy" in reason:
                hint = f"set NO_PROXY={urlsplit(self._url).hostname} if it needs no proxy"
            raise self._fault_of_list(f"cannot list its models ({reason})", hint) from error
        if not models:
            raise self._fault_of_list("has no models", f"get one with '{self._server.get}'")
        self._models = models_of(models)

    def _fault_of_list(self, lack: str, hint: str) -> ProviderFault:
        return ProviderFault("connect", f"{self.name} at {self._url} {lack}: {hint}", public=f"{self.name} {lack}")

    async def _ask(self, path: str, body: object = None) -> Any:
        """Send a request other than a call (``discovery.Ask``)."""
        root = self._url.removesuffix("/v1") if path.startswith("/") else f"{self._url}/"
        headers = self._headers_of(next(self._keys.choose("")))
        method, content = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
        async with self._transport.request(method, root + path, headers=headers, body=content) as response:
            if response.status != 200:
                raise ProviderFault("request", f"status {response.status} at {path}", status=response.status)
            return msgspec.json.decode(await response.read(_LISTED_BYTES))

    def unsupported(self, model: wire.Model) -> tuple[wire.Feature, ...]:
        """Features that the host does not support for a model (``protocols.BaseProvider``)."""
        return tuple(sorted(self._host.list_missing(model, self._api)))

    def _uses_responses(self, call: wire.UpstreamCall) -> bool:
        if self._api != "auto":
            return self._api == "responses"
        model = call.model
        key = model.id, model.provider_model_id, model.like, bool(call.tools)
        if (choice := self._choices.get(key)) is None:
            choice = self._choices[key] = self._host.uses_responses(model, "auto", tools=bool(call.tools))
        return choice

    def _address(self, call: wire.UpstreamCall) -> str:
        return f"{self._url}/{'responses' if self._uses_responses(call) else 'chat/completions'}"

    def _credentials(self, key: str) -> dict[str, str]:
        if not key:
            return {}
        header = self._host.key_header
        return {header: f"Bearer {key}" if header == "authorization" else key}

    def _body(self, call: wire.UpstreamCall) -> bytes:
        host = self._host
        has_responses = self._uses_responses(call)
        body = response_body(_adapt(call, host), host) if has_responses else request_body(call, host)
        for field in self._refused:
            (body.get("reasoning", {}) if field == SUMMARY else body).pop(field, None)
        return msgspec.json.encode(body)

    def _reader(self, call: wire.UpstreamCall, headers: Mapping[str, str]) -> Reader:
        return ResponseItems(self.name) if self._uses_responses(call) else Completion(self.name, self._host.thought)

    def _learns(self, fault: ProviderFault) -> bool:
        is_request = fault.kind is wire.FaultKind.REQUEST
        fields = [field for field, words in _OPTIONAL.items() if is_request and words.search(fault.body or "")]
        self._refused.update(fields)
        return bool(fields)


def _host_of(name: str, base_url: str | None) -> Host:
    if name in HOSTS:
        return HOSTS[name]
    if base_url is not None:
        return Host(name=name, base_url=base_url, needs_key=False, usage_on_request=True)
    if name in _OTHERS:
        raise ValidationFailed.at("name", f"{name} has its own protocol", f"use {_OTHERS[name]}")
    hint = f"{did_you_mean(name, HOSTS)} pass base_url=..., or one of {', '.join(HOSTS)}".lstrip()
    raise ValidationFailed.at("name", f"no host is known as {name!r}", hint)


# --- requests


def request_body(call: wire.UpstreamCall, host: Host) -> wire.JsonObject:
    """The JSON body of a call in the host's dialect. Raises ``ProviderFault("request")`` if it is not expressible."""
    body: wire.JsonObject = {"model": wire_name(call.model), "messages": _messages_of(call, host), **host.extra_body}
    if call.max_output_tokens is not None:
        body[host.cap_field] = call.max_output_tokens
    if call.stream:
        body["stream"] = True
        if host.usage_on_request:
            body[_USAGE_FIELD] = {"include_usage": True}
    parts = (part for message in call.messages if isinstance(message.content, list) for part in message.content)
    if host.file_body and any(isinstance(part, wire.FilePart) for part in parts):
        body |= host.file_body
    if call.tools:
        body |= _encode_tools(call, host)
    if call.params == _NO_PARAMS:  # as of most calls
        return body
    params = call.params
    unsupported = call.model.unsupported or ()  # else the model does it anyway
    values = {
        "temperature": None if "temperature" in unsupported else _as_integer(params.temperature),
        "top_p": None if "top_p" in unsupported else _as_integer(params.top_p),
        "stop": params.stop,
        host.seed_field: _as_integer(params.seed),
        "response_format": params.response_format,
    }
    body |= {name: value for name, value in values.items() if value is not None}
    effort = effort_of(call)
    tier = params.service_tier
    options = {} if effort is None else thinking_of(host.thinking, call.model).fields(effort, call.max_output_tokens)
    if (params.parallel_tool_calls, params.verbosity, tier) != (None, None, None):
        missing = host.list_missing(call.model)
        if params.parallel_tool_calls is not None and call.tools and "parallel_tool_calls" not in missing:
            options["parallel_tool_calls"] = params.parallel_tool_calls
        if params.verbosity is not None and "verbosity" not in missing:
            options["verbosity"] = params.verbosity
        if tier is not None and tier in host.tiers and tier not in missing:
            options["service_tier"] = host.tiers[tier]
    return with_extra(merge(body, options), call, host.name)


def _choose(call: wire.UpstreamCall, host: Host) -> tuple[list[wire.Tool], str | wire.NamedToolChoice | None]:
    """The tools and their choice, in a form that the host supports."""
    tools = call.tools or []
    choice = call.tool_choice
    if isinstance(choice, str) and choice not in _TOOL_CHOICES:
        choice = wire.NamedToolChoice(wire.FunctionName(choice))
    if isinstance(choice, wire.NamedToolChoice) and "no_tool_by_name" in host.oddities:
        return [tool for tool in tools if tool.function_spec.name == choice.function.name], "required"
    return tools, choice


def _encode_tools(call: wire.UpstreamCall, host: Host) -> wire.JsonObject:
    tools, choice = _choose(call, host)
    fields: list[wire.JsonObject] = [{"type": "function", "function": tool.function_spec} for tool in tools]
    for field, tool in zip(fields, tools, strict=True) if host.cache_ttl else ():
        if tool.cache_control:
            field["cache_control"] = tool.cache_control
    return {"tools": fields} if choice is None else {"tools": fields, "tool_choice": choice}


def _as_integer(value: float | None) -> float | None:
    """An integer if possible: some hosts refuse ``1.0`` for a count."""
    return int(value) if value is not None and float(value).is_integer() else value


def _adapt(call: wire.UpstreamCall, host: Host) -> wire.UpstreamCall:
    """A call with the messages and tools that the host supports, for the Responses API."""
    messages = with_ids(call.messages, host.id_form)
    messages = messages if "auto" in host.responses else _adapt_messages(messages, host, has_parts=True)
    tools, choice = _choose(call, host)
    return replace(call, messages=messages, tools=tools, tool_choice=choice)


def _adapt_messages(messages: list[wire.Message], host: Host, *, has_parts: bool) -> list[wire.Message]:
    """The messages, changed by the host's ``oddities``. ``has_parts``: some of them may consist of parts."""
    if has_parts and "images_in_results" not in host.oddities:
        messages = _move_attachments(messages)
    if not host.developer_role:
        messages = [replace(message, role="system") if message.role == "developer" else message for message in messages]
    if "no_names" in host.oddities:
        messages = [message if message.name is None else replace(message, name=None) for message in messages]
    if "strict_turns" in host.oddities:
        messages = _join_turns(messages)
    if "no_text_parts" in host.oddities:
        messages = [replace(message, content=_join_texts(message.content)) for message in messages]
    return messages


def _messages_of(call: wire.UpstreamCall, host: Host) -> list[wire.Message] | list[wire.JsonObject]:
    """The messages in the host's form."""
    messages = call.messages
    if "strict_turns" not in host.oddities and are_plain(messages):
        return messages
    parts = [part for message in messages if type(message.content) is list for part in message.content]
    messages = _adapt_messages(in_order(with_ids(messages, host.id_form)), host, has_parts=bool(parts))
    has_calls = any(message.tool_calls for message in messages)
    is_blank = "thought_needed" in host.oddities and call.model.reasoning and has_calls
    is_rich = any(part.cache_control or isinstance(part, wire.AudioPart | wire.FilePart) for part in parts)
    if not has_calls and not is_rich and not any(map(_REASONING, messages)):
        return messages
    takes_marks = "cache_control" not in host.list_missing(call.model)
    bodies = [_encode_message(message, host, takes_marks=takes_marks) for message in messages]
    blank = {"reasoning_content": " "}  # some hosts refuse an empty text
    return [blank | body if is_blank and body["role"] == "assistant" else body for body in bodies]


def _encode_message(message: wire.Message, host: Host, *, takes_marks: bool) -> wire.JsonObject:
    """A message in the host's form, with reasoning of its own models. ``takes_marks``: it supports cache marks."""
    # strict servers refuse calls of tools without a content
    fields: wire.JsonObject = {"role": message.role, "content": None, **msgspec.to_builtins(message)}
    fields.pop("reasoning", None)
    parts = message.content if isinstance(message.content, list) else []
    for part, field in zip(parts, fields.get("content") or (), strict=False):
        mark = field.pop("cache_control", None)
        if isinstance(part, wire.FilePart):
            if not host.files:
                raise ProviderFault("request", f"{host.name} does not support documents in chat completions")
            field["file"].setdefault("filename", _FILE_NAME)
        elif isinstance(part, wire.AudioPart) and "audio_as_url" in host.oddities:
            field["input_audio"]["data"] = f"data:audio/{part.input_audio.format};base64,{part.input_audio.data}"
        if mark is not None and takes_marks and "cache_breakpoints" in host.oddities:
            field["prompt_cache_breakpoint"] = {"mode": "explicit"}
        elif mark is not None and takes_marks:
            field["cache_control"] = mark if host.cache_ttl else {"type": mark["type"]}
    if message.reasoning is None or message.reasoning.provider != host.name or not host.thought:
        return fields
    thoughts = [item.get(host.thought) for item in message.reasoning.items]
    if host.thought == "reasoning_details":
        details = [detail for part in thoughts for detail in dicts_of(part)]
        pieces = [detail for detail in details if str(detail.get("type")).startswith("reasoning.")]
        return fields | ({host.thought: _join_details(pieces)} if pieces else {})
    text = "".join(part for part in thoughts if isinstance(part, str))
    if text and host.thought == "content":
        content = fields.get("content") or []
        rest = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return fields | {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}, *rest]}
    return fields | ({host.thought: text} if text else {})


def _move_attachments(messages: list[wire.Message]) -> list[wire.Message]:
    """Move attachments of tool results to a user message after all results of a turn, which must be consecutive."""
    results: list[wire.Message] = []
    attachments: list[wire.Part] = []
    for message in messages:
        if attachments and message.role != "tool":
            results.append(wire.Message("user", attachments))
            attachments = []
        if message.role == "tool" and isinstance(message.content, list):
            moved = [part for part in message.content if not isinstance(part, wire.TextPart)]
            texts = [part for part in message.content if isinstance(part, wire.TextPart) and part.text]
            if moved:
                attachments += [wire.TextPart(f"Attachments of the tool call {message.tool_call_id}:"), *moved]
                content = texts[0].text if len(texts) == 1 else [*texts]
                message = replace(message, content=content or _SHOWN_BELOW)
        results.append(message)
    return [*results, wire.Message("user", attachments)] if attachments else results


def _join_turns(messages: list[wire.Message]) -> list[wire.Message]:
    """System messages first, and consecutive messages of one role joined."""
    turns: list[wire.Message] = []
    for message in sorted(messages, key=lambda message: message.role != "system"):
        last = turns[-1] if turns else None
        if last and last.role == message.role != "tool" and not (last.tool_calls or message.tool_calls):
            message = replace(message, content=_join_texts([*_parts(turns.pop().content), *_parts(message.content)]))
        turns.append(message)
    return turns


def _parts(content: str | list[wire.Part] | None) -> list[wire.Part]:
    return content if isinstance(content, list) else [wire.TextPart(content or "")]


def _join_texts(content: str | list[wire.Part] | None) -> str | list[wire.Part] | None:
    """Text parts as paragraphs of one text. Unchanged if there are other parts."""
    texts = [part.text for part in content if isinstance(part, wire.TextPart)] if isinstance(content, list) else []
    return content if content is None or len(texts) < len(content) else "\n\n".join(texts)


# --- answers


class _Part(msgspec.Struct):
    content: str | list[wire.JsonObject] | None = None
    refusal: str | None = None
    tool_calls: list[Piece] | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None

    @property
    def text(self) -> str | None:
        """The text, or None if there is none."""
        if not isinstance(self.content, list):
            return self.content
        values = (part.get("text") for part in self.content if part.get("type") == "text")
        texts = [text for text in values if isinstance(text, str)]
        return "".join(texts) if texts else None

    @property
    def thinks(self) -> bool:
        """True if it has reasoning in any host's field."""
        if self.reasoning or self.reasoning_content or self.reasoning_details:
            return True
        return isinstance(self.content, list) and any(part.get("type") == "thinking" for part in self.content)

    @property
    def thought(self) -> str:
        """The readable reasoning."""
        for value in (self.reasoning_content, self.reasoning):
            if value and isinstance(value, str):
                return value
        pieces = [piece for part in dicts_of(self.content) for piece in dicts_of(part.get("thinking"))]
        pieces += dicts_of(self.reasoning_details)
        texts = (piece.get("text") or piece.get("summary") for piece in pieces)
        return "".join(text for text in texts if isinstance(text, str))


def _join_details(details: Sequence[wire.JsonObject]) -> list[wire.JsonObject]:
    """Join pieces of ``reasoning_details`` with the same type and index."""
    joined: dict[Any, wire.JsonObject] = {}
    for position, piece in enumerate(details):
        number = piece.get("index")
        key = (str(piece.get("type")), position if number is None else f"#{number}")
        item = joined.setdefault(key, {})
        for name, value in piece.items():
            grows = name in _GROWING and isinstance(value, str) and isinstance(item.get(name), str)
            if grows or value is not None or name not in item:
                item[name] = item[name] + value if grows else value
    return [*joined.values()]


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Part | None = None
    message: _Part | None = None
    finish_reason: str | None = None
    native_finish_reason: Any = None
    """OpenRouter's field for the vendor's own reason."""
    usage: Any = None


class _Groq(msgspec.Struct):
    usage: Any = None
    error: Any = None


class _BaseResp(msgspec.Struct):
    status_code: int = 0


class _Document(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    error_message: str | None = None
    """DeepInfra's and Venice's field for an error."""
    x_groq: _Groq | None = None
    """Groq's field in the first and last event of a stream."""
    base_resp: _BaseResp | None = None
    """MiniMax's field: an error unless its code is 0."""
    service_tier: Any = None


_decoder = msgspec.json.Decoder(_Document)


class Completion(Reader):
    """Reads one answer. ``Finish`` comes last."""

    content = "content"

    def __init__(self, provider: str, thought: str = "") -> None:
        """``thought``: the field in which the host accepts its reasoning back."""
        super().__init__(provider)
        self._field = thought
        self._thoughts: list[str] = []
        """Reasoning since the last item, as texts and as ``reasoning_details``."""
        self._details: list[wire.JsonObject] = []

    def take(self, document: bytes | str) -> None:
        """Decode a document, usage last."""
        completion = self._decode(_decoder, document, "not a chat completion")
        usage = read_usage(completion.usage)
        if usage is None and completion.x_groq is not None:
            usage = read_usage(completion.x_groq.usage)
        for choice in completion.choices or ():
            if choice.usage is not None:
                usage = read_usage(choice.usage) or usage
        self._tier = tier_of(completion.service_tier) or self._tier
        self._take(usage, self._read, completion, document)

    def _read(self, completion: _Document, document: bytes | str) -> None:
        groq = completion.x_groq
        minimax = completion.base_resp
        errors = completion.error, completion.error_message, groq and groq.error, minimax and minimax.status_code
        if any(errors):
            raise fault_in_answer(self._provider, text_of(document))
        for choice in completion.choices or ():
            if choice.index:  # only one is requested
                continue
            self._started = True
            part = choice.delta or choice.message or _Part()
            if part.refusal:
                raise ProviderFault("refused", f"{self._provider} refused to answer", status=200)
            text = part.text
            if part.thinks:
                self._thought = True
                self._details += dicts_of(part.reasoning_details)
                if thought := part.thought:
                    self._thoughts.append(thought)
                    self.chunks.append(wire.Thought(thought))
            if self._thought and (text or part.tool_calls or choice.finish_reason):
                item = _join_details(self._details) if self._field == "reasoning_details" else "".join(self._thoughts)
                self._thoughts.clear()
                self._details.clear()
                if item and self._field:
                    self.chunks.append(wire.Thought(item={self._field: item}))
            self._blank = self._blank or text == ""
            if text:
                self._pieces += 1
                self.chunks.append(wire.Delta(text))
            for call in part.tool_calls or ():
                self._pieces += 1
                self.chunks.append(self._tools.add(call) if choice.delta else self._tools.begin(call))
            if choice.finish_reason:
                self._end_with(choice.finish_reason)
                native = choice.native_finish_reason
                if isinstance(native, str) and reason_of(self._provider, native) == "content_filter":
                    self._reason = "content_filter"
