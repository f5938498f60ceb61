"""Which models a request may use at all, and why not the others: twelve questions, asked in the order of ``Reason``.

A question about the catalogue is answered once per kind of request (``Eligible``). Those about this request's own
numbers are asked row by row while a decision walks down its order (``Ask.fits``), and for the whole pool when somebody
reads the table (``failures``). Both say the same; a property test holds them to it.
"""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from routewright.wire import DecisionInput, Need, Reason

from .cost import dearest_at
from .money import PICOS_PER_NANO, nanos, usd
from .outlook import Outlook
from .pool import Pool
from .scale import IntArray
from .tokens import ranges

BoolArray = NDArray[np.bool_]

REASONS: tuple[Reason, ...] = tuple(Reason)
_COLUMN = {reason: column for column, reason in enumerate(REASONS)}
_NEEDS = ((Need.IMAGE, Reason.MODALITY), (Need.TOOLS, Reason.TOOLS), (Need.JSON, Reason.RESPONSE_FORMAT))


class Kind(NamedTuple):
    """What the catalogue's own questions depend on."""

    needs: int
    as_of: str
    regions: tuple[str, ...]
    named: bool
    """The caller named models; then free-tier ones among them count."""


class CountTokens(Exception):
    """The bounds cannot settle the matter: count the input exactly and decide again."""


class Eligible:
    """Answers of a pool to the questions that need no numbers of the request."""

    def __init__(self, pool: Pool, kind: Kind) -> None:
        failed = np.zeros((len(pool), len(REASONS)), dtype=np.bool_)  # (n, 12), columns follow REASONS
        failed[:, _COLUMN[Reason.DISABLED]] = pool.disabled | (pool.free_tier & (not kind.named))
        failed[:, _COLUMN[Reason.DEPRECATED]] = pool.deprecated <= date.fromisoformat(kind.as_of).toordinal()
        failed[:, _COLUMN[Reason.PROVIDER_UNAVAILABLE]] = pool.unavailable
        if kind.regions:
            wanted = set(kind.regions)
            failed[:, _COLUMN[Reason.REGION]] = [not wanted.issubset(m.availability.regions) for m in pool.models]
        for need, reason in _NEEDS:
            if kind.needs & need:
                failed[:, _COLUMN[reason]] = (pool.able & need) == 0
        self.failed = failed
        self.counts = count_reasons(failed)
        self.passed: BoolArray = np.logical_not(failed.any(axis=1))


class Ask:
    """The numbers of one request that a model must fit, made ready to be compared with."""

    def __init__(self, given: DecisionInput, outlook: Outlook) -> None:
        self.outlook = outlook
        self.output = given.max_output_tokens
        self.default_cap = given.default_output_cap
        self.budget_nanos = given.budget_nanos
        self.budget_tokens = given.budget_tokens
        self.limited = given.budget_nanos is not None or given.budget_tokens is not None
        self.input = ranges(given.tokens)
        """(low, high) input tokens for each entry of ``VOCABULARIES``."""
        self.counted = given.tokens.counted

    def fits(self, row: int) -> bool:
        """Ask the context and budget questions of one row. Raises ``CountTokens`` where the bounds leave it open."""
        low, high = self.input[self.outlook.pool.vocabulary[row]]
        if self._holds(row, high):
            return True
        if not self.counted and low < high and self._holds(row, low):
            raise CountTokens
        return False

    def _holds(self, row: int, input_tokens: int) -> bool:
        if self.exceeds_context(row, input_tokens):
            return False
        if not self.limited:
            return True
        return not (self.exceeds_tokens(row, input_tokens) or self.exceeds_cost(row, input_tokens))

    def fits_all(self) -> bool:
        """Whether no row can fail a question of this request's own, as is the rule."""
        high = max(high for _, high in self.input)
        return not self.limited and self.outlook.leaves_room(high, self.output)

    def exceeds_context(self, row: int, input_tokens: int) -> bool:
        """Input and the output asked for, or else expected, do not fit the window."""
        outlook = self.outlook
        output = self.output
        if output is None:
            output = outlook.output[row]
        elif output > outlook.pool.max_output[row]:
            return True
        return input_tokens + output > outlook.pool.window[row]

    def exceeds_tokens(self, row: int, input_tokens: int) -> bool:
        """Input and the output to be held do not fit the token budget."""
        return self.budget_tokens is not None and input_tokens + self.held_output(row) > self.budget_tokens

    def exceeds_cost(self, row: int, input_tokens: int) -> bool:
        """The worst that the held output can cost is over the budget, or the price is unknown."""
        if self.budget_nanos is None:
            return False
        prices = self.outlook.pool.prices[row]
        return not prices or self.worst_picos(row, input_tokens) > self.budget_nanos * PICOS_PER_NANO

    def worst_picos(self, row: int, input_tokens: int) -> int:
        """The most that an input up to this long and the held output can cost, in pico-dollars."""
        price = dearest_at(self.outlook.pool.prices[row], input_tokens)
        return input_tokens * price.input + self.held_output(row) * price.output

    def worst_usd(self, row: int) -> float | None:
        """What a budget must hold for a row, in dollars; None where its price is unknown."""
        if not self.outlook.pool.prices[row]:
            return None
        return usd(nanos(self.worst_picos(row, self.high(row))))

    def affordable_at_best(self) -> BoolArray:
        """Rows that a budget does not rule out at first sight: shortest input, lowest price. Shape (n,)."""
        outlook, low = self.outlook, min(low for low, _ in self.input)
        held = outlook.held_output(self.output)
        kept = np.ones(len(outlook.pool), dtype=np.bool_)
        if self.budget_tokens is not None:
            kept &= held <= self.budget_tokens - low
        if self.budget_nanos is not None:
            kept &= outlook.pool.picos(outlook.pool.lowest, low, held) <= self.budget_nanos * PICOS_PER_NANO
        return kept

    def held_output(self, row: int) -> int:
        """Output tokens for which a budget must have room: what was asked for, else the 90th percentile."""
        return self.outlook.output_p90[row] if self.output is None else self.output

    def high(self, row: int) -> int:
        """Most input tokens that this request can have for a row's vocabulary."""
        return self.input[self.outlook.pool.vocabulary[row]][1]


