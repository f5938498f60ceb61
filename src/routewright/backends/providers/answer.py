"""An HTTP answer as chunks, whole or in server-sent events: the parts that all vendors' protocols share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import anyio.lowlevel
import msgspec

from routewright._core.money import MOST_TOKENS
from routewright._core.sse import SseEvent, SseParser
from routewright.errors import ProviderFault
from routewright.protocols import Response
from routewright.wire import Chunk, Delta, Finish, ToolDelta, Usage

from .faults import CUT, Redact, conceal, fault_in_answer, malformed

EVENTS = "text/event-stream"
MAX_ANSWER_BYTES = 32 << 20
SLICE_BYTES = 4096
"""How much of a stream is read before other tasks get a turn, if it holds no event."""


class Reader(ABC):
    """Turns one answer into chunks, in a vendor's protocol. Raises ``ProviderFault`` for a broken or cut-off answer.

    What came before a fault, its usage above all, is given before the fault is raised.
    """

    # what an answer has, in the words of the protocol
    holder = "choices"
    content = "text"
    ending = "finish reason"

    def __init__(self, provider: str, tier: str = "") -> None:
        """``tier``: the service tier, if it is known."""
        self._provider = provider
        self._tier = tier
        self._tools = ToolCalls()
        self._started = False
        """It had a part that holds an answer, if an empty one."""
        self._spoke = False
        self._reason: str | None = None

    @abstractmethod
    def take(self, document: bytes | str) -> Iterator[Chunk]:
        """Give the chunks of a document, usage last."""

    def add(self, event: SseEvent) -> Iterator[Chunk]:
        """Give the chunks of one event of a stream; an empty ``Delta`` as a sign of life if it has none. A ``Finish``
        is the end: the caller asks for nothing after it."""
        if event.event == "error":
            raise fault_in_answer(self._provider, event.data)
        yield from self.take(event.data)

    def read(self, document: bytes) -> Iterator[Chunk]:
        """Give the chunks of a whole answer, ``Finish`` last."""
        yield from self.take(document)
        if not self._started:
            raise malformed(self._provider, f"no {self.holder}", document)
        yield self.end()

    def end(self) -> Finish:
        """Return the end of a stream that is over; raises if the answer is empty or not whole."""
        if self._reason is None:
            raise ProviderFault("truncated", f"{self._provider} ended the answer without a {self.ending}", status=200)
        if self._tools and self._reason == "stop":
            self._reason = "tool_calls"  # a host's word where one tool was demanded
        if not self._spoke and not self._tools and self._reason not in CUT:
            raise malformed(self._provider, f"neither {self.content} nor tool calls")
        return Finish(self._reason)


async def whole(reader: Reader, response: Response, redact: Redact) -> AsyncGenerator[Chunk, None]:
    """The chunks of an answer in one document. A broken one gives its usage alone before the fault is raised."""
    try:
        for chunk in read_whole(reader, await response.read(MAX_ANSWER_BYTES)):
            yield chunk
    except ProviderFault as fault:
        fault.answered = True
        conceal(fault, redact)
        raise


async def streamed(reader: Reader, response: Response, redact: Redact) -> AsyncGenerator[Chunk, None]:
    """The chunks of an answer in server-sent events. What came before a fault is given before it is raised."""
    parser, body = SseParser(), response.chunks()
    try:
        async for data in body:
            for chunk in _read(data, parser, reader):
                if chunk is None:
                    await anyio.lowlevel.checkpoint()
                    continue
                yield chunk
                if isinstance(chunk, Finish):
                    await _drain(body)
                    return
        yield _end(parser, reader)
    except ProviderFault as fault:
        fault.answered = True
        conceal(fault, redact)
        raise
    finally:
        if hasattr(body, "aclose"):  # a generator, of another transport than ours
            await body.aclose()


def _read(data: bytes, parser: SseParser, reader: Reader) -> Iterator[Chunk | None]:
    """Give the chunks of a piece of the body, as they are asked for; None after a slice without an event."""
    for at in range(0, len(data), SLICE_BYTES):
        said = False
        for event in parser.feed(data[at : at + SLICE_BYTES]):
            said = True
            yield from reader.add(event)
        if not said:
            yield None


async def _drain(body: AsyncIterator[bytes]) -> None:
    """Read on to the end of the body: only then can its connection be used again."""
    with suppress(ProviderFault):  # the answer was complete
        async for _ in body:
            pass


def _end(parser: SseParser, reader: Reader) -> Finish:
    """The end of a stream. If it broke off with an error outside of all events, that error is the fault."""
    try:
        return reader.end()
    except ProviderFault as raised:
        fault = raised
    stray = parser.stray()
    if '"error"' in stray:
        for _ in reader.add(SseEvent(stray, "error")):
            pass  # it raises
    raise fault


def read_whole(reader: Reader, body: bytes) -> Iterator[Chunk]:
    """Give the chunks of a document; of a broken one its usage alone, before the fault is raised."""
    chunks, fault = list[Chunk](), None
    try:
        chunks.extend(reader.read(body))
    except ProviderFault as raised:
        fault = raised
        chunks = [chunk for chunk in chunks if isinstance(chunk, Usage)]
    yield from chunks
    if fault is not None:
        raise fault


def usage_last(chunks: Iterator[Chunk], usage: Usage | None) -> Iterator[Chunk]:
    """Give the chunks of a document, then its usage; an empty ``Delta`` as a sign of life if there is neither. A fault
    is raised after the usage that came with it."""
    said, fault = False, None
    try:
        for chunk in chunks:
            said = True
            yield chunk
    except ProviderFault as raised:
        fault = raised
    if usage is not None:
        yield usage
    elif not said and fault is None:
        yield Delta("")
    if fault is not None:
        raise fault


def count_of(value: Any) -> int | None:
    """A reported token count; None unless it is one that a call can come to."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


