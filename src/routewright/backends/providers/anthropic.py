"""Anthropic's Messages API, both ways, as Anthropic and compatible hosts speak it.

All system and developer messages go to ``system``, in their order, wherever they stand: most models take none among
the turns, and Anthropic's own OpenAI-compatible address does the same. Turns of one role are joined, tool results
first. Blank texts are left out, since they are refused; so are the ``detail`` of images and the names of speakers, for
which the protocol has no field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from routewright._core.request.json_scan import object_in
from routewright._core.sse import SseEvent
from routewright.errors import ProviderFault, ValidationFailed
from routewright.protocols import Clock, Transport
from routewright.wire import (
    Chunk,
    Delta,
    FaultKind,
    Feature,
    Finish,
    ImageUrl,
    Message,
    Model,
    TextPart,
    Tool,
    ToolDelta,
    UpstreamCall,
    Usage,
)
from routewright.wire.secret import Secret

from .answer import Function, Piece, ToolCalls, count_of, usage_last
from .endpoint import Endpoint, check_arguments, wire_name
from .faults import CUT, decoded, ended, fault_in_answer, malformed, written
from .http import HttpProvider

ANTHROPIC = Endpoint(
    name="anthropic",
    base_url="https://api.anthropic.com",
    key_variables=("ANTHROPIC_API_KEY",),
    url_variable="ANTHROPIC_BASE_URL",
)
VERSION = "2023-06-01"
"""Of the API. The next one, 2026-10-21, takes no temperature for any model, and changes nothing else that is sent and
read here."""
DEFAULT_MAX_TOKENS = 4096
"""The cap, which has to be sent, if neither the call nor the model has one."""

_MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")
_DATA_URL = re.compile(r"data:([^;,]*);base64,", re.IGNORECASE)
_NO_ID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_SHOWN_CHARS = 40

# What Claude models do not take, by the version in their name. From Anthropic's documentation of November 2026.
_CLAUDE = re.compile(r"claude-(?P<family>[a-z]+)?-?(?:(?P<major>\d+)(?:[.-](?P<minor>\d{1,2}))?(?!\d))?")
_NEWEST = (99, 0)
"""The version of a Claude whose name has none."""
_ONE_OF_TWO = (4, 1)
"""From here on ``temperature`` and ``top_p`` are not taken together."""
_NO_PREFILL = (4, 6)
"""From here on the caller cannot begin the answer for the model."""
_NO_SAMPLING = (4, 7)
"""From here on neither is taken, except for the value that changes nothing."""
_NO_FORCED_TOOL = (5, 1)
"""From here on a tool call cannot be demanded, except of Haiku."""

Json = dict[str, Any]


class AnthropicProvider(HttpProvider):
    """Serves models over the Messages API, Anthropic's own or another host's.

        AnthropicProvider()                                    # key from ANTHROPIC_API_KEY
        AnthropicProvider("your-key", name="mine", base_url="https://llm.example.com", models=[...])

    Keys and ``headers`` are those of ``OpenAIProvider``; ``base_url`` is written with or without ``/v1``. If neither
    the call nor the model has a cap for the answer, 4,096 tokens are asked for.
    """

    def __init__(
        self,
        api_key: str | Sequence[str] | None = None,
        *,
        name: str = "anthropic",
        base_url: str | None = None,
        models: Sequence[Model] = (),
        transport: Transport | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_arguments(name, base_url, headers)
        endpoint = ANTHROPIC
        if name != ANTHROPIC.name:
            if base_url is None:
                hint = f"give base_url=..., or leave the name at {ANTHROPIC.name!r}"
                raise ValidationFailed.at("name", f"no host is known as {name!r}", hint)
            endpoint = Endpoint(name=name, base_url=base_url, needs_key=False)
        super().__init__(endpoint, api_key, base_url, models, transport, headers, environ, clock)

    def unsupported(self, model: Model) -> tuple[Feature, ...]:
        """What a model does not take: no seed at all; more of Claudes, by their version."""
        return lacks(model)

    def _address(self, call: UpstreamCall) -> str:
        return f"{self._url.removesuffix('/v1')}/v1/messages"

    def _credentials(self, key: str) -> dict[str, str]:
        return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})

    def _body(self, call: UpstreamCall) -> bytes:
        return msgspec.json.encode(message_body(call))

    def _reader(self, call: UpstreamCall) -> Blocks:
        return Blocks(self.name, may_be_silent=call.messages[-1].role == "tool")


def lacks(model: Model) -> tuple[Feature, ...]:
    """What cannot be asked of a model. Of models that are no Claudes only what the protocol itself lacks is known."""
    lacking: list[Feature] = ["seed", "json_object"]
    family, version = _claude(model)
    if version >= _NO_SAMPLING:
        lacking += ["temperature", "top_p"]
    if version >= _NO_FORCED_TOOL and family != "haiku":
        lacking.append("tool_choice")
    return tuple(lacking)


def _claude(model: Model) -> tuple[str, tuple[int, int]]:
    """Family and version; (0, 0) for a model that is no Claude."""
    found = _CLAUDE.search(wire_name(model))
    if found is None:
        return "", (0, 0)
    version = _NEWEST if found["major"] is None else (int(found["major"]), int(found["minor"] or 0))
    return found["family"] or "", version


# --- requests


def message_body(call: UpstreamCall) -> Json:
    """The JSON body. Raises ``ProviderFault("request")``, with nothing of the prompt, if the protocol cannot express
    the call."""
    body: Json = {
        "model": wire_name(call.model),
        "max_tokens": call.max_output_tokens or call.model.max_output_tokens or DEFAULT_MAX_TOKENS,
        "messages": _turns(call),
    }
    system: list[str] = []
    for block in (block for message in call.messages if _is_system(message) for block in _content(message)):
        if block["type"] != "text":
            raise _unsayable("takes no images in system messages")
        system.append(block["text"])
    if system:
        body["system"] = "\n\n".join(system)
    if call.stream:
        body["stream"] = True
    if call.tools:
        body["tools"] = [_tool(tool) for tool in call.tools]
        choice = call.tool_choice
        if isinstance(choice, str) and choice in _TOOL_CHOICES:
            body["tool_choice"] = {"type": _TOOL_CHOICES[choice]}
        elif choice is not None:
            body["tool_choice"] = {"type": "tool", "name": choice if isinstance(choice, str) else choice.function.name}
    return body | _sampling(call) | _stops(call.params.stop) | _output(call.params.response_format)


def _is_system(message: Message) -> bool:
    return message.role in ("system", "developer")


def _turns(call: UpstreamCall) -> list[Json]:
    turns: list[Json] = []
    for message in call.messages:
        blocks = [] if _is_system(message) else [*_blocks(message)]
        role = "assistant" if message.role == "assistant" else "user"
        if blocks and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if not turns:
        raise _unsayable("takes no conversation of system messages and blanks alone")
    for turn in turns:
        turn["content"].sort(key=lambda block: block["type"] != "tool_result")  # results come first, or are refused
    if turns[-1]["role"] == "assistant":
        if _claude(call.model)[1] >= _NO_PREFILL:
            raise _unsayable("takes for this model no conversation that ends with the assistant's words")
        last = turns[-1]["content"][-1]
        if last["type"] == "text":
            last["text"] = last["text"].rstrip()  # words to go on with must not end in white space
    return turns


def _blocks(message: Message) -> Iterator[Json]:
    if message.role == "tool":
        result: Json = {"type": "tool_result", "tool_use_id": _plain_id(message.tool_call_id or "")}
        if content := [*_content(message)]:
            result["content"] = content
        yield result
        return
    yield from _content(message)
    for call in message.tool_calls or ():
        arguments = object_in(call.function.arguments or "{}")
        if arguments is None:
            raise _unsayable("takes tool calls whose arguments are a JSON object only")
        yield {"type": "tool_use", "id": _plain_id(call.id), "name": call.function.name, "input": arguments}


def _content(message: Message) -> Iterator[Json]:
    parts = [TextPart(message.content)] if isinstance(message.content, str) else message.content or ()
    for part in parts:
        if not isinstance(part, TextPart):
            yield {"type": "image", "source": _source(part.image_url)}
        elif part.text.strip():
            yield {"type": "text", "text": part.text}


def _source(image: ImageUrl) -> Json:
    if image.url[:5].lower() != "data:":
        return {"type": "url", "url": image.url}
    found = _DATA_URL.match(image.url)
    media = found[1].lower() if found else ""
    if found is None or media not in _MEDIA:
        given = media[:_SHOWN_CHARS] or "another data: URL"
        raise _unsayable(f"takes images as base64 of {', '.join(_MEDIA)}, got {given!r}")
    return {"type": "base64", "media_type": media, "data": image.url[found.end() :]}


def _plain_id(id: str) -> str:
    """Another vendor's id in the characters that are taken here; ids that differ still do."""
    return _NO_ID_CHARACTER.sub(lambda found: f"_{ord(found[0]):x}_", id)


