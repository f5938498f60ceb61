"""Rate limits at length: a million arrivals checked window by window, one who waits as told, walks beside the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import ceil, nextafter
from random import Random

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routewright import MemoryCoordination
from routewright.testing import FakeClock
from routewright.testing.coordination import Walk
from routewright.wire import WINDOW_S, Denied, Take, Taken
from tests.limits import SetClock, at_once, one

Arrivals = Callable[[int, Random], Iterator[float]]


def uniform(limit: int, rng: Random) -> Iterator[float]:
    """Twice as many as the limit admits, at any time."""
    now = 1e5
    while True:
        now += rng.random() * 60 / limit
        yield now


def bursts(limit: int, rng: Random) -> Iterator[float]:
    """More than a window's at once, around the ends of windows: an instant before, then, and an instant after."""
    edge = 1e5
    while True:
        edge += rng.choice((1.0, 30.0, 60.0, 60.0, 60.0))
        for at in (edge - 1e-3, nextafter(edge, 0.0), edge, nextafter(edge, 1e9), edge + 1e-3):
            yield from [at] * (1 + rng.randrange(limit // 2 + 1))


@pytest.mark.parametrize("arrivals", [uniform, bursts], ids=["uniform", "bursts"])
@pytest.mark.parametrize("limit", [60, 600, 3_000])
def test_no_window_of_a_million_arrivals_is_above_the_limit_and_nobody_is_refused_in_vain(
    limit: int, arrivals: Arrivals, full: bool
) -> None:
    rng, clock = Random(limit), SetClock()
    coordination = MemoryCoordination(clock=clock)
    takes = one("account:a", limit)
    admitted, refused = list[float](), list[float]()
    for at in islice(arrivals(limit, rng), 1_000_000 if full else 30_000):
        clock.now = at
        clock.wall = rng.choice((-3_600.0, 0.0, 3_600.0))
        result = at_once(coordination.take(takes, "me"))
        (admitted if isinstance(result, Taken) else refused).append(at)
    assert len(admitted) > limit
    times = np.array(admitted)
    in_window = np.arange(1, len(times) + 1) - np.searchsorted(times, times - WINDOW_S, side="right")
    assert in_window.max() == limit
    then = np.array(refused)
    there = np.searchsorted(times, then, side="right") - np.searchsorted(times, then - WINDOW_S, side="right")
    assert there.min() == there.max() == limit


@pytest.mark.parametrize("limit", [600, 60_000, 3_000_000])
def test_no_window_of_tokens_is_above_the_limit_whatever_is_corrected(limit: int, full: bool) -> None:
    """Entries are kept in columns, and every step is held to their sum as it is at that moment."""
    rng, clock = Random(limit), SetClock(1e5)
    coordination = MemoryCoordination(clock=clock)
    arrivals = 200_000 if full else 5_000
    times, weights, size = np.zeros(arrivals), np.zeros(arrivals, dtype=np.int64), 0
    live = list[tuple[Taken, int]]()
    outcomes = {"admitted": 0, "alone": 0, "refused": 0, "corrected": 0}
    for _ in range(arrivals):
        clock.now += rng.expovariate(2.0) if rng.random() < 0.98 else 61.0
        if live and rng.random() < 0.6:
            step, place = live.pop(rng.randrange(len(live)))
            tokens = rng.choice((0, weights[place] // 2, weights[place] + rng.randrange(limit // 50)))
            at_once(coordination.end(step, int(tokens)))
            weights[place] = tokens
            outcomes["corrected"] += 1
        amount = rng.choice((0, limit // 20, limit // 10, rng.randrange(limit), limit + 1))
        result = at_once(coordination.take(one("a", limit, amount, "tokens"), "me"))
        first = np.searchsorted(times[:size], clock.now - WINDOW_S, side="right")
        used = int(weights[first:size].sum())
        fits, alone = used + amount <= limit, amount > limit and used == 0
        assert isinstance(result, Taken) == (fits or alone or amount == 0)
        outcomes["alone" if alone else "admitted" if fits else "refused"] += 1
        if isinstance(result, Taken):
            times[size], weights[size], size = clock.now, amount, size + 1
            live.append((result, size - 1))
    assert all(outcomes.values()), outcomes


def test_one_who_waits_as_he_is_told_is_let_in_every_time(full: bool) -> None:
    rng, clock = Random(1), SetClock(0.3)
    coordination = MemoryCoordination(clock=clock)
    told, limit = 0, 60
    while told < (10_000 if full else 1_000):
        takes = [
            Take("account:a", "requests", rng.choice((limit, limit // 2))),
            Take("account:a", "tokens", 60_000, rng.choice((100, 2_000, 70_000))),
            Take("key:k", "requests", 20),
        ]
        result = at_once(coordination.take(takes, "me"))
        if isinstance(result, Denied):
            clock.now += ceil(result.retry_after_s) if rng.random() < 0.5 else result.retry_after_s
            result = at_once(coordination.take(takes, "me"))
            told += 1
        assert isinstance(result, Taken), result
        if rng.random() < 0.5:
            at_once(coordination.end(result, rng.randrange(3_000)))
        clock.now += rng.random() / 3


def test_walks_go_as_the_model_says(full: bool) -> None:
    @settings(max_examples=5_000 if full else 30, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def check(rng: Random) -> None:
        clock = FakeClock()
        anyio.run(Walk(MemoryCoordination(clock=clock), clock, rng, 30.0).go, 50)

    check()
