"""Leases and windows on PostgreSQL's clock: after lost connections, and when the clock is set."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import psycopg
import pytest

from routewright.backends.storage.postgres import PostgresStorage
from routewright.errors import RateLimited
from routewright.wire import RateLimits
from tests.contracts.storage.samples import Till, make_row
from tests.database_servers import PostgresServer

from .postgres_stores import new_store

pytestmark = pytest.mark.anyio
LEASE_S = 30.0
HOUR_S = 3_601.0


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return new_store(postgres_server)  # who still holds something in another test is not heard in this one


@pytest.fixture
async def till(url: str) -> AsyncIterator[Till]:
    """Of a process that holds all the money that there is."""
    async with aclosing(PostgresStorage(url, lease_s=LEASE_S)) as storage:
        till = await Till(storage).open_full()
        await till.admit("runs", 600)
        yield till
        till.release("runs")


def change(url: str, *statements: str) -> None:
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.parametrize("tidies", [True, False])
async def test_the_first_process_to_reconnect_ends_no_calls_of_others(url: str, till: Till, tidies: bool) -> None:
    async with aclosing(PostgresStorage(url, lease_s=LEASE_S)) as storage:
        first = Till(storage)
        change(url, f"UPDATE owner SET until = until - {HOUR_S}")  # as if nobody had reached the server for an hour
        if tidies:
            await storage._writer.tidy()  # as a sweep does
        assert (await first.short("more", 600)).waits
        await till.settle("runs", make_row("runs", charge=600))
        assert (await first.purses())["account"] == (600, 0)


@pytest.mark.parametrize("whose", ["WHERE is_spared", ""])  # the other is heard, and is not
async def test_a_process_that_stays_silent_loses_its_holds(url: str, till: Till, whose: str) -> None:
    async with aclosing(PostgresStorage(url, lease_s=LEASE_S)) as storage:
        other = Till(storage)
        change(url, f"UPDATE owner SET until = until - {HOUR_S}")
        await other.short("more", 600)
        change(url, f"UPDATE owner SET until = until - {HOUR_S} {whose}")
        await other.admit("more", 600)
        other.release("more")


async def test_leases_end_soon_after_the_clock_was_set_back(url: str, till: Till) -> None:
    async with aclosing(PostgresStorage(url, lease_s=LEASE_S)) as storage:
        change(url, f"UPDATE owner SET until = until + {HOUR_S}")
        assert (await Till(storage).short("more", 600)).waits
    with psycopg.connect(url) as connection:
        ((until,),) = connection.execute("SELECT max(until) FROM owner").fetchall()
    assert until < time.time() + LEASE_S + 1


async def test_windows_expire_after_a_minute_when_the_clock_was_set_back(url: str) -> None:
    async with aclosing(PostgresStorage(url)) as storage:
        till = await Till(storage).open(limits=RateLimits(requests_per_min=3))
        for number in range(3):
            await till.admit(f"c{number}")
            till.release(f"c{number}")
        ahead = [f"UPDATE {each} = {each.split()[-1]} + {HOUR_S}" for each in ("entry SET at", "party SET last")]
        change(url, *ahead)
        with pytest.raises(RateLimited) as refused:
            await till.ask("more")
        assert 55 < (refused.value.detail or {})["retry_after_seconds"] <= 60
        change(url, "UPDATE entry SET at = at - 60")
        await till.admit("after a minute")
        till.release("after a minute")
