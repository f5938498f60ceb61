"""The constraints that exclude models from a request: one per ``Reason``, in its order.

Constraints of the catalogue are checked once per kind of request (``Eligible``), a policy's floor and ceiling once per
order (``Bar``). ``FitCheck.fits`` checks the request's own numbers row by row while a decision walks its order, and
``find_failures`` for the whole pool when a table is read. A property test checks that both agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import NamedTuple

import numpy as np

from routewright._core.money import PICOS_PER_NANO, nanos, usd
from routewright._core.tokens.estimate import Length, length, within_window
from routewright._core.tokens.images import UNBOUNDED
from routewright.wire import DecisionInput, Need, Reason

from .forecast import Forecast
from .logarithms import BoolArray, IntArray
from .pool import THINKING, Pool

REASONS: tuple[Reason, ...] = tuple(Reason)
PASSES = len(REASONS)  # the column of a row that fails no constraint
_COLUMN = {reason: column for column, reason in enumerate(REASONS)}
_CONTEXT = _COLUMN[Reason.CONTEXT]
_BUDGET_TOKENS = _COLUMN[Reason.BUDGET_TOKENS]
_BUDGET_COST = _COLUMN[Reason.BUDGET_COST]
_NEEDS = (
    (
        Need.IMAGE | Need.IMAGE_URL | Need.AUDIO | Need.FILE | Need.FILE_URL | Need.HTTP_URL | Need.CALLER_URL,
        Reason.MODALITY,
    ),
    (Need.TOOLS | Need.TOOL_CHOICE | Need.SERIAL_TOOLS, Reason.TOOLS),
    (Need.JSON | Need.JSON_OBJECT | Need.JSON_SCHEMA, Reason.RESPONSE_FORMAT),
    (
        Need.TEMPERATURE | Need.TOP_P | Need.STOP | Need.SEED | Need.TOOLS_STOP | Need.NO_REASONING | THINKING,
        Reason.PARAMS,
    ),
)


class Kind(NamedTuple):
    """The inputs of the catalogue's constraints."""

    needs: int
    as_of: str
    regions: tuple[str, ...]
    is_named: bool
    """The caller named models, so free-tier models are allowed."""


class Bar(NamedTuple):
    """A policy's limits on quality and latency."""

    min_quality: int | None
    """Millionths."""
    max_latency_ms: int | None


NO_BAR = Bar(None, None)


class CountTokens(Exception):
    """The token bounds leave the decision open: count the input exactly and decide again."""


class Eligible:
    """Results of the constraints that do not depend on the request's numbers, for all rows of a pool."""

    def __init__(self, failed: BoolArray) -> None:
        self.failed = failed
        self.passed: BoolArray = np.logical_not(failed.any(axis=1))
        self.first: IntArray = np.where(self.passed, PASSES, failed.argmax(axis=1))
        """Like ``find_first_failures``, for these constraints only."""
        self.firsts: list[int] = self.first.tolist()
        self.counts = count_reasons(self.first)

    @classmethod
    def of(cls, pool: Pool, kind: Kind) -> Eligible:
        """Check the catalogue's constraints."""
        failed = np.zeros((len(pool), len(REASONS)), dtype=np.bool_)  # (n, 15), columns follow REASONS
        failed[:, _COLUMN[Reason.DISABLED]] = pool.disabled | (pool.free_tier & (not kind.is_named))
        failed[:, _COLUMN[Reason.DEPRECATED]] = pool.deprecated <= date.fromisoformat(kind.as_of).toordinal()
        failed[:, _COLUMN[Reason.PROVIDER_UNAVAILABLE]] = pool.unavailable
        if kind.regions:
            regions = set(kind.regions)
            failed[:, _COLUMN[Reason.REGION]] = [not regions.issubset(m.availability.regions) for m in pool.models]
        for group, reason in _NEEDS:
            if needs := kind.needs & group:
                failed[:, _COLUMN[reason]] = (pool.able & needs) != needs
        return cls(failed)

    def above(self, bar: Bar, quality: IntArray, latency_ms: IntArray) -> Eligible:
        """Add the constraints of a bar. ``quality`` in millionths and ``latency_ms`` have shape (n,)."""
        failed = self.failed.copy()
        if bar.min_quality is not None:
            failed[:, _COLUMN[Reason.QUALITY_FLOOR]] = quality < bar.min_quality
        if bar.max_latency_ms is not None:
            failed[:, _COLUMN[Reason.LATENCY_CEILING]] = latency_ms > bar.max_latency_ms
        return Eligible(failed)


