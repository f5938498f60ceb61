"""A logistic model of whether a candidate's answer is right: its most probable weights, and how sure they are."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .prior import MEAN, PRECISION

Floats: TypeAlias = "NDArray[np.float64]"

_STEPS = 3
PRIOR, PRIOR_PRECISION = np.array(MEAN), np.array(PRECISION)


class Posterior:
    """Of the model's weights, given observations: ``x`` (n, n_features + 1), ``signs`` 1 where right and else -1."""

    def __init__(self, x: Floats, signs: Floats, weight: Floats) -> None:
        self._x, self._signs, self._weight = x, signs, weight

    def climb(self, mean: Floats) -> Floats:
        """Better weights. A step that makes them worse is halved, so that it never runs away."""
        loss = self._loss(mean)
        for _ in range(_STEPS):
            chance = chances(self._signs * (self._x @ mean))
            slope = self._x.T @ (self._weight * self._signs * (1.0 - chance)) - PRIOR_PRECISION @ (mean - PRIOR)
            step = np.linalg.solve(self._curve(self._weight * chance * (1.0 - chance)), slope)
            size = 1.0
            while (after := self._loss(mean + size * step)) > loss and size > 0.01:
                size /= 2
            if after > loss:
                break
            mean, loss = mean + size * step, after
        return mean

    def covariance(self, mean: Floats) -> Floats:
        """How unsure the weights are. Heavy observations are few: their noise counts in full."""
        chance = chances(self._x @ mean)
        doubt = self._weight * chance * (1.0 - chance)
        inverse = np.linalg.inv(self._curve(doubt))
        return inverse @ self._curve(self._weight * doubt) @ inverse

    def _curve(self, weight: Floats) -> Floats:
        curve: Floats = (self._x.T * weight) @ self._x + PRIOR_PRECISION
        return curve

    def _loss(self, mean: Floats) -> float:
        away = mean - PRIOR
        return float(
            self._weight @ np.logaddexp(0.0, -self._signs * (self._x @ mean)) + away @ PRIOR_PRECISION @ away / 2
        )


def chances(odds: Floats) -> Floats:
    chances: Floats = 1.0 / (1.0 + np.exp(-np.clip(odds, -30.0, 30.0)))
    return chances
