"""How many stored decisions a second does a simulation decide again? Once from memory, and once a million from SQLite,
with all models of the catalogue, where the health of one changes every 30 requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from routewright import Catalogue, Console, MemoryStorage, Policy, Router, SqliteStorage
from routewright._core.model_selector import ModelIndex
from routewright._core.policy import resolve, with_version
from routewright._core.routing.simulation import Simulation, decide_alone
from routewright._core.trace.decision_record import record_of
from routewright.wire import (
    SYSTEM_ACCOUNT,
    CatalogueSnapshot,
    DecisionRecord,
    HealthSnapshot,
    ModelHealth,
    PolicyVersion,
    PutSnapshot,
    PutTrace,
    Snapshot,
    SnapshotById,
)
from routewright.wire.timestamps import timestamp

from .doubles import Instant
from .measure import Effort, Figure
from .report import Question, Report

DECIDED = Question("stored decisions simulated in memory, by processor time", "50,000")
DECODED = Question("stored decisions decoded")
STORED = Question("a million traces in SQLite simulated with a draft policy", "33,333")
STORED_CPU = Question("a million traces in SQLite simulated with a draft policy, by processor time")

DRAFT = Policy(name="draft", goal="quality")


@pytest.fixture
def count(effort: Effort) -> int:
    return 20_000 if effort.runs > 1 else 500


async def recorded(count: int, catalogue: Catalogue) -> tuple[list[Any], dict[str, Snapshot]]:
    """Calls of a Router with prompts of many sizes, and the snapshots that they name."""
    chance = Random(1)
    storage = MemoryStorage(newest=count)
    snapshots: dict[str, Snapshot] = {}
    async with Router(providers=[Instant()], catalogue=catalogue, storage=storage) as router:
        answers = [await router.route("word " * chance.randrange(10, 600)) for _ in range(count)]
        await router.flush()
        calls: list[Any] = [answer._call for answer in answers]
        for name in {name for call in calls for name in call.snapshot_ids if name is not None}:
            snapshots[name] = await storage.read(SYSTEM_ACCOUNT, SnapshotById(name))
    return calls, snapshots


def simulation_over(snapshots: dict[str, Snapshot]) -> Simulation:
    models = next(snapshot.models for snapshot in snapshots.values() if isinstance(snapshot, CatalogueSnapshot))
    version = PolicyVersion("", "draft", "2026-11-30T00:00:00Z")
    return Simulation(snapshots, with_version(resolve([DRAFT], ModelIndex(models, {}))[0], version))


def records_of(bodies: Sequence[bytes]) -> list[DecisionRecord]:
    return [record_of(body) for body in bodies]


def rate(done: int, started: float) -> Figure:
    return Figure("per s", done / (time.process_time() - started))


class TestSimulate:
    def test_floor(self, loop: asyncio.Runner, report: Report, count: int) -> None:
        """The decision alone, of every request by itself."""
        calls, snapshots = loop.run(recorded(count, Catalogue(())))
        simulation = simulation_over(snapshots)
        records = records_of([msgpack.encode(call.line) for call in calls])
        simulation.add("default", records[:1])
        boards = [moment.after for moment in simulation._latest.values() if moment is not None]
        started = time.process_time()
        for record in records:
            assert record.decision_input is not None
            decide_alone(record.decision_input, boards[0])
        report.add(DECIDED, "floor", rate(count, started))

    def test_memory(self, loop: asyncio.Runner, report: Report, count: int) -> None:
        calls, snapshots = loop.run(recorded(count, Catalogue(())))
        bodies = [msgpack.encode(call.line) for call in calls]
        started = time.process_time()
        records = records_of(bodies)
        report.add(DECODED, "routewright", rate(count, started))
        simulation = simulation_over(snapshots)
        started = time.process_time()
        simulation.add("default", records)
        report.add(DECIDED, "routewright", rate(count, started))
        assert simulation.requests == count

    def test_sqlite(self, loop: asyncio.Runner, report: Report, count: int, tmp_path: Path) -> None:
        calls, snapshots = loop.run(recorded(min(count, 2_000), Catalogue()))
        count *= 50
        storage = SqliteStorage(tmp_path / "traces.db")
        loop.run(fill(storage, calls, snapshots, count))
        started = time.process_time()
        began = time.perf_counter()
        result = loop.run(Console(storage).simulate(DRAFT))
        report.add(STORED, "routewright", Figure("per s", count / (time.perf_counter() - began)))
        report.add(STORED_CPU, "routewright", rate(count, started))
        assert result.requests == count
        loop.run(storage.aclose())


async def fill(storage: SqliteStorage, calls: Sequence[Any], snapshots: dict[str, Snapshot], count: int) -> None:
    """So many traces of the last day, made of fewer calls."""
    await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot) for snapshot in snapshots.values()])
    now = time.time()
    chance = Random(2)
    catalogue = next(snapshot for snapshot in snapshots.values() if isinstance(snapshot, CatalogueSnapshot))
    ids = [model.id for model in catalogue.models if model.availability.status == "available"]
    health = HealthSnapshot("", {})
    batch: list[PutTrace] = []
    for number in range(count):
        if number % 30 == 0:
            learned = ModelHealth(stability=chance.randrange(880, 990), ttft_ms=chance.randrange(200, 900))
            health = HealthSnapshot(f"hea_{number:032}", {**health.models, chance.choice(ids): learned})
            await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(health)])
        call = copy(calls[number % len(calls)])
        call.id = f"tr_{number:026}"
        call.created_text = timestamp(now - 80_000 + 79_000 * number / count)
        call.own_input = replace(call.decision_input, health=health.id)
        batch.append(PutTrace(call))
        if len(batch) == 256 or number == count - 1:
            await storage.apply("default", batch)
            batch = []
