"""The quality grid: models of indistinguishable quality share a step. Priors have an error of about 0.36 standard
deviations (their own, and the mismatch between benchmarks and a task), so steps have that width on the latent scale.
On 0..1 they are wide in the middle and narrow at the top."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from .logarithms import IntArray

MICRO = 1_000_000  # qualities are integers in millionths
DEFAULT_QUALITY = 0.3  # of a model with unknown quality

# standard normal CDF at (k + 1/2) * 0.36 and at k * 0.36, in millionths, for k = -8 .. 5
EDGES = np.array(
    [3_467, 9_642, 23_852, 52_616, 103_835, 184_060, 294_599, 428_576, 571_424, 705_401, 815_940, 896_165, 947_384],
    dtype=np.int64,
)
LEVELS = np.array(
    [1_988, 5_868, 15_386, 35_930, 74_934, 140_071, 235_762, 359_424, 500_000, 640_576, 764_238, 859_929, 925_066,
     964_070],
    dtype=np.int64,
)  # fmt: skip


_EDGES: list[int] = EDGES.tolist()
_LEVELS: list[int] = LEVELS.tolist()


def level_of(quality: int) -> int:
    """``on_grid`` of one quality."""
    return _LEVELS[bisect_right(_EDGES, quality)]


def on_grid(quality: IntArray) -> IntArray:
    """Replace each quality (millionths) by the level of its step; never reorders two models."""
    return LEVELS[np.searchsorted(EDGES, quality, side="right")]


def micro(quality: float) -> int:
    """Turn a quality in 0..1 into millionths."""
    return round(min(max(quality, 0.0), 1.0) * MICRO)


def quality_text(quality: int) -> str:
    """Millionths as a decimal, such as ``0.42``."""
    return f"{quality / MICRO:.6f}".rstrip("0").rstrip(".")
