"""What the endpoints need: who calls, the request that was sent, and a Router that answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any

from routewright import Answer, Prepared
from routewright.arguments import Options
from routewright.console import Console
from routewright.errors import AuthenticationFailed, PermissionDenied, Problem, ValidationFailed
from routewright.router import Router
from routewright.wire import Caller, Environment, RouteRequest, Scope

from .bodies import Bodies
from .departure import while_connected
from .exchange import Exchange
from .exchange import Scope as AsgiScope
from .sse import EventStream, Frames

Authenticate = Callable[[AsgiScope], Caller | Awaitable[Caller]]
"""Says who calls by an ASGI scope. Raises ``AuthenticationFailed``."""
Decode = Callable[[bytes], RouteRequest]
"""Makes a request of another interface's body. Raises ``ValidationFailed``."""


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
        self.environment = environment
        self._console = console
        self._authenticate = authenticate
        self._bodies = bodies

    async def caller(self, exchange: Exchange, scope: Scope, key: str | None = None) -> Caller:
        """Who asks. ``key``: an ``Authorization`` header, in the place of the one that was sent.

        Raises ``AuthenticationFailed``, ``PermissionDenied`` and ``StorageUnavailable``.
        """
        if self._authenticate is None:
            header = exchange.header(b"authorization") if key is None else key
            said: Any = await self.console.authenticate(header, self.environment)
        else:
            said = self._authenticate(exchange.scope)
            if not isinstance(said, Caller) and isawaitable(said):
                said = await said
        exchange.caller = caller = self.router.resolve_caller(said)
        if self.environment is not None and caller.environment != self.environment:
            exchange.caller = None
            told = f"this address is that of the {self.environment} environment, and you are in the other"
            raise AuthenticationFailed(f"{told}: ask at the {caller.environment} address")
        if caller.scopes is not None and scope not in caller.scopes:
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
            router = self.router
            self._console = Console(router.storage, coordination=router.coordination, clock=router.clock)
        return self._console

    async def prepare(
        self, exchange: Exchange, caller: Caller, decode: Decode | None = None, path: str = "/v1/route"
    ) -> Prepared:
        """The request that was sent, with the key of its header. ``decode`` reads that of another interface.

        Raises what ``Bodies.read``, ``decode`` and ``Router.prepare`` do.
        """
        return await self._bodies.read(exchange, partial(self._prepared, exchange, caller, decode, path))

    def _prepared(self, exchange: Exchange, caller: Caller, decode: Decode | None, path: str, body: bytes) -> Prepared:
        key, parent = exchange.sent.get(b"idempotency-key"), exchange.sent.get(b"traceparent")
        options: Options = {} if key is None else {"idempotency_key": _text(key)}
        traceparent = None if parent is None else parent.strip().decode("latin-1")
        prepare = partial(self.router.prepare, caller=caller, path=path, traceparent=traceparent, **options)
        return prepare(body) if decode is None else prepare(decode(body), body=body)

    async def answer(self, exchange: Exchange, prepared: Prepared) -> Answer[Any]:
        """Answer a request whole. It ends when its client leaves; with an idempotency key it finishes, so that the
        client can ask again (contract 7). Raises ``ClientLeft``."""
        if prepared.request.idempotency_key is None:
            answer = await while_connected(exchange, prepared.run)
        else:
            answer = await prepared.run()
        exchange.trace_id = answer.trace_id
        return answer

    async def send(self, exchange: Exchange, prepared: Prepared, frames: Frames) -> None:
        """Send a stream as it comes. With an idempotency key it finishes, as ``answer`` does."""
        await EventStream(exchange, frames).run(finishes=prepared.request.idempotency_key is not None)


def _text(key: bytes) -> str:
    """An idempotency key as its header has it (spec 4.1). Raises ``ValidationFailed``."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ValidationFailed.of(Problem("Idempotency-Key", "is not UTF-8", "take a new random key")) from None
