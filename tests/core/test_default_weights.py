"""The default weights over the real catalogue: the choices are ones an expert would accept."""

from __future__ import annotations

from typing import get_args

from routewright import Catalogue, Decision, Router
from routewright.wire import Goal, Strategy
from tests.tables import table

GOALS: tuple[Goal, ...] = get_args(Goal)
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
CHAT = "Why is the sky blue?"
CATALOGUE = {model.id: model for model in Catalogue().models}
ROUTER = Router.sandbox()


def of_vendor(vendor: str | None) -> list[str] | None:
    """A vendor's models, as one sees them who has only that key."""
    if vendor is None:
        return None
    return [model.id for model in CATALOGUE.values() if model.provider == vendor and not model.free_tier]


def pick(goal: Goal, strategy: Strategy, vendor: str | None = None) -> Decision:
    return ROUTER.decide(CHAT, goal=goal, strategy=strategy, models=of_vendor(vendor))


@table("vendor", [None, "openai", "anthropic", "google"])
@table("strategy", STRATEGIES)
@table("goal", GOALS)
def test_no_pick_is_deprecated_or_free(goal: Goal, strategy: Strategy, vendor: str | None) -> None:
    decision = pick(goal, strategy, vendor)
    for model_id in (decision.model, *decision.chain):
        model = CATALOGUE[model_id]
        assert model.deprecated_at is None or model.deprecated_at > decision.input.as_of
        assert not model.free_tier


@table("vendor", [None, "openai", "google", "mistral", "xai", "groq", "alibaba"])
@table("goal", GOALS)
def test_latency_optimized_never_picks_a_ten_second_model_if_a_faster_one_fits(goal: Goal, vendor: str | None) -> None:
    assert pick(goal, "latency-optimized", vendor).candidates[0].latency_s < 10


@table("vendor", [None, "openai", "anthropic", "google"])
def test_quality_first_takes_the_top_step_of_the_grid(vendor: str | None) -> None:
    decision = pick("quality", "quality-first", vendor)
    assert decision.candidates[0].terms[0] == max(candidate.terms[0] for candidate in decision.candidates)


def test_the_default_is_cheap_and_not_weak() -> None:
    chosen = pick("cost", "balanced").candidates[0]
    assert (chosen.cost_usd or 1) < 0.001
    assert chosen.quality > 0.6


def test_more_weight_on_cost_never_costs_more() -> None:
    thriftiest_first: tuple[Strategy, ...] = ("cost-optimized", "balanced", "quality-first")
    costs = [pick("cost", strategy).candidates[0].cost_usd or 0 for strategy in thriftiest_first]
    assert costs == sorted(costs)


def test_more_weight_on_quality_never_brings_less() -> None:
    for strategy in STRATEGIES:
        cheap, good = (pick(goal, strategy).candidates[0].terms[0] for goal in ("cost", "quality"))
        assert good >= cheap


def test_one_vendors_thrifty_pick_is_its_small_model() -> None:
    assert pick("cost", "balanced", "anthropic").model == "anthropic/claude-haiku-5-5"
    assert pick("cost", "balanced", "openai").model == "openai/gpt-6-luna"
