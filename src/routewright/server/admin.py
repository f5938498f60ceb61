"""Health checks, status and metrics for operators.

A separate application without authentication, for an address that only operators can reach."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread
import msgspec

from routewright.errors import ValidationFailed
from routewright.router import Router
from routewright.wire.problems import shown

from .exchange import JSON, ClientLeft, Exchange, Receive, Scope, Send, serve_other
from .http_limits import HttpLimits

if TYPE_CHECKING:
    from .metrics import Metrics

PROBES = ("/healthz", "/readyz")
"""Paths that the main application answers, too, with ``create_app(health=True)``."""
READY_S = 2.0
"""How long reading and writing the storage may take."""
MOST_READY_S = 60.0


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    content_type: bytes = JSON


class Admin:
    """An ASGI application that serves ``/healthz``, ``/readyz``, ``/status`` and ``/metrics``."""

    def __init__(self, router: Router, metrics: Metrics | str, ready_s: float) -> None:
        """``metrics``: the metrics, or why there are none."""
        self._metrics = metrics
        self._router = router
        self._ready_s = ready_s
        self.addresses: Mapping[str, Callable[[], Awaitable[Reply]]] = {
            "/healthz": self._health,
            "/readyz": self._ready,
            "/status": self._status,
            "/metrics": self._figures,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await serve_other(scope, receive, send, {})
            return
        exchange = Exchange(scope, receive, send, self._router.new_id("req_"), self._router.clock, HttpLimits())
        if (serve := self.addresses.get(exchange.path)) is None:
            reply = _json_reply(404, error=f"not found; available are {', '.join(self.addresses)}")
        elif exchange.method not in ("GET", "HEAD"):
            reply = _json_reply(405, error="this address takes GET")
        else:
            reply = await serve()
        headers = {"Allow": "GET, HEAD"} if reply.status == 405 else None
        with suppress(ClientLeft):
            await exchange.respond(reply.body, reply.status, reply.content_type, headers)

    async def _health(self) -> Reply:
        """200 while the process runs."""
        return _json_reply(200, status="ok")

    async def _ready(self) -> Reply:
        """200 if the Router is open and its storage can be read and written in time, else 503 with the problem."""
        problem = await self._router.problem(within_s=self._ready_s)
        if problem is not None:
            return _json_reply(503, status="unavailable", problem=problem, means="requests are refused or wait")
        lack = self._router.degraded
        return _json_reply(200, status="ok") if lack is None else _json_reply(200, status="degraded", problem=lack)

    async def _status(self) -> Reply:
        """The state of the parts of the process that answers, as `Router.status` returns it."""
        return Reply(200, self._router.status().to_json().encode())

    async def _figures(self) -> Reply:
        """Metrics for Prometheus; 404 without the extra `metrics`."""
        if isinstance(self._metrics, str):
            return _json_reply(404, error=self._metrics)
        from .metrics import CONTENT_TYPE  # installed, since there are metrics

        return Reply(200, await anyio.to_thread.run_sync(self._metrics.render), CONTENT_TYPE.encode())


def create_admin(router: Router, *, metrics: Metrics | None = None, ready_s: float = READY_S) -> Admin:
    """Create the ASGI application with ``/healthz``, ``/readyz``, ``/status`` and ``/metrics``, to be served at an
    address of its own.

        admin = create_admin(router)

    ``metrics``: the ``Metrics`` that observe the main application. Without them only calls are counted; without the
    extra ``metrics`` nothing is. ``ready_s``: how long reading and writing the storage may take."""
    seconds: object = ready_s
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MOST_READY_S:
        hint = f"take a number of seconds above 0, at most {MOST_READY_S:g}"
        raise ValidationFailed.at("ready_s", f"is {shown(ready_s)}", hint)
    if metrics is not None:
        return Admin(router, metrics, ready_s)
    try:
        from .metrics import Metrics
    except ModuleNotFoundError as exc:
        return Admin(router, str(exc), ready_s)
    return Admin(router, Metrics(router), ready_s)


def _json_reply(code: int, /, **fields: str) -> Reply:
    return Reply(code, msgspec.json.encode(fields))
