"""Alerts for error bursts and for hours with few cache hits: once per window and account."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routewright._core.alerts import LEAST_LOOKUPS, LEAST_REQUESTS, MOST_COUNTED, WINDOW_S, ErrorBursts, LowHits
from routewright.wire import CacheEvicted, ErrorBurst
from tests.tables import table


def told(calls: list[bool], every_s: float = 1.0) -> list[tuple[int, ErrorBurst]]:
    """The bursts of one account, each with the place of the call that began it. True: an error."""
    bursts = ErrorBursts()
    found = [(place, bursts.count_call("a", place * every_s, error=error)) for place, error in enumerate(calls)]
    return [(place, burst) for place, burst in found if burst is not None]


def test_a_burst_begins_above_five_per_cent_of_at_least_twenty() -> None:
    assert told([True] * (LEAST_REQUESTS - 1)) == []
    assert told([True] * LEAST_REQUESTS) == [(19, ErrorBurst(300, 20, 20, 1.0))]
    assert told([False] * 19 + [True]) == [], "5 % is not above 5 %"
    assert told([False] * 19 + [True, True]) == [(20, ErrorBurst(300, 21, 2, 0.0952))]


def test_a_call_that_went_well_never_begins_one() -> None:
    assert told([True] * 19 + [False]) == []


def test_a_burst_is_told_once_a_window() -> None:
    places = [place for place, _ in told([True] * 1_000)]
    assert places == [19, 19 + WINDOW_S, 19 + 2 * WINDOW_S, 19 + 3 * WINDOW_S]


def test_errors_are_forgotten_after_the_window() -> None:
    assert told([True] * 19 + [False] * 320 + [True]) == []


def test_accounts_are_counted_apart() -> None:
    bursts = ErrorBursts()
    for place in range(19):
        assert bursts.count_call("a", place, error=True) is None
        assert bursts.count_call("b", place, error=True) is None
    assert bursts.count_call("b", 20.0, error=False) is None
    assert bursts.count_call("a", 20.0, error=True) is not None


def test_an_account_that_goes_on_calling_is_not_the_one_forgotten() -> None:
    bursts = ErrorBursts()
    bursts.count_call("busy", 0.0, error=True)
    for place in range(MOST_COUNTED - 1):
        bursts.count_call(place, 0.0, error=False)
    bursts.count_call("busy", 1.0, error=True)
    bursts.count_call("new", 1.0, error=False)
    assert "busy" in bursts._accounts
    assert 0 not in bursts._accounts


@given(st.lists(st.tuples(st.floats(0, 40), st.booleans()), max_size=200))
def test_counts_are_those_of_the_last_five_minutes(calls: list[tuple[float, bool]]) -> None:
    bursts, now, seen = ErrorBursts(), 0.0, list[tuple[float, bool]]()
    for gap_s, error in calls:
        now += gap_s
        seen.append((now, error))
        burst = bursts.count_call("a", now, error=error)
        if burst is not None:
            inside = [failed for at, failed in seen if at > now - WINDOW_S]
            around = [failed for at, failed in seen if at > now - WINDOW_S - 5]
            assert len(inside) <= burst.requests <= len(around)
            assert sum(inside) <= burst.errors <= sum(around)
            assert burst.errors > 0.05 * burst.requests


def test_an_hour_with_too_few_hits_is_told_once_it_is_over() -> None:
    watch = LowHits(0.05)
    for number in range(LEAST_LOOKUPS):
        assert watch.count_lookup("acme", 36.0 * number, is_hit=number < 4) is None
    assert watch.count_lookup("other", 3600.0, is_hit=False) is None
    assert watch.count_lookup("acme", 3600.0, is_hit=False) == CacheEvicted(3600, 0.04, 0.05)
    assert watch.count_lookup("acme", 3601.0, is_hit=False) is None


@table(("lookups", "hits"), [(LEAST_LOOKUPS - 1, 0), (LEAST_LOOKUPS, 5)])
def test_few_lookups_or_enough_hits_are_no_news(lookups: int, hits: int) -> None:
    watch = LowHits(0.05)
    for number in range(lookups):
        watch.count_lookup("acme", 0.0, is_hit=number < hits)
    assert watch.count_lookup("acme", 3600.0, is_hit=False) is None
