"""``SqliteCache``: cached answers in one file, shared by all processes of one machine."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from msgspec import msgpack

from routewright._core.cache.request_key import is_tagged
from routewright._runtime.fork import Guard, quiet_at_fork
from routewright._runtime.loop import Threads
from routewright.backends.clock import SystemClock
from routewright.backends.storage.sqlite.connections import retry_transient
from routewright.backends.storage.sqlite.file import check_store, connect, file_of, identity_of, make_file, pragma
from routewright.backends.storage.sqlite.sync import fault_of
from routewright.errors import StorageCorrupt, ValidationFailed
from routewright.protocols import BaseCache, Clock, Vector
from routewright.wire import CacheEntry, CacheMatch, CacheSelection, CacheStats, Observation
from routewright.wire.problems import check_bounds

from .memory import MAX_BYTES, MAX_ENTRIES, OBSERVATIONS, conditions_of, entry_of, row_of
from .search import AT_ONCE, Mirrors

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BUSY_S = 1.0
"""How long to wait for another writing process. A failed write is only a later miss."""
APPLICATION_ID = 0x52774361  # "RwCa"
VERSION = 3
TABLES = (
    """CREATE TABLE entries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, account TEXT NOT NULL, environment TEXT NOT NULL,
    partition BLOB NOT NULL, id TEXT NOT NULL, namespace TEXT, created_at REAL NOT NULL, expires_at REAL NOT NULL,
    size INTEGER NOT NULL, cost_nanos INTEGER NOT NULL, metadata BLOB, vector BLOB, body BLOB NOT NULL)""",
    "CREATE INDEX by_partition ON entries (partition, seq) WHERE vector IS NOT NULL",
    "CREATE INDEX by_account ON entries (account, seq)",
    "CREATE INDEX by_end ON entries (expires_at)",
    "CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL)",
    "INSERT INTO totals VALUES (0, 0)",
    """CREATE TRIGGER added AFTER INSERT ON entries BEGIN
    UPDATE totals SET entries = entries + 1, bytes = bytes + new.size; END""",
    """CREATE TRIGGER gone AFTER DELETE ON entries BEGIN
    UPDATE totals SET entries = entries - 1, bytes = bytes - old.size; END""",
    "CREATE TABLE learned (seq INTEGER PRIMARY KEY, space TEXT NOT NULL, body BLOB NOT NULL)",
    "CREATE INDEX by_space ON learned (space, seq)",
)
_observation = msgpack.Decoder(Observation)


class _Connection:
    """A connection with its own thread. It is opened at first use, and closed around a fork."""

    def __init__(self, path: Path, clock: Clock, kind: str) -> None:
        self._path = path
        self._clock = clock
        self._threads = Threads(f"{kind} of a cache", 1)
        self._guard = Guard()
        self._sqlite: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        quiet_at_fork(self)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work in a transaction. Raises kinds of ``StorageUnavailable``."""
        return await self._do(self._run, work)

    async def rows(self, sql: str, *values: object) -> list[Any]:
        """Rows of a statement."""
        return await self.run(lambda connection: connection.execute(sql, values).fetchall())

    async def aclose(self) -> None:
        """Close it until it is used again."""
        await self._do(self._close)

    async def _do(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return function(*arguments) if self._clock.virtual else await self._threads.run(function, *arguments)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._guard.lock:
            try:
                if self._sqlite is None or self._identity != identity_of(self._path):  # the file was deleted
                    self._close()
                    check_store(self._path)
                    make_file(self._path)
                    self._identity = identity_of(self._path)
                    self._sqlite = connect(str(self._path))
                    _prepare(self._sqlite, self._path)
                result = work(self._sqlite)
                self._sqlite.commit()
                return result
            except BaseException as error:
                self._close()
                if not isinstance(error, sqlite3.Error):
                    raise
                fault = fault_of(error, self._path)
                if isinstance(fault, StorageCorrupt):
                    text = f"{self._path} is damaged or not a database ({error}); if it is your cache file, delete it"
                    fault = StorageCorrupt(f"{text} (it only has cached answers)")
                raise fault from error

    def _close(self) -> None:
        with self._guard.lock:
            connection, self._sqlite = self._sqlite, None
            if connection is not None:
                connection.close()

    def quiet(self) -> None:
        """Close it, and keep it closed until ``resume``."""
        self._guard.lock.acquire()
        self._close()

    def resume(self) -> None:
        """Allow it to be opened again."""
        with suppress(RuntimeError):  # a forked child has a new lock
            self._guard.lock.release()


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
    has_tables = connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # first, since others may create them now
    if has_tables and pragma(connection, "application_id") != APPLICATION_ID:
        raise StorageCorrupt(f"{path} belongs to another program: name another file for the cache")
    # SQLite does not wait here
    retry_transient(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchall(), BUSY_S)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON").fetchall()
    if pragma(connection, "user_version") == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    if pragma(connection, "user_version") != VERSION:  # no other process was faster
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        drops = [f"DROP TABLE {name}" for (name,) in connection.execute(tables).fetchall()]
        marks = f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {VERSION}"
        for statement in (*drops, *TABLES, *marks):
            connection.execute(statement)
    connection.commit()


class SqliteCache(BaseCache):
    """Caches answers in a file, which is created at first use.

        router = Router(cache=SqliteCache("cache.db", max_bytes=1_000_000_000))

    Several processes may share a file on a local disk. A full cache evicts the entries that expire first. Removed
    entries are erased from the disk. If the file is damaged, every use raises: delete it. Everything runs in worker
    threads; with the Router's ``FakeClock`` as ``clock``, in the caller's.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = MAX_BYTES,
        max_entries: int = MAX_ENTRIES,
        clock: Clock | None = None,
    ) -> None:
        check_bounds("SqliteCache", max_bytes=max_bytes, max_entries=max_entries)
        self.path = file_of(path, "cache.db")
        if not self.path.parent.is_dir():
            raise ValidationFailed.at("path", f"is {self.path}, but there is no folder {self.path.parent}", "create it")
        self._bounds = max_bytes, max_entries
        self._clock = clock or SystemClock()
        self._gets = _Connection(self.path, self._clock, "gets")
        self._searches = _Connection(self.path, self._clock, "searches")
        self._writes = _Connection(self.path, self._clock, "writes")
        self._mirrors = Mirrors()
        self._mirrored: sqlite3.Connection | None = None
        """Source of the mirrors. Another connection may have a new file."""

    def __repr__(self) -> str:
        return f"SqliteCache({str(self.path)!r})"

    @property
    def is_starting(self) -> bool:
        """True while a partition is read into memory."""
        return self._mirrors.is_starting

    async def get(self, key: bytes, now: float) -> CacheEntry | None:
        """The entry of exactly this request (``protocols.Cache``)."""
        rows = await self._gets.rows("SELECT body FROM entries WHERE key = ? AND expires_at > ?", key, now)
        return entry_of(rows[0][0]) if rows else None

    async def nearest(self, partition: bytes, vector: Vector, now: float, limit: int) -> Sequence[CacheMatch]:
        """The most similar entries of a partition (``protocols.Cache``)."""
        return await self._searches.run(partial(self._nearest, partition, vector, now, limit))

    def _nearest(
        self, partition: bytes, vector: Vector, now: float, limit: int, connection: sqlite3.Connection
    ) -> list[CacheMatch]:
        if connection is not self._mirrored:
            self._mirrors = Mirrors()
            self._mirrored = connection

        def read(after: int) -> tuple[int, Iterable[tuple[int, bytes]]]:
            (total,) = connection.execute("SELECT entries FROM totals").fetchone()
            sql = "SELECT seq, vector FROM entries WHERE partition = ? AND vector IS NOT NULL AND seq > ? ORDER BY seq"
            return total, connection.execute(sql, (partition, after))

        def find_entries(numbers: Sequence[int]) -> dict[int, CacheEntry]:
            placeholders = ", ".join("?" * len(numbers))
            sql = f"SELECT seq, body FROM entries WHERE seq IN ({placeholders}) AND partition = ? AND expires_at > ?"
            rows = connection.execute(sql, (*numbers, partition, now))
            return {seq: entry for seq, body in rows if (entry := entry_of(body))}

        return self._mirrors.nearest(partition, vector, limit, read, find_entries)

    async def put(self, entry: CacheEntry) -> None:
        """Keep an answer (``protocols.Cache``)."""
        await self._writes.run(partial(self._put, entry))

    def _put(self, entry: CacheEntry, to: sqlite3.Connection) -> None:
        size, row = row_of(entry)
        now = entry.created_at
        over = "SELECT seq FROM entries WHERE expires_at <= ? LIMIT ?"
        soonest = "SELECT seq FROM entries WHERE seq <> ? ORDER BY expires_at, seq LIMIT 1"
        to.execute("BEGIN IMMEDIATE")
        to.execute("DELETE FROM entries WHERE key = ?", (entry.key,))
        to.execute(f"DELETE FROM entries WHERE seq IN ({over})", (now, AT_ONCE))
        if size > self._bounds[0] or entry.expires_at <= now:
            return
        new = to.execute(f"INSERT INTO entries VALUES (NULL{', ?' * len(row)})", row).lastrowid
        while to.execute("SELECT 1 FROM totals WHERE bytes > ? OR entries > ?", self._bounds).fetchone():
            to.execute(f"DELETE FROM entries WHERE seq = ({soonest})", (new,))

    async def remove(self, which: CacheSelection) -> int:
        """Remove entries, and return how many (``protocols.Cache``)."""
        conditions = conditions_of(which)
        filters = " AND ".join(f"{condition} ?" for condition in conditions)
        sql = f"SELECT seq, expires_at, metadata FROM entries WHERE {filters} AND seq > ? ORDER BY seq LIMIT ?"
        now = self._clock.time()
        removed = last = 0
        tag = which.metadata

        def remove_some(to: sqlite3.Connection) -> int:
            nonlocal removed, last
            to.execute("BEGIN IMMEDIATE")
            rows = to.execute(sql, (*conditions.values(), last, AT_ONCE)).fetchall()
            selected = [row for row in rows if tag is None or is_tagged(row[2], tag)]
            to.executemany("DELETE FROM entries WHERE seq = ?", [row[:1] for row in selected])
            removed += sum(row[1] > now for row in selected)
            last = rows[-1][0] if rows else last
            return len(rows)

        while await self._writes.run(remove_some) == AT_ONCE:
            pass
        await self._writes.rows("PRAGMA wal_checkpoint(TRUNCATE)")  # erases the text from the disk
        return removed

    async def stats(self, account: str | None, now: float) -> CacheStats:
        """Count the entries of an account, or of all (``protocols.Cache``)."""
        sql = """SELECT count(*), coalesce(sum(size), 0), count(DISTINCT partition), min(created_at),
            coalesce(sum(cost_nanos), 0) FROM entries WHERE expires_at > ? AND account = coalesce(?, account)"""
        (row,) = await self._searches.rows(sql, now, account)
        return CacheStats(**dict(zip(CacheStats.__struct_fields__, row, strict=True)))

    async def learned(self, space: str, new: Sequence[Observation], after: int) -> tuple[Sequence[Observation], int]:
        """Add observations; return those that others added since ``after``, and their end (``protocols.Cache``)."""

        def exchange(to: sqlite3.Connection) -> tuple[list[Observation], int]:
            to.execute("BEGIN IMMEDIATE")
            end = "SELECT coalesce(max(seq), 0) FROM learned"
            since = after if after <= to.execute(end).fetchone()[0] else 0  # else it is a new file
            rows = to.execute("SELECT body FROM learned WHERE space = ? AND seq > ? ORDER BY seq", (space, since))
            others = [_observation.decode(body) for (body,) in rows]
            mine = [(space, msgpack.encode(observation)) for observation in new]
            to.executemany("INSERT INTO learned (space, body) VALUES (?, ?)", mine)
            old = "SELECT seq FROM learned WHERE space = ? ORDER BY seq DESC LIMIT -1 OFFSET ?"
            to.execute(f"DELETE FROM learned WHERE seq IN ({old})", (space, OBSERVATIONS))
            return others, to.execute(end).fetchone()[0]

        return await self._writes.run(exchange)

    async def aclose(self) -> None:
        """Close the file. The next use opens it again."""
        for connection in (self._gets, self._searches, self._writes):
            await connection.aclose()
