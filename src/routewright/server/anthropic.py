"""The door for clients of Anthropic: the Messages API, as its SDKs ask for and read it (contract 14).

A body becomes a route request, an answer a message or the events of one. Fields that have no meaning here are ignored
and named in a header; what would change the meaning is refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, TypeVar, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from routewright import Prepared, Stream
from routewright._core.model_name import model_called, named
from routewright._core.request.json_scan import decode, joined, scan
from routewright._core.request.problems import did_you_mean, shown
from routewright.errors import AuthenticationFailed, RouterError, ValidationFailed
from routewright.router import Router
from routewright.wire import (
    Caller,
    FunctionCall,
    FunctionName,
    ImagePart,
    ImageUrl,
    Message,
    NamedToolChoice,
    OutputDelta,
    Params,
    Part,
    Role,
    RouteCompleted,
    RouteEvent,
    RouteFallback,
    RouteRequest,
    RouteResponse,
    RouteStarted,
    StreamError,
    TextPart,
    Tokens,
    Tool,
    ToolCall,
    ToolCallData,
    ToolCallDelta,
)

from .endpoints import Service
from .errors import fit, told
from .exchange import Exchange, while_connected
from .sse import Frame
from .vendors import (
    AUTO,
    FIELD,
    PLACES,
    Ignored,
    Wishes,
    Words,
    check_placed,
    places_of,
    routing_headers,
    wished,
    wishes_of,
    wrong,
)

T = TypeVar("T")

MESSAGES = "/anthropic/v1/messages"
COUNT_TOKENS = "/anthropic/v1/messages/count_tokens"
VENDOR = "anthropic"
_FORM = "output_config.format"
WORDS = Words(
    {
        **PLACES,
        "params.max_output_tokens": "max_tokens",
        "params.stop": "stop_sequences",
        "params.response_format": _FORM,
        "params.response_format.json_schema": _FORM,
        "tool_choice.function": "tool_choice",
    },
    "GET /v1/models",
)
_encode = msgspec.json.encode


# The endpoints.


async def messages(service: Service, exchange: Exchange) -> None:
    """Answer with a message, whole or as it comes."""
    async with _read_request(service, exchange, MESSAGES, capped=True) as (reading, prepared):
        if prepared.request.stream:
            frames = MessageFrames(exchange, prepared.stream(), prepared.tokens.estimate, reading.words)
            await service.send(exchange, prepared, frames)
        else:
            response, limits = await service.answer(exchange, prepared)
            await exchange.json(message_of(response), routing_headers(response) | limits)


async def count_tokens(service: Service, exchange: Exchange) -> None:
    """Say how many tokens a request's input has for the model that it names, or that would serve it."""
    async with _read_request(service, exchange, COUNT_TOKENS, capped=False) as (reading, prepared):
        count = await while_connected(exchange, partial(prepared.count_tokens, reading.names.get(reading.model)))
    low, high = count.low, count.high
    headers = {
        "X-Routewright-Model": count.model,
        "X-Routewright-Input-Tokens": f"{low}" if low == high else f"{low}-{high}",
    }
    await exchange.json({"input_tokens": count.estimate}, prepared.headers | headers)


@asynccontextmanager
async def _read_request(
    service: Service, exchange: Exchange, path: str, *, capped: bool
) -> AsyncIterator[tuple[Reading, Prepared]]:
    """The request that was sent. Errors name its fields as the client wrote them; every response has the headers that
    this vendor's clients look for."""
    exchange.headers["request-id"] = exchange.request_id
    reading: Reading | None = None
    try:
        caller = await _caller(service, exchange)
        reading = Reading(service.router, caller, capped=capped)
        prepared = await service.prepare(exchange, caller, reading.decode, path)
        exchange.headers |= reading.ignored.headers
        yield reading, prepared
    except RouterError as error:
        if not error.retryable:  # they would try again after any 409 and 500
            exchange.headers["x-should-retry"] = "false"
        if reading is None or reading.words is None:
            raise
        said = reading.words.error(error)
    else:
        return
    raise said


