"""How much happened of late? Counts over a window of time that moves on in steps, the present one included."""

from __future__ import annotations

from collections import deque


class Lately:
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
