"""Shapes that durable storages and readers of JSON rely on: they come back as they went, with every published field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from routewright.testing.storage import make_trace
from routewright.wire import (
    CacheCounts,
    CacheSpan,
    Candidate,
    CatalogueSnapshot,
    CurrentRetention,
    DecisionSpan,
    DeleteTraces,
    FallbackCounts,
    FallbackSpan,
    FeedbackByTrace,
    GuardrailSpan,
    HealthSnapshot,
    LatencyCounts,
    Model,
    ModelHealth,
    ModelSpan,
    Policy,
    PolicySnapshot,
    Pricing,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    Query,
    RollupKeys,
    Scan,
    SetRetention,
    Snapshot,
    SnapshotById,
    Span,
    Term,
    Tokens,
    Trace,
    TraceById,
    TraceItems,
    Traces,
    UsageCounts,
    Write,
)

SPANS: list[Span] = [
    DecisionSpan(
        id=1, name="decision", start_ms=0.0, rejected={"context": 2}, digest="d",
        candidates=[Candidate("a/one", 0.5, 0.5, None, 1.0, 0.9, (0.1, 0.2, 0.3, 0.4))],
    ),
    CacheSpan(id=2, name="cache", start_ms=0.0, hit=False),
    ModelSpan(id=3, name="a/one", start_ms=1.0, model="a/one", provider="a", attempt=1, latency_ms=2.0),
    FallbackSpan(id=4, name="fallback", start_ms=3.0, used=True, from_model="a/one", to_model="b/two", reason="budget"),
    GuardrailSpan(id=5, name="patterns", start_ms=0.0, rule="email", stage="input", action="redact", count=2),
]  # fmt: skip
SNAPSHOTS: list[Snapshot] = [
    CatalogueSnapshot("cat_1", "2026-11-21", (Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0)), Model(id="b/two"))),
    PolicySnapshot("pos_1", "one@2026-11-21", Policy(name="one", models=["a/one"])),
    HealthSnapshot("hea_1", {"a/one": ModelHealth(stability=1)}),
]
TERMS = (Term("cost_usd", ">=", 0.5), Term("cache_hit", "!=", True), Term("metadata.team", "=", "a,b"))
WRITES: list[Write] = [
    PutTrace(make_trace(1, spans=SPANS, tokens=Tokens(1, 2, 3)), expect="absent"),
    PutFeedback("tr_1", 0.5, "so so", 1.0, expect="present", environment="sandbox"),
    *map(PutSnapshot, SNAPSHOTS),
    DeleteTraces(environment="sandbox", since="2026-11-21T00:00:00.000Z", terms=TERMS, limit=5),
    SetRetention(production_s=1.5),
]
DAYS: dict[str, Any] = {"first": "2026-11-20", "last": "2026-11-21", "environment": "sandbox"}
QUERIES: list[Query] = [
    TraceById("tr_1", "sandbox"),
    FeedbackByTrace("tr_1"),
    SnapshotById("hea_1"),
    CurrentRetention(),
    RollupKeys(),
    UsageCounts(group_by="metadata.team", hourly=True, groups=3, **DAYS),
    CacheCounts(**DAYS),
    FallbackCounts(**DAYS),
    LatencyCounts(**DAYS),
]
SCANS: list[Scan] = [Traces(environment="production", terms=TERMS), TraceItems(until="2026-11-21T00:00:00.000Z")]
KINDS: list[tuple[Any, Sequence[object]]] = [(Write, WRITES), (Query, QUERIES), (Scan, SCANS)]


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
@pytest.mark.parametrize(
    ("thing", "kind"),
    [(thing, kind) for kind, things in KINDS for thing in things],
    ids=lambda value: type(value).__name__,
)
def test_each_write_query_and_scan_comes_back_as_it_went(codec: Any, thing: Any, kind: Any) -> None:
    again = codec.decode(codec.encode(thing), type=kind)
    assert again == thing
    assert type(again) is type(thing)


def test_every_kind_is_among_them() -> None:
    unions: list[tuple[Any, Sequence[object]]] = [*KINDS, (Snapshot, SNAPSHOTS), (Span, SPANS)]
    for kind, things in unions:
        assert {type(thing) for thing in things} == set(kind.__args__)


def test_every_published_field_of_a_trace_is_in_its_json_also_where_it_says_nothing() -> None:
    least = Trace(
        id="tr_1", status="cancelled", created_at="2026-11-21T00:00:00.000Z", duration_ms=1.0, environment="production",
        account="default", policy_version="inline@2026-11-20", goal="cost", strategy="balanced",
    )  # fmt: skip
    shown = msgspec.json.decode(msgspec.json.encode(least))
    published = (  # contract 9
        "id, kind, status, created_at, duration_ms, environment, account, key_id, policy_id, policy_version, goal, "
        "strategy, selected_model, fallback_used, cache_hit, cost_usd, charged_usd, tokens, metadata, error, "
        "compromised, decision_input, spans, children"
    )
    assert set(shown) == {*published.split(", "), "cost_range_usd", "content"}
    absent: dict[str, object] = {
        "policy_id": None,
        "fallback_used": False,
        "cost_usd": 0.0,
        "metadata": {},
        "children": [],
        "spans": [],
    }
    assert {name: shown[name] for name in absent} == absent
    assert shown["tokens"] == {"input": 0, "output": 0, "cached": 0}


@pytest.mark.parametrize(
    ("span", "published"),
    [
        (SPANS[0], "candidates rejected digest"),
        (SPANS[1], "hit mode similarity age_s saved_usd"),
        (SPANS[2], "model provider attempt latency_ms ttft_ms tokens cost_usd finish_reason error"),
        (SPANS[3], "used from_model to_model reason"),
        (SPANS[4], "rule stage action"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_so_is_every_published_field_of_a_span(span: Span, published: str) -> None:
    shown = msgspec.json.decode(msgspec.json.encode(span))
    assert {"id", "parent_id", "type", "name", "start_ms", "duration_ms", "status", *published.split()} <= set(shown)


def test_the_decision_input_stays_small() -> None:
    shown = msgspec.json.decode(msgspec.json.encode(make_trace(1)))["decision_input"]
    assert set(shown) == {"catalogue", "health", "as_of", "tokens", "models", "rules"}
