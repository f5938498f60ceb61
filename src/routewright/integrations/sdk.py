"""The openai and anthropic SDKs in this process: their requests go to the Router, without a server or a key.

    client = AsyncOpenAI(http_client=router_client(router), api_key="-")

Their HTTP client runs the application of ``routewright.server``, so models, fields, errors and
headers are those of the server. It opens no connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from math import inf
from typing import overload

import anyio

from routewright._runtime.worker import spawn
from routewright.errors import RouterClosed, ValidationFailed, require_extra
from routewright.router import BlockingRouter, Router
from routewright.server import HttpLimits, create_app
from routewright.server.exchange import Message

with require_extra("sdk", __name__):
    import httpx2

_SEND_S = 600.0
"""A stream that nobody reads for so long ends, and with it the call. The SDKs wait as long for a server."""


@overload
def router_client(router: Router) -> httpx2.AsyncClient: ...
@overload
def router_client(router: BlockingRouter) -> httpx2.Client: ...
def router_client(router: Router | BlockingRouter) -> httpx2.AsyncClient | httpx2.Client:
    """Make an HTTP client that sends all requests to a Router: for asynchronous SDKs, or from ``router.blocking``, for
    the others.

        client = OpenAI(http_client=router_client(router.blocking), api_key="-")

    The host of the base URL and the API key do not matter. Calls are those of ``router.caller``, with the tags and the
    run of the code that makes them. Closing the client leaves the Router open. Raises ``ValidationFailed`` for
    ``router.blocking`` with a virtual clock."""
    if isinstance(router, Router):
        return httpx2.AsyncClient(transport=RouterTransport(router))
    if router.router.clock.virtual:
        raise ValidationFailed.at("router", "has a virtual clock, which only tasks can share", "pass the Router itself")
    return httpx2.Client(transport=RouterTransport(router.router))


class RouterTransport(httpx2.AsyncBaseTransport, httpx2.BaseTransport):
    """Runs requests as tasks: of the caller's loop, or for plain code, of the Router's background thread."""

    # httpx2.ASGITransport returns once the application has ended, so a stream would arrive in one piece. Here the
    # application runs on while its response is read, which no task group of the caller can contain, since the caller
    # holds the response between two of its own scopes.
    def __init__(self, router: Router) -> None:
        self._app = create_app(router, authenticate=lambda scope: router.caller, limits=HttpLimits(send_s=_SEND_S))
        self._router = router
        self._tasks: dict[_Response, object] = {}  # loops hold their tasks weakly

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and wait for the headers of the response."""
        response = _Response(await request.aread(), request, self._router)
        self._tasks[response] = spawn(partial(self._serve, request, response), copy_context())
        try:
            start = await response.next_message()
        except BaseException:
            response.leave()
            raise
        return httpx2.Response(start["status"], headers=start["headers"], stream=response)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """The same for plain code."""
        request.read()
        return self._router.run_blocking(partial(self.handle_async_request, request))

    async def _serve(self, request: httpx2.Request, response: _Response) -> None:
        scope = {
            "type": "http",
            "method": request.method,
            "path": request.url.path,
            "query_string": request.url.query,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
        }
        try:
            with response.outbox:
                await self._app(scope, response.receive, response.send)
        finally:
            del self._tasks[response]


class _Response(httpx2.AsyncByteStream, httpx2.SyncByteStream):
    """The messages of a response; the next is sent once the last was read. Iterating yields its body."""

    def __init__(self, request_body: bytes, request: httpx2.Request, router: Router) -> None:
        self.outbox, self._inbox = anyio.create_memory_object_stream[Message]()
        self._unread = [request_body]
        self._timeout_s = request.extensions.get("timeout", {}).get("read") or inf
        self._router = router
        self._left = anyio.Event()

    async def receive(self) -> Message:
        """Return the request first, and a disconnect once the client has left."""
        if self._unread:
            return {"type": "http.request", "body": self._unread.pop()}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a message from the application. Raises ``OSError`` if the client has left."""
        try:
            await self.outbox.send(message)
        except anyio.BrokenResourceError:
            raise OSError("the client has left") from None

    async def next_message(self) -> Message:
        """Wait for the next message. Raises ``httpx2.ReadTimeout``."""
        clock = self._router.clock
        with clock.deadline(clock.monotonic() + self._timeout_s):
            message = await self._inbox.receive()
            if not message.get("more_body", "status" in message):
                self.leave()
            return message
        raise httpx2.ReadTimeout(f"the router sent nothing for {self._timeout_s:g} s")

    def leave(self) -> None:
        """Read no further. A call that is not complete is cancelled."""
        self._left.set()
        self._inbox.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._left.is_set():
            yield (await self.next_message())["body"]

    def __iter__(self) -> Iterator[bytes]:
        while not self._left.is_set():
            yield self._router.run_blocking(self.next_message)["body"]

    async def aclose(self) -> None:
        """Leave the response."""
        self.leave()

    def close(self) -> None:
        """The same for plain code."""
        if not self._left.is_set():
            with suppress(RouterClosed):  # it has ended
                self._router.run_blocking(self.aclose)
