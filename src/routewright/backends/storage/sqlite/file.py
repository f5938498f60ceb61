"""A connection to an SQLite file."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import suppress
from errno import ENAMETOOLONG
from pathlib import Path
from typing import Any, Protocol, TypeVar

from routewright.backends.storage.tables.statements import Statements
from routewright.errors import StorageUnavailable, ValidationFailed
from routewright.wire.problems import shown

T = TypeVar("T")
_BESIDE = "-journal"
"""The longest suffix of SQLite's files."""
SUFFIXES = ("", "-wal", "-shm", "-keep", _BESIDE)
"""Of a database and the files beside it."""


class Connection(Statements, Protocol):
    """The used part of a ``sqlite3.Connection`` in autocommit mode (``isolation_level=None``). Raises ``sqlite3.Error``
    with ``sqlite_errorcode``."""

    def create_function(self, name: str, narg: int, func: Callable[..., Any], /) -> None:
        """Define an SQL function."""

    def interrupt(self) -> None:
        """Interrupt its statement, from another thread."""

    def close(self) -> None:
        """Close it."""


Connect = Callable[[str], Connection]


def connect(path: str) -> sqlite3.Connection:
    """Connect to an existing file with Python's ``sqlite3``. Threads may use the connection in turn."""
    return sqlite3.connect(
        f"{Path(path).absolute().as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None, check_same_thread=False,
        cached_statements=256, factory=_SelfClosing,
    )  # fmt: skip


def pragma(connection: Statements, name: str) -> int:
    """An integer pragma."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def transact(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Run work in a transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite itself rolls back if the disk is full
            connection.execute("ROLLBACK")
        raise
    return result


def make_file(path: Path) -> None:
    """Create an empty file unless there is one. Only its owner can read it and SQLite's files beside it, since traces
    may contain prompts."""
    with suppress(OSError):  # it exists, or SQLite will report the error
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def check_file(path: Path, chmod: str = "go-w") -> None:
    """Raise ``StorageUnavailable`` for a file through which another user could read or change what is stored, or that
    could hang. A missing one passes. ``chmod``: the mode that mends it."""
    # Files that a group may write are accepted if this process is in that group, whoever owns them: container platforms
    # mount volumes so (fsGroup of Kubernetes), and start processes under changing users.
    if os.name != "posix":
        return
    try:
        status = os.lstat(path)
    except OSError:  # missing, or opening it reports why not
        return
    mode = status.st_mode
    user = os.geteuid()
    is_shared = bool(mode & stat.S_IWGRP) and status.st_gid in (os.getegid(), *os.getgroups())
    if stat.S_ISLNK(mode):
        raise StorageUnavailable(f"{path} is a symbolic link; put the file itself in its place")
    if not stat.S_ISREG(mode):
        raise StorageUnavailable(f"{path} is not a regular file; move it away")
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not is_shared):
        raise StorageUnavailable(f"other users can write {path}; run 'chmod {chmod} {path}', and check what is in it")
    if status.st_uid not in (0, user) and not is_shared:
        hint = f"run as that user, or run 'chown {user} {path}'"
        raise StorageUnavailable(f"{path} belongs to user {status.st_uid}; {hint}")


def check_store(path: Path) -> None:
    """``check_file`` of a database and the files beside it."""
    for suffix in SUFFIXES:
        check_file(Path(f"{path}{suffix}"))


class _SelfClosing(sqlite3.Connection):
    """Closes itself when it is dropped, of which Python 3.13 would warn."""

    def __del__(self) -> None:
        with suppress(sqlite3.Error):  # never opened
            self.close()


def file_of(path: object, example: str = "traces.db") -> Path:
    """The real path of a file, since SQLite puts its log beside that. Raises ``ValidationFailed``."""
    if not isinstance(path, (str, os.PathLike)) or str(path) in ("", ":memory:") or str(path).startswith("sqlite:"):
        raise ValidationFailed.at("path", f"is {shown(path)}", f"name a file, as {example}")
    try:
        os.lstat(f"{path}{_BESIDE}")
    except ValueError:  # NUL, or half a surrogate pair
        raise ValidationFailed.at(
            "path", "contains characters that no file name can have", "name another file"
        ) from None
    except OSError as error:
        if error.errno == ENAMETOOLONG:
            raise ValidationFailed.at("path", "is too long for a file name", "name another file") from None
    return Path(os.path.realpath(path))


def identity_of(path: Path | str) -> tuple[int, int] | None:
    """Device and inode of a file, or None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