def _tool(tool: Tool) -> Json:
    spec = tool.function_spec
    schema = {"type": "object"} | ({"properties": {}} if spec.parameters is None else spec.parameters)
    made: Json = {"name": spec.name, "input_schema": schema}
    if spec.description is not None:
        made["description"] = spec.description
    if spec.strict:
        made |= {"strict": True, "input_schema": _closed(schema, "a strict tool")}
    return made


def _sampling(call: UpstreamCall) -> dict[str, float]:
    """Temperature and ``top_p``. A 1, which asks for nothing, is left out if the model would refuse it."""
    named = {"temperature": call.params.temperature, "top_p": call.params.top_p}
    given = {name: value for name, value in named.items() if value is not None}
    if given.get("temperature", 0) > 1:
        raise _unsayable(f"takes a temperature from 0 to 1, got {given['temperature']}")
    version = _claude(call.model)[1]
    if version >= _NO_SAMPLING or (len(given) == 2 and version >= _ONE_OF_TWO):
        given = {name: value for name, value in given.items() if value != 1}
        if len(given) == 2:
            both = f"{given['temperature']} and {given['top_p']}"
            raise _unsayable(f"takes temperature or top_p for this model, got {both}")
    return given


def _stops(stop: str | list[str] | None) -> dict[str, list[str]]:
    stops = [stop] if isinstance(stop, str) else stop or []
    for each in stops:
        if not each.strip():
            raise _unsayable(f"takes no stop sequence of white space alone, got {each[:_SHOWN_CHARS]!r}")
    return {"stop_sequences": stops} if stops else {}


