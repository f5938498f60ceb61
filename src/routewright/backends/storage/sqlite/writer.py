"""The one who writes: a thread that takes all that waits into one transaction, so that many share one commit.

It begins with the first request, ends when it had nothing to do for a while, and begins anew in a forked child.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

from routewright.errors import InternalError, RouterError, StorageUnavailable
from routewright.fork import Guard, renew_in_children
from routewright.loop import Signal
from routewright.wire import Durability

from .connection import Connection
from .connections import Connections
from .faults import fault_of, is_of_the_file
from .schema import check_version

IDLE_S = 2.0
"""After so long without a request the thread ends."""
MOST_AT_ONCE = 64
"""Requests in one transaction, so that readers of other processes need not wait long for their turn to write."""
WAL_BYTES = 4 * 1024 * 1024
"""How large the log may grow before it is moved into the file. One move costs two syncs, and no trace is written
meanwhile: at four times the size it takes longer than the 50 ms within which each should be."""
CHECKPOINT_BUSY_MS = 100
TIDY_AGAIN_S = 1.0
"""So long after readers stood in the way, who writes tries again to overwrite what was removed."""
LONGEST_PAUSE_S = 0.1
VACUUM_BYTES = 32 * 1024 * 1024
"""Up to this size a file is written anew when something was removed, which takes a third of a second at most: SQLite
overwrites what it removes, but now and then leaves a copy where it moved a row from one page to another."""

Work = Callable[[Connection], Any]
Scrub = Callable[[Any], bool]

_log = logging.getLogger(__name__)


class Request:
    """What somebody wants done in a transaction, and what came of it."""

    def __init__(self, work: Work, durability: Durability, scrub: Scrub | None, *, gentle: bool) -> None:
        self.work = work
        self.durability = durability
        self.scrub = scrub
        """Says of its result whether what was removed must now go from the log and the file, too."""
        self.gentle = gentle
        """One of many: other processes are left as much time behind it as it took."""
        self.done = Signal()
        self.error: Exception | None = None
        self.result: Any = None


class Writer:
    """Does what is asked of it in the order in which it was asked. With ``inline`` in the caller's thread."""

    def __init__(self, connections: Connections, busy_s: float, *, inline: bool) -> None:
        self._connections = connections
        self._busy_ms = int(busy_s * 1000)
        self._inline = inline
        self._guard = Guard()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing: what waited at a fork is the parent's to do."""
        self._waiting: list[Request] = []
        self._thread: threading.Thread | None = None
        self._asked = threading.Event()
        self._synchronous: tuple[Connection, str] | None = None
        self._checkpoint_at = WAL_BYTES
        self._unclean = False  # what was removed stands in the log still, or in the file
        self._stale = False  # it may stand in the file
        self._tidy_at = 0.0

    async def do(
        self, work: Work, durability: Durability = "buffered", scrub: Scrub | None = None, *, gentle: bool = False
    ) -> Any:
        """Run ``work`` in a transaction, and give what it gives once that is committed.

        Raises what it raises, with nothing of it done.
        """
        request = Request(work, durability, scrub, gentle=gentle)
        if self._inline:
            self._run([request])
        else:
            self._enqueue(request)
            await request.done.wait()
        if request.error is not None:
            raise request.error
        return request.result

    def _enqueue(self, request: Request) -> None:
        with self._guard.lock:
            if self._thread is None:
                self._thread = self._started()
            self._waiting.append(request)
        self._asked.set()

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name="routewright-sqlite", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the next who writes tries again
            raise StorageUnavailable(f"{self._connections.path} cannot be written to now: {error}") from error
        return thread

    def _work(self) -> None:
        while requests := self._take():
            began = time.monotonic()
            self._run(requests)
            for request in requests:
                request.done.set()
            if any(request.gentle for request in requests):
                time.sleep(min(time.monotonic() - began, LONGEST_PAUSE_S))
            del requests, request  # what they hold must not stay while nothing happens

    def _take(self) -> list[Request]:
        """What waits; nothing: the thread is to end."""
        while True:
            came = self._asked.wait(IDLE_S)
            with self._guard.lock:
                self._asked.clear()
                taken, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
                if self._waiting:
                    self._asked.set()
                if taken or not came:
                    if not taken:
                        self._thread = None
                    return taken

    def _run(self, requests: list[Request]) -> None:
        """Do them in one transaction. Where the file fails, all have failed."""
        try:
            with self._connections.writing() as connection:
                self._transact(connection, requests)
                done = [each for each in requests if each.scrub is not None and each.error is None]
                self._tidy(connection, scrub=any(each.scrub(each.result) for each in done if each.scrub))
        except Exception as error:
            fault = self._fault_of(error)
            for request in requests:
                request.error = request.error or fault

    def _fault_of(self, error: Exception) -> RouterError:
        """What to raise in the place of an error."""
        if isinstance(error, RouterError):
            return error
        if isinstance(error, sqlite3.Error):
            fault = fault_of(error, self._connections.path)
        else:
            fault = InternalError(f"SqliteStorage failed with {type(error).__name__}: {error}")
        fault.__cause__ = error
        return fault

    def _transact(self, connection: Connection, requests: list[Request]) -> None:
        self._sync(connection, "FULL" if any(each.durability == "committed" for each in requests) else "NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        check_version(connection, self._connections.path)  # somebody may have upgraded it meanwhile
        for request in requests:
            self._do(connection, request)
        connection.execute("COMMIT")

    def _do(self, connection: Connection, request: Request) -> None:
        """Do one of them; where it fails alone, undo it alone."""
        connection.execute("SAVEPOINT request")
        try:
            request.result = request.work(connection)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and is_of_the_file(error):
                raise
            request.error = self._fault_of(error)
        if request.error is not None:
            connection.execute("ROLLBACK TO request")
        connection.execute("RELEASE request")

    def _sync(self, connection: Connection, level: str) -> None:
        if self._synchronous != (connection, level):
            connection.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = connection, level

    def _tidy(self, connection: Connection, *, scrub: bool) -> None:
        """Move the log into the file where it has grown long, or where what was removed still stands in it."""
        if scrub:
            self._unclean = self._stale = True
        due = scrub or (self._unclean and time.monotonic() >= self._tidy_at)
        if not due and self._log_bytes() < self._checkpoint_at:
            return
        try:
            self._checkpoint(connection)
            if self._stale and not self._log_bytes():  # else the log would grow by the whole file
                if os.stat(self._connections.path).st_size <= VACUUM_BYTES:
                    connection.execute("VACUUM")
                    self._checkpoint(connection)
                self._stale = False
        except (sqlite3.Error, OSError) as error:  # what was committed is committed
            _log.debug("the log of %s was not moved: %s", self._connections.path, error)
        left = self._log_bytes()
        self._unclean = self._unclean and (self._stale or left > 0)
        self._tidy_at = time.monotonic() + TIDY_AGAIN_S
        self._checkpoint_at = max(WAL_BYTES, left + left // 4)

    def _checkpoint(self, connection: Connection) -> None:
        # Not passive: this mode keeps writers away meanwhile, and SQLite before 3.51.3 can damage a file whose log is
        # moved by one process while another writes.
        connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_BUSY_MS}")
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {self._busy_ms}")

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self._connections.path}-wal").st_size
        except OSError:
            return 0
