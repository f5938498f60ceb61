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
        account.calls.add(int(now // _STEP_S), bad=error)
        requests, errors = account.calls.total, account.calls.bad
        if not error or requests < LEAST_REQUESTS or errors <= BURST_RATE * requests or now < account.quiet_until:
            return None
        account.quiet_until = now + WINDOW_S
        return ErrorBurst(WINDOW_S, requests, errors, round(errors / requests, 4))

    def count_answers(self, owner: Hashable, now: float, count: int) -> None:
        """Count successful calls, which never begin a burst."""
        self._account(owner).calls.add(int(now // _STEP_S), count=count)

    def _account(self, owner: Hashable) -> _Account:
        account = self._accounts.get(owner)
        if account is None:
            account = self._accounts[owner] = _Account(
                WindowedCount(WINDOW_S // _STEP_S + 1)  # one more step, since the latest is partial
            )
            if len(self._accounts) > MOST_COUNTED:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(owner)
        return account


class LowHits:
    """Counts the hits of the response cache by account and hour. Use it under a lock."""

    def __init__(self, below: float) -> None:
        """``below``: the hit rate below which an alert is raised."""
        self._below = below
        self._hours: dict[Hashable, tuple[float, int, int]] = {}
        """By account: when its hour ends, look-ups, and hits."""

    def count_lookup(self, owner: Hashable, now: float, *, is_hit: bool) -> CacheEvicted | None:
        """Count a look-up. Returns an event if the hour just ended had too few hits. ``now`` in seconds."""
        event = None
        ends_at, lookups, hits = self._hours.get(owner) or (0.0, 0, 0)
        if now >= ends_at:
            if lookups >= LEAST_LOOKUPS and hits < self._below * lookups:
                event = CacheEvicted(HITS_WINDOW_S, round(hits / lookups, 4), self._below)
            ends_at, lookups, hits = now + HITS_WINDOW_S, 0, 0
            self._hours.pop(owner, None)  # keeps the oldest first
            if len(self._hours) >= MOST_COUNTED:
                del self._hours[next(iter(self._hours))]
        self._hours[owner] = ends_at, lookups + 1, hits + is_hit
        return event
