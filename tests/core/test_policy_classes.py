"""Policy classes: different rules for requests that match."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from routewright import wire
from routewright._core.model_selector import ModelIndex
from routewright._core.policy import check_policy, class_of
from routewright._core.routing.inputs import RULES
from routewright._core.routing.rebase import rebase
from routewright.errors import ValidationFailed
from tests.tables import table

from .policies import publish

KNOWN = ModelIndex([wire.Model(id=each) for each in ("a/1", "b/2", "c/3")], {"short": "a/1"})
VIP = wire.PolicyClass(match=wire.PolicyMatch(metadata={"tier": "gold", "seats": 5}), goal="quality", models=["short"])
GERMAN = wire.PolicyClass(name="german", match=wire.PolicyMatch(metadata={"language": "de"}), strategy="quality-first")
POLICY = wire.Policy(name="p", goal="cost", models=["a/*", "b/*"], min_quality=0.3, classes=[VIP, GERMAN])


def published(policy: wire.Policy) -> wire.PolicySnapshot:
    return publish([policy], "2026-11-21", KNOWN)[0]


@pytest.mark.parametrize(
    ("metadata", "name", "models"),
    [
        ({"tier": "gold", "seats": 5, "team": "tax"}, "tier=gold seats=5", ("a/1",)),
        ({"tier": "gold", "seats": 5.0, "language": "de"}, "tier=gold seats=5", ("a/1",)),
        ({"tier": "gold", "language": "de"}, "german", ("a/1", "b/2")),
        ({"tier": "gold", "seats": "5"}, "", ("a/1", "b/2")),
        ({"tier": ["gold"], "seats": 5}, "", ("a/1", "b/2")),
        ({}, "", ("a/1", "b/2")),
    ],
)
def test_the_first_matching_class_overrides_the_policy(
    metadata: dict[str, Any], name: str, models: tuple[str, ...]
) -> None:
    made, class_name = class_of(published(POLICY), metadata)
    assert (class_name, made.models) == (name, models)
    assert made.policy.min_quality == 0.3
    assert (made.policy.name, made.version) == ("p", "p@2026-11-21")


@pytest.mark.parametrize(("wanted", "other"), [(True, 1), (1, True), (False, 0), (0, False)])
def test_true_and_false_are_no_numbers(wanted: int, other: int) -> None:
    match = wire.PolicyMatch(metadata={"batch": wanted})
    policy = published(wire.Policy(name="p", classes=[wire.PolicyClass(match=match, goal="quality")]))
    assert class_of(policy, {"batch": wanted})[0].policy.goal == "quality"
    assert class_of(policy, {"batch": other})[0].policy.goal is None


def test_weights_replace_goal_and_strategy_and_vice_versa() -> None:
    weights = wire.PolicyWeights(quality=25, cost=25, latency=25, stability=25)
    match = wire.PolicyMatch(metadata={"tier": "gold"})
    weighed = published(wire.Policy(name="p", goal="cost", classes=[wire.PolicyClass(match=match, weights=weights)]))
    assert weighed.classes[0].policy.goal is None
    aimed = published(wire.Policy(name="p", weights=weights, classes=[wire.PolicyClass(match=match, goal="quality")]))
    assert aimed.classes[0].policy.weights is None


def classed(metadata: Any, **fields: Any) -> wire.Policy:
    return wire.Policy(name="p", classes=[wire.PolicyClass(match=wire.PolicyMatch(metadata=metadata), **fields)])


def near(condition: str, **fields: Any) -> wire.Policy:
    return wire.Policy(name="p", classes=[wire.PolicyClass(when=wire.PolicyWhen(spent_of_month=condition), **fields)])


COMPARE = "compare with a share from 0 to 1, such as '>0.8', '>=0.5' or '<0.2'"


@table(
    ("policy", "said"),
    [
        (
            classed({}),
            ".match: matches every request; set its metadata, or 'when'; "
            "put rules for all requests into the policy itself",
        ),
        (
            wire.Policy(name="p", classes=[wire.PolicyClass(when=wire.PolicyWhen())]),
            ".match: matches every request; set its metadata, or 'when'; "
            "put rules for all requests into the policy itself",
        ),
        (near(">80"), ".when.spent_of_month: is '>80'; " + COMPARE),
        (near("0.8"), ".when.spent_of_month: is '0.8'; " + COMPARE),
        (near(">1.5"), ".when.spent_of_month: is '>1.5'; " + COMPARE),
        (near("=0.5"), ".when.spent_of_month: is '=0.5'; " + COMPARE),
        (classed({"a": 1}, min_quality=2), ".min_quality: must be a number from 0 to 1, got 2; for example 1"),
    ],
)
def test_an_invalid_class_is_refused(policy: wire.Policy, said: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        check_policy(policy, 0)
    assert str(caught.value) == f"policies['p'].classes[0]{said}"


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (">0.8", [False, False, True]),
        (">=0.8", [False, True, True]),
        ("<0.8", [True, False, False]),
        ("<= 0.8", [True, True, False]),
    ],
)
def test_a_class_applies_by_what_the_caller_has_spent(condition: str, holds: list[bool]) -> None:
    policy = published(check_policy(near(condition, goal="quality"), 0))
    shares = [wire.SpentShares(month=share) for share in (799_999, 800_000, 800_001)]
    assert [class_of(policy, {}, spent)[0].policy.goal == "quality" for spent in shares] == holds
    assert class_of(policy, {}, shares[holds.index(True)])[1] == f"spent_of_month{condition}"


def test_a_class_can_need_metadata_and_a_share() -> None:
    match = wire.PolicyMatch(metadata={"tier": "free"})
    when = wire.PolicyWhen(spent_of_day=">0.5", spent_of_month="<1")
    policy = published(wire.Policy(name="p", classes=[wire.PolicyClass(match=match, when=when, goal="quality")]))
    both = wire.SpentShares(day=600_000, month=0)
    assert class_of(policy, {"tier": "free"}, both)[1] == "tier=free spent_of_day>0.5 spent_of_month<1"
    for metadata, spent in (({}, both), ({"tier": "free"}, wire.SpentShares(day=600_000, month=1_000_000))):
        assert class_of(policy, metadata, spent)[1] == ""


SHARES = st.none() | st.sampled_from([0, 500_000, 999_999, 1_000_000, 1_500_000])
CONDITIONS = st.none() | st.builds(
    lambda sign, share: sign + share, st.sampled_from("> >= < <=".split()), st.sampled_from(["0", "0.5", "1"])
)
WHENS = st.builds(wire.PolicyWhen, spent_of_day=CONDITIONS, spent_of_week=CONDITIONS, spent_of_month=CONDITIONS)
CLASSES = st.builds(
    wire.PolicyClass,
    match=st.none()
    | st.builds(wire.PolicyMatch, metadata=st.dictionaries(st.sampled_from("ab"), st.booleans(), max_size=2)),
    when=st.none() | WHENS,
    goal=st.sampled_from(["cost", "quality"]),
)


@given(
    st.lists(CLASSES, max_size=4),
    st.none() | st.builds(wire.SpentShares, day=SHARES, week=SHARES, month=SHARES),
    st.dictionaries(st.sampled_from("ab"), st.booleans()),
)
def test_the_class_is_that_of_the_recorded_facts(
    classes: list[wire.PolicyClass], spent: wire.SpentShares | None, metadata: dict[str, object]
) -> None:
    policy = published(wire.Policy(name="p", classes=classes))
    rules, name = class_of(policy, metadata, spent)
    trace = wire.DecisionInput(
        catalogue="c", health="h", as_of="2026-11-21", tokens=wire.TokenBounds(1, 1, 1), rules=RULES,
        policy=rules.id, policy_class=name, spent=spent,
    )  # fmt: skip
    stored = json.decode(json.encode(trace), type=wire.DecisionInput)
    assert rebase(stored, rules, policy, metadata) == trace


def test_metadata_of_a_class_has_plain_values() -> None:
    with pytest.raises(ValidationFailed, match=r"^policies\['p'\].classes\[0\].match.metadata"):
        check_policy(classed({"tier": ["gold"]}), 0)


def test_words_of_a_class_without_a_match_are_refused_with_their_place() -> None:
    with pytest.raises(ValidationFailed, match=r"^policies\['p'\].classes\[0\].models\[0\]: "):
        published(classed({"tier": "gold"}, models=["nobody/*"]))
