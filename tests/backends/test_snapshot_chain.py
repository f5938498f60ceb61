"""Health snapshots stored in SQLite as differences from the previous one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from routewright import SqliteStorage
from routewright.errors import PreconditionFailed
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    DeleteTraces,
    HealthSnapshot,
    ModelHealth,
    PutSnapshot,
    PutTrace,
    Snapshot,
    SnapshotById,
)
from tests.contracts.storage.samples import DAY_S, FOR_EVER, NOW, decision_input, make_trace

pytestmark = pytest.mark.anyio


def health_chain(many: int) -> list[HealthSnapshot]:
    """Health as it changes: a model or two at a time, now and then one that is new or gone, and once all."""
    rng = Random(9)
    models = {f"a/{number}": ModelHealth(stability=number) for number in range(30)}
    chain = []
    for number in range(many):
        name = rng.choice([*models])
        models = models | {name: ModelHealth(stability=rng.randrange(1_000), ttft_ms=rng.choice((None, 5)))}
        if number % 7 == 3:
            models = {**models, f"new/{number}": ModelHealth()}
        if number % 11 == 5:
            models = {other: health for other, health in models.items() if other != name}
        if number == many // 2:
            models = dict.fromkeys(models, ModelHealth(open=True))
        chain.append(HealthSnapshot(f"hea_{number}", models))
    return chain


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    storage = SqliteStorage(tmp_path / "traces.db", clock=FakeClock())
    yield storage
    await storage.aclose()


@pytest.mark.parametrize("at_once", [1, 7, 100])
async def test_every_snapshot_of_a_long_chain_of_changes_is_restored(storage: Storage, at_once: int) -> None:
    chain = health_chain(100)
    for place in range(0, len(chain), at_once):
        await put(storage, *chain[place : place + at_once])
        await put(storage, chain[place // 2])  # again one of before
    for snapshot in Random(1).sample(chain, len(chain)):
        assert await read(storage, snapshot.id) == snapshot


async def test_no_snapshot_is_based_on_one_of_a_failed_batch(storage: Storage) -> None:
    chain = health_chain(12)
    for before, failing, after in zip(chain[::3], chain[1::3], chain[2::3], strict=True):
        await put(storage, before)
        with pytest.raises(PreconditionFailed):
            await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(failing), PutSnapshot(before, expect="absent")])
        assert await read(storage, failing.id) is None
        await put(storage, after)
        assert await read(storage, after.id) == after


async def test_a_sweep_keeps_the_chain_of_named_snapshots(storage: Storage) -> None:
    await storage.apply(SYSTEM_ACCOUNT, [FOR_EVER])
    chain = health_chain(70)
    named = [chain[number] for number in (10, 11, 33, 69)]
    await put(storage, *chain)
    inputs = [decision_input(health=snapshot.id) for snapshot in named]
    traces = [make_trace(number, decision_input=each) for number, each in enumerate(inputs)]
    await storage.apply("default", [PutTrace(trace) for trace in traces])
    await storage.sweep(NOW + 30 * DAY_S)
    for snapshot in named:
        assert await read(storage, snapshot.id) == snapshot
    assert await read(storage, chain[-2].id) in (None, chain[-2])  # others may depend on it
    await storage.apply("default", [DeleteTraces()])
    await storage.sweep(NOW + 60 * DAY_S)
    assert [await read(storage, snapshot.id) for snapshot in chain] == [None] * len(chain)


async def put(storage: Storage, *snapshots: Snapshot) -> None:
    await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot, at=NOW) for snapshot in snapshots])


async def read(storage: Storage, snapshot_id: str) -> Snapshot | None:
    return await storage.read(SYSTEM_ACCOUNT, SnapshotById(snapshot_id))
