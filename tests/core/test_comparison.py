"""Versions of a policy are compared with intervals that hold, by requests that differ in nothing but their version."""

from __future__ import annotations

import math
import random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routewright._core.analytics.comparison import (
    LEAST,
    LEAST_GROUPS,
    LEAST_P95,
    PolicyTraffic,
    Tally,
    difference,
    student,
    wilson,
)
from routewright._core.analytics.rollup import bucket_of
from routewright.wire import Figure, PolicyVersion, Trace, TraceStatus, VersionFigures
from tests.contracts.storage.samples import decision_input
from tests.tables import table

from .trace_fields import USUAL

METRICS = ("cost_usd", "error_rate", "latency_ms", "p50_ms", "p95_ms", "feedback")
OF_CALLERS = f"from {LEAST_GROUPS} callers, more if they differ"
ONE, TWO, THREE = (
    PolicyVersion(f"hash {day}", f"desk@2026-11-{day}", f"2026-11-{day}T12:00:00.000Z") for day in (20, 22, 24)
)


def trace_of(version: str, at: str, unit: str = "", **fields: Any) -> Trace:
    source = decision_input(assignment=unit) if unit else None
    facts = {"id": f"tr_{at}{unit}", "created_at": at, "policy_version": version, "decision_input": source} | fields
    return Trace(**(USUAL | facts))


def traffic(*traces: Trace, versions: tuple[PolicyVersion, ...] = (THREE, TWO, ONE)) -> PolicyTraffic:
    made = PolicyTraffic(versions)
    for trace in traces:
        made.add(trace, None)
    return made


def figures_of(entries: list[tuple[str, float, float | None, float | None, bool]]) -> VersionFigures:
    tally = Tally()
    for unit, cost_usd, latency_ms, score, failed in entries:
        tally.add(unit, cost_usd, latency_ms, score, failed=failed)
    return tally.figures("v")


# Figures

ENTRIES = st.lists(
    st.tuples(
        st.integers(0, 40).map(str),
        st.floats(0, 10),
        st.none() | st.floats(0.01, 1e6),
        st.none() | st.floats(0, 1),
        st.booleans(),
    ),
    max_size=120,
)


@settings(max_examples=50)
@given(ENTRIES)
def test_figures_are_those_of_the_requests_and_lie_in_their_intervals(
    entries: list[tuple[str, float, float | None, float | None, bool]],
) -> None:
    made = figures_of(entries)
    latencies = sorted(entry[2] for entry in entries if entry[2] is not None)
    scores = [entry[3] for entry in entries if entry[3] is not None]
    expected = {
        "cost_usd": [entry[1] for entry in entries],
        "error_rate": [float(entry[4]) for entry in entries],
        "latency_ms": latencies,
        "feedback": scores,
    }
    assert made.requests == len(entries)
    for name, values in expected.items():
        figure = getattr(made, name)
        assert figure.count == len(values)
        assert figure.value == (pytest.approx(sum(values) / len(values)) if values else None)
    for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95)):
        exact = latencies[math.ceil(share * len(latencies)) - 1] if latencies else None
        assert getattr(made, name).value == (None if exact is None else pytest.approx(exact, rel=0.01))
    for name in METRICS:
        figure = getattr(made, name)
        if figure.interval is not None:
            assert figure.interval[0] <= figure.value * (1 + 1e-9) + 1e-12
            assert figure.value <= figure.interval[1] * (1 + 1e-9) + 1e-12
            assert figure.count >= LEAST


@settings(max_examples=25)
@given(ENTRIES, ENTRIES)
def test_tallies_add_up(
    some: list[tuple[str, float, float | None, float | None, bool]],
    more: list[tuple[str, float, float | None, float | None, bool]],
) -> None:
    parts = []
    for entries in (some, more):
        parts.append(Tally())
        for unit, cost_usd, latency_ms, score, failed in entries:
            parts[-1].add(unit, cost_usd, latency_ms, score, failed=failed)
    added, together = Tally(parts).figures("v"), figures_of([*some, *more])
    for name in METRICS:
        for mine, theirs in zip(astuple(getattr(added, name)), astuple(getattr(together, name)), strict=True):
            assert mine == (theirs if theirs is None else pytest.approx(theirs, abs=1e-9))


