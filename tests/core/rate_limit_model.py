"""Random arrivals, and a slow exact model of rate limits that recounts every admission with fractions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from math import inf, nextafter
from random import Random
from typing import Protocol

from routewright.errors import RateLimited
from routewright.wire import Ask, Caller, RateLimits
from tests.contracts.storage.samples import AT_S, DAY_S, make_ask

Arrivals = Callable[[int, Random], Iterator[float]]
WINDOW_S = 60
FIRST = 100_000.1
"""When it begins: what is added to this is rounded."""
MOST_RUNNING = 50
LOOKED_AT = 17
"""Of so many waits that are told one is looked at."""


def poisson(limit: int, rng: Random) -> Iterator[float]:
    """Twice as many as the limit admits, at any time."""
    now = FIRST
    while True:
        now += rng.expovariate(limit / 30)
        yield now


def bursts(limit: int, rng: Random) -> Iterator[float]:
    """Up to twice a minute's at one instant, and then nobody for a while."""
    now = FIRST
    while True:
        yield from [now] * rng.randint(1, 2 * limit)
        now += rng.choice((0.0, 1e-9, 1.0, 59.9, 60.0, rng.uniform(0.0, 70.0)))


def edges(limit: int, rng: Random) -> Iterator[float]:
    """Around the ends of windows: some an instant before, some then, and some an instant after."""
    edge = FIRST
    while True:
        edge += rng.choice((1.0, 30.0, 60.0, 60.0, 60.0))
        for at in (edge - 1e-3, nextafter(edge, 0.0), edge, nextafter(edge, inf), edge + 1e-3):
            yield from [at] * rng.randint(0, limit // 2 + 1)


ARRIVALS: list[Arrivals] = [poisson, bursts, edges]


class Gate(Protocol):
    """What admits."""

    def ask(self, ask: Ask, at: float) -> RateLimited | None:
        """Ask at a time of the monotonic clock. None: it is admitted."""
        ...

    def end(self, call: str, tokens: int | None) -> None: ...


class Listed:
    """All that one party was admitted: times, and tokens as they were corrected."""

    def __init__(self, limits: RateLimits) -> None:
        self.limits = limits
        self.times: list[float] = []
        self.tokens: list[int] = []
        self._first = 0

    def has_room(self, at: float, tokens: int) -> bool:
        """True if a request of so many tokens fits. What leaves before it is not looked at again."""
        self._first = self._first_at(at)
        return self.will_have_room(at, tokens)

    def will_have_room(self, at: float, tokens: int) -> bool:
        """The same of a later time, if nobody else comes."""
        first, limits = self._first_at(at), self.limits
        if limits.requests_per_min is not None and len(self.times) - first >= limits.requests_per_min:
            return False
        if limits.tokens_per_min is None or not tokens:
            return True
        used = sum(self.tokens[first:])
        return used + tokens <= limits.tokens_per_min or (used == 0 and limits.tokens_per_min > 0)

    def put(self, at: float, tokens: int) -> int:
        """Keep one that was admitted; its place."""
        self.times.append(at)
        self.tokens.append(tokens)
        return len(self.times) - 1

    def check(self) -> None:
        """No (t - 60 s, t] has more than the limit of requests: between one and the next but so many lies a minute."""
        most = self.limits.requests_per_min
        assert all(before <= after for before, after in pairwise(self.times))
        for first, last in zip(self.times, self.times[most:] if most is not None else (), strict=False):
            assert has_left(first, last), f"{most} and one more within a minute, from {first} to {last}"

    def _first_at(self, at: float) -> int:
        first, times = self._first, self.times
        while first < len(times) and has_left(times[first], at):
            first += 1
        return first


def has_left(at: float, now: float) -> bool:
    """True if what was taken at a time counts no longer. Floats tell where a rounding changes nothing."""
    passed = now - at
    return passed > WINDOW_S if abs(passed - WINDOW_S) > 1e-3 else Fraction(now) - Fraction(at) >= WINDOW_S


class Crowd:
    """Calls of an account, with a key or without. Whoever has room is admitted, and nobody else."""

    def __init__(self, gate: Gate, rng: Random, account: RateLimits, key: RateLimits) -> None:
        self._gate, self._rng = gate, rng
        self.account, self.key = Listed(account), Listed(key)
        self._running: list[tuple[str, list[tuple[Listed, int]]]] = []
        self._tokens = account.tokens_per_min or 0
        self._wall = AT_S
        self.seen = Counter[str]()
        """How often what came out."""

    def come(self, at: float) -> RateLimited | None:
        """One more call. The wall clock says what it likes, and the day with it."""
        rng, most = self._rng, self._tokens
        while self._running and (len(self._running) > MOST_RUNNING or rng.random() < 0.5):
            self._end()
        tokens = rng.choice((0, most // 40, most // 20, rng.randint(0, most // 10), most + 1))
        if rng.random() < 0.02:
            self._wall = AT_S + rng.choice((-DAY_S, 0.0, 3_600.0))
        return self.ask(at, tokens, Caller("acme", key_id=rng.choice((None, "k"))))

    def ask(self, at: float, tokens: int, caller: Caller) -> RateLimited | None:
        """Ask for so many tokens, and hold the answer to the lists."""
        call = f"c{self.seen.total()}"
        parties = [self.account] if caller.key_id is None else [self.account, self.key]
        refused = self._gate.ask(make_ask(call, caller=caller, at=self._wall, tokens=tokens, lasts_s=1e9), at)
        expected = all(party.has_room(at, tokens) for party in parties)
        assert (refused is None) is expected, f"{call} at {at!r}: {refused}"
        if refused is None:
            self._running.append((call, [(party, party.put(at, tokens)) for party in parties]))
            self.seen["admitted"] += 1
        else:
            self.seen["refused"] += 1
            if not self.seen["refused"] % LOOKED_AT:
                self._check_wait(refused, at, tokens, parties)
        return refused

    def _check_wait(self, refused: RateLimited, at: float, tokens: int, parties: list[Listed]) -> None:
        """What it is told to wait is enough, and not a second more."""
        wait_s = told(refused)
        assert all(party.will_have_room(at + wait_s, tokens) for party in parties)
        sooner = at + (wait_s - 1)
        assert wait_s == 1 or not all(party.will_have_room(sooner, tokens) for party in parties)

    def _end(self) -> None:
        """End any call: it used what it took, or more, or less, or nobody knows."""
        call, places = self._running.pop(self._rng.randrange(len(self._running)))
        taken = places[0][0].tokens[places[0][1]]
        tokens = self._rng.choice((None, 0, taken // 2, taken, taken + self._rng.randint(0, self._tokens // 20)))
        self._gate.end(call, tokens)
        if tokens is not None:
            for party, place in places:
                party.tokens[place] = tokens

    def check(self) -> None:
        """Both outcomes were there, and no window of anybody's was above its limit."""
        assert min(self.seen["admitted"], self.seen["refused"]) > self.seen.total() // 100
        self.account.check()
        self.key.check()


def told(refused: RateLimited) -> int:
    """After how many seconds to ask again."""
    assert refused.detail is not None
    seconds = refused.detail["retry_after_seconds"]
    assert isinstance(seconds, int)
    return seconds


def paired_limits(limit: int) -> tuple[RateLimits, RateLimits]:
    """Of the account, and of its key, which may take two thirds of that."""
    key = RateLimits(requests_per_min=max(1, limit * 2 // 3), tokens_per_min=limit * 40)
    return RateLimits(requests_per_min=limit, tokens_per_min=limit * 60), key