def kind_of(given: DecisionInput) -> Kind:
    """Pick out what the catalogue's own questions depend on."""
    return Kind(given.needs, given.as_of, given.regions, given.models is not None)


def whitelist_rows(given: DecisionInput, pool: Pool) -> frozenset[int] | None:
    """Rows of the whitelist; None: every row."""
    if given.models is None:
        return None
    return frozenset(pool.row[model] for model in given.models if model in pool.row)


def failures(given: DecisionInput, outlook: Outlook, eligible: Eligible) -> BoolArray:
    """Answer all twelve questions for all rows: shape (n, 12), True where a model fails. Columns follow ``REASONS``."""
    pool, ask, failed = outlook.pool, Ask(given, outlook), eligible.failed.copy()
    allowed = whitelist_rows(given, pool)
    if allowed is not None:
        failed[:, _COLUMN[Reason.WHITELIST]] = True
        failed[list(allowed), _COLUMN[Reason.WHITELIST]] = False
    high = np.array([most for _, most in ask.input], dtype=np.int64)[pool.vocabularies]
    failed[:, _COLUMN[Reason.CONTEXT]] = high + outlook.expected_output(ask.output) > pool.windows
    if ask.output is not None:
        failed[:, _COLUMN[Reason.CONTEXT]] = (high + ask.output > pool.windows) | (ask.output > pool.max_outputs)
    if ask.budget_tokens is not None:
        failed[:, _COLUMN[Reason.BUDGET_TOKENS]] = high + outlook.held_output(ask.output) > ask.budget_tokens
    if ask.budget_nanos is not None:
        failed[:, _COLUMN[Reason.BUDGET_COST]] = _over_budget(ask, high, ask.budget_nanos)
    if outlook.open:
        failed[list(outlook.open), _COLUMN[Reason.CIRCUIT_OPEN]] = True
    return failed


def _over_budget(ask: Ask, high: IntArray, budget_nanos: int) -> BoolArray:
    pool = ask.outlook.pool
    over = pool.picos(pool.base, high, ask.outlook.held_output(ask.output)) > budget_nanos * PICOS_PER_NANO
    over |= ~pool.priced
    for row in pool.uneven:
        over[row] = ask.exceeds_cost(row, ask.high(row))
    return over


def first_reasons(failed: BoolArray) -> list[Reason | None]:
    """The first question that each row fails; None where it passes all."""
    firsts = np.where(failed.any(axis=1), failed.argmax(axis=1), -1).tolist()
    return [None if column < 0 else REASONS[column] for column in firsts]


def count_reasons(failed: BoolArray) -> dict[Reason, int]:
    """How many models each question removed, counting each model at the first that it fails."""
    firsts = failed.argmax(axis=1)[failed.any(axis=1)]
    counts = np.bincount(firsts, minlength=len(REASONS)).tolist()
    return {reason: count for reason, count in zip(REASONS, counts, strict=True) if count}
