"""Roll-ups: sums over traces for analytics reports (contract 9). The memory storage uses them directly; a database
applies them as the changes of one batch. Removing a trace reverts its addition exactly."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import ceil, log
from operator import attrgetter
from struct import pack, unpack
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import UnsetType
from msgspec.structs import replace

from routewright import wire
from routewright._core.trace.filter import text_of
from routewright.wire.money import nanos_of

K = TypeVar("K")
D = TypeVar("D")
N = TypeVar("N", int, float)

TAGS = ("tenant", "workflow")  # metadata
GROUPS = ("model", *TAGS, "policy_version", "shadow")  # usage is always grouped by these
METADATA = "metadata."
AGES_S = (60, 300, 900, 3_600, 21_600, 86_400)  # upper bounds of the age buckets of cache entries
OLDER = "older"
MISS = "miss"
MOST_USD = 1e6  # bounds for one trace or span, so that sums of thousands fit into 64 bits
MOST_TOKENS = 10**12
MOST_MS = 1e12
MOST_NANOS = nanos_of(MOST_USD)

_NO_TOKENS = wire.Tokens()
_amounts = attrgetter("cost_nanos", "charged_nanos", "tokens.input", "tokens.output", "tokens.cached")
_ALIKE = "environment", "model", "is_error", "was_tried", "kind", "fallback", "passed_by", *GROUPS[-2:]
_alike = attrgetter(*_ALIKE)
_ERROR = 0.0099  # relative error of a quantile: below 1 % even after rounding to five digits
_RATIO = (1 + _ERROR) / (1 - _ERROR)
_LOG_RATIO = log(_RATIO)
_LEAST_MS = 0.001


class UsageKey(NamedTuple):
    """Key of a usage row. ``start`` is an hour ``YYYY-MM-DDTHH`` or a day ``YYYY-MM-DD``."""

    environment: str
    group_by: str
    start: str
    value: str
    """Empty for traces without a model and for models beyond the limit of values."""


class DayKey(NamedTuple):
    """Key of a row in the other roll-ups; each defines its two names."""

    environment: str
    day: str
    first: str
    second: str


class _Hour:
    """Usage within an hour."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str], dict[str, list[int]]] = {}
        """By environment and grouping key: the sums of each value."""
        self.full: set[tuple[str, str]] = set()
        """Groups that accept no new values. Their rows are kept even at zero, because a value must count all of its
        traces or none."""
        self.rows = 0

    def add(self, of: tuple[str, str], value: str, sums: Sequence[int], limit: int | None) -> None:
        """Add to the sums of a value. Beyond ``limit`` values, new models count under "", other new values not at
        all."""
        rows = self.groups.setdefault(of, {})
        before = len(rows)
        if limit is not None and value and value not in rows:
            if before >= limit:
                self.full.add(of)
            if of in self.full:
                if of[1] != "model":
                    return
                value = ""
        add_to(rows, value, sums, keep=of in self.full)
        self.rows += len(rows) - before
        if not rows:
            del self.groups[of]


