"""A call at a door for another vendor's clients (contract 14): its body is read, and its answer told, whole or as it
comes. What differs between vendors is in their own modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from routewright import Prepared
from routewright._core.request.problems import shown
from routewright.errors import RateLimited, RouterError
from routewright.wire import (
    Caller,
    Model,
    OutputDelta,
    Reason,
    Reasoning,
    ReasoningDelta,
    RouteCompleted,
    RouteEvent,
    RouteFallback,
    RouteRequest,
    RouteResponse,
    RouteStarted,
    Scope,
    StreamError,
    ToolCallData,
    ToolCallDelta,
)

from .endpoints import Service
from .errors import told
from .exchange import Exchange
from .fields import Fields, Ignored, tree_of
from .sse import Frame
from .vendors import (
    AUTO,
    FIELD,
    NOBODY,
    Known,
    ModelNotFound,
    Words,
    check_placed,
    known_to,
    places_of,
    routing_headers,
    wished,
    wishes_of,
)

MOST_REJECTED = 20
"""Models that one error lists as rejected."""
_UNCALLABLE = (Reason.DISABLED, Reason.DEPRECATED, Reason.PROVIDER_UNAVAILABLE)
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class Door(ABC):
    """One call. ``decode`` reads its body; what it was read as is known from then on."""

    vendor: ClassVar[str]
    names: ClassVar[Words]
    """What the fields of a route request are called there."""
    refused: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Fields that cannot be ignored: what is wrong with them, and what to do."""
    as_ever: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Values that ask for nothing: fields with these are neither refused nor named."""

    def __init__(self, known: Known = NOBODY) -> None:
        self.known = known
        """The models that the caller may name."""
        self.model = AUTO
        """As it was asked for; a name that can only mean one model is that model's."""
        self.ignored = Ignored()
        self.words: Words | None = None
        """What fields are called; None: there is no route request yet, and errors speak of what was sent."""
        self.places: dict[str, str] = {}
        """Where this body says what may be said in several places (``Words.places``)."""
        self.turns: list[str] | None = None
        """Where each message was written, if not where the request has it (``Words.turns``)."""

    def decode(self, body: bytes) -> RouteRequest:
        """Make a request of a body. Raises ``InvalidJson``, ``ValidationFailed`` and ``ModelNotFound``."""
        fields = Fields(tree_of(body), "", self.ignored)
        check_placed(fields)
        fields.forget(*(name for name, values in self.as_ever.items() if fields.peek(name) in values))
        for name, (problem, hint) in self.refused.items():
            if fields.peek(name) is not None:
                raise fields.wrong(name, problem, hint)
        hint = f"send an id from {self.names.listed_at}, 'auto', 'auto:<goal>' or 'policy:<id>'"
        self.model = self.known.id_of(fields.need("model", str, hint), self.vendor, self.names.listed_at)
        given = fields.get(FIELD, dict)
        request = self.read(fields)
        fields.end()
        wishes = wishes_of(given, self.names.having(self.places))
        if wishes.metadata:
            if not request.metadata:
                self.places["metadata"] = f"{FIELD}.metadata"
            request = replace(request, metadata=(request.metadata or {}) | wishes.metadata)
        made = wished(request, self.model, self.vendor, replace(wishes, metadata=None), self.known.names)
        self.words = self.names.having(self.places | places_of(self.model, wishes.fallback), self.turns)
        return made

    @abstractmethod
    def read(self, fields: Fields) -> RouteRequest:
        """Make a request of what is left of the body: all but what is said about routing."""

    @abstractmethod
    def whole(self, response: RouteResponse) -> Any:
        """An answer."""

    async def caller(self, service: Service, exchange: Exchange, scope: Scope = "route") -> Caller:
        """Who asks."""
        return await service.auth.caller(exchange, scope)

    def limits(self, told: Mapping[str, str], now: float) -> dict[str, str]:
        """Our headers about limits as the vendor's clients read them, besides."""
        return {}

    def in_words(self, error: RouterError, now: float) -> RouterError:
        """The error in the client's own words for fields, with a header that says whether to try again: the vendors'
        SDKs would do so after every 409 and 5xx. It lists few rejected models, those that could be called first."""
        said = error if self.words is None else self.words.error(error)
        rejected = said.detail.get("rejected_candidates", ())
        if len(rejected) > MOST_REJECTED:
            able_first = sorted(rejected, key=lambda each: each["reason"] in _UNCALLABLE)
            said.detail = said.detail | {"rejected_candidates": able_first[:MOST_REJECTED]}
        said.headers = {**error.headers, "X-Should-Retry": "true" if error.retryable else "false"}
        if error.trace_id is not None:
            said.headers["X-Routewright-Trace-Id"] = error.trace_id
        if isinstance(error, RateLimited) and error.detail.get("limit_of") != "concurrency":
            said.headers |= self.limits(error.headers, now)
        return said


