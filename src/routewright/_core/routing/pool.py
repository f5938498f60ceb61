"""The catalogue as columns, compiled once per snapshot: all figures of a model that decisions read."""

from __future__ import annotations

from datetime import date, timedelta
from functools import lru_cache
from typing import NamedTuple, get_args

import numpy as np
from msgspec.structs import replace

from routewright._core.catalogue.prices import Price, Prices, dearest_at, price_at, pricing_on, tier_prices
from routewright._core.money import MOST_TOKENS, PICOS_PER_NANO
from routewright._core.request.read import BITS, BRIEF_TOKENS, TIER_BITS
from routewright._core.tokens.estimate import Measure, measure_of
from routewright.wire import CatalogueSnapshot, Feature, Model, Need

from .logarithms import IntArray
from .quality import DEFAULT_QUALITY, micro, on_grid
from .request_options import PLAIN, RequestOptions

DEFAULT_WINDOW = 8_192
DEFAULT_TTFT_S = 1.0
DEFAULT_TOKENS_PER_S = 100.0

ANSWER_TOKENS = 400  # prior of an answer's visible length
THINKING_TOKENS = 1_000  # prior of the least reasoning of a reasoning model
P90_PERCENT = 250  # the 90th percentile of an answer's length, in per cent of the mean
LEAST_P90 = 256  # the least output a budget must cover (contract 3)

_OTHERWISE = {"parallel_tool_calls": Need.SERIAL_TOOLS, "reasoning_none": Need.NO_REASONING}
FEATURES: dict[Feature, Need] = {  # a model has these unless the catalogue lists them as unsupported
    feature: _OTHERWISE.get(feature) or Need[feature.upper()] for feature in get_args(Feature)
}
THINKING = Need(sum(need for feature, need in FEATURES.items() if feature.startswith("reasoning")) - Need.NO_REASONING)
"""Abilities only reasoning models have."""

_UNPRICED = Price(-1, 0, 0, 0, 0, 0)
_UNKNOWN = Price(-1, *[10**30] * 5)
_NEVER = date.max.toordinal()


class Columns(NamedTuple):
    """Pico-dollars a token, one entry per model."""

    input: IntArray
    output: IntArray

    @classmethod
    def of(cls, prices: list[Price]) -> Columns:
        """Columns from one price per model."""
        return cls(
            np.array([price.input for price in prices], dtype=np.int64),
            np.array([price.output for price in prices], dtype=np.int64),
        )


