"""What an account's ledger has to say, in the words of contract 7: all that happened is kept, and added up anew when
somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from routewright.wire import LedgerRow

PERCENTS = (50, 80, 100)
LATE_S = 600.0
"""Who says that it is so much earlier read the clock a while ago; who says that it is earlier still, another clock."""


class Held(NamedTuple):
    """A reservation."""

    nanos: int
    purses: tuple[str, ...]
    owner: str


class Booked(NamedTuple):
    """What a settlement was counted as."""

    purses: tuple[str, ...]
    charge: int
    of_run: int


class Refusal(NamedTuple):
    """Why there is no room: the purses that are short, and whether waiting helps."""

    purses: frozenset[str]
    waits: bool


class LedgerModel:
    """One account with keys and runs."""

    def __init__(self) -> None:
        self.limits: dict[str, int | None] = {}
        """By purse, without the month: ``account``, ``month``, ``key:k1``, ``key-month:k1``, ``run:r1``."""
        self.prepaid = False
        self.credits: dict[str, int] = {}
        self.holds: dict[str, Held] = {}
        self.rows: dict[tuple[str, int], LedgerRow] = {}
        self.booked: list[Booked] = []
        self.unknown: dict[str, tuple[int, tuple[str, ...]]] = {}
        """Calls whose reservations expired, with what they may have spent in runs."""
        self.kept: dict[str, tuple[float, float]] = {}
        """When each owner spoke last, and for how long that holds."""
        self.last_clock = 0.0
        self.told: dict[tuple[str, int], int] = {}
        """The highest threshold, by month and limit."""
        self.excess: Counter[str] = Counter()
        """By how much a purse may be above its limit, and there is a reason written down for it."""
        self.ends: Counter[str] = Counter()
        """Reservations that began, and how each of them ended."""

    # who pays

    def purses(self, month: str, key: str | None, run: str | None) -> tuple[str, ...]:
        of_run = [] if run is None else [f"run:{run}"]
        of_key = [] if key is None else [f"key:{key}", f"key:{key}:{month}"]
        return (*of_run, *of_key, "account", f"month:{month}")

    def limit(self, purse: str) -> int | None:
        match purse.split(":"):
            case ["account"]:
                return sum(self.credits.values()) if self.prepaid else None
            case ["month", _]:
                return self.limits.get("month")
            case ["key", key, _]:
                return self.limits.get(f"key-month:{key}")
        return self.limits.get(purse)

    def spent(self, purse: str) -> int:
        if purse.startswith("run:"):
            known = sum(each.of_run for each in self.booked if purse in each.purses)
            return known + sum(nanos for nanos, purses in self.unknown.values() if purse in purses)
        return sum(each.charge for each in self.booked if purse in each.purses)

    def reserved(self, purse: str) -> int:
        return sum(hold.nanos for hold in self.holds.values() if purse in hold.purses)

    # what happens

    def speak(self, owner: str, lease_s: float, clock_s: float) -> None:
        self.kept[owner] = clock_s, lease_s
        self.last_clock = clock_s

    def lives(self, owner: str, clock_s: float) -> bool:
        spoke_at, lease_s = self.kept.get(owner, (0.0, 0.0))
        return spoke_at - LATE_S <= clock_s < spoke_at + lease_s

    def refusal(self, call: str, nanos: int, purses: Iterable[str], gone: Iterable[str] = ()) -> Refusal | None:
        """Why there is no room for a reservation, where these calls' are over."""
        over, short, waits = {call, *gone}, set[str](), True
        for purse in purses:
            limit = self.limit(purse)
            if limit is None:
                continue
            others = [hold for each, hold in self.holds.items() if each not in over and purse in hold.purses]
            lost = [self.holds[each].nanos for each in gone if purse in self.holds[each].purses]
            left = limit - self.spent(purse) - (sum(lost) if purse.startswith("run:") else 0)
            if nanos > left - sum(hold.nanos for hold in others):
                short.add(purse)
                waits = waits and nanos <= left
        return Refusal(frozenset(short), waits) if short else None

    def reserve(self, call: str, nanos: int, purses: tuple[str, ...], owner: str, clock_s: float) -> Refusal | None:
        """What is held from now on; None: it is. ``nanos``: in place of what the call held."""
        if self.refusal(call, nanos, purses) is not None:
            gone = [
                each for each, hold in self.holds.items()
                if each != call and hold.owner != owner and not self.lives(hold.owner, clock_s)
            ]  # fmt: skip
            refused = self.refusal(call, nanos, purses, gone)
            if refused is not None:
                return refused
            for each in gone:
                self.expire(each)
        self.ends["begun"] += call not in self.holds
        self.holds[call] = Held(nanos, purses, owner)
        return None

    def expire(self, call: str) -> None:
        hold = self.holds.pop(call)
        self.ends["expired"] += 1
        before, _ = self.unknown.get(call, (0, ()))
        self.unknown[call] = before + hold.nanos, hold.purses

    def sweep(self) -> None:
        for call in [each for each, hold in self.holds.items() if not self.lives(hold.owner, self.last_clock)]:
            self.expire(call)

    def settle(self, call: str, rows: list[LedgerRow], purses: tuple[str, ...], run_nanos: int | None) -> bool:
        """Whether anything is new. ``purses``: what it is paid from if nothing is held for it."""
        hold, unknown = self.holds.pop(call, None), self.unknown.pop(call, None)
        self.ends["settled" if rows else "released"] += hold is not None
        new = [row for row in rows if (row.request_id, row.attempt) not in self.rows]
        self.rows |= {(row.request_id, row.attempt): row for row in new}
        paid = hold.purses if hold is not None else purses if unknown is None else unknown[1]
        cost = sum(row.cost_nanos for row in new)
        counted = Booked(paid, sum(row.charge_nanos for row in new), max(cost, run_nanos or 0) if new else 0)
        self.booked.append(counted)
        for purse in paid:
            amount = counted.of_run if purse.startswith("run:") else counted.charge
            self.excess[purse] += max(0, amount - (0 if hold is None else hold.nanos))
        return bool(new) or hold is not None or unknown is not None

    def crossed(self, month: str) -> list[int]:
        """Thresholds that are reached now and were not told of."""
        limit, spent = self.limits.get("month"), self.spent(f"month:{month}")
        if not limit:
            return []
        before = self.told.get((month, limit), 0)
        new = [each for each in PERCENTS if each > before and spent * 100 >= each * limit]
        self.told[month, limit] = max([before, *new])
        return new

    def set_limit(self, name: str, limit: int | None) -> None:
        """A limit changes; where it is lowered, more may be spent and held than it says."""
        before = {purse: self.limit(purse) for purse in self.all_purses()}
        self.limits[name] = limit
        self._allow(before)

    def terms(self, *, prepaid: bool, credit: int = 0, credit_id: str | None = None) -> None:
        """The account is prepaid, or is no longer; or its balance changes."""
        before = {"account": self.limit("account")}
        self.prepaid = prepaid
        if credit_id is not None:
            self.credits.setdefault(credit_id, credit)
        self._allow(before)

    def _allow(self, before: dict[str, int | None]) -> None:
        for purse, was in before.items():
            limit = self.limit(purse)
            if limit is not None:
                there = self.spent(purse) + self.reserved(purse) if was is None else was
                self.excess[purse] += max(0, there - limit)

    def all_purses(self) -> set[str]:
        """Every purse that anything was ever counted in."""
        counted = [*(each.purses for each in self.booked), *(hold.purses for hold in self.holds.values())]
        return {purse for purses in counted for purse in purses} | {"account"}
