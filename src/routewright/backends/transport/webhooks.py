"""Sends webhooks with aiohttp, to public addresses only.

Addresses are checked twice: when a host name is resolved, and when the socket is created.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from routewright._core.addresses import is_loopback, is_public
from routewright._core.webhooks.endpoint import check_url
from routewright._runtime.loop import Threads
from routewright.backends.clock import SystemClock
from routewright.backends.providers.faults import retry_after
from routewright.errors import ValidationFailed
from routewright.wire import WebhookAnswer

_BODY_BYTES = 64 << 10  # read of a body, to reuse the connection
_BODY_S = 1.0
_BODIES = 32  # slow bodies must not use up all connections
_CONNECTIONS = 256
_HEADERS = {"User-Agent": "routewright", "Accept-Encoding": "identity"}
_REASONS = {
    None: "the connection was closed before an answer",
    errno.ECONNRESET: "the connection was closed before an answer",
    errno.ECONNREFUSED: "the connection was refused",
    errno.EHOSTUNREACH: "the host cannot be reached",
    errno.ENETUNREACH: "the host cannot be reached",
}
_clock = SystemClock()
_lookups = Threads("host names of webhooks", 16)
_first_lookups = Threads("new host names of webhooks", 64)
"""For names that are new or had no address last time. They may hang and must not block known names."""
_MOST_KNOWN = 10_000


class AiohttpWebhooks:
    """Sends webhooks over one aiohttp session of the running loop. ``allow_loopback`` is for development."""

    def __init__(self, *, allow_loopback: bool = False, ssl_context: ssl.SSLContext | None = None) -> None:
        self._allow_loopback = allow_loopback
        self._ssl = ssl_context or True
        self._session: aiohttp.ClientSession | None = None
        self._bodies: set[asyncio.Task[None]] = set()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        """Send one POST, without redirects. Returns the status without waiting for the body. Raises ``OSError``."""
        try:
            check_url(url, allow_loopback=self._allow_loopback)
            if self._session is None:
                guard = _Guard(self._allow_loopback)
                connector = aiohttp.TCPConnector(
                    limit=_CONNECTIONS, keepalive_timeout=15.0, ssl=self._ssl, resolver=guard, use_dns_cache=False,
                    socket_factory=guard.make_socket,  # the resolver does not see addresses in URLs
                )  # fmt: skip
                self._session = aiohttp.ClientSession(
                    connector=connector, headers=_HEADERS, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False,
                    timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False,
                )  # fmt: skip
            response = await self._session.post(url, headers=headers, data=body, allow_redirects=False)
        except (ValidationFailed, aiohttp.ClientError, OSError) as exc:
            raise OSError(_reason(exc)) from exc
        if response.connection is not None and len(self._bodies) < _BODIES:
            self._bodies.add(task := asyncio.create_task(_read_body(response)))
            task.add_done_callback(self._bodies.discard)
        else:
            response.close()  # no effect if the body came with the headers
        return WebhookAnswer(response.status, retry_after(response.headers))

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()  # first: a task that is cancelled before it begins leaves its answer open
        for task in self._bodies:
            task.cancel()
        await asyncio.gather(*self._bodies, return_exceptions=True)


class _Refused(OSError):
    """Raised before connecting. The message contains no address."""


_NOT_PUBLIC = "the host has no public address"
"""Also for hosts without any address: the message must not reveal which internal names exist."""


class _Guard(AbstractResolver):
    def __init__(self, allow_loopback: bool) -> None:
        self._allow_loopback = allow_loopback
        self._known: set[str] = set()
        """Names that had an address last time."""

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_UNSPEC) -> list[ResolveResult]:
        addresses = None
        threads = _lookups if host in self._known else _first_lookups
        self._known.discard(host)
        with suppress(OSError, UnicodeError):
            addresses = await threads.run(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
        if not addresses:
            raise _Refused(_NOT_PUBLIC)
        if len(self._known) < _MOST_KNOWN:
            self._known.add(host)
        checked = [(family, self._checked(address)) for family, *_, address in addresses]
        return [
            ResolveResult(hostname=host, host=to, port=port, family=family, proto=0, flags=0) for family, to in checked
        ]

    def make_socket(self, info: tuple[int, int, int, str, Sequence[object]]) -> socket.socket:
        self._checked(info[4])
        return socket.socket(*info[:3])

    def _checked(self, address: Sequence[object]) -> str:
        host = str(address[0])
        if is_public(host) or (self._allow_loopback and is_loopback(host)):
            return host
        raise _Refused(_NOT_PUBLIC)

    async def close(self) -> None: ...


async def _read_body(response: aiohttp.ClientResponse) -> None:
    remaining = _BODY_BYTES
    ended = (aiohttp.ClientError, OSError, RuntimeError)  # the last one of a connection that the session closed
    with suppress(*ended), _clock.deadline(_clock.monotonic() + _BODY_S), closing(response):
        while remaining and (piece := await response.content.read(remaining)):
            remaining -= len(piece)


def _reason(error: Exception) -> str:
    """The error for the owner of the endpoint, without addresses and without data from the endpoint."""
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(cause, (ValidationFailed, _Refused)):
        return str(cause)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"TLS: certificate verify failed: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {(cause.reason or 'handshake failed').replace('_', ' ').lower()}"
    if isinstance(cause, aiohttp.ClientResponseError):
        return "the answer is not HTTP"
    return _REASONS.get(getattr(cause, "errno", None), "the connection failed")
