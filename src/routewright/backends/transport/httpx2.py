"""HTTP on trio, with the connection pool of httpx2.

The client of httpx2 is not used: it takes twice the time, and warns when a stream is left early.
"""

from __future__ import annotations

import os
import ssl
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from routewright.errors import ProviderFault, require_extra

from .connections import DEFAULT_LIMITS, Answer, LoopPool, LoopPools, TransportLimits, failure_of, refusal_of, reset_of
from .network import Network, Proxy

with require_extra("trio", __name__):
    import httpcore2
    import trio

T = TypeVar("T")
_CONNECT_ERRORS = (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout)
_verifying_context = cache(ssl.create_default_context)  # reads the authorities from disk: 10 ms
_CORE_ERRORS = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError, httpcore2.ProxyError)
_BROKEN_ERRORS = (*_CORE_ERRORS, OSError)  # an ssl.SSLError is one


class Httpx2Transport:
    """Sends requests over one connection pool for each trio run."""

    def __init__(self, limits: TransportLimits = DEFAULT_LIMITS, network: Network | None = None) -> None:
        network = Network() if network is None else network
        self._limits = limits
        self._proxy_of = network.proxy_of
        self._pools = LoopPools(lambda loop: _Pool(loop, limits, network.tls), trio.lowlevel.current_trio_token)

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[Answer]:
        """Send one request. The answer is valid inside the context."""
        parts = urlsplit(url)
        fields = {"host": parts.netloc.rpartition("@")[2], "user-agent": "routewright", "accept-encoding": "gzip"}
        fields |= {name.lower(): value for name, value in headers.items()}
        if body is not None:
            fields["content-length"] = str(len(body))
        timeouts = {"timeout": {"connect": self._limits.connect_timeout_s}}
        request = httpcore2.Request(
            method, httpcore2.URL(url), headers=list(fields.items()), content=body, extensions=timeouts
        )
        proxy = None if self._proxy_of is None else self._proxy_of(parts.scheme, parts.netloc)

        async def wait(waiting: Awaitable[T]) -> T:
            try:
                return await waiting
            except _BROKEN_ERRORS as exc:
                fault = _fault_of(exc, request, proxy)
            raise fault  # outside the handler, without the server's data as context

        connections = self._pools.get().connections(proxy)

        async def send() -> httpcore2.Response:
            """Send it; once more if the server had closed the connection (see ``connections``)."""
            events: list[str] = []

            async def trace(event: str, _: object) -> None:
                events.append(event)

            request.extensions["trace"] = trace
            try:
                return await connections.handle_async_request(request)
            except (httpcore2.ReadError, httpcore2.RemoteProtocolError) as exc:
                is_silent = isinstance(exc, httpcore2.ReadError) or str(exc).startswith("Server disconnected")
                if not is_silent or any(event.startswith("connection.") for event in events):  # it is new
                    raise
            for connection in filter(lambda other: other.is_idle(), connections.connections):
                await connection.aclose()
            return await connections.handle_async_request(request)

        response = await wait(send())
        if proxy is not None and response.status == 407:  # of an http address
            await response.aclose()
            raise refusal_of(proxy, parts.netloc, 407)
        raw = cast("AsyncGenerator[bytes, None]", aiter(cast("AsyncIterable[bytes]", response.stream)))
        try:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            yield Answer(response.status, headers, lambda: wait(anext(raw, b"")), self._limits.answer_bytes)
        finally:  # returns the connection if the body was read completely, else closes it
            try:
                await raw.aclose()
            finally:
                await response.aclose()

    async def aclose(self) -> None:
        """Close all pools. Idempotent."""
        await self._pools.aclose()


def _fault_of(exc: Exception, request: httpcore2.Request, proxy: Proxy | None) -> ProviderFault:
    host = request.url.host.decode("ascii", "replace")
    kind = type(exc).__name__
    if proxy is not None and isinstance(exc, httpcore2.ProxyError):
        return refusal_of(proxy, host, int(str(exc)[:3]))
    if not isinstance(exc, _CONNECT_ERRORS):
        return reset_of(host, kind)
    # its message, or the first message of a cause: trio names a bad certificate only there
    cause: BaseException | None = exc
    while isinstance(cause, Exception) and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return failure_of(host, f"{kind}: {cause}" if isinstance(cause, Exception) else kind, exc, proxy)


class _Pool(LoopPool):
    loop: trio.lowlevel.TrioToken

    def __init__(self, loop: trio.lowlevel.TrioToken, limits: TransportLimits, tls: ssl.SSLContext | None) -> None:
        super().__init__(loop)
        self._sockets = _Sockets()
        self._settings: dict[str, Any] = {
            "ssl_context": tls or _verifying_context(),
            "max_connections": limits.connections,
            "keepalive_expiry": limits.keepalive_s,
            "network_backend": self._sockets,
        }
        self._pools: dict[Proxy | None, httpcore2.AsyncConnectionPool] = {}

    def connections(self, proxy: Proxy | None) -> httpcore2.AsyncConnectionPool:
        """The pool for direct connections or a proxy."""
        if (pool := self._pools.get(proxy)) is None:
            if proxy is None:
                pool = httpcore2.AsyncConnectionPool(**self._settings)
            else:
                tls = self._settings["ssl_context"] if proxy.url.startswith("https:") else None
                pool = httpcore2.AsyncHTTPProxy(
                    proxy.url, proxy_headers=list(proxy.headers.items()), proxy_ssl_context=tls, **self._settings
                )
            self._pools[proxy] = pool
        return pool

    def loop_is_over(self) -> bool:
        return False  # runs close the pool before they end

    def loop_runs_here(self) -> bool:
        return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self.loop

    def call_in_loop(self, callback: Callable[[], None]) -> None:
        self.loop.run_sync_soon(callback)

    async def close_connections(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()

    def abort_connections(self) -> None:
        for opened in self._sockets.opened:
            opened.close()

    def abandon_connections(self) -> None:
        for opened in self._sockets.opened:
            if opened.fileno() != -1:
                os.close(opened.detach())


class _Sockets(httpcore2.TrioBackend):
    """Remembers the sockets, so that they can be closed without waiting."""

    def __init__(self) -> None:
        self.opened: weakref.WeakSet[trio.socket.SocketType] = weakref.WeakSet()

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        """Connect as the backend does."""
        stream = await super().connect_tcp(*args, **options)
        self.opened.add(stream.get_extra_info("socket"))
        return stream
