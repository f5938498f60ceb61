"""Authentication by API key, or by the embedder's ``authenticate``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from routewright.console import Console
from routewright.errors import AuthenticationFailed, PermissionDenied
from routewright.router import Router
from routewright.wire import Caller, Environment, Scope

from .exchange import Exchange
from .exchange import Scope as AsgiScope

Authenticate = Callable[[AsgiScope], Caller | Awaitable[Caller]]
"""Returns the caller for an ASGI scope. Raises ``AuthenticationFailed``."""


class Auth:
    """Authenticates the requests of one application."""

    def __init__(
        self,
        router: Router,
        console: Console | None,
        authenticate: Authenticate | None,
        environment: Environment | None,
    ) -> None:
        self._router = router
        self._authenticate = authenticate
        self._environment = environment
        self.takes_keys = authenticate is None
        """True if callers authenticate with API keys of routewright."""
        if console is None and self.takes_keys:
            console = Console(router.storage, clock=router.clock)
        self._console = console

    async def caller(self, exchange: Exchange, scope: Scope, key: str | None = None) -> Caller:
        """Authenticate the caller and check its scope. ``key`` replaces the header ``Authorization``. Raises
        ``AuthenticationFailed``, ``PermissionDenied`` and ``StorageUnavailable``."""
        said: Any
        if self._authenticate is not None:
            said = self._authenticate(exchange.scope)
            if not isinstance(said, Caller) and isawaitable(said):
                said = await said
        else:
            assert self._console is not None, "set if keys are accepted"
            sent = exchange.sent.get(b"authorization")
            header = key if key is not None or sent is None else sent.decode("latin-1")
            said = await self._console.authenticate(header, self._environment)
        exchange.caller = caller = self._router.resolve_caller(said)
        if self._environment is not None and caller.environment != self._environment:
            exchange.caller = None
            problem = f"this address serves the {self._environment} environment, but your key is for the other one"
            raise AuthenticationFailed(f"{problem}: use the {caller.environment} address")
        if caller.scopes is not None and scope not in caller.scopes:
            raise PermissionDenied(f"the API key lacks the scope {scope!r}: use one that has it")
        return caller