class Rollups:
    """Sums over traces. Usage is kept by hour and summed by day on demand. ``values`` limits the values counted
    separately per hour and group."""

    def __init__(self, values: int | None = None) -> None:
        self._hours: dict[str, _Hour] = {}
        self._rows = 0
        self._values = values
        self.cache: dict[DayKey, list[int]] = {}
        self.fallback: dict[DayKey, list[int]] = {}  # by kind and name, as in ``FallbackCount``: total, counted
        self.latency: defaultdict[DayKey, Counter[int]] = defaultdict(Counter)
        """By model and strategy: requests per bucket."""
        self._forgotten = ""  # last hour whose usage was dropped

    def add(self, trace: wire.Trace, rollup_keys: Sequence[str] = (), sign: int = 1, model: str | None = None) -> None:
        """Count a trace under ``model`` (None: its own). ``sign=-1`` removes a trace that was counted the same way."""
        self.count(counted_of(trace, model), rollup_keys, sign)

    def count(
        self,
        counted: wire.Counted,
        rollup_keys: Sequence[str] = (),
        sign: int = 1,
        amounts: Sequence[int] | None = None,
    ) -> None:
        """Like ``add``, from ``counted_of``. With ``amounts``, count ``sign`` traces with the same ``shape_of``;
        amounts are the sums of cost, charge, and input, output and cached tokens."""
        environment = counted.environment
        day = counted.created_at[:10]
        if counted.kind == "agent":  # its model calls are counted separately
            for status, completed in counted.ended:
                add_to(self.fallback, DayKey(environment, day, "run", status), (sign, sign if completed else 0))
            return
        if amounts is None:
            amounts = [sign * amount for amount in amounts_of(counted)]
        self._add_usage(counted, rollup_keys, [sign, sign if counted.is_error else 0, *amounts])
        for model, answered in counted.ended:
            add_to(self.fallback, DayKey(environment, day, "model", model), (sign, sign if answered else 0))
        if counted.was_tried:
            fell_back = sign if counted.fallback is not None else 0
            add_to(self.fallback, DayKey(environment, day, "request", ""), (sign, fell_back))
            if counted.fallback is not None:
                add_to(self.fallback, DayKey(environment, day, "reason", counted.fallback), (sign, sign))
        if counted.passed_by is not None:
            add_to(self.fallback, DayKey(environment, day, "passed", counted.passed_by), (sign, sign))
        for age_s, saved_nanos in counted.lookups:
            place = bisect_left(AGES_S, age_s or 0.0)
            age = MISS if age_s is None else str(AGES_S[place]) if place < len(AGES_S) else OLDER
            add_to(self.cache, DayKey(environment, day, age, ""), (sign, sign * min(saved_nanos, MOST_NANOS)))
        if counted.latency is not None:
            key = DayKey(environment, day, *counted.latency[:2])
            bucket = bucket_of(min(counted.latency[2], MOST_MS))
            buckets = self.latency[key]
            buckets[bucket] += sign
            if not buckets[bucket]:
                del buckets[bucket]
            if not buckets:
                del self.latency[key]

    def count_all(self, traces: Iterable[tuple[wire.Counted, Sequence[str]]]) -> None:
        """Count many traces, each with its rollup keys. Traces that differ only in amounts are added as one: a third of
        the time of counting each."""
        groups: dict[Hashable, tuple[wire.Counted, Sequence[str], list[int]]] = {}
        for counted, rollup_keys in traces:
            group = counted, rollup_keys, [0] * 6
            sums = groups.setdefault(group_of(counted, rollup_keys), group)[2]
            for place, amount in enumerate((1, *amounts_of(counted))):
                sums[place] += amount
        for counted, rollup_keys, (count, *amounts) in groups.values():
            self.count(counted, rollup_keys, count, amounts)

    def keep_newest(self, rows: int) -> None:
        """Drop the usage of the oldest hours beyond ``rows`` rows. The last hour always stays."""
        if self._rows <= rows:
            return
        *older, _ = sorted(self._hours)
        for hour in older:
            if self._rows <= rows * 0.9:  # drop a tenth more, so that hours are sorted less often
                break
            self._rows -= self._hours.pop(hour).rows
            self._forgotten = hour

    @property
    def usage(self) -> dict[UsageKey, list[int]]:
        """By hour: requests, errors, cost and charge in nano-dollars, input, output and cached tokens."""
        return {
            UsageKey(environment, group_by, start, value): sums
            for start, hour in self._hours.items()
            for (environment, group_by), rows in hour.groups.items()
            for value, sums in rows.items()
            if any(sums)
        }

    def days(self) -> dict[UsageKey, list[int]]:
        """Usage by day."""
        days: dict[UsageKey, list[int]] = {}
        for key, sums in self.usage.items():
            add_to(days, key._replace(start=key.start[:10]), sums)
        return days

    def rollup_keys(self) -> list[str]:
        """Metadata keys that usage was counted by (``wire.RollupKeys``)."""
        named = {group_by for hour in self._hours.values() for _, group_by in hour.groups}
        return sorted(name.removeprefix(METADATA) for name in named if name.startswith(METADATA))

    def usage_counts(self, query: wire.UsageCounts) -> wire.GroupedUsage:
        """Answer a query. Days and groups are in order, the sum of the small groups last."""
        usage = [*self._used(query, query.group_by)]
        requests: Counter[str] = Counter()
        for _, value, sums in usage:
            requests[value] += sums[0]
        in_order = sorted(requests.items(), key=lambda group: (-group[1], group[0]))
        largest = {value for value, _ in in_order[: query.groups]}
        rows: dict[tuple[str, str | None], list[int]] = {}
        for start, value, sums in usage:
            add_to(rows, (start, value if value in largest else None), sums)
        totals: dict[tuple[str, str | None], list[int]] = {}
        for start, _, sums in self._used(query, "model"):
            add_to(totals, (start, None), sums)
        days = wire.FallbackCounts(first=query.first, last=query.last, environment=query.environment)
        runs = {count.name: count.total for count in self.fallback_counts(days) if count.kind == "run"}
        return wire.GroupedUsage(_counts(rows), _counts(totals), runs)

    def cache_counts(self, query: wire.CacheCounts) -> list[wire.CacheCount]:
        """Answer a query."""
        rows: dict[str, list[int]] = {}
        for key, sums in _in_range(self.cache, query):
            add_to(rows, key.first, sums)
        return [wire.CacheCount(age, *sums) for age, sums in sorted(rows.items())]

    def fallback_counts(self, query: wire.FallbackCounts) -> list[wire.FallbackCount]:
        """Answer a query."""
        rows: dict[tuple[str, str], list[int]] = {}
        for key, sums in _in_range(self.fallback, query):
            add_to(rows, (key.first, key.second), sums)
        return [wire.FallbackCount(*names, *sums) for names, sums in sorted(rows.items())]

    def latency_counts(self, query: wire.LatencyCounts) -> list[wire.LatencyCount]:
        """Answer a query."""
        rows: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        for key, buckets in _in_range(self.latency, query):
            rows[key.first, key.second].update(buckets)
        return [wire.LatencyCount(*names, dict(sorted(buckets.items()))) for names, buckets in sorted(rows.items())]

    def _used(self, query: wire.UsageCounts, by: str) -> Iterator[tuple[str, str, list[int]]]:
        """Yields start, value and sums."""
        for start, hour in self._hours.items():
            if not query.first <= start[:10] <= query.last:
                continue
            for (environment, group_by), rows in hour.groups.items():
                if group_by == by and query.environment in (None, environment):
                    begins = start if query.hourly else start[:10]
                    yield from ((begins, value, sums) for value, sums in rows.items() if any(sums))

    def _add_usage(self, counted: wire.Counted, rollup_keys: Sequence[str], sums: Sequence[int]) -> None:
        hour = counted.created_at[:13]
        if hour <= self._forgotten:
            return
        if (used := self._hours.get(hour)) is None:
            used = self._hours[hour] = _Hour()
        before = used.rows
        used.add((counted.environment, "model"), counted.model, sums, self._values)
        if counted.policy_version:
            used.add((counted.environment, "policy_version"), counted.policy_version, sums, self._values)
        if counted.shadow:
            used.add((counted.environment, "shadow"), counted.shadow, sums, self._values)
        if counted.metadata:
            for group_by, key in (*((key, key) for key in TAGS), *((METADATA + key, key) for key in rollup_keys)):
                value = text_of(counted.metadata.get(key))
                if value:
                    used.add((counted.environment, group_by), value, sums, self._values)
        self._rows += used.rows - before
        if not used.rows:
            del self._hours[hour]


