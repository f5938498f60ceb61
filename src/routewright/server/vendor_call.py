"""Shared by the APIs for other vendors' clients (contract 14): reads the body, sends the answer or the stream.
Differences between vendors are in their own modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from routewright import wire
from routewright.catalogue import AUTO
from routewright.errors import RateLimited, RouterError
from routewright.router import Prepared
from routewright.wire.json_scan import tree_of
from routewright.wire.json_stream import JsonObjectStream
from routewright.wire.problems import shown

from .client_tools import Origin
from .endpoints import Service
from .errors import to_client_error
from .exchange import Exchange
from .fields import Fields, Ignored
from .sse import Frame
from .vendor_requests import (
    FIELD,
    KEY_HINT,
    NO_MODELS,
    OPTIONS,
    Directory,
    ModelNotFound,
    Words,
    add_options,
    directory_of,
    places_of,
    read_options,
    routing_headers,
)

MAX_REJECTED = 20
"""Rejected models in one error."""
_UNCALLABLE = (wire.Reason.DISABLED, wire.Reason.DEPRECATED, wire.Reason.PROVIDER_UNAVAILABLE)


class VendorCall(ABC):
    """One call. The attributes are set once ``decode`` has read the body."""

    vendor: ClassVar[str]
    names: ClassVar[Words]
    """Names of a route request's fields in this API."""
    refusals: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Fields that are refused, with the problem and the hint."""
    no_effect: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Values that change nothing: fields with these are accepted silently."""

    def __init__(self, directory: Directory = NO_MODELS) -> None:
        self.directory = directory
        """Models that the caller may name."""
        self.model = AUTO
        """The requested model, under its id if the name is unambiguous."""
        self.ignored = Ignored()
        self.words: Words | None = None
        """Names of fields in errors. None: there is no route request yet, and errors use the client's names anyway."""
        self.places: dict[str, str] = {}
        """Names of fields that this body may write in several places (``Words.places``)."""
        self.origins: dict[str, Origin] = {}
        """The client's tools by the names of their functions, if they differ."""
        self.turns: list[str] | None = None
        """Path of each message, if it differs from the route request's (``Words.turns``)."""

    def decode(self, body: bytes) -> wire.RouteRequest:
        """Read a body. Raises ``InvalidJson``, ``ValidationFailed`` and ``ModelNotFound``."""
        fields = Fields(tree_of(body), "", self.ignored)
        for name in ("idempotency_key", *OPTIONS):
            if fields.peek(name) is not None:  # an ignored budget would be overspent
                hint = f'send it as {FIELD}.{name}: {{"{FIELD}": {{"{name}": ...}}}}' if name in OPTIONS else KEY_HINT
                raise fields.wrong(name, "is not a field of this interface", hint)
        fields.forget(*(name for name, values in self.no_effect.items() if fields.peek(name) in values))
        for name, (problem, hint) in self.refusals.items():
            if fields.peek(name) is not None:
                raise fields.wrong(name, problem, hint)
        hint = f"send an id from {self.names.listed_at}, 'auto', 'auto:<goal>' or 'policy:<id>'"
        self.model = self.directory.id_of(fields.need("model", str, hint), self.vendor, self.names.listed_at)
        tree = fields.get(FIELD, dict)
        request = self.read(fields)
        fields.end()
        options = read_options(tree, self.names.having(self.places))
        if options.metadata:
            if not request.metadata:
                self.places["metadata"] = f"{FIELD}.metadata"
            request = replace(request, metadata=(request.metadata or {}) | options.metadata)
        result = add_options(request, self.model, self.vendor, replace(options, metadata=None), self.directory.names)
        self.words = self.names.having(self.places | places_of(self.model, options.fallback), self.turns)
        return result

    @abstractmethod
    def read(self, fields: Fields) -> wire.RouteRequest:
        """Make a request from the rest of the body, without the fields about routing."""

    @abstractmethod
    def answer_of(self, response: wire.RouteResponse) -> object:
        """The complete answer in the vendor's format."""

    async def caller(self, service: Service, exchange: Exchange, scope: wire.Scope = "route") -> wire.Caller:
        """Authenticate the caller."""
        return await service.auth.caller(exchange, scope)

    def limits(self, limit_headers: Mapping[str, str], now: float) -> dict[str, str]:
        """Additional headers about limits, as the vendor's clients read them."""
        return {}

    def in_words(self, error: RouterError, now: float) -> RouterError:
        """The error with the client's names of fields. ``X-Should-Retry`` keeps the vendors' SDKs from retrying every
        409 and 5xx. At most 20 rejected models are listed, callable ones first."""
        translated = error if self.words is None else self.words.error(error)
        candidates = translated.detail.get("rejected_candidates", ())
        if len(candidates) > MAX_REJECTED:
            callable_first = sorted(candidates, key=lambda candidate: candidate["reason"] in _UNCALLABLE)
            translated.detail = translated.detail | {"rejected_candidates": callable_first[:MAX_REJECTED]}
        translated.headers = {**error.headers, "X-Should-Retry": "true" if error.retryable else "false"}
        if error.trace_id is not None:
            translated.headers["X-Routewright-Trace-Id"] = error.trace_id
        if isinstance(error, RateLimited) and error.detail.get("limit_of") != "concurrency":
            translated.headers |= self.limits(error.headers, now)
        return translated


