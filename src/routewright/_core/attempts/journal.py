"""The journal of attempts, and alerts for error bursts and low cache hit rates (spec 6.1)."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct

from routewright._core.routing.forecast import Forecast
from routewright.wire import CacheEvicted, ErrorBurst

from .breaker import Circuits
from .health import Health
from .retry import PARTS, RetryBudget, WindowedCount
from .statistics import Entry, Workloads

WINDOW_S = 300  # seconds over which the error rate is computed
_STEP_S = 5  # the window moves in steps of this many seconds
BURST_RATE = 0.05  # a higher error rate is a burst
LEAST_REQUESTS = 20  # requests in a window needed for an alert
HITS_WINDOW_S = 3600
LEAST_LOOKUPS = 100  # look-ups of the response cache in a window needed for an alert
MOST_COUNTED = 10_000  # accounts counted at once; the least recently used is dropped


class _Account(Struct):
    """Calls of one account."""

    calls: WindowedCount
    quiet_until: float = 0.0
    """No further alert before this time."""


class ErrorBursts:
    """Watches the error rate of each account. Use it under a lock."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[Hashable, _Account] = OrderedDict()

    def ended(self, whose: Hashable, now: float, *, error: bool) -> ErrorBurst | None:
        """Count a finished call. ``error``: a 5xx. Returns a burst when it begins. ``now`` in seconds."""
        account = self._account(whose)
        account.calls.add(int(now // _STEP_S), bad=error)
        requests, errors = account.calls.total, account.calls.bad
        if not error or requests < LEAST_REQUESTS or errors <= BURST_RATE * requests or now < account.quiet_until:
            return None
        account.quiet_until = now + WINDOW_S
        return ErrorBurst(WINDOW_S, requests, errors, round(errors / requests, 4))

    def answered(self, whose: Hashable, now: float, count: int) -> None:
        """Count successful calls, which never begin a burst."""
        self._account(whose).calls.add(int(now // _STEP_S), count=count)

    def _account(self, whose: Hashable) -> _Account:
        account = self._accounts.get(whose)
        if account is None:
            account = self._accounts[whose] = _Account(
                WindowedCount(WINDOW_S // _STEP_S + 1)  # one more step, since the latest is partial
            )
            if len(self._accounts) > MOST_COUNTED:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(whose)
        return account


class LowHits:
    """Counts the hits of the response cache by account and hour. Use it under a lock."""

    def __init__(self, below: float) -> None:
        """``below``: the hit rate below which an alert is raised."""
        self._below = below
        self._hours: dict[Hashable, tuple[float, int, int]] = {}
        """By account: when its hour ends, look-ups, and hits."""

    def looked(self, whose: Hashable, now: float, *, is_hit: bool) -> CacheEvicted | None:
        """Count a look-up. Returns an event if the hour just ended had too few hits. ``now`` in seconds."""
        told = None
        ends_at, lookups, hits = self._hours.get(whose) or (0.0, 0, 0)
        if now >= ends_at:
            if lookups >= LEAST_LOOKUPS and hits < self._below * lookups:
                told = CacheEvicted(HITS_WINDOW_S, round(hits / lookups, 4), self._below)
            ends_at, lookups, hits = now + HITS_WINDOW_S, 0, 0
            self._hours.pop(whose, None)  # keeps the oldest first
            if len(self._hours) >= MOST_COUNTED:
                del self._hours[next(iter(self._hours))]
        self._hours[whose] = ends_at, lookups + 1, hits + is_hit
        return told


T = TypeVar("T")

FOLDED_AT = 64
MOST_WAITING = 10_000
_ROW, _WHOSE = attrgetter("row"), attrgetter("whose")


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

    def heed(self) -> int:
        """Report pending answers to the circuits only, as needed before booking a fault. Returns their number."""
        waiting = len(self.entries)
        if waiting > self._reported:
            for run in _runs(self.entries[self._reported : waiting], 1):
                for row, answers in _by(_ROW, run).items():
                    self._circuits.succeeded(row, run[-1].ended_at, probe=False, count=len(answers))
            self._reported = waiting
        return waiting

    def fold(self, forecast: Forecast) -> None:
        """Book pending answers. Health treats answers of one second as simultaneous; all else is exact."""
        waiting = self.heed()
        entries = self.entries[:waiting]
        del self.entries[:waiting]
        self._reported = 0
        for run in _runs(entries, 1):
            self._book(run, forecast)

    def probed(self, entry: Entry, forecast: Forecast) -> bool:
        """Book the answer of a probe at once, after the pending ones; True if a circuit changed."""
        self.fold(forecast)
        self._book([entry], forecast)
        return self._circuits.succeeded(entry.row, entry.ended_at, probe=True)

    def _book(self, run: list[Entry], forecast: Forecast) -> None:
        """Book answers of one second: what they teach, the retries they allow, and the successes of accounts."""
        now = run[-1].ended_at
        for row, answers in _by(_ROW, run).items():
            unusual, late = 0.0, 0.0
            for own in _by(_WHOSE, answers).values():
                more, later = self.workloads.answered(row, now, own, forecast.pool)
                unusual += more
                late += later
            self.health.answered(row, now, answers, forecast, unusual, late)
        for asked in _runs([entry for entry in run if entry.is_first], PARTS):
            self._retries.asked(asked[-1].ended_at, len(asked))
        for whose, answers in _by(_WHOSE, run).items():
            if whose is not None:
                self._bursts.answered(whose[:2], now, len(answers))  # by account and environment


def _by(name: Callable[[Entry], T], run: list[Entry]) -> dict[T, list[Entry]]:
    """Group entries by a key. Fast if all have the same."""
    names = [*map(name, run)]
    if names.count(names[0]) == len(run):
        return {names[0]: run}
    parted = defaultdict(list)
    for each, entry in zip(names, run, strict=True):
        parted[each].append(entry)
    return parted


def _runs(entries: list[Entry], parts: int) -> list[list[Entry]]:
    """Split entries by time, in fractions (1 / ``parts``) of a second. Fast if all fall into one."""

    def part(entry: Entry) -> int:
        return int(entry.ended_at * parts)

    if entries and part(entries[0]) == part(entries[-1]):
        return [entries]
    return [[*run] for _, run in groupby(entries, part)]
