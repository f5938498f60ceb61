"""The supervisor as a machine: who is exchanged when, and what becomes of one that cannot start. Nothing is started."""

from __future__ import annotations

import errno
import logging
import signal
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from routewright.errors import RouterError, ValidationFailed
from routewright.serve import crew as crew_floor
from routewright.serve import supervisor as floor
from routewright.serve.crew import BEAT_S, SILENT_S, SPAWN, Worker
from routewright.serve.plan import Address, Plan
from routewright.serve.preparation import Asked, Preparation, Prepared
from routewright.serve.supervisor import LONGEST_PAUSE_S, TICK_S, Supervisor

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

    def __init__(self, place: int, plan: Plan, listeners: object) -> None:
        if self.no_room is not None:
            raise self.no_room
        self.place, self.plan = place, plan
        self.is_alive, self.is_ready, self.hangs = self.starts, False, False
        self.leaves_by: float | None = None
        self.began_at = time.monotonic()
        self.left = self.killed = False
        self.due_at = self.began_at + 5.0
        self.made.append(self)

    def listen(self) -> None:
        self.is_ready = self.is_alive

    def leave(self, within_s: float) -> None:
        self.left, self.leaves_by = True, time.monotonic() + within_s

    def kill(self) -> None:
        self.killed, self.is_alive = True, False

    def bury(self) -> int:
        return -9


class Reading:
    """A preparation that has come to its end."""

    outcome: Plan | RouterError
    is_done = True

    def __init__(self, asked: Asked) -> None: ...

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None: ...

    def plan(self) -> Prepared:
        if isinstance(self.outcome, RouterError):
            raise self.outcome
        return Prepared(self.outcome, {}, (), ())


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """One with two workers that are ready."""
    Hand.made, Hand.starts, Hand.no_room = [], True, None
    monkeypatch.setattr(floor, "Worker", Hand)
    monkeypatch.setattr(floor, "Preparation", Reading)
    supervisor = Supervisor(PLAN, Asked(None, {}, {}), [cast(Any, None)], [], lambda: None)
    supervisor._fill()
    supervisor._tick()
    assert supervisor.has_served
    return supervisor


def hup(supervisor: Supervisor, outcome: Plan | RouterError) -> None:
    Reading.outcome = outcome
    supervisor._signals.append(signal.SIGHUP)
    supervisor._tick()


def test_a_worker_leaves_only_when_its_successor_is_ready(crew: Supervisor) -> None:
    first, second = Hand.made
    hup(crew, replace(PLAN, graceful_timeout_s=7))
    crew._tick()
    third = Hand.made[2]
    assert not first.left
    crew._tick()
    assert first.left
    assert not second.left
    for _ in range(4):
        crew._tick()
    assert second.left
    assert third.plan.graceful_timeout_s == 7
    assert len(Hand.made) == 4


