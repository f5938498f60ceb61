"""Anthropic's Messages API, of Anthropic and compatible hosts.

All system and developer messages go to ``system`` in order, as with Anthropic's own OpenAI-compatible address, since
most models accept none among the turns. Turns of one role are joined, tool results first. Blank texts are left out,
since they are refused. The protocol has no field for the ``detail`` of images and names of speakers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Unpack

import msgspec

from routewright import wire
from routewright.errors import ProviderFault, ValidationFailed
from routewright.wire.json_stream import complete_object
from routewright.wire.thoughts import in_places, placed

from .answer import Function, Piece, Reader
from .endpoint import Endpoint, check_arguments, wire_name
from .faults import fault_in_answer, fault_of_document, text_of
from .features import CLAUDE_THINKING, NO_PREFILL, NO_SAMPLING, ONE_OF_TWO, THINKS, claude_of
from .halves import encode
from .hosts import ANTHROPIC
from .http import HttpOptions, HttpProvider
from .reasoning import effort_of, merge, thinking_of, tier_of, with_extra
from .tool_ids import with_ids
from .usage import count_of

VERSION = "2023-06-01"
"""API version. The next one, 2026-10-21, only differs in not accepting a temperature."""
DEFAULT_MAX_TOKENS = 4096
"""The required cap if neither the call nor the model has one."""

_MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PDF = "application/pdf"
_DATA_URL = re.compile(r"data:([^;,]*);base64,", re.IGNORECASE)
_ID = re.compile("[a-zA-Z0-9_-]{1,64}")
"""The form of ids. The limit of their length is that of Bedrock."""
_TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_TIERS = {"auto": "auto", "default": "standard_only"}
_SHOWN_CHARS = 40
_SYSTEM = ("system", "developer")
_THOUGHTS = ("thinking", "redacted_thinking")
_THOUGHT_FIELDS = ("type", "thinking", "signature", "data")
_GROWING = ("thinking", "signature")


class AnthropicProvider(HttpProvider):
    """Serves models over the Messages API, of Anthropic or another host.

        AnthropicProvider()                                    # key from ANTHROPIC_API_KEY
        AnthropicProvider("your-key", name="mine", base_url="https://llm.example.com", models=[...])

    Keys and the other options are those of ``OpenAIProvider``; ``base_url`` may end with ``/v1``. The output cap is
    4,096 tokens if neither the call nor the model has one.
    """

    _vendor = ANTHROPIC.name
    quotas = tuple(
        (f"anthropic-ratelimit-{kind}-remaining", f"anthropic-ratelimit-{kind}-reset")
        for kind in ("requests", "tokens", "input-tokens", "output-tokens")
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
                raise ValidationFailed.at("name", f"no host is known as {name!r}", hint)
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
    effort = effort_of(call)
    version = claude_of(call.model)[1]
    thinking = {} if effort is None else thinking_of(CLAUDE_THINKING, call.model, version).fields(effort, cap)
    if thinking.get("thinking", {}).get("type") == "enabled":
        loop = takewhile(lambda message: message.role != "user", reversed(call.messages))
        thoughts = [message.reasoning for message in loop if message.tool_calls]
        if not all(thought and thought.provider == provider for thought in thoughts):
            thinking = {}  # a tool loop continues as it began
    has_effort = bool(thinking) and effort != "none"
    is_thinking = has_effort or (not thinking and version >= THINKS)
    body: wire.JsonObject = {
        "model": wire_name(call.model),
        "max_tokens": cap,
        "messages": _build_turns(call, provider if is_thinking else None, may_prefill=not has_effort),
    }
    system = [block for message in call.messages if message.role in _SYSTEM for block in _encode_content(message)]
    if any(block["type"] != "text" for block in system):
        raise _fault_of("supports only text in system messages")
    if any("cache_control" in block for block in system):
        body["system"] = system
    elif system:
        body["system"] = "\n\n".join(block["text"] for block in system)
    if call.stream:
        body["stream"] = True
    if call.tools:
        body["tools"] = [_encode_tool(tool) for tool in call.tools]
        body |= _build_choice(call)
    if call.repeats and body["messages"][-1]["role"] == "user" and isinstance(body.get("system", ""), str):
        blocks = [block for turn in body["messages"] for block in turn["content"]] + body.get("tools", [])
        if not any("cache_control" in block for block in blocks):  # the caller's own marks count
            body["messages"][-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    if call.params.service_tier in _TIERS:
        body["service_tier"] = _TIERS[call.params.service_tier]
    body |= _encode_sampling(call, thinks=has_effort)
    stops = [call.params.stop] if isinstance(call.params.stop, str) else call.params.stop or []
    for stop in stops:
        if not stop.strip():
            raise _fault_of(f"does not support a stop sequence of only white space, got {stop[:_SHOWN_CHARS]!r}")
    body |= {"stop_sequences": stops} if stops else {}
    return with_extra(merge(body | _encode_format(call.params.response_format), thinking), call, provider)


def _build_choice(call: wire.UpstreamCall) -> wire.JsonObject:
    """The tool choice, and whether several tools may be called at once."""
    choice = call.tool_choice
    is_serial = call.params.parallel_tool_calls is False
    if choice is None or (isinstance(choice, str) and choice in _TOOL_CHOICES):
        field: wire.JsonObject = {"type": _TOOL_CHOICES[choice or "auto"]}
    else:
        field = {"type": "tool", "name": choice if isinstance(choice, str) else choice.function.name}
    if is_serial and field["type"] != "none":
        field["disable_parallel_tool_use"] = True
    return {"tool_choice": field} if choice is not None or is_serial else {}


def _build_turns(call: wire.UpstreamCall, thinker: str | None, *, may_prefill: bool) -> list[wire.JsonObject]:
    """Build the turns. ``thinker``: the provider whose reasoning is sent; ``may_prefill``: a final assistant's turn is
    allowed."""
    # The obvious translation, a turn for each message, is refused with a 400: Anthropic wants users and assistants in
    # turn, the results of all parallel tool calls in the one user turn after them and before any text of it, no blank
    # text, and no white space at the end of a prefill. Conversations of other vendors break all of these: two user
    # messages in a row, one message per result, an empty text beside a tool call. So blocks are joined by role and
    # results are sorted to the front; the sort is stable, so nothing else moves. The 400 would only move the call to
    # another model, so a conversation that began elsewhere would never be served by Claude, and nobody would notice.
    # test_turns_of_messages_alternate_with_results_first_and_blank_texts_left_out proves the order,
    # test_a_prefill_is_sent_without_trailing_white_space_where_supported the last turn.
    turns: list[wire.JsonObject] = []
    for message in with_ids(call.messages, _ID):
        blocks = [] if message.role in _SYSTEM else [*_build_blocks(message, thinker)]
        role = "assistant" if message.role == "assistant" else "user"
        if blocks and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    if not turns:
        raise _fault_of("needs a message that is neither blank nor a system message")
    for turn in turns:
        turn["content"].sort(key=lambda block: block["type"] != "tool_result")  # results must come first
    if turns[-1]["role"] == "assistant":
        if not may_prefill or claude_of(call.model)[1] >= NO_PREFILL:
            raise _fault_of("does not support a final assistant's message for this model")
        block = turns[-1]["content"][-1]
        if block["type"] == "text":
            block["text"] = block["text"].rstrip()  # a prefill must not end in white space
    return turns


def _build_blocks(message: wire.Message, thinker: str | None) -> Iterator[wire.JsonObject]:
    if message.role == "tool":
        result: wire.JsonObject = {"type": "tool_result", "tool_use_id": message.tool_call_id}
        content = [*_encode_content(message)]
        marks = [block.pop("cache_control") for block in content if "cache_control" in block]
        if content:
            result["content"] = content
        yield result | ({"cache_control": marks[-1]} if marks else {})
        return
    thought = message.reasoning
    if thought is None or thought.provider != thinker:
        yield from _encode_content(message)
        yield from map(_encode_call, message.tool_calls or ())
        return
    # Claude refuses a tool result without its signed reasoning: test_claude_is_sent_its_reasoning_blocks_unchanged
    text = message.content if isinstance(message.content, str) else ""
    thoughts = [item for item in thought.items if item.get("type") in _THOUGHTS]
    for piece, calls, item in in_places(thoughts, text, message.tool_calls or ()):
        yield from _text_block(piece) if text or item else _encode_content(message)
        yield from map(_encode_call, calls)
        if item:
            yield {name: item[name] for name in _THOUGHT_FIELDS if name in item}


def _encode_call(call: wire.ToolCall) -> wire.JsonObject:
    arguments = msgspec.Raw(complete_object(call.function.arguments).encode())
    return {"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments}


def _encode_content(message: wire.Message) -> Iterator[wire.JsonObject]:
    if isinstance(message.content, str):
        yield from _text_block(message.content)
        return
    for part in message.content or ():
        mark = {} if part.cache_control is None else {"cache_control": part.cache_control}
        match part:
            case wire.TextPart():
                yield from (block | mark for block in _text_block(part.text))
            case wire.ImagePart():
                yield {"type": "image", "source": _encode_source(part.image_url.url, _MEDIA, "images")} | mark
            case wire.FilePart():
                title = {} if part.file.filename is None else {"title": part.file.filename}
                source = _encode_source(part.file.file_data, (_PDF,), "documents")
                yield {"type": "document", "source": source} | title | mark
            case _:
                raise _fault_of("does not support sound")


def _text_block(text: str) -> Iterator[wire.JsonObject]:
    if text.strip():
        yield {"type": "text", "text": text}


def _encode_source(url: str, media_types: tuple[str, ...], noun: str) -> wire.JsonObject:
    if url[:5].lower() != "data:":
        return {"type": "url", "url": url}
    match = _DATA_URL.match(url)
    media_type = match[1].lower() if match else ""
    if match is None or media_type not in media_types:
        label = media_type[:_SHOWN_CHARS] or "another data: URL"
        raise _fault_of(f"supports {noun} as base64 of {', '.join(media_types)}, got {label!r}")
    return {"type": "base64", "media_type": media_type, "data": url[match.end() :]}


def _encode_tool(tool: wire.Tool) -> wire.JsonObject:
    spec = tool.function_spec
    schema = {"type": "object"} | ({"properties": {}} if spec.parameters is None else spec.parameters)
    fields: wire.JsonObject = {"name": spec.name, "input_schema": schema}
    if spec.description is not None:
        fields["description"] = spec.description
    if spec.strict:
        fields |= {"strict": True, "input_schema": _close_schema(schema, "a strict tool")}
    if tool.cache_control is not None:
        fields["cache_control"] = tool.cache_control
    return fields


def _encode_sampling(call: wire.UpstreamCall, *, thinks: bool) -> dict[str, float]:
    """Temperature and ``top_p``. A value of 1, the default, is left out if the model would refuse it. ``thinks``: the
    model is told to think."""
    requested = {"temperature": call.params.temperature, "top_p": call.params.top_p}
    values = {name: value for name, value in requested.items() if value is not None}
    if values.get("temperature", 0) > 1:
        raise _fault_of(f"supports a temperature from 0 to 1, got {values['temperature']}")
    version = claude_of(call.model)[1]
    if thinks or version >= NO_SAMPLING or (len(values) == 2 and version >= ONE_OF_TWO):
        values = {name: value for name, value in values.items() if value != 1}
        if len(values) == 2:
            both = f"{values['temperature']} and {values['top_p']}"
            raise _fault_of(f"supports only one of temperature and top_p for this model, got {both}")
    return values


def _encode_format(form: wire.JsonObject | None) -> wire.JsonObject:
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return {}
    if kind != "json_schema":
        raise _fault_of(f"supports only a response_format with a JSON schema, got {str(kind)[:_SHOWN_CHARS]!r}")
    schema = _close_schema(form["json_schema"]["schema"], "a response_format")
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def _close_schema(schema: wire.JsonObject, owner: str) -> wire.JsonObject:
    try:
        return closed_form(schema)
    except (OpenEnded, RecursionError, TypeError, AttributeError):  # a keyword has a value of a wrong type
        pass
    raise _fault_of(f"supports {owner} only with named properties and values of known types")


def _fault_of(problem: str) -> ProviderFault:
    return ProviderFault(wire.FaultKind.REQUEST, f"the Messages API {problem}")


# --- schemas

_AS_THEY_ARE = frozenset("type description title enum const default required $ref".split())
_FORMATS = frozenset("date-time time date duration email hostname uri ipv4 ipv6 uuid".split())
_HARD_PATTERN = re.compile(r"\(\?|\\[bB1-9]")
"""Look-arounds, word boundaries and back references."""
_SILENT = frozenset("$schema $id $comment additionalProperties discriminator deprecated readOnly writeOnly".split())
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
    closed: wire.JsonObject = {}
    notes: list[str] = []
    for keyword, value in schema.items():
        match keyword:
            case _ if keyword in _AS_THEY_ARE:
                closed[keyword] = value
            case "properties" | "$defs" | "definitions":
                closed[keyword] = {name: closed_form(inner) for name, inner in value.items()}
            case "items":
                closed[keyword] = closed_form(value)
            case "anyOf" | "allOf" | "oneOf":
                closed["allOf" if keyword == "allOf" else "anyOf"] = [closed_form(option) for option in value]
            case "format" if value in _FORMATS:
                closed[keyword] = value
            case "minItems" if value in (0, 1):
                closed[keyword] = value
            case "pattern" if not _HARD_PATTERN.search(value):
                closed[keyword] = value
            case _ if keyword not in _SILENT:
                notes.append(f"{keyword}: {msgspec.json.encode(value).decode()}")
    if not closed.keys() & _SHAPES:
        raise OpenEnded
    if notes:
        closed["description"] = "; ".join(filter(None, (closed.get("description"), *notes)))
    kind = schema.get("type")
    additional = schema.get("additionalProperties", True)
    if kind == "object" or (isinstance(kind, list) and "object" in kind):
        if isinstance(additional, Mapping) or (additional and "properties" not in schema):
            raise OpenEnded
        closed["additionalProperties"] = False
    return closed


# --- answers

_DECODER = msgspec.json.Decoder(wire.JsonObject)


class Counts:
    """Token counts. Later events have totals, which replace earlier ones."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._thought = self._hour = 0
        self._tier = ""
        self._usage: wire.Usage | None = None

    def add(self, usage: object) -> wire.Usage | None:
        """Add reported counts. Returns the usage if it is complete and has changed."""
        # Counts come in two events, and vendors with this protocol disagree on them: Anthropic reports the input at the
        # start and repeats it at the end, other hosts report it once and send 0 or null for it in the other event.
        # Taking the last report would bill such a prompt as zero tokens; taking the larger one would bill output that a
        # refusal took back. So 0 replaces a count of output, but a count of input only if there is none yet. The usage
        # is returned whenever it changed, because a call that breaks later is billed by the last one (contract 2:
        # cost_usd is the sum over all attempts that produced tokens). Each of these cases is a line of
        # test_usage_of_messages_is_merged_and_repeated_only_if_changed.
        if not isinstance(usage, dict):
            return None
        counts = self._counts
        details = usage.get("output_tokens_details")
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"):
            count = count_of(usage.get(name))
            if count or (count == 0 and (name == "output_tokens" or name not in counts)):
                counts[name] = count
        if isinstance(details, dict):
            self._thought = count_of(details.get("thinking_tokens")) or self._thought
        if isinstance(usage.get("cache_creation"), dict):
            self._hour = count_of(usage["cache_creation"].get("ephemeral_1h_input_tokens")) or self._hour
        self._tier = tier_of(usage.get("service_tier")) or self._tier
        output = counts.get("output_tokens", 0)
        cached = counts.get("cache_read_input_tokens", 0)
        written = counts.get("cache_creation_input_tokens", 0)
        prompt = counts.get("input_tokens", 0) + cached + written
        if not prompt and not output:
            return None
        thought = min(self._thought, output)
        before = self._usage
        self._usage = wire.Usage(prompt, output, cached, thought, written, min(self._hour, written), tier=self._tier)
        return None if self._usage == before else self._usage


