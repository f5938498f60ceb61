"""Anthropic's Messages API, of Anthropic and compatible hosts.

All system and developer messages go to ``system`` in order, as with Anthropic's own OpenAI-compatible address, since
most models accept none among the turns. Turns of one role are joined, tool results first. Blank texts are left out,
since they are refused. The protocol has no field for the ``detail`` of images and names of speakers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NoReturn, Unpack

import msgspec

from routewright import wire
from routewright.errors import ProviderFault, ValidationFailed
from routewright.wire.json_scan import object_in

from .answer import Function, Piece, Reader, count_of
from .endpoint import Endpoint, check_arguments, wire_name
from .faults import decoded, ended, fault_in_answer, malformed, written
from .features import CLAUDE_THINKING, NO_PREFILL, NO_SAMPLING, ONE_OF_TWO, THINKS, claude_of
from .hosts import ANTHROPIC
from .http import HttpOptions, HttpProvider
from .reasoning import asked_of, merged, thinking_of, tier_of, with_extra

VERSION = "2023-06-01"
"""API version. The next one, 2026-10-21, only differs in not accepting a temperature."""
DEFAULT_MAX_TOKENS = 4096
"""The required cap if neither the call nor the model has one."""

_MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PDF = "application/pdf"
_DATA_URL = re.compile(r"data:([^;,]*);base64,", re.IGNORECASE)
_NO_ID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_TIERS = {"auto": "auto", "default": "standard_only"}
_SHOWN_CHARS = 40
_SYSTEM = ("system", "developer")
_THOUGHTS = ("thinking", "redacted_thinking")
_THOUGHT_FIELDS = ("type", "thinking", "signature", "data")
_AT = "at"
"""Added to a block of thought that is not first: the numbers of characters and tool calls before it."""


class AnthropicProvider(HttpProvider):
    """Serves models over the Messages API, of Anthropic or another host.

        AnthropicProvider()                                    # key from ANTHROPIC_API_KEY
        AnthropicProvider("your-key", name="mine", base_url="https://llm.example.com", models=[...])

    Keys and the other options are those of ``OpenAIProvider``; ``base_url`` may end with ``/v1``. The output cap is
    4,096 tokens if neither the call nor the model has one.
    """

    _vendor = ANTHROPIC.name
    quotas = tuple(
        (f"anthropic-ratelimit-{what}-remaining", f"anthropic-ratelimit-{what}-reset")
        for what in ("requests", "tokens", "input-tokens", "output-tokens")
    )

    def __init__(
        self,
        api_key: str | Sequence[str] | None = None,
        *,
        name: str = "anthropic",
        base_url: str | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        check_arguments(name, base_url)
        endpoint = ANTHROPIC
        if name != ANTHROPIC.name:
            if base_url is None:
                hint = f"pass base_url=..., or leave out the name ({ANTHROPIC.name!r})"
                raise ValidationFailed.at("name", f"there is no known host {name!r}", hint)
            endpoint = Endpoint(name=name, base_url=base_url, needs_key=False, caller_extra=ANTHROPIC.caller_extra)
        super().__init__(endpoint, api_key, base_url, **options)

    def _address(self, call: wire.UpstreamCall) -> str:
        return f"{self._url.removesuffix('/v1')}/v1/messages"

    def _credentials(self, key: str) -> dict[str, str]:
        return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})

    def _body(self, call: wire.UpstreamCall) -> bytes:
        return msgspec.json.encode(message_body(call, self.name))

    def _reader(self, call: wire.UpstreamCall, headers: Mapping[str, str]) -> Blocks:
        return Blocks(self.name, may_be_silent=call.messages[-1].role == "tool")


# --- requests


def message_body(call: wire.UpstreamCall, provider: str = ANTHROPIC.name) -> wire.JsonObject:
    """The JSON body of a call. Raises ``ProviderFault("request")`` without text of the prompt if it is not
    expressible."""
    cap = call.max_output_tokens or call.model.max_output_tokens or DEFAULT_MAX_TOKENS
    asked, version = asked_of(call), claude_of(call.model)[1]
    thinking = {} if asked is None else thinking_of(CLAUDE_THINKING, call.model, version).fields(asked, cap)
    if thinking.get("thinking", {}).get("type") == "enabled":
        turn = [
            each for each in takewhile(lambda each: each.role != "user", reversed(call.messages)) if each.tool_calls
        ]
        if not all(each.reasoning and each.reasoning.provider == provider for each in turn):
            thinking = {}  # a tool loop continues as it began
    told = bool(thinking) and asked != "none"
    thinks = told or (not thinking and version >= THINKS)
    body: wire.JsonObject = {
        "model": wire_name(call.model),
        "max_tokens": cap,
        "messages": _turns(call, provider if thinks else None, may_begin=not told),
    }
    system = [block for message in call.messages if message.role in _SYSTEM for block in _content(message)]
    if any(block["type"] != "text" for block in system):
        raise _unsayable("supports only text in system messages")
    if any("cache_control" in block for block in system):
        body["system"] = system
    elif system:
        body["system"] = "\n\n".join(block["text"] for block in system)
    if call.stream:
        body["stream"] = True
    if call.tools:
        body["tools"] = [_tool(tool) for tool in call.tools]
        body |= _calling(call)
    if call.repeats and body["messages"][-1]["role"] == "user" and isinstance(body.get("system", ""), str):
        blocks = [block for turn in body["messages"] for block in turn["content"]] + body.get("tools", [])
        if not any("cache_control" in block for block in blocks):  # the caller's own marks count
            body["messages"][-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    if call.params.service_tier in _TIERS:
        body["service_tier"] = _TIERS[call.params.service_tier]
    body |= _sampling(call, told=told)
    stops = [call.params.stop] if isinstance(call.params.stop, str) else call.params.stop or []
    for each in stops:
        if not each.strip():
            raise _unsayable(f"does not support a stop sequence of only white space, got {each[:_SHOWN_CHARS]!r}")
    body |= {"stop_sequences": stops} if stops else {}
    return with_extra(merged(body | _output(call.params.response_format), thinking), call, provider)


def _calling(call: wire.UpstreamCall) -> wire.JsonObject:
    """The tool choice, and whether several tools may be called at once."""
    choice, serial = call.tool_choice, call.params.parallel_tool_calls is False
    if choice is None or (isinstance(choice, str) and choice in _TOOL_CHOICES):
        made: wire.JsonObject = {"type": _TOOL_CHOICES[choice or "auto"]}
    else:
        made = {"type": "tool", "name": choice if isinstance(choice, str) else choice.function.name}
    if serial and made["type"] != "none":
        made["disable_parallel_tool_use"] = True
    return {"tool_choice": made} if choice is not None or serial else {}


def _turns(call: wire.UpstreamCall, thinker: str | None, *, may_begin: bool) -> list[wire.JsonObject]:
    """The turns. ``thinker``: the provider whose reasoning is sent; ``may_begin``: a final assistant's turn is
    allowed."""
    turns: list[wire.JsonObject] = []
    for message in call.messages:
        blocks = [] if message.role in _SYSTEM else [*_blocks(message, thinker)]
        role = "assistant" if message.role == "assistant" else "user"
        if blocks and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if not turns:
        raise _unsayable("needs a message that is neither blank nor a system message")
    for turn in turns:
        turn["content"].sort(key=lambda block: block["type"] != "tool_result")  # results must come first
    if turns[-1]["role"] == "assistant":
        if not may_begin or claude_of(call.model)[1] >= NO_PREFILL:
            raise _unsayable("does not support a final assistant's message for this model")
        last = turns[-1]["content"][-1]
        if last["type"] == "text":
            last["text"] = last["text"].rstrip()  # a prefill must not end in white space
    return turns


def _blocks(message: wire.Message, thinker: str | None) -> Iterator[wire.JsonObject]:
    if message.role == "tool":
        result: wire.JsonObject = {"type": "tool_result", "tool_use_id": _plain_id(message.tool_call_id or "")}
        content = [*_content(message)]
        marks = [block.pop("cache_control") for block in content if "cache_control" in block]
        if content:
            result["content"] = content
        yield result | ({"cache_control": marks[-1]} if marks else {})
        return
    thought = message.reasoning
    if thought is None or thought.provider != thinker:
        yield from _content(message)
        yield from map(_use, message.tool_calls or ())
        return
    text, calls = message.content if isinstance(message.content, str) else "", [*(message.tool_calls or ())]
    said = called = 0
    for item in (item for item in thought.items if item.get("type") in _THOUGHTS):  # each in its place
        match item.get(_AT):
            case [int(chars), int(count)]:  # not trusted: a client may have changed it
                chars, count = max(said, chars), max(called, count)
            case _:
                chars, count = said, called
        yield from _text_block(text[said:chars])
        yield from map(_use, calls[called:count])
        said, called = chars, count
        yield {name: item[name] for name in _THOUGHT_FIELDS if name in item}
    yield from _text_block(text[said:]) if text else _content(message)
    yield from map(_use, calls[called:])


def _use(call: wire.ToolCall) -> wire.JsonObject:
    arguments = object_in(call.function.arguments or "{}")
    if arguments is None:
        raise _unsayable("supports only tool calls with a JSON object as arguments")
    return {"type": "tool_use", "id": _plain_id(call.id), "name": call.function.name, "input": arguments}


def _content(message: wire.Message) -> Iterator[wire.JsonObject]:
    if isinstance(message.content, str):
        yield from _text_block(message.content)
        return
    for part in message.content or ():
        marked = {} if part.cache_control is None else {"cache_control": part.cache_control}
        match part:
            case wire.TextPart():
                yield from (block | marked for block in _text_block(part.text))
            case wire.ImagePart():
                yield {"type": "image", "source": _source(part.image_url.url, _MEDIA, "images")} | marked
            case wire.FilePart():
                named = {} if part.file.filename is None else {"title": part.file.filename}
                source = _source(part.file.file_data, (_PDF,), "documents")
                yield {"type": "document", "source": source} | named | marked
            case _:
                raise _unsayable("does not support sound")


def _text_block(text: str) -> Iterator[wire.JsonObject]:
    if text.strip():
        yield {"type": "text", "text": text}


def _source(url: str, kinds: tuple[str, ...], what: str) -> wire.JsonObject:
    if url[:5].lower() != "data:":
        return {"type": "url", "url": url}
    found = _DATA_URL.match(url)
    media = found[1].lower() if found else ""
    if found is None or media not in kinds:
        given = media[:_SHOWN_CHARS] or "another data: URL"
        raise _unsayable(f"supports {what} as base64 of {', '.join(kinds)}, got {given!r}")
    return {"type": "base64", "media_type": media, "data": url[found.end() :]}


def _plain_id(id: str) -> str:
    """Another vendor's id with the allowed characters. Different ids stay different."""
    return _NO_ID_CHARACTER.sub(lambda found: f"_{ord(found[0]):x}_", id)


