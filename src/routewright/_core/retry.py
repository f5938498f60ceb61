"""May a model be tried again? Only while second tries are few beside requests, so that an outage is not made worse."""

from __future__ import annotations

from .lately import Lately
from .limits import ExecutionLimits

WINDOW_S = 10
PARTS = 10
"""Of a second: time is counted in them, the present one included."""


class RetryBudget:
    """Counts requests and second tries. Of these there are never more in ten seconds than the share of the requests in
    them, and the floor, allow."""

    __slots__ = ("_floor", "_requests", "_retries", "_share")

    def __init__(self, limits: ExecutionLimits) -> None:
        self._share = limits.retry_share
        self._floor = limits.retries_per_s * WINDOW_S
        self._requests = Lately(WINDOW_S * PARTS)
        self._retries = Lately(WINDOW_S * PARTS + 1)  # the part that is half gone counts against them

    def asked(self, now: float, count: int = 1) -> None:
        """Requests made their first calls."""
        self._requests.add(int(now * PARTS), count=count)

    def take(self, now: float) -> bool:
        """Whether one more second try is within the budget; if so, it is taken out."""
        part = int(now * PARTS)
        self._requests.move_to(part)
        self._retries.move_to(part)
        if self._retries.total + 1 > self._share * self._requests.total + self._floor:
            return False
        self._retries.add(part)
        return True
