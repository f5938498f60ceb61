"""The catalogue as columns: what a decision reads of each model, compiled once a snapshot."""

from __future__ import annotations

from datetime import date, timedelta
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from routewright._core.catalogue.prices import Price, Prices, dearest_at, price_at, prices_of, pricing_on
from routewright._core.money import MOST_TOKENS, PICOS_PER_NANO
from routewright._core.tokens.estimate import Measure, measure_of
from routewright.wire import CatalogueSnapshot, Feature, Model, Need

from .quality import DEFAULT_QUALITY, micro, on_grid
from .scale import IntArray

DEFAULT_WINDOW = 8_192
DEFAULT_TTFT_S = 1.0
DEFAULT_TOKENS_PER_S = 100.0

ANSWER_TOKENS = 400
"""Visible length of an answer until a model's own was learned."""
THINKING_TOKENS = 1_000
"""What a reasoning model thinks at least, until its own length was learned."""
P90_PERCENT = 250
"""The 90th percentile of an answer's length, in per cent of the mean."""
LEAST_P90 = 256
"""No expected output is taken to be shorter where a budget has to hold it (contract 3)."""

FEATURES: dict[Feature, Need] = {
    "temperature": Need.TEMPERATURE,
    "top_p": Need.TOP_P,
    "stop": Need.STOP,
    "seed": Need.SEED,
    "tool_choice": Need.TOOL_CHOICE,
    "image_url": Need.IMAGE_URL,
    "json_object": Need.JSON_OBJECT,
    "json_schema": Need.JSON_SCHEMA,
}
"""What a model is able to unless it is said to lack it."""

_UNPRICED = Price(-1, 0, 0, 0, 0, 0)
_UNKNOWN = Price(-1, *[10**30] * 5)
_NEVER = date.max.toordinal()


class Columns(NamedTuple):
    """Pico-dollars a token, one entry per model."""

    input: IntArray
    output: IntArray

    @classmethod
    def of(cls, prices: list[Price]) -> Columns:
        """Make the columns of one price per model."""
        return cls(
            np.array([price.input for price in prices], dtype=np.int64),
            np.array([price.output for price in prices], dtype=np.int64),
        )