@asynccontextmanager
async def prepare(service: Service, exchange: Exchange, vendor_call: VendorCall, path: str) -> AsyncIterator[Prepared]:
    """Read the call. Raises errors with the client's names of fields."""
    try:
        caller = await vendor_call.caller(service, exchange)
        vendor_call.directory = directory_of(service, caller)
        yield await service.prepare(exchange, caller, vendor_call.decode, path)
    except RouterError as error:
        raise vendor_call.in_words(error, exchange.clock.time()) from None


async def answer(
    service: Service, exchange: Exchange, vendor_call: VendorCall, path: str, frames: type[CallFrames]
) -> None:
    """Answer a call, complete or as a stream."""
    async with prepare(service, exchange, vendor_call, path) as prepared:
        if prepared.request.stream:
            await service.send(exchange, prepared, frames(exchange, prepared, vendor_call))
            return
        response, limits = await service.answer(exchange, prepared)
        headers = routing_headers(response, vendor_call.ignored) | limits
        headers |= vendor_call.limits(limits, exchange.clock.time())
        await exchange.json(vendor_call.answer_of(response), headers)


async def model_at(service: Service, exchange: Exchange, vendor_call: VendorCall) -> wire.Model:
    """The model of a path, by any of its names. Raises ``ModelNotFound``."""
    directory = directory_of(service, await vendor_call.caller(service, exchange, "models:read"))
    id = directory.id_of(exchange.parameter, vendor_call.vendor, vendor_call.names.listed_at)
    for model in directory.models():
        if model.id == directory.names.get(id):
            return model
    raise ModelNotFound(f"there is no model {shown(id)}; {vendor_call.names.listed_at} lists those that can be called")


def reason_of(response: wire.RouteResponse, words: Mapping[str | None, str]) -> str:
    """The finish reason in a vendor's words, of which that of None stands for all others. Clients expect that of tool
    calls if there are any, whatever the model's host reports."""
    reason = response.finish_reason if response.finish_reason in words else None
    return words["tool_calls" if reason is None and response.tool_calls else reason]


def encode_event(name: str, data: bytes) -> bytes:
    """An event of a stream."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


class Block(Struct, eq=False):
    """A text, a tool call or a thought in an answer, which may arrive in pieces."""

    kind: Literal["text", "call", "thought"]
    index: int | None = None
    """Place in the answer. None: not begun."""
    pieces: list[str] = field(default_factory=list)
    """Sent text, or sent arguments of a call."""
    id: str = ""
    """``id``, ``name``, ``pending``, ``arguments`` and ``origin`` are those of a call."""
    name: str = ""
    pending: str = ""
    """Arguments that are not sent yet, since the name is missing."""
    arguments: JsonObjectStream = field(default_factory=JsonObjectStream)
    """All that the model wrote."""
    origin: Origin = Origin("function", "")
    """The client's tool."""
    number: int = 0
    """Number of blocks of its kind before it."""
    thought: Any = None
    """A thought arrives complete."""

    @property
    def text(self) -> str:
        """What was sent so far."""
        return "".join(self.pieces)


