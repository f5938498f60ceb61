"""News in a PostgreSQL database reaches every process that uses it, without gaps."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import anyio
import psycopg
import pytest

from routewright import Router
from routewright.backends.storage.postgres import PostgresStorage
from routewright.backends.storage.postgres.connections import Address
from routewright.backends.storage.postgres.schema import create
from routewright.backends.storage.postgres.upkeep import _ANNOUNCE, PostgresCoordination
from routewright.errors import StorageUnavailable
from routewright.testing import FakeClock
from routewright.wire import Notice
from tests.contracts.coordination import FIRST, SECOND, CoordinationContract
from tests.database_servers import PostgresServer, need

pytestmark = pytest.mark.anyio


class TestPostgresCoordination(CoordinationContract):
    @pytest.fixture(autouse=True)
    def _url(self, postgres: str) -> None:
        self.url = postgres

    def make(self, clock: FakeClock) -> PostgresCoordination:
        return PostgresCoordination(self.url, clock=clock)


@pytest.fixture
async def coordination(postgres: str) -> AsyncIterator[PostgresCoordination]:
    made = PostgresCoordination(postgres)
    yield made
    await made.aclose()


async def test_news_arrives_within_about_a_second(coordination: PostgresCoordination) -> None:
    start, heard_at = (await coordination.hear(None)).last, list[float]()

    async def listen() -> None:
        await coordination.hear(start)
        heard_at.append(time.monotonic())

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        await anyio.sleep(0.3)
        said_at = time.monotonic()
        await coordination.announce(FIRST)
    assert heard_at[0] - said_at < 1.5


async def test_news_is_numbered_in_the_order_of_announcement_even_if_committed_later(
    coordination: PostgresCoordination, postgres: str
) -> None:
    last, both = (await coordination.hear(None)).last, list[Notice]()

    async def listen() -> None:
        nonlocal last
        while len(both) < 2 and (heard := await coordination.hear(last)).notices:
            last = heard.last
            both.extend(heard.notices)

    with psycopg.connect(postgres) as slow:
        slow.execute(_ANNOUNCE.replace("$1", "%s").replace("$2", "%s"), ("revoked", "key_1"))
        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            group.start_soon(coordination.announce, SECOND)
            await anyio.sleep(0.5)  # the second could be heard by now
            slow.commit()
    assert both == [FIRST, SECOND]


async def test_news_may_contain_any_text(coordination: PostgresCoordination) -> None:
    start, notice = (await coordination.hear(None)).last, Notice("account", 'a\0b\1"\\ü😀')
    await coordination.announce(notice)
    assert (await coordination.hear(start)).notices == (notice,)


async def test_swept_news_hides_no_later_news(coordination: PostgresCoordination, postgres: str) -> None:
    await coordination.announce(FIRST)
    with Address(postgres).connect() as connection:
        connection.execute("DELETE FROM notice")
    start = (await coordination.hear(None)).last
    await coordination.announce(SECOND)
    assert (await coordination.hear(start)).notices == (SECOND,)


async def test_news_fails_while_the_server_is_down_and_recovers() -> None:
    need("postgres")
    with PostgresServer() as server:
        url = server.database()
        create(Address(url))
        coordination = PostgresCoordination(url)
        await coordination.announce(FIRST)
        start = (await coordination.hear(None)).last
        server.stop()
        for asked in (coordination.announce(FIRST), coordination.hear(None), coordination.hear(start)):
            with pytest.raises(StorageUnavailable):
                await asked
        server.start()
        await anyio.sleep(0.3)
        await coordination.announce(SECOND)
        assert (await coordination.hear(start)).notices == (SECOND,)
        server.kill()
        server.start()
        await coordination.announce(FIRST)
        assert (await coordination.hear(start)).notices == (SECOND, FIRST)
        await coordination.aclose()


async def test_routers_with_a_postgresql_storage_get_its_news_by_default(postgres: str) -> None:
    storage, other = PostgresStorage(postgres), PostgresStorage(postgres)
    router = Router.sandbox(storage=storage)
    start = (await router.coordination.hear(None)).last
    await other.coordination.announce(Notice("account", "acme"))
    assert (await router.coordination.hear(start)).notices == (Notice("account", "acme"),)
    own = PostgresCoordination(postgres)
    assert Router.sandbox(storage=storage, coordination=own).coordination is own
    await router.aclose()
    await other.aclose()
    await own.aclose()
