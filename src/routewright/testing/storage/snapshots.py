"""Snapshots, which decisions are made from: they come back as they were, and stay while a trace names them."""

from __future__ import annotations

from random import Random

import pytest

from routewright.errors import PreconditionFailed
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    CatalogueSnapshot,
    DeleteTraces,
    HealthSnapshot,
    Model,
    ModelHealth,
    Policy,
    PolicySnapshot,
    Pricing,
    PutSnapshot,
    PutTrace,
    SetRetention,
    Snapshot,
    SnapshotById,
)

from .samples import decision_input, make_trace
from .suite import Suite

NOW = 1_795_478_400.0
HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
EACH: tuple[Snapshot, ...] = (
    CatalogueSnapshot("cat_1", "2026-11-21", (Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0)),)),
    PolicySnapshot("pos_1", "one@2026-11-21", Policy(name="one", models=["a/one"]), chain=("a/one",)),
    HealthSnapshot("hea_1", {"a/one": ModelHealth(stability=1, open=True, probe_at_ms=1)}),
)


def kind(snapshot: Snapshot) -> str:
    """The name of a test's parameter."""
    return type(snapshot).__name__


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


class Snapshots(Suite):
    """Snapshots."""

    @pytest.mark.parametrize("snapshot", EACH, ids=kind)
    async def test_a_snapshot_of_each_kind_comes_back_as_it_was(self, storage: Storage, snapshot: Snapshot) -> None:
        await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot)])
        assert await _read(storage, snapshot.id) == snapshot
        assert await storage.read("default", SnapshotById(snapshot.id)) is None

    @pytest.mark.parametrize("snapshot", EACH, ids=kind)
    async def test_keeping_a_snapshot_twice_is_keeping_it_once(self, storage: Storage, snapshot: Snapshot) -> None:
        results = await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot), PutSnapshot(snapshot)])
        results += await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot, at=NOW)])
        assert [result.created for result in results] == [True, False, False]
        assert await _read(storage, snapshot.id) == snapshot

    @pytest.mark.parametrize("at_once", [1, 7, 100])
    async def test_every_snapshot_of_a_long_chain_of_small_changes_comes_back(
        self, storage: Storage, at_once: int
    ) -> None:
        chain = health_chain(100)
        for place in range(0, len(chain), at_once):
            await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(each) for each in chain[place : place + at_once]])
            await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(chain[place // 2])])  # again one of before
        for snapshot in Random(1).sample(chain, len(chain)):
            assert await _read(storage, snapshot.id) == snapshot

    async def test_snapshots_of_a_batch_that_failed_are_not_there_and_nothing_leans_on_them(
        self, storage: Storage
    ) -> None:
        chain = health_chain(12)
        for before, failing, after in zip(chain[::3], chain[1::3], chain[2::3], strict=True):
            await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(before)])
            with pytest.raises(PreconditionFailed):
                await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(failing), PutSnapshot(before, expect="absent")])
            assert await _read(storage, failing.id) is None
            await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(after)])
            assert await _read(storage, after.id) == after

    @pytest.mark.parametrize("snapshot", EACH, ids=kind)
    async def test_a_snapshot_stays_while_a_trace_names_it_and_goes_some_time_after(
        self, storage: Storage, snapshot: Snapshot
    ) -> None:
        await _for_ever(storage)
        given = decision_input(**{_field(snapshot): snapshot.id})
        traces = [make_trace(number, decision_input=given) for number in (1, 2)]
        await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot, at=NOW)])
        await storage.apply("one", [PutTrace(traces[0])])
        await storage.apply("two", [PutTrace(traces[1]), PutTrace(traces[1])])
        await storage.sweep(NOW + 30 * DAY_S)
        assert await _read(storage, snapshot.id) == snapshot
        await storage.apply("one", [DeleteTraces(id=traces[0].id)])
        await storage.sweep(NOW + 31 * DAY_S)
        assert await _read(storage, snapshot.id) == snapshot
        await storage.apply("two", [PutTrace(make_trace(2, decision_input=None))])
        await storage.sweep(NOW + 60 * DAY_S)
        assert await _read(storage, snapshot.id) is None

    @pytest.mark.parametrize("snapshot", EACH, ids=kind)
    async def test_a_snapshot_stays_a_day_for_the_trace_that_is_on_its_way(
        self, storage: Storage, snapshot: Snapshot
    ) -> None:
        await _for_ever(storage)
        trace = make_trace(1, decision_input=decision_input(**{_field(snapshot): snapshot.id}))
        await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot, at=NOW)])
        await storage.sweep(NOW + HOUR_S)
        await storage.apply("default", [PutTrace(trace)])
        await storage.apply("default", [DeleteTraces(id=trace.id)])
        await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot, at=NOW + DAY_S)])
        await storage.sweep(NOW + DAY_S + HOUR_S)
        assert await _read(storage, snapshot.id) == snapshot
        await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot, at=NOW)])  # from a process whose clock is late
        await storage.sweep(NOW + 2 * DAY_S - 1.0)
        assert await _read(storage, snapshot.id) == snapshot
        assert await storage.sweep(NOW + 3 * DAY_S) == 1
        assert await _read(storage, snapshot.id) is None

    async def test_of_a_chain_those_stay_whole_that_a_trace_names(self, storage: Storage) -> None:
        await _for_ever(storage)
        chain = health_chain(70)
        named = [chain[number] for number in (10, 11, 33, 69)]
        await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot, at=NOW) for snapshot in chain])
        inputs = [decision_input(health=snapshot.id) for snapshot in named]
        await storage.apply(
            "default", [PutTrace(make_trace(number, decision_input=each)) for number, each in enumerate(inputs)]
        )
        await storage.sweep(NOW + 30 * DAY_S)
        for snapshot in named:
            assert await _read(storage, snapshot.id) == snapshot
        assert await _read(storage, chain[-2].id) in (None, chain[-2])  # others may lean on it
        await storage.apply("default", [DeleteTraces()])
        await storage.sweep(NOW + 60 * DAY_S)
        assert [await _read(storage, snapshot.id) for snapshot in chain] == [None] * len(chain)

    @pytest.mark.parametrize("snapshot", EACH, ids=kind)
    async def test_a_snapshot_may_come_after_the_trace_that_names_it(
        self, storage: Storage, snapshot: Snapshot
    ) -> None:
        await _for_ever(storage)
        trace = make_trace(1, decision_input=decision_input(**{_field(snapshot): snapshot.id}))
        await storage.apply("default", [PutTrace(trace)])
        await storage.sweep(NOW)
        assert await _read(storage, snapshot.id) is None
        await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot, at=NOW)])
        await storage.sweep(NOW + 30 * DAY_S)
        assert await _read(storage, snapshot.id) == snapshot


def _field(snapshot: Snapshot) -> str:
    """The field of ``DecisionInput`` that names it."""
    return kind(snapshot).removesuffix("Snapshot").lower()


async def _for_ever(storage: Storage) -> None:
    await storage.apply(SYSTEM_ACCOUNT, [SetRetention()])


async def _read(storage: Storage, snapshot_id: str) -> Snapshot | None:
    return await storage.read(SYSTEM_ACCOUNT, SnapshotById(snapshot_id))
