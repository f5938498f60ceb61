"""HTTP, behind one small protocol."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from routewright._runtime.fork import Guard, importing
from routewright.errors import ProviderFault
from routewright.protocols import Response, Transport

from .connections import DEFAULT_LIMITS, TransportLimits
from .network import Network, Verify

__all__ = ["AutoTransport", "TransportLimits", "Verify"]


class AutoTransport:
    """Sends requests with aiohttp on asyncio, or httpx2 on trio.

    Both are imported at first use; httpx2 needs the extra ``trio``. ``proxy``: an address such as
    ``http://user:password@host:port``; None: ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``.
    ``verify``: trusted certificates. True: those of the system, ``SSL_CERT_FILE`` or ``SSL_CERT_DIR``; a path: those of
    a PEM file or folder; an ``ssl.SSLContext``; False: any. The environment is only read here.
    """

    def __init__(
        self,
        limits: TransportLimits = DEFAULT_LIMITS,
        *,
        proxy: str | None = None,
        verify: Verify = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._limits = limits
        self._network = Network(proxy, verify, environ)
        self._guard = Guard()
        self._asyncio: Transport | None = None
        self._trio: Transport | None = None

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AbstractAsyncContextManager[Response]:
        """Send one request, from the running loop."""
        trio = sys.modules.get("trio")
        in_trio = trio is not None and trio.lowlevel.in_trio_task()
        transport = self._trio if in_trio else self._asyncio
        if transport is None and in_trio:
            try:
                with importing.lock:
                    from .httpx2 import Httpx2Transport
            except ModuleNotFoundError as missing:
                raise ProviderFault("request", str(missing)) from missing
            with self._guard.lock:
                transport = self._trio = self._trio or Httpx2Transport(self._limits, self._network)
        elif transport is None:
            with importing.lock:
                from .aiohttp import AiohttpTransport
            with self._guard.lock:
                transport = self._asyncio = self._asyncio or AiohttpTransport(self._limits, self._network)
        return transport.request(method, url, headers=headers, body=body)

    async def aclose(self) -> None:
        """Close all pools. Idempotent."""
        for transport in (self._asyncio, self._trio):
            if transport is not None:
                await transport.aclose()
