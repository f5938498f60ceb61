"""The ASGI application, and cross-origin requests."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial

import anyio

from routewright import Stream
from routewright.agent import Agent, AgentStream
from routewright.console import Console
from routewright.errors import RouterError
from routewright.router import Router
from routewright.wire import Environment
from routewright.wire.problems import shown

from .admin import PROBES, READY_S, Admin
from .bodies import Bodies
from .endpoints import Auth, Authenticate, EventFrames, Service
from .errors import envelope, headers_of, new_id, shutdown_error, to_client_error
from .exchange import CLIENT_LEFT, JSON, ClientLeft, Exchange, Observer, Receive, Scope, Send, serve_other
from .fields import wrong
from .http_limits import HttpLimits
from .routes import EXACT, body_at, find
from .sse import EventStream

AsgiResponse = Callable[[Scope, Receive, Send], Coroutine[object, object, None]]

EXPOSED = (
    "X-Request-Id, Retry-After, Warning, ETag, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, "
    "X-RateLimit-Resource, X-RateLimit-Limit-Requests, X-RateLimit-Remaining-Requests, X-RateLimit-Reset-Requests, "
    "X-RateLimit-Limit-Tokens, X-RateLimit-Remaining-Tokens, X-RateLimit-Reset-Tokens, X-Routewright-Trace-Id, "
    "X-Routewright-Model, X-Routewright-Cost-Usd, X-Routewright-Latency-Ms, X-Routewright-Policy-Version, "
    "X-Routewright-Cache, X-Routewright-Ignored, X-Routewright-Input-Tokens"
)
"""Response headers that scripts of other origins may read."""
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]+)?")


def check_origins(origins: Sequence[str], name: str) -> frozenset[str]:
    """Check a list of origins. Raises ``ValidationFailed`` naming the entry."""
    entries: object = origins
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise wrong(name, f"is {shown(origins)}", "give a list of origins, or ['*']")
    for index, origin in enumerate(entries):
        if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin):
            hint = "write scheme and host, and any unusual port, as https://app.example.com"
            raise wrong(f"{name}[{index}]", f"{shown(origin)} is not an origin", hint)
    return frozenset(entries)


class Cors:
    """Cross-origin headers. Pages of other origins can send requests, but cannot read answers."""

    def __init__(self, origins: Sequence[str]) -> None:
        """Raises ``ValidationFailed``."""
        self._origins = check_origins(origins, "cors_origins")

    async def answers(self, exchange: Exchange) -> bool:
        """Add the headers to the response. Answers preflight requests, and is True for those."""
        origin = exchange.header(b"origin")
        headers = exchange.headers
        for_all = "*" in self._origins
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
    """The ASGI application. It works without lifespan and at any mount point."""

    def __init__(
        self,
        service: Service,
        limits: HttpLimits,
        observers: Sequence[Observer] = (),
        cors: Cors | None = None,
        probes: Admin | None = None,
    ) -> None:
        self._observers = observers
        self._failed: set[int] = set()
        """The observers whose failure was logged, by their place."""
        self._cors = cors
        self._probes = probes
        self._service = service
        self._limits = limits
        self._clock = service.router.clock
        self._new_id = service.router.new_id
        self._is_open = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await serve_other(scope, receive, send, {"lifespan.startup": self.start, "lifespan.shutdown": self.stop})
            return
        exchange = Exchange(scope, receive, send, self._new_id("req_"), self._clock, self._limits)
        if self._probes is not None and exchange.path in PROBES:
            await self._probes(scope, receive, send)
            return
        try:
            if self._cors is not None and await self._cors.answers(exchange):
                return
            endpoint = EXACT.get((exchange.method, exchange.path)) or find(exchange.method, exchange.path)
            exchange.endpoint = endpoint.path
            exchange.parameter = endpoint.parameter
            if len(exchange.sent) != len(scope["headers"]):
                exchange.check_repeats()
            if not self._is_open:  # without a lifespan the first requests wait until local servers have listed models
                with suppress(RouterError):  # the call raises it again
                    await self._service.router.__aenter__()
                self._is_open = True
            await endpoint.serve(self._service, exchange)
        except ClientLeft:
            await _leave(exchange)
        except anyio.get_cancelled_exc_class():
            if exchange.status is None:
                await exchange.send_shielded(_fail(exchange, shutdown_error(), partial(body_at, exchange.path)))
            raise
        except Exception as error:  # of the host's plug-ins, or a defect; a client must get a 500
            if isinstance(error, RouterError):
                self._service.router.count_refusal(error)
            await _fail(exchange, error, partial(body_at, exchange.path))
        finally:
            if self._observers:
                exchange.ended_at = self._clock.monotonic()
                for place, observer in enumerate(self._observers):
                    try:
                        observer(exchange)
                    except Exception:  # an observer of the host may raise anything; the response has been sent
                        if place not in self._failed:
                            self._failed.add(place)
                            _log.exception("an observer of requests failed (logged once)")

    async def start(self) -> None:
        """Do what the first requests would wait for. Failures are logged."""
        try:
            await self._service.router.warm()
        except RouterError as error:
            _log.error("the first requests may fail: %s", error)

    async def stop(self) -> None:
        """Write pending traces. Failures are logged."""
        try:
            await self._service.router.flush()
        except RouterError as error:
            _log.error("some traces were not written at shutdown: %s", error)


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
    """Create the ASGI application that serves a Router over HTTP, alone or mounted in another application.

        app = create_app(Router(storage=SqliteStorage("traces.db")))

    ``console`` checks API keys; by default one over the Router's storage. ``authenticate`` replaces API keys: a
    function of the ASGI scope, async or not, that returns a ``Caller`` or raises ``AuthenticationFailed``. ``agent``
    runs the tasks of ``/v1/agents/run``; by default one with the built-in tools. ``environment``: the only environment
    whose keys are accepted; None: both. ``observers`` are called with each ended request, such as ``AccessLog()`` and
    ``Metrics(router)``; they must be quick. ``cors_origins``: origins of web pages that may send requests, as
    ``["https://app.example.com"]``; ``["*"]``: all. ``health``: answer ``/healthz`` and ``/readyz``, too, without a
    key."""
    limits = limits or HttpLimits()
    auth = Auth(router, console, authenticate, environment)
    service = Service(router, auth, Bodies(limits.bodies_bytes), agent or Agent(router))
    cors = Cors(cors_origins) if cors_origins else None
    return App(service, limits, observers, cors, Admin(router, "", READY_S) if health else None)


def sse_response(stream: Stream | AgentStream) -> AsgiResponse:
    """An ASGI response with the events of a stream, as ``POST /v1/route`` or ``/v1/agents/run`` sends them.

        async def ask(request):  # an endpoint of Starlette
            return sse_response(router.stream(request.query_params["question"]))

    An error before the first content is a JSON response with its status and headers. If the client disconnects, the
    call ends."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        clock = stream.clock if isinstance(stream, Stream) else stream.run.clock
        exchange = Exchange(scope, receive, send, new_id("req_"), clock, HttpLimits())
        try:
            await EventStream(exchange, EventFrames(exchange, stream)).run(finishes=False)
        except ClientLeft:
            await _leave(exchange)
        except Exception as error:  # as in ``App``
            await _fail(exchange, error, envelope)

    return respond


async def _leave(exchange: Exchange) -> None:
    """End the exchange with a client that disconnected."""
    exchange.left = True
    if exchange.status is None:  # middleware around the application expects a response
        with suppress(Exception):  # of the closed connection
            await exchange.respond(b"", CLIENT_LEFT, JSON)


async def _fail(exchange: Exchange, error: Exception, encode: Callable[[RouterError], bytes]) -> None:
    """Answer with an error, unless a response has begun."""
    error = to_client_error(error, exchange.request_id)
    exchange.trace_id = exchange.trace_id or error.trace_id
    exchange.code = error.code
    if exchange.status is None:
        with suppress(ClientLeft):
            await exchange.respond(encode(error), error.status, JSON, headers_of(error))
