"""Compares versions of a policy by the requests that they served, with 95 % intervals.

A share assigns whole callers to a version, and requests of one caller are alike. They are not independent, so a
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

from .rollup import add_to, bucket_of, latency_in, quantile

GROUPS = 1_021  # prime, because the low bits of the checksum hardly vary
LEAST = 30
LEAST_GROUPS = 5
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
        latency = (0, 0.0) if latency_ms is None else (1, latency_ms)
        rating = (0, 0.0) if score is None else (1, score)
        add_to(self.sums, adler32(unit.encode()) % GROUPS, (1, cost_usd, failed, *latency, *rating), keep=True)
        if latency_ms is not None:
            self.latencies[bucket_of(latency_ms)] += 1

    def figures(self, version: str) -> VersionFigures:
        """The figures with their intervals."""
        figures = {name: self._mean(name) for name in COLUMNS}
        figures |= {"p50_ms": self._quantile(0.5, LEAST), "p95_ms": self._quantile(0.95, LEAST_P95)}
        return VersionFigures(version=version, requests=figures["cost_usd"].count, **figures)

    def _mean(self, name: str) -> Figure:
        counts, totals = np.array([*self.sums.values()]).reshape(-1, 7)[:, COLUMNS[name]].T
        count = int(counts.sum())
        groups = int(np.count_nonzero(counts))
        mean = float(totals.sum()) / max(1, count)
        if count < LEAST or groups < LEAST_GROUPS:
            return Figure(mean if count else None, None, count)
        half = student(groups - 1) * sqrt(groups / (groups - 1) * np.square(totals - mean * counts).sum()) / count
        if name != "error_rate":
            return Figure(mean, (mean - half, mean + half), count)
        return Figure(mean, wilson(mean, _effective(count, half, mean * (1 - mean))), count)

    def _quantile(self, share: float, least: int) -> Figure:
        mean = self._mean("latency_ms")
        interval = None
        if mean.value is not None and mean.interval is not None:
            latencies = [latency_in(bucket) for bucket in self.latencies]
            variance = float(np.cov(latencies, fweights=[*self.latencies.values()], ddof=0))
            within = (0.02 * mean.value) ** 2 / 12  # a bucket is 2 % wide; test_latencies_of_one_bucket_have_intervals
            count = _effective(mean.count, (mean.interval[1] - mean.interval[0]) / 2, variance + within)
            if count >= least:
                low, high = wilson(share, count)
                interval = quantile(self.latencies, low), quantile(self.latencies, high)
        return Figure(quantile(self.latencies, share) if mean.count else None, interval, mean.count)


def _effective(count: int, half: float, variance: float) -> float:
    """How many independent requests of this variance would have an interval of half this width."""
    return min(count, variance * (Z / half) ** 2) if half else count


def student(freedom: int) -> float:
    """Student's t for 95 %, within 0.3 % from 4 degrees of freedom on (Cornish and Fisher)."""
    return Z + 2.372294 / freedom + 2.822547 / freedom**2 + 2.555392 / freedom**3


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's interval of a share of ``count`` requests, which is wide for few: from 0 to 1 for none."""
    weight = count + Z**2
    middle = share * count + Z**2 / 2
    half = Z * sqrt(share * (1 - share) * count + Z**2 / 4)
    return max(0.0, (middle - half) / weight), min(1.0, (middle + half) / weight)


def difference(name: str, base: Figure, shared: Figure) -> Difference:
    """The difference of two independent figures in a field of ``VersionFigures``."""
    old = base.value or 0.0
    new = shared.value or 0.0
    count = min(base.count, shared.count)
    few = f"too few: {count} {'ratings' if name == 'feedback' else 'requests'} of a version;"
    if base.interval is None or shared.interval is None:
        least = LEAST_P95 if name == "p95_ms" else LEAST
        verdict = f"{few} it takes at least {least} from {LEAST_GROUPS} callers, more if they differ"
        return Difference(change=Figure(new - old if count else None, None, count), significant=False, verdict=verdict)
    low = new - old - hypot(new - shared.interval[0], base.interval[1] - old)
    high = new - old + hypot(shared.interval[1] - new, old - base.interval[0])
    significant = not low <= 0 <= high
    absolute = MATTERS_ABSOLUTELY.get(name)
    matters = absolute or MATTERS * max(old, new)
    threshold = f"{absolute:g}" if absolute else f"{100 * MATTERS:g} %"
    if significant:
        verdict = "higher" if low > 0 else "lower"
    elif max(-low, high) <= matters:
        verdict = f"no difference above {threshold}"
    else:  # with half this interval it would be one of the two above
        verdict = f"{few} a difference of {threshold} takes about {ceil(count * ((high - low) / matters) ** 2):,}"
    return Difference(change=Figure(new - old, (low, high), count), significant=significant, verdict=verdict)


class PolicyTraffic:
    """Collects the requests of a policy, to compare its ``versions`` (newest first)."""

    def __init__(self, versions: Sequence[wire.PolicyVersion]) -> None:
        self._order = {version.label: number for number, version in enumerate(reversed(versions), start=1)}
        self._starts = [version.created_at for version in reversed(versions)]
        self._tallies: defaultdict[tuple[str, int], Tally] = defaultdict(Tally)
        """By version and, for requests that a share assigned, the number of versions at that time, else 0."""

    def add(self, trace: wire.TraceItem, score: float | None) -> None:
        """Count a request, and its rating if it has one."""
        assignment = "" if trace.decision_input is None else trace.decision_input.assignment
        period = bisect_right(self._starts, trace.created_at) if assignment else 0
        latency_ms = trace.duration_ms if trace.status == "completed" else None
        self._tallies[trace.policy_version, period].add(
            assignment or trace.id, trace.cost_usd, latency_ms, score, failed=trace.status in wire.FAILED
        )

    def report(self, name: str, since: str, shared: str | None) -> wire.PolicyComparison:
        """The comparison. ``shared``: the version of the present share, if there is one."""
        labels = sorted({label for label, _ in self._tallies}, key=self._age, reverse=True)
        versions = [self._figures(label, 0) for label in labels]
        assigned = [label for label in labels if any(label == key[0] and key[1] for key in self._tallies)]
        share = None
        if len(assigned) > 1:
            start = max(1, self._age(assigned[0])[0])  # the share began when the newest of its versions was published
            figures = {label: self._figures(label, start) for label in assigned}
            shared_figures = figures.pop(shared if shared in assigned else assigned[0])
            share = _share(max(figures.values(), key=lambda entry: entry.requests), shared_figures)
        return wire.PolicyComparison(name=name, since=since, versions=versions, share=share)

    def _age(self, label: str) -> tuple[int, str]:
        return self._order.get(label, 0), label

    def _figures(self, label: str, start: int) -> VersionFigures:
        """The figures of a version in periods from ``start`` on."""
        parts = (tally for (name, period), tally in self._tallies.items() if name == label and period >= start)
        return Tally(parts).figures(label)


def _share(base: VersionFigures, shared: VersionFigures) -> wire.ShareComparison | None:
    names = VersionFigures.__struct_fields__[2:]
    differences = {name: difference(name, getattr(base, name), getattr(shared, name)) for name in names}
    return wire.ShareComparison(base=base, shared=shared, differences=differences) if base.requests else None
