"""What a trace adds to the analytics, and the sums of many: the roll-ups that reports are made from (contract 9).

The same sums serve a storage in memory as its roll-ups, and a database as the changes that one batch of writes makes.
Whatever was added can be taken out again, and then leaves nothing behind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import ceil, log
from struct import pack, unpack
from typing import NamedTuple, TypeVar

import numpy as np

from routewright.wire import (
    CacheCount,
    CacheCounts,
    CacheSpan,
    FallbackCount,
    FallbackCounts,
    FallbackSpan,
    LatencyCount,
    LatencyCounts,
    ModelSpan,
    Trace,
    UsageCount,
    UsageCounts,
)

from .filter import text_of
from .money import nanos_of

K = TypeVar("K")
D = TypeVar("D")

GROUPS = ("model", "tenant", "workflow")
"""What usage is always counted by; the last two are metadata."""
METADATA = "metadata."
AGES_S = (60, 300, 900, 3_600, 21_600, 86_400)
"""Where the buckets of a cache entry's age end."""
OLDER, MISS = "older", "miss"
FAILED = ("failed", "budget_exceeded")
MOST_USD, MOST_TOKENS, MOST_MS = 1e6, 10**12, 1e12
"""Of one trace or span no more than this is counted, so that a sum has room for thousands of the largest in the 64
bits of a database."""

_ERROR = 0.0099
"""Of a quantile, relative: a little below 1 %, so that rounding to five digits does not reach it."""
_RATIO = (1 + _ERROR) / (1 - _ERROR)
_LOG_RATIO = log(_RATIO)
_LEAST_MS = 0.001


class UsageKey(NamedTuple):
    """Whose usage: ``start`` is an hour, ``YYYY-MM-DDTHH``, or a day, ``YYYY-MM-DD``."""

    environment: str
    group_by: str
    start: str
    value: str
    """Empty: of traces without a model."""


class DayKey(NamedTuple):
    """A row of the other roll-ups. What the two names are is the roll-up's own."""

    environment: str
    day: str
    first: str
    second: str


