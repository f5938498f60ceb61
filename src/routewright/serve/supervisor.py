"""Supervises the workers: starts them, replaces dead and hanging ones, reloads on SIGHUP, and stops them.

Builds on uvicorn's worker process and its health check. The supervisor keeps the sockets open, so connections wait
while workers are replaced. On reload a new worker is ready before the old one is told to stop."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
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

from routewright._core.account import without_keys
from routewright.errors import InternalError, Problem, RouterError, ValidationFailed

from .plan import Address, CommandOptions, Plan, Prepared

TICK_S = 0.25
START_S = 60.0
"""How long a worker may take to become ready."""
CHECK_EVERY_S = 5.0
SILENT_S = 25.0
"""A worker whose event loop answers no health check for this long is killed."""
END_S = 6.0
"""How long a worker may take to end after its last request."""
LONGEST_PAUSE_S = 30.0
"""Longest pause before a worker that died early is restarted."""
LASTING_S = 10.0
"""A worker that dies at a lower age died early."""
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_CHATTY = ("uvicorn", "asyncio")
"""Loggers that write much at ``INFO``."""
_FORCED = {name: 128 + getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name)}
_BACKLOG = 2048
_SPAWN = get_context("spawn")
_log = logging.getLogger("routewright.serve")


class _Keyless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_keys(super().format(record))


def set_up(level: str, *, access: bool = False) -> None:
    """Configure logging of this process: lines on standard error with API keys masked, and with ``access`` requests as
    JSON on standard output."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Keyless("%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"))
    root, requests = logging.getLogger(), logging.getLogger("routewright.access")
    root.handlers[:] = [handler]
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(number)
    requests.handlers[:] = [logging.StreamHandler(sys.stdout)] if access else []
    requests.setLevel(logging.INFO if access else logging.CRITICAL)
    requests.propagate = False
    for name in _CHATTY:
        logging.getLogger(name).setLevel(number if number <= logging.DEBUG else max(number, logging.WARNING))


class Signals:
    """Records signals inside the ``with``. A second Ctrl-C or SIGQUIT raises ``SystemExit`` at once."""

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
    """Start processes that ignore the terminal's signals, which the supervisor handles. Also without multiprocessing's
    resource tracker, a process of 12 MB that would have nothing to clean up."""
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
def preparing(asked: CommandOptions) -> Iterator[Callable[[str], Any]]:
    """Start a process that loads the library. Ask it for the ``plan`` (a ``Prepared``), then to ``begin`` (a
    ``Begun``). Raises ``RouterError``."""
    line, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_prepare, args=(asked, theirs), name="routewright-prepare")

    def ask(what: str) -> Any:
        try:
            line.send(what)
            answer = line.recv()
        except Exception as error:  # it died, or another version of the library has been installed
            raise InternalError("the process that reads the configuration failed; see the log above") from error
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
        process.join()


def _prepare(asked: CommandOptions, line: Connection) -> None:
    from .prepare import answer

    answer(asked, line)


