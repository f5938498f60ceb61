"""``TraceStore``: what it takes and refuses, its pages and cursors, its reports, and what it removes."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
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
    CursorExpired,
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
DAY_S = 24 * 3600.0
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


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


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


@table("given", ["team", [""], [7], ["x" * 101], [f"key{number}" for number in range(9)], {"team"}])
def test_rollup_keys_are_at_most_eight_strings(given: Any) -> None:
    with pytest.raises(ValidationFailed, match="rollup_keys"):
        TraceStore(MemoryStorage(), rollup_keys=given)


# record and get


async def test_a_recorded_trace_is_read_under_its_own_account(store: TraceStore) -> None:
    trace = make_trace(1, account="acme", environment="sandbox", spans=spans_of_each_kind())
    await store.record(trace)
    assert await store.get(trace.id, account="acme") == trace
    assert await store.get("trc_" + trace.id.removeprefix("tr_"), account="acme", environment="sandbox") == trace
    for asked in ({}, {"account": "acme", "environment": "production"}, {"account": "Acme"}):
        with pytest.raises(NotFound):
            await store.get(trace.id, **asked)  # type: ignore[arg-type]


async def test_an_unknown_and_a_foreign_trace_raise_the_same_error(store: TraceStore) -> None:
    await store.record(make_trace(1, account="acme"))
    said = []
    for trace_id in (make_trace(1).id, make_trace(2).id):
        with pytest.raises(NotFound) as raised:
            await store.get(trace_id)
        said.append(str(raised.value).replace(trace_id, "ID"))
    assert said[0] == said[1]


async def test_times_are_stored_in_one_format(store: TraceStore) -> None:
    await store.record(make_trace(1, created_at="2026-11-21T01:00:00.0001+01:00"))
    assert (await store.get(make_trace(1).id)).created_at == "2026-11-21T00:00:00.001Z"


@table(
    ("given", "path"),
    [
        (None, "trace"),
        ({"id": "tr_1"}, "trace"),
        (make_trace(1).item, "trace"),
        (make_trace(1, id=""), "trace.id"),
        (make_trace(1, id="a\0b"), "trace.id"),
        (make_trace(1, id="x" * 101), "trace.id"),
        (make_trace(1, account=""), "trace.account"),
        (make_trace(1, account="_system"), "trace.account"),
        (make_trace(1, account="x" * 201), "trace.account"),
        (make_trace(1, created_at="yesterday"), "trace.created_at"),
        (make_trace(1, created_at="2026-11-21T00:00:00"), "trace.created_at"),
        (make_trace(1, status="done"), "trace.status"),
        (make_trace(1, environment="test"), "trace.environment"),
        (make_trace(1, cost_usd=float("nan")), "trace.cost_usd"),
        (make_trace(1, duration_ms=-1.0), "trace.duration_ms"),
        (make_trace(1, metadata={"a": {1, 2}}), "trace.metadata"),
        (make_trace(1, metadata={"a": "\ud800"}), "trace.metadata"),
        (make_trace(1, error="\ud800"), "trace"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
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
LIMITS = (0, -1, 201, 1.5, True, "10", None, float("nan"), float("inf"), 10**400)
INVALID: dict[tuple[str, ...], list[tuple[dict[str, Any], str]]] = {
    ("query",): [({"limit": limit}, "limit") for limit in LIMITS],
    ("query", "export", "delete"): [
        ({"filter": "stats=failed"}, "filter[0]"),
        ({"filter": "status=failed,cost_usd>ten"}, "filter[1]"),
        ({"filter": 7}, "filter"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-11-22", "until": "2026-11-21"}, "since"),
        ({"since": datetime(2026, 11, 21)}, "since"),
        ({"until": 7}, "until"),
        ({"until": "2026-13-01"}, "until"),
    ],
    ("get", "delete", "feedback", "feedback_of"): [
        ({"trace_id": given}, "trace_id") for given in (7, b"tr_1", ["tr_1"], "\ud800")
    ],
    ("feedback",): [
        *(({"score": score}, "score") for score in (-0.1, 1.1, float("nan"), True, "1", None, 10**400)),
        *(({"comment": comment}, "comment") for comment in (7, b"good", "\ud800")),
    ],
    ("usage", "cache_report", "fallback_report", "latency_report"): [
        ({"start_date": "2026-11-32"}, "start_date"),
        ({"end_date": "tomorrow"}, "end_date"),
        ({"start_date": "2026-11-22", "end_date": "2026-11-21"}, "start_date"),
        ({"start_date": "1999-01-01"}, "start_date"),
        ({"start_date": 7}, "start_date"),
    ],
    ("usage",): [
        ({"group_by": "metadata.region"}, "group_by"),
        ({"group_by": "team"}, "group_by"),
        ({"group_by": "metadata.team'; --"}, "group_by"),
        ({"group_by": 7}, "group_by"),
        ({"group_by": ["model"]}, "group_by"),
        ({"bucket": "year"}, "bucket"),
        ({"bucket": "hour", "start_date": "2026-10-01"}, "bucket"),
    ],
}
"""What methods refuse, and at which path."""


async def refused(path: str, doing: Coroutine[Any, Any, Any]) -> None:
    with pytest.raises(ValidationFailed) as raised:
        await doing
    assert [problem.path for problem in raised.value.problems] == [path]


@table("method", METHODS)
async def test_every_method_refuses_an_invalid_account_or_environment(filled: TraceStore, method: str) -> None:
    for account in ("", "_system", "a\nb", "x" * 201, None, 7, "\ud800"):
        await refused("account", METHODS[method](filled, account=account))
    for environment in ("test", "", 7, "Production"):
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


@pytest.mark.parametrize("limit", [1, 7, 59, 60, 61, 200])
async def test_pages_hold_each_trace_once_newest_first(filled: TraceStore, limit: int) -> None:
    traces = newest_first(chance_traces())
    found = await pages(filled, limit=limit)
    assert [item for page in found for item in page.data] == [trace.item for trace in traces]
    assert [len(page.data) for page in found[:-1]] == [limit] * (len(found) - 1)
    assert len(found) == -(-len(traces) // limit), "no page is empty"


async def test_a_page_has_fifty_traces_by_default(filled: TraceStore) -> None:
    page = await filled.query()
    assert (len(page.data), page.has_more) == (50, True)
    assert len((await filled.query(limit=10.0)).data) == 10  # type: ignore[arg-type]


async def test_an_empty_store_gives_an_empty_page(store: TraceStore) -> None:
    assert await store.query() == Page([], None, False)


FILTERS = (
    "",
    "status=failed",
    "status!=completed,environment=sandbox",
    "metadata.team=search",
    'metadata.team="it\'s"',
    "metadata.team!=search,cost_usd>=0.01",
    "metadata.team>=1",
    "metadata.team=1.0",
    "cache_hit=true",
    'model=""',
    "provider=a,duration_ms<100.5",
    "kind=agent,goal=cost,strategy=balanced,fallback_used=false",
)


@table("filter", FILTERS)
async def test_a_filter_selects_the_matching_traces(filled: TraceStore, filter: str) -> None:
    traces = newest_first(chance_traces())
    terms = parse_filter(filter)
    expected = [trace for trace in traces if selects(Selection(terms=terms), trace)]
    found = await pages(filled, filter=filter, limit=7)
    assert ids([item for page in found for item in page.data]) == ids(expected)
    assert [trace async for trace in filled.export(filter=filter)] == expected


@table(
    ("since", "until"),
    [
        ("2026-11-20", None),
        (date(2026, 11, 20), date(2026, 11, 21)),
        (None, "2026-11-20T13:30:00Z"),
        ("2026-11-20T14:30:00+01:00", datetime(2026, 11, 21, 1, tzinfo=timezone(timedelta(hours=1)))),
        ("2026-11-20T13:59:59.9991Z", None),
    ],
)
@table("environment", [None, "production"])
async def test_since_is_inclusive_and_until_exclusive(
    filled: TraceStore, since: Any, until: Any, environment: Any
) -> None:
    def moment(given: str | date | None) -> datetime | None:
        if given is None:
            return None
        at = datetime.fromisoformat(str(given))
        return at if at.tzinfo else at.replace(tzinfo=UTC)

    first, end = moment(since), moment(until)
    expected = [
        trace
        for trace in newest_first(chance_traces())
        for at in [datetime.fromisoformat(trace.created_at)]
        if (first is None or at >= first) and (end is None or at < end) and environment in (None, trace.environment)
    ]
    assert 0 < len(expected) < 60
    found = await pages(filled, since=since, until=until, environment=environment, limit=9)
    assert ids([item for page in found for item in page.data]) == ids(expected)


# Cursors


async def a_cursor(store: TraceStore, **asked: Any) -> str:
    page = await store.query(**{"limit": 3} | asked)
    assert page.next_cursor is not None
    return page.next_cursor


@pytest.mark.parametrize(
    "other",
    [
        {"filter": "status=failed"},
        {"filter": "status!=failed"},
        {"since": "2026-11-01"},
        {"until": "2026-11-30"},
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


@table("cursor", ["", "x", "=", "AAAA", "é" * 40, "A" * 2_000, "tr_1", 7, b"AAAA", ["x"], True])
async def test_an_invalid_cursor_is_refused(filled: TraceStore, cursor: Any) -> None:
    with pytest.raises(CursorInvalid):
        await filled.query(cursor=cursor)


async def test_a_cursor_expires_after_24_hours(store: TraceStore, clock: FakeClock) -> None:
    await fill(store)
    cursor = await a_cursor(store)
    await clock.advance(DAY_S)
    assert (await store.query(cursor=cursor)).data
    await clock.advance(1.0)
    with pytest.raises(CursorExpired, match="older than 24 hours; start again without a cursor"):
        await store.query(cursor=cursor)


async def test_a_cursor_with_any_bit_flipped_is_refused(filled: TraceStore, full: bool) -> None:
    cursor = await a_cursor(filled)
    whole = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    rng = Random(1)
    assert (await filled.query(cursor=cursor)).data
    for number in range(10_000 if full else 400):
        if number % 2:
            bits = bytearray(whole)
            for _ in range(rng.choice((1, 1, 2, 8))):
                at = rng.randrange(len(bits) * 8)
                bits[at // 8] ^= 1 << at % 8
            flipped = urlsafe_b64encode(bits).rstrip(b"=").decode()
        else:
            at = rng.randrange(len(cursor))
            flipped = cursor[:at] + chr(ord(cursor[at]) ^ 1 << rng.randrange(7)) + cursor[at + 1 :]
        if flipped == cursor:
            continue
        with pytest.raises(CursorInvalid):
            await filled.query(cursor=flipped)


async def test_a_cursor_of_a_file_is_valid_in_every_process_and_of_memory_only_there(
    tmp_path: Path, clock: FakeClock
) -> None:
    path = tmp_path / "traces.db"
    one, two = (TraceStore(SqliteStorage(path, clock=clock), clock=clock) for _ in range(2))
    await fill(one, chance_traces(10))
    assert (await two.query(cursor=await a_cursor(one))).data
    for store in (one, two):
        await store.aclose()
    memory = MemoryStorage()
    one, two, other = (TraceStore(each, clock=clock) for each in (memory, memory, MemoryStorage()))
    await fill(one, chance_traces(10))
    assert (await two.query(cursor=await a_cursor(one))).data
    with pytest.raises(CursorInvalid):
        await other.query(cursor=await a_cursor(one))


# export


async def test_an_export_gives_whole_traces_newest_first_over_many_pieces(
    filled: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = newest_first(chance_traces())
    for piece in (7, 30, 60, 200):
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


async def test_async_with_closes_the_store(tmp_path: Path) -> None:
    async with TraceStore(f"sqlite:///{tmp_path / 'traces.db'}") as store:
        await store.record(make_trace(1))
        assert len(names(tmp_path)) > 1
    assert names(tmp_path) == {"traces.db"}


# delete


UNSELECTED = "no traces are selected; pass trace_id, filter, since or until"
COMBINED = "everything: cannot be combined with a selection; leave out one of them"


@table(
    ("given", "said"),
    [
        *((given, UNSELECTED) for given in ({}, {"environment": "sandbox"}, {"account": "acme"}, {"filter": ""})),
        *(({"everything": given}, "everything: is .*; pass True, or") for given in ("no", "yes", 1, 0, None)),
        *(({"everything": True, name: "2026-11-21"}, COMBINED) for name in ("since", "until")),
        ({"everything": True, "filter": "kind=agent"}, COMBINED),
        ({"everything": True, "trace_id": TR}, COMBINED),
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
        {"filter": "metadata.team=search,cost_usd>0"},
        {"since": "2026-11-21"},
        {"until": "2026-11-20", "environment": "sandbox"},
        {"everything": True, "environment": "production"},
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


async def test_a_trace_is_deleted_by_either_form_of_its_id(store: TraceStore) -> None:
    await fill(store, [make_trace(number) for number in range(4)])
    assert await store.delete(trace_id=make_trace(1).id) == 1
    assert await store.delete(trace_id="trc_" + make_trace(2).id.removeprefix("tr_")) == 1
    assert await store.delete(trace_id=make_trace(3).id, account="acme") == 0
    assert await store.delete(trace_id=make_trace(3).id, environment="sandbox") == 0
    assert await store.delete(trace_id=make_trace(3).id, filter="status=failed") == 0
    assert ids((await store.query()).data) == [make_trace(3).id, make_trace(0).id]


# feedback


async def test_feedback_is_stored_with_its_time_and_deleted_with_its_trace(store: TraceStore, clock: FakeClock) -> None:
    await store.record(make_trace(1))
    assert await store.feedback_of(TR) is None
    await store.feedback(TR, 1)
    await clock.advance(5.0)
    await store.feedback("trc_" + TR.removeprefix("tr_"), 0.25, "it's \0 wrong 😀")
    said = await store.feedback_of(TR)
    assert said is not None
    assert (said.score, said.comment, said.at) == (0.25, "it's \0 wrong 😀", START.timestamp() + 5.0)
    assert await store.feedback_of(TR, account="acme") is None
    assert await store.feedback_of(TR, environment="production") == said
    assert await store.feedback_of(TR, environment="sandbox") is None
    await store.delete(trace_id=TR)
    assert await store.feedback_of(TR) is None


@pytest.mark.parametrize(
    "given", [{}, {"account": "acme"}, {"account": "acme", "environment": "sandbox"}, {"environment": "production"}]
)
async def test_feedback_needs_a_trace_of_the_account_and_environment(store: TraceStore, given: dict[str, Any]) -> None:
    if given.get("account") != "acme" and given:
        await store.record(make_trace(1, environment="sandbox"))
    else:
        await store.record(make_trace(1, account="acme" if given.get("environment") else "other"))
    with pytest.raises(NotFound, match="no trace"):
        await store.feedback(TR, 1.0, **given)
    assert await store.feedback_of(TR) is None


# Reports


def counted(traces: list[Trace]) -> Rollups:
    rollups = Rollups()
    for trace in traces:
        rollups.add(trace, ("team",))
    return rollups


async def test_reports_cover_the_last_seven_days_by_default(store: TraceStore) -> None:
    traces = await fill(store, [make_trace(n, created_at=f"2026-11-{14 + n}T23:59:59.999Z") for n in range(10)])
    report = await store.usage()
    assert (report.start_date, report.end_date, report.bucket, report.group_by) == (
        "2026-11-16",
        "2026-11-22",
        "day",
        "model",
    )
    assert report.totals.requests == 7
    assert [row.bucket_start for row in report.data] == [f"2026-11-{day}T00:00:00Z" for day in range(16, 23)]
    for found in (await store.cache_report(), await store.fallback_report(), await store.latency_report()):
        assert (found.start_date, found.end_date) == ("2026-11-16", "2026-11-22")
    assert (await store.usage("2026-11-14")).totals.requests == 9, "up to today"
    assert (await store.usage(end_date="2026-11-14")).totals.requests == 1
    assert (await store.usage(date(2026, 11, 20), "2026-11-21")).totals.requests == 2
    assert len(traces) == 10


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


async def test_a_sandbox_routers_reports_are_of_the_sandbox() -> None:
    router = Router.sandbox()
    await router.route("hi")
    for traces in (router.traces, router.as_caller(Caller()).traces):
        assert (await traces.usage()).totals.requests == 1
        assert (await traces.usage(environment="production")).totals.requests == 0


async def test_the_reports_of_a_caller_are_of_its_environment(storage: Storage, store: TraceStore) -> None:
    await store.record(make_trace(1, account="acme"))
    for number in (2, 3):
        await store.record(make_trace(number, account="acme", environment="sandbox"))
    router = Router(providers=[], storage=storage, settings=Settings(clock=store._clock))
    for caller, requests in ((Caller("acme"), 1), (Caller("acme", "sandbox"), 2)):
        traces = router.as_caller(caller).traces
        assert (await traces.usage()).totals.requests == requests
        assert (await traces.usage(environment="all")).totals.requests == 3


async def test_usage_by_account_adds_up_over_all_accounts(storage: Storage, store: TraceStore) -> None:
    for name in ("acme", "bmw", "idle"):
        await storage.apply(name, [PutAccount(make_account(name=name))])
    owners = ["acme", "acme", "acme", "default", "bmw", "bmw"]
    for number, owner in enumerate(owners):
        await store.record(make_trace(number, account=owner))
    await store.record(make_trace(9, account="acme", environment="sandbox"))
    days = "2026-11-01", "2026-11-30"
    report = await store.usage(*days, group_by="account", bucket="month")
    assert [(row.group, row.requests) for row in report.data] == [("acme", 3), ("bmw", 2), ("default", 1)]
    assert report.group_by == "account"
    alone = [(await store.usage(*days, account=name)).totals for name in ("acme", "bmw", "default")]
    assert report.totals.cost_usd == pytest.approx(sum(totals.cost_usd for totals in alone))
    assert report.totals.requests == 6
    for view in (store.as_account("acme"), store.as_account("default")):
        with pytest.raises(ValidationFailed) as refused:
            await view.usage(*days, group_by="account")
        assert "one of model, tenant, workflow, policy_version, shadow, metadata.team;" in str(refused.value)
    with pytest.raises(
        ValidationFailed, match=r"one of model, tenant, workflow, policy_version, shadow, metadata\.team;"
    ):
        await store.usage(*days, group_by="account", account="acme")
    with pytest.raises(ValidationFailed, match="did you mean 'account'"):
        await store.usage(*days, group_by="accounts")


async def test_usage_by_account_names_a_hundred_and_sums_up_the_others(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    store = TraceStore(storage, clock=clock)
    for number in range(103):
        name = f"a{number:03}"
        await storage.apply(name, [PutAccount(make_account(name=name))])
        for call in range(1 + (number < 100)):
            await store.record(make_trace(1_000 * call + number, account=name))
    report = await store.usage("2026-11-01", "2026-11-30", group_by="account", bucket="month")
    assert [row.requests for row in report.data] == [2] * 100 + [3]
    assert (report.data[-1].group, report.data[-1].rest) == ("other", True)
    assert report.totals.requests == 203


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


async def test_groups_of_all_accounts_beyond_a_hundred_are_one_row(storage: Storage, store: TraceStore) -> None:
    await storage.apply("acme", [PutAccount(make_account(name="acme"))])
    for number in range(130):
        owner = "acme" if number % 2 else "default"
        await store.record(make_trace(number, account=owner, metadata={"team": f"t{number:03}"}))
    days = "2026-11-01", "2026-11-30"
    report = await store.usage(*days, group_by="metadata.team", bucket="month", all_accounts=True)
    assert len(report.data) == 101
    assert (report.data[-1].rest, report.data[-1].requests) == (True, 30)
    assert report.totals.requests == 130


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


class CountingStorage(MemoryStorage):
    """Counts what is read."""

    reads = 0

    async def read(self, account: str, query: Any) -> Any:
        self.reads += 1
        return await super().read(account, query)


async def test_latency_by_day_reads_idle_accounts_once(clock: FakeClock) -> None:
    storage = CountingStorage(clock=clock)
    store = TraceStore(storage, clock=clock)
    for number in range(30):
        await storage.apply(f"a{number}", [PutAccount(make_account(name=f"a{number}"))])
    trace = make_trace(1, account="a7", created_at="2026-11-20T12:00:00.000Z", duration_ms=100.0)
    await store.record(replace(trace, selected_model="acme/m1"))
    storage.reads = 0
    assert len(await store.latency_by_day("2026-11-01", "2026-11-30", all_accounts=True)) == 2
    assert storage.reads == 1 + 31 + 30  # names, the range of every account, and the days of the active one


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


async def test_usage_can_be_grouped_by_keys_that_another_store_counted(storage: Storage, clock: FakeClock) -> None:
    one, two = TraceStore(storage, rollup_keys=("region",), clock=clock), TraceStore(storage, clock=clock)
    with pytest.raises(ValidationFailed):
        await two.usage(group_by="metadata.region")
    await one.record(make_trace(1, metadata={"region": "eu"}))
    report = await two.usage(group_by="metadata.region")
    assert [(row.group, row.requests) for row in report.data] == [("eu", 1)]
    with pytest.raises(ValidationFailed):
        await two.usage(group_by="metadata.region", account="acme")


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


@pytest.mark.parametrize("given", [None, 30, {"production_days": 7}, "30d"])
async def test_retain_takes_a_retention(filled: TraceStore, given: Any) -> None:
    await refused("retention", filled.retain(given))


# Storages that fail


class Broken:
    """A storage that raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def apply(self, account: str, writes: Any) -> Any:
        raise self._error

    async def read(self, account: str, query: Any) -> Any:
        raise self._error

    async def scan(self, account: str, query: Any, *, after: str | None, limit: int) -> Any:
        raise self._error

    async def sweep(self, now: float) -> int:
        raise self._error

    async def aclose(self) -> None:
        pass


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