class Function(msgspec.Struct):
    """The function of a piece."""

    name: str | None = None
    arguments: Any = None


class Piece(msgspec.Struct):
    """A piece of a tool call, or the whole of it, as it was sent."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class ToolCalls:
    """Turns the pieces of one answer's tool calls into ``ToolDelta``, however their host numbers them.

    Each call gets an index and an id of its own. The id is in the first delta, or in a later one if the host names it
    only then.
    """

    def __init__(self) -> None:
        self._latest: dict[int, _Begun] = {}
        """By the index that the host gives."""
        self._last = 0
        """That index of the call that began last."""
        self._indices: set[int] = set()
        self._free = 0
        """Above all indices that are taken."""
        self._ids: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._latest)

    def add(self, piece: Piece) -> ToolDelta:
        """Return what a piece adds to which call."""
        function = piece.function or Function()
        at = piece.index
        if at is None:  # from a host that sends none, an id or a name begins a call
            at = self._free if piece.id or function.name or not self._latest else self._last
        call, id = self._latest.get(at), ""
        # some hosts give all calls the index 0; others give each piece an id, but a name only to the first
        if call is None or (function.name and piece.id and call.id and piece.id != call.id):
            call = self._begin(at)
            id = self._own(piece.id or f"call_{call.index}", call)
        elif piece.id and call.id is None:
            id = self._own(piece.id, call)
        call.id = call.id or piece.id or None
        arguments = function.arguments
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else msgspec.json.encode(arguments).decode()
        return ToolDelta(call.index, arguments, id, function.name or "")

    def _begin(self, at: int) -> _Begun:
        index = self._free if at in self._indices else at
        self._indices.add(index)
        self._free = max(self._free, index + 1)
        self._last = at
        call = self._latest[at] = _Begun(index)
        return call

    def _own(self, id: str, call: _Begun) -> str:
        """The id, changed if another call has it: results are told apart by it."""
        while id in self._ids:
            id = f"{id}_{call.index}"
        self._ids.add(id)
        return id


class _Begun:
    __slots__ = ("id", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.id: str | None = None
        """As the host says it."""
