"""Retries of the same model (contract 4): tries, pauses, and the retry budget that all requests share."""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from .timeouts import ExecutionLimits

PAUSE_FACTOR = 3  # decorrelated jitter: a pause is at most this many times the previous one
WINDOW_S = 10
PARTS = 10  # steps per second, the current one included


class WindowedCount:
    """Counts events, and bad ones among them, over the last ``length`` steps. Steps never decrease."""

    __slots__ = ("_length", "_steps", "bad", "total")

    def __init__(self, length: int) -> None:
        self._length = length
        self._steps: deque[list[int]] = deque()  # [step, total, bad], the oldest first
        self.total = self.bad = 0

    def add(self, step: int, bad: int = 0, count: int = 1) -> None:
        """Count ``count`` events, ``bad`` of them bad."""
        steps = self._steps
        if not steps or steps[-1][0] < step:
            self.move_to(step)
            steps.append([step, 0, 0])
        latest = steps[-1]
        latest[1] += count
        latest[2] += bad
        self.total += count
        self.bad += bad

    def move_to(self, step: int) -> None:
        """Drop events before the window that ends with ``step``."""
        steps = self._steps
        while steps and steps[0][0] <= step - self._length:
            oldest = steps.popleft()
            self.total -= oldest[1]
            self.bad -= oldest[2]


class RetryBudget:
    """Limits retries and hedges over ten seconds to a share of the requests plus a floor."""

    __slots__ = ("_floor", "_requests", "_retries", "_share")

    def __init__(self, limits: ExecutionLimits) -> None:
        self._share = limits.retry_share
        self._floor = limits.retries_per_s * WINDOW_S
        self._requests = WindowedCount(WINDOW_S * PARTS)
        self._retries = WindowedCount(WINDOW_S * PARTS + 1)  # includes the partial oldest step

    def count_requests(self, now: float, count: int = 1) -> None:
        """Count requests by their first attempts."""
        self._requests.add(int(now * PARTS), count=count)

    def take(self, now: float) -> bool:
        """Take one retry out of the budget; False if it is used up."""
        part = int(now * PARTS)
        self._requests.move_to(part)
        self._retries.move_to(part)
        if self._retries.total + 1 > self._share * self._requests.total + self._floor:
            return False
        self._retries.add(part)
        return True


class Retries(Struct):
    """The tries of one model for one request."""

    count: int = 0
    longest_s: float = 0.0
    """The longest next pause; 0 before the first."""

    def pause_s(self, limits: ExecutionLimits, retries: int, retry_after: float | None, jitter: float) -> float | None:
        """The pause before one more try; None if there may be none. ``retry_after``: what the
        provider asks for. ``jitter`` in [0, 1) spreads the retries of many callers."""
        if self.count > retries or (retry_after or 0.0) > limits.retry_after_s:
            return None
        longest_s = self.longest_s or PAUSE_FACTOR * limits.backoff_s
        pause_s = limits.backoff_s + jitter * (longest_s - limits.backoff_s)
        self.longest_s = min(PAUSE_FACTOR * pause_s, limits.longest_backoff_s)
        return max(retry_after or 0.0, pause_s)
