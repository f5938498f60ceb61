"""Seeded chance that gives the same on every version of Python: all of it comes from ``Random.random``."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
Data = dict[str, Any]


class Dice:
    """Draws from a seed."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)

    def share(self) -> float:
        """A number in [0, 1)."""
        return self._random.random()

    def chance(self, share: float) -> bool:
        """True so often."""
        return self.share() < share

    def between(self, least: int, most: int) -> int:
        """A whole number, both ends included."""
        return least + int(self.share() * (most - least + 1))

    def seconds(self, least: float, most: float) -> float:
        """A time in whole milliseconds."""
        return round(least + self.share() * (most - least), 3)

    def of(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[int(self.share() * len(items))]

    def some(self, items: Sequence[T], most: int) -> list[T]:
        """Between one and ``most`` of them, each once, in any order."""
        left, taken = list(items), list[T]()
        for _ in range(min(self.between(1, most), len(left))):
            taken.append(left.pop(int(self.share() * len(left))))
        return taken
