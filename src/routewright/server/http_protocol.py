"""One HTTP/1.1 connection, within limits. Invalid input gets one error, after all earlier answers, and is closed.

uvicorn's protocol parses requests and runs the application. This subclass limits request heads, checks what RFC 9112
requires, and keeps answers in order when one of them is an error."""

from __future__ import annotations

import socket
from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable
from itertools import chain
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from .errors import Refusal, refuse
from .http_limits import ConnectionLimits

IDLE_CLOSE_S = 0.5
"""How long idle connections stay open at shutdown, since a request may be in flight."""
FLUSH_TIMEOUT_S = 5.0
"""How long a client may take to read the last answer of a connection that is being closed."""
REFUSED_CLOSE_S = 1.0
"""How long a refused connection stays open, unread. The client might lose the answer if it closed at once."""
TURNED_AWAY = 32
"""Connections over the limit that get a 503. Any more are closed without an answer."""
OVERHEAD_BYTES = 128 << 10
OVERHEAD_SHARE = 8
"""Limit of bytes besides the data of chunks (sizes, extensions, trailers): a constant, and a multiple of the data."""
_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)
"""Linux closes a connection whose peer reads nothing for so long."""


OBSERVERS = "routewright.observers"
"""Key of the lifespan's state: functions that are called with each ``RefusedClient``. They must be quick."""
ENDING = "routewright.ending"
"""Key that the lifespan's state has when the server shuts down: each connection is closed after its next answer."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._timer: TimerHandle | None = None
        self._reason = Refusal.MALFORMED
        """Why one of our callbacks stopped the parser."""
        self._refusal: Refusal | None = None
        """The error to send after all earlier answers. No more input is read."""
        self._unanswered = 0
        self._in_head = True
        """The next byte belongs to a request line or a header."""
        self._part = 0
        """Counts heads and bodies."""
        self._fed = 0
        """Bytes of this head, or of this body besides its data, from reads that hold nothing else; 1 for any others."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        if _USER_TIMEOUT is not None:
            timeout_ms = min(max(int(self._limits.send_s * 1000), 1), 1 << 30)  # 0 would be the system's default
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, timeout_ms)
        if len(self.connections) > self._limits.open + TURNED_AWAY:
            transport.abort()
        elif len(self.connections) > self._limits.open:
            self._refuse(Refusal.BUSY)
        else:
            self._wait(self._limits.header_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_waiting()
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse input, unless this client was refused."""
        # The parser has no limits of its own, and passes a header on only once it is complete: a header without an end,
        # or chunks that are all extension, would reach neither `headers` nor the application, and so no limit on them.
        # Hence `_fed` counts raw bytes. It belongs to one head or one body; a read that crosses from one to the next
        # cannot be divided, and is not counted. Of a body only the overhead counts: `on_body` takes off the data, and
        # eight times as much for the frames of small chunks. The timer starts with the first byte of a head, and no
        # later byte restarts it, or one byte a minute would hold a connection for ever.
        # test_a_head_over_its_limits_is_431, test_chunk_extensions_are_bounded, test_slowly_dripping_headers_are_408
        if self._refusal is not None:
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        part = self._part
        try:
            self.parser.feed_data(data)
            if part == self._part:
                self._fed += len(data)
            if self._in_head and self._fed > self._limits.header_bytes:
                self._stop(Refusal.TOO_LARGE)
            if not self._in_head and self._fed > OVERHEAD_BYTES:
                self._stop(Refusal.MALFORMED)
            if self.headers and self._is_too_large():  # as far as they have come
                self._stop(Refusal.TOO_LARGE)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(self._reason)
            return
        if self._timer is None and self._in_head and self._fed and not self._unanswered:
            self._wait(self._limits.header_s, self._head_is_late)

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._fed = self._fed or 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start a request, if its head is valid."""
        if (refusal := self._refused()) is not None:
            self._stop(refusal)
        super().on_headers_complete()
        self.headers = []  # trailers go there, and are no headers
        self._in_head = False
        self._part += 1
        self._fed = 0
        self._unanswered += 1
        self._stop_waiting()
        if self.root_path:
            prefix = self.root_path
            if str(self.scope["path"]).startswith(f"{prefix}{prefix}/"):
                self.scope["path"] = self.scope["path"][len(prefix) :]
                self.scope["raw_path"] = (self.scope["raw_path"] or b"")[len(prefix) :]
        if ENDING in self.app_state:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Receive a piece of a body."""
        self._fed -= len(body) * (1 + OVERHEAD_SHARE)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request. The next byte begins another."""
        if self.headers and self._is_too_large():
            self._stop(Refusal.TOO_LARGE)
        super().on_message_complete()
        self._in_head = True
        self._part += 1
        self._fed = 0
        if not self._unanswered:  # answered before its body was complete
            self._stop_waiting()
            wait_s = IDLE_CLOSE_S if ENDING in self.app_state else self.timeout_keep_alive
            self.timeout_keep_alive_task = self.loop.call_later(wait_s, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        """Continue with the next request or error of this connection, if there is one."""
        self._unanswered -= 1
        super().on_response_complete()
        if self.parser is None:
            return
        if self.transport.is_closing():
            self._wait(FLUSH_TIMEOUT_S, self.transport.abort)
        elif self._unanswered:
            return
        elif self._refusal is not None:
            self._send_refusal(self._refusal)
        elif not self._in_head:  # the rest of an unread body
            self._unset_keepalive_if_required()
            self._wait(self._limits.header_s, self._close)
        elif self._fed:
            self._unset_keepalive_if_required()
            self._wait(self._limits.header_s, self._head_is_late)

    def shutdown(self) -> None:
        """Close once all received requests are answered; if there are none, a little later."""
        self.app_state[ENDING] = True
        if self._unanswered:
            self.cycle.keep_alive = False
        elif not (self._in_head and self._fed):
            self._wait(IDLE_CLOSE_S, self._close)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        self._close()

    def _is_too_large(self) -> bool:
        """True if the headers or trailers received so far exceed the limits."""
        headers, limits = self.headers, self._limits
        size = len(self.url) + 4 * len(headers) + sum(map(len, chain.from_iterable(headers)))
        return size > limits.header_bytes or len(headers) > limits.headers

    def _refused(self) -> Refusal | None:
        """The reason to refuse a head that the parser accepted."""
        if self._is_too_large():
            return Refusal.TOO_LARGE
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            return Refusal.VERSION
        if self.parser.get_method() == b"CONNECT":
            return Refusal.CONNECT
        if self.parser.should_upgrade():
            return Refusal.UPGRADE
        headers = dict(self.headers)
        if len(headers) != len(self.headers) and [name for name, _ in self.headers].count(b"host") > 1:
            return Refusal.HOST  # RFC 9112, 3.2
        if version == "1.1" and b"host" not in headers:
            return Refusal.HOST
        if b"transfer-encoding" in headers:
            if version == "1.0":
                return Refusal.MALFORMED  # RFC 9112, 6.1: it may have been smuggled past a proxy
            if [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"] != [b"chunked"]:
                return Refusal.CODING  # RFC 9112, 6.1
        return Refusal.PIPELINED if len(self.pipeline) >= self._limits.pipelined else None

    def _stop(self, refusal: Refusal) -> None:
        self._reason = refusal
        raise httptools.HttpParserError(refusal.name)

    def _refuse(self, refusal: Refusal) -> None:
        """Stop reading, and send the error after all earlier answers. If an answer to this request has begun, it stays
        the only one."""
        # uvicorn writes its 400 at once. With requests pipelined that is in the middle of an earlier answer, or in its
        # place, and the client takes the error for the rest of a body: answers belong to requests by their order alone
        # (RFC 9112, 9.3.2). So the error waits until no answer is due. A broken body is worse, since its request
        # already runs: if it has not answered, it is told that its client is gone and loses its place in the pipeline;
        # if it has begun to answer, that answer is the only one, and the connection closes behind it.
        # test_an_error_is_never_sent_inside_an_answer, test_an_invalid_body_gets_one_answer
        self._refusal = refusal
        self._stop_waiting()
        if not self._in_head:  # its body is invalid
            cycle = self.cycle
            if cycle.response_complete:
                self._close()
                return
            if cycle.response_started:
                cycle.keep_alive = False
                return
            cycle.disconnected = True  # to the application, its client disconnected
            cycle.message_event.set()
            earlier = [entry for entry in self.pipeline if entry[0] is not cycle]
            self.pipeline.clear()
            self.pipeline.extend(earlier)
            self._unanswered -= 1
        if not self._unanswered:
            self._send_refusal(refusal)

    def _send_refusal(self, refusal: Refusal) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        event = refuse(refusal, self.client[0] if self.client else None, self.server_state.default_headers)
        for observer in self.app_state.get(OBSERVERS, ()):
            observer(event)
        self.transport.write(event.response)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._wait(REFUSED_CLOSE_S, self._close)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._fed:
            self._refuse(Refusal.LATE)
        else:
            self._close()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, then)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
        self._wait(FLUSH_TIMEOUT_S, self.transport.abort)
