"""What a call costs: prices a model, costs an attempt, and how much output a remaining budget buys."""

from __future__ import annotations

from typing import NamedTuple

from routewright.wire import Model, Usage

from .money import nanos, price_picos


class Price(NamedTuple):
    """Pico-dollars a token that hold for inputs longer than ``above``."""

    above: int
    input: int
    output: int
    cached: int
    """Input read from the vendor's cache."""
    written: int
    """Input written to it, which some vendors charge for unasked."""


def prices_of(model: Model) -> tuple[Price, ...]:
    """List a model's prices, the one for the longest inputs first; empty where no price is known."""
    listed = model.pricing_per_1m
    if listed is None:
        return ()

    base_picos = price_picos(listed.input_usd)
    written_picos = base_picos if listed.cache_write_usd is None else price_picos(listed.cache_write_usd)

    def price(above: int, input_usd: float, output_usd: float, cached_usd: float | None) -> Price:
        full = price_picos(input_usd)
        written = -(-written_picos * full // base_picos) if base_picos else written_picos  # tiers in proportion
        cached = full if cached_usd is None else price_picos(cached_usd)
        return Price(above, full, price_picos(output_usd), cached, written)

    tiers = [price(t.above_tokens, t.input_usd, t.output_usd, t.cached_input_usd) for t in listed.tiers]
    base = price(-1, listed.input_usd, listed.output_usd, listed.cached_input_usd)
    return (*sorted(tiers, reverse=True), base)


def price_at(prices: tuple[Price, ...], input_tokens: int) -> Price:
    """Pick the price that holds for an input of this length."""
    if len(prices) == 1:
        return prices[0]
    return next(price for price in prices if input_tokens > price.above)


def dearest_at(prices: tuple[Price, ...], input_tokens: int) -> Price:
    """The worst that inputs up to this length can cost: a longer tier is not always the dearer one, nor is a fresh
    token always dearer than one that is read from a cache or written to it."""
    reached = [price for price in prices if input_tokens > price.above]
    most = max(max(price.input, price.cached, price.written) for price in reached)
    return Price(-1, most, max(price.output for price in reached), most, most)


def call_nanos(price: Price, input_tokens: int, output_tokens: int) -> int:
    """Cost of a call without cached input, rounded up to a nano-dollar."""
    return nanos(input_tokens * price.input + output_tokens * price.output)


def usage_nanos(prices: tuple[Price, ...], usage: Usage) -> int:
    """Cost of an attempt from its usage; one rounding up. 0 where no price is known."""
    if not prices:
        return 0
    price = price_at(prices, usage.input)
    fresh = usage.input - usage.cached
    return nanos(fresh * price.input + usage.cached * price.cached + usage.output * price.output)


def affordable_output(price: Price, input_tokens: int, room_nanos: int) -> int:
    """How many output tokens a room of nano-dollars buys beside the input; negative if not even the input fits."""
    room_picos = room_nanos * 1_000 - input_tokens * price.input
    if room_picos < 0:
        return -1
    return room_picos // price.output if price.output else 1 << 53
