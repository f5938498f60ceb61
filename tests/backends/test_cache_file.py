"""Processes share the file of ``SqliteCache`` and its answers outlive them; damage is a miss."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from routewright.backends.cache.search import Vectors
from routewright.backends.cache.sqlite import SqliteCache
from routewright.errors import StorageCorrupt, ValidationFailed
from routewright.wire import CachedAnswer, CacheEntry, CacheMatch, CacheSelection, Observation
from tests.contracts.cache import NORTH, PARTITION, make_entry
from tests.programs import Program

from .shared_caches import ALL, SharedContract, get, near, put

pytestmark = pytest.mark.anyio
WRITES = """
import os, sys, time, anyio
from routewright.backends.cache.sqlite import SqliteCache
from tests.contracts.cache import make_entry
from routewright.wire import CachedAnswer

async def main(path, first):
    cache, number = SqliteCache(path, max_entries=200), int(first)
    while True:
        answer = CachedAnswer(f"{number} " * (number % 300), "stop", "m", "p")
        await cache.put(make_entry(number, time.time(), (0.0, 1.0), answer=answer))
        os.write(1, f"{number}\\n".encode())
        number += 1

anyio.run(main, *sys.argv[1:])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture
async def other(path: Path) -> AsyncIterator[SqliteCache]:
    """The cache of another process."""
    cache = SqliteCache(path)
    yield cache
    await cache.aclose()


@pytest.fixture
async def cache(path: Path) -> AsyncIterator[SqliteCache]:
    cache = SqliteCache(path)
    yield cache
    await cache.aclose()


class TestSharedContract(SharedContract):
    def find_and_put(self, cache: Any, entry: CacheEntry) -> Sequence[CacheMatch]:
        found: Sequence[CacheMatch] = cache._searches._run(partial(cache._nearest, PARTITION, NORTH, time.time(), 5))
        cache._writes._run(partial(cache._put, entry))
        return found


async def test_bounds_hold_for_all_processes_together(path: Path) -> None:
    caches = [SqliteCache(path, max_entries=10, max_bytes=50_000) for _ in range(2)]
    for number in range(40):
        answer = CachedAnswer("x" * 400 * (number % 20), "stop", "m", "p")
        await caches[number % 2].put(make_entry(number, time.time(), NORTH, answer=answer))
        stats = await caches[0].stats(None, time.time())
        assert stats.entries <= 10
        assert stats.size_bytes <= 50_000
    for cache in caches:
        await cache.aclose()


class Killed:
    """A process that writes until it is killed."""

    def __init__(self, path: Path, first: int, after_s: float) -> None:
        self.last = first
        with Program("-c", WRITES, str(path), str(first)) as child:
            self.last = int(child.heard())
            time.sleep(after_s)
            child.kill()
            for line in child.stdout:
                self.last = int(line)


async def test_a_process_killed_at_any_moment_leaves_a_file_that_can_be_read(path: Path, full: bool) -> None:
    chance, said = Random(7), 0
    for _ in range(200 if full else 3):
        said = Killed(path, said + 1, chance.random() * 0.2).last
        cache = SqliteCache(path)
        last = await get(cache, said)
        assert last is not None
        assert last.answer.output == f"{said} " * (said % 300)
        entries = (await cache.stats(None, time.time())).entries
        assert min(said, 100) <= entries <= 200
        assert len(await near(cache)) == min(entries, 100)
        await cache.aclose()
        assert _ask(path, "PRAGMA integrity_check") == ("ok",)
        assert _ask(path, "SELECT * FROM totals") == _ask(path, "SELECT count(*), sum(size) FROM entries")


def _ask(path: Path, sql: str) -> Any:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(sql).fetchone()
        connection.commit()
    return found


