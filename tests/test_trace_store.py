"""``TraceStore``: what it takes and refuses, its pages and cursors, its reports, and what it removes."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from routewright import MemoryStorage, SqliteStorage
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
from routewright.testing.storage import make_trace
from routewright.testing.storage.samples import newest_first, random_trace, spans_of_each_kind
from routewright.trace import TraceStore
from routewright.wire import (
    Bucket,
    CacheCounts,
    FallbackCounts,
    LatencyCounts,
    Page,
    Query,
    Selection,
    Trace,
    TraceItem,
    UsageCounts,
)

pytestmark = pytest.mark.anyio

START = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY_S = 24 * 3600.0
BUCKETS: tuple[Bucket, ...] = ("day", "week", "month")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START.timestamp(), autojump=False)


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Storage:
    return MemoryStorage() if request.param == "memory" else SqliteStorage(tmp_path / "traces.db", clock=clock)


@pytest.fixture
async def store(storage: Storage, clock: FakeClock) -> AsyncIterator[TraceStore]:
    store = TraceStore(storage, rollup_keys=["team"], clock=clock)
    yield store
    await store.aclose()


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


def test_a_store_takes_a_storage_or_its_url(tmp_path: Path) -> None:
    assert isinstance(TraceStore("memory:")._storage, MemoryStorage)
    assert isinstance(TraceStore(f"sqlite:///{tmp_path}/traces.db")._storage, SqliteStorage)
    storage = MemoryStorage()
    assert TraceStore(storage)._storage is storage
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [None, 7, MemoryStorage, object(), "traces.db", "mysql://host/db", "sqlite:"])
def test_what_is_no_storage_is_refused(given: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"storage|url"):
        TraceStore(given)


@pytest.mark.parametrize("given", ["team", [""], [7], ["x" * 101], [f"key{number}" for number in range(9)], {"team"}])
def test_names_to_count_by_are_few_texts(given: Any) -> None:
    with pytest.raises(ValidationFailed, match="rollup_keys"):
        TraceStore(MemoryStorage(), rollup_keys=given)


# record and get


async def test_what_is_recorded_is_read_back_under_its_own_account(store: TraceStore) -> None:
    trace = make_trace(1, account="acme", environment="sandbox", spans=spans_of_each_kind())
    await store.record(trace)
    assert await store.get(trace.id, account="acme") == trace
    assert await store.get("trc_" + trace.id.removeprefix("tr_"), account="acme", environment="sandbox") == trace
    for asked in ({}, {"account": "acme", "environment": "production"}, {"account": "Acme"}):
        with pytest.raises(NotFound):
            await store.get(trace.id, **asked)  # type: ignore[arg-type]


async def test_an_unknown_trace_and_anothers_are_refused_in_the_same_words(store: TraceStore) -> None:
    await store.record(make_trace(1, account="acme"))
    said = []
    for trace_id in (make_trace(1).id, make_trace(2).id):
        with pytest.raises(NotFound) as raised:
            await store.get(trace_id)
        said.append(str(raised.value).replace(trace_id, "ID"))
    assert said[0] == said[1]


async def test_a_time_is_stored_in_the_one_form(store: TraceStore) -> None:
    await store.record(make_trace(1, created_at="2026-11-21T01:00:00.0001+01:00"))
    assert (await store.get(make_trace(1).id)).created_at == "2026-11-21T00:00:00.001Z"


@pytest.mark.parametrize(
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
async def test_what_is_no_sound_trace_is_refused_by_the_name_of_its_field(
    store: TraceStore, given: Any, path: str
) -> None:
    with pytest.raises(ValidationFailed) as raised:
        await store.record(given)
    assert any(problem.path.startswith(path) for problem in raised.value.problems)
    assert (await store.query()).data == []


@pytest.mark.parametrize("environment", ["production", "sandbox"])
async def test_a_trace_of_one_environment_takes_no_place_of_the_others(store: TraceStore, environment: Any) -> None:
    there = make_trace(1, environment=environment)
    other: Any = {"production": "sandbox", "sandbox": "production"}[environment]
    await store.record(there)
    with pytest.raises(
        ValidationFailed,
        match=rf"trace.id: .* exists in the environment other than {other}; record it under another id",
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
    "get": lambda store, **given: store.get(TR, **given),
    "query": lambda store, **given: store.query(**given),
    "export": lambda store, **given: drained(store.export(**given)),
    "delete": lambda store, **given: store.delete(trace_id=TR, **given),
    "feedback": lambda store, **given: store.feedback(TR, 1.0, **given),
    "feedback_of": lambda store, **given: store.feedback_of(TR, **given),
    "usage": lambda store, **given: store.usage(**given),
    "cache_report": lambda store, **given: store.cache_report(**given),
    "fallback_report": lambda store, **given: store.fallback_report(**given),
    "latency_report": lambda store, **given: store.latency_report(**given),
}
REPORTS = ("usage", "cache_report", "fallback_report", "latency_report")
SELECTING = ("query", "export", "delete")


async def refused(path: str, doing: Coroutine[Any, Any, Any]) -> None:
    with pytest.raises(ValidationFailed) as raised:
        await doing
    assert [problem.path for problem in raised.value.problems] == [path]


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_refuses_what_is_no_account_or_environment(store: TraceStore, method: str) -> None:
    for account in ("", "_system", "a\nb", "x" * 201, None, 7, "\ud800"):
        await refused("account", METHODS[method](store, account=account))
    for environment in ("test", "", 7, "Production"):
        await refused("environment", METHODS[method](store, environment=environment))


@pytest.mark.parametrize("method", SELECTING)
@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"filter": "stats=failed"}, "filter[0]"),
        ({"filter": "status=failed,cost_usd>ten"}, "filter[1]"),
        ({"filter": 7}, "filter"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-11-22", "until": "2026-11-21"}, "since"),
        ({"since": datetime(2026, 11, 21)}, "since"),
        ({"until": 7}, "until"),
        ({"until": "2026-13-01"}, "until"),
    ],
    ids=str,
)
async def test_every_selection_refuses_what_it_cannot_read(
    store: TraceStore, method: str, given: Any, path: str
) -> None:
    await refused(path, METHODS[method](store, **given))


@pytest.mark.parametrize("method", REPORTS)
@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"start_date": "2026-11-32"}, "start_date"),
        ({"end_date": "tomorrow"}, "end_date"),
        ({"start_date": "2026-11-22", "end_date": "2026-11-21"}, "start_date"),
        ({"start_date": "1999-01-01"}, "start_date"),
        ({"start_date": 7}, "start_date"),
    ],
    ids=str,
)
async def test_every_report_refuses_what_are_no_days(store: TraceStore, method: str, given: Any, path: str) -> None:
    await refused(path, METHODS[method](store, **given))


@pytest.mark.parametrize("method", ["get", "delete", "feedback", "feedback_of"])
async def test_a_trace_id_is_a_text(store: TraceStore, method: str) -> None:
    for trace_id in (7, b"tr_1", ["tr_1"], "\ud800"):
        calls: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
            "get": lambda given: store.get(given),
            "delete": lambda given: store.delete(trace_id=given),
            "feedback": lambda given: store.feedback(given, 1.0),
            "feedback_of": lambda given: store.feedback_of(given),
        }
        await refused("trace_id", calls[method](trace_id))


# query


@pytest.mark.parametrize("limit", [1, 7, 59, 60, 61, 200])
async def test_pages_hold_each_trace_once_newest_first(store: TraceStore, limit: int) -> None:
    traces = await fill(store)
    found = await pages(store, limit=limit)
    assert [item for page in found for item in page.data] == [trace.item for trace in traces]
    assert [len(page.data) for page in found[:-1]] == [limit] * (len(found) - 1)
    assert len(found) == -(-len(traces) // limit), "no page is empty"


async def test_a_page_has_fifty_traces_unless_it_is_told_else(store: TraceStore) -> None:
    await fill(store)
    page = await store.query()
    assert (len(page.data), page.has_more) == (50, True)
    assert len((await store.query(limit=10.0)).data) == 10  # type: ignore[arg-type]


async def test_a_store_with_nothing_in_it_gives_an_empty_page(store: TraceStore) -> None:
    assert await store.query() == Page([], None, False)


@pytest.mark.parametrize("limit", [0, -1, 201, 1.5, True, "10", None, float("nan"), float("inf"), 10**400])
async def test_a_limit_is_from_1_to_200(store: TraceStore, limit: Any) -> None:
    await refused("limit", store.query(limit=limit))


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


@pytest.mark.parametrize("filter", FILTERS)
async def test_a_filter_gives_what_it_means(store: TraceStore, filter: str) -> None:
    traces = await fill(store)
    terms = parse_filter(filter)
    expected = [trace for trace in traces if selects(Selection(terms=terms), trace)]
    found = await pages(store, filter=filter, limit=7)
    assert ids([item for page in found for item in page.data]) == ids(expected)
    assert [trace async for trace in store.export(filter=filter)] == expected


@pytest.mark.parametrize(
    ("since", "until"),
    [
        ("2026-11-20", None),
        (date(2026, 11, 20), date(2026, 11, 21)),
        (None, "2026-11-20T13:30:00Z"),
        ("2026-11-20T14:30:00+01:00", datetime(2026, 11, 21, 1, tzinfo=timezone(timedelta(hours=1)))),
        ("2026-11-20T13:59:59.9991Z", None),
    ],
)
@pytest.mark.parametrize("environment", [None, "production"])
async def test_a_window_begins_with_since_and_ends_before_until(
    store: TraceStore, since: Any, until: Any, environment: Any
) -> None:
    def moment(given: str | date | None) -> datetime | None:
        if given is None:
            return None
        at = datetime.fromisoformat(str(given))
        return at if at.tzinfo else at.replace(tzinfo=UTC)

    first, end = moment(since), moment(until)
    expected = [
        trace
        for trace in await fill(store)
        for at in [datetime.fromisoformat(trace.created_at)]
        if (first is None or at >= first) and (end is None or at < end) and environment in (None, trace.environment)
    ]
    assert 0 < len(expected) < 60
    found = await pages(store, since=since, until=until, environment=environment, limit=9)
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
async def test_a_cursor_holds_for_one_query_of_one_account(store: TraceStore, other: dict[str, Any]) -> None:
    await fill(store)
    await fill(store, [replace(trace, account="acme") for trace in chance_traces()])
    mine, its = await a_cursor(store), await a_cursor(store, **other)
    with pytest.raises(CursorInvalid, match="does not belong to this query"):
        await store.query(**other, cursor=mine)
    with pytest.raises(CursorInvalid):
        await store.query(cursor=its)
    assert len((await store.query(cursor=mine, limit=5)).data) == 5, "another limit is no other query"
    assert (await store.query(**other, cursor=its)).data


@pytest.mark.parametrize("cursor", ["", "x", "=", "AAAA", "é" * 40, "A" * 2_000, "tr_1", 7, b"AAAA", ["x"], True])
async def test_what_is_no_cursor_is_refused_as_one(store: TraceStore, cursor: Any) -> None:
    with pytest.raises(CursorInvalid):
        await store.query(cursor=cursor)


async def test_a_cursor_lives_24_hours(store: TraceStore, clock: FakeClock) -> None:
    await fill(store)
    cursor = await a_cursor(store)
    await clock.advance(DAY_S)
    assert (await store.query(cursor=cursor)).data
    await clock.advance(1.0)
    with pytest.raises(CursorExpired, match="older than 24 hours: start again without a cursor"):
        await store.query(cursor=cursor)


async def test_a_cursor_with_any_bit_flipped_is_refused(store: TraceStore, full: bool) -> None:
    await fill(store)
    cursor = await a_cursor(store)
    whole = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    rng = Random(1)
    assert (await store.query(cursor=cursor)).data
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
            await store.query(cursor=flipped)


async def test_a_cursor_of_a_file_holds_in_every_process_and_one_of_memory_for_that_memory_alone(
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


async def test_a_walk_over_pages_survives_what_is_recorded_and_deleted_meanwhile(store: TraceStore) -> None:
    traces = await fill(store)
    seen, cursor = list[str](), None
    for number in range(100):
        page = await store.query(limit=7, cursor=cursor)
        seen += ids(page.data)
        cursor = page.next_cursor
        if cursor is None:
            break
        await store.record(make_trace(1_000 + number, created_at="2026-11-22T00:00:00Z"))
        await store.delete(trace_id=page.data[-1].id)
    assert seen == ids(traces)


# export


async def test_an_export_gives_whole_traces_newest_first_over_many_pieces(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = await fill(store)
    for piece in (7, 30, 60, 200):
        monkeypatch.setattr("routewright.trace.PIECE", piece)
        assert [trace async for trace in store.export()] == traces
    assert [trace async for trace in store.export(account="acme")] == []


async def test_an_export_can_be_left_and_meets_none_twice_while_more_come(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routewright.trace.PIECE", 5)
    traces = await fill(store)
    seen = []
    async with aclosing(store.export()) as exported:
        async for trace in exported:
            seen.append(trace.id)
            if len(seen) % 4 == 0:
                await store.record(make_trace(2_000 + len(seen), created_at="2026-11-22T00:00:00Z"))
            if len(seen) == 40:
                break
    assert seen == ids(traces[:40])


# another account


async def test_a_store_speaks_for_the_account_that_it_is_told(store: TraceStore) -> None:
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


async def test_a_store_is_closed_behind_async_with(tmp_path: Path) -> None:
    async with TraceStore(f"sqlite:///{tmp_path / 'traces.db'}") as store:
        await store.record(make_trace(1))
        assert len(names(tmp_path)) > 1
    assert names(tmp_path) == {"traces.db"}


# delete


@pytest.mark.parametrize("given", [{}, {"environment": "sandbox"}, {"account": "acme"}, {"filter": ""}], ids=str)
async def test_a_deletion_has_to_say_which(store: TraceStore, given: dict[str, Any]) -> None:
    await fill(store)
    with pytest.raises(ValidationFailed, match="does not say which traces; pass trace_id, filter, since or until"):
        await store.delete(**given)
    assert len([trace async for trace in store.export()]) == 60


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
async def test_what_is_selected_is_deleted_and_nothing_else(
    store: TraceStore, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routewright.trace.DELETE_AT_ONCE", 4)
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
    usage = await store.usage("2026-11-01")
    assert usage.totals.requests == sum(trace.kind == "route" for trace in left)
    assert usage.runs == Counter(trace.status for trace in left if trace.kind == "agent")


@pytest.mark.parametrize("everything", ["no", "yes", 1, 0, None])
async def test_everything_is_deleted_only_for_a_true(store: TraceStore, everything: Any) -> None:
    await fill(store)
    with pytest.raises(ValidationFailed, match=r"everything: is .*; pass True, or leave it out"):
        await store.delete(everything=everything)
    assert len([trace async for trace in store.export()]) == 60


@pytest.mark.parametrize("more", [{"filter": "kind=agent"}, {"since": "2026-11-21"}, {"trace_id": TR}], ids=str)
async def test_everything_is_more_than_what_else_is_given(store: TraceStore, more: dict[str, Any]) -> None:
    await fill(store)
    with pytest.raises(
        ValidationFailed, match="everything: cannot be combined with a selection; leave out one of them"
    ):
        await store.delete(everything=True, **more)
    assert len([trace async for trace in store.export()]) == 60


async def test_one_trace_is_deleted_by_either_form_of_its_id(store: TraceStore) -> None:
    await fill(store, [make_trace(number) for number in range(4)])
    assert await store.delete(trace_id=make_trace(1).id) == 1
    assert await store.delete(trace_id="trc_" + make_trace(2).id.removeprefix("tr_")) == 1
    assert await store.delete(trace_id=make_trace(3).id, account="acme") == 0
    assert await store.delete(trace_id=make_trace(3).id, environment="sandbox") == 0
    assert await store.delete(trace_id=make_trace(3).id, filter="status=failed") == 0
    assert ids((await store.query()).data) == [make_trace(3).id, make_trace(0).id]


# feedback


async def test_feedback_is_kept_with_its_time_and_goes_with_its_trace(store: TraceStore, clock: FakeClock) -> None:
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


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan"), True, "1", None, 10**400])
async def test_a_score_is_from_0_to_1(store: TraceStore, score: Any) -> None:
    await store.record(make_trace(1))
    await refused("score", store.feedback(TR, score))


@pytest.mark.parametrize("comment", [7, b"good", "\ud800"])
async def test_a_comment_is_a_text(store: TraceStore, comment: Any) -> None:
    await store.record(make_trace(1))
    await refused("comment", store.feedback(TR, 1.0, comment))


# Reports


def counted(traces: list[Trace]) -> Rollups:
    rollups = Rollups()
    for trace in traces:
        rollups.add(trace, ("team",))
    return rollups


async def test_reports_are_of_the_last_seven_days_unless_they_are_told_else(store: TraceStore) -> None:
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
async def test_reports_say_what_counting_the_traces_anew_says(store: TraceStore, environment: Any) -> None:
    rollups = counted(await fill(store))
    first, last = "2026-11-19", "2026-11-21"
    days: dict[str, Any] = {"first": first, "last": last, "environment": environment}
    given: dict[str, Any] = {"environment": environment}
    for group_by in ("model", "tenant", "workflow", "metadata.team"):
        counts = rollups.usage_counts(UsageCounts(**days, group_by=group_by))
        for bucket in BUCKETS:
            found = await store.usage(first, last, group_by=group_by, bucket=bucket, **given)
            assert found == usage_report(counts, first, last, bucket, group_by)
            assert sum(row.requests for row in found.data) == found.totals.requests
    hours = rollups.usage_counts(UsageCounts(**days, group_by="model", hourly=True))
    assert await store.usage(first, last, bucket="hour", **given) == usage_report(hours, first, last, "hour", "model")
    cache = cache_report(rollups.cache_counts(CacheCounts(**days)), first, last)
    assert await store.cache_report(first, last, **given) == cache
    fallback = fallback_report(rollups.fallback_counts(FallbackCounts(**days)), first, last)
    assert await store.fallback_report(first, last, **given) == fallback
    latency = latency_report(rollups.latency_counts(LatencyCounts(**days)), first, last)
    assert await store.latency_report(first, last, **given) == latency
    assert cache.hits
    assert fallback.candidates
    assert latency.data


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


async def test_an_account_without_traces_has_empty_reports(store: TraceStore) -> None:
    await fill(store)
    usage = await store.usage("2026-11-01", account="acme")
    assert (usage.data, usage.totals.requests) == ([], 0)
    assert (await store.cache_report("2026-11-01", account="acme")).hit_rate is None
    assert (await store.fallback_report("2026-11-01", account="acme")).rate is None
    assert (await store.latency_report("2026-11-01", account="acme")).data == []


async def test_groups_beyond_a_hundred_share_one_row(store: TraceStore) -> None:
    await fill(store, [make_trace(number, metadata={"tenant": f"t{number:03}"}) for number in range(105)])
    await fill(store, [make_trace(number, metadata={"tenant": "other"}) for number in (300, 301)])
    await store.record(make_trace(200, metadata={}))
    report = await store.usage(group_by="tenant")
    assert len(report.data) == 102
    shown = {(row.group, row.rest): row.requests for row in report.data if row.group in ("t000", "other", None)}
    assert shown == {("t000", False): 1, ("other", False): 2, ("other", True): 6, (None, False): 1}
    assert report.totals.requests == 108


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"group_by": "metadata.region"}, "group_by"),
        ({"group_by": "team"}, "group_by"),
        ({"group_by": "metadata.team'; --"}, "group_by"),
        ({"group_by": 7}, "group_by"),
        ({"group_by": ["model"]}, "group_by"),
        ({"bucket": "year"}, "bucket"),
        ({"bucket": "hour", "start_date": "2026-10-01"}, "bucket"),
    ],
    ids=str,
)
async def test_usage_is_grouped_by_what_it_was_counted_by_only(store: TraceStore, given: Any, path: str) -> None:
    await fill(store, chance_traces(5))
    await refused(path, store.usage(**given))


async def test_usage_can_be_grouped_by_what_another_store_counted(storage: Storage, clock: FakeClock) -> None:
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
async def test_how_long_is_said_as_a_retention(store: TraceStore, given: Any) -> None:
    await refused("retention", store.retain(given))


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


@pytest.mark.parametrize(
    "error", [StorageUnavailable("away"), KeyError("secret words")], ids=["away", "a fault of its"]
)
@pytest.mark.parametrize("method", [*METHODS, "record", "retain", "retention", "feedback_of"])
async def test_what_a_storage_raises_comes_out_typed(method: str, error: Exception) -> None:
    store = TraceStore(Broken(error))
    others: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "record": lambda: store.record(make_trace(1)),
        "retain": lambda: store.retain(Retention()),
        "retention": store.retention,
        "feedback_of": lambda: store.feedback_of(TR),
    }
    with pytest.raises(RouterError) as raised:
        await (others[method]() if method in others else METHODS[method](store))
    assert type(raised.value) is (StorageUnavailable if isinstance(error, RouterError) else InternalError)
    assert "secret words" not in str(raised.value)
