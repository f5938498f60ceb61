"""A stored decision under another policy: its input is that of the same request with that policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any, cast

import pytest
from msgspec.structs import replace

from routewright import NoCandidates, Router, wire
from routewright._core.model_selector import ModelIndex
from routewright._core.policy import check_policy, resolve
from routewright._core.routing.rebase import rebase
from routewright.errors import ValidationFailed
from routewright.wire.request import FunctionSpec, ImagePart, ImageUrl, Message

MODELS = "openai/gpt-5-mini anthropic/claude-haiku-4-5 google/gemini-2.5-flash mistral/mistral-large-2512".split()
KNOWN = ModelIndex([wire.Model(id=model) for model in MODELS], {})


def params(chance: Random) -> wire.Params | None:
    effort: Any = chance.choice([None, None, "none", "low", wire.ReasoningBudget(chance.choice([512, 4_000]))])
    return chance.choice([None, None, wire.Params(
        temperature=chance.choice([None, 1, 0.2]),
        top_p=chance.choice([None, 1, 0.5, 0.97]),
        max_output_tokens=chance.choice([None, 500, 1_024, 9_000]),
        stop=chance.choice([None, [], ["end"], "end"]),
        seed=chance.choice([None, 7]),
        response_format=chance.choice([None, {"type": "text"}, {"type": "json_object"}]),
        reasoning=effort,
        parallel_tool_calls=chance.choice([None, True, False]),
        service_tier=chance.choice([None, "auto", "flex", "priority"]),
        verbosity=chance.choice([None, "low"]),
    )])  # fmt: skip


def some(chance: Random, most: int = 3) -> list[str] | None:
    return chance.choice([None, chance.sample(MODELS, chance.randint(1, most))])


def budget(chance: Random) -> wire.Budget | None:
    return chance.choice(
        [None, None, wire.Budget(chance.choice([None, 0.5, 2.0]), chance.choice([None, 9_000, 50_000]))]
    )


def rules(chance: Random) -> dict[str, Any]:
    weights = wire.PolicyWeights(quality=40, cost=30, latency=20, stability=10)
    models = some(chance)
    chain = None if models is None else chance.sample(models, 1)
    retries = chance.choice([None, 1, 4])
    return {
        **chance.choice([{}, {"goal": "quality"}, {"strategy": "quality-first"}, {"weights": weights}]),
        "models": models,
        "prefer": chance.choice([None, models]),
        "fallback": chance.choice([None, wire.PolicyFallback(chance.choice([None, chain]), retries)]),
        "regions": chance.choice([None, None, ["us"]]),
        "min_quality": chance.choice([None, 0.1]),
        "max_latency_ms": chance.choice([None, 90_000]),
        "params": params(chance),
        "budget": budget(chance),
        "timeout_ms": chance.choice([None, 20_000, 60_000, 90_000]),
    }


def policy(chance: Random, name: str) -> wire.Policy:
    """Again until a chain and a preference are within the models, those of the class included."""
    while True:
        gold = wire.PolicyClass(match=wire.PolicyMatch(metadata={"tier": "gold"}), **rules(chance))
        drawn = wire.Policy(name=name, classes=chance.choice([None, [gold]]), **rules(chance))
        with suppress(ValidationFailed):
            resolve([check_policy(drawn, 0)], KNOWN)
            return drawn


def request(chance: Random) -> wire.RouteRequest:
    models = some(chance)
    image = Message("user", [ImagePart(ImageUrl("https://images.example.com/a.png"))])
    retries = chance.choice([None, 1, 3])
    return wire.RouteRequest(
        messages=[chance.choice([image, Message("user", "hi"), Message("user", "hi")])],
        goal=chance.choice([None, "cost", "stability"]),
        strategy=chance.choice([None, "balanced", "latency-optimized"]),
        models=models,
        prefer=chance.choice([None, models]),
        fallback=chance.choice([None, wire.Fallback(chance.choice([None, models]), retries)]),
        budget=budget(chance),
        params=params(chance),
        tools=chance.choice([None, [wire.Tool(function=FunctionSpec("f"))]]),
        metadata={"tier": chance.choice(["gold", "free"])},
        timeout_ms=chance.choice([None, 30_000, 60_000, 120_000]),
    )


def input_of(router: Router, asked: wire.RouteRequest, policy_id: str | None) -> wire.DecisionInput | None:
    """Without token counts; None if the policy refuses the request."""
    try:
        decision_input = router.decide(replace(asked, policy_id=policy_id)).input
    except NoCandidates as refused:
        decision_input = cast("wire.DecisionInput", refused.decision_input)
    except ValidationFailed:
        return None
    return replace(decision_input, tokens=wire.TokenBounds(1, 1, 1))


def rebased(
    decision_input: wire.DecisionInput,
    old: wire.PolicySnapshot | None,
    new: wire.PolicySnapshot | None,
    asked: wire.RouteRequest,
) -> wire.DecisionInput | None:
    try:
        return rebase(decision_input, old, new, asked.metadata or {})
    except ValidationFailed:
        return None


def cases(
    seed: int,
) -> Iterator[tuple[wire.RouteRequest, list[tuple[wire.PolicySnapshot | None, wire.DecisionInput | None]]]]:
    """Requests, each with its inputs under several policies and without one."""
    chance = Random(seed)
    router = Router.sandbox(policies=[policy(chance, f"p{number}") for number in range(4)], timeout=50, max_retries=2)
    snapshots = router._parts.engine.policy_table.policies
    for _ in range(12):
        asked = request(chance)
        inputs = [(snapshot, input_of(router, asked, snapshot.policy.id)) for snapshot in snapshots]
        yield asked, [*inputs, (None, input_of(router, asked, None))]


def applied(snapshot: wire.PolicySnapshot | None, decision_input: wire.DecisionInput) -> wire.PolicySnapshot | None:
    return snapshot and next(each for each in (snapshot, *snapshot.classes) if each.id == decision_input.policy)


@pytest.mark.parametrize("seed", range(2))
def test_rebasing_is_applying_the_other_policy(seed: int) -> None:
    compared = 0
    for asked, inputs in cases(seed):
        for old, before in inputs[:-1]:
            for new, after in inputs:
                if before is not None:
                    without = None if after is None else replace(after, requested=before.requested if new else None)
                    assert rebased(before, applied(old, before), new, asked) == without
                    compared += 1
    assert compared > 50


@pytest.mark.parametrize("seed", range(3))
def test_a_request_without_a_policy_has_set_what_differs_from_the_defaults(seed: int) -> None:
    chance = Random(seed)
    form: Any = {"type": "json_object"}
    own = wire.Params(temperature=0.2, top_p=0.5, max_output_tokens=1_500, stop=["end"], seed=7, response_format=form,
                 service_tier="flex", verbosity="low", reasoning="low", parallel_tool_calls=False)  # fmt: skip
    requests = [
        wire.RouteRequest(messages=[Message("user", "hi")]),
        wire.RouteRequest(
            messages=[Message("user", "hi")],
            goal="stability",
            models=MODELS,
            prefer=MODELS[1:2],
            fallback=wire.Fallback(MODELS[2:], 3),
            budget=wire.Budget(1.0, 20_000),
            tools=[wire.Tool(function=FunctionSpec("f"))],
            timeout_ms=30_000,
            params=own,
            metadata={"tier": "gold"},
        ),
    ]
    router = Router.sandbox(policies=[policy(chance, f"p{number}") for number in range(4)])
    for asked in requests:
        plain = input_of(router, asked, None)
        assert plain is not None
        for snapshot in router._parts.engine.policy_table.policies:
            after = input_of(router, asked, snapshot.policy.id)
            assert rebased(plain, None, snapshot, asked) == (after and replace(after, requested=None))
