"""Which models a request may use at all, and why not the others: one question each, in the order of ``Reason``.

A question about the catalogue is answered once per kind of request (``Eligible``), one about a policy's floor and
ceiling once per order (``Bar``). Those about this request's own numbers are asked row by row while a decision walks
down its order (``Ask.fits``), and for the whole pool when somebody reads the table (``failures``). Both say the same; a
property test holds them to it.
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

from .outlook import Outlook
from .pool import THINKING, Pool
from .scale import BoolArray, IntArray

REASONS: tuple[Reason, ...] = tuple(Reason)
PASSES = len(REASONS)  # stands for "fails none" where columns stand for reasons
_COLUMN = {reason: column for column, reason in enumerate(REASONS)}
_CONTEXT, _BUDGET_TOKENS, _BUDGET_COST = map(REASONS.index, (Reason.CONTEXT, Reason.BUDGET_TOKENS, Reason.BUDGET_COST))
_NEEDS = (
    (Need.IMAGE | Need.IMAGE_URL | Need.AUDIO | Need.FILE | Need.FILE_URL, Reason.MODALITY),
    (Need.TOOLS | Need.TOOL_CHOICE | Need.SERIAL_TOOLS, Reason.TOOLS),
    (Need.JSON | Need.JSON_OBJECT | Need.JSON_SCHEMA, Reason.RESPONSE_FORMAT),
    (Need.TEMPERATURE | Need.TOP_P | Need.STOP | Need.SEED | Need.NO_REASONING | THINKING, Reason.PARAMS),
)


class Kind(NamedTuple):
    """What the catalogue's own questions depend on."""

    needs: int
    as_of: str
    regions: tuple[str, ...]
    named: bool
    """The caller named models; then free-tier ones among them count."""


class Bar(NamedTuple):
    """What a policy asks of the numbers that rank a model."""

    min_quality: int | None
    """Millionths."""
    max_latency_ms: int | None


NO_BAR = Bar(None, None)


class CountTokens(Exception):
    """The bounds cannot settle the matter: count the input exactly and decide again."""


class Eligible:
    """Answers of a pool to the questions that need no numbers of the request."""

    def __init__(self, failed: BoolArray) -> None:
        self.failed = failed
        self.passed: BoolArray = np.logical_not(failed.any(axis=1))
        self.first: IntArray = np.where(self.passed, PASSES, failed.argmax(axis=1))
        """As ``first_failures``, of these questions alone."""
        self.firsts: list[int] = self.first.tolist()
        self.counts = count_reasons(self.first)

    @classmethod
    def of(cls, pool: Pool, kind: Kind) -> Eligible:
        """Ask the catalogue's own questions."""
        failed = np.zeros((len(pool), len(REASONS)), dtype=np.bool_)  # (n, 15), columns follow REASONS
        failed[:, _COLUMN[Reason.DISABLED]] = pool.disabled | (pool.free_tier & (not kind.named))
        failed[:, _COLUMN[Reason.DEPRECATED]] = pool.deprecated <= date.fromisoformat(kind.as_of).toordinal()
        failed[:, _COLUMN[Reason.PROVIDER_UNAVAILABLE]] = pool.unavailable
        if kind.regions:
            wanted = set(kind.regions)
            failed[:, _COLUMN[Reason.REGION]] = [not wanted.issubset(m.availability.regions) for m in pool.models]
        for group, reason in _NEEDS:
            if needs := kind.needs & group:
                failed[:, _COLUMN[reason]] = (pool.able & needs) != needs
        return cls(failed)

    def above(self, bar: Bar, quality: IntArray, latency_ms: IntArray) -> Eligible:
        """Ask for a bar, too. ``quality`` in millionths and ``latency_ms`` have shape (n,)."""
        failed = self.failed.copy()
        if bar.min_quality is not None:
            failed[:, _COLUMN[Reason.QUALITY_FLOOR]] = quality < bar.min_quality
        if bar.max_latency_ms is not None:
            failed[:, _COLUMN[Reason.LATENCY_CEILING]] = latency_ms > bar.max_latency_ms
        return Eligible(failed)


