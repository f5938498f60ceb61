"""Background work on a file, by one process at a time: roll-ups and checkpoints of the write-ahead log.

Checkpoints use their own connection and an operating-system lock on a file beside the store. Without it, two processes
could checkpoint in immediate succession, which may corrupt the file in SQLite before 3.51.3.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from routewright._runtime import fork
from routewright._runtime.fork import Guard
from routewright._runtime.worker import Job, Worker
from routewright.backends.clock import SystemClock
from routewright.backends.storage.tables.rollup import roll
from routewright.errors import RouterError

from .connections import Connections
from .file import Connection, transact

try:
    import fcntl
except ImportError:  # on Windows each process checkpoints
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

EVERY_S = 0.25
"""Interval of roll-ups and checkpoints while traces are written."""
LOOK_S = 0.01
"""How often a writer checks the size of the log. Beyond twice ``LOG_BYTES`` it is checkpointed at once."""
LOG_BYTES = 8 * 1024 * 1024
"""Size of the log at which it is checkpointed, which blocks writers for some 20 ms."""
MAX_LOG_BYTES = 4 * LOG_BYTES
"""A larger log, which readers kept from being checkpointed, is truncated."""
_HEADER = 32
_FRAME_HEADER = 24
"""Of SQLite's log (https://www.sqlite.org/fileformat2.html#walformat)."""
READERS_MS = 20
"""How long a checkpoint waits for readers."""
IDLE_S = 2.0
"""The work ends after this time without a write."""
AGAIN_S = 1.0
"""Pause after a checkpoint that readers blocked."""
LONGEST_WAIT_S = 0.2
"""How long a deletion waits for another process's keeper. After that its rows are erased later."""
VACUUM_BYTES = 16 * 1024 * 1024
"""Files up to this size are vacuumed after a deletion, in at most 0.2 s: SQLite overwrites removed rows, but may leave
a copy of a row that it has moved between pages."""

_log = logging.getLogger(__name__)
_worker = Worker(SystemClock(), "routewright-background", may_be_dropped=True)
"""Its thread serves all files of the process. It may wait ``busy_s`` for writers of other processes, so nothing that
callers wait for runs there."""