class Pool:
    """All models of a snapshot at the prices of a day, ``YYYY-MM-DD``. Every list and array has one entry per model, in
    the snapshot's order."""

    def __init__(self, snapshot: CatalogueSnapshot, as_of: str) -> None:
        self.snapshot = snapshot
        self.as_of = as_of
        self.dated = any(model.price_changes for model in snapshot.models)
        """Another day may have other prices."""
        models = tuple(_priced_on(model, as_of) for model in snapshot.models)
        self.models: tuple[Model, ...] = models
        self.ids: list[str] = [m.id for m in models]
        self.row: dict[str, int] = {model_id: row for row, model_id in enumerate(self.ids)}
        self.provider: list[str] = [m.provider for m in models]
        self.window: list[int] = [m.context_window or DEFAULT_WINDOW for m in models]
        self.max_output: list[int] = [m.max_output_tokens or m.context_window or DEFAULT_WINDOW for m in models]
        self.prices: list[Prices] = [prices_of(m.pricing_per_1m) for m in models]
        self.base = Columns.of([prices[-1] if prices else _UNPRICED for prices in self.prices])
        """Prices of short inputs."""
        self.held: list[Prices] = self._two_days() if self.dated else self.prices
        """What a budget has to hold: the prices of the day and of the next."""
        self._steps: list[Prices] = [_steps(prices) for prices in self.held]
        self.flat_dearest = [steps[0] if len(steps) == 1 else None for steps in self._steps]
        """The worst that a token can cost at any length; None where the length decides."""
        self.worst = Columns.of([dearest_at(prices, 1) if prices else _UNPRICED for prices in self.held])
        """The most that a token costs in short inputs: a fresh one is not always the dearest."""
        tiers = [[price.above for price in prices if price.above >= 0] for prices in self.held]
        tiered = [row for row, above in enumerate(tiers) if above]
        self.tiered = np.array(tiered, dtype=np.int64)
        """Rows whose price depends on the input's length. Shape (k,)."""
        self.first_tier = np.array([min(tiers[row]) for row in tiered], dtype=np.int64)
        """Input tokens above which their price changes. Shape (k,)."""
        self.priced = np.array([bool(prices) for prices in self.prices], dtype=np.bool_)
        self.top: tuple[int, int] | None = None
        """The dearest token of input and of output that any model has; None where the price of one is unknown."""
        if self.priced.all():
            worst = [dearest_at(prices, 1 << 62) for prices in self.held]
            self.top = max((each.input for each in worst), default=0), max((each.output for each in worst), default=0)
        self.windows = np.array(self.window, dtype=np.int64)
        self.max_outputs = np.array(self.max_output, dtype=np.int64)
        self.least_window = min(self.window, default=0)
        self.least_max_output = min(self.max_output, default=0)
        found = [measure_of(m.id, m.tokenizer) for m in models]
        self.measures: tuple[Measure, ...] = tuple(dict.fromkeys(found))
        """How the models count their input."""
        self.measure: list[int] = [self.measures.index(measure) for measure in found]
        """Which of these each model does."""
        self.measured = np.array(self.measure, dtype=np.int64)

        self.able = np.array([_abilities(m) for m in models], dtype=np.int64)
        self.quality = np.array([micro(DEFAULT_QUALITY if m.quality is None else m.quality) for m in models], np.int64)
        self.qualities: list[int] = self.quality.tolist()
        self.levels: list[int] = (on_grid(self.quality) // 100).tolist()
        """The utility of each quality, in ten-thousandths: its step on the grid."""
        self.deprecated = np.array([_ordinal(m.deprecated_at) for m in models], dtype=np.int64)
        self.disabled = np.array([m.disabled for m in models], dtype=np.bool_)
        self.free_tier = np.array([m.free_tier for m in models], dtype=np.bool_)
        self.unavailable = np.array([m.availability.status == "unavailable" for m in models], dtype=np.bool_)
        self.id_rank = np.argsort(np.argsort(np.array(self.ids, dtype=np.str_)))  # place in alphabetical order
        self.id_ranks: list[int] = self.id_rank.tolist()

        ttft_s = [m.ttft_s or DEFAULT_TTFT_S for m in models]
        speed = [m.tokens_per_s or DEFAULT_TOKENS_PER_S for m in models]
        self.ttft_ms: list[int] = [round(s * 1000) for s in ttft_s]
        self.us_per_token: list[int] = [round(1e6 / s) for s in speed]
        # Thinking that happens before the first token is seen as a long wait; its tokens are billed all the same.
        self.silent: list[int] = [
            round(max(0.0, t - DEFAULT_TTFT_S) * s) if m.reasoning else 0
            for m, t, s in zip(models, ttft_s, speed, strict=True)
        ]
        self.output: list[int] = [
            min(ANSWER_TOKENS + (max(THINKING_TOKENS, silent) if m.reasoning else 0), most, window // 2)
            for m, silent, most, window in zip(models, self.silent, self.max_output, self.window, strict=True)
        ]
        self.output_p90: list[int] = [
            p90_of(mean, most) for mean, most in zip(self.output, self.max_output, strict=True)
        ]
        """Output tokens that a budget has to hold until a model's own was learned."""

    def __len__(self) -> int:
        return len(self.models)

    def holds(self, day: str) -> bool:
        """Whether its prices are those of a day."""
        return not self.dated or day == self.as_of

    def prices_on(self, row: int, day: str | None) -> Prices:
        """What a model costs on a day; None: the pool's own."""
        if day is None or self.holds(day):
            return self.prices[row]
        return prices_of(pricing_on(self.snapshot.models[row], day))

    def dearest(self, row: int, input_tokens: int) -> Price:
        """The worst that inputs up to this long can cost a token, on the pool's day or the next, into which a call may
        last; beyond every budget where the price is unknown."""
        return self.flat_dearest[row] or price_at(self._steps[row], input_tokens)

    def _two_days(self) -> list[Prices]:
        """The prices of the day and of the next; none where the day's are unknown."""
        morrow = (date.fromisoformat(self.as_of) + timedelta(days=1)).isoformat()
        both = zip(self.prices, self.snapshot.models, strict=True)
        return [prices and prices + prices_of(pricing_on(model, morrow)) for prices, model in both]

    def picos(self, prices: Columns, input_tokens: IntArray | int, output_tokens: IntArray) -> IntArray:
        """Cost of a call in pico-dollars, shape (n,); 0 where unpriced."""
        input_tokens, output_tokens = np.minimum(input_tokens, MOST_TOKENS), np.minimum(output_tokens, MOST_TOKENS)
        return prices.input * input_tokens + prices.output * output_tokens

    def expected_nanos(self, input_tokens: int, output_tokens: IntArray) -> IntArray:
        """Cost of a call of one input length, rounded up to nano-dollars, shape (n,); 0 where unpriced."""
        prices = self.base
        reached = self.tiered[input_tokens > self.first_tier].tolist()
        if reached:
            prices = Columns(prices.input.copy(), prices.output.copy())
            for row in reached:
                price = price_at(self.prices[row], input_tokens)
                prices.input[row], prices.output[row] = price.input, price.output
        return -(-self.picos(prices, input_tokens, output_tokens) // PICOS_PER_NANO)


def p90_of(mean: int, most: int) -> int:
    """The 90th percentile of an answer's length as it usually is for a mean, as far as the model can write it."""
    return min(max(LEAST_P90, mean * P90_PERCENT // 100), most)


def _priced_on(model: Model, day: str) -> Model:
    return replace(model, pricing_per_1m=pricing_on(model, day)) if model.price_changes else model


def _steps(prices: Prices) -> Prices:
    """The dearest price up to each length at which it changes, the longest inputs first."""
    above = sorted({price.above for price in prices}, reverse=True)
    return tuple(dearest_at(prices, tokens + 1)._replace(above=tokens) for tokens in above) or (_UNKNOWN,)


def _abilities(model: Model) -> int:
    able = Need.NONE
    modalities = model.modalities or ()
    if "image" in modalities:
        able |= Need.IMAGE
    if "tool" in modalities:
        able |= Need.TOOLS
    if model.structured_output:
        able |= Need.JSON
    lacking = model.unsupported or ()
    for feature, need in FEATURES.items():
        if feature not in lacking:
            able |= need
    return int(able)


def _ordinal(deprecated_at: str | None) -> int:
    return date.fromisoformat(deprecated_at[:10]).toordinal() if deprecated_at else _NEVER