class Rollups:
    """Sums over traces. Usage is kept by the hour; its days are summed up when they are asked for."""

    def __init__(self) -> None:
        self.usage: dict[UsageKey, list[int]] = {}
        """Requests, errors, cost and charge in nano-dollars, tokens in, out and cached."""
        self.cache: dict[DayKey, list[int]] = {}
        """By age: look-ups, nano-dollars saved."""
        self.fallback: dict[DayKey, list[int]] = {}
        """By kind and name, as in ``FallbackCount``: total, counted."""
        self.latency: defaultdict[DayKey, Counter[int]] = defaultdict(Counter)
        """By model and strategy: requests a bucket."""
        self._forgotten = ""
        """The last hour whose usage was forgotten."""

    def add(self, trace: Trace, rollup_keys: Sequence[str] = (), sign: int = 1) -> None:
        """Count a trace; with ``sign=-1`` take out one that was counted with the same ``rollup_keys``."""
        self._add_usage(trace, rollup_keys, sign)
        self._add_spans(trace, sign)
        if trace.status == "completed" and trace.selected_model is not None and not trace.cache_hit:
            key = DayKey(trace.environment, trace.created_at[:10], trace.selected_model, trace.strategy)
            bucket, buckets = bucket_of(min(trace.duration_ms, MOST_MS)), self.latency[key]
            buckets[bucket] += sign
            if not buckets[bucket]:
                del buckets[bucket]
            if not buckets:
                del self.latency[key]

    def keep_newest(self, rows: int) -> None:
        """Forget the usage of the oldest hours while there are more rows than that. The last hour always stays."""
        if len(self.usage) <= rows:
            return
        in_hour = Counter(key.start for key in self.usage)
        newest = max(in_hour)
        left = len(self.usage)
        for hour in sorted(in_hour):
            if left <= rows * 0.9 or hour == newest:  # not one by one: that would be to look at all each time
                break
            left -= in_hour[hour]
            self._forgotten = hour
        self.usage = {key: sums for key, sums in self.usage.items() if key.start > self._forgotten}

    def days(self) -> dict[UsageKey, list[int]]:
        """Usage by the day."""
        days: dict[UsageKey, list[int]] = {}
        for key, sums in self.usage.items():
            _add(days, key._replace(start=key.start[:10]), sums)
        return days

    def rollup_keys(self) -> list[str]:
        """The metadata that usage was counted by (``wire.RollupKeys``)."""
        named = {key.group_by for key in self.usage if key.group_by.startswith(METADATA)}
        return sorted(name.removeprefix(METADATA) for name in named)

    def usage_counts(self, query: UsageCounts) -> list[UsageCount]:
        """Answer a query; days and groups in order, the sum of the small groups last."""
        asked = {
            key: sums
            for key, sums in (self.usage if query.hourly else self.days()).items()
            if key.group_by == query.group_by
            and query.environment in (None, key.environment)
            and query.first <= key.start[:10] <= query.last
        }
        requests: Counter[str] = Counter()
        for key, sums in asked.items():
            requests[key.value] += sums[0]
        largest = {
            value for value, _ in sorted(requests.items(), key=lambda group: (-group[1], group[0]))[: query.groups]
        }
        rows: dict[tuple[str, str | None], list[int]] = {}
        for key, sums in asked.items():
            _add(rows, (key.start, key.value if key.value in largest else None), sums)
        return [UsageCount(start, value, *sums) for (start, value), sums in sorted(rows.items(), key=_in_order)]

    def cache_counts(self, query: CacheCounts) -> list[CacheCount]:
        """Answer a query."""
        rows: dict[str, list[int]] = {}
        for key, sums in _asked(self.cache, query):
            _add(rows, key.first, sums)
        return [CacheCount(age, *sums) for age, sums in sorted(rows.items())]

    def fallback_counts(self, query: FallbackCounts) -> list[FallbackCount]:
        """Answer a query."""
        rows: dict[tuple[str, str], list[int]] = {}
        for key, sums in _asked(self.fallback, query):
            _add(rows, (key.first, key.second), sums)
        return [FallbackCount(*names, *sums) for names, sums in sorted(rows.items())]

    def latency_counts(self, query: LatencyCounts) -> list[LatencyCount]:
        """Answer a query."""
        rows: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        for key, buckets in _asked(self.latency, query):
            rows[key.first, key.second].update(buckets)
        return [LatencyCount(*names, dict(sorted(buckets.items()))) for names, buckets in sorted(rows.items())]

    def _add_usage(self, trace: Trace, rollup_keys: Sequence[str], sign: int) -> None:
        hour, tokens = trace.created_at[:13], trace.tokens
        if hour <= self._forgotten:
            return
        sums = [
            sign,
            sign if trace.status in FAILED else 0,
            sign * _nanos(trace.cost_usd),
            sign * _nanos(trace.charged_usd),
            sign * min(tokens.input, MOST_TOKENS),
            sign * min(tokens.output, MOST_TOKENS),
            sign * min(tokens.cached, MOST_TOKENS),
        ]
        for group_by, value in _groups(trace, rollup_keys):
            _add(self.usage, UsageKey(trace.environment, group_by, hour, value), sums)

    def _add_spans(self, trace: Trace, sign: int) -> None:
        environment, day = trace.environment, trace.created_at[:10]
        reason, called = "", False
        for span in trace.spans:
            match span:
                case ModelSpan():
                    called = True
                    if span.status != "cancelled":
                        ended = DayKey(environment, day, "model", span.model)
                        _add(self.fallback, ended, (sign, sign if span.status == "ok" else 0))
                case FallbackSpan():
                    reason = reason or span.reason
                case CacheSpan():
                    looked_up = DayKey(environment, day, _age_of(span), "")
                    _add(self.cache, looked_up, (sign, sign * _nanos(span.saved_usd or 0.0)))
        if called:
            fell_back = sign if trace.fallback_used else 0
            _add(self.fallback, DayKey(environment, day, "request", ""), (sign, fell_back))
            if fell_back:
                _add(self.fallback, DayKey(environment, day, "reason", reason), (sign, sign))


