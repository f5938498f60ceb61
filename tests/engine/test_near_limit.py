"""Policies whose rules depend on how much of its limits a caller has spent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from routewright import CallableProvider, Catalogue, Console, MemoryStorage, Model, Pricing, Router
from routewright._core.routing.rebase import rebase
from routewright.protocols import Storage
from routewright.storage import open_storage
from routewright.wire import (
    Caller,
    DecisionInput,
    Policy,
    PolicyClass,
    PolicyMatch,
    PolicyWhen,
    SpentShares,
    UpstreamCall,
    Usage,
)

pytestmark = pytest.mark.anyio

DEAR = Model(id="mine/dear", quality=0.9, pricing_per_1m=Pricing(0, 1_000), context_window=100_000)
CHEAP = Model(id="mine/cheap", quality=0.3, pricing_per_1m=Pricing(0, 1), context_window=100_000)
NEAR = PolicyClass(name="near", when=PolicyWhen(spent_of_month=">=0.5"), goal="cost", models=["mine/cheap"])
NEAR_GOLD = PolicyClass(match=PolicyMatch(metadata={"tier": "gold"}), when=PolicyWhen(spent_of_month=">0.2"))
POLICY = Policy(name="careful", models=["mine/dear"], classes=[NEAR_GOLD, NEAR])
PLAIN = Policy(name="plain", models=["mine/cheap"])
SHADOWED = Policy(name="shadowed", models=["mine/cheap"], shadow="careful")
ACME = Caller("acme")


async def answer(call: UpstreamCall) -> Any:
    return [call.model.id, Usage(input=0, output=100)]  # 0.1 dollars for the dear one


@pytest.fixture(params=["memory:", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else "memory:"


@asynccontextmanager
async def router(storage: Storage, **terms: Any) -> AsyncIterator[Router]:
    provider = CallableProvider(answer, models=[DEAR, CHEAP])
    async with Router(
        providers=[provider], catalogue=Catalogue(()), storage=storage, policies=[POLICY, PLAIN, SHADOWED]
    ) as opened:
        if terms:
            await Console(storage).create_account("acme", plan="unlimited", **terms)
        yield opened


async def route(opened: Router, **options: Any) -> Any:
    return await opened.route(
        "hi", caller=ACME, params={"max_output_tokens": 100}, **{"policy_id": "careful", **options}
    )


def input_of(reply: Any) -> DecisionInput:
    stored: DecisionInput | None = json.decode(json.encode(reply.trace.decision_input), type=DecisionInput)
    assert stored is not None
    return stored


async def test_a_caller_near_its_limit_gets_other_rules(url: str) -> None:
    async with router(open_storage(url), monthly_limit_usd=0.4) as opened:
        replies = [await route(opened) for _ in range(4)]
        shares = [(input_of(reply).spent or SpentShares()).month or 0 for reply in replies]
        if not url.startswith("postgresql:"):  # a process there may learn of a settlement only with its next admission
            assert shares == [0, 250_000, 500_000, 500_250]
        near = [share >= 500_000 for share in shares]
        assert (near[0], near[-1]) == (False, True)
        assert [reply.output == "mine/cheap" for reply in replies] == near
        assert [reply.decision.policy_class == "near" for reply in replies] == near
        assert "the policy's class: near" in opened.explain(replies[3])
        assert opened.decide("hi", caller=ACME, policy_id="careful").policy_class == "near"
        for reply in replies:
            assert opened.replay(reply.trace).digest == reply.decision.digest
        for past in (
            opened.why_not("hi", "mine/dear", caller=ACME, policy_id="careful"),
            opened.why_not(replies[3].trace, "mine/dear"),
        ):
            assert past.admission == "add 'mine/dear' to models of class 'near' of policy 'careful'"
        plain = await route(opened, policy_id="plain")
        assert input_of(plain).spent is None
    if url != "memory:":  # a new process asks before its first decision
        async with router(open_storage(url)) as restarted:
            first = await route(restarted)
            assert (first.decision.policy_class, first.output) == ("near", "mine/cheap")
        async with router(open_storage(url)) as restarted:
            (one,) = await restarted.route_many(["hi"], caller=ACME, policy_id="careful")
            assert getattr(one, "output", one) == "mine/cheap"


async def test_the_class_depends_on_recorded_facts_alone() -> None:
    async with router(MemoryStorage(), monthly_limit_usd=1) as opened:
        published = opened.engine.policy_table.by_key["careful"]
        versions = {snapshot.id: snapshot for snapshot in (published, *published.classes)}
        names = set()
        for metadata in ({}, {"tier": "gold"}) * 4:
            reply = await route(opened, metadata=metadata)
            stored = input_of(reply)
            names.add(stored.policy_class)
            assert rebase(stored, versions[stored.policy or ""], published, metadata) == stored
        assert names == {"", "near", "tier=gold spent_of_month>0.2"}


async def test_without_a_limit_or_an_account_nothing_is_near() -> None:
    async with router(MemoryStorage(), prepaid=False) as opened:
        for caller in (ACME, Caller()):
            reply = await opened.route("hi", caller=caller, policy_id="careful")
            assert (reply.output, input_of(reply).spent) == ("mine/dear", SpentShares())


async def test_the_limit_of_a_key_counts_too() -> None:
    storage = MemoryStorage()
    console = Console(storage, secret="a secret that is long enough for one")
    async with router(storage, monthly_limit_usd=100) as opened:
        new = await console.create_key("acme", name="x", monthly_limit_usd=0.2)
        caller = await console.authenticate(f"Bearer {new.secret.reveal()}")
        outputs = []
        for who in (caller, caller, ACME):
            reply = await opened.route("hi", caller=who, policy_id="careful", params={"max_output_tokens": 100})
            outputs.append(reply.output)
        assert outputs == ["mine/dear", "mine/cheap", "mine/dear"]


async def test_a_shadow_decides_by_what_the_caller_has_spent_under_a_policy_that_reads_nothing() -> None:
    async with router(MemoryStorage(), monthly_limit_usd=0.4) as opened:
        before = await route(opened, policy_id="shadowed")
        for _ in range(2):
            await route(opened)
        after = await route(opened, policy_id="shadowed")
        assert [reply.trace.spans[0].shadow.model for reply in (before, after)] == ["mine/dear", "mine/cheap"]
