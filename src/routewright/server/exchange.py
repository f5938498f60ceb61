"""One HTTP request and its response, as ASGI has them. Reads what was sent, within limits; sends what is to be said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import msgspec

from routewright._core.request.json_scan import quoted
from routewright.errors import (
    Problem,
    UnsupportedMediaType,
    ValidationFailed,
)
from routewright.protocols import Clock
from routewright.wire import Caller

from .limits import HttpLimits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
"""What ASGI passes to an application."""

Observer = Callable[["Exchange"], object]
"""Is told of an exchange that has ended."""

JSON = b"application/json"
_encode = msgspec.json.encode
LAST_WORDS_S = 1.0
"""So long a client may take to hear that its request was cut short."""
_ONCE = frozenset(
    (b"authorization", b"x-api-key", b"idempotency-key", b"content-type", b"content-length", b"content-encoding")
)
"""Headers that nobody may send twice: which of the two holds would be anybody's guess."""


_METHODS = frozenset("GET HEAD POST PUT PATCH DELETE OPTIONS TRACE CONNECT".split())
CLIENT_LEFT = 499
"""The status of an answer that its client did not wait for: for figures, logs, and middleware."""


class ClientLeft(Exception):
    """Nobody waits for the response any more."""


class Exchange:
    """One request, and its response."""

    __slots__ = (
        "_send",
        "caller",
        "clock",
        "code",
        "ended_at",
        "endpoint",
        "headers",
        "left",
        "limits",
        "method",
        "parameter",
        "path",
        "receive",
        "request_id",
        "scope",
        "sent",
        "sent_bytes",
        "started_at",
        "status",
        "trace_id",
    )

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, request_id: str, clock: Clock, limits: HttpLimits
    ) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"] if not scope.get("root_path") else _path_of(scope)
        self.sent: dict[bytes, bytes] = dict(scope["headers"])
        """Headers by their names in small letters; of one that came more than once the last."""
        self.request_id = request_id
        self.clock = clock
        self.limits = limits
        self.headers: dict[str, str] = {}
        """Of the response, whatever it turns out to be."""
        self.started_at = self.ended_at = clock.monotonic()
        self.left = False
        """The client did not wait for the end."""
        self.sent_bytes = 0
        """Of the body."""
        self.status: int | None = None
        """That was sent; None: none was yet."""
        self.endpoint: str | None = None
        """The address as the table of endpoints has it; None: there is none."""
        self.parameter = ""
        """The last part of an address that may be anything there."""
        self.caller: Caller | None = None
        """Who asks, once that is known."""
        self.trace_id: str | None = None
        self.code: str | None = None
        """Of the error that it ended in."""
        self.receive = receive
        self._send = send

    def header(self, name: bytes) -> str | None:
        """A header by its name in small letters; None: it was not sent."""
        value = self.sent.get(name)
        return None if value is None else value.decode("latin-1")

    def check_twice(self) -> None:
        """Raise ``ValidationFailed`` for a header that may be sent once and came twice."""
        counts = Counter([name for name, _ in self.scope["headers"]])
        for name, count in counts.items():
            if count > 1 and name in _ONCE:
                raise ValidationFailed.of(Problem(name.decode("latin-1"), "is sent twice", "send this header once"))
        if counts[b"traceparent"] > 1:  # which of them holds is nowhere said
            del self.sent[b"traceparent"]

    @property
    def final_status(self) -> int:
        """How it ended, for figures and logs; 499 where nobody waited for that."""
        return CLIENT_LEFT if self.left or self.status is None else self.status

    @property
    def known_method(self) -> str:
        """The method, if it is one that HTTP has; ``other`` for the rest, which anybody may make up."""
        return self.method if self.method in _METHODS else "other"

    @property
    def duration_s(self) -> float:
        """From its first byte to its end."""
        return self.ended_at - self.started_at

    def check_kind(self) -> None:
        """Hold the body to JSON by its headers. Raises ``UnsupportedMediaType``."""
        kind = self.header(b"content-type")
        media, _, rest = (kind or "").partition(";")
        if media.strip().lower() != "application/json":
            got = "none" if kind is None else quoted(kind)
            raise UnsupportedMediaType(f"the Content-Type is {got}: send 'Content-Type: application/json'")
        told = (each.partition("=") for each in rest.split(";"))
        charset = next((value for name, _, value in told if name.strip().lower() == "charset"), "")
        charset = charset.strip().strip('"').lower()
        if charset not in ("", "utf-8", "utf8"):
            raise UnsupportedMediaType(f"the charset is {quoted(charset)}: send UTF-8")  # spec 1
        encoding = self.header(b"content-encoding")
        if encoding is not None and encoding.strip().lower() != "identity":
            raise UnsupportedMediaType(f"the Content-Encoding is {quoted(encoding)}: send the body as it is")

    async def disconnected(self) -> None:
        """Wait until the client has left. Only once the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def json(self, value: Any, headers: Mapping[str, str] | None = None) -> Awaitable[None]:
        """Answer with JSON."""
        return self.respond(_encode(value), 200, JSON, headers)

    async def respond(
        self, body: bytes, status: int, content_type: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer."""
        start = self._start(status, content_type, headers, len(body))
        if self.method == "HEAD":
            body = b""
        try:
            await self._send(start)
            self.sent_bytes += len(body)
            await self._send({"type": "http.response.body", "body": body})
        except OSError:  # so ASGI has servers tell that nobody reads
            raise ClientLeft from None

    async def start(self, status: int, content_type: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Begin an answer: what follows are pieces of it."""
        await self._say(self._start(status, content_type, headers, None))

    def _start(
        self, status: int, content_type: bytes, headers: Mapping[str, str] | None, length: int | None
    ) -> Message:
        self.status = status
        told = {
            b"content-type": content_type,
            b"x-request-id": self.request_id.encode(),
            b"cache-control": b"no-store",
            b"x-content-type-options": b"nosniff",
        }
        if length is not None:
            told[b"content-length"] = b"%d" % length
        for named in (self.headers, headers):
            if named:
                for name, value in named.items():
                    told[name.lower().encode()] = value.encode("latin-1", "replace")
        return {"type": "http.response.start", "status": status, "headers": [*told.items()]}

    async def piece(self, body: bytes, *, more: bool = True) -> None:
        """Send a piece of the answer."""
        self.sent_bytes += len(body)
        await self._say({"type": "http.response.body", "body": body, "more_body": more})

    async def shielded(self, saying: Awaitable[None]) -> None:
        """Say a last thing though the request is cancelled, to a client that takes it soon."""
        with self.clock.deadline(self.clock.monotonic() + LAST_WORDS_S, shield=True), suppress(Exception):
            await saying

    async def _say(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:  # so ASGI has servers tell that nobody reads
            raise ClientLeft from None


def _path_of(scope: Scope) -> str:
    """The path below what the application is mounted at."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("/", ""):
        return path[len(root) :] or "/"
    return path
