"""Quantiles of what comes one by one, within a known relative error, in little memory: counts in buckets whose bounds
grow by a constant factor."""

from __future__ import annotations

from collections import defaultdict
from math import ceil, log


class Quantiles:
    """Weighted values above zero; smaller ones count as 1. Buckets lie ``error`` around their middle."""

    __slots__ = ("_ratio", "buckets", "weights")

    def __init__(self, error: float) -> None:
        self._ratio = (1 + error) / (1 - error)
        self.buckets = 1 / log(self._ratio)
        """To an e-fold: the bucket of a value above 1 is ``ceil(log(value) * buckets)``, else 0."""
        self.weights: defaultdict[int, float] = defaultdict(float)
        """Of each bucket. A value is counted by adding its weight."""

    @property
    def total(self) -> float:
        """Of all weights."""
        return sum(self.weights.values())

    def at(self, share: float, more: float | None = None, weight: float = 0.0) -> float:
        """The value below which a share of the weight lies, as if ``more`` had been counted with ``weight``, too."""
        weights: dict[int, float] = self.weights
        if more is not None:
            bucket = self.bucket(more)
            weights = {**weights, bucket: weights.get(bucket, 0.0) + weight}
        left = share * sum(weights.values())
        for bucket in sorted(weights):
            left -= weights[bucket]
            if left <= 0:
                return self._middle(bucket)
        return self._middle(max(weights, default=0))

    def scale(self, factor: float) -> None:
        """Multiply every weight; what is next to nothing is forgotten."""
        scaled = {bucket: new for bucket, weight in self.weights.items() if (new := weight * factor) > 1e-9}
        self.weights = defaultdict(float, scaled)

    def bucket(self, value: float) -> int:
        """The bucket of a value."""
        return ceil(log(value) * self.buckets) if value > 1.0 else 0

    def _middle(self, bucket: int) -> float:
        return 2 * self._ratio**bucket / (1 + self._ratio) if bucket else 1.0
