"""The tables and functions of a store in PostgreSQL: made, upgraded and checked.

A program works with stores from the version at which its functions came to the newest that still lets it in, so
that machines of two versions may share one while they are replaced.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from itertools import chain, islice
from math import inf
from typing import Any, TypeVar

from psycopg import IsolationLevel
from psycopg.sql import SQL, Identifier

from routewright.backends.storage.tables.books.audit import LIVE_DIGESTS, SHOWN, Check, problems_of
from routewright.errors import StorageCorrupt, StorageVersion

from .connection import CONNECT_S, Address, Connection

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


MIGRATIONS: tuple[str, ...] = ()
"""Each brings the tables of a store from the version of its place, counted from 1, to the next. ``tables.sql`` is what
they come to. What was published is never changed, only followed, and leaves programs from ``OLDEST`` on what they
need: new columns have defaults, and functions that change what they take are new ones."""
VERSION = len(MIGRATIONS) + 1
"""What this program makes."""
OLDEST = 1
"""The oldest program that may use what this one makes, and the oldest store that this program may use."""
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(n, 25)) FROM unnest('{routewright store,days}'::text[]) AS n"
"""The second keeps partitions from being made meanwhile, which changes what the catalogue says of rights, too."""
_FUNCTIONS = "accounts.sql", "cache.sql"
_KNOWN = "SELECT to_regclass('store') IS NOT NULL"
_OTHERS = """
SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'f')
AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype = 'e') ORDER BY relname LIMIT 1
"""
_HOME = "SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)"
"""Functions that act with the rights of their owner look nowhere else."""
_GRANTED = """
SELECT DISTINCT pg_get_userbyid(grantee) FROM pg_class, aclexplode(relacl)
WHERE oid = to_regclass('store') AND grantee NOT IN (relowner, 0)
"""
T = TypeVar("T")


class Store(Address):
    """The address of a store, which refuses those of versions that this program does not know."""

    def connect(self) -> Connection:
        """As ``Address`` says. Raises ``StorageVersion``, too."""
        connection = super().connect()
        connection.until = time.monotonic() + CONNECT_S  # a pooler connects without its server
        try:
            with self.translated():
                version = version_of(self, connection)
            if version < OLDEST:
                raise StorageVersion(f"{self}: the store is of version {version}: run 'routewright store upgrade'")
        except BaseException:
            connection.close()
            raise
        connection.until = inf
        return connection


def version_of(address: Address, connection: Connection) -> int:
    """The version of a store. Raises ``StorageVersion`` if it needs a newer program, or is no whole store yet."""
    for version, oldest, _ in connection.execute("SELECT version, oldest, octet_length(id) FROM store").fetchall():
        if oldest > VERSION:
            raise StorageVersion(f"{address}: the store is of version {version}, which needs a newer routewright")
        return int(version)
    raise StorageVersion(f"{address}: a store is being copied to it: run the same 'routewright store copy' to its end")


def create(address: Address, grant_to: str | None = None) -> bool:
    """Make a store, unless there is one. ``grant_to``: a role that may use it, and change no table. Raises
    ``StorageCorrupt`` for a schema with tables of something else, and kinds of ``StorageUnavailable``."""

    def make(connection: Connection) -> bool:
        created = make_tables(address, connection)
        if created:
            finish(connection)
        else:
            version_of(address, connection)
        if grant_to is not None:
            _grant(connection, grant_to)
        return created

    return alone(address, make)


def make_tables(address: Address, connection: Connection) -> bool:
    """Make the tables, in which nothing is kept yet, unless they are there."""
    if connection.execute(_KNOWN).fetchone() == (True,):
        return False
    for (other,) in connection.execute(_OTHERS).fetchall():
        raise StorageCorrupt(f"{address}: there are tables of something else, as {other!r}: name an empty database")
    _run(connection, "tables.sql", *_FUNCTIONS)
    return True


def finish(connection: Connection) -> None:
    """Let programs in."""
    row = VERSION, OLDEST, os.urandom(16)
    connection.execute("INSERT INTO store (version, oldest, id) VALUES (%s, %s, %s)", row)


def upgrade(address: Address) -> bool:
    """Bring a store to the present version, while programs of the version before use it. False: it was of that. Raises
    ``StorageVersion``, and kinds of ``StorageUnavailable``."""

    def bring(connection: Connection) -> bool:
        version = version_of(address, connection)
        if version >= VERSION:
            return False
        for migration in MIGRATIONS[version - 1 :]:
            connection.execute(migration.encode())
        _run(connection, *_FUNCTIONS)
        connection.execute("UPDATE store SET version = %s, oldest = %s", (VERSION, OLDEST))
        for (role,) in connection.execute(_GRANTED).fetchall():
            _grant(connection, role)  # what is new, too
        return True

    return alone(address, bring)


def alone(address: Address, work: Callable[[Connection], T]) -> T:
    """Do some work in a transaction, while nobody else creates or upgrades."""
    with address.translated(), address.connect() as connection, connection.transaction():
        connection.execute(_LOCK)
        return work(connection)


def _run(connection: Connection, *scripts: str) -> None:
    connection.execute(_HOME)
    for name in scripts:
        connection.execute(files(__package__).joinpath(name).read_bytes())


def _grant(connection: Connection, role: str) -> None:
    """Let a role read and write rows, and call functions: make_days and drop_day act with the rights of the owner."""
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
