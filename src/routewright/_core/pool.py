"""The catalogue as columns: what a decision reads of each model, compiled once a snapshot."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

import numpy as np

from routewright.wire import CatalogueSnapshot, Model, Need

from .cost import Price, dearest_at, price_at, prices_of
from .money import PICOS_PER_NANO
from .quality import micro
from .scale import IntArray
from .tokens import Measure, measure_of

DEFAULT_WINDOW = 8_192
DEFAULT_QUALITY = 0.3
DEFAULT_TTFT_S = 1.0
DEFAULT_TOKENS_PER_S = 100.0

ANSWER_TOKENS = 400
"""Visible length of an answer until a model's own was learned."""
THINKING_TOKENS = 1_000
"""What a reasoning model thinks at least, until its own length was learned."""
P90_PERCENT = 250
"""The 90th percentile of an answer's length, in per cent of the mean."""

_MOST_TOKENS = 10**8  # no window is larger; keeps products within 64 bits
_UNPRICED = Price(-1, 0, 0, 0, 0)
_UNKNOWN = Price(-1, *[10**30] * 4)
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
    """All models of a snapshot. Every list and array has one entry per model, in the snapshot's order."""

    def __init__(self, snapshot: CatalogueSnapshot) -> None:
        models = snapshot.models
        self.snapshot = snapshot
        self.models: tuple[Model, ...] = models
        self.ids: list[str] = [m.id for m in models]
        self.row: dict[str, int] = {model_id: row for row, model_id in enumerate(self.ids)}
        self.provider: list[str] = [m.provider for m in models]
        self.window: list[int] = [m.context_window or DEFAULT_WINDOW for m in models]
        self.max_output: list[int] = [m.max_output_tokens or m.context_window or DEFAULT_WINDOW for m in models]
        self.prices: list[tuple[Price, ...]] = [prices_of(m) for m in models]
        self.base = Columns.of([prices[-1] if prices else _UNPRICED for prices in self.prices])
        """Prices of short inputs."""
        self._flat: list[Price | None] = [_flat(prices) for prices in self.prices]
        self.worst = Columns.of([dearest_at(prices, 1) if prices else _UNPRICED for prices in self.prices])
        """The most that a token costs in short inputs: a fresh one is not always the dearest."""
        tiered = [row for row, prices in enumerate(self.prices) if len(prices) > 1]
        self.tiered = np.array(tiered, dtype=np.int64)
        """Rows whose price depends on the input's length. Shape (k,)."""
        self.first_tier = np.array([self.prices[row][-2].above for row in tiered], dtype=np.int64)
        """Input tokens above which their price changes. Shape (k,)."""
        self.priced = np.array([bool(prices) for prices in self.prices], dtype=np.bool_)
        self.windows = np.array(self.window, dtype=np.int64)
        self.max_outputs = np.array(self.max_output, dtype=np.int64)
        found = [measure_of(m.id, m.tokenizer) for m in models]
        self.measures: tuple[Measure, ...] = tuple(dict.fromkeys(found))
        """How the models count their input."""
        self.measure: list[int] = [self.measures.index(measure) for measure in found]
        """Which of these each model does."""
        self.measured = np.array(self.measure, dtype=np.int64)

        self.able = np.array([_abilities(m) for m in models], dtype=np.int64)
        self.quality = np.array([micro(DEFAULT_QUALITY if m.quality is None else m.quality) for m in models], np.int64)
        self.deprecated = np.array([_ordinal(m.deprecated_at) for m in models], dtype=np.int64)
        self.disabled = np.array([m.disabled for m in models], dtype=np.bool_)
        self.free_tier = np.array([m.free_tier for m in models], dtype=np.bool_)
        self.unavailable = np.array([m.availability.status == "unavailable" for m in models], dtype=np.bool_)
        self.id_rank = np.argsort(np.argsort(np.array(self.ids, dtype=np.str_)))  # place in alphabetical order

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

    def __len__(self) -> int:
        return len(self.models)

    def dearest(self, row: int, input_tokens: int) -> Price:
        """The worst that inputs up to this long can cost a token; beyond every budget where the price is unknown."""
        return self._flat[row] or dearest_at(self.prices[row], input_tokens)

    def picos(self, prices: Columns, input_tokens: IntArray | int, output_tokens: IntArray) -> IntArray:
        """Cost of a call in pico-dollars, shape (n,); 0 where unpriced."""
        input_tokens, output_tokens = np.minimum(input_tokens, _MOST_TOKENS), np.minimum(output_tokens, _MOST_TOKENS)
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


def _flat(prices: tuple[Price, ...]) -> Price | None:
    """The dearest price at any length; None where the length decides."""
    if not prices:
        return _UNKNOWN
    return dearest_at(prices, 1) if len(prices) == 1 else None


def _abilities(model: Model) -> int:
    able = Need.NONE
    modalities = model.modalities or ()
    if "image" in modalities:
        able |= Need.IMAGE
    if "tool" in modalities:
        able |= Need.TOOLS
    if model.structured_output:
        able |= Need.JSON
    return int(able)


def _ordinal(deprecated_at: str | None) -> int:
    return date.fromisoformat(deprecated_at[:10]).toordinal() if deprecated_at else _NEVER
