"""While PostgreSQL is down, calls that need it are refused in time, others continue, and all recover."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio
import pytest

from routewright import Console, Router, open_storage
from routewright.errors import StorageUnavailable
from routewright.wire import Caller
from tests.backends.postgres_stores import new_store
from tests.database_servers import PostgresServer

ROOT = "0123456789abcdef" * 4

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """One that is stopped: the session's serves others."""
    del postgres_server  # which says whether there is one
    with PostgresServer(durable=False) as server:
        yield server


async def test_calls_of_accounts_are_refused_and_others_are_served(server: PostgresServer) -> None:
    storage = open_storage(new_store(server))
    async with Router.sandbox(storage=storage) as router:
        console = Console(storage, secret=ROOT)
        await console.create_account("acme", plan="pro")
        key = (await console.create_key("acme", name="site", environment="sandbox")).secret.reveal()
        mine = router.as_caller(Caller("acme", environment="sandbox"))
        await mine.route("Hello")
        await router.route("Hello")
        caller = await console.authenticate(f"Bearer {key}")
        server.stop()
        try:
            assert await console.authenticate(f"Bearer {key}") == caller  # it was looked up a moment ago
            assert (await router.route("Hello")).output
            for refused in (mine.route("Hello"), router.route("Hello", idempotency_key="k")):
                began = time.monotonic()
                with pytest.raises(StorageUnavailable):
                    await refused
                assert time.monotonic() - began < 5.0
            problem = await router.problem()
            assert problem is not None
            assert problem.startswith("the storage cannot be read")
        finally:
            server.start()
        with anyio.fail_after(5):
            while await router.problem() is not None:  # each takes a moment
                await anyio.lowlevel.checkpoint()
        await mine.route("Hello", idempotency_key="k")
        await router.flush()
        assert len((await router.traces.query()).data) == 2
