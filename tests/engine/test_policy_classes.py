"""Classes of a policy: how a request gets their rules, and where their names are seen."""

from __future__ import annotations

import pytest

from routewright import CallableProvider, Catalogue, Model, Pricing, Router
from routewright.wire import Policy, PolicyClass, PolicyGuardrail, PolicyMatch, UpstreamCall

pytestmark = pytest.mark.anyio

SMALL = Model(id="mine/small", quality=0.35, pricing_per_1m=Pricing(0.1, 0.4), context_window=100_000)
LARGE = Model(id="mine/large", quality=0.9, pricing_per_1m=Pricing(3.0, 12.0), context_window=100_000)
GOLD = PolicyMatch(metadata={"tier": "gold"})


async def answer(call: UpstreamCall) -> str:
    return call.model.id


def router(*classes: PolicyClass) -> Router:
    provider = CallableProvider(answer, name="mine", models=(SMALL, LARGE))
    policy = Policy(name="p", strategy="cost-optimized", classes=[*classes])
    return Router(providers=[provider], catalogue=Catalogue(()), policies=[policy])


async def test_a_class_of_a_policy_has_its_own_rules_and_its_name_is_seen() -> None:
    # the same rules twice: these share a plan, and each call keeps the name of its own class
    silver = PolicyClass(match=PolicyMatch(metadata={"tier": "silver"}), models=["mine/large"])
    async with router(PolicyClass(name="best", match=GOLD, models=["mine/large"]), silver) as desk:
        gold = await desk.route("hi", policy_id="p", metadata={"tier": "gold"})
        second = await desk.route("hi", policy_id="p", metadata={"tier": "silver"})
        other = await desk.route("hi", policy_id="p", metadata={"tier": "tin"})
        answers = {"best": gold, "tier=silver": second, None: other}
        assert [each.routing.selected_model for each in answers.values()] == ["mine/large", "mine/large", "mine/small"]
        assert len({each.routing.policy_version for each in answers.values()}) == 1
        for name, each in answers.items():
            assert (each.decision.policy_class, each.decision.to_dict()["policy_class"]) == (name, name)
            trace = await desk.trace(each.trace_id)
            assert trace.policy_id == desk.policies()[0].id
            assert trace.decision_input is not None
            assert trace.decision_input.policy_class == (name or "")
            for text in (desk.explain(each), desk.explain(trace)):
                assert [line for line in text.splitlines() if "class" in line] == (
                    [f"the policy's class: {name}"] if name else []
                )
            assert desk.replay(trace).digest == each.decision.digest


async def test_a_class_has_its_own_guardrails() -> None:
    strict = PolicyClass(match=GOLD, guardrails=[PolicyGuardrail(deny=["secret"], action="redact")])
    async with router(strict) as desk:
        for tier, hits in (("tin", 0), ("gold", 1)):
            reply = await desk.route("a secret", policy_id="p", metadata={"tier": tier})
            trace = await desk.trace(reply.trace_id)
            assert [span.type for span in trace.spans].count("guardrail") == hits