async def _caller(service: Service, exchange: Exchange) -> Caller:
    """Who asks, by either header that this vendor's clients send a key in."""
    key = (exchange.header(b"x-api-key") or "").strip()
    bearer = (exchange.header(b"authorization") or "").partition(" ")[2].strip()
    if not key:  # an empty header is none
        return await service.auth.caller(exchange, "route")
    if service.auth.takes_keys and bearer not in ("", key):
        raise AuthenticationFailed("x-api-key and Authorization name two API keys: send one of the two")
    return await service.auth.caller(exchange, "route", key=f"Bearer {key}")


# Requests.

_MOST_TOKENS = 2**53 - 1
_KINDS: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}
_SHOWN = frozenset(("model", "max_tokens", "temperature", "top_p", "stream"))
"""Fields whose values errors may show: they hold no words of a prompt."""


class Fields:
    """Takes a JSON object of a request apart field by field. A null field is not there; fields that nobody took are
    ignored, and named."""

    def __init__(self, value: object, path: str, ignored: Ignored) -> None:
        if not isinstance(value, dict):
            raise _misfit(path, dict, value)
        self.path = path
        self.ignored = ignored
        self._left: dict[str, Any] = {name: each for name, each in value.items() if each is not None}

    def get(self, name: str, kind: type[T]) -> T | None:
        """Take a field that may be missing. Ask for a number as ``float``."""
        value: Any = self._left.pop(name, None)
        if value is None or type(value) is kind or (kind is float and type(value) is int):
            return cast("T | None", value)
        raise _misfit(self.at(name), kind, value)

    def need(self, name: str, kind: type[T], hint: str = "") -> T:
        """Take a field that has to be there."""
        value = self.get(name, kind)
        if value is None:
            raise self.wrong(name, "is missing", hint)
        return value

    def text(self, name: str) -> str:
        """Take a string that may not be empty."""
        text = self.need(name, str)
        if not text:
            raise self.wrong(name, "must not be empty")
        return text

    def one_of(self, name: str, words: Collection[str]) -> str:
        """Take one of some words."""
        known = ", ".join(words)
        word = self.need(name, str, f"one of {known}")
        if word not in words:
            raise self.wrong(name, f"must be one of {known}, got {shown(word)}")
        return word

    def content(self, name: str) -> str | list[Any] | None:
        """Take a string, or an array of blocks."""
        value = self._left.pop(name, None)
        if value is None or isinstance(value, str | list):
            return value
        raise self.wrong(name, f"must be a string or an array of blocks, got {_KINDS[type(value)]}")

    def inner(self, name: str) -> Fields | None:
        """Take an object, to be taken apart in turn."""
        value = self.get(name, dict)
        return None if value is None else Fields(value, self.at(name), self.ignored)

    def each(self, name: str) -> list[Fields]:
        """Take an array of objects."""
        return _objects(self.get(name, list) or [], self.at(name), self.ignored)

    def at(self, name: str) -> str:
        """The path to a field."""
        return joined(self.path, name)

    def wrong(self, name: str, problem: str, hint: str = "") -> ValidationFailed:
        """The error of a field."""
        return wrong(self.at(name), problem, hint)

    def forget(self) -> None:
        """Ignore all that is left, without naming it."""
        self._left.clear()

    def end(self) -> None:
        """Ignore all that is left."""
        for name in self._left:
            self.ignored.add(name)


def _objects(values: list[Any], path: str, ignored: Ignored) -> list[Fields]:
    return [Fields(each, f"{path}[{place}]", ignored) for place, each in enumerate(values)]


def _misfit(path: str, kind: type, value: object) -> ValidationFailed:
    """The error of a value of another kind. Words of a prompt are not repeated."""
    got = shown(value) if path in _SHOWN else _KINDS[type(value)]
    return wrong(path, f"must be {_KINDS[kind]}, got {got}")


