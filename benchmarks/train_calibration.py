"""Derives the prior of the cache's calibration from streams in which nothing is served.

    python -m benchmarks.train_embedder --half T.npz
    python -m benchmarks.train_calibration T.npz

It prints MEAN and PRECISION for src/routewright/_core/cache/calibration.py.

Only rows are played that the table has not seen, once with labels for answers and once with answers of which no two
are the same. ``--only banking77`` leaves the other set out, to see how the prior transfers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from routewright._core.cache.calibration import Bound
from routewright._core.cache.guards import Offer
from routewright.backends.embed import HashedEmbedder

from .eval_cache import Stream, held_out, rows, shuffled

Floats = NDArray[np.float64]
EACH = 2_000
"""Candidates of each stream that count: all streams the same."""
WORTH = 60.0
"""Observations that the prior is worth."""
DOUBT = 0.05
"""Precision that each weight has besides."""
CAUTION = 0.7
"""Taken from the log-odds of being right: what is not known yet is taken to be worse."""


def observed(name: str, embedder: HashedEmbedder, *, free: bool) -> tuple[Floats, Floats]:
    """The features of a stream's candidates, with a 1 before them, and whether they were right."""
    chosen = [row for row in rows(name) if held_out(row["text"])]
    stream = Stream([row["text"] for row in chosen], [row["label"] for row in chosen], embedder, free=free)
    seen: list[tuple[Offer, bool]] = []
    stream.play(shuffled(stream, 0), Bound(0.0), 0, watch=lambda made, right: seen.append((made, right)))
    which = np.linspace(0, len(seen) - 1, EACH).astype(int)
    features = np.array([(1.0, *seen[at][0].features) for at in which])
    return features, np.array([float(seen[at][1]) for at in which])


def fit(x: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Weights of a logistic regression with a light ridge, and the curvature there."""
    weights = np.zeros(x.shape[1])
    for _ in range(30):
        chance = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        curve = (x.T * (chance * (1 - chance))) @ x + 3 * np.eye(len(weights))
        weights = weights + np.linalg.solve(curve, x.T @ (right - chance) - 3 * weights)
    return weights, curve


def main() -> None:
    """Print the module ``prior``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--only", choices=["banking77", "clinc150"])
    given = parser.parse_args()
    embedder = HashedEmbedder(given.table)
    names = [given.only] if given.only else ["banking77", "clinc150"]
    streams = [observed(name, embedder, free=free) for name in names for free in (False, True)]
    x, right = (np.concatenate(part) for part in zip(*streams, strict=True))
    weights, curve = fit(x, right)
    precision = curve * (WORTH / len(x)) + DOUBT * np.eye(len(weights))
    weights[0] -= CAUTION
    print('"""The prior of the calibration, as ``benchmarks/train_calibration.py`` printed it.')
    print('\nOrigin: intents of banking77 (CC BY 4.0, PolyAI) and clinc150 (CC BY 3.0), see ``tests/data``."""\n')
    print(f"MEAN = ({', '.join(f'{value:.3f}' for value in weights)})")
    print('"""Weights: the intercept, then one for each feature of ``offer``."""')
    print("PRECISION = (")
    for row in precision:
        print(f"    ({', '.join(f'{value:.2f}' for value in row)}),")
    print(')\n"""How sure they are: the inverse of their covariance."""')


if __name__ == "__main__":
    main()