class Blocks(Reader):
    """Reads one answer. Signatures, citations and pings are signs of life."""

    ending = "stop reason"

    def __init__(self, provider: str, *, may_be_silent: bool = False) -> None:
        """``may_be_silent``: an empty answer is allowed, after tool results."""
        super().__init__(provider)
        self._blank = may_be_silent
        self._counts = Counts()
        self._calls = 0
        self._blocks: dict[int, wire.JsonObject] = {}
        """Open blocks by index: reasoning with its texts in lists; tool calls with their number and, until the first
        piece, their initial arguments."""
        self._chars = 0

    def take(self, document: bytes | str) -> None:
        """Decode an event."""
        fields = self._decode(_DECODER, document, "not an object")
        if fields.get("error"):
            raise fault_in_answer(self._provider, text_of(document))
        kind = fields.get("type")
        if kind == "message_stop":
            self.end()
        else:
            self._take(None, self._read, kind, fields)

    def end(self) -> None:
        """Add the end, and of blocks without theirs."""
        for index in [*self._blocks]:
            self._take(None, self._stop, index)
        super().end()

    def read(self, document: bytes) -> None:
        """Decode a complete answer."""
        message = self._decode(_DECODER, document, "not an object")
        self._take(self._counts.add(message.get("usage")), self._read_message, message, document)
        self.end()

    def _read_message(self, message: wire.JsonObject, document: bytes) -> None:
        if message.get("error"):
            raise fault_in_answer(self._provider, text_of(document))
        content = message.get("content")
        if not isinstance(content, list):
            raise fault_of_document(self._provider, "no content", document)
        for index, block in enumerate(content):
            self._start(index, self._object(block))
            self._stop(index)
        self._stop_for(message.get("stop_reason"))
        if self._reason is None and not content:
            raise fault_of_document(self._provider, "neither text nor tool calls", document)

    def _stop_for(self, value: object) -> None:
        if reason := self._string(value):
            self._end_with(reason)
            self._blank = self._blank or reason == "stop_sequence"

    def _read(self, kind: object, event: wire.JsonObject) -> None:
        match kind:
            case "message_start":
                self._count(self._object(event.get("message")).get("usage"))
            case "message_delta":
                self._count(event.get("usage"))
                self._stop_for(self._object(event.get("delta")).get("stop_reason"))
            case "content_block_start":
                self._start(event.get("index"), self._object(event.get("content_block")))
            case "content_block_delta":
                piece = self._object(event.get("delta"))
                match piece.get("type"):
                    case "text_delta":
                        self._say(piece.get("text"))
                    case "input_json_delta":
                        block = self._blocks.get(self._number(event.get("index")), {})
                        text = self._string(piece.get("partial_json"))
                        if text and block.get("type") == "tool_use":
                            block.pop("input", None)
                            self.chunks.append(wire.ToolDelta(block["number"], text))
                    case "thinking_delta" | "signature_delta" as kind:
                        name = kind.removesuffix("_delta")
                        block = self._blocks.get(self._number(event.get("index")), {})
                        text = self._string(piece.get(name))
                        if block.get("type") in _THOUGHTS:
                            block.setdefault(name, []).append(text)
                        if name == "thinking":
                            self._think(text)
            case "content_block_stop":
                self._stop(event.get("index"))

    def _count(self, report: object) -> None:
        if (usage := self._counts.add(report)) is not None:
            self.chunks.append(usage)

    def _start(self, index: object, block: wire.JsonObject) -> None:
        if block.get("type") == "text":
            self._say(block.get("text"))
        elif block.get("type") == "tool_use":
            self._pieces += 1
            number = self._calls
            self._blocks[self._number(index)] = {"type": "tool_use", "number": number, "input": block.get("input")}
            self._calls += 1
            function = Function(self._string(block.get("name")))
            self.chunks.append(self._tools.begin(Piece(number, self._string(block.get("id")), function)))
        elif block.get("type") in _THOUGHTS:
            self._blocks[self._number(index)] = {
                name: [self._string(value)] if name in _GROWING else value for name, value in block.items()
            }
            self._think(block.get("thinking"))

    def _stop(self, index: object) -> None:
        block = self._blocks.pop(self._number(index), {})
        if block.get("type") in _THOUGHTS:
            item = {name: "".join(part) if isinstance(part, list) else part for name, part in block.items()}
            self.chunks.append(wire.Thought(item=placed(item, self._chars, self._calls)))
        elif "input" in block:
            arguments = block["input"] or {}
            arguments = arguments if isinstance(arguments, str) else encode(arguments)  # some proxies send a text
            self.chunks.append(wire.ToolDelta(block["number"], arguments))

    def _say(self, value: object) -> None:
        self._blank = True
        if text := self._string(value):
            self._pieces += 1
            self._chars += len(text)
            self.chunks.append(wire.Delta(text))

    def _think(self, value: object) -> None:
        if text := self._string(value):
            self.chunks.append(wire.Thought(text))

    def _number(self, index: object) -> int:
        return index if isinstance(index, int) else self._refuse("an index")
