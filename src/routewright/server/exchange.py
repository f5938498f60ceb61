"""One HTTP request and its response over ASGI, including clients that disconnect early."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from contextvars import Context, copy_context
from math import inf
from time import monotonic
from typing import Any, TypeVar

import anyio
import msgspec

from routewright._runtime.loop import current_task, outcome_of
from routewright.backends.clock import Entry, alarms_of, here
from routewright.errors import UnsupportedMediaType, ValidationFailed
from routewright.protocols import Clock
from routewright.wire import Caller
from routewright.wire.json_scan import quoted

from .http_limits import HttpLimits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
"""These four are ASGI's types."""
Observer = Callable[["Exchange"], object]
"""Called with each ended exchange."""

T = TypeVar("T")

JSON = b"application/json"
CLIENT_LEFT = 499
"""Status for logs and middleware if the client disconnected before the answer."""
ERROR_SEND_S = 1.0
"""How long sending the error of a cancelled request may take."""
WATCH_AFTER_S = 0.01
"""Disconnects are watched for from then on. Most answers are faster and need no watching task."""
_ONCE = frozenset(b"authorization x-api-key idempotency-key content-type content-length content-encoding".split())
"""Headers that must not be repeated: proxies and servers might use different ones."""
_CHARSET = re.compile(r"""(?:^|;)\s*charset\s*=\s*"?\s*([^\s;"]+)""", re.IGNORECASE)
_METHODS = frozenset("GET HEAD POST PUT PATCH DELETE OPTIONS TRACE CONNECT".split())
_encode = msgspec.json.encode


class ClientLeft(Exception):
    """The client disconnected before the end of the response."""


class Exchange:
    """One request and its response."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, request_id: str, clock: Clock, limits: HttpLimits
    ) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"] if not scope.get("root_path") else _path_of(scope)
        self.sent: dict[bytes, bytes] = dict(scope["headers"])
        """Request headers by lower-case name; the last of repeated ones."""
        self.request_id = request_id
        self.clock = clock
        self.limits = limits
        self.headers: dict[str, str] = {}
        """Headers for any response to this request."""
        self.started_at = self.ended_at = clock.monotonic()
        self.left = False
        """The client disconnected before the end."""
        self.sent_bytes = 0
        """Bytes of the response's body."""
        self.status: int | None = None
        """None until it is sent."""
        self.endpoint: str | None = None
        """Path of the endpoint, or None if there is none."""
        self.parameter = ""
        """The last part of the path, if it is a parameter."""
        self.caller: Caller | None = None
        """None until the request is authenticated."""
        self.trace_id: str | None = None
        self.code: str | None = None
        """Code of the error in which it ended."""
        self.receive = receive
        self._send = send

    def header(self, name: bytes) -> str | None:
        """A request header by lower-case name, or None."""
        value = self.sent.get(name)
        return None if value is None else value.decode("latin-1")

    def check_repeats(self) -> None:
        """Raise ``ValidationFailed`` for a repeated header that must not be repeated."""
        counts = Counter([name for name, _ in self.scope["headers"]])
        for name, count in counts.items():
            if count > 1 and name in _ONCE:
                raise ValidationFailed.at(name.decode("latin-1"), "is sent twice", "send it once")
        if counts[b"traceparent"] > 1:  # ambiguous by the standard
            del self.sent[b"traceparent"]

    @property
    def final_status(self) -> int:
        """Status for metrics and logs; 499 if the client disconnected."""
        return CLIENT_LEFT if self.left or self.status is None else self.status

    @property
    def method_label(self) -> str:
        """The method, or ``other`` if it is not one of HTTP's."""
        return self.method if self.method in _METHODS else "other"

    @property
    def duration_s(self) -> float:
        """Duration from the start of the request to the end of the response."""
        return self.ended_at - self.started_at

    def check_media_type(self) -> None:
        """Raise ``UnsupportedMediaType`` if the headers say that the body is not JSON in UTF-8."""
        content_type = self.header(b"content-type")
        if (content_type or "").partition(";")[0].strip().lower() != "application/json":
            label = "none" if content_type is None else quoted(content_type)
            raise UnsupportedMediaType(f"the Content-Type is {label}; send 'Content-Type: application/json'")
        charset = _CHARSET.search(content_type or "")
        if charset is not None and charset[1].lower() not in ("utf-8", "utf8"):
            raise UnsupportedMediaType(f"the charset is {quoted(charset[1].lower())}; send UTF-8")  # spec 1
        encoding = self.header(b"content-encoding")
        if encoding is not None and encoding.strip().lower() != "identity":
            raise UnsupportedMediaType(f"the Content-Encoding is {quoted(encoding)}; send the body uncompressed")

    async def wait_disconnect(self) -> None:
        """Wait until the client disconnects. Call it after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def json(self, value: object, headers: Mapping[str, str] | None = None) -> Awaitable[None]:
        """Answer with JSON."""
        return self.respond(_encode(value), 200, JSON, headers)

    def start(self, status: int, content_type: bytes, headers: Mapping[str, str] | None = None) -> Awaitable[None]:
        """Begin an answer; ``piece`` sends its body."""
        return self.respond(None, status, content_type, headers)

    async def respond(
        self, body: bytes | None, status: int, content_type: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer. Without a body only the headers are sent. Raises ``ClientLeft``."""
        self.status = status
        all_headers = {
            b"content-type": content_type,
            b"x-request-id": self.request_id.encode(),
            b"cache-control": b"no-store",
            b"x-content-type-options": b"nosniff",
        }
        if body is not None:
            all_headers[b"content-length"] = b"%d" % len(body)
        for group in (self.headers, headers):
            if group:
                for name, value in group.items():
                    all_headers[name.lower().encode()] = value.encode("latin-1", "replace")
        try:
            await self._send({"type": "http.response.start", "status": status, "headers": [*all_headers.items()]})
            if body is not None:
                if self.method == "HEAD":
                    body = b""
                self.sent_bytes += len(body)
                await self._send({"type": "http.response.body", "body": body})
        except OSError:  # raised by ASGI servers once the client has disconnected
            raise ClientLeft from None

    async def send_piece(self, body: bytes, *, more: bool = True) -> None:
        """Send a piece of the body. Raises ``ClientLeft``."""
        self.sent_bytes += len(body)
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except OSError:
            raise ClientLeft from None

    async def send_shielded(self, delivery: Awaitable[None]) -> None:
        """Send something although the request is cancelled, within a second."""
        with self.clock.deadline(self.clock.monotonic() + ERROR_SEND_S, shield=True), suppress(Exception):
            await delivery


