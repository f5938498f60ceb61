"""The error of a call that exceeds a limit: which limit it names, and when to retry."""

from __future__ import annotations

from typing import Any

from routewright._core.accounts.purses import reserved_error
from routewright._core.accounts.terms import limits_of
from routewright._core.limits import Window, find_denial, headers_of, refusal_of, takes_of
from routewright.errors import RateLimited
from routewright.wire import Denied, Purse, RateLimits, Take, WindowState
from tests.contracts.storage.samples import make_account
from tests.tables import table

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


def test_a_limit_of_one_is_worded_in_the_singular() -> None:
    assert str(refused(2, concurrency=1)).startswith("the account is limited to 1 call at a time, and 0 are left: ")
    assert str(refused(3, requests_per_min=2)).startswith("the account is limited to 2 requests a minute, ")
    assert "limited to 11 tokens a minute, and 1 is left: " in str(refused(2, tokens_per_min=11))


@table("limit", LIMITS)
def test_a_limit_of_zero_suggests_no_retry(limit: str) -> None:
    said = refused(**{limit: 0})
    assert str(said).endswith(", which refuses every call: raise it first")
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
