"""Nearest-embedding search: exact for few entries, almost always exact for many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from routewright.backends.cache import search
from routewright.backends.cache.search import Vectors

Rows = NDArray[np.float32]


def paraphrases(many: int, dimension: int, seed: int = 7) -> Rows:
    """Embeddings in clusters, like those of paraphrases."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((max(10, many // 20), dimension), dtype=np.float32)
    rows = centers[rng.integers(0, len(centers), many)]
    rows += 0.7 * rng.standard_normal((many, dimension), dtype=np.float32)
    return unit(rows)


def unit(rows: Rows) -> Rows:
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    result: Rows = (rows / lengths).astype(np.float32)
    return result


def noisy(rows: Rows, seed: int = 8) -> Rows:
    rng = np.random.default_rng(seed)
    noise = unit(rng.standard_normal(rows.shape, dtype=np.float32))
    return unit(rows + np.float32(0.6) * noise)


def filled(rows: Rows) -> Vectors[int]:
    vectors = Vectors[int](rows.shape[1])
    for number, row in enumerate(rows):
        vectors.add(number, row)
    return vectors


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the search for large partitions from a few vectors on."""
    monkeypatch.setattr(search, "EXACT", 16 * 70)


class Walk:
    """Vectors and a dict side by side."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.vectors = Vectors[int](rows.shape[1])
        self.model: dict[int, Rows] = {}

    def step(self, number: int) -> None:
        """Add a vector, or remove it if it exists."""
        if number in self.model:
            del self.model[number]
            self.vectors.remove(number)
        else:
            self.model[number] = self.rows[number]
            self.vectors.add(number, self.rows[number])

    def check(self, query: Rows, limit: int) -> None:
        found = self.vectors.nearest(query, limit)
        best = sorted((float(row @ query) for row in self.model.values()), reverse=True)[:limit]
        assert [similarity for _, similarity in found] == pytest.approx(best, abs=1e-5)
        for key, similarity in found:
            assert float(self.model[key] @ query) == pytest.approx(similarity, abs=1e-5)


@given(st.lists(st.integers(0, 40), max_size=150), st.integers(1, 5))
def test_any_walk_finds_the_same_as_a_plain_scan(steps: list[int], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "EXACT", 16 * 70)
        walk = Walk(paraphrases(41, 70))
        query = noisy(walk.rows[:1])[0]
        for number in steps:
            walk.step(number)
        walk.check(query, limit)


def test_the_nearest_of_many_is_found_99_times_in_100(full: bool) -> None:
    many = 100_000 if full else 20_000
    rows = paraphrases(many, 256)
    vectors = filled(rows)
    assert vectors.is_quick
    queries = noisy(rows[:: many // 200])
    truth = (queries @ rows.T).argmax(axis=1)
    found = [vectors.nearest(query, 1)[0][0] for query in queries]
    assert np.mean(np.array(found) == truth) >= 0.99


def test_a_single_vector_takes_little_room_even_after_others_were_removed() -> None:
    vectors = filled(paraphrases(1_000, 256))
    assert vectors._matrix.nbytes <= 1.125 * 1_024 * 1_001
    for number in range(999):
        vectors.remove(number)
    assert vectors._matrix.nbytes <= 2_048


@pytest.mark.usefixtures("small")
def test_a_row_removed_after_candidates_were_chosen_is_left_out() -> None:
    vectors = filled(paraphrases(10, 200))
    query = paraphrases(1, 200)[0]
    rows = vectors.candidates(query, 10)
    assert rows is not None
    for number in range(5, 10):
        vectors.remove(number)
    assert {key for key, _ in vectors.score(rows, query, 10)} == set(range(5))
