"""Plain and streamed answers cost the same for every model, and match the catalogue's prices."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from routewright import Catalogue, Router, Settings, Usage
from routewright.testing import FakeClock, FaultyProvider, Scenario
from routewright.testing.faulty import Play
from routewright.testing.faulty import scenarios as says

pytestmark = pytest.mark.anyio
PRICED = [replace(model, deprecated_at=None) for model in Catalogue().models if model.pricing_per_1m is not None]
START = 1_795_219_200.0
"""The day on which they are priced: 2026-11-21."""


class Vendor:
    """Answers with the usage that it is told to, in the vendor's words."""

    def __init__(self) -> None:
        self.usage = Usage(0, 0)

    def answers(self) -> Iterator[Scenario]:
        while True:
            told, answer = written(self.usage), says.ANSWER
            plain = Play((says.JSON, says.document(answer, usage=told)), None)
            streamed = Play((says.EVENTS, says.tokens(answer), says.ending(usage=told)), None)
            yield Scenario("told", "it is well", plain, streamed)


def written(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def random_usage(chance: Random) -> Usage:
    """Of any size, so that long-context prices are met."""
    given, made = int(10 ** chance.uniform(0, 6.3)), int(10 ** chance.uniform(0, 5.5))
    cached = chance.choice([0, chance.randint(0, given)])
    return Usage(given, made, cached, chance.choice([0, chance.randint(0, made)]), chance.choice([0, given - cached]))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_plain_and_streamed_cost_what_the_catalogue_bills(full: bool) -> None:
    clock, vendor, chance = FakeClock(START), Vendor(), Random(4)
    catalogue = Catalogue(PRICED)
    names = sorted({model.provider for model in PRICED})
    providers = [FaultyProvider(vendor.answers(), name=name, clock=clock) for name in names]
    settings = Settings(clock=clock, rng=Random(7), stale_after_days=None)
    router = Router(providers=providers, catalogue=catalogue, settings=settings)
    for model in PRICED:
        for _ in range(1_000 if full else 2):
            vendor.usage = usage = random_usage(chance)
            plain = (await router.route("hi", models=[model.id])).routing.cost_usd
            async with router.stream("hi", models=[model.id]) as stream:
                async for _ in stream:
                    pass
            due = catalogue.bill(model.id, usage, on="2026-11-21").total_usd
            assert plain == stream.result.routing.cost_usd == pytest.approx(due, abs=1e-12), (model.id, usage)
        for provider in providers:
            provider.calls.clear()
            provider.requests.clear()
    assert len(PRICED) > 100
