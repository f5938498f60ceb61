"""The API for Anthropic's clients: the Messages API (contract 14).

A body becomes a route request, the answer a message or its events. Fields without a meaning here are ignored and listed
in a header; fields that would change the meaning are refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from routewright import wire
from routewright.catalogue import chooses
from routewright.errors import AuthenticationFailed, RouterError
from routewright.wire import JsonObject
from routewright.wire.conversion import convert_value
from routewright.wire.json_scan import decode
from routewright.wire.json_stream import complete_object
from routewright.wire.problems import example, shown
from routewright.wire.thoughts import AT, in_places, placed

from .client_tools import arguments_of, note_of
from .endpoints import Service, released
from .errors import fit
from .exchange import Exchange, while_connected
from .fields import Fields, wrong
from .vendor_call import Block, CallFrames, VendorCall, answer, encode_event, model_at, prepare, reason_of
from .vendor_requests import EFFORTS, PLACES, Words, content_of, join_thoughts, mark_of

MESSAGES = "/anthropic/v1/messages"
COUNT_TOKENS = "/anthropic/v1/messages/count_tokens"
VENDOR = "anthropic"
LISTED_AT = "GET /anthropic/v1/models"
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_FORMS = ("params.response_format", "params.response_format.json_schema")
WORDS = Words(
    {
        **PLACES,
        "params.max_output_tokens": "max_tokens",
        "params.extra.anthropic": "",
        "params.stop": "stop_sequences",
        "params.reasoning": "thinking",
        "params.reasoning.max_tokens": "thinking.budget_tokens",
        "params.parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
        **dict.fromkeys(_FORMS, "output_config.format"),
        "tool_choice.function": "tool_choice",
    },
    LISTED_AT,
)
_encode = msgspec.json.encode


async def messages(service: Service, exchange: Exchange) -> None:
    """Answer with a message, complete or streamed."""
    await answer(service, exchange, MessageCall(), MESSAGES, MessageFrames)


async def count_tokens(service: Service, exchange: Exchange) -> None:
    """Count the input tokens of a request for its model, or for the one that would serve it."""
    vendor_call = MessageCall()
    vendor_call.capped = False
    async with prepare(service, exchange, vendor_call, COUNT_TOKENS) as prepared:
        model_id = None if chooses(vendor_call.model) else vendor_call.model
        count = await while_connected(exchange, partial(prepared.count_tokens, model_id))
    low, high = count.low, count.high
    tokens = f"{low}" if low == high else f"{low}-{high}"
    headers = {"X-Routewright-Model": count.model, "X-Routewright-Input-Tokens": tokens}
    headers |= vendor_call.ignored.headers(count.model)
    await exchange.json({"input_tokens": count.estimate}, prepared.headers | headers)


async def models(service: Service, exchange: Exchange) -> None:
    """The callable models."""
    caller = await MessageCall().caller(service, exchange, "models:read")
    entries = [_listing(model) for model in service.router.models(caller=caller)]
    first_id, last_id = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
    await exchange.json({"data": entries, "has_more": False, "first_id": first_id, "last_id": last_id})


async def model(service: Service, exchange: Exchange) -> None:
    """One model, by any of its names."""
    await exchange.json(_listing(await model_at(service, exchange, MessageCall())))


def _listing(model: wire.Model) -> JsonObject:
    created = datetime.fromtimestamp(released(model.released_at), UTC)
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.display_name or model.id,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": model.context_window,
        "max_tokens": model.max_output_tokens,
        "lifecycle": "active" if model.deprecated_at is None else "deprecated",
        "retires_at": model.deprecated_at,
    }


_STOPS: Any = list[str] | None
_TIERS: dict[str | None, wire.ServiceTier | None] = {None: None, "auto": "auto", "standard_only": "default"}


class MessageCall(VendorCall):
    """One call of the Messages API."""

    vendor = VENDOR
    names = WORDS
    capped = True
    """``max_tokens`` is required, as in the vendor's API except for counting."""
    shows_thought = False
    """The answer has the model's reasoning: it was asked to think, or may need it back after a tool call. Other clients
    expect the text in the first block."""

    async def caller(self, service: Service, exchange: Exchange, scope: wire.Scope = "route") -> wire.Caller:
        """Authenticate by ``x-api-key`` or ``Authorization``."""
        exchange.headers["request-id"] = exchange.request_id  # expected in every response
        key = (exchange.header(b"x-api-key") or "").strip()
        bearer = (exchange.header(b"authorization") or "").partition(" ")[2].strip()
        if not key:  # missing or empty
            return await super().caller(service, exchange, scope)
        if service.auth.takes_keys and bearer not in ("", key):
            raise AuthenticationFailed("x-api-key and Authorization have different API keys; send only one")
        return await service.auth.caller(exchange, scope, key=f"Bearer {key}")

    def answer_of(self, response: wire.RouteResponse) -> JsonObject:
        """An answer as a message."""
        return message_of(response, shows_thought=self.shows_thought)

    def read(self, fields: Fields) -> wire.RouteRequest:
        """Make a request from the fields of a body."""
        messages = self._read_messages(fields)
        self.turns = [path for path, _ in messages]
        tools = [tool for declaration in fields.objects("tools") if (tool := _tool(declaration)) is not None]
        choice = fields.inner("tool_choice")
        serial = choice.get("disable_parallel_tool_use", bool)
        config = fields.inner("output_config")
        thinking = fields.inner("thinking")
        self.shows_thought = bool(tools) or (bool(thinking) and thinking.peek("type") != "disabled")
        user = fields.inner("metadata").get("user_id", str)
        allowed = self.directory.extra(VENDOR)
        top_k = fields.get("top_k", float) if "top_k" in allowed else None
        passed: JsonObject = {} if top_k is None else {"top_k": top_k}
        self.ignored.extra = {VENDOR: passed}
        extra = passed | ({"metadata": {"user_id": user}} if user is not None and "metadata" in allowed else {})
        hint = "send the longest answer in tokens"
        cap = fields.need("max_tokens", float, hint) if self.capped else fields.get("max_tokens", float)
        return wire.RouteRequest(
            messages=[message for _, message in messages],
            tools=tools or None,
            tool_choice=_choice(choice, tools),
            params=wire.Params(
                temperature=fields.get("temperature", float),
                top_p=fields.get("top_p", float),
                max_output_tokens=cap,
                stop=convert_value(fields.get("stop_sequences", list) or None, _STOPS, "stop_sequences"),
                reasoning=_reasoning(thinking, config),
                response_format=self._form(config.inner("format"), fields),
                parallel_tool_calls=None if serial is None else not serial,
                service_tier=_TIERS[fields.may_be("service_tier", ("auto", "standard_only"))],
                extra={VENDOR: extra} if extra else None,
            ),
            metadata=None if user is None else {"user_id": user},
            stream=fields.get("stream", bool) or False,
        )

    def _read_messages(self, fields: Fields) -> list[PathAndMessage]:
        """``system`` and ``messages``. A ``cache_control`` of the body marks the last part that can have it."""
        system = _system(fields.content("system"))
        turns = fields.objects("messages")
        if not turns:
            raise wrong("messages", "must hold at least one message", example("messages"))
        messages = [*system, *(entry for turn in turns for entry in _messages(turn))]
        mark = mark_of(fields)
        for number, (path, message) in reversed([*enumerate(messages)] if mark else []):
            content = message.content
            parts: list[wire.Part] = [wire.TextPart(content)] if isinstance(content, str) else content or []
            if parts and wire.text_of(parts[-1]):
                parts = [*parts[:-1], replace(parts[-1], cache_control=mark)]
                messages[number] = path, replace(message, content=parts)
                break
        return messages

    def _form(self, form: Fields, fields: Fields) -> JsonObject | None:
        """The ``response_format`` of ``output_config.format``, or of ``output_format``, its older name."""
        if not form and (form := fields.inner("output_format")):
            self.places |= dict.fromkeys(_FORMS, "output_format")
        if not form:
            return None
        kind = form.need("type", str, "'json_schema'")
        if kind != "json_schema":
            raise form.wrong("type", f"must be 'json_schema', got {shown(kind)}", "no other is supported")
        return {"type": kind, "json_schema": {"name": FORM_NAME, "schema": form.need("schema", dict)}}


