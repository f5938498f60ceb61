"""A circuit opened in one process opens in all that share a coordination; each closes it by itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from benchmarks.doubles import MODELS

from routewright import CallableProvider, Catalogue, Router, Settings, UpstreamCall
from routewright._core.attempts.breaker import LONGEST_RETRY_AFTER_S
from routewright.backends.coordination.memory import MemoryCoordination
from routewright.backends.coordination.redis import RedisCoordination
from routewright.backends.storage.postgres import PostgresStorage
from routewright.errors import RouterError
from routewright.protocols import Coordination, Storage
from routewright.settings import ExecutionLimits
from routewright.wire import CIRCUIT_TOPIC, Notice
from tests.backends.postgres_stores import empty_store
from tests.database_servers import PostgresServer, RedisServer

pytestmark = pytest.mark.anyio
MODEL = MODELS[0].id


class Process:
    """One Router, whose provider is down or not."""

    def __init__(self, coordination: Coordination | None, storage: Storage | None = None, **limits: Any) -> None:
        self.is_down, self.calls = False, 0
        provider = CallableProvider(self._answer, models=MODELS[:1])
        settings = Settings(execution=ExecutionLimits(**limits))
        self.router = Router(
            providers=[provider],
            catalogue=Catalogue(()),
            storage=storage,
            coordination=coordination,
            settings=settings,
            max_retries=0,
        )

    async def _answer(self, call: UpstreamCall) -> str:
        self.calls += 1
        if self.is_down:
            raise ConnectionError("gone")
        return "yes"

    async def ask(self) -> bool:
        try:
            await self.router.route("hi", models=[MODEL])
        except RouterError:
            return False
        return True

    @property
    def is_open(self) -> bool:
        return self.router.models()[0].availability.status == "unavailable" or bool(self.fleet.circuit_status())

    @property
    def fleet(self) -> Any:
        return self.router._parts.fleet("production")

    async def until_open(self) -> None:
        with anyio.fail_after(3.0):
            while not self.is_open:  # noqa: ASYNC110  # nothing tells
                await anyio.sleep(0.02)


@pytest.fixture
async def pair(redis: RedisServer, anyio_backend: str) -> AsyncIterator[tuple[Process, Process]]:
    made = [Process(RedisCoordination(redis.url), open_s=0.5) for _ in range(2)]
    for each in made:
        assert await each.ask()
    await anyio.sleep(0.2)  # now both listen
    yield made[0], made[1]
    for each in made:
        await each.router.aclose()


async def test_a_circuit_opens_in_both_processes_and_each_probes_for_itself(
    pair: tuple[Process, Process],
) -> None:
    first, second = pair
    first.is_down = True
    for _ in range(5):
        assert not await first.ask()
    assert first.is_open
    await second.until_open()
    called = second.calls
    await anyio.sleep(0.6)
    assert await second.ask(), "its own probe finds it well"
    assert (second.calls, second.is_open) == (called + 1, False)


NONSENSE = "", "production", "production x y", "staging 5 x", f"production -1 {MODEL}", "production 5 x/y", "a b c d"


async def test_a_malformed_notice_changes_nothing(pair: tuple[Process, Process]) -> None:
    coordination = pair[0].router.coordination
    for notice in (*(Notice(CIRCUIT_TOPIC, said) for said in NONSENSE), Notice("account", f"production 5 {MODEL}")):
        await coordination.announce(notice)
    await anyio.sleep(0.1)
    assert not pair[1].is_open
    with anyio.fail_after(5.0):  # a malformed notice pauses the listener
        while not pair[1].is_open:
            await coordination.announce(Notice(CIRCUIT_TOPIC, f"production 5 {MODEL}"))
            await anyio.sleep(0.1)


async def test_a_notice_opens_a_circuit_for_at_most_the_longest_retry_after(pair: tuple[Process, Process]) -> None:
    await pair[0].router.coordination.announce(Notice(CIRCUIT_TOPIC, f"production 1e9 {MODEL}"))
    await pair[1].until_open()
    clock = pair[1].router.clock
    assert 0 < pair[1].fleet.due(0) - clock.monotonic() <= LONGEST_RETRY_AFTER_S


async def test_processes_share_circuits_through_a_database_alone(postgres_server: PostgresServer) -> None:
    url = empty_store(postgres_server)
    first, second = [Process(None, PostgresStorage(url), open_s=5.0) for _ in range(2)]
    for each in (first, second):
        assert await each.ask()
    await anyio.sleep(0.5)  # now both listen
    first.is_down = True
    for _ in range(5):
        await first.ask()
    await second.until_open()
    for each in (first, second):
        await each.router.aclose()


async def test_without_a_coordination_circuits_are_not_shared() -> None:
    alone = Process(None)
    assert await alone.ask()
    await alone.router.coordination.announce(Notice(CIRCUIT_TOPIC, f"production 5 {MODEL}"))
    await anyio.sleep(0.1)
    assert not alone.is_open
    await alone.router.aclose()


async def test_a_dropped_router_stops_listening() -> None:
    coordination = MemoryCoordination()
    process = Process(coordination)
    assert await process.ask()
    gone = weakref.ref(process.router._parts)
    del process
    gc.collect()
    assert gone() is None
