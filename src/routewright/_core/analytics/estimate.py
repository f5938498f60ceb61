"""Estimates what traffic would cost, and how long it would take, had its requests gone to other models.

A request has an expected figure x for the model that served it and an expected figure c for the model that would
serve it now, both from catalogue and health, and the actual figure y. Catalogue and health are wrong by some factor for
this very traffic: its answers are longer or shorter than usual, and fallbacks and retries cost too. So models are
calibrated by the requests that they served: R = sum(y) / sum(x), by size of the prompt where there are at least
``_ENOUGH_OF_SIZE`` of them. The estimated total is T = sum(R c).

A model that served few requests, or none, has a ratio between its own and 1, weighted by how much the ratios of other
models differ from 1 (empirical Bayes). The rest of that doubt is part of the interval.

The interval is for another day with as many requests of the same kind. Its variance has four parts:

- the requests of this day are a sample: n Var(R c + w (y - R x)), where w (y - R x) is how far one outcome moves T
  through the ratio of its model, and w = sum(c) / sum(x) over the model's requests;
- so are those of the other day: n Var(R c);
- the figure of one request differs from its expectation: sum(v c^2), where v = sum((y - R x)^2) / sum(x^2);
- the doubt about the ratios of models with few outcomes.

Everything is a sum over requests, added up by cell: the model that was chosen, the one that would be, whether the cache
answered, and the size of the prompt. So memory does not grow with the traffic, and one pass is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from routewright import wire

ENOUGH = 30
"""Outcomes that a ratio of its own takes."""
_ENOUGH_OF_SIZE = 300
"""Outcomes that the ratio of one size takes: fewer would add more noise than the size explains."""
Z = 1.96
_DOUBT = 0.25
"""Least relative standard deviation of an unknown ratio."""
_DRIFT = 1.25
_DRIFT_Z = 3.3  # one false alarm in a thousand models
MOMENTS = 10  # 1, x, c, y, xx, cc, yy, xc, xy, cy
_N = 0
_X = 1
_C = 2
_Y = 3
_XX = 4
_CC = 5
_YY = 6
_XY = 8
_SQUARES = [[_XX, 7, _XY], [7, _CC, 9], [_XY, 9, _YY]]
"""The places of the products of x, c and y."""
FloatArray = NDArray[np.float64]


class Cell(NamedTuple):
    """A group of requests. None: no model."""

    before: str | None
    """The model whose outcome ``y`` is."""
    after: str | None
    is_hit: bool
    """The cache answered, so ``y`` is the outcome of no model, and ``before`` is None."""
    size: int

    @property
    def is_newly_refused(self) -> bool:
        """Such requests are in no figure, since a refusal is no saving."""
        return self.before is not None and self.after is None


class Figures(NamedTuple):
    """Totals before and after, and the relative change."""

    before: wire.Estimate
    after: wire.Estimate
    change: wire.Estimate | None


class _Ratio(NamedTuple):
    """The calibration of a group."""

    ratio: float
    noise: float
    """``v``: variance of one outcome by the square of its expectation."""
    doubt: float
    """Variance of the ratio that is not in ``noise``."""
    expected: float
    """``sum(x)`` of the outcomes that the ratio is of; 0: it does not depend on them."""


def moments_of(x: FloatArray, c: FloatArray, y: FloatArray) -> list[FloatArray]:
    """The values to add up, by request."""
    return [np.ones_like(x), x, c, y, x * x, c * c, y * y, x * c, x * y, c * y]


class Calibration:
    """The ratios of all models by their outcomes."""

    def __init__(self, cells: Iterable[tuple[Cell, FloatArray]]) -> None:
        """``cells``: with the sums of ``moments_of``, shape (10,)."""
        self.cells = [(cell, sums) for cell, sums in cells if sums[_N]]
        groups: dict[tuple[str, int | None], FloatArray] = {}
        for cell, sums in self.cells:
            if cell.before is not None:
                for key in ((cell.before, cell.size), (cell.before, None)):
                    groups[key] = groups.get(key, 0.0) + sums
        whole = {
            key: sums
            for key, sums in groups.items()
            if sums[_N] >= (ENOUGH if key[1] is None else _ENOUGH_OF_SIZE) and sums[_X] > 0
        }
        own = [sums for key, sums in whole.items() if key[1] is None]
        raw = np.array([sums[_Y] / sums[_X] for sums in own])
        self._spread = max(_DOUBT, float(np.sqrt(np.mean((raw - 1) ** 2))) if len(own) > 1 else 0.0) ** 2
        noises = [_noise_of(sums, ratio) for sums, ratio in zip(own, raw, strict=True)]
        self._noise = float(np.mean(noises)) if noises else 1.0
        self._ratios = {key: self._settled(sums) for key, sums in whole.items()}
        self._groups = groups
        self.outcomes = {model: int(sums[_N]) for (model, size), sums in groups.items() if size is None}

    def _settled(self, sums: FloatArray) -> _Ratio:
        ratio = float(sums[_Y] / sums[_X])
        return _Ratio(ratio, _noise_of(sums, ratio), 0.0, float(sums[_X]))

    def key(self, model: str, size: int) -> tuple[str, int | None]:
        """The group whose ratio applies to requests of a size."""
        return (model, size) if (model, size) in self._ratios else (model, None)

    def ratio(self, key: tuple[str, int | None]) -> _Ratio:
        """The ratio of a group; between its own and 1 if there are few outcomes."""
        if (known := self._ratios.get(key)) is None:
            sums = self._groups.get(key)
            ratio = 1.0
            share = 0.0
            if sums is not None and sums[_X] > 0:
                error = self._noise * float(sums[_XX]) / float(sums[_X]) ** 2
                share = self._spread / (self._spread + error)
                ratio = 1 + share * (float(sums[_Y] / sums[_X]) - 1)
            known = self._ratios[key] = _Ratio(ratio, self._noise, self._spread * (1 - share), 0.0)
        return known

    def factor(self, model: str | None, size: int) -> float:
        """What the expected figure of a request is multiplied by; 0 without a model."""
        return 0.0 if model is None else self.ratio(self.key(model, size)).ratio

    def figures(self, unit: float) -> Figures | None:
        """Totals with intervals, multiplied by ``unit``. None without requests."""
        if not self.cells:
            return None
        sums = np.array([sums for _, sums in self.cells])  # (cells, 10)
        after = self._line("after", _C)
        before = self._line("before", _X)
        totals = before.total(sums), after.total(sums)
        change = None
        if totals[0] > 0:
            rate = totals[1] / totals[0]
            same = np.array([[cell.before == cell.after] for cell, _ in self.cells])
            spread = after.minus(before, rate, same).deviation(sums) / totals[0]
            change = wire.Estimate(rate - 1, max(-1.0, rate - 1 - Z * spread), rate - 1 + Z * spread)
        old = _estimate(unit * totals[0], unit * before.deviation(sums))
        return Figures(old, _estimate(unit * totals[1], unit * after.deviation(sums)), change)

    def _line(self, side: str, column: int) -> _Line:
        """The influence of a request on the total of one side, as coefficients of x, c and y by cell."""
        n = len(self.cells)
        targets = [None if cell.is_newly_refused else getattr(cell, side) for cell, _ in self.cells]
        keys = [
            None if model is None else self.key(model, cell.size)
            for model, (cell, _) in zip(targets, self.cells, strict=True)
        ]
        ratios = [None if key is None else self.ratio(key) for key in keys]
        own = np.zeros((n, 3))
        own[:, 0 if column == _X else 1] = [0.0 if ratio is None else ratio.ratio for ratio in ratios]
        routed: dict[tuple[str, int | None], float] = {}
        for key, (_, sums) in zip(keys, self.cells, strict=True):
            if key is not None:
                routed[key] = routed.get(key, 0.0) + float(sums[column])
        moved = np.zeros((n, 3))
        for place, (cell, _) in enumerate(self.cells):
            for key in () if cell.before is None else ((cell.before, cell.size), (cell.before, None)):
                ratio = self._ratios.get(key)
                if ratio is not None and ratio.expected and key in routed:
                    weight = routed[key] / ratio.expected
                    moved[place] += (-weight * ratio.ratio, 0.0, weight)
        noise = np.zeros((n, 3))
        noise[:, 0 if column == _X else 1] = [0.0 if ratio is None else sqrt(ratio.noise) for ratio in ratios]
        doubts = {key: self.ratio(key).doubt * total**2 for key, total in routed.items()}
        return _Line(own, moved, (noise,), doubts)

    def share(self, models: set[str]) -> float:
        """The largest part of the cost, before or after, that these models have."""
        parts = []
        for side, column in (("before", _X), ("after", _C)):
            whole = sum(float(sums[column]) for _, sums in self.cells)
            part = sum(float(sums[column]) for cell, sums in self.cells if getattr(cell, side) in models)
            parts.append(part / whole if whole else 0.0)
        return max(parts)


class _Line(NamedTuple):
    """A total as a sum over requests. The arrays have shape (cells, 3): coefficients of x, c and y."""

    own: FloatArray
    moved: FloatArray
    """How an outcome moves the total through the ratio of its model."""
    noises: tuple[FloatArray, ...]
    """Standard deviations of a request's figure around its expectation, independent ones."""
    doubts: dict[tuple[str, int | None], float]

    def total(self, sums: FloatArray) -> float:
        return float(np.sum(self.own * sums[:, [_X, _C, _Y]]))

    def deviation(self, sums: FloatArray) -> float:
        """Standard deviation of the total of another day."""
        n = float(np.sum(sums[:, _N]))
        sampled = _variance(self.own + self.moved, sums, n) + _variance(self.own, sums, n)
        noise = sum(_squares(noise, sums) for noise in self.noises)
        return sqrt(max(0.0, sampled + noise + sum(self.doubts.values())))

    def minus(self, other: _Line, rate: float, same: NDArray[np.bool_]) -> _Line:
        """This total less ``rate`` times the other. ``same``: cells with one model, so one outcome, on both sides."""
        mine = self.noises[0]
        theirs = rate * other.noises[0]
        noises = np.where(same, mine - theirs, 0.0), np.where(same, 0.0, mine), np.where(same, 0.0, theirs)
        roots = {key: sqrt(doubt) for key, doubt in self.doubts.items()}
        for key, doubt in other.doubts.items():
            roots[key] = roots.get(key, 0.0) - rate * sqrt(doubt)
        doubts = {key: root**2 for key, root in roots.items()}
        return _Line(self.own - rate * other.own, self.moved - rate * other.moved, noises, doubts)


