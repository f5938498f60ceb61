"""One window: what counts in it and for how long, to the last bit of a float; and what its numbers mean."""

from __future__ import annotations

from fractions import Fraction
from math import inf, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.window import Window, check_seconds, fits, leaves_in
from routewright.errors import ValidationFailed
from routewright.wire import WINDOW_S

TIMES = st.floats(0.0, 1e9) | st.floats(0.0, 200.0) | st.integers(0, 10**7).map(float)
SHORT = st.floats(0.0, 60.0, exclude_max=True)


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


@given(TIMES, TIMES)
def test_whether_something_has_left_is_told_without_rounding(at: float, now: float) -> None:
    window = Window()
    window.put(1, at)
    window.age(now - WINDOW_S)
    assert (window.used == 0) == (Fraction(now) - Fraction(at) >= 60)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 7.0, 20.0, 59.0]), st.integers(0, 9), st.integers(-1, 5)), max_size=40
    )
)
def test_the_sum_is_that_of_what_counts(history: list[tuple[float, int, int]]) -> None:
    window, entries, now = Window(), list[tuple[int, float]](), 0.0
    weights = dict[int, int]()
    for seconds, amount, corrected in history:
        now += seconds
        window.age(now - WINDOW_S)
        number = window.put(amount, now)
        entries.append((number, now))
        weights[number] = amount
        if 0 <= corrected < len(entries):
            which, at = entries[-1 - corrected]
            window.correct(which, 100)
            weights[which] = 100 if at > now - WINDOW_S else weights[which]
        there = {each: at for each, at in entries if at > now - WINDOW_S}
        assert window.used == sum(weights[each] for each in there)
        assert window.reset_s(now) == max((60 - (now - at) for each, at in there.items() if weights[each]), default=0.0)


def test_what_has_left_takes_no_memory() -> None:
    window = Window()
    for second in range(10_000):
        window.age(second - WINDOW_S)
        window.put(1, float(second))
    assert len(window.times) <= 120
    assert window.used == 60


@pytest.mark.parametrize(
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
        (0, 1, -1, False),
        (0, -1, 5, False),
    ],
)
def test_there_is_room_up_to_the_limit_for_more_than_it_alone_and_for_nothing_always(
    used: int, amount: int, limit: int, room: bool
) -> None:
    assert fits(used, amount, limit) == room


@pytest.mark.parametrize("seconds", [0, -1, inf, float("nan"), True, "30", None])
def test_what_is_no_length_of_time_is_refused(seconds: object) -> None:
    with pytest.raises(ValidationFailed, match=r"X.lease_s: is .*; take a number of seconds above 0"):
        check_seconds(seconds, "X.lease_s")
