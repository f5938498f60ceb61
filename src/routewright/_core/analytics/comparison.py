"""Compares versions of a policy by the requests that they served, with 95 % intervals.

A share assigns whole callers to a version, and requests of one caller are alike. They are no independent samples, so a
``Tally`` adds them up by *unit*: the value that the share is assigned by, else the request itself. Units are put into a
thousand random groups, which bounds the memory.

- The error of a mean is computed from how the groups scatter around it (the ratio estimator of cluster samples). Its
  interval is Student's, with one degree of freedom less than there are groups.
- A rate has Wilson's interval, a quantile the one of its order statistics (Woodruff), both for the *effective* number
  of requests: so many independent ones would scatter as much. That of a quantile is rather too wide, since callers
  differ less in it than in the mean.
- A difference has the interval of MOVER (Zou and Donner), which is Newcombe's for rates and close to Welch's for means.

test_intervals_cover_the_truth_in_95_percent simulates callers that differ."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import ceil, hypot, sqrt
from zlib import adler32

import numpy as np

from routewright import wire
from routewright.wire import Difference, Figure, VersionFigures

from .rollup import add_to, bucket_of, compared_to, latency_in, quantile

GROUPS = 1_021  # prime, because the low bits of the checksum hardly vary
LEAST, LEAST_GROUPS = 30, 5
LEAST_P95 = 73  # of fewer requests, the largest one is below the 95th percentile too often: 0.95 ** 73 < 2.5 %
Z = 1.959964  # 97.5 % of the normal distribution lie below
COLUMNS = {"cost_usd": (0, 1), "error_rate": (0, 2), "latency_ms": (3, 4), "feedback": (5, 6)}
"""Of a tally's sums: the number of requests, and the sum over them."""
MATTERS = 0.1
"""A difference that matters, as a share of the figure."""
MATTERS_ABSOLUTELY = {"error_rate": 0.01, "feedback": 0.05}


class Tally:
    """Sums over the requests of a version."""

    def __init__(self, parts: Iterable[Tally] = ()) -> None:
        self.sums: dict[int, list[float]] = {}
        """By group: requests, dollars, errors; completed requests, milliseconds; ratings, scores."""
        self.latencies: Counter[int] = Counter()
        for part in parts:
            for group, sums in part.sums.items():
                add_to(self.sums, group, sums, keep=True)
            self.latencies.update(part.latencies)

    def add(self, unit: str, cost_usd: float, latency_ms: float | None, score: float | None, *, failed: bool) -> None:
        """Count a request. ``latency_ms``: None unless it was completed. ``score``: None unless it was rated."""
        took = (0, 0.0) if latency_ms is None else (1, latency_ms)
        rated = (0, 0.0) if score is None else (1, score)
        add_to(self.sums, adler32(unit.encode()) % GROUPS, (1, cost_usd, failed, *took, *rated), keep=True)
        if latency_ms is not None:
            self.latencies[bucket_of(latency_ms)] += 1

    @property
    def requests(self) -> int:
        """Their number."""
        return int(sum(sums[0] for sums in self.sums.values()))

    def figures(self, version: str) -> VersionFigures:
        """The figures with their intervals."""
        return VersionFigures(
            version=version,
            requests=self.requests,
            cost_usd=self._mean("cost_usd"),
            error_rate=self._rate(),
            latency_ms=self._mean("latency_ms"),
            p50_ms=self._quantile(0.5, LEAST),
            p95_ms=self._quantile(0.95, LEAST_P95),
            feedback=self._mean("feedback"),
        )

    def _mean(self, name: str) -> Figure:
        counts, totals = np.array([*self.sums.values()]).reshape(-1, 7)[:, COLUMNS[name]].T
        count = int(counts.sum())
        groups = int(np.count_nonzero(counts))
        if not count:
            return Figure(None)
        mean = float(totals.sum()) / count
        if count < LEAST or groups < LEAST_GROUPS:
            return Figure(mean, count=count)
        error = sqrt(groups / (groups - 1) * np.square(totals - mean * counts).sum()) / count
        return Figure(mean, (mean - student(groups - 1) * error, mean + student(groups - 1) * error), count)

    def _rate(self) -> Figure:
        mean = self._mean("error_rate")
        if mean.value is None or mean.interval is None:
            return mean
        return Figure(mean.value, wilson(mean.value, _effective(mean, mean.value * (1 - mean.value))), mean.count)

    def _quantile(self, share: float, least: int) -> Figure:
        mean = self._mean("latency_ms")
        if mean.value is None:
            return mean
        value = quantile(self.latencies, share)
        latencies = np.array([latency_in(bucket) for bucket in self.latencies])
        variance = np.cov(latencies, fweights=[*self.latencies.values()], ddof=0)
        if mean.interval is None or (effective := _effective(mean, float(variance))) < least:
            return Figure(value, count=mean.count)
        low, high = (quantile(self.latencies, end) for end in wilson(share, effective))
        return Figure(value, (low, high), mean.count)