def _squares(coefficients: FloatArray, sums: FloatArray) -> float:
    """The sum over requests of (a x + b c + d y)^2."""
    return float(np.einsum("ni,nij,nj->", coefficients, sums[:, _SQUARES], coefficients))


def _variance(coefficients: FloatArray, sums: FloatArray, n: float) -> float:
    """n times the variance of a x + b c + d y."""
    return _squares(coefficients, sums) - float(np.sum(coefficients * sums[:, [_X, _C, _Y]])) ** 2 / n


def _noise_of(sums: FloatArray, ratio: float) -> float:
    squares = sums[_YY] - 2 * ratio * sums[_XY] + ratio**2 * sums[_XX]
    return max(0.0, float(squares / sums[_XX])) if sums[_XX] > 0 else 0.0


def _estimate(value: float, deviation: float) -> wire.Estimate:
    return wire.Estimate(value, max(0.0, value - Z * deviation), value + Z * deviation)


def lengths_of(expected: FloatArray, actual: FloatArray) -> list[FloatArray]:
    """The values to add up for ``Lengths``, by answer."""
    return [np.ones_like(expected), expected, actual, expected * expected, actual * actual, expected * actual]


class Lengths(NamedTuple):
    """Sums over the answers of a model: expected and actual output tokens."""

    is_known: bool
    """The expected length was learned from earlier answers, so it means something by itself."""
    sums: FloatArray

    def drift(self, model: str, before: Lengths | None = None) -> wire.Drift | None:
        """A ratio to the expected length, or to that of the answers ``before``, that is certainly more than a quarter
        too high, or a fifth too low."""
        if self.sums[0] < ENOUGH or (before is None and not self.is_known):
            return None
        if before is not None and before.sums[0] < ENOUGH:
            return None
        ratio, spread = self._ratio()
        if before is not None:
            base, doubt = before._ratio()
            spread = sqrt(spread**2 + doubt**2)
            ratio /= base
        error = spread * ratio
        if 1 / _DRIFT <= ratio <= _DRIFT or abs(ratio - 1) < _DRIFT_Z * error:
            return None
        return wire.Drift(model, wire.Estimate(ratio, ratio - Z * error, ratio + Z * error), int(self.sums[0]))

    def _ratio(self) -> tuple[float, float]:
        """Actual by expected length, and the relative standard error of that."""
        sums = self.sums.tolist()
        ratio = sums[2] / sums[1]
        squares = sums[4] - 2 * ratio * sums[5] + ratio**2 * sums[3]
        return ratio, sqrt(max(0.0, squares)) / sums[2]
