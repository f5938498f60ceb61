"""``Console.compare``: the versions of a policy by the requests that they served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from routewright import Console, MemoryStorage, Policy, Router, Settings, SqliteStorage, ValidationFailed
from routewright.errors import NotFound
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    PolicyRecord,
    PolicyShare,
    PutFeedback,
    PutPolicyRecord,
    PutPolicyVersion,
    PutTrace,
)
from routewright.wire.timestamps import timestamp
from tests.contracts.storage.samples import decision_input, make_trace

pytestmark = pytest.mark.anyio

NOW = 1_795_946_400.0  # 2026-11-29T10:00:00Z
DAY_S = 86_400.0
ID = "pol_desk"
OLD, NEW = "desk@2026-11-22", "desk@2026-11-27"


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Storage:
    if request.param == "memory":
        return MemoryStorage(clock=clock)
    return SqliteStorage(tmp_path / "traces.db", clock=clock)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
async def console(storage: Storage, clock: FakeClock) -> AsyncIterator[Console]:
    async with Console(storage, clock=clock, secret="a secret that is long enough for one") as console:
        for content, age in (("old", 7), ("new", 2)):
            policy = Policy(name="desk", id=ID)
            version = PutPolicyVersion(content, "desk", timestamp(NOW - age * DAY_S), policy=policy)
            await storage.apply(SYSTEM_ACCOUNT, [version])
        yield console


def calls(version: str, number: int, first: int = 0, age: float = 1.0, **fields: Any) -> list[PutTrace]:
    """Requests that a share assigned by their callers, two for each."""
    traces = [
        make_trace(
            first + n,
            created_at=timestamp(NOW - age * DAY_S),
            policy_id=ID,
            policy_version=version,
            decision_input=decision_input(assignment=f"caller {version} {n // 2}"),
            **{"cost_usd": 0.01 + 0.0001 * (n % 7), "duration_ms": 100.0 + n % 11, **fields},
        )
        for n in range(number)
    ]
    return [PutTrace(trace) for trace in traces]


async def test_the_versions_of_a_share_are_compared(storage: Storage, console: Console) -> None:
    await storage.apply("default", calls(OLD, 400))
    await storage.apply("default", calls(NEW, 700, first=1_000, cost_usd=0.005))
    for n in range(40):
        await storage.apply("default", [PutFeedback(make_trace(n).id, 0.5 + 0.01 * (n % 3), None, NOW)])
    await storage.apply("default", calls(OLD, 50, first=3_000, age=3.0, cost_usd=9.0))
    comparison = await console.compare("desk")
    assert [(entry.version, entry.requests) for entry in comparison.versions] == [(NEW, 700), (OLD, 450)]
    share = comparison.share
    assert share is not None
    assert (share.base.version, share.shared.version) == (OLD, NEW)
    assert (share.base.requests, share.shared.requests) == (400, 700)
    assert share.base.cost_usd.value == pytest.approx(0.0103, abs=1e-4)
    assert share.base.feedback.count == 40
    cost = share.differences["cost_usd"]
    assert (cost.significant, cost.verdict) == (True, "lower")
    assert share.differences["latency_ms"].verdict == "no difference above 10 %"
    verdict = "too few: 0 ratings of a version; it takes at least 30 from 5 callers, more if they differ"
    assert share.differences["feedback"].verdict == verdict
    assert comparison.to_dict()["share"]["differences"]["cost_usd"]["verdict"] == "lower"


async def test_the_record_says_which_version_is_shared(storage: Storage, console: Console) -> None:
    await storage.apply("default", [*calls(OLD, 2), *calls(NEW, 2, first=100)])
    share = (await console.compare("desk")).share
    assert share is not None
    assert share.shared.version == NEW
    again = PolicyRecord(name="desk", content="new", share=PolicyShare("old", 0.1), changed_at=timestamp(NOW))
    await storage.apply(SYSTEM_ACCOUNT, [PutPolicyRecord(again, expect=None)])
    share = (await console.compare("desk")).share
    assert share is not None
    assert share.shared.version == OLD


async def test_time_account_and_environment_select(storage: Storage, console: Console) -> None:
    await console.create_account("acme", plan="unlimited")
    await storage.apply("default", calls(OLD, 2))
    await storage.apply("default", calls(OLD, 3, first=100, age=6.0))
    await storage.apply("default", calls(OLD, 4, first=200, environment="sandbox"))
    await storage.apply("acme", calls(OLD, 5, first=300, account="acme"))
    await storage.apply("default", calls(OLD, 6, first=400, kind="agent"))
    await storage.apply(
        "default", [PutTrace(make_trace(500, policy_id="pol_other", policy_version="other@2026-11-22"))]
    )
    for arguments, requests in (
        ({}, 10),
        ({"since": "2d"}, 7),
        ({"account": "default"}, 5),
        ({"account": "acme"}, 5),
        ({"environment": "sandbox"}, 4),
    ):
        (version,) = (await console.compare("desk", **arguments)).versions  # type: ignore[arg-type]
        assert version.requests == requests, arguments
    assert (await console.compare("desk", since="1h")).versions == []


async def test_what_cannot_be_compared_is_refused(console: Console) -> None:
    with pytest.raises(NotFound, match="no version of a policy 'dask' is published"):
        await console.compare("dask")
    for arguments in ({"since": "yesterday"}, {"account": ""}, {"environment": "both"}):
        with pytest.raises(ValidationFailed, match=next(iter(arguments))):
            await console.compare("desk", **arguments)  # type: ignore[arg-type]


async def test_a_share_of_a_routers_traffic_is_compared(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    dear, cheap, other = "openai/gpt-4.1", "openai/gpt-6-luna", "openai/gpt-4o"
    async with Console(storage, clock=clock) as console:
        await console.policies.draft(Policy(name="next", models=[other]))
        for model, part in ((dear, None), (cheap, 0.5)):
            await console.policies.draft(Policy(name="desk", models=[model], shadow="next"))
            await console.policies.publish("desk", share=part, share_by="metadata.user" if part else None)
            await clock.advance(1)
        async with Router.sandbox(storage=storage, settings=Settings(clock=clock)) as router:
            for n in range(130):
                await router.route("Hello", policy_id="desk", metadata={"user": n // 2} if n < 120 else {})
            comparison = await console.compare("desk", environment="sandbox")
            usage = await router.traces.usage(group_by="policy_version")
            shadows = await router.traces.usage(group_by="shadow")
    share = comparison.share
    assert share is not None
    assert (share.base.version, share.shared.version) == ("desk@2026-11-29", "desk@2026-11-29.2")
    assert share.base.requests + share.shared.requests == 120, "those without a user were not assigned"
    assert {row.group: row.requests for row in usage.data} == {
        version.version: version.requests for version in comparison.versions
    }
    differ = {f"{model} -> {other}" for model in (dear, cheap)}
    assert {row.group for row in shadows.data} == differ
    assert share.differences["cost_usd"].significant