def astuple(figure: Figure) -> tuple[float | None, ...]:
    return figure.value, *(figure.interval or (None, None)), figure.count


@pytest.mark.parametrize(("callers", "has_interval"), [(LEAST_GROUPS - 1, False), (LEAST_GROUPS, True)])
def test_an_interval_takes_five_callers(callers: int, has_interval: bool) -> None:
    figures = figures_of([(f"{number % callers}", number % 7, 1.0, None, False) for number in range(200)])
    assert (figures.cost_usd.interval is not None) == has_interval


@pytest.mark.parametrize("outliers", [0, 1])
def test_latencies_of_one_bucket_have_intervals(outliers: int) -> None:
    alike = [
        latency for latency in (299 + number / 100 for number in range(1_000)) if bucket_of(latency) == bucket_of(303)
    ]
    assert len(alike) > 500, "they fill the bucket"
    latencies = [*alike, *[alike[-1] + 1] * outliers]
    figures = figures_of([(f"{number}", 1.0, latency, None, False) for number, latency in enumerate(latencies)])
    for figure in (figures.p50_ms, figures.p95_ms):
        assert figure.interval == (figure.value, figure.value)


@pytest.mark.parametrize(("freedom", "exact"), [(4, 2.7764), (9, 2.2622), (29, 2.0452), (1_020, 1.9623)])
def test_the_t_of_few_groups_is_students(freedom: int, exact: float) -> None:
    assert student(freedom) == pytest.approx(exact, rel=0.003)


def test_the_interval_of_a_rate_is_wilsons() -> None:
    assert wilson(0.1, 100) == pytest.approx((0.0552, 0.1744), abs=1e-4)
    assert wilson(0.0, 50)[0] == 0.0
    assert wilson(0.0, 50)[1] == pytest.approx(0.0714, abs=1e-3)
    assert wilson(0.0, 0) == (0.0, 1.0)


# Their intervals hold


def simulate(chance: random.Random, callers: int, shift: float = 0.0) -> VersionFigures:
    """Requests of callers that differ in how long, dear, broken and loved theirs are."""
    tally = Tally()
    for _ in range(callers):
        unit = str(chance.random())
        level = chance.gauss(0, 0.3)
        for _ in range(chance.randrange(2, 9)):
            cost = (1 + shift) * math.exp(level + chance.gauss(0, 0.5))
            score = min(1.0, max(0.0, 0.6 + level / 2 + chance.gauss(0, 0.2)))
            tally.add(unit, cost, 500 * cost, score, failed=chance.random() < 0.1 * math.exp(level))
    return tally.figures("v")


def test_intervals_cover_the_truth_in_95_percent(full: bool) -> None:
    chance = random.Random(45)
    times = 5_000 if full else 150
    truth = [simulate(chance, 200_000 if full else 8_000, shift) for shift in (0.0, 0.1)]
    covered = dict.fromkeys(METRICS, 0)
    differ = dict.fromkeys(METRICS, 0)
    for _ in range(times):
        base, shared = (simulate(chance, 60, shift) for shift in (0.0, 0.1))
        for name in METRICS:
            one, two = (getattr(entry, name).value for entry in truth)
            covered[name] += holds(getattr(base, name), one)
            differ[name] += holds(difference(name, getattr(base, name), getattr(shared, name)).change, two - one)
    for name in METRICS:
        most = 1.0 if name in ("p50_ms", "p95_ms") else 0.98  # theirs are rather too wide
        assert 0.93 <= covered[name] / times <= most, name
        assert 0.93 <= differ[name] / times <= most, name


def holds(figure: Figure, truth: float) -> bool:
    assert figure.interval is not None
    return figure.interval[0] <= truth <= figure.interval[1]


# Verdicts


