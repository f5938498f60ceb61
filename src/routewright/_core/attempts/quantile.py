"""Quantiles of what comes one by one, within a known relative error, in little memory: counts in buckets whose bounds
grow by a constant factor."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log


class Quantiles:
    """Weighted values above zero; smaller ones count as ``least``. Buckets lie ``error`` around their middle."""

    __slots__ = ("_buckets", "_least", "_ratio", "buckets", "total")

    def __init__(self, error: float, least: float = 1.0) -> None:
        self._ratio = (1 + error) / (1 - error)
        self.buckets = 1 / log(self._ratio)
        """To an e-fold: the bucket of a value above ``least`` is ``ceil(log(value / least) * buckets)``, else 0."""
        self._least = least
        self._buckets: dict[int, float] = {}
        self.total = 0.0
        """Of all weights."""

    def add(self, value: float, weight: float = 1.0) -> None:
        """Count a value."""
        bucket = self._bucket_of(value)
        self._buckets[bucket] = self._buckets.get(bucket, 0.0) + weight
        self.total += weight

    def count(self, counts: Mapping[int, int], weight: float = 1.0) -> None:
        """Count values that their buckets stand for, each of so much weight."""
        buckets = self._buckets
        for bucket, count in counts.items():
            buckets[bucket] = buckets.get(bucket, 0.0) + count * weight
            self.total += count * weight

    def at(self, share: float, more: float | None = None, weight: float = 0.0) -> float:
        """The value below which a share of the weight lies, as if ``more`` had been counted with ``weight``, too."""
        buckets, total = self._buckets, self.total
        if more is not None:
            bucket = self._bucket_of(more)
            buckets = {**buckets, bucket: buckets.get(bucket, 0.0) + weight}
            total += weight
        left = share * total
        for bucket in sorted(buckets):
            left -= buckets[bucket]
            if left <= 0:
                return self._middle(bucket)
        return self._middle(max(buckets, default=0))

    def scale(self, factor: float) -> None:
        """Multiply every weight; what is next to nothing is forgotten."""
        self._buckets = {bucket: new for bucket, weight in self._buckets.items() if (new := weight * factor) > 1e-9}
        self.total = sum(self._buckets.values())

    def _bucket_of(self, value: float) -> int:
        return ceil(log(value / self._least) * self.buckets) if value > self._least else 0

    def _middle(self, bucket: int) -> float:
        if bucket == 0:
            return self._least
        return self._least * 2 * self._ratio**bucket / (1 + self._ratio)
