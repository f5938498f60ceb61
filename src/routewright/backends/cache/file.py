"""The file of ``SqliteCache``: opened when it is needed, closed around forks, and made anew if it is damaged."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from routewright.backends.storage.sqlite.connection import connect, identity_of, make_file, pragma
from routewright.backends.storage.sqlite.faults import fault_of, is_transient
from routewright.errors import StorageCorrupt, StorageUnavailable
from routewright.fork import Guard, quiet_at_fork

try:
    import fcntl
except ImportError:  # Windows, where a file that is open can be neither moved nor removed
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

BUSY_S = 1.0
"""How long to wait for another process that writes. An answer that is not kept is only a miss."""
LONGEST_QUIET_S = 10.0
"""How long a fork waits for a statement to end."""
APPLICATION_ID, VERSION = 0x52774361, 1  # "RwCa"
TABLES = """
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, account TEXT NOT NULL, environment TEXT NOT NULL,
    partition BLOB NOT NULL, id TEXT NOT NULL, namespace TEXT, created_at REAL NOT NULL, expires_at REAL NOT NULL,
    used_at REAL NOT NULL, size INTEGER NOT NULL, cost_nanos INTEGER NOT NULL, sum INTEGER NOT NULL, metadata BLOB,
    vector BLOB, body BLOB NOT NULL
);
CREATE INDEX by_partition ON entries (partition, seq) WHERE vector IS NOT NULL;
CREATE INDEX by_account ON entries (account, seq);
CREATE INDEX by_end ON entries (expires_at);
CREATE INDEX by_use ON entries (used_at, seq);
CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER added AFTER INSERT ON entries BEGIN
    UPDATE totals SET entries = entries + 1, bytes = bytes + new.size;
END;
CREATE TRIGGER gone AFTER DELETE ON entries BEGIN
    UPDATE totals SET entries = entries - 1, bytes = bytes - old.size;
END;
CREATE TABLE learned (seq INTEGER PRIMARY KEY AUTOINCREMENT, space TEXT NOT NULL, body BLOB NOT NULL);
CREATE INDEX by_space ON learned (space, seq);
"""
_log = logging.getLogger(__name__)


class _Line:
    """One connection, which one thread at a time has."""

    def __init__(self) -> None:
        self.guard = Guard()
        self.connection: sqlite3.Connection | None = None
        self.file: tuple[int, int] | None = None
        """Which file is open."""

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


class CacheFile:
    """A connection to read with and one to write with. Raises ``StorageUnavailable`` and kinds of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.openings = 0
        """How often the reading connection was opened. While that stays the same, row numbers are those of one file."""
        self._reader, self._writer = self._lines = _Line(), _Line()
        quiet_at_fork(self)

    def read(self, sql: str, *given: object) -> list[Any]:
        """Rows of a statement."""
        return self._run(self._reader, lambda connection: connection.execute(sql, given).fetchall())

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What ``work`` gives, done in a transaction."""

        def transaction(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            return result

        return self._run(self._writer, transaction)

    def scrub(self) -> None:
        """Take what was removed off the disk, as far as nobody reads it just now."""
        self._run(self._writer, lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())

    def close(self) -> None:
        """Close it. It is opened again if it is used again."""
        for line in self._lines:
            with line.guard.lock:
                line.close()

    def quiet(self) -> None:
        """Close it, and keep others from opening it."""
        for line in self._lines:
            line.guard.lock.acquire(timeout=LONGEST_QUIET_S)
            line.close()

    def resume(self) -> None:
        """Let others open it; a child has locks of its own, which are open."""
        for line in self._lines:
            with suppress(RuntimeError):
                line.guard.lock.release()

    def _run(self, line: _Line, work: Callable[[sqlite3.Connection], T]) -> T:
        with line.guard.lock:
            try:
                return self._try(line, work)
            except sqlite3.Error as error:
                if not _is_damage(error):
                    raise fault_of(error, self.path) from error
                damage = error
            try:
                self._replace(line.file, damage)
                return self._try(line, work)
            except sqlite3.Error as error:
                raise fault_of(error, self.path) from error

    def _try(self, line: _Line, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if line.connection is None or line.file != identity_of(self.path):
                line.close()
                with self._alone():
                    make_file(self.path)
                    line.file = identity_of(self.path)
                    line.connection = connect(str(self.path))
                    self._prepare(line.connection)
                self.openings += line is self._reader
            return work(line.connection)
        except BaseException as error:
            if not isinstance(error, sqlite3.Error) or not is_transient(error):
                line.close()
            raise

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
        made_by = pragma(connection, "application_id")
        if made_by != APPLICATION_ID and connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise StorageCorrupt(f"{self.path} holds the tables of another program: name another file for the cache")
        for setting in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON"):
            connection.execute(f"PRAGMA {setting}").fetchall()
        if (made_by, pragma(connection, "user_version")) == (APPLICATION_ID, VERSION):
            return
        # of another version, or empty: a cache is not worth an upgrade
        drop = "".join(
            f"DROP TABLE {name};"
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            if not name.startswith("sqlite_")
        )
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
        connection.executescript(f"BEGIN IMMEDIATE; {drop} {TABLES} {marks} COMMIT;")

    def _replace(self, damaged: tuple[int, int] | None, error: sqlite3.Error) -> None:
        """Move a damaged file out of the way, unless another process was quicker."""
        with self._alone():
            if identity_of(self.path) != damaged:
                return
            aside = f"{self.path}.damaged"
            _log.warning("%s is damaged (%s): it is kept as %s, and the cache begins empty", self.path, error, aside)
            with suppress(OSError):
                os.replace(self.path, aside)
                for end in ("-wal", "-shm"):
                    with suppress(FileNotFoundError):
                        os.remove(f"{self.path}{end}")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While this process opens or moves the file, no other does."""
        try:
            descriptor = os.open(f"{self.path}-lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageUnavailable(f"{self.path} cannot be opened: {error.strerror or error}") from error
        try:
            ends = time.monotonic() + BUSY_S
            while fcntl is not None:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if time.monotonic() > ends:
                        raise StorageUnavailable(f"{self.path}: another process opens it for too long") from error
                    time.sleep(0.001)
            yield
        finally:
            os.close(descriptor)


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or code == sqlite3.SQLITE_IOERR_SHORT_READ