class Reading:
    """Reads one body: ``decode`` makes the request, the rest says what it was made of."""

    def __init__(self, router: Router, caller: Caller, *, capped: bool) -> None:
        """``capped``: ``max_tokens`` has to be there, as the API asks of calls that are answered."""
        self.model = AUTO
        """As it was asked for; a name that can only mean one model is that model's id."""
        self.ignored = Ignored()
        self.words: Words | None = None
        """What fields are called; None: there is no route request yet, and errors speak of what was sent."""
        self.names = router.model_names(caller=caller)
        """Ids and aliases of models, each with the id that it means."""
        self._models = partial(router.models, caller=caller)
        self._capped = capped

    def decode(self, body: bytes) -> RouteRequest:
        """Raises ``InvalidJson`` and ``ValidationFailed``, which names fields as the Messages API does."""
        scan(body)
        tree = _tree(body)
        fields = Fields(tree, "", self.ignored)
        check_placed(tree)
        self.model = self._id_of(fields.need("model", str, "an id, or 'auto'"))
        wishes = wishes_of(fields.get(FIELD, dict), WORDS)
        system, turns = system_of(fields.content("system"), self.ignored), fields.each("messages")
        if not turns:
            raise wrong("messages", "must hold at least one message")
        said = [*system, *(message for turn in turns for message in messages_of(turn))]
        tools = [_tool(each) for each in fields.each("tools")]
        request = RouteRequest(
            messages=[message for _, message in said],
            tools=tools or None,
            tool_choice=_choice(fields.inner("tool_choice"), tools),
            params=Params(
                temperature=fields.get("temperature", float),
                top_p=fields.get("top_p", float),
                max_output_tokens=self._cap(fields),
                stop=_stops(fields.get("stop_sequences", list)),
                response_format=_form(fields.inner("output_config"), fields.inner("output_format")),
            ),
            metadata=_metadata(fields.inner("metadata"), wishes),
            stream=fields.get("stream", bool) or False,
        )
        fields.end()
        made = wished(request, self.model, VENDOR, replace(wishes, metadata=None), self.names)
        self.words = WORDS.having(self._places(tree, wishes), [place for place, _ in said])
        return made

    def _places(self, tree: dict[str, Any], wishes: Wishes) -> dict[str, str]:
        """Where this body says what may be said in several places."""
        places = places_of(self.model)
        if wishes.metadata and tree.get("metadata") is None:
            places["metadata"] = f"{FIELD}.metadata"
        if (tree.get("output_config") or {}).get("format") is None:
            places |= dict.fromkeys(("params.response_format", "params.response_format.json_schema"), "output_format")
        return places

    def _cap(self, fields: Fields) -> float | None:
        cap = fields.get("max_tokens", float)
        if cap is None and self._capped:
            raise wrong("max_tokens", "is missing", "say how many tokens the answer may have at most")
        if cap is not None and not (1 <= cap <= _MOST_TOKENS and cap % 1 == 0):
            raise wrong("max_tokens", f"must be a whole number of at least 1, got {shown(cap)}")
        return cap

    def _id_of(self, model: str) -> str:
        """The model that is meant: also by a name with a date, as this vendor's clients know them."""
        kind, colon, _ = model.partition(":")
        if model == AUTO or (colon and kind in (AUTO, "policy")):
            return model
        for name in (f"{VENDOR}/{model}", model):
            if name in self.names:
                return name
        meant = model_called(model, [map(named, self._models())], VENDOR, {})
        if meant is not None:
            return meant
        hint = did_you_mean(model, self.names) or "GET /v1/models lists the known ids, 'auto' chooses one"
        raise wrong("model", f"is {shown(model)}, which is no known model", hint)


def _tree(body: bytes) -> Any:
    try:
        return decode(body)
    except msgspec.DecodeError:
        pass  # what was raised may hold words of the body
    raise wrong("", "a number is out of range", "send one that a double can hold")


