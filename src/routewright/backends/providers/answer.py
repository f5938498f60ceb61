"""Decoding of answers into chunks, complete or in server-sent events, shared by all protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVarTuple

import anyio.lowlevel
import msgspec

from routewright._core.money import MOST_TOKENS
from routewright._core.sse import SseEvent, SseParser
from routewright.errors import ProviderFault
from routewright.protocols import Response
from routewright.wire import Chunk, Delta, Finish, ToolDelta, Usage

from .faults import CUT, Redact, conceal, fault_in_answer, fault_of_document

Ts = TypeVarTuple("Ts")
EVENTS = "text/event-stream"
MAX_ANSWER_BYTES = 32 << 20
SLICE_BYTES = 4096
"""Bytes of a stream without an event after which other tasks get a turn."""


class Reader(ABC):
    """Decodes one answer in a vendor's protocol into ``chunks``. Raises ``ProviderFault`` for an invalid or incomplete
    answer, once the chunks before it, above all its usage, are in ``chunks``.
    """

    # terms of the protocol, for errors
    holder = "choices"
    content = "text"
    ending = "finish reason"

    def __init__(self, provider: str, tier: str = "") -> None:
        """``tier``: the service tier, if known."""
        self.chunks: list[Chunk] = []
        """What was decoded and not taken yet."""
        self._provider = provider
        self._tier = tier
        self._tools = ToolCalls()
        self._started = False
        """True once a part with an answer has arrived, even an empty one."""
        self._spoke = False
        self._reason: str | None = None

    @abstractmethod
    def take(self, document: bytes | str) -> None:
        """Decode a document, usage last."""

    def _take(self, usage: Usage | None, read: Callable[[*Ts], None], *document: *Ts) -> None:
        """Add what ``read`` adds of a document, then its usage, also before a fault; if there is neither, an empty
        ``Delta`` as a sign of life."""
        before = len(self.chunks)
        try:
            read(*document)
        finally:
            if usage is not None:
                self.chunks.append(usage)
        if len(self.chunks) == before:
            self.chunks.append(Delta(""))

    def add(self, event: SseEvent) -> None:
        """Decode one event."""
        if event.event == "error":
            raise fault_in_answer(self._provider, event.data)
        self.take(event.data)

    def read(self, document: bytes) -> None:
        """Decode a complete answer, ``Finish`` last."""
        self.take(document)
        if not self._started:
            raise fault_of_document(self._provider, f"no {self.holder}", document)
        self.end()

    def end(self) -> None:
        """Add the end of the answer, after which nothing may be read. Raises if it is empty or incomplete."""
        if self._reason is None:
            raise ProviderFault("truncated", f"{self._provider} ended the answer without a {self.ending}", status=200)
        if self._tools and self._reason == "stop":
            self._reason = "tool_calls"  # some hosts report "stop" if a tool was required
        if not self._spoke and not self._tools and self._reason not in CUT:
            raise fault_of_document(self._provider, f"neither {self.content} nor tool calls")
        self.chunks.append(Finish(self._reason))


async def decode_document(reader: Reader, response: Response, redact: Redact) -> AsyncGenerator[Chunk, None]:
    """The chunks of an answer in one document. An invalid one only gives its usage before the fault."""
    try:
        for chunk in decode_body(reader, await response.read(MAX_ANSWER_BYTES)):
            yield chunk
    except ProviderFault as fault:
        fault.answered = True
        conceal(fault, redact)
        raise


async def decode_stream(reader: Reader, response: Response, redact: Redact) -> AsyncGenerator[Chunk, None]:
    """The chunks of an answer in server-sent events, up to a fault."""
    # The answer is over with `Finish`, but its body is not: the last chunk of HTTP follows. A reader that stops there
    # leaves its connection inside a body, so it can only be closed, and the next call pays for a TLS handshake. So the
    # rest is read, after the caller has its `Finish`; whatever breaks there, the answer is complete, so no fault of it
    # counts. A stream that ends without `Finish` is the other case: many hosts lack an end mark after the finish
    # reason, so `_end` decides by what was read whether it is whole or truncated (contract 4: never a truncated answer
    # reported as complete). See test_a_stream_is_drained_so_that_its_connection_is_reused,
    # test_a_stream_may_lack_its_end_mark_after_the_finish_reason and
    # test_stream_that_ends_before_its_reason_is_truncated.
    parser = SseParser()
    body = response.chunks()
    try:
        async for data in body:
            for chunk in _read(data, parser, reader):
                if chunk is None:
                    await anyio.lowlevel.checkpoint()
                    continue
                yield chunk
                if isinstance(chunk, Finish):
                    with suppress(ProviderFault):  # read the rest, so that the connection can be reused
                        async for _ in body:
                            pass
                    return
        _end(parser, reader)
        yield reader.chunks.pop()
    except ProviderFault as fault:
        fault.answered = True
        conceal(fault, redact)
        raise
    finally:
        if hasattr(body, "aclose"):  # a generator of a custom transport
            await body.aclose()


def _read(data: bytes, parser: SseParser, reader: Reader) -> Iterator[Chunk | None]:
    """Give the chunks of a piece of the body; None after a slice without an event."""
    for start in range(0, len(data), SLICE_BYTES):
        has_event = False
        for event in parser.feed(data[start : start + SLICE_BYTES]):
            has_event = True
            try:
                reader.add(event)
            finally:  # also before a fault
                yield from reader.chunks
                reader.chunks.clear()
        if not has_event:
            yield None


def _end(parser: SseParser, reader: Reader) -> None:
    """Add the end of a stream. An error outside all events becomes the fault."""
    try:
        reader.end()
        return
    except ProviderFault as error:
        fault = error
    if '"error"' in (stray := parser.stray()):  # outside the handler: a fault in its context would not be redacted
        reader.add(SseEvent(stray, "error"))
    raise fault


def decode_body(reader: Reader, body: bytes) -> Iterator[Chunk]:
    """Give the chunks of a document; of an invalid one only its usage, before the fault."""
    try:
        reader.read(body)
    except ProviderFault:
        yield from (chunk for chunk in reader.chunks if isinstance(chunk, Usage))
        raise
    yield from reader.chunks


def count_of(value: object) -> int | None:
    """A reported token count, or None if it is invalid."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


