"""How many traces a second does the SQLite storage take, in batches as a Router writes them and one by one?"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest

from routewright import MemoryStorage, SqliteStorage
from routewright.protocols import Storage
from routewright.wire import Durability, PutTrace

from .doubles import Instant, router_over
from .measure import Effort, Figure
from .report import Question, Report
from .stores import BATCH, batches

CALLS = Question("traces of a Router's calls, written to SQLite in batches of 256", "40,000")
BATCHED = Question("traces written in batches of 256, SQLite")
KEPT = Question("traces written in batches of 256, memory")
ALONE = Question("one trace committed, buffered")
SYNCED = Question("one trace committed, synced")

Write = Callable[[list[PutTrace]], None]


@pytest.fixture
def count(effort: Effort) -> int:
    return 20_480 if effort.runs > 1 else 512


def rate(write: Write, count: int) -> Figure:
    return rate_of(write, list(batches(count)))


def rate_of(write: Write, made: list[list[PutTrace]]) -> Figure:
    """Traces a second, the median over the tenths of a run."""
    tenth = max(1, len(made) // 10)
    rates = []
    for place in range(0, len(made), tenth):
        part = made[place : place + tenth]
        started = time.perf_counter()
        for batch in part:
            write(batch)
        rates.append(sum(map(len, part)) / (time.perf_counter() - started))
    return Figure("per s", median(rates))


def floor_of(path: Path) -> Iterator[Write]:
    """SQLite alone: a row of JSON with one index by id and one by time."""
    connection = sqlite3.connect(path, isolation_level=None)
    for setting in ("page_size = 8192", "journal_mode = WAL", "synchronous = NORMAL", "wal_autocheckpoint = 2000"):
        connection.execute(f"PRAGMA {setting}")
    connection.execute("CREATE TABLE trace (n INTEGER PRIMARY KEY, account TEXT, created_at TEXT, id TEXT, body BLOB)")
    connection.execute("CREATE UNIQUE INDEX by_id ON trace (account, id)")
    connection.execute("CREATE INDEX by_time ON trace (account, created_at, id)")
    encode = msgspec.json.Encoder().encode

    def write(batch: list[PutTrace]) -> None:
        rows = [("default", put.trace.created_at, put.trace.id, encode(put.trace)) for put in batch]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO trace (account, created_at, id, body) VALUES (?, ?, ?, ?)", rows)
        connection.execute("COMMIT")

    yield write
    connection.close()


async def calls_of_a_router(count: int) -> list[list[PutTrace]]:
    """Calls without limits, in batches as the Router hands them over."""
    async with router_over(Instant(), MemoryStorage(newest=1)) as router:
        calls: list[Any] = [(await router.route("Why is the sky blue?"))._call for _ in range(count)]
    puts = [PutTrace(call, rows=tuple(call.rows)) for call in calls]
    return [puts[place : place + BATCH] for place in range(0, count, BATCH)]


def writer(loop: asyncio.Runner, storage: Storage) -> Write:
    def write(batch: list[PutTrace]) -> None:
        loop.run(storage.apply("default", batch))

    return write


class TestBatches:
    def test_floor(self, report: Report, count: int, tmp_path: Path) -> None:
        for write in floor_of(tmp_path / "floor.db"):
            floor = rate(write, count)
            report.add(BATCHED, "floor", floor)
            report.add(CALLS, "floor", floor)

    def test_sqlite(self, loop: asyncio.Runner, report: Report, count: int, tmp_path: Path) -> None:
        storage = SqliteStorage(tmp_path / "traces.db")
        report.add(BATCHED, "routewright", rate(writer(loop, storage), count))
        loop.run(storage.aclose())

    def test_calls(self, loop: asyncio.Runner, report: Report, count: int, tmp_path: Path) -> None:
        storage, made = SqliteStorage(tmp_path / "traces.db"), loop.run(calls_of_a_router(count))
        report.add(CALLS, "routewright", rate_of(writer(loop, storage), made))
        loop.run(storage.aclose())

    def test_memory(self, loop: asyncio.Runner, report: Report, count: int) -> None:
        report.add(KEPT, "routewright", rate(writer(loop, MemoryStorage()), count))


@pytest.mark.parametrize(("question", "durability"), [(ALONE, "buffered"), (SYNCED, "committed")])
class TestOneByOne:
    def test_sqlite(
        self,
        loop: asyncio.Runner,
        report: Report,
        effort: Effort,
        tmp_path: Path,
        question: Question,
        durability: Durability,
    ) -> None:
        storage = SqliteStorage(tmp_path / "traces.db")
        calls = 1_000 if effort.runs > 1 else 5
        puts = [put for batch in batches(calls) for put in batch]
        times = []

        async def write() -> None:
            for put in puts:
                alone = PutTrace(put.trace, durability=durability)
                started = time.perf_counter()
                await storage.apply("default", [alone])
                times.append((time.perf_counter() - started) * 1e6)
            await storage.aclose()

        loop.run(write())
        times.sort()
        report.add(question, "routewright", Figure("µs", median(times), times[len(times) * 99 // 100]))


assert BATCH == 256, "the questions say so"