def _output(form: Json | None) -> Json:
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return {}
    if kind != "json_schema":
        raise _unsayable(f"takes a response_format with a JSON schema, got {str(kind)[:_SHOWN_CHARS]!r}")
    schema = _closed(form["json_schema"]["schema"], "a response_format")
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def _closed(schema: Json, whose: str) -> Json:
    try:
        return closed_form(schema)
    except (OpenEnded, RecursionError, TypeError, AttributeError):  # of a keyword whose value is of another type
        pass
    raise _unsayable(f"takes {whose} with named properties and values of known types only")


def _unsayable(what: str) -> ProviderFault:
    return ProviderFault(FaultKind.REQUEST, f"the Messages API {what}")


# --- schemas

_AS_THEY_ARE = frozenset("type description title enum const default required $ref".split())
_FORMATS = frozenset("date-time time date duration email hostname uri ipv4 ipv6 uuid".split())
_HARD_PATTERN = re.compile(r"\(\?|\\[bB1-9]")
"""Look-arounds, word boundaries and back references."""
_MEANINGLESS = frozenset("$schema $id $comment discriminator deprecated readOnly writeOnly".split())
_SHAPES = frozenset("type enum const anyOf allOf $ref".split())
"""A schema without any of them allows values of every shape."""


class OpenEnded(Exception):
    """The schema leaves something open that would have to be closed."""