def bucket_of(duration_ms: float) -> int:
    """The bucket that a latency is counted in."""
    return ceil(log(duration_ms / _LEAST_MS) / _LOG_RATIO) if duration_ms > _LEAST_MS else 0


def quantile(buckets: Mapping[int, int], share: float) -> float:
    """The latency in milliseconds below or at which a share of the counted requests lies, within 1 %."""
    left = ceil(share * sum(buckets.values()))
    bucket = 0
    for bucket in sorted(buckets):
        left -= buckets[bucket]
        if left <= 0:
            break
    return float(f"{_LEAST_MS * 2 * _RATIO**bucket / (1 + _RATIO):.5g}") if bucket else _LEAST_MS


def packed(buckets: Mapping[int, int]) -> bytes:
    """Buckets as bytes: pairs of 32-bit numbers, little-endian, in any order."""
    return pack(f"<{2 * len(buckets)}i", *chain.from_iterable(buckets.items()))


def unpacked(data: bytes) -> dict[int, int]:
    """Buckets from bytes."""
    flat = unpack(f"<{len(data) // 4}i", data)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def merged(some: bytes, more: bytes) -> bytes:
    """The sum of two packed sets of buckets; empty where nothing is left. ``more`` is the smaller one."""
    buckets = unpacked(some)
    for bucket, count in unpacked(more).items():
        left = buckets.get(bucket, 0) + count
        if left:
            buckets[bucket] = left
        else:
            buckets.pop(bucket, None)
    return packed(buckets)


def summed(parts: Sequence[bytes]) -> dict[int, int]:
    """The sum of many packed sets of buckets, in order."""
    pairs = np.frombuffer(b"".join(parts), "<i4").reshape(-1, 2)  # bucket, count
    if not len(pairs):
        return {}
    first = int(pairs[:, 0].min())
    counts = np.bincount(pairs[:, 0] - first, weights=pairs[:, 1])  # whole numbers, far below 2**53
    return {first + int(place): int(counts[place]) for place in np.flatnonzero(counts)}


def _groups(trace: Trace, rollup_keys: Iterable[str]) -> Iterator[tuple[str, str]]:
    yield "model", trace.selected_model or ""
    metadata = trace.metadata
    if not metadata:
        return
    for key in GROUPS[1:]:
        value = text_of(metadata.get(key))
        if value:
            yield key, value
    for key in rollup_keys:
        value = text_of(metadata.get(key))
        if value:
            yield METADATA + key, value


def _nanos(usd: float) -> int:
    return nanos_of(min(usd, MOST_USD))


def _age_of(span: CacheSpan) -> str:
    if not span.hit:
        return MISS
    place = bisect_left(AGES_S, span.age_s or 0.0)
    return str(AGES_S[place]) if place < len(AGES_S) else OLDER


def _asked(rows: dict[DayKey, D], query: CacheCounts | FallbackCounts | LatencyCounts) -> Iterator[tuple[DayKey, D]]:
    for key, sums in rows.items():
        if query.environment in (None, key.environment) and query.first <= key.day <= query.last:
            yield key, sums


def _in_order(row: tuple[tuple[str, str | None], list[int]]) -> tuple[str, bool, str]:
    (start, value), _ = row
    return start, value is None, value or ""


def _add(rows: dict[K, list[int]], key: K, sums: Sequence[int]) -> None:
    """Add to a row; one of which nothing is left goes. What is counted first is what a row counts."""
    row = rows.get(key)
    if row is None:
        rows[key] = [*sums]
        return
    for place, more in enumerate(sums):
        row[place] += more
    if not any(row):
        del rows[key]
