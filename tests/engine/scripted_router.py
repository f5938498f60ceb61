"""Shared helpers for engine tests: a fake clock, seeded randomness, and two models from two providers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from routewright import Answer, Capture, Catalogue, Model, Pricing, Router, Settings
from routewright.protocols import Storage, TokenCounter
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line, Script
from routewright.wire import Trace, Traces

GOOD = Model(id="good/one", quality=0.9, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000, ttft_s=1.0)
SPARE = Model(id="spare/two", quality=0.5, pricing_per_1m=Pricing(2.0, 8.0), context_window=100_000, ttft_s=1.0)

on_one_loop = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""For tests of much computation, in which the kind of loop plays no part."""
to_close: list[Router] = []
"""Closed at the end of a test that uses the fixture ``closing``."""


class House:
    """A Router over scripted providers on virtual time. ``good/one`` is chosen, ``spare/two`` is its fallback.

    ``kind``: what sort of provider the good one is.
    """

    def __init__(
        self,
        good: Script,
        spare: Script = (),
        *,
        kind: type[ScriptedProvider] = ScriptedProvider,
        tokens: TokenCounter | None = None,
        capture: Capture | None = None,
        **router: Any,
    ) -> None:
        self.clock = FakeClock()
        self.good = kind(good, models=[GOOD], clock=self.clock)
        self.spare = ScriptedProvider(spare, models=[SPARE], clock=self.clock)
        settings = Settings(clock=self.clock, rng=Random(7), tokens=tokens, capture=capture)
        router.setdefault("catalogue", Catalogue(()))  # the bundled models would take two thirds of the time
        self.router = Router(providers=[self.good, self.spare], settings=settings, **router)

    @property
    def left_open(self) -> int:
        """Calls that were begun and never left."""
        return self.good.open_calls + self.spare.open_calls


def said(*lines: Line) -> list[Line]:
    """One scripted answer, piece by piece."""
    return list(lines)


def in_threads(call: Callable[[int], None], count: int) -> None:
    """Call it in so many threads, with their numbers, and wait for their ends."""
    threads = [threading.Thread(target=call, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def plain(router: Router, **options: Any) -> str:
    answer: Answer = await router.route("hi", goal="quality", **options)
    return answer.output


async def streamed(router: Router, **options: Any) -> str:
    async with router.stream("hi", goal="quality", **options) as stream:
        async for _ in stream:
            pass
    return stream.result.output


both_ways = pytest.mark.parametrize("ask", [plain, streamed])
Ask = Callable[..., Coroutine[Any, Any, str]]
"""One of both ways."""


async def only_trace(storage: Storage) -> Any:
    (trace,) = await traces_in(storage)
    return trace


async def traces_in(storage: Storage, account: str = "default") -> list[Trace]:
    """All traces of an account, newest first."""
    return await storage.scan(account, Traces(), after=None, limit=10_000)