class FitCheck:
    """Checks models against the numbers of one request: context window and budgets."""

    __slots__ = (
        "_lengths", "bounds", "budget_picos", "budget_tokens", "counted", "failed", "forecast",
        "limited", "output", "text", "vary",
    )  # fmt: skip

    def __init__(self, inputs: DecisionInput, forecast: Forecast) -> None:
        self.text = text = inputs.tokens
        self.forecast = forecast
        self.output = inputs.max_output_tokens
        self.budget_tokens = inputs.budget_tokens
        self.budget_picos = None if inputs.budget_nanos is None else inputs.budget_nanos * PICOS_PER_NANO
        self.limited = inputs.budget_nanos is not None or inputs.budget_tokens is not None
        self.counted = text.counted
        self.bounds: Length = text.low, text.high, text.high
        self.vary = text.counted or bool(text.images)  # the length of the input depends on the model
        self.failed: dict[int, int] = {}  # rows that failed ``fits``, with the column of the constraint
        self._lengths: dict[int, Length] = {}

    def input(self, row: int) -> Length:
        """The length of the input for a row."""
        if not self.vary:
            return self.bounds
        pool = self.forecast.pool
        measure = pool.measure[row]
        return within_window(self._lengths.get(measure) or self._measured(measure), pool.models[row].context_window)

    def _measured(self, measure: int) -> Length:
        tokens = self._lengths[measure] = length(self.text, self.forecast.pool.measures[measure])
        return tokens

    def fits(self, row: int) -> bool:
        """Check context and budget for one row. Raises ``CountTokens`` if the bounds leave it open."""
        length = self.input(row) if self.vary else self.bounds
        column = self._failure(row, length[1], length[2])
        if column == PASSES:
            return True
        low = length[0]
        if not self.counted and low < length[1] and self._failure(row, low, low) == PASSES:
            raise CountTokens
        self.failed[row] = column
        return False

    @property
    def is_open(self) -> bool:
        """True if counting tokens would narrow the bounds."""
        return not self.counted and self.text.low < self.text.high

    def may_fit(self, row: int) -> bool:
        """Like ``fits``, at the shortest input the bounds allow."""
        low = self.input(row)[0]
        return self._failure(row, low, low) == PASSES

    def failure(self, row: int) -> int:
        """The column of the first constraint a row fails at its longest input, else ``PASSES``."""
        return self._failure(row, *self.input(row)[1:])

    def _failure(self, row: int, input_tokens: int, filling: int) -> int:
        forecast = self.forecast
        pool = forecast.pool
        output = self.output
        if output is None:
            expected = forecast.output[row]
            reserve = forecast.output_p90[row]
        elif output > pool.max_output[row]:
            return _CONTEXT
        else:
            expected = reserve = output
        if filling + expected > pool.window[row]:
            return _CONTEXT
        if not self.limited:
            return PASSES
        if row in forecast.overruns:
            input_tokens, reserve = forecast.overruns[row].billed(input_tokens, reserve)
        if self.budget_tokens is not None and input_tokens + reserve > self.budget_tokens:
            return _BUDGET_TOKENS
        if self.budget_picos is None:
            return PASSES
        price = pool.flat_dearest[row] or pool.dearest(row, input_tokens)
        return PASSES if input_tokens * price.input + reserve * price.output <= self.budget_picos else _BUDGET_COST

    def fits_all(self) -> bool:
        """True if certainly no row fails; the common case."""
        forecast = self.forecast
        if self.limited and forecast.overruns:
            return False
        longest = max([high for _, high, _ in self.lengths]) if self.text.images else self.text.high
        if longest > forecast.least_room(self.output):
            return False
        if self.budget_tokens is not None:
            reserve = forecast.most_p90 if self.output is None else self.output
            if longest + reserve > self.budget_tokens:
                return False
        return self.budget_picos is None or forecast.costs_at_most(longest, self.output, self.budget_picos)

    def worst_picos(self, row: int, input_tokens: int) -> int:
        """The most the longest input and held output can cost; above every budget if unpriced."""
        input_tokens, output_tokens = self.billed(row, input_tokens)
        price = self.forecast.pool.dearest(row, input_tokens)
        return input_tokens * price.input + output_tokens * price.output

    def billed(self, row: int, input_tokens: int) -> tuple[int, int]:
        """The most tokens that may be billed for this input, and for the held output."""
        overrun = self.forecast.overruns.get(row)
        held = self.held_output(row)
        return (input_tokens, held) if overrun is None else overrun.billed(input_tokens, held)

    def worst_usd(self, row: int) -> float | None:
        """The dollars a budget must cover for a row; None if its price is unknown."""
        if not self.forecast.pool.held[row]:
            return None
        return usd(nanos(self.worst_picos(row, self.high(row))))

    def affordable_at_best(self) -> BoolArray:
        """Rows the budgets can pay for at the shortest input. Shape (n,)."""
        reserve = self.forecast.held_output(self.output)
        pool = self.forecast.pool
        affordable = np.ones(len(pool), dtype=np.bool_)
        if self.budget_tokens is not None:
            affordable &= reserve <= self.budget_tokens - self.text.low
        if self.budget_picos is not None:
            affordable &= pool.picos(pool.worst, self.text.low, reserve) <= self.budget_picos
        return affordable

    def held_output(self, row: int) -> int:
        """Output tokens a budget must cover: the requested cap, else the 90th percentile."""
        return self.forecast.output_p90[row] if self.output is None else self.output

    def room(self, row: int) -> int:
        """Output tokens left in a row's window after the input; negative if the input does not fit."""
        return self.forecast.pool.window[row] - self.input(row)[2]

    def high(self, row: int) -> int:
        """The most input tokens for a row."""
        return self.input(row)[1]

    @property
    def lengths(self) -> list[Length]:
        """The input's length by each of the pool's measures."""
        measures = range(len(self.forecast.pool.measures))
        return [self._measured(measure) for measure in measures] if self.vary else [self.bounds] * len(measures)


