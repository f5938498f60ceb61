"""``SqliteCache``: kept answers in one file, for all processes of one machine."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple
from zlib import crc32

import numpy as np
from cachetools import LRUCache
from msgspec import DecodeError, msgpack
from msgspec.structs import replace

from routewright.backends.clock import SystemClock
from routewright.backends.storage.sqlite.connection import file_of
from routewright.errors import StorageUnavailable
from routewright.fork import Guard, renew_in_children
from routewright.protocols import Clock, Vector
from routewright.threads import Threads
from routewright.wire import CacheEntry, CacheMatch, CacheSelection, CacheStats, Observation

from .entries import MAX_BYTES, MAX_ENTRIES, OBSERVATIONS, check_bounds, is_tagged
from .file import CacheFile
from .search import Vectors, unpacked, vector_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ROW_BYTES = 400
"""Room that an entry takes in the file beside its texts and its vector."""
AT_ONCE = 500
"""Rows read, evicted or removed at a time, so that others get their turn."""
MOST_USES = 500
"""Uses of entries that are written with the next answer, or once there are so many."""
MIRRORED = 50_000_000
"""Numbers of embeddings, in all partitions, that are kept in memory to be searched: 200 MB."""
_INSERT = """
INSERT INTO entries (key, account, environment, partition, id, namespace, created_at, expires_at, used_at, size,
    cost_nanos, sum, metadata, vector, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_NEWER = """
SELECT seq, CAST(vector AS BLOB) FROM entries
WHERE partition = ? AND vector IS NOT NULL AND seq > ? ORDER BY seq LIMIT ?
"""
_CONDITIONS = {
    "account": "account = ?",
    "environment": "environment = ?",
    "key": "key = ?",
    "partition": "partition = ?",
    "id": "id = ?",
    "namespace": "namespace = ?",
    "made_before": "created_at < ?",
}
_log = logging.getLogger(__name__)
_encoder, _decoder = msgpack.Encoder(), msgpack.Decoder(CacheEntry)
_observation = msgpack.Decoder(Observation)


class _Mirror:
    """The embeddings of a partition, by number of their rows in the file, as far as this process has seen it."""

    def __init__(self, dimension: int) -> None:
        self.vectors = Vectors[int](dimension)
        self.seen = 0
        """The last row that was read."""

    def size(self) -> int:
        """Numbers in it; the only one may be larger than ``MIRRORED``."""
        return min(len(self.vectors) * self.vectors.dimension, MIRRORED)


class SqliteCache:
    """Keeps answers in a file, which is made at first use.

        router = Router(cache=SqliteCache("cache.db", max_bytes=1_000_000_000))

    Several processes may use one file, on a local disk. An answer that a power cut or a damaged file takes is a miss.
    What is removed is gone for all processes, and from the disk. Everything runs in worker threads. ``clock``: pass a
    ``FakeClock`` that the Router has, then everything is done at once in the caller's thread.
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
        """Where it is."""
        self._bounds = max_bytes, max_entries
        self._clock = clock or SystemClock()
        self._file = CacheFile(self.path)
        self._reads, self._writes = Threads("reads of a cache", 2), Threads("writes of a cache", 1)
        renew_in_children(self)

    def __repr__(self) -> str:
        return f"SqliteCache({str(self.path)!r})"

    def renew(self) -> None:
        """Forget what was seen of the file, as a child does."""
        self._guard = Guard()
        self._used: dict[int, float] = {}
        """When rows were used, until it is written."""
        self._mirrors: LRUCache[tuple[bytes, int], _Mirror] = LRUCache(MIRRORED, _Mirror.size)
        self._openings = 0
        """``CacheFile.openings`` when the mirrors were filled."""

    async def get(self, key: bytes, now: float) -> CacheEntry | None:
        """The entry of exactly this request (``protocols.Cache``)."""
        return await self._do(self._reads, self._get, key, now)

    def _get(self, key: bytes, now: float) -> CacheEntry | None:
        rows = self._file.read("SELECT seq, body, vector, sum FROM entries WHERE key = ? AND expires_at > ?", key, now)
        entries = self._entries(rows)
        self._use(entries, now)
        return next((entry for entry in entries.values() if entry.key == key), None)

    async def nearest(self, partition: bytes, vector: Vector, now: float, limit: int) -> Sequence[CacheMatch]:
        """The most similar entries of a partition (``protocols.Cache``). To be the nearest is a use."""
        return await self._do(self._reads, self._nearest, partition, vector_of(vector), now, limit)

    def _nearest(self, partition: bytes, query: NDArray[np.float32], now: float, limit: int) -> list[CacheMatch]:
        with self._guard.lock:
            vectors = self._follow(partition, len(query))
            many = limit
            while near := [seq for seq, _ in vectors.nearest(query, many)]:
                marks = ", ".join("?" * len(near))
                sql = f"SELECT seq, body, vector, sum FROM entries WHERE seq IN ({marks}) AND expires_at > ?"
                entries = self._entries(self._file.read(sql, *near, now))
                found = {seq: entry for seq, entry in entries.items() if entry.partition == partition}
                gone = [seq for seq in near if seq not in found]
                for seq in gone:
                    vectors.remove(seq)
                if not gone:
                    break
                many = max(many, min(2 * many, AT_ONCE))
        matches = [CacheMatch(entry, _similarity(entry, query)) for entry in found.values()] if near else []
        matches.sort(key=lambda match: -match.similarity)
        if matches:
            self._use({seq: entry for seq, entry in found.items() if entry is matches[0].entry}, now)
        return matches[:limit]

    def _follow(self, partition: bytes, dimension: int) -> Vectors[int]:
        """The embeddings of a partition, with what was kept since they were read last."""
        ((total,),) = self._file.read("SELECT entries FROM totals")
        if self._openings != self._file.openings:
            self._mirrors.clear()
            self._openings = self._file.openings
        mirror = self._mirrors.get((partition, dimension)) or _Mirror(dimension)
        self._read_on(mirror, partition)
        if len(mirror.vectors) > 2 * total + AT_ONCE:  # most are of entries that have made room for others
            mirror = _Mirror(dimension)
            self._read_on(mirror, partition)
        self._mirrors[partition, dimension] = mirror
        return mirror.vectors

    def _read_on(self, mirror: _Mirror, partition: bytes) -> None:
        is_behind = True
        while is_behind:
            rows = self._file.read(_NEWER, partition, mirror.seen, AT_ONCE)
            for seq, vector in rows:
                mirror.seen = seq
                row = unpacked(vector)
                if row is not None and len(row) == mirror.vectors.dimension:
                    mirror.vectors.add(seq, row)
            is_behind = len(rows) == AT_ONCE

    def _entries(self, rows: Sequence[Any]) -> dict[int, CacheEntry]:
        """The entries of rows, by their numbers. Rows that are damaged are removed."""
        found: dict[int, CacheEntry] = {}
        damaged: list[tuple[int]] = []
        for seq, body, vector, total in rows:
            try:
                if _sum_of(body, vector) != total:
                    raise ValueError
                found[seq] = replace(_decoder.decode(body), vector=vector)
            except (DecodeError, TypeError, ValueError):
                damaged.append((seq,))
        if damaged:
            _log.warning("%s: %d entries are damaged, and are removed", self.path, len(damaged))
            self._file.write(lambda to: to.executemany("DELETE FROM entries WHERE seq = ?", damaged))
        return found

    def _use(self, entries: Mapping[int, CacheEntry], now: float) -> None:
        """Note that entries were used. It is written later, so that a hit need not wait for the disk."""
        self._used.update(dict.fromkeys(entries, now))
        if len(self._used) > MOST_USES:
            with suppress(StorageUnavailable):  # the answer was found
                self._file.write(self._write_uses)

    def _write_uses(self, to: sqlite3.Connection) -> None:
        used, self._used = self._used, {}
        uses = [(at, seq, at) for seq, at in list(used.items())]  # another thread may note one just now
        to.executemany("UPDATE entries SET used_at = ? WHERE seq = ? AND used_at < ?", uses)

    async def put(self, entry: CacheEntry) -> None:
        """Keep an answer (``protocols.Cache``)."""
        await self._do(self._writes, self._put, entry)

    def _put(self, entry: CacheEntry) -> None:
        body, vector, now = _encoder.encode(replace(entry, vector=None)), entry.vector, entry.created_at
        size = ROW_BYTES + len(body) + len(vector or b"") + len(entry.metadata or b"")
        row = (
            *(entry.key, entry.account, entry.environment, entry.partition, entry.id, entry.namespace),
            *(entry.created_at, entry.expires_at, now, size, entry.cost_nanos),
            *(_sum_of(body, vector), entry.metadata, vector, body),
        )

        def keep(to: sqlite3.Connection) -> None:
            self._write_uses(to)
            to.execute("DELETE FROM entries WHERE key = ?", (entry.key,))
            if size <= self._bounds[0] and entry.expires_at > now:
                to.execute(_INSERT, row)
                self._make_room(to, now)

        self._file.write(keep)

    def _make_room(self, to: sqlite3.Connection, now: float) -> None:
        """Remove what is past its time, then what is unused for longest, until neither bound is exceeded."""
        past = "DELETE FROM entries WHERE seq IN (SELECT seq FROM entries WHERE expires_at <= ? LIMIT ?)"
        gone = to.execute(past, (now, AT_ONCE)).rowcount
        while to.execute("SELECT 1 FROM totals WHERE bytes > ? OR entries > ?", self._bounds).fetchone():
            if gone:
                gone = to.execute(past, (now, AT_ONCE)).rowcount
            else:
                to.execute("DELETE FROM entries WHERE seq = (SELECT seq FROM entries ORDER BY used_at, seq LIMIT 1)")

    async def remove(self, which: CacheSelection) -> int:
        """Remove entries, and say how many (``protocols.Cache``)."""
        return await self._do(self._writes, self._remove, which)

    def _remove(self, which: CacheSelection) -> int:
        narrowed = {sql: getattr(which, name) for name, sql in _CONDITIONS.items()}
        given = {sql: value for sql, value in narrowed.items() if value is not None}
        chosen = " AND ".join(given)
        sql = f"SELECT seq, expires_at, metadata FROM entries WHERE {chosen} AND seq > ? ORDER BY seq LIMIT ?"
        now, removed, last = self._clock.time(), 0, 0

        def remove(to: sqlite3.Connection) -> int:
            nonlocal removed, last
            rows = to.execute(sql, (*given.values(), last, AT_ONCE)).fetchall()
            tag = which.metadata
            meant = [row for row in rows if tag is None or is_tagged(row[2], tag)]
            to.executemany("DELETE FROM entries WHERE seq = ?", [row[:1] for row in meant])
            removed += sum(row[1] > now for row in meant)
            last = rows[-1][0] if rows else last
            return len(rows)

        while self._file.write(remove) == AT_ONCE:
            pass
        self._file.scrub()
        return removed

    async def stats(self, account: str | None, now: float) -> CacheStats:
        """Count what is kept (``protocols.Cache``)."""
        sql = (
            "SELECT count(*), coalesce(sum(size), 0), count(DISTINCT partition), min(created_at), "
            "coalesce(sum(cost_nanos), 0) FROM entries WHERE expires_at > ?"
        )
        mine = () if account is None else (account,)
        rows = await self._do(self._reads, self._file.read, sql + " AND account = ?" * len(mine), now, *mine)
        names = ("entries", "size_bytes", "partitions", "oldest_at", "saves_nanos")
        return CacheStats(**dict(zip(names, rows[0], strict=True)))

    async def learned(self, space: str, new: Sequence[Observation], after: int) -> tuple[Sequence[Observation], int]:
        """Add observations; return those that others added since ``after``, and their end (``protocols.Cache``)."""
        return await self._do(self._writes, self._learned, space, new, after)

    def _learned(self, space: str, new: Sequence[Observation], after: int) -> tuple[list[Observation], int]:
        def exchange(to: sqlite3.Connection) -> tuple[list[Observation], int]:
            last = to.execute("SELECT seq FROM sqlite_sequence WHERE name = 'learned'").fetchone()
            end = last[0] if last else 0
            sql = "SELECT seq, body FROM learned WHERE space = ? AND seq > ? ORDER BY seq"
            rows = to.execute(sql, (space, after if after <= end else 0)).fetchall()  # the file may be a new one
            for each in new:
                end = to.execute(
                    "INSERT INTO learned (space, body) VALUES (?, ?)", (space, _encoder.encode(each))
                ).lastrowid
            old = "SELECT seq FROM learned WHERE space = ? ORDER BY seq DESC LIMIT -1 OFFSET ?"
            to.execute(f"DELETE FROM learned WHERE seq IN ({old})", (space, OBSERVATIONS))
            return [_observation.decode(body) for _, body in rows], end

        return self._file.write(exchange)

    async def aclose(self) -> None:
        """Close the file. It is opened again if it is used again."""
        await self._do(self._writes, self._close)

    def _close(self) -> None:
        if self._used:
            with suppress(StorageUnavailable):
                self._file.write(self._write_uses)
        self._file.close()

    async def _do(self, threads: Threads, work: Callable[[*Ts], T], *given: *Ts) -> T:
        return work(*given) if self._clock.virtual else await threads.run(work, *given)


def _sum_of(body: bytes, vector: bytes | None) -> int:
    return crc32(vector or b"", crc32(body))


def _similarity(entry: CacheEntry, query: NDArray[np.float32]) -> float:
    return float(np.frombuffer(entry.vector or b"", "<f4") @ query)
