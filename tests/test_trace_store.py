"""``TraceStore``: what it takes and refuses, its pages and cursors, its reports, and what it removes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import UTC, datetime
from inspect import isawaitable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright import Caller, MemoryStorage, Router, Settings, SqliteStorage
from routewright._core.analytics.report import cache_report, fallback_report, latency_report, usage_report
from routewright._core.analytics.rollup import Rollups
from routewright._core.trace.filter import parse_filter, selects
from routewright.errors import (
    CursorInvalid,
    InternalError,
    NotFound,
    RouterError,
    StorageUnavailable,
    ValidationFailed,
)
from routewright.protocols import Storage
from routewright.settings import Retention
from routewright.testing import FakeClock
from routewright.trace import TraceStore
from routewright.wire import (
    Bucket,
    CacheCounts,
    FallbackCounts,
    LatencyCounts,
    Page,
    PutAccount,
    Query,
    Selection,
    Trace,
    TraceItem,
    UsageCounts,
)
from tests.contracts.storage.samples import make_account, make_trace, newest_first, random_trace, spans_of_each_kind
from tests.tables import table

pytestmark = pytest.mark.anyio

START = datetime(2026, 11, 22, 12, tzinfo=UTC)
BUCKETS: tuple[Bucket, ...] = ("day", "week", "month")


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Storage:
    return MemoryStorage() if request.param == "memory" else SqliteStorage(tmp_path / "traces.db", clock=clock)


@pytest.fixture
async def store(storage: Storage, clock: FakeClock) -> AsyncIterator[TraceStore]:
    store = TraceStore(storage, rollup_keys=["team"], clock=clock)
    yield store
    await store.aclose()


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceStore]:
    """A store with ``chance_traces`` of the accounts ``default`` and ``acme``, for tests that change nothing."""
    clock = FakeClock(START.timestamp(), autojump=False)
    path = tmp_path_factory.mktemp("filled") / "traces.db"
    storage = MemoryStorage() if request.param == "memory" else SqliteStorage(path, clock=clock)
    store = TraceStore(storage, rollup_keys=["team"], clock=clock)
    anyio.run(fill, store)
    anyio.run(fill, store, [replace(trace, account="acme") for trace in chance_traces()])
    yield store
    anyio.run(store.aclose)


def chance_traces(many: int = 60) -> list[Trace]:
    rng = Random(20261122)
    return [random_trace(rng, number) for number in range(many)]


async def fill(store: TraceStore, traces: list[Trace] | None = None) -> list[Trace]:
    traces = chance_traces() if traces is None else traces
    for trace in traces:
        await store.record(trace)
    return newest_first(traces)


async def pages(store: TraceStore, **asked: Any) -> list[Page[TraceItem]]:
    found = [await store.query(**asked)]
    while found[-1].has_more:
        assert found[-1].next_cursor is not None
        found.append(await store.query(**asked, cursor=found[-1].next_cursor))
    assert found[-1].next_cursor is None
    return found


def ids(traces: list[Trace] | list[TraceItem]) -> list[str]:
    return [trace.id for trace in traces]


# Making one


@table("given", ["team", [7], [f"key{number}" for number in range(9)]])
def test_rollup_keys_are_at_most_eight_strings(given: Any) -> None:
    with pytest.raises(ValidationFailed, match="rollup_keys"):
        TraceStore(MemoryStorage(), rollup_keys=given)


# record and get


async def test_a_recorded_trace_is_read_under_its_own_account(store: TraceStore) -> None:
    trace = make_trace(1, account="acme", environment="sandbox", spans=spans_of_each_kind())
    await store.record(trace)
    assert await store.get(trace.id, account="acme") == trace
    assert await store.get("trc_" + trace.id.removeprefix("tr_"), account="acme", environment="sandbox") == trace
    unknown = make_trace(2).id
    for trace_id, other in (
        (trace.id, {}),
        (trace.id, {"account": "acme", "environment": "production"}),
        (unknown, {}),
    ):
        with pytest.raises(NotFound, match=f"^no trace '{trace_id}'$"):
            await store.get(trace_id, **other)  # type: ignore[arg-type]


async def test_times_are_stored_in_one_format(store: TraceStore) -> None:
    await store.record(make_trace(1, created_at="2026-11-21T01:00:00.0001+01:00"))
    assert (await store.get(make_trace(1).id)).created_at == "2026-11-21T00:00:00.001Z"


@table(
    ("given", "path"),
    [
        (None, "trace"),
        (make_trace(1).item, "trace"),
        (make_trace(1, account="_system"), "trace.account"),
        (make_trace(1, created_at="yesterday"), "trace.created_at"),
        (make_trace(1, cost_usd=float("nan")), "trace.cost_usd"),
    ],
)
async def test_an_invalid_trace_is_refused_with_its_field(store: TraceStore, given: Any, path: str) -> None:
    with pytest.raises(ValidationFailed) as raised:
        await store.record(given)
    assert any(problem.path.startswith(path) for problem in raised.value.problems)
    assert (await store.query()).data == []


@pytest.mark.parametrize("environment", ["production", "sandbox"])
async def test_a_trace_id_is_used_in_one_environment_only(store: TraceStore, environment: Any) -> None:
    there = make_trace(1, environment=environment)
    other: Any = {"production": "sandbox", "sandbox": "production"}[environment]
    await store.record(there)
    with pytest.raises(
        ValidationFailed,
        match=rf"trace.id: .* exists in another environment than {other}; record it under another id",
    ):
        await store.record(make_trace(1, environment=other))
    assert await store.get(TR) == there
    assert (await store.usage(environment=other)).totals.requests == 0
    assert await store.delete(trace_id=TR) == 1
    await store.record(make_trace(1, environment=other))


# Arguments that all methods share


async def drained(found: AsyncIterator[Trace]) -> list[Trace]:
    return [trace async for trace in found]


TR = make_trace(1).id
METHODS: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "get": lambda store, trace_id=TR, **given: store.get(trace_id, **given),
    "query": lambda store, **given: store.query(**given),
    "export": lambda store, **given: drained(store.export(**given)),
    "delete": lambda store, trace_id=TR, **given: store.delete(trace_id=trace_id, **given),
    "feedback": lambda store, trace_id=TR, score=1.0, **given: store.feedback(trace_id, score, **given),
    "feedback_of": lambda store, trace_id=TR, **given: store.feedback_of(trace_id, **given),
    "usage": lambda store, **given: store.usage(**given),
    "cache_report": lambda store, **given: store.cache_report(**given),
    "fallback_report": lambda store, **given: store.fallback_report(**given),
    "latency_report": lambda store, **given: store.latency_report(**given),
}
INVALID: dict[tuple[str, ...], list[tuple[dict[str, Any], str]]] = {
    ("query",): [({"limit": limit}, "limit") for limit in (0, 201, 1.5, True, None, float("nan"))],
    ("query", "export", "delete"): [
        ({"filter": "status=failed,cost_usd>ten"}, "filter[1]"),
        ({"since": "2026-11-22", "until": "2026-11-21"}, "since"),
        ({"until": 7}, "until"),
    ],
    ("get", "delete", "feedback", "feedback_of"): [({"trace_id": trace_id}, "trace_id") for trace_id in (7, "\ud800")],
    ("feedback",): [
        *(({"score": score}, "score") for score in (1.1, float("nan"), True, "1")),
        *(({"comment": comment}, "comment") for comment in (7, "\ud800")),
    ],
    ("usage", "cache_report", "fallback_report", "latency_report"): [
        ({"start_date": "2026-11-32"}, "start_date"),
        ({"start_date": "2026-11-22", "end_date": "2026-11-21"}, "start_date"),
    ],
    ("usage",): [
        ({"group_by": "metadata.team'; --"}, "group_by"),
        ({"group_by": 7}, "group_by"),
        ({"bucket": "year"}, "bucket"),
    ],
}
"""What methods refuse, and at which path."""


async def refused(path: str, doing: Coroutine[Any, Any, Any]) -> None:
    with pytest.raises(ValidationFailed) as raised:
        await doing
    assert [problem.path for problem in raised.value.problems] == [path]


@table("method", METHODS)
async def test_every_method_refuses_an_invalid_account_or_environment(filled: TraceStore, method: str) -> None:
    for account in ("_system", "a\nb", None):
        await refused("account", METHODS[method](filled, account=account))
    for environment in ("test", 7):
        await refused("environment", METHODS[method](filled, environment=environment))


@table(
    ("method", "given", "path"),
    [(method, given, path) for methods, rows in INVALID.items() for method in methods for given, path in rows],
    ids=lambda value: repr(value)[:60],
)
async def test_an_invalid_argument_is_refused_at_its_path(
    filled: TraceStore, method: str, given: dict[str, Any], path: str
) -> None:
    await refused(path, METHODS[method](filled, **given))


# query


@pytest.mark.parametrize("limit", [1, 7, 60])
async def test_pages_hold_each_trace_once_newest_first(filled: TraceStore, limit: int) -> None:
    traces = newest_first(chance_traces())
    found = await pages(filled, limit=limit)
    assert [item for page in found for item in page.data] == [trace.item for trace in traces]
    assert [len(page.data) for page in found[:-1]] == [limit] * (len(found) - 1)
    assert len(found) == -(-len(traces) // limit), "no page is empty"


async def test_an_empty_store_gives_an_empty_page(store: TraceStore) -> None:
    assert await store.query() == Page([], None, False)


@table("filter", ["", "status!=completed,environment=sandbox", "metadata.team!=search,cost_usd>=0.01"])
async def test_a_filter_selects_the_matching_traces(filled: TraceStore, filter: str) -> None:
    traces = newest_first(chance_traces())
    terms = parse_filter(filter)
    expected = [trace for trace in traces if selects(Selection(terms=terms), trace)]
    found = await pages(filled, filter=filter, limit=7)
    assert ids([item for page in found for item in page.data]) == ids(expected)
    assert [trace async for trace in filled.export(filter=filter)] == expected


# Cursors


async def a_cursor(store: TraceStore, **asked: Any) -> str:
    page = await store.query(**{"limit": 3} | asked)
    assert page.next_cursor is not None
    return page.next_cursor


@pytest.mark.parametrize(
    "other",
    [
        {"filter": "status=failed"},
        {"since": "2026-11-01"},
        {"environment": "production"},
        {"account": "acme"},
    ],
    ids=str,
)
async def test_a_cursor_is_valid_for_one_query_of_one_account(filled: TraceStore, other: dict[str, Any]) -> None:
    mine, its = await a_cursor(filled), await a_cursor(filled, **other)
    with pytest.raises(CursorInvalid, match="does not belong to this query"):
        await filled.query(**other, cursor=mine)
    with pytest.raises(CursorInvalid):
        await filled.query(cursor=its)
    assert len((await filled.query(cursor=mine, limit=5)).data) == 5, "another limit is no other query"
    assert (await filled.query(**other, cursor=its)).data


@table("cursor", ["", "AAAA", "é" * 40, 7])
async def test_an_invalid_cursor_is_refused(filled: TraceStore, cursor: Any) -> None:
    with pytest.raises(CursorInvalid):
        await filled.query(cursor=cursor)


# export


async def test_an_export_gives_whole_traces_newest_first_over_many_pieces(
    filled: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = newest_first(chance_traces())
    for piece in (7, 60):
        monkeypatch.setattr("routewright.trace.PIECE", piece)
        assert [trace async for trace in filled.export()] == traces
    assert [trace async for trace in filled.export(account="nobody")] == []


# another account


async def test_as_account_changes_the_default_account(store: TraceStore) -> None:
    await store.record(make_trace(1))
    await store.record(make_trace(2, account="acme"))
    acme = store.as_account("acme")
    assert ids((await acme.query()).data) == [make_trace(2).id]
    assert [trace.id async for trace in acme.export()] == [make_trace(2).id]
    assert (await acme.usage("2026-11-01")).totals.requests == 1
    with pytest.raises(NotFound):
        await acme.get(TR)
    assert await acme.delete(trace_id=TR) == 0
    assert (await acme.get(TR, account="default")).id == TR
    assert await acme.delete(everything=True) == 1
    assert ids((await store.query()).data) == [TR]
    with pytest.raises(ValidationFailed, match="account"):
        store.as_account("")


# delete


UNSELECTED = "no traces are selected; pass trace_id, filter, since or until"
COMBINED = "everything: cannot be combined with a selection; leave out one of them"


@table(
    ("given", "said"),
    [
        *((given, UNSELECTED) for given in ({}, {"environment": "sandbox"}, {"filter": ""})),
        ({"everything": "no"}, "everything: is .*; pass True, or"),
        *(({"everything": True, **other}, COMBINED) for other in ({"until": "2026-11-21"}, {"trace_id": TR})),
    ],
    ids=str,
)
async def test_delete_needs_either_a_selection_or_everything(
    filled: TraceStore, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationFailed, match=said):
        await filled.delete(**given)
    assert len([trace async for trace in filled.export()]) == 60


@pytest.mark.parametrize(
    "given",
    [
        {"filter": "status=failed"},
        {"since": "2026-11-21"},
        {"everything": True},
    ],
    ids=str,
)
async def test_delete_removes_exactly_the_selection(
    store: TraceStore, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routewright.trace.DELETE_SIZE", 4)
    traces = await fill(store)
    await fill(store, [replace(trace, account="acme") for trace in traces])
    asked = {name: value for name, value in given.items() if name != "everything"}
    gone = [trace.id async for trace in store.export(**asked)]
    assert gone
    assert await store.delete(**given) == len(gone)
    assert await store.delete(**given) == 0
    left = [trace for trace in traces if trace.id not in gone]
    assert [trace async for trace in store.export()] == left
    assert len([trace async for trace in store.export(account="acme")]) == 60
    usage = await store.usage("2026-11-01", environment="all")
    assert usage.totals.requests == sum(trace.kind == "route" for trace in left)
    assert usage.runs == Counter(trace.status for trace in left if trace.kind == "agent")


# feedback


# Reports


def counted(traces: list[Trace]) -> Rollups:
    rollups = Rollups()
    for trace in traces:
        rollups.add(trace, ("team",))
    return rollups


@pytest.mark.parametrize("environment", [None, "production", "sandbox"])
async def test_reports_equal_a_recount_of_the_traces(filled: TraceStore, environment: Any) -> None:
    rollups = counted(newest_first(chance_traces()))
    first, last = "2026-11-19", "2026-11-21"
    days: dict[str, Any] = {"first": first, "last": last, "environment": environment}
    given: dict[str, Any] = {"environment": environment or "all"}
    for group_by in ("model", "tenant", "workflow", "metadata.team"):
        counts = rollups.usage_counts(UsageCounts(**days, group_by=group_by))
        for bucket in BUCKETS:
            found = await filled.usage(first, last, group_by=group_by, bucket=bucket, **given)
            assert found == usage_report(counts, first, last, bucket, group_by)
            assert sum(row.requests for row in found.data) == found.totals.requests
    hours = rollups.usage_counts(UsageCounts(**days, group_by="model", hourly=True))
    assert await filled.usage(first, last, bucket="hour", **given) == usage_report(hours, first, last, "hour", "model")
    cache = cache_report(rollups.cache_counts(CacheCounts(**days)), first, last)
    assert await filled.cache_report(first, last, **given) == cache
    fallback = fallback_report(rollups.fallback_counts(FallbackCounts(**days)), first, last)
    assert await filled.fallback_report(first, last, **given) == fallback
    latency = latency_report(rollups.latency_counts(LatencyCounts(**days)), first, last)
    assert await filled.latency_report(first, last, **given) == latency
    assert cache.hits
    assert fallback.candidates
    assert latency.data


async def test_reports_leave_the_sandbox_out_unless_asked(filled: TraceStore) -> None:
    days = "2026-11-01", "2026-11-30"
    reports = (filled.usage, filled.cache_report, filled.fallback_report, filled.latency_report)
    for report in reports:
        production, sandbox, both = [await report(*days, environment=it) for it in ("production", "sandbox", "all")]
        assert await report(*days) == production
        assert sandbox not in (production, both)
        with pytest.raises(ValidationFailed, match="environment: is 'x'; take 'production', 'sandbox', 'all'"):
            await report(*days, environment="x")  # type: ignore[arg-type]
    counts = [(await filled.usage(*days, environment=it)).totals.requests for it in ("production", "sandbox", "all")]
    assert 0 < counts[0] < counts[0] + counts[1] == counts[2]


async def test_the_reports_of_a_caller_are_of_its_environment(storage: Storage, store: TraceStore) -> None:
    await store.record(make_trace(1, account="acme"))
    for number in (2, 3):
        await store.record(make_trace(number, account="acme", environment="sandbox"))
    router = Router(providers=[], storage=storage, settings=Settings(clock=store._clock))
    for caller, requests in ((Caller("acme"), 1), (Caller("acme", "sandbox"), 2)):
        traces = router.as_caller(caller).traces
        assert (await traces.usage()).totals.requests == requests
        assert (await traces.usage(environment="all")).totals.requests == 3


async def test_reports_cover_all_accounts_together(storage: Storage, store: TraceStore) -> None:
    traces = chance_traces()
    owners = ("acme", "bmw", "default")
    for name in owners[:2]:
        await storage.apply(name, [PutAccount(make_account(name=name))])
    for number, trace in enumerate(traces):
        await store.record(replace(trace, account=owners[number % 3]))
    alone = MemoryStorage(clock=store._clock)
    one = TraceStore(alone, rollup_keys=["team"], clock=store._clock)
    await fill(one, traces)
    days: Any = {"start_date": "2026-11-01", "end_date": "2026-11-30", "environment": "all"}
    for group_by in ("model", "tenant", "metadata.team"):
        report = await store.usage(**days, group_by=group_by, bucket="month", all_accounts=True)
        expected = await one.usage(**days, group_by=group_by, bucket="month")
        assert report == replace(expected, data=report.data)
        assert sorted(report.data, key=str) == sorted(expected.data, key=str)
    assert await store.cache_report(**days, all_accounts=True) == await one.cache_report(**days)
    assert await store.fallback_report(**days, all_accounts=True) == await one.fallback_report(**days)
    assert await store.latency_report(**days, all_accounts=True) == await one.latency_report(**days)
    assert await store.latency_by_day(**days, all_accounts=True) == await one.latency_by_day(**days)
    for refused in (store.cache_report(account="acme", all_accounts=True), store.as_account("acme").usage_groups):
        with pytest.raises(ValidationFailed, match="all_accounts: is true for one account; leave out one of them"):
            await (refused if isawaitable(refused) else refused(all_accounts=True))
    with pytest.raises(ValidationFailed, match="all_accounts: is 'x'"):
        await store.usage(all_accounts="x")  # type: ignore[arg-type]


async def test_a_store_says_what_usage_can_be_grouped_by(storage: Storage, store: TraceStore) -> None:
    common = ["model", "tenant", "workflow", "policy_version", "shadow"]
    await storage.apply("acme", [PutAccount(make_account(name="acme"))])
    other = TraceStore(storage, rollup_keys=["region"], clock=store._clock)
    await other.record(make_trace(1, account="acme", metadata={"region": "eu"}))
    assert await store.usage_groups() == [*common, "account", "metadata.team"]
    assert await store.usage_groups(all_accounts=True) == [*common, "account", "metadata.region", "metadata.team"]
    assert await store.usage_groups(account="acme") == [*common, "metadata.region", "metadata.team"]


async def test_latency_by_day_has_all_models_together_and_each_by_itself(store: TraceStore) -> None:
    for number, day, duration_ms in ((1, 20, 100.0), (2, 20, 300.0), (3, 22, 50.0)):
        trace = make_trace(number, created_at=f"2026-11-{day}T12:00:00.000Z", duration_ms=duration_ms)
        await store.record(replace(trace, selected_model=f"acme/m{number}"))
    rows = await store.latency_by_day("2026-11-19", "2026-11-22")
    assert [(row.day, row.model, row.count) for row in rows] == [
        ("2026-11-20", None, 2), ("2026-11-20", "acme/m1", 1), ("2026-11-20", "acme/m2", 1),
        ("2026-11-22", None, 1), ("2026-11-22", "acme/m3", 1),
    ]  # fmt: skip
    assert [rows[0].p50_ms, rows[0].p95_ms, rows[2].p99_ms] == pytest.approx([100, 300, 300], rel=0.01)
    with pytest.raises(ValidationFailed, match="over 32 days"):
        await store.latency_by_day("2026-10-22", "2026-11-22")


async def test_the_rows_of_a_report_add_up_to_its_totals_while_others_write(storage: Storage, clock: FakeClock) -> None:
    writer = TraceStore(storage, clock=clock)

    class Busy:
        """Somebody writes behind every answer."""

        def __getattr__(self, name: str) -> Any:
            return getattr(storage, name)

        async def read(self, account: str, query: Query) -> Any:
            answer = await storage.read(account, query)
            await writer.record(make_trace(next(numbers), metadata={"tenant": "acme"}))
            return answer

    numbers, busy = count(1), Busy()
    store = TraceStore(busy, clock=clock)
    for expected in ([], [("acme", 1)], [("acme", 2)]):
        report = await store.usage(group_by="tenant")
        assert [(row.group, row.requests) for row in report.data] == expected
        assert report.totals.requests == sum(requests for _, requests in expected)
    await writer.aclose()


# Retention


async def test_retaining_removes_what_is_older_and_reports_still_count_it(store: TraceStore) -> None:
    await fill(
        store,
        [replace(make_trace(n, decision_input=None), created_at=f"2026-11-{n}T12:00:00.000Z") for n in range(10, 23)],
    )
    assert await store.retain(Retention(production_days=7)) == 5
    assert await store.retention() == Retention(production_days=7)
    assert [int(trace_id.removeprefix("tr_")) for trace_id in ids((await store.query()).data)] == list(
        range(22, 14, -1)
    )
    assert (await store.usage("2026-11-01")).totals.requests == 13
    assert await store.retain(Retention(production_days=None, sandbox_days=None)) == 0
    assert await store.retention() == Retention(production_days=None, sandbox_days=None)


async def test_retain_takes_a_retention(filled: TraceStore) -> None:
    await refused("retention", filled.retain(30))  # type: ignore[arg-type]


# Storages that fail


class Broken(MemoryStorage):
    """A storage that raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def apply(self, *arguments: object) -> Any:
        raise self._error

    async def scan(self, *arguments: object, **options: object) -> Any:
        raise self._error

    read = apply  # type: ignore[assignment]


@table("error", [StorageUnavailable("away"), KeyError("secret words")], ids=["away", "a fault of its"])
@table("method", [*METHODS, "record", "retain", "retention"])
async def test_storage_errors_are_router_errors(method: str, error: Exception) -> None:
    store = TraceStore(Broken(error))
    others: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "record": lambda: store.record(make_trace(1)),
        "retain": lambda: store.retain(Retention()),
        "retention": store.retention,
    }
    with pytest.raises(RouterError) as raised:
        await (others[method]() if method in others else METHODS[method](store))
    assert type(raised.value) is (StorageUnavailable if isinstance(error, RouterError) else InternalError)
    assert "secret words" not in str(raised.value)
