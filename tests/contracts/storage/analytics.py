"""Contract of roll-ups, which are updated with each trace, and of the snapshots that decisions name."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    CacheSpan,
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
    RollupKeys,
    Snapshot,
    SnapshotById,
    SnapshotsById,
    Span,
    Term,
    Tokens,
    TraceItems,
    UsageCounts,
    Written,
)

from .samples import (
    DAY_S,
    FOR_EVER,
    HOUR_S,
    NOW,
    ODD_TEXTS,
    ROLLUP_KEYS,
    all_counts,
    all_items,
    answer,
    answers,
    counted_anew,
    decision_input,
    expected_answers,
    make_trace,
    model_span,
    random_trace,
)
from .traces import Suite

WINDOWS = (
    ("2026-11-19", "2026-11-21"),
    ("2026-11-20", "2026-11-20"),
    ("2026-11-20", "2026-11-30"),
    ("2026-11-01", "2026-11-19"),
    ("2026-11-22", "2026-11-23"),
    ("2026-11-21", "2026-11-19"),
)
"""First and last days: all, one, some, none, and a window that ends before it begins."""
BY_MODEL = UsageCounts(first="2026-11-19", last="2026-11-21", group_by="model")
EACH: tuple[Snapshot, ...] = (
    CatalogueSnapshot("cat_1", "2026-11-21", (Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0)),)),
    PolicySnapshot("pos_1", "one@2026-11-21", Policy(name="one", models=["a/one"]), chain=("a/one",)),
    HealthSnapshot("hea_1", {"a/one": ModelHealth(stability=1, open=True, probe_at_ms=1)}),
)


def kind(snapshot: Snapshot) -> str:
    """The field of ``DecisionInput`` that names a snapshot."""
    return type(snapshot).__name__.removesuffix("Snapshot").lower()


each_kind = pytest.mark.parametrize("snapshot", EACH, ids=kind)


def random_puts(seed: int, many: int = 60) -> list[PutTrace]:
    """Random traces, counted by different keys."""
    rng, puts = Random(seed), list[PutTrace]()
    for number in range(many):
        trace = replace(random_trace(rng, number), duration_ms=rng.lognormvariate(6, 2))
        puts.append(PutTrace(trace, rollup_keys=rng.choice(((), ROLLUP_KEYS, ROLLUP_KEYS[:1]))))
    return puts


class Counting(Suite):
    """Roll-ups equal a recount of all traces (``_core/analytics/rollup.py``)."""

    async def test_counts_equal_a_recount_of_all_traces(self, storage: Storage) -> None:
        puts = random_puts(11)
        for place in range(0, len(puts), 13):
            await storage.apply("default", puts[place : place + 13])
        counted = counted_anew(puts)
        for query in (query for window in WINDOWS for query in all_counts(*window)):
            assert await storage.read("default", query) == answer(counted, query), query

    async def test_the_largest_groups_have_rows_of_their_own(self, storage: Storage) -> None:
        puts = [
            PutTrace(make_trace(n, created_at=f"2026-11-{day}T0{n % 2}:00:00.000Z", selected_model=f"a/{model}"))
            for n, (day, model) in enumerate(zip((19, 20, 20, 20, 21, 21, 21), "abbccda", strict=True))
        ]
        await storage.apply("default", puts)
        for groups, hourly in product((0, 1, 2, 3, 100), (False, True)):
            query = replace(BY_MODEL, hourly=hourly, groups=groups)
            found = await storage.read("default", query)
            assert found == answer(counted_anew(puts), query)
            named = {row.group for row in found.groups} - {None}
            assert named == {f"a/{model}" for model in "abcd"[:groups]}, "by requests, then by name"
            for rows in (found.groups, found.all):
                assert sum(row.requests for row in rows) == len(puts)

    async def test_a_trace_counts_for_the_model_that_served_or_was_tried_last(self, storage: Storage) -> None:
        tried: list[Span] = [model_span("a/one", "error"), model_span("b/two", "error")]
        served = make_trace(1, selected_model="a/one", spans=[*tried[:1], model_span("a/one")])
        failed = make_trace(2, selected_model=None, status="failed", spans=tried)
        refused = make_trace(3, selected_model=None, status="failed")
        await storage.apply("default", [PutTrace(trace) for trace in (served, failed, refused)])
        for key, values in {"model": ("a/one", "b/two", ""), "provider": ("a", "b", "")}.items():
            for value, trace in zip(values, (served, failed, refused), strict=True):
                assert await all_items(storage, TraceItems(terms=(Term(key, "=", value),))) == [trace.item]
        found = await storage.read("default", BY_MODEL)
        assert [(row.group, row.requests, row.errors) for row in found.groups if row.group] == [
            ("a/one", 1, 0), ("b/two", 1, 1)
        ]  # fmt: skip
        await storage.apply("default", [DeleteTraces(id=failed.id)])
        found = await storage.read("default", BY_MODEL)
        assert [(row.group, row.requests) for row in found.groups if row.group] == [("a/one", 1)]

    async def test_groups_have_exactly_the_given_names(self, storage: Storage) -> None:
        texts = [*ODD_TEXTS, "acme", "Acme", "ACME", "acme ", "1", "true"]
        values: list[Any] = [*texts, 1, True, 1.0, "", None, ["acme"]]
        puts = [PutTrace(make_trace(number, metadata={"tenant": value})) for number, value in enumerate(values)]
        await storage.apply("default", puts)
        query = replace(BY_MODEL, group_by="tenant")
        found = await storage.read("default", query)
        assert found == answer(counted_anew(puts), query)
        assert [row.group for row in found.groups] == sorted(texts)
        assert {row.group: row.requests for row in found.groups if row.requests > 1} == {"1": 3, "true": 2}
        assert [(row.group, row.requests) for row in found.all] == [(None, len(values))]

    async def test_rollup_keys_are_listed_in_order(self, storage: Storage) -> None:
        assert await storage.read("default", RollupKeys()) == []
        keys = ("team", "it's", "a\0b", "Ünïcødé", "%", "model")
        counted = {"tenant": "acme", "workflow": "w"} | dict.fromkeys(keys, "x")
        await storage.apply("default", [PutTrace(make_trace(1, metadata=counted), rollup_keys=keys)])
        await storage.apply("default", [PutTrace(make_trace(2, metadata={"other": "x"}), rollup_keys=("absent",))])
        assert await storage.read("default", RollupKeys()) == sorted(keys)

    async def test_a_huge_amount_is_counted_as_the_maximum(self, storage: Storage) -> None:
        spans: list[Span] = [CacheSpan(id=1, name="cache", start_ms=0.0, hit=True, age_s=1e300, saved_usd=1e13)]
        huge: dict[str, Any] = {"cost_usd": 1e13, "charged_usd": 1e300, "tokens": Tokens(2**53, 2**62, 2**63)}
        puts = [PutTrace(make_trace(number, spans=spans, duration_ms=1e300, **huge)) for number in range(9)]
        last = PutTrace(make_trace(9, cost_usd=0.5))
        await storage.apply("default", [*puts, last])
        (row,) = (await storage.read("default", BY_MODEL)).groups
        assert row.cost_nanos == 9 * 10**15 + 500_000_000
        assert row.input_tokens == row.cached_tokens == 9 * 10**12
        for put in puts:
            await storage.apply("default", [DeleteTraces(id=put.trace.id)])
        assert await answers(storage) == expected_answers([last])


class Snapshots(Suite):
    """Snapshots come back unchanged, and stay while a trace names them."""

    @each_kind
    async def test_a_snapshot_is_stored_once_and_comes_back_unchanged(
        self, storage: Storage, snapshot: Snapshot
    ) -> None:
        results = await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot), PutSnapshot(snapshot)])
        results += await _put(storage, snapshot)
        assert [result.created for result in results] == [True, False, False]
        assert await _read(storage, snapshot.id) == snapshot
        assert await storage.read("default", SnapshotById(snapshot.id)) is None

    async def test_several_snapshots_are_read_together(self, storage: Storage) -> None:
        chain = [HealthSnapshot(f"hea_{n}", {"a/1": ModelHealth(stability=n), "a/2": ModelHealth()}) for n in range(40)]
        for snapshot in chain:
            await _put(storage, snapshot)
        ids = ("hea_39", "hea_none", "hea_0", "hea_20")
        snapshots = await storage.read(SYSTEM_ACCOUNT, SnapshotsById(ids))
        assert {snapshot.id: snapshot for snapshot in snapshots} == {chain[n].id: chain[n] for n in (39, 0, 20)}
        assert await storage.read("default", SnapshotsById(ids)) == []

    @each_kind
    async def test_a_snapshot_stays_while_a_trace_names_it(self, storage: Storage, snapshot: Snapshot) -> None:
        await storage.apply(SYSTEM_ACCOUNT, [FOR_EVER])
        given = decision_input(**{kind(snapshot): snapshot.id})
        traces = [make_trace(number, decision_input=given) for number in (1, 2)]
        await _put(storage, snapshot)
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

    @each_kind
    async def test_a_new_snapshot_is_kept_a_day_for_traces_still_to_come(
        self, storage: Storage, snapshot: Snapshot
    ) -> None:
        await storage.apply(SYSTEM_ACCOUNT, [FOR_EVER])
        trace = make_trace(1, decision_input=decision_input(**{kind(snapshot): snapshot.id}))
        await storage.apply("default", [PutTrace(trace)])
        await storage.sweep(NOW)
        assert await _read(storage, snapshot.id) is None, "it comes after the trace"
        await _put(storage, snapshot)
        await storage.sweep(NOW + 30 * HOUR_S)
        assert await _read(storage, snapshot.id) == snapshot
        await storage.apply("default", [DeleteTraces(id=trace.id)])
        await _put(storage, snapshot, at=NOW + DAY_S)
        await _put(storage, snapshot)  # from a process whose clock is late
        await storage.sweep(NOW + 2 * DAY_S - 1.0)
        assert await _read(storage, snapshot.id) == snapshot
        assert await storage.sweep(NOW + 3 * DAY_S) == 1
        assert await _read(storage, snapshot.id) is None


async def _put(storage: Storage, *snapshots: Snapshot, at: float = NOW) -> list[Written]:
    return await storage.apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot, at=at) for snapshot in snapshots])


async def _read(storage: Storage, snapshot_id: str) -> Snapshot | None:
    return await storage.read(SYSTEM_ACCOUNT, SnapshotById(snapshot_id))
