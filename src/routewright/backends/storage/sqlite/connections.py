"""The connections of this process to one file: one for writing in each role, and as many readers as needed.

All are closed around a fork: SQLite's locks belong to a process, and a connection used after a fork would corrupt the
file.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from routewright._core.analytics.rollup import merge_buckets
from routewright._runtime.fork import Guard, Renewals, quiet_at_fork
from routewright.errors import StorageUnavailable

from .file import Connect, Connection, check_store, identity_of, make_file
from .schema import id_of, prepare
from .sync import IS_POSSIBLE, is_transient

T = TypeVar("T")

WRITER = "writer"
WRITERS = WRITER, "keeper"
"""Roles of writers: accounts and traces; roll-ups and checkpoints in the background."""
MAX_IDLE = 4
LONGEST_QUIET_S = 10.0
"""How long a fork waits for a transaction to end."""
CACHE_KB = 4_000
"""Page cache of a connection. Four times as much was no faster."""

_log = logging.getLogger(__name__)


class Reading:
    """A query that can be cancelled."""

    def __init__(self) -> None:
        self.is_left = False
        self.connection: Connection | None = None

    def leave(self) -> None:
        """Interrupt it. If its connection has a new user by now, that query is repeated."""
        self.is_left = True
        if self.connection is not None:
            with suppress(sqlite3.Error):  # just closed
                self.connection.interrupt()


class _Opening:
    """Placeholder for a connection that is being opened."""

    def interrupt(self) -> None:
        """Does nothing: opening cannot be interrupted."""


def _make_fault(path: Path) -> StorageUnavailable:
    hint = f"stop all processes that use it, remove {path.name}-wal and {path.name}-shm, and restart them"
    return StorageUnavailable(f"{path} was replaced while it was in use; {hint}")


class Connections:
    """Opens connections to a file on demand. Thread-safe, before and after a fork."""

    def __init__(self, path: Path, connect: Connect, busy_s: float) -> None:
        self.path = path
        self._name = str(path)
        self._connect = connect
        self.busy_s = busy_s
        self._guard = Guard()
        self._abandoned: list[Connection | _Opening] = []
        """Connections in use at a fork. The child must not even close them."""
        self._file: tuple[int, int] | None = None
        """Identity of the open file, also after a fork. None: none was opened."""
        self._id: bytes | None = None
        """The store's id, which tells it from another file with the same name or inode."""
        self.renewals = Renewals()
        self.renewals.add(self)
        quiet_at_fork(self)

    def renew(self) -> None:
        """Start without connections, as a forked child does."""
        self._abandoned += getattr(self, "_in_use", ())
        self._in_use: set[Connection | _Opening] = set()
        self._idle: deque[Connection] = deque()
        self._writers: dict[str, Connection] = {}
        self.roles = {role: Guard() for role in WRITERS}
        self._is_quiet = False
        """True if no connection is handed out until ``_open`` is set."""
        self._open = threading.Event()
        self._open.set()

    def quiet(self) -> None:
        """Close all connections once they are idle, and hand none out."""
        with self._guard.lock:
            self._is_quiet = True
            self._open.clear()
        deadline = time.monotonic() + LONGEST_QUIET_S
        while self._in_use and time.monotonic() < deadline:
            for connection in list(self._in_use):  # other threads remove some meanwhile
                if connection not in self._writers.values():
                    with suppress(sqlite3.Error):  # just closed
                        connection.interrupt()  # the reader repeats its query
            time.sleep(0.001)
        if self._in_use:
            _log.warning("%s was in use at a fork; the child process cannot use it", self.path)
        self._close()

    def resume(self) -> None:
        """Hand connections out again."""
        self._is_quiet = False
        self._open.set()

    def close(self) -> None:
        """Close all idle connections. Once none is open, the file may be replaced."""
        self._close()
        with self._guard.lock:
            if not self._in_use:
                self._file = self._id = None

    def _close(self) -> None:
        with self._guard.lock:
            idle = [*self._idle]
            self._idle = deque()
            for role, writer in list(self._writers.items()):
                if writer not in self._in_use:
                    idle.append(self._writers.pop(role))
        for connection in idle:
            with suppress(sqlite3.Error):
                connection.close()

    def lock_writer(self, role: str = WRITER) -> WriterScope:
        """The writing connection of a role, for one user at a time. It is closed after an error."""
        return WriterScope(self, role)

    def read(self, ask: Callable[[Connection], T], *, patient: bool = True, reading: Reading | None = None) -> T:
        """Run a query on a separate connection. If ``patient``, transient errors are retried for ``busy_s``."""
        wait_s = self.busy_s if patient else 0.0
        return retry_transient(partial(self._read, ask, wait_s, reading or Reading()), wait_s)

    def _read(self, ask: Callable[[Connection], T], wait_s: float, reading: Reading) -> T:
        connection = self.take(wait_s)
        try:
            reading.connection = connection
            if reading.is_left:
                raise StorageUnavailable(f"{self.path}: the query was cancelled")
            result = ask(connection)
        except BaseException:
            self._in_use.discard(connection)
            connection.close()
            raise
        finally:
            reading.connection = None
        with self._guard.lock:
            has_room = len(self._idle) < MAX_IDLE
            if has_room:
                self._idle.append(connection)
            self._in_use.discard(connection)
        if not has_room:
            connection.close()
        return result

    def take(self, wait_s: float, role: str | None = None) -> Connection:
        """Take a connection, to be given back. New ones are opened outside the guard, for which readers in an event
        loop may wait. A fork waits for them."""
        while True:
            if self._is_quiet:
                self._open.wait()
            with self._guard.lock:
                if self._is_quiet:
                    continue
                self._check_file()
                connection = self._writers.get(role) if role else self._idle.pop() if self._idle else None
                if connection is not None:
                    self._in_use.add(connection)
                    return connection
                opening = _Opening()
                self._in_use.add(opening)
            try:
                connection = self._make(wait_s, busy_s=wait_s if role else 0.0)
            except BaseException:
                self._in_use.discard(opening)
                raise
            with self._guard.lock:
                self._in_use.add(connection)
                self._in_use.discard(opening)
                if role:
                    self._writers[role] = connection
            return connection

    def _check_file(self) -> None:
        """Raises ``StorageUnavailable`` if the file was replaced or removed since it was opened."""
        identity = identity_of(self._name)
        if self._file is not None and identity != self._file:
            if identity is not None:
                raise _make_fault(self.path)
            # a new file would have no account, key or balance, so nobody would be limited
            files = f"{self.path.name}-wal and {self.path.name}-shm"
            hint = f"stop all processes that use it, remove {files}, restore a backup, and restart them"
            raise StorageUnavailable(f"{self.path} was removed while it was in use; {hint}")

    def _make(self, wait_s: float, *, busy_s: float) -> Connection:
        """Open one. ``wait_s``: how long to wait for others that open it; ``busy_s``: SQLite's own timeout after
        that."""
        if self._abandoned:
            raise StorageUnavailable(f"{self.path}: this process was forked during a transaction; restart it")
        connection = self._connect_file()
        try:
            with self._guard.lock:
                self._check_file()  # it may have been replaced
            connection.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
            retry_transient(partial(self._prepare, connection), wait_s)  # SQLite does not wait in all cases
            connection.execute(f"PRAGMA busy_timeout = {int(busy_s * 1000)}")
        except BaseException:
            connection.close()
            raise
        self._file = identity_of(self.path)
        return connection

    def _connect_file(self) -> Connection:
        """Connect. Creates the file if none was open."""
        check_store(self.path)
        if self._file is None:
            make_file(self.path)
        try:
            return self._connect(str(self.path))
        except sqlite3.Error:
            with self._guard.lock:
                self._check_file()
            raise

    def _prepare(self, connection: Connection) -> None:
        """Set up a connection. Raises if the file is another one than before."""
        if self._id is not None and id_of(connection) != self._id:
            raise _make_fault(self.path)
        prepare(connection, self.path)
        synchronous = "NORMAL" if IS_POSSIBLE else "FULL"  # never OFF: checkpoints rely on it
        cache = f"cache_size = -{CACHE_KB}"
        for setting in (f"synchronous = {synchronous}", cache, "wal_autocheckpoint = 0", "secure_delete = ON"):
            connection.execute(f"PRAGMA {setting}").fetchall()
        connection.create_function("merged", 2, merge_buckets)
        self._id = id_of(connection)


class WriterScope(Struct, eq=False):
    """``with Connections.lock_writer()``. Faster than a generator, since every transaction enters one."""

    of: Connections
    role: str
    connection: Connection = None  # type: ignore[assignment]  # taken on entry

    def __enter__(self) -> Connection:
        connections = self.of
        connections.roles[self.role].lock.acquire()
        try:
            self.connection = connections.take(connections.busy_s, self.role)
        except BaseException:
            connections.roles[self.role].lock.release()
            raise
        return self.connection

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        connections = self.of
        if error is not None:
            with connections._guard.lock:
                connections._writers.pop(self.role, None)
            with suppress(sqlite3.Error):
                self.connection.close()
        connections._in_use.discard(self.connection)  # last: a fork waits for it
        connections.roles[self.role].lock.release()


def retry_transient(work: Callable[[], T], for_s: float) -> T:
    """Run work, and retry transient errors for so long."""
    deadline = time.monotonic() + for_s
    pause = 0.001
    while True:
        try:
            return work()
        except sqlite3.Error as error:
            if not is_transient(error) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
