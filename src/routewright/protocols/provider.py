"""Who answers calls, and what HTTP goes through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from routewright.wire import (
    Chunk,
    Feature,
    Model,
    UpstreamCall,
)


@runtime_checkable
class Provider(Protocol):
    """Something that can answer a call: a vendor's API, a function, a test double.

    One object serves many calls at once, from any event loop and thread. ``open`` raises ``ProviderFault`` on entry or
    while iterating, and nothing else for a fault of the provider's; it ends with exactly one ``Finish``, with ``Usage``
    before it where known. Under a budget, a call that is cut off after its context was entered, or whose fault says
    ``answered``, is taken to have cost the most it can; a fault on entry costs nothing. The context it returns may be
    entered and left in different tasks, so it must not keep a cancel scope or task group open over a ``yield``. Leaving
    it early frees the connection.
    """

    @property
    def name(self) -> str:
        """The provider part of its models' ids."""
        ...

    def models(self) -> Sequence[Model]:
        """Say what it can serve. Empty: every catalogue model whose provider is ``name``. Ids that the catalogue
        knows need nothing else; others come with price, window, modalities, and ``quality`` or ``like``."""
        ...

    def open(self, call: UpstreamCall) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        """Start one call. A provider that cannot stream yields one ``Delta``."""
        ...

    async def aclose(self) -> None:
        """Free what it holds. Twice is once."""
        ...


@runtime_checkable
class ParticularProvider(Provider, Protocol):
    """A provider that does not take all that a request may ask for. Such requests are not sent to it."""

    def unsupported(self, model: Model) -> Collection[Feature]:
        """What one of its models does not take. Asked once a model."""
        ...


@runtime_checkable
class RegionalProvider(Provider, Protocol):
    """A provider whose calls are all served from one region, if it says which."""

    @property
    def region(self) -> str | None:
        """The region, as policies name it. None: nobody knows."""
        ...


@runtime_checkable
class ShieldingProvider(Provider, Protocol):
    """A provider that runs code which shields its clean-up with anyio's cancel scopes, such as httpcore.

    On asyncio an attempt that has run out of time is cancelled natively, through such shields.
    """

    @property
    def needs_scope(self) -> bool:
        """True to have its attempts run in a cancel scope, at some microseconds each."""
        ...


class Response(Protocol):
    """An HTTP answer whose body is read as it comes. Raises ``ProviderFault`` where the connection fails."""

    @property
    def status(self) -> int:
        """The status code."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, decompressed."""
        ...

    async def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes of the body; more raises ``ProviderFault("malformed")``."""
        ...


class Transport(Protocol):
    """Sends HTTP requests. One pool an event loop; no redirects, no retries, no proxy variables."""

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AbstractAsyncContextManager[Response]:
        """Send one request. Leaving the context before the body's end closes the connection."""
        ...

    async def aclose(self) -> None:
        """Close every pool. Twice is once."""
        ...
