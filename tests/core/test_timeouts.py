"""Time limits: which settings are refused; and the throughput guard of streams: what is too slow, and what is not."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from routewright import ExecutionLimits, ValidationFailed
from routewright._core.attempts.timeouts import Pace
from tests.tables import table

LIMITS = ExecutionLimits()
US_PER_TOKEN = 10_000
"""A hundred tokens a second, so four hundred characters; a tenth of them in 30 s are 1,200."""


def pace(*chunks: tuple[int, float], limits: ExecutionLimits = LIMITS, us_per_token: int = US_PER_TOKEN) -> Pace:
    """The pace after content has begun and these chunks came, each of so many characters after so long a wait."""
    made = Pace(limits, us_per_token)
    made.chunk(50, 8.0)
    for characters, waited_s in chunks:
        made.chunk(characters, waited_s)
    return made


def test_a_trickle_is_slow_after_half_a_minute() -> None:
    assert not pace(*[(1, 5.0)] * 5).is_slow
    assert pace(*[(1, 5.0)] * 6).is_slow


@table(("characters", "slow"), [(1_199, True), (1_200, False), (1_201, False)])
def test_a_stream_at_exactly_the_share_is_fast_enough(characters: int, slow: bool) -> None:
    assert pace((characters - 1, 29.0), (1, 1.0)).is_slow is slow


def test_the_time_to_the_first_content_does_not_count() -> None:
    slow_start = Pace(LIMITS, US_PER_TOKEN)
    slow_start.chunk(0, 9.0)
    slow_start.chunk(1, 100.0)
    assert not slow_start.is_slow


def test_reasoning_between_content_does_not_count_as_slow() -> None:
    thinking = [(0, 1.0)] * 60
    assert not pace((300, 1.0), *thinking, (300, 1.0), *thinking, (1, 1.0)).is_slow


def test_each_period_is_judged_alone() -> None:
    made = pace((1, 30.0))
    assert made.is_slow
    for _ in range(30):
        made.chunk(400, 1.0)
    assert not made.is_slow
    for _ in range(6):
        made.chunk(1, 5.0)
    assert made.is_slow, "what came quickly before does not excuse it"


def test_a_slow_reader_is_not_a_slow_stream() -> None:
    made = pace()
    for _ in range(1_000):  # a minute passes between two reads, and then the chunk is there
        made.chunk(4, 0.0)
    assert not made.is_slow


# Settings


@table("value", [-1, nan, inf, True, "10", None])
def test_a_limit_is_a_finite_number_of_at_least_nothing(value: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"ExecutionLimits\.idle_s: is .*; use a finite number, 0 or more"):
        ExecutionLimits(idle_s=value)


@table("value", [0, -1, 2.0, True, None])
def test_a_circuit_opens_after_a_whole_number_of_faults(value: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"ExecutionLimits\.open_after: is .*; use a whole number"):
        ExecutionLimits(open_after=value)
