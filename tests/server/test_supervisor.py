"""The supervisor without processes: when it replaces a worker, and what happens if one cannot start."""

from __future__ import annotations

import errno
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import asdict, replace

from routewright.cli.serve import FLAGS
from routewright.errors import RouterError, ValidationFailed
from routewright.serve import supervisor as room
from routewright.serve.plan import Address, CommandOptions, Plan, Prepared
from routewright.serve.supervisor import (
    CHECK_EVERY_S,
    END_S,
    LONGEST_PAUSE_S,
    METRICS_FOLDER,
    SILENT_S,
    START_S,
    Signals,
    Supervisor,
    Worker,
    _shared_metrics,
    listening,
    set_up,
)
from routewright.serve.worker import WorkerServer, fitting
from routewright.server.http_limits import ConnectionLimits

from .command import free_ports
from .wire import Client, scope_of

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
    semconv=None,
    store="sqlite:///a.db",
    policies=None,
    catalogue=None,
    http={},
    connections={},
    settings={},
)


class Hand:
    """A worker that does what the test says."""

    made: list[Hand]
    starts = True
    no_room: OSError | None = None
    exitcode = -9

    def __init__(self, place: int, plan: Plan, sockets: object, pause_s: float = 0.0) -> None:
        self.place, self.plan, self.process = place, plan, self
        self.pause_s, self.restarts_at = pause_s, None
        self.age_s, self.leaves_by = 0.0, 0.0
        self.alive = self.answers = self.left = self.ended = False
        self.made.append(self)

    def __str__(self) -> str:
        return f"worker {self.place + 1}"

    def start(self) -> None:
        if self.no_room is not None:
            raise self.no_room
        self.alive = self.answers = self.starts

    def is_alive(self) -> bool:
        return self.alive

    def is_ready(self, timeout: float) -> bool:
        return self.answers

    def hangs(self, *, is_due: bool) -> bool:
        return is_due and not self.answers

    def leave(self) -> None:
        assert all(each.answers for each in self.made[-1:]), "its successor is ready"
        self.left, self.leaves_by = True, time.monotonic() + END_S

    def end(self) -> None:
        self.alive, self.ended = False, True


found: list[Plan | RouterError] = []


@contextmanager
def preparing(asked: CommandOptions) -> Iterator[Callable[[str], Prepared]]:
    def ask(what: str) -> Prepared:
        outcome = found.pop()
        if isinstance(outcome, RouterError):
            raise outcome
        return Prepared(outcome, {}, (), ())

    yield ask


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a sleep moves on."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(room, "monotonic", lambda: now[0])
    monkeypatch.setattr(room, "sleep", sleep)
    return now


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> Supervisor:
    """One with two workers that are ready."""
    Hand.made, Hand.starts, Hand.no_room = [], True, None
    monkeypatch.setattr(room, "Worker", Hand)
    monkeypatch.setattr(room, "preparing", preparing)
    made = Supervisor(PLAN, CommandOptions(None, {}, {}), [cast(Any, None)], Signals(), lambda: None)
    made._workers = [made._start(place, PLAN) for place in range(PLAN.workers)]
    return made


def reload(supervisor: Supervisor, outcome: Plan | RouterError) -> None:
    found.append(outcome)
    supervisor._reload()


def test_each_worker_leaves_when_its_successor_is_ready(supervisor: Supervisor) -> None:
    reload(supervisor, replace(PLAN, graceful_timeout_s=7))
    first, second, *others = Hand.made
    assert [first.left, second.left, *(each.left for each in others)] == [True, True, False, False]
    assert [each.plan.graceful_timeout_s for each in others] == [7, 7]
    assert supervisor._plan.graceful_timeout_s == 7