def _reasoning(thinking: Fields, config: Fields) -> wire.Effort | wire.ReasoningBudget | None:
    """The reasoning effort of ``thinking`` and ``output_config.effort``."""
    word = config.may_be("effort", _EFFORTS)
    effort = None if word is None else EFFORTS[word]
    if not thinking:
        return effort
    kind = thinking.one_of("type", ("enabled", "adaptive", "disabled"))
    thinking.forget("display")  # readable reasoning is always sent
    if kind == "enabled":
        hint = "send a number of tokens, or type 'adaptive'"
        return wire.ReasoningBudget(thinking.need("budget_tokens", float, hint))
    thinking.forget("budget_tokens")
    return "none" if kind == "disabled" else effort or "high"


_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
FORM_NAME = "answer"
"""Name of the schema, which the route request needs."""


def _tool(fields: Fields) -> wire.Tool | None:
    """A tool of the client. Anthropic's own tools are refused: other vendors' models cannot use them, and would answer
    without them. Its tool search is ignored, since models get all tools at once."""
    kind = fields.get("type", str) or "custom"
    if kind.startswith("tool_search_tool_"):
        fields.ignored.add(kind)
        return None
    if kind != "custom":
        hint = "leave it out, or declare your own tool with an input_schema"
        if kind.startswith("web_search_"):
            hint = "leave it out; Claude Code: deny WebSearch in the permissions of settings.json"
        raise fields.wrong("type", f"is {shown(kind)}, a tool that only Anthropic's models know", hint)
    return wire.Tool(
        name=fields.need("name", str),
        description=fields.get("description", str),
        parameters=fields.need("input_schema", dict),
        strict=fields.get("strict", bool),
        cache_control=mark_of(fields),
    )


