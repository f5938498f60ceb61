"""The PostgreSQL cache is shared by processes and outlives them; data lost by the server is a miss."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import psycopg
import pytest
from benchmarks.doubles import MODELS

from routewright import CallableProvider, Catalogue, Router, UpstreamCall
from routewright._engine import cache as engine
from routewright.backends.cache import postgres as module
from routewright.backends.cache.memory import row_of
from routewright.backends.cache.postgres import PostgresCache
from routewright.backends.cache.search import AT_ONCE
from routewright.backends.storage.postgres import PostgresStorage
from routewright.backends.storage.postgres.connections import Address
from routewright.backends.storage.postgres.schema import create
from routewright.errors import StorageUnavailable
from routewright.wire import CachedAnswer, CacheEntry, CacheMatch, CacheSelection, Observation
from tests.contracts.cache import NORTH, PARTITION, key_of, make_entry
from tests.database_servers import PostgresServer

from .shared_caches import ALL, SharedContract, get, near, put

pytestmark = pytest.mark.anyio
KEY = b"k" * 16


@pytest.fixture
async def cache(postgres: str) -> AsyncIterator[PostgresCache]:
    made = PostgresCache(postgres)
    yield made
    await made.aclose()


@pytest.fixture
async def other(postgres: str) -> AsyncIterator[PostgresCache]:
    """The cache of another process."""
    made = PostgresCache(postgres)
    yield made
    await made.aclose()


def ask(url: str, sql: str) -> Any:
    with psycopg.connect(url) as connection:
        return connection.execute(sql).fetchone()


class TestSharedContract(SharedContract):
    def find_and_put(self, cache: Any, entry: CacheEntry) -> Sequence[CacheMatch]:
        found: Sequence[CacheMatch] = cache._nearest(PARTITION, NORTH, time.time(), 5)
        _, row = row_of(entry)
        cache._server.value_now(module._PUT, *cache._bounds, *row)
        return found


async def test_processes_share_entries_and_removals(cache: PostgresCache, other: PostgresCache) -> None:
    await put(cache, "mine")
    assert await get(other, "mine") is not None
    assert await near(other) == ["tr_mine"]
    await put(other, "yours")
    assert await near(cache) == ["tr_mine", "tr_yours"]
    assert await cache.remove(CacheSelection(account="acme", key=key_of("mine"))) == 1
    assert (await get(other, "mine"), await near(other)) == (None, ["tr_yours"])
    assert await other.remove(ALL) == 1
    assert (await get(cache, "yours"), await near(cache)) == (None, [])


async def test_machines_share_answers_until_their_account_is_deleted(postgres: str) -> None:
    first, second = (Router.sandbox(storage=PostgresStorage(postgres), cache=PostgresCache(postgres)) for _ in range(2))
    hits = [(await each.route("How do I log in?", cache=True)).routing.cache_hit for each in (first, second)]
    assert hits == [False, True]
    await first.traces.delete(everything=True)
    assert not (await second.route("How do I log in?", cache=True)).routing.cache_hit
    for router in (first, second):
        await router.aclose()


async def test_an_answer_committed_late_is_found(cache: PostgresCache, postgres: str) -> None:
    await near(cache)
    _, slow = row_of(make_entry("slow", time.time(), NORTH))
    async with anyio.create_task_group() as group:
        with psycopg.connect(postgres) as connection:
            connection.execute(re.sub(r"\$\d+", "%s", module._PUT), (*slow, 10, 100_000))
            group.start_soon(put, cache, "quick")
            await anyio.sleep(0.3)
            assert await near(cache) == [], "nothing that is later is there before it"
            connection.commit()
    assert await near(cache) == ["tr_quick", "tr_slow"]


async def test_limits_count_entries_of_all_processes(postgres: str) -> None:
    caches = [PostgresCache(postgres, max_entries=10, max_bytes=50_000) for _ in range(4)]

    async def fill(cache: PostgresCache, first: int) -> None:
        for number in range(first, first + 30):
            answer = CachedAnswer("x" * 400 * (number % 20), "stop", "m", "p")
            await cache.put(make_entry(number % 25, time.time(), NORTH, answer=answer))
            stats = await cache.stats(None, time.time())
            assert stats.entries <= 10
            assert stats.size_bytes <= 50_000

    async with anyio.create_task_group() as group:
        for place, cache in enumerate(caches):
            group.start_soon(fill, cache, 7 * place)
    assert ask(postgres, "SELECT * FROM cache_size") == ask(postgres, "SELECT count(*), sum(size) FROM cache_entry")
    for cache in caches:
        await cache.aclose()


async def test_the_entries_that_expire_first_are_evicted(postgres: str) -> None:
    cache, now = PostgresCache(postgres, max_entries=2), time.time()
    for name, seconds in (("long", 90.0), ("short", 30.0), ("new", 10.0)):
        await cache.put(make_entry(name, now, expires_at=now + seconds))
    assert [await get(cache, name) is not None for name in ("long", "short", "new")] == [True, False, True]
    await cache.aclose()


async def test_an_unreadable_row_is_a_miss(cache: PostgresCache, postgres: str) -> None:
    await put(cache, "a", "b")
    ask(postgres, r"UPDATE cache_entry SET body = '\xc1c1' WHERE id = 'tr_a' RETURNING 1")
    assert await near(cache) == ["tr_b"]
    assert await get(cache, "a") is None


@pytest.mark.parametrize("tag", [None, ("team", "x")])
async def test_many_entries_are_removed_in_batches(
    cache: PostgresCache, postgres: str, monkeypatch: pytest.MonkeyPatch, tag: tuple[str, str] | None
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3)
    for number in range(20):
        await cache.put(make_entry(number, time.time(), metadata=b'{"team":"x"}' if number % 5 == 0 else None))
    assert await cache.remove(CacheSelection(account="acme", metadata=tag)) == (20 if tag is None else 4)
    assert (await cache.stats(None, time.time())).entries == (0 if tag is None else 16)
    counted = "SELECT count(*), coalesce(sum(size), 0)::bigint FROM cache_entry"
    assert ask(postgres, "SELECT * FROM cache_size") == ask(postgres, counted)


# Embeddings in memory


async def test_embeddings_are_read_in_pages(cache: PostgresCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES", 3 * 4 * len(NORTH))
    for total in (7, 16, 21):  # the last with whole pages alone
        await put(cache, *range(total))
        assert len(await near(cache)) == total


async def test_embeddings_of_removed_entries_do_not_pile_up(postgres: str) -> None:
    cache, most = PostgresCache(postgres, max_entries=20), 0
    await cache.put(make_entry("stays", time.time(), NORTH, expires_at=time.time() + 3_600.0))
    for number in range(AT_ONCE + 200):
        await cache.put(make_entry(number, time.time(), (1.0, 0.0)))
        if number % 10 == 0:
            found = await cache.nearest(PARTITION, NORTH, time.time(), 1)
            assert [match.entry.id for match in found] == ["tr_stays"]
            most = max(most, *(len(mirror.vectors) for mirror in cache._mirrors._by_partition.values()))
    assert AT_ONCE < most <= 2 * 20 + AT_ONCE + 10
    await cache.aclose()


# One process makes the call


async def test_one_process_leads_until_it_ends_or_times_out(cache: PostgresCache, other: PostgresCache) -> None:
    assert await cache.lead(KEY, 60.0)
    assert not await other.lead(KEY, 60.0)
    assert await other.lead(b"another key 1234", 60.0)
    await other.lead(KEY, 0.0)
    assert not await other.lead(KEY, 60.0), "only who leads ends that"
    await cache.lead(KEY, 0.0)
    assert await other.lead(KEY, 0.2)
    assert not await cache.lead(KEY, 60.0)
    await anyio.sleep(0.25)
    assert await cache.lead(KEY, 60.0)


async def test_if_several_machines_miss_one_calls_for_all(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CACHE_S", 5.0)  # a busy machine may take long to connect
    calls, found = 0, list[tuple[str, bool]]()

    async def answer(call: UpstreamCall) -> str:
        nonlocal calls
        calls += 1
        await anyio.sleep(0.3)
        return "since it scatters"

    async def ask_one(router: Router) -> None:
        answered = await router.route("Why is the sky blue?", cache=True)
        found.append((answered.output, answered.routing.cache_hit))

    provider = CallableProvider(answer, models=MODELS[:1])
    routers = [Router(providers=[provider], catalogue=Catalogue(()), cache=PostgresCache(postgres)) for _ in range(4)]
    async with anyio.create_task_group() as group:
        for router in routers:
            group.start_soon(ask_one, router)
    assert calls == 1
    assert sorted(found) == [("since it scatters", False)] + [("since it scatters", True)] * 3
    for router in routers:
        await router.aclose()


async def test_one_of_many_concurrent_callers_leads(cache: PostgresCache, other: PostgresCache) -> None:
    leads = list[bool]()

    async def lead(each: PostgresCache) -> None:
        leads.append(await each.lead(KEY, 60.0))

    async with anyio.create_task_group() as group:
        for number in range(16):
            group.start_soon(lead, (cache, other)[number % 2])
    assert sum(leads) == 1


async def test_leads_of_dead_processes_are_removed(cache: PostgresCache, postgres: str) -> None:
    await cache.lead(KEY, 0.01)
    await cache.lead(b"another key 1234", 60.0)
    await anyio.sleep(0.05)
    storage = PostgresStorage(postgres)
    await storage.sweep(time.time())
    assert ask(postgres, "SELECT count(*) FROM cache_lead") == (1,)
    await storage.aclose()


# What is learned


# The server


async def test_the_cache_is_empty_but_works_after_a_server_crash(postgres_server: PostgresServer) -> None:
    url = postgres_server.database()
    create(Address(url))
    cache, seen = PostgresCache(url, max_entries=3), Observation((0.5,), True, 1.0)
    await put(cache, "a", "b")
    await cache.learned("space", [seen], 0)
    assert len(await near(cache)) == 2
    postgres_server.kill()
    try:
        for asked in (get(cache, "a"), near(cache), put(cache, "a"), cache.remove(ALL), cache.stats(None, 0.0)):
            with pytest.raises(StorageUnavailable):
                await asked
    finally:
        postgres_server.start()
    await anyio.sleep(0.3)  # for so long it does not try to connect again
    assert (await get(cache, "a"), await near(cache)) == (None, [])
    assert (await cache.learned("space", [], 0))[0] == [seen]
    await put(cache, "new")
    assert await near(cache) == ["tr_new"]
    await put(cache, *range(5))
    assert (len(await near(cache)), (await cache.stats(None, 0.0)).entries) == (3, 3)
    await cache.aclose()
