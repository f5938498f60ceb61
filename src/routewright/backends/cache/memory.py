"""``MemoryCache``: kept answers in the memory of one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from cachetools import Cache, LRUCache, TLRUCache
from msgspec.structs import replace

from routewright.backends.clock import SystemClock
from routewright.fork import Guard, renew_in_children
from routewright.protocols import Clock, Vector
from routewright.threads import Threads
from routewright.wire import CacheEntry, CacheMatch, CacheSelection, CacheStats, Observation

from .entries import MAX_BYTES, MAX_ENTRIES, OBSERVATIONS, check_bounds, selects, text_bytes
from .search import Vectors, unpacked, vector_of

ENTRY_BYTES = 1_000
"""Memory of an entry beside its texts and its vector."""
VECTOR_BYTES = 700
"""Memory of a partition with one vector beside that vector; charged to each vector."""
LONG_SEARCHES = 4
"""In threads at a time, in each event loop; more wait."""
SPACES = 256
"""Spaces whose observations are kept. The one unused for longest goes."""
AT_ONCE = 500
"""Entries looked at for a removal before others get their turn."""


class _Kept(NamedTuple):
    entry: CacheEntry
    """Without its vector, if that can be found in ``_Entries.partitions``."""
    size: int


class _Entries(TLRUCache[bytes, _Kept]):
    """Entries by key, and what finds them by account and partition."""

    def __init__(self, max_bytes: int, max_entries: int) -> None:
        self.now = 0.0
        """The latest time that a caller has named."""
        super().__init__(max_bytes, _end_of, lambda: self.now, lambda kept: kept.size)
        self.max_entries = max_entries
        self.by_account: dict[str, dict[bytes, None]] = {}
        self.partitions: dict[bytes, Vectors[bytes]] = {}

    def keep(self, entry: CacheEntry) -> None:
        """Keep an entry, unless it is larger than the whole cache."""
        self.now = max(self.now, entry.created_at)
        key, row, size = entry.key, unpacked(entry.vector), ENTRY_BYTES + text_bytes(entry)
        self.drop(key)
        if entry.vector is not None:
            size += VECTOR_BYTES + len(entry.vector)
        if row is not None:
            known = self.partitions.get(entry.partition)
            if known is None or known.dimension == len(row):
                entry = replace(entry, vector=None)
        if size > self.maxsize:
            return
        if Cache.__len__(self) >= self.max_entries:
            self.expire()
            while Cache.__len__(self) >= self.max_entries:
                self.popitem()
        self[key] = _Kept(entry, size)
        if not Cache.__contains__(self, key):  # its time is over
            return
        self.by_account.setdefault(entry.account, {})[key] = None
        if row is not None and entry.vector is None:
            vectors = self.partitions.get(entry.partition)  # making room may have emptied the one before
            if vectors is None:
                vectors = self.partitions[entry.partition] = Vectors(len(row))
            vectors.add(key, row)

    def peek(self, key: bytes) -> CacheEntry:
        """An entry that is there, whatever its time, without a use of it."""
        return Cache.__getitem__(self, key).entry

    def whole(self, entry: CacheEntry) -> CacheEntry:
        """An entry with its vector."""
        vectors = self.partitions.get(entry.partition)
        if vectors is None or entry.key not in vectors:
            return entry
        return replace(entry, vector=vectors.vector(entry.key).tobytes())

    def drop(self, key: bytes) -> None:
        """Drop an entry, if it is there."""
        if not Cache.__contains__(self, key):
            return
        entry = self.peek(key)
        with suppress(KeyError):  # its time is over
            del self[key]
        self._unlink(entry)

    def expire(self, time: float | None = None) -> list[tuple[bytes, _Kept]]:
        """Drop what is past its time."""
        self.now = max(self.now, time or 0.0)
        expired: list[tuple[bytes, _Kept]] = super().expire(time)
        for _, kept in expired:
            self._unlink(kept.entry)
        return expired

    def popitem(self) -> tuple[bytes, _Kept]:
        """Drop what is unused for longest."""
        key, kept = super().popitem()
        self._unlink(kept.entry)
        return key, kept

    def _unlink(self, entry: CacheEntry) -> None:
        mine = self.by_account[entry.account]
        del mine[entry.key]
        if not mine:
            del self.by_account[entry.account]
        vectors = self.partitions.get(entry.partition)
        if vectors is not None and entry.key in vectors:
            vectors.remove(entry.key)
            if not vectors:
                del self.partitions[entry.partition]


def _end_of(_key: bytes, kept: _Kept, _now: float) -> float:
    return kept.entry.expires_at


class MemoryCache:
    """Keeps answers for all Routers, event loops and threads of one process.

        router = Router(cache=MemoryCache(max_bytes=64_000_000))

    It ends with the process, and a forked child begins with nothing. Neither bound is exceeded at any moment.
    ``clock``: with a ``FakeClock`` nothing runs in threads.
    """

    waits = False

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES, clock: Clock | None = None
    ) -> None:
        check_bounds("MemoryCache", max_bytes=max_bytes, max_entries=max_entries)
        self._bounds = max_bytes, max_entries
        self._clock = clock or SystemClock()
        self._threads = Threads("searches of a cache", LONG_SEARCHES)
        self._guard = Guard()
        renew_in_children(self)

    def __repr__(self) -> str:
        return "MemoryCache(max_bytes={}, max_entries={})".format(*self._bounds)

    @property
    def size_bytes(self) -> int:
        """What it holds, at most ``max_bytes``."""
        with self._guard.lock:
            return int(self._entries.currsize)

    def renew(self) -> None:
        """Forget it all."""
        self._entries = _Entries(*self._bounds)
        self._learned: LRUCache[str, tuple[int, deque[Observation]]] = LRUCache(SPACES)

    async def get(self, key: bytes, now: float) -> CacheEntry | None:
        """The entry of exactly this request (``protocols.Cache``)."""
        entries = self._entries
        if key not in entries:
            return None
        with self._guard.lock:
            kept = entries.get(key)
            return None if kept is None or kept.entry.expires_at <= now else entries.whole(kept.entry)

    async def nearest(self, partition: bytes, vector: Vector, now: float, limit: int) -> Sequence[CacheMatch]:
        """The most similar entries of a partition (``protocols.Cache``). To be the nearest is a use."""
        query = vector_of(vector)
        with self._guard.lock:
            self._entries.expire(now)
            vectors = self._entries.partitions.get(partition)
            if vectors is None or vectors.dimension != len(query) or limit < 1:
                return []
            if vectors.is_quick or self._clock.virtual:
                return self._matches(vectors, vectors.nearest(query, limit))
        rows = await self._threads.run(vectors.candidates, query, limit)
        with self._guard.lock:
            self._entries.expire(now)
            return self._matches(vectors, vectors.score(rows, query, limit))

    def _matches(self, vectors: Vectors[bytes], near: list[tuple[bytes, float]]) -> list[CacheMatch]:
        entries = self._entries
        if near:
            entries.get(near[0][0])
        return [CacheMatch(entries.whole(entries.peek(key)), similarity) for key, similarity in near]

    async def put(self, entry: CacheEntry) -> None:
        """Keep an answer (``protocols.Cache``)."""
        with self._guard.lock:
            self._entries.keep(entry)

    async def remove(self, which: CacheSelection) -> int:
        """Remove entries, and say how many (``protocols.Cache``)."""
        with self._guard.lock:
            self._entries.expire()
            keys = [*self._entries.by_account.get(which.account, ())] if which.key is None else [which.key]
        if len(keys) <= AT_ONCE or self._clock.virtual:
            return self._remove(keys, which)
        return await self._threads.run(self._remove, keys, which)

    def _remove(self, keys: list[bytes], which: CacheSelection) -> int:
        removed = 0
        for start in range(0, len(keys), AT_ONCE):
            with self._guard.lock:
                for key in keys[start : start + AT_ONCE]:
                    if key in self._entries and selects(which, self._entries.peek(key)):
                        self._entries.drop(key)
                        removed += 1
        return removed

    async def stats(self, account: str | None, now: float) -> CacheStats:
        """Count what is kept (``protocols.Cache``)."""
        with self._guard.lock:
            entries = self._entries
            entries.expire(now)
            names = [account] if account is not None else list(entries.by_account)
            found = [Cache.__getitem__(entries, key) for name in names for key in entries.by_account.get(name, ())]
        return CacheStats(
            entries=len(found),
            size_bytes=sum(kept.size for kept in found),
            partitions=len({kept.entry.partition for kept in found}),
            oldest_at=min((kept.entry.created_at for kept in found), default=None),
            saves_nanos=sum(kept.entry.cost_nanos for kept in found),
        )

    async def learned(self, space: str, new: Sequence[Observation], after: int) -> tuple[Sequence[Observation], int]:
        """Add observations; return those that others added since ``after``, and their end (``protocols.Cache``)."""
        with self._guard.lock:
            end, kept = self._learned.get(space) or (0, deque[Observation](maxlen=OBSERVATIONS))
            count = min(max(end - after, 0), len(kept))
            others = [kept[place] for place in range(len(kept) - count, len(kept))]
            kept.extend(new)
            self._learned[space] = end + len(new), kept
            return others, end + len(new)

    async def aclose(self) -> None:
        """Nothing: others may share it."""
