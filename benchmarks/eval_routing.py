"""How much quality for how many dollars does routing by the built-in predictor give?

    python -m benchmarks.eval_routing            # all figures, a quarter of an hour of one core
    python -m benchmarks.eval_routing --quick    # what CI runs, a minute
    python -m benchmarks.eval_routing --domains  # only domains that training never saw

The predictor is trained by the functions of ``train_predictor`` on the rows of the other folds and asked through
``Predictor.read`` and ``column``, so the grid and its rounding are in every figure. One line of JSON a figure.

- ``apgr``: the more is expected of the strong model over the weak one, the earlier a prompt goes to it. The share of
  the gap in quality that is closed, averaged over the share of calls that the strong model gets (0..1). Prompts with
  the same expectation go in any order. Any order at all gives 0.5.
- ``apgr_tokens``: the same over the share of the strong model's extra cost, at equal prices a token: by expected gain
  per token, the axis is the tokens of the prompts that it gets. ``blind`` knows neither prompt nor length.
- ``aiq``: each prompt goes to the model with the largest P - lambda * cost; lambda is swept. The mean quality under the
  upper concave hull of quality over cost, from the cheapest to the dearest model's mean cost, on a linear and a log
  axis of cost. Between two points of the hull requests are mixed. ``aiq_wide``: from $0.00005 to $0.0255.
- ``cost_99``: the least cost on that hull at 99 % of the best single model's quality, beside that model's cost.
- ``gain``, of a domain that training never saw: as ``apgr``, but not divided by the gap, which can be nothing there:
  accuracy gained over sending the same share blindly, in per cent, with a 95 % interval by bootstrap over prompts.
  Of forty such intervals one or two lie below 0 by chance; ``worse_than_blind`` are those domains of which this is so
  at 95 % for all domains together (Bonferroni). ``tokens_over_shortest`` compares with sending the shortest prompts
  first, which knows their length alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routewright._core.routing.predict import Predictor
from routewright.backends.embed import HashedEmbedder
from routewright.wire import Model

from .train_predictor import STRONG, WEAK, Floats, Rows, fit, load, looked, models, pool, rows, sigmoid

PUBLISHED = 0.603
"""The best APGR that RouteLLM's paper gives for MMLU with labels of about 1,500 such rows."""
TUNED = ("pair_mmlu", "pair_gsm8k", "multi_zeroeval")
FOLDS = 5
MUCH = 0.15
"""Of the labels' variance: a single word or number that explains so much is a leak."""


class Asked(NamedTuple):
    """What a predictor says of some prompts."""

    quality: Floats  # (prompts, models)
    novelty: Floats


def ask(train: Rows, texts: Sequence[str], *, priors_only: bool = False) -> Asked:
    """Train, and read. ``priors_only``: models stand where their mean quality in training puts them."""
    arrays, odds = fit(train)
    predictor, priors = Predictor(arrays), sigmoid(odds)
    named = [
        Model(id=f"unknown-{name}" if priors_only else name, quality=float(prior))
        for name, prior in zip(models(), priors, strict=True)
    ]
    readings = [predictor.read(text) for text in texts]
    columns = {reading.cell: predictor.column(reading.cell, named) for reading in readings}
    blind = tuple(1e6 * priors)
    quality = np.array([columns[reading.cell] or blind for reading in readings]) / 1e6
    return Asked(quality, np.array([reading.novelty for reading in readings]))


def curve(score: Floats, gain: Floats, cost: Floats) -> float:
    """The mean gain over the share of cost that is spent, where the highest score goes first; of any order: half."""
    _, place = np.unique(-score, return_inverse=True)
    steps, gains = np.bincount(place, cost) / cost.sum(), np.bincount(place, gain)
    before = np.cumsum(gains) - gains
    return float(steps @ (before + gains / 2))


def apgr(score: Floats, weak: Floats, strong: Floats) -> float:
    """The share of the gap that is closed, over the share of calls."""
    return curve(score, strong - weak, np.ones(len(weak))) / float((strong - weak).sum())


