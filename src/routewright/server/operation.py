"""What an address of ``/v1`` does: who may ask, what it takes, what it answers. All that is told of it follows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from routewright.errors import RouterError
from routewright.wire import Caller, Scope

from .exchange import Exchange
from .service import Service

Serve = Callable[[Service, Exchange], Awaitable[None]]
"""Answers an exchange."""
Act = Callable[[Service, Exchange, Caller, Any], Awaitable[None]]
"""Answers an exchange, once it is known who asks and with which parameters."""


class NoQuery(Struct, frozen=True):
    """No parameters."""


class Operation(Struct, frozen=True):
    """A method at an address. It serves an exchange when called with one."""

    act: Act
    """Its docstring is what readers are told of it."""
    scope: Scope
    """That a key needs."""
    answer: Any
    """The type of what a 200 holds."""
    query: type[Struct] = NoQuery
    body: type[Struct] | None = None
    events: Any = None
    """The type of what a 200 holds that is a stream of events."""
    raises: tuple[type[RouterError], ...] = ()
    """Errors that it can end in, but for those of its parameters and body, of authentication, and of the server."""

    async def __call__(self, service: Service, exchange: Exchange) -> None:
        """Answer. Raises ``AuthenticationFailed``, ``PermissionDenied``, ``ValidationFailed`` and what the act does."""
        caller = await service.caller(exchange, self.scope)
        asked = exchange.query(self.query) if exchange.scope.get("query_string") else self.query()
        await self.act(service, exchange, caller, asked)
