"""Rate limits: what a window counts, how long to wait, what a refusal says, and a million arrivals against a list."""

from __future__ import annotations

from fractions import Fraction
from itertools import islice
from math import nextafter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.accounts.holds import Hold
from routewright._core.accounts.purses import reserved_error
from routewright._core.accounts.settlement import End, end_hold
from routewright._core.accounts.terms import limits_of
from routewright._core.limits import Window, find_denial, fits, headers_of, refusal_of, takes_of, wait_until_free
from routewright.errors import RateLimited
from routewright.wire import WINDOW_S, Ask, Caller, Denied, Purse, RateLimits, Take, WindowState
from tests.contracts.storage.samples import make_account, make_key
from tests.tables import table

from .account_state import LEASE_S, Ledger
from .rate_limit_model import ARRIVALS, FIRST, Arrivals, Crowd, paired_limits, told

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
    then = now + wait_until_free(at, now)
    assert then - WINDOW_S >= at
    assert Fraction(then) - Fraction(at) >= 60
    before = nextafter(nextafter(then, 0.0), 0.0)
    assert Fraction(before) - Fraction(at) < 60


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


@table(
    ("used", "amount", "limit", "room"),
    [(0, 5, 5, True), (4, 1, 5, True), (0, 6, 5, True), (9, 0, 5, True), (0, 1, 0, False), (0, -1, 5, False)],
)
def test_an_empty_window_admits_any_amount_and_zero_always_fits(used: int, amount: int, limit: int, room: bool) -> None:
    assert fits(used, amount, limit) == room
    assert window((0.0, used)).admits(RateLimits(tokens_per_min=limit), amount, 0) == room or amount < 0


def test_each_limit_refuses_by_itself() -> None:
    there = window((0.0, 5))
    there.slots = 1
    for limits in (RateLimits(requests_per_min=1), RateLimits(tokens_per_min=5), RateLimits(concurrency=1)):
        assert not there.admits(limits, 1, 1)
    assert there.admits(RateLimits(requests_per_min=2, tokens_per_min=6, concurrency=2), 1, 1)
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
        (Take("a", "tokens", 40, 50), 59.0),
        (Take("a", "tokens", 100, 0), 0.0),
        (Take("a", "tokens", 0, 1), 60.0),
        (Take("a", "requests", 6), 0.0),
        (Take("a", "slots", 2), 1.0),
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
    assert find_denial(takes, 20.0) == Denied(1, 55.0, states)


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
    assert find_denial([(each, filled) for each in takes], now) == find_denial([(each, there) for each in takes], now)


# Refusals and headers


NOW = 1_800_000_000.0
LIMITS = ("requests_per_min", "tokens_per_min", "concurrency")


def refused(calls: int = 1, **limits: Any) -> RateLimited:
    """What the call is told that is one too many; each asks for ten tokens."""
    window, own = Window(), limits_of(make_account(plan="unlimited", limits=RateLimits(**limits)))
    for _ in range(calls - 1):
        window.take(100.0, 10)
        window.slots += 1
    assert not window.admits(own, 10, 1)
    takes = takes_of("account:production:acme", own, 10, slots=True)
    return refusal_of(takes, find_denial([(take, window) for take in takes], 100.0), NOW)


@table("limit", LIMITS)
def test_a_refusal_names_its_limit(limit: str) -> None:
    said = refused(2, **{limit: 1})
    assert (said.detail["limit_of"], said.detail["limit"]) == (limit, 1)
    assert said.detail["resource"] == ("tokens" if limit == "tokens_per_min" else "requests")
    assert f"try again in {said.detail['retry_after_seconds']} s" in str(said)


@table("limit", LIMITS)
def test_a_limit_of_zero_suggests_no_retry(limit: str) -> None:
    said = refused(**{limit: 0})
    assert str(said).endswith(", which refuses every call; raise it first")
    assert str(said).startswith("the account is limited to 0 ")


@table("limit", LIMITS)
@table("most", [0, 1])
def test_the_reset_time_is_not_before_the_wait_is_over(limit: str, most: int) -> None:
    detail = refused(2, **{limit: most}).detail
    assert detail["reset_unix"] >= NOW + detail["retry_after_seconds"]


def test_headers_describe_the_window_with_the_smallest_share_left() -> None:
    states = [
        WindowState("slots", 2, 0, 0.0), WindowState("requests", 60, 30, 12.2), WindowState("tokens", 1_000, 400, 59.0),
    ]  # fmt: skip
    assert headers_of(states, 1_000.0) == {
        "X-RateLimit-Limit": "1000",
        "X-RateLimit-Remaining": "400",
        "X-RateLimit-Reset": "1059",
        "X-RateLimit-Resource": "tokens",
    }
    assert headers_of(states[:2], 1_000.0)["X-RateLimit-Reset"] == "1013"
    assert headers_of(states[:1], 1_000.0) == headers_of([], 1_000.0) == {}


def test_headers_of_a_refusal_say_when_to_retry() -> None:
    takes = [Take("key:k", "tokens", 100, 60)]
    error = refusal_of(takes, Denied(0, 7.5, (WindowState("tokens", 100, 50, 30.0),)), 1_000.0)
    assert error.headers == {
        "X-RateLimit-Limit": "100",
        "X-RateLimit-Remaining": "50",
        "X-RateLimit-Reset": "1030",
        "X-RateLimit-Resource": "tokens",
        "Retry-After": "8",
    }
    assert reserved_error(Purse("key", "key:k", 1), 5_000).headers == {"Retry-After": "1"}
    assert RateLimited("x").headers == {}


# At scale


class StateGate:
    """The rules themselves."""

    def __init__(self, account: RateLimits, key: RateLimits) -> None:
        ledger = Ledger(make_key(limits=key), limits=account)
        self._state = ledger.state
        self._eviction = ledger.eviction

    def ask(self, ask: Ask, at: float) -> RateLimited | None:
        self._state.begin(1, at, at + LEASE_S)
        self._eviction.step(at)
        try:
            found = self._state.admit(ask, 1, ask.at)
        except RateLimited as refused:
            return refused
        assert isinstance(found, Hold)
        return None

    def end(self, call: str, tokens: int | None) -> None:
        end_hold(self._state, End(call, tokens))


@pytest.mark.parametrize("arrivals", ARRIVALS, ids=lambda arrivals: arrivals.__name__)
@pytest.mark.parametrize("limit", [3, 200])
def test_no_window_of_a_million_arrivals_exceeds_a_limit_and_no_refusal_is_needless(
    limit: int, arrivals: Arrivals, full: bool
) -> None:
    rng, limits = Random(limit), paired_limits(limit)
    crowd = Crowd(StateGate(*limits), rng, *limits)
    for at in islice(arrivals(limit, rng), 1_000_000 if full else 2_500):
        crowd.come(at)
    crowd.check()


def test_a_caller_that_waits_as_told_is_always_admitted(full: bool) -> None:
    rng, at, refusals, limits = Random(1), FIRST, 0, paired_limits(60)
    crowd = Crowd(StateGate(*limits), rng, *limits)
    while refusals < (10_000 if full else 1_000):
        asked = rng.choice((0, 100, 2_000, 70_000)), Caller("acme", key_id=rng.choice((None, "k")))
        refused = crowd.ask(at, *asked)
        if refused is not None:
            refusals += 1
            at += told(refused)
            assert crowd.ask(at, *asked) is None
        at += rng.random() / 3
