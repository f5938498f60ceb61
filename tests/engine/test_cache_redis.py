"""Routers on several machines share a Redis cache: concurrent misses result in one call."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from benchmarks.doubles import MODELS

from routewright import CallableProvider, Catalogue, Router, UpstreamCall
from routewright.backends.cache.redis import RedisCache
from routewright.errors import RouterError
from routewright.wire import CacheEntry
from tests.database_servers import RedisServer

pytestmark = pytest.mark.anyio
Answer = Callable[[UpstreamCall], Awaitable[str]]


class Machine:
    """One Router with a cache of its own at the server."""

    def __init__(self, server: RedisServer, answer: Answer) -> None:
        self.cache = RedisCache(server.url)
        provider = CallableProvider(answer, models=MODELS[:1])
        self.router = Router(providers=[provider], catalogue=Catalogue(()), cache=self.cache, max_retries=0)

    async def ask(self, **options: Any) -> tuple[str, bool]:
        answer = await self.router.route("Why is the sky blue?", cache=True, **options)
        return answer.output, answer.routing.cache_hit


class Upstream:
    """Answers slowly, and counts that."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails = 0

    async def answer(self, call: UpstreamCall) -> str:
        self.calls += 1
        await anyio.sleep(0.3)
        if self.calls <= self.fails:
            raise ConnectionError("gone")
        return "since it scatters"


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
async def machines(redis: RedisServer, upstream: Upstream, anyio_backend: str) -> AsyncIterator[list[Machine]]:
    made = [Machine(redis, upstream.answer) for _ in range(4)]
    for each in made:
        await each.cache.get(b"nothing", 0.0)  # connects, which may take longer than a cache may
    yield made
    for each in made:
        await each.router.aclose()


async def all_asked(machines: list[Machine], **options: Any) -> list[tuple[str, bool] | str]:
    found: list[tuple[str, bool] | str] = []

    async def ask(machine: Machine) -> None:
        try:
            found.append(await machine.ask(**options))
        except RouterError as error:
            found.append(type(error).__name__)

    async with anyio.create_task_group() as tasks:
        for machine in machines:
            tasks.start_soon(ask, machine)
    return found


async def test_one_of_several_processes_makes_the_call_and_the_others_get_its_answer(
    machines: list[Machine], upstream: Upstream
) -> None:
    found = await all_asked(machines)
    assert upstream.calls == 1
    assert [each[0] for each in found] == ["since it scatters"] * 4
    assert sorted(each[1] for each in found) == [False, True, True, True]
    assert await machines[0].ask() == ("since it scatters", True)


async def test_if_the_calling_process_fails_another_calls_at_once(machines: list[Machine], upstream: Upstream) -> None:
    upstream.fails = 1
    began = time.monotonic()
    found = await all_asked(machines)
    assert upstream.calls == 2
    assert [type(each) for each in found].count(str) == 1
    assert time.monotonic() - began < 10.0, "and waits for no deadline"


async def test_an_answer_kept_between_look_up_and_lead_is_not_paid_again(
    machines: list[Machine], upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = machines[:2]
    await other.ask()
    await other.router.aclose()  # it has kept the answer, and leads no more
    get, looks = mine.cache.get, list[bytes]()

    async def get_late(key: bytes, now: float) -> CacheEntry | None:
        looks.append(key)
        return None if len(looks) == 1 else await get(key, now)

    monkeypatch.setattr(mine.cache, "get", get_late)
    assert await mine.ask() == ("since it scatters", True)
    assert upstream.calls == 1


async def test_a_killed_process_is_waited_for_until_its_deadline(
    machines: list[Machine], upstream: Upstream, redis: RedisServer
) -> None:
    key = bytes.fromhex((await machines[0].router.cache.explain("Why is the sky blue?")).key)
    assert await machines[1].cache.lead(key, 0.5), "it began a call, and was killed"
    began = time.monotonic()
    assert await machines[2].ask() == ("since it scatters", False)
    assert 0.7 < time.monotonic() - began < 20.0
    assert upstream.calls == 1


async def test_no_process_waits_for_more_than_half_of_its_time(machines: list[Machine], upstream: Upstream) -> None:
    key = bytes.fromhex((await machines[0].router.cache.explain("Why is the sky blue?")).key)
    assert await machines[1].cache.lead(key, 60.0)
    assert await machines[2].ask(timeout_ms=1_500) == ("since it scatters", False)


async def test_without_redis_each_process_makes_its_call(
    machines: list[Machine], upstream: Upstream, redis: RedisServer
) -> None:
    redis.stop()
    try:
        began = time.monotonic()
        found = await all_asked(machines)
        assert time.monotonic() - began < 10.0, "and waits for no other"
    finally:
        redis.start()
    assert (upstream.calls, [each[1] for each in found]) == (4, [False] * 4)


async def test_only_the_leader_ends_its_lead(machines: list[Machine]) -> None:
    first, second = machines[0].cache, machines[1].cache
    assert await first.lead(b"k" * 16, 60.0)
    assert not await second.lead(b"k" * 16, 60.0)
    await second.lead(b"k" * 16, 0.0)
    assert not await second.lead(b"k" * 16, 60.0)
    await first.lead(b"k" * 16, 0.0)
    assert await second.lead(b"k" * 16, 60.0)


async def test_an_entry_of_another_version_is_a_miss(machines: list[Machine]) -> None:
    cache = machines[0].cache
    await cache._server.run(lambda client: client.set("rw:answer:" + (b"k" * 16).hex(), b"\xc1 no entry"))
    assert await cache.get(b"k" * 16, time.time()) is None
    assert (await cache.stats(None, time.time())).entries == 0
