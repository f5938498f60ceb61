from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.policy import find_policy, policy_id, publish, under_policy
from routewright._core.request import as_request
from routewright.errors import NoCandidates, ValidationFailed
from routewright.wire import Budget, CacheOpts, Fallback, Policy, PolicyFallback, RouteRequest


def request(**options: object) -> RouteRequest:
    return as_request("hi", options)


def test_a_policy_without_an_id_gets_one_from_its_name() -> None:
    assert re.fullmatch("pol_[0-9A-HJKMNP-TV-Z]{26}", policy_id("careful"))
    assert policy_id("careful") == policy_id("careful") != policy_id("careless")


def test_publishing_fills_what_a_policy_leaves_open() -> None:
    (published,) = publish([Policy(name="careful")], "2026-11-21")
    assert published.version == "careful@2026-11-21"
    assert published.policy.created_at == "2026-11-21T00:00:00Z"
    assert published.policy.id == policy_id("careful")
    dated = publish([Policy(name="careful", created_at="2026-01-02T03:04:05Z")], "2026-11-21")[0]
    assert dated.version == "careful@2026-01-02"


@pytest.mark.parametrize("names", [["a@b"], [""], ["a", "a"]])
def test_names_that_could_not_be_told_apart_are_refused(names: list[str]) -> None:
    with pytest.raises(ValidationFailed, match="policies"):
        publish([Policy(name=name) for name in names], "2026-11-21")


def test_a_policy_is_found_by_id_and_by_name() -> None:
    policies = [
        published.policy for published in publish([Policy(name="a"), Policy(name="b", id="pol_b")], "2026-11-21")
    ]
    assert find_policy("b", policies) is find_policy("pol_b", policies) is policies[1]


def test_goal_and_strategy_are_the_policys() -> None:
    asked = request(goal="cost", strategy="latency-optimized")
    both = under_policy(asked, Policy(name="p", goal="quality", strategy="balanced"))
    assert (both.goal, both.strategy) == ("quality", "balanced")
    by_strategy = under_policy(asked, Policy(name="p", strategy="quality-first"))
    assert (by_strategy.goal, by_strategy.strategy) == ("quality", "quality-first")
    by_goal = under_policy(asked, Policy(name="p", goal="stability"))
    assert (by_goal.goal, by_goal.strategy) == ("stability", "balanced")
    neither = under_policy(asked, Policy(name="p"))
    assert (neither.goal, neither.strategy) == ("cost", "latency-optimized")


def test_model_lists_intersect_in_the_requests_order() -> None:
    policy = Policy(name="p", models=["a/1", "b/2", "c/3"])
    assert under_policy(request(models=["c/3", "x/9", "a/1"]), policy).models == ["c/3", "a/1"]
    assert under_policy(request(), policy).models == ["a/1", "b/2", "c/3"]
    with pytest.raises(NoCandidates, match="none in common"):
        under_policy(request(models=["x/9"]), policy)


money = st.none() | st.floats(0, 10)
tokens = st.none() | st.integers(1, 10_000)


@given(money, money, tokens, tokens, tokens, tokens)
def test_limits_take_the_smaller(
    mine: float | None, theirs: float | None, my_tokens: int | None, their_tokens: int | None,
    my_time: int | None, their_time: int | None,
) -> None:  # fmt: skip
    asked = request(budget=Budget(mine, my_tokens), **({"timeout_ms": my_time} if my_time else {}))
    got = under_policy(asked, Policy(name="p", budget=Budget(theirs, their_tokens), timeout_ms=their_time))
    costs = [limit for limit in (mine, theirs) if limit is not None]
    counts = [limit for limit in (my_tokens, their_tokens) if limit is not None]
    assert (got.budget.max_cost_usd if got.budget else None) == (min(costs) if costs else None)
    assert (got.budget.max_tokens if got.budget else None) == (min(counts) if counts else None)
    assert got.timeout_ms == min(limit for limit in (my_time or 60_000, their_time) if limit is not None)


def test_the_requests_chain_replaces_the_policys_within_its_models() -> None:
    policy = Policy(name="p", models=["a/1", "b/2"], fallback=PolicyFallback(models=["b/2"], max_retries=0))
    replaced = under_policy(request(fallback={"models": ["a/1"]}), policy).fallback
    assert replaced == Fallback(["a/1"], 0)
    kept = under_policy(request(), policy).fallback
    assert kept == Fallback(["b/2"], 0)


def test_a_cache_can_only_be_narrowed() -> None:
    policy = Policy(name="p", cache=CacheOpts(threshold=0.9, ttl_seconds=100))
    assert under_policy(request(cache=False), policy).cache is False
    assert under_policy(request(cache=True), policy).cache == policy.cache
    wider = under_policy(request(cache={"threshold": 0.5, "ttl_seconds": 1_000}), policy).cache
    assert isinstance(wider, CacheOpts)
    assert (wider.threshold, wider.ttl_seconds) == (0.9, 100)
    narrower = under_policy(request(cache={"threshold": 0.95, "ttl_seconds": 10, "mode": "exact"}), policy).cache
    assert isinstance(narrower, CacheOpts)
    assert (narrower.threshold, narrower.ttl_seconds, narrower.mode) == (0.95, 10, "exact")
    other_bound = under_policy(request(cache={"max_error": 0.2}), policy).cache
    assert isinstance(other_bound, CacheOpts)
    assert (other_bound.threshold, other_bound.max_error) == (0.9, None)
    assert under_policy(request(cache=True), Policy(name="p", cache=False)).cache is False
