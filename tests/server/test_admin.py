"""Operator endpoints: liveness, readiness and metrics."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import (
    MemoryStorage,
    Model,
    Policy,
    Pricing,
    Router,
    Settings,
    SqliteStorage,
    ValidationFailed,
)
from routewright._engine import readiness
from routewright._engine.readiness import LEFT_S, WRITE_EVERY_S
from routewright.errors import StorageFull, StorageUnavailable, UnsupportedWrite
from routewright.server import create_admin, create_app
from routewright.server.metrics import Metrics
from routewright.testing import FakeClock, ScriptedProvider
from routewright.wire import CurrentRetention, PutSnapshot, PutTrace
from tests.tables import table

from .asgi_request import ask

pytestmark = pytest.mark.anyio


class Store(MemoryStorage):
    """A storage that is in a state."""

    immediate = False

    def __init__(self, state: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self.state = state
        self.reads = 0

    async def read(self, account: str, query: Any) -> Any:
        if isinstance(query, CurrentRetention):  # what readiness asks for; a Router also looks for policies
            self.reads += 1
            await self.state()
        return await super().read(account, query)


async def fails() -> None:
    raise StorageUnavailable("no such file: /secret/CANARY.db")


async def breaks() -> None:
    raise OSError("/secret/CANARY.db")


async def test_a_process_is_healthy_whatever_its_storage_does() -> None:
    for state in (fails, anyio.sleep_forever):
        told = await ask(create_admin(Router.sandbox(storage=Store(state))), "/healthz")
        assert (told.status, told.json) == (200, {"status": "ok"})
        assert told.headers["cache-control"] == "no-store"


async def test_it_is_ready_if_the_storage_can_be_read(tmp_path: Path) -> None:
    for storage in (MemoryStorage(), SqliteStorage(tmp_path / "traces.db")):
        router = Router.sandbox(storage=storage)
        told = await ask(create_admin(router), "/readyz")
        assert (told.status, told.json) == (200, {"status": "ok"})
        await router.aclose()


async def test_it_is_not_ready_once_it_is_closed() -> None:
    router = Router.sandbox()
    admin = create_admin(router)
    await router.aclose()
    told = await ask(admin, "/readyz")
    assert (told.status, told.json) == (
        503,
        {"status": "unavailable", "problem": "the router is closed", "means": "requests are refused or wait"},
    )
    assert (await ask(admin, "/healthz")).status == 200


@pytest.mark.parametrize(("state", "said"), [(fails, "storage_unavailable"), (breaks, "internal_error")])
async def test_it_is_not_ready_if_the_storage_fails_and_shows_no_secret(state: Any, said: str) -> None:
    told = await ask(create_admin(Router.sandbox(storage=Store(state))), "/readyz")
    assert (told.status, told.json["problem"]) == (503, f"the storage cannot be read: {said}")
    assert b"CANARY" not in told.body


class Unwritten:
    """A storage that takes no writes of some kinds, for a while."""

    def __init__(self, *kinds: type, fault: Exception | None = None) -> None:
        inner = MemoryStorage()
        self.read, self.scan, self.sweep, self.aclose = inner.read, inner.scan, inner.sweep, inner.aclose
        self._inner = inner
        self.kinds, self.fault = kinds, fault or StorageFull("no room at /secret/CANARY.db")
        self.tried = 0

    async def apply(self, account: str, writes: Any) -> Any:
        if any(isinstance(each, self.kinds) for each in writes):
            self.tried += 1
            raise self.fault
        return await self._inner.apply(account, writes)


async def test_it_is_not_ready_if_writing_fails_which_is_tried_now_and_then() -> None:
    clock, storage = FakeClock(0.0), Unwritten(PutSnapshot)
    admin = create_admin(Router.sandbox(storage=storage, settings=Settings(clock=clock)))
    for _ in range(3):
        told = await ask(admin, "/readyz")
        assert (told.status, told.json["problem"]) == (503, "the storage cannot be written: storage_unavailable")
    assert storage.tried == 1
    storage.kinds = ()
    await clock.sleep(WRITE_EVERY_S)
    assert (await ask(admin, "/readyz")).status == 200


async def test_a_successful_write_is_trusted_for_a_moment() -> None:
    clock, storage = FakeClock(0.0), Unwritten()
    admin = create_admin(Router.sandbox(storage=storage, settings=Settings(clock=clock)))
    assert (await ask(admin, "/readyz")).status == 200
    storage.kinds = (PutSnapshot,)
    assert (await ask(admin, "/readyz")).status == 200
    await clock.sleep(WRITE_EVERY_S)
    assert (await ask(admin, "/readyz")).status == 503


async def test_a_storage_of_traces_alone_is_ready() -> None:
    storage = Unwritten(PutSnapshot, fault=UnsupportedWrite("PutSnapshot"))
    assert (await ask(create_admin(Router.sandbox(storage=storage)), "/readyz")).status == 200


async def test_it_is_not_ready_while_traces_cannot_be_written() -> None:
    storage = Unwritten(PutTrace)
    router = Router.sandbox(storage=storage)
    admin = create_admin(router)
    assert (await ask(admin, "/readyz")).status == 200
    await router.route("Hello")
    with pytest.raises(StorageUnavailable):
        await router.flush()
    told = await ask(admin, "/readyz")
    assert (told.status, told.json["problem"]) == (503, "the storage cannot be written: the last write failed")
    storage.kinds = ()
    await router.flush()
    assert (await ask(admin, "/readyz")).status == 200
    await router.aclose()


async def test_it_is_not_ready_while_another_process_has_the_store_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "WRITE_EVERY_S", 0.0)
    path = tmp_path / "traces.db"
    router = Router.sandbox(storage=SqliteStorage(path))
    await router.route("Hello")
    await router.flush()
    admin = create_admin(router, ready_s=0.2)
    assert (await ask(admin, "/readyz")).status == 200  # that of the trace
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    told = await ask(admin, "/readyz")
    assert (told.status, told.json["problem"]) == (503, "the storage was not written within 0.2 s")
    other.execute("ROLLBACK")
    other.close()
    for _ in range(100):
        if (await ask(admin, "/readyz")).status == 200:
            break
    else:
        pytest.fail("it never came to be ready")
    await router.aclose()


async def test_a_frozen_storage_times_out_by_the_routers_clock() -> None:
    clock = FakeClock(0.0)
    storage = Store(anyio.sleep_forever)
    admin = create_admin(Router.sandbox(storage=storage, settings=Settings(clock=clock)), ready_s=3)
    told = await ask(admin, "/readyz")
    assert (told.status, told.json["problem"]) == (503, "the storage was not read within 3 s")
    assert clock.monotonic() == 3.0


async def test_a_stuck_storage_gets_one_query_until_it_answers() -> None:
    freed = anyio.Event()
    storage = Store(freed.wait)
    router = Router.sandbox(storage=storage, settings=Settings(clock=FakeClock(0.0)))
    admin = create_admin(router)
    assert [(await ask(admin, "/readyz")).status for _ in range(3)] == [503] * 3
    assert storage.reads == 1
    freed.set()
    await anyio.lowlevel.checkpoint()
    assert [(await ask(admin, "/readyz")).status for _ in range(2)] == [200] * 2


async def test_an_unanswered_query_is_repeated() -> None:
    clock, freed = FakeClock(0.0), anyio.Event()

    async def first_never() -> None:
        if storage.reads == 1:
            await freed.wait()

    storage = Store(first_never)
    admin = create_admin(Router.sandbox(storage=storage, settings=Settings(clock=clock)))
    assert (await ask(admin, "/readyz")).status == 503
    await clock.sleep(LEFT_S)
    assert (await ask(admin, "/readyz")).status == 200
    freed.set()


async def test_a_storage_that_blocks_its_thread_times_out() -> None:
    freed = threading.Event()

    async def blocks() -> None:
        freed.wait(20)

    router = Router.sandbox(storage=Store(blocks))
    admin = create_admin(router, ready_s=0.05)
    began = time.monotonic()
    told = await ask(admin, "/readyz")
    assert (told.status, told.json["problem"]) == (503, "the storage was not read within 0.05 s")
    assert time.monotonic() - began < 5
    freed.set()
    await router.aclose()


async def test_metrics_have_prometheus_format() -> None:
    router = Router.sandbox()
    admin = create_admin(router)
    await router.route("Hello")
    await router.flush()
    told = await ask(admin, "/metrics")
    assert told.status == 200
    assert told.headers["content-type"].startswith("text/plain")
    assert b'routewright_calls_total{environment="sandbox"' in told.body


async def test_metrics_that_are_passed_are_the_ones_served() -> None:
    router = Router.sandbox()
    metrics = Metrics(router)
    metrics._metrics["cost"].labels("house/m", "production").inc(42)
    assert b"} 42.0" in (await ask(create_admin(router, metrics=metrics), "/metrics")).body


def test_without_the_extra_metrics_is_404_and_names_it() -> None:
    code = """
