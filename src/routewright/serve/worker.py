"""What a worker does: serve a Router at the sockets it is given, until it is asked to leave."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from socket import socket
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import uvicorn
from uvicorn.config import STARTUP_FAILURE

from routewright.errors import RouterError
from routewright.protocols import Storage
from routewright.router import Router
from routewright.server.access_log import AccessLog
from routewright.server.admin import create_admin
from routewright.server.app import create_app
from routewright.server.limits import ConnectionLimits, HttpLimits
from routewright.server.protocol import FLUSH_S, BoundedProtocol, ListenerState

from .building import console_of, existing_storage_of, router_of, sow
from .descriptors import OPERATORS, fitted
from .logs import lost_lines, set_up
from .plan import Plan
from .telemetry import export
from .tls import server_context

if TYPE_CHECKING:
    from routewright.server.metrics import Metrics

_Asgi = Callable[..., Awaitable[None]]
_log = logging.getLogger("routewright.serve")

TICK_S = 1.0
LAST_WORDS_S = 2.0
"""So long requests that are cut short may take to say so."""


def work(plan: Plan, listeners: list[socket], line: Connection) -> None:
    """Serve. ``listeners``: that of requests, and that of the administrator, if there is one."""
    set_up(plan.log_level, access=plan.access_log)
    server = WorkerServer(plan, line)
    server.run(listeners)


class Listener(uvicorn.Server):
    """uvicorn's server, at sockets that are there, within bounds, and deaf to signals."""

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self.server_state: ListenerState = ListenerState(limits)
        self._enough = asyncio.Event()

    def leave(self) -> None:
        """End, soon. Called in its loop."""
        self.should_exit = True
        self._enough.set()

    async def main_loop(self) -> None:
        """Keep the date that answers have, a second each, until it is enough. uvicorn's looks ten times a second."""
        enough = asyncio.create_task(self._enough.wait())
        try:
            while not await self.on_tick(0):
                await asyncio.wait([enough], timeout=TICK_S)
        finally:
            enough.cancel()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to accept."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        config, loop = self.config, asyncio.get_running_loop()
        protocol = partial(
            BoundedProtocol, config=config, server_state=self.server_state, app_state=self.lifespan.state
        )
        secured: dict[str, Any] = {}
        if config.ssl is not None:
            secured = {"ssl_handshake_timeout": self.server_state.limits.header_s, "ssl_shutdown_timeout": FLUSH_S}
        self.servers = [
            await loop.create_server(protocol, sock=each, ssl=config.ssl, backlog=config.backlog, **secured)
            for each in sockets or ()
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Accept no more, and let what was begun end."""
        self.server_state.is_ending = True
        await super().shutdown(sockets)
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=LAST_WORDS_S)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to others."""
        yield


class WorkerServer(Listener):
    """The server of requests, with all that has to be there for it."""

    def __init__(self, plan: Plan, line: Connection) -> None:
        super().__init__(_config(plan), fitted(ConnectionLimits(**plan.connections)))
        self._plan = plan
        self._line = line

    async def serve(self, sockets: list[socket] | None = None) -> None:
        """Serve until the supervisor, or a signal, says that it is enough."""
        assert sockets, "the supervisor holds them"
        first, *rest = sockets
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):  # of Windows, where closing the line is enough
            loop.add_signal_handler(signal.SIGTERM, self.leave)
        threading.Thread(target=self._listen, args=(loop,), name="supervisor", daemon=True).start()
        try:
            async with _opened(self._plan) as (router, storage):
                console = console_of(self._plan, router, storage)
                limits = HttpLimits(**self._plan.http)
                metrics = _metrics_of(router) if rest else None
                observers: list[AccessLog | Metrics] = [AccessLog(client=True)] if self._plan.access_log else []
                observers += [] if metrics is None else [metrics]
                self.server_state.observers = [each.refused for each in observers]
                app = create_app(
                    router, console, environment=self._plan.environment, limits=limits, observers=observers
                )
                self.config.app = _quiet(app)
                async with _administered(router, metrics, rest):
                    await self._serve([first])
        except RouterError as error:
            _log.error("this worker cannot serve: %s", error)
            sys.exit(STARTUP_FAILURE)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to accept, and let the supervisor know."""
        await super().startup(sockets)
        self._answer()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer the supervisor, by way of the loop, so that it hears nothing from one that hangs."""
        with suppress(EOFError, OSError):
            while self._line.recv_bytes():
                loop.call_soon_threadsafe(self._answer)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self.leave)

    def _answer(self) -> None:
        with suppress(OSError):
            self._line.send_bytes(b"ready" if self.started else b"starting")


@asynccontextmanager
async def _administered(router: Router, metrics: Metrics | None, listeners: list[socket]) -> AsyncIterator[None]:
    """Answer the administrator, too, from before the first request until after the last."""
    if not listeners:
        yield
        return
    config = uvicorn.Config(create_admin(router, metrics=metrics), lifespan="off", **_COMMON)
    server = Listener(config, ConnectionLimits(open=OPERATORS))
    task = asyncio.create_task(server.serve(listeners))
    try:
        yield
    finally:
        server.leave()
        await task


@asynccontextmanager
async def _opened(plan: Plan) -> AsyncIterator[tuple[Router, Storage]]:
    """The Router, loaded, over a store that can be read."""
    storage = existing_storage_of(plan)
    await sow(plan, storage)
    router = router_of(plan, storage)
    stop = None if plan.semconv is None else export(router, plan.semconv)
    try:
        console = console_of(plan, router, storage)
        await console.accounts()
        router.models()
        router.policies()
        yield router, storage
    finally:
        await router.aclose()
        if stop is not None:
            await anyio.to_thread.run_sync(stop)


def _metrics_of(router: Router) -> Metrics | None:
    """Figures, if what keeps them is installed; without them the administrator is told so."""
    try:
        from .metrics import metrics_of
    except ModuleNotFoundError:
        return None
    metrics = metrics_of(router)
    metrics.follow("log_lines_lost", lost_lines)
    return metrics


_COMMON: dict[str, Any] = {
    "http": BoundedProtocol,
    "ws": "none",
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
}


def _config(plan: Plan) -> uvicorn.Config:
    connections = ConnectionLimits(**plan.connections)
    tls: dict[str, Any] = {}
    if plan.tls is not None:
        tls["ssl_context_factory"] = partial(_context, plan)
    proxies: dict[str, Any] = {}
    if plan.trusted_proxies:
        proxies = {"proxy_headers": True, "forwarded_allow_ips": list(plan.trusted_proxies)}
    return uvicorn.Config(
        _nothing,
        root_path=plan.root_path,
        timeout_keep_alive=connections.keep_alive_s,  # type: ignore[arg-type]  # a part of a second is one, too
        timeout_graceful_shutdown=plan.graceful_timeout_s,  # type: ignore[arg-type]
        **(_COMMON | tls | proxies),
    )


def _context(plan: Plan, config: uvicorn.Config, default: object) -> Any:
    assert plan.tls is not None
    return server_context(plan.tls)


async def _nothing(scope: object, receive: object, send: object) -> None:
    """Stands where the application will, once there is one."""


def _quiet(app: _Asgi) -> _Asgi:
    """The same, but that a request which the end of the server cut short, and which has said so, is no fault."""

    async def serve(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    return serve