def _choice(fields: Fields, tools: list[wire.Tool]) -> str | wire.NamedToolChoice | None:
    if not fields:
        return None
    kind = fields.one_of("type", ("auto", "any", "tool", "none"))
    if kind == "tool":
        return wire.NamedToolChoice(wire.FunctionName(fields.need("name", str, "name the tool")))
    if kind == "any" and not tools:
        raise fields.wrong("type", "is 'any', but there are no tools", "declare 'tools'")
    return _CHOICES[kind] if tools or kind == "none" else None


# Turns and blocks as messages. Tool results become separate messages before the rest of their turn. Reasoning is only
# sent back to its own provider.

MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")
PDF = "application/pdf"
FAILED = "The tool failed"
"""Precedes the result of a failed tool, since route requests have no field for it."""

PathAndMessage = tuple[str, wire.Message]
"""A message and its path in the body."""


class _Turn(Struct):
    """The content of one turn."""

    parts: list[wire.Part] = field(default_factory=list)
    calls: list[wire.ToolCall] = field(default_factory=list)
    results: list[PathAndMessage] = field(default_factory=list)
    thoughts: list[wire.Reasoning] = field(default_factory=list)


def _system(system: str | list[Fields] | None) -> list[PathAndMessage]:
    parts = [part for part in _parts(system, "system", "'system'") if wire.text_of(part)]
    is_marked = any(part.cache_control is not None for part in parts)
    content = parts if is_marked else "\n\n".join(map(wire.text_of, parts))
    return [("system", wire.Message("system", content))] if parts else []


def _messages(fields: Fields) -> list[PathAndMessage]:
    """One turn as messages. Raises ``ValidationFailed``."""
    role = cast("wire.Role", fields.one_of("role", ("user", "assistant", "system")))
    if (blocks := fields.content("content")) is None:
        raise fields.wrong("content", "is missing", "send a string or an array of blocks")
    if isinstance(blocks, str):
        return [(fields.path, wire.Message(role, blocks))]
    if not blocks and role != "assistant":
        raise fields.wrong("content", "must hold at least one block", "send a text")
    turn = _read(blocks, role, f"a message of role {role!r}")
    if not turn.parts and not turn.calls:
        return turn.results  # a turn of reasoning alone is not sent
    foreign = [piece for piece in turn.thoughts if piece.provider != VENDOR]
    thought = join_thoughts(foreign or turn.thoughts)
    message = wire.Message(role, content_of(turn.parts), tool_calls=turn.calls or None, reasoning=thought)
    return [*turn.results, (fields.path, message)]


