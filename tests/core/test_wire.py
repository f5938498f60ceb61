"""Shapes that storages and JSON readers rely on: they round-trip, with every published field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from routewright.wire import (
    Account,
    AddCredit,
    AddLearned,
    AgentRunCompleted,
    AgentState,
    AllAccounts,
    Budget,
    BudgetRefused,
    CacheCounts,
    CacheEvicted,
    CacheSpan,
    Candidate,
    CatalogueSnapshot,
    ClaimDeliveries,
    CurrentRetention,
    Decisions,
    DecisionSpan,
    DeleteEndpoint,
    DeleteResults,
    DeleteTraces,
    Deliveries,
    DeliveryAttempt,
    EndAttempt,
    Endpoints,
    ErrorBurst,
    Event,
    Events,
    FallbackCounts,
    FallbackSpan,
    FallbackTriggered,
    FeedbackByTrace,
    FeedbackByTraces,
    GuardrailSpan,
    HealthSnapshot,
    Incident,
    IncidentCreated,
    Incidents,
    Key,
    KeyByDigest,
    Keys,
    LatencyCounts,
    Learned,
    LearnedSince,
    LedgerRow,
    LedgerRows,
    LedgerSums,
    Model,
    ModelHealth,
    ModelSpan,
    Policy,
    PolicyChanged,
    PolicyRecord,
    PolicyRecords,
    PolicyShare,
    PolicySnapshot,
    PolicyVersions,
    Pricing,
    PushedEvent,
    PutAccount,
    PutAgentState,
    PutEndpoint,
    PutEvent,
    PutFeedback,
    PutIncident,
    PutKey,
    PutPolicyRecord,
    PutPolicyVersion,
    PutSnapshot,
    PutTrace,
    Query,
    RateLimits,
    ReplayDeliveries,
    RevokeKey,
    RollupKeys,
    RunLimit,
    RunSummary,
    Scan,
    SetRetention,
    Snapshot,
    SnapshotById,
    SnapshotsById,
    Span,
    Stands,
    StepSpan,
    SubTraceSpan,
    Term,
    ThresholdCrossed,
    Tokens,
    ToolSpan,
    Trace,
    TraceById,
    TraceItems,
    Traces,
    UsageCounts,
    Write,
)
from tests.contracts.storage.outbox import ENDPOINT
from tests.contracts.storage.samples import make_trace
from tests.tables import table

SPANS: list[Span] = [
    DecisionSpan(
        id=1, name="decision", start_ms=0.0, rejected={"context": 2}, digest="d",
        candidates=[Candidate("a/one", 0.5, 0.5, None, 1.0, 0.9, (0.1, 0.2, 0.3, 0.4))],
    ),
    CacheSpan(id=2, name="cache", start_ms=0.0, hit=False),
    ModelSpan(id=3, name="a/one", start_ms=1.0, model="a/one", provider="a", attempt=1, latency_ms=2.0),
    FallbackSpan(id=4, name="fallback", start_ms=3.0, used=True, from_model="a/one", to_model="b/two", reason="budget"),
    GuardrailSpan(id=5, name="patterns", start_ms=0.0, rule="email", stage="input", action="redact", count=2),
    StepSpan(id=6, name="llm_call", start_ms=0.0, number=1),
    SubTraceSpan(id=7, parent_id=6, name="a/one", start_ms=0.0, trace_id="tr_2", cost_usd=0.5, tokens=Tokens(1, 2, 0)),
    ToolSpan(id=8, name="add", start_ms=0.0, tool="add", input={"bytes": 1}, output={"bytes": 2}, still_running=True),
]  # fmt: skip
SNAPSHOTS: list[Snapshot] = [
    CatalogueSnapshot("cat_1", "2026-11-21", (Model(id="a/one", pricing_per_1m=Pricing(1.0, 4.0)), Model(id="b/two"))),
    PolicySnapshot("pos_1", "one@2026-11-21", Policy(name="one", models=["a/one"])),
    HealthSnapshot("hea_1", {"a/one": ModelHealth(stability=1)}),
]
TERMS = (Term("cost_usd", ">=", 0.5), Term("cache_hit", "!=", True), Term("metadata.team", "=", "a,b"))
AT = "2026-11-21T09:30:00.000Z"
KEY = Key(
    id="key_1", account="acme", environment="sandbox", name="mine", prefix="sk_test_abcd", digest="00", created_at=AT,
    scopes=("route", "traces:read"), limits=RateLimits(requests_per_min=1), budget_nanos=5,
)  # fmt: skip
ROW = LedgerRow(
    request_id="tr_1", attempt=1, at=AT, key_id="key_1", model="a/one", provider="a", tokens=Tokens(1, 2, 3),
    cost_nanos=2**60, charge_nanos=4, cost_range_nanos=(1, 5), overrun_nanos=1, note="x",
)  # fmt: skip
HAPPENED: list[PushedEvent] = [
    FallbackTriggered("tr_1", "a/one", "b/two", "timeout", 1.5, {"team": ["a"]}),
    BudgetRefused("tr_1", [{"model": "a/one"}], Budget(0.5, 10), {}),
    ErrorBurst(300, 40, 4, 0.1),
    CacheEvicted(3600, 0.04, 0.05),
    PolicyChanged("pol_1", "one", None, "one@2026-11-21"),
    AgentRunCompleted("tr_1", "completed", RunSummary(3, 0.1, 5.0, ["calculator"]), {"team": "a"}),
    ThresholdCrossed("2026-11", 80, 8.1, 10.0),
    IncidentCreated("inc_1", "slow", "minor", AT, None),
]
EVENTS = [
    Event(id=f"evt_{place}", type=data.type, created_at=AT, data=data, account="acme", environment="production")
    for place, data in enumerate(HAPPENED)
]
POLICY = PolicyRecord(
    name="desk", draft=Policy(name="desk", goal="cost"), drafted_at=AT, drafted_by="ada", content="c0ffee",
    share=PolicyShare("deca", 0.1, "metadata.user"), previous=("beef",), changed_at=AT, changed_by="bob",
)  # fmt: skip
WRITES: list[Write] = [
    PutTrace(make_trace(1, spans=SPANS, tokens=Tokens(1, 2, 3)), expect="absent"),
    PutFeedback("tr_1", 0.5, "so so", 1.0, expect="present", environment="sandbox"),
    *map(PutSnapshot, SNAPSHOTS),
    DeleteTraces(environment="sandbox", since="2026-11-21T00:00:00.000Z", terms=TERMS, limit=5),
    SetRetention(production_s=1.5),
    PutPolicyVersion("c0ffee", "desk", "2026-11-21T00:00:00Z", Policy(name="desk"), by="ada", note="cheaper"),
    PutPolicyRecord(POLICY, expect="absent"),
    PutPolicyRecord(PolicyRecord(name="desk", owner="code", changed_at=AT), expect=POLICY),
    AddLearned("production", {"a/one": Learned(1.0, good=0.5, first={7: 0.25}, whole={900: 1.0})}),
    PutAccount(Account(name="acme", created_at=AT, limits=RateLimits(concurrency=3), monthly_nanos=5), expect="absent"),
    PutKey(KEY, expect="present"),
    PutKey(KEY, expect=KEY),
    RevokeKey("key_1", AT),
    AddCredit("cr_1", -5, AT, note="back"),
    DeleteResults("sandbox"),
    PutIncident(Incident(id="inc_1", title="slow", severity="minor", started_at=AT)),
    PutAgentState("tr_1", "sandbox", b"{}", 9.5, "key"),
    PutEndpoint(ENDPOINT, expect=ENDPOINT, at=2.0),
    DeleteEndpoint("whe_1"),
    ClaimDeliveries(lease="a", at=1.0, until=31.0, limit=9, per_endpoint=1, room={"whe_1": 0}),
    EndAttempt(
        endpoint_id="whe_1",
        event_id="evt_1",
        lease="a",
        state="waiting",
        attempt=DeliveryAttempt(AT, 1.5, 503),
        next_at=60.0,
        at=1.0,
    ),
    ReplayDeliveries("whe_1", "evt_1", 2.0),
    *(PutEvent(event.stored, once="burst", quiet_s=300.0, at=1.0) for event in EVENTS),
]
DAYS: dict[str, Any] = {"first": "2026-11-20", "last": "2026-11-21", "environment": "sandbox"}
QUERIES: list[Query] = [
    TraceById("tr_1", "sandbox"),
    FeedbackByTrace("tr_1"),
    FeedbackByTraces(("tr_1",)),
    SnapshotById("hea_1"),
    SnapshotsById(("hea_1", "cat_1")),
    CurrentRetention(),
    PolicyVersions(("c0ffee",)),
    PolicyVersions(name="desk"),
    PolicyRecords(),
    LearnedSince("production", 7),
    RollupKeys(),
    UsageCounts(group_by="metadata.team", hourly=True, groups=3, **DAYS),
    CacheCounts(**DAYS),
    FallbackCounts(**DAYS),
    LatencyCounts(**DAYS),
    Stands(AT, "key_1", RunLimit("tr_0", 7)),
    AgentState("tr_1"),
    AgentState(claim="key", environment="sandbox"),
    LedgerSums("2026-11-20", "2026-11-21"),
    KeyByDigest(("a", "b")),
    Keys(),
    AllAccounts(),
    Incidents(),
    Endpoints(of_all=True),
]
SCANS: list[Scan] = [
    Traces(environment="production", terms=TERMS),
    Decisions(environment="production", terms=TERMS),
    TraceItems(until="2026-11-21T00:00:00.000Z"),
    LedgerRows(since=AT, request_id="tr_1"),
    Events(),
    Deliveries("whe_1", "failed_delivery"),
]
KINDS: list[tuple[Any, Sequence[object]]] = [(Write, WRITES), (Query, QUERIES), (Scan, SCANS)]


@table("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
@table(
    ("thing", "kind"),
    [(thing, kind) for kind, things in KINDS for thing in things],
    ids=lambda value: type(value).__name__,
)
def test_each_write_query_and_scan_survives_a_round_trip(codec: Any, thing: Any, kind: Any) -> None:
    again = codec.decode(codec.encode(thing), type=kind)
    assert again == thing
    assert type(again) is type(thing)


@table("event", EVENTS, ids=lambda event: type(event.data).__name__)
def test_a_stored_event_equals_the_event(event: Event) -> None:
    kept = msgspec.json.decode(msgspec.json.encode(event.stored), type=type(event.stored))
    assert kept.event == event
    assert msgspec.json.encode(kept) == msgspec.json.encode(event), "delivered as it was told"


def test_every_kind_is_covered() -> None:
    unions: list[tuple[Any, Sequence[object]]] = [*KINDS, (Snapshot, SNAPSHOTS), (Span, SPANS), (PushedEvent, HAPPENED)]
    for kind, things in unions:
        assert {type(thing) for thing in things} == set(kind.__args__)


def test_tokens_have_three_counts_and_others_only_if_not_zero() -> None:
    assert msgspec.json.encode(Tokens()) == b'{"input":0,"output":0,"cached":0}'
    assert msgspec.to_builtins(Tokens(9, 5, written=3)) == {"input": 9, "output": 5, "cached": 0, "written": 3}


def test_every_published_field_of_a_trace_is_in_its_json_even_if_empty() -> None:
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
    assert set(shown) == {*published.split(", "), "cost_range_usd", "traceparent", "content"}
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


@table(
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
def test_every_published_field_of_a_span_is_in_its_json(span: Span, published: str) -> None:
    shown = msgspec.json.decode(msgspec.json.encode(span))
    assert {"id", "parent_id", "type", "name", "start_ms", "duration_ms", "status", *published.split()} <= set(shown)


def test_the_decision_input_stays_small() -> None:
    shown = msgspec.json.decode(msgspec.json.encode(make_trace(1)))["decision_input"]
    assert set(shown) == {"catalogue", "health", "as_of", "tokens", "models", "rules"}
