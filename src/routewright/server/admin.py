"""What an operator asks: does the process live, can it serve, what are its figures?

An application of its own, for an address that only operators reach: nobody has to say who they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread
import msgspec

from routewright._core.request.problems import shown
from routewright.errors import Problem, ValidationFailed
from routewright.router import Router

from .exchange import JSON, Receive, Scope, Send

if TYPE_CHECKING:
    from .metrics import Metrics

PROBES = ("/healthz", "/readyz")
"""Addresses that an application may answer besides (``create_app(health=True)``)."""
READY_S = 2.0
"""How long the storage may take to be read, and written."""
MOST_READY_S = 60.0


class Said(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    content_type: bytes = JSON


class Admin:
    """An ASGI application that serves ``/healthz``, ``/readyz`` and ``/metrics``."""

    def __init__(self, router: Router, metrics: Metrics | str, ready_s: float) -> None:
        """``metrics``: those to tell, or the sentence that says why there are none."""
        self._metrics = metrics
        self._router = router
        self._ready_s = ready_s
        self.addresses: Mapping[str, Callable[[], Awaitable[Said]]] = {
            "/healthz": self._health,
            "/readyz": self._ready,
            "/metrics": self._figures,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI has it."""
        if scope["type"] == "http":
            await self._answer(scope, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        while scope["type"] == "lifespan":
            event = (await receive())["type"]
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    async def _answer(self, scope: Scope, send: Send) -> None:
        root: str = scope.get("root_path", "").rstrip("/")
        serve = self.addresses.get(scope["path"].removeprefix(root))
        if serve is None:
            said = _told(404, error=f"there is nothing at this address; there are {', '.join(self.addresses)}")
        elif scope["method"] not in ("GET", "HEAD"):
            said = _told(405, error="this address takes GET")
        else:
            said = await serve()
        headers = [
            (b"content-type", said.content_type),
            (b"content-length", b"%d" % len(said.body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        if said.status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": said.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else said.body})

    async def _health(self) -> Said:
        """200 while the process answers at all."""
        return _told(200, status="ok")

    async def _ready(self) -> Said:
        """200 while the Router is open and its storage can be read and written in time, else 503 with the problem."""
        problem = await self._router.problem(within_s=self._ready_s)
        if problem is not None:
            return _told(503, status="unavailable", problem=problem, means="requests here are refused, or wait")
        lacks = self._router.degraded
        return _told(200, status="ok") if lacks is None else _told(200, status="degraded", problem=lacks)

    async def _figures(self) -> Said:
        """Figures for Prometheus; 404 without the extra `metrics`."""
        if isinstance(self._metrics, str):
            return _told(404, error=self._metrics)
        from .metrics import CONTENT_TYPE  # it is there, since somebody made the figures

        body = await anyio.to_thread.run_sync(self._metrics.render)
        return Said(200, body, CONTENT_TYPE.encode())


def create_admin(router: Router, *, metrics: Metrics | None = None, ready_s: float = READY_S) -> Admin:
    """Put what an operator asks on HTTP, as an ASGI application for an address of its own.

        admin = create_admin(router)

    ``metrics`` are those that are an observer of the application; without them there are figures of calls alone, and
    none without the extra ``metrics``. ``ready_s``: how long the storage may take to be read, and written."""
    given: object = ready_s
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= MOST_READY_S:
        hint = f"take a number of seconds above 0, at most {MOST_READY_S:g}"
        raise ValidationFailed.of(Problem("ready_s", f"is {shown(ready_s)}", hint))
    if metrics is not None:
        return Admin(router, metrics, ready_s)
    try:
        from .metrics import Metrics
    except ModuleNotFoundError as exc:
        return Admin(router, str(exc), ready_s)
    return Admin(router, Metrics(router), ready_s)


def _told(code: int, /, **words: str) -> Said:
    return Said(code, msgspec.json.encode(words))
