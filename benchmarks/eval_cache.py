"""Does the semantic cache keep its bound on wrong answers, and how many requests does it answer?

    python -m benchmarks.eval_cache                # ten seeds, some minutes
    python -m benchmarks.eval_cache --quick        # two seeds of the smaller streams, under a minute
    python -m benchmarks.eval_cache --table T.npz  # only rows that ``train_embedder --half T.npz`` did not see

Each row of a stream asks once. Its label is the answer: a hit is right if the entry has the same. What is not served
is answered live and kept. The functions are those of the library. One line of JSON a figure; ``hindsight`` is the best
fixed threshold of similarity, chosen after the stream was seen, for the same bound and in the same cache.
"""

from __future__ import annotations

import argparse
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from routewright._core.cache.calibration import Bound, Calibration
from routewright._core.cache.guards import Offer, offer
from routewright.backends.embed import HashedEmbedder
from routewright.wire import CachedAnswer, CacheEntry, CacheMatch, Observation

DATA = Path(__file__).parent.parent / "tests" / "data"
FILES = {
    "banking77": DATA / "intent_banking77.jsonl.gz",
    "clinc150": DATA / "cache" / "intent_clinc150.jsonl.gz",
    "paws": DATA / "cache" / "pairs_paws_wiki.jsonl.gz",
    "paraphrases": DATA / "cache" / "paraphrase_gptcache_mock.jsonl.gz",
}
BOUNDS = (0.01, 0.02, 0.05)
LIMIT = 6
"""Neighbours that are looked at."""
FAR = 500
"""Neighbours of each row that are known beforehand; where these do not do, all are searched."""
Ints = NDArray[np.int64]


class Embeds(Protocol):
    """An embedder that does not wait."""

    def embed(self, text: str) -> Any: ...


