"""Windowed counts, and the two rules made of them: the retry budget, so that an outage is not made worse, and the least
pace of a stream."""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from .limits import ExecutionLimits

WINDOW_S = 10
PARTS = 10  # of a second: time is counted in them, the present one included
CHARACTERS = 4  # of a token, roughly: the guard is an order of magnitude wide


class WindowedCount:
    """How often something happened in the last ``length`` steps, and how often badly. Steps never go back."""

    __slots__ = ("_length", "_steps", "bad", "total")

    def __init__(self, length: int) -> None:
        self._length = length
        self._steps: deque[list[int]] = deque()  # [step, total, bad], the oldest first
        self.total = self.bad = 0

    def add(self, step: int, bad: int = 0, count: int = 1) -> None:
        """Count one, or several; ``bad``: how many of them."""
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
        """Forget what happened before the window that ends with a step."""
        steps = self._steps
        while steps and steps[0][0] <= step - self._length:
            _, total, bad = steps.popleft()
            self.total -= total
            self.bad -= bad


class RetryBudget:
    """Counts requests and second tries: in ten seconds no more of these than the share and the floor allow."""

    __slots__ = ("_floor", "_requests", "_retries", "_share")

    def __init__(self, limits: ExecutionLimits) -> None:
        self._share = limits.retry_share
        self._floor = limits.retries_per_s * WINDOW_S
        self._requests = WindowedCount(WINDOW_S * PARTS)
        self._retries = WindowedCount(WINDOW_S * PARTS + 1)  # the part that is half gone counts against them

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


class Pace(Struct, eq=False):
    """The pace of one answer. Times in monotonic seconds; of those who read, only their waiting counts."""

    limits: ExecutionLimits
    us_per_token: int
    """That the model usually takes."""
    begun: bool = False
    """Content has come; the time until then is the first token's."""
    brought: int = 0
    waited_s: float = 0.0
    is_slow: bool = False
    """Over the last stretch it brought next to nothing."""

    def chunk(self, characters: int, waited_s: float) -> None:
        """A chunk came after so long: of content, or without any, as a sign of life, which does not count."""
        if characters == 0:
            return
        if not self.begun:
            self.begun = True
            return
        self.brought += characters
        self.waited_s += waited_s
        if self.waited_s >= self.limits.slow_s:
            usual = CHARACTERS * self.waited_s * 1_000_000 / max(1, self.us_per_token)
            self.is_slow = self.brought < self.limits.slow_share * usual
            self.brought, self.waited_s = 0, 0.0
