"""A provider named ``acme``, and a storage for URLs like ``shelf://NAME``."""

from __future__ import annotations

import os

from routewright import CallableProvider, MemoryStorage, Model, Pricing, ValidationFailed
from routewright.protocols import Clock, Provider, Storage
from routewright.wire import UpstreamCall

_shelves: dict[str, MemoryStorage] = {}


def make_provider() -> Provider:
    """Called without arguments: settings come from the environment."""
    greeting = os.environ.get("ACME_GREETING", "Hello from acme")

    async def answer(call: UpstreamCall) -> str:
        return f"{greeting}: {call.messages[-1].content}"

    model = Model(id="acme/greeter", quality=0.4, pricing_per_1m=Pricing(0.1, 0.2))
    return CallableProvider(answer, models=[model])


def open_shelf(url: str, *, clock: Clock | None = None) -> Storage:
    """Called with the URL. It must not connect yet."""
    name = url.removeprefix("shelf://")
    if not name:
        raise ValidationFailed.at("url", "names no shelf", "write shelf://NAME")
    return _shelves.setdefault(name, MemoryStorage(clock=clock))
