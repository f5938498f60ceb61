"""All caches meet the cache contract."""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright.backends.cache import search
from routewright.backends.cache.memory import MemoryCache
from routewright.backends.cache.postgres import PostgresCache
from routewright.backends.cache.redis import RedisCache
from routewright.backends.cache.search import Vectors
from routewright.backends.cache.sqlite import SqliteCache
from routewright.errors import ValidationFailed
from routewright.protocols import Cache
from routewright.storage import open_cache
from routewright.testing import FakeClock
from routewright.testing.clock import START
from routewright.wire import CachedAnswer, CacheEntry, CacheSelection
from tests.contracts.cache import OTHER, PARTITION, CacheContract, Subject, key_of, make_entry
from tests.contracts.storage.threads import run_in_threads
from tests.database_servers import PostgresServer, RedisServer

from .postgres_stores import empty_store


class TestMemoryCache(CacheContract):
    def make(self, clock: FakeClock, max_bytes: int, max_entries: int) -> MemoryCache:
        return MemoryCache(max_bytes=max_bytes, max_entries=max_entries, clock=clock)


class TestSqliteCache(CacheContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "cache.db"

    def make(self, clock: FakeClock, max_bytes: int, max_entries: int) -> SqliteCache:
        return SqliteCache(self.path, max_bytes=max_bytes, max_entries=max_entries, clock=clock)


class Exact(Subject):
    """An exact cache: every entry of a partition counts as near."""

    def __init__(self, cache: Cache, clock: FakeClock) -> None:
        super().__init__(cache, clock)
        self.names: dict[object, bytes] = {}

    async def put(self, name: object, vector: tuple[float, ...] | None = None, **changes: object) -> CacheEntry:
        entry = await super().put(name, vector, **changes)
        if vector is not None:
            self.names[name] = entry.partition
        return entry

    async def near(self, vector: tuple[float, ...], limit: int = 10, partition: bytes = PARTITION) -> list[str]:
        assert await self.cache.nearest(partition, vector, self.now, limit) == ()
        found = [await self.get(name) for name, there in self.names.items() if there == partition]
        return [entry.id.removeprefix("tr_") for entry in found if entry is not None]


class TestRedisCache(CacheContract):
    @pytest.fixture
    async def subject(self, redis: RedisServer) -> AsyncIterator[Subject]:
        clock = FakeClock(autojump=False)
        cache = RedisCache(redis.url, clock=clock)
        yield Exact(cache, clock)
        await cache.aclose()
        await cache.aclose()

    @pytest.mark.skip("it does not search")
    async def test_the_most_similar_come_first_with_their_similarity(self, subject: Subject) -> None: ...

    @pytest.mark.skip("it does not search")
    async def test_only_vectors_of_the_same_partition_and_length_are_near(self, subject: Subject) -> None: ...

    @pytest.mark.skip("it does not search")
    async def test_a_vector_without_direction_is_never_near(
        self, subject: Subject, vector: tuple[float, float]
    ) -> None: ...

    @pytest.mark.skip("its bound is the server's")
    async def test_the_limit_of_entries_holds_and_the_newest_is_kept(self, subject: Subject) -> None: ...

    @pytest.mark.skip("its bound is the server's")
    async def test_the_limit_of_bytes_holds_after_each_put(self, subject: Subject) -> None: ...


class TestPostgresCache(CacheContract):
    @pytest.fixture(autouse=True)
    def _url(self, postgres: str) -> None:
        self.url = postgres

    def make(self, clock: FakeClock, max_bytes: int, max_entries: int) -> PostgresCache:
        return PostgresCache(self.url, max_bytes=max_bytes, max_entries=max_entries, clock=clock)


class StillClock(FakeClock):
    """A clock that is moved by hand."""

    at = START

    def time(self) -> float:
        return self.at


NAMES = "abcdefgh"
PLACES = {name: (math.cos(number**0.5), math.sin(number**0.5)) for number, name in enumerate(NAMES)}
"""No two have the same distance to a third."""
OWNERS = {name: ("acme", "other")[number % 2] for number, name in enumerate(NAMES)}
PARTITIONS = {name: (PARTITION, OTHER)[number % 3 == 0] for number, name in enumerate(NAMES)}
MOST = 4


class Model:
    """A model of a cache of four entries. ``recent``: evicts the least recently used, else the first to expire."""

    def __init__(self, *, recent: bool) -> None:
        self.kept: dict[bytes, CacheEntry] = {}
        self.recent = recent

    def live(self, now: float) -> list[CacheEntry]:
        return [entry for entry in self.kept.values() if entry.expires_at > now]

    def get(self, key: bytes, now: float) -> CacheEntry | None:
        entry = self.kept.get(key)
        if entry is None or entry.expires_at <= now:
            return None
        self.kept[key] = self.kept.pop(key)
        return entry

    def put(self, entry: CacheEntry, now: float) -> None:
        self.kept.pop(entry.key, None)
        if not self.recent:
            self.kept = {each.key: each for each in self.live(now)}
        if entry.expires_at <= now:
            return
        if len(self.kept) == MOST:
            soonest = min(self.kept.values(), key=lambda each: (each.expires_at, each.created_at))
            del self.kept[next(iter(self.kept)) if self.recent else soonest.key]
        self.kept[entry.key] = entry

    def nearest(self, partition: bytes, vector: tuple[float, ...], now: float, limit: int) -> list[CacheEntry]:
        inside = [entry for entry in self.kept.values() if entry.partition == partition and entry.vector]
        inside.sort(key=lambda entry: -float(np.frombuffer(entry.vector or b"", "<f4") @ np.array(vector)))
        while expired := [entry for entry in inside[:limit] if entry.expires_at <= now]:
            for entry in expired:
                del self.kept[entry.key]
                inside.remove(entry)
        if inside:
            self.get(inside[0].key, now)
        return inside[:limit]

    def remove(self, which: CacheSelection, now: float) -> int:
        meant = [
            entry
            for entry in self.kept.values()
            if entry.account == which.account
            and (which.partition is None or entry.partition == which.partition)
            and (which.key is None or entry.key == which.key)
            and (which.created_before is None or entry.created_at < which.created_before)
        ]
        for entry in meant:
            del self.kept[entry.key]
        return sum(entry.expires_at > now for entry in meant)


names = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.just("put"), names, st.booleans(), st.integers(0, 30)),
    st.tuples(st.just("get"), names),
    st.tuples(st.just("near"), names, st.integers(1, 4)),
    st.tuples(st.just("remove"), names, st.sampled_from(["account", "key", "partition", "created_before"])),
    st.tuples(st.just("pass"), st.integers(1, 20)),
)


