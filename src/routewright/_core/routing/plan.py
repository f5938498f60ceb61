"""What a decision comes to: which models to call, in order, and the numbers that calling them needs. A plan refers to
no board, pool or provider, so it may be kept with a trace and shared between requests and threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from routewright._core.catalogue.prices import Price, Prices, dearest_at
from routewright._core.money import PICOS_PER_NANO
from routewright._core.tokens.estimate import Length, Measure, length, within_window
from routewright.wire import Candidate, DecisionInput, Reason, TokenBounds

from .outlook import Outlook
from .scale import BoolArray, IntArray
from .scoring import Key, candidate

_UNLIMITED = 1 << 62
_LAST = Reason.BUDGET_TOKENS, Reason.BUDGET_COST, Reason.CIRCUIT_OPEN
PATIENCE = 4  # times that what is usual may take


class Leg:
    """One model of a plan: its names, prices and numbers."""

    __slots__ = (
        "able", "dearest", "declared_window", "expected_ms", "flat", "held", "id", "is_dialled", "latency_p95_ms",
        "max_output", "measure", "output", "patience_s", "prices", "prices_held", "provider", "reasoning",
        "row", "ttft_ms", "ttft_p95_ms", "us_per_token", "whole_patience_s", "window",
    )  # fmt: skip

    def __init__(self, outlook: Outlook, row: int, cap: int | None) -> None:
        """``cap``: output tokens that stand for the request's class."""
        pool = outlook.pool
        self.row = row
        self.id = pool.ids[row]
        self.provider = pool.provider[row]
        self.prices: Prices = pool.prices[row]  # of the plan's day
        self.flat: Price | None = self.prices[0] if len(self.prices) == 1 else None
        self.prices_held: Prices = pool.held[row]  # what a budget has to hold: the prices of the day and of the next
        self.is_dialled = bool(pool.dials.tier or pool.dials.hour or pool.dials.audio)
        """The request's dials may make its tokens dearer than ``prices`` says."""
        self.dearest: Price | None = pool.flat_dearest[row]
        """The worst of them at any length; None where the length decides."""
        self.max_output = pool.max_output[row]
        self.window = pool.window[row]
        self.declared_window = pool.models[row].context_window  # None where ``window`` is only taken for it
        self.measure: Measure = pool.measures[pool.measure[row]]  # how the model counts its input
        self.able = int(pool.able[row])  # bits of ``Need`` that it serves
        self.reasoning = bool(pool.models[row].reasoning)
        self.output = outlook.output[row]  # expected length of an answer in tokens
        self.held = outlook.output_p90[row]  # its 90th percentile, which a budget has to hold
        self.expected_ms = outlook.expected_ms(row, cap)  # expected time to the whole answer
        self.ttft_ms = outlook.ttft_ms[row]
        self.ttft_p95_ms = outlook.ttft_p95_ms[row]
        self.latency_p95_ms = outlook.latency_p95_ms[row]
        self.us_per_token = outlook.us_per_token[row]
        self.patience_s = PATIENCE * (self.ttft_p95_ms or self.ttft_ms) / 1000
        """How long the model may be silent at first, by what was observed or else is to be expected."""
        usual_ms = PATIENCE * (self.latency_p95_ms or self.expected_ms)
        self.whole_patience_s = max(usual_ms, self.expected_ms) / 1000
        """The same before a whole answer: not less than that takes, which may be longer than those observed."""

    def __repr__(self) -> str:
        return f"<Leg {self.id}>"

    def length(self, tokens: TokenBounds) -> Length:
        """The input as the model counts it: the fewest tokens, the most, and what is taken to fill its window."""
        if tokens.counted or tokens.images:
            return within_window(length(tokens, self.measure), self.declared_window)
        return tokens.low, tokens.high, tokens.high

    def worst_price(self, input_tokens: int) -> Price:
        """The most a token of such an input can cost, today or tomorrow; beyond every budget if unpriced."""
        return self.dearest or dearest_at(self.prices_held, input_tokens)


ID = attrgetter("id")  # of a leg
_NONE: frozenset[int] = frozenset()


class NamedLeg(Leg):
    """A model that is not asked: it made an answer that comes from the cache. Only its names are known."""

    __slots__ = ()

    def __init__(self, model: str, provider: str) -> None:
        self.id, self.provider, self.able = model, provider, -1  # it ignores nothing


class OutputPlan(NamedTuple):
    """Cap for the primary's output, and whether the budget then still pays for a fallback."""

    cap: int | None
    fallback_affordable: bool