def _metadata(fields: Fields | None, wishes: Wishes) -> dict[str, Any] | None:
    """The one field that Anthropic takes, and our own metadata."""
    user = None if fields is None else fields.get("user_id", str)
    if fields is not None:
        fields.end()
    return ({} if user is None else {"user_id": user}) | (wishes.metadata or {}) or None


def _stops(given: list[Any] | None) -> list[str] | None:
    for at, each in enumerate(given or ()):
        if not isinstance(each, str) or not each:
            raise wrong(f"stop_sequences[{at}]", "must be a string that is not empty")
    return given or None


# Tools, and the form of the answer.

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
FORM_NAME = "answer"
"""The common chat format names a schema, this one does not."""


def _tool(fields: Fields) -> Tool:
    """A tool that the client runs. One that Anthropic runs, or knows the schema of, is refused: a model of another
    vendor could not use it, and would answer as if it were not there."""
    kind = fields.get("type", str) or "custom"
    if kind != "custom":
        hint = "leave it out, or declare a tool of your own with an input_schema"
        raise fields.wrong("type", f"is {shown(kind)}, a tool that only Anthropic's models know", hint)
    name, description = fields.need("name", str), fields.get("description", str)
    schema, strict = fields.need("input_schema", dict), fields.get("strict", bool)
    fields.end()
    return Tool(name=name, description=description, parameters=schema, strict=strict)


def _choice(fields: Fields | None, tools: list[Tool]) -> str | NamedToolChoice | None:
    """``tool_choice``."""
    if fields is None:
        return None
    known = "auto, any, tool, none"
    kind = fields.need("type", str, f"one of {known}")
    name = fields.get("name", str)
    fields.end()
    if kind == "tool":
        if name is None:
            raise fields.wrong("name", "is missing", "name the tool")
        if name not in [tool.name for tool in tools]:
            problem = f"names the tool {shown(name)}, which is not declared"
            raise fields.wrong("name", problem, "declare it in 'tools'")
        return NamedToolChoice(FunctionName(name))
    if kind not in _CHOICES:
        raise fields.wrong("type", f"must be one of {known}, got {shown(kind)}")
    if kind == "any" and not tools:
        raise fields.wrong("type", "is 'any', but there are no tools", "declare 'tools'")
    return _CHOICES[kind] if tools or kind == "none" else None


def _form(config: Fields | None, older: Fields | None) -> dict[str, Any] | None:
    """The ``response_format`` that ``output_config.format`` asks for, or ``output_format``, its older name."""
    form = None if config is None else config.inner("format")
    if form is not None and older is not None:
        older.ignored.add("output_format")
    if config is not None:
        config.end()
    form = form or older
    if form is None:
        return None
    kind = form.need("type", str, "'json_schema'")
    if kind != "json_schema":
        raise form.wrong("type", f"must be 'json_schema', got {shown(kind)}")
    schema = form.need("schema", dict)
    form.end()
    return {"type": kind, "json_schema": {"name": FORM_NAME, "schema": schema}}


# Turns and blocks as messages. Results of tools become messages of their own, before what else their turn says, as
# Anthropic has them stand. What a model thought in earlier turns is left out: no other model may be shown it.

MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")
FAILED = "The tool failed"
"""Stands before the result of a tool that is an error: the common chat format has no field for it."""

Placed = tuple[str, Message]
"""A message, and where it was written."""


class _Turn(Struct):
    """What the blocks of one turn come to."""

    parts: list[Part] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[Placed] = field(default_factory=list)

    @property
    def content(self) -> str | list[Part] | None:
        """One text as it is: every model knows that form."""
        if len(self.parts) == 1 and isinstance(self.parts[0], TextPart):
            return self.parts[0].text
        return self.parts or None


def system_of(given: str | list[Any] | None, ignored: Ignored) -> list[Placed]:
    """The field ``system`` as a message, or none."""
    texts = [given] if isinstance(given, str) else []
    if isinstance(given, list):
        turn = _read(given, "system", "system", "'system'", ignored)
        texts = [part.text for part in turn.parts if isinstance(part, TextPart)]
    return [("system", Message("system", "\n\n".join(texts)))] if any(texts) else []


