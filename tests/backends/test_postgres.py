"""The PostgreSQL storage meets the contract, on a real server."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import aclosing
from datetime import datetime
from math import inf
from random import Random
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright.backends.storage.postgres import PostgresStorage
from routewright.backends.storage.postgres.connections import Address, Connection, Database
from routewright.backends.storage.tables.read import DAY_S
from routewright.backends.storage.tables.traces import COLUMNS
from routewright.testing import FakeClock
from routewright.wire import SYSTEM_ACCOUNT, PutAccount, PutKey, PutTrace, SetRetention
from tests.contracts.storage.admission import AccountsSuite, Budgets, Queues, Windows
from tests.contracts.storage.owners import Owners
from tests.contracts.storage.samples import Till, make_account, make_key, make_trace
from tests.contracts.storage.settlement import Accounting, Idempotency, Settling
from tests.contracts.storage.suites import BooksContract, StorageContract
from tests.contracts.storage.walk import walk

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="class")
def kept_connections() -> Iterator[deque[Connection]]:
    """Connections that outlive a storage: the first statements of a new one take longer than most tests."""
    idle: deque[Connection] = deque()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "renew", lambda self: setattr(self, "_idle", idle))
        patch.setattr(Database, "close", lambda self: None)
        yield idle
    for connection in idle:
        connection.close()


@pytest.fixture
def warm_connections(kept_connections: deque[Connection]) -> None:
    for connection in kept_connections:
        connection.until = inf
        connection.execute("DISCARD PLANS")  # they fit the table sizes of another test


@pytest.mark.usefixtures("warm_connections")
class TestPostgresStorage(StorageContract, BooksContract):
    @pytest.fixture(autouse=True)
    def _url(self, postgres: str) -> None:
        self.url = postgres

    def make(self) -> PostgresStorage:
        return PostgresStorage(self.url)


class InDatabase(AccountsSuite):
    @pytest.fixture(autouse=True)
    def _url(self, postgres: str) -> None:
        self.url = postgres

    def make(self, clock: FakeClock) -> PostgresStorage:
        return PostgresStorage(self.url, clock=clock)

    def other(self, clock: FakeClock) -> PostgresStorage:
        return PostgresStorage(self.url, clock=clock)


@pytest.mark.usefixtures("warm_connections")
class TestPostgresAccounts(InDatabase, Windows, Budgets, Queues, Settling, Idempotency, Accounting, Owners):
    """``AccountsContract`` without ``Histories``: those of ``test_postgres_functions.py`` compare more."""


def test_two_accounts_never_see_each_others_rows(postgres: str, full: bool) -> None:
    async def steps() -> None:
        storage = PostgresStorage(postgres)
        await walk(storage, Random(20261127), steps=100_000 if full else 100, accounts=("one", "one's"))
        await storage.aclose()

    anyio.run(steps)


async def test_no_query_is_compiled(postgres: str) -> None:
    """The planner expects a page of traces to cost far more than it does."""
    async with aclosing(PostgresStorage(postgres)) as storage:
        assert storage._server.transact(lambda tables, _: tables.execute("SHOW jit").fetchall()) == [("off",)]


async def test_a_change_of_one_key_writes_no_other(postgres: str) -> None:
    written = "SELECT id, xmin FROM key ORDER BY id"
    async with aclosing(PostgresStorage(postgres)) as storage:
        keys = [make_key(id=f"k{number}", digest=f"d{number}") for number in range(3)]
        till = await Till(storage).open(*keys)
        with Address(postgres).connect() as connection:
            before = connection.execute(written).fetchall()
            await till.put(PutKey(replace(keys[1], budget_nanos=5)))
            await till.put(PutAccount(make_account(name="acme", prepaid=True)))
            after = connection.execute(written).fetchall()
            assert connection.execute("SELECT budget FROM key ORDER BY id").fetchall() == [(None,), (5,), (None,)]
            assert connection.execute("SELECT prepaid FROM account").fetchall() == [(True,)]
    assert [mine == was for mine, was in zip(after, before, strict=True)] == [True, False, True]


async def test_a_day_of_many_traces_is_dropped_without_counting_them(postgres: str) -> None:
    async with aclosing(PostgresStorage(postgres)) as storage:
        retention = SetRetention(production_s=30 * DAY_S, sandbox_s=30 * DAY_S)
        await storage.apply(SYSTEM_ACCOUNT, [retention])
        await storage.apply("default", [PutTrace(make_trace(0, created_at="2026-10-01T00:00:00.000Z"))])
        await storage.apply("default", [PutTrace(make_trace(1, created_at="2026-10-02T00:00:00.000Z"))])
        with Address(postgres).connect() as connection:
            copy_of_trace(connection, 120_000, "created_at < '2026-10-02'")
            connection.execute("ANALYZE trace_2026_10_01")
            connection.execute("DELETE FROM trace WHERE created_at < '2026-10-02' AND id LIKE '%000'")
            ((exactly,),) = connection.execute("SELECT count(*) FROM trace").fetchall()
            removed = await storage.sweep(datetime.fromisoformat("2026-11-05T00:00:00Z").timestamp())
            assert removed != exactly
            assert 0.9 * exactly < removed < 1.1 * exactly
            left = "SELECT relname FROM pg_class WHERE relispartition AND relname LIKE '%2026_10_0%' AND relkind = 'r'"
            assert connection.execute(left).fetchall() == []


def copy_of_trace(connection: Any, many: int, where: str) -> None:
    columns = f"created_at, {', '.join(COLUMNS[3:])}"
    sql = f"SELECT n + g, account, id || g, {columns} FROM trace, generate_series(1, {many}) AS g WHERE {where}"
    connection.execute(f"INSERT INTO trace (n, account, id, {columns}) {sql}".encode())


async def test_a_new_day_begins_while_others_read(postgres: str) -> None:
    async with aclosing(PostgresStorage(postgres)) as storage:
        await storage.apply("default", [PutTrace(make_trace(0))])
        with Address(postgres).connect() as reader, reader.transaction():
            reader.execute("SELECT count(*) FROM tag JOIN trace USING (id) JOIN body USING (n)")
            await storage.apply("default", [PutTrace(make_trace(1, created_at="2031-01-01T00:00:00.000Z"))])
