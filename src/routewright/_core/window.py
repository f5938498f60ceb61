"""Is there room for one more? One window of a minute, exact, and what its numbers mean (spec 8, contract 7).

What was taken at ``a`` counts in every window (t - 60, t] with a <= t < a + 60. Times are seconds of a clock that
begins at zero or later and never runs backwards: ``t - 60`` is exact then, and no rounding lets anything in too early.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf, nextafter

from routewright.errors import Problem, ValidationFailed
from routewright.wire import WINDOW_S, Resource, WindowState

from .request.problems import shown

SLOT_WAIT_S = 1.0
"""When to ask for a slot again: nobody knows when one comes back."""


def fits(used: int, amount: int, limit: int) -> bool:
    """Whether a limit has room. More than the whole of it goes alone; a limit of nothing lets nothing in."""
    if amount < 1:
        return amount == 0
    return used + amount <= limit or (used == 0 and limit > 0)


def missing(used: int, amount: int, limit: int) -> int:
    """How much has to leave before an amount fits that does not now."""
    return used if amount > limit else used + amount - limit


def leaves_in(at: float, now: float) -> float:
    """Seconds until what was taken at ``at`` has left its window: added to ``now``, as floats add, they are enough."""
    leaves = at + WINDOW_S
    if leaves - WINDOW_S < at:
        leaves = nextafter(leaves, inf)
    wait = leaves - now
    return wait if now + wait >= leaves else nextafter(wait, inf)


def state_of(resource: Resource, limit: int, used: int, reset_s: float) -> WindowState:
    """What a limit has left."""
    return WindowState(resource, limit, limit - used if used < limit else 0, reset_s)


def check_amount(amount: int, path: str) -> None:
    """Refuse less than nothing. Raises ``ValidationFailed``."""
    if amount < 0:
        raise ValidationFailed.of(Problem(path, f"is {amount}", "take 0 or more"))


def check_seconds(seconds: object, path: str) -> None:
    """Refuse what is no length of time. Raises ``ValidationFailed``."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise ValidationFailed.of(Problem(path, f"is {shown(seconds)}", "take a number of seconds above 0"))


class Window:
    """What was taken of one limit, the oldest first. Of slots, which do not age, only the sum.

    A finaliser may correct an entry while any method runs in the same thread. So the sum is changed in statements
    that call nothing, and what has to change together does so with nothing in between that could run one.
    """

    __slots__ = ("gone", "head", "seen", "steps", "times", "used", "weights")

    def __init__(self) -> None:
        self.used = 0
        """Sum of what counts."""
        self.times: list[float] = []
        """Where there are any, those from ``head`` on count."""
        self.weights: list[int] | None = None
        """None: all are 1, which halves the memory of requests."""
        self.steps: list[int] = []
        """Of tokens: the step that took them, and may correct them."""
        self.head = 0
        self.gone = 0
        """Entries that were cut off before the first."""
        self.seen = -inf
        """Of slots: when some were last taken."""

    def put(self, amount: int, now: float) -> int:
        """Take. Gives the number of the entry."""
        if self.weights is None:
            self.weights = [1] * len(self.times)
        self.times.append(now)
        self.weights.append(amount)
        self.used += amount
        return self.gone + len(self.times) - 1

    def age(self, cut: float) -> list[int]:
        """Let go what was taken until ``cut``. Gives the steps that took it."""
        first = self.head
        self.head = end = bisect_right(self.times, cut, first)  # from here on nobody corrects them
        sum_left = end - first if self.weights is None else sum(self.weights[first:end])
        self.used -= sum_left
        left = self.steps[first:end]
        if 2 * end >= len(self.times):
            self._cut(end)
        return left

    def _cut(self, end: int) -> None:
        times, steps, gone = self.times[end:], self.steps[end:], self.gone + end
        weights = None if self.weights is None else self.weights[end:]  # the last that could run a finaliser
        self.weights = weights
        self.times = times
        self.steps = steps
        self.gone = gone
        self.head = 0

    def correct(self, number: int, amount: int) -> None:
        """Put another amount in the place of an entry's, if it still counts."""
        if self.weights is not None and self.counts(number):
            place = number - self.gone
            before = self.weights[place]
            self.weights[place] = amount
            self.used += amount - before

    def counts(self, number: int) -> bool:
        """Whether an entry has not left."""
        return number - self.gone >= self.head

    def undo(self, amount: int) -> None:
        """Take back what was taken last."""
        self.used -= amount
        self.seen = -inf
        for column in (self.times, self.weights, self.steps):
            if column:
                column.pop()

    def wait(self, amount: int, limit: int, now: float) -> float:
        """Seconds until an amount fits that does not now, if nobody else takes any. Of slots, when to ask again."""
        if limit < 1:
            return WINDOW_S
        left = missing(self.used, amount, limit)
        for place in range(self.head, len(self.times)):
            left -= 1 if self.weights is None else self.weights[place]
            if left <= 0:
                return leaves_in(self.times[place], now)
        return SLOT_WAIT_S

    def reset_s(self, now: float) -> float:
        """Seconds until all that counts now has left; of slots 0."""
        for place in range(len(self.times) - 1, self.head - 1, -1):
            if self.weights is None or self.weights[place]:
                return WINDOW_S - (now - self.times[place])
        return 0.0
