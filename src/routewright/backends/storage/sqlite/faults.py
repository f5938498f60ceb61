"""What SQLite complains of, in this library's words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from routewright.errors import (
    InternalError,
    RouterError,
    StorageCorrupt,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)

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