@asynccontextmanager
async def asked(service: Service, exchange: Exchange, door: Door, path: str) -> AsyncIterator[Prepared]:
    """The call that was sent. Errors are raised in the client's words."""
    try:
        caller = await door.caller(service, exchange)
        door.known = known_to(service, caller)
        yield await service.prepare(exchange, caller, door.decode, path)
    except RouterError as error:
        raise door.in_words(error, exchange.clock.time()) from None


async def answer(service: Service, exchange: Exchange, door: Door, path: str, frames: type[CallFrames]) -> None:
    """Answer a call, whole or in frames as it comes."""
    async with asked(service, exchange, door, path) as prepared:
        if prepared.request.stream:
            await service.send(exchange, prepared, frames(exchange, prepared, door))
            return
        response, limits = await service.answer(exchange, prepared)
        headers = routing_headers(response, door.ignored) | limits | door.limits(limits, exchange.clock.time())
        await exchange.json(door.whole(response), headers)


async def model_at(service: Service, exchange: Exchange, door: Door) -> Model:
    """The model of an address, by any name that a request may give it. Raises ``ModelNotFound``."""
    known = known_to(service, await door.caller(service, exchange, "models:read"))
    id = known.id_of(exchange.parameter, door.vendor, door.names.listed_at)
    for model in known.models():
        if model.id == known.names.get(id):
            return model
    raise ModelNotFound(f"there is no model {shown(id)}; {door.names.listed_at} lists those that can be called")


