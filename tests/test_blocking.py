"""Code without ``await`` does what code with it does."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path

import pytest

from routewright import Console, Ledger, Router, SqliteStorage, TraceStore
from routewright.console import BlockingConsole
from routewright.ledger import BlockingLedger
from routewright.policies import BlockingPolicyStore, PolicyStore
from tests.contracts.storage.samples import make_trace


@pytest.mark.parametrize(
    ("kind", "twin"),
    [
        (Console, BlockingConsole), (Ledger, BlockingLedger), (PolicyStore, BlockingPolicyStore),
    ],
)  # fmt: skip
def test_every_async_method_has_a_blocking_twin_with_its_docstring(kind: type[object], twin: type[object]) -> None:
    waiting = {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if name[0] != "_" and (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method))
    }
    twins = {name: method for name, method in inspect.getmembers(twin, inspect.isfunction) if name[0] != "_"}
    assert waiting.keys() - {"aclose"} == twins.keys() - {"close"}
    for name in waiting.keys() - {"aclose"}:
        assert inspect.signature(waiting[name]).parameters == inspect.signature(twins[name]).parameters
        assert waiting[name].__doc__ == twins[name].__doc__


def test_a_routers_trace_store_reads_pending_traces_without_a_thread_of_its_own(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    router = Router.sandbox(storage=SqliteStorage(tmp_path / "traces.db"))
    answer = router.blocking.route("hi")
    assert [item.id for item in router.blocking.traces.query().data] == [answer.trace_id]
    threads = {thread.name for thread in {*threading.enumerate()} - before if thread.name.startswith("routewright")}
    of_storage = "routewright-sqlite", "routewright-background"
    assert len([name for name in threads if not name.startswith(of_storage)]) == 1
    router.blocking.close()


def test_a_store_works_inside_a_running_loop_and_with_closes_it(tmp_path: Path) -> None:
    async def read() -> list[str]:
        with TraceStore(f"sqlite:///{tmp_path / 'traces.db'}").blocking as store:
            store.record(make_trace(1))
            return [trace.id for trace in (*store.query().data, *store.export())]

    assert asyncio.run(read()) == [make_trace(1).id] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["traces.db"]
