"""What a cache guarantees that processes share and that keeps embeddings in memory: on a file, and in PostgreSQL."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import pytest

from routewright.backends.cache.memory import OBSERVATIONS
from routewright.backends.cache.postgres import PostgresCache
from routewright.backends.cache.sqlite import SqliteCache
from routewright.wire import CacheEntry, CacheMatch, CacheSelection, Observation
from tests.contracts.cache import NORTH, PARTITION, key_of, make_entry

SharedCache = SqliteCache | PostgresCache
ALL = CacheSelection(account="acme")


async def get(cache: SharedCache, name: object) -> CacheEntry | None:
    return await cache.get(key_of(name), time.time())


async def near(cache: SharedCache) -> list[str]:
    return sorted(match.entry.id for match in await cache.nearest(PARTITION, NORTH, time.time(), 100))


async def put(cache: SharedCache, *names: object) -> None:
    for name in names:
        await cache.put(make_entry(name, time.time(), NORTH))


class SharedContract:
    """``cache`` and ``other`` are fixtures of the module: two processes' caches of one store."""

    def find_and_put(self, cache: SharedCache, entry: CacheEntry) -> Sequence[CacheMatch]:
        """Search to the north and put an entry, in this thread."""
        raise NotImplementedError

    async def test_removals_by_another_process_do_not_hide_the_rest(
        self, cache: SharedCache, other: SharedCache
    ) -> None:
        await put(cache, *range(30))
        await cache.put(make_entry("last", time.time(), (0.6, 0.8)))
        assert len(await near(cache)) == 31
        for number in range(30):
            await other.remove(CacheSelection(account="acme", key=key_of(number)))
        found = await cache.nearest(PARTITION, NORTH, time.time(), 1)
        assert [match.entry.id for match in found] == ["tr_last"]

    async def test_a_query_of_another_dimension_hides_nothing(self, cache: SharedCache) -> None:
        await put(cache, "a")
        for vector in ((1.0, 0.0, 0.0), ()):
            assert list(await cache.nearest(PARTITION, vector, time.time(), 1)) == []
        assert await near(cache) == ["tr_a"]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    async def test_a_forked_child_uses_the_cache_without_harming_the_parents(self, cache: SharedCache) -> None:
        await put(cache, "a")
        assert await near(cache) == ["tr_a"]
        child = os.fork()
        if child == 0:
            try:
                found = self.find_and_put(cache, make_entry("child", time.time(), NORTH))
                os._exit(0 if [match.entry.id for match in found] == ["tr_a"] else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222  # it ends at once
        assert await near(cache) == ["tr_a", "tr_child"]

    async def test_observations_of_other_processes_are_returned_once(self, cache: SharedCache) -> None:
        first, second, third = (Observation((number, 0.5), number > 1.0, 50.0) for number in (1.0, 2.0, 3.0))
        told, mine = await cache.learned("space", [first], 0)
        assert list(told) == []
        told, yours = await cache.learned("space", [second, third], 0)
        assert list(told) == [first]
        told, mine = await cache.learned("space", [], mine)
        assert list(told) == [second, third]
        for space, after in (("space", mine), ("other", 0)):
            assert list((await cache.learned(space, [], after))[0]) == []
        assert yours == mine

    async def test_observations_are_bounded(self, cache: SharedCache) -> None:
        seen = Observation((0.5,), True, 1.0)
        for _ in range(3):
            await cache.learned("space", [seen] * OBSERVATIONS, 0)
        assert len((await cache.learned("space", [], 0))[0]) == OBSERVATIONS
