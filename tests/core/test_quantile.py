"""Quantile estimates stay within their error bound for any input."""

from __future__ import annotations

from collections import defaultdict
from math import ceil, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.attempts.statistics import BUCKETS, ERROR, Histogram, quantile, scale
from tests.tables import table

ROUNDING = 1e-9

Weighted = list[tuple[float, float]]

VALUES = st.floats(1.0, 1e9) | st.sampled_from([1.0, 1.0 + 1e-12, 2.0, 1e9, 1e300])
STEPS = st.integers(0, 400).map(lambda n: (1.05 / 0.95) ** n)
"""The very bounds of the buckets."""
WEIGHTS = st.sampled_from([1.0, 0.5, 2.0**64, 2.0**-20]) | st.integers(1, 1000).map(float)
SHARES = st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 1.0]) | st.floats(0.0, 1.0)


def of(seen: Weighted) -> Histogram:
    made: Histogram = defaultdict(float)
    for value, weight in seen:
        made[ceil(log(value) * BUCKETS) if value > 1.0 else 0] += weight
    return made


def is_at(found: float, seen: Weighted, share: float) -> bool:
    """Whether a value is within the error of one below which the share lies, whichever way that was summed up."""
    total, below, least = sum(weight for _, weight in seen), 0.0, 1 - ROUNDING
    for value, weight in sorted(seen):
        first = below <= share * total * (2 - least)
        below += weight
        if first and below >= share * total * least and abs(found - value) <= (ERROR + ROUNDING) * value:
            return True
    return False


@given(st.lists(st.tuples(VALUES | STEPS, WEIGHTS), min_size=1, max_size=60), SHARES)
def test_a_quantile_is_within_the_error_of_the_exact_one(seen: Weighted, share: float) -> None:
    assert is_at(quantile(of(seen), share), seen, share)


@given(st.lists(st.tuples(VALUES, WEIGHTS), max_size=30), VALUES, st.integers(1, 1000), SHARES)
def test_an_extra_value_counts_without_being_added(seen: Weighted, more: float, weight: int, share: float) -> None:
    made = of(seen)
    before = quantile(made, share), sum(made.values())
    assert quantile(made, share, more, float(weight)) == quantile(of([*seen, (more, float(weight))]), share)
    assert (quantile(made, share), sum(made.values())) == before


@given(st.lists(st.tuples(VALUES, st.integers(1, 1000).map(float)), min_size=1, max_size=30), SHARES)
def test_scaling_the_weights_changes_no_quantile(seen: Weighted, share: float) -> None:
    made = of(seen)
    before, total = quantile(made, share), sum(made.values())
    made = scale(made, 2.0**-8)  # exact in binary
    assert quantile(made, share) == before
    assert sum(made.values()) == total / 256


@table("value", [0.0, -3.0, 0.5, 1.0])
def test_values_below_one_count_as_one(value: float) -> None:
    assert quantile(of([(value, 1.0)]), 0.5) == 1.0


def test_the_quantile_of_no_values_is_one() -> None:
    assert quantile({}, 0.5) == 1.0


def test_negligible_weights_are_dropped() -> None:
    made = of([(1_000.0, 1.0), (5.0, 1e6)])
    made = scale(made, 1e-12)
    assert quantile(made, 1.0) == pytest.approx(5.0, rel=ERROR)
    assert sum(made.values()) == pytest.approx(1e-6)
    made = scale(made, 1e-12)
    assert sum(made.values()) == 0.0


def test_memory_grows_with_the_range_of_values_only() -> None:
    assert len(of([(float(value), 1.0) for value in range(1, 60_001)])) < 120
