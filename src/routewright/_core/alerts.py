"""Alerts for error bursts and low cache hit rates (spec 6.1)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from msgspec import Struct

from routewright.wire import CacheEvicted, ErrorBurst

from .attempts.retry import WindowedCount

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

    def count_call(self, owner: Hashable, now: float, *, error: bool) -> ErrorBurst | None:
        """Count a finished call. ``error``: a 5xx. Returns a burst when it begins. ``now`` in seconds."""
        account = self._account(owner)
        calls = account.calls
        calls.add(int(now // _STEP_S), bad=error)
        is_burst = error and calls.total >= LEAST_REQUESTS and calls.bad > BURST_RATE * calls.total
        if not is_burst or now < account.quiet_until:
            return None
        account.quiet_until = now + WINDOW_S
        return ErrorBurst(WINDOW_S, calls.total, calls.bad, round(calls.bad / calls.total, 4))

    def count_answers(self, owner: Hashable, now: float, count: int) -> None:
        """Count successful calls, which never begin a burst."""
        self._account(owner).calls.add(int(now // _STEP_S), count=count)

    def _account(self, owner: Hashable) -> _Account:
        if (account := self._accounts.get(owner)) is None:
            # one more step, since the latest is partial
            account = self._accounts[owner] = _Account(WindowedCount(WINDOW_S // _STEP_S + 1))
            if len(self._accounts) > MOST_COUNTED:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(owner)
        return account


class _Hour(Struct):
    """Look-ups of one account in an hour."""

    ends_at: float
    lookups: int = 0
    hits: int = 0


class LowHits:
    """Counts the hits of the response cache by account and hour. Use it under a lock."""

    def __init__(self, below: float) -> None:
        """``below``: the hit rate below which an alert is raised."""
        self._below = below
        self._hours: dict[Hashable, _Hour] = {}  # by account

    def count_lookup(self, owner: Hashable, now: float, *, is_hit: bool) -> CacheEvicted | None:
        """Count a look-up. Returns an event if the hour just ended had too few hits. ``now`` in seconds."""
        event = None
        hour = self._hours.get(owner)
        if hour is None or now >= hour.ends_at:
            self._hours.pop(owner, None)  # keeps the oldest first
            if hour is not None and hour.lookups >= LEAST_LOOKUPS and hour.hits < self._below * hour.lookups:
                event = CacheEvicted(HITS_WINDOW_S, round(hour.hits / hour.lookups, 4), self._below)
            if len(self._hours) >= MOST_COUNTED:
                del self._hours[next(iter(self._hours))]
            hour = self._hours[owner] = _Hour(now + HITS_WINDOW_S)
        hour.lookups += 1
        hour.hits += is_hit
        return event
