"""Chat completions, both ways: OpenAI's protocol, and that of every host which speaks it."""

from __future__ import annotations

import difflib
import re
from base64 import b32encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec

from routewright._core.sse import SseEvent
from routewright.errors import ProviderFault, ValidationFailed
from routewright.protocols import Clock, Transport
from routewright.wire import (
    Chunk,
    Delta,
    FaultKind,
    Feature,
    Finish,
    FunctionName,
    ImagePart,
    Message,
    Model,
    NamedToolChoice,
    Part,
    TextPart,
    UpstreamCall,
    Usage,
)
from routewright.wire.secret import Secret

from .answer import Piece, ToolCalls, count_of, usage_last
from .endpoint import address_in_region, check_arguments, wire_name
from .faults import CUT, decoded, ended, fault_in_answer, malformed, written
from .hosts import HOSTS, Host
from .http import HttpProvider

_OTHERS = {"anthropic": "AnthropicProvider", "google": "GeminiProvider"}
"""Who serves the vendors that are known and do not speak this protocol."""
_USAGE_FIELD = "stream_options"
_TOOL_CHOICES = ("auto", "none", "required")
_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")
_SHOWN_BELOW = "(images, which are shown below)"
"""Takes the place of a tool result that holds nothing but images."""
_DONE = "[DONE]"
_WRITTEN = ("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens")
"""Prompt tokens that were written to the vendor's cache: the words of OpenAI and OpenRouter, of Alibaba, and of proxies
in front of Anthropic."""


