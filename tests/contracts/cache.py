"""Contract suite of caches: inherit ``CacheContract``, override ``make``, and run pytest."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import AsyncIterator, Sequence
from math import inf, nan

import pytest
from msgspec import json
from msgspec.structs import replace

from routewright.protocols import Cache
from routewright.testing import FakeClock
from routewright.wire import CachedAnswer, CacheEntry, CacheSelection, FunctionCall, ToolCall

PARTITION, OTHER = b"partition-------", b"other-partition-"
EAST, NORTH, NORTH_EAST, MOSTLY_NORTH = (1.0, 0.0), (0.0, 1.0), (0.6, 0.8), (0.28, 0.96)
TTL_S = 60.0


def key_of(name: object) -> bytes:
    """A key for a name."""
    return hashlib.blake2b(str(name).encode(), digest_size=16).digest()


def make_entry(name: object, now: float, vector: Sequence[float] | None = None, **changes: object) -> CacheEntry:
    """An entry of the account ``acme`` that lasts a minute."""
    entry = CacheEntry(
        id=f"tr_{name}", account="acme", environment="production", partition=PARTITION, key=key_of(name),
        answer=CachedAnswer(f"answer {name}", "stop", "test/large", "test"), cost_nanos=1_000, created_at=now,
        expires_at=now + TTL_S, prompt=None if vector is None else f"question {name}",
        vector=None if vector is None else struct.pack(f"<{len(vector)}f", *vector),
    )  # fmt: skip
    return replace(entry, **changes)


class Subject:
    """The cache under test, with its clock."""

    def __init__(self, cache: Cache, clock: FakeClock) -> None:
        self.cache = cache
        self.clock = clock

    @property
    def now(self) -> float:
        """Unix seconds."""
        return self.clock.time()

    async def put(self, name: object, vector: tuple[float, ...] | None = None, **changes: object) -> CacheEntry:
        """Keep an entry, and let a second pass, so that ages differ."""
        entry = make_entry(name, self.now, vector, **changes)
        await self.cache.put(entry)
        await self.clock.advance(1.0)
        return entry

    async def get(self, name: object) -> CacheEntry | None:
        """The entry of a name."""
        found = await self.cache.get(key_of(name), self.now)
        await self.clock.advance(1.0)
        return found

    async def near(self, vector: tuple[float, ...], limit: int = 10, partition: bytes = PARTITION) -> list[str]:
        """Names of the nearest entries."""
        found = await self.cache.nearest(partition, vector, self.now, limit)
        await self.clock.advance(1.0)
        return [match.entry.id.removeprefix("tr_") for match in found]

    async def kept(self) -> int:
        """The number of entries."""
        return (await self.cache.stats(None, self.now)).entries


@pytest.mark.anyio
class CacheContract:
    """Inherit it and override ``make``. Each test makes a cache, uses it in one event loop, and closes it.

    class TestMyCache(CacheContract):
        def make(self, clock, max_bytes, max_entries):
            return MyCache(max_bytes=max_bytes, max_entries=max_entries, clock=clock)

    Time is that of the clock passed to ``make``. The tests use anyio's pytest plug-in, on asyncio, and on trio if it is
    installed.
    """

    def make(self, clock: FakeClock, max_bytes: int, max_entries: int) -> Cache:
        """Make an empty cache with these bounds, which uses ``clock``."""
        raise NotImplementedError("override make(clock, max_bytes, max_entries) to return an empty cache")

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        """An empty cache of four entries and 100 kB, closed afterwards."""
        clock = FakeClock(autojump=False)
        cache = self.make(clock, 100_000, 4)
        yield Subject(cache, clock)
        await cache.aclose()
        await cache.aclose()

    # Exact look-up

    async def test_an_entry_comes_back_unchanged_without_its_vector(self, subject: Subject) -> None:
        call = ToolCall(id="call_1", function=FunctionCall(name="look", arguments='{"at": 1}'))
        answer = CachedAnswer("", "tool_calls", "test/large", "test", [call])
        entry = await subject.put("a", NORTH_EAST, answer=answer, namespace="docs", metadata=b'{"team":"x"}')
        plain = await subject.put("b")
        assert [await subject.get("a"), await subject.get("b"), await subject.get("c")] == [
            replace(entry, vector=None),
            plain,
            None,
        ]

    async def test_a_new_answer_under_a_key_replaces_the_old_one(self, subject: Subject) -> None:
        await subject.put("a", NORTH)
        await subject.put("a", EAST, id="tr_new")
        found = await subject.get("a")
        assert found is not None
        assert (found.id, await subject.near(NORTH), await subject.kept()) == ("tr_new", ["new"], 1)

    async def test_an_expired_entry_is_never_returned(self, subject: Subject) -> None:
        entry = await subject.put("a", NORTH)
        await subject.clock.advance(entry.expires_at - subject.now)
        assert (await subject.get("a"), await subject.near(NORTH), await subject.kept()) == (None, [], 0)
        await subject.put("b", expires_at=subject.now)
        assert (await subject.get("b"), await subject.kept()) == (None, 0)

    # Similarity search, within one partition

    async def test_the_most_similar_come_first_with_their_similarity(self, subject: Subject) -> None:
        for name, vector in {"east": EAST, "north": NORTH, "mostly north": MOSTLY_NORTH}.items():
            await subject.put(name, vector)
        found = await subject.cache.nearest(PARTITION, NORTH_EAST, subject.now, 2)
        assert [match.entry.id for match in found] == ["tr_mostly north", "tr_north"]
        assert [match.similarity for match in found] == pytest.approx([0.936, 0.8], abs=1e-6)
        assert found[0].entry == await subject.get("mostly north")

    async def test_only_vectors_of_the_same_partition_and_length_are_near(self, subject: Subject) -> None:
        await subject.put("elsewhere", NORTH, partition=OTHER)
        await subject.put("exact")
        await subject.put("longer", (0.0, 1.0, 0.0), partition=OTHER)
        assert await subject.near(NORTH) == []
        assert await subject.near(NORTH, partition=OTHER) == ["elsewhere"]
        assert await subject.near((0.0, 1.0, 0.0), partition=OTHER) in ([], ["longer"])

    @pytest.mark.parametrize("vector", [(nan, nan), (0.0, 0.0), (inf, 1.0)])
    async def test_a_vector_without_direction_is_never_near(
        self, subject: Subject, vector: tuple[float, float]
    ) -> None:
        entry = await subject.put("odd", vector)
        await subject.put("north", NORTH)
        assert await subject.near(NORTH, limit=1) == ["north"]
        assert await subject.get("odd") == replace(entry, vector=None)

    # Eviction

    async def test_the_limit_of_entries_holds_and_the_newest_is_kept(self, subject: Subject) -> None:
        for name in "abcdef":
            await subject.put(name, NORTH)
            assert await subject.get(name) is not None
            assert await subject.kept() <= 4

    async def test_the_limit_of_bytes_holds_after_each_put(self, subject: Subject) -> None:
        for number in range(20):
            await subject.put(number, answer=CachedAnswer("x" * 4_000 * (number % 9), "stop", "m", "p"))
            size = (await subject.cache.stats(None, subject.now)).size_bytes
            assert 4_000 * (number % 9) < size <= 100_000
        await subject.put("huge", answer=CachedAnswer("x" * 200_000, "stop", "m", "p"))
        assert await subject.get("huge") is None
        assert await subject.kept() > 0

    # Removal

    @pytest.mark.parametrize(
        ("narrowed", "left"),
        [
            (CacheSelection(account="acme"), {"foreign"}),
            (CacheSelection(account="acme", environment="sandbox"), {"a", "b", "foreign"}),
            (CacheSelection(account="acme", key=key_of("a")), {"b", "sandbox", "foreign"}),
            (CacheSelection(account="acme", key=key_of("foreign")), {"a", "b", "sandbox", "foreign"}),
            (CacheSelection(account="acme", partition=OTHER), {"a", "sandbox", "foreign"}),
            (CacheSelection(account="acme", id="tr_b"), {"a", "sandbox", "foreign"}),
            (CacheSelection(account="acme", namespace="docs"), {"b", "sandbox", "foreign"}),
            (CacheSelection(account="acme", metadata=("team", "x")), {"b", "sandbox", "foreign"}),
            (CacheSelection(account="acme", metadata=("paid", True)), {"a", "sandbox", "foreign"}),
            (CacheSelection(account="acme", metadata=("paid", 1)), {"b", "sandbox", "foreign"}),
            (CacheSelection(account="acme", metadata=("size", 1.5)), {"a", "sandbox", "foreign"}),
            (CacheSelection(account="acme", created_before=FakeClock().time() + 1.0), {"b", "sandbox", "foreign"}),
            (CacheSelection(account="nobody"), {"a", "b", "sandbox", "foreign"}),
        ],
    )
    async def test_exactly_the_selected_entries_are_removed(
        self, subject: Subject, narrowed: CacheSelection, left: set[str]
    ) -> None:
        tags = json.encode({"team": "x", "paid": 1})
        await subject.put("a", NORTH, namespace="docs", metadata=tags)
        await subject.put("b", EAST, partition=OTHER, metadata=json.encode({"paid": True, "size": 1.5}))
        await subject.put("sandbox", environment="sandbox", metadata=b"[1]")
        await subject.put("foreign", NORTH, account="other", namespace="docs", metadata=tags)
        assert await subject.cache.remove(narrowed) == 4 - len(left)
        names = ("a", "b", "sandbox", "foreign")
        assert {name for name in names if await subject.get(name) is not None} == left
        assert {*await subject.near(NORTH), *await subject.near(EAST, partition=OTHER)} == left - {"sandbox"}
        assert await subject.cache.remove(narrowed) == 0

    async def test_entries_are_counted_by_account(self, subject: Subject) -> None:
        first = await subject.put("a", NORTH)
        await subject.put("b", partition=OTHER)
        await subject.put("c", account="other")
        mine, all_of_it = [await subject.cache.stats(name, subject.now) for name in ("acme", None)]
        assert (mine.entries, mine.partitions, mine.oldest_at, mine.saves_nanos) == (2, 2, first.created_at, 2_000)
        assert (all_of_it.entries, all_of_it.partitions, all_of_it.saves_nanos) == (3, 2, 3_000)
        assert 0 < mine.size_bytes < all_of_it.size_bytes
        assert (await subject.cache.stats("nobody", subject.now)).oldest_at is None