def closed_form(schema: object) -> Json:
    """The schema for the same values or fewer, as Anthropic takes it: every object closed. Bounds that are not
    enforced go into the description, where the model may heed them. Raises ``OpenEnded`` for values of any shape and
    objects of any properties."""
    if not isinstance(schema, Mapping):  # true and false
        raise OpenEnded
    made, words = Json(), list[str]()
    for word, value in schema.items():
        part = _enforced(word, value)
        made |= part
        if not part and word not in _MEANINGLESS and word != "additionalProperties":
            words.append(f"{word}: {msgspec.json.encode(value).decode()}")
    if not made.keys() & _SHAPES:
        raise OpenEnded
    if words:
        made["description"] = "; ".join(filter(None, (made.get("description"), *words)))
    kind, others = schema.get("type"), schema.get("additionalProperties", True)
    if kind == "object" or (isinstance(kind, list) and "object" in kind):
        if isinstance(others, Mapping) or (others and "properties" not in schema):
            raise OpenEnded
        made["additionalProperties"] = False
    return made


def _enforced(word: str, value: Any) -> Json:
    """A keyword of a schema as Anthropic takes it; empty if it is not enforced there."""
    match word:
        case _ if word in _AS_THEY_ARE:
            return {word: value}
        case "properties" | "$defs" | "definitions":
            return {word: {name: closed_form(inner) for name, inner in value.items()}}
        case "items":
            return {word: closed_form(value)}
        case "anyOf" | "allOf" | "oneOf":
            return {"allOf" if word == "allOf" else "anyOf": [closed_form(each) for each in value]}
        case "format" if value in _FORMATS:
            return {word: value}
        case "minItems" if value in (0, 1):
            return {word: value}
        case "pattern" if not _HARD_PATTERN.search(value):
            return {word: value}
    return {}


# --- answers

_DECODER = msgspec.json.Decoder(Json)


