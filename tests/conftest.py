"""What every test shares: event loops, how hard hypothesis tries, which tests run alone, and the flag ``--full``."""

from __future__ import annotations

import gc
import io
import os
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from routewright import Catalogue
from routewright._engine.fleet import Fleet
from routewright.backends.clock import SystemClock
from routewright.testing import FakeClock

from .database_servers import PostgresServer, RedisServer, need
from .sample_store import NOON, at_noon, few, record

pytest_plugins = ["routewright.testing.plugin", "pytester"]
ROOT = Path(__file__).parent
# HTTP clients would each parse the 150 authorities of the system, for 20 ms of processor time
os.environ["SSL_CERT_FILE"] = str(ROOT / "data/authority.pem")
SEAMS = (
    "backends/test_clock.py backends/test_coordination.py backends/test_storage.py backends/test_transport.py "
    "engine/test_admission.py engine/test_attempt.py engine/test_cancellation*.py engine/test_counting.py "
    "engine/test_deadline.py engine/test_hedge.py engine/test_reservation.py engine/test_route.py "
    "engine/test_stream.py engine/test_trace_log.py engine/test_worker.py test_thread_limit.py"
).split()
"""Where the library waits. These tests run on trio, too; all others run on asyncio alone, but for ``--full``."""
SERVERS = (
    "server/test_serve_postgres.py engine/test_database_outage.py backends/test_postgres*.py "
    "backends/test_redis*.py engine/test_shared_*.py"
).split()
"""Tests that start servers of their own."""
REAL_TIME = (
    "backends/test_cache_file.py backends/test_sqlite_kill.py backends/test_accounts_processes.py "
    "engine/test_agent_chaos.py engine/test_chaos_tcp.py engine/test_policy_processes.py "
    "backends/test_webhook_kill.py engine/test_router_processes.py "
    "engine/test_worker.py server/test_protocol.py "
    "server/test_serve.py test_revocation.py "
    "backends/test_redis*.py engine/test_shared_*.py engine/test_cache_redis.py"
).split()
"""Tests that measure real time or start many processes. One worker runs them, so that no two run at once."""

# derandomize is said because hypothesis itself turns it on where CI is set, and would then find nothing new
patient = settings(deadline=None, derandomize=False, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", patient, max_examples=10)
settings.register_profile("full", patient, max_examples=10_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the proofs at their full counts")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("full" if config.getoption("--full") else "default")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Hand out whole files, so that what a file shares is set up once. With single tests the workers would often wait:
    the scheduler goes through all that a worker has done each time that one ends."""
    from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

    class ByFile(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return str(super()._split_scope(nodeid)).partition("::")[0]

        # After a worker dies (a test that hangs ends its worker), pytest-xdist 3.8 also hands its finished files to the
        # replacement, which waits for a test forever, as it does with a file of one test; and repeats the deadly one.
        def remove_node(self, node: Any) -> str | None:
            files = self.assigned_work.pop(node)
            pending = [(tests, test) for tests in files.values() for test, done in tests.items() if not done]
            if not pending:
                return None
            tests, deadly = pending[0]
            tests[deadly] = True
            self.workqueue.update({file: tests for file, tests in files.items() if not all(tests.values())})
            for other in self.assigned_work:
                self._reschedule(other)
            return str(deadly)

        def schedule(self) -> None:
            super().schedule()
            for node in self.nodes:
                self._reschedule(node)

    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        for item in items:
            item.add_marker(pytest.mark.timeout(3_600))
    else:
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(pytest.mark.skip(reason="run with --full"))
    if os.environ.get("TEST_SERVERS") == "off":
        for item in items:
            if _among(SERVERS, item) or {"postgres_server", "redis_server", "browser"} & _fixtures(item):
                item.add_marker(pytest.mark.skip(reason="TEST_SERVERS is off"))
    for item in items:
        if _among(REAL_TIME, item):
            item.add_marker(pytest.mark.xdist_group("real_time"))
        if "browser" in _fixtures(item):  # one of them keeps two cores busy
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from going through all modules and tests, now and each time later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the event loops here, since an item that is made and then deselected costs as much as another."""
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "anyio_backend" not in metafunc.fixturenames or any("anyio_backend" in names for names in chosen):
        return
    if not hasattr(metafunc.module, "anyio_backend"):
        on_both = metafunc.config.getoption("--full") or _among(SEAMS, metafunc.definition)
        metafunc.parametrize("anyio_backend", ["asyncio", "trio"] if on_both else ["asyncio"], indirect=True)


def _fixtures(item: pytest.Item) -> set[str]:
    return {*getattr(item, "fixturenames", ())}


def _among(patterns: Sequence[str], item: pytest.Item) -> bool:
    return _match(tuple(patterns), item.path)


@cache  # files are few, items many
def _match(patterns: tuple[str, ...], path: Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@pytest.fixture(autouse=True, scope="session")
def _day_of_the_facts() -> Iterator[None]:
    """Route on the day of the bundled facts once it has passed, since their models end and their prices change."""
    as_of, today = Catalogue().as_of, Fleet.today

    def today_or_before(fleet: Fleet) -> str:
        fleet.day = min(today(fleet), as_of) if isinstance(fleet._clock, SystemClock) else today(fleet)
        return fleet.day

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "today", today_or_before)
        yield


@pytest.fixture(autouse=True, scope="module")
def _garbage_of_a_file() -> Iterator[None]:
    """Collect it while the file runs, and keep the collector from going through the rest each time."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_thread_of_redis_is_left() -> Iterator[None]:
    """Have a test fail that leaves one running: it would go on into the tests after it."""
    before = _threads_of_redis()
    yield
    left = _threads_of_redis() - before
    for thread in left:
        thread.join(1.0)  # it may be about to end
    running = [thread.name for thread in left if thread.is_alive()]
    assert not running, f"still running: {running}; close the RedisCoordination"


def _threads_of_redis() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("routewright-redis")}


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))


@pytest.fixture
def clock() -> FakeClock:
    """Virtual time, from noon on, which moves only when it is told to."""
    return FakeClock(NOON.timestamp(), autojump=False)


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command is run at noon, in a folder of its own, with nothing on standard input."""
    at_noon(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))


@pytest.fixture
def recorded(tmp_path: Path, noon: None) -> Path:
    """The file ``traces.db`` with a few traces of the last days."""
    return record(tmp_path / "traces.db", few())


@pytest.fixture
def store(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same file, which the environment names."""
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "traces.db")
    return recorded


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL without syncs. Each test should use a new ``database()``."""
    need("postgres")
    with PostgresServer(durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Redis without persistence."""
    need("redis-server")
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis(redis_server: RedisServer) -> RedisServer:
    """A server that holds nothing."""
    redis_server.flush()
    return redis_server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> str:
    """The URL of a store in PostgreSQL that holds nothing."""
    from .backends.postgres_stores import empty_store  # which needs an extra

    return empty_store(postgres_server)
