"""The journal of attempts: collects answers, and folds them into health, circuits and alerts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from routewright._core.alerts import ErrorBursts
from routewright._core.routing.forecast import Forecast

from .breaker import Circuits
from .health import Health
from .retry import PARTS, RetryBudget
from .statistics import Entry, Workloads

T = TypeVar("T")

FOLDED_AT = 64
MOST_WAITING = 10_000
_ROW = attrgetter("row")
_WORKLOAD = attrgetter("workload")


class Journal:
    """Collects answers and folds them into health, circuits and alerts. Any thread may append to ``entries``; only one
    at a time may ``fold``."""

    __slots__ = ("_bursts", "_circuits", "_reported", "_retries", "entries", "health", "workloads")

    def __init__(self, health: Health, circuits: Circuits, retries: RetryBudget, bursts: ErrorBursts) -> None:
        self.health = health
        self.workloads = Workloads()
        self._circuits = circuits
        self._retries = retries
        self._bursts = bursts
        self.entries: list[Entry] = []
        """Answers not folded yet. Never replaced: another thread could append to the old list. Who appends the
        ``FOLDED_AT``th folds; beyond ``MOST_WAITING`` answers are dropped."""
        self._reported = 0  # entries already reported to the circuits

    def report_pending(self) -> int:
        """Report pending answers to the circuits only, as needed before booking a fault. Returns their number."""
        waiting = len(self.entries)
        if waiting > self._reported:
            for run in _runs(self.entries[self._reported : waiting], 1):
                for row, answers in _by(_ROW, run).items():
                    self._circuits.record_success(row, run[-1].ended_at, probe=False, count=len(answers))
            self._reported = waiting
        return waiting

    def fold(self, forecast: Forecast) -> None:
        """Book pending answers. Health treats answers of one second as simultaneous; all else is exact."""
        # To book each answer in its own call would take the lock and update a dozen sums while a caller waits. Calls
        # append to a list instead, which needs no lock, and the one that folds books them for all. Two things go wrong
        # in the plain version. Answers arrive while it folds, so it books as many as it saw at first and deletes just
        # these; a swapped list would lose an append that had begun
        # (``test_an_append_begun_before_a_fold_is_not_lost``). And circuits count faults in a row: an answer booked
        # after the fault that followed it would hide an outage, so a fault reports all pending answers first
        # (``test_answers_between_faults_reset_consecutive_faults``). Otherwise late is as good as at once:
        # ``test_folding_late_equals_booking_at_once``.
        waiting = self.report_pending()
        entries = self.entries[:waiting]
        del self.entries[:waiting]
        self._reported = 0
        for run in _runs(entries, 1):
            self._book(run, forecast)

    def book_probe(self, entry: Entry, forecast: Forecast) -> bool:
        """Book the answer of a probe at once, after the pending ones; True if a circuit changed."""
        self.fold(forecast)
        self._book([entry], forecast)
        return self._circuits.record_success(entry.row, entry.ended_at, probe=True)

    def _book(self, run: list[Entry], forecast: Forecast) -> None:
        """Book answers of one second: what they teach, the retries they allow, and the successes of accounts."""
        now = run[-1].ended_at
        for row, answers in _by(_ROW, run).items():
            unusual = late = 0.0
            for own in _by(_WORKLOAD, answers).values():
                more, later = self.workloads.record_answers(row, now, own, forecast.pool)
                unusual += more
                late += later
            self.health.record_answers(row, now, answers, forecast, unusual, late)
        for first_attempts in _runs([entry for entry in run if entry.is_first], PARTS):
            self._retries.count_requests(first_attempts[-1].ended_at, len(first_attempts))
        for whose, answers in _by(_WORKLOAD, run).items():
            if whose is not None:
                self._bursts.count_answers(whose[:2], now, len(answers))  # by account and environment


def _by(key_of: Callable[[Entry], T], run: list[Entry]) -> dict[T, list[Entry]]:
    """Group entries by a key. Fast if all have the same."""
    keys = [*map(key_of, run)]
    if keys.count(keys[0]) == len(run):
        return {keys[0]: run}
    groups = defaultdict(list)
    for key, entry in zip(keys, run, strict=True):
        groups[key].append(entry)
    return groups


def _runs(entries: list[Entry], parts: int) -> list[list[Entry]]:
    """Split entries by time, in fractions (1 / ``parts``) of a second. Fast if all fall into one."""

    def part(entry: Entry) -> int:
        return int(entry.ended_at * parts)

    if entries and part(entries[0]) == part(entries[-1]):
        return [entries]
    return [[*run] for _, run in groupby(entries, part)]
