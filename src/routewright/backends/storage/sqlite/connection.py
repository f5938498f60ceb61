"""One connection to a file of SQLite's: what is needed of it, and how one is made."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from errno import ENAMETOOLONG
from pathlib import Path
from typing import Any, Protocol

from routewright._core.request.problems import shown
from routewright.backends.storage.tables.connection import Statements
from routewright.errors import ValidationFailed

_BESIDE = "-journal"
"""The longest of what SQLite adds to the name of a file."""


class Connection(Statements, Protocol):
    """What is needed of a ``sqlite3.Connection`` that commits by itself (``isolation_level=None``). Its errors are
    ``sqlite3.Error`` with their ``sqlite_errorcode``."""

    def create_function(self, name: str, narg: int, func: Callable[..., Any], /) -> None:
        """Let statements call a function."""
        ...

    def interrupt(self) -> None:
        """Stop what it does, from another thread."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


Connect = Callable[[str], Connection]


def connect(path: str) -> sqlite3.Connection:
    """A connection of Python's own SQLite to a file that is there. Threads take turns with it."""
    return sqlite3.connect(
        f"{Path(path).absolute().as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None, check_same_thread=False,
        cached_statements=256, factory=_Dropped,
    )  # fmt: skip


def pragma(connection: Statements, name: str) -> int:
    """A number that SQLite keeps of a file."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def make_file(path: Path) -> None:
    """Make an empty file, where there is none: its owner's alone, since traces may hold prompts, and so is what SQLite
    puts beside it."""
    with suppress(OSError):  # it is there; or it cannot be made, which SQLite then says
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


class _Dropped(sqlite3.Connection):
    """A connection that may be dropped, as its storage may: it is closed then. Python 3.13 would warn of it."""

    def __del__(self) -> None:
        with suppress(sqlite3.Error):  # it was never open
            self.close()


def file_of(path: object, example: str = "traces.db") -> Path:
    """Where a file is: SQLite's log stands beside it, not beside a link to it. Raises ``ValidationFailed`` for what
    names none."""
    if not isinstance(path, (str, os.PathLike)) or str(path) in ("", ":memory:") or str(path).startswith("sqlite:"):
        raise ValidationFailed.at("path", f"is {shown(path)}", f"name a file, as {example}")
    try:
        os.lstat(f"{path}{_BESIDE}")
    except ValueError:  # an end of C's strings, or half a character
        raise ValidationFailed.at("path", "holds what no name of a file can hold", "name another file") from None
    except OSError as error:
        if error.errno == ENAMETOOLONG:
            raise ValidationFailed.at("path", "is too long for a name of a file", "name another file") from None
    return Path(os.path.realpath(path))


def identity_of(path: Path | str) -> tuple[int, int] | None:
    """What tells a file from another of its name; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
