"""Estimates of a simulation: their intervals hold what they promise for another day of the same traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from routewright._core.analytics.estimate import Calibration, Cell, Figures, Lengths, lengths_of, moments_of

MODELS = ("big", "small", "tiny")
PRICE = np.array([10.0, 2.0, 0.5])
RATIO = np.array([1.3, 0.9, 1.1])
"""What a model really costs by what is expected of it."""


class World:
    """Requests of three sizes, decided by size and chance before, by other shares after."""

    def __init__(self, seed: int, before: list[list[float]], after: list[list[float]], sigma: float = 0.9) -> None:
        self.chance = np.random.default_rng(seed)
        self.shares = np.array(before), np.array(after)  # (3 sizes, 3 models)
        self.sigma = sigma

    def requests(self, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Size and length of prompts."""
        sizes = self.chance.choice(3, n, p=[0.6, 0.3, 0.1])
        return sizes, 2.0**sizes * self.chance.uniform(1, 2, n)

    def route(self, sizes: NDArray[Any], side: int) -> NDArray[Any]:
        shares = np.cumsum(self.shares[side], axis=1)[sizes]
        places: NDArray[Any] = np.minimum((self.chance.random(len(sizes))[:, None] > shares).sum(axis=1), 2)
        return places

    def actual(self, models: NDArray[Any], expected: NDArray[Any]) -> NDArray[Any]:
        noise = self.chance.normal(-(self.sigma**2) / 2, self.sigma, len(models))
        costs: NDArray[Any] = RATIO[models] * expected * np.exp(noise)
        return costs

    def estimate(self, n: int) -> tuple[Calibration, Figures]:
        """Simulate over one day."""
        sizes, lengths = self.requests(n)
        before, after = self.route(sizes, 0), self.route(sizes, 1)
        x, c = PRICE[before] * lengths, PRICE[after] * lengths
        y = self.actual(before, x)
        numbers = (sizes * 3 + before) * 3 + after
        sums = np.array([np.bincount(numbers, moment, 27) for moment in moments_of(x, c, y)]).T
        cells = [Cell(MODELS[place // 3 % 3], MODELS[place % 3], is_hit=False, size=place // 9) for place in range(27)]
        calibration = Calibration(zip(cells, sums, strict=True))
        figures = calibration.figures(1.0)
        assert figures is not None
        return calibration, figures

    def run(self, n: int) -> tuple[float, float]:
        """What another day really costs under each policy: the same requests, the same answer from the same model."""
        sizes, lengths = self.requests(n)
        before, after = self.route(sizes, 0), self.route(sizes, 1)
        old = self.actual(before, PRICE[before] * lengths)
        new = np.where(before == after, old, self.actual(after, PRICE[after] * lengths))
        return float(old.sum()), float(new.sum())


LIVE = [[0.7, 0.2, 0.1], [0.8, 0.1, 0.1], [0.9, 0.05, 0.05]]
DRAFT = [[0.2, 0.7, 0.1], [0.4, 0.3, 0.3], [0.7, 0.2, 0.1]]


def coverage(world: World, n: int, repetitions: int) -> list[float]:
    """The share of days that lie in the interval: cost before, cost after, change."""
    hits = np.zeros(3)
    for _ in range(repetitions):
        _, figures = world.estimate(n)
        old, new = world.run(n)
        for place, (figure, truth) in enumerate(zip(figures, (old, new, new / old - 1), strict=True)):
            assert figure is not None
            hits[place] += figure.low <= truth <= figure.high
    return [float(share) for share in hits / repetitions]


def test_intervals_cover_another_day_as_often_as_they_promise() -> None:
    shares = coverage(World(1, LIVE, DRAFT), 2_000, 150)
    assert all(0.9 <= share <= 0.99 for share in shares)


@pytest.mark.full
@pytest.mark.parametrize("n", [2_000, 50_000])
def test_intervals_cover_another_day_in_95_of_100_cases(n: int) -> None:
    shares = coverage(World(1, LIVE, DRAFT), n, 500)
    print(n, shares)
    assert all(0.93 <= share <= 0.97 for share in shares)


def test_a_model_without_outcomes_widens_the_interval_and_has_none() -> None:
    calibration, known = World(3, LIVE, DRAFT).estimate(50_000)
    assert calibration.outcomes.keys() == {*MODELS}
    never, unknown = World(3, [[1.0, 0.0, 0.0]] * 3, DRAFT).estimate(50_000)
    assert never.outcomes.keys() == {"big"}
    assert unknown.after.high - unknown.after.low > 1.3 * (known.after.high - known.after.low)


def test_few_outcomes_count_in_part() -> None:
    rare = [[0.99, 0.005, 0.005]] * 3
    calibration, _ = World(4, rare, DRAFT).estimate(1_000)
    assert 0 < calibration.outcomes["small"] < 30
    ratio = calibration.ratio(("small", None))
    assert ratio.doubt > 0
    assert 0.5 < ratio.ratio < 1.5


def lengths(factor: float, answers: int, seed: int = 5) -> Lengths:
    chance = np.random.default_rng(seed)
    actual = 400 * factor * np.exp(chance.normal(-0.18, 0.6, answers))
    return Lengths(True, np.sum(lengths_of(np.full(answers, 400.0), actual), axis=1))


@pytest.mark.parametrize(("factor", "drifts"), [(1.0, False), (1.15, False), (1.6, True), (0.6, True)])
def test_lengths_drift_if_they_are_certainly_a_quarter_off(factor: float, drifts: bool) -> None:
    assert (lengths(factor, 500).drift("big") is not None) == drifts


def test_a_few_answers_are_no_drift() -> None:
    assert lengths(3.0, 20).drift("big") is None
    assert [seed for seed in range(200) if lengths(1.0, 60, seed).drift("big") is not None] == []
