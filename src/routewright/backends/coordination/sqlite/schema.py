"""The tables that the processes of a machine share, and how an invalid file is handled.

Nothing in it has to last: one that is damaged, or of another version and no longer in use, is made anew. One that is
somebody else's is never touched.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from routewright.backends.storage.sqlite.connection import Connection, connect, pragma
from routewright.errors import StorageCorrupt, StorageUnavailable, StorageVersion
from routewright.wire import WINDOW_S

APPLICATION_ID = 0x72776C6D
"""``rwlm``: says of a file that it is one of these."""
VERSION = 1
TABLES = (
    """CREATE TABLE party (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        requests INTEGER NOT NULL,  -- sums of what counts
        tokens INTEGER NOT NULL,
        slots INTEGER NOT NULL,
        first INTEGER NOT NULL,     -- number of the oldest entry that counts
        kept INTEGER NOT NULL,      -- number of the oldest entry that is still there
        next INTEGER NOT NULL,      -- number of the next entry
        oldest REAL NOT NULL,       -- when the first was taken
        newest REAL NOT NULL        -- when something was last taken
    )""",
    """CREATE TABLE entry (
        party INTEGER NOT NULL,
        n INTEGER NOT NULL,
        at REAL NOT NULL,
        requests INTEGER NOT NULL,
        tokens INTEGER NOT NULL,
        step INTEGER,               -- the step that took tokens, until they are corrected
        PRIMARY KEY (party, n)
    ) WITHOUT ROWID""",
    "CREATE INDEX entry_by_step ON entry (step) WHERE step IS NOT NULL",
    """CREATE TABLE slot (
        step INTEGER NOT NULL,
        party INTEGER NOT NULL,
        owner TEXT NOT NULL,
        amount INTEGER NOT NULL,
        PRIMARY KEY (step, party)
    ) WITHOUT ROWID""",
    "CREATE TABLE owner (name TEXT PRIMARY KEY, until REAL NOT NULL, lease_s REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE notice (n INTEGER PRIMARY KEY, at REAL NOT NULL, topic TEXT NOT NULL, said TEXT NOT NULL)",
)
SETTINGS = ("page_size = 1024", "synchronous = OFF", "wal_autocheckpoint = 0", "cache_size = -2000")
"""Of a new file, small pages: a step changes a few rows in each of several, and writes each of those pages whole."""
_AHEAD = """SELECT EXISTS (SELECT 1 FROM party WHERE newest > ?1)
OR EXISTS (SELECT 1 FROM owner WHERE until > ?1 + lease_s)"""
_HEAD_BYTES = 100


class Outdated(Exception):
    """The file is of another version, and nobody uses it."""


def prepare(now: Callable[[], float], connection: Connection, path: Path) -> None:
    """Settle a connection, and make the tables in a new file. Raises ``StorageCorrupt`` for one of somebody else's,
    ``StorageVersion`` for one that processes of another version use, and ``Outdated`` for one they have left."""
    for setting in SETTINGS:
        connection.execute(f"PRAGMA {setting}").fetchall()
    if _is_new(connection):
        _create(connection, path)
    if pragma(connection, "application_id") != APPLICATION_ID:
        raise StorageCorrupt(f"{path} is a database of something else: limits need a file of their own")
    version = pragma(connection, "user_version")
    if version != VERSION and _is_in_use(path):
        raise StorageVersion(
            f"{path} is in use by another version of routewright ({version}, this is {VERSION}): it is made anew a "
            "minute after the last of its processes has ended"
        )
    if version != VERSION:
        raise Outdated
    if connection.execute(_AHEAD, (now(),)).fetchone()[0]:
        _pull_back(connection, now)


def is_ours(path: Path) -> bool:
    """Whether a file that cannot be read as one of these was one: by its number, or by a head of zeros, which is what a
    power cut may leave of it."""
    with suppress(sqlite3.Error), closing(connect(str(path))) as connection:
        return pragma(connection, "application_id") == APPLICATION_ID
    try:
        with open(path, "rb") as file:  # no database: nobody's locks are lost by this
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return not any(head) or head[68:72] == APPLICATION_ID.to_bytes(4, "big")


def is_whole(path: Path) -> bool:
    """Whether a file has all of our tables, as we make them."""
    with suppress(sqlite3.Error), closing(connect(str(path))) as connection:
        found = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master").fetchall()}
        return found.issuperset(TABLES)
    return False


def remove(path: Path) -> None:
    """Remove a file, its log first: beside a new file an old log would be taken for that one's."""
    for name in (f"{path}-wal", f"{path}-shm", path):
        with suppress(FileNotFoundError):
            os.unlink(name)


def _is_new(connection: Connection) -> bool:
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    ours = pragma(connection, "application_id") in (0, APPLICATION_ID)  # made by another process just now
    return ours and not tables and not pragma(connection, "user_version")


def _create(connection: Connection, path: Path) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")  # before the log is there: it says whose a wreck is
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StorageUnavailable(f"{path}: its file system cannot share memory between processes: take a local disk")
    with _transaction(connection):
        if _is_new(connection):  # else another process was faster
            for table in TABLES:
                connection.execute(table)
            connection.execute(f"PRAGMA user_version = {VERSION}")


def _pull_back(connection: Connection, now: Callable[[], float]) -> None:
    """The machine has started again, and its clock with it: what was taken before seems to lie ahead. It is longer ago
    than that clock shows, and nobody knows how much. As if it were taken now it is never let go too early, and in a
    minute it is; whoever held slots has a lease left to be heard of."""
    with _transaction(connection):
        present = now()  # asked here: what other processes took just now does not lie ahead
        connection.execute("UPDATE entry SET at = ?1 WHERE at > ?1", (present,))
        sql = "UPDATE party SET oldest = min(oldest, ?1), newest = min(newest, ?1) WHERE newest > ?1"
        connection.execute(sql, (present,))
        connection.execute("UPDATE owner SET until = ?1 + lease_s WHERE until > ?1 + lease_s", (present,))


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite rolls back by itself where the disk is full
            connection.execute("ROLLBACK")
        raise


def _is_in_use(path: Path) -> bool:
    """Whether somebody wrote to it within a window. Its log says so; an empty one has just been made by who asks."""
    try:
        log = os.stat(f"{path}-wal")
    except OSError:
        return False
    return log.st_size > 0 and time.time() - log.st_mtime < WINDOW_S