class Ask:
    """The numbers of one request that a model must fit, made ready to be compared with."""

    __slots__ = (
        "_lengths", "bounds", "budget_nanos", "budget_picos", "budget_tokens", "counted", "failed", "limited",
        "outlook", "output", "text", "vary",
    )  # fmt: skip

    def __init__(self, given: DecisionInput, outlook: Outlook) -> None:
        text = given.tokens
        self.outlook = outlook
        self.output = given.max_output_tokens
        self.budget_nanos = nanos = given.budget_nanos
        self.budget_tokens = tokens = given.budget_tokens
        self.budget_picos = None if nanos is None else nanos * PICOS_PER_NANO
        self.limited = nanos is not None or tokens is not None
        self.text = text
        self.counted = text.counted
        self.bounds: Length = text.low, text.high, text.high
        self.vary = text.counted or bool(text.images)  # not all models count the input alike, as far as is known
        self.failed: dict[int, int] = {}  # rows that were asked and do not fit, with the column of the question
        self._lengths: dict[int, Length] = {}

    def input(self, row: int) -> Length:
        """The input as a row counts it."""
        if not self.vary:
            return self.bounds
        pool = self.outlook.pool
        measure = pool.measure[row]
        return within_window(self._lengths.get(measure) or self._measured(measure), pool.models[row].context_window)

    def _measured(self, measure: int) -> Length:
        found = self._lengths[measure] = length(self.text, self.outlook.pool.measures[measure])
        return found

    def fits(self, row: int) -> bool:
        """Ask the context and budget questions of one row. Raises ``CountTokens`` where the bounds leave it open."""
        low, high, filling = self.bounds
        if self.vary:
            low, high, filling = self.input(row)
        column = self._failure(row, high, filling)
        if column == PASSES:
            return True
        if not self.counted and low < high and self._failure(row, low, low) == PASSES:
            raise CountTokens
        self.failed[row] = column
        return False

    @property
    def is_open(self) -> bool:
        """A count would say more of the input's length."""
        return not self.counted and self.text.low < self.text.high

    def may_fit(self, row: int) -> bool:
        """Ask the same questions of one row at its shortest input."""
        low = self.input(row)[0]
        return self._failure(row, low, low) == PASSES

    def failure(self, row: int) -> int:
        """The column of the first of these questions that one row fails at its longest input, else ``PASSES``."""
        _, high, filling = self.input(row)
        return self._failure(row, high, filling)

    def _failure(self, row: int, input_tokens: int, filling: int) -> int:
        outlook, output = self.outlook, self.output
        pool = outlook.pool
        if output is None:
            expected, held = outlook.output[row], outlook.output_p90[row]
        elif output > pool.max_output[row]:
            return _CONTEXT
        else:
            expected = held = output
        if filling + expected > pool.window[row]:
            return _CONTEXT
        if not self.limited:
            return PASSES
        if self.budget_tokens is not None and input_tokens + held > self.budget_tokens:
            return _BUDGET_TOKENS
        if self.budget_picos is None:
            return PASSES
        price = pool.flat_dearest[row] or pool.dearest(row, input_tokens)
        return PASSES if input_tokens * price.input + held * price.output <= self.budget_picos else _BUDGET_COST

    def fits_all(self) -> bool:
        """Whether no row can fail a question of this request's own, as is the rule."""
        outlook, longest = self.outlook, self.text.high  # no count of the text is above its bound
        if self.text.images:
            longest = max([high for _, high, _ in self.lengths])
        if longest > outlook.least_room(self.output):
            return False
        if self.budget_tokens is not None:
            held = outlook.most_p90 if self.output is None else self.output
            if longest + held > self.budget_tokens:
                return False
        return self.budget_picos is None or outlook.costs_at_most(longest, self.output, self.budget_picos)

    def worst_picos(self, row: int, input_tokens: int) -> int:
        """The most that the longest input and held output can cost; beyond every budget if unpriced."""
        price = self.outlook.pool.dearest(row, input_tokens)
        return input_tokens * price.input + self.held_output(row) * price.output

    def worst_usd(self, row: int) -> float | None:
        """What a budget must hold for a row, in dollars; None where its price is unknown."""
        if not self.outlook.pool.held[row]:
            return None
        return usd(nanos(self.worst_picos(row, self.high(row))))

    def affordable_at_best(self) -> BoolArray:
        """Rows that a budget does not rule out at the shortest input. Shape (n,)."""
        pool, low, held = self.outlook.pool, self.text.low, self.outlook.held_output(self.output)
        kept = np.ones(len(pool), dtype=np.bool_)
        if self.budget_tokens is not None:
            kept &= held <= self.budget_tokens - low
        if self.budget_picos is not None:
            kept &= pool.picos(pool.worst, low, held) <= self.budget_picos
        return kept

    def held_output(self, row: int) -> int:
        """Output tokens for which a budget must have room: what was asked for, else the 90th percentile."""
        return self.outlook.output_p90[row] if self.output is None else self.output

    def room(self, row: int) -> int:
        """Output tokens for which a row's window has room beside the input; negative if not even that fits."""
        return self.outlook.pool.window[row] - self.input(row)[2]

    def high(self, row: int) -> int:
        """Most input tokens that this request can have as a row counts them."""
        return self.input(row)[1]

    @property
    def lengths(self) -> list[Length]:
        """One for each of the pool's measures."""
        measures = range(len(self.outlook.pool.measures))
        return [self._measured(measure) for measure in measures] if self.vary else [self.bounds] * len(measures)