class Played(NamedTuple):
    """What became of each request of a stream, in order."""

    hit: NDArray[np.bool_]
    wrong: NDArray[np.bool_]

    def half(self) -> Played:
        """The second half."""
        start = len(self.hit) // 2
        return Played(self.hit[start:], self.wrong[start:])


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a file."""
    with gzip.open(FILES[name], "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def held_out(text: str) -> bool:
    """True for the half that ``train_embedder --half`` does not see."""
    return zlib.crc32(text.encode()) % 2 == 1


def entry(number: int, text: str, answer: str) -> CacheEntry:
    """A cached answer, found again by its number."""
    kept = CachedAnswer(answer, "stop", "model", "provider")
    return CacheEntry(str(number), "account", "production", b"", b"", kept, 0, 0.0, 0.0, prompt=text)


class Stream:
    """Questions and their labels, embedded, with the neighbours of each. ``free``: no two answers are the same text."""

    def __init__(self, texts: Sequence[str], labels: Sequence[str], embedder: Embeds, *, free: bool = False) -> None:
        self.texts = texts
        self.labels = np.unique(labels, return_inverse=True)[1]
        self.vectors = np.array([embedder.embed(text) for text in texts], np.float32)
        answers = [f"{label} {number}" if free else label for number, label in enumerate(labels)]
        self._entries = [entry(n, text, answer) for n, (text, answer) in enumerate(zip(texts, answers, strict=True))]
        far = min(FAR, len(texts) - 1)
        self._near = np.empty((len(texts), far), np.int64)
        self._similar = np.empty((len(texts), far), np.float32)
        for start in range(0, len(texts), 512):
            similar = self.vectors[start : start + 512] @ self.vectors.T
            similar[np.arange(len(similar)), np.arange(start, start + len(similar))] = -2
            near = np.argpartition(-similar, far - 1, axis=1)[:, :far]
            similar = np.take_along_axis(similar, near, 1)
            order = np.argsort(-similar, axis=1)
            self._near[start : start + 512] = np.take_along_axis(near, order, 1)
            self._similar[start : start + 512] = np.take_along_axis(similar, order, 1)

    def matches(self, row: int, kept: NDArray[np.bool_], count: int) -> list[CacheMatch]:
        """The nearest of the rows that are kept, of which there are ``count``."""
        found = np.flatnonzero(kept[self._near[row]])[:LIMIT]
        if len(found) == min(LIMIT, count):
            return [CacheMatch(self._entries[self._near[row, at]], float(self._similar[row, at])) for at in found]
        all_kept = np.flatnonzero(kept)
        similar = self.vectors[all_kept] @ self.vectors[row]
        return [CacheMatch(self._entries[all_kept[at]], float(similar[at])) for at in np.argsort(-similar)[:LIMIT]]

    def play(
        self,
        order: Ints,
        bound: Bound,
        seed: int,
        calibration: Calibration | None = None,
        watch: Callable[[Offer, bool], None] | None = None,
    ) -> Played:
        """Ask in an order, as the engine does. ``watch`` is told of each offer, and whether it was right."""
        calibration = calibration or Calibration()
        draws = np.random.default_rng(seed).random(len(order))
        kept, count = np.zeros(len(self.texts), bool), 0
        played = Played(np.zeros(len(order), bool), np.zeros(len(order), bool))
        for at, row in enumerate(order):
            calibration.count()
            made = offer(self.texts[row], self.matches(row, kept, count), calibration, bound)
            if made.match is not None:
                right = bool(self.labels[int(made.match.entry.id)] == self.labels[row])
                if watch is not None:
                    watch(made, right)
                if draws[at] < made.serve:
                    played.hit[at], played.wrong[at] = True, not right
                    continue
                calibration.learn(Observation(made.features, right, 1 / (1 - made.serve)))
            kept[row] = True
            count += 1
        return played

    def hindsight(self, order: Ints, bounds: Sequence[float]) -> list[float]:
        """Hits of the best fixed threshold for each bound, where every question is kept."""
        best, right = np.full(len(order), -1.0), np.zeros(len(order), bool)
        vectors, labels = self.vectors[order], self.labels[order]
        for start in range(0, len(order), 512):
            end = min(start + 512, len(order))
            similar = vectors[start:end] @ vectors[:end].T
            similar[np.arange(end) >= np.arange(start, end)[:, None]] = -1
            nearest = similar.argmax(1)
            best[start:end] = similar[np.arange(end - start), nearest]
            right[start:end] = labels[nearest] == labels[start:end]
        by_similarity = np.argsort(-best)
        wrong = np.cumsum(~right[by_similarity]) / len(order)
        return [float((wrong <= bound).sum()) / len(order) for bound in bounds]


def shuffled(stream: Stream, seed: int) -> Ints:
    """All rows in any order."""
    return np.random.default_rng(seed).permutation(len(stream.labels))


def drifting(stream: Stream, seed: int) -> Ints:
    """Half of the labels first, then the others: the topics change midway."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(stream.labels.max() + 1)
    first = np.isin(stream.labels, labels[: len(labels) // 2])
    return np.concatenate([rng.permutation(np.flatnonzero(first)), rng.permutation(np.flatnonzero(~first))])


def figures(name: str, stream: Stream, order: Callable[[Stream, int], Ints], seeds: int) -> Iterator[dict[str, Any]]:
    """Hits and errors for each bound, over seeds."""
    orders = [order(stream, seed) for seed in range(seeds)]
    best = np.mean([stream.hindsight(ordered, BOUNDS) for ordered in orders[:3]], axis=0)
    for bound, hindsight in zip(BOUNDS, best, strict=True):
        played = [stream.play(ordered, Bound(bound), seed) for seed, ordered in enumerate(orders)]
        late = [one.half() for one in played]
        yield {
            "stream": name,
            "bound": bound,
            "hits": _mean([one.hit for one in played]),
            "hits_late": _mean([one.hit for one in late]),
            "hindsight": round(float(hindsight), 4),
            "errors": _mean([one.wrong for one in played]),
            "errors_late": _mean([one.wrong for one in late]),
            "worst": round(max(float(one.wrong.mean()) for one in played), 5),
            "worst_late": round(max(float(one.wrong.mean()) for one in late), 5),
            "mean_of_bound_late": round(float(np.mean([one.wrong.mean() for one in late])) / bound, 2),
            "worst_of_bound_late": round(max(float(one.wrong.mean()) for one in late) / bound, 2),
            "seeds": seeds,
            "requests": len(orders[0]),
        }


def _mean(shares: Sequence[NDArray[np.bool_]]) -> float:
    return round(float(np.mean([share.mean() for share in shares])), 5)


def pair_offer(pair: dict[str, Any], embedder: Embeds, calibration: Calibration) -> Offer:
    """What is offered where one of a pair is kept and the other is asked."""
    similarity = float(np.dot(embedder.embed(pair["a"]), embedder.embed(pair["b"])))
    kept = CacheMatch(entry(0, pair["a"], "answer"), similarity)
    return offer(pair["b"], [kept], calibration, Bound())


def paws(embedder: Embeds, folds: int = 5) -> dict[str, Any]:
    """How well the probability tells paraphrases from word swaps. What a guard refuses has probability 0."""
    pairs = rows("paws")
    right = np.array([pair["label"] == 1 for pair in pairs])
    similar = [float(np.dot(embedder.embed(pair["a"]), embedder.embed(pair["b"]))) for pair in pairs]
    fresh = np.array([pair_offer(pair, embedder, Calibration()).probability for pair in pairs])
    trained = np.zeros(len(pairs))
    for fold in range(folds):
        calibration = Calibration()
        for number, pair in enumerate(pairs):
            made = pair_offer(pair, embedder, calibration) if number % folds != fold else None
            if made is not None and made.features:  # not the same words
                calibration.learn(Observation(made.features, bool(right[number]), 1.0))
        for number in range(fold, len(pairs), folds):
            trained[number] = pair_offer(pairs[number], embedder, calibration).probability
    return {
        "pairs": "paws",
        "auc": round(auc(fresh, right), 3),
        "auc_trained": round(auc(trained, right), 3),
        "auc_cosine": round(auc(np.array(similar), right), 3),
        "positives_passed_by_guards": round(float((fresh[right] > 0).mean()), 3),
        "negatives_passed_by_guards": round(float((fresh[~right] > 0).mean()), 3),
    }


def auc(scores: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """The chance that a right one has the higher score; ties count half."""
    values, where = np.unique(scores, return_inverse=True)
    wrong_at, right_at = (
        np.bincount(where[~right], minlength=len(values)),
        np.bincount(where[right], minlength=len(values)),
    )
    below = np.cumsum(wrong_at) - wrong_at
    return float((right_at * (below + wrong_at / 2)).sum() / (right.sum() * (~right).sum()))


def paraphrases(embedder: Embeds, bound: Bound, *, half: bool = False) -> dict[str, Any]:
    """One of each pair is asked, then the other of each."""
    pairs = [pair for pair in rows("paraphrases") if not half or held_out(pair["a"])]
    texts = [pair[side] for side in "ab" for pair in pairs]
    stream = Stream(texts, [str(number) for _ in "ab" for number in range(len(pairs))], embedder, free=True)
    passed: list[bool] = []
    played = stream.play(np.arange(len(texts)), bound, 0, watch=lambda made, right: passed.append(right))
    late = played.half()
    return {
        "pairs": "paraphrases",
        "bound": bound.max_error,
        "threshold": bound.threshold,
        "hits": round(float(late.hit.mean()), 3),
        "wrong": round(float(played.wrong.mean()), 5),
        "passed_by_guards": round(sum(passed) / len(pairs), 3),
    }


def streams(
    embedder: Embeds, *, half: bool, mixed: bool
) -> Iterator[tuple[str, Stream, Callable[[Stream, int], Ints]]]:
    """The streams to play, one after the other."""
    chosen = {
        name: [row for row in rows(name) if not half or held_out(row["text"])] for name in ("banking77", "clinc150")
    }
    if mixed:
        chosen["mixed"] = [row for part in chosen.values() for row in part]
    for name, part in chosen.items():
        texts, labels = [row["text"] for row in part], [row["label"] for row in part]
        stream = Stream(texts, labels, embedder)
        yield name, stream, shuffled
        yield f"{name}, drifting", stream, drifting
        if mixed and name != "mixed":
            yield f"{name}, free answers", Stream(texts, labels, embedder, free=True), shuffled


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--embedder", choices=["hashed"], default="hashed")
    parser.add_argument("--table", type=Path, help="of train_embedder --half: only rows it did not see are played")
    given = parser.parse_args()
    embedder = HashedEmbedder(given.table)
    for name, stream, order in streams(embedder, half=given.table is not None, mixed=not given.quick):
        for figure in figures(name, stream, order, given.seeds or (2 if given.quick else 10)):
            print(json.dumps(figure), flush=True)
    print(json.dumps(paws(embedder)), flush=True)
    for bound in (Bound(), Bound(0.05), Bound(threshold=0.8)):
        print(json.dumps(paraphrases(embedder, bound, half=given.table is not None)), flush=True)


if __name__ == "__main__":
    main()