def _tool(tool: wire.Tool) -> wire.JsonObject:
    spec = tool.function_spec
    schema = {"type": "object"} | ({"properties": {}} if spec.parameters is None else spec.parameters)
    made: wire.JsonObject = {"name": spec.name, "input_schema": schema}
    if spec.description is not None:
        made["description"] = spec.description
    if spec.strict:
        made |= {"strict": True, "input_schema": _closed(schema, "a strict tool")}
    if tool.cache_control is not None:
        made["cache_control"] = tool.cache_control
    return made


def _sampling(call: wire.UpstreamCall, *, told: bool) -> dict[str, float]:
    """Temperature and ``top_p``. A value of 1, the default, is left out if the model would refuse it. ``told``: the
    model is told to think."""
    named = {"temperature": call.params.temperature, "top_p": call.params.top_p}
    given = {name: value for name, value in named.items() if value is not None}
    if given.get("temperature", 0) > 1:
        raise _unsayable(f"supports a temperature from 0 to 1, got {given['temperature']}")
    version = claude_of(call.model)[1]
    if told or version >= NO_SAMPLING or (len(given) == 2 and version >= ONE_OF_TWO):
        given = {name: value for name, value in given.items() if value != 1}
        if len(given) == 2:
            both = f"{given['temperature']} and {given['top_p']}"
            raise _unsayable(f"supports only one of temperature and top_p for this model, got {both}")
    return given


