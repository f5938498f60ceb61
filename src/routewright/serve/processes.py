"""The processes of a server: one that prepares its start, uvicorn's supervisor, and the workers.

The supervisor holds the sockets, so that connections wait while workers are replaced. It never loads the library."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from msgspec.structs import replace
from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from routewright.errors import InternalError, RouterError, ValidationFailed
from routewright.wire.account import without_keys

from .plan import Address, CommandOptions, Configuration, Plan, Setup

SILENT_S = 10
"""How long a worker may take to answer uvicorn's health check, at a reload to become ready, and to end after
``graceful_timeout_s``. uvicorn waits for as long if a worker dies while it is asked."""
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_BACKLOG = 2048
_SPAWN = get_context("spawn")
_log = logging.getLogger("routewright.serve")


def run(
    options: CommandOptions, warn: Callable[[Sequence[str]], None], show: Callable[[Plan, Setup, Sequence[str]], None]
) -> int:
    """Serve until a signal ends it. Returns the exit code. ``show`` tells where it listens, and new keys, before the
    workers start. Raises ``RouterError``."""
    with _hold_signals():
        with start_preparation(options) as ask:
            prepared: Configuration = ask("plan")
            warn(prepared.warnings)
            listeners = open_listeners(prepared.plan, options.names)
            setup: Setup = ask("begin")
        show(listeners.plan, setup, prepared.providers)
        plan = replace(listeners.plan, seed=setup.seed)
        supervisor = Supervisor(WorkerConfig(plan, listeners.administration), [listeners.requests])
    with _shared_metrics(plan):
        try:
            supervisor.run()
        except OSError as error:
            supervisor.terminate_all()  # Python would wait for them when it exits
            supervisor.join_all()
            raise InternalError(f"a worker cannot be started: {error}") from error
    return int(any(worker.exitcode == STARTUP_FAILURE for worker in supervisor.processes))


class WorkerConfig(Config):
    """uvicorn's configuration of a worker, which is sent to it. ``administration``: the administrator's socket, which
    all workers share."""

    def __init__(self, plan: Plan, administration: socket.socket | None = None) -> None:
        self.plan = plan
        self.administration = administration
        super().__init__(
            "",
            factory=True,
            interface="asgi3",
            lifespan="on",
            ws="none",
            workers=plan.workers,
            access_log=False,
            server_header=False,
            proxy_headers=bool(plan.trusted_proxies),
            forwarded_allow_ips=list(plan.trusted_proxies),
            root_path=plan.root_path,
            timeout_keep_alive=plan.connections["keep_alive_s"],
            timeout_graceful_shutdown=plan.graceful_timeout_s,  # type: ignore[arg-type]  # parts of seconds, too
            timeout_worker_healthcheck=SILENT_S,
        )

    def configure_logging(self) -> None:
        """Configure the logging of this process, a worker or the supervisor."""
        set_up_logging(self.plan.log_level, access=self.plan.access_log)

    def load(self) -> None:
        """Load the library. Called in the worker."""
        from .parts import server_context
        from .worker import WorkerApp, protocol_of

        if (supervisor := parent_process()) is not None:
            threading.Thread(target=_end_after, args=(supervisor,), daemon=True).start()
        tls = self.plan.tls
        self.app = lambda: WorkerApp(self.plan, self.administration)
        self.http = protocol_of(self.plan)
        if tls is not None:
            self.ssl_context_factory = lambda config, default: server_context(tls)
        try:
            super().load()
        except RouterError as error:
            _log.error("this worker cannot serve: %s", error)
            sys.exit(STARTUP_FAILURE)


def _end_after(supervisor: BaseProcess) -> None:
    supervisor.join()
    signal.raise_signal(signal.SIGTERM)


class _Exit(threading.Event):
    """Set as soon as a signal ends the server. uvicorn only queues it, which a reload would outlast. A handler must not
    call ``set``: it may have interrupted ``wait``, which holds the same lock."""

    def __init__(self, signals: list[int]) -> None:
        super().__init__()
        self._signals = signals

    def is_set(self) -> bool:
        return super().is_set() or signal.SIGTERM in self._signals or signal.SIGINT in self._signals


class Supervisor(Multiprocess):
    """uvicorn's supervisor. It closes the ports before its workers end, waits for none of them for ever, goes on when
    one cannot be started, and never shares a store in memory."""

    config: WorkerConfig
    handle_quit = Multiprocess.handle_term  # uvicorn ignores SIGQUIT

    def __init__(self, config: WorkerConfig, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self.should_exit = _Exit(self.signal_queue)

    def handle_signals(self) -> None:
        """Replace, add or remove workers, or end."""
        for worker in self.processes:
            worker.join = partial(self._retire, worker)  # type: ignore[method-assign]  # uvicorn's waits for ever
        self._attempt(super().handle_signals)
        self.processes_num = len(self.processes)  # fewer if one could not be added

    def keep_subprocess_alive(self) -> None:
        """Replace workers that died. One that cannot be started is tried again in a moment."""
        for worker in self.processes:
            if not (self.should_exit.is_set() or worker.process.is_alive()):
                _log.error("worker %s died, and is replaced", worker.pid)
        self._attempt(super().keep_subprocess_alive)

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            _log.error("a worker cannot be started: %s", error)

    def _retire(self, worker: Process) -> None:
        """Wait for a worker that is ending. When the server is to end, ``join_all`` waits for it."""
        # uvicorn's reload joins each old worker without a limit, inside the handler of SIGHUP: one client that streams
        # for an hour would hold up the reload, and a SIGTERM would stay in the queue behind it until the operator's
        # init system kills everything. So this waits in steps that look for a signal (`_Exit` reads the queue) and ends
        # with the grace period. A worker that still runs when the server is to end goes back to `processes`: `join_all`
        # knows only those, and would leave it behind as an orphan.
        # test_a_signal_ends_the_server_during_a_reload, test_a_reload_kills_a_worker_that_does_not_end
        kill_at = time.monotonic() + self.config.plan.graceful_timeout_s + SILENT_S
        while worker.process.is_alive() and not self.should_exit.is_set():
            worker.process.join(0.1)
            if time.monotonic() > kill_at:
                worker.kill()
        if self.should_exit.is_set():
            self.processes.append(worker)

    def join_all(self) -> None:
        """Wait for workers that were told to end."""
        kill_at = time.monotonic() + self.config.plan.graceful_timeout_s + SILENT_S
        for worker in self.processes:
            worker.process.join(max(kill_at - time.monotonic(), 0))
            worker.kill()
            worker.process.join()

    def terminate_all(self) -> None:
        """Close the ports, and let the workers finish their requests."""
        _log.info("shutting down: finishing running requests")
        for listener in (*self.sockets, self.config.administration):
            if listener is not None:
                listener.close()
        super().terminate_all()

    def handle_hup(self) -> None:
        """Replace one worker after another."""
        if self._may_add("restarted"):
            super().handle_hup()

    def handle_ttin(self) -> None:
        """Add a worker."""
        if self._may_add("added"):
            super().handle_ttin()

    def _may_add(self, action: str) -> bool:
        if self.config.plan.in_memory:
            _log.error("no worker is %s: the in-memory store would be lost; restart the server", action)
        return not self.config.plan.in_memory


class _Keyless(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_keys(super().format(record))


def set_up_logging(level: str, *, access: bool = False) -> None:
    """Configure logging of this process: lines on standard error with API keys masked, and with ``access`` requests as
    JSON on standard output."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Keyless("%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"))
    root = logging.getLogger()
    requests = logging.getLogger("routewright.access")
    root.handlers[:] = [handler]
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(number)
    requests.handlers[:] = [logging.StreamHandler(sys.stdout)] if access else []
    requests.setLevel(logging.INFO if access else logging.CRITICAL)
    requests.propagate = False
    if parent_process() is not None and number > logging.DEBUG:  # each step of a worker, even of a sound one
        logging.getLogger("uvicorn").setLevel(max(number, logging.WARNING))


