"""The record of what a provider billed above a bound: never below a bill, and no higher than the bills require."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routewright.wire import Overrun

Bill = tuple[int, int]
TOKENS = st.one_of(st.integers(1, 300), st.integers(1, 2_000_000))
BILLS = st.lists(st.tuples(TOKENS, TOKENS).map(lambda pair: (min(pair), pair[1])), min_size=1, max_size=12)


def record(*bills: Bill) -> Overrun:
    return reduce(Overrun.merge, [Overrun(output=(bill,)) for bill in bills], Overrun())


def billed(overrun: Overrun, tokens: int) -> int:
    return overrun.billed(0, tokens)[1]


@pytest.mark.parametrize(
    ("bills", "limits"),
    [
        pytest.param([], {1: 1, 5_000: 5_000}, id="nothing"),
        pytest.param([(10, 360)], {1: 360, 10: 360, 11: 396, 1_000: 36_000}, id="350 more, or 36 times as many"),
        pytest.param([(10, 360), (1_000, 1_350)], {10: 360, 20: 720, 100: 1_350, 1_000: 1_350, 2_000: 2_700}, id="350"),
        pytest.param([(10, 360), (900, 900)], {10: 360, 100: 900, 901: 901}, id="once 350 more"),
        pytest.param([(10, 30), (1_000, 3_000)], {10: 30, 100: 300, 5_000: 15_000}, id="three times as many"),
        pytest.param([(1, 8_000), (8_000, 8_000)], {1: 8_000, 500: 8_000, 9_000: 9_000}, id="as many as it can"),
        pytest.param([(10, 360), (12, 400), (14, 410)], {10: 360, 12: 410, 14: 410}, id="many of one size"),
        pytest.param([(10, 15), (1_000, 2_000)], {10: 20, 1_000: 2_000}, id="a larger one that refutes a smaller one"),
        pytest.param([(1_000, 1_100), (10, 2_000)], {1_000: 2_000, 2_000: 4_000}, id="a smaller one that refutes it"),
    ],
)
def test_the_lowest_reading_that_agrees_with_all_bills_is_reserved(bills: list[Bill], limits: dict[int, int]) -> None:
    overrun = record(*bills)
    assert {tokens: billed(overrun, tokens) for tokens in limits} == limits


@given(BILLS, st.data())
def test_a_record_is_never_below_a_bill(bills: list[Bill], data: st.DataObject) -> None:
    """Whoever wrote it down, in whatever order: two processes take turns in reading each other's."""
    processes = [Overrun(), Overrun()]
    for bill in bills:
        process = data.draw(st.integers(0, 1))
        processes[process] = processes[process].merge(Overrun(output=(bill,)))
        if data.draw(st.booleans()):
            processes[1 - process] = processes[1 - process].merge(processes[process])
    together = processes[0].merge(processes[1])
    assert together == processes[1].merge(processes[0])
    assert together == together.merge(together) == together.merge(processes[0]) == together.merge(processes[1])
    assert all(billed(together, bound) >= most for bound, most in bills)
    for (low, less), (high, more) in pairwise(together.output):
        assert low < high
        assert less <= more <= less * high / low
    assert max(Counter(bound.bit_length() // 2 for bound, _ in together.output).values()) <= 2


@given(BILLS, BILLS, BILLS)
def test_the_order_of_merges_makes_a_difference_of_two_tokens_at_most(
    first: list[Bill], second: list[Bill], third: list[Bill]
) -> None:
    one, two, three = record(*first), record(*second), record(*third)
    left, right = one.merge(two).merge(three).output, one.merge(two.merge(three)).output
    assert [bound for bound, _ in left] == [bound for bound, _ in right]
    assert all(abs(some - others) <= 2 for (_, some), (_, others) in zip(left, right, strict=True))


@example(13.0, 1_780, [128, 189, 255], 189)
@given(st.floats(1, 40), st.integers(0, 5_000), st.lists(TOKENS, min_size=1, max_size=20), TOKENS)
def test_both_readings_of_an_overrun_cover_every_call(factor: float, extra: int, calls: list[int], tokens: int) -> None:
    overrun = record(*((call, ceil(call * factor) + extra) for call in calls))
    exact = ceil(tokens * factor) + extra
    assert billed(overrun, tokens) >= exact
    if any(tokens <= call <= tokens * 1.1 for call in calls):
        # Of sizes within a factor of four, a record keeps two bills. Between them, the lower of the smaller one read as
        # a factor and the larger one read as it is comes to at most (1 + sqrt(4)) / 2 of what is exact.
        assert billed(overrun, tokens) <= 1.5 * exact + 1, "a call of this size was seen"


@given(BILLS, st.integers(-5, 3_000_000))
def test_the_largest_cap_within_a_room_is_exact(bills: list[Bill], room: int) -> None:
    overrun = record(*bills)
    cap = overrun.cap_within(room)
    assert cap < 0 or billed(overrun, cap) <= room
    assert billed(overrun, max(cap + 1, 1)) > room


@given(BILLS, BILLS)
def test_a_record_covers_another_one_if_it_reserves_as_much_for_every_call(
    some: list[Bill], others: list[Bill]
) -> None:
    one, two = record(*some), record(*others)
    corners = {
        corner for overrun in (one, two) for bill in overrun.output for corner in (bill[0], bill[0] + 1, bill[1])
    }
    assert one.covers(two) == all(billed(one, tokens) >= billed(two, tokens) for tokens in {1, 9_000_000, *corners})
    assert one.covers(None)
    assert not Overrun().covers(record((1, 2)))