def counted_of(trace: wire.Trace, model: str | None = None) -> wire.Counted:
    """What to count of a trace, under ``model`` (None: its own)."""
    tried = [span for span in trace.spans if isinstance(span, wire.ModelSpan)]
    moves = (span.fault or span.reason for span in trace.spans if isinstance(span, wire.FallbackSpan))
    decision = next((span for span in trace.spans if isinstance(span, wire.DecisionSpan)), None)
    ended: list[tuple[str, bool]] = [(trace.status, trace.status == "completed")]
    if trace.kind != "agent":
        ended = [(span.model, span.status == "ok") for span in tried if span.status != "cancelled"]
    answered = trace.status == "completed" and trace.selected_model is not None and not trace.cache_hit
    return wire.Counted(
        environment=trace.environment,
        created_at=trace.created_at,
        is_error=trace.status in wire.FAILED,
        model=(trace.model or "") if model is None else model,
        cost_nanos=_nanos(trace.cost_usd),
        charged_nanos=_nanos(trace.charged_usd),
        tokens=trace.tokens,
        metadata=trace.metadata,
        kind=trace.kind,
        was_tried=bool(tried),
        ended=ended,
        fallback=next(moves, "") if trace.fallback_used else None,
        passed_by=None if decision is None else decision.passed_by,
        latency=(trace.selected_model or "", trace.strategy, trace.duration_ms) if answered else None,
        lookups=[
            (span.age_s or 0.0 if span.hit else None, _nanos(span.saved_usd or 0.0))
            for span in trace.spans
            if isinstance(span, wire.CacheSpan)
        ],
        policy_version="" if trace.policy_id is None else trace.policy_version,
        shadow=compared_to(decision.shadow, decision.candidates[0].model) if decision and decision.candidates else "",
    )


def compared_to(shadow: wire.ShadowDecision | UnsetType | None, model: str) -> str:
    """How a shadow's decision differs from that of its policy, which chose ``model`` (``Counted.shadow``)."""
    return "" if not shadow else "same" if shadow.model == model else f"{model} -> {shadow.model or 'none'}"


def amounts_of(counted: wire.Counted) -> Sequence[int]:
    """Cost, charge, and input, output and cached tokens, as they are summed."""
    amounts: tuple[int, ...] = _amounts(counted)
    if max(amounts) <= MOST_TOKENS:  # nearly always
        return amounts
    return *(min(nanos, MOST_NANOS) for nanos in amounts[:2]), *(min(count, MOST_TOKENS) for count in amounts[2:])


