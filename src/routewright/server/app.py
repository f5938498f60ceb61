"""The ASGI application, and cross-origin requests."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress

import anyio

from routewright._core.request.problems import shown
from routewright.agent import Agent
from routewright.console import Console
from routewright.errors import RouterError
from routewright.router import Router
from routewright.wire import Environment

from .admin import PROBES, READY_S, Admin
from .auth import Auth, Authenticate
from .bodies import Bodies
from .endpoints import Service
from .errors import headers_of, stopped, told
from .exchange import CLIENT_LEFT, JSON, ClientLeft, Exchange, Observer, Receive, Scope, Send
from .fields import wrong
from .http_limits import HttpLimits
from .routes import EXACT, body_at, find

EXPOSED = (
    "X-Request-Id, Retry-After, Warning, ETag, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, "
    "X-RateLimit-Resource, X-RateLimit-Limit-Requests, X-RateLimit-Remaining-Requests, X-RateLimit-Reset-Requests, "
    "X-RateLimit-Limit-Tokens, X-RateLimit-Remaining-Tokens, X-RateLimit-Reset-Tokens, X-Routewright-Trace-Id, "
    "X-Routewright-Model, X-Routewright-Cost-Usd, X-Routewright-Latency-Ms, X-Routewright-Policy-Version, "
    "X-Routewright-Cache, X-Routewright-Ignored, X-Routewright-Input-Tokens"
)
"""Headers of answers that a page may read: all of ours."""
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]+)?")


def checked_origins(given: Sequence[str], name: str) -> frozenset[str]:
    """Check a list of origins. Raises ``ValidationFailed`` naming the entry."""
    listed: object = given
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise wrong(name, f"is {shown(given)}", "give a list of origins, or ['*']")
    for place, origin in enumerate(listed):
        if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin):
            hint = "write scheme and host, with the port if it is not the usual one, as https://app.example.com"
            raise wrong(f"{name}[{place}]", f"{shown(origin)} is no origin", hint)
    return frozenset(listed)


class Cors:
    """Tells browsers which pages may read answers. Those of other origins can send requests, and read nothing."""

    def __init__(self, origins: Sequence[str]) -> None:
        """Raises ``ValidationFailed``."""
        self._origins = checked_origins(origins, "cors_origins")

    async def answers(self, exchange: Exchange) -> bool:
        """Put the headers on the answer of this exchange. True if it is answered already, being a browser's question
        whether it may ask."""
        origin, headers, for_all = exchange.header(b"origin"), exchange.headers, "*" in self._origins
        if not for_all:
            headers["Vary"] = "Origin"
        if origin is None or not (for_all or origin in self._origins):
            return False
        headers["Access-Control-Allow-Origin"] = "*" if for_all else origin
        if not for_all:
            headers["Access-Control-Allow-Credentials"] = "true"
        if exchange.method != "OPTIONS" or exchange.header(b"access-control-request-method") is None:
            headers["Access-Control-Expose-Headers"] = EXPOSED
            return False
        headers["Access-Control-Allow-Methods"] = "GET, HEAD, POST"
        headers["Access-Control-Allow-Headers"] = exchange.header(b"access-control-request-headers") or ""
        headers["Access-Control-Max-Age"] = "600"
        await exchange.respond(b"", 200, JSON)
        return True


_log = logging.getLogger(__name__)


class App:
    """An ASGI application. It needs no lifespan, and works at any mount point."""

    def __init__(
        self,
        service: Service,
        limits: HttpLimits,
        observers: Sequence[Observer] = (),
        cors: Cors | None = None,
        probes: Admin | None = None,
    ) -> None:
        self._observers = observers
        self._cors = cors
        self._probes = probes
        self._service = service
        self._limits = limits
        self._clock = service.router.clock
        self._new_id = service.router.new_id
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI has it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._live(receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        exchange = Exchange(scope, receive, send, self._new_id("req_"), self._clock, self._limits)
        if self._probes is not None and exchange.path in PROBES:
            await self._probes(scope, receive, send)
            return
        try:
            if self._cors is not None and await self._cors.answers(exchange):
                return
            endpoint = EXACT.get((exchange.method, exchange.path)) or find(exchange.method, exchange.path)
            exchange.endpoint, exchange.parameter = endpoint.path, endpoint.parameter
            if len(exchange.sent) != len(scope["headers"]):
                exchange.check_twice()
            if not self._begun:  # without a lifespan: the first requests wait until servers have said their models
                with suppress(RouterError):  # it is told where it matters
                    await self._service.router.__aenter__()
                self._begun = True
            await endpoint.serve(self._service, exchange)
        except ClientLeft:
            exchange.left = True
            if exchange.status is None:  # no client hears it, but middleware around an application waits for an answer
                with suppress(Exception):  # whatever a server raises of a closed connection
                    await exchange.respond(b"", CLIENT_LEFT, JSON)
        except anyio.get_cancelled_exc_class():
            if exchange.status is None:
                await exchange.shielded(_fail(exchange, stopped()))
            raise
        except Exception as error:
            await _fail(exchange, error)
        finally:
            if self._observers:
                self._observed(exchange)

    def _observed(self, exchange: Exchange) -> None:
        """Let them know of an exchange that has ended. What they raise is logged, and harms nobody."""
        exchange.ended_at = self._clock.monotonic()
        for observer in self._observers:
            try:
                observer(exchange)
            except Exception:
                _log.exception("an observer of requests failed; it is called again all the same")

    async def _live(self, receive: Receive, send: Send) -> None:
        """Begin and end with the server. Traces that wait are written before its end."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self._service.router.warm()
                except RouterError as error:
                    _log.error("the first requests may fail: %s", error)
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                try:
                    await self._service.router.flush()
                except RouterError as error:
                    _log.error("some traces were not written at the end: %s", error)
                await send({"type": "lifespan.shutdown.complete"})
                return


