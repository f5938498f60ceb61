"""How long does reading traces from PostgreSQL take, and does it grow with their number: by id, a page, a report?

Both stores have the same bodies and roll-ups. In the larger one a hundred traces share a body, so that ten million fit
on a small disk.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import cycle

import psycopg
import pytest
from tests.database_servers import NotInstalled, PostgresServer

from routewright import TraceStore
from routewright.backends.storage.postgres import PostgresStorage
from routewright.backends.storage.postgres.connections import Address
from routewright.backends.storage.postgres.schema import create

from .bench_trace_query import FILTERS
from .conftest import TimedAsync
from .measure import Effort
from .report import Question
from .stores import FIRST_DAY, LAST_DAY, batches, trace_id

pytestmark = pytest.mark.timeout(3_600)
BODIES = 100_000
_COPIES = """
INSERT INTO trace SELECT n, account, created_at, id || '-' || copy, environment, status, kind, model, provider,
    policy_id, goal, strategy, error, cache_hit, fallback_used, compromised, cost_usd, duration_ms, key_id
FROM trace, generate_series(1, %(copies)s) AS copy;
INSERT INTO tag SELECT account, key, value, created_at, id || '-' || copy, number
FROM tag, generate_series(1, %(copies)s) AS copy
"""


class Filled:
    """A store with so many bodies, each of ``share`` traces."""

    def __init__(self, url: str, bodies: int, share: int) -> None:
        self.url = url
        self.bodies = bodies
        self.traces = bodies * share
        self.storage = PostgresStorage(url)


@pytest.fixture(scope="module", params=[100_000, 10_000_000], ids=["100,000 traces", "10,000,000 traces"])
def filled(request: pytest.FixtureRequest, effort: Effort) -> Iterator[Filled]:
    share, bodies = request.param // BODIES, BODIES if effort.runs > 1 else BODIES // 100
    try:
        with PostgresServer(durable=False) as server:
            url = server.database()
            create(Address(url))
            asyncio.run(fill(url, bodies))
            with psycopg.connect(url, autocommit=True) as connection:
                for statement in _COPIES.split(";"):
                    connection.execute(statement.encode(), {"copies": share - 1})
                connection.execute("VACUUM ANALYZE")
                connection.execute("CHECKPOINT")
            os.sync()  # what is left to write would take its time from what is measured
            yield Filled(url, bodies, share)
    except NotInstalled as missing:
        pytest.skip(str(missing))


async def fill(url: str, count: int) -> None:
    """Write traces, and count them."""
    storage = PostgresStorage(url)
    for batch in batches(count):
        await storage.apply("default", batch)
    await TraceStore(storage).usage(FIRST_DAY, LAST_DAY, group_by="model")
    await storage.aclose()


def test_by_id(timed_async: TimedAsync, filled: Filled) -> None:
    ids = cycle([trace_id(number) for number in range(0, filled.bodies, 7)])
    timed_async(question("by id", filled), "routewright", TraceStore(filled.storage).get, ids)


@pytest.mark.parametrize("name", FILTERS)
def test_page(timed_async: TimedAsync, filled: Filled, name: str) -> None:
    store = TraceStore(filled.storage)

    async def page(filter: str) -> int:
        return len((await store.query(filter=filter)).data)

    timed_async(question(f"a page of 50, {name}", filled), "routewright", page, cycle([FILTERS[name]]))


def test_report(timed_async: TimedAsync, filled: Filled) -> None:
    store = TraceStore(filled.storage)

    async def report(_: str) -> object:
        return await store.usage(FIRST_DAY, LAST_DAY, group_by="model")

    timed_async(question("usage of 30 days by model", filled), "routewright", report, cycle([""]))


def question(what: str, filled: Filled) -> Question:
    return Question(f"{what}, of {filled.traces:,} traces in PostgreSQL")
