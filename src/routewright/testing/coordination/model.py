"""Rate limits as a child would keep them: a list of all that was ever taken, counted anew whenever it matters.

Times are fractions, so that no rounding is shared with what is tested.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from routewright.wire import Resource, Take


class Entry:
    """What one step took of one limit."""

    def __init__(self, step: int, take: Take, at: float, owner: str) -> None:
        self.step, self.name, self.resource, self.owner = step, take.name, take.resource, owner
        self.amount, self.at, self.ended = take.amount, Fraction(at), False


class NaiveLimiter:
    """What was let in, and whether there is room for more."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s, self.entries, self.until = lease_s, list[Entry](), dict[str, float]()

    def present(self, name: str, resource: Resource, now: float | Fraction) -> list[Entry]:
        """What counts of one limit."""
        there = [entry for entry in self.entries if (entry.name, entry.resource) == (name, resource)]
        return there if resource == "slots" else [entry for entry in there if Fraction(now) - 60 < entry.at]

    def used(self, take: Take, now: float | Fraction) -> int:
        """The sum of it."""
        return sum(entry.amount for entry in self.present(take.name, take.resource, now))

    def has_room(self, take: Take, now: float | Fraction) -> bool:
        """Whether it fits."""
        used = self.used(take, now)
        return take.amount == 0 or used + take.amount <= take.limit or (used == 0 and take.limit > 0)

    def take(self, step: int, takes: Iterable[Take], owner: str, now: float) -> None:
        """It was let in."""
        for take in takes:
            self.entries.append(Entry(step, take, now, owner))
            if take.resource == "slots":
                self.until[owner] = now + self.lease_s

    def end(self, step: int, tokens: int | None) -> None:
        """It is over."""
        self.entries = [entry for entry in self.entries if (entry.step, entry.resource) != (step, "slots")]
        for entry in self.entries:
            if entry.step == step and entry.resource == "tokens" and not entry.ended:
                entry.amount, entry.ended = entry.amount if tokens is None else tokens, True

    def renew(self, owner: str, now: float) -> None:
        """An owner was heard of."""
        if owner in self.until:
            self.until[owner] = now + self.lease_s

    def lapse(self, now: float) -> None:
        """Time has passed."""
        gone = {owner for owner, until in self.until.items() if until <= now}
        self.until = {owner: until for owner, until in self.until.items() if owner not in gone}
        self.entries = [entry for entry in self.entries if entry.resource != "slots" or entry.owner not in gone]
