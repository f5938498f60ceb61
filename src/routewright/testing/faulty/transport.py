"""Faults in memory: a ``Transport`` that simulates them on any clock, and a provider over it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from math import inf

import anyio.lowlevel

from routewright._core.catalogue.models import models_of
from routewright.backends.clock import SystemClock
from routewright.backends.providers.openai import OpenAIProvider
from routewright.backends.transport import TransportLimits
from routewright.backends.transport.connections import Answer
from routewright.errors import ProviderFault
from routewright.protocols import Clock
from routewright.testing.provider import Pause
from routewright.wire import Chunk, Model, UpstreamCall

from .scenarios import ANSWER, Faults, Request, Script
from .steps import Break, Connection, Head, Moment, moments


class FaultyTransport:
    """Answers requests with faults, and records the requests.

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
        """Requests entered and not left."""
        self.clock = SystemClock() if clock is None else clock
        self.limits = limits or TransportLimits()
        self._script = Script(faults, answer)

    @property
    def requests(self) -> list[Request]:
        """The requests sent."""
        return self._script.requests

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[Answer]:
        """Send one request (``protocols.Transport``)."""
        self.open_calls += 1
        try:
            play = self._script.play(Request(method, url, body or b""))
            yield await self._begin(moments(play.steps))
        finally:
            self.open_calls -= 1

    async def aclose(self) -> None:
        """Do nothing: no connection is held."""

    async def _begin(self, rest: Iterator[Moment]) -> Answer:
        """Wait for the headers."""
        await anyio.lowlevel.checkpoint()
        for moment in rest:
            match moment:
                case Connection():
                    if moment is Connection.MUTE:
                        await self.clock.sleep(self.limits.connect_timeout_s)
                    message = f"no connection to faulty.invalid: {moment}"
                    raise ProviderFault("connect", message, public=f"no connection: {moment}")
                case Pause(seconds):
                    await self.clock.sleep(seconds)
                case Head(status) if status >= 200:
                    headers = {name.lower(): value for name, value in moment.headers.items()}
                    body = _Rest(rest, self.clock, float(headers.get("content-length", inf)))
                    return Answer(status, headers, body.receive, self.limits.answer_bytes)
                case Break():
                    break
        raise _reset()


@dataclass
class _Rest:
    """What is left of the steps once the headers have come: the body."""

    moments: Iterator[Moment]
    clock: Clock
    missing: float
    """The bytes that the headers promise and that have not come; infinite if they promise none."""

    async def receive(self) -> bytes:
        """The next bytes; empty at the end. Raises ``ProviderFault`` where the connection breaks."""
        await anyio.lowlevel.checkpoint()
        for moment in self.moments:
            match moment:
                case Pause(seconds):
                    await self.clock.sleep(seconds)
                case Break():
                    if moment is Break.RESET or self.missing > 0:
                        raise _reset()
                case bytes():
                    self.missing -= len(moment)
                    return moment
        return b""


class FaultyProvider(OpenAIProvider):
    """An ``OpenAIProvider`` whose vendor fails as scripted; records the calls.

        provider = FaultyProvider(["rate_limited", None], models=[Model(id="test/one", quality=0.5)])

    ``faults`` names one for all calls, or one a call; None, and what comes after the last, is an answer that says
    ``answer``. The names are those of ``routewright.testing.SCENARIOS``. Pauses are spent on ``clock``.
    """

    def __init__(
        self,
        faults: Faults = (),
        *,
        models: Sequence[Model] = (),
        name: str = "",
        clock: Clock | None = None,
        answer: str = ANSWER,
        limits: TransportLimits | None = None,
    ) -> None:
        self.calls: list[UpstreamCall] = []
        """The calls received."""
        self._faulty = FaultyTransport(faults, clock, answer=answer, limits=limits)
        super().__init__(
            "faulty-key",
            name=name or next((model.id.partition("/")[0] for model in models_of(models)), "faulty"),
            base_url="http://faulty.invalid/v1",
            api="chat",
            models=models,
            transport=self._faulty,
            environ={},
            clock=clock,
            fetches_urls="callers",  # there is no server
        )

    @property
    def open_calls(self) -> int:
        """Requests entered and not left."""
        return self._faulty.open_calls

    @property
    def requests(self) -> list[Request]:
        """The requests sent for the calls."""
        return self._faulty.requests

    def open(self, call: UpstreamCall) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        """Start one call (``protocols.Provider``)."""
        self.calls.append(call)
        return super().open(call)


def _reset() -> ProviderFault:
    return ProviderFault("reset", "the connection to faulty.invalid broke", public="the connection broke")
