"""A provider that fails on the wire, as real ones do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager

from routewright._core.catalogue.models import models_of
from routewright.backends.providers.openai import OpenAIProvider
from routewright.backends.transport import TransportLimits
from routewright.protocols import Clock
from routewright.wire import Chunk, Model, UpstreamCall

from .completion import ANSWER
from .script import Faults, Request
from .transport import FaultyTransport


class FaultyProvider(OpenAIProvider):
    """Serves calls with faults by name, and remembers the calls: what a real provider makes of what a vendor sent.

        provider = FaultyProvider(["rate_limited", None], models=[Model(id="test/one", quality=0.5)])

    ``faults`` names one for all calls, or one a call; None, and what comes after the last, is an answer that says
    ``answer``. The names are those of ``routewright.testing.CELLS``. Pauses are spent on ``clock``.
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
        """What was asked."""
        self._faulty = FaultyTransport(faults, clock, answer=answer, limits=limits)
        super().__init__(
            "faulty-key",
            name=name or _name_of(models),
            base_url="http://faulty.invalid/v1",
            models=models,
            transport=self._faulty,
            environ={},
            clock=clock,
        )

    @property
    def open_calls(self) -> int:
        """Requests begun and not yet left."""
        return self._faulty.open_calls

    @property
    def requests(self) -> list[Request]:
        """What was sent for the calls."""
        return self._faulty.requests

    def open(self, call: UpstreamCall) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        """Start one call (``protocols.Provider``)."""
        self.calls.append(call)
        return super().open(call)


def _name_of(models: Sequence[Model]) -> str:
    """The provider's part of the first model's id."""
    return next((model.id.partition("/")[0] for model in models_of(models)), "faulty")
