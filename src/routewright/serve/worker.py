"""A worker process: a Router behind uvicorn's server, on the supervisor's sockets."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from socket import socket
from typing import Any

import uvicorn
from msgspec.structs import replace
from uvicorn.config import STARTUP_FAILURE

from routewright.console import Console
from routewright.errors import RouterError
from routewright.router import Router
from routewright.server.access_log import AccessLog
from routewright.server.admin import Admin, create_admin
from routewright.server.app import App, create_app
from routewright.server.http_limits import ConnectionLimits, HttpLimits
from routewright.server.protocol import BoundedProtocol, ListenerState

from .parts import opened, server_context
from .plan import Plan

LAST_WORDS_S = 2.0
"""How long cancelled requests may take to send their error."""
OPERATORS = 32
"""Connections of the administrator, in addition to those of clients."""
OTHER_FILES = 256
"""Open files kept free for the store, providers and refused clients."""
_log = logging.getLogger("routewright.serve")


class Listener(uvicorn.Server):
    """uvicorn's server with shared limits for its connections."""

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self.server_state: ListenerState = ListenerState(limits)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Stop accepting, and let running requests end."""
        self.server_state.is_ending = True
        await super().shutdown(sockets)
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=LAST_WORDS_S)


class WorkerServer(Listener):
    """Serves requests and the administrator as the plan says."""

    def __init__(self, plan: Plan) -> None:
        tls = plan.tls
        config = uvicorn.Config(
            "",
            interface="asgi3",
            http=BoundedProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(plan.trusted_proxies),
            forwarded_allow_ips=list(plan.trusted_proxies),
            root_path=plan.root_path,
            timeout_keep_alive=plan.connections["keep_alive_s"],
            timeout_graceful_shutdown=plan.graceful_timeout_s,  # type: ignore[arg-type]  # parts of seconds, too
            ssl_context_factory=None if tls is None else lambda config, default: server_context(tls),
        )
        super().__init__(config, ConnectionLimits(**plan.connections))
        self._plan = plan
        self._loop: asyncio.AbstractEventLoop | None = None
        self._admin: Admin | None = None

    async def serve(self, sockets: list[socket] | None = None) -> None:
        """Serve until SIGTERM. ``sockets``: the one for requests, then the administrator's, if there is one."""
        assert sockets, "the supervisor opened them"
        self._loop = asyncio.get_running_loop()
        self.server_state.limits = fitting(self.server_state.limits)
        with self.capture_signals():  # outermost, since it ends the process
            try:
                async with opened(self._plan) as (router, console):
                    self._assemble(router, console, administered=len(sockets) > 1)
                    await self._serve(sockets)
            except RouterError as error:
                _log.error("this worker cannot serve: %s", error)
                sys.exit(STARTUP_FAILURE)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start accepting."""
        assert sockets
        await super().startup(sockets[:1])
        state = self.server_state
        limits = replace(state.limits, open=state.limits.open + OPERATORS)
        admin = partial(BoundedProtocol, self.config, state, self.lifespan.state, app=self._admin, limits=limits)
        self.servers += [await asyncio.get_running_loop().create_server(admin, sock=each) for each in sockets[1:]]

    def answer(self, send: Callable[[bool], object]) -> None:
        """Report from the event loop whether the worker serves. Called in a thread."""
        if self._loop is None:
            send(False)
        else:
            self._loop.call_soon_threadsafe(lambda: send(self.started))

    def _assemble(self, router: Router, console: Console, *, administered: bool) -> None:
        plan, metrics = self._plan, None
        observers: list[Any] = [AccessLog(client=True)] if plan.access_log else []
        if administered:
            with suppress(ModuleNotFoundError):  # the extra is missing, as /metrics says
                from routewright.server.metrics import Metrics

                metrics = Metrics(router)
                observers.append(metrics)
            self._admin = create_admin(router, metrics=metrics)
        self.server_state.observers = [each.refused for each in observers]
        limits = HttpLimits(**plan.http)
        app = create_app(
            router,
            console,
            environment=plan.environment,
            limits=limits,
            observers=observers,
            cors_origins=plan.cors_origins,
            health=plan.health,
        )
        self.config.app = partial(_serve, app)


async def _serve(app: App, scope: Any, receive: Any, send: Any) -> None:
    """Serve a request. Requests cancelled at shutdown are no error in uvicorn's log."""
    with suppress(asyncio.CancelledError):
        await app(scope, receive, send)


def fitting(limits: ConnectionLimits) -> ConnectionLimits:
    """Limits with no more connections than open files allow. Raises the soft limit of open files to the hard one."""
    try:
        import resource  # Windows has none

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with suppress(ValueError, OSError):  # macOS has a second limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ModuleNotFoundError:
        return limits
    room = max(files - min(OTHER_FILES, files // 2), 1)
    if files == resource.RLIM_INFINITY or limits.open <= room:
        return limits
    _log.warning(
        "connections.open: lowered to %d from %d, since the process may open %d files", room, limits.open, files
    )
    return replace(limits, open=room)
