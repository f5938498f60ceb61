"""Decoding of answers into chunks, complete or in server-sent events, shared by all protocols."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn, TypeVar, TypeVarTuple

import anyio.lowlevel
import msgspec
from msgspec.structs import replace

from routewright._core.sse import SseEvent, SseParser
from routewright.errors import ProviderFault
from routewright.protocols import Response
from routewright.wire import Chunk, Delta, Finish, JsonObject, ToolDelta, Usage
from routewright.wire.json_scan import object_in

from .faults import CUT, Redact, conceal, fault_in_answer, fault_of_document, reason_of, text_of
from .halves import Halves, encode
from .usage import count_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
EVENTS = "text/event-stream"
DONE = "[DONE]"
"""The end mark of some protocols."""
_NO_REASONS = ("null", "none", "finish_reason_unspecified")
"""Finish reasons, in lower case, that some hosts send with pieces before the last."""
_NO_DATA = ("", "null")
"""Data of events by which some gateways only keep the connection alive."""
MAX_ANSWER_BYTES = 32 << 20
MOST_CHECKS = 100
_EMPTY = "{}"
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
        self.redact: Redact = str
        """Masks credentials in a document, before it is decoded."""
        self.chunks: list[Chunk] = []
        """What was decoded and not taken yet."""
        self._provider = provider
        self._tier = tier
        self._tools = ToolCalls()
        self._started = False
        """True once a part with an answer has arrived, even an empty one."""
        self._pieces = 0
        """Pieces of content: of texts and tool calls."""
        self._blank = self._thought = False
        """Whether an empty text has come, which is an answer, but beside reasoning only a filler; and reasoning."""
        self._reason: str | None = None
        self._pieces_before = 0
        """Pieces of content before the finish reason."""
        self._halves: Halves | None = None
        """Set once a document was not valid Unicode."""

    @abstractmethod
    def take(self, document: bytes | str) -> None:
        """Decode a document, usage last."""

    def _decode(self, decoder: msgspec.json.Decoder[T], document: bytes | str, expectation: str) -> T:
        """Decode a document. Raises a fault: broken JSON, or ``expectation``."""
        # Hosts that cut an answer by UTF-16 units or by bytes put half a character at the end of one document and the
        # rest at the start of the next, also in fields that nobody reads. msgspec refuses such documents, so the answer
        # would be a fault although it is whole. So what msgspec refuses is decoded by the standard library, which keeps
        # halves, and from then on they are joined (``Halves``). Sound answers never come here. See
        # test_halves_of_a_character_are_joined.
        try:
            return decoder.decode(document)
        except (ValueError, RecursionError):
            pass  # its message may contain the text
        with suppress(ValueError, RecursionError):
            text = document if isinstance(document, str) else document.decode("utf-8", "surrogateescape")
            decoded: T = msgspec.convert(json.loads(text), decoder.type)
            self._halves = self._halves or Halves()
            return decoded
        raise fault_of_document(self._provider, f"broken JSON, or {expectation}", document)

    def _take(self, usage: Usage | None, read: Callable[[*Ts], None], *document: *Ts) -> None:
        """Add what ``read`` adds of a document, then its usage with the tier, also before a fault; if there is neither,
        an empty ``Delta`` as a sign of life."""
        before = len(self.chunks)
        try:
            read(*document)
        finally:
            if usage is not None:
                self.chunks.append(replace(usage, tier=self._tier) if self._tier else usage)
        if len(self.chunks) == before:
            self.chunks.append(Delta(""))

    def drain(self) -> list[Chunk]:
        """Take the chunks, with the halves of characters joined."""
        chunks = self.chunks
        self.chunks = []
        return chunks if self._halves is None else self._halves.join(chunks)

    def _end_with(self, word: str) -> None:
        """Note a finish reason, after the content of its document. Raises for one that stands for a fault."""
        # The first reason is not the last word: some hosts send one with every piece, or with an empty first piece, and
        # the answer goes on after it. So the last one counts, once the end mark or the connection has ended the stream.
        # A fault is raised at once, since nobody knows what is missing after it, even if content and "stop" follow;
        # only words for no reason pass. The exception: a gateway may add its own "stop" to an answer that the vendor
        # has cut, and the cut must be reported (contract 4: never a truncated success). So "stop" replaces a cut only
        # if content came between them. See test_the_last_finish_reason_counts.
        if word.lower() in _NO_REASONS:
            self._reason = self._reason or word
            return
        self.chunks += self._tools.release()
        reason = reason_of(self._provider, word)
        if self._reason not in CUT or reason in CUT or self._pieces > self._pieces_before:
            self._reason = reason
        self._pieces_before = self._pieces

    def add(self, event: SseEvent) -> None:
        """Decode one event."""
        if event.event == "error":
            raise fault_in_answer(self._provider, event.data)
        if event.data.startswith(DONE):
            self.end()
        elif event.data.strip() not in _NO_DATA:
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
        reason = reason_of(self._provider, self._reason)
        if self._tools and reason == "stop":
            reason = "tool_calls"  # some hosts report "stop" if a tool was required
        is_blank = self._blank and not self._thought
        if not self._pieces and not is_blank and reason not in CUT:
            raise fault_of_document(self._provider, f"neither {self.content} nor tool calls")
        self.chunks += *self._tools.release(), Finish(reason)

    # values of a document

    def _object(self, value: object) -> JsonObject:
        return value if isinstance(value, dict) else self._refuse("an object")

    def _string(self, value: object) -> str:
        return value or "" if isinstance(value, str | None) else self._refuse("text")

    def _refuse(self, kind: str) -> NoReturn:
        raise fault_of_document(self._provider, f"a value that is not {kind}")


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
        for chunk in _end(parser, reader):
            yield chunk
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
                text = reader.redact(event.data)
                reader.add(event if text is event.data else SseEvent(text, event.event))
            finally:  # also before a fault
                yield from reader.drain()
        if not has_event:
            yield None


def _end(parser: SseParser, reader: Reader) -> Iterator[Chunk]:
    """Give the chunks of the end of a stream. An error outside all events becomes the fault."""
    rest = parser.rest()
    if rest.startswith(DONE) or object_in(rest) is not None:  # only the blank line is missing
        for chunk in _read(b"\n\n", parser, reader):
            if chunk is not None:
                yield chunk
            if isinstance(chunk, Finish):
                return
    try:
        reader.end()
        yield from reader.drain()
        return
    except ProviderFault as error:
        fault = error
    if '"error"' in (stray := parser.stray()):  # outside the handler: a fault in its context would not be redacted
        reader.add(SseEvent(stray, "error"))
    raise fault


def decode_body(reader: Reader, body: bytes) -> Iterator[Chunk]:
    """Give the chunks of a document; of an invalid one only its usage, before the fault."""
    try:
        masked = reader.redact(text := text_of(body))
        reader.read(body if masked is text else masked.encode())
    except ProviderFault:
        yield from (chunk for chunk in reader.chunks if isinstance(chunk, Usage))
        raise
    yield from reader.drain()


class Function(msgspec.Struct):
    """The function of a piece."""

    name: str | None = None
    arguments: Any = None


class Piece(msgspec.Struct):
    """A piece of a tool call, or all of it, as received."""

    index: int | float | str | None = None
    id: str | None = None
    function: Function | None = None


class ToolCalls:
    """Turns pieces of tool calls into ``ToolDelta``, with any numbering of the host.

    Each call gets a unique index and id. The id is in the first delta, or in a later one if the host sends it later.
    """

    def __init__(self) -> None:
        self._latest: dict[int, _Begun] = {}
        """By the host's index."""
        self._by_id: dict[str, _Begun] = {}
        """By the host's id."""
        self._begun: list[_Begun] = []
        self._held: deque[_Begun] = deque()
        """Calls with arguments that were held back."""
        self._indices: set[int] = set()
        self._free = 0
        """The next unused index."""
        self._ids: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._begun)

    def add(self, piece: Piece) -> ToolDelta:
        """Return what a piece adds to its call."""
        # By the protocol, the index says which call a piece belongs to. Hosts number otherwise: index 0 for all calls,
        # with or without ids; a higher index with every piece; none at all; an id, a name or both with every piece; all
        # arguments so far again. Taken by the index alone, two calls become one with the arguments {..}{..}, or one
        # becomes several. So a piece belongs to the call of its index, else of its id, else, if it has no new id and no
        # name, to the last one; and it begins the next call if its id is another, or if it has a name and the call of
        # the place is complete. Calls that are numbered properly may interleave. Some hosts begin all arguments with
        # `{}`, so that is held back until others follow, which replace it, or none. See
        # test_tool_calls_are_told_apart_in_any_numbering.
        function = piece.function or Function()
        name = function.name or ""
        arguments = function.arguments if isinstance(function.arguments, str) else _text_of(function.arguments)
        at = piece.index if type(piece.index) is int else count_of(piece.index)
        call = None if at is None else self._latest.get(at)
        id = ""
        if call is None or piece.id or name:
            is_raised = at is not None and call is None
            if piece.id and (call is None or call.id not in (None, piece.id)):
                call = self._by_id.get(piece.id, call)
            if call is None and self._begun and (at is None or not (piece.id or name)):
                call = self._begun[-1]
            if call is None or call.ends_before(piece.id, name, arguments, is_raised=is_raised):
                id = self.begin(Piece(piece.index, piece.id, Function(name))).id
                call = self._begun[-1]
            elif piece.id and call.id is None:
                call.id = piece.id
                id = self._own(piece.id, call)
            if name:  # perhaps the second piece of it
                call.name = name = name if name.startswith(call.name) else call.name + name
        if not name:
            call.is_named_once = True
        if arguments[:1] == "{":
            arguments = call.without_repetition(arguments)
        if arguments:
            if call.is_held:
                call.arguments.clear()
                call.size = 0
            call.arguments.append(arguments)
            call.size += len(arguments)
            call.is_held = arguments == _EMPTY and call.size == len(_EMPTY)
            if call.is_held:
                self._held.append(call)
        return ToolDelta(call.index, "" if call.is_held else arguments, id, name)

    def release(self) -> Iterator[ToolDelta]:
        """Give the arguments that were held back, as nothing has replaced them."""
        while self._held:
            call = self._held.popleft()
            if call.is_held:
                call.is_held = False
                yield ToolDelta(call.index, _EMPTY)

    def begin(self, piece: Piece) -> ToolDelta:
        """Return the start of a call, or all of it."""
        function = piece.function or Function()
        at = count_of(piece.index)
        at = self._free if at is None else at
        index = self._free if at in self._indices else at
        self._indices.add(index)
        self._free = max(self._free, index + 1)
        arguments = _text_of(function.arguments)
        call = self._latest[at] = _Begun(index, piece.id or None, function.name or "", [arguments], len(arguments))
        self._begun.append(call)
        if piece.id:
            self._by_id[piece.id] = call
        id = self._own(piece.id or f"call_{index}", call)
        return ToolDelta(index, arguments, id, call.name)

    def _own(self, id: str, call: _Begun) -> str:
        """The id, made unique, since results refer to it."""
        while id in self._ids:
            id = f"{id}_{call.index}"
        self._ids.add(id)
        return id


