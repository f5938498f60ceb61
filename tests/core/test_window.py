"""A rate window: what counts and for how long, to the last bit of a float; how long to wait; what is refused."""

from __future__ import annotations

from fractions import Fraction
from math import nextafter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.limits import Window, denied, fits, leaves_in
from routewright.wire import WINDOW_S, Denied, RateLimits, Take, WindowState
from tests.tables import table

TIMES = st.floats(0.0, 1e9) | st.floats(0.0, 200.0) | st.integers(0, 10**7).map(float)
SHORT = st.floats(0.0, 60.0, exclude_max=True)
PAUSES = st.sampled_from([0.0, 0.0, 0.5, 7.0, 20.0, 59.0, 60.0])


def window(*taken: tuple[float, int]) -> Window:
    """One in which so many tokens were taken at these times."""
    made = Window()
    for at, tokens in taken:
        made.take(at, tokens)
    return made


@given(TIMES, SHORT)
def test_the_wait_is_long_enough_as_floats_add_and_hardly_longer(at: float, later: float) -> None:
    now = at + later
    if Fraction(now) - Fraction(at) >= 60:
        return
    then = now + leaves_in(at, now)
    assert then - WINDOW_S >= at
    assert Fraction(then) - Fraction(at) >= 60
    before = nextafter(nextafter(then, 0.0), 0.0)
    assert Fraction(before) - Fraction(at) < 60


def test_a_whole_minute_is_reported_if_a_float_rounds_to_it() -> None:
    rng = Random(1)
    for _ in range(1_000):
        at = 2.0**17 - rng.random() * 60  # a minute later floats lie twice as far apart
        assert leaves_in(at, at) == 60.0 or at + 60.0 - WINDOW_S < at


@given(TIMES, TIMES)
def test_expiry_is_decided_without_rounding(at: float, now: float) -> None:
    there = window((at, 5))
    there.age(now - WINDOW_S)
    assert (there.used_requests == 0) == (there.used_tokens == 0) == (Fraction(now) - Fraction(at) >= 60)


@given(st.lists(st.tuples(PAUSES, st.integers(0, 9), st.integers(-1, 5)), max_size=40))
def test_sums_equal_the_counted_entries(history: list[tuple[float, int, int]]) -> None:
    there, taken, now = Window(), list[list[float]](), 0.0
    for seconds, tokens, corrected in history:
        now += seconds
        there.age(now - WINDOW_S)
        there.take(now, tokens)
        taken.append([now, tokens])
        if 0 <= corrected < len(taken):
            entry = taken[-1 - corrected]
            there.correct(entry[0], int(100 - entry[1]))
            entry[1] = 100
        counts = [tokens for at, tokens in taken if at > now - WINDOW_S]
        assert (there.used_requests, there.used_tokens) == (len(counts), sum(counts))
        assert (there.used("requests"), there.used("tokens"), there.used("slots")) == (len(counts), sum(counts), 0)
        assert len(set(there.times)) == len(there.times), "what is taken at one time is one entry"


def test_expired_entries_take_no_memory() -> None:
    there = Window()
    for second in range(10_000):
        there.age(second - WINDOW_S)
        there.take(float(second), 1)
    assert len(there.times) == len(there.requests) == len(there.tokens) <= 120
    assert there.used_requests == 60


def test_a_correction_of_an_expired_entry_changes_nothing() -> None:
    there = window((0.0, 5), (10.0, 5))
    there.age(0.0)
    there.correct(0.0, 100)
    there.correct(5.0, 100)
    assert there.used_tokens == 5


@table(
    ("used", "amount", "limit", "room"),
    [
        (0, 5, 5, True),
        (1, 5, 5, False),
        (4, 1, 5, True),
        (5, 1, 5, False),
        (0, 6, 5, True),
        (1, 6, 5, False),
        (9, 0, 5, True),
        (9, 0, 0, True),
        (0, 1, 0, False),
        (0, -1, 5, False),
    ],
)
def test_an_empty_window_admits_any_amount_and_zero_always_fits(used: int, amount: int, limit: int, room: bool) -> None:
    assert fits(used, amount, limit) == room
    assert window((0.0, used)).admits(RateLimits(tokens_per_min=limit), amount, 0) == room or amount < 0


def test_each_limit_refuses_by_itself() -> None:
    there = window((0.0, 5))
    there.slots = 1
    for limits in (RateLimits(requests_per_min=1), RateLimits(tokens_per_min=5), RateLimits(concurrency=1)):
        assert not there.admits(limits, 1, 1)
    roomy = RateLimits(requests_per_min=2, tokens_per_min=6, concurrency=2)
    assert there.admits(roomy, 1, 1)
    assert there.admits(RateLimits(concurrency=1), 1, 0), "it needs no slot"


