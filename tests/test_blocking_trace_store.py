"""Code without ``await`` reads and keeps traces as code with it does."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path

import pytest

from routewright import Retention, Router, SqliteStorage, TraceStore
from routewright.errors import NotFound
from routewright.trace import BlockingTraceStore
from tests.contracts.storage.samples import make_trace


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlockingTraceStore:
    return TraceStore("memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'traces.db'}").blocking


def test_every_async_method_has_a_blocking_twin() -> None:
    waits = {
        name
        for name, method in inspect.getmembers(TraceStore, inspect.isfunction)
        if not name.startswith("_") and (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method))
    }
    twins = {name for name, _ in inspect.getmembers(BlockingTraceStore, inspect.isfunction) if not name.startswith("_")}
    assert waits - {"aclose"} == twins - {"close"}


def test_the_blocking_twin_does_the_same(store: BlockingTraceStore) -> None:
    traces = [make_trace(number, metadata={"tenant": "acme", "number": number}) for number in range(3)]
    for trace in traces:
        store.record(trace)
    assert store.get(traces[0].id) == traces[0]
    page = store.query(filter="metadata.number>=1", limit=1)
    assert [item.id for item in page.data] == [traces[2].id]
    rest = store.query(filter="metadata.number>=1", limit=1, cursor=page.next_cursor)
    assert ([item.id for item in rest.data], rest.has_more) == ([traces[1].id], False)
    assert list(store.export(since="2026-11-21", until="2026-11-22")) == traces[::-1]
    days = {"start_date": "2026-11-21", "end_date": "2026-11-21"}
    assert store.usage(group_by="tenant", **days).totals.requests == 3  # type: ignore[arg-type]
    assert store.cache_report(**days).hits == 0  # type: ignore[arg-type]
    assert store.fallback_report(**days).triggered == 0  # type: ignore[arg-type]
    assert store.latency_report(**days).data == []  # type: ignore[arg-type]
    store.feedback(traces[0].id, 0.5, "so so")
    said = store.feedback_of(traces[0].id)
    assert said is not None
    assert (said.score, said.comment) == (0.5, "so so")
    assert store.feedback_of(traces[0].id, account="default", environment="sandbox") is None
    assert store.delete(trace_id=traces[0].id) == 1
    with pytest.raises(NotFound):
        store.get(traces[0].id)
    assert store.retain(Retention(production_days=None, sandbox_days=None)) == 0
    assert store.retention() == Retention(production_days=None, sandbox_days=None)
    store.close()


def test_it_has_the_account_of_its_store_and_with_closes_it(tmp_path: Path) -> None:
    store = TraceStore(f"sqlite:///{tmp_path / 'traces.db'}")
    trace = make_trace(1)
    with store.blocking as default:
        default.record(trace)
        acme = store.as_account("acme").blocking
        assert acme.query().data == []
        assert store.as_account("acme").as_account("default").blocking.get(trace.id) == trace
        acme.close()
    assert [path.name for path in tmp_path.iterdir()] == ["traces.db"]


def test_that_of_a_router_reads_pending_traces_without_its_own_thread(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    router = Router.sandbox(storage=SqliteStorage(tmp_path / "traces.db"))
    answer = router.blocking.route("hi")
    assert [item.id for item in router.blocking.traces.query().data] == [answer.trace_id]
    threads = {each.name for each in {*threading.enumerate()} - before if each.name.startswith("routewright")}
    of_storage = "routewright-sqlite", "routewright-background"
    assert len([name for name in threads if not name.startswith(of_storage)]) == 1
    router.blocking.close()


def test_it_works_inside_a_running_loop(store: BlockingTraceStore) -> None:
    async def read() -> int:
        store.record(make_trace(1))
        return len(store.query().data)

    assert asyncio.run(read()) == 1
    store.close()
