"""The embeddings of a shared store in memory, to be searched. Nothing here locks: the caller does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from cachetools import LRUCache
from msgspec import Struct

from routewright.protocols import Vector
from routewright.wire import CacheEntry, CacheMatch

from .search import Vectors, unpacked, vector_of

AT_ONCE = 500
"""Rows that are looked up or removed at a time."""
MIRRORED = 50_000_000
"""Numbers of embeddings, in all partitions, that are kept in memory to be searched: 200 MB."""
Read: TypeAlias = Callable[[int], tuple[int, Iterable[tuple[int, bytes]]]]
"""How many entries the store has, and numbers and embeddings of a partition behind a number, in order."""
Look: TypeAlias = Callable[[Sequence[int]], Mapping[int, CacheEntry]]
"""The entries with these numbers, of those that may still be given."""


class _Mirror(Struct):
    """The embeddings of a partition by the numbers of entries, up to the last that was read."""

    vectors: Vectors[int]
    last: int = 0

    def size(self) -> int:
        """Numbers in it, and one row more. A mirror that is alone may be larger than ``MIRRORED``."""
        return min((len(self.vectors) + 1) * self.vectors.dimension, MIRRORED)


class Mirrors:
    """The partitions that were searched lately. Numbers of entries rise, and none is given twice."""

    def __init__(self) -> None:
        self._kept: LRUCache[tuple[bytes, int], _Mirror] = LRUCache(MIRRORED, _Mirror.size)
        self.is_starting = False
        """A partition is being read into memory. Searches wait for that."""

    def nearest(self, partition: bytes, vector: Vector, limit: int, read: Read, look: Look) -> list[CacheMatch]:
        """The most similar entries of a partition, after what others put there was read."""
        query, many = vector_of(vector), limit
        vectors, found = self._up_to_date(partition, len(query), read), dict[int, CacheEntry]()
        while near := vectors.nearest(query, many):
            found = {**look([number for number, _ in near])}
            gone = [number for number, _ in near if number not in found]
            if not gone:
                break
            for number in gone:
                vectors.remove(number)
            many = max(many, min(2 * many, AT_ONCE))  # many may be gone
        return [CacheMatch(found[number], similarity) for number, similarity in near[:limit]]

    def _up_to_date(self, partition: bytes, dimension: int, read: Read) -> Vectors[int]:
        mirror = self._kept.get((partition, dimension)) or _Mirror(Vectors(dimension))
        self.is_starting = not mirror.last
        try:
            total, rows = read(mirror.last)
            if len(mirror.vectors) > 2 * total + AT_ONCE:  # most are of entries that are gone
                mirror, self.is_starting = _Mirror(Vectors(dimension)), True
                _, rows = read(0)
            for number, packed in rows:
                row, mirror.last = unpacked(packed), number
                if row is not None and len(row) == dimension:
                    mirror.vectors.add(number, row)
        finally:
            self.is_starting = False
        self._kept[partition, dimension] = mirror
        return mirror.vectors
