"""The result of a decision: the models to call, in order, and the numbers needed to call them. A plan refers to no
board, pool or provider, so a trace can keep it, and requests and threads can share it.

``decide.py`` chooses the models and their fallbacks, ``attempts/machine.py`` decides when to fall back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from msgspec import Struct

from routewright._core.catalogue.prices import Price, Prices, dearest_at
from routewright._core.money import PICOS_PER_NANO
from routewright._core.tokens.estimate import ANY_MARGIN, Length, Measure, length, within_window
from routewright.wire import Candidate, DecisionInput, Overrun, Reason, TokenBounds

from .forecast import Forecast
from .logarithms import BoolArray, IntArray
from .scoring import Key, candidate

_UNLIMITED = 1 << 62
_LAST = Reason.BUDGET_TOKENS, Reason.BUDGET_COST, Reason.CIRCUIT_OPEN
V = TypeVar("V")
PATIENCE = 4  # multiple of the usual time before an attempt is given up


class Leg(Struct, eq=False):
    """One model of a plan, with its prices and numbers."""

    id: str
    provider: str
    able: int = -1
    """Bits of ``Need`` that it serves."""
    row: int = -1
    prices: Prices = ()
    """Of the plan's day."""
    prices_held: Prices = ()
    """The prices a budget must cover: of this day and the next."""
    is_dialled: bool = False
    """The request's dials may raise the cost above ``prices``."""
    dearest: Price | None = None
    """The highest of ``prices_held``; None if it depends on the input's length."""
    max_output: int = 0
    window: int = 0
    declared_window: int | None = None
    """None if ``window`` is the default."""
    measure: Measure = Measure(None, ANY_MARGIN, ())
    """The model's way of counting its input."""
    reasoning: bool = False
    output: int = 0
    """Expected length of an answer in tokens."""
    held: int = 0
    """Its 90th percentile, which a budget must cover."""
    expected_ms: int = 0
    """Expected time to the whole answer."""
    ttft_ms: int = 0
    ttft_p95_ms: int | None = None
    latency_p95_ms: int | None = None
    us_per_token: int = 0
    patience_s: float = 0.0
    """Time to wait for the first token, from observed or expected times."""
    overrun: Overrun | None = None
    whole_patience_s: float = 0.0
    """Time to wait for a whole answer; at least the expected time, which may exceed the observed ones."""

    @classmethod
    def of(cls, forecast: Forecast, row: int, cap: int | None) -> Self:
        """The leg of a row of the pool. ``cap``: the output cap of the request's class."""
        pool = forecast.pool
        expected_ms = forecast.expected_ms(row, cap)
        ttft_ms = forecast.ttft_ms[row]
        ttft_p95_ms = forecast.ttft_p95_ms[row]
        return cls(
            id=pool.ids[row],
            provider=pool.provider[row],
            able=int(pool.able[row]),
            row=row,
            prices=pool.prices[row],
            prices_held=pool.held[row],
            is_dialled=bool(pool.dials.tier or pool.dials.hour or pool.dials.audio),
            dearest=pool.flat_dearest[row],
            max_output=pool.max_output[row],
            window=pool.window[row],
            declared_window=pool.models[row].context_window,
            measure=pool.measures[pool.measure[row]],
            reasoning=bool(pool.models[row].reasoning),
            output=forecast.output[row],
            held=forecast.output_p90[row],
            expected_ms=expected_ms,
            ttft_ms=ttft_ms,
            ttft_p95_ms=ttft_p95_ms,
            latency_p95_ms=forecast.latency_p95_ms[row],
            us_per_token=forecast.us_per_token[row],
            patience_s=PATIENCE * (ttft_p95_ms or ttft_ms) / 1000,
            overrun=forecast.overruns.get(row),
            whole_patience_s=max(PATIENCE * (forecast.latency_p95_ms[row] or expected_ms), expected_ms) / 1000,
        )

    def __repr__(self) -> str:
        return f"<Leg {self.id}>"

    def length(self, tokens: TokenBounds) -> Length:
        """The input's length for the model: fewest tokens, most tokens, and tokens that fill its window."""
        if tokens.counted or tokens.images:
            return within_window(length(tokens, self.measure), self.declared_window)
        return tokens.low, tokens.high, tokens.high

    def worst_price(self, input_tokens: int) -> Price:
        """The most a token of such an input can cost, today or tomorrow; above every budget if unpriced."""
        return self.dearest or dearest_at(self.prices_held, input_tokens)


ID = attrgetter("id")  # of a leg


class OutputPlan(NamedTuple):
    """The cap of the primary's output, and whether the budget still pays for a fallback."""

    cap: int | None
    fallback_affordable: bool


class Ample(Struct, Generic[V], frozen=True):
    """A result that is the same for every call with a budget of at least this sum, in pico-dollars."""

    per_token: int
    """For each input token."""
    fixed: int
    value: V


class BudgetColumns(NamedTuple):
    """The amounts a budget must cover, for each model that no other constraint rejects."""

    input_picos: IntArray
    """Per token."""
    output_picos: IntArray
    """Of all output."""
    output_tokens: IntArray
    is_open: BoolArray
    """The model's circuit is open."""


