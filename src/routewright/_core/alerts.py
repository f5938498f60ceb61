"""When do failures and misses become news? Counts calls by account, and tells once a window of too many (spec 6.1)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from routewright.wire import CacheEvicted, ErrorBurst

from .attempts.budgets import WindowedCount

WINDOW_S = 300
"""Seconds over which the share of errors is taken."""
_STEP_S = 5
"""The window moves by so many at a time."""
BURST_RATE = 0.05
"""A share of errors above this is a burst."""
LEAST_REQUESTS = 20
"""Fewer say nothing."""
HITS_WINDOW_S, _HITS_STEP_S = 3600, 60
LEAST_LOOKUPS = 100
"""Of the response cache in a window; fewer say nothing."""
MOST_COUNTED = 10_000
"""Accounts that are counted at once; of more, the one that was quiet for longest is forgotten."""


class _Account:
    """Calls of one account."""

    __slots__ = ("calls", "quiet_until")

    def __init__(self, steps: int) -> None:
        self.calls = WindowedCount(steps + 1)  # all of the window, whatever part of a step has passed
        self.quiet_until = 0.0
        """Of what was told nothing more is said until then."""


class _Watch:
    """Counts the calls of all accounts."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._accounts: OrderedDict[Hashable, _Account] = OrderedDict()

    def _account(self, whose: Hashable) -> _Account:
        account = self._accounts.get(whose)
        if account is None:
            account = self._accounts[whose] = _Account(self._steps)
            if len(self._accounts) > MOST_COUNTED:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(whose)
        return account


class LowHits(_Watch):
    """Watches the hits of the response cache. To be used under a lock."""

    def __init__(self, below: float) -> None:
        """``below``: the share of hits under which there are too few."""
        super().__init__(HITS_WINDOW_S // _HITS_STEP_S)
        self._below = below

    def looked(self, whose: Hashable, now: float, *, is_hit: bool) -> CacheEvicted | None:
        """Count a look-up. Returns the event where the hit rate is too low, once a window. ``now`` in seconds."""
        account = self._account(whose)
        account.calls.add(int(now // _HITS_STEP_S), bad=not is_hit)
        lookups = account.calls.total
        hits = lookups - account.calls.bad
        if lookups < LEAST_LOOKUPS or hits >= self._below * lookups or now < account.quiet_until:
            return None
        account.quiet_until = now + HITS_WINDOW_S
        return CacheEvicted(HITS_WINDOW_S, round(hits / lookups, 4), self._below)


class ErrorBursts(_Watch):
    """Watches how calls end. To be used under a lock."""

    def __init__(self) -> None:
        super().__init__(WINDOW_S // _STEP_S)

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
