"""The events of ``POST /v1/route`` as they are sent (contract 5)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from routewright._engine.stream import Stream
from routewright.wire import (
    OutputDelta,
    RouteCompleted,
    RouteEvent,
    RouteStarted,
    StreamError,
    ToolCallDelta,
    error_envelope,
)

from .errors import told
from .exchange import Exchange
from .sse import Frame

_encode = msgspec.json.encode


class RouteFrames:
    """The events of one call, each as its struct says."""

    def __init__(self, exchange: Exchange, stream: Stream) -> None:
        self.headers: dict[str, str] = {}
        self._exchange = exchange
        self._stream = stream
        self._last_id = 0

    async def __aiter__(self) -> AsyncIterator[Frame]:
        """Give them in order. Raises what the call ends in, if that is no answer."""
        async with self._stream as stream:
            async for event in stream:
                match event:
                    case StreamError():
                        stream.raise_failure()
                    case RouteStarted():
                        self.headers |= stream.headers
                        self._exchange.trace_id = event.data.trace_id
                self._last_id = event.id
                yield Frame(_framed(event), isinstance(event, OutputDelta | ToolCallDelta | RouteCompleted))

    def last_words(self, error: Exception) -> bytes:
        """The event ``error``."""
        envelope = msgspec.to_builtins(error_envelope(told(error, self._exchange.request_id)))
        return _framed(StreamError(self._last_id + 1, envelope))


def _framed(event: RouteEvent) -> bytes:
    return b"event: %s\nid: %d\ndata: %s\n\n" % (event.event.encode(), event.id, _encode(event.data))
