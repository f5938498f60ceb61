"""Events are stored with their cause; windowed events once, however many Routers detect them."""

from __future__ import annotations

import pytest

from routewright import BudgetExceeded, MemoryStorage, Policy, ProviderFault, Router, Settings
from routewright.errors import UpstreamFailed
from routewright.protocols import Storage
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import SYSTEM_ACCOUNT, Delta, ErrorBurst, Events, Finish, StoredEvent

from .account_router import ONE, SPARE

pytestmark = pytest.mark.anyio


async def kept(storage: Storage, account: str = "default") -> list[StoredEvent]:
    return await storage.scan(account, Events(), after=None, limit=100)


async def test_a_burst_emits_one_event_per_window_over_all_routers() -> None:
    clock, storage = FakeClock(), MemoryStorage()
    fault = ProviderFault("request")
    routers = [
        Router(
            providers=[ScriptedProvider(lambda call: fault, models=[ONE], clock=clock)],
            storage=storage,
            settings=Settings(clock=clock),
        )
        for _ in range(2)
    ]
    heard: list[str] = []
    for router in routers:
        router.on_event(lambda event: heard.append(event.type))

    async def fail() -> None:
        for _ in range(25):
            for router in routers:
                with pytest.raises(UpstreamFailed):
                    await router.route("hi")
        for router in routers:
            await router.flush()

    await fail()
    assert [type(event.event.data) for event in await kept(storage)] == [ErrorBurst]
    assert heard == ["router.error_burst"]
    await clock.sleep(301.0)
    await fail()
    assert heard == ["router.error_burst"] * 2


async def test_a_fallback_and_a_refused_budget_are_kept_with_their_traces() -> None:
    clock, storage = FakeClock(), MemoryStorage()
    answers = [[ProviderFault("auth")], [[Delta("an answer"), Finish("stop")]]]
    router = Router(
        providers=[
            ScriptedProvider(script, models=[model], clock=clock)  # type: ignore[arg-type]
            for script, model in zip(answers, (ONE, SPARE), strict=True)
        ],
        storage=storage,
        settings=Settings(clock=clock),
    )
    answer = await router.route("hi", goal="quality")
    with pytest.raises(BudgetExceeded) as caught:
        await router.route("hi", budget={"maxCostUsd": 0.0})
    refused, fallback = await kept(storage)
    assert (fallback.type, fallback.data["trace_id"]) == ("router.fallback_triggered", answer.trace_id)
    assert (refused.type, refused.data["trace_id"]) == ("router.budget_exceeded", caught.value.trace_id)


async def test_a_policy_change_in_several_routers_is_one_event() -> None:
    clock, storage = FakeClock(), MemoryStorage()
    routers = [Router.sandbox(storage=storage, settings=Settings(clock=clock)) for _ in range(2)]
    for router in routers:
        router.reload_policies([Policy(name="cheap", goal="cost")])
    (event,) = await kept(storage, SYSTEM_ACCOUNT)
    assert (event.type, event.data["name"]) == ("router.policy_changed", "cheap")
