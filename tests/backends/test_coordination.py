"""All coordinations meet the coordination contract."""

from __future__ import annotations

import time

import anyio
import pytest

from routewright.backends.coordination.memory import MemoryCoordination
from routewright.backends.coordination.redis import RedisCoordination
from routewright.errors import StorageUnavailable
from routewright.testing import FakeClock
from routewright.wire import Notice
from tests.contracts.coordination import FIRST, SECOND, CoordinationContract
from tests.database_servers import RedisServer


class TestMemoryCoordination(CoordinationContract):
    def make(self, clock: FakeClock) -> MemoryCoordination:
        return MemoryCoordination(clock=clock)


class TestRedisCoordination(CoordinationContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis: RedisServer) -> None:
        self.redis = redis

    def make(self, clock: FakeClock) -> RedisCoordination:
        return RedisCoordination(self.redis.url, clock=clock)


@pytest.mark.anyio
async def test_news_from_another_process_arrives_at_once(redis: RedisServer) -> None:
    mine, other = RedisCoordination(redis.url), RedisCoordination(redis.url)
    await other.announce(FIRST)
    last = (await mine.hear(None)).last
    heard: list[tuple[Notice, ...]] = []

    async def listen() -> None:
        heard.append((await mine.hear(last)).notices)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await anyio.sleep(0.1)
        said_at = time.monotonic()
        await other.announce(SECOND)
    assert heard == [(SECOND,)]
    assert time.monotonic() - said_at < 0.5
    await mine.aclose()
    await other.aclose()


@pytest.mark.anyio
async def test_news_is_unavailable_without_the_server_and_restarts_afterwards(redis: RedisServer) -> None:
    mine = RedisCoordination(redis.url)
    await mine.announce(FIRST)
    last = (await mine.hear(None)).last
    redis.stop()
    try:
        for asked in (mine.announce(FIRST), mine.hear(None), mine.hear(last)):
            with pytest.raises(StorageUnavailable):
                await asked
    finally:
        redis.start()
    await mine.announce(SECOND)
    assert (await mine.hear(last)).notices == (SECOND,)
    await mine.aclose()