class Plan(Struct, eq=False):
    """The chosen model and its fallbacks. Immutable, apart from lazily computed fields."""

    decision_input: DecisionInput
    """The input. For a shared plan a template: tokens, ``timeout_ms``, budgets and ``health`` differ per call."""
    legs: tuple[Leg, ...]
    """The chosen model, then the chain."""
    front: tuple[Key, ...]
    """The keys of the best few that fit."""
    ids: Sequence[str]
    """Of the pool's models, by row."""
    ample_output: Ample[OutputPlan] | None = None
    """The output with a budget that also pays for the chain. Computed for the first call with a budget."""
    failed: Mapping[int, int] = {}
    """Rows that were checked and did not fit the request's own numbers, with the column of ``REASONS``."""
    passed_over: tuple[tuple[str, Reason | None], ...] = ()
    """Preferred models that were rejected, each with the first constraint it failed."""
    passed: tuple[Key, ...] = ()
    """Keys of the models that fit and rank before the chosen one, but have open circuits."""
    is_shared: bool = False
    """It may serve other calls of its class (``choice.covers``)."""
    max_high: int = -1
    """Up to this many input tokens (``TokenBounds.high``) every model of the pool that fits the smallest input fits,
    so the rejections are the same."""
    max_latency_ms: int = 0
    """With this timeout no walked model is late."""
    walked: int = 0
    """Number of places of the order walked, including open circuits."""
    watched: frozenset[int] = frozenset()
    """Rows the plan depends on: the walked ones and the chain's."""
    reached: Key | None = None
    """The key of the last walked place; None if all were walked."""
    worst_input: int = 0
    """Pico-dollars per input token: as the next two, an upper bound over all walked models of what a budget must
    cover."""
    worst_output: int = 0
    """Pico-dollars of output."""
    worst_held: int = 0
    """Tokens of output."""
    last_reason: tuple[Mapping[Reason, int] | None, str] | None = None
    """Cached rejection counts and reason text, shared by calls with the same counts."""
    best: list[Candidate] | None = None
    """Cached candidates of all covered calls."""
    line: tuple[Any, bool] | None = None
    """The ``ChoiceLine`` of one call; its candidates hold for all covered calls. True: all of it holds for covered
    calls without a budget."""
    counts: Mapping[Reason, int] | None = None
    """How many models each constraint rejected, for covered calls without a budget."""
    costs: BudgetColumns | None = None
    """Only for shared plans."""
    ample_counts: Ample[Mapping[Reason, int]] | None = None
    """The rejections with a budget that pays for every model. Computed for the first call with a budget."""
    p90: list[int] = []
    """The output tokens of each row in ``costs``."""
    flat_to: int = -1
    """Up to this many input tokens no price of another tier applies."""

    def __repr__(self) -> str:
        return f"<Plan {', then '.join(self.models)}>"

    @property
    def models(self) -> list[str]:
        """Ids of the models, in order."""
        return [*map(ID, self.legs)]

    def rejections(self, high: int, nanos: int | None, tokens: int | None) -> Mapping[Reason, int] | None:
        """How many models each constraint rejects for a call with this budget; None if not counted yet."""
        if self.counts is None or not self.is_shared or (nanos is None and tokens is None):
            return self.counts
        if nanos is None or tokens is not None:
            return self._count_rejections(high, nanos, tokens)
        ample = self.ample_counts
        if ample is None:
            assert self.costs is not None, "without them it covers no call with a budget"
            fixed = int(self.costs.output_picos[self.costs.output_picos < _UNLIMITED].max(initial=0))
            counts = self._count_rejections(0, fixed // PICOS_PER_NANO + 1, None)
            counts = self.counts if counts == self.counts else counts
            ample = Ample(int(self.costs.input_picos.max(initial=0)), fixed + PICOS_PER_NANO, counts)
            self.ample_counts = ample
        if high * ample.per_token + ample.fixed <= nanos * PICOS_PER_NANO:
            return ample.value
        return self._count_rejections(high, nanos, None)

    def _count_rejections(self, high: int, nanos: int | None, tokens: int | None) -> Mapping[Reason, int]:
        assert self.costs is not None, "without them it covers no call with a budget"
        assert self.counts is not None, "it is shared"
        long = self.costs.output_tokens > (_UNLIMITED if tokens is None else tokens - high)
        picos = self.costs.input_picos * high + self.costs.output_picos
        dear = ~long & (picos > (_UNLIMITED if nanos is None else nanos * PICOS_PER_NANO))
        counts = dict(self.counts)
        counts.pop(Reason.CIRCUIT_OPEN, None)
        for reason, rejected in zip(_LAST, (long, dear, self.costs.is_open & ~long & ~dear), strict=True):
            if count := int(np.count_nonzero(rejected)):
                counts[reason] = count
        return counts

    def candidates(self, timeout_ms: int) -> list[Candidate]:
        """The best few candidates for a call with this timeout, the chosen one first."""
        if self.best is not None:
            return self.best
        candidates = [candidate(key, self.ids[key[-1]], timeout_ms) for key in self.front]
        if self.is_shared:  # none of them is late
            self.best = candidates
        return candidates
