from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import wire
from routewright._core.model_selector import ModelIndex
from routewright._core.policy import (
    Versions,
    apply_policy,
    by_key,
    check_policy,
    find_policy,
    next_label,
    own_version,
    resolve,
    version_write,
)
from routewright._core.request.read import as_request
from routewright.errors import ValidationFailed
from routewright.wire.ids import policy_id
from tests.tables import table

from .policies import publish


def request(**options: object) -> wire.RouteRequest:
    return as_request("hi", options)


def published(*policies: wire.Policy) -> list[wire.PolicySnapshot]:
    """Publish over a catalogue of three models, one of which has a short name."""
    return publish(
        policies, "2026-11-21", ModelIndex([wire.Model(id=each) for each in ("a/1", "b/2", "c/3")], {"short": "a/1"})
    )


def test_publishing_fills_in_missing_fields() -> None:
    (made,) = published(wire.Policy(name="careful"))
    assert made.version == "careful@2026-11-21"
    assert made.policy.created_at == "2026-11-21T00:00:00Z"
    assert made.policy.id == policy_id("careful")
    dated = published(wire.Policy(name="careful", created_at="2026-01-02T03:04:05Z"))[0]
    assert dated.version == "careful@2026-01-02"


@table(
    "pair",
    [
        (wire.Policy(name="a"), wire.Policy(name="a")),
        (wire.Policy(name="a", id="pol_a"), wire.Policy(name="b", id="pol_a")),
        (wire.Policy(name="a", id="b"), wire.Policy(name="b")),
        (wire.Policy(name="b"), wire.Policy(name="a", id="b")),
    ],
)
def test_policies_share_no_name_or_id(pair: tuple[wire.Policy, wire.Policy]) -> None:
    with pytest.raises(ValidationFailed, match="is used twice"):
        published(*pair)


def wrong(value: Any) -> Any:
    """Hide a wrong type from the type checker: callers have none."""
    return value


def weights(quality: float, cost: float, latency: float, stability: float) -> wire.PolicyWeights:
    return wire.PolicyWeights(quality=quality, cost=cost, latency=latency, stability=stability)


