"""What the endpoints need: who calls, and a Router that answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from functools import partial
from inspect import isawaitable
from typing import Any

from msgspec.structs import replace

from routewright._core.account import may
from routewright._core.problem import shown
from routewright._core.request import shaped_request
from routewright._core.rules import completed
from routewright._core.scan import decode as plain
from routewright._core.tags import tagged
from routewright._core.tokens import bounds_of
from routewright._core.traceparent import TraceParent
from routewright._engine.admission import Admission
from routewright._engine.answer import Answer
from routewright._engine.reading import Read
from routewright._engine.traceparent import parent_here
from routewright.arguments import check_caller
from routewright.console import Console
from routewright.errors import AuthenticationFailed, PermissionDenied, Problem, ValidationFailed
from routewright.router import Router
from routewright.wire import Caller, Environment, RouteRequest, Scope

from .bodies import Bodies
from .departure import while_connected
from .exchange import Exchange
from .exchange import Scope as AsgiScope
from .inside import Inside
from .sse import EventStream, Frames

Authenticate = Callable[[AsgiScope], Caller | Awaitable[Caller]]
"""Says who calls by an ASGI scope. Raises ``AuthenticationFailed``."""
Decode = Callable[[bytes], RouteRequest]
"""Makes a request of a body, right in its types. Raises ``ValidationFailed``."""


class Service:
    """A Router at an address."""

    def __init__(
        self,
        router: Router,
        console: Console | None,
        authenticate: Authenticate | None,
        environment: Environment | None,
        bodies: Bodies,
    ) -> None:
        self.router = router
        self.inside = Inside(router)
        self.environment = environment
        self._console = console
        self._authenticate = authenticate
        self._bodies = bodies

    async def caller(self, exchange: Exchange, scope: Scope, key: str | None = None) -> Caller:
        """Who asks. ``key``: an ``Authorization`` header, in the place of the one that was sent.

        Raises ``AuthenticationFailed``, ``PermissionDenied`` and ``StorageUnavailable``.
        """
        if self._authenticate is not None:
            said = self._authenticate(exchange.scope)
            caller = await said if isawaitable(said) else said
            check_caller(caller)
            self._check_environment(caller)
        else:
            header = exchange.header(b"authorization") if key is None else key
            caller = await self.console.authenticate(header, self.environment)
        exchange.caller = caller = self.inside.placed(caller)
        if not may(caller.scopes, scope):
            raise PermissionDenied(f"the API key lacks the scope {scope!r}: use one that has it")
        return caller

    @property
    def takes_keys(self) -> bool:
        """Whether callers are known by API keys of ours; else the embedder says who calls."""
        return self._authenticate is None

    @property
    def console(self) -> Console:
        """Knows the keys: if none was given, the one of the Router's storage."""
        if self._console is None:
            inside = self.inside
            self._console = Console(inside.storage, coordination=inside.coordination, clock=inside.clock)
        return self._console

    async def read(self, exchange: Exchange, decode: Decode = shaped_request, path: str = "/v1/route") -> Read:
        """The request that was sent, with the key of its header. Raises what ``Bodies.read`` and ``decode`` do."""
        key = exchange.header(b"idempotency-key")
        reading = partial(self._read, decode, key, path, parent_here(exchange.traceparent))
        return await self._bodies.read(exchange, reading)

    async def answer(self, exchange: Exchange, read: Read, caller: Caller) -> Answer[Any]:
        """Answer a request whole. It ends when its client leaves; with an idempotency key it finishes, so that the
        client can ask again (contract 7). Raises ``ClientLeft``."""
        asking = partial(self.inside.answer, read, caller)
        keyed = read.request.idempotency_key is not None
        answer = await asking() if keyed else await while_connected(exchange, asking)
        exchange.trace_id = answer.trace_id
        return answer

    async def send(self, exchange: Exchange, read: Read, frames: Frames) -> None:
        """Send a stream as it comes. With an idempotency key it finishes, as ``answer`` does."""
        await EventStream(exchange, frames).run(finishes=read.request.idempotency_key is not None)

    @asynccontextmanager
    async def counted(self, exchange: Exchange, read: Read, caller: Caller) -> AsyncIterator[None]:
        """Let in what calls no model: it counts as a request, and as no tokens. Raises what ``Admission`` does."""
        shared = self.inside.admissions
        read = replace(read, request=replace(read.request, idempotency_key=None))
        if shared.is_open(read.request, caller):
            yield
            return
        async with Admission(shared, read, caller) as admission:
            await admission.look()
            await admission.enter()
            exchange.headers |= admission.headers
            yield

    def known_models(self, caller: Caller) -> Container[str]:
        """Ids and aliases of models that a request may name."""
        fleet = self.inside.fleet(caller)
        return fleet.pool.row.keys() | fleet.aliases.keys()

    def _check_environment(self, caller: Caller) -> None:
        if self.environment not in (None, self.inside.placed(caller).environment):
            said = f"this address is that of the {self.environment} environment, and you are in the other"
            raise AuthenticationFailed(f"{said}: ask at the {caller.environment} address")

    def _read(self, decode: Decode, key: str | None, path: str, traceparent: TraceParent | None, body: bytes) -> Read:
        request = completed(_keyed(decode(body), key))
        tags = self.inside.tags()
        if tags:
            request = tagged(request, tags)
        is_ours = decode is shaped_request or request.idempotency_key is None
        return Read(request, bounds_of(request), path, traceparent, None if is_ours else plain(body))


def _keyed(request: RouteRequest, key: str | None) -> RouteRequest:
    """The request under the key of its header (spec 4.1). Raises ``ValidationFailed``."""
    if key is None:
        return request
    try:
        key = key.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise ValidationFailed.of(Problem("Idempotency-Key", "is not UTF-8", "take a new random key")) from None
    if request.idempotency_key not in (None, key):
        said = f"is {shown(key)}, and the body says {shown(request.idempotency_key)}"
        raise ValidationFailed.of(Problem("Idempotency-Key", said, "send one of the two"))
    return replace(request, idempotency_key=key)
