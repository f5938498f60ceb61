"""Is all of a store in PostgreSQL there, can it be read, and does it add up?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from itertools import chain, islice
from typing import Any

from psycopg import IsolationLevel

from routewright.backends.storage.tables.books.audit import LIVE_DIGESTS, SHOWN, Check, problems_of

from .connection import Address, Connection
from .schema import version_of

_MADE = re.compile(rb"(?m)^CREATE (?:OR REPLACE |UNIQUE |UNLOGGED )?(TABLE|INDEX|SEQUENCE|FUNCTION|TRIGGER) (\w+)")
_THERE = """
SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace
UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
UNION ALL SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
WHERE relnamespace = current_schema()::regnamespace
"""
_BODIES = """
SELECT trace.n, trace.id, body.trace, body.content
FROM (SELECT n, id, created_at FROM trace ORDER BY created_at DESC LIMIT 1000) AS trace LEFT JOIN body USING (n)
"""
_HOLDS = """
SELECT format('purse %L of %L has reserved %s, and its calls hold %s', name, account,
    coalesce(reserved, 0), coalesce(due, 0)) FROM purse FULL JOIN (
    SELECT account, name, sum(nanos) AS due FROM hold, unnest(purses) AS name GROUP BY account, name
) AS held USING (account, name) WHERE coalesce(reserved, 0) <> coalesce(due, 0)
UNION ALL SELECT format('party %L has %s slots in use, and its calls hold %s', name,
    coalesce(slots, 0), coalesce(due, 0)) FROM party FULL JOIN (
    SELECT name, sum(slots) AS due FROM hold, unnest(parties) AS name GROUP BY name
) AS held USING (name) WHERE coalesce(slots, 0) <> coalesce(due, 0)
"""
"""What calls hold is what the sums say."""


def check(address: Address) -> tuple[Check, list[str]]:
    """Read a store as it is at one moment, and say what is wrong with it, while others use it. Of the traces the newest
    1,000 are read. Returns the digests of its live keys, too. Raises kinds of ``StorageUnavailable``."""
    with address.translated(), address.connect() as connection:
        connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
        with connection.transaction():
            version = version_of(address, connection)
            if missing := [*_missing(connection)]:
                return Check(version, 0, 0, missing), []

            def rows(sql: str) -> Iterator[Any]:
                with connection.cursor("audit") as cursor:
                    cursor.itersize = 5_000  # rows, of which there may be millions
                    yield from cursor.execute(sql.encode())

            digests = [digest for (digest,) in rows(LIVE_DIGESTS)]
            ((traces, size),) = rows("SELECT (SELECT count(*) FROM trace), pg_database_size(current_database())")
            holds = [said for (said,) in rows(_HOLDS)]
            return Check(version, traces, size, [*islice(chain(holds, problems_of(rows, _BODIES, {})), SHOWN)]), digests


def _missing(connection: Connection) -> Iterator[str]:
    there = {name for (name,) in connection.execute(_THERE).fetchall()}
    for script in ("tables.sql", "accounts.sql", "cache.sql"):
        for kind, name in _MADE.findall(files(__package__).joinpath(script).read_bytes()):
            if name.decode() not in there:
                yield f"the {kind.decode().lower()} {name.decode()} is missing"
