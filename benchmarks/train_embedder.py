"""Learns the table of ``HashedEmbedder`` from questions with the same intent and pairs that say the same.

    python -m benchmarks.train_embedder                                  # all rows, into the package
    python -m benchmarks.train_embedder --half T.npz                     # half of the rows, to check with the others
    python -m benchmarks.train_embedder --only clinc150 --into T.npz     # one set, to check with the other

A row of the table is a direction, a gain the weight of a feature. Both start as hashed tf-idf and then learn, so that
texts of one intent come nearer to each other than to others of their batch. A minute of one core.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routewright.backends.embed import DIMENSIONS, GAINS, ROWS, hash_pair, hashes, split, words_of

from .eval_cache import held_out, rows

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
TARGET = Path(__file__).parent.parent / "src" / "routewright" / "data" / "hashed_embedder.npz"
STEPS = 1_500
GROUPS, EACH, ALONE = 64, 4, 32
"""Of a batch: intents, texts of each, and texts whose intent no other has."""
TEMPERATURE = 0.05
DROPPED = 0.3
"""Share of the features that a batch does without."""
RATES = (1e-3, 3e-3)
"""Of directions and of the logarithms of gains."""
KEPT = 1e-5
"""Pull towards where they started."""
KINDS = (1.0, 0.3, 0.8)
"""Weights at the start: of words, parts of words, pairs of words."""


class Corpus:
    """The features of texts, one after the other."""

    def __init__(self, texts: Sequence[str]) -> None:
        found = [features(text) for text in texts]
        flat = [feature for text in found for feature in text]
        self.kinds = np.array([kind for _, kind, _ in flat])
        self.weights = np.array([weight for _, _, weight in flat], np.float32)
        hashed = np.array([feature for feature, _, _ in flat], np.uint32)
        one, other, sign, other_sign, gains = (part.astype(np.int64) for part in split(hashed))
        self.one, self.other, self.gains = one, other, gains
        self.sign, self.other_sign = (np.float32(1) - 2 * part.astype(np.float32) for part in (sign, other_sign))
        self.sizes = np.array([len(text) for text in found])
        self.starts = np.concatenate(([0], np.cumsum(self.sizes)))

    def of(self, texts: Ints) -> tuple[Ints, Ints]:
        """The features of some texts, and the place of each one's text among them."""
        at = np.concatenate([np.arange(self.starts[text], self.starts[text + 1]) for text in texts])
        return at, np.repeat(np.arange(len(texts)), self.sizes[texts])


class Table(NamedTuple):
    """What is learned."""

    directions: Floats  # (ROWS, DIMENSIONS)
    gains: Floats  # (GAINS,), their logarithms


def features(text: str) -> list[tuple[int, int, float]]:
    """The hash, the kind and the weight of each feature, as ``HashedEmbedder`` adds them up."""
    words, found = words_of(text), []
    for word in words:
        whole, *parts = hashes(word)
        found += [(whole, 0, 1.0), *((part, 1, len(parts) ** -0.5) for part in parts)]
    return found + [(hash_pair(*pair), 2, 1.0) for pair in pairwise(words)]


def initial(corpus: Corpus) -> Table:
    """Random directions, and the inverse document frequencies of features."""
    count = len(corpus.sizes)
    texts = np.repeat(np.arange(count), corpus.sizes)
    frequency = np.bincount(np.unique(texts * GAINS + corpus.gains) % GAINS, minlength=GAINS)
    kinds = [np.bincount(corpus.gains[corpus.kinds == kind], minlength=GAINS) + 1e-3 for kind in range(3)]
    rarity = np.log((count + 1) / (frequency + 2)).clip(0.05) / np.log(count)
    gains = rarity * (np.array(KINDS) @ (np.array(kinds) / np.sum(kinds, axis=0)))
    directions = np.random.default_rng(1).standard_normal((ROWS, DIMENSIONS)) / DIMENSIONS**0.5
    return Table(directions.astype(np.float32), np.log(gains).astype(np.float32))


