"""The application of a worker process: a Router for requests, and the administrator's listener."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from socket import socket
from typing import Any

import uvicorn
from msgspec.structs import replace

from routewright.console import Console
from routewright.errors import RouterError
from routewright.router import Router
from routewright.server.access_log import AccessLog
from routewright.server.admin import create_admin
from routewright.server.app import App, create_app
from routewright.server.exchange import Receive, Scope, Send
from routewright.server.http_limits import ConnectionLimits, HttpLimits
from routewright.server.http_protocol import ENDING, OBSERVERS, BoundedProtocol
from routewright.ui import create_ui

from .parts import open_router
from .plan import Plan
from .processes import METRICS_FOLDER

ERROR_SEND_S = 2.0
"""How long cancelled requests may take to send their error."""
ADMINISTRATORS = 32
"""Connections of the administrator."""
OPERATORS = 64
"""The same with the page. A browser opens up to six."""
OTHER_FILES = 288
"""Open files kept free for the store, providers, the administrator and refused clients."""
PAGE = "/ui"
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
_log = logging.getLogger("routewright.serve")


class WorkerApp:
    """An ASGI application. Its lifespan opens the Router, and closes it when requests have ended."""

    def __init__(self, plan: Plan, administration: socket | None) -> None:
        self._plan = plan
        self._administration = administration
        self._app: App  # from the start of the lifespan
        self._running: set[asyncio.Task[object]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection. Requests cancelled at shutdown are no error in uvicorn's log."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            with suppress(asyncio.CancelledError):
                await self._app(scope, receive, send)
        finally:
            self._running.discard(task)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        # At its end uvicorn waits for requests as long as `graceful_timeout_s`, then cancels the rest and asks for this
        # shutdown in the same moment. Closing the Router here would take the storage away from calls that are still
        # settling, and their clients would see a cut connection instead of an error. So the cancelled requests first
        # get two seconds to send it; only then pending traces are written (P8) and the Router is closed.
        # test_requests_that_outlast_the_grace_period_get_an_error
        await receive()
        async with AsyncExitStack() as stack:
            try:
                router, console = await stack.enter_async_context(open_router(self._plan))
            except RouterError as error:
                await send({"type": "lifespan.startup.failed", "message": f"this worker cannot serve: {error}"})
                return
            app, admin = self._applications(router, console, scope["state"])
            announce_end(scope["state"])
            await app.start()
            if self._administration is not None:
                limits = ConnectionLimits(
                    **self._plan.connections | {"open": OPERATORS if self._plan.ui else ADMINISTRATORS}
                )
                proxies = self._plan.trusted_proxies
                await stack.enter_async_context(serve_beside(admin, self._administration, limits, proxies))
            self._app = app
            await send({"type": "lifespan.startup.complete"})
            await receive()
            if self._running:
                await asyncio.wait(self._running, timeout=ERROR_SEND_S)
            await app.stop()
        await send({"type": "lifespan.shutdown.complete"})

    def _applications(self, router: Router, console: Console, state: dict[str, Any]) -> tuple[App, Application]:
        """The applications of clients and of the administrator. Sets the observers of refused clients in ``state``."""
        plan = self._plan
        metrics = None
        observers: list[Any] = [AccessLog(client=True)] if plan.access_log else []
        if self._administration is not None:
            if METRICS_FOLDER in os.environ:  # may have been removed with other temporary files
                os.makedirs(os.environ[METRICS_FOLDER], exist_ok=True)
            with suppress(ModuleNotFoundError):  # the extra is missing, as /metrics says
                from routewright.server.metrics import Metrics

                metrics = Metrics(router)
                observers.append(metrics)
        app = create_app(
            router,
            console,
            environment=plan.environment,
            limits=HttpLimits(**plan.http),
            observers=observers,
            cors_origins=plan.cors_origins,
            health=plan.health,
        )
        state[OBSERVERS] = [observer.on_refusal for observer in observers]
        admin: Application = create_admin(router, metrics=metrics)
        return app, mounted(create_ui(router, console, hosts=plan.ui_hosts), admin) if plan.ui else admin


def mounted(page: Application, admin: Application) -> Application:
    """The administrator's application with the page at ``/ui``, to which ``/`` leads."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        path = PAGE if scope.get("path") == "/" else scope.get("path", "")
        if scope["type"] == "http" and (path == PAGE or path.startswith(f"{PAGE}/")):
            await page({**scope, "path": path, "root_path": PAGE}, receive, send)
        else:
            await admin(scope, receive, send)

    return serve


def announce_end(state: dict[str, Any]) -> None:
    """Let signals that end this worker set ``ENDING``, too: uvicorn tells only the connections that it has by then."""
    # uvicorn tells each connection that is in its list, once. One that is accepted but not yet in the list would be
    # kept alive, and the worker would wait for an idle client until the grace period has passed. With ENDING, which
    # the handler of the signal sets itself, every connection closes after its next answer.
    # test_a_signal_tells_even_connections_that_are_not_there_yet,
    # test_a_kept_connection_is_answered_once_more_at_shutdown

    def handler(then: Any, number: int, frame: Any) -> None:
        state[ENDING] = True
        then(number, frame)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, partial(handler, signal.getsignal(number)))


class _QuietServer(uvicorn.Server):
    """A server that leaves signals alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_beside(
    app: Application, listener: socket, limits: ConnectionLimits, proxies: Sequence[str] = ()
) -> AsyncIterator[None]:
    """Serve an application beside what the block does. ``proxies``: trusted ones."""
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http=partial(BoundedProtocol, limits=limits),  # type: ignore[arg-type]  # uvicorn only calls it
        proxy_headers=bool(proxies),
        forwarded_allow_ips=[*proxies],
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    server = _QuietServer(config)
    task = asyncio.create_task(server.serve([listener]))
    while not (server.started or task.done()):
        await asyncio.wait([task], timeout=0.01)
    if task.done():
        task.result()
    try:
        yield
    finally:
        for server_socket in server.servers:
            server_socket.close()
        task.cancel()
        await asyncio.wait([task])


def protocol_of(plan: Plan) -> type[asyncio.Protocol]:
    """uvicorn's protocol, with as many connections as the plan and open files allow."""
    limits = fit_open_files(ConnectionLimits(**plan.connections))
    return partial(BoundedProtocol, limits=limits)  # type: ignore[return-value]  # uvicorn only calls it


def fit_open_files(limits: ConnectionLimits) -> ConnectionLimits:
    """Limits with no more connections than open files allow. Raises the soft limit of open files to the hard one."""
    try:
        import resource  # Windows has none

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(ValueError, OSError):  # macOS has a second limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ModuleNotFoundError:
        return limits
    maximum = max(files - min(OTHER_FILES, files // 2), 1)
    if files == resource.RLIM_INFINITY or limits.open <= maximum:
        return limits
    _log.warning("connections.open is %d, not %d: the process may open %d files", maximum, limits.open, files)
    return replace(limits, open=maximum)
