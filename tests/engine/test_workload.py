"""A decision uses statistics of the call's own workload, and of no other account."""

from __future__ import annotations

from typing import Any

import pytest

from routewright import Caller, Catalogue, Model, Policy, Pricing, Router, Settings
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import DecisionInput, Delta, Finish, UpstreamCall, Usage

pytestmark = pytest.mark.anyio
CHEAP = Model(id="a/cheap", quality=0.5, pricing_per_1m=Pricing(0.1, 1.0), context_window=100_000, ttft_s=1.0)
DEAR = Model(id="b/dear", quality=0.5, pricing_per_1m=Pricing(0.3, 3.0), context_window=100_000, ttft_s=1.0)
ACME, OTHER = Caller("acme"), Caller("other")


class Bench:
    """A Router over two models of one quality, one three times dearer; answers have so many tokens."""

    def __init__(self, tokens: int, **settings: Any) -> None:
        self.clock, self.tokens = FakeClock(), tokens
        providers = [ScriptedProvider(self.tell, models=[model], clock=self.clock) for model in (CHEAP, DEAR)]
        self.router = Router(
            providers=providers, catalogue=Catalogue((), as_of="2026-11-20"), policies=[Policy(name="support")],
            settings=Settings(clock=self.clock, **settings),
        )  # fmt: skip

    def tell(self, call: UpstreamCall) -> Any:
        return [Delta("an answer"), Usage(10, self.tokens), Finish("stop")]

    async def ask(self, count: int, caller: Caller = ACME, **request: Any) -> str:
        for _ in range(count):
            answer = await self.router.route("Hello", caller=caller, **request)
            await self.clock.advance(1.0)
        return str(answer.routing.selected_model)

    def given(self, caller: Caller = ACME, **request: Any) -> DecisionInput:
        return self.router.decide("Hello", caller=caller, **request).input


@pytest.mark.parametrize("tokens", [12, 40, 2_000, 6_000])
async def test_after_a_dozen_answers_of_any_length_the_cheaper_model_is_still_chosen(tokens: int) -> None:
    bench = Bench(tokens)
    assert await bench.ask(12, goal="cost") == CHEAP.id
    decision = bench.router.decide("Hello", caller=ACME, goal="cost")
    assert decision.model == CHEAP.id
    cheap, dear = sorted(decision.candidates, key=lambda each: each.model)
    assert cheap.cost_usd is not None
    assert dear.cost_usd is not None
    assert 1.8 < dear.cost_usd / cheap.cost_usd < 5, "three times as dear, whatever was learned of one of them"
    await bench.router.aclose()


async def test_workloads_are_separate_by_account_and_policy() -> None:
    bench = Bench(40)
    before = bench.router.decide("Hello", caller=OTHER, goal="cost")
    await bench.ask(12)
    assert bench.given().workload is not None
    assert bench.given(policy_id="support").workload is None
    after = bench.router.decide("Hello", caller=OTHER, goal="cost")
    assert after.input.workload is None
    assert (after.model, after.chain) == (before.model, before.chain)
    for one, other in zip(before.candidates, after.candidates, strict=True):
        assert other.cost_usd == pytest.approx(one.cost_usd, rel=0.2), "the model itself is hardly another"
    await bench.router.aclose()


async def test_metadata_named_in_settings_separates_workloads() -> None:
    bench = Bench(40, workload_keys=("task",))
    await bench.ask(12, metadata={"task": "label", "user": "u1"})
    assert bench.given(metadata={"task": "label", "user": "u2"}).workload is not None
    assert bench.given(metadata={"task": "essay"}).workload is None
    assert bench.given().workload is None
    await bench.router.aclose()


async def test_a_trace_names_the_factors_and_replays_with_them() -> None:
    bench = Bench(40)
    await bench.ask(12)
    answer = await bench.router.route("Hello", caller=ACME)
    given = answer.decision.input
    length, _ = given.workload or (0, 0)
    assert length < -6
    assert bench.router.replay(given).digest == answer.decision.digest
    assert "as long as usual" in bench.router.explain(answer)
    await bench.router.aclose()


async def test_a_replacing_fleet_keeps_the_workloads() -> None:
    bench, other = Bench(40), Bench(40)
    await bench.ask(12)
    before, after = (each.router._parts.fleet("production") for each in (bench, other))
    after.learn_from(before)
    assert after.workloads.steps == before.workloads.steps != {}
    for each in (bench, other):
        await each.router.aclose()