import sys; sys.modules["prometheus_client"] = None
import anyio
from routewright import Router
from routewright.protocols import Facts
from routewright.server import create_admin
from tests.server.asgi_request import ask
admin = create_admin(Router.sandbox())
for path in ("/metrics", "/readyz"):
    told = anyio.run(ask, admin, path)
    print(told.status, told.body.decode())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    figures, ready = done.stdout.splitlines()
    assert figures.startswith("404 ")
    assert "needs the extra 'metrics'" in figures
    assert "pip install 'routewright[metrics]'" in figures
    assert ready.startswith("200 ")


async def test_unknown_paths_and_methods_are_refused_and_head_is_answered() -> None:
    admin = create_admin(Router.sandbox())
    told = await ask(admin, "/CANARY")
    assert (told.status, told.json["error"].count("/")) == (404, 4)
    assert b"CANARY" not in told.body
    told = await ask(admin, "/healthz", "POST")
    assert (told.status, told.headers["allow"]) == (405, "GET, HEAD")
    told = await ask(admin, "/healthz", "HEAD")
    assert (told.status, told.body, told.headers["content-length"]) == (200, b"", "15")
    assert (await ask(admin, "/admin/healthz", root_path="/admin")).status == 200


@table("wrong", [0, -1, 61, "2", True, None])
def test_ready_s_is_a_number_of_seconds(wrong: Any) -> None:
    with pytest.raises(ValidationFailed, match=r"ready_s: is .*take a number of seconds above 0, at most 60"):
        create_admin(Router.sandbox(), ready_s=wrong)