class OpenAIProvider(HttpProvider):
    """Serves models over chat completions, OpenAI's own or another host's.

        OpenAIProvider()                                    # key from OPENAI_API_KEY
        OpenAIProvider(name="mistral")                      # key from MISTRAL_API_KEY
        OpenAIProvider("sk-...", name="mine", base_url="https://llm.example.com/v1", models=[...])
        OpenAIProvider(["sk-1...", "sk-2..."])              # the next one where a key is refused or at its limit
        OpenAIProvider(region="eu")                         # kept to a region where the host has one of that name

    Keys are read when the provider is made; a variable may hold several, separated by commas. If the host needs a key
    and there is none, that raises ``ValidationFailed``. ``headers`` are sent with every request, and kept as secret as
    the keys.
    """

    def __init__(
        self,
        api_key: str | Sequence[str] | None = None,
        *,
        name: str = "openai",
        base_url: str | None = None,
        region: str | None = None,
        models: Sequence[Model] = (),
        transport: Transport | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        host: Host | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_arguments(name, base_url, headers)
        if not isinstance(host, Host | None):
            hint = "name a known one as name=..., or pass base_url=..."
            raise ValidationFailed.at("host", f"must be a Host, got {type(host).__name__}", hint)
        self._host = host or _host(name, base_url)
        self._refuses_usage = False
        """The host has refused to be asked for the usage of a stream, and is asked no more."""
        endpoint, address = replace(self._host, name=name), address_in_region(self._host, region, base_url)
        super().__init__(endpoint, api_key, address, models, transport, headers, environ, clock)
        self.region = region
        """Where all calls are served, as policies name it (``protocols.RegionalProvider``)."""

    def unsupported(self, model: Model) -> tuple[Feature, ...]:
        """What the host does not take, and what it does not take for models that reason."""
        return (*self._host.unsupported, *(self._host.unsupported_reasoning if model.reasoning else ()))

    def _address(self, call: UpstreamCall) -> str:
        return f"{self._url}/chat/completions"

    def _credentials(self, key: str) -> dict[str, str]:
        if not key:
            return {}
        header = self._host.key_header
        return {header: f"Bearer {key}" if header == "authorization" else key}

    def _body(self, call: UpstreamCall) -> bytes:
        body = request_body(call, self._host)
        if self._refuses_usage:
            body.pop(_USAGE_FIELD, None)
        return msgspec.json.encode(body)

    def _reader(self, call: UpstreamCall) -> Completion:
        return Completion(self._host.name)

    def _learns(self, fault: ProviderFault) -> bool:
        if fault.kind is not FaultKind.REQUEST or _USAGE_FIELD not in (fault.body or ""):
            return False
        self._refuses_usage = True
        return True


def _host(name: str, base_url: str | None) -> Host:
    if name in HOSTS:
        return HOSTS[name]
    if base_url is not None:
        return Host(name=name, base_url=base_url, needs_key=False, usage_on_request=True)
    if name in _OTHERS:
        raise ValidationFailed.at("name", f"{name} has a protocol of its own", f"use {_OTHERS[name]}")
    near = difflib.get_close_matches(name, HOSTS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValidationFailed.at(
        "name", f"no host is known as {name!r}", f"{hint}give base_url=..., or one of {', '.join(HOSTS)}"
    )


# --- requests


def request_body(call: UpstreamCall, host: Host) -> dict[str, Any]:
    """The JSON body of a call in the host's dialect."""
    body: dict[str, Any] = {"model": wire_name(call.model), "messages": _messages(call, host), **host.extra_body}
    if call.max_output_tokens is not None:
        body[host.cap_field] = call.max_output_tokens
    if call.stream:
        body["stream"] = True
        if host.usage_on_request:
            body[_USAGE_FIELD] = {"include_usage": True}
    if call.tools:
        body |= _tools(call, host)
    params, lacking = call.params, call.model.unsupported or ()  # a model that lacks it does it of itself
    named = {
        "temperature": None if "temperature" in lacking else _whole(params.temperature),
        "top_p": None if "top_p" in lacking else _whole(params.top_p),
        "stop": params.stop,
        host.seed_field: _whole(params.seed),
        "response_format": params.response_format,
    }
    return body | {name: value for name, value in named.items() if value is not None}


def _tools(call: UpstreamCall, host: Host) -> dict[str, Any]:
    tools, choice = call.tools or [], call.tool_choice
    if isinstance(choice, str) and choice not in _TOOL_CHOICES:
        choice = NamedToolChoice(FunctionName(choice))
    if isinstance(choice, NamedToolChoice) and not host.tool_by_name:
        tools, choice = [tool for tool in tools if tool.function_spec.name == choice.function.name], "required"
    said = {"tools": [{"type": "function", "function": tool.function_spec} for tool in tools]}
    return said if choice is None else said | {"tool_choice": choice}


def _whole(value: float | None) -> float | None:
    """As an integer if it is one: some hosts refuse ``1.0`` for a count."""
    return int(value) if value is not None and float(value).is_integer() else value


def _messages(call: UpstreamCall, host: Host) -> list[Message] | list[dict[str, Any]]:
    """The messages as the host takes them: ``Host`` says what has to change."""
    messages, changed = call.messages, msgspec.structs.replace
    if not host.any_call_id:
        messages = [_with_short_ids(message) for message in messages]
    if not host.images_in_results:
        messages = _with_images_apart(messages)
    if not host.developer_role:
        messages = [changed(each, role="system") if each.role == "developer" else each for each in messages]
    if not host.message_names:
        messages = [each if each.name is None else changed(each, name=None) for each in messages]
    if not host.turns_of_one_role:
        messages = _in_turns(messages)
    if not host.text_in_parts:
        messages = [changed(each, content=_put_together(each.content)) for each in messages]
    if not (host.thought_needed and call.model.reasoning and any(message.tool_calls for message in messages)):
        return messages
    plain: list[dict[str, Any]] = [msgspec.to_builtins(message) for message in messages]
    blank = {"reasoning_content": " "}  # some hosts refuse an empty text
    return [each | blank if each["role"] == "assistant" else each for each in plain]


def _with_images_apart(messages: list[Message]) -> list[Message]:
    """Move images in tool results to a user message behind all results of a turn: nothing may stand between those."""
    made: list[Message] = []
    shown: list[Part] = []
    for message in messages:
        if shown and message.role != "tool":
            made.append(Message("user", shown))
            shown = []
        if message.role == "tool" and isinstance(message.content, list):
            images = [part for part in message.content if isinstance(part, ImagePart)]
            texts = [part for part in message.content if isinstance(part, TextPart) and part.text]
            if images:
                shown += [TextPart(f"Images of the tool call {message.tool_call_id}:"), *images]
                kept = texts[0].text if len(texts) == 1 else [*texts]
                message = msgspec.structs.replace(message, content=kept or _SHOWN_BELOW)
        made.append(message)
    return [*made, Message("user", shown)] if shown else made


def _in_turns(messages: list[Message]) -> list[Message]:
    """System messages first, then the others, with consecutive messages of one role as one."""
    turns: list[Message] = []
    for message in sorted(messages, key=lambda message: message.role != "system"):
        last = turns[-1] if turns else None
        if last and last.role == message.role != "tool" and not (last.tool_calls or message.tool_calls):
            content = [*_parts(turns.pop().content), *_parts(message.content)]
            message = msgspec.structs.replace(message, content=_put_together(content))
        turns.append(message)
    return turns


def _parts(content: str | list[Part] | None) -> list[Part]:
    return content if isinstance(content, list) else [TextPart(content or "")]


def _put_together(content: str | list[Part] | None) -> str | list[Part] | None:
    """Text in parts as one text, a paragraph each; unchanged if there are images."""
    texts = [part.text for part in content if isinstance(part, TextPart)] if isinstance(content, list) else []
    return content if content is None or len(texts) < len(content) else "\n\n".join(texts)


def _with_short_ids(message: Message) -> Message:
    if not message.tool_calls and message.tool_call_id is None:
        return message
    calls = [msgspec.structs.replace(call, id=_short(call.id)) for call in message.tool_calls or ()]
    answers = None if message.tool_call_id is None else _short(message.tool_call_id)
    return msgspec.structs.replace(message, tool_calls=calls or None, tool_call_id=answers)


def _short(id: str) -> str:
    """Another vendor's id as nine letters and digits, the same for a call and its result."""
    return id if _SHORT_ID.fullmatch(id) else b32encode(blake2b(id.encode(), digest_size=6).digest()).decode()[:9]


# --- answers


class _Part(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[Piece] | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None

    @property
    def text(self) -> str | None:
        """The text, which may be empty; None if there is none, as in parts of other kinds."""
        if not isinstance(self.content, list):
            return self.content
        given = (part.get("text") for part in self.content if part.get("type") == "text")
        texts = [text for text in given if isinstance(text, str)]
        return "".join(texts) if texts else None

    @property
    def thinks(self) -> bool:
        """True if it holds thought, in any host's field for that."""
        parts = self.content if isinstance(self.content, list) else ()
        named = self.reasoning or self.reasoning_content or self.reasoning_details
        return bool(named) or any(part.get("type") == "thinking" for part in parts)


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Part | None = None
    message: _Part | None = None
    finish_reason: str | None = None
    native_finish_reason: Any = None
    """OpenRouter's own: the word of the vendor behind it."""
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
    x_groq: _Groq | None = None
    """Groq's own, in the first and last event of a stream."""
    base_resp: _BaseResp | None = None
    """MiniMax's own: an error unless its code is 0."""


_decoder = msgspec.json.Decoder(_Document)


class Completion:
    """Reads one answer (``answer.Reader``). The chunk that ends it is kept for last."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._started = False
        """It had a choice."""
        self._reason: str | None = None
        """Once it is known, only usage can follow."""
        self._spoke = False
        """It had text, perhaps an empty one."""
        self._said = False
        self._thought = False
        self._tools = ToolCalls()

    def add(self, event: SseEvent) -> Iterator[Chunk]:
        """Give the chunks of an event (``answer.Reader``)."""
        if event.data.startswith(_DONE):
            yield self.end()
            return
        if event.event == "error":
            raise fault_in_answer(self._provider, event.data)
        yield from self.take(event.data)

    def read(self, document: bytes) -> Iterator[Chunk]:
        """Give the chunks of a whole answer (``answer.Reader``)."""
        yield from self.take(document)
        if not self._started:
            raise malformed(self._provider, "no choices", document)
        yield self.end()

    def take(self, document: bytes | str) -> Iterator[Chunk]:
        """Give the chunks of a document, usage last."""
        completion = decoded(_decoder, self._provider, document, "not a chat completion")
        usage = read_usage(completion.usage)
        if usage is None and completion.x_groq is not None:
            usage = read_usage(completion.x_groq.usage)
        for choice in completion.choices or ():
            usage = read_usage(choice.usage) or usage
        return usage_last(self._chunks(completion, document), usage)

    def end(self) -> Finish:
        """Return the end; raises if the answer is empty or not whole."""
        if self._reason is None:
            raise ProviderFault("truncated", f"{self._provider} ended the answer without a finish reason", status=200)
        if self._tools and self._reason == "stop":
            self._reason = "tool_calls"  # a host's word where one tool was demanded
        spoke = self._said if self._thought else self._spoke  # an empty text beside thought is a host's filler
        if not spoke and not self._tools and self._reason not in CUT:
            raise malformed(self._provider, "neither content nor tool calls")
        return Finish(self._reason)

    def _chunks(self, completion: _Document, document: bytes | str) -> Iterator[Chunk]:
        groq, minimax = completion.x_groq, completion.base_resp
        if completion.error or (groq and groq.error) or (minimax and minimax.status_code):
            raise fault_in_answer(self._provider, written(document))
        for choice in completion.choices or ():
            if not choice.index:  # one was asked for
                yield from self._add(choice)

    def _add(self, choice: _Choice) -> Iterator[Chunk]:
        self._started = True
        if self._reason is not None:
            return
        part = choice.delta or choice.message or _Part()
        if part.refusal:
            raise ProviderFault("refused", f"{self._provider} refused to answer", status=200)
        text = part.text
        self._spoke = self._spoke or text is not None
        if text:
            self._said = True
            yield Delta(text)
        elif part.thinks:
            self._thought = True
        for call in part.tool_calls or ():
            yield self._tools.add(call)
        if choice.finish_reason:
            self._reason = ended(self._provider, choice.finish_reason)
            native = choice.native_finish_reason
            if isinstance(native, str) and ended(self._provider, native) == "content_filter":
                self._reason = "content_filter"


def read_usage(usage: Any) -> Usage | None:
    """Token counts as they were reported; None unless input and output are both sound."""
    if not isinstance(usage, dict):
        return None
    given, made = count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens"))
    if given is None or made is None:
        return None
    details = usage.get("prompt_tokens_details")
    cached = _count(details, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens", "cached_tokens")
    kept = _count(details, *_WRITTEN) or _count(usage, "cache_creation_input_tokens")
    reasoning = _count(usage.get("completion_tokens_details"), "reasoning_tokens")
    if reasoning and count_of(usage.get("total_tokens")) == given + made + reasoning:
        made += reasoning  # xAI counts them beside the others, OpenAI among them
    if "num_search_queries" in usage:  # Perplexity bills what it read and thought beside the others
        reasoning = _count(usage, "reasoning_tokens")
        given, made = given + _count(usage, "citation_tokens"), made + reasoning
    cached = min(cached, given)
    return Usage(given, made, cached, min(reasoning, made), min(kept, given - cached))


def _count(counts: Any, *names: str) -> int:
    """The first of these counts that is a sound one and not 0; else 0."""
    found = (count_of(counts.get(name)) for name in names) if isinstance(counts, dict) else ()
    return next(filter(None, found), 0)