def figure(value: float | None, half: float | None = None, count: int = 400) -> Figure:
    interval = None if half is None or value is None else (value - half, value + half)
    return Figure(value, interval, 0 if value is None else count)


@table(
    ("name", "base", "shared", "verdict"),
    [
        ("cost_usd", figure(1.0, 0.01), figure(1.2, 0.01), "higher"),
        ("cost_usd", figure(1.0, 0.01), figure(0.8, 0.01), "lower"),
        ("cost_usd", figure(1.0, 0.03), figure(1.01, 0.04), "no difference above 10 %"),
        ("cost_usd", figure(0.0, 0.0), figure(0.0, 0.0), "no difference above 10 %"),
        ("error_rate", figure(0.02, 0.003), figure(0.02, 0.004), "no difference above 0.01"),
        (
            "error_rate", figure(0.02, 0.03), figure(0.02, 0.04, 100),
            "too few: 100 requests of a version; a difference of 0.01 takes about 10,000",
        ),
        (
            "cost_usd", figure(1.0, 0.3), figure(1.0, 0.4, 100),
            "too few: 100 requests of a version; a difference of 10 % takes about 10,000",
        ),
        (
            "feedback", figure(0.5, None, 3), figure(0.5, 0.1),
            f"too few: 3 ratings of a version; it takes at least {LEAST} {OF_CALLERS}",
        ),
        (
            "p95_ms", figure(500.0, 9.0), figure(None),
            f"too few: 0 requests of a version; it takes at least {LEAST_P95} {OF_CALLERS}",
        ),
    ],
)  # fmt: skip
def test_a_verdict_says_what_the_interval_says(name: str, base: Figure, shared: Figure, verdict: str) -> None:
    made = difference(name, base, shared)
    assert made.verdict == verdict
    assert made.significant == (verdict in ("higher", "lower"))


PAIRS = st.tuples(st.floats(0.01, 1), st.floats(0, 0.5))


@given(PAIRS, PAIRS, st.sampled_from(METRICS))
def test_the_number_needed_decides(base: tuple[float, float], shared: tuple[float, float], name: str) -> None:
    one, two = figure(*base), figure(*shared)
    made = difference(name, one, two)
    words = made.verdict.split()
    if words[0] == "too":
        needed = int(words[-1].replace(",", ""))
        assert needed > 400
        shrunk = [figure(value, half * math.sqrt(400 / needed)) for value, half in (base, shared)]
        assert difference(name, *shrunk).verdict.split()[0] != "too"


# Which requests count


def test_a_share_is_compared_by_the_requests_that_it_assigned() -> None:
    during = "2026-11-23T00:00:00.000Z"
    made = traffic(
        trace_of(ONE.label, "2026-11-21T00:00:00.000Z", cost_usd=9.0),
        trace_of(ONE.label, "2026-11-21T00:00:00.000Z", "of an earlier share", cost_usd=9.0),
        trace_of(ONE.label, during, cost_usd=9.0),
        trace_of(ONE.label, during, "a", cost_usd=1.0),
        trace_of(ONE.label, during, "b", cost_usd=2.0),
        trace_of(TWO.label, during, "c", cost_usd=4.0),
        trace_of(THREE.label, "2026-11-25T00:00:00.000Z", cost_usd=9.0),
    ).report("desk", "2026-11-20", None)
    assert made.share is not None
    assert (made.share.base.version, made.share.base.requests) == (ONE.label, 2)
    assert (made.share.shared.version, made.share.shared.requests) == (TWO.label, 1)
    assert made.share.differences["cost_usd"].change == Figure(2.5, None, 1)
    assert {*made.share.differences} == {*METRICS}


@table("status", get_args(TraceStatus))
def test_only_completed_requests_have_a_latency(status: TraceStatus) -> None:
    made = traffic(trace_of(ONE.label, "2026-11-21T00:00:00.000Z", status=status)).report("desk", "", None)
    (version,) = made.versions
    assert version.latency_ms.count == (status == "completed")
    assert version.error_rate.value == (status in ("failed", "budget_exceeded"))
