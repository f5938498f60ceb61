"""Pending answers are booked in order, so learning from them has the same result as without the delay."""

from __future__ import annotations

from random import Random

import pytest

from routewright._core.alerts import ErrorBursts
from routewright._core.attempts.breaker import Circuits, State
from routewright._core.attempts.health import Health
from routewright._core.attempts.journal import FOLDED_AT, Journal
from routewright._core.attempts.retry import RetryBudget
from routewright._core.attempts.statistics import Entry
from routewright._core.attempts.timeouts import ExecutionLimits
from routewright._core.routing.forecast import Forecast
from routewright.wire import Usage

from .pools import board
from .test_health import ONE, TWO

LIMITS = ExecutionLimits()
OUTLOOK: Forecast = board([ONE, TWO]).forecast


class Bench:
    """All that learns from answers, with the journal before it."""

    def __init__(self) -> None:
        self.health = Health(OUTLOOK.pool)
        self.circuits = Circuits(["a", "b"], LIMITS)
        self.retries = RetryBudget(LIMITS)
        self.bursts = ErrorBursts()
        self.journal = Journal(self.health, self.circuits, self.retries, self.bursts)

    def failed(self, row: int, now: float) -> bool:
        self.journal.report_pending()
        self.health.record_fault(row, now)
        return self.circuits.record_fault(row, now, probe=False)

    def known(self, now: float) -> list[object]:
        figures = [self.health.figures(row, now) for row in (0, 1)]
        return [*figures, self.circuits.tripped, self.retries.take(now)]


def entry(row: int, at: float, whose: str | None = None, *, asked: bool = True, tokens: int = 100) -> Entry:
    workload = None if whose is None else (whose, "production", None)
    return Entry(row, at, 1.5, None, Usage(40, tokens), True, workload, asked)


def test_answers_between_faults_reset_consecutive_faults() -> None:
    bench = Bench()
    for n in range(20):
        assert not bench.failed(0, float(n))
        for _ in range(9):
            bench.journal.entries.append(entry(0, float(n)))
    assert bench.circuits.tripped == frozenset()
    assert [bench.failed(0, 30.0 + n) for n in range(5)] == [False] * 4 + [True]


def test_folding_late_equals_booking_at_once(full: bool) -> None:
    """But for the time of an answer, of which the second counts to health."""
    for seed in range(2_000 if full else 100):
        chance, late, soon, now = Random(seed), Bench(), Bench(), 100.0
        for _ in range(chance.randint(1, 120)):
            now += chance.choice([0.0, 0.001, 0.02, 0.3, 7.0])
            row = chance.randint(0, 1)
            if chance.random() < 0.2:
                assert late.failed(row, now) == soon.failed(row, now)
                continue
            answer = entry(
                row, now, chance.choice(["x", "y"]), asked=chance.random() < 0.9, tokens=chance.randint(1, 999)
            )
            soon.journal.entries.append(answer)
            soon.journal.fold(OUTLOOK)
            late.journal.entries.append(answer)
            if len(late.journal.entries) >= FOLDED_AT and chance.random() < 0.8:
                late.journal.fold(OUTLOOK)
        late.journal.fold(OUTLOOK)
        assert late.circuits.tripped == soon.circuits.tripped
        for row in (0, 1):
            assert weighed(late, row, now) == pytest.approx(weighed(soon, row, now), rel=0.003)
        for whose in ("x", "y"):
            counts = [bench.bursts._account((whose, "production")).calls.total for bench in (late, soon)]
            assert counts[0] == counts[1]
        assert late.retries._requests.total == soon.retries._requests.total


def weighed(bench: Bench, row: int, now: float) -> dict[str, float]:
    """What is known of a model, each bucket by itself: where a bucket ends at the half, a trifle moves the median."""
    known = bench.health._sums.get(row)
    if known is None:
        return {}
    found = {
        name: getattr(known, name) for name in ("good", "bad", "answers", "length", "length_squared", "tokens", "us")
    }
    for name, times in (("first", known.first), ("whole", known.whole)):
        found |= {f"{name} {bucket}": weight for bucket, weight in times.items()}
    return {name: weight / known.weight(now) for name, weight in found.items()}


def test_an_entry_appended_during_a_fold_waits_for_the_next() -> None:
    bench = Bench()
    bench.journal.entries.append(entry(0, 1.0))
    booked = bench.circuits.record_success

    def meanwhile(row: int, now: float, *, probe: bool, count: int = 1) -> bool:
        bench.journal.entries.append(entry(1, 2.0))
        return booked(row, now, probe=probe, count=count)

    bench.circuits.record_success = meanwhile  # type: ignore[method-assign]
    bench.journal.fold(OUTLOOK)
    bench.circuits.record_success = booked  # type: ignore[method-assign]
    assert len(bench.journal.entries) == 1
    assert bench.health.figures(1, 2.0).ttft_ms is None
    bench.journal.fold(OUTLOOK)
    assert bench.health.figures(1, 2.0).ttft_ms is not None


def test_an_append_begun_before_a_fold_is_not_lost() -> None:
    bench = Bench()
    bench.journal.entries.append(entry(0, 1.0))
    begun = bench.journal.entries.append
    bench.journal.fold(OUTLOOK)
    begun(entry(1, 1.0))
    assert len(bench.journal.entries) == 1


def test_a_probe_is_booked_at_once_after_pending_answers() -> None:
    bench = Bench()
    for _ in range(5):
        bench.failed(0, 0.0)
    assert bench.circuits.admits(0, 10.0)
    bench.journal.entries.append(entry(1, 10.0))
    assert bench.journal.book_probe(entry(0, 10.5), OUTLOOK)
    assert len(bench.journal.entries) == 0
    assert bench.circuits._models[0].state is State.CLOSED
    assert bench.retries._requests.total == 2