@contextmanager
def _hold_signals() -> Iterator[None]:
    """Hold back signals until there is a supervisor, and new keys were shown. The process that prepares inherits
    this."""
    # The first start stores a key's hash and shows the key once. A Ctrl-C between the two would leave an account whose
    # keys nobody has ever seen, and the next start would not make others. A handler cannot prevent it, since Python
    # runs handlers between any two instructions, and the terminal sends Ctrl-C to the preparing process, too. So the
    # signals are blocked; they arrive when the block ends, and the supervisor handles them.
    # test_signals_wait_until_new_keys_were_shown
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which lets signals through where it starts
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def start_preparation(options: CommandOptions) -> Iterator[Callable[[str], Any]]:
    """Start a process that loads the library. Ask it for the ``plan`` (a ``Configuration``), then to ``set up the
    store`` (a ``Setup``). Raises ``RouterError``."""
    line, other_end = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_prepare, args=(options, other_end), name="routewright-prepare")

    def ask(task: str) -> Any:
        try:
            line.send(task)
            answer = line.recv()
        except Exception as error:  # it died, or another version of the library has been installed
            raise InternalError("the process that reads the configuration failed; see the log above") from error
        if isinstance(answer, RouterError):
            raise answer
        return answer

    try:
        process.start()
    except OSError as error:
        raise InternalError(f"the process that reads the configuration cannot be started: {error}") from error
    other_end.close()
    try:
        yield ask
    finally:
        line.close()
        process.join(5)
        process.kill()
        process.join()


def _prepare(options: CommandOptions, line: Connection) -> None:
    import anyio

    from .prepare import prepare, set_up_store

    with suppress(EOFError, BrokenPipeError):  # the supervisor ended
        try:
            line.recv()
            prepared = prepare(options, os.environ)
            line.send(prepared)
            line.recv()
            line.send(anyio.run(set_up_store, prepared.plan))
        except RouterError as error:
            line.send(error)


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


class Listeners(NamedTuple):
    """The sockets of a server, and its plan with their ports."""

    plan: Plan
    requests: socket.socket
    administration: socket.socket | None = None


def open_listeners(plan: Plan, names: Mapping[str, str]) -> Listeners:
    """Listen for requests and for the administrator. ``names``: names of flags. Raises ``ValidationFailed``."""
    listener = listen(plan.address, names["port"])
    plan = replace(plan, address=replace(plan.address, port=listener.getsockname()[1]))
    if plan.admin is None:
        return Listeners(plan, listener)
    administration = listen(plan.admin, names["admin.port"])
    plan = replace(plan, admin=replace(plan.admin, port=administration.getsockname()[1]))
    return Listeners(plan, listener, administration)


def listen(address: Address, name: str) -> socket.socket:
    """Listen at an address. ``name``: what errors call it. Raises ``ValidationFailed``."""
    host_port = (address.host, address.port)
    try:
        (family, *_), *_ = socket.getaddrinfo(*host_port, type=socket.SOCK_STREAM)
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(host_port, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        problem = f"cannot listen at {address.host} port {address.port}: {reason}"
        raise ValidationFailed.at(name, problem, "choose another port, or stop what uses it") from error
    return socket.socket(fileno=listener.detach())  # detects TCP, for which asyncio sets TCP_NODELAY
