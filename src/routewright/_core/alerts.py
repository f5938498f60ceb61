"""When do failures and misses become news? Counts calls by account, and tells once a window of too many (spec 6.1)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from routewright.wire import CacheEvicted, ErrorBurst

from .attempts.budgets import WindowedCount

WINDOW_S = 300  # seconds over which the share of errors is taken
_STEP_S = 5  # the window moves by so many at a time
BURST_RATE = 0.05  # a share of errors above this is a burst
LEAST_REQUESTS = 20  # fewer say nothing
HITS_WINDOW_S = 3600
LEAST_LOOKUPS = 100  # look-ups of the response cache in a window; fewer say nothing
MOST_COUNTED = 10_000  # accounts that are counted at once; of more, the one that was quiet for longest is forgotten


class _Account:
    """Calls of one account."""

    __slots__ = ("calls", "quiet_until")

    def __init__(self) -> None:
        self.calls = WindowedCount(WINDOW_S // _STEP_S + 1)  # all of the window, whatever part of a step has passed
        self.quiet_until = 0.0  # of a burst that was told of until then nothing more is said


class ErrorBursts:
    """Watches the calls of all accounts. To be used under a lock."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[Hashable, _Account] = OrderedDict()

    def ended(self, whose: Hashable, now: float, *, error: bool) -> ErrorBurst | None:
        """Count a call that ended, with a 5xx or otherwise. Gives a burst when it begins. ``now`` in seconds."""
        account = self._account(whose)
        account.calls.add(int(now // _STEP_S), bad=error)
        requests, errors = account.calls.total, account.calls.bad
        if not error or requests < LEAST_REQUESTS or errors <= BURST_RATE * requests or now < account.quiet_until:
            return None
        account.quiet_until = now + WINDOW_S
        return ErrorBurst(WINDOW_S, requests, errors, round(errors / requests, 4))

    def answered(self, whose: Hashable, now: float, count: int) -> None:
        """Count calls that ended with an answer, which never begin a burst."""
        self._account(whose).calls.add(int(now // _STEP_S), count=count)

    def _account(self, whose: Hashable) -> _Account:
        account = self._accounts.get(whose)
        if account is None:
            account = self._accounts[whose] = _Account()
            if len(self._accounts) > MOST_COUNTED:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(whose)
        return account


class LowHits:
    """Counts the hits of the response cache, by account and hour. To be used under a lock."""

    def __init__(self, below: float) -> None:
        """``below``: the share of hits under which there are too few."""
        self._below = below
        self._hours: dict[Hashable, tuple[float, int, int]] = {}
        """When the hour of an account ends, its look-ups, and its hits."""

    def looked(self, whose: Hashable, now: float, *, is_hit: bool) -> CacheEvicted | None:
        """Count a look-up. Returns the event if the hour that is over had too few hits. ``now`` in seconds."""
        told = None
        ends_at, lookups, hits = self._hours.get(whose) or (0.0, 0, 0)
        if now >= ends_at:
            if lookups >= LEAST_LOOKUPS and hits < self._below * lookups:
                told = CacheEvicted(HITS_WINDOW_S, round(hits / lookups, 4), self._below)
            ends_at, lookups, hits = now + HITS_WINDOW_S, 0, 0
            self._hours.pop(whose, None)  # so that those who were quiet for longest come first
            if len(self._hours) >= MOST_COUNTED:
                del self._hours[next(iter(self._hours))]
        self._hours[whose] = ends_at, lookups + 1, hits + is_hit
        return told