def gradient(corpus: Corpus, table: Table, texts: Ints, labels: Ints, kept: Callable[[Ints], Any]) -> Table:
    """Of the contrastive loss of a batch: each text should find those of its label among all others."""
    at, place = corpus.of(texts)
    mask = kept(at)
    at, place = at[mask], place[mask]
    strength = corpus.weights[at] * np.exp(table.gains[corpus.gains[at]])
    cells = np.concatenate([place * ROWS + corpus.one[at], place * ROWS + corpus.other[at]])
    signed = np.concatenate([strength * corpus.sign[at], strength * corpus.other_sign[at]])
    counts = np.bincount(cells, signed, len(texts) * ROWS).reshape(len(texts), ROWS).astype(np.float32)
    sums = counts @ table.directions
    lengths = np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
    vectors = sums / lengths
    logits = vectors @ vectors.T / TEMPERATURE
    np.fill_diagonal(logits, -1e9)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    same = labels[:, None] == labels[None]
    np.fill_diagonal(same, val=False)
    wanted = chances * same
    total = wanted.sum(axis=1, keepdims=True)
    slope = np.where(same.any(axis=1, keepdims=True), chances - wanted / (total + 1e-9), 0) / len(texts) / TEMPERATURE
    of_vectors = (slope + slope.T) @ vectors
    of_sums = (of_vectors - vectors * (of_vectors * vectors).sum(axis=1, keepdims=True)) / lengths
    of_counts = of_sums @ table.directions.T
    pull = (
        corpus.sign[at] * of_counts[place, corpus.one[at]] + corpus.other_sign[at] * of_counts[place, corpus.other[at]]
    )
    of_gains = np.bincount(corpus.gains[at], strength * pull, GAINS)
    return Table((counts.T @ of_sums).astype(np.float32), of_gains.astype(np.float32))


def train(corpus: Corpus, labels: Sequence[str], steps: int = STEPS) -> Table:
    """Learn by Adam."""
    rng = np.random.default_rng(0)
    groups: dict[str, list[int]] = defaultdict(list)
    for text, label in enumerate(labels):
        groups[label].append(text)
    shared = [group for group in groups.values() if len(group) > 1]
    single = [group[0] for group in groups.values() if len(group) == 1]
    odds = np.array([min(len(group), 40) ** 0.5 for group in shared])
    start = initial(corpus)
    table: list[NDArray[Any]] = [array.copy() for array in start]
    means: list[NDArray[Any]] = [np.zeros_like(array) for array in table]
    squares = list(means)
    for step in range(1, steps + 1):
        chosen = rng.choice(len(shared), min(GROUPS, len(shared)), replace=False, p=odds / odds.sum())
        texts = [rng.choice(shared[group], min(EACH, len(shared[group])), replace=False) for group in chosen]
        of = [np.full(len(found), group) for group, found in zip(chosen, texts, strict=True)]
        alone = rng.choice(single, min(ALONE, len(single)), replace=False) if single else np.zeros(0, int)
        batch, names = np.concatenate([*texts, alone]), np.concatenate([*of, -1 - np.arange(len(alone))])
        slopes = gradient(corpus, Table(*table), batch, names, lambda at: rng.random(len(at)) >= DROPPED)
        for part, slope in enumerate(slopes):
            pulled = slope + KEPT * (table[part] - start[part])
            means[part] = 0.9 * means[part] + 0.1 * pulled
            squares[part] = 0.99 * squares[part] + 0.01 * pulled**2
            scale = np.sqrt(squares[part] / (1 - 0.99**step)) + 1e-6
            table[part] -= (RATES[part] * means[part] / (1 - 0.9**step) / scale).astype(np.float32)
    return Table(*table)


def main() -> None:
    """Learn, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", type=Path, metavar="FILE")
    parser.add_argument("--only", choices=["banking77", "clinc150"])
    parser.add_argument("--into", type=Path, default=TARGET)
    given = parser.parse_args()
    texts: list[str] = []
    labels: list[str] = []
    for name in [given.only] if given.only else ["banking77", "clinc150"]:
        seen = [row for row in rows(name) if not given.half or not held_out(row["text"])]
        texts += [row["text"] for row in seen]
        labels += [row["label"] for row in seen]
    for number, pair in enumerate(rows("paraphrases")):
        if not given.half or not held_out(pair["a"]):
            texts += [pair["a"], pair["b"]]
            labels += [f"pair {number}"] * 2
    learned = train(Corpus(texts), labels)
    scales = np.abs(learned.directions).max(axis=1) / 127
    directions = np.round(learned.directions / scales[:, None]).astype(np.int8)
    gains = np.exp(learned.gains).astype(np.float16)
    np.savez_compressed(given.half or given.into, directions=directions, scales=scales.astype(np.float16), gains=gains)


if __name__ == "__main__":
    main()