def framed(name: str, data: bytes) -> bytes:
    """An event of a stream."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


class CallFrames(ABC):
    """The events of one call in a vendor's format (``sse.Frames``). Nothing that was sent can be taken back, so a fault
    behind the first words is an error."""

    def __init__(self, exchange: Exchange, prepared: Prepared, door: Door) -> None:
        self.headers: dict[str, str] = {}
        self.stream = prepared.stream()
        self.exchange = exchange
        self.trace_id = self.model = ""
        self._prepared = prepared
        self._door = door
        self.stream.expect_text()

    async def __aiter__(self) -> AsyncGenerator[Frame, None]:
        """Give them in order. Raises what the call ends in, if that is no answer."""
        ignored = self._door.ignored
        async with self.stream as stream:
            async for event in stream:
                match event:
                    case RouteStarted(data=data):
                        self.exchange.trace_id = self.trace_id = data.trace_id
                        self.model = data.routing.selected_model
                        limits = self._door.limits(stream.headers, self.exchange.clock.time())
                        self.headers = routing_headers(data, ignored) | limits
                    case RouteFallback(data=data):
                        self.model = self.headers["X-Routewright-Model"] = data.to_model
                        self.headers.pop("X-Routewright-Ignored", None)
                        self.headers |= ignored.headers(data.to_model)
                    case RouteCompleted(data=response):
                        self.model = response.routing.selected_model
                    case StreamError():
                        stream.raise_failure()
                events = b"".join(self.events(event))
                if events:
                    yield Frame(events)

    def last_words(self, error: Exception) -> bytes:
        """The last event of a stream that has begun and failed."""
        said = told(error, self.exchange.request_id)
        return self._failed(self._door.in_words(said, self.exchange.clock.time()))

    @abstractmethod
    def events(self, event: RouteEvent) -> Iterator[bytes]:
        """The frames that tell a client of an event."""

    @abstractmethod
    def _failed(self, error: RouterError) -> bytes:
        """The frames that tell a client of an error."""


class Block(Struct, eq=False):
    """A text, a tool call, or what was thought: a part of an answer, which comes in pieces."""

    kind: Literal["text", "call", "thought"]
    index: int | None = None
    """Its place in the answer; None: it has not begun."""
    pieces: list[str] = field(default_factory=list)
    """What was told of its words, or of the arguments of a call."""
    id: str = ""
    """Of a call; so are the next two."""
    name: str = ""
    waiting: str = ""
    """Arguments that came before the name, or are to be told."""
    thought: Any = None
    """What was thought, which comes at once."""

    @property
    def text(self) -> str:
        """What was told so far."""
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        """Nothing more can belong to it once another begins."""
        return self.kind != "call" or (bool(self.pieces) and input_of(self.text) is not None)


def input_of(arguments: str) -> dict[str, Any] | None:
    """The arguments of a call; None: they are no JSON object."""
    try:
        return _decode_object(arguments.strip() or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


class BlockFrames(CallFrames):
    """The events of an answer in blocks, one after the other. A call whose arguments are not whole when the next block
    begins stays open: some vendors send several at once."""

    def __init__(self, exchange: Exchange, prepared: Prepared, door: Door) -> None:
        super().__init__(exchange, prepared, door)
        self.blocks: list[Block] = []
        """Those that have begun."""
        self._open: list[Block] = []
        self._calls: dict[int, Block] = {}
        """By the index that their model gave them."""

    def events(self, event: RouteEvent) -> Iterator[bytes]:
        """The frames that tell a client of an event."""
        match event:
            case OutputDelta(data=data) if data.text:
                if not self._open or self._open[-1].kind != "text":
                    yield from self._begin(Block("text"))
                yield self._grown(self._open[-1], data.text)
            case ReasoningDelta(data=data):
                for thought in self._thoughts(Reasoning(data.provider, data.items, data.text or None)):
                    yield from self._begin(Block("thought", thought=thought))
                    yield from self._end(self._open[-1:])
            case ToolCallDelta(data=data):
                yield from self._call(data)
            case RouteCompleted(data=response):
                if not self.blocks:
                    yield from self._empty()
                yield from self._end(self._open)
                yield from self._completed(response)

    def _begin(self, block: Block) -> Iterator[bytes]:
        if not self.blocks:
            yield from self._begun()
        yield from self._end([each for each in self._open if each.is_whole])
        block.index = len(self.blocks)
        self.blocks.append(block)
        self._open.append(block)
        yield from self._opened(block)

    def _call(self, piece: ToolCallData) -> Iterator[bytes]:
        call = self._calls.setdefault(piece.index, Block("call"))
        call.id, call.name = call.id or piece.call_id, call.name or piece.name
        call.waiting += piece.arguments
        if call.index is None and call.name:
            yield from self._begin(call)
        if call.waiting and call in self._open:
            told, call.waiting = call.waiting, ""
            yield self._grown(call, told)

    def _grown(self, block: Block, piece: str) -> bytes:
        block.pieces.append(piece)
        return self._grew(block, piece)

    def _end(self, blocks: list[Block]) -> Iterator[bytes]:
        self._open = [each for each in self._open if each not in blocks]
        for block in blocks:
            yield from self._ended(block)

    def _thoughts(self, reasoning: Reasoning) -> Iterable[Any]:
        return (reasoning,)

    @abstractmethod
    def _begun(self) -> Iterator[bytes]:
        """The answer begins."""

    @abstractmethod
    def _opened(self, block: Block) -> Iterator[bytes]:
        """A block begins: of thought the whole of it."""

    @abstractmethod
    def _grew(self, block: Block, piece: str) -> bytes:
        """A piece more of a text, or of a call's arguments."""

    @abstractmethod
    def _ended(self, block: Block) -> Iterator[bytes]:
        """A block ends."""

    def _empty(self) -> Iterator[bytes]:
        """An answer that holds nothing begins."""
        return self._begun()

    @abstractmethod
    def _completed(self, response: RouteResponse) -> Iterator[bytes]:
        """The answer ends."""