@table(
    ("policy", "said"),
    [
        (wire.Policy(name=""), "policies[''].name: must be 1 to 200 printable characters, got ''"),
        (wire.Policy(name="a\0"), "policies['a\\x00'].name: must be 1 to 200 printable characters, got 'a\\x00'"),
        (
            wire.Policy(name="a@b"),
            "policies['a@b'].name: contains '@', which separates name and date in policy_version; remove it",
        ),
        (wire.Policy(name=wrong(5)), "policies[3].name: must be a string, got 5"),
        (wrong("p"), "policies[3]: 'p' is not a Policy; pass Policy(...)"),
    ],
)
def test_a_policy_without_a_valid_name_is_refused(policy: wire.Policy, said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        check_policy(policy, 3)
    assert str(refused.value).startswith(said)


@table(
    ("fields", "said"),
    [
        ({"shadow": ""}, "shadow: must be 1 to 200 printable characters, got ''"),
        ({"created_at": "soon"}, "created_at: must be a date, got 'soon'; write YYYY-MM-DD, or a timestamp"),
        (
            {"fallback": wire.PolicyFallback(max_retries=6)},
            "fallback.max_retries: must be a whole number from 0 to 5, got 6",
        ),
        ({"budget": wire.Budget(-1)}, "budget.max_cost_usd: must be a number from 0 to 1000000000, got -1"),
        ({"cache": wire.CacheOpts(threshold=2)}, "cache.threshold: must be a number from 0 to 1, got 2"),
        ({"weights": weights(40, 30, 20, 11)}, "weights: add up to 101 percent; make them add up to 100"),
        (
            {"weights": weights(99.5, 0.5, 0, 0)},
            "weights.quality: must be a whole number from 0 to 100, got 99.5\n"
            "weights.cost: must be a whole number from 0 to 100, got 0.5",
        ),
        (
            {"weights": weights(25, 25, 25, 25), "goal": "cost", "strategy": "balanced"},
            "weights: cannot be combined with goal and strategy; weights replace goal and strategy; "
            "keep one or the other",
        ),
        ({"weights": {"quality": 100}}, "weights.cost: is missing"),
        (
            {"exclude": ["capability:images"]},
            "exclude[0]: 'capability:images' matches no model; capabilities are image, tools, json, "
            "reasoning; did you mean 'image'?",
        ),
        (
            {"capabilities": ["tool"]},
            "capabilities[0]: must be one of image, tools, json, reasoning, got 'tool'; did you mean 'tools'?",
        ),
        ({"models": ["x" * 201]}, f"models[0]: must be 1 to 200 printable characters, got '{'x' * 60}'..."),
    ],
)
def test_a_policy_made_in_code_is_checked_like_a_request(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        check_policy(wire.Policy(name="p", **fields), 3)
    told = str(refused.value).split("\n")
    assert all(line.startswith(f"policies['p'].{each}") for line, each in zip(told, said.split("\n"), strict=True))


def test_a_chain_outside_the_policys_models_is_refused_with_both_lists() -> None:
    said = r"policies\['p'\].fallback.models: 'c/3' is outside .*fallback.models: 'a/1', 'c/3'; models: 'a/1', 'b/2'"
    with pytest.raises(ValidationFailed, match=said):
        published(wire.Policy(name="p", models=["short", "b/2"], fallback=wire.PolicyFallback(models=["a/1", "c/3"])))


def test_the_requests_preference_comes_before_the_policys() -> None:
    policy = wire.Policy(name="p", models=["a/1", "b/2"], prefer=["a/1", "b/2"])
    assert laid(request(), policy).prefer == ["a/1", "b/2"]
    assert laid(request(prefer=["b/2"]), policy).prefer == ["b/2", "a/1"]
    assert laid(request(prefer=["x/9"]), policy).prefer == ["x/9", "a/1", "b/2"], "the decision says why it is skipped"
    assert laid(request(), wire.Policy(name="p")).prefer is None


def test_a_policy_is_found_by_id_and_by_name() -> None:
    policies = published(wire.Policy(name="a"), wire.Policy(name="b", id="pol_b"))
    assert find_policy("b", by_key(policies)) is find_policy("pol_b", by_key(policies)) is policies[1]
    with pytest.raises(ValidationFailed, match="unknown policy 'pol_c'; did you mean 'pol_b'"):
        find_policy("pol_c", by_key(policies))
    with pytest.raises(ValidationFailed, match="unknown policy 'support'; known: 'a', 'b'"):
        find_policy("support", by_key(policies))
    with pytest.raises(ValidationFailed, match=r"'support'; pass it to Router\(policies=\.\.\.\) or publish"):
        find_policy("support", {})
    with pytest.raises(ValidationFailed, match=r"policy_id: the policy 'c' is retired; Console\.policies\.roll_back"):
        find_policy("c", by_key(policies), {"c"})


def laid(asked: wire.RouteRequest, policy: wire.Policy) -> wire.RouteRequest:
    ids = [*(policy.models or ()), *(policy.prefer or ()), *((policy.fallback and policy.fallback.models) or ())]
    (snapshot,) = publish([policy], "2026-11-21", ModelIndex([wire.Model(id=each) for each in dict.fromkeys(ids)], {}))
    return apply_policy(asked, snapshot)


def test_goal_and_strategy_come_from_the_policy() -> None:
    asked = request(goal="cost", strategy="latency-optimized")
    both = laid(asked, wire.Policy(name="p", goal="quality", strategy="balanced"))
    assert (both.goal, both.strategy) == ("quality", "balanced")
    by_strategy = laid(asked, wire.Policy(name="p", strategy="quality-first"))
    assert (by_strategy.goal, by_strategy.strategy) == ("quality", "quality-first")
    by_goal = laid(asked, wire.Policy(name="p", goal="stability"))
    assert (by_goal.goal, by_goal.strategy) == ("stability", "balanced")
    neither = laid(asked, wire.Policy(name="p"))
    assert (neither.goal, neither.strategy) == ("cost", "latency-optimized")


def test_model_lists_intersect_in_the_requests_order() -> None:
    policy = wire.Policy(name="p", models=["a/1", "b/2", "c/3"])
    assert laid(request(models=["c/3", "x/9", "a/1"]), policy).models == ["c/3", "a/1"]
    assert laid(request(), policy).models == ["a/1", "b/2", "c/3"]
    assert laid(request(models=["x/9"]), policy).models == []


money = st.none() | st.floats(0, 10)
tokens = st.none() | st.integers(1, 10_000)


@given(money, money, tokens, tokens, tokens, tokens)
def test_the_smaller_limit_applies(
    mine: float | None, theirs: float | None, my_tokens: int | None, their_tokens: int | None,
    my_time: int | None, their_time: int | None,
) -> None:  # fmt: skip
    asked = request(budget=wire.Budget(mine, my_tokens), **({"timeout_ms": my_time} if my_time else {}))
    got = laid(asked, wire.Policy(name="p", budget=wire.Budget(theirs, their_tokens), timeout_ms=their_time))
    costs = [limit for limit in (mine, theirs) if limit is not None]
    counts = [limit for limit in (my_tokens, their_tokens) if limit is not None]
    assert (got.budget.max_cost_usd if got.budget else None) == (min(costs) if costs else None)
    assert (got.budget.max_tokens if got.budget else None) == (min(counts) if counts else None)
    times = [limit for limit in (my_time, their_time) if limit is not None]
    assert got.timeout_ms == (min(times) if times else None)


def test_the_requests_chain_replaces_the_policys_within_its_models() -> None:
    policy = wire.Policy(name="p", models=["a/1", "b/2"], fallback=wire.PolicyFallback(models=["b/2"], max_retries=0))
    replaced = laid(request(fallback={"models": ["a/1"]}), policy).fallback
    assert replaced == wire.Fallback(["a/1"], 0)
    kept = laid(request(), policy).fallback
    assert kept == wire.Fallback(["b/2"], 0)
    widened = laid(request(fallback={"models": ["x/9", "a/1"]}), policy).fallback
    assert widened == wire.Fallback(["a/1"], 0)
    policy = wire.Policy(name="p", fallback=wire.PolicyFallback(on_partial="restart"))
    assert laid(request(), policy).fallback == wire.Fallback(on_partial="restart")
    assert laid(request(fallback={"on_partial": "error"}), policy).fallback == wire.Fallback(on_partial="error")


def test_a_request_that_narrows_the_models_narrows_the_policys_chain_too() -> None:
    policy = wire.Policy(name="p", fallback=wire.PolicyFallback(models=["b/2", "c/3"]))
    assert laid(request(models=["a/1", "c/3"]), policy).fallback == wire.Fallback(["c/3"])
    assert laid(request(models=["a/1"]), policy).fallback == wire.Fallback([])


def test_a_cache_can_only_be_narrowed() -> None:
    policy = wire.Policy(name="p", cache=wire.CacheOpts(threshold=0.9, ttl_seconds=100))
    assert laid(request(cache=False), policy).cache is False
    assert laid(request(cache=True), policy).cache == policy.cache
    wider = laid(request(cache={"threshold": 0.5, "ttl_seconds": 1_000}), policy).cache
    assert isinstance(wider, wire.CacheOpts)
    assert (wider.threshold, wider.ttl_seconds) == (0.9, 100)
    narrower = laid(request(cache={"threshold": 0.95, "ttl_seconds": 10, "mode": "exact"}), policy).cache
    assert isinstance(narrower, wire.CacheOpts)
    assert (narrower.threshold, narrower.ttl_seconds, narrower.mode) == (0.95, 10, "exact")
    other_bound = laid(request(cache={"max_error": 0.2}), policy).cache
    assert isinstance(other_bound, wire.CacheOpts)
    assert (other_bound.threshold, other_bound.max_error) == (0.9, None)
    assert laid(request(cache=True), wire.Policy(name="p", cache=False)).cache is False


KNOWN = ModelIndex([wire.Model(id=each) for each in ("a/1", "b/2", "c/3")], {})
DAYS = [f"2026-11-2{day}T00:00:00Z" for day in range(3)]


def asked(policy: wire.Policy, today: str = "2026-11-21") -> wire.PutPolicyVersion:
    return version_write(resolve([policy], KNOWN)[0], today)


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["desk", "desk.2", "night"]), st.sampled_from(DAYS))))
def test_a_label_never_names_two_contents_and_a_content_never_has_two_labels(
    publications: list[tuple[int, str, str]],
) -> None:
    versions, seen = Versions(), dict[str, str]()
    for number, name, created_at in publications:
        content = f"{name} {number}"
        found, is_new = versions.put(wire.PutPolicyVersion(content, name, created_at))
        assert is_new == (content not in seen)
        assert seen.setdefault(content, found.label) == found.label
        assert versions.find(wire.PolicyVersions((content,))) == [found]
    assert len(set(seen.values())) == len(seen)


def test_labels_of_a_day_are_counted_from_two() -> None:
    taken: list[str] = []
    for expected in ("desk@2026-11-21", "desk@2026-11-21.2", "desk@2026-11-21.3"):
        taken.append(next_label("desk", DAYS[1], [*reversed(taken), "desk@2026-11-21.x0a", "desk@2026-11-2"]))
        assert taken[-1] == expected
    assert next_label("desk", DAYS[2], taken) == "desk@2026-11-22"


def test_an_own_version_is_derived_from_the_content() -> None:
    one, other = asked(wire.Policy(name="desk")), asked(wire.Policy(name="desk", goal="quality"))
    assert own_version(one) == own_version(asked(wire.Policy(name="desk"))) != own_version(other)
    assert re.fullmatch(r"desk@2026-11-21\.x[0-9a-f]{10}", own_version(one).label)
