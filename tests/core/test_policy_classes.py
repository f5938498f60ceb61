"""Policy classes: different rules for prompts that match."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from routewright._core.model_selector import Known
from routewright._core.policy import checked_policy, class_of, drawn, version_asked
from routewright._core.routing.predict import LANGUAGES, TOPICS
from routewright.errors import ValidationFailed
from routewright.wire import Model, Policy, PolicyClass, PolicyMatch, PolicySnapshot, PolicyWeights, Reading

from .policies import publish

KNOWN = Known([Model(id=each) for each in ("a/1", "b/2", "c/3")], {"short": "a/1"})
HARD_CODE = PolicyClass(match=PolicyMatch(topic="code", difficulty=">0.7"), goal="quality", models=["short"])
GERMAN = PolicyClass(name="german", match=PolicyMatch(language="de"), strategy="quality-first")
POLICY = Policy(name="p", goal="cost", models=["a/*", "b/*"], min_quality=0.3, classes=[HARD_CODE, GERMAN])


def published(policy: Policy) -> PolicySnapshot:
    return publish([policy], "2026-11-21", KNOWN)[0]


def read(topic: str = "other", difficulty: float = 0.5, language: str = "en") -> Reading:
    return Reading("prd_1", (1, 0), difficulty, topic, 0.0, language)


@pytest.mark.parametrize(
    ("reading", "name", "models"),
    [
        (read("code", 0.71), "topic=code difficulty>0.7", ("a/1",)),
        (read("code", 0.71, "de"), "topic=code difficulty>0.7", ("a/1",)),
        (read("code", 0.7, "de"), "german", ("a/1", "b/2")),
        (read("code", 0.7), "", ("a/1", "b/2")),
        (read("math", 0.9), "", ("a/1", "b/2")),
    ],
)
def test_the_first_matching_class_overrides_the_policy(reading: Reading, name: str, models: tuple[str, ...]) -> None:
    made, noted = class_of(published(POLICY), reading)
    assert (noted.policy_class, made.models) == (name, models)
    assert made.policy.min_quality == 0.3
    assert (made.policy.name, made.version) == ("p", "p@2026-11-21")
    assert replace(noted, policy_class="") == reading


@pytest.mark.parametrize(
    ("said", "holds"),
    [(">0.7", 0.71), (">=0.7", 0.7), ("<0.3", 0.29), ("<= 0.3", 0.3), ("<1", 0.99), (">=1.0", 1.0), (">0", 0.01)],
)
def test_difficulty_is_compared(said: str, holds: float) -> None:
    policy = Policy(name="p", classes=[PolicyClass(match=PolicyMatch(difficulty=said), goal="quality")])
    checked_policy(policy, 0)
    assert class_of(published(policy), read(difficulty=holds))[0].policy.goal == "quality"
    beyond = holds + (0.02 if said[0] == "<" else -0.02)
    assert class_of(published(policy), read(difficulty=beyond))[0].policy.goal is None


def test_novelty_is_compared_too() -> None:
    policy = Policy(
        name="p", classes=[PolicyClass(match=PolicyMatch(difficulty="<0.6", novelty=">0.9"), goal="quality")]
    )
    checked_policy(policy, 0)
    for reading, goal in ((read(), None), (replace(read(), novelty=0.95), "quality")):
        assert class_of(published(policy), reading)[0].policy.goal == goal
    found, _ = class_of(published(policy), replace(read(difficulty=0.7), novelty=0.95))
    assert found.policy.goal is None, "all that is given has to fit"


def test_weights_replace_goal_and_strategy_and_vice_versa() -> None:
    weights = PolicyWeights(quality=25, cost=25, latency=25, stability=25)
    match = PolicyMatch(topic="math")
    weighed = published(Policy(name="p", goal="cost", classes=[PolicyClass(match=match, weights=weights)]))
    assert weighed.classes[0].policy.goal is None
    aimed = published(Policy(name="p", weights=weights, classes=[PolicyClass(match=match, goal="quality")]))
    assert aimed.classes[0].policy.weights is None


def test_a_class_has_an_id_of_its_own_and_the_version_of_its_policy() -> None:
    made = published(POLICY)
    assert len({made.id, *[each.id for each in made.classes]}) == 3
    assert {class_of(made, read("code", 0.9))[0].version, made.version} == {"p@2026-11-21"}


def test_a_change_of_a_class_is_a_change_of_its_policy() -> None:
    other = replace(POLICY, classes=[replace(HARD_CODE, models=["b/2"]), GERMAN])
    asked = [version_asked(each, "2026-11-21").content for policy in (POLICY, other) for each in drawn([policy], KNOWN)]
    assert asked[0] != asked[1]


def classed(**fields: Any) -> Policy:
    match = PolicyMatch(**{name: fields.pop(name) for name in PolicyMatch.__struct_fields__ if name in fields})
    return Policy(name="p", classes=[PolicyClass(match=match, **fields)])


NO_COMPARISON = "is not a comparison with a number from 0 to 1; write '>0.7' or '<=0.3'"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            classed(topic="codes"),
            f".match.topic: unknown topic 'codes'; did you mean 'code'? one of {', '.join(TOPICS)}",
        ),
        (classed(language="german"), f".match.language: unknown language 'german'; one of {', '.join(LANGUAGES)}"),
        (classed(novelty="new"), f".match.novelty: 'new' {NO_COMPARISON}"),
        *(
            (classed(difficulty=wrong), f".match.difficulty: {wrong!r} {NO_COMPARISON}")
            for wrong in ("0.7", ">1.5", "=0.7", "> 0.7 ", ">.7", "hard", "")
        ),
        (
            classed(),
            ".match: matches every prompt; set topic, difficulty, novelty or language; put rules for all prompts "
            "into the policy itself",
        ),
        (classed(topic="code", min_quality=2), ".min_quality: must be a number from 0 to 1, got 2; for example 1"),
        (
            classed(topic="code", explore_models=0.5),
            ".explore_models: must be a number from 0 to 0.2, got 0.5; for example 0.2",
        ),
    ],
)
def test_an_invalid_class_is_refused(policy: Policy, said: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        checked_policy(policy, 0)
    assert str(caught.value) == f"policies['p'].classes[0]{said}"


def test_words_of_a_class_without_a_match_are_refused_with_their_place() -> None:
    with pytest.raises(ValidationFailed, match=r"^policies\['p'\].classes\[0\].models\[0\]: "):
        published(classed(topic="code", models=["nobody/*"]))