class Function(msgspec.Struct):
    """The function of a piece."""

    name: str | None = None
    arguments: Any = None


class Piece(msgspec.Struct):
    """A piece of a tool call, or all of it, as received."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class ToolCalls:
    """Turns pieces of tool calls into ``ToolDelta``, with any numbering of the host.

    Each call gets a unique index and id. The id is in the first delta, or in a later one if the host sends it later.
    """

    def __init__(self) -> None:
        self._latest: dict[int, _Begun] = {}
        """By the host's index."""
        self._last = 0
        """The host's index of the latest call."""
        self._indices: set[int] = set()
        self._free = 0
        """The next unused index."""
        self._ids: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._latest)

    def add(self, piece: Piece) -> ToolDelta:
        """Return what a piece adds to its call."""
        function = piece.function or Function()
        at = piece.index
        if at is None:  # without indices, an id or a name begins a call
            at = self._free if piece.id or function.name or not self._latest else self._last
        call = self._latest.get(at)
        id = ""
        # some hosts use index 0 for all calls; others repeat the id, but not the name
        if call is None or (function.name and piece.id and call.id and piece.id != call.id):
            index = self._free if at in self._indices else at
            self._indices.add(index)
            self._free = max(self._free, index + 1)
            self._last = at
            call = self._latest[at] = _Begun(index)
            id = self._own(piece.id or f"call_{index}", call)
        elif piece.id and call.id is None:
            id = self._own(piece.id, call)
        call.id = call.id or piece.id or None
        arguments = function.arguments
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else msgspec.json.encode(arguments).decode()
        return ToolDelta(call.index, arguments, id, function.name or "")

    def _own(self, id: str, call: _Begun) -> str:
        """The id, made unique, since results refer to it."""
        while id in self._ids:
            id = f"{id}_{call.index}"
        self._ids.add(id)
        return id


class _Begun(msgspec.Struct):
    index: int
    id: str | None = None
    """The host's id."""
