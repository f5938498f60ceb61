"""HTTP/1.1 at the socket, within bounds: what is no request is refused, once, in its turn, and in a bounded time.

uvicorn's protocol reads requests and starts the application. This one counts what comes before a request is there, asks
for what RFC 9112 asks for, and keeps answers in their order when one is an error.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from .limits import ConnectionLimits
from .refusal import Refusal, Refused, refused

LINGER_S = 0.5
"""So long a connection without a request stays open when the server ends, so that what is on its way is answered."""
FLUSH_S = 5.0
"""So long a client may take to fetch what stands written when its connection is closed."""
DEAF_S = 1.0
"""So long a refused client is listened to, and nothing heard: closed at once, it might lose the answer."""
TURNED_AWAY = 32
"""So many connections beyond the most that may be open stay until their clients have read that. Further ones are closed
at once: each is a file."""
_OVERHEAD = 128 << 10
_OVERHEAD_SHARE = 8
"""What chunks may take besides what they bring: sizes, extensions, trailers."""


_log = logging.getLogger(__name__)


class ListenerState(ServerState):
    """What the connections of one listener share."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__()
        self.limits = limits
        self.is_ending = False
        """Each connection is closed after the next answer."""
        self.observers: Sequence[Callable[[Refused], None]] = ()
        """They are told of each client that is refused; they must not take long."""

    def tell(self, told: Refused) -> None:
        """Let them know of one. What they raise is logged, and harms nobody."""
        for observer in self.observers:
            try:
                observer(told)
            except Exception:
                _log.exception("an observer of refusals failed; it is called again all the same")


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
        *,
        app: Any = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._shared = server_state if isinstance(server_state, ListenerState) else ListenerState(ConnectionLimits())
        self._limits = limits or self._shared.limits
        if app is not None:
            self.app = app
        self._timer: TimerHandle | None = None
        self._stuck: TimerHandle | None = None
        self._unread = 0
        """Bytes that were written and not sent when it was looked last."""
        self._reason = Refusal.MALFORMED
        """Why the parser is stopped by one of its own callbacks."""
        self._refusal: Refusal | None = None
        """What is to be said once all before it is; nothing is read any more."""
        self._unanswered = 0
        self._in_head = True
        """The next byte belongs to a request line, or to headers."""
        self._heads = self._head_bytes = 0
        self._begin_head()

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.open:
            self._refuse(Refusal.BUSY)
            if len(self.connections) > self._limits.open + TURNED_AWAY:
                self.transport.close()
            return
        self._wait(self._limits.header_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget all that waits."""
        self._stop_waiting()
        if self._stuck is not None:
            self._stuck.cancel()
        for cycle, _ in self.pipeline:
            cycle.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came, unless this client is refused already."""
        if self._refusal is not None:
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(self._reason)
            return
        if self._timer is None and self._in_head and self._head_bytes and not self._unanswered:
            self._wait(self._limits.header_s, self._head_is_late)

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._head_bytes = self._head_bytes or 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Let a request in that is one."""
        refusal = self._refused()
        if refusal is not None:
            self._stop(refusal)
        super().on_headers_complete()
        self.headers = []  # of what stands behind the body: it could pass for headers that were checked
        self._in_head = False
        self._unanswered += 1
        if self._timer is not None:
            self._stop_waiting()
        if self.root_path:
            self._place()
        if self._shared.is_ending:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request: what follows is the next."""
        if self.headers and self._is_too_large():
            self._stop(Refusal.TOO_LARGE)
        super().on_message_complete()
        self._in_head = True
        self._begin_head()
        if not self._unanswered:  # it was answered before it was there
            self._stop_waiting()
            self._idle()

    def on_response_complete(self) -> None:
        """Go on with what waits on this connection: a request, an error, or nothing."""
        self._unanswered -= 1
        super().on_response_complete()
        if self.parser is None:
            return
        if self.transport.is_closing():
            self._abort_later()
        elif self._refusal is not None:
            if not self._unanswered:
                self._say(self._refusal)
        elif not self._unanswered and not self._in_head:
            self._unset_keepalive_if_required()
            self._wait(self._limits.header_s, self._close)  # the rest of a body that nobody reads
        elif not self._unanswered and self._head_bytes:
            self._unset_keepalive_if_required()
            self._wait(self._limits.header_s, self._head_is_late)

    def pause_writing(self) -> None:
        """Give a client that does not read a time to go on."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._stuck = self.loop.call_later(self._limits.send_s, self._is_stuck)

    def resume_writing(self) -> None:
        """Go on: it reads."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _is_stuck(self) -> None:
        """Cut off a client that has taken nothing since; one that is slow has more time."""
        unread = self.transport.get_write_buffer_size()
        if unread >= self._unread:
            self.transport.abort()
            return
        self._unread = unread
        self._stuck = self.loop.call_later(self._limits.send_s, self._is_stuck)

    def shutdown(self) -> None:
        """Answer what is there, and close; without a request a little later, since one may be on its way."""
        if self._unanswered:
            self.cycle.keep_alive = False
        elif not self._head_bytes:
            self._wait(LINGER_S, self._close)

    def timeout_keep_alive_handler(self) -> None:
        """End a connection on which nothing was asked for long."""
        self._close()

    def _feed(self, data: bytes) -> None:
        """Parse, in pieces that no head can exceed."""
        while data:
            if not self._in_head:
                piece, data = data, b""
            else:
                room = self._limits.header_bytes - self._head_fed
                if room <= 0:
                    self._stop(Refusal.TOO_LARGE)
                piece, data = data[:room], data[room:]
            self._head_bytes += len(piece)
            heads = self._heads
            self.parser.feed_data(piece)
            if not self._in_head:
                self._body_fed += len(piece)
                if self._body_fed - self._body_bytes > _OVERHEAD + _OVERHEAD_SHARE * self._body_bytes:
                    self._stop(Refusal.MALFORMED)
                if self.headers and self._is_too_large():
                    self._stop(Refusal.TOO_LARGE)
            else:
                if heads == self._heads:
                    self._head_fed += len(piece)
                if self._head_bytes and self._is_too_large():
                    self._stop(Refusal.TOO_LARGE)

    def _begin_head(self) -> None:
        self._heads += 1
        self._head_fed = self._head_bytes = self._body_fed = self._body_bytes = 0

    def _is_too_large(self) -> bool:
        """Whether a head, or what stands behind a body, is beyond its bounds as far as it has come. Asked once for a
        head that comes whole; until then it holds no more than was read at once, and ``header_bytes``."""
        headers, limits = self.headers, self._limits
        if headers is None:  # nothing has come of it but empty lines
            return False
        size = len(self.url) + 4 * len(headers) + sum(map(len, chain.from_iterable(headers)))
        return size > limits.header_bytes or len(headers) > limits.headers

    def _refused(self) -> Refusal | None:
        """What is wrong with a head that the parser let pass."""
        if self._is_too_large():
            return Refusal.TOO_LARGE
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            return Refusal.VERSION
        if self.parser.get_method() == b"CONNECT":
            return Refusal.CONNECT
        if self.parser.should_upgrade():
            return Refusal.UPGRADE
        sent = dict(self.headers)
        if len(sent) != len(self.headers) and [name for name, _ in self.headers].count(b"host") > 1:
            return Refusal.HOST  # RFC 9112, 3.2
        if version == "1.1" and b"host" not in sent:
            return Refusal.HOST
        if b"transfer-encoding" in sent:
            if version == "1.0":
                return Refusal.MALFORMED  # RFC 9112, 6.1: it may have been smuggled past a proxy
            codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
            if codings != [b"chunked"]:
                return Refusal.CODING  # RFC 9112, 6.1
        if len(self.pipeline) >= self._limits.pipelined:
            return Refusal.PIPELINED
        return None

    def _place(self) -> None:
        """Let the prefix of a proxy stand there once: ASGI has it before a path, where some proxies leave it, too."""
        prefix = self.root_path
        if prefix and str(self.scope["path"]).startswith(f"{prefix}{prefix}/"):
            self.scope["path"] = self.scope["path"][len(prefix) :]
            self.scope["raw_path"] = (self.scope["raw_path"] or b"")[len(prefix) :]

    def _stop(self, refusal: Refusal) -> None:
        """End parsing, from inside the parser's callbacks too."""
        self._reason = refusal
        raise httptools.HttpParserError(refusal.name)

    def _refuse(self, refusal: Refusal) -> None:
        """Read no more, and say so, after all answers that come before it. A request of which an answer has begun gets
        no second one."""
        self._refusal = refusal
        self._stop_waiting()
        if not self._in_head:
            cycle = self.cycle
            if cycle.response_complete:
                self._close()
                return
            if cycle.response_started:
                cycle.keep_alive = False
                return
            self._drop()
        if not self._unanswered:
            self._say(refusal)

    def _drop(self) -> None:
        """Leave a request whose body is none: for the application its client has left."""
        cycle = self.cycle
        cycle.disconnected = True
        cycle.message_event.set()
        waiting = [each for each in self.pipeline if each[0] is not cycle]
        self.pipeline.clear()
        self.pipeline.extend(waiting)
        self._unanswered -= 1

    def _say(self, refusal: Refusal) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self.logger.debug("a client is refused: %s", refusal.name)
        told = refused(refusal, self.client[0] if self.client else None, self.server_state.default_headers)
        self.transport.write(told.response)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._wait(DEAF_S, self._close)
        self._shared.tell(told)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._head_bytes:
            self._refuse(Refusal.LATE)
        else:
            self._close()

    def _idle(self) -> None:
        wait_s = LINGER_S if self._shared.is_ending else self.timeout_keep_alive
        self.timeout_keep_alive_task = self.loop.call_later(wait_s, self.timeout_keep_alive_handler)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, then)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.close()
        self._abort_later()

    def _abort_later(self) -> None:
        """Not wait for ever for a client to fetch what it was sent."""
        self._wait(FLUSH_S, self.transport.abort)
