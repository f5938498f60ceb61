"""Scores of candidates (spec 3)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from routewright._core.catalogue.prices import price_at
from routewright._core.money import MOST_TOKENS, PICOS_PER_NANO, usd
from routewright.wire import Candidate, DecisionInput, Goal, Strategy

from .forecast import USUAL, Forecast, Workload
from .logarithms import IntArray, class_size, log2_step, log2_steps, scale, size_class
from .quality import MICRO, level_of, on_grid

TERM = 10_000  # a utility of 1
SCORE = 100 * TERM  # a score of 1; weights are per cent

Key = tuple[int, int, int, int, int, int, int]
"""The sort key of a row: ``(-score, -quality, nanos, late_ms, -stability, alphabetical rank of the id, row)``. Smallest
is best. ``nanos`` is ``UNKNOWN_COST`` for a model without a price."""


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

# The ends (utility 1 and 0) of the two logarithmic scales; utility is constant beyond them.
CHEAP_NANOS = 10_000  # $0.00001 per request
DEAR_NANOS = 1_000_000_000  # $1
QUICK_MS = 2_000  # feels immediate
SLOW_MS = 64_000  # users are gone
SHAKY, STEADY = 500, 1_000  # thousandths of attempts that succeed

UNKNOWN_COST = 1 << 62
_MICRO_BITS = 20


class RequestClass(NamedTuple):
    """The numbers a row's key depends on besides the snapshots. Requests of one class share one order."""

    weights: Weights
    input_size: int
    """Size class of the input in quarter octaves."""
    output_cap: int | None
    """Size class of ``max_output_tokens``; None without one."""
    work: Workload = USUAL

    @classmethod
    def of(cls, inputs: DecisionInput) -> RequestClass:
        """The class of a request."""
        weights = Weights(*inputs.weights) if inputs.weights else WEIGHTS[inputs.strategy][inputs.goal]
        cap = None if inputs.max_output_tokens is None else size_class(inputs.max_output_tokens)
        return cls(weights, size_class(inputs.tokens.estimate), cap, inputs.workload or USUAL)

    @property
    def cap(self) -> int | None:
        """The output cap that represents the class."""
        return None if self.output_cap is None else class_size(self.output_cap)


