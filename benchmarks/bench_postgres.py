"""What does a call cost in PostgreSQL: with nothing on, with limits, and with everything on?

The server is a real one on loopback, with its syncs. What counts as processor time is that of the processes that make
the calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from tests.database_servers import HOST, NotInstalled, PostgresServer, at_port
from tests.fault_proxy import FaultProxy

from routewright.backends.storage.postgres import PostgresStorage
from routewright.backends.storage.postgres.connections import Address
from routewright.backends.storage.postgres.schema import create
from routewright.wire import Account, PutAccount, PutKey

from .accounts import AT, CALLER, KEY, WIDE, open_account
from .bench_accounts import COST, WIDTHS, WORST, routing
from .crowd import Call, Calling, crowd
from .doubles import Instant, router_over
from .measure import Effort
from .report import Question, Report

ONE_WAY_S = 0.0005


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    try:
        with PostgresServer() as server:
            yield server
    except NotInstalled as missing:
        pytest.skip(str(missing))


def store(folder: Path) -> PostgresStorage:
    """The store that a folder names."""
    return PostgresStorage((folder / "url").read_text())


@asynccontextmanager
async def least(folder: Path) -> AsyncIterator[Call]:
    """The floor: a row that is updated to reserve, and again to settle, one call after another."""
    with psycopg.connect((folder / "url").read_text(), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS least (id int PRIMARY KEY, spent bigint, reserved bigint)")
        connection.execute("INSERT INTO least VALUES (1, 0, 0) ON CONFLICT DO NOTHING")

        async def pay(call: str) -> None:
            connection.execute("UPDATE least SET reserved = reserved + %s WHERE id = 1", (WORST,))
            connection.execute("UPDATE least SET spent = spent + %s, reserved = reserved - %s", (COST, WORST))

        yield pay


@asynccontextmanager
async def bare(folder: Path) -> AsyncIterator[Call]:
    async with aclosing(store(folder)) as storage, router_over(Instant(turns=1), storage) as router:
        yield routing(router, None, keyed=False)


@asynccontextmanager
async def limited(folder: Path) -> AsyncIterator[Call]:
    async with aclosing(store(folder)) as storage:
        key = replace(KEY, budget_nanos=None, monthly_nanos=None)
        await storage.apply("acme", [PutAccount(Account(name="acme", created_at=AT, limits=WIDE)), PutKey(key)])
        async with router_over(Instant(turns=1), storage) as router:
            yield routing(router, CALLER, keyed=False)


@asynccontextmanager
async def everything(folder: Path) -> AsyncIterator[Call]:
    async with aclosing(store(folder)) as storage:
        await open_account(storage)
        async with router_over(Instant(turns=1), storage) as router:
            yield routing(router, CALLER, keyed=True)


@contextmanager
def far(port: int) -> Iterator[int]:
    """The port of a proxy, in a process of its own, that delays what is sent."""
    context = get_context("spawn")
    told, ends = context.Queue(), context.Event()
    process = context.Process(target=_proxy, args=[port, told, ends])
    process.start()
    yield told.get(timeout=30)
    ends.set()
    process.join()


def _proxy(port: int, told: Any, ends: Any) -> None:
    with FaultProxy(HOST, port) as proxy:
        proxy.delay_s = {"client": ONE_WAY_S, "server": ONE_WAY_S}
        told.put(proxy.port)
        ends.wait()


@pytest.mark.parametrize(
    ("what", "calling", "processes", "network"),
    [
        ("nothing on", bare, 1, "loopback"),
        ("limits", limited, 1, "loopback"),
        ("everything on", everything, 1, "loopback"),
        ("everything on", everything, 4, "loopback"),
        ("everything on", everything, 1, "1 ms away"),
    ],
)
def test_calls(
    report: Report, effort: Effort, tmp_path: Path, server: PostgresServer, what: str, calling: Calling, processes: int,
    network: str,
) -> None:  # fmt: skip
    with ExitStack() as stack:
        url = server.database()
        create(Address(url))
        if network != "loopback":
            url = at_port(url, stack.enter_context(far(server.port)))
        (tmp_path / "url").write_text(url)
        seconds = 3.0 if effort.runs > 1 else 0.1
        for width, load in crowd(calling, tmp_path, processes, WIDTHS, seconds).items():
            named = f"route() with {what}, in PostgreSQL, {width} in flight"
            named += f" in each of {processes} processes" if processes > 1 else ""
            named += f", {network}" if network != "loopback" else ""
            target = "4,500" if named == "route() with everything on, in PostgreSQL, 50 in flight" else ""
            report.add_load(Question(named, target), "routewright", load)


def test_floor(report: Report, effort: Effort, tmp_path: Path, server: PostgresServer) -> None:
    (tmp_path / "url").write_text(server.database())
    seconds = 3.0 if effort.runs > 1 else 0.1
    for load in crowd(least, tmp_path, 1, [1], seconds).values():
        report.add_load(Question("two updates of a row of PostgreSQL's"), "floor", load)
