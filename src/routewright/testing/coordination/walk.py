"""What rate limits are, as a model, and a random walk that holds a coordination to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from fractions import Fraction
from math import inf
from random import Random

import pytest

from routewright.protocols import Coordination
from routewright.testing.clock import FakeClock
from routewright.wire import Denied, Resource, Take, Taken, WindowState

NAMES = ("account:a", "key:b")
RESOURCES: tuple[Resource, ...] = ("requests", "tokens", "slots")
PAUSES = (0.0, 0.0, 0.1, 1.0, 7.3, 20.0, 29.9, 30.0, 59.0, 60.0, 61.7)
NEARLY = Fraction(1, 10**6)


class Entry:
    """What one step took of one limit."""

    def __init__(self, step: int, take: Take, at: float, owner: str) -> None:
        self.step, self.name, self.resource, self.owner = step, take.name, take.resource, owner
        self.amount, self.at, self.ended = take.amount, Fraction(at), False


class NaiveLimiter:
    """Rate limits in the simplest way: a list of all that was ever taken, counted anew whenever it matters.

    Times are fractions, so that no rounding is shared with what is tested.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s, self.entries, self.until = lease_s, list[Entry](), dict[str, float]()

    def present(self, name: str, resource: Resource, now: float | Fraction) -> list[Entry]:
        """What counts of one limit."""
        there = [entry for entry in self.entries if (entry.name, entry.resource) == (name, resource)]
        return there if resource == "slots" else [entry for entry in there if Fraction(now) - 60 < entry.at]

    def used(self, take: Take, now: float | Fraction) -> int:
        """The sum of what counts of one limit."""
        return sum(entry.amount for entry in self.present(take.name, take.resource, now))

    def has_room(self, take: Take, now: float | Fraction) -> bool:
        """Whether an amount fits."""
        used = self.used(take, now)
        return take.amount == 0 or used + take.amount <= take.limit or (used == 0 and take.limit > 0)

    def take(self, step: int, takes: Iterable[Take], owner: str, now: float) -> None:
        """Book a step that was admitted."""
        for take in takes:
            self.entries.append(Entry(step, take, now, owner))
            if take.resource == "slots":
                self.until[owner] = now + self.lease_s

    def end(self, step: int, tokens: int | None) -> None:
        """Book the end of a step."""
        self.entries = [entry for entry in self.entries if (entry.step, entry.resource) != (step, "slots")]
        for entry in self.entries:
            if entry.step == step and entry.resource == "tokens" and not entry.ended:
                entry.amount, entry.ended = entry.amount if tokens is None else tokens, True

    def renew(self, owner: str, now: float) -> None:
        """Renew the lease of an owner."""
        if owner in self.until:
            self.until[owner] = now + self.lease_s

    def lapse(self, now: float) -> None:
        """Free the slots of owners whose leases are over."""
        gone = {owner for owner, until in self.until.items() if until <= now}
        self.until = {owner: until for owner, until in self.until.items() if owner not in gone}
        self.entries = [entry for entry in self.entries if entry.resource != "slots" or entry.owner not in gone]


class Walk:
    """One coordination, and the model that it is held to.

    Owners take, end, renew and vanish while time passes. Chance may be that of ``random.Random(seed)``, or hypothesis's
    ``st.randoms()``, which then finds the shortest walk that goes wrong.
    """

    def __init__(self, coordination: Coordination, clock: FakeClock, rng: Random, lease_s: float) -> None:
        self.coordination = coordination
        self.clock = clock
        self.rng = rng
        self.model = NaiveLimiter(lease_s)
        self.taken: list[Taken] = []
        self.owners = 3
        """How many there ever were. The last three are alive."""
        self.steps: tuple[Callable[[], Awaitable[None]], ...] = (
            *(*(self.take,) * 6, *(self.end,) * 3, self.renew, self.vanish, *(self.wait,) * 4),
        )

    async def go(self, steps: int) -> None:
        """Take so many steps. Raises ``AssertionError`` where the model says otherwise."""
        for _ in range(steps):
            self.model.lapse(self.clock.monotonic())
            await self.rng.choice(self.steps)()

    async def take(self) -> None:
        """Take of some limits, which may have changed."""
        takes = [
            Take(name, resource, self.rng.choice((0, 1, 3, 5)), self.rng.choice((0, 1, 1, 1, 2, 4, 9)))
            for name in NAMES
            for resource in RESOURCES
            if self.rng.random() < 0.6
        ]
        self.rng.shuffle(takes)
        owner = self._owner()
        result = await self.coordination.take(takes, owner)
        now = self.clock.monotonic()
        refusing = [place for place, take in enumerate(takes) if not self.model.has_room(take, now)]
        assert isinstance(result, Denied) == bool(refusing), f"{takes}, {refusing}: {result}"
        if isinstance(result, Denied):
            self._check_refusal(takes, refusing, result, now)
        else:
            self.taken.append(result)
            self.model.take(result.id, takes, owner, now)
        self._check_states(takes, result.states, now)

    async def end(self) -> None:
        """End a step, perhaps again."""
        if self.taken:
            step = self.rng.choice(self.taken)
            tokens = self.rng.choice((None, 0, 1, 3, 8))
            await self.coordination.end(step, tokens)
            self.model.end(step.id, tokens)

    async def renew(self) -> None:
        """Renew the lease of an owner."""
        owner = self._owner()
        await self.coordination.renew(owner)
        self.model.renew(owner, self.clock.monotonic())

    async def vanish(self) -> None:
        """Let an owner die."""
        self.owners += 1

    async def wait(self) -> None:
        """Let time pass."""
        await self.clock.advance(self.rng.choice(PAUSES))

    def _owner(self) -> str:
        return f"owner:{self.owners - self.rng.randrange(3)}"

    def _check_refusal(self, takes: Sequence[Take], refusing: list[int], result: Denied, now: float) -> None:
        """After the wait that is told all limits have room, and not before."""
        waits = {place: self._wait(takes[place], now) for place in refusing}
        assert max(waits.values()) - waits[result.by] < NEARLY
        assert abs(result.retry_after_s - max(waits.values())) < NEARLY
        then = now + result.retry_after_s
        for take in takes:
            if take.resource != "slots" and (take.limit or not take.amount):
                assert self.model.has_room(take, then)

    def _wait(self, take: Take, now: float) -> Fraction:
        if take.limit == 0:
            return Fraction(60)
        if take.resource == "slots":
            return Fraction(1)
        leave = sorted(entry.at + 60 for entry in self.model.present(take.name, take.resource, now))
        return next(at for at in leave if self.model.has_room(take, at)) - Fraction(now)

    def _check_states(self, takes: Sequence[Take], states: Sequence[WindowState], now: float) -> None:
        for take, state in zip(takes, states, strict=True):
            there = self.model.present(take.name, take.resource, now)
            last = max((float(entry.at) for entry in there if entry.amount), default=-inf)
            reset_s = 0.0 if take.resource == "slots" else max(0.0, last + 60 - now)
            assert (state.resource, state.limit) == (take.resource, take.limit)
            assert state.remaining == max(0, take.limit - sum(entry.amount for entry in there))
            assert state.reset_s == pytest.approx(reset_s, abs=1e-6)
