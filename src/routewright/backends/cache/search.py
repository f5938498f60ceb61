"""Which embeddings of one partition are nearest to a question?

Up to ``EXACT`` numbers all rows are compared. Above that the signs of the numbers choose candidates, and the candidates
are compared exactly. Nothing here locks: the caller does.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from routewright.protocols import Vector

K = TypeVar("K", bound=Hashable)

BLOCK = 16_384
"""Rows of a block. The first grows to it by doubling; further ones have this size, so that no row is copied again."""
EXACT = 3_000_000
"""Numbers of a partition, rows times dimension, up to which all are compared: 0.2 ms."""
COUNTS_BITS = hasattr(np, "bitwise_count")
"""numpy 2 counts bits. Before, a table does, ten times slower."""
QUICK = 32_000_000 if COUNTS_BITS else EXACT
"""Numbers of a partition up to which a search takes less than a millisecond."""
CANDIDATES = 128
"""Rows whose signs differ least, to compare exactly. Half of the signs choose eight times as many before."""


class Vectors(Generic[K]):
    """The embeddings of one partition, each of length 1, by key.

    >>> vectors = Vectors[str](2)
    >>> vectors.add("north", [0.0, 1.0])
    >>> vectors.nearest(vector_of([0.6, 0.8]), 1)
    [('north', 0.8)]
    """

    __slots__ = ("_blocks", "_rows", "_signs", "dimension", "keys")

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.keys: list[K] = []
        """By row."""
        self._rows: dict[K, int] = {}
        self._blocks: list[NDArray[np.float32]] = []  # each (rows, dimension)
        self._signs: NDArray[np.uint64] | None = None  # (words, rows) once there are too many to compare all

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, key: K) -> bool:
        return key in self._rows

    @property
    def is_quick(self) -> bool:
        """True if a search takes less than a millisecond."""
        return len(self.keys) * self.dimension <= QUICK

    def add(self, key: K, vector: NDArray[np.float32] | list[float]) -> None:
        """Add a vector under a new key."""
        row = len(self.keys)
        if not self._blocks or row == (len(self._blocks) - 1) * BLOCK + len(self._blocks[-1]):
            self._grow(row)
        self._blocks[row // BLOCK][row % BLOCK] = vector
        if self._signs is not None or (row + 1) * self.dimension > EXACT:
            self._sign(row)
        self._rows[key] = row
        self.keys.append(key)

    def remove(self, key: K) -> None:
        """Remove a vector that is there. The last one takes its row."""
        row, last = self._rows.pop(key), self.keys.pop()
        end = len(self.keys)
        if row != end:
            self.keys[row] = last
            self._rows[last] = row
            self._blocks[row // BLOCK][row % BLOCK] = self._blocks[end // BLOCK][end % BLOCK]
            if self._signs is not None:
                self._signs[:, row] = self._signs[:, end]
        if end % BLOCK == 0:
            self._blocks.pop()
        elif 4 * end <= len(self._blocks[0]):
            self._resize(end, 2 * end)
        if 2 * end * self.dimension < EXACT:
            self._signs = None

    def vector(self, key: K) -> NDArray[np.float32]:
        """The vector of a key."""
        row = self._rows[key]
        found: NDArray[np.float32] = self._blocks[row // BLOCK][row % BLOCK]
        return found

    def nearest(self, query: NDArray[np.float32], limit: int) -> list[tuple[K, float]]:
        """Keys and similarities of the nearest, the nearest first."""
        if self._signs is not None:
            return self.score(self.candidates(query, limit), query, limit)
        count = len(self.keys)
        near = [block[: count - start] @ query for start, block in zip(self._starts(), self._blocks, strict=True)]
        return [(self.keys[row], similarity) for row, similarity in _best(near, limit)]

    def candidates(self, query: NDArray[np.float32], limit: int) -> NDArray[np.intp]:
        """Rows that may be among the nearest. Others may add and remove meanwhile: ``score`` looks again."""
        count, signs = len(self.keys), self._signs
        if signs is None:  # most have just been removed
            return np.arange(count)
        words, signs, many = signs_of(query), signs[:, :count], max(CANDIDATES, 4 * limit)
        half = (len(words) + 1) // 2
        rough = _least(_differences(words[:half], signs[:half]), 8 * many)
        return rough[_least(_differences(words, signs[:, rough]), many)]

    def score(self, rows: NDArray[np.intp], query: NDArray[np.float32], limit: int) -> list[tuple[K, float]]:
        """Keys and similarities of the nearest among these rows, the nearest first."""
        rows = np.sort(rows[rows < len(self.keys)])
        parts = np.split(rows, np.searchsorted(rows, self._starts()[1:]))
        near = [block[part % BLOCK] @ query for block, part in zip(self._blocks, parts, strict=True)]
        return [(self.keys[rows[place]], similarity) for place, similarity in _best(near, limit)]

    def _starts(self) -> range:
        return range(0, len(self._blocks) * BLOCK, BLOCK)

    def _grow(self, row: int) -> None:
        if row and row < BLOCK:
            self._resize(row, 2 * row)
        else:
            self._blocks.append(np.empty((BLOCK if row else 1, self.dimension), np.float32))

    def _resize(self, used: int, rows: int) -> None:
        """Give the first block, the only one, another size."""
        sized = np.empty((rows, self.dimension), np.float32)
        sized[:used] = self._blocks[0][:used]
        self._blocks[0] = sized

    def _sign(self, row: int) -> None:
        """Note the signs of a row, or of all rows at first."""
        if self._signs is None:
            self._signs = np.ascontiguousarray(np.concatenate([signs_of(block).T for block in self._blocks], axis=1))
            return
        if row >= self._signs.shape[1]:
            grown = np.zeros((self._signs.shape[0], 2 * row), np.uint64)
            grown[:, :row] = self._signs
            self._signs = grown
        self._signs[:, row] = signs_of(self._blocks[row // BLOCK][row % BLOCK])


def vector_of(vector: Vector) -> NDArray[np.float32]:
    """An embedding as an array: (dimension,) float32."""
    return np.asarray(vector, np.float32)


def unpacked(vector: bytes | None) -> NDArray[np.float32] | None:
    """An embedding as an entry holds it. None: there is none, or it has no direction and would be near to all."""
    if not vector or len(vector) % 4:
        return None
    row: NDArray[np.float32] = np.frombuffer(vector, "<f4")
    return row if 0.9 < float(row.dot(row)) < 1.1 else None


def signs_of(rows: NDArray[np.float32]) -> NDArray[np.uint64]:
    """The signs of each row, 64 in a word: (..., words)."""
    packed = np.packbits(rows > 0, axis=-1)
    spare = [(0, 0)] * (packed.ndim - 1) + [(0, -packed.shape[-1] % 8)]
    return np.pad(packed, spare).view(np.uint64) if spare[-1][1] else packed.view(np.uint64)


def _best(parts: list[NDArray[np.float32]], limit: int) -> list[tuple[int, float]]:
    """Places and values of the greatest of several parts together, the greatest first. It overwrites them."""
    if not parts:
        return []
    values = parts[0] if len(parts) == 1 else np.concatenate(parts)
    best = []
    for _ in range(min(limit, len(values))):  # for a few, ten times faster than a partition
        place = int(values.argmax())
        best.append((place, float(values[place])))
        values[place] = -inf
    return best


def _differences(words: NDArray[np.uint64], signs: NDArray[np.uint64]) -> NDArray[Any]:
    """How many signs of each row differ from those of the query: (rows,)."""
    # 256 wraps to 0 in a byte, which makes the opposite a candidate, and no more
    total: NDArray[Any] = np.zeros(signs.shape[1], np.uint8 if len(words) <= 4 else np.uint16)
    for column, word in zip(signs, words, strict=True):
        total += _ones(column ^ word)
    return total


def _least(differences: NDArray[Any], many: int) -> NDArray[np.intp]:
    """Where the ``many`` least are, by halving the bound: five times faster than a partition."""
    low, high = int(differences.min()), int(differences.max())
    while low < high:
        middle = (low + high) // 2
        if np.count_nonzero(differences <= middle) >= many:
            high = middle
        else:
            low = middle + 1
    found = np.flatnonzero(differences <= low)
    return found if len(found) <= 4 * many else found[np.argsort(differences[found], kind="stable")[:many]]


def _ones(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """How many bits of each word are set."""
    if COUNTS_BITS:
        return np.bitwise_count(words)
    counted: NDArray[np.uint8] = _table()[words.view(np.uint16)].reshape(-1, 4).sum(axis=1, dtype=np.uint8)
    return counted


@lru_cache
def _table() -> NDArray[np.uint8]:
    return np.array([value.bit_count() for value in range(1 << 16)], np.uint8)