def delete(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def content_of(*files: Path) -> bytes:
    return b"".join(file.read_bytes() for file in files)


def files_of(path: Path) -> list[Path]:
    return list(path.parent.iterdir())


# Damage


@pytest.mark.parametrize("damage", ["garbage", "zeros", "torn header"])
async def test_a_damaged_file_is_named_and_the_cache_works_after_its_deletion(path: Path, damage: str) -> None:
    cache = SqliteCache(path)
    for number in range(50):
        await put(cache, number)
    await cache.aclose()
    content = content_of(path)
    changed = {
        "garbage": b"\x07" * len(content),
        "zeros": content[:4096] + bytes(len(content) - 4096),
        "torn header": b"\x07" * 20 + content[20:],
    }
    await anyio.Path(path).write_bytes(changed[damage])
    with pytest.raises(StorageCorrupt, match=r"cache\.db is damaged.* delete it"):
        await near(cache)
    delete(path)
    await put(cache, "new")
    assert [await get(cache, 3), await near(cache)] == [None, ["tr_new"]]
    await cache.aclose()


async def test_all_processes_switch_to_a_new_file(path: Path) -> None:
    caches = [SqliteCache(path), SqliteCache(path)]
    for cache in caches:
        await put(cache, "old")
        assert len(await near(cache)) == 1
    delete(path)
    for cache in caches:
        assert await get(cache, "old") is None
    await put(caches[0], "new")
    assert [await near(cache) for cache in caches] == [["tr_new"]] * 2
    assert await caches[0].remove(ALL) == 1
    assert [await near(cache) for cache in caches] == [[]] * 2
    for cache in caches:
        await cache.aclose()


async def test_an_unreadable_row_is_a_miss(cache: SqliteCache, path: Path) -> None:
    await put(cache, "a")
    await put(cache, "b")
    _ask(path, "UPDATE entries SET body = zeroblob(8) WHERE id = 'tr_a'")
    assert await near(cache) == ["tr_b"]
    assert await get(cache, "a") is None


async def test_the_file_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    _ask(path, "CREATE TABLE mine (id)")
    content = content_of(path)
    cache = SqliteCache(path)
    with pytest.raises(StorageCorrupt, match="another program"):
        await get(cache, "a")
    await cache.aclose()
    assert content_of(path) == content


async def test_a_cache_of_another_version_starts_empty(cache: SqliteCache, path: Path) -> None:
    await put(cache, "a")
    await cache.aclose()
    _ask(path, "ALTER TABLE entries RENAME COLUMN body TO text")
    _ask(path, "PRAGMA user_version = 99")
    assert await get(cache, "a") is None
    await put(cache, "b")
    assert await get(cache, "b") is not None


def test_a_missing_folder_is_refused_by_the_constructor(tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed, match="nowhere"):
        SqliteCache(tmp_path / "nowhere" / "cache.db")


async def test_observations_start_over_with_a_new_file(cache: SqliteCache, path: Path) -> None:
    seen = Observation((0.5,), True, 1.0)
    _, end = await cache.learned("space", [seen] * 5, 0)
    delete(path)
    assert (await cache.learned("space", [seen], 0))[0] == []
    assert list((await cache.learned("space", [], end))[0]) == [seen]


# Embeddings in memory


async def test_a_new_entry_does_not_reload_all_embeddings(path: Path) -> None:
    before, cache = SqliteCache(path), SqliteCache(path)
    await put(before, "a")
    await near(cache)
    mirrors = list(cache._mirrors._by_partition.values())
    await put(cache, "b")
    assert await near(cache) == ["tr_a", "tr_b"]
    assert [mirror is mirrors[0] for mirror in cache._mirrors._by_partition.values()] == [True]
    await before.aclose()
    await cache.aclose()


# What is removed


async def test_removed_entries_are_erased_from_the_disk(cache: SqliteCache, path: Path) -> None:
    canary = "canary-in-the-coal-mine"
    await cache.put(make_entry("a", time.time(), NORTH, prompt=canary, answer=CachedAnswer(canary, "stop", "m", "p")))
    await put(cache, "b")
    assert canary.encode() in content_of(*files_of(path))
    assert await cache.remove(CacheSelection(account="acme", id="tr_a")) == 1
    assert canary.encode() not in content_of(*files_of(path))


async def test_the_entries_that_expire_first_are_evicted(path: Path) -> None:
    cache, now = SqliteCache(path, max_entries=2), time.time()
    for name, seconds in (("long", 90.0), ("short", 30.0), ("new", 10.0)):
        await cache.put(make_entry(name, now, expires_at=now + seconds))
    assert [await get(cache, name) is not None for name in ("long", "short", "new")] == [True, False, True]
    await cache.aclose()


async def test_the_file_is_readable_only_by_its_owner(cache: SqliteCache, path: Path) -> None:
    await put(cache, "a")
    assert {file.stat().st_mode & 0o077 for file in files_of(path)} == {0}


async def test_the_cache_is_starting_while_embeddings_are_read(
    cache: SqliteCache, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        await put(cache, name)
    reading = list[bool]()

    class Watched(Vectors[int]):
        def add(self, key: int, vector: Any) -> None:
            reading.append(late.is_starting)
            super().add(key, vector)

    monkeypatch.setattr("routewright.backends.cache.search.Vectors", Watched)
    late = SqliteCache(path)
    assert await near(late) == ["tr_a", "tr_b", "tr_c"]
    assert (reading, late.is_starting) == ([True] * 3, False)
    late._mirrors.is_starting = True  # another partition is being read
    assert await near(late) == ["tr_a", "tr_b", "tr_c"]
    await late.aclose()
