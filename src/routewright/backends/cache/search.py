"""In-memory copies of embeddings for searching. Not thread-safe: callers lock."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np
from cachetools import LRUCache
from msgspec import Struct

from routewright.protocols import Vector
from routewright.wire import CacheEntry, CacheMatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

AT_ONCE = 500
"""Rows that are looked up or removed at a time, or scanned in the caller's thread."""
MIRRORED = 50_000_000
"""Floats of all partitions in memory: 200 MB."""
Read: TypeAlias = Callable[[int], tuple[int, Iterable[tuple[int, bytes]]]]
"""Returns the number of entries in the store, and numbers and embeddings of a partition after a number, in order."""
Look: TypeAlias = Callable[[Sequence[int]], Mapping[int, CacheEntry]]
"""Returns the valid entries with these numbers."""


class _Mirror(Struct):
    """The embeddings of a partition by entry number, up to the last one read."""

    vectors: Vectors[int]
    last: int = 0

    def size(self) -> int:
        """Its floats, with one spare row. A single mirror may exceed ``MIRRORED``."""
        return min((len(self.vectors) + 1) * self.vectors.dimension, MIRRORED)


class Mirrors:
    """The most recently searched partitions. Numbers of entries increase and are never reused."""

    def __init__(self) -> None:
        self._by_partition: LRUCache[tuple[bytes, int], _Mirror] = LRUCache(MIRRORED, _Mirror.size)
        self.is_starting = False
        """True while a partition is read into memory. Searches wait for it."""

    def nearest(self, partition: bytes, vector: Vector, limit: int, read: Read, look: Look) -> list[CacheMatch]:
        """The most similar entries of a partition, after reading new ones."""
        # The store alone knows which entries are valid, but reading all embeddings at every question would take longer
        # than some calls. So they are mirrored, and only the best few entries are looked up. What was evicted or has
        # expired is missing there; it is dropped from the mirror, and the search is repeated for twice as many rows,
        # else a question whose nearest entries have expired would be a miss although the next one fits. Numbers of
        # entries are never reused, so only what came after the last one is read
        # (test_a_new_entry_does_not_reload_all_embeddings); a mirror that mostly holds removed entries is read anew,
        # else it would grow without end (test_embeddings_of_removed_entries_do_not_pile_up).
        query = vector_of(vector)
        dimension = len(query)
        wanted_rows = limit
        entries: Mapping[int, CacheEntry] = {}
        mirror = self._by_partition.get((partition, dimension)) or _Mirror(Vectors(dimension))
        self.is_starting = not mirror.last
        try:
            total, rows = read(mirror.last)
            if len(mirror.vectors) > 2 * total + AT_ONCE:  # most are of removed entries
                mirror = _Mirror(Vectors(dimension))
                self.is_starting = True
                rows = read(0)[1]
            for number, packed in rows:
                row = unpack(packed)
                mirror.last = number
                if row is not None and len(row) == dimension:
                    mirror.vectors.add(number, row)
        finally:
            self.is_starting = False
        self._by_partition[partition, dimension] = mirror
        vectors = mirror.vectors
        while near := vectors.nearest(query, wanted_rows):
            entries = look([number for number, _ in near])
            removed = [number for number, _ in near if number not in entries]
            if not removed:
                break
            for number in removed:
                vectors.remove(number)
            wanted_rows = max(wanted_rows, min(2 * wanted_rows, AT_ONCE))  # many may be gone
        return [CacheMatch(entries[number], similarity) for number, similarity in near[:limit]]


K = TypeVar("K", bound=Hashable)

EXACT = 3_000_000
"""Largest partition with an exact search, rows times dimension: 0.2 ms."""
QUICK = 32_000_000
"""Largest partition with a search in about 1 ms, rows times dimension."""
CANDIDATES = 128
"""Rows of a larger partition that are compared exactly: those with the fewest different signs."""
ROWS_AT_ONCE = 2_048
"""Most rows by which the matrix grows, in less than 1 ms."""


