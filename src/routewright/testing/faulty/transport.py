"""Faults in memory: a ``Transport`` that plays them on any clock, so that stalls of minutes take no time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from types import TracebackType
from typing import NoReturn

import anyio.lowlevel

from routewright.backends.clock import SystemClock
from routewright.backends.transport import TransportLimits
from routewright.backends.transport.connections import Body
from routewright.errors import ProviderFault
from routewright.protocols import Clock
from routewright.testing.provider import Pause

from .completion import ANSWER
from .script import Faults, Request, Script
from .steps import Break, Connection, Head, Moment, moments


class FaultyTransport:
    """Plays faults to whatever sends requests through it, and remembers those.

        provider = OpenAIProvider("key", transport=FaultyTransport(["reset_mid_body", None], clock))

    ``faults`` names one for all requests, or one a request; None, and what comes after the last, is a good answer.
    """

    def __init__(
        self,
        faults: Faults = (),
        clock: Clock | None = None,
        *,
        answer: str = ANSWER,
        limits: TransportLimits | None = None,
    ) -> None:
        self.open_calls = 0
        """Requests begun and not yet left."""
        self.clock = SystemClock() if clock is None else clock
        self.limits = limits or TransportLimits()
        self._script = Script(faults, answer)

    @property
    def requests(self) -> list[Request]:
        """What was sent."""
        return self._script.requests

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AbstractAsyncContextManager[FaultyResponse]:
        """Send one request (``protocols.Transport``)."""
        return _Exchange(self, self._script, Request(method, url, body or b""))

    async def aclose(self) -> None:
        """Nothing is held."""


class _Exchange:
    def __init__(self, transport: FaultyTransport, script: Script, request: Request) -> None:
        self._transport = transport
        self._script = script
        self._request = request

    async def __aenter__(self) -> FaultyResponse:
        transport = self._transport
        transport.open_calls += 1
        try:
            return await FaultyResponse.begin(transport, moments(self._script.play(self._request).steps))
        except BaseException:
            transport.open_calls -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.open_calls -= 1


class FaultyResponse:
    """An answer whose body comes as the fault has it (``protocols.Response``)."""

    def __init__(self, transport: FaultyTransport, head: Head, rest: Iterator[Moment]) -> None:
        self.status = head.status
        self._head = head
        self._clock = transport.clock
        self._limit = transport.limits.answer_bytes
        self._rest = rest
        self._missing = int(self.headers.get("content-length", 0))

    @classmethod
    async def begin(cls, transport: FaultyTransport, rest: Iterator[Moment]) -> FaultyResponse:
        """Wait for the headers."""
        await anyio.lowlevel.checkpoint()
        for moment in rest:
            match moment:
                case Connection():
                    await _fail_to_connect(moment, transport)
                case Pause(seconds):
                    await transport.clock.sleep(seconds)
                case Head(status) if status >= 200:
                    return cls(transport, moment, rest)
                case Break():
                    break
        raise _reset()

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        return {name.lower(): value for name, value in self._head.headers.items()}

    def chunks(self) -> Body:
        """The body as it arrives, decompressed."""
        return Body(self._receive, self.headers.get("content-encoding", ""), self._limit)

    async def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes of the body; more raises ``ProviderFault("malformed")``."""
        return await self.chunks().read(limit)

    async def _receive(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        for moment in self._rest:
            match moment:
                case Pause(seconds):
                    await self._clock.sleep(seconds)
                case Break():
                    self._break(moment)
                case bytes():
                    self._missing -= len(moment)
                    return moment
        return b""

    def _break(self, how: Break) -> None:
        if how is Break.RESET or self._missing > 0 or "content-length" not in self.headers:
            raise _reset()


async def _fail_to_connect(how: Connection, transport: FaultyTransport) -> NoReturn:
    if how is Connection.MUTE:
        await transport.clock.sleep(transport.limits.connect_timeout_s)
    raise ProviderFault("connect", f"no connection to faulty.invalid: {how}", public=f"no connection: {how}")


def _reset() -> ProviderFault:
    return ProviderFault("reset", "the connection to faulty.invalid broke", public="the connection broke")
