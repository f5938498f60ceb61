"""Keeps workers running: starts them, replaces those that die or hang, exchanges them on SIGHUP, and ends them.

Stands on uvicorn's worker process, with its health check. Sockets stay open here, so that connections wait while
workers come and go; one that replaces another is ready before that one is told to leave."""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from time import monotonic, sleep
from typing import Any, Self

from msgspec.structs import replace
from uvicorn.config import Config
from uvicorn.supervisors.multiprocess import Process

from routewright.errors import InternalError, Problem, RouterError, ValidationFailed

from .logs import set_up
from .plan import Address, Asked, Plan, Prepared

TICK_S = 0.25
START_S = 60.0
"""How long a worker may take to become ready."""
CHECK_EVERY_S = 5.0
SILENT_S = 25.0
"""A worker whose event loop answers no health check for so long is killed."""
END_S = 6.0
"""How much longer than its requests a worker may take to end."""
LONGEST_PAUSE_S = 30.0
"""The longest pause before a worker that dies soon after its start is started again."""
LASTING_S = 10.0
"""A worker that dies younger than this died soon."""
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_FORCED = {name: 128 + getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name)}
_BACKLOG = 2048
_SPAWN = get_context("spawn")
_log = logging.getLogger("routewright.serve")


class Signals:
    """Notes signals inside the ``with``. A second Ctrl-C, or SIGQUIT, raises ``SystemExit``: it waits for nothing."""

    def __init__(self) -> None:
        self.ending = self.reload = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        names = [f"SIG{name}" for name in ("TERM", "INT", "HUP", "QUIT", "BREAK")]
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        name = signal.Signals(number).name
        if name == "SIGHUP":
            self.reload = True
        elif name in _FORCED and (self.ending or name == "SIGQUIT"):
            raise SystemExit(_FORCED[name])
        else:
            self.ending = True


@contextmanager
def _starting() -> Iterator[None]:
    """Start processes that ignore a terminal's signals, which the supervisor answers, and without the process that
    multiprocessing starts to clean up shared memory (12 MB), of which there is none."""
    if os.name != "posix":
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
    nowhere, getfd = os.open(os.devnull, os.O_WRONLY), resource_tracker.getfd
    resource_tracker.getfd = lambda: nowhere
    try:
        yield
    finally:
        resource_tracker.getfd = getfd
        os.close(nowhere)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def preparing(asked: Asked) -> Iterator[Callable[[str], Any]]:
    """A process that loads the library, which the supervisor does not need. Ask it for the ``plan``, which is a
    ``Prepared``, then to ``begin``, which gives a ``Begun``. Raises ``RouterError``."""
    line, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_prepare, args=(asked, theirs), name="routewright-prepare")

    def ask(what: str) -> Any:
        try:
            line.send(what)
            answer = line.recv()
        except Exception as error:  # it died, or another version of the library was installed meanwhile
            raise InternalError("the process that reads the configuration failed: see above") from error
        if isinstance(answer, RouterError):
            raise answer
        return answer

    try:
        with _starting():
            process.start()
    except OSError as error:
        raise InternalError(f"the process that reads the configuration cannot be started: {error}") from error
    theirs.close()
    try:
        yield ask
    finally:
        line.close()
        process.join(5)
        process.kill()


def _prepare(asked: Asked, line: Connection) -> None:
    from .prepare import answer

    answer(asked, line)


