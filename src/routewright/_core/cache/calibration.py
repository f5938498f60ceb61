"""How likely is a cached answer right, and which may be served so that wrong ones stay within a share of all requests?

A logistic model of a candidate's features, learned from answers that were made although a candidate was there. From
its risks for the candidates of the last requests follows the risk above which nothing is served.
"""

from __future__ import annotations

from collections import deque
from math import exp, log, sqrt
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from routewright.wire import Observation

from .prior import MEAN, PRECISION

Floats: TypeAlias = "NDArray[np.float64]"

WINDOW = 512
"""Requests whose candidates say what is served now."""
LEARNED = 768
"""Observations that are learned from: the latest."""
CAUTION = 0.8
"""Standard deviations of the model that are added to each risk."""
WORST = 15.0
"""Times the bound: what is riskier by itself is not served, however safe the others were."""
SAFETY = 0.5
"""Standard deviations that are added to the errors that are expected in all."""
RAMP = 0.25
"""Half the width of the zone, in log-odds of the risk, in which only a part is served."""
MARGIN = 0.5
"""Share of the bound that is aimed at."""
START = 100
"""Requests after which half of the bound is used: a short window says little."""
TEMPER = 0.5
"""Power to which weights are raised: a few heavy ones would rule the model."""
FADE = 0.97
"""What an observation counts after the next, where the last ones are compared with what was expected."""
DOUBT = 1.0
"""Wrong answers that are added to both sides, lest a few say much."""
TOLERANCE = 0.2
"""Surprise, as the logarithm of a ratio, that chance alone makes."""
ALARM = 3.0
"""Log-odds of risk for each unit of surprise beyond that."""
_EVERY = 16
"""Observations between two fits; requests between two looks at the window."""
_GRID = np.linspace(-8.0, 3.0, 56)
"""Log-odds of risk, from which the limit is chosen."""

_STEPS = 3
_MEAN, _PRECISION = np.array(MEAN), np.array(PRECISION)


class Bound(NamedTuple):
    """What limits wrong answers: ``max_error``, a share of all requests, or else a ``threshold`` of similarity."""

    max_error: float | None = 0.01
    threshold: float | None = None
    explore: float = 0.02
    """Share of would-be hits that are answered live."""


class Assessment(NamedTuple):
    """What is thought of a candidate."""

    probability: float
    """That its answer is right."""
    risk: float
    """That it is wrong, at the upper end of what the model holds possible."""
    serve: float
    """The probability with which to serve it."""


