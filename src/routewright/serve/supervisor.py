"""Keeps workers at work: starts them, replaces those that die, exchanges them for others on SIGHUP, ends them.

It waits for signs of its workers and for signals, all at once, so that each is answered when it comes. A worker that
replaces another is ready before that one is asked to leave; connections wait at sockets that all share.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from socket import socket, socketpair

from msgspec.structs import replace

from routewright.errors import RouterError, ValidationFailed

from .crew import Worker
from .listeners import listen
from .metrics_folder import MetricsFolder
from .plan import Address, Plan
from .preparation import Asked, Preparation, Prepared
from .signals import FORCED, name_of

TICK_S = 0.05
"""How often it looks while workers come and go."""
END_S = 6.0
"""So much longer than its requests a worker may take to end."""
LONGEST_PAUSE_S = 30.0
"""Between two starts of a worker that dies soon, again and again."""
LASTING_S = 10.0
"""One that has lived for so long did not die soon."""
FIXED = ("address", "admin", "store", "seed")
"""What only a new start changes."""

_log = logging.getLogger("routewright.serve")


class Supervisor:
    """Runs until it is told to end. ``listeners``: that of requests, then those of the administrator, one a worker.

    ``signals``: numbers that others note, and that it obeys. ``ready`` is called once, when all workers are.
    """

    def __init__(
        self,
        plan: Plan,
        asked: Asked,
        listeners: Sequence[socket],
        signals: list[int],
        ready: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._asked = asked
        self._listener, *self._administration = listeners
        self._signals = signals
        self._ready: Callable[[], None] | None = ready
        self._folder = MetricsFolder()
        self._crew: dict[int, Worker] = {}
        self._leaving: list[Worker] = []
        self._coming: Worker | None = None
        self._due: list[int] = []
        """Places whose workers are to be exchanged."""
        self._pauses: dict[int, float] = {}
        self._not_before: dict[int, float] = {}
        self._preparation: Preparation | None = None
        self._reload_wanted = False
        self._code: int | None = None
        """What to end with; None: it goes on."""

    @property
    def has_served(self) -> bool:
        """All workers were ready once."""
        return self._ready is None

    def run(self) -> int:
        """Supervise. Gives the exit code."""
        try:
            with self._folder:
                self._fill()
                with _woken_by_signals() as bell:
                    while self._code is None:
                        wait([bell, *(sign for worker in self._crew.values() for sign in worker.signs)], self._rest_s())
                        _empty(bell)
                        self._tick()
                return self._end()
        finally:
            for worker in self._all():
                worker.kill()
                worker.bury()

    def _tick(self) -> None:
        self._obey()
        for worker in self._all():
            worker.listen()
        self._clear()
        self._replace_dead()
        self._take_plan()
        self._exchange()
        if self._ready is not None and self._crew and all(worker.is_ready for worker in self._crew.values()):
            greet, self._ready = self._ready, None
            greet()

    def _rest_s(self) -> float:
        """For how long nothing has to be done that nothing gives a sign of."""
        if self._ready or self._preparation or self._reload_wanted or self._due or self._coming or self._leaving:
            return TICK_S
        due = [worker.due_at for worker in self._crew.values()]
        due += [self._not_before.get(place, 0.0) for place in range(self._plan.workers) if place not in self._crew]
        return max(min(due) - time.monotonic(), 0.0)

    def _obey(self) -> None:
        while self._signals and self._code is None:
            name = name_of(self._signals.pop(0))
            if name == "SIGHUP":
                self._reload_wanted = True
            elif name == "SIGQUIT":
                self._code = FORCED[name]
            else:
                _log.info("%s: accepting no more, ending what was begun", name)
                self._code = 0

    def _fill(self) -> None:
        """Have a worker at every place, and none beyond."""
        for place in range(self._plan.workers):
            if place not in self._crew and time.monotonic() >= self._not_before.get(place, 0.0):
                self._begin(place)
        for place in [each for each in self._crew if each >= self._plan.workers]:
            self._dismiss(self._crew.pop(place))

    def _begin(self, place: int) -> None:
        """Start a worker at a place. Where there is no room for one the others serve on; the first start fails."""
        try:
            self._crew[place] = self._new(place)
        except OSError as error:
            if self._ready is not None:
                _log.error("worker %d could not be started: %s", place + 1, error)
                self._code = 1
                return
            pause_s = self._put_off(place, lasted=False)
            _log.error("worker %d could not be started: %s; it is tried again in %g s", place + 1, error, pause_s)

    def _put_off(self, place: int, *, lasted: bool) -> float:
        """For how long its place stays empty: longer and longer, if who takes it does not last."""
        pause_s = 0.0 if lasted else min(max(2 * self._pauses.get(place, 0.0), 1.0), LONGEST_PAUSE_S)
        self._pauses[place], self._not_before[place] = pause_s, time.monotonic() + pause_s
        return pause_s

    def _new(self, place: int) -> Worker:
        if self._plan.admin is not None:
            self._folder.provide()
        return Worker(place, self._plan, [self._listener, *self._administration[place : place + 1]])

    def _dismiss(self, worker: Worker) -> None:
        worker.leave(worker.plan.graceful_timeout_s + END_S)
        self._leaving.append(worker)

    def _clear(self) -> None:
        """Forget who has left; end who should have."""
        for worker in list(self._leaving):
            if not worker.is_alive:
                self._leaving.remove(worker)
                worker.bury()
            elif worker.leaves_by is not None and time.monotonic() > worker.leaves_by:
                _log.error("%s did not end in time, and is killed", worker)
                worker.kill()

    def _replace_dead(self) -> None:
        for place, worker in list(self._crew.items()):
            if worker.is_alive and not worker.hangs:
                continue
            if worker.is_alive:
                _log.error("%s hangs, and is killed", worker)
                worker.kill()
            self._lose(place, worker)
        self._fill()

    def _lose(self, place: int, worker: Worker) -> None:
        """One has died. Who dies young waits longer and longer; if none was ever ready, none will be."""
        del self._crew[place]
        told, age_s = str(worker), time.monotonic() - worker.began_at
        code = worker.bury()
        if self._ready is not None:
            _log.error("%s could not start; see above", told)
            self._code = 1
            return
        pause_s = self._put_off(place, lasted=age_s > LASTING_S)
        _log.error("%s died with %s; another takes its place in %g s", told, code, pause_s)

    def _take_plan(self) -> None:
        """On SIGHUP read the configuration anew. What is not valid changes nothing."""
        if self._preparation is None:
            if self._reload_wanted and self._plan.in_memory:
                self._reload_wanted = False
                _log.error("nothing changes: what is kept in memory would be lost; end the server and start anew")
            if self._reload_wanted and not self._due and self._coming is None and self._ready is None:
                self._reload_wanted = False
                _log.info("SIGHUP: reading the configuration anew")
                self._prepare()
            return
        if not self._preparation.is_done:
            return
        try:
            with self._preparation as preparation:
                self._put_in_force(preparation.plan())
        except RouterError as error:
            _log.error("nothing changes, the configuration is not valid: %s", error)
        finally:
            self._preparation = None

    def _prepare(self) -> None:
        try:
            self._preparation = Preparation(self._asked)
        except RouterError as error:
            _log.error("nothing changes: %s", error)

    def _put_in_force(self, prepared: Prepared) -> None:
        for warning in prepared.warnings:
            _log.warning("%s", warning)
        here = {name: getattr(self._plan, name) for name in FIXED}
        for name in FIXED[:-1]:
            asked = getattr(prepared.plan, name)
            if not _is_same(asked, here[name]):
                _log.warning("the %s stays what it is until the next start", name)
        plan = replace(prepared.plan, **here)
        if plan.in_memory and plan.workers > 1:
            _log.error("nothing changes: a store in memory cannot be shared by %d workers", plan.workers)
            return
        self._plan = plan
        self._add_administration()
        self._due = [place for place in self._crew if place < plan.workers]
        self._fill()

    def _add_administration(self) -> None:
        first = self._plan.admin
        if first is None:
            return
        with suppress(ValidationFailed):
            while len(self._administration) < self._plan.workers:
                port = first.port + len(self._administration)
                self._administration.append(listen(Address(first.host, port), "admin.port"))
            return
        _log.error("no port from %d on is free for more workers: these have no health checks", first.port)

    def _exchange(self) -> None:
        """Bring one new worker to its place at a time. One that cannot start leaves the rest as it is."""
        coming = self._coming
        if coming is None:
            if self._due:
                self._bring(self._due.pop(0))
        elif not coming.is_alive or coming.hangs:
            _log.error("%s could not start; the one before it stays, and all that follow", coming)
            coming.kill()
            coming.bury()
            self._coming, self._due = None, []
        elif coming.is_ready:
            before = self._crew.get(coming.place)
            self._crew[coming.place], self._coming = coming, None
            if before is not None:
                self._dismiss(before)
            if not self._due:
                _log.info("the new configuration is in force")

    def _bring(self, place: int) -> None:
        try:
            self._coming = self._new(place)
        except OSError as error:
            _log.error(
                "worker %d could not be started: %s; the one before it stays, and all that follow", place + 1, error
            )
            self._due = []

    def _all(self) -> list[Worker]:
        return [*self._crew.values(), *([self._coming] if self._coming else []), *self._leaving]

    def _end(self) -> int:
        """Let all end what they have begun; a second Ctrl-C ends them at once."""
        assert self._code is not None
        self._listener.close()
        for listener in self._administration:
            listener.close()
        if self._preparation is not None:
            self._preparation.__exit__(None, None, None)
        if self._code in FORCED.values():
            return self._code
        self._leaving, self._crew, self._coming = self._all(), {}, None
        for worker in self._leaving:
            worker.leave(worker.plan.graceful_timeout_s + END_S)
        while self._leaving:
            time.sleep(TICK_S)
            self._clear()
            forced = [FORCED[name] for name in map(name_of, self._signals) if name in FORCED]
            self._signals.clear()
            if forced:
                return forced[0]
        return self._code


@contextmanager
def _woken_by_signals() -> Iterator[socket]:
    """A socket that can be read from once there was a signal."""
    bell, ringer = socketpair()
    with bell, ringer:
        bell.setblocking(False)
        ringer.setblocking(False)
        before = signal.set_wakeup_fd(ringer.fileno(), warn_on_full_buffer=False)
        try:
            yield bell
        finally:
            signal.set_wakeup_fd(before)


def _empty(bell: socket) -> None:
    with suppress(BlockingIOError):
        while bell.recv(64):
            pass


def _is_same(asked: object, here: object) -> bool:
    """A port that was left to chance is whichever it became."""
    if isinstance(asked, Address) and isinstance(here, Address) and asked.port == 0:
        return asked.host == here.host
    return asked == here
