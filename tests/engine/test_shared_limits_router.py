"""Routers on two machines with separate storages share rate limits through Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from benchmarks.doubles import MODELS

from routewright import (
    Agent,
    CallableProvider,
    Catalogue,
    Console,
    MemoryStorage,
    RateLimited,
    Router,
    SqliteStorage,
    UpstreamCall,
)
from routewright.backends.coordination.redis import RedisCoordination
from routewright.protocols import Storage
from routewright.wire import Caller, RateLimits
from tests.servers import RedisServer

pytestmark = pytest.mark.anyio
ACME = Caller("acme")


class Machine:
    def __init__(self, server: RedisServer, storage: Storage) -> None:
        self.coordination = RedisCoordination(server.url, processes=2)
        self.storage, self.calls = storage, 0
        provider = CallableProvider(self._answer, models=MODELS[:1])
        self.router = Router(
            providers=[provider], catalogue=Catalogue(()), storage=storage, coordination=self.coordination
        )

    async def _answer(self, call: UpstreamCall) -> str:
        self.calls += 1
        await anyio.sleep(0.01)
        return "yes"

    async def open(self, **limits: int) -> None:
        console = Console(self.storage, secret="s" * 40)
        await console.create_account("acme", plan="enterprise", limits=RateLimits(**limits))

    async def ask(self, **options: Any) -> bool:
        try:
            await self.router.route("hi", caller=ACME, **options)
        except RateLimited:
            return False
        return True

    async def until_served(self) -> None:
        """What another ended is free a moment later."""
        with anyio.fail_after(5.0):
            while not await self.ask():  # noqa: ASYNC110  # nothing tells
                await anyio.sleep(0.01)
        await anyio.sleep(0.1)  # so is what this one held


@pytest.fixture(params=["memory", "sqlite"])
async def pair(
    redis: RedisServer, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[tuple[Machine, Machine]]:
    def storage() -> Storage:
        folder = tmp_path_factory.mktemp("store")
        return MemoryStorage() if request.param == "memory" else SqliteStorage(folder / "store.db")

    made = Machine(redis, storage()), Machine(redis, storage())
    yield made
    for each in made:
        await each.router.aclose()


async def test_two_processes_together_stay_within_the_limit(pair: tuple[Machine, Machine]) -> None:
    for each in pair:
        await each.open(requests_per_min=10)
    found = [await pair[number % 2].ask() for number in range(16)]
    assert found == [True] * 10 + [False] * 6
    with pytest.raises(RateLimited) as refused:
        await pair[0].router.route("hi", caller=ACME)
    assert 0 < int(refused.value.headers["Retry-After"]) <= 60


async def test_a_slot_is_released_however_a_call_ends(pair: tuple[Machine, Machine]) -> None:
    for each in pair:
        await each.open(concurrency=1)
    mine, other = pair
    for delay_s in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.006, 0.009, 0.012):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mine.ask)
            await anyio.sleep(delay_s)
            tasks.cancel_scope.cancel()
        await other.until_served()
    async with mine.router.stream("hi", caller=ACME) as stream:
        async for _ in stream:
            assert not await other.ask()
            break
    await other.until_served()


async def test_a_replay_counts_against_no_limit(pair: tuple[Machine, Machine]) -> None:
    mine, other = pair
    for each in pair:
        await each.open(requests_per_min=2)
    assert await mine.ask(idempotency_key="k")
    assert await other.ask()
    assert not await other.ask()
    for _ in range(3):
        assert await mine.ask(idempotency_key="k")
    assert mine.calls == 1
    assert not await mine.ask(idempotency_key="another")


async def test_an_agent_run_holds_one_slot_and_its_calls_count_in_the_windows(pair: tuple[Machine, Machine]) -> None:
    mine, other = pair
    for each in pair:
        await each.open(concurrency=1, requests_per_min=3)
    result = await Agent(mine.router, tools=[]).run("hi", caller=ACME)
    assert result.output == "yes"
    await other.until_served()
    answers = [await other.ask() for _ in range(3)]
    assert answers.count(True) in (0, 1), "the run, and its call"