async def while_connected(exchange: Exchange, work: Callable[[], Awaitable[T]]) -> T:
    """Run the work, and cancel it when the client disconnects. Raises ``ClientLeft``."""
    # The portable way is a task group with a watching task (`_watched`), which costs as much as a whole decision. Most
    # answers are there before anybody could leave, so on asyncio nothing but an entry among the loop's deadlines is
    # made; the watcher starts 10 ms later. It cancels this very task, so a cancellation has two possible causes:
    # `uncancel` tells them apart. Only if none is left was it the watcher alone, and becomes `ClientLeft`; a shutdown
    # at the same moment stays a cancellation. test_a_disconnect_cancels_and_settles_the_call
    try:
        task = None if exchange.clock.virtual else current_task(asyncio.get_running_loop())
    except RuntimeError:  # trio
        task = None
    if task is None:
        return await _watched(exchange, work)
    watch = _Watch(exchange, task, copy_context())
    alarms = here.alarms
    if alarms is None or alarms.loop() is not task.get_loop():
        alarms = alarms_of(task.get_loop())
    alarms.add(monotonic() + WATCH_AFTER_S, watch)
    try:
        return await work()
    except asyncio.CancelledError:
        if watch.left and not task.uncancel():
            raise ClientLeft from None
        raise
    finally:
        watch.entry = None
        if watch.watcher is not None:
            watch.watcher.cancel()


class _Watch(msgspec.Struct, eq=False):
    """Watches for a disconnect on asyncio, where a task group would cost as much as a decision. Its task starts late;
    until then it is an entry among the deadlines of the loop."""

    exchange: Exchange
    task: asyncio.Task[Any]
    context: Context
    entry: Entry | None = None
    watcher: asyncio.Task[None] | None = None
    left: bool = False

    def ring(self, now: float) -> float:
        """Start to watch (``PendingDeadline``)."""
        self.watcher = self.task.get_loop().create_task(self._watch(), context=self.context)
        return inf

    async def _watch(self) -> None:
        await self.exchange.wait_disconnect()
        self.left = True
        self.task.cancel()


async def _watched(exchange: Exchange, work: Callable[[], Awaitable[T]]) -> T:
    """``while_connected`` on any loop."""
    outcomes: list[T | Exception] = []

    async def watch() -> None:
        await exchange.wait_disconnect()
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        outcomes.append(await outcome_of(work()))
        group.cancel_scope.cancel()
    if not outcomes:
        raise ClientLeft
    if isinstance(outcomes[0], Exception):
        raise outcomes[0]
    return outcomes[0]


async def serve_other(
    scope: Scope, receive: Receive, send: Send, acts: Mapping[str, Callable[[], Awaitable[None]]]
) -> None:
    """Close a WebSocket, or take part in a lifespan, with what its events ask for."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
    while scope["type"] == "lifespan":
        event = (await receive())["type"]
        if event in acts:
            await acts[event]()
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


def _path_of(scope: Scope) -> str:
    """The path below the mount point."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("/", ""):
        return path[len(root) :] or "/"
    return path