class Counts:
    """Token counts, as far as they are known. Those of a later event are totals, too, and replace earlier ones."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._thought = 0
        self._told: Usage | None = None

    def add(self, usage: Any) -> Usage | None:
        """Add reported counts; return the usage if it is known and has changed."""
        if not isinstance(usage, dict):
            return None
        counts, details = self._counts, usage.get("output_tokens_details")
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"):
            count = count_of(usage.get(name))
            if count or (count == 0 and (name == "output_tokens" or name not in counts)):
                counts[name] = count  # some hosts count the input at one end only, and say 0 at the other
        if isinstance(details, dict):
            self._thought = count_of(details.get("thinking_tokens")) or self._thought
        fresh, made = counts.get("input_tokens"), counts.get("output_tokens")
        if fresh is None or made is None:
            return None
        cached, kept = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
        told, self._told = self._told, Usage(fresh + cached + kept, made, cached, min(self._thought, made), kept)
        return None if told == self._told else self._told


class Blocks:
    """Reads one answer (``answer.Reader``). Thought, signatures, citations and pings are signs of life."""

    def __init__(self, provider: str, *, may_be_silent: bool = False) -> None:
        """``may_be_silent``: the model was given the results of its tools, and may have nothing to add."""
        self._provider = provider
        self._may_be_silent = may_be_silent
        self._counts = Counts()
        self._calls = ToolCalls()
        self._begun = 0
        self._open: dict[int, int] = {}
        """The number of each tool call, by the index of its block, while that is open."""
        self._inputs: dict[int, Any] = {}
        """The arguments a block began with, until a piece of them comes; most often none."""
        self._spoke = False
        self._reason: str | None = None
        """Once it is known, only usage can follow."""

    def add(self, event: SseEvent) -> Iterator[Chunk]:
        """Give the chunks of an event (``answer.Reader``)."""
        if event.event == "error":
            raise fault_in_answer(self._provider, event.data)
        fields = decoded(_DECODER, self._provider, event.data, "not an object")
        if fields.get("error"):
            raise fault_in_answer(self._provider, event.data)
        yield from usage_last(self._take(fields), None)

    def end(self) -> Finish:
        """Return the end; raises if the answer is empty or not whole. By Anthropic's contract only the end mark follows
        a reason, so a stream that was cut between the two is whole."""
        if self._reason is None:
            raise ProviderFault("truncated", f"{self._provider} ended the answer without a stop reason", status=200)
        reason = ended(self._provider, self._reason)
        is_empty = not self._spoke and not self._calls and reason not in CUT
        if is_empty and self._reason != "stop_sequence" and not self._may_be_silent:
            raise malformed(self._provider, "neither text nor tool calls")
        return Finish(reason)

    def read(self, document: bytes) -> Iterator[Chunk]:
        """Give the chunks of a whole answer (``answer.Reader``), its usage first."""
        message = decoded(_DECODER, self._provider, document, "not an object")
        yield from self._count(message.get("usage"))
        if message.get("error"):
            raise fault_in_answer(self._provider, written(document))
        content = message.get("content")
        if not isinstance(content, list):
            raise malformed(self._provider, "no content", document)
        for index, block in enumerate(content):
            yield from self._start(index, self._fields(block))
            yield from self._stop(index)
        self._reason = self._text(message.get("stop_reason")) or None
        if self._reason is None and not self._spoke and not self._calls:
            raise malformed(self._provider, "neither text nor tool calls", document)
        yield self.end()

    def _take(self, event: Json) -> Iterator[Chunk]:
        match event.get("type"):
            case "message_stop":
                yield self.end()
            case "message_start":
                yield from self._count(self._fields(event.get("message")).get("usage"))
            case "message_delta":
                yield from self._count(event.get("usage"))
                self._reason = self._reason or self._text(self._fields(event.get("delta")).get("stop_reason")) or None
            case _ if self._reason is not None:
                pass
            case "content_block_start":
                yield from self._start(event.get("index"), self._fields(event.get("content_block")))
            case "content_block_delta":
                yield from self._continue(event.get("index"), self._fields(event.get("delta")))
            case "content_block_stop":
                yield from self._stop(event.get("index"))

    def _count(self, reported: Any) -> Iterator[Usage]:
        usage = self._counts.add(reported)
        if usage is not None:
            yield usage

    def _start(self, index: Any, block: Json) -> Iterator[Chunk]:
        if block.get("type") == "text":
            yield from self._say(block.get("text"))
        elif block.get("type") == "tool_use":
            place, number = self._place(index), self._begun
            self._open[place], self._inputs[place] = number, block.get("input")
            self._begun += 1
            name, id = self._text(block.get("name")), self._text(block.get("id"))
            yield self._calls.add(Piece(number, id, Function(name)))

    def _continue(self, index: Any, piece: Json) -> Iterator[Chunk]:
        if piece.get("type") == "text_delta":
            yield from self._say(piece.get("text"))
        elif piece.get("type") == "input_json_delta":
            place, text = self._place(index), self._text(piece.get("partial_json"))
            if text and place in self._open:
                self._inputs.pop(place, None)
                yield self._add(self._open[place], text)

    def _stop(self, index: Any) -> Iterator[Chunk]:
        place = self._place(index)
        number = self._open.pop(place, None)
        if number is not None and place in self._inputs:
            yield self._add(number, msgspec.json.encode(self._inputs.pop(place) or {}).decode())

    def _add(self, number: int, arguments: str) -> ToolDelta:
        return self._calls.add(Piece(number, None, Function(None, arguments)))

    def _say(self, text: Any) -> Iterator[Delta]:
        self._spoke = True
        if said := self._text(text):
            yield Delta(said)

    def _fields(self, value: Any) -> Json:
        return value if isinstance(value, dict) else self._refuse("an object")

    def _place(self, index: Any) -> int:
        return index if isinstance(index, int) else self._refuse("an index")

    def _text(self, value: Any) -> str:
        return value or "" if isinstance(value, str | None) else self._refuse("text")

    def _refuse(self, wanted: str) -> NoReturn:
        raise malformed(self._provider, f"something else in the place of {wanted}")