class Pool:
    """All models of a snapshot at the prices of a day. Lists and arrays follow the snapshot's order."""

    def __init__(self, snapshot: CatalogueSnapshot, as_of: str) -> None:
        self.snapshot = snapshot
        self.as_of = as_of
        self.dials = PLAIN  # of the requests it serves
        self.dated = any(model.price_changes for model in snapshot.models)  # prices depend on the day
        models = tuple(_priced_on(model, as_of) for model in snapshot.models)
        self.models: tuple[Model, ...] = models
        self.ids: list[str] = [m.id for m in models]
        self.row: dict[str, int] = {model_id: row for row, model_id in enumerate(self.ids)}
        self.provider: list[str] = [m.provider for m in models]
        self.window: list[int] = [m.context_window or DEFAULT_WINDOW for m in models]
        self.max_output: list[int] = [m.max_output_tokens or m.context_window or DEFAULT_WINDOW for m in models]
        abilities = self._ables = [_abilities(m) for m in models]
        self.able = np.array(abilities, dtype=np.int64)
        self.windows = np.array(self.window, dtype=np.int64)
        self.declared_windows = np.array([m.context_window or 1 << 40 for m in models], dtype=np.int64)
        self.max_outputs = np.array(self.max_output, dtype=np.int64)
        self.least_window = min(self.window, default=0)
        self.least_max_output = min(self.max_output, default=0)
        measures = [measure_of(m.id, m.tokenizer) for m in models]
        self.measures: tuple[Measure, ...] = tuple(dict.fromkeys(measures))  # the ways models count their input
        self.measure: list[int] = [self.measures.index(measure) for measure in measures]
        """The index of each model's measure."""
        self.measured = np.array(self.measure, dtype=np.int64)

        self.quality = np.array([micro(DEFAULT_QUALITY if m.quality is None else m.quality) for m in models], np.int64)
        self.qualities: list[int] = self.quality.tolist()
        self.levels: list[int] = (on_grid(self.quality) // 100).tolist()
        """The utility of each quality, in ten-thousandths: its step on the grid."""
        self.deprecated = np.array(
            [date.fromisoformat(m.deprecated_at[:10]).toordinal() if m.deprecated_at else _NEVER for m in models],
            dtype=np.int64,
        )
        self.disabled = np.array([m.disabled for m in models], dtype=np.bool_)
        self.free_tier = np.array([m.free_tier for m in models], dtype=np.bool_)
        self.unavailable = np.array([m.availability.status == "unavailable" for m in models], dtype=np.bool_)
        self.id_rank = np.argsort(np.argsort(np.array(self.ids, dtype=np.str_)))  # alphabetical rank
        self.id_ranks: list[int] = self.id_rank.tolist()

        ttft_s = [m.ttft_s or DEFAULT_TTFT_S for m in models]
        speed = [m.tokens_per_s or DEFAULT_TOKENS_PER_S for m in models]
        self.ttft_ms: list[int] = [round(s * 1000) for s in ttft_s]
        self.us_per_token: list[int] = [round(1e6 / s) for s in speed]
        # Silent reasoning shows as a long wait for the first token; its tokens are billed.
        self.silent: list[int] = [
            round(max(0.0, t - DEFAULT_TTFT_S) * s) if m.reasoning else 0
            for m, t, s in zip(models, ttft_s, speed, strict=True)
        ]
        self.usual_output: list[int] = [  # expected output tokens without a requested effort
            min(ANSWER_TOKENS + (max(THINKING_TOKENS, silent) if m.reasoning else 0), most, window // 2)
            for m, silent, most, window in zip(models, self.silent, self.max_output, self.window, strict=True)
        ]
        self.tools_or_reasoning = frozenset(
            row
            for row, m in enumerate(models)
            if m.reasoning and abilities[row] & (BITS.TOOLS | BITS.REASONING_TOOLS) == BITS.TOOLS
        )
        """Rows that cannot combine tools and reasoning."""
        self.prices: list[Prices] = [self._prices(row, model) for row, model in enumerate(models)]
        self.held: list[Prices] = [*map(self._two_days, range(len(models)))]
        """The prices a budget must cover: of this day and the next."""
        self._worsts = [*map(_worst, self.held)]
        self._tabulate()
        self._think()

    def __len__(self) -> int:
        return len(self.models)

    def with_dials(self, dials: RequestOptions) -> Pool:
        """The pool for requests with these dials, derived from the plain one. Unchanged columns are shared."""
        pool = Pool.__new__(Pool)
        pool.__dict__.update(self.__dict__, dials=dials)
        if dials.tier or dials.marks or dials.hour or dials.audio:
            pool.prices = self.prices.copy()
            pool.held = self.held.copy()
            pool._worsts = self._worsts.copy()
            for row, model in enumerate(self.models):
                usual = held = pool.held[row]
                if pool._has_tier(row):
                    pool.prices[row] = pool._prices(row, model)
                    held = pool._two_days(row)
                    held += usual if held else ()
                held = pool.dials.held(model.pricing_per_1m, held)
                if held != usual:
                    pool.held[row] = held
                    pool._worsts[row] = _worst(held)
            pool._tabulate()
        if dials.effort is not None or dials.thinking_tokens is not None or dials.tools:
            pool._think()
        return pool

    def _tabulate(self) -> None:
        self.base = Columns.of(  # prices of short inputs
            [self.expected(row, prices[-1]) if prices else _UNPRICED for row, prices in enumerate(self.prices)]
        )
        self.flat_dearest = [worst[0] if len(worst) == 1 else None for worst in self._worsts]
        """The highest token price; None if it depends on the input's length."""
        self.worst = Columns.of([_UNPRICED if worst[0] is _UNKNOWN else worst[-1] for worst in self._worsts])
        """The highest token prices for short inputs: uncached input is not always the most expensive."""
        tiered = [row for row, worst in enumerate(self._worsts) if len(worst) > 1]
        self.tiered = np.array(tiered, dtype=np.int64)  # rows whose price depends on the input's length, shape (k,)
        self.first_tier = np.array([self._worsts[row][-2].above for row in tiered], dtype=np.int64)
        """The input tokens above which their price changes. Shape (k,)."""
        self.priced = np.array([*map(bool, self.held)], dtype=np.bool_)
        self.top: tuple[int, int] | None = None
        """The highest input and output token prices of all models; None if a model has no price."""
        if self.priced.all():
            dearest = [worst[0] for worst in self._worsts] or [_UNPRICED]
            self.top = max(price.input for price in dearest), max(price.output for price in dearest)

    def _think(self) -> None:
        """Compute expected output and delays for the requested effort. With tools, models that cannot combine tools and
        reasoning do not reason."""
        dials = self.dials
        self.quiet: frozenset[int] = self.tools_or_reasoning if dials.tools else frozenset()
        """Rows sent a request not to reason, without the caller asking for it."""
        self.output: list[int] = self.usual_output
        self.delay_ms: list[int] = [0] * len(self)
        """Delay of the first token caused by this effort; may be negative."""
        if dials.effort is not None or dials.thinking_tokens is not None or self.quiet:
            self.output = self.output.copy()
            self.silent = self.silent.copy()
            self.ttft_ms = self.ttft_ms.copy()
            for row, model in enumerate(self.models):
                if model.reasoning:
                    silent = self.silent[row]
                    usual = max(THINKING_TOKENS, silent)
                    thought = 0 if row in self.quiet else dials.thought(usual)
                    self.silent[row] = silent * thought // usual
                    self.delay_ms[row] = (self.silent[row] - silent) * self.us_per_token[row] // 1000
                    self.ttft_ms[row] += self.delay_ms[row]
                    self.output[row] = min(ANSWER_TOKENS + thought, self.max_output[row], self.window[row] // 2)
        brief = 0 if dials.effort in (None, "none") else BITS.REASONING_BRIEF
        if dials.thinking_tokens is not None:
            brief = BITS.REASONING_TOKENS_BRIEF
        self.least_p90 = [LEAST_P90 if able & brief == brief else BRIEF_TOKENS + 1 for able in self._ables]
        """The least output a budget must cover: some models refuse a smaller cap while they reason."""
        self.output_p90: list[int] = [  # prior of the output tokens a budget must cover
            p90_of(*figures) for figures in zip(self.output, self.max_output, self.least_p90, strict=True)
        ]

    def holds(self, day: str) -> bool:
        """True if the pool's prices apply on a day."""
        return not self.dated or day == self.as_of

    def prices_on(self, row: int, day: str | None) -> Prices:
        """A model's prices on a day; None for the pool's own day."""
        if day is None or self.holds(day):
            return self.prices[row]
        return self._prices(row, _priced_on(self.snapshot.models[row], day))

    def _prices(self, row: int, model: Model) -> Prices:
        """Prices in the dials' tier. A vendor without tiers ignores it; a tier without a listed price is unpriced."""
        return tier_prices(model.provider, model.pricing_per_1m, self.dials.tier if self._has_tier(row) else "")

    def _has_tier(self, row: int) -> bool:
        return bool(self._ables[row] & TIER_BITS.get(self.dials.tier, 0))

    def prices_served(self, row: int, tier: str, day: str) -> Prices:
        """A model's prices on a day, in the tier the vendor reports having used."""
        model = _priced_on(self.snapshot.models[row], day)
        return tier_prices(model.provider, model.pricing_per_1m, tier) or self.prices_on(row, day)

    def dearest(self, row: int, input_tokens: int) -> Price:
        """The highest token prices for such an input, today or tomorrow; above every budget if unpriced."""
        return self.flat_dearest[row] or price_at(self._worsts[row], input_tokens)

    def _two_days(self, row: int) -> Prices:
        """The prices of this day and the next; empty if unpriced."""
        if not (self.snapshot.models[row].price_changes and self.prices[row]):
            return self.prices[row]
        return self.prices[row] + self.prices_on(row, (date.fromisoformat(self.as_of) + timedelta(days=1)).isoformat())

    def expected(self, row: int, price: Price) -> Price:
        """The expected prices: a marked prompt is first written to the vendor's cache."""
        marked = self.dials.marks and self._ables[row] & BITS.CACHE_CONTROL
        return price._replace(input=price.written) if marked and price.written > price.input else price

    def picos(self, prices: Columns, input_tokens: IntArray | int, output_tokens: IntArray) -> IntArray:
        """Cost of a call in pico-dollars, shape (n,); 0 where unpriced."""
        picos = prices.input * np.minimum(input_tokens, MOST_TOKENS)
        return picos + prices.output * np.minimum(output_tokens, MOST_TOKENS)

    def expected_nanos(self, input_tokens: int, output_tokens: IntArray, at: IntArray | slice) -> IntArray:
        """Cost of a call of one input length for the rows ``at``, rounded up to nano-dollars; 0 where unpriced."""
        prices = self.base
        if rows := self.tiered[input_tokens > self.first_tier].tolist():
            prices = Columns(prices.input.copy(), prices.output.copy())
            for row in rows:
                price = self.expected(row, price_at(self.prices[row], input_tokens))
                prices.input[row] = price.input
                prices.output[row] = price.output
        prices = Columns(prices.input[at], prices.output[at])
        return -(-self.picos(prices, input_tokens, output_tokens) // PICOS_PER_NANO)


def p90_of(mean: int, most: int, least: int) -> int:
    """The assumed 90th percentile of an answer's length for a mean, within ``least`` and the model's ``most``."""
    return min(max(least, mean * P90_PERCENT // 100), most)


def _priced_on(model: Model, day: str) -> Model:
    return replace(model, pricing_per_1m=pricing_on(model, day)) if model.price_changes else model


@lru_cache(1_024)
def _worst(prices: Prices) -> Prices:
    """The highest prices that may apply, by input length, longest first; above every budget if unpriced."""
    above = sorted({price.above for price in prices}, reverse=True)
    return tuple(dearest_at(prices, tokens + 1)._replace(above=tokens) for tokens in above) or (_UNKNOWN,)


def _abilities(model: Model) -> int:
    abilities = _EVERY_FEATURE
    for feature in model.unsupported or ():
        abilities &= ~_FEATURE_BITS[feature]
    if not model.reasoning:  # trivially supports "no reasoning"
        abilities = abilities & ~int(THINKING) | BITS.NO_REASONING
    for modality in model.modalities or ():
        abilities |= _MODALITY_BITS.get(modality, 0)
    if not abilities & (BITS.REASONING_TOOLS | BITS.NO_REASONING):  # always reasons, and no tools while reasoning
        abilities &= ~_MODALITY_BITS["tool"]
    return abilities | int(Need.JSON) if model.structured_output else abilities


_FEATURE_BITS = {feature: int(need) for feature, need in FEATURES.items()}  # flags are slow to combine
_EVERY_FEATURE = sum(_FEATURE_BITS.values())
_MODALITY_BITS = {"image": BITS.IMAGE, "tool": BITS.TOOLS, "audio": BITS.AUDIO, "file": BITS.FILE}
