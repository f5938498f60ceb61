"""The file that processes share: transactions that never wait for one another, and what becomes of a damaged one."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from routewright.backends.storage.sqlite.connection import Connect, Connection
from routewright.backends.storage.sqlite.connections import Connections, Kind
from routewright.backends.storage.sqlite.faults import fault_of, is_of_the_file, is_transient
from routewright.errors import StorageCorrupt

from .schema import Outdated, is_ours, is_whole, prepare, remove

T = TypeVar("T")

TIDY_EVERY = 16
"""Transactions after which the log's length is asked for."""
LOG_BYTES = 1_000_000
"""How long the log may grow before it is moved into the file, which takes a third of a millisecond."""

_log = logging.getLogger(__name__)


class Busy:
    """Another process has the file for itself: try again."""


class LimitsFile:
    """A file of limits, in the caller's thread. ``busy_s``: how long SQLite itself waits for other processes."""

    def __init__(self, path: Path, connect: Connect, busy_s: float, now: Callable[[], float]) -> None:
        self.path = path
        self._connections = Connections(
            path, connect, busy_s, Kind(partial(prepare, now), _any, _take_the_new, _begin_anew)
        )
        self._within = False
        self._written = 0

    def write(self, work: Callable[[Connection], T]) -> T | Busy:
        """Do it in a transaction. Raises ``StorageUnavailable``, or a kind of it."""
        return self._mended(partial(self._transact, work))

    def read(self, work: Callable[[Connection], T]) -> T | Busy:
        """Ask. Raises ``StorageUnavailable``, or a kind of it."""
        return self._mended(partial(self._connections.read, work, patient=False))

    def close(self) -> None:
        """Close it until it is used again."""
        self._connections.close()

    def _mended(self, attempt: Callable[[], T | Busy]) -> T | Busy:
        """What it gives. Where it meets a wreck of ours, once more with a new file."""
        try:
            return self._attempted(attempt)
        except Outdated:
            self._make_anew("is of another version")
        except StorageCorrupt:
            if not is_ours(self.path):
                raise
            self._make_anew("is damaged")
        return self._attempted(attempt)

    def _attempted(self, attempt: Callable[[], T | Busy]) -> T | Busy:
        try:
            return attempt()
        except sqlite3.Error as error:
            if is_transient(error):
                return Busy()
            if not is_of_the_file(error) and not is_whole(self.path):
                raise StorageCorrupt(f"{self.path}: what is asked for is not in it ({error})") from error
            raise fault_of(error, self.path) from error

    def _transact(self, work: Callable[[Connection], T]) -> T | Busy:
        with self._connections.writing() as connection:
            if self._within:  # a finaliser, which runs in the middle of a transaction: it is part of it
                return work(connection)
            if not _has_begun(connection):
                return Busy()
            self._within = True
            try:
                done = work(connection)
            finally:
                self._within = False
            connection.execute("COMMIT")
            self._tidy(connection)
            return done

    def _tidy(self, connection: Connection) -> None:
        """Move the log into the file where it has grown long, if nobody stands in the way. Nobody writes meanwhile:
        SQLite before 3.51.3 can damage a file whose log is moved by one process while another writes."""
        self._written += 1
        if self._written % TIDY_EVERY == 0 and _size(f"{self.path}-wal") > LOG_BYTES:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _make_anew(self, why: str) -> None:
        _log.warning("%s %s: it is made anew, and what was taken of limits is forgotten", self.path, why)
        self._connections.close()
        remove(self.path)


def _any(connection: Connection) -> None:
    """It has no id: one file of limits is as good as another."""


def _begin_anew(path: Path) -> None:
    """Say that what was in a file is gone."""
    _log.warning("%s was removed while it was in use: it is made anew, and what was in it is lost", path)


def _take_the_new(path: Path) -> None:
    """Go on with the file that another process made anew."""


def _has_begun(connection: Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        if is_transient(error):
            return False
        raise
    return True


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
