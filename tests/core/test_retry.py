"""The retry budget: retries stay a small share of requests, in any arrival pattern."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from routewright._core.attempts.retry import RetryBudget, WindowedCount
from routewright._core.attempts.timeouts import ExecutionLimits

LIMITS = ExecutionLimits()
FLOOR = 100
"""Ten a second for ten seconds."""


def test_retries_in_any_ten_seconds_stay_within_share_and_floor(full: bool) -> None:
    refused = sum(play(Random(seed)) for seed in range(1_000 if full else 10))
    assert refused > 0, "else nothing was shown"


def play(chance: Random) -> int:
    """Requests and tries in bursts; every ten seconds that end with a try are counted anew. Gives how often it was
    refused."""
    budget, now, refused = RetryBudget(LIMITS), chance.choice([0.0, 0.95, 7_777.77]), 0
    requests: list[float] = []
    tries: list[float] = []
    for _ in range(chance.randint(5, 40)):
        for _ in range(chance.choice([0, 0, 1, 30, 200])):
            requests.append(now)
            budget.count_requests(now)
        for _ in range(chance.choice([0, 1, 30, 150])):
            if budget.take(now):
                tries.append(now)
                lately = [sum(now - 10 < at <= now for at in times) for times in (tries, requests)]
                assert lately[0] <= 0.2 * lately[1] + FLOOR
            else:
                refused += 1
        now += chance.choice([chance.random() * 0.2, chance.random() * 3, 0.999, 9.049, 9.95])
    return refused


def test_retries_are_returned_after_ten_seconds() -> None:
    budget = RetryBudget(LIMITS)
    assert [budget.take(0.05) for _ in range(FLOOR + 1)] == [True] * FLOOR + [False]
    assert not budget.take(10.04)
    assert budget.take(10.2)


def test_ten_thousand_calls_to_a_dead_provider_stay_within_the_budget() -> None:
    budget, tries = RetryBudget(LIMITS), 0
    for call in range(10_000):
        budget.count_requests(call / 100)
        tries += budget.take(call / 100)
    assert 2_500 <= tries <= 0.2 * 10_000 + 10 * 110
    assert tries < 3_200


def test_a_slightly_earlier_time_counts_as_now() -> None:
    budget = RetryBudget(LIMITS)
    budget.count_requests(20.0)
    budget.count_requests(19.0)  # told by another thread
    assert sum(budget.take(20.0) for _ in range(200)) == FLOOR
    assert not budget.take(19.5)


def test_a_share_of_nothing_and_no_floor_allow_none() -> None:
    budget = RetryBudget(ExecutionLimits(retry_share=0.0, retries_per_s=0.0))
    budget.count_requests(0.0)
    assert not budget.take(0.0)


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=60), st.integers(0, 12))
def test_a_windowed_count_counts_the_last_steps(length: int, happened: list[tuple[int, int]], later: int) -> None:
    lately, step, all_of_it = WindowedCount(length), 0, list[tuple[int, int]]()
    for further, bad in happened:
        step += further
        lately.add(step, bad)
        all_of_it.append((step, bad))
        seen = [was_bad for at, was_bad in all_of_it if at > step - length]
        assert (lately.total, lately.bad) == (len(seen), sum(seen))
    lately.move_to(step + later)
    seen = [was_bad for at, was_bad in all_of_it if at > step + later - length]
    assert (lately.total, lately.bad) == (len(seen), sum(seen))
