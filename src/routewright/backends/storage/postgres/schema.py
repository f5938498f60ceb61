"""Creates, upgrades and checks a store in PostgreSQL.

A program works with older and newer stores within a range of versions, so that machines with two versions can share a
store during an update.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from itertools import chain, islice
from math import inf
from typing import Any

from psycopg import IsolationLevel
from psycopg.sql import SQL, Identifier

from routewright.backends.storage.tables.check import LIVE_DIGESTS, SHOWN, Check, problems_of
from routewright.errors import StorageCorrupt, StorageVersion

from .connections import CONNECT_S, Address, Connection

_CREATE = re.compile(rb"(?m)^CREATE (?:OR REPLACE |UNIQUE |UNLOGGED )?(TABLE|INDEX|SEQUENCE|FUNCTION|TRIGGER) (\w+)")
_OBJECTS = """
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
"""Finds sums that differ from the holds of calls."""


def check(address: Address) -> tuple[Check, list[str]]:
    """Check a store in a consistent view, while others use it. Only the newest 1,000 traces are read. Also returns the
    digests of its live keys. Raises kinds of ``StorageUnavailable``."""
    with address.translate(), address.connect() as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        with connection.transaction():
            version = version_of(address, connection)
            if missing := [*_find_missing(connection, version)]:
                return Check(version, 0, 0, missing), []

            def rows(sql: str) -> Iterator[Any]:
                with connection.cursor("audit") as cursor:
                    cursor.itersize = 5_000  # rows, of which there may be millions
                    yield from cursor.execute(sql.encode())

            digests = [digest for (digest,) in rows(LIVE_DIGESTS)]
            ((traces, size),) = rows("SELECT (SELECT count(*) FROM trace), pg_database_size(current_database())")
            holds = [problem for (problem,) in rows(_HOLDS)]
            return Check(version, traces, size, [*islice(chain(holds, problems_of(rows, _BODIES, {})), SHOWN)]), digests


def _find_missing(connection: Connection, version: int) -> Iterator[str]:
    """Yield the missing objects of a store. Functions are compared only in a store of this version."""
    names = {name for (name,) in connection.execute(_OBJECTS).fetchall()}
    for script in ("tables.sql", *(_FUNCTIONS if version == VERSION else ())):
        for kind, name in _CREATE.findall(files(__package__).joinpath(script).read_bytes()):
            if name.decode() not in names:
                yield f"the {kind.decode().lower()} {name.decode()} is missing"


_LIMITS = """
ALTER TABLE account ADD COLUMN daily bigint, ADD COLUMN weekly bigint, ADD COLUMN tag_limits jsonb;
ALTER TABLE key ADD COLUMN daily bigint, ADD COLUMN weekly bigint;
"""
MIGRATIONS: tuple[str, ...] = ("-- only functions changed", _LIMITS)
"""Migration n upgrades the tables from version n (from 1) to the next; ``tables.sql`` has the result. Published
migrations never change. They keep programs from ``OLDEST`` on working: new columns have defaults, and functions with
other parameters get new names. What only those of an older version need stays, for calls during the upgrade."""
VERSION = len(MIGRATIONS) + 1
"""Version of stores that this program creates."""
OLDEST = 1
"""Oldest program for stores of this version, and oldest store for this program."""
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(n, 25)) FROM unnest('{routewright store,days}'::text[]) AS n"
"""The second lock prevents new partitions, which also change privileges in the catalogue."""
_FUNCTIONS = "accounts.sql", "cache.sql"
_EXISTS = "SELECT to_regclass('store') IS NOT NULL"
_OTHERS = """
SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'f')
AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype = 'e') ORDER BY relname LIMIT 1
"""
_HOME = "SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)"
"""The search path of functions with their owner's privileges."""
_GRANTED = """
SELECT DISTINCT pg_get_userbyid(grantee) FROM pg_class, aclexplode(relacl)
WHERE oid = to_regclass('store') AND grantee NOT IN (relowner, 0)
"""


