"""Agent runs cancelled at every await, or with a failing storage: each run that started ends once."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import anyio
import pytest

from routewright import Agent, Caller, MemoryStorage, RateLimits, Settings
from routewright.errors import StorageUnavailable
from routewright.testing import FakeClock
from routewright.wire import Events, LedgerRows, PutAccount, PutAgentState, Stands, Tool

from .account_router import account
from .faulty_storage import Behind
from .test_agent import asks, calls_of, router
from .test_cancellation_points import CancelAt

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("closing")]
ACME = Caller("acme")
ENDS: dict[str, Any] = {"an answer": "done", "calls of the client": asks(("ask_user", {}))}


class Place(NamedTuple):
    """An agent whose storage takes its time, and keeps checkpoints."""

    clock: FakeClock
    storage: Behind
    agent: Agent

    async def check(self) -> list[str]:
        """Nothing is held, and each run has one trace and one event. Returns how its trace says that it ended."""
        await self.clock.sleep(15.0)
        await self.agent.router.flush()
        rows = await self.storage.scan("acme", LedgerRows(), after=None, limit=100)
        found = await self.storage.kept.read("acme", Stands("2026-01-01T00:00:00.000Z"))
        charged = sum(row.charge_nanos for row in rows)
        assert {(purse.spent_nanos, purse.reserved_nanos) for purse in found.purses} == {(charged, 0)}
        assert self.storage.kept.accounts.state.holds == {}
        events = await self.storage.scan("acme", Events(), after=None, limit=100)
        runs = (await self.agent.router.traces.as_account("acme").query(filter="kind=agent")).data
        assert [event.data["trace_id"] for event in events] == [run.id for run in runs]
        await self.agent.router.aclose()
        return [run.status for run in runs]


async def place(end: Any) -> Place:
    clock = FakeClock()
    storage = Behind(MemoryStorage(clock=clock), clock)
    terms: PutAccount = account(monthly_nanos=10**9, limits=RateLimits(concurrency=1))
    await storage.kept.apply("acme", [terms])

    async def wait() -> str:
        await clock.sleep(0.01)
        return "waited"

    made = router([asks(("wait", {})), end], storage=storage, settings=Settings(clock=clock))
    return Place(clock, storage, Agent(made, tools=[wait, Tool(name="ask_user")]))


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("end", ENDS)
async def test_cancelled_at_any_await_a_run_that_has_begun_ends_once(end: str, key: str | None) -> None:
    at, waited, told = 0, 1, set[tuple[str, ...]]()
    while waited >= at:
        at += 1
        here = await place(ENDS[end])
        here.storage.takes_s = 0.01
        with anyio.CancelScope() as scope:
            driver = CancelAt(here.agent.run("go", caller=ACME, idempotency_key=key), at, scope)
            await driver
        waited = driver.waited
        here.storage.takes_s = 0.0
        calls, statuses = calls_of(here.agent.router), await here.check()
        assert statuses or not calls, at
        told.add((*statuses,))
    assert told == {(), ("cancelled",), ("completed" if end == "an answer" else "partial",)}


@pytest.mark.parametrize("write", range(1, 5))
async def test_a_run_is_answered_though_its_checkpoints_cannot_be_written(write: int) -> None:
    here, left = await place(ENDS["calls of the client"]), [write]

    def refuse(thing: Any) -> None:
        if isinstance(thing, PutAgentState):
            left[0] -= 1
            if left[0] <= 0:
                raise StorageUnavailable("the disk is full")

    here.storage.before = refuse
    with pytest.raises(StorageUnavailable) if write == 1 else nullcontext():
        assert (await here.agent.run("go", caller=ACME)).marker == "tool_calls_pending"
    here.storage.before = lambda thing: None
    assert await here.check() == (["partial"] if write > 1 else [])
