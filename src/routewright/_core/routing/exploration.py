"""Tries another good model now and then, so that traffic can teach how good it is. Bounded in money. Each request of a
policy that explores earns its share of what it is expected to cost; what an explored model is expected to cost beyond
the best one is paid from that. So exploring adds at most this share to the expected cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .quality import MICRO
from .scoring import UNKNOWN_COST, Key


class Draw(NamedTuple):
    """Which model is tried first."""

    key: Key
    propensity: int
    """Millionths of chance with which it was to be drawn."""
    explored: bool


class Exploration:
    """What one policy has earned and not spent."""

    earned_nanos = 0.0

    def draw(self, front: Sequence[Key], share: float, chance: float) -> Draw:
        """Draw one of ``front``, best first. ``share``: of requests that explore; ``chance``: uniform in [0, 1)."""
        best, *others = front
        if best[2] == UNKNOWN_COST:
            return Draw(best, MICRO, explored=False)
        self.earned_nanos += share * best[2]
        others = [key for key in others if key[2] - best[2] <= self.earned_nanos]
        if not others or chance >= share:
            return Draw(best, round((1 - share) * MICRO) if others else MICRO, explored=False)
        key = others[int(chance / share * len(others))]
        self.earned_nanos -= max(0, key[2] - best[2])
        return Draw(key, round(share / len(others) * MICRO), explored=True)
