"""HTTP on trio, and on asyncio too, through the connection pool of httpx2.

Its pool is used without its client, which costs twice the time and, on trio, complains when a stream is left early.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache, cached_property
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlsplit

from routewright.errors import ProviderFault

from .body import Body
from .limits import DEFAULT_LIMITS, TransportLimits
from .local import broken, unconnected
from .pool import LoopPool, LoopPools

try:
    import httpcore2
    import trio
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"{__name__} needs the extra 'trio' ({exc.name} is missing): pip install 'routewright[trio]'", name=exc.name
    ) from exc

_CONNECT_ERRORS = (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout)
_BROKEN_ERRORS = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, OSError, ssl.SSLError)


class Httpx2Transport:
    """Sends requests over one connection pool an event loop."""

    def __init__(self, limits: TransportLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._pools = LoopPools(lambda loop: _make_pool(loop, limits), _running_loop)

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AbstractAsyncContextManager[_Answer]:
        """Send one request; its answer is there for the length of the context."""
        return _Exchange(self._pools, self._limits, _request(method, url, headers, body, self._limits))

    async def aclose(self) -> None:
        """Close every pool. Twice is once."""
        await self._pools.aclose()


def _request(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None, limits: TransportLimits
) -> httpcore2.Request:
    target = httpcore2.URL(url)
    names = {name.lower(): value for name, value in headers.items()}
    names.setdefault("host", urlsplit(url).netloc.rpartition("@")[2])
    names.setdefault("user-agent", "routewright")
    names.setdefault("accept-encoding", "gzip, deflate")
    if body is not None:
        names["content-length"] = str(len(body))
    timeouts = {"connect": limits.connect_timeout_s}
    return httpcore2.Request(
        method, target, headers=list(names.items()), content=body, extensions={"timeout": timeouts}
    )


class _Exchange:
    __slots__ = ("_answer", "_limits", "_pools", "_request")

    def __init__(self, pools: LoopPools[_Pool], limits: TransportLimits, request: httpcore2.Request) -> None:
        self._pools = pools
        self._limits = limits
        self._request = request
        self._answer: _Answer | None = None

    async def __aenter__(self) -> _Answer:
        connections = self._pools.get().connections
        try:
            response = await connections.handle_async_request(self._request)
        except _BROKEN_ERRORS as exc:
            fault = _fault(exc, self._request)
        else:
            self._answer = _Answer(response, self._request, self._limits.answer_bytes)
            return self._answer
        raise fault  # out here, so that it does not drag along what the server sent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._answer is not None:
            await self._answer.aclose()


class _Answer:
    def __init__(self, response: httpcore2.Response, request: httpcore2.Request, answer_bytes: int) -> None:
        self._response = response
        self._request = request
        self._answer_bytes = answer_bytes
        self._raw: AsyncGenerator[bytes, None] | None = None

    @property
    def status(self) -> int:
        """The status code."""
        return self._response.status

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._response.headers}

    def chunks(self) -> Body:
        """The body as it arrives, decompressed."""
        return Body(self._receive, self.headers.get("content-encoding", ""), self._answer_bytes)

    async def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes of the body; more raises ``ProviderFault("malformed")``."""
        return await self.chunks().read(limit)

    async def aclose(self) -> None:
        """Give the connection back if the body was read to its end, else close it."""
        try:
            if self._raw is not None:
                await self._raw.aclose()
        finally:
            await self._response.aclose()

    async def _receive(self) -> bytes:
        if self._raw is None:
            self._raw = cast("AsyncGenerator[bytes, None]", aiter(cast("AsyncIterable[bytes]", self._response.stream)))
        try:
            return await anext(self._raw, b"")
        except _BROKEN_ERRORS as exc:
            fault = _fault(exc, self._request)
        raise fault


def _fault(exc: Exception, request: httpcore2.Request) -> ProviderFault:
    host = request.url.host.decode("ascii", "replace")
    what = type(exc).__name__
    if isinstance(exc, _CONNECT_ERRORS):
        return unconnected(host, f"{what}{_why(exc)}", exc)
    return broken(host, what)


def _why(exc: BaseException | None) -> str:
    """What it says, or the first error behind it that says something: trio tells of a certificate only there."""
    while isinstance(exc, Exception):  # behind a time-out there is a cancellation
        if said := str(exc):
            return f": {said}"
        exc = exc.__cause__ or exc.__context__
    return ""


def _running_loop() -> Any:
    return trio.lowlevel.current_trio_token() if trio.lowlevel.in_trio_task() else asyncio.get_running_loop()


@cache
def _verifying_context() -> ssl.SSLContext:
    return ssl.create_default_context()  # reads the authorities from disk: 10 ms


class _Pool(LoopPool):
    def __init__(self, loop: Any, limits: TransportLimits, network: httpcore2.AsyncNetworkBackend) -> None:
        super().__init__(loop)
        self.connections = httpcore2.AsyncConnectionPool(
            ssl_context=limits.ssl_context or _verifying_context(),
            max_connections=limits.connections,
            keepalive_expiry=limits.keepalive_s,
            network_backend=network,
        )

    async def close_connections(self) -> None:
        await self.connections.aclose()


class _TrioPool(_Pool):
    def __init__(self, loop: trio.lowlevel.TrioToken, limits: TransportLimits) -> None:
        self._network = _TrioNetwork()
        super().__init__(loop, limits, self._network)

    def loop_is_over(self) -> bool:
        return False  # a run that ends closes the pool first

    def loop_runs_here(self) -> bool:
        return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self.loop

    def call_in_loop(self, callback: Callable[[], None]) -> None:
        self.loop.run_sync_soon(callback)

    def abort_connections(self) -> None:
        for made in self._network.sockets:
            made.close()

    def abandon_connections(self) -> None:
        for made in self._network.sockets:
            if made.fileno() != -1:
                os.close(made.detach())


class _AsyncioPool(_Pool):
    def __init__(self, loop: asyncio.AbstractEventLoop, limits: TransportLimits) -> None:
        super().__init__(loop, limits, httpcore2.AnyIOBackend())

    def loop_is_over(self) -> bool:
        closed: bool = self.loop.is_closed()
        return closed

    def loop_runs_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def call_in_loop(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(callback)

    def abort_connections(self) -> None:
        self._closing = self.loop.create_task(self.close_connections())

    def abandon_connections(self) -> None:
        """Nothing can be done for them; their sockets close as they are collected."""


def _make_pool(loop: Any, limits: TransportLimits) -> _Pool:
    return _TrioPool(loop, limits) if isinstance(loop, trio.lowlevel.TrioToken) else _AsyncioPool(loop, limits)


class _TrioNetwork(httpcore2.TrioBackend):
    """Remembers the sockets, so that they can be closed without waiting."""

    def __init__(self) -> None:
        self.sockets: weakref.WeakSet[trio.socket.SocketType] = weakref.WeakSet()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect as the backend does."""
        stream = await super().connect_tcp(host, port, timeout, local_address, socket_options)
        self.sockets.add(stream.get_extra_info("socket"))
        return stream