class Ranking:
    """Computes row keys for one class of request."""

    __slots__ = ("_cap", "_size", "_weights", "cls")

    def __init__(self, cls: RequestClass) -> None:
        self.cls = cls
        self._weights = cls.weights
        self._size = class_size(cls.input_size)
        self._cap = cls.cap

    def key(self, forecast: Forecast, row: int) -> Key:
        """The key of one row."""
        pool = forecast.pool
        cap = self._cap
        size = self._size
        work = self.cls.work
        output = scale(forecast.output[row], work[0])
        if cap is not None and cap < output:
            output = cap
        cost = 0
        nanos = UNKNOWN_COST
        if prices := pool.prices[row]:
            price = pool.expected(row, price_at(prices, size))
            picos = price.input * (size if size < MOST_TOKENS else MOST_TOKENS)
            picos += price.output * (output if output < MOST_TOKENS else MOST_TOKENS)
            nanos = -(-picos // PICOS_PER_NANO)
            cost = _utility(nanos, _DEAR, _CHEAP)
        late_ms = forecast.expected_ms(row, cap, work)
        stability = forecast.stability[row]
        weights = self._weights
        score = weights.quality * pool.levels[row] + weights.cost * cost
        score += weights.latency * _utility(late_ms, _SLOW, _QUICK) + weights.stability * _steadiness(stability)
        return -score, -pool.qualities[row], nanos, late_ms, -stability, pool.id_ranks[row], row

    def warmed(self, key: Key, forecast: Forecast, cached: int, tokens: int) -> Key:
        """The key with the cost lowered for ``cached`` of ``tokens`` input tokens in the vendor's cache."""
        prices = forecast.pool.prices[key[-1]]
        if not prices:
            return key
        size = min(self._size, MOST_TOKENS)
        price = forecast.pool.expected(key[-1], price_at(prices, size))
        saving = min(size, cached * size // max(1, tokens)) * max(0, price.input - price.cached) // PICOS_PER_NANO
        nanos = max(0, key[2] - saving)
        gain = _utility(nanos, _DEAR, _CHEAP) - _utility(key[2], _DEAR, _CHEAP)
        return key[0] - self._weights.cost * gain, key[1], nanos, *key[3:]


class Columns:
    """All parts of a class's keys except the quality, one entry per row of the forecast."""

    def __init__(self, forecast: Forecast, cls: RequestClass) -> None:
        pool = forecast.pool
        rows = forecast.rows
        weights = cls.weights
        output = forecast.expected_output(cls.cap, cls.work)
        nanos = pool.expected_nanos(class_size(cls.input_size), output, rows)
        stability = forecast.column("stability")
        self.latency_ms = forecast.latency_ms(cls.cap, cls.work)
        self._quality_weight = weights.quality
        self._without_quality = (
            weights.cost * np.where(pool.priced[rows], _utilities(nanos, _DEAR, _CHEAP), 0)
            + weights.latency * _utilities(self.latency_ms, _SLOW, _QUICK)
            + weights.stability * ((np.clip(stability, SHAKY, STEADY) - SHAKY) * TERM // (STEADY - SHAKY))
        )
        cost = np.where(pool.priced[rows], nanos, UNKNOWN_COST)
        self._raw = cost.tolist(), self.latency_ms.tolist(), (-stability).tolist(), pool.id_ranks
        worst_first = np.lexsort((pool.id_rank[rows], -stability, self.latency_ms, cost))[::-1]
        self._tie = np.empty(len(cost), dtype=np.int64)
        self._tie[worst_first] = np.arange(len(cost))

    def ranked(self, quality: IntArray) -> tuple[IntArray, list[int]]:
        """All rows, best first, and the score of each row. ``quality`` in millionths, shape (n,)."""
        bits = len(quality).bit_length()
        score = self._without_quality + self._quality_weight * (on_grid(quality) // 100)
        return np.argsort(-(score << (_MICRO_BITS + bits) | quality << bits | self._tie)), score.tolist()

    def key(self, row: int, score: int, quality: int) -> Key:
        """The key of one row."""
        raw = self._raw
        return -score, -quality, raw[0][row], raw[1][row], raw[2][row], raw[3][row], row


def candidate(key: Key, model: str, timeout_ms: int) -> Candidate:
    """A candidate from its key."""
    nanos = key[2]
    late_ms = key[3]
    return Candidate(
        model=model,
        score=-key[0] / SCORE,
        quality=-key[1] / MICRO,
        cost_usd=None if nanos == UNKNOWN_COST else usd(nanos),
        latency_s=late_ms / 1000,
        stability=-key[4] / 1000,
        terms=(
            level_of(-key[1]) // 100 / TERM,
            0.0 if nanos == UNKNOWN_COST else _utility(nanos, _DEAR, _CHEAP) / TERM,
            _utility(late_ms, _SLOW, _QUICK) / TERM,
            _steadiness(-key[4]) / TERM,
        ),
        late=late_ms > timeout_ms,
    )


_DEAR = log2_step(DEAR_NANOS)
_CHEAP = log2_step(CHEAP_NANOS)
_SLOW = log2_step(SLOW_MS)
_QUICK = log2_step(QUICK_MS)


def _utility(value: int, worst: int, best: int) -> int:
    """TERM at or below step ``best``, 0 at or above ``worst``, linear in the logarithm in between."""
    step = log2_step(value)
    return 0 if step > worst else TERM if step < best else (worst - step) * TERM // (worst - best)


def _utilities(values: IntArray, worst: int, best: int) -> IntArray:
    """``_utility`` of an array."""
    utilities: IntArray = (worst - np.clip(log2_steps(values), best, worst)) * TERM // (worst - best)
    return utilities


def _steadiness(stability: int) -> int:
    return 0 if stability < SHAKY else TERM if stability > STEADY else (stability - SHAKY) * TERM // (STEADY - SHAKY)