def apgr_tokens(expected: Floats, weak: Floats, strong: Floats, tokens: Floats) -> float:
    """The same over the share of tokens."""
    return curve(expected / tokens, strong - weak, tokens) / float((strong - weak).sum())


def tokens_of(texts: Sequence[str]) -> Floats:
    """About how many tokens each text has."""
    return np.array([max(len(text) / 4, 1.0) for text in texts])


def pair(rows: Rows) -> tuple[Floats, Floats]:
    """What the weak and the strong model made of rows."""
    return rows.right[:, models().index(WEAK)], rows.right[:, models().index(STRONG)]


def expected_gain(asked: Asked) -> Floats:
    """Of asking the strong model."""
    return asked.quality[:, models().index(STRONG)] - asked.quality[:, models().index(WEAK)]


def nearest(train: Rows, texts: Sequence[str], count: int = 40) -> Floats:
    """The mean gain of the nearest prompts by embedding."""
    embedder = HashedEmbedder()
    known = np.array([embedder.embed(text) for text in train.texts])
    weak, strong = pair(train)
    similar = np.array([embedder.embed(text) for text in texts]) @ known.T
    near = np.argpartition(-similar, count, axis=1)[:, :count]
    return np.asarray((strong - weak)[near].mean(axis=1))


def pair_figures(name: str, parts: Sequence[tuple[Rows, Rows]], train_too: Rows | None = None) -> dict[str, Any]:
    """APGR of a pair: trained on the first, tested on the second of each part, all tests taken together if they are of
    one data set's folds."""
    scores: dict[str, list[Floats]] = {"blind": [], "length": [], "nearest": [], "ours": [], "ours_priors": []}
    for train, test in parts:
        more = train if train_too is None else joined(train, train_too.where(~np.isin(train_too.texts, test.texts)))
        scores["blind"].append(np.ones(len(test.texts)))
        scores["length"].append(tokens_of(test.texts))
        scores["nearest"].append(nearest(train, test.texts))
        scores["ours"].append(expected_gain(ask(more, test.texts)))
        scores["ours_priors"].append(expected_gain(ask(more, test.texts, priors_only=True)))
    tests = [test for _, test in parts]
    figure: dict[str, Any] = {"figure": name, "prompts": sum(len(test.texts) for test in tests)}
    for who, given in scores.items():
        folds = [apgr(score, *pair(test)) for score, test in zip(given, tests, strict=True)]
        in_tokens = [
            apgr_tokens(score, *pair(test), tokens_of(test.texts)) for score, test in zip(given, tests, strict=True)
        ]
        figure[f"{who}"] = round(float(np.mean(folds)), 3)
        figure[f"{who}_tokens"] = 0.5 if who == "blind" else round(float(np.mean(in_tokens)), 3)
        if who == "ours":
            figure["spread_of_folds"] = round(float(np.std(folds)), 3)
    return figure


def joined(one: Rows, other: Rows) -> Rows:
    """Both; no text is in both."""
    fresh = other.where(~np.isin(other.texts, one.texts))
    return Rows(
        [*one.texts, *fresh.texts],
        np.concatenate((one.domains, fresh.domains)),
        np.concatenate((one.topics, fresh.topics)),
        np.concatenate((one.right, fresh.right)),
    )


def folded(rows: Rows, folds: int, seed: int = 0) -> Iterator[tuple[Rows, Rows]]:
    """Each fold with the others."""
    part = np.random.default_rng(seed).permutation(len(rows.texts)) % folds
    for fold in range(folds):
        yield rows.where(part != fold), rows.where(part == fold)


