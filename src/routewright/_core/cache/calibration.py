"""Estimates whether a cached answer is right, and limits wrong answers to a share of all requests.

A logistic model of a candidate's features learns from requests that had a candidate but were answered live. The highest
risk that may be served follows from the risks of recent candidates. The prior comes from
``benchmarks/train_calibration.py``, with intents of banking77 (CC BY 4.0, PolyAI) and clinc150 (CC BY 3.0).
"""

from __future__ import annotations

from collections import deque
from math import exp, inf, log, sqrt
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from routewright.wire import Observation

MEAN = (-3.801, 3.980, 0.352, -0.226, -0.357, 3.055, 0.542, -0.371, 0.197)
"""Weights: the intercept, then one for each feature of ``offer``."""
PRECISION = (  # inverse covariance of the weights
    (6.77, 3.97, 1.02, 1.22, 3.44, 3.53, 2.92, 1.24, 4.81),
    (3.97, 2.59, 0.95, 0.75, 2.16, 2.25, 1.91, 0.89, 2.90),
    (1.02, 0.95, 20.10, 2.89, -0.88, 0.48, 0.84, 0.60, 0.86),
    (1.22, 0.75, 2.89, 0.98, 0.38, 0.68, 0.55, 0.24, 0.88),
    (3.44, 2.16, -0.88, 0.38, 2.14, 1.95, 1.63, 0.73, 2.50),
    (3.53, 2.25, 0.48, 0.68, 1.95, 2.10, 1.70, 0.78, 2.58),
    (2.92, 1.91, 0.84, 0.55, 1.63, 1.70, 1.82, 0.90, 2.21),
    (1.24, 0.89, 0.60, 0.24, 0.73, 0.78, 0.90, 0.82, 0.95),
    (4.81, 2.90, 0.86, 0.88, 2.50, 2.58, 2.21, 0.95, 3.90),
)

Floats: TypeAlias = "NDArray[np.float64]"

_STEPS = 3
PRIOR, PRIOR_PRECISION = np.array(MEAN), np.array(PRECISION)