class Calibration:
    """What was learned of one space: an account's environment with one embedder. To be used under a lock."""

    def __init__(self) -> None:
        self._mean = _MEAN  # (n_features + 1,), the intercept first
        self._covariance = np.linalg.inv(_PRECISION)
        self._weights = [float(weight) for weight in self._mean]
        self._requests = 0
        self._candidates: deque[tuple[int, tuple[float, ...]]] = deque()
        """Of the last requests, with their numbers."""
        self._observations: deque[Observation] = deque(maxlen=LEARNED)
        self._unlearned = 0
        self._expected = self._wrong = self._alarm = 0.0
        """Wrong answers of late: expected, and found; and what the difference adds to the odds of each risk."""
        self._limits: dict[Bound, float] = {}
        self._stale_at = 0

    def count(self, now: float) -> None:
        """Count a request that asks the cache, whether or not there will be a candidate for it."""
        self._requests += 1

    def assess(self, features: tuple[float, ...], bound: Bound) -> Assessment:
        """Judge the candidate of a request that was counted, and remember it as one of those that come."""
        self._candidates.append((self._requests, features))
        odds = self._odds(features)
        x = np.array((1.0, *features))
        risk_odds = CAUTION * sqrt(x @ self._covariance @ x) - odds + self._alarm
        share = min(max(0.5 + (self._limit(bound) - risk_odds) / (2 * RAMP), 0.0), 1.0)
        return Assessment(_probability(odds), _probability(risk_odds), share * (1.0 - bound.explore))

    def learn(self, observation: Observation) -> None:
        """Take in whether a candidate's answer was right."""
        self._listen(observation)
        self._observations.append(observation)
        self._unlearned += 1
        if self._unlearned >= _EVERY:
            self._fit()
            self._unlearned = 0
            self._limits.clear()

    def _listen(self, observation: Observation) -> None:
        """Raise the alarm where more answers were wrong of late than the model expected: the topics have changed."""
        chance = _probability(self._odds(observation.features))  # what looked right says most
        self._expected = FADE * self._expected + chance * (1.0 - chance)
        self._wrong = FADE * self._wrong + chance * (not observation.right)
        surprise = log((self._wrong + DOUBT) / (self._expected + DOUBT))
        self._alarm = ALARM * max(surprise - TOLERANCE, 0.0)

    def _odds(self, features: tuple[float, ...]) -> float:
        return self._weights[0] + sum(map(float.__mul__, self._weights[1:], features))

    def _limit(self, bound: Bound) -> float:
        """The log-odds of risk at which half is served."""
        if self._requests >= self._stale_at:
            self._limits.clear()
            self._stale_at = self._requests + _EVERY
        limit = self._limits.get(bound)
        if limit is None:
            limit = self._limits[bound] = self._solve(bound)
        return limit

    def _solve(self, bound: Bound) -> float:
        """The highest limit at which the candidates of the window would have stayed within the bound."""
        while self._candidates and self._candidates[0][0] <= self._requests - WINDOW:
            self._candidates.popleft()
        x = np.array([features for _, features in self._candidates])
        x = np.concatenate((np.ones((len(x), 1)), x), axis=1)
        spread = np.sqrt(np.einsum("ij,jk,ik->i", x, self._covariance, x))
        odds = CAUTION * spread - x @ self._mean
        shares = np.clip(0.5 + (_GRID[:, None] - odds) / (2 * RAMP), 0.0, 1.0)  # (n_grid, n_candidates)
        risks = _chances(-x @ self._mean)
        slopes = shares @ (x * (risks * (1.0 - risks))[:, None])  # of the sums of risks, in the weights
        doubt = np.sqrt(np.einsum("ij,jk,ik->i", slopes, self._covariance, slopes))
        wrong = (shares @ risks + SAFETY * doubt) * (1.0 - bound.explore)
        requests = min(self._requests, WINDOW)
        allowed = (bound.max_error or 0.0) * MARGIN * requests * self._requests / (self._requests + START)
        limit = float(_GRID[np.flatnonzero(wrong <= allowed).max(initial=0)])
        most = min(WORST * (bound.max_error or 0.0), 0.5)
        return min(limit, log(most / (1.0 - most))) if most else limit

    def _fit(self) -> None:
        """The most probable weights, by Newton's method from where they are, and how sure they are."""
        x = np.array([(1.0, *seen.features) for seen in self._observations])
        signs = np.array([1.0 if seen.right else -1.0 for seen in self._observations])
        weight = np.array([seen.weight for seen in self._observations]) ** TEMPER
        model = _Posterior(x, signs, weight)
        self._mean = model.climb(self._mean)
        self._covariance = model.covariance(self._mean)
        self._weights = [float(value) for value in self._mean]


class _Posterior:
    """Of the model's weights, given observations: ``x`` (n, n_features + 1), ``signs`` 1 where right and else -1."""

    def __init__(self, x: Floats, signs: Floats, weight: Floats) -> None:
        self._x, self._signs, self._weight = x, signs, weight

    def climb(self, mean: Floats) -> Floats:
        """Better weights. A step that makes them worse is halved, so that it never runs away."""
        loss = self._loss(mean)
        for _ in range(_STEPS):
            chance = _chances(self._signs * (self._x @ mean))
            slope = self._x.T @ (self._weight * self._signs * (1.0 - chance)) - _PRECISION @ (mean - _MEAN)
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
        chance = _chances(self._x @ mean)
        doubt = self._weight * chance * (1.0 - chance)
        inverse = np.linalg.inv(self._curve(doubt))
        return inverse @ self._curve(self._weight * doubt) @ inverse

    def _curve(self, weight: Floats) -> Floats:
        curve: Floats = (self._x.T * weight) @ self._x + _PRECISION
        return curve

    def _loss(self, mean: Floats) -> float:
        away = mean - _MEAN
        return float(self._weight @ np.logaddexp(0.0, -self._signs * (self._x @ mean)) + away @ _PRECISION @ away / 2)


def _chances(odds: Floats) -> Floats:
    chances: Floats = 1.0 / (1.0 + np.exp(-np.clip(odds, -30.0, 30.0)))
    return chances


def _probability(odds: float) -> float:
    return 1.0 / (1.0 + exp(-odds)) if odds > -700 else 0.0