class Pool:
    """The thirty models: what each call cost, and curves of quality over cost."""

    def __init__(self) -> None:
        given = load("multi_zeroeval")
        price = {name: np.array([float(model[name]) for model in pool()]) for name in pool()[0] if name != "model"}
        output = np.array([row["out_chars"] for row in given]) / 4 + price["hidden_out_tokens"]
        spent = np.array([[row["in_tokens"]] for row in given]) * price["usd_in_per_1m"]
        self.cost = (spent + output * price["usd_out_per_1m"]) / 1e6  # (prompts, models)
        self.right = np.array([[float(digit) for digit in row["correct"]] for row in given])
        self.place = {row["prompt"]: at for at, row in enumerate(given)}

    def at(self, texts: Sequence[str]) -> list[int]:
        """The rows of texts."""
        return [self.place[text] for text in texts]

    def swept(self, quality: Floats, cost: Floats, at: Sequence[int]) -> Floats:
        """Mean cost and quality for each lambda, of rows with such expected quality and cost."""
        right, spent, row = self.right[at], self.cost[at], np.arange(len(at))
        points = []
        for price in (0.0, *np.logspace(-1, 6, 281)):
            chosen = (quality - price * cost).argmax(axis=1)
            points.append((spent[row, chosen].mean(), right[row, chosen].mean()))
        return np.array(points)

    def figures(self, points: Floats, at: Sequence[int]) -> dict[str, float]:
        """AIQ and the cost at 99 % of the best model's quality."""
        spent, right = self.cost[at].mean(axis=0), self.right[at].mean(axis=0)
        cost, quality = hull(points)
        wanted, best = 0.99 * right.max(), spent[right.argmax()]
        least = float(np.interp(wanted, quality, cost)) if quality[-1] >= wanted else float("nan")
        figures = {}
        for name, low, high in (("aiq", spent.min(), spent.max()), ("aiq_wide", 5e-5, 0.0255)):
            figures[name] = float(np.interp(np.linspace(low, high, 4001), cost, quality).mean())
            figures[f"{name}_log"] = float(np.interp(np.geomspace(low, high, 4001), cost, quality).mean())
        return {**figures, "cost_99": least / float(best) - 1, "best": float(quality[-1])}


def hull(points: Floats) -> tuple[Floats, Floats]:
    """The upper concave, never falling hull of points (cost, quality)."""
    kept: list[tuple[float, float]] = []
    for cost, quality in sorted(map(tuple, points.tolist()), key=lambda point: (point[0], -point[1])):
        if kept and quality <= kept[-1][1]:
            continue
        while len(kept) > 1 and _flatter(kept[-2], kept[-1], (cost, quality)):
            kept.pop()
        kept.append((cost, quality))
    cost, quality = np.array(kept).T
    return cost, quality


def _flatter(one: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """True if the middle lies below the line between the others."""
    return (middle[1] - one[1]) * (last[0] - one[0]) <= (last[1] - one[1]) * (middle[0] - one[0])


def pool_figures(rows: Rows, seeds: int) -> Iterator[dict[str, Any]]:
    """Of the pool of thirty, by blind means, nearest prompts and the predictor."""
    table = Pool()
    count = len(pool())
    for who in ("blind", "nearest", "ours_priors", "ours"):
        found = []
        for seed in range(seeds):
            quality, cost = (np.zeros((len(table.right), count)) for _ in "qc")
            for train, test in folded(rows, FOLDS, seed):
                at, learned = table.at(test.texts), table.at(train.texts)
                cost[at] = table.cost[learned].mean(axis=0)
                quality[at] = pool_quality(who, train, test.texts)[:, :count]
            everything = list(range(len(table.right)))
            found.append(table.figures(table.swept(quality, cost, everything), everything))
        yield {
            "figure": "pool of 30", "who": who, "prompts": len(table.right), "seeds": seeds,
            **{name: round(float(np.mean([one[name] for one in found])), 4) for name in found[0]},
            "spread_of_seeds": round(float(np.std([one["aiq"] for one in found])), 4),
        }  # fmt: skip


def pool_quality(who: str, train: Rows, texts: Sequence[str]) -> Floats:
    """What somebody expects of the models."""
    if who == "blind":
        return np.tile(np.nanmean(train.right[:, : len(pool())], axis=0), (len(texts), 1))
    if who == "nearest":
        embedder = HashedEmbedder()
        known = np.array([embedder.embed(text) for text in train.texts])
        near = np.argsort(-(np.array([embedder.embed(text) for text in texts]) @ known.T), axis=1)[:, :40]
        return np.asarray(train.right[near].mean(axis=1))
    return ask(train, texts, priors_only=who == "ours_priors").quality


def bootstrap(figure: Callable[[NDArray[np.int64]], float], count: int, draws: int) -> tuple[float, float, float]:
    """The 95 % interval of a figure over rows drawn with replacement, and the share of draws in which it is above 0."""
    random = np.random.default_rng(0)
    found = np.array([figure(random.integers(0, count, count)) for _ in range(draws)])
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high), float((found >= 0).mean())