def failures(given: DecisionInput, ask: Ask, eligible: Eligible) -> BoolArray:
    """Answer all questions for all rows: shape (n, 15), True where a model fails. Columns follow ``REASONS``."""
    failed = eligible.failed.copy()
    for reason, fails in _own_failures(given, ask):
        failed[:, _COLUMN[reason]] = fails
    if given.prefer:  # which names a free offer
        pool = ask.outlook.pool
        rows = [pool.row[model] for model in given.prefer if model in pool.row]
        failed[rows, _COLUMN[Reason.DISABLED]] = pool.disabled[rows]
    return failed


def first_failures(given: DecisionInput, ask: Ask, eligible: Eligible) -> IntArray:
    """The column of the first question that each row fails, ``PASSES`` where it fails none. Shape (n,)."""
    if given.prefer:
        failed = failures(given, ask, eligible)
        return np.where(failed.any(axis=1), failed.argmax(axis=1), PASSES)
    first = eligible.first
    for reason, fails in _own_failures(given, ask):
        first = np.minimum(first, np.where(fails, _COLUMN[reason], PASSES))
    return first


def _own_failures(given: DecisionInput, ask: Ask) -> Iterator[tuple[Reason, BoolArray]]:
    """The questions of this request's own, answered for all rows: those that any row may fail."""
    outlook = ask.outlook
    pool = outlook.pool
    if given.models is not None:
        outside = np.ones(len(pool), dtype=np.bool_)
        outside[[pool.row[model] for model in given.models if model in pool.row]] = False
        yield Reason.WHITELIST, outside
    if not ask.fits_all():
        lengths = np.array(ask.lengths, dtype=np.int64)[pool.measured]  # (n, 3), columns follow Length
        high = lengths[:, 1]
        if high.max() >= UNBOUNDED:
            high = np.where(high >= UNBOUNDED, np.maximum(pool.declared_windows, lengths[:, 2]), high)
        output = outlook.expected_output(None) if ask.output is None else ask.output
        too_long = lengths[:, 2] + output > pool.windows
        yield Reason.CONTEXT, too_long if ask.output is None else too_long | (ask.output > pool.max_outputs)
        if ask.budget_tokens is not None:
            yield Reason.BUDGET_TOKENS, high + outlook.held_output(ask.output) > ask.budget_tokens
        if ask.budget_picos is not None:
            yield Reason.BUDGET_COST, _over_budget(ask, high, ask.budget_picos)
    if outlook.open:
        closed = np.zeros(len(pool), dtype=np.bool_)
        closed[list(outlook.open)] = True
        yield Reason.CIRCUIT_OPEN, closed


def _over_budget(ask: Ask, high: IntArray, budget_picos: int) -> BoolArray:
    pool = ask.outlook.pool
    over = pool.picos(pool.worst, high, ask.outlook.held_output(ask.output)) > budget_picos
    over |= ~pool.priced
    for row in pool.tiered[high[pool.tiered] > pool.first_tier]:
        over[row] = ask.worst_picos(row, ask.high(row)) > budget_picos
    return over


def named_reasons(first: IntArray) -> list[Reason | None]:
    """The reason for each row's rejection; None where it passes."""
    return [None if column == PASSES else REASONS[column] for column in first.tolist()]


def count_reasons(first: IntArray) -> dict[Reason, int]:
    """How many models each question removed, counting each model at the first that it fails."""
    counts = np.bincount(first, minlength=PASSES).tolist()
    return {reason: count for reason, count in zip(REASONS, counts, strict=False) if count}