class SlowCounter:
    """Its tables take until the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.loaded: list[str] = []

    def count(self, text: str, encoding: str) -> int:
        return len(text.split())

    def load(self, encoding: str) -> None:
        assert self.gate.wait(20)
        self.loaded.append(encoding)


LIVE = Model(id="openai/gpt-4.1")
OTHER = Model(id="mine/one", quality=0.5, pricing_per_1m=Pricing(1.0, 1.0))


async def test_it_serves_but_is_not_ready_until_token_tables_are_loaded() -> None:
    counter = SlowCounter()
    provider = ScriptedProvider(lambda call: "hello", models=[LIVE])
    async with Router(providers=[provider], settings=Settings(tokens=counter)) as router:
        admin = create_admin(router, ready_s=0.05)
        told = await ask(admin, "/readyz")
        assert (told.status, told.json["problem"]) == (503, "the token tables are being loaded")
        assert (await ask(admin, "/healthz")).status == 200
        assert (await router.route("hi")).output == "hello"
        counter.gate.set()
        while (await ask(admin, "/readyz")).status != 200:  # noqa: ASYNC110
            await anyio.sleep(0.001)
        assert {*counter.loaded} == {"o200k_base"}


async def test_the_lifespan_loads_the_token_tables_at_startup() -> None:
    counter, told = SlowCounter(), anyio.Event()
    counter.gate.set()
    async with Router(
        providers=[ScriptedProvider([], models=[LIVE]), ScriptedProvider([], models=[OTHER])],
        settings=Settings(tokens=counter),
    ) as router:

        async def receive() -> Any:
            if not told.is_set():
                return {"type": "lifespan.startup"}
            return {"type": "lifespan.shutdown"}

        async def send(message: Any) -> None:
            if message["type"] == "lifespan.startup.complete":
                assert counter.loaded == ["o200k_base", "cl100k_base"]
            told.set()

        await create_app(router)({"type": "lifespan"}, receive, send)


async def test_it_is_not_ready_with_invalid_policies() -> None:
    router = Router.sandbox(policies=[Policy(name="p", models=["no/model"])])
    told = await ask(create_admin(router), "/readyz")
    assert (told.status, told.json["problem"]) == (503, "the router cannot start: validation_failed")
    await router.aclose()


async def test_the_application_answers_probes_only_with_health() -> None:
    router = Router.sandbox(storage=Store(fails))
    app = create_app(router, health=True)
    told = await ask(app, "/healthz")
    assert (told.status, told.json, told.headers["cache-control"]) == (200, {"status": "ok"}, "no-store")
    told = await ask(app, "/readyz")
    assert (told.status, told.json["problem"]) == (503, "the storage cannot be read: storage_unavailable")
    assert (await ask(app, "/llm/healthz", root_path="/llm")).status == 200
    assert (await ask(app, "/healthz", "HEAD")).body == b""
    assert (await ask(app, "/metrics")).status == 404
    assert (await ask(app, "/healthz", "POST")).status == 405
    for path in ("/healthz", "/readyz"):
        told = await ask(create_app(router), path)
        assert told.status == 404
        assert "--health, or with --admin-port" in told.json["error"]["message"]
