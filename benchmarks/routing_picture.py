"""Draws quality against dollars of the pool: ``python -m benchmarks.routing_picture docs/explanation/prediction.svg``.

The lines are hulls over five folds, dots are single models. The axis of dollars is logarithmic.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np

from .cache_picture import write
from .eval_routing import FOLDS, Pool, folded, hull, pool_quality
from .train_predictor import pool, rows

COLOURS = {"blind": "#888888", "ours": "#1f6feb"}
NAMES = {"blind": "blind: the same model for all prompts", "ours": "reads the prompt"}
WIDTH, HEIGHT, LEFT, TOP = 640, 400, 60, 20
CHEAP, DEAR, WORST, BEST = 4e-5, 3e-2, 0.5, 0.95


def at(cost: float, quality: float) -> tuple[float, float]:
    """Where a point lies in the picture."""
    along = math.log(cost / CHEAP) / math.log(DEAR / CHEAP)
    return LEFT + along * (WIDTH - LEFT - 20), TOP + (BEST - quality) / (BEST - WORST) * (HEIGHT - TOP - 50)


def axes() -> Iterator[str]:
    """Grid and labels."""
    for percent in range(50, 100, 10):
        x, y = at(CHEAP, percent / 100)
        yield f'<line x1="{x}" y1="{y:.0f}" x2="{WIDTH - 20}" y2="{y:.0f}" stroke="#ddd"/>'
        yield f'<text x="{x - 8}" y="{y + 4:.0f}" text-anchor="end">{percent} %</text>'
    for dollars in (0.0001, 0.001, 0.01):
        x, y = at(dollars, WORST)
        yield f'<line x1="{x:.0f}" y1="{TOP}" x2="{x:.0f}" y2="{y:.0f}" stroke="#eee"/>'
        yield f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle">${1000 * dollars:g}</text>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">dollars for a thousand prompts</text>'
    middle = HEIGHT / 2
    yield f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">right answers</text>'


def marks() -> Iterator[str]:
    """The single models and the lines."""
    table, data = Pool(), rows("multi_zeroeval")
    everything = list(range(len(table.right)))
    for cost, quality in zip(table.cost.mean(axis=0), table.right.mean(axis=0), strict=True):
        if quality > WORST:
            x, y = at(cost, quality)
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#bbb"/>'
    for place, (who, colour) in enumerate(COLOURS.items()):
        quality, cost = np.zeros_like(table.right), np.zeros_like(table.cost)
        for train, test in folded(data, FOLDS):
            rows_at, learned = table.at(test.texts), table.at(train.texts)
            cost[rows_at] = table.cost[learned].mean(axis=0)
            quality[rows_at] = pool_quality(who, train, test.texts)[:, : len(pool())]
        dollars, right = hull(table.swept(quality, cost, everything))
        grid = np.geomspace(dollars[0], dollars[-1], 200)
        points = [at(x, y) for x, y in zip(grid, np.interp(grid, dollars, right), strict=True) if y > WORST]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
        x, y = at(0.002, 0.6 - 0.035 * place)
        yield f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}">{NAMES[who]}</text>'


if __name__ == "__main__":
    write(sys.argv[1], [*axes(), *marks()], WIDTH, HEIGHT)