class _Begun(msgspec.Struct):
    index: int
    id: str | None
    """The host's id."""
    name: str
    arguments: list[str]
    size: int
    """Characters of the arguments."""
    is_named_once: bool = False
    """True: a piece came without a name."""
    checks: int = 0
    """How often the arguments were checked; a check takes linear time."""
    repeats: bool = False
    """True: a piece has all arguments so far."""
    is_held: bool = False
    """True: its arguments are ``{}``, which was not passed on yet."""

    def ends_before(self, id: str | None, name: str, arguments: str, *, is_raised: bool) -> bool:
        """True if a piece begins the next call. ``is_raised``: its index is new."""
        if not (name and self.name):
            may_begin = is_raised and arguments != ""  # its name comes later
        elif id and self.id and id != self.id:
            return True
        elif name != self.name:
            return is_raised or self.size > 0 or self.id is None
        else:
            may_begin = not self.is_held and (self.is_named_once or arguments.startswith("{"))
        if not (may_begin and self.arguments[-1].rstrip().endswith("}")) or self.checks == MOST_CHECKS:
            return False
        self.checks += 1
        before = "".join(self.arguments)
        return not arguments.startswith(before) and object_in(before) is not None

    def without_repetition(self, arguments: str) -> str:
        """The new part of arguments, if they begin with those so far."""
        if len(arguments) >= self.size > 0:
            before = "".join(self.arguments)
            # an object may contain its own beginning, but only as a value
            if arguments.startswith(before) and (self.repeats or before.rstrip()[-1] not in ":[,"):
                self.repeats = True
                return arguments[self.size :]
        return arguments


def _text_of(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else encode(arguments)
