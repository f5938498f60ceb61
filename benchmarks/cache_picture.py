"""Draws wrong answers against hits of the cache: ``python -m benchmarks.cache_picture docs/explanation/cache.svg``.

Dots are the cache at five bounds, in the second half of a stream; lines are thresholds chosen in hindsight.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from routewright._core.cache.calibration import Bound
from routewright.backends.embed import HashedEmbedder

from .eval_cache import shuffled, streams

BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1)
SEEDS = 3
COLOURS = {"banking77": "#1f6feb", "clinc150": "#bf5700"}
WIDTH, HEIGHT, LEFT, TOP = 640, 400, 60, 20
MOST_WRONG = 0.06


def at(wrong: float, hits: float) -> tuple[float, float]:
    """Where a point lies in the picture."""
    return LEFT + wrong / MOST_WRONG * (WIDTH - LEFT - 20), TOP + (1 - hits) * (HEIGHT - TOP - 50)


def axes() -> Iterator[str]:
    """Grid and labels."""
    for percent in range(0, 101, 20):
        x, y = at(0, percent / 100)
        yield f'<line x1="{x}" y1="{y:.0f}" x2="{WIDTH - 20}" y2="{y:.0f}" stroke="#ddd"/>'
        yield f'<text x="{x - 8}" y="{y + 4:.0f}" text-anchor="end">{percent} %</text>'
    for percent in range(7):
        x, y = at(percent / 100, 0)
        yield f'<line x1="{x:.0f}" y1="{TOP}" x2="{x:.0f}" y2="{y}" stroke="#eee"/>'
        yield f'<text x="{x:.0f}" y="{y + 18}" text-anchor="middle">{percent} %</text>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">wrong answers, of all requests</text>'
    yield f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})">hit rate</text>'


def marks() -> Iterator[str]:
    """The lines and dots of each stream."""
    for name, stream, order in streams(HashedEmbedder(), half=False, mixed=False):
        if order is not shuffled:
            continue
        colour, grid = COLOURS[name], [bound / 100 for bound in np.linspace(0.1, 6, 30)]
        best = stream.hindsight(order(stream, 0), grid)
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, grid, best))
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1" stroke-dasharray="4 3"/>'
        for bound in BOUNDS:
            played = [stream.play(order(stream, seed), Bound(bound), seed).half() for seed in range(SEEDS)]
            wrong, hits = (float(np.mean([getattr(one, what).mean() for one in played])) for what in ("wrong", "hit"))
            x, y = at(wrong, hits)
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
            yield f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{colour}">{100 * bound:g} %</text>'
        x, y = at(0.045, 0.12 if name == "banking77" else 0.06)
        yield f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}">{name}</text>'


def write(path: str, marks: Iterable[str], width: int, height: int) -> None:
    """Write a picture as SVG."""
    size = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    Path(path).write_text("\n".join([frame, ground, *marks, "</svg>\n"]), "utf-8")


if __name__ == "__main__":
    write(sys.argv[1], [*axes(), *marks()], WIDTH, HEIGHT)
