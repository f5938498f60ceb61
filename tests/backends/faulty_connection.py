"""Connections to SQLite that call a test before each statement, and fail where it wants."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from routewright.backends.storage.sqlite.file import connect


class Watched:
    """A connection that calls ``before`` with each statement."""

    def __init__(self, connection: Any, before: Callable[[str], object]) -> None:
        self._connection, self._before = connection, before

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        self._before(sql)
        return self._connection.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Sequence[Any], /) -> Any:
        self._before(sql)
        return self._connection.executemany(sql, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Failing:
    """``connect`` of a storage whose ``at``-th statement from when it was set fails, ``times`` times."""

    def __init__(self, code: int = sqlite3.SQLITE_FULL) -> None:
        self.code = code
        self.at = 0
        """0: none fails."""
        self.times = 1
        self.only = ""
        """A statement that alone counts."""
        self.error: sqlite3.OperationalError | None = None
        """The last one that was raised."""

    def __call__(self, path: str) -> Any:
        return Watched(connect(path), self._count)

    def _count(self, sql: str) -> None:
        if not self.at or (self.only and sql != self.only):
            return
        self.at -= 1
        if self.at == 0:
            self.times -= 1
            self.at = 1 if self.times > 0 else 0
            self.error = sqlite3.OperationalError("as the test will have it")
            self.error.sqlite_errorcode = self.code
            raise self.error
