"""The result of a decision: the models to call, in order, and the numbers needed to call them. A plan refers to no
board, pool or provider, so a trace can keep it, and requests and threads can share it.

``decide.py`` chooses the models and their fallbacks, ``attempts/machine.py`` decides when to fall back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from routewright._core.catalogue.prices import Price, Prices, dearest_at
from routewright._core.money import PICOS_PER_NANO
from routewright._core.tokens.estimate import Length, Measure, length, within_window
from routewright.wire import Candidate, DecisionInput, Reason, TokenBounds

from .forecast import Forecast
from .logarithms import BoolArray, IntArray
from .scoring import Key, candidate

_UNLIMITED = 1 << 62
_LAST = Reason.BUDGET_TOKENS, Reason.BUDGET_COST, Reason.CIRCUIT_OPEN
PATIENCE = 4  # multiple of the usual time before an attempt is given up


class Leg:
    """One model of a plan, with its prices and numbers."""

    __slots__ = (
        "able", "dearest", "declared_window", "expected_ms", "flat", "held", "id", "is_dialled", "latency_p95_ms",
        "max_output", "measure", "output", "patience_s", "prices", "prices_held", "provider", "reasoning",
        "row", "ttft_ms", "ttft_p95_ms", "us_per_token", "whole_patience_s", "window",
    )  # fmt: skip

    def __init__(self, forecast: Forecast, row: int, cap: int | None) -> None:
        """``cap``: the output cap of the request's class."""
        pool = forecast.pool
        self.row = row
        self.id = pool.ids[row]
        self.provider = pool.provider[row]
        self.prices: Prices = pool.prices[row]  # of the plan's day
        self.flat: Price | None = self.prices[0] if len(self.prices) == 1 else None
        self.prices_held: Prices = pool.held[row]  # the prices a budget must cover: of this day and the next
        self.is_dialled = bool(pool.dials.tier or pool.dials.hour or pool.dials.audio)
        """The request's dials may raise the cost above ``prices``."""
        self.dearest: Price | None = pool.flat_dearest[row]
        """The highest of ``prices_held``; None if it depends on the input's length."""
        self.max_output = pool.max_output[row]
        self.window = pool.window[row]
        self.declared_window = pool.models[row].context_window  # None if ``window`` is the default
        self.measure: Measure = pool.measures[pool.measure[row]]  # how the model counts its input
        self.able = int(pool.able[row])  # bits of ``Need`` that it serves
        self.reasoning = bool(pool.models[row].reasoning)
        self.output = forecast.output[row]  # expected length of an answer in tokens
        self.held = forecast.output_p90[row]  # its 90th percentile, which a budget must cover
        self.expected_ms = forecast.expected_ms(row, cap)  # expected time to the whole answer
        self.ttft_ms = forecast.ttft_ms[row]
        self.ttft_p95_ms = forecast.ttft_p95_ms[row]
        self.latency_p95_ms = forecast.latency_p95_ms[row]
        self.us_per_token = forecast.us_per_token[row]
        self.patience_s = PATIENCE * (self.ttft_p95_ms or self.ttft_ms) / 1000
        """How long to wait for the first token, from observed or expected times."""
        usual_ms = PATIENCE * (self.latency_p95_ms or self.expected_ms)
        self.whole_patience_s = max(usual_ms, self.expected_ms) / 1000
        """How long to wait for a whole answer; at least the expected time, which may exceed the observed ones."""

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
_NONE: frozenset[int] = frozenset()


class NamedLeg(Leg):
    """The model of a cached answer. Only its names are known."""

    __slots__ = ()

    def __init__(self, model: str, provider: str) -> None:
        self.id, self.provider, self.able = model, provider, -1  # it ignores nothing


class OutputPlan(NamedTuple):
    """The cap of the primary's output, and whether the budget still pays for a fallback."""

    cap: int | None
    fallback_affordable: bool


