"""The events of ``POST /v1/route`` as they are sent (contract 5)."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from routewright import Stream
from routewright.wire import (
    OutputDelta,
    RouteCompleted,
    RouteEvent,
    RouteStarted,
    StreamError,
    ToolCallDelta,
)

from .errors import envelope, told
from .exchange import Exchange
from .sse import Frame

_encode = msgspec.json.encode


class RouteFrames:
    """The events of one call, each as its struct says."""

    def __init__(self, exchange: Exchange, stream: Stream) -> None:
        self.headers: dict[str, str] = {}
        self._exchange = exchange
        self.stream = stream
        self._last_id = 0

    async def __aiter__(self) -> AsyncGenerator[Frame, None]:
        """Give them in order. Raises what the call ends in, if that is no answer."""
        async with self.stream as stream:
            async for event in stream:
                match event:
                    case StreamError():
                        stream.raise_failure()
                    case RouteStarted():
                        self._exchange.trace_id = event.data.trace_id
                self._last_id = event.id
                yield Frame(_framed(event), isinstance(event, OutputDelta | ToolCallDelta | RouteCompleted))

    def last_words(self, error: Exception) -> bytes:
        """The event ``error``."""
        return _written(StreamError.event, self._last_id + 1, envelope(told(error, self._exchange.request_id)))


def _framed(event: RouteEvent) -> bytes:
    return _written(event.event, event.id, _encode(event.data))


def _written(name: str, number: int, data: bytes) -> bytes:
    return b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), number, data)
