"""HTTP on asyncio, through aiohttp."""

from __future__ import annotations

import asyncio
import io
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from routewright.errors import ProviderFault

from .connections import DEFAULT_LIMITS, Answer, LoopPool, LoopPools, TransportLimits, broken, refused_by, unconnected
from .network import Network, Proxy

_CONNECT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ClientSSLError, aiohttp.ConnectionTimeoutError)
_BROKEN_ERRORS = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
_WARNS_OVER_BYTES = 1 << 20
"""aiohttp wants longer bodies as a file."""


class AiohttpTransport:
    """Sends requests over one aiohttp session an event loop."""

    def __init__(self, limits: TransportLimits = DEFAULT_LIMITS, network: Network | None = None) -> None:
        network = Network() if network is None else network
        self._answer_bytes = limits.answer_bytes
        self._proxy_of = network.proxy_of
        self._pools = LoopPools(lambda loop: _Pool(loop, limits, network.tls), asyncio.get_running_loop)

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[Answer]:
        """Send one request; its answer is there for the length of the context."""
        data = io.BytesIO(body) if body is not None and len(body) > _WARNS_OVER_BYTES else body
        session, fault, proxy, more = self._pools.get().session, None, None, dict[str, Any]()
        if self._proxy_of is not None:
            (scheme, netloc, *_) = urlsplit(url)
            if proxy := self._proxy_of(scheme, netloc):
                more["proxy"] = proxy.url
                if scheme == "http":
                    headers = {**headers, **proxy.headers}
                else:  # the proxy of a tunnel sees no headers of the request
                    more["proxy_headers"] = proxy.headers
        try:
            response = await session.request(method, url, headers=headers, data=data, allow_redirects=False, **more)
        except _BROKEN_ERRORS as exc:
            fault = _fault(exc, url, proxy)
        else:
            if proxy is not None and response.status == 407:  # of an http address
                response.close()
                fault = refused_by(proxy, urlsplit(url).netloc, 407)
        if fault is not None:
            raise fault  # out here, so that it does not drag along what aiohttp attached to its own

        async def receive() -> bytes:
            try:
                return await response.content.readany()
            except _BROKEN_ERRORS as exc:
                broke = _fault(exc, url, proxy)
            raise broke

        try:
            named = {name.lower(): value for name, value in response.headers.items()}
            yield Answer(response.status, named, receive, self._answer_bytes)
        finally:
            response.close()  # a connection whose body was read to its end went back to the pool by then

    async def aclose(self) -> None:
        """Close every pool. Twice is once."""
        await self._pools.aclose()


class _Pool(LoopPool):
    loop: asyncio.AbstractEventLoop

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: TransportLimits, tls: ssl.SSLContext | None) -> None:
        super().__init__(loop)
        self._sockets = known = weakref.WeakSet[socket.socket]()

        def make_socket(address: Any) -> socket.socket:
            made = socket.socket(*address[:3])
            known.add(made)
            return made

        self.session = aiohttp.ClientSession(
            connector=_Connector(
                limit=limits.connections,
                keepalive_timeout=limits.keepalive_s,
                ssl=tls or True,
                socket_factory=make_socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),  # one caller's cookies are not another's
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_timeout_s),
            headers={"User-Agent": "routewright", "Accept-Encoding": "gzip, deflate"},
            auto_decompress=False,
            trust_env=False,
        )

    def loop_is_over(self) -> bool:
        return self.loop.is_closed()

    def loop_runs_here(self) -> bool:
        with suppress(RuntimeError):
            return asyncio.get_running_loop() is self.loop
        return False

    def call_in_loop(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(callback)

    async def close_connections(self) -> None:
        await self.session.close()

    def abort_connections(self) -> None:
        if not hasattr(self.loop, "_transports"):  # uvloop: the best that can be done is to begin
            self._closing = self.loop.create_task(self.session.close())
            return
        self.session.detach()
        for transport in self._transports():
            transport.abort()

    def abandon_connections(self) -> None:
        self.session.detach()
        # asyncio has no public way to end a transport without its loop: closing it would reach for the selector, which
        # is gone, or shared with the parent process
        for transport in self._transports():
            with suppress(AttributeError):
                transport.get_protocol()._app_transport._closed = True
            transport._sock = None
        for made in list(self._sockets):
            made.close()

    def _transports(self) -> list[Any]:
        """Those of our sockets. A loop without such a table closes all of its own as it is closed."""
        known = getattr(self.loop, "_transports", {})
        return [transport for made in list(self._sockets) if (transport := known.get(made.fileno())) is not None]


class _Connector(aiohttp.TCPConnector):
    def __del__(self, _warnings: object = None) -> None:
        """Do nothing: the pool ends its connections, and must not where they belong to a parent process."""


def _fault(exc: BaseException, url: str, proxy: Proxy | None) -> ProviderFault:
    host, what = urlsplit(url).netloc.rpartition("@")[2], type(exc).__name__
    if proxy is not None and isinstance(exc, aiohttp.ClientHttpProxyError):
        return refused_by(proxy, host, exc.status)
    if not isinstance(exc, _CONNECT_ERRORS):
        return broken(host, what)
    # what is behind it, without the words that aiohttp puts around that
    why = getattr(exc, "certificate_error", None) or getattr(exc, "os_error", None) or exc
    return unconnected(host, f"{what}: {why}", exc, proxy)
