"""Answers that wait to be booked. Who brings one only appends it, without a lock; they are booked together, in order.

Booking serves all that learns from answers: health, circuits, the retry budget and the counts of error bursts. It comes
before anything is read from these that an answer could have changed.
"""

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
from .health import Entry, Health

T = TypeVar("T")

FOLDED_AT = 64
"""Who appends this many books them."""
MOST_WAITING = 10_000
"""Where nobody comes to book them, what is more is not taken."""


class Journal:
    """``append`` may be called by anybody at any time, ``fold`` by one thread at a time."""

    __slots__ = ("_bursts", "_circuits", "_entries", "_health", "_retries")

    def __init__(self, health: Health, circuits: Circuits, retries: RetryBudget, bursts: ErrorBursts) -> None:
        self._health = health
        self._circuits = circuits
        self._retries = retries
        self._bursts = bursts
        self._entries: list[Entry] = []  # one list for ever: nobody appends to one that was folded already

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: Entry) -> bool:
        """Note an answer; True if it is time to fold."""
        entries = self._entries
        waiting = len(entries)
        if waiting < MOST_WAITING:
            entries.append(entry)
        return waiting >= FOLDED_AT - 1

    def fold(self, outlook: Outlook) -> None:
        """Book what waits. To health, answers of the same second are of one time; all else is exact."""
        waiting = len(self._entries)
        if not waiting:
            return
        entries = self._entries[:waiting]
        del self._entries[:waiting]
        for run in _runs(entries, _second):
            now = run[-1][1]
            for row, answers in _by(itemgetter(0), run).items():
                self._health.answered(row, now, answers, outlook)
                self._circuits.answered(row, now, len(answers))
            self._count(run, now)

    def probed(self, entry: Entry, outlook: Outlook) -> bool:
        """Book the answer of a probe at once, after all that waits; True if a circuit moved."""
        self.fold(outlook)
        row, now = entry[:2]
        self._health.answered(row, now, [entry], outlook)
        self._count([entry], now)
        return self._circuits.succeeded(row, now, probe=True)

    def _count(self, run: list[Entry], now: float) -> None:
        for asked in _runs([entry for entry in run if entry[7]], _part):
            self._retries.asked(asked[-1][1], len(asked))
        for whose, answers in _by(itemgetter(6), run).items():
            if whose is not None:
                self._bursts.answered(whose, now, len(answers))


def _by(name: Callable[[Entry], T], run: list[Entry]) -> dict[T, list[Entry]]:
    """Parted by a name that each entry has; often all have one."""
    names = [*map(name, run)]
    if names.count(names[0]) == len(run):
        return {names[0]: run}
    parted = defaultdict(list)
    for each, entry in zip(names, run, strict=True):
        parted[each].append(entry)
    return parted


def _second(entry: Entry) -> int:
    return int(entry[1])


def _part(entry: Entry) -> int:
    return int(entry[1] * PARTS)


def _runs(entries: list[Entry], step: Callable[[Entry], int]) -> list[list[Entry]]:
    """Parted by steps of time; under load all are of one."""
    if entries and step(entries[0]) == step(entries[-1]):
        return [entries]
    return [[*run] for _, run in groupby(entries, step)]
