"""Learns the weights of the built-in predictor from prompts of which it is known which models answered them rightly.

    python -m benchmarks.train_predictor                 # all rows, into the package
    python -m benchmarks.train_predictor --into P.npz    # elsewhere

Ten seconds of one core, and the same weights each time. ``eval_routing`` uses the same functions on its folds. Naive
Bayes over words and pairs of them says how likely a prompt is of each domain; ridge regressions over that and over what
the text looks like say how hard it is.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections import Counter
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routewright._core.routing.predict import COORDINATES, TOPICS, Predictor, Vocabulary, looks, seen, strangeness

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Arrays = dict[str, NDArray[Any]]
DATA = Path(__file__).parent.parent / "tests" / "data"
TARGET = Path(__file__).parent.parent / "src" / "routewright" / "data" / "predictor.npz"
WEAK, STRONG = "Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"
SUBJECTS = {
    "math": "abstract_algebra high_school_mathematics",
    "science": "astronomy college_chemistry college_physics high_school_biology high_school_chemistry "
    "high_school_physics",
    "medicine": "anatomy clinical_knowledge medical_genetics nutrition virology",
    "law": "international_law jurisprudence professional_law",
    "humanities": "formal_logic high_school_world_history moral_disputes moral_scenarios prehistory world_religions",
    "social": "high_school_geography professional_psychology public_relations security_studies sociology "
    "us_foreign_policy",
    "business": "business_ethics econometrics high_school_macroeconomics high_school_microeconomics management "
    "marketing professional_accounting",
    "code": "computer_security high_school_computer_science",
}
"""Topics of MMLU's subjects; the others have none."""
TOPIC_OF = {subject: topic for topic, subjects in SUBJECTS.items() for subject in subjects.split()}

RARE = (2, 4)
"""Texts that a word or a pair must occur in: of few rows, and of more than ``MANY``."""
MANY = 3_000
RIDGE = (4.0, 15.0)
"""Of the two coordinates."""
SMOOTH = 0.1
"""What a word that a domain never has counts there."""
LOOKS = 0.15
"""What a standard deviation of what a text looks like weighs beside the certainty that it is of one domain."""
OWN_DIFFICULTY = 1.5
"""Variance of the difficulty that no text shows, in squared log-odds."""
NOVELTY = (0.9, 0.995)
"""A prompt is familiar up to this quantile of training's own shares of unknown pairs of words, and new from that on."""
STEP = 0.3
"""Steps of the grid, in standard deviations of a coordinate."""
PULL = 5.0
"""Of a model's slopes towards those of a model of which nothing but its prior is known."""


class Rows(NamedTuple):
    """Prompts, the domain and topic of each, and what models made of them."""

    texts: list[str]
    domains: NDArray[np.str_]
    topics: Ints
    """Places in ``TOPICS``; -1: none."""
    right: Floats
    """(rows, models): 1 right, 0 wrong, nan unknown."""

    def where(self, mask: Bools) -> Rows:
        """Some of them."""
        at = np.flatnonzero(mask)
        return Rows([self.texts[row] for row in at], self.domains[at], self.topics[at], self.right[at])


