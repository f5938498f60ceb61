"""What an operator asks: does the process live, can it serve, what are its figures?

An application of its own, for an address that only operators reach: nobody has to say who they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread
import msgspec

from routewright._core.problem import shown
from routewright._engine.detached import Detached
from routewright._engine.stored import storage_faults
from routewright.errors import Problem, RouterClosed, RouterError, UnsupportedWrite, ValidationFailed
from routewright.fork import renew_in_children
from routewright.router import Router
from routewright.wire import SYSTEM_ACCOUNT, CurrentRetention, KeepLease

from .exchange import JSON, Receive, Scope, Send
from .inside import Inside

if TYPE_CHECKING:
    from .metrics import Metrics

READY_S = 2.0
"""How long the storage may take to be read, and written."""
MOST_READY_S = 60.0
LEFT_S = 10.0
"""What it has not answered by then is left, and asked again."""
WRITE_EVERY_S = 5.0
"""So often it is tried to write, at most."""
_LEASE = "own_readiness"
_CLOSED = "the router is closed"
_METHODS = ("GET", "HEAD")


class Said(NamedTuple):
    """What is answered."""

    status: int
    body: bytes
    content_type: bytes = JSON


class Admin:
    """An ASGI application that serves ``/healthz``, ``/readyz`` and ``/metrics``."""

    def __init__(self, router: Router, metrics: Metrics | str, ready_s: float) -> None:
        """``metrics``: those to tell, or the sentence that says why there are none."""
        self._metrics = metrics
        self._readiness = Readiness(router, ready_s)
        self.addresses: Mapping[str, Callable[[], Awaitable[Said]]] = {
            "/healthz": self._health,
            "/readyz": self._ready,
            "/metrics": self._figures,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI has it."""
        match scope["type"]:
            case "http":
                await self._answer(scope, send)
            case "lifespan":
                await _live(receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Scope, send: Send) -> None:
        root: str = scope.get("root_path", "").rstrip("/")
        serve = self.addresses.get(scope["path"].removeprefix(root))
        if serve is None:
            said = _told(404, error=f"there is nothing at this address; there are {', '.join(self.addresses)}")
        elif scope["method"] not in _METHODS:
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
        problem = await self._readiness.problem()
        return _told(200, status="ok") if problem is None else _told(503, status="unavailable", problem=problem)

    async def _figures(self) -> Said:
        """Figures for Prometheus; 404 without the extra `metrics`."""
        if isinstance(self._metrics, str):
            return _told(404, error=self._metrics)
        from .metrics import CONTENT_TYPE  # it is there, since somebody made the figures

        body = await anyio.to_thread.run_sync(self._metrics.render)
        return Said(200, body, CONTENT_TYPE.encode())


class Readiness:
    """Whether a Router can serve: it is open, and its storage can be read and written in time."""

    def __init__(self, router: Router, ready_s: float) -> None:
        self._inside = Inside(router)
        self._ready_s = ready_s
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing: what was being asked at a fork is the parent's."""
        self._asking: Detached[str | None] | None = None
        """The storage as it is, or was, asked: no second time while the first lasts."""
        self._step = "read"
        self._tried_at = -inf
        self._unwritten: str | None = None

    async def problem(self) -> str | None:
        """What is wrong, in words that tell nothing else; None: nothing is. A storage that is stuck is left behind."""
        clock = self._inside.clock
        if self._inside.is_closed:
            return _CLOSED
        try:
            with clock.deadline(clock.monotonic() + self._ready_s):
                if self._asking is None or self._asking.has_ended:
                    self._asking = Detached(self._ask, self._inside.worker)
                return await self._asking.result()
        except RouterClosed:
            return _CLOSED
        return self._late(self._ready_s)

    async def _ask(self) -> str | None:
        clock, longest_s = self._inside.clock, max(self._ready_s, LEFT_S)
        with clock.deadline(clock.monotonic() + longest_s):
            self._step = "read"
            return await _fault("read", self._read) or await self._not_written()
        return self._late(longest_s)

    def _late(self, seconds: float) -> str:
        return f"the storage was not {self._step} within {seconds:g} s"

    async def _not_written(self) -> str | None:
        """Why nothing can be written: that traces wait is known; else it is tried, now and then."""
        if self._inside.is_stuck:
            return "the storage cannot be written: traces wait"
        now = self._inside.clock.monotonic()
        if now - self._tried_at >= WRITE_EVERY_S:
            self._step = "written"
            self._unwritten = await _fault("written", self._write)
            self._tried_at = now
        return self._unwritten

    async def _read(self) -> None:
        await self._inside.storage.read(SYSTEM_ACCOUNT, CurrentRetention())

    async def _write(self) -> None:
        """Keep a lease under which nothing is held, in the place of the last."""
        lease = KeepLease(_LEASE, WRITE_EVERY_S, self._inside.clock.monotonic())
        with suppress(UnsupportedWrite):  # a storage that keeps traces alone, and answers
            await self._inside.storage.apply(SYSTEM_ACCOUNT, [lease])


async def _fault(done: str, ask: Callable[[], Awaitable[None]]) -> str | None:
    try:
        with storage_faults():
            await ask()
    except RouterError as error:  # its words stay there
        return f"the storage cannot be {done}: {error.code}"
    return None


def create_admin(router: Router, *, metrics: Metrics | None = None, ready_s: float = READY_S) -> Admin:
    """Put what an operator asks on HTTP, as an ASGI application for an address of its own.

        admin = create_admin(router)

    ``metrics`` are those that are an observer of the application; without them there are figures of calls alone, and
    none without the extra ``metrics``. ``ready_s``: how long the storage may take to be read, and written.
    """
    given: object = ready_s
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= MOST_READY_S:
        problem = Problem(
            "ready_s", f"is {shown(ready_s)}", f"take a number of seconds above 0, at most {MOST_READY_S:g}"
        )
        raise ValidationFailed.of(problem)
    return Admin(router, _metrics_of(router) if metrics is None else metrics, ready_s)


def _metrics_of(router: Router) -> Metrics | str:
    try:
        from .metrics import Metrics
    except ModuleNotFoundError as exc:
        return str(exc)
    return Metrics(router)


def _told(code: int, /, **words: str) -> Said:
    return Said(code, msgspec.json.encode(words))


async def _live(receive: Receive, send: Send) -> None:
    """Begin and end with the server."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