def test_states_report_the_room_left_without_expired_entries() -> None:
    there, limits = window((0.0, 30), (10.0, 30)), RateLimits(requests_per_min=3, tokens_per_min=50, concurrency=1)
    assert there.states(limits, 20.0) == [WindowState("requests", 3, 1, 50.0), WindowState("tokens", 50, 0, 50.0)]
    assert there.states(limits, 60.0) == [WindowState("requests", 3, 2, 10.0), WindowState("tokens", 50, 20, 10.0)]
    assert there.states(limits, 70.0) == [WindowState("requests", 3, 3, 0.0), WindowState("tokens", 50, 50, 0.0)]


@table(
    ("take", "wait_s"),
    [
        (Take("a", "tokens", 100, 50), 57.0),
        (Take("a", "tokens", 40, 20), 58.0),
        (Take("a", "tokens", 40, 50), 59.0),
        (Take("a", "tokens", 100, 0), 0.0),
        (Take("a", "tokens", 0, 1), 60.0),
        (Take("a", "requests", 5), 55.0),
        (Take("a", "requests", 6), 0.0),
        (Take("a", "requests", 0), 60.0),
        (Take("a", "slots", 2), 1.0),
        (Take("a", "slots", 0), 60.0),
    ],
)
def test_the_wait_lasts_until_enough_entries_expire(take: Take, wait_s: float) -> None:
    there = window(*((float(second), 20) for second in range(5)))
    there.slots = 2
    assert there.wait_s(take.resource, take.amount, take.limit, 5.0) == wait_s


def test_a_refusal_names_the_limit_with_the_longest_wait_and_all_states() -> None:
    first, second = window((0.0, 30), (10.0, 30)), window((15.0, 5))
    second.slots = 1
    takes = [(Take("a", "tokens", 100, 60), first), (Take("b", "requests", 1), second), (Take("b", "slots", 1), second)]
    states = WindowState("tokens", 100, 40, 50.0), WindowState("requests", 1, 0, 55.0), WindowState("slots", 1, 0, 0.0)
    assert denied(takes, 20.0) == Denied(1, 55.0, states)


@given(st.lists(st.tuples(SHORT, st.integers(0, 9)), min_size=1, max_size=20), st.integers(1, 20), st.integers(1, 9))
def test_a_filled_window_answers_like_its_source(taken: list[tuple[float, int]], limit: int, amount: int) -> None:
    there, filled, now = window(*sorted(taken)), Window(), 60.0
    there.slots = 3
    there.age(now - WINDOW_S)
    entries = [*zip(there.times, there.requests, there.tokens, strict=True)][there.head :]
    need, first = max(there.used_requests + 1 - limit, there.used_tokens + min(amount - limit, 0)), list[Any]()
    while entries and min(sum(each[1] for each in first), sum(each[2] for each in first)) < need:
        first.append(entries.pop(0))
    filled.fill(there.used_requests, there.used_tokens, 3, there.times[-1] if there.times else 0.0, first)
    limits = RateLimits(requests_per_min=limit, tokens_per_min=limit)
    takes = [Take("a", "requests", limit), Take("a", "tokens", limit, amount), Take("a", "slots", 2)]
    assert filled.states(limits, now) == there.states(limits, now)
    assert filled.admits(limits, amount, 1) == there.admits(limits, amount, 1)
    assert denied([(each, filled) for each in takes], now) == denied([(each, there) for each in takes], now)


@pytest.mark.parametrize("limit", [1, 7, 60])
def test_no_minute_exceeds_a_limit_and_no_refusal_is_needless(limit: int, full: bool) -> None:
    rng, there, now, admitted = Random(limit), Window(), 0.0, list[float]()
    limits = RateLimits(requests_per_min=limit)
    for _ in range(1_000_000 if full else 2_000):
        now += rng.expovariate(limit / 45)
        there.age(now - WINDOW_S)
        last = admitted[-limit:]
        counted = sum(Fraction(now) - Fraction(at) < 60 for at in last)
        assert there.admits(limits, 0, 0) == (counted < limit)
        if counted < limit:
            there.take(now, 0)
            admitted.append(now)
        else:
            then = now + there.wait_s("requests", 1, limit, now)
            assert Fraction(then) - Fraction(last[0]) >= 60
