"""The connections to one file that this process has: one to write with, and as many to read with as are in use at once.

A fork finds all of them closed: SQLite's locks belong to a process, and a connection that crossed a fork would damage
the file. So does every path that makes one: ``Connect``.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from routewright._core.rollup import merged
from routewright.errors import StorageUnavailable
from routewright.fork import Guard, quiet_at_fork, renew_in_children

from .faults import is_transient
from .schema import prepare

T = TypeVar("T")

MOST_IDLE = 4
LONGEST_QUIET_S = 10.0
"""How long a fork waits for a transaction to end."""
CACHE_KB = 16_000

_log = logging.getLogger(__name__)


class Cursor(Protocol):
    """The rows of a statement."""

    def fetchone(self) -> Any:
        """One row; None: there is none left."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows."""
        ...


class Connection(Protocol):
    """What is needed of a ``sqlite3.Connection`` that commits by itself (``isolation_level=None``). Its errors are
    ``sqlite3.Error`` with their ``sqlite_errorcode``."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Run a statement."""
        ...

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> Cursor:
        """Run a statement once for each."""
        ...

    def create_function(self, name: str, narg: int, func: Callable[..., Any], /) -> None:
        """Let statements call a function."""
        ...

    def interrupt(self) -> None:
        """Stop what it does, from another thread."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


Connect = Callable[[str], Connection]


class Reading:
    """One who asks, and may leave before the answer is there."""

    def __init__(self) -> None:
        self.is_left = False
        self.connection: Connection | None = None

    def leave(self) -> None:
        """Stop what is done for it. Another who was given its connection meanwhile asks again."""
        self.is_left = True
        if self.connection is not None:
            with suppress(sqlite3.Error):  # it was closed just now
                self.connection.interrupt()


class _Opening:
    """Stands for a connection that is being opened."""

    def interrupt(self) -> None:
        """Nothing: what is begun has to end."""


def connect(path: str) -> sqlite3.Connection:
    """A connection of Python's own SQLite. Threads take turns with it.

    A file that it makes is its owner's alone, since traces may hold prompts; so is what SQLite puts beside it.
    """
    with suppress(OSError):  # it is there; or it cannot be made, which SQLite then says
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    return sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256, factory=_Dropped
    )


class _Dropped(sqlite3.Connection):
    """A connection that may be dropped, as its storage may: it is closed then. Python 3.13 would warn of it."""

    def __del__(self) -> None:
        with suppress(sqlite3.Error):  # it was never open
            self.close()


class Connections:
    """Opens connections to a file as they are needed. Safe to use from several threads, before and after a fork."""

    def __init__(self, path: Path, connect: Connect, busy_s: float) -> None:
        self.path = path
        self._connect = connect
        self._busy_s = busy_s
        self._guard = Guard()
        self._torn: list[Connection | _Opening] = []
        """In use when the process was forked: they must not even be closed here."""
        self._adrift: list[Connection] = []
        """To a file that is gone."""
        renew_in_children(self)
        quiet_at_fork(self)

    def renew(self) -> None:
        """Begin without connections, as a child does."""
        self._torn += getattr(self, "_in_use", ())
        self._in_use: set[Connection | _Opening] = set()
        self._file: tuple[int, int] | None = None
        """Which file is open; None: none was, or its like cannot be told."""
        self._idle: deque[Connection] = deque()
        self._writer: Connection | None = None
        self._writing = Guard()
        self._open = threading.Event()
        self._open.set()

    def quiet(self) -> None:
        """Close all connections, once what they do has ended, and hand none out."""
        with self._guard.lock:
            self._open.clear()
        ends = time.monotonic() + LONGEST_QUIET_S
        while self._in_use and time.monotonic() < ends:
            for connection in list(self._in_use):  # which others leave meanwhile
                if connection is not self._writer:
                    with suppress(sqlite3.Error):  # it was closed just now
                        connection.interrupt()  # who reads asks again afterwards
            time.sleep(0.001)
        if self._in_use:
            _log.warning("%s is in use while this process is forked: the child cannot use it", self.path)
        self.close()

    def resume(self) -> None:
        """Hand connections out again."""
        self._open.set()

    def close(self) -> None:
        """Close all that nobody uses."""
        with self._guard.lock:
            idle, self._idle = [*self._idle], deque()
            if self._writer is not None and self._writer not in self._in_use:
                idle.append(self._writer)
                self._writer = None
            if not self._in_use:
                self._file = None
        for connection in idle:
            with suppress(sqlite3.Error):
                connection.close()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """The connection to write with, which one at a time has. One that fails is closed."""
        with self._writing.lock:
            connection = self._take(self._busy_s, writer=True)
            try:
                yield connection
            except BaseException:
                with self._guard.lock:
                    self._in_use.discard(connection)
                    self._writer = None
                with suppress(sqlite3.Error):
                    connection.close()
                raise
            self._in_use.discard(connection)

    def read(self, ask: Callable[[Connection], T], *, patient: bool = True, reading: Reading | None = None) -> T:
        """Ask with a connection of one's own; again, for a while, where that fails for what passes. Without patience
        once."""
        wait_s = self._busy_s if patient else 0.0
        return _again(partial(self._read, ask, wait_s, reading or Reading()), wait_s)

    def _read(self, ask: Callable[[Connection], T], wait_s: float, reading: Reading) -> T:
        connection = self._take(wait_s)
        try:
            reading.connection = connection
            if reading.is_left:
                raise StorageUnavailable(f"{self.path}: who asked has left")
            result = ask(connection)
        except BaseException:
            self._in_use.discard(connection)
            connection.close()
            raise
        finally:
            reading.connection = None
        self._give_back(connection)
        return result

    def _take(self, wait_s: float, *, writer: bool = False) -> Connection:
        """A connection, to be given back. One that has to be opened is so outside of the guard, for which a quick
        reader in an event loop may wait; a fork waits for its end."""
        while True:
            self._open.wait()
            with self._guard.lock:
                if not self._open.is_set():
                    continue
                self._look_for_file()
                found = self._writer if writer else self._idle.pop() if self._idle else None
                if found is not None:
                    self._in_use.add(found)
                    return found
                opening = _Opening()
                self._in_use.add(opening)
            try:
                made = self._make(wait_s, busy_s=wait_s if writer else 0.0)
            except BaseException:
                self._in_use.discard(opening)
                raise
            with self._guard.lock:
                self._in_use.add(made)
                self._in_use.discard(opening)
                if writer:
                    self._writer = made
            return made

    def _look_for_file(self) -> None:
        """See that the file is the one that is open. Connections to one that was removed are let lie: SQLite would
        remove the log of the next when it closes them. Raises ``StorageUnavailable`` for one that was replaced."""
        present = _identity(self.path)
        if present == self._file or self._file is None:
            return
        if present is not None:
            what = f"stop all that use it, remove {self.path.name}-wal and {self.path.name}-shm, and start again"
            raise StorageUnavailable(f"{self.path} was replaced while it was in use: {what}")
        _log.warning("%s was removed while it was in use: it is made anew, and what was in it is lost", self.path)
        self._adrift += [*self._idle, *([] if self._writer is None else [self._writer])]
        self._idle.clear()
        self._writer = self._file = None

    def _give_back(self, connection: Connection) -> None:
        with self._guard.lock:
            keep = len(self._idle) < MOST_IDLE
            if keep:
                self._idle.append(connection)
            self._in_use.discard(connection)
        if not keep:
            connection.close()

    def _make(self, wait_s: float, *, busy_s: float) -> Connection:
        """Open one. Who opens waits so long for others that do; ``busy_s``: SQLite itself waits later on."""
        if self._torn:
            raise StorageUnavailable(f"{self.path}: this process was forked in the middle of a transaction; start anew")
        connection = self._connect(str(self.path))
        try:
            connection.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
            _again(partial(prepare, connection, self.path), wait_s)  # SQLite does not wait for all of it
            connection.execute(f"PRAGMA busy_timeout = {int(busy_s * 1000)}")
            for pragma in (f"cache_size = -{CACHE_KB}", "wal_autocheckpoint = 0", "secure_delete = ON"):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            connection.create_function("merged", 2, merged)
        except BaseException:
            connection.close()
            raise
        self._file = _identity(self.path)
        return connection


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another of its name; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _again(work: Callable[[], T], for_s: float) -> T:
    """Do it; again, for so long, where it fails for what passes."""
    ends = time.monotonic() + for_s
    pause = 0.001
    while True:
        try:
            return work()
        except sqlite3.Error as error:
            if not is_transient(error) or time.monotonic() + pause > ends:
                raise
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
