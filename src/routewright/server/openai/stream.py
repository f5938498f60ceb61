"""A streamed answer as chunks of chat completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from routewright import Stream
from routewright.server.door import ignored_header, routing_headers
from routewright.server.errors import told
from routewright.server.exchange import Exchange
from routewright.server.sse import Frame
from routewright.wire import (
    OutputDelta,
    RouteCompleted,
    RouteFallback,
    RouteResponse,
    RouteStarted,
    StreamError,
    ToolCallData,
    ToolCallDelta,
)

from .errors import envelope, in_words
from .request import Asked
from .response import FinishReason, Usage, completion_id, created_at, finish_of, limit_headers, usage_of

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


class FunctionPiece(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The name with the first piece of a call; of the arguments with each what is new."""

    name: str = ""
    arguments: str


class CallPiece(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A piece of a tool call. Clients join what they get, so that only arguments are told more than once."""

    index: int
    id: str = ""
    type: Literal["function", ""] = ""
    function: FunctionPiece


class Delta(Struct, frozen=True, omit_defaults=True):
    """What is new."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    tool_calls: list[CallPiece] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """What is new of the one answer."""

    index: Literal[0] = 0
    delta: Delta
    logprobs: None = None
    finish_reason: FinishReason | None = None


class Chunk(Struct, frozen=True, kw_only=True):
    """A piece of an answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    """Where it is asked for: null but in the last chunk, which has no choices."""


class ChunkFrames:
    """The chunks of one call. Nothing that was sent can be taken back here, so a fault after it is an error."""

    def __init__(self, exchange: Exchange, stream: Stream, asked: Asked) -> None:
        self.headers = ignored_header(asked.ignored)
        stream.expect_text()
        self._exchange = exchange
        self.stream = stream
        self._asked = asked
        self._id = self._model = ""
        self._created = 0
        self._begun = False
        self._places: dict[int, int] = {}
        """Tool calls by the index that their model gave them: the first one told is the first."""
        self._told: set[tuple[int, str]] = set()
        """What of which call was told, and is not told again."""

    async def __aiter__(self) -> AsyncGenerator[Frame, None]:
        """Give them in order. Raises what the call ends in, if that is no answer."""
        async with self.stream as stream:
            async for event in stream:
                match event:
                    case RouteStarted():
                        self._start(event)
                    case RouteFallback():
                        self._model = self.headers["X-Routewright-Model"] = event.data.to_model
                    case OutputDelta():
                        yield Frame(self._begin("") + self._chunk(Delta(content=event.data.text)))
                    case ToolCallDelta():
                        yield Frame(self._begin(None) + self._chunk(Delta(tool_calls=[self._piece(event.data)])))
                    case RouteCompleted():
                        yield Frame(self._end(event.data))
                    case StreamError():
                        stream.raise_failure()

    def last_words(self, error: Exception) -> bytes:
        """An error as a chunk, which SDKs raise. Nothing follows: not what would say that the answer is whole."""
        now = self._exchange.clock.time()
        error = in_words(told(error, self._exchange.request_id), self._asked.words, now)
        return b"data: %s\n\n" % envelope(error)

    def _start(self, event: RouteStarted) -> None:
        data = event.data
        self._exchange.trace_id = data.trace_id
        self._id, self._created = completion_id(data.trace_id), created_at(data.trace_id)
        self._model = data.routing.selected_model
        limits = limit_headers(self.stream.headers, self._exchange.clock.time())
        self.headers |= routing_headers(data) | limits

    def _begin(self, content: str | None) -> bytes:
        """The chunk that says who speaks, before the first one."""
        if self._begun:
            return b""
        self._begun = True
        return self._chunk(Delta(role="assistant", content=content))

    def _piece(self, data: ToolCallData) -> CallPiece:
        place = self._places.setdefault(data.index, len(self._places))
        return CallPiece(
            index=place,
            id=self._once(place, "id", data.call_id),
            type="function" if self._once(place, "type", "function") else "",
            function=FunctionPiece(name=self._once(place, "name", data.name), arguments=data.arguments),
        )

    def _once(self, place: int, name: str, value: str) -> str:
        """The value the first time that there is one."""
        if not value or (place, name) in self._told:
            return ""
        self._told.add((place, name))
        return value

    def _end(self, response: RouteResponse) -> bytes:
        self._model = response.routing.selected_model
        last = self._begin("") + self._chunk(Delta(), finish_of(response))
        if self._asked.wants_usage:
            last += self._framed([], usage_of(response.routing.tokens))
        return last + DONE

    def _chunk(self, delta: Delta, finish_reason: FinishReason | None = None) -> bytes:
        choice = ChunkChoice(delta=delta, finish_reason=finish_reason)
        return self._framed([choice], None if self._asked.wants_usage else UNSET)

    def _framed(self, choices: list[ChunkChoice], usage: Usage | UnsetType | None) -> bytes:
        chunk = Chunk(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)
        return b"data: %s\n\n" % _encode(chunk)
