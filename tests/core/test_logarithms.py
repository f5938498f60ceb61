from __future__ import annotations

from fractions import Fraction
from math import log2

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.routing.logarithms import STEPS, class_size, log2_steps, size_class
from routewright._core.routing.quality import on_grid


def exact_steps(value: int) -> int:
    """floor(64 * log2(v)) by whole-number arithmetic alone."""
    power: int = value**STEPS
    return power.bit_length() - 1


@given(st.integers(1, 2**53 - 1))
def test_log2_steps_are_exact(value: int) -> None:
    assert log2_steps(np.array([value]))[0] == exact_steps(value)


def test_log2_steps_are_exact_around_every_threshold() -> None:
    for octave in (1, 5, 20, 40):
        for step in range(STEPS):
            near = round(2 ** (octave + step / STEPS))
            for value in range(max(1, near - 2), near + 3):
                assert log2_steps(np.array([value]))[0] == exact_steps(value)


def test_zero_and_less_count_as_one() -> None:
    assert log2_steps(np.array([0, -5, 1])).tolist() == [0, 0, 0]


@given(st.integers(1, 10**7))
def test_a_size_class_is_a_quarter_octave_and_stands_for_its_lower_edge(tokens: int) -> None:
    size = size_class(tokens)
    assert size == int(4 * log2(tokens) + 1e-9) or size == int(4 * log2(tokens) - 1e-9)
    assert class_size(size) <= tokens
    assert Fraction(tokens, class_size(size)) < 2


@given(st.integers(0, 1_000_000), st.integers(0, 1_000_000))
def test_the_quality_grid_never_reorders(first: int, second: int) -> None:
    low, high = on_grid(np.array(sorted((first, second))))
    assert low <= high
