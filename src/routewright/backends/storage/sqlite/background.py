"""Background work on a file: roll-ups, and moving the log into the file. One process at a time does it.

The log is moved by a connection of its own, under an operating-system lock on a file beside the store, so that two
processes never move it back to back: SQLite before 3.51.3 may damage a file then.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from routewright.backends.storage.tables.roll import roll
from routewright.errors import RouterError
from routewright.fork import Guard, renew_in_children

from .connection import Connection
from .connections import Connections

try:
    import fcntl
except ImportError:  # a platform without; its processes move the log each
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

EVERY_S = 0.25
"""How often roll-ups are brought up to date while traces come, and the log is moved if it is long enough."""
LOOK_S = 0.01
"""How often a writer checks the size of the log. One that grows beyond twice ``LOG_BYTES`` is moved at once."""
LOG_BYTES = 8 * 1024 * 1024
"""How large the log may grow before it is moved. Nobody writes meanwhile, for some 20 ms at this size; but a page that
was written often since is moved once."""
MOST_LOG_BYTES = 4 * LOG_BYTES
"""A log that is larger, since readers stood in the way, is given back to the disk."""
_HEADER, _FRAME_HEADER, _SALT = 32, 24, slice(16, 24)
"""Of the format of SQLite's log (https://www.sqlite.org/fileformat2.html#walformat)."""
READERS_MS = 20
"""How long the lock is held while readers stand in the way."""
IDLE_S = 2.0
"""After so long without a write the thread ends."""
AGAIN_S = 1.0
"""So long after readers stood in the way, the log is moved again."""
LONGEST_WAIT_S = 0.2
"""How long a deletion waits for the keeper of another process. Then what was removed is scrubbed later."""
VACUUM_BYTES = 16 * 1024 * 1024
"""Up to this size a file is written anew when something was removed, which takes a fifth of a second at most: SQLite
overwrites what it removes, but now and then leaves a copy where it moved a row from one page to another."""

_log = logging.getLogger(__name__)


class Keeper:
    """Moves the log and rolls up traces, for one process and file. With ``inline`` in the caller's thread."""

    def __init__(self, connections: Connections, *, inline: bool) -> None:
        self._connections = connections
        self._inline = inline
        self._guard = Guard()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing to do."""
        self._thread: threading.Thread | None = None
        self._ends, self._wakes = threading.Event(), threading.Event()
        self._wrote_at = self._again_at = self._look_at = 0.0
        self._long = 2 * LOG_BYTES
        """The log is moved at once when its file grows beyond this size."""
        self._stale = False
        """The log or the file may still hold removed rows."""
        self._has_failed = False
        """A defect was logged."""

    def wrote(self) -> None:
        """Something was written."""
        now = self._wrote_at = time.monotonic()
        if self._inline:
            if self._log_bytes() > LOG_BYTES:
                self._keep()
        elif self._thread is None:
            with self._guard.lock:
                if self._thread is None:
                    events = self._ends, self._wakes
                    thread = threading.Thread(
                        target=self._run, args=events, name="routewright-sqlite-keeper", daemon=True
                    )
                    with suppress(RuntimeError):  # the next who writes tries again
                        thread.start()
                        self._thread = thread
        elif now >= self._look_at and now >= self._again_at:
            self._look_at = now + LOOK_S
            size = self._log_bytes()
            if size > self._long:
                self._long = size
                self._wakes.set()

    def scrub(self) -> None:
        """Remove what was deleted from the log and the file, too; later, where readers stand in the way."""
        self._stale = True
        self._keep()

    def close(self) -> None:
        """End its thread, which would open the file again. What is due is done by whoever writes next."""
        with self._guard.lock:
            thread, self._thread = self._thread, None
            self._ends.set()
            self._wakes.set()
            self._ends, self._wakes = threading.Event(), threading.Event()
        if thread is not None:
            thread.join()
        if self._stale:
            self._keep()

    def _run(self, ends: threading.Event, wakes: threading.Event) -> None:
        while self._stale or time.monotonic() - self._wrote_at < IDLE_S:
            wakes.wait(EVERY_S)
            wakes.clear()
            if ends.is_set():
                return
            self._keep()
        with self._guard.lock:
            if not ends.is_set():
                self._thread = None

    def _keep(self) -> None:
        """Do what is due, if no other process is at it."""
        try:
            with self._connections.writing("keeper") as connection, self._alone() as alone:
                if not alone:
                    return
                if not self._stale and time.monotonic() >= self._again_at and self._written_bytes() > LOG_BYTES:
                    self._move(connection)  # before roll-ups, which fail where others write all the time
                while not self._inline and transact(connection, roll):
                    time.sleep(0.001)  # let others write
                if self._stale:  # behind roll-ups: what waits for them tells of what was removed
                    self._move(connection)
        except (sqlite3.Error, OSError, RouterError) as error:  # what was committed is committed
            _log.debug("the log of %s was not moved: %s", self._connections.path, error)
        except Exception:  # as of a damaged row, for which no writer is to blame; told once, since it is tried again
            if not self._has_failed:
                _log.exception("the log of %s was not moved, or its traces not counted", self._connections.path)
            self._has_failed = True

    def _move(self, connection: Connection) -> None:
        """Move the log into the file, and write the file anew where what was removed may still stand in it."""
        connection.execute(f"PRAGMA busy_timeout = {READERS_MS}")
        # a log that keeps its size is synced for a quarter of the price of one that grows
        kept = not self._stale and self._log_bytes() <= MOST_LOG_BYTES
        move = f"PRAGMA wal_checkpoint({'RESTART' if kept else 'TRUNCATE'})"
        busy, written, moved = connection.execute(move).fetchone()
        if self._stale and not self._log_bytes():  # else the log would grow by the whole file
            if os.stat(self._connections.path).st_size <= VACUUM_BYTES:
                connection.execute("VACUUM")
                connection.execute(move).fetchall()
            self._stale = self._log_bytes() > 0
        self._long = max(2 * LOG_BYTES, self._log_bytes())
        by_readers = busy and moved < written  # not by others who write, between whom there is room soon
        self._again_at = time.monotonic() + (AGAIN_S if by_readers else 0.0)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Hold the lock that says who keeps the file. False: another process does."""
        if fcntl is None:
            yield True
            return
        descriptor = os.open(f"{self._connections.path}-keep", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        ends = time.monotonic() + (LONGEST_WAIT_S if self._stale else 0.0)
        try:
            while not (alone := _locked(descriptor)) and time.monotonic() < ends:
                time.sleep(0.005)
            yield alone
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile would hold it on
            os.close(descriptor)

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self._connections.path}-wal").st_size
        except OSError:
            return 0

    def _written_bytes(self) -> int:
        """How much of the log is written since it began anew: behind that stand pages of before, with another salt."""
        size = self._log_bytes()
        if size <= LOG_BYTES:
            return size
        with open(f"{self._connections.path}-wal", "rb", buffering=0) as log:
            header = log.read(_HEADER)
            frame, salt = int.from_bytes(header[8:12], "big") + _FRAME_HEADER, header[_SALT]

            def is_older(place: int) -> bool:
                log.seek(_HEADER + place * frame)
                return log.read(_FRAME_HEADER)[8:16] != salt

            return _HEADER + frame * bisect_left(range((size - _HEADER) // frame), True, key=is_older)


def _locked(descriptor: int) -> bool:
    """Take the lock of a file. False: another has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def transact(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Do something in a transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return done
