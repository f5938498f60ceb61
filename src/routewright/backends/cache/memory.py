"""The in-memory response cache, and helpers for caches with rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from sys import getsizeof
from typing import TypeAlias, TypeVar, TypeVarTuple

from msgspec import DecodeError, json, msgpack
from msgspec.structs import replace

from routewright._core.cache.request_key import selects
from routewright._runtime.fork import Guard, renew_in_children
from routewright._runtime.loop import Threads
from routewright.backends.clock import SystemClock
from routewright.protocols import BaseCache, Clock, Vector
from routewright.wire import CacheEntry, CacheMatch, CacheSelection, CacheStats
from routewright.wire.problems import check_bounds

from .search import AT_ONCE, Vectors, unpack, vector_of

MAX_BYTES = 256_000_000
MAX_ENTRIES = 100_000
ROW_BYTES = 400
"""Size of an entry besides its texts and vector."""
OBSERVATIONS = 5_000
"""Most observations of a space; the oldest are removed."""
_decoder = msgpack.Decoder(CacheEntry)


def body_of(entry: CacheEntry) -> bytes:
    """Encode an entry without its vector."""
    return msgpack.encode(replace(entry, vector=None))


def row_of(entry: CacheEntry) -> tuple[int, tuple[bytes | str | float | None, ...]]:
    """The size of an entry, and its columns."""
    body = body_of(entry)
    size = ROW_BYTES + len(body) + len(entry.vector or b"") + len(entry.metadata or b"")
    return size, (
        *(entry.key, entry.account, entry.environment, entry.partition, entry.id, entry.namespace),
        *(entry.created_at, entry.expires_at, size, entry.cost_nanos, entry.metadata, entry.vector, body),
    )


def entry_of(body: bytes) -> CacheEntry | None:
    """Decode an entry. None if it is damaged, or of another version."""
    try:
        return _decoder.decode(body)
    except (DecodeError, TypeError, ValueError):
        return None


def conditions_of(which: CacheSelection) -> dict[str, str | bytes | float]:
    """Comparisons of columns with their values, except for metadata."""
    names = ("account", "environment", "key", "partition", "id", "namespace")
    conditions = {f"{name} =": getattr(which, name) for name in names} | {"created_at <": which.created_before}
    return {condition: value for condition, value in conditions.items() if value is not None}


T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_SizedEntry: TypeAlias = tuple[CacheEntry, int]
"""An entry and its size. Its vector is in ``MemoryCache._partitions``."""

LONG = 4
"""Concurrent searches and scans in worker threads, in each event loop."""
ROUNDS = 10
"""Most searches for one question. A search that finds expired entries drops them and is repeated."""


class MemoryCache(BaseCache):
    """Caches answers for all Routers, event loops and threads of one process.

        router = Router(cache=MemoryCache(max_bytes=64_000_000))

    It is lost with the process; a forked child starts empty. The bounds are never exceeded: the least recently used
    answer is evicted. Expired answers are never returned. ``clock``: with a ``FakeClock`` nothing runs in threads.
    """

    waits = False

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES, clock: Clock | None = None
    ) -> None:
        check_bounds("MemoryCache", max_bytes=max_bytes, max_entries=max_entries)
        self._bounds = max_bytes, max_entries
        self._clock = clock or SystemClock()
        self._threads = Threads("scans of a cache", LONG)
        self._guard = Guard()
        renew_in_children(self)

    def __repr__(self) -> str:
        return "MemoryCache(max_bytes={}, max_entries={})".format(*self._bounds)

    def renew(self) -> None:
        """Start empty."""
        self._entries: OrderedDict[bytes, _SizedEntry] = OrderedDict()
        """Least recently used first."""
        self._partitions: dict[bytes, Vectors[bytes]] = {}
        self.size_bytes = 0
        """Its size, at most ``max_bytes``."""

    async def get(self, key: bytes, now: float) -> CacheEntry | None:
        """The entry of exactly this request (``protocols.Cache``)."""
        if key not in self._entries:
            return None
        with self._guard.lock:
            sized_entry = self._entries.get(key)
            if sized_entry is None or sized_entry[0].expires_at <= now:
                return None
            self._entries.move_to_end(key)
            return sized_entry[0]

    async def nearest(self, partition: bytes, vector: Vector, now: float, limit: int) -> Sequence[CacheMatch]:
        """The most similar entries of a partition (``protocols.Cache``). Being the nearest counts as a use."""
        query = vector_of(vector)
        entries = self._entries
        for _ in range(ROUNDS):
            rows = None
            vectors = self._partitions.get(partition)
            if vectors is None or vectors.dimension != len(query) or limit < 1:
                return []
            is_aside = not vectors.is_quick and not self._clock.virtual
            if is_aside:
                rows = await self._threads.run(vectors.candidates, query, limit)
            with self._guard.lock:
                near = vectors.score(rows, query, limit) if is_aside else vectors.nearest(query, limit)
                expired = [key for key, _ in near if entries[key][0].expires_at <= now]
                for key in expired:
                    self._drop(key)
                if not expired and near:
                    entries.move_to_end(near[0][0])
                if not expired:
                    return [CacheMatch(entries[key][0], similarity) for key, similarity in near]
        return []

    async def put(self, entry: CacheEntry) -> None:
        """Keep an answer (``protocols.Cache``)."""
        # Room is made before the entry is stored, so neither bound is exceeded even for a moment, and the lock is held
        # from the first eviction to the new size: two threads that both saw room would both fill it. An entry larger
        # than the whole cache is refused first; the loop would empty the cache for it and then fail. What was stored
        # under the key goes before that, because a request whose answer changed must not get the old one. The
        # embedding is unpacked outside the lock, since every lookup of the process waits for it. See
        # test_the_limit_of_bytes_holds_after_each_put and test_the_memory_cache_evicts_the_least_recently_used_entry.
        key = entry.key
        size = _size_of(entry)
        row = unpack(entry.vector)
        max_bytes, max_entries = self._bounds
        with self._guard.lock:
            if key in self._entries:
                self._drop(key)
            if size > max_bytes or entry.expires_at <= entry.created_at:
                return
            while self.size_bytes + size > max_bytes or len(self._entries) >= max_entries:
                self._drop(next(iter(self._entries)))
            if row is not None:
                if (vectors := self._partitions.get(entry.partition)) is None:
                    vectors = self._partitions[entry.partition] = Vectors(len(row))
                if vectors.dimension == len(row):
                    vectors.add(key, row)
            self._entries[key] = replace(entry, vector=None), size
            self.size_bytes += size

    async def remove(self, which: CacheSelection) -> int:
        """Remove entries, and return how many (``protocols.Cache``)."""
        return await self._scan(self._remove, which)

    def _remove(self, entries: list[_SizedEntry], which: CacheSelection) -> int:
        keys = [entry.key for entry, _ in entries if selects(which, entry)]
        now = self._clock.time()
        removed = 0
        for start in range(0, len(keys), AT_ONCE):
            with self._guard.lock:
                for key in keys[start : start + AT_ONCE]:
                    row = self._entries.get(key)
                    if row is not None and selects(which, row[0]):
                        self._drop(key)
                        removed += row[0].expires_at > now
        return removed

    async def stats(self, account: str | None, now: float) -> CacheStats:
        """Count the entries of an account, or of all (``protocols.Cache``)."""
        return await self._scan(stats_of, account, now)

    async def _scan(self, work: Callable[[list[_SizedEntry], *Ts], T], *arguments: *Ts) -> T:
        """Run work on all entries, in a worker thread if there are many."""
        with self._guard.lock:
            entries = list(self._entries.values())
        if len(entries) <= AT_ONCE or self._clock.virtual:
            return work(entries, *arguments)
        return await self._threads.run(work, entries, *arguments)

    async def aclose(self) -> None:
        """Does nothing: others may share it."""

    def _drop(self, key: bytes) -> None:
        """Remove an existing entry."""
        entry, size = self._entries.pop(key)
        self.size_bytes -= size
        vectors = self._partitions.get(entry.partition)
        if vectors is not None and key in vectors:
            vectors.remove(key)
            if not vectors:
                del self._partitions[entry.partition]


def stats_of(entries: Iterable[_SizedEntry], account: str | None, now: float) -> CacheStats:
    """Count the valid entries of an account, or of all. An entry may occur twice."""
    mine = {
        entry.key: (size, entry.partition, entry.created_at, entry.cost_nanos)
        for entry, size in entries
        if account in (None, entry.account) and entry.expires_at > now
    }.values()
    return CacheStats(
        entries=len(mine),
        size_bytes=sum(size for size, *_ in mine),
        partitions=len({partition for _, partition, *_ in mine}),
        oldest_at=min((created_at for *_, created_at, _ in mine), default=None),
        saves_nanos=sum(nanos for *_, nanos in mine),
    )


def _size_of(entry: CacheEntry) -> int:
    """Estimated bytes of an entry in memory."""
    answer = entry.answer
    size = 700 + getsizeof(answer.output) + len(entry.metadata or b"")
    if entry.prompt is not None:
        size += getsizeof(entry.prompt)
    if entry.vector is not None:
        size += 700 + len(entry.vector)  # it may be alone in its partition
    if answer.tool_calls is not None:
        size += 4 * len(json.encode(answer.tool_calls)) + 600 * len(answer.tool_calls)
    return size