def create_app(
    router: Router,
    console: Console | None = None,
    authenticate: Authenticate | None = None,
    *,
    agent: Agent | None = None,
    environment: Environment | None = None,
    limits: HttpLimits | None = None,
    observers: Sequence[Observer] = (),
    cors_origins: Sequence[str] = (),
    health: bool = False,
) -> App:
    """Put a Router on HTTP: an ASGI application, to be served by uvicorn or mounted in another.

        app = create_app(Router(storage=SqliteStorage("traces.db")))

    ``console`` knows the API keys; without one it is that of the Router's storage. ``authenticate`` says in its place
    who calls: a function, async or not, of the ASGI scope, that gives a ``Caller`` or raises ``AuthenticationFailed``.
    ``agent`` runs the tasks of ``/v1/agents/run``, with its tools; without one there are the built-in ones.
    ``environment``: the keys that this address takes, ``production`` or ``sandbox``; None: both. ``observers`` are told
    of every request once it has ended, such as ``AccessLog()`` and ``Metrics(router)``; they must not take long.
    ``cors_origins``: the web pages that may ask from a browser, as ``["https://app.example.com"]``; ``["*"]``: all.
    ``health``: answer ``/healthz`` and ``/readyz`` here, too, without a key."""
    limits = limits or HttpLimits()
    auth = Auth(router, console, authenticate, environment)
    service = Service(router, auth, Bodies(limits.bodies_bytes), agent or Agent(router))
    cors = Cors(cors_origins) if cors_origins else None
    return App(service, limits, observers, cors, Admin(router, "", READY_S) if health else None)


async def _fail(exchange: Exchange, error: Exception) -> None:
    """Answer with an error, if nothing was sent yet."""
    error = told(error, exchange.request_id)
    exchange.trace_id, exchange.code = exchange.trace_id or error.trace_id, error.code
    if exchange.status is None:
        with suppress(ClientLeft):
            await exchange.respond(body_at(exchange.path, error), error.status, JSON, headers_of(error))