class Vectors(Generic[K]):
    """The embeddings of one partition, each of length 1, by key.

    >>> vectors = Vectors[str](2)
    >>> vectors.add("north", [0.0, 1.0])
    >>> vectors.nearest(vector_of([0.6, 0.8]), 1)
    [('north', 0.8)]
    """

    __slots__ = ("_matrix", "_rows", "_signs", "dimension", "keys")

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.keys: list[K] = []
        """By row."""
        self._rows: dict[K, int] = {}
        self._matrix = np.empty((1, dimension), np.float32)  # (capacity, dimension)
        self._signs: NDArray[np.uint64] | None = None  # (words, capacity) while the partition is large

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, key: K) -> bool:
        return key in self._rows

    @property
    def is_quick(self) -> bool:
        """True if a search takes at most about 1 ms."""
        return len(self.keys) * self.dimension <= QUICK

    def add(self, key: K, vector: NDArray[np.float32] | list[float]) -> None:
        """Add a vector under a new key."""
        row = len(self.keys)
        if row == len(self._matrix):
            self._resize(row + min(row // 8, ROWS_AT_ONCE) + 1)
        self._matrix[row] = vector
        if self._signs is not None:
            self._signs[:, row] = signs_of(self._matrix[row])
        self._rows[key] = row
        self.keys.append(key)

    def remove(self, key: K) -> None:
        """Remove a vector. The last one moves to its row."""
        row = self._rows.pop(key)
        last = self.keys.pop()
        end = len(self.keys)
        if row != end:
            self.keys[row] = last
            self._rows[last] = row
            self._matrix[row] = self._matrix[end]
            if self._signs is not None:
                self._signs[:, row] = self._signs[:, end]
        if 2 * end < len(self._matrix):
            self._resize(end + end // 8 + 1)

    def nearest(self, query: NDArray[np.float32], limit: int) -> list[tuple[K, float]]:
        """Keys and similarities of the nearest, in order."""
        return self.score(self.candidates(query, limit), query, limit)

    def candidates(self, query: NDArray[np.float32], limit: int) -> NDArray[np.intp] | None:
        """Candidate rows; None: all. Needs no lock, since ``score`` checks them again."""
        # An exact search of 100,000 entries reads 100 MB at every question. One bit per float says nearly as much,
        # since near vectors agree in most signs: the signs are a thirty-second of the bytes, and only the rows with the
        # fewest different signs are compared exactly (test_the_nearest_of_many_is_found_99_times_in_100). It may run in
        # a thread without the cache's lock, while others add and remove. So the length is read first, and `score` drops
        # rows that are gone by then; a row that was moved meanwhile is compared by its new vector, which is right
        # whatever it is (test_a_row_removed_after_candidates_were_chosen_is_left_out).
        count = len(self.keys)
        signs = self._signs
        if signs is None:
            return None
        words = signs_of(query)
        # 256 wraps to 0 in a byte: the opposite vector becomes a candidate, which is harmless
        differences: NDArray[Any] = np.zeros(min(count, signs.shape[1]), np.uint8 if len(words) <= 4 else np.uint16)
        for column, word in zip(signs, words, strict=True):
            differences += np.bitwise_count(column[: len(differences)] ^ word)
        return _least(differences, max(CANDIDATES, 4 * limit))

    def score(self, rows: NDArray[np.intp] | None, query: NDArray[np.float32], limit: int) -> list[tuple[K, float]]:
        """Keys and similarities of the nearest among these rows, in order."""
        if rows is None:
            values = self._matrix[: len(self.keys)] @ query
        else:
            rows = rows[rows < len(self.keys)]
            values = self._matrix[rows] @ query
        best = []
        for _ in range(min(limit, len(values))):  # for a few, ten times faster than a partition
            index = int(values.argmax())
            best.append((self.keys[index if rows is None else rows[index]], float(values[index])))
            values[index] = -inf
        return best

    def _resize(self, capacity: int) -> None:
        self._matrix.resize((capacity, self.dimension), refcheck=False)  # in place: no view of it is handed out
        if capacity * self.dimension <= EXACT:
            self._signs = None
            return
        rows = len(self.keys)
        before = np.ascontiguousarray(signs_of(self._matrix[:rows]).T) if self._signs is None else self._signs
        # a new array, since a search in another thread may read the one before
        self._signs = np.empty((len(before), capacity), np.uint64)
        self._signs[:, :rows] = before[:, :rows]


def vector_of(vector: Vector) -> NDArray[np.float32]:
    """An embedding as an array: (dimension,) float32."""
    return np.asarray(vector, np.float32)


def unpack(vector: bytes | None) -> NDArray[np.float32] | None:
    """The embedding of an entry; None if there is none, or if it is not of length 1."""
    if not vector or len(vector) % 4:
        return None
    row: NDArray[np.float32] = np.frombuffer(vector, "<f4")
    return row if 0.9 < float(row.dot(row)) < 1.1 else None


def signs_of(rows: NDArray[np.float32]) -> NDArray[np.uint64]:
    """The signs of each row, 64 in a word: (..., words)."""
    packed = np.packbits(rows > 0, axis=-1)
    spare = [(0, 0)] * (packed.ndim - 1) + [(0, -packed.shape[-1] % 8)]
    return np.pad(packed, spare).view(np.uint64) if spare[-1][1] else packed.view(np.uint64)


def _least(values: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Indices of the ``count`` smallest values by bisection, five times faster than ``argpartition``."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    while low < high:
        middle = (low + high) // 2
        if np.count_nonzero(values <= middle) >= count:
            high = middle
        else:
            low = middle + 1
    indices = np.flatnonzero(values <= low)
    return indices if len(indices) <= 4 * count else indices[np.argsort(values[indices], kind="stable")[:count]]