def _effective(mean: Figure, variance: float) -> float:
    """How many independent requests would have this interval, if a single one has this variance."""
    assert mean.interval is not None
    half = (mean.interval[1] - mean.interval[0]) / 2
    return min(mean.count, variance * (Z / half) ** 2) if half else mean.count


def student(freedom: int) -> float:
    """Student's t for 95 %, within 0.3 % from 4 degrees of freedom on (Cornish and Fisher)."""
    return Z + 2.372294 / freedom + 2.822547 / freedom**2 + 2.555392 / freedom**3


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's interval of a share of ``count`` requests."""
    scale = 1 + Z**2 / count
    middle = share + Z**2 / (2 * count)
    half = Z * sqrt(share * (1 - share) / count + (Z / (2 * count)) ** 2)
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def difference(name: str, base: Figure, shared: Figure) -> Difference:
    """The difference of two independent estimates of a field of ``VersionFigures``."""
    count = min(base.count, shared.count)
    unit = "ratings" if name == "feedback" else "requests"
    if base.value is None or shared.value is None or base.interval is None or shared.interval is None:
        least = LEAST_P95 if name == "p95_ms" else LEAST
        verdict = f"too few: {count} {unit} of a version; it takes {least} from as many callers"
        change = None if base.value is None or shared.value is None else shared.value - base.value
        return Difference(change=Figure(change, count=count), significant=False, verdict=verdict)
    change = shared.value - base.value
    low = change - hypot(shared.value - shared.interval[0], base.interval[1] - base.value)
    high = change + hypot(shared.interval[1] - shared.value, base.value - base.interval[0])
    significant = low > 0 or high < 0
    absolute = MATTERS_ABSOLUTELY.get(name)
    matters = absolute or MATTERS * max(base.value, shared.value)
    shown = f"{absolute:g}" if absolute else f"{MATTERS:.0%}".replace("%", " %")
    if significant:
        verdict = "higher" if low > 0 else "lower"
    elif max(-low, high) <= matters:
        verdict = f"no difference above {shown}"
    else:  # with half this interval it would be one of the two above
        needed = ceil(count * ((high - low) / matters) ** 2)
        verdict = f"too few: {count} {unit} of a version; a difference of {shown} takes about {needed:,}"
    return Difference(change=Figure(change, (low, high), count), significant=significant, verdict=verdict)


class PolicyTraffic:
    """Collects the requests of a policy, to compare its ``versions`` (newest first)."""

    def __init__(self, versions: Sequence[wire.PolicyVersion]) -> None:
        self._order = {version.label: number for number, version in enumerate(reversed(versions), start=1)}
        self._starts = [version.created_at for version in reversed(versions)]
        self._tallies: defaultdict[tuple[str, int], Tally] = defaultdict(Tally)
        """By version and, for requests that a share assigned, the number of versions at that time, else 0."""
        self._shadow: Counter[str] = Counter()

    def add(self, trace: wire.Trace, score: float | None) -> None:
        """Count a request, and its rating if it has one."""
        assignment = "" if trace.decision_input is None else trace.decision_input.assignment
        period = bisect_right(self._starts, trace.created_at) if assignment else 0
        latency_ms = trace.duration_ms if trace.status == "completed" else None
        self._tallies[trace.policy_version, period].add(
            assignment or trace.id, trace.cost_usd, latency_ms, score, failed=trace.status in wire.FAILED
        )
        for span in trace.spans:
            if isinstance(span, wire.DecisionSpan) and span.shadow:
                self._shadow[compared_to(span.shadow, span.candidates[0].model)] += 1

    def report(self, name: str, since: str, shared: str | None) -> wire.PolicyComparison:
        """The comparison. ``shared``: the version of the present share, if there is one."""
        labels = sorted({label for label, _ in self._tallies}, key=self._age, reverse=True)
        versions = [self._tally(label, 0).figures(label) for label in labels]
        share = self._share({label for label, period in self._tallies if period}, shared)
        shadow = dict(self._shadow.most_common())
        return wire.PolicyComparison(name=name, since=since, versions=versions, share=share, shadow=shadow)

    def _share(self, assigned: set[str], shared: str | None) -> wire.ShareComparison | None:
        """The latest share, by the requests that it ``assigned``."""
        newest = max(assigned, key=self._age, default="")
        shared = shared if shared in assigned else newest
        tallies = {label: self._tally(label, max(1, self._age(newest)[0])) for label in assigned}
        base = max(assigned - {shared}, key=lambda label: tallies[label].requests, default="")
        if not base or not tallies[base].requests:
            return None
        figures = [tallies[label].figures(label) for label in (base, shared)]
        names = VersionFigures.__struct_fields__[2:]
        differences = {name: difference(name, *(getattr(entry, name) for entry in figures)) for name in names}
        return wire.ShareComparison(base=figures[0], shared=figures[1], differences=differences)

    def _age(self, label: str) -> tuple[int, str]:
        return self._order.get(label, 0), label

    def _tally(self, label: str, since: int) -> Tally:
        """The requests of a version in periods from ``since`` on."""
        return Tally(tally for (name, period), tally in self._tallies.items() if name == label and period >= since)