class Beside:
    """A cache and the model side by side."""

    def __init__(self, cache: Cache, clock: StillClock) -> None:
        self.cache = cache
        self.clock = clock
        self.model = Model(recent=isinstance(cache, MemoryCache))

    def step(self, step: tuple[Any, ...]) -> None:
        self.clock.at += 0.001
        now = self.clock.at
        match step:
            case "put", name, is_semantic, ttl_s:
                vector = PLACES[name] if is_semantic else None
                found_in = {"account": OWNERS[name], "partition": PARTITIONS[name]}
                entry = make_entry(name, now, vector, expires_at=now + ttl_s, **found_in)
                at_once(self.cache.put(entry))
                self.model.put(entry, now)
            case "get", name:
                kept = self.model.get(key_of(name), now)
                assert at_once(self.cache.get(key_of(name), now)) == (kept and replace(kept, vector=None))
            case "near", name, limit:
                found = at_once(self.cache.nearest(PARTITIONS[name], PLACES[name], now, limit))
                nearest = self.model.nearest(PARTITIONS[name], PLACES[name], now, limit)
                assert [match.entry for match in found] == [replace(kept, vector=None) for kept in nearest]
            case "remove", name, narrowed:
                which = CacheSelection(
                    account=OWNERS[name],
                    key=key_of(name) if narrowed == "key" else None,
                    partition=PARTITIONS[name] if narrowed == "partition" else None,
                    created_before=now - 2.0 if narrowed == "created_before" else None,
                )
                assert at_once(self.cache.remove(which)) == self.model.remove(which, now)
            case "pass", seconds:
                self.clock.at += seconds
        stats, live = at_once(self.cache.stats(None, self.clock.at)), self.model.live(self.clock.at)
        assert stats.entries == len(live) <= MOST
        assert stats.partitions == len({entry.partition for entry in live})


