"""Answers that wait to be booked. Who brings one only appends it, without a lock; they are booked together, in order.
Booking serves all that learns from answers: workloads, health, circuits, the retry budget and the counts of error
bursts. It comes before anything is read from these that an answer could have changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from routewright._core.alerts import ErrorBursts
from routewright._core.routing.outlook import Outlook

from .breaker import Circuits
from .budgets import PARTS, RetryBudget
from .health import Health
from .workload import Entry, Workloads

T = TypeVar("T")

FOLDED_AT = 64  # who appends this many books them
MOST_WAITING = 10_000  # where nobody comes to book them, what is more is not taken
_ROW, _WHOSE = itemgetter(0), itemgetter(6)


class Journal:
    """``append`` may be called by anybody at any time, ``fold`` by one thread at a time."""

    __slots__ = ("_bursts", "_circuits", "_entries", "_heeded", "_retries", "health", "workloads")

    def __init__(self, health: Health, circuits: Circuits, retries: RetryBudget, bursts: ErrorBursts) -> None:
        self.health = health
        self.workloads = Workloads()
        self._circuits = circuits
        self._retries = retries
        self._bursts = bursts
        self._entries: list[Entry] = []  # one list for ever: nobody appends to one that was folded already
        self._heeded = 0  # how many of them the circuits know

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: Entry) -> bool:
        """Note an answer; True if it is time to fold."""
        entries = self._entries
        waiting = len(entries)
        if waiting < MOST_WAITING:
            entries.append(entry)
        return waiting >= FOLDED_AT - 1

    def heed(self) -> int:
        """Tell the circuits alone of what waits: all that the booking of a fault needs. Returns how many wait."""
        waiting = len(self._entries)
        if waiting > self._heeded:
            for run in _runs(self._entries[self._heeded : waiting], 1):
                for row, answers in _by(_ROW, run).items():
                    self._circuits.answered(row, run[-1][1], len(answers))
            self._heeded = waiting
        return waiting

    def fold(self, outlook: Outlook) -> None:
        """Book what waits. To health, answers of the same second are of one time; all else is exact."""
        waiting = self.heed()
        entries = self._entries[:waiting]
        del self._entries[:waiting]
        self._heeded = 0
        for run in _runs(entries, 1):
            now = run[-1][1]
            self._learn(run, now, outlook)
            self._count(run, now)

    def probed(self, entry: Entry, outlook: Outlook) -> bool:
        """Book the answer of a probe at once, after all that waits; True if a circuit moved."""
        self.fold(outlook)
        row, now = entry[:2]
        self._learn([entry], now, outlook)
        self._count([entry], now)
        return self._circuits.succeeded(row, now, probe=True)

    def _learn(self, run: list[Entry], now: float, outlook: Outlook) -> None:
        for row, answers in _by(_ROW, run).items():
            unusual, late = 0.0, 0.0
            for own in _by(_WHOSE, answers).values():
                more, later = self.workloads.answered(row, now, own, outlook.pool)
                unusual += more
                late += later
            self.health.answered(row, now, answers, outlook, unusual, late)

    def _count(self, run: list[Entry], now: float) -> None:
        for asked in _runs([entry for entry in run if entry[7]], PARTS):
            self._retries.asked(asked[-1][1], len(asked))
        for whose, answers in _by(_WHOSE, run).items():
            if whose is not None:
                self._bursts.answered(whose[:2], now, len(answers))  # of its account and environment


def _by(name: Callable[[Entry], T], run: list[Entry]) -> dict[T, list[Entry]]:
    """Parted by a name that each entry has; often all have one."""
    names = [*map(name, run)]
    if names.count(names[0]) == len(run):
        return {names[0]: run}
    parted = defaultdict(list)
    for each, entry in zip(names, run, strict=True):
        parted[each].append(entry)
    return parted


def _runs(entries: list[Entry], parts: int) -> list[list[Entry]]:
    """Parted by parts of a second; under load all are of one."""

    def part(entry: Entry) -> int:
        return int(entry[1] * parts)

    if entries and part(entries[0]) == part(entries[-1]):
        return [entries]
    return [[*run] for _, run in groupby(entries, part)]