def load(name: str) -> list[dict[str, Any]]:
    """The rows of a file."""
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@lru_cache
def pool() -> list[dict[str, str]]:
    """The models of ``multi_zeroeval`` with their prices."""
    with (DATA / "multi_models.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@lru_cache
def models() -> tuple[str, ...]:
    """Columns of ``Rows.right``."""
    return (*(model["model"] for model in pool()), WEAK, STRONG)


def rows(*files: str) -> Rows:
    """Rows of files, one for each prompt: where two files have it, it has the outcomes of both."""
    place = {name: column for column, name in enumerate(models())}
    found: dict[str, tuple[str, str, Floats]] = {}
    for name in files:
        for row in load(name):
            text = row.get("prompt") or row["text"]
            domain = row.get("domain") or row.get("task") or name
            domain = {"gsm": "gsm8k", "math-l5": "math"}.get(domain, domain)
            topic = {"gsm8k": "math", "math": "math", "intent_banking77": "support"}.get(domain, TOPIC_OF.get(domain))
            topic = "chat" if domain.endswith("clinc150") else topic
            _, _, right = found.setdefault(text, (domain, topic or "", np.full(len(place), np.nan)))
            if "correct" in row:
                right[: len(pool())] = [float(digit) for digit in row["correct"]]
            elif "weak" in row:
                right[place[WEAK]] = row.get("weak_regraded", row["weak"])
                right[place[STRONG]] = row.get("strong_regraded", row["strong"])
    topics = [TOPICS.index(topic) if topic else -1 for _, topic, _ in found.values()]
    return Rows(
        list(found),
        np.array([domain for domain, _, _ in found.values()]),
        np.array(topics, np.int64),
        np.array([right for _, _, right in found.values()]),
    )


@cache
def looked(text: str) -> tuple[list[bytes], NDArray[np.float32], tuple[Any, ...]]:
    """The words of a text, what it looks like, and its words and pairs, each once."""
    words, _, surface = seen(text)
    return words, surface, tuple(dict.fromkeys([*words, *pairwise(words)]))


class Words:
    """The words and pairs of texts that enough of them have, as a sparse matrix whose rows have length 1."""

    def __init__(self, rows: Rows) -> None:
        labelled = labelled_of(rows)
        texts: Counter[Any] = Counter()
        with_outcome: Counter[Any] = Counter()
        for text, known in zip(rows.texts, labelled, strict=True):
            texts.update(looked(text)[2])
            if known:
                with_outcome.update(looked(text)[2])
        rare = RARE[len(rows.texts) > MANY]
        kept = [gram for gram, count in texts.items() if count >= (rare if with_outcome[gram] >= rare else 3 * rare)]
        self.words = sorted(gram for gram in kept if isinstance(gram, bytes))
        place = {word: at for at, word in enumerate(self.words, 1)}
        pairs = sorted((place[gram[0]], place[gram[1]]) for gram in kept if isinstance(gram, tuple))
        self.pairs = np.array(pairs, np.int32).reshape(-1, 2)
        grams = [*self.words, *[(self.words[one - 1], self.words[other - 1]) for one, other in pairs]]
        self.rarity: Floats = np.log((len(rows.texts) + 1) / (np.array([texts[gram] for gram in grams]) + 0.5))
        self.labelled = np.array([with_outcome[gram] >= rare for gram in grams])
        vocabulary = Vocabulary(self.words, self.pairs)
        found = [vocabulary.find(looked(text)[0]) for text in rows.texts]
        distinct = [np.unique(np.concatenate(both)) for both in found]
        distinct = [ids[ids > 0] - 1 for ids in distinct]
        self.ids = np.concatenate(distinct)
        self.at = np.repeat(np.arange(len(found)), [len(ids) for ids in distinct])
        self.shape = len(found), len(grams)
        norm = np.sqrt(np.bincount(self.at, self.rarity[self.ids] ** 2, len(found)))
        self.values = self.rarity[self.ids] / norm[self.at]
        enough = np.array([texts[gram] > rare for gram in grams])
        known_pairs = [np.concatenate(([False], enough))[pairs] for _, pairs in found]
        self.strange = np.array([strangeness(each) for each in known_pairs])
        """The share of pairs of words in each text that too few of the other texts have."""

    def evidence(self, domains: Ints, count: int, used: Bools) -> Floats:
        """What each word says for each domain, (words, domains): naive Bayes over the rows that are used."""
        words = self.shape[1]
        mask = used[self.at]
        place = domains[self.at[mask]] * words + self.ids[mask]
        heard = np.bincount(place, self.values[mask], count * words).reshape(count, words) + SMOOTH
        said = np.log(heard / heard.sum(axis=1, keepdims=True))
        return np.asarray((said - said.mean(axis=0)).T)

    def belief(self, evidence: Floats) -> Floats:
        """The probability of each domain, (rows, domains)."""
        scores = [np.bincount(self.at, self.values * column[self.ids], self.shape[0]) for column in evidence.T]
        odds = np.exp(np.array(scores).T)
        return np.asarray(odds / odds.sum(axis=1, keepdims=True), np.float64)


def ridge(design: Floats, response: Floats, weight: Floats, pull: float) -> Floats:
    """Weights of a ridge regression; the last column is a 1, and is not pulled."""
    pulls = np.full(design.shape[1], pull)
    pulls[-1] = 1e-3
    weighted = design * weight[:, None]
    return np.asarray(np.linalg.solve(weighted.T @ design + np.diag(pulls), weighted.T @ response), np.float64)


def sigmoid(odds: Floats) -> Floats:
    """The probability of log-odds."""
    return 1 / (1 + np.exp(-np.clip(odds, -30, 30)))


def labelled_of(rows: Rows) -> Bools:
    """True for rows of which an outcome is known."""
    return np.asarray((~np.isnan(rows.right)).any(axis=1))


def learn(design: Floats, right: Floats, abilities: Floats) -> tuple[Floats, Floats]:
    """Weights of the two coordinates."""
    known = ~np.isnan(right)
    answers = np.where(known, right, 0.0)
    ease = np.zeros(len(right))
    weights = ease
    for _ in range(2):
        chance = sigmoid(abilities + ease[:, None])
        curve = (known * chance * (1 - chance)).sum(axis=1) + 1e-6
        response = ease + np.clip((known * (answers - chance)).sum(axis=1) / curve, -4, 4)
        weight = np.where(known.any(axis=1), 1 / (1 / curve + OWN_DIFFICULTY), 0.0)
        weights = ridge(design, response, weight, RIDGE[0])
        ease = design @ weights
    return weights, ridge(design, *spread_of(right, abilities), RIDGE[1])


def spread_of(right: Floats, abilities: Floats) -> tuple[Floats, Floats]:
    """By how much abler models did better in each row: the slope of outcomes over abilities, and what it weighs."""
    known = ~np.isnan(right)
    count = known.sum(axis=1)
    centred = np.where(known, abilities - (known @ abilities / np.maximum(count, 1))[:, None], 0.0)
    room = (centred**2).sum(axis=1)
    enough = (count > 1) & (room > 0)
    slope = (centred * np.where(known, right, 0.0)).sum(axis=1) / np.where(enough, room, 1.0)
    mean = slope[enough].mean()
    return np.where(enough, slope - mean, 0.0), enough.astype(float)


def abilities_of(right: Floats) -> Floats:
    """The log-odds of each model, as if all had seen the same rows: by alternating steps over rows and models."""
    known = ~np.isnan(right)
    answers = np.where(known, right, 0.0)
    ability, ease = np.zeros(right.shape[1]), np.zeros(len(right))
    for _ in range(50):
        chance = sigmoid(ability + ease[:, None])
        curve, off = known * chance * (1 - chance), known * (answers - chance)
        ability = ability + off.sum(axis=0) / (curve.sum(axis=0) + 1.0)
        ease = ease + (off.sum(axis=1) - ease / OWN_DIFFICULTY) / (curve.sum(axis=1) + 1 / OWN_DIFFICULTY)
        ability = ability + ease.mean()
        ease = ease - ease.mean()
    return ability


def position(coordinates: Floats, right: Floats, start: Floats) -> Floats:
    """A model's log-odds at the middle of the grid and its slopes, near ``start``."""
    design = np.column_stack([np.ones(len(coordinates)), coordinates])
    pull = np.diag([1e-3, *[PULL] * coordinates.shape[1]])
    found = start.copy()
    for _ in range(40):
        chance = sigmoid(design @ found)
        curve = (design.T * (chance * (1 - chance))) @ design + pull
        found = found + np.clip(np.linalg.solve(curve, design.T @ (right - chance) - pull @ (found - start)), -0.5, 0.5)
    return found


def fit(rows: Rows, *, folds: int = 5) -> tuple[Arrays, Floats]:
    """The predictor's arrays, and for each model its log-odds of being right in the middle of the grid."""
    known = labelled_of(rows)
    surface = np.array([looked(text)[1] for text in rows.texts])
    arrays: Arrays = {
        "surface_mean": surface[known].mean(axis=0),
        "surface_scale": surface[known].std(axis=0) + np.float32(1e-3),
    }
    abilities = abilities_of(rows.right)
    words = Words(rows)
    names, domains = np.unique(rows.domains, return_inverse=True)
    part = np.random.default_rng(7).permutation(len(rows.texts)) % folds
    belief = np.zeros((len(rows.texts), len(names)))
    for fold in range(folds):
        belief[part == fold] = words.belief(words.evidence(domains, len(names), part != fold))[part == fold]
    design = np.hstack([belief, LOOKS * looks(surface, arrays), np.ones((len(belief), 1))])
    unseen = np.zeros((len(rows.texts), COORDINATES))
    for fold in range(folds):
        right = np.where((part == fold)[:, None], np.nan, rows.right)
        for at, weights in enumerate(learn(design, right, abilities)):
            unseen[part == fold, at] = design[part == fold] @ weights
    coordinates = np.array(learn(design, rows.right, abilities))
    middle, size = unseen[known].mean(axis=0), unseen[known].std(axis=0) + 1e-6
    unseen = unseen - middle
    coordinates[:, -1] -= middle
    # the first coordinate is stretched until most models have slope 1 along it
    seen_by = [np.flatnonzero(~np.isnan(column)) for column in rows.right.T]
    trained = [at for at, which in enumerate(seen_by) if len(which)]
    flat = np.array([0.0, 1.0, 0.0])
    first = [position(unseen[seen_by[at]], rows.right[seen_by[at], at], flat)[1] for at in trained]
    stretch = max(float(np.average(first, weights=[len(seen_by[at]) for at in trained])), 0.0)
    unseen[:, 0] *= stretch
    coordinates[0] *= stretch
    size[0] *= stretch
    positions = np.tile(flat, (len(seen_by), 1))
    for at in trained:
        positions[at] = position(unseen[seen_by[at]], rows.right[seen_by[at], at], flat)
    trained_on = np.array([positions[at, 0] for at in trained])
    slope = float(trained_on @ [positions[at, 2] for at in trained]) / (float(trained_on @ trained_on) + 1.0)
    evidence = words.evidence(domains, len(names), np.ones(len(belief), bool))
    scale = np.abs(evidence).max() / 127 + 1e-9
    pulled = np.concatenate((np.ones(len(names)), np.full(surface.shape[1], LOOKS), [1.0]))
    return {
        **arrays,
        "evidence": np.round(evidence / scale).astype(np.int8),
        "evidence_scale": np.array([scale], np.float32),
        "topics": topics_of(rows, domains, len(names)),
        "coordinates": (coordinates * pulled).T.astype(np.float32),
        "words": np.frombuffer(b"\n".join(words.words), np.uint8),
        "pairs": words.pairs,
        "rarity": words.rarity.astype(np.float16),
        "labelled": words.labelled,
        "steps": np.maximum(size * STEP, 1e-3),
        "spread": size[:1],
        "novelty": np.quantile(words.strange[known], NOVELTY),
        "models": np.frombuffer("\n".join(models()[at] for at in trained).encode(), np.uint8),
        "slopes": np.array([positions[at, 1:] for at in trained]),
        "by_prior": np.array([1.0, slope]),
    }, positions[:, 0]


def topics_of(rows: Rows, domains: Ints, count: int) -> Ints:
    """The place in ``TOPICS`` of each domain."""
    found = np.full(count, len(TOPICS) - 1)
    found[domains] = np.where(rows.topics < 0, len(TOPICS) - 1, rows.topics)
    return found


def main() -> None:
    """Write the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=TARGET)
    given = parser.parse_args()
    files = ("pair_mmlu", "pair_gsm8k", "multi_zeroeval", "intent_banking77", "cache/intent_clinc150")
    arrays, _ = fit(rows(*files))
    np.savez_compressed(given.into, allow_pickle=False, **arrays)
    print(Predictor(arrays).id, f"{given.into.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
