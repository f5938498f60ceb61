"""Syncs of a store's file, and the translation of SQLite's errors."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from routewright import errors
from routewright._runtime.fork import Guard
from routewright.errors import RouterError, StorageUnavailable

_READ_ONLY = errors.StorageReadOnly, "it is read-only; check the permissions of the file and its folder"
_BUSY = StorageUnavailable, "another process has been writing for too long"
_FULL = "the disk is full; free other space, since deleting traces needs some, too"
_KINDS: dict[int, tuple[type[RouterError], str]] = {
    sqlite3.SQLITE_FULL: (errors.StorageFull, _FULL),
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: (StorageUnavailable, "it cannot be opened; check the file's and the folder's permissions"),
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_INTERRUPT: (StorageUnavailable, "the query was interrupted"),
    sqlite3.SQLITE_PROTOCOL: (StorageUnavailable, "too many processes lock it at once"),
    sqlite3.SQLITE_IOERR: (StorageUnavailable, "the disk failed"),
    sqlite3.SQLITE_NOMEM: (StorageUnavailable, "there is not enough memory"),
    sqlite3.SQLITE_CORRUPT: (errors.StorageCorrupt, "it is damaged; run 'routewright store check', restore a backup"),
    sqlite3.SQLITE_NOTADB: (errors.StorageCorrupt, "it is no store of routewright; name another file"),
}
_TRANSIENT = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL}


@contextmanager
def translate(path: Path) -> Iterator[None]:
    """Raise SQLite's errors about the file as kinds of ``StorageUnavailable``, others as ``InternalError``."""
    try:
        yield
    except sqlite3.Error as error:
        raise fault_of(error, path) from error


def fault_of(error: Exception, path: Path) -> RouterError:
    """The library's error for one of SQLite's, or any other."""
    if isinstance(error, RouterError):
        return error
    if isinstance(error, sqlite3.Error):
        kind, meaning = _KINDS.get(_read_code(error), (errors.InternalError, "SQLite refused a statement"))
        fault = kind(f"{path}: {meaning} ({error})")
    else:
        fault = errors.InternalError(f"SqliteStorage failed with {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


def is_of_the_file(error: Exception) -> bool:
    """True if the error is about the file, so that every statement would fail."""
    return isinstance(error, RouterError) or (isinstance(error, sqlite3.Error) and _read_code(error) in _KINDS)


def is_transient(error: sqlite3.Error) -> bool:
    """True if a retry may succeed."""
    return _read_code(error) in _TRANSIENT


def is_damage(error: sqlite3.Error) -> bool:
    """True if the file is damaged."""
    return _read_code(error) == sqlite3.SQLITE_CORRUPT


def _read_code(error: sqlite3.Error) -> int:
    """The primary error code. Errors of Python's own module have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


_RECENT_S = 0.05
"""Resolution of a file's modification time."""

Look = tuple[int, int, int]
"""Inode, size and modification time of a file."""


def true_sync(descriptor: int) -> None:
    """Sync a file to the disk."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


IS_POSSIBLE = sys.platform == "darwin" or hasattr(os, "fdatasync")
"""False if the platform has no such call. Then SQLite syncs every commit itself."""


class Sync:
    """Syncs the log of one file. A failed sync is final until the storage is closed: what it lost is unknown, and later
    commits depend on it."""

    def __init__(self, path: Path) -> None:
        self._log = f"{path}-wal"
        self._descriptor: int | None = None
        self._synced: Look | None = None
        """The log's look when the last sync began. None: it may have changed unnoticed since."""
        self._failure: str | None = None
        self._guard = Guard()
        """Keeps descriptors open during a sync."""

    def close(self) -> None:
        """Close the descriptor, with the connection that the log belongs to."""
        with self._guard.lock:
            descriptor = self._descriptor
            self._descriptor = None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    def renew(self) -> None:
        """Reset, once all connections are closed."""
        self.close()
        self._failure = None

    def check(self) -> None:
        """Raise ``StorageUnavailable`` after a failed sync."""
        if self._failure is not None:
            raise StorageUnavailable(self._failure)

    def __call__(self) -> None:
        """Sync all commits. Raises ``StorageUnavailable``."""
        if not IS_POSSIBLE:
            return
        with self._guard.lock:
            self.check()
            if self._descriptor is None:
                with suppress(OSError):  # missing before the first write
                    self._descriptor = os.open(self._log, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
            try:
                if self._descriptor is None or not self._is_current():
                    raise StorageUnavailable(f"{self._log} was removed while it was in use; restart its processes")
                self._synced = _sync_and_look(self._descriptor)
            except OSError as error:
                self.close()
                raise self._failed(error) from error

    def _failed(self, error: OSError) -> StorageUnavailable:
        reason = f"the disk failed to sync ({error})"
        self._failure = f"{self._log}: {reason}; stop all processes that use it, check it, and restart them"
        return StorageUnavailable(self._failure)

    @property
    def is_needed(self) -> bool:
        """False if no process has written since this one's last sync."""
        try:
            return IS_POSSIBLE and _describe(os.stat(self._log)) != self._synced
        except OSError:
            return False

    def sync_for_readers(self) -> None:
        """Sync rows that were read, by whichever process wrote them. Thread-safe."""
        # Contract 7: an answer, trace or report is shown only once its rows are on the disk, whoever wrote them. A row
        # of another process may be committed and not yet synced, and a power cut would undo what was shown. Syncing at
        # every read would be slow, so the log's inode, size and modification time are compared with those of the last
        # sync. File times have a coarse resolution: a log that was written within `_RECENT_S` is synced again
        # (`test_reads_sync_writes_of_others_even_if_the_clock_was_set_back`,
        # `test_a_recently_written_log_is_synced_for_every_read`).
        self.check()
        if not self.is_needed:
            return
        try:
            descriptor = os.open(self._log, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            return  # checkpointed, which syncs the file
        except OSError as error:  # such as too many open files
            raise StorageUnavailable(f"{self._log} cannot be synced now: {error}") from error
        try:
            self._synced = _sync_and_look(descriptor)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            os.close(descriptor)

    def _is_current(self) -> bool:
        """True if the descriptor is that of the present log."""
        assert self._descriptor is not None
        own = os.fstat(self._descriptor)
        try:
            current = os.stat(self._log)
        except OSError:
            return False
        return own.st_nlink > 0 and (own.st_dev, own.st_ino) == (current.st_dev, current.st_ino)


def _describe(file: os.stat_result) -> Look:
    return file.st_ino, file.st_size, file.st_mtime_ns


def _sync_and_look(descriptor: int) -> Look | None:
    """Sync a file. Returns its look before; None if it was modified so recently that another write may not change it.
    If the clock was set back, files are synced more often, never less."""
    before = os.fstat(descriptor)
    is_recent = time.time() - before.st_mtime < _RECENT_S
    true_sync(descriptor)
    return None if is_recent else _describe(before)