class Plan:
    """The chosen model and its fallbacks. Immutable, apart from lazily computed fields."""

    __slots__ = (
        "ample_counts", "ample_output", "best", "costs", "counts", "failed", "flat_to", "front", "given", "ids",
        "is_shared", "legs", "line", "max_high", "max_latency_ms", "p90", "passed_over",
        "reached", "told", "walked", "watched", "worst_held", "worst_input", "worst_output",
    )  # fmt: skip

    def __init__(self, given: DecisionInput, legs: tuple[Leg, ...], front: tuple[Key, ...], ids: Sequence[str]) -> None:
        self.given = given
        """The input. For a shared plan a template: tokens, ``timeout_ms``, budgets and ``health`` differ per call."""
        self.legs = legs  # the chosen model, then the chain
        self.front = front  # the keys of the best few that fit
        self.ample_output: tuple[int, int, OutputPlan] | None = None
        """Pico-dollars per input token, and fixed pico-dollars: a budget of their sum pays for this cap and the chain.
        Computed for the first call with a budget."""
        self.ids = ids  # of the pool's models, by row
        self.failed: Mapping[int, int] = {}
        """Rows that were checked and did not fit the request's own numbers, with the column of ``REASONS``."""
        self.passed_over: tuple[tuple[str, Reason | None], ...] = ()
        """Preferred models that were rejected, each with the first constraint it failed."""
        self.is_shared = False  # it may serve other calls of its class (``choice.covers``)
        self.max_high = -1
        """Up to this many input tokens (``TokenBounds.high``) every model of the pool that fits the smallest input
        fits, so the rejections are the same."""
        self.max_latency_ms = 0  # with this timeout no walked model is late
        self.walked = 0  # number of places of the order walked, including open circuits
        self.watched: frozenset[int] = _NONE
        """Rows the plan depends on: the walked ones and the chain's."""
        self.reached: Key | None = None  # the key of the last walked place; None if all were walked
        self.worst_input = self.worst_output = self.worst_held = 0
        """Pico-dollars per input token, pico-dollars of output, and tokens of output: upper bounds over all walked
        models of what a budget must cover."""
        self.told: tuple[Mapping[Reason, int] | None, str] | None = None
        """Cached rejection counts and reason text, shared by calls with the same counts."""
        self.best: list[Candidate] | None = None  # cached candidates of all covered calls
        self.line: tuple[Any, bool] | None = None
        """The ``ChoiceLine`` of one call; its candidates hold for all covered calls. True: all of it holds for covered
        calls without a budget."""
        self.counts: Mapping[Reason, int] | None = None
        """How many models each constraint rejected, for covered calls without a budget."""
        self.costs: tuple[IntArray, IntArray, IntArray, BoolArray] | None = None
        """For each model that no other constraint rejects: pico-dollars per input token, pico-dollars and tokens of
        output a budget must cover, and whether its circuit is open. Only for shared plans."""
        self.ample_counts: tuple[int, int, Mapping[Reason, int]] | None = None
        """Pico-dollars per input token, and fixed pico-dollars: with a budget of their sum these are the rejection
        counts. Computed for the first call with a budget."""
        self.p90: list[int] = []  # the output tokens of each row in ``costs``
        self.flat_to = -1  # up to this many input tokens no price of another tier applies

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
            return self._counted(high, nanos, tokens)
        if self.ample_counts is None:
            assert self.costs is not None, "without them it covers no call with a budget"
            inputs, outputs = self.costs[0], self.costs[1]
            per_token, most = int(inputs.max(initial=0)), int(outputs[outputs < _UNLIMITED].max(initial=0))
            counts = self._counted(0, most // PICOS_PER_NANO + 1, None)
            self.ample_counts = per_token, most + PICOS_PER_NANO, self.counts if counts == self.counts else counts
        per_token, most, counts = self.ample_counts
        if high * per_token + most <= nanos * PICOS_PER_NANO:
            return counts
        return self._counted(high, nanos, None)

    def _counted(self, high: int, nanos: int | None, tokens: int | None) -> Mapping[Reason, int]:
        assert self.costs is not None, "without them it covers no call with a budget"
        assert self.counts is not None, "it is shared"
        inputs, outputs, held, closed = self.costs
        long = held > (_UNLIMITED if tokens is None else tokens - high)
        dear = ~long & (inputs * high + outputs > (_UNLIMITED if nanos is None else nanos * PICOS_PER_NANO))
        found: dict[Reason, int] = {
            reason: count for reason, count in self.counts.items() if reason is not Reason.CIRCUIT_OPEN
        }
        for reason, rejected in zip(_LAST, (long, dear, closed & ~long & ~dear), strict=True):
            if count := int(np.count_nonzero(rejected)):
                found[reason] = count
        return found

    def candidates(self, timeout_ms: int) -> list[Candidate]:
        """The best few candidates for a call with this timeout, the chosen one first."""
        if self.best is not None:
            return self.best
        found = [candidate(key, self.ids[key[-1]], timeout_ms) for key in self.front]
        if self.is_shared:  # none of them is late
            self.best = found
        return found
