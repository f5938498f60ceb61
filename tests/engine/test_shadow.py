"""A shadow decides beside the policy in force: traces say how, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from routewright import MemoryStorage, Policy, Router, Settings, SqliteStorage
from routewright._core.routing import shadow
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    DecisionSpan,
    PolicyRecord,
    PutPolicyRecord,
    ShadowDecision,
    Trace,
)

pytestmark = pytest.mark.anyio
START = 1_795_255_200.0
"""2026-11-21T10:00:00Z."""
LIVE = Policy(name="desk", models=["openai/gpt-4.1"], shadow="trial")
TRIAL = Policy(name="trial", models=["openai/gpt-6-luna"])


def desk(storage: Storage, *policies: Policy, clock: FakeClock | None = None) -> Router:
    return Router.sandbox(policies=policies, storage=storage, settings=Settings(clock=clock or FakeClock(START)))


async def draft(storage: Storage, policy: Policy) -> None:
    record = PolicyRecord(name=policy.name, draft=policy, drafted_at="2026-11-21T09:00:00Z", changed_at="2026-11-21")
    await storage.apply(SYSTEM_ACCOUNT, [PutPolicyRecord(record)])


def shadow_of(trace: Trace) -> object:
    (span,) = (span for span in trace.spans if isinstance(span, DecisionSpan))
    return span.shadow


@pytest.mark.parametrize("stored", [False, True])
async def test_a_trace_says_what_the_shadow_decides(stored: bool, tmp_path: Path) -> None:
    clock = FakeClock(START)
    storage = SqliteStorage(tmp_path / "store.db", clock=clock) if stored else MemoryStorage()
    async with desk(storage, LIVE, TRIAL, clock=clock) as router:
        answer = await router.route("Hello", policy_id="desk")
        decision = router.decide("Hello", policy_id="trial")
        cost_usd = decision.front[0].cost_usd
        expected = ShadowDecision(policy="trial@2026-11-21", model="openai/gpt-6-luna", cost_usd=cost_usd)
        assert answer.routing.selected_model == "openai/gpt-4.1"
        assert shadow_of(answer.trace) == expected
        await router.flush()
        assert shadow_of(await router.trace(answer.trace_id)) == expected


async def test_a_draft_is_a_shadow_before_it_is_published() -> None:
    storage = MemoryStorage()
    await draft(storage, replace(LIVE, models=["openai/gpt-6-luna"]))
    async with desk(storage, replace(LIVE, shadow="desk")) as router:
        answer = await router.route("Hello", policy_id="desk")
        assert answer.routing.selected_model == "openai/gpt-4.1"
        (found,) = (span.shadow for span in answer.trace.spans if isinstance(span, DecisionSpan))
        assert isinstance(found, ShadowDecision)
        assert (found.policy, found.model) == ("desk", "openai/gpt-6-luna")


async def test_a_shadow_changes_neither_decision_nor_answer() -> None:
    plain, shadowed = desk(MemoryStorage(), replace(LIVE, shadow=None)), desk(MemoryStorage(), LIVE, TRIAL)
    async with plain, shadowed:
        one, other = [await router.route("Hello", policy_id="desk") for router in (plain, shadowed)]
        assert one.output == other.output
        assert replace(one.routing, latency_ms=0, policy_version="") == replace(
            other.routing, latency_ms=0, policy_version=""
        )
        assert [span.type for span in one.trace.spans] == [span.type for span in other.trace.spans]


async def test_a_shadow_without_a_model_that_fits_says_why() -> None:
    trial = replace(TRIAL, min_quality=1.0)
    async with desk(MemoryStorage(), LIVE, trial) as router:
        answer = await router.route("Hello", policy_id="desk")
        expected = ShadowDecision(policy="trial@2026-11-21", reason="router.no_candidates")
        assert shadow_of(answer.trace) == expected


async def test_a_shadow_that_fails_leaves_the_trace_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(shadow, "rebase", fail)
    async with desk(MemoryStorage(), LIVE, TRIAL) as router:
        answer = await router.route("Hello", policy_id="desk")
        assert answer.trace.status == "completed"
        assert shadow_of(answer.trace) == ShadowDecision(policy="trial@2026-11-21", reason="internal_error")


async def test_an_unknown_shadow_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with desk(MemoryStorage(), LIVE) as router:
        assert router.decide("Hello", policy_id="desk").model == "openai/gpt-4.1"
        (message,) = [record.message for record in caplog.records]
        assert message == "shadow 'trial' is not used: there is no draft or policy of this name"
