"""Syncs of a store's file, and SQLite's errors as errors of this library."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from routewright.errors import (
    InternalError,
    RouterError,
    StorageCorrupt,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from routewright.fork import Guard

_KINDS: dict[int, tuple[type[RouterError], str]] = {
    sqlite3.SQLITE_FULL: (
        StorageFull,
        "there is no room left: free some elsewhere, since deleting traces takes room, too",
    ),
    sqlite3.SQLITE_READONLY: (StorageReadOnly, "it cannot be written to: see to the rights of the file and its folder"),
    sqlite3.SQLITE_PERM: (StorageReadOnly, "it cannot be written to: see to the rights of the file and its folder"),
    sqlite3.SQLITE_CANTOPEN: (StorageUnavailable, "it cannot be opened: see to its folder, and to the rights of both"),
    sqlite3.SQLITE_BUSY: (StorageUnavailable, "another process has been writing for too long"),
    sqlite3.SQLITE_LOCKED: (StorageUnavailable, "another process has been writing for too long"),
    sqlite3.SQLITE_INTERRUPT: (StorageUnavailable, "the query was interrupted"),
    sqlite3.SQLITE_PROTOCOL: (StorageUnavailable, "too many processes lock it at once"),
    sqlite3.SQLITE_IOERR: (StorageUnavailable, "the disk failed"),
    sqlite3.SQLITE_NOMEM: (StorageUnavailable, "there is not enough memory"),
    sqlite3.SQLITE_CORRUPT: (StorageCorrupt, "it is damaged: 'routewright store check' says where, restore a backup"),
    sqlite3.SQLITE_NOTADB: (StorageCorrupt, "it is no store of routewright's, but another kind of file"),
}
_TRANSIENT = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL}


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise what concerns the file as ``StorageUnavailable`` or a kind of it, and all else as ``InternalError``."""
    try:
        yield
    except sqlite3.Error as error:
        raise fault_of(error, path) from error


def fault_of(error: sqlite3.Error, path: Path) -> RouterError:
    """What to raise in the place of an error of SQLite's."""
    kind, what = _KINDS.get(_code(error), (InternalError, "SQLite refused a statement"))
    return kind(f"{path}: {what} ({error})")


def is_of_the_file(error: sqlite3.Error) -> bool:
    """It would meet whatever was asked; else only what was asked just now is to blame."""
    return _code(error) in _KINDS


def is_transient(error: sqlite3.Error) -> bool:
    """It may be gone when the same is asked again at once."""
    return _code(error) in _TRANSIENT


def is_damage(error: sqlite3.Error) -> bool:
    """Something in the file is not as it has to be."""
    return _code(error) == sqlite3.SQLITE_CORRUPT


def _code(error: sqlite3.Error) -> int:
    """The primary code; what Python's own module raises of itself has none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


_RECENT_S = 0.05
"""The time of a file's last write is no more exact than that."""

Look = tuple[int, int, int]
"""Inode, size and time of the last write of a file."""


def true_sync(descriptor: int) -> None:
    """Write a file to the disk itself."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


IS_POSSIBLE = sys.platform == "darwin" or hasattr(os, "fdatasync")
"""False where the platform has no such call: then SQLite syncs every commit itself."""


class Sync:
    """The log of one file. A failed sync is final until the storage is closed: nobody knows what it lost, and what is
    committed behind that would be lost with it, however often it is synced."""

    def __init__(self, path: Path) -> None:
        self._log = f"{path}-wal"
        self._descriptor: int | None = None
        self._synced: Look | None = None
        """Stat of the log when the last sync began. None: it may have changed since without showing it."""
        self._failure: str | None = None
        self._guard = Guard()
        """No descriptor is closed while it is synced."""

    def close(self) -> None:
        """Let go of the log: the connection is closed that it belongs to."""
        with self._guard.lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    def renew(self) -> None:
        """Begin anew: all connections are closed."""
        self.close()
        self._failure = None

    def check(self) -> None:
        """Raises ``StorageUnavailable`` if a sync failed."""
        if self._failure is not None:
            raise StorageUnavailable(self._failure)

    def open(self) -> None:
        """Take hold of the log that a connection has just opened."""
        self.close()
        with suppress(OSError):  # there is none as long as nothing was written
            self._descriptor = os.open(self._log, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))

    def __call__(self) -> None:
        """Sync all that was committed before. Raises ``StorageUnavailable``."""
        if not IS_POSSIBLE:
            return
        with self._guard.lock:
            self._sync()

    def _sync(self) -> None:
        self.check()
        if self._descriptor is None:
            self.open()
        try:
            if self._descriptor is None or not self._is_current():
                raise StorageUnavailable(f"{self._log} was removed while it was in use: start anew")
            self._synced = _sync_and_look(self._descriptor)
        except OSError as error:
            self.close()
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StorageUnavailable:
        what = f"the disk failed to keep what was written ({error})"
        self._failure = f"{self._log}: {what}: stop all that use it, check it, and start again"
        return StorageUnavailable(self._failure)

    @property
    def is_needed(self) -> bool:
        """False if no process has written since the last sync of this one."""
        try:
            return IS_POSSIBLE and _look(os.stat(self._log)) != self._synced
        except OSError:
            return False

    def for_readers(self) -> None:
        """Sync what was read, whoever wrote it, before it is shown. Safe to call from any thread."""
        self.check()
        if not self.is_needed:
            return
        try:
            descriptor = os.open(self._log, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            return  # it was moved into the file, which syncs that
        except OSError as error:  # no more files may be open, perhaps
            raise StorageUnavailable(f"{self._log} cannot be synced now: {error}") from error
        try:
            self._synced = _sync_and_look(descriptor)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            os.close(descriptor)

    def _is_current(self) -> bool:
        """True if the descriptor is that of the log which has the name now."""
        assert self._descriptor is not None
        mine = os.fstat(self._descriptor)
        try:
            there = os.stat(self._log)
        except OSError:
            return False
        return mine.st_nlink > 0 and (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _look(file: os.stat_result) -> Look:
    return file.st_ino, file.st_size, file.st_mtime_ns


def _sync_and_look(descriptor: int) -> Look | None:
    """Sync a file. Returns what it looked like before; None if it was written so recently that another write may leave
    it the same. Where the clock was set back it is synced more often, never less."""
    before = os.fstat(descriptor)
    is_recent = time.time() - before.st_mtime < _RECENT_S
    true_sync(descriptor)
    return None if is_recent else _look(before)