_BLOCKS = {
    "user": ("text", "image", "document", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
    "tool": ("text", "image", "document"),
}
"""Supported blocks by role, and in the result of a tool."""
_NOTES = frozenset(
    "search_result tool_reference tool_addition tool_removal server_tool_use mcp_tool_use mcp_tool_listing compaction "
    "fallback".split()
)
"""Blocks that become text, as do the results of tools that Anthropic ran."""


def _parts(content: str | list[Fields] | None, role: str, location: str) -> list[wire.Part]:
    return [wire.TextPart(content)] if isinstance(content, str) else _read(content or [], role, location).parts


def _read(blocks: list[Fields], role: str, location: str) -> _Turn:
    """Read the blocks of a content. ``location``: its place, for errors."""
    turn = _Turn()
    kinds = _BLOCKS[role]
    for kind, block in [(entry.need("type", str), entry) for entry in blocks]:
        if kind in _NOTES or (kind.endswith("_tool_result") and role == "assistant"):
            turn.parts.append(note_of(kind, block))
            continue
        if kind not in kinds:
            hint = f"supported: {', '.join(map(repr, kinds))}; describe it in a text block"
            raise block.wrong("type", f"is {shown(kind)}, which is not supported in {location}", hint)
        match kind:
            case "text":
                turn.parts.append(wire.TextPart(block.need("text", str), mark_of(block)))
                block.forget("citations")
            case "image":
                source = block.object("source")
                url = _address(source, MEDIA, "'base64' or 'url'")
                if not url[:8].lower().startswith(("https://", "http://", "data:")):
                    raise source.wrong("url", "must begin with https:// or http://", "or send it as base64")
                turn.parts.append(wire.ImagePart(wire.ImageUrl(url), mark_of(block)))
            case "document":
                source = block.object("source")
                title = block.get("title", str)
                mark = mark_of(block)
                if source.peek("type") == "text":
                    source.forget("type", "media_type")
                    turn.parts.append(wire.TextPart(source.need("data", str), mark))
                elif source.peek("type") == "content":
                    source.forget("type")
                    turn.parts += _parts(source.content("content"), "tool", location)
                else:
                    data = _address(source, (PDF,), "'base64', 'url' or 'text'")
                    turn.parts.append(wire.FilePart(wire.FileData(data, title), mark))
            case "tool_use":
                id = block.text("id")
                call = wire.FunctionCall(block.text("name"), arguments_of(block, "input"))
                turn.calls.append(wire.ToolCall(id, call))
            case "tool_result":
                turn.results.append((block.path, _result(block)))
            case _ if not block.peek("signature" if kind == "thinking" else "data"):
                block.ignored.add(kind)  # Anthropic refuses unsigned reasoning, and others cannot read it
                block.rest()
            case _:  # reasoning: Anthropic's unchanged, others' as packed by us
                names = ("thinking", "signature") if kind == "thinking" else ("data",)
                fields = {"type": kind, **{name: block.need(name, str) for name in names}}
                chars = sum(len(wire.text_of(part)) for part in turn.parts)
                thought = wire.Reasoning(VENDOR, [placed(fields, chars, len(turn.calls))])
                turn.thoughts.append(wire.Reasoning.unpack(fields[names[-1]]) or thought)
    return turn


def _address(source: Fields, media: tuple[str, ...], kinds: str) -> str:
    """The URL of a block's source, or its bytes as a ``data:`` URL."""
    match kind := source.need("type", str, kinds):
        case "base64":
            return f"data:{source.one_of('media_type', media)};base64,{source.need('data', str)}"
        case "url":
            return source.need("url", str)
    raise source.wrong("type", f"must be {kinds}, got {shown(kind)}", "send the data as base64")


def _result(block: Fields) -> wire.Message:
    """The message of a ``tool_result``."""
    id = block.text("tool_use_id")
    parts = _parts(block.content("content"), "tool", "the result of a tool")
    mark = mark_of(block)
    if block.get("is_error", bool):
        match parts:
            case [wire.TextPart(text), *rest] if text:
                parts = [wire.TextPart(f"{FAILED}: {text}"), *rest]
            case _:
                parts = [wire.TextPart(f"{FAILED}."), *parts]
    if mark is not None and parts:
        parts[-1] = replace(parts[-1], cache_control=mark)
    return wire.Message("tool", content_of(parts) or "", tool_call_id=id)


_REASONS: dict[str | None, str] = {
    "length": "max_tokens",
    "budget": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    None: "end_turn",
}
"""Most vendors do not report stop sequences."""


def message_of(response: wire.RouteResponse, *, shows_thought: bool = False) -> JsonObject:
    """An answer as a message."""
    blocks = blocks_of(response.reasoning) if shows_thought and response.reasoning is not None else ()
    content: list[JsonObject] = []
    for text, calls, block in in_places(blocks, response.output, response.tool_calls or ()):
        content += [_text_block(text)] if text else []
        content += map(_call_block, calls)
        content += [_without_place(block)] if block else []
    usage = _usage_of(response.routing.tokens)
    return _message(response.trace_id, response.routing.selected_model, content, reason_of(response, _REASONS), usage)


def _text_block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _call_block(call: wire.ToolCall) -> JsonObject:
    return _tool_block(call.id, call.function.name, decode(complete_object(call.function.arguments)))


def _tool_block(id: str, name: str, tree: JsonObject) -> JsonObject:
    return {"type": "tool_use", "id": id, "name": name, "input": tree}


def _without_place(block: JsonObject) -> JsonObject:
    return {name: value for name, value in block.items() if name != AT}


def blocks_of(reasoning: wire.Reasoning) -> list[JsonObject]:
    """Reasoning as blocks: Anthropic's unchanged, others' packed into the signature."""
    if reasoning.provider == VENDOR:
        return reasoning.items
    if reasoning.text:
        return [{"type": "thinking", "thinking": reasoning.text, "signature": reasoning.pack()}]
    return [{"type": "redacted_thinking", "data": reasoning.pack()}] if reasoning.items else []


def _message(
    trace_id: str, model: str, content: list[JsonObject], stop_reason: str | None, usage: dict[str, int]
) -> JsonObject:
    return {
        "type": "message",
        "id": f"msg_{trace_id.partition('_')[2]}",  # identifies the trace
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }


def _usage_of(tokens: wire.Tokens) -> dict[str, int]:
    """Token counts that do not overlap."""
    return {
        "input_tokens": tokens.input - tokens.cached - tokens.written,
        "output_tokens": tokens.output,
        "cache_read_input_tokens": tokens.cached,
        "cache_creation_input_tokens": tokens.written,
    }


# Streams. A message begins with its first content, when the serving model is known.


class MessageFrames(CallFrames):
    """The events of one call, as the Messages API sends them."""

    _vendor_call: MessageCall

    def _thoughts(self, reasoning: wire.Reasoning) -> Iterable[JsonObject]:
        return map(_without_place, blocks_of(reasoning) if self._vendor_call.shows_thought else ())

    def _begin_answer(self) -> Iterator[bytes]:
        usage = _usage_of(wire.Tokens(self._prepared.tokens.estimate))  # corrected at the end
        yield _event("message_start", message=_message(self.trace_id, self.model, [], None, usage))

    def _begin_block(self, block: Block) -> Iterator[bytes]:
        opening = _text_block("") if block.kind == "text" else _tool_block(block.id, block.name, {})
        deltas: list[tuple[str, str]] = []
        if block.kind == "thought":
            opening = block.thought
            if opening.get("type") == "thinking":
                deltas = [(name, opening.get(name, "")) for name in ("thinking", "signature")]
                opening = opening | {"thinking": "", "signature": ""}
        yield _event("content_block_start", index=block.index, content_block=opening)
        for name, piece in deltas:
            if piece or name == "signature":
                yield _delta(block, name, **{name: piece})

    def _extend_block(self, block: Block, piece: str) -> bytes:
        kind, name = ("text", "text") if block.kind == "text" else ("input_json", "partial_json")
        return _delta(block, kind, **{name: piece})

    def _end_block(self, block: Block) -> Iterator[bytes]:
        yield _event("content_block_stop", index=block.index)

    def _end_answer(self, response: wire.RouteResponse) -> Iterator[bytes]:
        delta = {"stop_reason": reason_of(response, _REASONS), "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=_usage_of(response.routing.tokens))
        yield _event("message_stop")

    def _encode_error(self, error: RouterError) -> bytes:
        return encode_event("error", body(error))


def _delta(block: Block, kind: str, **piece: str) -> bytes:
    return _event("content_block_delta", index=block.index, delta={"type": f"{kind}_delta", **piece})


def _event(name: str, **data: object) -> bytes:
    return encode_event(name, _encode({"type": name, **data}))


# Errors. Statuses are our own, so that clients raise the class that belongs to each.

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    **dict.fromkeys((408, 504), "timeout_error"),
}
"""Error types by status. Others are that of 400 below 500, and ``api_error`` above."""


def body(error: RouterError) -> bytes:
    """The body of an error response, with our code and detail in ``details``, and API keys masked."""
    kind = TYPES.get(error.status, TYPES[400] if error.status < 500 else "api_error")
    trace = {} if error.trace_id is None else {"trace_id": error.trace_id}
    fields = {"type": kind, "message": error.message, "details": {**error.detail, "error_code": error.code, **trace}}
    return fit(_encode({"type": "error", "error": fields, "request_id": error.request_id}))