class Plan:
    """The chosen model and those that follow it. Never changed once it is made."""

    __slots__ = (
        "ample", "costs", "counts", "failed", "flat_to", "front", "given", "ids", "instead_of", "is_shared",
        "is_swayed", "legs", "line", "max_high", "max_latency_ms", "p90", "passed_over", "reached", "rich", "shown",
        "told", "walked", "watched", "worst_held", "worst_input", "worst_output",
    )  # fmt: skip

    def __init__(self, given: DecisionInput, legs: tuple[Leg, ...], front: tuple[Key, ...], ids: Sequence[str]) -> None:
        self.given = given
        """Its input. A shared plan's is a template: tokens, ``timeout_ms``, budgets, ``health`` are each call's own."""
        self.legs = legs  # the chosen model, then the chain
        self.front = front  # the keys of the best few that fit
        self.ample: tuple[int, int, OutputPlan] | None = None
        """Pico-dollars a token of input, and pico-dollars: a budget of so much pays for this cap, and the chain. None
        until a call with a budget asks."""
        self.ids = ids  # of all models that were asked, by row
        self.failed: Mapping[int, int] = {}
        """Rows that were walked over and did not fit the request's own numbers, with the column of ``REASONS``."""
        self.passed_over: tuple[tuple[str, Reason | None], ...] = ()
        """Models that were preferred and not taken, each with the first constraint that it fails."""
        self.is_shared = False  # it may serve other calls of its class (``covers``)
        self.max_high = -1
        """Up to so many input tokens (``TokenBounds.high``) every model that was walked over fits that ever does, and
        so does every model of the pool: the counts of rejections are the same."""
        self.max_latency_ms = 0  # with so much time none of the walked is late
        self.walked = 0  # places of the order that were looked at, those with open circuits counted
        self.watched: frozenset[int] = _NONE
        """Rows that the plan rests on: those at the places walked over, and the chain's."""
        self.reached: Key | None = None  # the key of the last place that was looked at; None: all were
        self.worst_input = self.worst_output = self.worst_held = 0
        """Pico-dollars a token of input, pico-dollars of output, and tokens of output: no walked model needs more of a
        budget."""
        self.told: tuple[Mapping[Reason, int] | None, str] | None = None
        """The reason that one of its calls has worked out, and the counts in it: the same for all with these counts."""
        self.shown: list[Candidate] | None = None  # the best few, for all calls that it covers
        self.is_swayed: bool | None = None
        """A reading of the prompt could change it. None until somebody has looked: prompts are read meanwhile."""
        self.instead_of = ""
        """The model that the catalogue's qualities alone would have chosen, where a reading changed that."""
        self.line: tuple[Any, bool] | None = None
        """The ``ChoiceLine`` of one of its calls: its candidates are those of all calls that it covers. True: so is all
        of it, for those without a budget."""
        self.counts: Mapping[Reason, int] | None = None
        """How many models each constraint rejected, for calls that are covered and have no budget."""
        self.costs: tuple[IntArray, IntArray, IntArray, BoolArray] | None = None
        """Of each model that no other constraint rejects: pico-dollars a token of input, pico-dollars and tokens of
        output that a budget has to hold, and whether its circuit is open. None of a plan that is not shared."""
        self.rich: tuple[int, int, Mapping[Reason, int]] | None = None
        """Pico-dollars a token of input, and pico-dollars: for a budget of so much the counts of rejections are these.
        None until a call with a budget asks."""
        self.p90: list[int] = []  # what each row's answer was held to need, as ``costs`` has it
        self.flat_to = -1  # up to so many input tokens none of those has a price of another tier

    def __repr__(self) -> str:
        return f"<Plan {', then '.join(self.models)}>"

    @property
    def models(self) -> list[str]:
        """Ids of the models, in order."""
        return [*map(ID, self.legs)]

    def covers(
        self, tokens: TokenBounds, timeout_ms: int, budget_nanos: int | None = None, budget_tokens: int | None = None
    ) -> bool:
        """Whether a call of the plan's class would be decided alike. False where that is not sure."""
        high = tokens.high
        if high > self.max_high or timeout_ms < self.max_latency_ms or tokens.counted or tokens.images:
            return False
        if budget_tokens is not None and high + self.worst_held > budget_tokens:
            return False
        if budget_nanos is None and budget_tokens is None:
            return True
        if high > self.flat_to:  # rejections could not be counted later
            return False
        return budget_nanos is None or high * self.worst_input + self.worst_output <= budget_nanos * PICOS_PER_NANO

    def rejections(self, high: int, nanos: int | None, tokens: int | None) -> Mapping[Reason, int] | None:
        """How many models each constraint rejected of a call with this budget; None: not counted yet."""
        if self.counts is None or not self.is_shared or (nanos is None and tokens is None):
            return self.counts
        if nanos is None or tokens is not None:
            return self._counted(high, nanos, tokens)
        per_token, most, counts = self.rich or self._rich()
        if high * per_token + most <= nanos * PICOS_PER_NANO:
            return counts
        return self._counted(high, nanos, None)

    def _rich(self) -> tuple[int, int, Mapping[Reason, int]]:
        assert self.costs is not None, "without them it covers no call with a budget"
        inputs, outputs = self.costs[0], self.costs[1]
        per_token, most = int(inputs.max(initial=0)), int(outputs[outputs < _UNLIMITED].max(initial=0))
        counts = self._counted(0, most // PICOS_PER_NANO + 1, None)
        assert self.counts is not None, "it is shared"
        self.rich = per_token, most + PICOS_PER_NANO, self.counts if counts == self.counts else counts
        return self.rich

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
        """The best few that fit, the chosen one first, of a call that has so much time."""
        if not self.is_shared:
            return [candidate(key, self.ids[key[-1]], timeout_ms) for key in self.front]
        if self.shown is None:  # none of them is late
            self.shown = [candidate(key, self.ids[key[-1]], timeout_ms) for key in self.front]
        return self.shown