def _output(form: wire.JsonObject | None) -> wire.JsonObject:
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return {}
    if kind != "json_schema":
        raise _unsayable(f"supports only a response_format with a JSON schema, got {str(kind)[:_SHOWN_CHARS]!r}")
    schema = _closed(form["json_schema"]["schema"], "a response_format")
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def _closed(schema: wire.JsonObject, whose: str) -> wire.JsonObject:
    try:
        return closed_form(schema)
    except (OpenEnded, RecursionError, TypeError, AttributeError):  # a keyword has a value of a wrong type
        pass
    raise _unsayable(f"supports {whose} only with named properties and values of known types")


def _unsayable(what: str) -> ProviderFault:
    return ProviderFault(wire.FaultKind.REQUEST, f"the Messages API {what}")


# --- schemas

_AS_THEY_ARE = frozenset("type description title enum const default required $ref".split())
_FORMATS = frozenset("date-time time date duration email hostname uri ipv4 ipv6 uuid".split())
_HARD_PATTERN = re.compile(r"\(\?|\\[bB1-9]")
"""Look-arounds, word boundaries and back references."""
_MEANINGLESS = frozenset(
    "$schema $id $comment additionalProperties discriminator deprecated readOnly writeOnly".split()
)
"""Not repeated in the description."""
_SHAPES = frozenset("type enum const anyOf allOf $ref".split())
"""A schema without any of them allows everything."""