class CallFrames(ABC):
    """The events of one call in a vendor's format (``sse.Frames``), an answer in consecutive blocks. A call with
    incomplete arguments stays open when the next block begins, since some vendors interleave calls. These formats
    cannot restart an answer, so a fault after the first text ends the stream."""

    def __init__(self, exchange: Exchange, prepared: Prepared, vendor_call: VendorCall) -> None:
        self.headers: dict[str, str] = {}
        self.stream = prepared.stream()
        self.exchange = exchange
        self.trace_id = self.model = ""
        self._prepared = prepared
        self._vendor_call = vendor_call
        self.stream.expect_text()
        self.blocks: list[Block] = []
        """Blocks that have begun."""
        self._open_blocks: list[Block] = []
        self._calls: dict[int, Block] = {}
        """By the model's own index."""

    async def __aiter__(self) -> AsyncGenerator[Frame, None]:
        """Give them in order. Raises the error in which the call ends."""
        # The vendors' events have no "start again": once a word is sent, another model's answer can only be glued to
        # it. `expect_text` therefore makes a later fault an error, never a second answer (contract 4), while before the
        # first word a fallback must be invisible. So nothing is sent that names a model until there is content: the
        # response's headers are replaced at each fallback, with the fields that the new model's vendor ignores, and an
        # event without frames yields nothing, which keeps the status open. A failure is raised and not framed, so that
        # one before the first word still has its own status.
        # test_a_fallback_before_content_is_invisible, test_a_fault_after_content_ends_the_stream_with_an_error
        ignored = self._vendor_call.ignored
        async with self.stream as stream:
            async for event in stream:
                match event:
                    case wire.RouteStarted(data=data):
                        self.trace_id = data.trace_id
                        self.model = data.routing.selected_model
                        limit_headers = self._vendor_call.limits(stream.headers, self.exchange.clock.time())
                        self.headers = routing_headers(data, ignored) | limit_headers
                    case wire.RouteFallback(data=data):
                        self.model = self.headers["X-Routewright-Model"] = data.to_model
                        self.headers.pop("X-Routewright-Ignored", None)
                        self.headers |= ignored.headers(data.to_model)
                    case wire.RouteCompleted(data=response):
                        self.model = response.routing.selected_model
                    case wire.StreamError():
                        stream.raise_failure()
                events = b"".join(self.events(event))
                if events:
                    yield Frame(events)

    def error_frame(self, error: Exception) -> bytes:
        """The last event of a failed stream."""
        client_error = to_client_error(error, self.exchange.request_id)
        return self._encode_error(self._vendor_call.in_words(client_error, self.exchange.clock.time()))

    @abstractmethod
    def _encode_error(self, error: RouterError) -> bytes:
        """The frames of an error."""

    def events(self, event: wire.RouteEvent) -> Iterator[bytes]:
        """The frames of an event."""
        # Anthropic's and OpenAI's blocks follow each other, and their clients append each piece to the block of its
        # index. Other vendors write several calls in turn, and send a call's name after its first arguments. Closing a
        # block as soon as another begins would cut such arguments off; holding every call back until the end would
        # stall clients that show them. So a block of text or thought closes when another begins, a call only once its
        # arguments are a JSON object, and what comes before a call's name waits for it.
        # test_interleaved_calls_keep_their_own_arguments, test_a_call_begins_once_its_name_is_known,
        # test_no_text_is_lost_and_every_block_is_closed
        match event:
            case wire.OutputDelta(data=data) if data.text:
                if not self._open_blocks or self._open_blocks[-1].kind != "text":
                    yield from self._open(Block("text"))
                yield self._append(self._open_blocks[-1], data.text)
            case wire.ReasoningDelta(data=data):
                for thought in self._thoughts(wire.Reasoning(data.provider, data.items, data.text or None)):
                    yield from self._open(Block("thought", thought=thought))
                    yield from self._close(self._open_blocks[-1:])
            case wire.ToolCallDelta(data=data):
                call = self._calls.setdefault(data.index, Block("call"))
                call.id = call.id or data.call_id
                call.name = call.name or data.name
                call.pending += call.arguments.add(data.arguments)
                if call.index is None and call.name:
                    yield from self._open(call)
                if call.pending and call in self._open_blocks:
                    arguments = call.pending
                    call.pending = ""
                    yield self._append(call, arguments)
            case wire.RouteCompleted(data=response):
                if not self.blocks:
                    yield from self._begin_empty()
                yield from self._close(self._open_blocks)
                yield from self._end_answer(response)

    def _open(self, block: Block) -> Iterator[bytes]:
        if not self.blocks:
            yield from self._begin_answer()
        yield from self._close(
            [other for other in self._open_blocks if other.kind != "call" or other.arguments.is_whole]
        )
        block.index = len(self.blocks)
        block.number = sum(other.kind == block.kind for other in self.blocks)
        block.origin = self._vendor_call.origins.get(block.name) or Origin("function", block.name)
        self.blocks.append(block)
        self._open_blocks.append(block)
        yield from self._begin_block(block)

    def _append(self, block: Block, piece: str) -> bytes:
        block.pieces.append(piece)
        return self._extend_block(block, piece)

    def _close(self, blocks: list[Block]) -> Iterator[bytes]:
        self._open_blocks = [open_block for open_block in self._open_blocks if open_block not in blocks]
        for block in blocks:
            rest = block.arguments.finish() if block.kind == "call" else ""
            if rest:
                yield self._append(block, rest)
            yield from self._end_block(block)

    def _thoughts(self, reasoning: wire.Reasoning) -> Iterable[object]:
        return (reasoning,)

    def _begin_answer(self) -> Iterator[bytes]:
        """Begin the answer."""
        return iter(())

    @abstractmethod
    def _begin_block(self, block: Block) -> Iterator[bytes]:
        """Begin a block. A thought is sent completely."""

    @abstractmethod
    def _extend_block(self, block: Block, piece: str) -> bytes:
        """Append to a text, or to a call's arguments."""

    @abstractmethod
    def _end_block(self, block: Block) -> Iterator[bytes]:
        """End a block."""

    def _begin_empty(self) -> Iterator[bytes]:
        """Begin an empty answer."""
        return self._begin_answer()

    @abstractmethod
    def _end_answer(self, response: wire.RouteResponse) -> Iterator[bytes]:
        """End the answer."""