def find_failures(inputs: DecisionInput, check: FitCheck, eligible: Eligible) -> BoolArray:
    """All constraints for all rows: shape (n, 15), True where a model fails. Columns follow ``REASONS``."""
    failed = eligible.failed.copy()
    for reason, fails in _own_failures(inputs, check):
        failed[:, _COLUMN[reason]] = fails
    if inputs.prefer:  # naming a free-tier model allows it
        pool = check.forecast.pool
        rows = [pool.row[model] for model in inputs.prefer if model in pool.row]
        failed[rows, _COLUMN[Reason.DISABLED]] = pool.disabled[rows]
    return failed


def find_first_failures(inputs: DecisionInput, check: FitCheck, eligible: Eligible) -> IntArray:
    """The column of the first constraint each row fails, or ``PASSES``. Shape (n,)."""
    if inputs.prefer:
        failed = find_failures(inputs, check, eligible)
        return np.where(failed.any(axis=1), failed.argmax(axis=1), PASSES)
    first = eligible.first
    for reason, fails in _own_failures(inputs, check):
        first = np.minimum(first, np.where(fails, _COLUMN[reason], PASSES))
    return first


def _own_failures(inputs: DecisionInput, check: FitCheck) -> Iterator[tuple[Reason, BoolArray]]:
    """The request's own constraints for all rows, without those that no row can fail."""
    forecast = check.forecast
    pool = forecast.pool
    if inputs.models is not None:
        outside = np.ones(len(pool), dtype=np.bool_)
        outside[[pool.row[model] for model in inputs.models if model in pool.row]] = False
        yield Reason.WHITELIST, outside
    if not check.fits_all():
        lengths = np.array(check.lengths, dtype=np.int64)[pool.measured]  # (n, 3), columns follow Length
        high = lengths[:, 1]
        if high.max() >= UNBOUNDED:
            high = np.where(high >= UNBOUNDED, np.maximum(pool.declared_windows, lengths[:, 2]), high)
        output = forecast.expected_output(None) if check.output is None else check.output
        too_long = lengths[:, 2] + output > pool.windows
        yield Reason.CONTEXT, too_long if check.output is None else too_long | (check.output > pool.max_outputs)
        if check.budget_tokens is not None:
            over = high + forecast.held_output(check.output) > check.budget_tokens
            for row in forecast.overruns:
                over[row] = sum(check.billed(row, check.high(row))) > check.budget_tokens
            yield Reason.BUDGET_TOKENS, over
        if check.budget_picos is not None:
            over = pool.picos(pool.worst, high, forecast.held_output(check.output)) > check.budget_picos
            over |= ~pool.priced
            for row in (*pool.tiered[high[pool.tiered] > pool.first_tier].tolist(), *forecast.overruns):
                over[row] = check.worst_picos(row, check.high(row)) > check.budget_picos
            yield Reason.BUDGET_COST, over
    if forecast.open:
        closed = np.zeros(len(pool), dtype=np.bool_)
        closed[list(forecast.open)] = True
        yield Reason.CIRCUIT_OPEN, closed


def name_reasons(first: IntArray) -> list[Reason | None]:
    """The reason each row is rejected for; None where it passes."""
    return [None if column == PASSES else REASONS[column] for column in first.tolist()]


def count_reasons(first: IntArray) -> dict[Reason, int]:
    """How many models each constraint rejects; each model counts at its first failure."""
    counts = np.bincount(first, minlength=PASSES).tolist()
    return {reason: count for reason, count in zip(REASONS, counts, strict=False) if count}
