"""Sometimes tries another good model, to learn its quality from traffic. The extra cost is bounded: each request of an
exploring policy earns a share of its expected cost, and exploring spends from these earnings what the other model is
expected to cost more. So it adds at most this share to the expected cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .quality import MICRO
from .scoring import UNKNOWN_COST, Key


class Draw(NamedTuple):
    """The model to try first."""

    key: Key
    propensity: int
    """The probability of this draw, in millionths."""
    explored: bool


class Exploration:
    """The exploration budget of one policy."""

    earned_nanos = 0.0

    def draw(self, front: Sequence[Key], share: float, chance: float) -> Draw:
        """Draw one of ``front``, best first. ``share``: of requests to explore. ``chance``: uniform in [0, 1)."""
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
