"""Embeddings as a cache of answers holds them. Knows numpy alone: peers make the same in their environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIMENSION = 256
QUERIES = 300
NOISE = 0.6
"""How far a question is from the entry that it asks for again."""


class Searched(NamedTuple):
    """Entries in clusters, as paraphrases are, and noisy copies of some of them to search for."""

    rows: NDArray[np.float32]
    queries: NDArray[np.float32]
    nearest: list[int]
    """The row that is nearest to each query."""


def searched(many: int) -> Searched:
    """The same in each process."""
    rng = np.random.default_rng(7)
    centers = rng.standard_normal((max(10, many // 20), DIMENSION), dtype=np.float32)
    rows = centers[rng.integers(0, len(centers), many)]
    rows += 0.7 * rng.standard_normal((many, DIMENSION), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    noise = rng.standard_normal((QUERIES, DIMENSION), dtype=np.float32)
    noise *= NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
    queries = rows[rng.integers(0, many, QUERIES)] + noise
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    return Searched(rows, queries, (queries @ rows.T).argmax(axis=1).tolist())
