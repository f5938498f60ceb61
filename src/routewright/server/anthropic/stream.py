"""The events of a streamed message.

A message begins with its first content, once it is known which model serves it. Text and calls are blocks, one after
the other; a call whose arguments are not whole when the next begins stays open: some vendors send several at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import msgspec

from routewright import Stream
from routewright.server.door import routing_headers
from routewright.server.errors import told
from routewright.server.exchange import Exchange
from routewright.server.sse import Frame
from routewright.server.words import Words
from routewright.wire import (
    OutputDelta,
    RouteCompleted,
    RouteEvent,
    RouteFallback,
    RouteResponse,
    RouteStarted,
    StreamError,
    ToolCallData,
    ToolCallDelta,
)

from .errors import body
from .response import MessageUsage, ModelMessage, input_of, message_id, stop_reason_of, usage_of

_encode = msgspec.json.encode


class _Call:
    """A tool call that is under way."""

    def __init__(self) -> None:
        self.index: int | None = None
        """Of its block; None: its name has not come yet."""
        self.id = ""
        self.name = ""
        self.waiting = ""
        """Arguments that came before the name."""
        self.arguments = ""

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
        """Words of the answer."""
        if self._text is None:
            yield from self._stop_whole()
            self._text = self._next()
            yield _started(self._text, {"type": "text", "text": ""})
        yield _delta(self._text, {"type": "text_delta", "text": text})

    def call(self, piece: ToolCallData) -> Iterator[bytes]:
        """A piece of a tool call."""
        call = self._calls.setdefault(piece.index, _Call())
        call.id, call.name = call.id or piece.call_id, call.name or piece.name
        call.waiting += piece.arguments
        if call.index is None and call.name:
            yield from self._begin(call)
        if call.index is not None and call.waiting and call in self._open:
            yield _delta(call.index, {"type": "input_json_delta", "partial_json": call.waiting})
            call.arguments, call.waiting = call.arguments + call.waiting, ""

    def end(self) -> Iterator[bytes]:
        """Close what is open."""
        yield from self._stop_text()
        for call in self._open:
            yield _stopped(call.index)
        self._open.clear()

    def _begin(self, call: _Call) -> Iterator[bytes]:
        yield from self._stop_text()
        yield from self._stop_whole()
        call.index = self._next()
        self._open.append(call)
        yield _started(call.index, {"type": "tool_use", "id": call.id, "name": call.name, "input": {}})

    def _stop_text(self) -> Iterator[bytes]:
        if self._text is not None:
            yield _stopped(self._text)
            self._text = None

    def _stop_whole(self) -> Iterator[bytes]:
        for call in [call for call in self._open if call.is_whole]:
            self._open.remove(call)
            yield _stopped(call.index)

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
        self._trace_id = ""
        self._model = ""
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
        return _event("error", body(said if self._words is None else self._words.error(said)))

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
                yield from _ended(response)

    def _begin(self) -> Iterator[bytes]:
        if self._has_begun:
            return
        self._has_begun = True
        message = ModelMessage(
            id=message_id(self._trace_id),
            model=self._model,
            content=[],
            stop_reason=None,
            usage=MessageUsage(self._input_tokens, 0),
        )
        yield _event("message_start", _encode({"type": "message_start", "message": message}))


def _ended(response: RouteResponse) -> Iterator[bytes]:
    delta = {"stop_reason": stop_reason_of(response), "stop_sequence": None}
    said = {"type": "message_delta", "delta": delta, "usage": usage_of(response.routing.tokens)}
    yield _event("message_delta", _encode(said))
    yield _event("message_stop", b'{"type":"message_stop"}')


def _started(index: int, block: dict[str, Any]) -> bytes:
    return _told("content_block_start", index, {"content_block": block})


def _delta(index: int, delta: dict[str, Any]) -> bytes:
    return _told("content_block_delta", index, {"delta": delta})


def _stopped(index: int | None) -> bytes:
    return _told("content_block_stop", index, {})


def _told(name: str, index: int | None, rest: dict[str, Any]) -> bytes:
    return _event(name, _encode({"type": name, "index": index, **rest}))


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