def messages_of(fields: Fields) -> list[Placed]:
    """One turn as messages. Raises ``ValidationFailed``."""
    role = cast("Role", fields.one_of("role", ("user", "assistant", "system")))
    given = fields.content("content")
    fields.end()
    if given is None:
        raise fields.wrong("content", "is missing", "send a string or an array of blocks")
    if isinstance(given, str):
        return [(fields.path, Message(role, given))]
    if not given and role != "assistant":
        raise fields.wrong("content", "must hold at least one block")
    turn = _read(given, fields.at("content"), role, f"a message of role {role!r}", fields.ignored)
    if not turn.parts and not turn.calls:
        return turn.results  # an assistant's turn of thought alone says nothing that may be repeated
    return [*turn.results, (fields.path, Message(role, turn.content, tool_calls=turn.calls or None))]


def _read(given: list[Any], path: str, role: str, where: str, ignored: Ignored) -> _Turn:
    """The blocks of a content. ``where`` it stands, in words."""
    turn, readers = _Turn(), _BLOCKS[role]
    for kind, block in [(each.need("type", str), each) for each in _objects(given, path, ignored)]:
        if kind not in readers:
            known = ", ".join(repr(each) for each in readers if each not in _THOUGHT)
            hint = f"taken there: {known}; say in a text block what it holds"
            raise block.wrong("type", f"is {shown(kind)}, a block that models are not sent from {where}", hint)
        readers[kind](block, turn)
        block.end()
    return turn


def _text(block: Fields, turn: _Turn) -> None:
    turn.parts.append(TextPart(block.need("text", str)))


def _image(block: Fields, turn: _Turn) -> None:
    source = block.inner("source")
    if source is None:
        raise block.wrong("source", "is missing", "send a source of type 'base64' or 'url'")
    match kind := source.need("type", str, "'base64' or 'url'"):
        case "base64":
            url = f"data:{source.one_of('media_type', MEDIA)};base64,{source.need('data', str)}"
        case "url":
            url = source.need("url", str)
            if not url[:8].lower().startswith(("https://", "http://")):
                raise source.wrong("url", "must begin with https:// or http://")
        case _:
            raise source.wrong("type", f"must be 'base64' or 'url', got {shown(kind)}", "send the image itself")
    turn.parts.append(ImagePart(ImageUrl(url)))
    source.end()


def _tool_use(block: Fields, turn: _Turn) -> None:
    id, name = block.text("id"), block.text("name")
    turn.calls.append(ToolCall(id, FunctionCall(name, _encode(block.need("input", dict)).decode())))


def _tool_result(block: Fields, turn: _Turn) -> None:
    id, given, failed = block.text("tool_use_id"), block.content("content"), block.get("is_error", bool)
    inner = _Turn([TextPart(given)]) if isinstance(given, str) else _Turn()
    if isinstance(given, list):
        inner = _read(given, block.at("content"), "tool", "the result of a tool", block.ignored)
    if failed:
        match inner.parts:
            case [TextPart(said), *rest] if said:
                inner.parts = [TextPart(f"{FAILED}: {said}"), *rest]
            case parts:
                inner.parts = [TextPart(f"{FAILED}."), *parts]
    turn.results.append((block.path, Message("tool", inner.content or "", tool_call_id=id)))


def _left_out(kind: str, block: Fields, turn: _Turn) -> None:
    block.ignored.add(kind)
    block.forget()


_THOUGHT = ("thinking", "redacted_thinking")
_BLOCKS: dict[str, dict[str, Callable[[Fields, _Turn], None]]] = {
    "user": {"text": _text, "image": _image, "tool_result": _tool_result},
    "assistant": {"text": _text, "tool_use": _tool_use, **{kind: partial(_left_out, kind) for kind in _THOUGHT}},
    "system": {"text": _text},
    "tool": {"text": _text, "image": _image},
}
"""What may stand in whose turn, and in the result of a tool."""