def fit(mean: Floats, x: Floats, signs: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Most probable weights given observations, by Newton's method from ``mean``, and their covariance. ``x`` is
    (n, n_features + 1); ``signs`` are 1 if right, else -1."""

    def loss_of(mean: Floats) -> float:
        away = mean - PRIOR
        return float(weight @ np.logaddexp(0.0, -signs * (x @ mean)) + away @ PRIOR_PRECISION @ away / 2)

    def curve(weight: Floats) -> Floats:
        curve: Floats = (x.T * weight) @ x + PRIOR_PRECISION
        return curve

    loss = loss_of(mean)
    for _ in range(_STEPS):
        chance = sigmoid(signs * (x @ mean))
        slope = x.T @ (weight * signs * (1.0 - chance)) - PRIOR_PRECISION @ (mean - PRIOR)
        step = np.linalg.solve(curve(weight * chance * (1.0 - chance)), slope)
        size = 1.0
        while (after := loss_of(mean + size * step)) > loss and size > 0.01:  # halve a step that increases the loss
            size /= 2
        if after > loss:
            break
        mean, loss = mean + size * step, after
    chance = sigmoid(x @ mean)
    curvature = weight * chance * (1.0 - chance)
    inverse = np.linalg.inv(curve(curvature))
    return mean, inverse @ curve(weight * curvature) @ inverse  # sandwich estimate, because heavy observations are few


def sigmoid(odds: Floats) -> Floats:
    result: Floats = 1.0 / (1.0 + np.exp(-np.clip(odds, -30.0, 30.0)))
    return result


WINDOW = 512  # recent requests whose candidates determine the limit
LEARNED = 768  # latest observations that the model is fitted to
CAUTION = 0.8  # standard deviations added to each risk
WORST = 15.0  # a candidate riskier than this multiple of the bound is never served
SAFETY = 0.6  # standard deviations added to the expected total of errors
RAMP = 0.25  # half-width, in log-odds of risk, of the zone that is served partly
MARGIN = 0.65  # share of the bound to aim at
START = 100  # requests after which half of the bound is used, because few requests say little
TEMPER = 0.5  # exponent of observation weights, so that few heavy ones do not dominate
FADE = 0.97  # decay per observation in the comparison of found and expected errors
ADDED = 1.0  # errors added to both sides of that comparison, to dampen small counts
TOLERANCE = 0.2  # log ratio of found to expected errors that counts as chance
ALARM = 5.0  # log-odds of risk per unit of log ratio beyond that
SURE = 0.9  # probability above which a wrong answer is a surprise
DROP = 0.15  # drop of candidates' probabilities at which doubt starts; doubt is full at twice this
DOUBTED = 150  # candidates after which doubt has decayed to a third
HELD_BACK = 0.5  # share of would-be hits answered live at full doubt
STRICT = 1.0  # log-odds of risk added at full doubt
_EVERY = 16  # observations between fits; limits are recomputed after twice as many requests
_GRID = np.linspace(-8.0, 1.0, 46)  # candidate limits, in log-odds of risk


class Bound(NamedTuple):
    """Limit on wrong answers: ``max_error``, a share of all requests, or a similarity ``threshold``."""

    max_error: float | None = 0.01
    threshold: float | None = None
    explore: float = 0.02
    """Share of would-be hits answered live."""


class Assessment(NamedTuple):
    """Assessment of a candidate."""

    probability: float
    """Probability that its answer is right."""
    risk: float
    """Upper estimate of the probability that it is wrong."""
    serve: float
    """Probability of serving it."""


class Calibration:
    """Learned state for one account, environment and embedder. Use it under a lock."""

    def __init__(self) -> None:
        self._mean = PRIOR  # (n_features + 1,), the intercept first
        self._covariance = np.linalg.inv(PRIOR_PRECISION)
        self._weights = [float(weight) for weight in self._mean]
        self.requests = 0
        self._candidates = np.zeros((WINDOW, len(PRIOR)))
        """Features of the latest candidates after a leading 1. A request has at most one, so they cover the window."""
        self._numbers = np.full(WINDOW, -WINDOW)  # number of each candidate's request
        self._next = 0
        self._observations: deque[Observation] = deque(maxlen=LEARNED)
        self._unlearned = 0
        self._expected = self._wrong = 0.0
        self._alarm = 0.0
        """Recent wrong answers, expected and found, and the log-odds that their ratio adds to each risk."""
        self._recent = self._typical = 0.0  # short and long moving averages of candidates' probabilities
        self._doubt = 0.0  # from 0 to 1
        self._limits: dict[Bound, float] = {}
        self._stale_at = 0

    def count(self) -> None:
        """Count a request that uses the cache, with or without a candidate."""
        self.requests += 1

    def assess(self, features: tuple[float, ...], bound: Bound) -> Assessment:
        """Assess the candidate of a counted request, and add it to the window."""
        x = self._candidates[self._next]
        x[:] = (1.0, *features)
        self._numbers[self._next] = self.requests
        self._next = (self._next + 1) % WINDOW
        odds = self._odds(features)
        chance = _probability(odds)
        # doubt if candidates look worse than usual: more are answered live, which shows whether they are
        self._recent += (chance - self._recent) / 40
        self._typical += (chance - self._typical) / 400
        drop = (self._typical - self._recent - DROP) / DROP
        self._doubt = max(self._doubt * (1.0 - 1.0 / DOUBTED), min(max(drop, 0.0), 1.0))
        risk_odds = CAUTION * sqrt(max(x @ self._covariance @ x, 0.0)) - odds + self._alarm + STRICT * self._doubt
        share = min(max(0.5 + (self._limit(bound) - risk_odds) / (2 * RAMP), 0.0), 1.0)
        share *= (1.0 - bound.explore) * (1.0 - HELD_BACK * self._doubt)
        return Assessment(chance, _probability(risk_odds), share)

    def learn(self, observation: Observation) -> None:
        """Learn from an observation."""
        served = 1.0 - 1.0 / observation.weight
        chance = _probability(self._odds(observation.features))
        if not observation.right and served > 0.5:
            self._doubt = min(self._doubt + served * (max(chance - SURE, 0.0) / (1.0 - SURE)), 1.0)
        # raise the alarm if more answers were wrong than the model expected: topics have changed. Answers that looked
        # right weigh most.
        self._expected = FADE * self._expected + chance * (1.0 - chance)
        self._wrong = FADE * self._wrong + chance * (not observation.right)
        surprise = log((self._wrong + ADDED) / (self._expected + ADDED))
        self._alarm = ALARM * max(surprise - TOLERANCE, 0.0)
        self._observations.append(observation)
        self._unlearned += 1
        if self._unlearned >= _EVERY:
            x = np.array([(1.0, *seen.features) for seen in self._observations])
            signs = np.array([1.0 if seen.right else -1.0 for seen in self._observations])
            weight = np.array([seen.weight for seen in self._observations]) ** TEMPER
            self._mean, self._covariance = fit(self._mean, x, signs, weight)
            self._weights = [float(value) for value in self._mean]
            self._unlearned = 0

    def _odds(self, features: tuple[float, ...]) -> float:
        return self._weights[0] + sum(map(float.__mul__, self._weights[1:], features))

    def _limit(self, bound: Bound) -> float:
        """Log-odds of risk at which half of the candidates are served."""
        # "Serve what is right with probability 0.99" bounds the wrong share of the hits, if the model is right.
        # Promised is a share of all requests, from a model that has seen little. So the limit is the highest at which
        # the risks of the latest requests' candidates, summed as they would be served, stay below what those requests
        # allow. The sum includes the doubt about the weights, since their error is common to all candidates and does
        # not average out. Only recent candidates count, because topics drift (test_the_bound_holds_on_a_short_stream
        # plays both orders), and a young cache uses a part of the bound. A bound of 0 serves nothing
        # (test_nothing_is_served_if_no_error_is_allowed).
        if not bound.max_error:
            return -inf
        if self.requests >= self._stale_at:
            self._limits.clear()
            self._stale_at = self.requests + 2 * _EVERY
        if (limit := self._limits.get(bound)) is None:
            x = self._candidates[self._numbers > self.requests - WINDOW]
            log_odds = CAUTION * np.sqrt(((x @ self._covariance) * x).sum(axis=1).clip(0.0)) - x @ self._mean
            shares = np.clip(0.5 + (_GRID[:, None] - log_odds) / (2 * RAMP), 0.0, 1.0)  # (n_grid, n_candidates)
            risks = sigmoid(-x @ self._mean)
            slopes = shares @ (x * (risks * (1.0 - risks))[:, None])  # gradients of the summed risks in the weights
            deviation = np.sqrt(((slopes @ self._covariance) * slopes).sum(axis=1).clip(0.0))
            wrong = (shares @ risks + SAFETY * deviation) * (1.0 - bound.explore)
            requests = min(self.requests, WINDOW)
            allowed = bound.max_error * MARGIN * requests * self.requests / (self.requests + START)
            ceiling = min(WORST * bound.max_error, 0.5)
            fitting = np.flatnonzero(wrong <= allowed)
            best = float(_GRID[fitting[-1]]) if len(fitting) else -inf
            limit = self._limits[bound] = min(best, log(ceiling / (1.0 - ceiling)))
        return limit


def _probability(odds: float) -> float:
    return 1.0 / (1.0 + exp(-odds)) if odds > -700 else 0.0
