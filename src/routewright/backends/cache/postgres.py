"""``PostgresCache``: cached answers in a database, shared by all machines that use it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from msgspec import json, msgpack

from routewright._core.cache.request_key import is_tagged
from routewright._runtime.fork import Guard
from routewright.backends.clock import SystemClock
from routewright.backends.storage.postgres.connections import Database, array_of
from routewright.backends.storage.postgres.schema import Store
from routewright.protocols import BaseCache, Clock, Vector
from routewright.wire import CacheEntry, CacheMatch, CacheSelection, CacheStats, Observation
from routewright.wire.problems import check_bounds

from .memory import MAX_BYTES, MAX_ENTRIES, OBSERVATIONS, conditions_of, entry_of, row_of
from .search import AT_ONCE, Mirrors

PAGE_BYTES = 4_000_000
"""Bytes of embeddings in one read."""
_GET = "SELECT (SELECT body FROM cache_entry WHERE key = $1 AND expires_at > $2)"
_ROW = ", ".join(f"${place}" for place in range(3, 16))
_PUT = f"SELECT put_answer(ROW(NULL, {_ROW})::cache_entry, $1, $2)"
_VECTORS = """
SELECT framed(coalesce((SELECT entries FROM cache_size), 0), '')
    || coalesce(string_agg(framed(n, vector), '' ORDER BY n), '')
FROM (
    SELECT n, vector FROM cache_entry
    WHERE partition = $1 AND vector IS NOT NULL AND octet_length(vector) = $2 AND n > $3 ORDER BY n LIMIT $4
) AS page
"""
_LOOK = """
SELECT string_agg(framed(n, body), '') FROM cache_entry WHERE n = ANY($1) AND partition = $2 AND expires_at > $3
"""
_SELECTED = """
SELECT string_agg(framed(n, coalesce(metadata, '')), '' ORDER BY n)
FROM (SELECT n, metadata FROM cache_entry WHERE n > $1 AND {} ORDER BY n LIMIT $2) AS page
"""
_STATS = """
SELECT json_build_object('entries', count(*), 'size_bytes', coalesce(sum(size), 0), 'oldest_at', min(created_at),
    'partitions', count(DISTINCT partition), 'saves_nanos', coalesce(sum(cost_nanos), 0))