class OpenEnded(Exception):
    """The schema cannot be closed."""


def closed_form(schema: object) -> wire.JsonObject:
    """A schema for the same values or fewer that Anthropic supports: every object is closed. Unsupported keywords go
    into the description for the model. Raises ``OpenEnded`` for unrestricted values and objects."""
    if not isinstance(schema, Mapping):  # true and false
        raise OpenEnded
    made, words = wire.JsonObject(), list[str]()
    for word, value in schema.items():
        match word:
            case _ if word in _AS_THEY_ARE:
                made[word] = value
            case "properties" | "$defs" | "definitions":
                made[word] = {name: closed_form(inner) for name, inner in value.items()}
            case "items":
                made[word] = closed_form(value)
            case "anyOf" | "allOf" | "oneOf":
                made["allOf" if word == "allOf" else "anyOf"] = [closed_form(each) for each in value]
            case "format" if value in _FORMATS:
                made[word] = value
            case "minItems" if value in (0, 1):
                made[word] = value
            case "pattern" if not _HARD_PATTERN.search(value):
                made[word] = value
            case _ if word not in _MEANINGLESS:
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


# --- answers

_DECODER = msgspec.json.Decoder(wire.JsonObject)


class Counts:
    """Token counts. Later events have totals, which replace earlier ones."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._thought = self._hour = 0
        self._tier = ""
        self._told: wire.Usage | None = None

    def add(self, usage: object) -> wire.Usage | None:
        """Add reported counts. Returns the usage if it is complete and has changed."""
        if not isinstance(usage, dict):
            return None
        counts, details = self._counts, usage.get("output_tokens_details")
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"):
            count = count_of(usage.get(name))
            if count or (count == 0 and (name == "output_tokens" or name not in counts)):
                counts[name] = count  # some hosts report the input only once, and 0 otherwise
        if isinstance(details, dict):
            self._thought = count_of(details.get("thinking_tokens")) or self._thought
        if isinstance(usage.get("cache_creation"), dict):
            self._hour = count_of(usage["cache_creation"].get("ephemeral_1h_input_tokens")) or self._hour
        self._tier = tier_of(usage.get("service_tier")) or self._tier
        fresh, made = counts.get("input_tokens"), counts.get("output_tokens")
        if fresh is None or made is None:
            return None
        cached, kept = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
        thought, hour = min(self._thought, made), min(self._hour, kept)
        given = fresh + cached + kept
        told, self._told = self._told, wire.Usage(given, made, cached, thought, kept, hour, tier=self._tier)
        return None if told == self._told else self._told


class Blocks(Reader):
    """Reads one answer. Signatures, citations and pings are signs of life."""

    ending = "stop reason"

    def __init__(self, provider: str, *, may_be_silent: bool = False) -> None:
        """``may_be_silent``: an empty answer is allowed, after tool results."""
        super().__init__(provider)
        self._may_be_silent = may_be_silent
        self._counts = Counts()
        self._begun = 0
        self._open: dict[int, wire.JsonObject] = {}
        """Open blocks by index: reasoning with its texts in lists; tool calls with their number and, until the first
        piece, their initial arguments."""
        self._chars = 0

    def take(self, document: bytes | str) -> None:
        """Decode an event."""
        fields = decoded(_DECODER, self._provider, document, "not an object")
        if fields.get("error"):
            raise fault_in_answer(self._provider, written(document))
        self._take(None, self._read, fields)

    def end(self) -> None:
        """Add the end. Only the end mark follows a stop reason, so a stream that breaks between them is complete."""
        self._spoke = self._spoke or self._may_be_silent or self._reason == "stop_sequence"
        self._reason = self._reason and ended(self._provider, self._reason)
        super().end()

    def read(self, document: bytes) -> None:
        """Decode a complete answer, usage first."""
        message = decoded(_DECODER, self._provider, document, "not an object")
        self._count(message.get("usage"))
        if message.get("error"):
            raise fault_in_answer(self._provider, written(document))
        content = message.get("content")
        if not isinstance(content, list):
            raise malformed(self._provider, "no content", document)
        for index, block in enumerate(content):
            self._start(index, self._fields(block))
            self._stop(index)
        self._reason = self._text(message.get("stop_reason")) or None
        if self._reason is None and not self._spoke and not self._tools:
            raise malformed(self._provider, "neither text nor tool calls", document)
        self.end()

    def _read(self, event: wire.JsonObject) -> None:
        match event.get("type"):
            case "message_stop":
                self.end()
            case "message_start":
                self._count(self._fields(event.get("message")).get("usage"))
            case "message_delta":
                self._count(event.get("usage"))
                self._reason = self._reason or self._text(self._fields(event.get("delta")).get("stop_reason")) or None
            case _ if self._reason is not None:
                pass
            case "content_block_start":
                self._start(event.get("index"), self._fields(event.get("content_block")))
            case "content_block_delta":
                index, piece = event.get("index"), self._fields(event.get("delta"))
                match piece.get("type"):
                    case "text_delta":
                        self._say(piece.get("text"))
                    case "input_json_delta":
                        block, text = self._open.get(self._place(index), {}), self._text(piece.get("partial_json"))
                        if text and block.get("type") == "tool_use":
                            block.pop("input", None)
                            self._add(block["number"], text)
                    case "thinking_delta" | "signature_delta" as kind:
                        name = kind.removesuffix("_delta")
                        block, text = self._open.get(self._place(index), {}), self._text(piece.get(name))
                        if block.get("type") in _THOUGHTS:
                            block.setdefault(name, []).append(text)
                        if name == "thinking":
                            self._think(text)
            case "content_block_stop":
                self._stop(event.get("index"))

    def _count(self, reported: object) -> None:
        usage = self._counts.add(reported)
        if usage is not None:
            self.chunks.append(usage)

    def _start(self, index: object, block: wire.JsonObject) -> None:
        if block.get("type") == "text":
            self._say(block.get("text"))
        elif block.get("type") == "tool_use":
            number = self._begun
            self._open[self._place(index)] = {"type": "tool_use", "number": number, "input": block.get("input")}
            self._begun += 1
            name, id = self._text(block.get("name")), self._text(block.get("id"))
            self.chunks.append(self._tools.add(Piece(number, id, Function(name))))
        elif block.get("type") in _THOUGHTS:
            grows: wire.JsonObject = {
                name: [self._text(block[name])] for name in ("thinking", "signature") if name in block
            }
            self._open[self._place(index)] = {**block, **grows}
            self._think(block.get("thinking"))

    def _stop(self, index: object) -> None:
        block = self._open.pop(self._place(index), {})
        if block.get("type") in _THOUGHTS:
            before = [self._chars, self._begun]
            whole = {name: "".join(each) if isinstance(each, list) else each for name, each in block.items()}
            self.chunks.append(wire.Thought(item=whole | ({_AT: before} if any(before) else {})))
        elif "input" in block:
            self._add(block["number"], msgspec.json.encode(block["input"] or {}).decode())

    def _add(self, number: int, arguments: str) -> None:
        self.chunks.append(self._tools.add(Piece(number, None, Function(None, arguments))))

    def _say(self, text: object) -> None:
        self._spoke = True
        if said := self._text(text):
            self._chars += len(said)
            self.chunks.append(wire.Delta(said))

    def _think(self, text: object) -> None:
        if thought := self._text(text):
            self.chunks.append(wire.Thought(thought))

    def _fields(self, value: object) -> wire.JsonObject:
        return value if isinstance(value, dict) else self._refuse("an object")

    def _place(self, index: object) -> int:
        return index if isinstance(index, int) else self._refuse("an index")

    def _text(self, value: object) -> str:
        return value or "" if isinstance(value, str | None) else self._refuse("text")

    def _refuse(self, wanted: str) -> NoReturn:
        raise malformed(self._provider, f"a value that is not {wanted}")
