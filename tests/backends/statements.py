"""Records the SQL statements of a storage, and checks that each one is limited to an account."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Any

from routewright.backends.storage.sqlite import upkeep
from routewright.backends.storage.sqlite.schema import MIGRATIONS, TABLES
from routewright.backends.storage.tables import check, ledger, read, traces, webhooks, write
from routewright.backends.storage.tables import upkeep as sweep
from routewright.backends.storage.tables.rollup import _GROUPED, _LAST

OF_ACCOUNTS = (
    *("trace", "tag", "feedback", "usage", "cache_use", "fallback_use", "latency"),
    *("account", "key", "purse", "ledger", "claim", "kept", "uncounted", "event", "told", "endpoint"),
)
"""Tables whose rows belong to accounts."""
CHECKED = {sql for sql in vars(check).values() if isinstance(sql, str) and sql.startswith("SELECT")}
SWEPT = {value for value in vars(sweep).values() if isinstance(value, str)}
MADE = {statement for script in (TABLES, *MIGRATIONS) for statement in script.split(";\n")}
"""What makes a store's tables, and brings an older one's into them."""
NAMED = {
    *MADE,
    *("SELECT count(*) FROM trace", upkeep._BODIES, *CHECKED, *SWEPT),
    *(_LAST, _GROUPED, "DELETE FROM uncounted WHERE n < ?", traces._LAST, ledger._LAST_RESULT),
    *(
        read.ACCOUNTS,
        read.BY_DIGEST,
        write.HOLDER,
        webhooks.DUE,
        webhooks.NEXT,
        webhooks.ANY,
        webhooks.ENDPOINT,
        webhooks.TURN,
        webhooks.SET_TURN,
        webhooks.ENDPOINTS,
        webhooks.EVENT,
    ),
}
"""What looks at all accounts, and says so: the list of accounts, the check of a file, the sweep, and
the look-up of a key by its digest."""

_TABLE = re.compile(rf"\b(?:FROM|JOIN|UPDATE)\s+(?:{'|'.join(OF_ACCOUNTS)})\b(?!\s+SET\b.*\bON CONFLICT\b)")
_ACCOUNT = re.compile(r"\baccount = (?:\?|[a-z]+\.account\b)")


class Statements:
    """``connect`` of a ``SqliteStorage`` that notes every statement."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, path: str) -> sqlite3.Connection:
        connection: Any = sqlite3.connect(
            path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256, factory=_Noting
        )
        connection.seen = self.seen
        noted: sqlite3.Connection = connection
        return noted

    def boundless(self) -> list[str]:
        """Statements that name a table of the accounts more often than an account."""
        return sorted(sql for sql in self.seen - NAMED if len(_TABLE.findall(sql)) > len(_ACCOUNT.findall(sql)))


class _Noting(sqlite3.Connection):
    seen: set[str] = set()  # noqa: RUF012  # each connection gets that of its storage

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self.seen.add(sql)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Sequence[Any], /) -> sqlite3.Cursor:  # type: ignore[override]
        self.seen.add(sql)
        return super().executemany(sql, parameters)
