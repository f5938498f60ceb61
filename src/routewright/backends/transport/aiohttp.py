"""HTTP on asyncio, through aiohttp."""

from __future__ import annotations

import asyncio
import io
import socket
import ssl
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler
from msgspec import Struct

from routewright.errors import ProviderFault

from .connections import DEFAULT_LIMITS, Answer, LoopPool, LoopPools, TransportLimits, failure_of, refusal_of, reset_of
from .network import Network, Proxy

T = TypeVar("T")
_CONNECT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ClientSSLError, aiohttp.ConnectionTimeoutError)
_BROKEN_ERRORS = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
_WARNS_OVER_BYTES = 1 << 20
"""aiohttp warns of longer bodies that are not files."""


class AiohttpTransport:
    """Sends requests over one aiohttp session for each event loop."""

    def __init__(self, limits: TransportLimits = DEFAULT_LIMITS, network: Network | None = None) -> None:
        network = Network() if network is None else network
        self._answer_bytes = limits.answer_bytes
        self._proxy_of = network.proxy_of
        self._pools = LoopPools(lambda loop: _Pool(loop, limits, network.tls), asyncio.get_running_loop)

    def request(self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None) -> _Exchange:
        """Send one request. The answer is valid inside the context."""
        proxy = None
        options: dict[str, Any] = {"allow_redirects": False}
        if self._proxy_of is not None:
            parts = urlsplit(url)
            if proxy := self._proxy_of(parts.scheme, parts.netloc):
                options["proxy"] = proxy.url
                if parts.scheme == "http":
                    headers = {**headers, **proxy.headers}
                else:  # the proxy of a tunnel must not see the request's headers
                    options["proxy_headers"] = proxy.headers
        pool = self._pools.get()

        def send_once() -> Awaitable[aiohttp.ClientResponse]:
            data = io.BytesIO(body) if body is not None and len(body) > _WARNS_OVER_BYTES else body
            return pool.session.request(method, url, headers=headers, data=data, **options)

        async def send() -> aiohttp.ClientResponse:
            """Send it; once more if the server had closed the connection (see ``connections``)."""
            with suppress(_ClosedWhileIdleError):
                return await send_once()
            for protocol in [*pool.idle]:
                protocol.close()
            return await send_once()

        return _Exchange(send, url, proxy, self._answer_bytes)

    async def aclose(self) -> None:
        """Close all pools. Idempotent."""
        await self._pools.aclose()


class _Exchange(Struct, eq=False):
    """One request, the context of its answer."""

    send: Callable[[], Awaitable[aiohttp.ClientResponse]]
    url: str
    proxy: Proxy | None
    answer_bytes: int
    response: aiohttp.ClientResponse = None  # type: ignore[assignment]
    """Set when it is entered."""

    async def __aenter__(self) -> Answer:
        self.response = response = await self._wait(self.send())
        if self.proxy is not None and response.status == 407:  # of an http address
            response.close()
            raise refusal_of(self.proxy, urlsplit(self.url).netloc, 407)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, headers, self._receive, self.answer_bytes)

    async def __aexit__(self, *raised: object) -> None:
        self.response.close()  # connections with a fully read body are back in the pool by now

    async def _receive(self) -> bytes:
        return await self._wait(self.response.content.readany())

    async def _wait(self, waiting: Awaitable[T]) -> T:
        try:
            return await waiting
        except _BROKEN_ERRORS as exc:
            fault = _fault_of(exc, self.url, self.proxy)
        raise fault  # outside the handler, without aiohttp's exception as context


class _Pool(LoopPool):
    loop: asyncio.AbstractEventLoop

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: TransportLimits, tls: ssl.SSLContext | None) -> None:
        super().__init__(loop)
        self._sockets = sockets = weakref.WeakSet[socket.socket]()

        def make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
            new_socket = socket.socket(*address[:3])
            sockets.add(new_socket)
            return new_socket

        connector = _Connector(
            limit=limits.connections, keepalive_timeout=limits.keepalive_s, ssl=tls or True, socket_factory=make_socket
        )
        self.idle = weakref.WeakSet[ResponseHandler]()
        self.session = aiohttp.ClientSession(
            connector=connector,
            response_class=type("Response", (_Response,), {"idle": self.idle}),
            cookie_jar=aiohttp.DummyCookieJar(),  # callers must not share cookies
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_timeout_s),
            headers={"User-Agent": "routewright", "Accept-Encoding": "gzip"},
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
        if not hasattr(self.loop, "_transports"):  # on uvloop closing can only be started
            self._closing = self.loop.create_task(self.session.close())
            return
        self.session.detach()
        for transport in self._transports():
            transport.abort()

    def abandon_connections(self) -> None:
        self.session.detach()
        # asyncio cannot close a transport without its loop: it would use the selector, which is gone, or shared with
        # the parent process
        for transport in self._transports():
            with suppress(AttributeError):
                transport.get_protocol()._app_transport._closed = True
            transport._sock = None
        for opened in list(self._sockets):
            opened.close()

    def _transports(self) -> list[Any]:
        """The transports of our sockets. Loops without such a table close theirs themselves."""
        table = getattr(self.loop, "_transports", {})
        return [transport for sock in list(self._sockets) if (transport := table.get(sock.fileno())) is not None]


class _ClosedWhileIdleError(aiohttp.ClientConnectionError):
    """The server had closed the connection before the request arrived."""


class _Response(aiohttp.ClientResponse):
    """Tells whether its connection was closed while it was idle."""

    idle: ClassVar[weakref.WeakSet[ResponseHandler]]
    """Connections of the pool that have served an answer and are idle."""

    async def start(self, connection: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        """Wait for the head of the answer. Raises ``_ClosedWhileIdleError``."""
        protocol = connection.protocol
        assert protocol is not None, "it is open"
        errors = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) if protocol in self.idle else ()
        self.idle.discard(protocol)
        connection.add_callback(partial(self.idle.add, protocol))
        with suppress(*errors):
            return await super().start(connection)
        raise _ClosedWhileIdleError


class _Connector(aiohttp.TCPConnector):
    def __del__(self, _warnings: object = None) -> None:
        """Does nothing: the pool closes connections, except for those of a parent process."""


def _fault_of(exc: BaseException, url: str, proxy: Proxy | None) -> ProviderFault:
    host = urlsplit(url).netloc.rpartition("@")[2]
    kind = type(exc).__name__
    if proxy is not None and isinstance(exc, aiohttp.ClientHttpProxyError):
        return refusal_of(proxy, host, exc.status)
    if not isinstance(exc, _CONNECT_ERRORS):
        return reset_of(host, kind)
    # the cause without aiohttp's message
    cause = getattr(exc, "certificate_error", None) or getattr(exc, "os_error", None) or exc
    return failure_of(host, f"{kind}: {cause}", exc, proxy)