def test_a_successor_that_cannot_start_leaves_all_as_it_is(crew: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    first, second = Hand.made
    Hand.starts = False
    hup(crew, PLAN)
    for _ in range(6):
        crew._tick()
    assert not first.left
    assert not second.left
    assert len(Hand.made) == 3
    assert "could not start" in caplog.text


def test_a_configuration_that_is_not_valid_changes_nothing(crew: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    hup(crew, ValidationFailed("serve.toml:3: port: is wrong"))
    for _ in range(4):
        crew._tick()
    assert len(Hand.made) == 2
    assert "nothing changes" in caplog.text
    assert "serve.toml:3: port: is wrong" in caplog.text


def test_more_and_fewer_workers_are_taken_at_a_reload(crew: Supervisor) -> None:
    hup(crew, replace(PLAN, workers=3))
    for _ in range(8):
        crew._tick()
    assert sorted(crew._crew) == [0, 1, 2]
    hup(crew, replace(PLAN, workers=1))
    for _ in range(8):
        crew._tick()
    assert sorted(crew._crew) == [0]


def test_what_only_a_new_start_changes_is_said(crew: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    hup(crew, replace(PLAN, store="sqlite:///b.db", address=Address("127.0.0.1", 9)))
    crew._tick()
    assert "the store stays what it is" in caplog.text
    assert "the address stays what it is" in caplog.text
    assert crew._plan.store == PLAN.store


def test_a_worker_that_dies_again_and_again_is_started_ever_more_slowly(
    crew: Supervisor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pauses = []
    for _ in range(8):
        crew._crew[0].is_alive = False  # type: ignore[misc]
        crew._tick()
        assert 0 not in crew._crew
        pauses.append(crew._pauses[0])
        now[0] += pauses[-1]
        crew._tick()
        assert 0 in crew._crew
    assert pauses == [1, 2, 4, 8, 16, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_one_that_cannot_be_started_is_tried_again_after_a_pause_and_the_rest_serve_on(
    crew: Supervisor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    first, second = Hand.made
    first.is_alive, second.due_at = False, now[0] + 500
    crew._tick()
    Hand.no_room = OSError(errno.EMFILE, "Too many open files")
    for pause_s in (2, 4, 8):
        now[0] += crew._pauses[0]
        crew._tick()
        assert crew._pauses[0] == pause_s
        assert crew._rest_s() == pytest.approx(pause_s)
    assert caplog.messages[-1] == (
        "worker 1 could not be started: [Errno 24] Too many open files; it is tried again in 8 s"
    )
    assert crew._code is None
    assert list(crew._crew) == [1]
    now[0] += 8
    Hand.no_room = None
    crew._tick()
    assert sorted(crew._crew) == [0, 1]


def test_a_first_start_that_has_no_room_for_a_worker_fails(crew: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    Hand.no_room = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    starting = Supervisor(PLAN, Asked(None, {}, {}), [cast(Any, None)], [], lambda: None)
    starting._fill()
    assert starting._code == 1
    assert "worker 1 could not be started: [Errno 11]" in caplog.text


def test_a_successor_that_there_is_no_room_for_leaves_all_as_it_is(
    crew: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    before = dict(crew._crew)
    Hand.no_room = OSError(errno.ENOMEM, "Cannot allocate memory")
    hup(crew, replace(PLAN, graceful_timeout_s=7))
    for _ in range(4):
        crew._tick()
    assert crew._crew == before
    assert not any(worker.left for worker in Hand.made)
    assert "could not be started: [Errno 12] Cannot allocate memory; the one before it stays" in caplog.text


def test_a_reload_that_there_is_no_room_for_changes_nothing(
    crew: Supervisor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(floor, "Preparation", Preparation)
    monkeypatch.setattr(crew_floor, "start", full)
    hup(crew, PLAN)
    for _ in range(4):
        crew._tick()
    assert crew._preparation is None
    assert len(Hand.made) == 2
    said = "nothing changes: the process that reads the configuration cannot be started: [Errno 24] Too many open files"
    assert said in caplog.messages


def test_one_that_hangs_is_replaced(crew: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    first = Hand.made[0]
    first.hangs = True
    with caplog.at_level(logging.ERROR):
        crew._tick()
    assert first.killed
    assert "hangs, and is killed" in caplog.text


def test_nobody_looks_while_nothing_happens_until_a_worker_is_to_be_asked(crew: Supervisor) -> None:
    now = time.monotonic()
    Hand.made[0].due_at, Hand.made[1].due_at = now + 500, now + 300
    assert 290 < crew._rest_s() <= 300
    Hand.made[1].due_at = now - 1
    assert crew._rest_s() == 0


def test_who_waits_for_its_place_is_started_in_time(crew: Supervisor, caplog: pytest.LogCaptureFixture) -> None:
    for worker in Hand.made:
        worker.due_at = time.monotonic() + 500
    crew._crew[0].is_alive = False  # type: ignore[misc]
    crew._tick()
    assert 0 < crew._rest_s() <= 1.0


def test_while_workers_change_places_it_looks_often(crew: Supervisor) -> None:
    hup(crew, PLAN)
    for _ in range(2):
        assert crew._rest_s() == TICK_S
        crew._tick()


def test_a_signal_ends_the_rest() -> None:
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with floor._woken_by_signals() as bell:
            assert wait([bell], 0) == []
            signal.raise_signal(signal.SIGINT)
            assert wait([bell], 30) == [bell]
            floor._empty(bell)
            assert wait([bell], 0) == []
    finally:
        signal.signal(signal.SIGINT, before)


class Process:
    """One that a worker would be."""

    sentinel, pid = -1, 1

    def __init__(self, **how: object) -> None: ...

    def start(self) -> None: ...


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Worker, Connection, list[float]]]:
    """A worker that was ready at 0, its end of the line, and the time."""
    now, ends = [0.0], []

    def pipe() -> tuple[Connection, Connection]:
        ours, theirs = SPAWN.Pipe()
        ends.append(theirs)
        return ours, cast(Any, Closed())

    monkeypatch.setattr(crew_floor, "monotonic", lambda: now[0])
    monkeypatch.setattr(crew_floor, "SPAWN", SimpleNamespace(Pipe=pipe, Process=Process))
    worker = Worker(0, PLAN, [])
    (theirs,) = ends
    theirs.send_bytes(b"ready")
    worker.listen()
    assert worker.is_ready
    yield worker, theirs, now
    theirs.close()
    worker._line.close()


class Closed:
    def close(self) -> None: ...


def test_a_worker_that_answers_is_asked_every_few_seconds(ready: tuple[Worker, Connection, list[float]]) -> None:
    worker, line, now = ready
    for _ in range(20):
        assert worker.due_at == now[0] + BEAT_S
        worker.listen()
        assert not line.poll(0)
        now[0] += BEAT_S
        worker.listen()
        assert line.recv_bytes() == b"?"
        line.send_bytes(b"ready")
        worker.listen()
        assert not worker.hangs


def test_one_that_does_not_answer_hangs_after_half_a_minute(ready: tuple[Worker, Connection, list[float]]) -> None:
    worker, line, now = ready
    now[0] = BEAT_S
    for _ in range(3):
        worker.listen()
    assert line.recv_bytes() == b"?"
    assert not line.poll(0)
    assert worker.due_at == BEAT_S + SILENT_S
    now[0] = BEAT_S + SILENT_S - 0.001
    assert not worker.hangs
    now[0] = worker.due_at
    assert worker.hangs


def test_a_line_that_is_cut_is_waited_for_no_more(ready: tuple[Worker, Connection, list[float]]) -> None:
    worker, line, now = ready
    assert len(worker.signs) == 2
    line.close()
    now[0] = BEAT_S
    worker.listen()
    assert worker.signs == [Process.sentinel]
    assert worker.due_at == BEAT_S + SILENT_S


def test_one_is_not_taken_to_hang_because_its_supervisor_stood_still(
    ready: tuple[Worker, Connection, list[float]],
) -> None:
    worker, line, now = ready
    now[0] += 100.0
    worker.listen()
    assert not worker.hangs
    assert line.recv_bytes() == b"?"
    now[0] += 100.0
    line.send_bytes(b"ready")  # it answered meanwhile
    worker.listen()
    assert not worker.hangs


def test_a_process_that_cannot_be_started_leaves_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Connection] = []

    def pipe() -> tuple[Connection, Connection]:
        ends.extend(SPAWN.Pipe())
        return ends[0], ends[1]

    def full(_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(crew_floor, "SPAWN", SimpleNamespace(Pipe=pipe, Process=Process))
    monkeypatch.setattr(crew_floor, "start", full)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        Worker(0, PLAN, [])
    assert [end.closed for end in ends] == [True, True]


def test_python_starts_no_process_to_clean_up_behind_a_worker() -> None:
    tracker = vars(resource_tracker)["_resource_tracker"]
    before, process = tracker._pid, SPAWN.Process(target=int)
    crew_floor.start(process)
    process.join()
    assert process.exitcode == 0
    assert tracker._pid == before