def left_out(everything: Rows, domain: str, draws: int = 5_000) -> dict[str, Any]:
    """What the predictor gains in a domain that training never saw, over blind."""
    inside = everything.domains == domain
    test = everything.where(inside)
    asked = ask(everything.where(~inside), test.texts)
    figure: dict[str, Any] = {
        "figure": "left out", "domain": domain, "prompts": len(test.texts),
        "novelty": round(float(asked.novelty.mean()), 2),
    }  # fmt: skip
    weak, strong = pair(test)
    both = np.flatnonzero(~np.isnan(weak))
    if len(both):
        gain, expected, tokens = (strong - weak)[both], expected_gain(asked)[both], tokens_of(test.texts)[both]
        any_order = np.ones(len(both))
        for name, score, cost, blind in (
            ("calls", expected, any_order, any_order),
            ("tokens", expected / tokens, tokens, any_order),
            ("tokens_over_shortest", expected / tokens, tokens, 1 / tokens),
        ):

            def over_blind(
                at: NDArray[np.int64], score: Floats = score, cost: Floats = cost, blind: Floats = blind
            ) -> float:
                mine, other = (curve(by[at], gain[at], cost[at]) for by in (score, blind))
                return 100 * (mine - other) / len(at)

            low, high, figure[f"not_worse_{name}"] = bootstrap(over_blind, len(both), draws)
            figure[f"gain_{name}"] = round(over_blind(np.arange(len(both))), 2)
            figure[f"interval_{name}"] = [round(low, 2), round(high, 2)]
    if not np.isnan(test.right[:, 0]).all():
        figure |= _left_out_of_pool(everything.where(~inside), test, asked, draws)
    return figure