@pytest.mark.parametrize("why", ["it ends", "it never becomes ready", "there is no room for a process"])
def test_a_successor_that_cannot_start_changes_nothing(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    before = list(supervisor._workers)
    if why == "it ends":
        Hand.starts = False
    elif why == "it never becomes ready":
        monkeypatch.setattr(Hand, "is_ready", lambda self, timeout: setattr(self, "age_s", START_S + 1))
    else:
        Hand.no_room = OSError(errno.ENOMEM, "Cannot allocate memory")
    reload(supervisor, replace(PLAN, graceful_timeout_s=7))
    assert supervisor._workers == before
    assert not any(worker.left for worker in Hand.made)
    assert Hand.made[2].ended
    assert supervisor._plan == PLAN
    assert "did not start" in caplog.text
    assert (why == "there is no room for a process") == ("Cannot allocate memory" in caplog.text)


def test_an_invalid_configuration_changes_nothing(supervisor: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    reload(supervisor, ValidationFailed("serve.toml:3: port: is wrong"))
    assert len(Hand.made) == 2
    assert "not reloaded" in caplog.text
    assert "serve.toml:3: port: is wrong" in caplog.text


def test_a_reload_changes_the_number_of_workers(supervisor: Supervisor) -> None:
    reload(supervisor, replace(PLAN, workers=3))
    assert [worker.place for worker in supervisor._workers] == [0, 1, 2]
    reload(supervisor, replace(PLAN, workers=1))
    assert [worker.place for worker in supervisor._workers] == [0]
    assert [worker.left for worker in Hand.made] == [True] * 5 + [False]


def test_a_reload_warns_of_values_that_need_a_restart(supervisor: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    reload(supervisor, replace(PLAN, store="sqlite:///b.db", address=Address("127.0.0.1", 9)))
    assert "the new store takes effect at the next restart" in caplog.text
    assert "the new address takes effect at the next restart" in caplog.text
    assert (supervisor._plan.store, supervisor._plan.address) == (PLAN.store, PLAN.address)


def test_port_0_is_not_a_changed_port(supervisor: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        reload(supervisor, replace(PLAN, address=Address("127.0.0.1", 0)))
    assert caplog.messages == []
    assert supervisor._plan.address == PLAN.address


@pytest.mark.parametrize("no_room", [False, True])
def test_a_worker_that_keeps_dying_is_restarted_after_growing_pauses(
    supervisor: Supervisor, now: list[float], no_room: bool
) -> None:
    pauses = []
    for number in range(8):
        worker = supervisor._workers[0]
        worker.end()
        Hand.no_room = OSError(errno.EMFILE, "Too many open files") if no_room and number else None
        supervisor._keep_alive()
        assert supervisor._workers[0] is worker
        assert worker.restarts_at is not None
        pauses.append(worker.restarts_at - now[0])
        now[0] = worker.restarts_at
        supervisor._keep_alive()
        assert supervisor._workers[0] is not worker
        assert supervisor._workers[1].process.is_alive()
    assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_if_all_workers_are_dead_one_is_restarted_at_once(supervisor: Supervisor) -> None:
    first, second = supervisor._workers
    first.pause_s, second.pause_s = 8.0, 1.0
    for died in (first, second):
        died.end()
    for made in (3, 4, 5):
        supervisor._keep_alive()
        supervisor._keep_alive()
        assert len(Hand.made) == made, "one is enough"
        assert supervisor._workers == [first, Hand.made[-1]], "the one whose pause is the shortest"
        Hand.made[-1].end()


def test_a_worker_that_lived_long_is_replaced_at_once(supervisor: Supervisor) -> None:
    Hand.made[0].age_s = 60.0
    Hand.made[0].end()
    supervisor._keep_alive()
    assert [id(worker) for worker in supervisor._workers] == [id(Hand.made[2]), id(Hand.made[1])]


def test_a_hanging_worker_is_replaced(
    supervisor: Supervisor, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    first = Hand.made[0]
    first.age_s, first.answers = START_S + 1, False
    supervisor._keep_alive()
    assert not first.ended, "it is asked now and then"
    now[0] += CHECK_EVERY_S + 1
    supervisor._keep_alive()
    assert first.ended
    assert "hangs: killing it" in caplog.text
    assert supervisor._workers[0] is Hand.made[2]


def test_health_checks_do_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(room, "monotonic", lambda: now[0])
    worker = Worker.__new__(Worker)
    worker.has_answered, worker.asked_at = False, None
    worker.parent_conn, theirs = Pipe()
    assert not worker.hangs(is_due=True)
    now[0] = START_S
    assert not worker.hangs(is_due=True), "it may still be starting"
    assert theirs.recv() == b"ping"
    assert not theirs.poll(), "it is asked once"
    theirs.send(True)
    assert not worker.hangs(is_due=False)
    assert not worker.hangs(is_due=True)
    now[0] += SILENT_S
    assert not worker.hangs(is_due=True)
    now[0] += 0.1
    assert worker.hangs(is_due=False)


def test_a_worker_that_does_not_end_in_time_is_killed(supervisor: Supervisor, now: list[float]) -> None:
    reload(supervisor, replace(PLAN, workers=1))
    for worker in Hand.made[:2]:
        worker.leaves_by = now[0] + 10
    supervisor._clear()
    assert not Hand.made[0].ended
    now[0] += 11
    supervisor._clear()
    assert Hand.made[0].ended
    assert supervisor._leaving == []


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


def test_each_worker_has_the_next_admin_port() -> None:
    first = free_ports(2)
    asked = replace(PLAN, address=Address("127.0.0.1", 0), admin=Address("127.0.0.1", first))
    plan, listeners = listening(asked, FLAGS)
    ports = [listener.getsockname()[1] for listener in listeners]
    assert ports == [plan.address.port, first, first + 1]
    with pytest.raises(ValidationFailed, match=rf"--port: cannot listen at 127.0.0.1 port {ports[0]}: Address al"):
        listening(plan, FLAGS)
    for listener in listeners:
        listener.close()


def test_log_lines_show_no_api_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    loggers = [logging.getLogger(name) for name in (None, "routewright.access", "uvicorn", "asyncio")]
    before = [(each, each.level, each.propagate) for each in loggers]
    for each in loggers[:2]:
        monkeypatch.setattr(each, "handlers", [])
    try:
        set_up("info")
        logging.getLogger("somebody").info("asked with sk_live_0123456789abcdef")
    finally:
        for each, level, propagates in before:
            each.setLevel(level)
            each.propagate = propagates
    said = capsys.readouterr().err
    assert "INFO" in said
    assert "0123456789" not in said


@pytest.mark.parametrize(("name", "forced"), [("SIGTERM", None), ("SIGINT", 130), ("SIGQUIT", 131)])
def test_a_second_ctrl_c_exits_at_once(name: str, forced: int | None) -> None:
    with Signals() as signals:
        signal.raise_signal(signal.SIGTERM)
        assert signals.ending
        if forced is None:
            signal.raise_signal(getattr(signal, name))
            return
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(getattr(signal, name))
    assert ended.value.code == forced


def test_sighup_requests_a_reload() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with Signals() as signals:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGINT)
    assert (signals.reload, signals.ending) == (True, True)
    assert signal.getsignal(signal.SIGHUP) == before


@pytest.mark.parametrize(("files", "room"), [(400, 200), (1_024, 768), (20_000, 10_000)])
def test_connections_are_limited_by_open_files(monkeypatch: pytest.MonkeyPatch, files: int, room: int) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    assert fitting(ConnectionLimits()).open == room


@pytest.mark.anyio
@pytest.mark.parametrize(("trusted", "client"), [("127.0.0.1", "192.0.2.7"), ("192.0.2.1", "127.0.0.1")])
async def test_only_a_trusted_proxy_names_the_client(trusted: str, client: str) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["client"][0])

    plan = replace(PLAN, trusted_proxies=(trusted,), connections=asdict(ConnectionLimits()))
    config = WorkerServer(plan).config
    config.app = app
    config.load()
    headers, asking = {"x-forwarded-for": "198.51.100.9, 192.0.2.7"}, Client()
    await config.loaded_app(scope_of("GET", "/v1/models", headers=headers), asking.receive, asking.send)
    assert seen == [client]
