"""A worker as its supervisor sees it: a process, and a line on which it is asked how it is.

The line also tells the worker that nobody supervises it any more: it ends, then, as if it were asked to.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from socket import socket
from time import monotonic
from typing import Any

from .plan import Plan

SPAWN = get_context("spawn")
START_S = 60.0
"""So long a worker may take until it is ready."""
SILENT_S = 25.0
"""So long one that is ready may leave a question of its supervisor without an answer."""
BEAT_S = 5.0
"""So long after an answer it is asked again."""
HELD_BACK = {getattr(signal, name) for name in ("SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)}
"""Signals that a terminal sends to all processes, and that the supervisor alone answers."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """What is started inside never hears of those signals; this process does a moment later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(process: SpawnProcess) -> None:
    """Start one, that hears no terminal's signals and has nobody clean up behind it."""
    with undisturbed(), _untracked():
        process.start()


def start_with_line(name: str, target: Callable[..., None], *args: Any) -> tuple[SpawnProcess, Connection]:
    """Start one that runs ``target(*args, line)``, and give it with the other end of its line. Raises ``OSError``."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*args, theirs), name=name)
    try:
        start(process)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


@contextmanager
def _untracked() -> Iterator[None]:
    """Python starts one process more (12 MB) that cleans shared memory and semaphores up; of those nothing is used."""
    if os.name != "posix":
        yield
        return
    nowhere, before = os.open(os.devnull, os.O_WRONLY), resource_tracker.getfd
    resource_tracker.getfd = lambda: nowhere
    try:
        yield
    finally:
        resource_tracker.getfd = before
        os.close(nowhere)


class Worker:
    """A process that answers requests. Raises ``OSError`` where there is no room for one."""

    def __init__(self, place: int, plan: Plan, listeners: Sequence[socket]) -> None:
        self.place = place
        """Which one of them it is, from 0."""
        self.plan = plan
        self.is_ready = False
        self.began_at = self._heard_at = monotonic()
        self.leaves_by: float | None = None
        """When it is ended by force; None: it was not asked to leave."""
        self._asked_at: float | None = None
        """Since when an answer is due."""
        self._is_cut = False
        self._process, self._line = start_with_line(f"routewright-{place + 1}", _work, plan, list(listeners))

    def __str__(self) -> str:
        return f"worker {self.place + 1} (process {self._process.pid})"

    @property
    def is_alive(self) -> bool:
        """Its process runs."""
        return self._process.is_alive()

    @property
    def signs(self) -> list[Connection | int]:
        """What ``multiprocessing.connection.wait`` finds ready when it says something, or has ended."""
        return [self._process.sentinel, *([] if self._is_cut else [self._line])]

    @property
    def due_at(self) -> float:
        """When it is to be looked at again, if it gives no sign before."""
        if not self.is_ready:
            return self.began_at + START_S
        return self._heard_at + BEAT_S if self._asked_at is None else self._asked_at + SILENT_S

    @property
    def hangs(self) -> bool:
        """It does not answer, or does not come to be ready. To be asked after ``listen``: who stood still for
        a while, and heard nothing, is not to take that for silence."""
        now = monotonic()
        if not self.is_ready:
            return now - self.began_at >= START_S
        return self._asked_at is not None and now - self._asked_at >= SILENT_S

    def listen(self) -> None:
        """Hear what it says, and ask how it is if that was long ago. Never waits."""
        try:
            while self._line.poll(0):
                self.is_ready = self._line.recv_bytes() == b"ready"
                self._asked_at, self._heard_at = None, monotonic()
            if self._asked_at is None and monotonic() - self._heard_at >= BEAT_S:
                self._asked_at = monotonic()
                self._line.send_bytes(b"?")
        except (OSError, EOFError):
            self._is_cut = True  # no answer will come
            self._asked_at = self._asked_at or monotonic()

    def leave(self, within_s: float) -> None:
        """Let it end what it has begun, and end."""
        if self.leaves_by is None:
            self.leaves_by = monotonic() + within_s
            if os.name == "posix":
                self._process.terminate()
            else:
                self._line.close()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def bury(self) -> int | None:
        """Free what it leaves, once it has ended. Gives its exit code."""
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        self._line.close()
        return code


def _work(plan: Plan, listeners: list[socket], line: Connection) -> None:
    from .worker import work  # loads the library, which the supervisor does not need

    work(plan, listeners, line)
