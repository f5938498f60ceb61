"""The parts of the supervisor and of a worker, without processes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import asdict, replace
from uvicorn.supervisors.multiprocess import SIGNALS, Multiprocess

from routewright.cli.serve import FLAGS
from routewright.errors import InternalError, StorageUnavailable, ValidationFailed
from routewright.serve import processes
from routewright.serve.parts import open_router
from routewright.serve.plan import Address, CommandOptions, Configuration, Plan, Setup
from routewright.serve.prepare import prepare, set_up_store
from routewright.serve.processes import (
    METRICS_FOLDER,
    Listeners,
    Supervisor,
    WorkerConfig,
    _hold_signals,
    _shared_metrics,
    open_listeners,
    set_up_logging,
)
from routewright.serve.worker import announce_end, fit_open_files, serve_beside
from routewright.server.http_limits import ConnectionLimits
from routewright.server.http_protocol import ENDING

from .asgi_client import Client, scope_of
from .serve_process import free_ports

PLAN = Plan(
    address=Address("127.0.0.1", 8080),
    admin=None,
    tls=None,
    workers=2,
    root_path="",
    environment=None,
    trusted_proxies=(),
    graceful_timeout_s=5,
    log_level="info",
    access_log=False,
    otel=False,
    store="sqlite:///a.db",
    policies=None,
    catalogue=None,
    http={},
    connections={},
    settings={},
)


@pytest.mark.parametrize("given", [True, False])
def test_workers_share_metrics_in_the_operators_folder_or_a_temporary_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: bool
) -> None:
    monkeypatch.delenv(METRICS_FOLDER, raising=False)
    if given:
        monkeypatch.setenv(METRICS_FOLDER, str(tmp_path))
    with _shared_metrics(replace(PLAN, admin=Address("127.0.0.1", 0))):
        folder = Path(os.environ[METRICS_FOLDER])
        assert folder.is_dir()
    assert (folder == tmp_path) == given
    assert (folder.is_dir(), METRICS_FOLDER in os.environ) == (given, given)


def test_all_workers_share_one_admin_port() -> None:
    first = free_ports(1)
    asked = replace(PLAN, address=Address("127.0.0.1", 0), admin=Address("127.0.0.1", first))
    plan, listener, administration = open_listeners(asked, FLAGS)
    assert administration is not None
    assert [each.getsockname()[1] for each in (listener, administration)] == [plan.address.port, first]
    with pytest.raises(ValidationFailed, match=rf"--port: cannot listen at 127.0.0.1 port {plan.address.port}: Addr"):
        open_listeners(plan, FLAGS)
    for each in (listener, administration):
        each.close()


@pytest.mark.parametrize("store", ["memory:", "sqlite:///a.db"])
def test_a_store_in_memory_is_never_shared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    done: list[str] = []
    monkeypatch.setattr(Multiprocess, "handle_hup", lambda self: done.append("HUP"))
    monkeypatch.setattr(Multiprocess, "handle_ttin", lambda self: done.append("TTIN"))
    supervisor = Supervisor.__new__(Supervisor)
    supervisor.config = cast(Any, SimpleNamespace(plan=replace(PLAN, store=store)))
    supervisor.handle_hup()
    supervisor.handle_ttin()
    assert done == ([] if store == "memory:" else ["HUP", "TTIN"])
    assert ("the in-memory store would be lost" in caplog.text) == (store == "memory:")


QUICK = replace(PLAN, graceful_timeout_s=0, connections=asdict(ConnectionLimits()))


class Worker:
    """A process of uvicorn's. ``ends``: whether it does when it is told to."""

    def __init__(self, *, ends: bool = True, broken: bool = False) -> None:
        self.process, self.pid, self.exitcode = SimpleNamespace(is_alive=self.is_alive, join=self.join), 7, None
        self.ends, self.broken, self.told = ends, broken, list[str]()

    def start(self) -> None:
        if self.broken:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.told.append("start")

    def is_alive(self, timeout: float = 0) -> bool:
        return not ("kill" in self.told or (self.ends and "terminate" in self.told))

    def wait_until_ready(self, timeout: float, should_exit: threading.Event) -> bool:
        return not should_exit.is_set()

    def terminate(self) -> None:
        self.told.append("terminate")

    def kill(self) -> None:
        self.told.append("kill")

    def join(self, timeout: float | None = None) -> None:
        assert timeout is not None or not self.is_alive(), "waits for ever"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervisor]]:
    """Makes a supervisor of such workers, in the order in which it starts them."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def make(*workers: Worker) -> Supervisor:
        left = iter(workers)
        monkeypatch.setattr("uvicorn.supervisors.multiprocess.Process", lambda *_: next(left))
        monkeypatch.setattr("routewright.serve.processes.SILENT_S", 0)
        monkeypatch.setattr(WorkerConfig, "configure_logging", lambda self: None)
        return Supervisor(WorkerConfig(QUICK), [])

    yield make
    for number, handler in before.items():
        signal.signal(number, handler)


def test_workers_end_when_another_one_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, made: Callable[..., Supervisor]
) -> None:
    first = Worker(ends=False)
    supervisor = made(first, Worker(broken=True))

    @contextmanager
    def prepared(asked: object) -> Iterator[Callable[[str], Any]]:
        yield lambda what: {"plan": Configuration(QUICK, {}, (), ()), "begin": Setup({})}[what]

    monkeypatch.setattr(processes, "start_preparation", prepared)
    monkeypatch.setattr(processes, "open_listeners", lambda plan, names: Listeners(plan, cast(Any, None)))
    monkeypatch.setattr(processes, "Supervisor", lambda *_: supervisor)
    with pytest.raises(InternalError, match="a worker cannot be started: "):
        processes.run(CommandOptions(None, {}, FLAGS), lambda warnings: None, lambda *_: None)
    assert first.told[:2] == ["start", "terminate"]
    assert not first.is_alive()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTTIN])
def test_a_running_server_outlives_a_worker_that_cannot_be_started(
    made: Callable[..., Supervisor], caplog: pytest.LogCaptureFixture, number: int
) -> None:
    old: list[Any] = [Worker(), Worker()]
    supervisor = made(*old, Worker(broken=True), Worker(broken=True), new := cast(Any, Worker()))
    supervisor.init_processes()
    supervisor.signal_queue.append(number)
    supervisor.handle_signals()
    assert "a worker cannot be started: [Errno 11]" in caplog.text
    assert (supervisor.processes, supervisor.processes_num) == (old, 2)
    old[1].kill()
    for _ in range(2):  # fails, and is tried again
        supervisor.keep_subprocess_alive()
    assert supervisor.processes == [old[0], new]
    assert {record.levelname for record in caplog.records if "worker 7 died" in record.message} == {"ERROR"}


def test_a_signal_ends_the_server_during_a_reload(made: Callable[..., Supervisor]) -> None:
    busy, other, new = cast(Any, (Worker(ends=False), Worker(), Worker()))
    supervisor = made(busy, other, new)
    supervisor.init_processes()
    supervisor.config.plan = replace(QUICK, graceful_timeout_s=60)
    supervisor.signal_queue.append(signal.SIGHUP)
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGTERM])
    timer.start()
    try:
        supervisor.handle_signals()
    finally:
        timer.join()
    assert (supervisor.processes, supervisor.signal_queue) == ([new, other, busy], [signal.SIGTERM])
    supervisor.handle_signals()
    assert supervisor.should_exit.wait(0)
    supervisor.config.plan = QUICK
    supervisor.terminate_all()
    supervisor.join_all()
    assert not any(worker.is_alive() for worker in supervisor.processes)


def test_a_reload_kills_a_worker_that_does_not_end(made: Callable[..., Supervisor]) -> None:
    stuck, new = cast(Any, (Worker(ends=False), Worker()))
    supervisor = made(stuck, new)
    supervisor.processes_num = 1
    supervisor.init_processes()
    supervisor.signal_queue.append(signal.SIGHUP)
    supervisor.handle_signals()
    assert stuck.told == ["start", "terminate", "kill"]
    assert supervisor.processes == [new]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_ends_the_server(made: Callable[..., Supervisor], number: int) -> None:
    supervisor = made()
    signal.raise_signal(number)
    supervisor.handle_signals()
    assert supervisor.should_exit.wait(0)


def test_signals_wait_until_new_keys_were_shown() -> None:
    came: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    try:
        with _hold_signals():
            signal.raise_signal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
            assert came == []
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_log_lines_show_no_api_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    loggers = [logging.getLogger(name) for name in (None, "routewright.access", "uvicorn", "asyncio")]
    before = [(each, each.level, each.propagate) for each in loggers]
    for each in loggers[:2]:
        monkeypatch.setattr(each, "handlers", [])
    try:
        set_up_logging("info")
        logging.getLogger("somebody").info("asked with sk_live_0123456789abcdef")
    finally:
        for each, level, propagates in before:
            each.setLevel(level)
            each.propagate = propagates
    said = capsys.readouterr().err
    assert "INFO" in said
    assert "0123456789" not in said


@pytest.mark.parametrize(("files", "room"), [(400, 200), (1_024, 736), (20_000, 10_000)])
def test_connections_are_limited_by_open_files(monkeypatch: pytest.MonkeyPatch, files: int, room: int) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    assert fit_open_files(ConnectionLimits()).open == room


@pytest.mark.anyio
@pytest.mark.parametrize(("trusted", "client"), [("127.0.0.1", "192.0.2.7"), ("192.0.2.1", "127.0.0.1")])
async def test_only_a_trusted_proxy_names_the_client(
    monkeypatch: pytest.MonkeyPatch, trusted: str, client: str
) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])

    plan = replace(PLAN, trusted_proxies=(trusted,), connections=asdict(ConnectionLimits()))
    monkeypatch.setattr(WorkerConfig, "configure_logging", lambda self: None)
    config = WorkerConfig(plan)
    config.load()
    config.loaded_app.app._app = app
    headers, asking = {"x-forwarded-for": "198.51.100.9, 192.0.2.7"}, Client()
    await config.loaded_app(scope_of("GET", "/v1/models", headers=headers), asking.receive, asking.send)
    assert seen == [client]


@pytest.mark.anyio
async def test_keys_of_a_store_in_memory_survive_their_worker() -> None:
    plan = prepare(CommandOptions(None, {"store": "memory:"}, FLAGS), {}).plan
    setup = await set_up_store(plan)
    for _ in range(2):  # one worker after the other
        async with open_router(replace(plan, seed=setup.seed)) as (_, console):
            caller = await console.authenticate(f"Bearer {setup.keys['sandbox']}")
            assert (caller.account, caller.environment) == (setup.account, "sandbox")


@pytest.mark.anyio
async def test_a_worker_makes_no_store_in_place_of_one_that_was_removed(tmp_path: Path) -> None:
    lost = replace(PLAN, store=f"sqlite:///{tmp_path}/lost.db")
    with pytest.raises(StorageUnavailable, match="was removed while it was in use; restore a backup"):
        async with open_router(lost):
            raise AssertionError("it serves")
    assert not (tmp_path / "lost.db").exists()


@pytest.mark.anyio
async def test_an_administrators_listener_that_fails_fails_the_worker() -> None:
    closed = socket.socket()
    closed.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        async with serve_beside(cast(Any, None), closed, ConnectionLimits()):
            raise AssertionError("it listens")


@pytest.mark.anyio
async def test_an_administrators_listener_ends_with_its_block() -> None:
    before = asyncio.all_tasks()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serve_beside(cast(Any, None), listener, ConnectionLimits()):
            socket.create_connection(listener.getsockname(), timeout=5).close()
        assert asyncio.all_tasks() == before


def test_a_signal_tells_even_connections_that_are_not_there_yet() -> None:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    came: list[int] = []
    state: dict[str, Any] = {}
    try:
        for number, _ in before:
            signal.signal(number, lambda number, _: came.append(number))
        announce_end(state)
        assert ENDING not in state
        signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert (came, state) == ([signal.SIGTERM], {ENDING: True})