class Store(Address):
    """The address of a store. Refuses stores of unsupported versions."""

    def connect(self) -> Connection:
        """As ``Address`` says. Raises ``StorageVersion``, too."""
        connection = super().connect()
        connection.until = time.monotonic() + CONNECT_S  # a pooler connects without its server
        try:
            with self.translate():
                version = version_of(self, connection)
            if version < OLDEST:
                raise StorageVersion(f"{self}: the store is of version {version}; run 'routewright store upgrade'")
        except BaseException:
            connection.close()
            raise
        connection.until = inf
        return connection


def version_of(address: Address, connection: Connection) -> int:
    """The version of a store. Raises ``StorageVersion`` if it needs a newer program, or is an unfinished copy."""
    for version, oldest, _ in connection.execute("SELECT version, oldest, octet_length(id) FROM store").fetchall():
        if oldest > VERSION:
            raise StorageVersion(f"{address}: the store is of version {version}, which needs a newer routewright")
        return int(version)
    raise StorageVersion(f"{address}: the copy is unfinished; run the same 'routewright store copy' again")


def create(address: Address, grant_to: str | None = None) -> bool:
    """Create a store, unless there is one. ``grant_to``: a role that may use it, but change no table. Raises
    ``StorageCorrupt`` for a schema with other tables, and kinds of ``StorageUnavailable``."""
    with alone(address) as connection:
        created = make_tables(address, connection)
        if created:
            finish(connection)
        else:
            version_of(address, connection)
        if grant_to is not None:
            _grant(connection, grant_to)
        return created


def make_tables(address: Address, connection: Connection) -> bool:
    """Create empty tables, unless they exist."""
    if connection.execute(_EXISTS).fetchone() == (True,):
        return False
    for (other,) in connection.execute(_OTHERS).fetchall():
        raise StorageCorrupt(f"{address}: there are other tables, such as {other!r}; name an empty database")
    _run(connection, "tables.sql", *_FUNCTIONS)
    return True


def finish(connection: Connection) -> None:
    """Allow programs to use it."""
    row = VERSION, OLDEST, os.urandom(16)
    connection.execute("INSERT INTO store (version, oldest, id) VALUES (%s, %s, %s)", row)


def upgrade(address: Address) -> bool:
    """Upgrade a store to the present version, while older programs use it. False: nothing to do. Raises
    ``StorageVersion``, and kinds of ``StorageUnavailable``."""
    with alone(address) as connection:
        version = version_of(address, connection)
        if version >= VERSION:
            return False
        for migration in MIGRATIONS[version - 1 :]:
            connection.execute(migration.encode())
        _run(connection, *_FUNCTIONS)
        connection.execute("UPDATE store SET version = %s, oldest = %s", (VERSION, OLDEST))
        for (role,) in connection.execute(_GRANTED).fetchall():
            _grant(connection, role)  # for new tables and functions
        return True


@contextmanager
def alone(address: Address) -> Iterator[Connection]:
    """Begin a transaction that excludes other creations and upgrades."""
    with address.translate(), address.connect() as connection, connection.transaction():
        connection.execute(_LOCK)
        yield connection


def _run(connection: Connection, *scripts: str) -> None:
    connection.execute(_HOME)
    for name in scripts:
        connection.execute(files(__package__).joinpath(name).read_bytes())


def _grant(connection: Connection, role: str) -> None:
    """Let a role read and write rows and call functions; make_days and drop_day have their owner's privileges."""
    name = Identifier(role)
    for rights in (
        "GRANT USAGE ON SCHEMA {schema} TO {role}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
        "REVOKE INSERT, UPDATE, DELETE ON store FROM {role}",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role}",
    ):
        ((schema,),) = connection.execute("SELECT current_schema()").fetchall()
        connection.execute(SQL(rights).format(schema=Identifier(schema), role=name))