class Worker(Process):
    """A worker process of uvicorn's supervisor. It is healthy while its event loop answers."""

    def __init__(self, place: int, plan: Plan, sockets: list[socket.socket], pause_s: float = 0.0) -> None:
        self.place, self.plan = place, plan
        self.pause_s = pause_s
        """How long its place was empty before it."""
        self.restarts_at: float | None = None
        """When another takes its place; None: it has not died."""
        self.began_at = monotonic()
        self.has_answered = False
        self.asked_at: float | None = None
        """When the health check that it has not answered was sent."""
        self.leaves_by = 0.0
        super().__init__(Config("", log_config=None), sockets)  # the process makes its own configuration

    def __str__(self) -> str:
        return f"worker {self.place + 1} (process {self.pid})"

    @property
    def age_s(self) -> float:
        """Since its start."""
        return monotonic() - self.began_at

    def start(self) -> None:
        """Start the process. Raises ``OSError``."""
        with _starting():
            super().start()

    def is_ready(self, timeout: float = 5) -> bool:
        """Whether it serves, and answers in time."""
        while self.parent_conn.poll():  # late answers to earlier checks
            self.parent_conn.recv()
        return super().is_ready(timeout)

    def hangs(self, *, is_due: bool) -> bool:
        """Whether it has not answered a health check for too long. Sends one if that ``is_due``, and waits for none."""
        try:
            while self.parent_conn.poll():
                self.parent_conn.recv()
                self.asked_at, self.has_answered = None, True
            if self.asked_at is None and is_due:
                self.parent_conn.send(b"ping")
                self.asked_at = monotonic()
        except (EOFError, OSError):  # it has just died
            return False
        silent_s = SILENT_S if self.has_answered else START_S
        return self.asked_at is not None and monotonic() - self.asked_at > silent_s

    def leave(self) -> None:
        """Let it end what it has begun, and end."""
        self.leaves_by = monotonic() + self.plan.graceful_timeout_s + END_S
        if self.process.is_alive():
            self.terminate()

    def end(self) -> None:
        """Kill it if it is alive, and take its exit code."""
        if self.pid is not None:  # it was started
            self.kill()
            self.join()

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve. Runs in the process."""
        from .worker import WorkerServer  # loads the library, which the supervisor does not need

        set_up(self.plan.log_level, access=self.plan.access_log)
        self._server = self._serving = WorkerServer(self.plan)
        threading.Thread(target=_end_with_supervisor, daemon=True).start()
        super().target(sockets)

    def pong(self) -> None:
        """Answer a health check from the event loop."""
        self.child_conn.recv()
        self._serving.answer(self.child_conn.send)


def _end_with_supervisor() -> None:
    supervisor = parent_process()
    assert supervisor is not None
    supervisor.join()
    signal.raise_signal(signal.SIGTERM)


class Supervisor:
    """Runs the workers of a plan. ``listeners``: the one of requests, then the administrator's, one a worker. ``ready``
    is called once, when all workers are ready."""

    def __init__(
        self, plan: Plan, asked: Asked, listeners: Sequence[socket.socket], signals: Signals, ready: Callable[[], None]
    ) -> None:
        self._plan, self._asked, self._signals, self._ready = plan, asked, signals, ready
        self._listener, *self._administration = listeners
        self._workers: list[Worker] = []
        self._leaving: list[Worker] = []
        self._checked_at = monotonic()
        self.has_served = False
        """All workers were ready once."""

    def run(self) -> int:
        """Supervise until a signal ends it. Returns the exit code."""
        try:
            with _shared_metrics(self._plan):
                self._workers = [self._start(place, self._plan) for place in range(self._plan.workers)]
                if not all(map(self._becomes_ready, self._workers)):
                    return 0 if self._signals.ending else 1
                self.has_served = True
                self._ready()
                while not self._signals.ending:
                    sleep(TICK_S)
                    if self._signals.reload:
                        self._reload()
                    self._keep_alive()
                    self._clear()
                self._drain()
                return 0
        finally:
            for worker in (*self._workers, *self._leaving):
                worker.end()

    def _start(self, place: int, plan: Plan, pause_s: float = 0.0) -> Worker:
        """Start a worker. If the system has no room for a process, the log says so, and the worker is not alive."""
        worker = Worker(place, plan, [self._listener, *self._administration[place : place + 1]], pause_s)
        try:
            if METRICS_FOLDER in os.environ:  # a cleaner of temporary files may have removed it
                os.makedirs(os.environ[METRICS_FOLDER], exist_ok=True)
            worker.start()
        except OSError as error:
            _log.error("%s: %s", worker, error)
        return worker

    def _becomes_ready(self, worker: Worker) -> bool:
        """Wait until it is ready. False if it cannot become so, or the server is to end."""
        while not worker.is_ready(timeout=1):
            if self._signals.ending:
                return False
            if not worker.process.is_alive() or worker.age_s > START_S:
                _log.error("%s could not start; see above", worker)
                return False
            sleep(TICK_S / 5)
        return True

    def _keep_alive(self) -> None:
        """Replace workers that died or hang: at once, or after longer and longer pauses if they die young. While none
        is alive, one is replaced without a pause."""
        if is_due := monotonic() - self._checked_at > CHECK_EVERY_S:
            self._checked_at = monotonic()
        dead: dict[Worker, float] = {}  # when each restarts
        for worker in self._workers:
            if worker.process.is_alive():
                if not worker.hangs(is_due=is_due):
                    continue
                _log.error("%s hangs, and is killed", worker)
            if worker.restarts_at is None:
                worker.end()
                pause_s = 0.0 if worker.age_s > LASTING_S else min(max(2 * worker.pause_s, 1.0), LONGEST_PAUSE_S)
                worker.pause_s, worker.restarts_at = pause_s, monotonic() + pause_s
                _log.error("%s died with %s; another takes its place within %g s", worker, worker.exitcode, pause_s)
            dead[worker] = worker.restarts_at
        if len(dead) == len(self._workers):
            dead[min(dead, key=lambda worker: dead[worker])] = 0.0
        for worker, restarts_at in dead.items():
            if monotonic() >= restarts_at:
                self._workers[worker.place] = self._start(worker.place, self._plan, worker.pause_s)

    def _reload(self) -> None:
        """Read the configuration anew, and exchange one worker after another. What is not valid changes nothing."""
        self._signals.reload = False
        if self._plan.in_memory:
            _log.error("nothing changes: what is kept in memory would be lost; end the server and start anew")
            return
        _log.info("SIGHUP: reading the configuration anew")
        try:
            with preparing(self._asked) as ask:
                prepared: Prepared = ask("plan")
        except RouterError as error:
            _log.error("nothing changes, the configuration is not valid: %s", error)
            return
        for warning in prepared.warnings:
            _log.warning("%s", warning)
        plan = self._with_what_stays(prepared.plan)
        for place in range(plan.workers):
            worker = self._start(place, plan)
            if not self._becomes_ready(worker):
                worker.end()
                _log.error("the worker before it stays, and all that follow")
                return
            self._dismiss(self._workers[place : place + 1])
            self._workers[place : place + 1] = [worker]
        self._dismiss(self._workers[plan.workers :])
        del self._workers[plan.workers :]
        self._plan = plan
        _log.info("the new configuration is in force")

    def _with_what_stays(self, plan: Plan) -> Plan:
        """The new plan, with all that only a new start changes, and a socket of the administrator for each worker."""
        here = self._plan
        for name in ("address", "admin", "store"):
            asked, stays = getattr(plan, name), getattr(here, name)
            if isinstance(asked, Address) and isinstance(stays, Address) and asked.port == 0:
                asked = replace(asked, port=stays.port)  # any port, so the one it became
            if asked != stays:
                _log.warning("the %s stays what it is until the next start", name)
        try:
            while here.admin is not None and len(self._administration) < plan.workers:
                address = replace(here.admin, port=here.admin.port + len(self._administration))
                self._administration.append(listen(address, "admin.port"))
        except ValidationFailed as error:
            _log.error("more workers have no health checks: %s", error)
        return replace(plan, address=here.address, admin=here.admin, store=here.store, seed=here.seed)

    def _dismiss(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.leave()
            self._leaving.append(worker)

    def _clear(self) -> None:
        """Forget workers that have left, and kill those that should have."""
        for worker in list(self._leaving):
            if worker.process.is_alive():
                if monotonic() < worker.leaves_by:
                    continue
                _log.error("%s did not end in time, and is killed", worker)
            self._leaving.remove(worker)
            worker.end()

    def _drain(self) -> None:
        """Let all workers end what they have begun."""
        _log.info("accepting no more, ending what was begun")
        for listener in (self._listener, *self._administration):
            listener.close()
        self._dismiss(self._workers)
        while self._leaving:
            sleep(TICK_S / 5)
            self._clear()


@contextmanager
def _shared_metrics(plan: Plan) -> Iterator[None]:
    """Give workers a folder in which ``prometheus_client`` shares their figures, unless the operator has."""
    if plan.admin is None or METRICS_FOLDER in os.environ:
        yield
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix="routewright-metrics-", ignore_cleanup_errors=True)
    except OSError as error:
        raise InternalError(f"the workers have no folder to share figures in: {error}; set TMPDIR") from error
    with folder:
        os.environ[METRICS_FOLDER] = folder.name
        try:
            yield
        finally:
            del os.environ[METRICS_FOLDER]


def listening(plan: Plan, names: Mapping[str, str]) -> tuple[Plan, list[socket.socket]]:
    """Take all ports: the listener of requests, then one for the administrator of each worker, and the plan with the
    ports that they got. ``names``: of the flags. Raises ``ValidationFailed``."""
    listener = listen(plan.address, names["port"])
    plan = replace(plan, address=replace(plan.address, port=listener.getsockname()[1]))
    if plan.admin is None:
        return plan, [listener]
    first = listen(plan.admin, names["admin.port"])
    admin = replace(plan.admin, port=first.getsockname()[1])
    further = (replace(admin, port=admin.port + place) for place in range(1, plan.workers))
    others = [listen(address, names["admin.port"]) for address in further]
    return replace(plan, admin=admin), [listener, first, *others]


def listen(address: Address, name: str) -> socket.socket:
    """Listen at an address, which ``name`` stands for in errors. Raises ``ValidationFailed``."""
    at = (address.host, address.port)
    try:
        (family, *_), *_ = socket.getaddrinfo(*at, type=socket.SOCK_STREAM)
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(at, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        said = f"nothing can listen at {address.host} port {address.port}: {reason}"
        raise ValidationFailed.of(Problem(name, said, "take another one, or end what is there")) from error
    return socket.socket(fileno=listener.detach())  # it finds out that it is TCP, or asyncio sends nothing at once