def _left_out_of_pool(train: Rows, test: Rows, asked: Asked, draws: int) -> dict[str, Any]:
    table, count = Pool(), len(pool())
    seen = ~np.isnan(test.right[:, 0])
    at = np.array(table.at([text for text, known in zip(test.texts, seen, strict=True) if known]))
    learned = table.at([text for text, row in zip(train.texts, train.right, strict=True) if not np.isnan(row[0])])
    cost = np.tile(table.cost[learned].mean(axis=0), (len(at), 1))
    blind = np.tile(np.nanmean(train.right[:, :count], axis=0), (len(at), 1))
    mine = asked.quality[seen][:, :count]

    def over_blind(rows: NDArray[np.int64]) -> float:
        chosen = list(at[rows])
        ours, other = (table.figures(table.swept(by[rows], cost[rows], chosen), chosen) for by in (mine, blind))
        return 100 * (ours["aiq"] - other["aiq"])

    low, high, _ = bootstrap(over_blind, len(at), draws // 50)
    return {"gain_aiq": round(over_blind(np.arange(len(at))), 2), "interval_aiq": [round(low, 2), round(high, 2)]}


def leaks(texts: Sequence[str], label: Floats) -> list[tuple[str, float]]:
    """Words, pairs and surface numbers that alone explain more of a label's variance than a prompt honestly can."""
    centred = label - label.mean()
    rows: dict[str, list[int]] = {}
    for at, text in enumerate(texts):
        for gram in looked(text)[2]:
            rows.setdefault((gram if isinstance(gram, bytes) else b" ".join(gram)).decode(), []).append(at)
    found = []
    for word, where in rows.items():
        share = len(where) / len(texts)
        if share < 1:
            found.append((word, float(centred[where].mean() ** 2 * share / (1 - share) / centred.var())))
    surface = np.array([looked(text)[1] for text in texts], np.float64)
    for number, column in enumerate(surface.T):
        if column.std() > 0:
            found.append((f"surface {number}", float(np.corrcoef(column, label)[0, 1] ** 2)))
    return sorted(((gram, share) for gram, share in found if share > MUCH), key=lambda pair: -pair[1])


def gold_parts(mmlu: Rows, more: int) -> Iterator[list[tuple[Rows, Rows]]]:
    """The 1,500 marked rows and the others; then as many rows drawn anew, to see how much hangs on the draw."""
    marked = {row["prompt"] for row in load("pair_mmlu") if row["gold1500"]}
    gold = np.isin(mmlu.texts, list(marked))
    yield [(mmlu.where(gold), mmlu.where(~gold))]
    random, parts = np.random.default_rng(1), []
    for _ in range(more):
        drawn = np.zeros(len(mmlu.texts), bool)
        drawn[random.permutation(len(drawn))[: gold.sum()]] = True
        parts.append((mmlu.where(drawn), mmlu.where(~drawn)))
    if parts:
        yield parts


def figures(*, quick: bool) -> Iterator[dict[str, Any]]:
    """All but the domains left out."""
    mmlu, gsm8k, multi = (rows(name) for name in TUNED)
    for name, data in (("pair_mmlu", mmlu), ("pair_gsm8k", gsm8k)):
        weak, strong = pair(data)
        yield {"figure": "leaks", "data": name, "found": [*leaks(data.texts, weak), *leaks(data.texts, strong - weak)]}
    for domain in ("gsm8k", "math"):  # each alone: between the two anything tells
        part = multi.where(multi.domains == domain)
        yield {"figure": "leaks", "data": domain, "found": leaks(part.texts, part.right[:, :-2].mean(axis=1))}
    for name, parts in zip(("MMLU, gold1500", "MMLU, 1,500 drawn"), gold_parts(mmlu, 0 if quick else 5), strict=False):
        yield {**pair_figures(name, parts), "published": PUBLISHED}
    yield pair_figures("GSM8K", list(folded(gsm8k, FOLDS)))
    if not quick:
        yield pair_figures("GSM8K, with the pool's labels", list(folded(gsm8k, FOLDS)), multi)
    yield from pool_figures(multi, 1 if quick else 3)


def domains(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Each domain left out, and all taken together."""
    everything = rows(*TUNED)
    names, counts = np.unique(everything.domains, return_counts=True)
    chosen = [str(name) for name, count in zip(names, counts, strict=True) if count >= 40]
    found = []
    for domain in ["gsm8k"] if quick else chosen:
        figure = left_out(everything, domain, 100 if quick else 5_000)
        found.append(figure)
        yield figure
    for name in ("calls", "tokens", "tokens_over_shortest"):
        both = [one for one in found if f"gain_{name}" in one]
        gains = np.array([one[f"gain_{name}"] for one in both])
        yield {
            "figure": "left out, all", "axis": name, "domains": len(both), "mean_gain": round(float(gains.mean()), 3),
            "standard_error": round(float(gains.std() / len(both) ** 0.5), 3),
            "below_blind": [one["domain"] for one in both if one[f"interval_{name}"][1] < 0],
            "worse_than_blind": [one["domain"] for one in both if one[f"not_worse_{name}"] < 0.05 / len(both)],
        }  # fmt: skip


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--domains", action="store_true", help="only domains that training never saw")
    given = parser.parse_args()
    if not given.domains:
        for figure in figures(quick=given.quick):
            print(json.dumps(figure), flush=True)
    for figure in domains(quick=given.quick):
        print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