FROM cache_entry WHERE expires_at > $1 AND account = coalesce($2, account)
"""
_LEAD = """
WITH led AS (
    INSERT INTO cache_lead (key, token, until) VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3))
    ON CONFLICT (key) DO UPDATE SET token = excluded.token, until = excluded.until
    WHERE cache_lead.until <= clock_timestamp() RETURNING key
) SELECT count(*) FROM led
"""
_END = "WITH ended AS (DELETE FROM cache_lead WHERE key = $1 AND token = $2 RETURNING key) SELECT count(*) FROM ended"


class PostgresCache(BaseCache):
    """Caches answers in a PostgreSQL database, prepared with ``routewright store create``.

        router = Router(cache=PostgresCache("postgresql://routewright@db.example/routewright"))

    Any number of processes and machines may share it. A full cache evicts the entries that expire first; a crash of the
    server empties it. Similar questions are searched in an in-memory copy of the embeddings. If several processes miss
    the same answer, one makes the call and the others wait for it. ``clock``: with a ``FakeClock`` nothing runs in
    threads.
    """

    def __init__(
        self, url: str, *, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES, clock: Clock | None = None
    ) -> None:
        check_bounds("PostgresCache", max_bytes=max_bytes, max_entries=max_entries)
        self._bounds = max_entries, max_bytes
        self._clock = clock or SystemClock()
        inline = self._clock.virtual
        self._server = Database(Store(url), "answers in PostgreSQL", 8, inline=inline)
        self._searches = Database(Store(url), "searches in PostgreSQL", 1, inline=inline)
        self._guard = Guard()
        self._server.renewals.add(self)

    def __repr__(self) -> str:
        return f"PostgresCache({self._server!r})"

    def renew(self) -> None:
        """Start without embeddings, which a thread of the parent may have been reading."""
        self._mirrors = Mirrors()
        self._token = os.urandom(16)

    @property
    def is_starting(self) -> bool:
        """True while a partition is read into memory."""
        return self._mirrors.is_starting

    async def get(self, key: bytes, now: float) -> CacheEntry | None:
        """The entry of exactly this request (``protocols.Cache``)."""
        return entry_of(await self._server.value(_GET, key, now))

    async def nearest(self, partition: bytes, vector: Vector, now: float, limit: int) -> Sequence[CacheMatch]:
        """The most similar entries of a partition (``protocols.Cache``)."""
        return await self._searches.run(partial(self._nearest, partition, vector, now, limit))

    def _nearest(self, partition: bytes, vector: Vector, now: float, limit: int) -> list[CacheMatch]:
        ask = self._searches.value_now
        vector_bytes = 4 * len(vector)
        limit_rows = max(1, PAGE_BYTES // max(1, vector_bytes))

        def read(after: int) -> tuple[int, Iterable[tuple[int, bytes]]]:
            (total, _), *page = _frames(ask(_VECTORS, partition, vector_bytes, after, limit_rows))
            return total, page if len(page) < limit_rows else read_on(page)

        def read_on(page: list[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
            while page:
                yield from page
                page = [*_frames(ask(_VECTORS, partition, vector_bytes, page[-1][0], limit_rows))][1:]

        def find_entries(numbers: Sequence[int]) -> dict[int, CacheEntry]:
            rows = _frames(ask(_LOOK, _array(numbers), partition, now))
            return {number: entry for number, body in rows if (entry := entry_of(body))}

        with self._guard.lock:
            return self._mirrors.nearest(partition, vector, limit, read, find_entries)

    async def put(self, entry: CacheEntry) -> None:
        """Keep an answer (``protocols.Cache``)."""
        await self._server.value(_PUT, *self._bounds, *row_of(entry)[1])

    async def remove(self, which: CacheSelection) -> int:
        """Remove entries, and return how many (``protocols.Cache``)."""
        filters = conditions_of(which)
        sql = _SELECTED.format(" AND ".join(f"{column} ${n}" for n, column in enumerate(filters, 3)))
        removed = last = 0
        now = self._clock.time()
        while rows := [*_frames(await self._server.value(sql, last, AT_ONCE, *filters.values()))]:
            chosen = [n for n, metadata in rows if which.metadata is None or is_tagged(metadata, which.metadata)]
            if chosen:
                removed += int.from_bytes(await self._server.value("SELECT drop_answers($1, $2)", _array(chosen), now))
            last = rows[-1][0]
        return removed

    async def stats(self, account: str | None, now: float) -> CacheStats:
        """Count the entries of an account, or of all (``protocols.Cache``)."""
        return json.decode(await self._server.value(_STATS, now, account), type=CacheStats)

    async def learned(self, space: str, new: Sequence[Observation], after: int) -> tuple[Sequence[Observation], int]:
        """Add observations; return those that others added since ``after``, and their end (``protocols.Cache``)."""
        bodies = array_of([msgpack.encode(observation) for observation in new])
        sql = "SELECT exchange_lessons($1, $2, $3, $4)"
        (end, _), *others = _frames(await self._server.value(sql, space, bodies, after, OBSERVATIONS))
        return [msgpack.decode(body, type=Observation) for _, body in others], end

    async def lead(self, key: bytes, seconds: float) -> bool:
        """Begin to make the answer of a request, or end it (``protocols.Cache``)."""
        query = (_LEAD, key, self._token, seconds) if seconds > 0 else (_END, key, self._token)
        return int.from_bytes(await self._server.value(*query)) > 0

    async def aclose(self) -> None:
        """Close the connections. The next use opens new ones."""
        await self._server.run(self._server.close)
        await self._searches.run(self._searches.close)


def _array(numbers: Sequence[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def _frames(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Decode numbers with their bytes from ``framed`` in SQL."""
    end = 0
    while end < len(raw):
        start = end + 12
        end = start + int.from_bytes(raw[end + 8 : start])
        yield int.from_bytes(raw[start - 12 : start - 4]), raw[start:end]