def at_once(coroutine: Any) -> Any:
    """The result of a coroutine that does not wait."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@given(walk=st.lists(steps, max_size=60))
def test_any_walk_agrees_with_a_dict(kind: str, walk: list[tuple[Any, ...]]) -> None:
    clock = StillClock()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.db"
        cache: Cache = (
            MemoryCache(max_entries=MOST, clock=clock)
            if kind == "memory"
            else SqliteCache(path, max_entries=MOST, clock=clock)
        )
        beside = Beside(cache, clock)
        for step in walk:
            beside.step(step)
        at_once(cache.aclose())


@given(walk=st.lists(steps, max_size=60))
def test_any_walk_in_postgresql_agrees_with_a_dict(
    postgres_server: PostgresServer, walk: list[tuple[Any, ...]]
) -> None:
    clock = StillClock()
    cache = PostgresCache(empty_store(postgres_server), max_entries=MOST, clock=clock)
    beside = Beside(cache, clock)
    for step in walk:
        beside.step(step)
    at_once(cache.aclose())


def test_the_memory_cache_stays_within_its_bytes(full: bool) -> None:
    bound, many = (8_000_000, 1_000_000) if full else (2_000_000, 7_000)
    clock, now = StillClock(), START
    cache = MemoryCache(max_bytes=bound, clock=clock)
    vector = np.zeros(64, np.float32)

    def put_many(numbers: Iterable[int]) -> None:
        for number in numbers:
            vector[number % 64] = 1.0
            lone = key_of(f"conversation {number}") if number % 2 else PARTITION
            answer = CachedAnswer(f"{number} " * (number % 400), "stop", "m", "p")
            entry = make_entry(number, now, vector.tolist(), partition=lone, answer=answer)
            at_once(cache.put(entry))
            vector[number % 64] = 0.0
            if number % 100 == 0:
                assert cache.size_bytes <= bound

    tracemalloc.start()
    put_many(range(many // 4))
    early = tracemalloc.get_traced_memory()[0]
    put_many(range(many // 4, many))
    late = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert max(early, late) <= bound
    assert abs(late - early) < 0.05 * bound
    assert cache.size_bytes > 0.99 * bound


def test_the_memory_cache_evicts_the_least_recently_used_entry() -> None:
    cache = MemoryCache(max_entries=3, clock=StillClock())
    for name in "abc":
        at_once(cache.put(make_entry(name, START, PLACES[name])))
    assert at_once(cache.get(key_of("a"), START)) is not None
    assert at_once(cache.nearest(PARTITION, PLACES["b"], START, 1))[0].entry.id == "tr_b"
    at_once(cache.put(make_entry("d", START)))
    assert [at_once(cache.get(key_of(name), START)) is not None for name in "abcd"] == [True, True, False, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_with_an_empty_memory_cache() -> None:
    cache = MemoryCache(clock=StillClock())
    at_once(cache.put(make_entry("a", START, PLACES["a"])))
    child = os.fork()
    if child == 0:
        os._exit(at_once(cache.stats(None, START)).entries)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert at_once(cache.stats(None, START)).entries == 1


@pytest.mark.anyio
async def test_a_long_search_does_not_block_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "QUICK", 0)
    cache, searched_in = MemoryCache(), list[str]()
    candidates = Vectors.candidates

    def spied(*given: Any) -> Any:
        searched_in.append(threading.current_thread().name)
        return candidates(*given)

    monkeypatch.setattr(Vectors, "candidates", spied)
    await cache.put(make_entry("a", time.time(), PLACES["a"]))
    found = await cache.nearest(PARTITION, PLACES["a"], time.time(), 1)
    assert [match.entry.id for match in found] == ["tr_a"]
    assert searched_in != [threading.current_thread().name]


@pytest.mark.parametrize("url", ["memory:", "memory://", "sqlite:///cache.db", "redis://h", "rediss+cluster://h"])
def test_a_cache_is_named_by_a_url(url: str) -> None:
    kinds = {"memory": MemoryCache, "sqlite": SqliteCache}
    assert type(open_cache(url)) is kinds.get(url.partition(":")[0], RedisCache)


def test_a_database_is_named_by_its_url_and_its_password_is_not_shown() -> None:
    cache = open_cache("postgresql://me:secret@db.example/answers")
    assert repr(cache) == "PostgresCache('host=db.example dbname=answers')"


@pytest.mark.parametrize("url", ["", "cache.db", "sqlite:", "sqlite://cache.db", "sqlite:///", "sqlit:///x", None])
def test_another_url_is_refused_with_a_hint(url: Any) -> None:
    with pytest.raises(ValidationFailed, match="write"):
        open_cache(url)


@pytest.mark.parametrize("bound", [0, -1, 1.5, True, "1"])
def test_a_bound_is_a_whole_number_above_0(bound: Any) -> None:
    with pytest.raises(ValidationFailed, match="above 0"):
        MemoryCache(max_bytes=bound)
    with pytest.raises(ValidationFailed, match="above 0"):
        SqliteCache("cache.db", max_entries=bound)
    with pytest.raises(ValidationFailed, match="above 0"):
        PostgresCache("postgresql:", max_entries=bound)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_threads_share_a_cache(kind: str, anyio_backend: str, request: pytest.FixtureRequest) -> None:
    cache = open_cache(
        "memory:"
        if kind == "memory"
        else f"sqlite:///{request.getfixturevalue('tmp_path')}/cache.db"
        if kind == "sqlite"
        else request.getfixturevalue("postgres")
    )

    async def work(number: int, meet: Any) -> None:
        meet()
        for step in range(40):
            name = f"{number}-{step % 7}"
            entry = make_entry(name, time.time(), (1.0, 0.0))
            await cache.put(entry)
            found = await cache.get(key_of(name), time.time())
            assert found == replace(entry, vector=None)
            near = await cache.nearest(PARTITION, (1.0, 0.0), time.time(), 100)
            assert key_of(name) in {match.entry.key for match in near}
            assert await cache.remove(CacheSelection(account="acme", key=key_of(name))) == 1
            assert await cache.get(key_of(name), time.time()) is None

    run_in_threads(work, many=4, backend=anyio_backend, patience_s=30.0)
    anyio.run(cache.aclose)
