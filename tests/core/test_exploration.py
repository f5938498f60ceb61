"""What is explored, how often, and at what cost."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from routewright._core.routing.budget import Exploration
from routewright._core.routing.scoring import UNKNOWN_COST, Key

SHARE = 0.1
costs = st.integers(1, 10**9)


def front(*nanos: int) -> list[Key]:
    """The keys of models of these costs, the best first."""
    return [(-900 + row, -500_000, each, 1_000, -900, row, row) for row, each in enumerate(nanos)]


@given(st.lists(costs, min_size=1, max_size=4), st.floats(0, 1, exclude_max=True))
def test_the_reported_propensity_is_that_of_the_draw(nanos: list[int], chance: float) -> None:
    exploration, keys = Exploration(), front(*nanos)
    exploration.earned_nanos = 1e12
    drawn = exploration.draw(keys, SHARE, chance)
    assert drawn.key in keys
    assert drawn.explored == (drawn.key != keys[0]) == (len(keys) > 1 and chance < SHARE)
    others = len(keys) - 1
    assert drawn.propensity == round(1e6 * (SHARE / others if drawn.explored else 1 - SHARE if others else 1))


def test_propensities_are_how_often_each_is_drawn() -> None:
    exploration, keys, chance = Exploration(), front(100, 90, 80, 70), random.Random(3)
    drawn = [exploration.draw(keys, SHARE, chance.random()) for _ in range(20_000)]
    for key in keys:
        times = [each for each in drawn if each.key == key]
        assert abs(len(times) / len(drawn) - times[0].propensity / 1e6) < 0.01


@given(st.lists(st.lists(costs, min_size=2, max_size=4), max_size=60), st.integers(0, 9))
def test_exploration_adds_at_most_its_share_to_the_expected_cost(fronts: list[list[int]], seed: int) -> None:
    exploration, chance, best, spent = Exploration(), random.Random(seed), 0, 0
    for nanos in fronts:
        drawn = exploration.draw(front(*nanos), SHARE, chance.random() * SHARE * 2)
        best += nanos[0]
        spent += max(drawn.key[2], nanos[0])
        assert spent <= best * (1 + SHARE) * (1 + 1e-9)


def test_a_model_without_a_price_is_not_explored() -> None:
    assert not Exploration().draw(front(UNKNOWN_COST, 10), SHARE, 0.0).explored
    assert Exploration().draw(front(10, UNKNOWN_COST, 10), SHARE, 0.05).key[2] == 10