class BackgroundWork:
    """Checkpoints the log and rolls up traces, for one process and file. With ``inline`` in the caller's thread."""

    def __init__(self, connections: Connections, *, inline: bool) -> None:
        self._connections = connections
        self._inline = inline
        self._guard = Guard()
        """Held by a turn of the work."""
        self._job = Job(_worker, self._turn, EVERY_S)
        self._urgent = Job(_worker, self._turn, 0.0)
        connections.renewals.add(self)

    def renew(self) -> None:
        """Start without work."""
        self._is_closed = False
        self._wrote_at = self._look_at = 0.0
        self._retry_at = 0.0
        self._max_bytes = 2 * LOG_BYTES
        """The log is checkpointed at once beyond this size."""
        self._is_stale = False
        """The log or the file may still contain removed rows."""
        self._has_failed = False
        """A defect has been logged."""

    def note_write(self) -> None:
        """Called after a write."""
        now = self._wrote_at = time.monotonic()
        if self._inline:
            if self._log_bytes() > LOG_BYTES:
                self._do_pending()
            return
        self._is_closed = False
        if self._job.due_since != fork.count:  # as ``poke`` asks, for every transaction
            self._job.delay = EVERY_S
            self._job.poke()
        if now >= self._look_at and now >= self._retry_at:
            self._look_at = now + LOOK_S
            size = self._log_bytes()
            if size > self._max_bytes:
                self._max_bytes = size
                self._urgent.poke()

    def scrub(self) -> None:
        """Erase deleted rows from the log and the file; later, if readers block it."""
        self._is_stale = True
        self._do_pending()

    def close(self) -> None:
        """End the work, which would open the file again, until the next write. Only deletions are waited for."""
        self._is_closed = True
        if not self._inline:
            self._urgent.drop()
            self._job.drop()
        if self._guard.lock.acquire(timeout=-1 if self._is_stale else EVERY_S):
            try:
                if self._is_stale:
                    self._do_pending()
            finally:
                self._guard.lock.release()

    async def _turn(self) -> None:
        with self._guard.lock:
            if self._is_closed:
                return
            self._do_pending()
        if self._is_closed:  # meanwhile, without waiting for this
            self._connections.close()
        elif self._is_stale or time.monotonic() - self._wrote_at < IDLE_S:
            self._job.poke()

    def _do_pending(self) -> None:
        """Do the pending work, unless another process does."""
        try:
            with self._connections.lock_writer("keeper") as connection, self._lock() as is_locked:
                if not is_locked:
                    return
                if not self._is_stale and time.monotonic() >= self._retry_at and self._written_bytes() > LOG_BYTES:
                    self._checkpoint(connection)  # before roll-ups, which may fail while others write
                while not (self._inline or self._is_closed) and transact(connection, roll):
                    time.sleep(0.001)  # let others write
                if self._is_stale:  # after roll-ups, whose pending rows have data of removed ones
                    self._checkpoint(connection)
        except (sqlite3.Error, OSError, RouterError) as error:  # committed rows are safe
            _log.debug("cannot checkpoint the log of %s: %s", self._connections.path, error)
        except Exception:  # such as a damaged row; logged once, since it is tried again
            if not self._has_failed:
                _log.exception("cannot checkpoint the log of %s or count its traces", self._connections.path)
            self._has_failed = True

    def _checkpoint(self, connection: Connection) -> None:
        """Checkpoint, and vacuum a file that may contain removed rows."""
        connection.execute(f"PRAGMA busy_timeout = {READERS_MS}")
        # syncing a log of constant size costs a quarter of syncing a growing one
        is_small = not self._is_stale and self._log_bytes() <= MAX_LOG_BYTES
        checkpoint = f"PRAGMA wal_checkpoint({'RESTART' if is_small else 'TRUNCATE'})"
        result = connection.execute(checkpoint).fetchone()  # whether it was blocked; frames of the log; frames moved
        if self._is_stale and not self._log_bytes():  # else the log would grow by the whole file
            if os.stat(self._connections.path).st_size <= VACUUM_BYTES:
                connection.execute("VACUUM")
                connection.execute(checkpoint).fetchall()
            self._is_stale = self._log_bytes() > 0
        self._max_bytes = max(2 * LOG_BYTES, self._log_bytes())
        by_readers = result[0] and result[2] < result[1]  # not by writers, which end soon
        self._retry_at = time.monotonic() + (AGAIN_S if by_readers else 0.0)

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Hold the keeper's lock. False: another process has it."""
        if fcntl is None:
            yield True
            return
        descriptor = os.open(f"{self._connections.path}-keep", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + (LONGEST_WAIT_S if self._is_stale else 0.0)
        try:
            while not (is_locked := _locked(descriptor)) and time.monotonic() < deadline:
                time.sleep(0.005)
            yield is_locked
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked meanwhile would keep it
            os.close(descriptor)

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self._connections.path}-wal").st_size
        except OSError:
            return 0

    def _written_bytes(self) -> int:
        """Bytes of the log since its last restart. Older frames after them have another salt."""
        size = self._log_bytes()
        if size <= LOG_BYTES:
            return size
        with open(f"{self._connections.path}-wal", "rb", buffering=0) as log:
            header = log.read(_HEADER)
            frame = int.from_bytes(header[8:12], "big") + _FRAME_HEADER

            def is_older(index: int) -> bool:
                log.seek(_HEADER + index * frame)
                return log.read(_FRAME_HEADER)[8:16] != header[16:24]

            return _HEADER + frame * bisect_left(range((size - _HEADER) // frame), True, key=is_older)


def _locked(descriptor: int) -> bool:
    """Lock a file. False: another process has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
