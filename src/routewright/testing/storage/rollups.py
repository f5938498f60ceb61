"""Roll-ups: counts kept while traces are written equal a new count of them all (``_core/analytics/rollup.py``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from routewright._core.analytics.rollup import METADATA, Rollups
from routewright.protocols import Storage
from routewright.wire import (
    CacheCounts,
    CacheSpan,
    DeleteTraces,
    Environment,
    FallbackCounts,
    LatencyCounts,
    PutTrace,
    RollupKeys,
    Span,
    Tokens,
    UsageCounts,
)

from .samples import ODD_TEXTS, ROLLUP_KEYS, make_trace, model_span, random_trace
from .suite import Suite

Counts = UsageCounts | CacheCounts | FallbackCounts | LatencyCounts

WINDOWS = (
    ("2026-11-19", "2026-11-21"),
    ("2026-11-20", "2026-11-20"),
    ("2026-11-20", "2026-11-30"),
    ("2026-11-01", "2026-11-19"),
    ("2026-11-22", "2026-11-23"),
    ("2026-11-21", "2026-11-19"),
)
"""First and last days: all that there are, one, some, none, and a window that ends before it begins."""
ENVIRONMENTS: tuple[Environment | None, ...] = (None, "production", "sandbox")
GROUPS = ("model", "tenant", "workflow", *(METADATA + key for key in ROLLUP_KEYS), METADATA + "none")


def all_counts(windows: Sequence[tuple[str, str]] = WINDOWS[:1]) -> Iterator[Counts]:
    """Every kind of query for counts, over these days."""
    for first, last in windows:
        for environment in ENVIRONMENTS:
            days: dict[str, Any] = {"first": first, "last": last, "environment": environment}
            yield CacheCounts(**days)
            yield FallbackCounts(**days)
            yield LatencyCounts(**days)
            for group_by in GROUPS:
                yield UsageCounts(**days, group_by=group_by)
                yield UsageCounts(**days, group_by=group_by, hourly=True, groups=2)


async def answers(storage: Storage, account: str) -> list[Any]:
    """What a storage answers to all queries for counts."""
    return [await storage.read(account, query) for query in all_counts()]


def expected_answers(puts: Sequence[PutTrace]) -> list[Any]:
    """What it should, if these traces and no others are counted."""
    counted = counted_anew(puts)
    return [answer(counted, query) for query in all_counts()]


def counted_anew(puts: Sequence[PutTrace]) -> Rollups:
    """The roll-ups of these traces."""
    counted = Rollups()
    for put in puts:
        counted.add(put.trace, put.rollup_keys)
    return counted


def answer(counted: Rollups, query: Counts) -> Any:
    """What roll-ups answer."""
    match query:
        case UsageCounts():
            return counted.usage_counts(query)
        case CacheCounts():
            return counted.cache_counts(query)
        case FallbackCounts():
            return counted.fallback_counts(query)
        case LatencyCounts():
            return counted.latency_counts(query)


def chance_puts(seed: int, many: int = 60) -> list[PutTrace]:
    """Traces of chance, some counted by more than others."""
    rng = Random(seed)
    keys = ((), ROLLUP_KEYS, ROLLUP_KEYS[:1])
    return [PutTrace(random_trace(rng, number), rollup_keys=rng.choice(keys)) for number in range(many)]


class Counting(Suite):
    """Roll-ups."""

    async def test_counts_are_those_that_counting_all_traces_anew_gives(self, storage: Storage) -> None:
        puts = chance_puts(11)
        for place in range(0, len(puts), 13):
            await storage.apply("default", puts[place : place + 13])
        counted = counted_anew(puts)
        for query in all_counts(WINDOWS):
            assert await storage.read("default", query) == answer(counted, query), query

    async def test_a_trace_that_takes_anothers_place_is_counted_in_place_of_it(self, storage: Storage) -> None:
        first, second = chance_puts(12, 30), chance_puts(13, 20)
        await storage.apply("default", first)
        await storage.apply("default", second[:5])
        await storage.apply("default", [*second[5:], *second[:3], *first[:3]])  # some twice in one batch
        assert await answers(storage, "default") == expected_answers([*first[:3], *second[3:], *first[20:]])

    @pytest.mark.parametrize("groups", [0, 1, 2, 3, 100])
    @pytest.mark.parametrize("hourly", [False, True], ids=["days", "hours"])
    async def test_the_largest_groups_have_rows_and_the_others_share_one(
        self, storage: Storage, groups: int, hourly: bool
    ) -> None:
        days = (19, 20, 20, 20, 21, 21, 21)
        traces = [
            make_trace(number, created_at=f"2026-11-{day}T0{number % 2}:00:00.000Z", selected_model=f"a/{model}")
            for number, (day, model) in enumerate(zip(days, "abbccda", strict=True))
        ]
        puts = [PutTrace(trace) for trace in traces]
        await storage.apply("default", puts)
        query = UsageCounts(first="2026-11-19", last="2026-11-21", group_by="model", hourly=hourly, groups=groups)
        found = await storage.read("default", query)
        assert found == answer(counted_anew(puts), query)
        named = {row.group for row in found.groups} - {None}
        assert named == {f"a/{model}" for model in "abcd"[:groups]}, "by requests, then by name"
        for rows in (found.groups, found.all):
            assert sum(row.requests for row in rows) == len(traces)

    async def test_usage_is_of_the_model_that_served_else_of_the_last_that_was_tried(self, storage: Storage) -> None:
        tried: list[Span] = [model_span("a/one", "error"), model_span("b/two", "error")]
        served = make_trace(1, selected_model="a/one", spans=[model_span("a/one")])
        failed = make_trace(2, selected_model=None, status="failed", spans=tried)
        await storage.apply("default", [PutTrace(served), PutTrace(failed)])
        query = UsageCounts(first="2026-11-21", last="2026-11-21", group_by="model")
        found = await storage.read("default", query)
        assert [(row.group, row.requests, row.errors) for row in found.groups] == [("a/one", 1, 0), ("b/two", 1, 1)]
        await storage.apply("default", [DeleteTraces(id=failed.id)])
        found = await storage.read("default", query)
        assert [(row.group, row.requests) for row in found.groups] == [("a/one", 1)]

    async def test_groups_have_the_very_names_that_were_given(self, storage: Storage) -> None:
        texts = [*ODD_TEXTS, "acme", "Acme", "ACME", "acme ", "1", "true"]
        values: list[Any] = [*texts, 1, True, 1.0, "", None, ["acme"]]
        puts = [PutTrace(make_trace(number, metadata={"tenant": value})) for number, value in enumerate(values)]
        await storage.apply("default", puts)
        query = UsageCounts(first="2026-11-21", last="2026-11-21", group_by="tenant")
        found = await storage.read("default", query)
        assert found == answer(counted_anew(puts), query)
        assert [row.group for row in found.groups] == sorted(texts)
        assert {row.group: row.requests for row in found.groups if row.requests > 1} == {"1": 3, "true": 2}
        assert [(row.group, row.requests) for row in found.all] == [(None, len(values))]

    async def test_the_metadata_that_usage_is_counted_by_is_listed_in_order(self, storage: Storage) -> None:
        assert await storage.read("default", RollupKeys()) == []
        keys = ("team", "it's", "a\0b", "Ünïcødé", "%", "model")
        counted = {"tenant": "acme", "workflow": "w"} | dict.fromkeys(keys, "x")
        await storage.apply("default", [PutTrace(make_trace(1, metadata=counted), rollup_keys=keys)])
        await storage.apply("default", [PutTrace(make_trace(2, metadata={"other": "x"}), rollup_keys=("absent",))])
        assert await storage.read("default", RollupKeys()) == sorted(keys)

    async def test_large_amounts_are_counted_exactly(self, storage: Storage) -> None:
        dollars = (999_999.999999999, 0.000000001, 0.1, 0.2, 1e6)
        puts = [PutTrace(make_trace(number, cost_usd=usd, charged_usd=usd)) for number, usd in enumerate(dollars)]
        await storage.apply("default", puts)
        query = UsageCounts(first="2026-11-21", last="2026-11-21", group_by="model")
        (row,) = (await storage.read("default", query)).groups
        assert row.cost_nanos == row.charged_nanos == 2_000_000_300_000_000
        assert await answers(storage, "default") == expected_answers(puts)

    async def test_an_amount_beyond_all_measure_is_counted_as_the_most_that_is(self, storage: Storage) -> None:
        spans: list[Span] = [CacheSpan(id=1, name="cache", start_ms=0.0, hit=True, age_s=1e300, saved_usd=1e13)]
        huge: dict[str, Any] = {"cost_usd": 1e13, "charged_usd": 1e300, "tokens": Tokens(2**53, 2**62, 2**63)}
        puts = [PutTrace(make_trace(number, spans=spans, duration_ms=1e300, **huge)) for number in range(9)]
        await storage.apply("default", [*puts, PutTrace(make_trace(9, cost_usd=0.5))])
        query = UsageCounts(first="2026-11-21", last="2026-11-21", group_by="model")
        (row,) = (await storage.read("default", query)).groups
        assert row.cost_nanos == 9 * 10**15 + 500_000_000
        assert row.input_tokens == row.cached_tokens == 9 * 10**12
        for put in puts:
            await storage.apply("default", [DeleteTraces(id=put.trace.id)])
        assert await answers(storage, "default") == expected_answers([PutTrace(make_trace(9, cost_usd=0.5))])

    async def test_latencies_are_counted_in_the_same_buckets_over_days(self, storage: Storage) -> None:
        rng = Random(5)
        puts = [
            PutTrace(
                make_trace(
                    number,
                    created_at=f"2026-11-{19 + number % 3}T00:00:00.000Z",
                    selected_model="a/one",
                    duration_ms=rng.lognormvariate(6, 2),
                )
            )
            for number in range(60)
        ]
        for put in puts:
            await storage.apply("default", [put])
        assert await answers(storage, "default") == expected_answers(puts)
        slower = [replace(put, trace=replace(put.trace, duration_ms=put.trace.duration_ms * 10)) for put in puts[:30]]
        await storage.apply("default", slower)
        assert await answers(storage, "default") == expected_answers([*slower, *puts[30:]])
