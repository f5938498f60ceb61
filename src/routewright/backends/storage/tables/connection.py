"""What the statements of ``tables/`` need of a connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Cursor(Protocol):
    """The rows of a statement."""

    def fetchone(self) -> Any:
        """One row; None: there is none left."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows."""
        ...


class Statements(Protocol):
    """Runs statements in the common dialect of SQLite and PostgreSQL, with question marks for values."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        """Run one."""
        ...

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]], /) -> Any:
        """Run one for each row of parameters."""
        ...
