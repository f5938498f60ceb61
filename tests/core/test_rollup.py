"""Roll-ups equal a recount of the traces, and additions can be reverted."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from numpy.typing import NDArray

from routewright import wire
from routewright._core.analytics import rollup
from routewright._core.analytics.rollup import (
    AGES_S,
    GROUPS,
    Rollups,
    bucket_of,
    counted_of,
    merge_buckets,
    pack_buckets,
    quantile,
    sum_buckets,
    unpack_buckets,
)
from tests.tables import table

from .trace_fields import USUAL

KEYS = ("team", "x.y")
Window = dict[str, Any]
Values = NDArray[np.float64]
ALL: Window = {"first": "2026-11-01", "last": "2026-11-30"}


def trace_of(**fields: Any) -> wire.Trace:
    return wire.Trace(**(USUAL | fields))


def model_span(model: str = "a/one", status: Any = "ok") -> wire.ModelSpan:
    usual: dict[str, Any] = {"id": 1, "name": model, "start_ms": 0.0, "provider": "a", "attempt": 1, "latency_ms": 1.0}
    return wire.ModelSpan(**usual, model=model, status=status)


def fallback_span(reason: str, used: bool = True, fault: str | None = None) -> wire.FallbackSpan:
    facts: dict[str, Any] = {"id": 2, "name": "f", "start_ms": 0.0, "from_model": "a/one", "to_model": "b/two"}
    return wire.FallbackSpan(**facts, used=used, reason=reason, fault=fault)


def decision_span(passed_by: str | None = None, shadow: str | UnsetType | None = UNSET) -> wire.DecisionSpan:
    """``shadow``: the model that the shadow chose, None if it found none."""
    best = wire.Candidate("a/one", 0.5, 0.5, 0.01, 1.0, 0.9, (0.5, 0.5, 0.5, 0.5))
    facts: dict[str, Any] = {"id": 4, "name": "decision", "start_ms": 0.0, "candidates": [best], "rejected": {}}
    other = UNSET if shadow is UNSET else wire.ShadowDecision(policy="draft", model=shadow)
    return wire.DecisionSpan(**facts, digest="d", passed_by=passed_by, shadow=other)


def cache_span(hit: bool, age_s: float | None = None, saved_usd: float | None = None) -> wire.CacheSpan:
    return wire.CacheSpan(id=3, name="cache", start_ms=0.0, hit=hit, age_s=age_s, saved_usd=saved_usd)


def rollups_of(traces: Sequence[wire.Trace], keys: Sequence[str] = KEYS) -> Rollups:
    made = Rollups()
    for trace in traces:
        made.add(trace, keys)
    return made


def state(made: Rollups) -> tuple[object, ...]:
    return made.usage, made.cache, made.fallback, made.latency


# Random traces

MODELS = st.sampled_from(["a/one", "a/two", "b/one"])
DOLLARS = st.integers(0, 10**12).map(lambda nanos: nanos / 10**9)
AGES = st.none() | st.sampled_from([0.0, 59.9, 60.0, 60.1, 86_400.0, 86_400.5]) | st.floats(0, 2e5)
SPANS: st.SearchStrategy[wire.Span] = st.one_of(
    st.builds(model_span, MODELS, st.sampled_from(["ok", "error", "cancelled"])),
    st.builds(fallback_span, st.sampled_from(["timeout", "budget"]), st.booleans(), st.sampled_from([None, "auth"])),
    st.builds(cache_span, st.booleans(), AGES, st.none() | DOLLARS),
    st.builds(decision_span, st.none() | MODELS, st.just(UNSET) | st.none() | MODELS),
    st.just(wire.GuardrailSpan(id=5, name="pii", start_ms=0.0, rule="email", stage="input", action="redact")),
)
VALUES = st.sampled_from(["search", "ads", "", "1", 1, 1.0, 2.5, True, False, None, [], ["search"], {"a": 1}])
METADATA = st.dictionaries(st.sampled_from(["tenant", "workflow", *KEYS, "other"]), VALUES)
MOMENTS = st.builds("2026-11-{:02}T{:02}:30:00.000Z".format, st.integers(19, 23), st.integers(0, 23))
TRACES = st.builds(
    trace_of,
    status=st.sampled_from(get_args(wire.TraceStatus)),
    created_at=MOMENTS,
    duration_ms=st.floats(0, 1e7) | st.sampled_from([0.0, 0.001, 100.0]),
    environment=st.sampled_from(get_args(wire.Environment)),
    strategy=st.sampled_from(["balanced", "quality-first"]),
    selected_model=st.none() | MODELS,
    policy_id=st.none() | st.just("pol_1"),
    policy_version=st.sampled_from(["", "p@2026-11-20", "p@2026-11-20.2"]),
    fallback_used=st.booleans(),
    cache_hit=st.booleans(),
    cost_usd=DOLLARS,
    charged_usd=DOLLARS,
    tokens=st.builds(wire.Tokens, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    metadata=METADATA,
    spans=st.lists(SPANS, max_size=4),
)
MANY = st.lists(TRACES, max_size=8)
CROWDED = st.builds(
    lambda model, tenant: trace_of(selected_model=model, metadata={"tenant": tenant}),
    st.none() | MODELS,
    st.sampled_from(["a", "b", "c", "d"]),
)
"""Of one hour."""
DAYS = st.integers(18, 24).map("2026-11-{:02}".format)
WINDOWS = st.tuples(DAYS, DAYS).map(lambda days: {"first": min(days), "last": max(days)})
ENVIRONMENTS = st.none() | st.sampled_from(get_args(wire.Environment))


# Counted anew


def among(traces: Sequence[wire.Trace], window: Window, environment: str | None) -> list[wire.Trace]:
    inside = [trace for trace in traces if window["first"] <= trace.created_at[:10] <= window["last"]]
    return [trace for trace in inside if environment is None or trace.environment == environment]


def whose(trace: wire.Trace) -> str:
    """The model that served, else the last that was tried; empty where none was."""
    tried = [span.model for span in trace.spans if isinstance(span, wire.ModelSpan)]
    return trace.selected_model or (tried[-1] if tried else "")


def group_of(trace: wire.Trace, group_by: str) -> str | None:
    if group_by == "model":
        return whose(trace)
    if group_by == "policy_version":
        return (trace.policy_id and trace.policy_version) or None
    if group_by == "shadow":
        decision = next(iter(spans_of([trace], wire.DecisionSpan)), None)
        if decision is None or not decision.shadow:
            return None
        return "same" if decision.shadow.model == "a/one" else f"a/one -> {decision.shadow.model or 'none'}"
    value = trace.metadata.get(group_by.removeprefix("metadata."))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, (int, float)) else value if isinstance(value, str) and value else None


def usage_of(traces: Sequence[wire.Trace]) -> tuple[int, ...]:
    return (
        len(traces),
        sum(trace.status in ("failed", "budget_exceeded") for trace in traces),
        sum(round(trace.cost_usd * 1e9) for trace in traces),
        sum(round(trace.charged_usd * 1e9) for trace in traces),
        sum(trace.tokens.input for trace in traces),
        sum(trace.tokens.output for trace in traces),
        sum(trace.tokens.cached for trace in traces),
    )


def grouped(traces: Sequence[wire.Trace], key: Callable[[wire.Trace], Any]) -> dict[Any, list[wire.Trace]]:
    found: dict[Any, list[wire.Trace]] = {}
    for trace in traces:
        found.setdefault(key(trace), []).append(trace)
    return found


@given(
    MANY,
    WINDOWS,
    ENVIRONMENTS,
    st.sampled_from([*GROUPS, *(f"metadata.{key}" for key in KEYS), "metadata.other", "provider"]),
    st.booleans(),
    st.integers(0, 5),
)
def test_usage_equals_a_recount_of_the_traces(
    traces: list[wire.Trace],
    window: Window,
    environment: wire.Environment | None,
    group_by: str,
    hourly: bool,
    most: int,
) -> None:
    query = wire.UsageCounts(**window, environment=environment, group_by=group_by, hourly=hourly, groups=most)
    known = [trace for trace in among(traces, window, environment) if group_of(trace, group_by) is not None]
    if group_by in ("metadata.other", "provider"):
        known = []
    sizes = Counter(group_of(trace, group_by) for trace in known)
    ranked = sorted(sizes, key=lambda group: (-sizes[group], group))
    start = len("2026-11-22T09" if hourly else "2026-11-22")
    rows = grouped(
        known,
        lambda trace: (
            trace.created_at[:start],
            group_of(trace, group_by) if group_of(trace, group_by) in ranked[:most] else None,
        ),
    )
    used = rollups_of(traces).usage_counts(query)
    found = used.groups
    days = grouped(among(traces, window, environment), lambda trace: trace.created_at[:start])
    assert used.all == [wire.UsageCount(day, None, *usage_of(days[day])) for day in sorted(days)]
    assert {(row.start, row.group): row for row in found} == {
        key: wire.UsageCount(*key, *usage_of(counted)) for key, counted in rows.items()
    }
    assert found == sorted(found, key=lambda row: (row.start, row.group is None, row.group or ""))


def spans_of(traces: Sequence[wire.Trace], kind: type) -> list[Any]:
    return [span for trace in traces for span in trace.spans if isinstance(span, kind)]


@given(MANY, WINDOWS, ENVIRONMENTS)
def test_cache_counts_equal_a_recount_of_the_spans(
    traces: list[wire.Trace], window: Window, environment: wire.Environment | None
) -> None:
    looked_up: Counter[str] = Counter()
    saved: Counter[str] = Counter()
    for span in spans_of(among(traces, window, environment), wire.CacheSpan):
        fitting = [age for age in AGES_S if (span.age_s or 0) <= age]
        age = "miss" if not span.hit else str(min(fitting)) if fitting else "older"
        looked_up[age] += 1
        saved[age] += round((span.saved_usd or 0) * 1e9)
    found = rollups_of(traces).cache_counts(wire.CacheCounts(**window, environment=environment))
    assert found == [wire.CacheCount(age, looked_up[age], saved[age]) for age in sorted(looked_up)]


@given(MANY, WINDOWS, ENVIRONMENTS)
def test_fallback_counts_equal_a_recount_of_the_spans(
    traces: list[wire.Trace], window: Window, environment: wire.Environment | None
) -> None:
    inside = among(traces, window, environment)
    called = [trace for trace in inside if any(isinstance(span, wire.ModelSpan) for span in trace.spans)]
    fell_back = [trace for trace in called if trace.fallback_used]
    faults = (next((s.fault or s.reason for s in spans_of([trace], wire.FallbackSpan)), "") for trace in fell_back)
    reasons = Counter(faults)
    decisions = [next(iter(spans_of([trace], wire.DecisionSpan)), None) for trace in inside]
    passed = Counter(span.passed_by for span in decisions if span is not None and span.passed_by is not None)
    ended = [span for span in spans_of(inside, wire.ModelSpan) if span.status != "cancelled"]
    models = Counter(span.model for span in ended)
    succeeded = Counter(span.model for span in ended if span.status == "ok")
    expected = [wire.FallbackCount("model", model, models[model], succeeded[model]) for model in sorted(models)]
    expected += [wire.FallbackCount("passed", model, passed[model], passed[model]) for model in sorted(passed)]
    expected += [wire.FallbackCount("reason", reason, reasons[reason], reasons[reason]) for reason in sorted(reasons)]
    expected += [wire.FallbackCount("request", "", len(called), len(fell_back))] if called else []
    assert rollups_of(traces).fallback_counts(wire.FallbackCounts(**window, environment=environment)) == expected


@given(MANY, WINDOWS, ENVIRONMENTS)
def test_latency_counts_are_those_of_completed_traces_that_a_model_served(
    traces: list[wire.Trace], window: Window, environment: wire.Environment | None
) -> None:
    inside = among(traces, window, environment)
    served = [t for t in inside if t.status == "completed" and t.selected_model is not None and not t.cache_hit]
    rows = grouped(served, lambda trace: (trace.selected_model, trace.strategy))
    found = rollups_of(traces).latency_counts(wire.LatencyCounts(**window, environment=environment))
    buckets = {names: Counter(bucket_of(trace.duration_ms) for trace in rows[names]) for names in rows}
    assert found == [wire.LatencyCount(names[0], names[1], dict(buckets[names])) for names in sorted(rows)]
    assert [list(row.buckets) for row in found] == [sorted(row.buckets) for row in found]


@table(
    ("fields", "counted"),
    [
        ({}, True),
        ({"cache_hit": True}, False),
        ({"selected_model": None}, False),
        *(({"status": status}, False) for status in get_args(wire.TraceStatus) if status != "completed"),
    ],
)
def test_the_latency_of_a_trace_counts_if_a_model_completed_it(fields: dict[str, Any], counted: bool) -> None:
    made = rollups_of([trace_of(**({"selected_model": "a/one"} | fields))])
    assert made.latency_counts(wire.LatencyCounts(**ALL)) == (
        [wire.LatencyCount("a/one", "balanced", {bucket_of(812.5): 1})] if counted else []
    )


@table("status", get_args(wire.TraceStatus))
def test_errors_are_failed_traces_and_exhausted_budgets(status: str) -> None:
    (used,) = rollups_of([trace_of(status=status)]).usage_counts(wire.UsageCounts(**ALL, group_by="model")).groups
    assert (used.requests, used.errors) == (1, int(status in ("failed", "budget_exceeded")))


def test_a_fallback_counts_by_its_fault_and_in_old_traces_by_its_reason() -> None:
    spans = [fallback_span("upstream_5xx", fault="auth"), fallback_span("upstream_5xx")]
    traces = [trace_of(fallback_used=True, spans=[model_span(), span, model_span("b/two")]) for span in spans]
    counts = rollups_of(traces).fallback_counts(wire.FallbackCounts(**ALL))
    assert [count.name for count in counts if count.kind == "reason"] == ["auth", "upstream_5xx"]


@given(MANY)
def test_days_are_the_sums_of_their_hours(traces: list[wire.Trace]) -> None:
    made = rollups_of(traces)
    rows = grouped(traces, lambda trace: (trace.environment, trace.created_at[:10], whose(trace)))
    days = {
        (key.environment, key.start, key.value): tuple(sums)
        for key, sums in made.days().items()
        if key.group_by == "model"
    }
    assert days == {key: usage_of(counted) for key, counted in rows.items()}
    assert {len(key.start) for key in made.usage} <= {len("2026-11-22T09")}


@given(MANY)
def test_rollup_keys_lists_the_counted_metadata(traces: list[wire.Trace]) -> None:
    used = {key for trace in traces for key in KEYS if group_of(trace, f"metadata.{key}") is not None}
    assert rollups_of(traces).rollup_keys() == sorted(used)
    assert rollups_of(traces, ()).rollup_keys() == []


# In and out again


@given(MANY, MANY, st.randoms())
def test_removed_traces_leave_no_mark(stay: list[wire.Trace], go: list[wire.Trace], chance: random.Random) -> None:
    signed = [(trace, 1) for trace in stay] + [(trace, sign) for trace in go for sign in (1, -1)]
    chance.shuffle(signed)
    made = Rollups()
    for trace, sign in signed:
        made.add(trace, KEYS, sign)
    assert state(made) == state(rollups_of(stay))
    made.keep_newest(len(made.usage))
    assert state(made) == state(rollups_of(stay)), "there are not more rows than that"


@given(st.lists(st.tuples(TRACES | CROWDED, st.sampled_from([(), ("team",), KEYS])), max_size=8), st.randoms())
def test_traces_counted_together_count_like_each_alone(
    traces: list[tuple[wire.Trace, tuple[str, ...]]], chance: random.Random
) -> None:
    often = chance.choices(traces, k=3 * len(traces)) if traces else []
    many = [
        (replace(each, cost_usd=chance.random(), duration_ms=chance.choice([1, 1.001])), keys) for each, keys in often
    ]
    for values in (None, 2):
        alone, together = Rollups(values), Rollups(values)
        for trace, keys in many:
            alone.add(trace, keys)
        together.count_all((counted_of(trace), keys) for trace, keys in many)
        assert state(together) == state(alone)


# The largest groups


# Quantiles


def worst(values: Values, *shares: float) -> float:
    """The largest relative error of quantiles."""
    exact, buckets = np.sort(values), Counter(map(bucket_of, values.tolist()))
    true = {share: float(exact[math.ceil(share * len(values)) - 1]) for share in shares}
    return max(abs(quantile(buckets, share) - true[share]) / true[share] for share in shares)


def test_quantiles_of_values_over_nine_orders_of_magnitude_are_within_one_per_cent(full: bool) -> None:
    for seed in range(20 if full else 1):
        chance = np.random.default_rng(seed)
        for values in (
            10 ** chance.uniform(-3, 6, 100_000),
            np.exp(chance.normal(7, 2, 100_000)),
            chance.uniform(0.001, 60_000, 100_000),
            np.round(chance.exponential(900, 100_000), 3) + 0.001,
        ):
            assert worst(values, 0.0001, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0) <= 0.01


@given(st.lists(st.floats(0.001, 1e9), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_is_within_one_per_cent_of_the_exact_one(values: list[float], share: float) -> None:
    assert worst(np.array(values), share) <= 0.01


@given(st.lists(st.floats(0, 1e12), min_size=2))
def test_buckets_grow_with_latency_and_are_never_negative(values: list[float]) -> None:
    buckets = [bucket_of(value) for value in sorted(values)]
    assert buckets == sorted(buckets)
    assert buckets[0] >= 0


@table("value", [0.0, -1.0, 1e-9, 0.001])
def test_the_shortest_latency_counts_as_a_microsecond(value: float) -> None:
    assert quantile({bucket_of(value): 1}, 0.5) == 0.001


# Packed

BUCKETS = st.dictionaries(st.integers(0, 2_000), st.integers(-(2**29), 2**29).filter(bool), max_size=20)


def total(*parts: dict[int, int]) -> dict[int, int]:
    sums = {bucket: sum(part.get(bucket, 0) for part in parts) for part in parts for bucket in part}
    return {bucket: sums[bucket] for bucket in sorted(sums) if sums[bucket]}


@given(BUCKETS, BUCKETS)
def test_merged_bytes_are_the_sum(some: dict[int, int], more: dict[int, int]) -> None:
    assert unpack_buckets(merge_buckets(pack_buckets(some), pack_buckets(more))) == total(some, more)
    assert unpack_buckets(merge_buckets(pack_buckets(more), pack_buckets(some))) == total(some, more)


@given(BUCKETS)
def test_buckets_and_their_negative_cancel(buckets: dict[int, int]) -> None:
    opposite = pack_buckets({bucket: -count for bucket, count in buckets.items()})
    assert merge_buckets(pack_buckets(buckets), opposite) == b""
    assert sum_buckets([pack_buckets(buckets), opposite]) == {}
    assert (
        unpack_buckets(merge_buckets(pack_buckets(buckets), b""))
        == unpack_buckets(merge_buckets(b"", pack_buckets(buckets)))
        == buckets
    )


@given(st.lists(BUCKETS, max_size=4))
def test_many_packed_sets_are_summed_in_order(parts: list[dict[int, int]]) -> None:
    found = sum_buckets([pack_buckets(part) for part in parts])
    assert found == total(*parts)
    assert list(found) == sorted(found)
    assert {type(number) for pair in found.items() for number in pair} <= {int}


@given(MANY, MANY)
def test_a_database_that_merges_the_changes_of_batches_has_what_memory_has(
    stay: list[wire.Trace], go: list[wire.Trace]
) -> None:
    both, out = rollups_of([*stay, *go]), Rollups()
    for trace in go:
        out.add(trace, KEYS, -1)
    table = {key: pack_buckets(buckets) for key, buckets in both.latency.items()}
    for key, buckets in out.latency.items():
        table[key] = merge_buckets(table[key], pack_buckets(buckets))
    assert {key: unpack_buckets(data) for key, data in table.items() if data} == rollups_of(stay).latency


def test_packed_buckets_are_little_endian_pairs_on_every_machine() -> None:
    assert pack_buckets({3: -1}) == struct.pack("<ii", 3, -1) == b"\x03\0\0\0\xff\xff\xff\xff"
    assert unpack_buckets(struct.pack("<iiii", 7, 2, 3, -1)) == {3: -1, 7: 2}
    assert pack_buckets({}) == b""
    assert unpack_buckets(b"") == sum_buckets([]) == sum_buckets([b""]) == {}


# Bounded


@given(MANY, st.integers(0, 12))
def test_the_newest_hours_are_kept_up_to_the_row_limit(traces: list[wire.Trace], rows: int) -> None:
    made, before = rollups_of(traces), rollups_of(traces)
    made.keep_newest(rows)
    newest = max((key.start for key in before.usage), default="")
    oldest = min((key.start for key in made.usage), default="")
    assert len(made.usage) <= max(rows, sum(key.start == newest for key in before.usage))
    assert made.usage == {key: sums for key, sums in before.usage.items() if key.start >= oldest}
    assert newest == "" or oldest != ""
    assert len(before.usage) > rows or made.usage == before.usage
    assert state(made)[1:] == state(before)[1:]


@given(st.lists(CROWDED, max_size=12), st.integers(1, 2), st.randoms())
def test_a_group_counts_a_limited_number_of_values_per_hour_completely(
    traces: list[wire.Trace], values: int, chance: random.Random
) -> None:
    made, there = Rollups(values), list[wire.Trace]()
    for trace in traces:
        made.add(trace, KEYS)
        there.append(trace)
        if chance.random() < 0.5:
            made.add(there.pop(chance.randrange(len(there))), KEYS, -1)
        whole = rollups_of(there).usage
        for key, sums in made.usage.items():
            assert key.group_by == "model" or sums == whole[key]
            assert min(sums) >= 0
        told = Counter((key.environment, key.group_by, key.start) for key in made.usage if key.value)
        assert all(count <= values for count in told.values())
        assert sum(sums[0] for key, sums in made.usage.items() if key.group_by == "model") == len(there)
    for trace in there:
        made.add(trace, KEYS, -1)
    assert state(made) == ({}, {}, {}, {})


@pytest.mark.parametrize("hours", [1, 2, 24 * 28])
def test_keeping_the_newest_hours_sorts_them_rarely(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0

    def counting(found: Any) -> list[Any]:
        nonlocal looked_at
        looked_at += len(found)
        return sorted(found)

    monkeypatch.setattr(rollup, "sorted", counting, raising=False)
    made, traces = Rollups(), 4_000
    for number in range(traces):
        at = number * hours // traces
        moment = f"2026-11-{1 + at // 24:02}T{at % 24:02}:00:00.000Z"
        made.add(trace_of(created_at=moment, metadata={"tenant": f"t{number}"}))
        made.keep_newest(100)
    assert looked_at <= 2 * traces


@given(MANY, MANY, st.integers(0, 12))
def test_traces_of_dropped_hours_are_ignored(traces: list[wire.Trace], later: list[wire.Trace], rows: int) -> None:
    made, before = rollups_of(traces), rollups_of(traces)
    made.keep_newest(rows)
    forgotten = max({key.start for key in before.usage} - {key.start for key in made.usage}, default="")
    for trace in later:
        made.add(trace, KEYS)
    counted = [trace for trace in [*traces, *later] if trace.created_at[:13] > forgotten]
    assert made.usage == rollups_of(counted).usage
    for trace in [*traces, *later]:
        made.add(trace, KEYS, -1)
    assert state(made) == ({}, {}, {}, {})