# Answers.

StopReason = Literal["end_turn", "max_tokens", "tool_use", "refusal"]

UNREAD = "INVALID_JSON"
"""The name under which arguments that are no JSON object are told, as Anthropic's own clients do."""
_REASONS: dict[str | None, StopReason] = {
    "length": "max_tokens",
    "budget": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
"""Any other is a natural end. That a stop sequence ended it is not known here: most vendors do not say."""
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def message_of(response: RouteResponse) -> dict[str, Any]:
    """An answer as a message."""
    content: list[dict[str, Any]] = [{"type": "text", "text": response.output}] if response.output else []
    for call in response.tool_calls or ():
        arguments = call.function.arguments
        given = input_of(arguments)
        block = {"type": "tool_use", "id": call.id, "name": call.function.name}
        content.append({**block, "input": {UNREAD: arguments} if given is None else given})
    usage = _usage_of(response.routing.tokens)
    return _message(response.trace_id, response.routing.selected_model, content, _stop_reason(response), usage)


def _message(
    trace_id: str, model: str, content: list[dict[str, Any]], stop_reason: StopReason | None, usage: dict[str, int]
) -> dict[str, Any]:
    return {
        "type": "message",
        "id": f"msg_{trace_id.partition('_')[2]}",  # by which its trace is found again
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }


def _stop_reason(response: RouteResponse) -> StopReason:
    """Why the answer ended. With calls in it clients look for ``tool_use``, whatever the vendor calls its end."""
    reason = _REASONS.get(response.finish_reason, "end_turn")
    return "tool_use" if reason == "end_turn" and response.tool_calls else reason


def _usage_of(tokens: Tokens) -> dict[str, int]:
    """Token counts, in parts that do not overlap. What was written to a provider's cache counts as plain input."""
    return {
        "input_tokens": tokens.input - tokens.cached,
        "output_tokens": tokens.output,
        "cache_read_input_tokens": tokens.cached,
        "cache_creation_input_tokens": 0,
    }


def input_of(arguments: str) -> dict[str, Any] | None:
    """The arguments of a call; None: they are no JSON object."""
    try:
        return _decode(arguments.strip() or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


# Streams. A message begins with its first content, once it is known which model serves it. Text and calls are blocks,
# one after the other; a call whose arguments are not whole when the next begins stays open: some vendors send several
# at once.


class _Call(Struct, eq=False):
    """A tool call that is under way."""

    index: int | None = None
    """Of its block; None: its name has not come yet."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    """What was sent of them."""
    waiting: str = ""
    """What came before the name, or is to be sent."""

    @property
    def is_whole(self) -> bool:
        """Nothing more can belong to it."""
        return bool(self.arguments) and input_of(self.arguments) is not None


class MessageBlocks:
    """The blocks of one message, as events."""

    def __init__(self) -> None:
        self._text: int | None = None
        """The index of the text that is open."""
        self._calls: dict[int, _Call] = {}
        self._open: list[_Call] = []
        self._count = 0

    def say(self, text: str) -> Iterator[bytes]:
        """A piece of the text."""
        if self._text is None:
            yield from self._stop_whole()
            self._text = self._next()
            yield _event("content_block_start", index=self._text, content_block={"type": "text", "text": ""})
        yield _event("content_block_delta", index=self._text, delta={"type": "text_delta", "text": text})

    def call(self, piece: ToolCallData) -> Iterator[bytes]:
        """A piece of a tool call."""
        call = self._calls.setdefault(piece.index, _Call())
        call.id, call.name = call.id or piece.call_id, call.name or piece.name
        call.waiting += piece.arguments
        if call.index is None and call.name:
            yield from self._stop_text()
            yield from self._stop_whole()
            call.index = self._next()
            self._open.append(call)
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield _event("content_block_start", index=call.index, content_block=block)
        if call.index is not None and call.waiting and call in self._open:
            delta = {"type": "input_json_delta", "partial_json": call.waiting}
            yield _event("content_block_delta", index=call.index, delta=delta)
            call.arguments, call.waiting = call.arguments + call.waiting, ""

    def end(self) -> Iterator[bytes]:
        """Close what is open."""
        yield from self._stop_text()
        for call in self._open:
            yield _event("content_block_stop", index=call.index)
        self._open.clear()

    def _stop_text(self) -> Iterator[bytes]:
        if self._text is not None:
            yield _event("content_block_stop", index=self._text)
            self._text = None

    def _stop_whole(self) -> Iterator[bytes]:
        for call in [call for call in self._open if call.is_whole]:
            self._open.remove(call)
            yield _event("content_block_stop", index=call.index)

    def _next(self) -> int:
        self._count += 1
        return self._count - 1


class MessageFrames:
    """The events of one call, as the Messages API sends them (``sse.Frames``)."""

    def __init__(self, exchange: Exchange, stream: Stream, input_tokens: int, words: Words | None) -> None:
        """``input_tokens``: an estimate, told first and corrected at the end."""
        self._words = words
        self.headers: dict[str, str] = {}
        self._exchange = exchange
        self.stream = stream
        self._input_tokens = input_tokens
        self._trace_id = self._model = ""
        self._has_begun = False
        self._blocks = MessageBlocks()
        stream.expect_text()  # there are no words for taking back what was said (contract 4)

    async def __aiter__(self) -> AsyncGenerator[Frame, None]:
        """Give them in order. Raises what the call ends in, if that is no answer."""
        async with self.stream as stream:
            async for event in stream:
                if isinstance(event, StreamError):
                    stream.raise_failure()
                events = b"".join(self._events(event))
                if events:
                    yield Frame(events)

    def last_words(self, error: Exception) -> bytes:
        """The event ``error``."""
        said = told(error, self._exchange.request_id)
        return _framed("error", body(said if self._words is None else self._words.error(said)))

    def _events(self, event: RouteEvent) -> Iterator[bytes]:
        match event:
            case RouteStarted(data=data):
                self._trace_id, self._model = data.trace_id, data.routing.selected_model
                self._exchange.trace_id = data.trace_id
                self.headers |= routing_headers(data)
            case RouteFallback(data=data):
                self._model = self.headers["X-Routewright-Model"] = data.to_model
            case OutputDelta(data=data) if data.text:
                yield from self._begin()
                yield from self._blocks.say(data.text)
            case ToolCallDelta(data=data):
                yield from self._begin()
                yield from self._blocks.call(data)
            case RouteCompleted(data=response):
                self._model = response.routing.selected_model
                yield from self._begin()
                yield from self._blocks.end()
                delta = {"stop_reason": _stop_reason(response), "stop_sequence": None}
                yield _event("message_delta", delta=delta, usage=_usage_of(response.routing.tokens))
                yield _event("message_stop")

    def _begin(self) -> Iterator[bytes]:
        if not self._has_begun:
            self._has_begun = True
            usage = _usage_of(Tokens(self._input_tokens))
            yield _event("message_start", message=_message(self._trace_id, self._model, [], None, usage))


def _event(name: str, **data: Any) -> bytes:
    return _framed(name, _encode({"type": name, **data}))


def _framed(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


# Errors. Statuses are our own, so that clients raise the class that belongs to each.

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
"""The type of a status. Any other is that of 400 below 500, and ``api_error`` from there on."""


def body(error: RouterError) -> bytes:
    """The body of an error response. Our code and detail are in ``details``, where clients look for a code. No API key
    is repeated."""
    kind = TYPES.get(error.status, TYPES[400] if error.status < 500 else "api_error")
    trace = {} if error.trace_id is None else {"trace_id": error.trace_id}
    said = {"type": kind, "message": error.message, "details": {**error.detail, "error_code": error.code, **trace}}
    return fit(_encode({"type": "error", "error": said, "request_id": error.request_id}))