class Worker(Process):
    """uvicorn's worker process. It is healthy while its event loop answers."""

    def __init__(self, place: int, plan: Plan, sockets: list[socket.socket], pause_s: float = 0.0) -> None:
        self.place, self.plan = place, plan
        self.pause_s = pause_s
        """Pause before its start."""
        self.restarts_at: float | None = None
        """When its replacement starts. None: it is alive."""
        self.began_at = monotonic()
        self.has_answered = False
        self.asked_at: float | None = None
        """When the pending health check was sent."""
        self.leaves_by = 0.0
        super().__init__(Config("", log_config=None), sockets)  # the worker makes its own configuration

    def __str__(self) -> str:
        return f"worker {self.place + 1} (process {self.pid})"

    @property
    def age_s(self) -> float:
        """Seconds since its start."""
        return monotonic() - self.began_at

    def start(self) -> None:
        """Start the process. Raises ``OSError``."""
        with _starting():
            super().start()

    def is_ready(self, timeout: float = 5) -> bool:
        """True if it serves and answers in time."""
        while self.parent_conn.poll():  # late answers to earlier checks
            self.parent_conn.recv()
        return super().is_ready(timeout)

    def hangs(self, *, is_due: bool) -> bool:
        """True if a health check has been pending for too long. Sends the next if one ``is_due``. Does not block."""
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
        """Tell it to finish its requests and end."""
        self.leaves_by = monotonic() + self.plan.graceful_timeout_s + END_S
        if self.process.is_alive():
            self.terminate()

    def end(self) -> None:
        """Kill it if it is alive, and reap it."""
        if self.pid is not None:  # started
            self.kill()
            self.join()

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve. Runs in the worker process."""
        from .worker import WorkerServer  # loads the library

        set_up(self.plan.log_level, access=self.plan.access_log)
        self._server = self._serving = WorkerServer(self.plan)
        supervisor = parent_process()
        assert supervisor is not None

        def end_with_supervisor() -> None:
            supervisor.join()
            signal.raise_signal(signal.SIGTERM)

        threading.Thread(target=end_with_supervisor, daemon=True).start()
        super().target(sockets)

    def pong(self) -> None:
        """Answer a health check from the event loop."""
        self.child_conn.recv()
        self._serving.answer(self.child_conn.send)


class Supervisor:
    """Runs the workers of a plan. ``listeners``: the one of requests, then the administrator's, one a worker. ``ready``
    is called once, when all workers are ready."""

    def __init__(
        self,
        plan: Plan,
        asked: CommandOptions,
        listeners: Sequence[socket.socket],
        signals: Signals,
        ready: Callable[[], None],
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
                _log.info("shutting down: finishing running requests")
                for listener in (self._listener, *self._administration):
                    listener.close()
                self._dismiss(self._workers)
                while self._leaving:
                    sleep(TICK_S / 5)
                    self._clear()
                return 0
        finally:
            for worker in (*self._workers, *self._leaving):
                worker.end()

    def _start(self, place: int, plan: Plan, pause_s: float = 0.0) -> Worker:
        """Start a worker. If the process cannot be started, the error is logged and the worker is not alive."""
        worker = Worker(place, plan, [self._listener, *self._administration[place : place + 1]], pause_s)
        try:
            if METRICS_FOLDER in os.environ:  # may have been removed with other temporary files
                os.makedirs(os.environ[METRICS_FOLDER], exist_ok=True)
            worker.start()
        except OSError as error:
            _log.error("%s: %s", worker, error)
        return worker

    def _becomes_ready(self, worker: Worker) -> bool:
        """Wait until it is ready. False if it fails, or the server is to stop."""
        while not worker.is_ready(timeout=1):
            if self._signals.ending:
                return False
            if not worker.process.is_alive() or worker.age_s > START_S:
                _log.error("%s did not start; see the log above", worker)
                return False
            sleep(TICK_S / 5)
        return True

    def _keep_alive(self) -> None:
        """Replace dead and hanging workers: at once, or after growing pauses if they die early. If all are dead, one is
        replaced without a pause."""
        if is_due := monotonic() - self._checked_at > CHECK_EVERY_S:
            self._checked_at = monotonic()
        dead: dict[Worker, float] = {}  # when each restarts
        for worker in self._workers:
            if worker.process.is_alive():
                if not worker.hangs(is_due=is_due):
                    continue
                _log.error("%s hangs: killing it", worker)
            if worker.restarts_at is None:
                worker.end()
                pause_s = 0.0 if worker.age_s > LASTING_S else min(max(2 * worker.pause_s, 1.0), LONGEST_PAUSE_S)
                worker.pause_s, worker.restarts_at = pause_s, monotonic() + pause_s
                _log.error("%s died with exit code %s; restarting in %g s", worker, worker.exitcode, pause_s)
            dead[worker] = worker.restarts_at
        if len(dead) == len(self._workers):
            dead[min(dead, key=lambda worker: dead[worker])] = 0.0
        for worker, restarts_at in dead.items():
            if monotonic() >= restarts_at:
                self._workers[worker.place] = self._start(worker.place, self._plan, worker.pause_s)

    def _reload(self) -> None:
        """Read the configuration again and replace one worker after another. An invalid one changes nothing."""
        self._signals.reload = False
        if self._plan.in_memory:
            _log.error("not reloaded: the in-memory store would be lost; restart the server")
            return
        _log.info("SIGHUP: reloading the configuration")
        try:
            with preparing(self._asked) as ask:
                prepared: Prepared = ask("plan")
        except RouterError as error:
            _log.error("not reloaded: the configuration is not valid: %s", error)
            return
        for warning in prepared.warnings:
            _log.warning("%s", warning)
        plan = self._with_what_stays(prepared.plan)
        for place in range(plan.workers):
            worker = self._start(place, plan)
            if not self._becomes_ready(worker):
                worker.end()
                _log.error("reload stopped: the remaining workers keep the old configuration")
                return
            self._dismiss(self._workers[place : place + 1])
            self._workers[place : place + 1] = [worker]
        self._dismiss(self._workers[plan.workers :])
        del self._workers[plan.workers :]
        self._plan = plan
        _log.info("reloaded the configuration")

    def _with_what_stays(self, plan: Plan) -> Plan:
        """The new plan, with the values that only a restart can change from the old one. Opens the administrator's
        sockets for additional workers."""
        here = self._plan
        for name in ("address", "admin", "store"):
            asked, stays = getattr(plan, name), getattr(here, name)
            if isinstance(asked, Address) and isinstance(stays, Address) and asked.port == 0:
                asked = replace(asked, port=stays.port)  # any free port
            if asked != stays:
                _log.warning("the new %s takes effect at the next restart", name)
        try:
            while here.admin is not None and len(self._administration) < plan.workers:
                address = replace(here.admin, port=here.admin.port + len(self._administration))
                self._administration.append(listen(address, "admin.port"))
        except ValidationFailed as error:
            _log.error("additional workers have no health checks: %s", error)
        return replace(plan, address=here.address, admin=here.admin, store=here.store, seed=here.seed)

    def _dismiss(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.leave()
            self._leaving.append(worker)

    def _clear(self) -> None:
        """Remove workers that have ended, and kill those that are late."""
        for worker in list(self._leaving):
            if worker.process.is_alive():
                if monotonic() < worker.leaves_by:
                    continue
                _log.error("%s did not end in time: killing it", worker)
            self._leaving.remove(worker)
            worker.end()


@contextmanager
def _shared_metrics(plan: Plan) -> Iterator[None]:
    """Set the folder in which ``prometheus_client`` shares the workers' metrics, unless the operator has set one."""
    if plan.admin is None or METRICS_FOLDER in os.environ:
        yield
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix="routewright-metrics-", ignore_cleanup_errors=True)
    except OSError as error:
        raise InternalError(f"cannot create a folder for the workers' metrics: {error}; set TMPDIR") from error
    with folder:
        os.environ[METRICS_FOLDER] = folder.name
        try:
            yield
        finally:
            del os.environ[METRICS_FOLDER]


def listening(plan: Plan, names: Mapping[str, str]) -> tuple[Plan, list[socket.socket]]:
    """Open all listeners: the one for requests, then each worker's for the administrator. Returns the plan with the
    actual ports. ``names``: names of flags. Raises ``ValidationFailed``."""
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
    """Listen at an address. ``name``: what errors call it. Raises ``ValidationFailed``."""
    at = (address.host, address.port)
    try:
        (family, *_), *_ = socket.getaddrinfo(*at, type=socket.SOCK_STREAM)
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(at, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        said = f"cannot listen at {address.host} port {address.port}: {reason}"
        raise ValidationFailed.of(Problem(name, said, "choose another port, or stop what uses it")) from error
    return socket.socket(fileno=listener.detach())  # detects TCP, for which asyncio sets TCP_NODELAY
