"""A day of traffic of a Router over scripted models, whose answers have random lengths."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random
from typing import Any

from routewright import Model, Policy, Pricing, Router, Settings
from routewright.protocols import Storage
from routewright.testing import FakeClock, ScriptedProvider
from routewright.testing.provider import Line
from routewright.wire import Caller, Delta, Finish, UpstreamCall, Usage

BIG = Model(id="big/one", quality=0.9, pricing_per_1m=Pricing(5.0, 20.0), context_window=100_000, ttft_s=1.0)
SMALL = Model(id="small/two", quality=0.6, pricing_per_1m=Pricing(1.0, 4.0), context_window=100_000, ttft_s=0.5)
TINY = Model(id="tiny/three", quality=0.4, pricing_per_1m=Pricing(0.2, 0.8), context_window=100_000, ttft_s=0.3)
MODELS = (BIG, SMALL, TINY)
LENGTHS = {BIG.id: 500, SMALL.id: 350, TINY.id: 250}
"""Mean output tokens."""
LIVE = Policy(name="live", goal="quality", strategy="quality-first")
DRAFT = Policy(name="live", models=[SMALL.id])
_SIGMA = 0.6


class Lengths:
    """Draws the length of answers. ``factor`` lengthens all."""

    def __init__(self, seed: int, factor: float = 1.0) -> None:
        self.chance = Random(seed)
        self.factor = factor

    def draw(self, model: str) -> int:
        return max(1, round(self.factor * LENGTHS.get(model, 500) * exp(self.chance.gauss(-(_SIGMA**2) / 2, _SIGMA))))

    def turn(self, call: UpstreamCall) -> Sequence[Line]:
        count = len(str(call.messages[-1].content).split())
        return [Delta("ok"), Usage(count, self.draw(call.model.id)), Finish("stop")]


def router_of(
    storage: Storage,
    lengths: Lengths,
    clock: FakeClock,
    policies: Sequence[Policy] = (LIVE,),
    models: Sequence[Model] = MODELS,
) -> Router:
    providers = [ScriptedProvider(lengths.turn, models=[model], clock=clock) for model in models]
    settings = Settings(clock=clock, rng=Random(7))
    return Router(providers=providers, policies=policies, storage=storage, settings=settings)


async def serve(router: Router, clock: FakeClock, count: int, seed: int, **options: Any) -> float:
    """Send requests of random sizes; returns what they cost in dollars."""
    chance = Random(seed)
    cost_usd = 0.0
    for number in range(count):
        words = "word " * chance.choice([20, 60, 400])
        answer = await router.route(words, **{"caller": Caller(), "policy_id": "live", **options})
        cost_usd += answer.routing.cost_usd
        if number % 10 == 9:
            await clock.advance(10.0)
    await router.flush()
    return cost_usd
