"""Limits of attempts, and the budget of second tries: how long, how often, and when a model is left alone
(contract 4).
"""

from __future__ import annotations

from collections import deque
from math import inf

from msgspec import Struct

from routewright._core.request.problems import shown
from routewright.errors import Problem, ValidationFailed


class ExecutionLimits(Struct, frozen=True, kw_only=True):
    """Limits of carrying a request out. Times in seconds. They are the contract's; tests against real servers take
    shorter ones.

    router = Router(settings=Settings(execution=ExecutionLimits(first_token_s=2.0, idle_s=3.0)))
    """

    first_token_s: float = 10.0
    """The least time that a model has until its first token; where it usually takes longer, four times that."""
    idle_s: float = 10.0
    """The longest silence within a stream."""
    slow_s: float = 30.0
    """A stream is left that has been so slow for so long ..."""
    slow_share: float = 0.1
    """... as to bring less than this share of what its model usually does. Only while another model can take over."""
    least_s: float = 0.05
    """A retry or fallback that would have less time than this is not begun; of a ``timeout_ms`` below five seconds,
    less than a hundredth of it."""
    retry_after_s: float = 5.0
    """The longest Retry-After that is waited out; a longer one moves on."""
    backoff_s: float = 0.1
    """The shortest pause before the same model is tried again; the longest first one is three times that."""
    longest_backoff_s: float = 2.0
    """The longest pause; without chance they grow to it."""
    retry_share: float = 0.2
    """Second tries of a model, and hedges, over the last ten seconds: at most this share of the requests ..."""
    retries_per_s: float = 10.0
    """... and so many a second besides."""
    open_after: int = 5
    """Faults in a row after which a model is called no more for a while (its circuit opens)."""
    open_s: float = 10.0
    """For how long, at first. Then one call probes it."""
    longest_open_s: float = 15.0
    """For how long at most, when probe after probe fails; a Retry-After may make it longer, up to five minutes."""

    def __post_init__(self) -> None:
        problems = [
            Problem(f"ExecutionLimits.{name}", f"is {shown(value)}", hint)
            for name in self.__struct_fields__
            if (hint := _hint(name, value := getattr(self, name)))
        ]
        if problems:
            raise ValidationFailed.of(*problems)


def _hint(name: str, value: object) -> str:
    """What a limit has to be; empty where it is that."""
    if name == "open_after":
        return "" if type(value) is int and value >= 1 else "take a whole number of at least 1"
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf
    return "" if number else "take a finite number, 0 or more"


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
