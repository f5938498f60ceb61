"""Puts the pool in order: four utilities on fixed scales, weighed and summed in whole numbers.

The scales do not depend on which models are there, so another model never reorders the rest. Utilities never fall when
their raw value improves, and equal scores are ordered by the raw values, so nothing stands above what beats it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from routewright.wire import Goal, Strategy

from .outlook import Outlook
from .quality import on_grid
from .scale import IntArray, class_size, log2_steps

TERM = 10_000
"""A utility of 1."""
SCORE = 100 * TERM
"""A score of 1: weights are per cent."""


class Weights(NamedTuple):
    """Per cent of the score."""

    quality: int
    cost: int
    latency: int
    stability: int


WEIGHTS: dict[Strategy, dict[Goal, Weights]] = {
    "balanced": {
        "cost": Weights(38, 47, 10, 5),
        "quality": Weights(70, 15, 10, 5),
        "stability": Weights(40, 20, 10, 30),
    },
    "cost-optimized": {
        "cost": Weights(25, 65, 5, 5),
        "quality": Weights(50, 40, 5, 5),
        "stability": Weights(25, 45, 5, 25),
    },
    "quality-first": {
        "cost": Weights(70, 20, 5, 5),
        "quality": Weights(90, 4, 3, 3),
        "stability": Weights(65, 5, 5, 25),
    },
    "latency-optimized": {
        "cost": Weights(17, 18, 60, 5),
        "quality": Weights(28, 5, 62, 5),
        "stability": Weights(15, 10, 50, 25),
    },
}

# Utility 1 and 0 of the two logarithmic scales; beyond them it stays there, so a price of nothing wins nothing more.
CHEAP_NANOS, DEAR_NANOS = 10_000, 1_000_000_000  # $0.00001 and $1 a request
QUICK_MS, SLOW_MS = 2_000, 64_000  # nobody waits below two seconds, everybody has left after a minute
SHAKY, STEADY = 500, 1_000  # thousandths of attempts that succeed

_UNKNOWN_COST = 1 << 62
_MICRO_BITS = 20


class RequestClass(NamedTuple):
    """What an order depends on besides the snapshots. Requests of one class share one order."""

    weights: Weights
    input_size: int
    """Size class of the input, a quarter octave wide."""
    output_cap: int | None
    """Size class of ``max_output_tokens``; None without one."""


class Scores:
    """Scores of a request class, one per row of the pool."""

    def __init__(self, outlook: Outlook, cls: RequestClass) -> None:
        pool = outlook.pool
        cap = None if cls.output_cap is None else class_size(cls.output_cap)
        weights = cls.weights
        self._outlook = outlook
        self.weights = weights
        self.cost_nanos = pool.expected_nanos(class_size(cls.input_size), outlook.expected_output(cap))
        self.latency_ms = outlook.latency_ms(cap)
        self.latency: list[int] = self.latency_ms.tolist()

        self.cost_term = np.where(pool.priced, _log_utility(self.cost_nanos, CHEAP_NANOS, DEAR_NANOS), 0)
        self.latency_term = _log_utility(self.latency_ms, QUICK_MS, SLOW_MS)
        self.stability_term = (np.clip(outlook.stability, SHAKY, STEADY) - SHAKY) * TERM // (STEADY - SHAKY)
        self._without_quality = (
            weights.cost * self.cost_term
            + weights.latency * self.latency_term
            + weights.stability * self.stability_term
        )
        raw_cost = np.where(pool.priced, self.cost_nanos, _UNKNOWN_COST)
        tie_order = np.lexsort((pool.id_rank, -outlook.stability, self.latency_ms, raw_cost))
        self._tie_bits = len(pool).bit_length()
        self._tie = np.empty(len(pool), dtype=np.int64)
        self._tie[tie_order] = np.arange(len(pool) - 1, -1, -1)

    def quality_term(self, quality: IntArray) -> IntArray:
        """Utility of each row's quality (millionths): its step on the grid."""
        return on_grid(quality) // 100

    def score(self, quality: IntArray) -> IntArray:
        """The weighted sum, 0 to ``SCORE``."""
        return self._without_quality + self.weights.quality * self.quality_term(quality)

    def order(self, quality: IntArray) -> IntArray:
        """Rows, best first; equal scores by raw quality, cost, latency, stability, then id."""
        bits = self._tie_bits
        key = self.score(quality) << (_MICRO_BITS + bits) | quality << bits | self._tie
        return np.argsort(-key)


def _log_utility(values: IntArray, best: int, worst: int) -> IntArray:
    """TERM at ``best`` and below, 0 at ``worst`` and above, straight on a logarithmic scale in between."""
    top, bottom = log2_steps(np.array([worst, best]))
    place = np.clip(log2_steps(values), bottom, top)
    utility: IntArray = (top - place) * TERM // (top - bottom)
    return utility
