"""How long does a cache of answers take to find the nearest of ten thousand and of a hundred thousand questions?

Run it with ``OMP_NUM_THREADS=1``: peers and floors use all cores otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import cache
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest

from routewright.backends.cache.memory import MemoryCache
from routewright.backends.cache.search import Vectors
from routewright.backends.cache.sqlite import SqliteCache
from routewright.protocols import Cache
from routewright.wire import CachedAnswer, CacheEntry, CacheOpts

from .conftest import Peer, Timed, TimedAsync
from .doubles import DropsAtOnce, Instant, router_over
from .measure import Effort, Figure
from .report import Question, Report, Who
from .vectors import DIMENSION, Searched, searched

SIZES = {10_000: "200 / 400", 100_000: "1,300 / 2,500"}
SEARCH = {
    many: Question(f"the nearest of {many:,} cached questions, {DIMENSION} numbers each, embedding ready", target)
    for many, target in SIZES.items()
}
RECALL = {
    10_000: Question("share of nearest questions found, of 10,000"),
    100_000: Question("share of nearest questions found, of 100,000", "99"),
}
PEERS: list[tuple[Who, str]] = [("faiss", "vectors"), ("usearch", "vectors")]
KINDS = ("memory", "SQLite")
GET = {kind: Question(f"an exact hit among 1,000, {kind}") for kind in KINDS}
MISS = {kind: Question(f"an exact miss, {kind}") for kind in KINDS}
PUT = {kind: Question(f"keep an answer in place of an older one, {kind}") for kind in KINDS}
ENTRY = Question("memory of an entry of 2 kB with a vector, alone in its partition")

ROUTE = {
    "off": Question("route() that does not ask the cache"),
    "miss": Question("route(), an exact miss that is kept"),
    "hit": Question("route(), an exact hit"),
    "near": Question("route(), a miss among 1,000 similar questions"),
}
"""Calls with one user turn, nothing stored but answers, in memory."""

many = pytest.mark.parametrize("many", SIZES)
searches = cache(searched)


@many
class TestSearch:
    def test_floor(self, timed: Timed, many: int) -> None:
        rows, queries, _ = searches(many)
        timed(SEARCH[many], "floor", lambda query: int((rows @ query).argmax()), cycle(queries))

    def test_routewright(self, timed: Timed, report: Report, many: int) -> None:
        rows, queries, nearest = searches(many)
        vectors = Vectors[int](DIMENSION)
        for number, row in enumerate(rows):
            vectors.add(number, row)
        timed(SEARCH[many], "routewright", lambda query: vectors.nearest(query, 1), cycle(queries))
        found = [vectors.nearest(query, 1)[0][0] for query in queries]
        right = sum(mine == true for mine, true in zip(found, nearest, strict=True))
        report.add(RECALL[many], "routewright", Figure("%", 100 * right / len(nearest)))

    @pytest.mark.parametrize(("who", "environment"), PEERS)
    def test_peers(self, peer: Peer, report: Report, many: int, who: Who, environment: str) -> None:
        report.add(SEARCH[many], who, peer(environment, "vector_search", who, str(many), "time"))
        report.add(RECALL[many], who, peer(environment, "vector_search", who, str(many), "recall"))

    def test_gptcache(self, peer: Peer, report: Report, many: int) -> None:
        if many > 10_000:
            pytest.skip("takes minutes to fill")
        report.add(SEARCH[many], "gptcache", peer("gptcache", "gptcache_lookup", str(many)))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def filled_cache(kind: str, tmp_path: Path, effort: Effort, loop: asyncio.Runner) -> Iterator[Cache]:
    made: Cache = MemoryCache() if kind == "memory" else SqliteCache(tmp_path / "cache.db")
    for entry in entries(searches(1_000))[: 1_000 if effort.runs > 1 else 100]:
        loop.run(made.put(entry))
    yield made
    loop.run(made.aclose())


def entries(given: Searched, partition: bytes | None = b"one for all ----") -> list[CacheEntry]:
    """Answers of two kilobytes. Without a partition each is in one of its own, as conversations are."""
    now = time.time()
    return [
        CacheEntry(
            id=f"tr_{number:026}",
            account=f"account {number % 100}",
            environment="production",
            partition=partition or number.to_bytes(16, "big"),
            key=number.to_bytes(16, "little"),
            answer=CachedAnswer(f"{number} " * (2_000 // len(f"{number} ")), "stop", "vendor/model", "vendor"),
            cost_nanos=1_000_000,
            created_at=now,
            expires_at=now + 86_400.0,
            prompt=f"question {number}",
            vector=row.tobytes(),
        )
        for number, row in enumerate(given.rows)
    ]


class TestCache:
    def test_get(self, timed_async: TimedAsync, filled_cache: Cache, kind: str) -> None:
        now = time.time()
        keys = [number.to_bytes(16, "little") for number in range(1_000)]
        timed_async(GET[kind], "routewright", lambda key: filled_cache.get(key, now), cycle(keys))
        missing = [number.to_bytes(16, "little") for number in range(1_000, 2_000)]
        timed_async(MISS[kind], "routewright", lambda key: filled_cache.get(key, now), cycle(missing))

    def test_put(self, timed_async: TimedAsync, filled_cache: Cache, kind: str) -> None:
        given = entries(searches(1_000), partition=None)
        timed_async(PUT[kind], "routewright", filled_cache.put, cycle(given))

    def test_bytes(self, report: Report, loop: asyncio.Runner) -> None:
        made = MemoryCache()
        given = entries(searches(1_000), partition=None)
        for entry in given:
            loop.run(made.put(entry))
        report.add(ENTRY, "routewright", Figure("bytes", made.size_bytes / len(given)))


class TestRoute:
    @pytest.mark.parametrize("way", ROUTE)
    def test_route(self, timed_async: TimedAsync, loop: asyncio.Runner, way: str) -> None:
        router, numbers = router_over(Instant(), DropsAtOnce()), count()
        options: Any = {"off": None, "near": True}.get(way, CacheOpts(mode="exact"))
        settled = [f"How do I change the {number}th thing in my account?" for number in range(1_000)]
        if way == "near":
            for question in settled:
                loop.run(router.route(question, cache=True))

        async def route(question: str) -> object:
            return await router.route(question if way == "hit" else f"{question} {next(numbers)}", cache=options)

        timed_async(ROUTE[way], "routewright", route, cycle(settled[:1] if way == "hit" else settled))