def group_of(counted: wire.Counted, rollup_keys: Sequence[str]) -> Hashable:
    """Equal for traces of an hour that differ only in amounts."""
    hour = counted.created_at[:13]
    latency = counted.latency
    metadata = counted.metadata
    values = [text_of(metadata.get(key)) for key in (*TAGS, *rollup_keys)] if metadata else ()
    served = None if latency is None else (*latency[:2], bucket_of(min(latency[2], MOST_MS)))
    return hour, _alike(counted), served, *counted.ended, *counted.lookups, tuple(rollup_keys), *values


def shape_of(counted: wire.Counted, rollup_keys: Sequence[str]) -> wire.Counted:
    """``counted`` without amounts: equal for traces of an hour that differ only in amounts."""
    latency = counted.latency
    metadata = counted.metadata
    if latency is not None:
        latency = *latency[:2], latency_in(bucket_of(min(latency[2], MOST_MS)))
    return replace(
        counted,
        created_at=counted.created_at[:13],
        cost_nanos=0,
        charged_nanos=0,
        tokens=_NO_TOKENS,
        metadata={key: metadata[key] for key in (*TAGS, *rollup_keys) if key in metadata} if metadata else {},
        latency=latency,
    )


@lru_cache(maxsize=4_096)
def latency_in(bucket: int) -> float:
    """A latency in milliseconds that falls into a bucket."""
    return _LEAST_MS * 2 * _RATIO**bucket / (1 + _RATIO) if bucket else _LEAST_MS


def bucket_of(duration_ms: float) -> int:
    """The bucket of a latency."""
    return ceil(log(duration_ms / _LEAST_MS) / _LOG_RATIO) if duration_ms > _LEAST_MS else 0


def quantile(buckets: Mapping[int, int], share: float) -> float:
    """Quantile of the latencies in milliseconds, within 1 %."""
    remaining = ceil(share * sum(buckets.values()))
    bucket = 0
    for bucket in sorted(buckets):
        remaining -= buckets[bucket]
        if remaining <= 0:
            break
    return float(f"{latency_in(bucket):.5g}") if bucket else _LEAST_MS


def pack_buckets(buckets: Mapping[int, int]) -> bytes:
    """Encode buckets as pairs of 32-bit little-endian integers, in any order."""
    return pack(f"<{2 * len(buckets)}i", *chain.from_iterable(buckets.items()))


def unpack_buckets(data: bytes) -> dict[int, int]:
    """Decode the result of ``pack_buckets``."""
    flat = unpack(f"<{len(data) // 4}i", data)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def merge_buckets(some: bytes, more: bytes) -> bytes:
    """Add two packed sets of buckets and drop empty buckets. ``more`` should be the smaller one."""
    buckets = unpack_buckets(some)
    for bucket, count in unpack_buckets(more).items():
        left = buckets.get(bucket, 0) + count
        if left:
            buckets[bucket] = left
        else:
            buckets.pop(bucket, None)
    return pack_buckets(buckets)


def sum_buckets(parts: Sequence[bytes]) -> dict[int, int]:
    """Add many packed sets of buckets, in order of bucket."""
    pairs = np.frombuffer(b"".join(parts), "<i4").reshape(-1, 2)  # bucket, count
    if not len(pairs):
        return {}
    first = int(pairs[:, 0].min())
    counts = np.bincount(pairs[:, 0] - first, weights=pairs[:, 1])  # whole numbers, far below 2**53
    return {first + int(place): int(counts[place]) for place in np.flatnonzero(counts)}


def _nanos(usd: float) -> int:
    return nanos_of(min(usd, MOST_USD))  # may be infinite


def _in_range(
    rows: dict[DayKey, D], query: wire.CacheCounts | wire.FallbackCounts | wire.LatencyCounts
) -> Iterator[tuple[DayKey, D]]:
    for key, sums in rows.items():
        if query.environment in (None, key.environment) and query.first <= key.day <= query.last:
            yield key, sums


def _counts(rows: dict[tuple[str, str | None], list[int]]) -> list[wire.UsageCount]:
    """Rows in order, the sum of the small groups last."""
    ordered = sorted(rows.items(), key=lambda row: (row[0][0], row[0][1] is None, row[0][1] or ""))
    return [wire.UsageCount(start, value, *sums) for (start, value), sums in ordered]


def add_to(rows: dict[K, list[N]], key: K, sums: Sequence[N], *, keep: bool = False) -> None:
    """Add to a row. Remove it if it becomes zero, unless ``keep``."""
    if (row := rows.get(key)) is None:
        rows[key] = list(sums)
        return
    for place, more in enumerate(sums):
        row[place] += more
    if not keep and not any(row):
        del rows[key]
