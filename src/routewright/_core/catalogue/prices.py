"""Prices of models, and the rules of vendors' prompt caches."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, get_args

from routewright._core.money import MOST_USD_PER_1M, PICOS_PER_NANO, PICOS_PER_USD_1M, nanos, price_picos
from routewright.wire import CostPart, Model, Pricing, Usage


class Price(NamedTuple):
    """Pico-dollars per token, for inputs longer than ``above``."""

    above: int
    input: int
    output: int
    cached: int
    """Input read from the vendor's cache."""
    written: int
    """Input written to the cache, which some vendors charge for even without a request."""
    reasoning: int
    """Output spent on reasoning before the answer."""
    audio: int | None = None
    """Audio input. None: same as ``input``."""
    written_hour: int | None = None
    """Input cached for an hour. None: see ``hour_price``."""


_DEAREST = MOST_USD_PER_1M * PICOS_PER_USD_1M
_FLEX_AS_BATCHES = ("openai", "azure", "google")
"""Providers whose flex tier has batch prices, by their price lists."""
_FLEX_AS_EVER = ("groq",)  # providers whose flex tier has standard prices
COST_PARTS: tuple[CostPart, ...] = get_args(CostPart)

Prices = tuple[Price, ...]  # of a model, longest inputs first; empty if unknown


def pricing_on(model: Model, day: str) -> Pricing | None:
    """The list prices on a day (``YYYY-MM-DD``), after all price changes begun by then."""
    begun = [change.pricing_per_1m for change in model.price_changes or () if change.starts <= day]
    return begun[-1] if begun else model.pricing_per_1m


@lru_cache(4_096)  # a Router asks four times a model
def prices_of(pricing: Pricing | None) -> Prices:
    """Turn list prices into prices per token."""
    if pricing is None:
        return ()
    full = price_picos(pricing.input_usd)
    output = price_picos(pricing.output_usd)
    base = Price(
        -1,
        full,
        output,
        _or(pricing.cached_input_usd, full),
        _or(pricing.cache_write_usd, full),
        _or(pricing.reasoning_usd, output),
        None if pricing.audio_input_usd is None else price_picos(pricing.audio_input_usd),
        None if pricing.cache_write_hour_usd is None else price_picos(pricing.cache_write_hour_usd),
    )
    tiers: list[Price] = []
    for tier in pricing.tiers:  # prices missing from a tier scale with its listed ones
        picos = {"input": price_picos(tier.input_usd), "output": price_picos(tier.output_usd)}
        price = _in_proportion(base, base, picos["input"], picos["output"])
        picos["cached"] = _or(tier.cached_input_usd, price.cached)
        picos["written"] = _or(tier.cache_write_usd, price.written)
        tiers.append(price._replace(above=tier.above_tokens, **picos))
    return (*sorted(tiers, reverse=True), base)


def batch_prices_of(pricing: Pricing | None) -> Prices:
    """Batch prices. Unlisted ones scale with the standard prices; empty if none is listed."""
    if pricing is None or pricing.batch_input_usd is None or pricing.batch_output_usd is None:
        return ()
    return _scaled_prices(pricing, pricing.batch_input_usd, pricing.batch_output_usd)


def _scaled_prices(pricing: Pricing, input_usd: float, output_usd: float) -> Prices:
    """The standard prices, scaled so that a short input and an output cost this much per million tokens."""
    prices = prices_of(pricing)
    full = price_picos(input_usd)
    output = price_picos(output_usd)
    return tuple([_in_proportion(price, prices[-1], full, output) for price in prices])


def tier_prices(provider: str, pricing: Pricing | None, tier: str) -> Prices:
    """The prices of a service tier; empty if unknown. Unlisted ones scale with the standard prices."""
    if pricing is None or tier in ("", "default") or (tier == "flex" and provider in _FLEX_AS_EVER):
        return prices_of(pricing)
    for service in pricing.service_tiers:
        if service.tier == tier:
            prices = _scaled_prices(pricing, service.input_usd, service.output_usd)
            for field, usd in (("cached", service.cached_input_usd), ("written", service.cache_write_usd)):
                if usd is not None:
                    full = prices[-1].input
                    picos = price_picos(usd)
                    prices = tuple([price._replace(**{field: _scaled(picos, price.input, full)}) for price in prices])
            return prices
    return batch_prices_of(pricing) if tier == "flex" and provider in _FLEX_AS_BATCHES else ()


def _in_proportion(price: Price, base: Price, full: int, output: int) -> Price:
    """The price scaled so that input at ``base`` costs ``full``, and output ``output``."""
    return Price(
        price.above,
        _scaled(price.input, full, base.input),
        _scaled(price.output, output, base.output),
        _scaled(price.cached, full, base.input),
        _scaled(price.written, full, base.input),
        _scaled(price.reasoning, output, base.output),
        None if price.audio is None else _scaled(price.audio, full, base.input),
        None if price.written_hour is None else _scaled(price.written_hour, full, base.input),
    )


def _or(usd_per_1m: float | None, picos: int) -> int:
    return picos if usd_per_1m is None else price_picos(usd_per_1m)


def _scaled(picos: int, part: int, whole: int) -> int:
    """The price times ``part / whole``, rounded up, at most the highest allowed; unchanged if ``whole`` is 0."""
    return min(-(-picos * part // whole), _DEAREST) if whole else picos


def price_at(prices: Prices, input_tokens: int) -> Price:
    """The price for an input of this length."""
    if len(prices) == 1:
        return prices[0]
    return next(price for price in prices if input_tokens > price.above)


def dearest_at(prices: Prices, input_tokens: int) -> Price:
    """The highest prices for inputs up to this length. Considers all tiers, and cached and uncached tokens, since none
    is always the most expensive. ``prices`` may cover several days."""
    reached = [price for price in prices if input_tokens > price.above]
    input_picos = max(max(price.input, price.cached, price.written) for price in reached)
    output_picos = max(max(price.output, price.reasoning) for price in reached)
    return Price(-1, input_picos, output_picos, input_picos, input_picos, output_picos)


def cheapest_within(prices: Prices, low: int, high: int) -> Price:
    """The lowest prices for an input between two lengths."""
    least = price_at(prices, low).above
    reached = [price for price in prices if least <= price.above < high]
    input_picos = min(min(price.input, price.cached, price.written) for price in reached)
    output_picos = min(min(price.output, price.reasoning) for price in reached)
    return Price(-1, input_picos, output_picos, input_picos, input_picos, output_picos)


def call_nanos(price: Price, input_tokens: int, output_tokens: int) -> int:
    """Cost of a call without cached input, rounded up to nano-dollars."""
    return nanos(input_tokens * price.input + output_tokens * price.output)


def hour_price(price: Price) -> int:
    """The price of a token cached for an hour; if unlisted, 1.6 times the five-minute price."""
    if price.written_hour is not None:
        return price.written_hour
    return -(-price.written * 8 // 5) if price.written > price.input else price.written


def charges(price: Price, usage: Usage) -> tuple[tuple[int, int], ...]:
    """Tokens and pico-dollars per token of each part of a usage, in the order of ``COST_PARTS``."""
    return (
        (usage.input - usage.cached - usage.written - usage.audio, price.input),
        (usage.cached, price.cached),
        (usage.written - usage.written_hour, price.written),
        (usage.written_hour, hour_price(price)),
        (usage.audio, price.input if price.audio is None else price.audio),
        (usage.output - usage.reasoning, price.output),
        (usage.reasoning, price.reasoning),
    )


def usage_nanos(prices: Prices, usage: Usage) -> int:
    """Cost of an attempt, rounded up once; 0 if no price is known."""
    if not prices:
        return 0
    price = prices[0] if len(prices) == 1 else price_at(prices, usage.input)
    if not (usage.cached or usage.written or usage.reasoning or usage.audio):  # fast path
        picos = usage.input * price.input + usage.output * price.output
    else:
        picos = sum([tokens * token_picos for tokens, token_picos in charges(price, usage)])
    return -(-picos // PICOS_PER_NANO)


def saved_nanos(prices: Prices, usage: Usage) -> int:
    """The saving of input read from the vendor's cache over other input, rounded down."""
    if not prices:
        return 0
    price = price_at(prices, usage.input)
    return max(0, usage.cached * (price.input - price.cached)) // PICOS_PER_NANO


def range_nanos(prices: Prices, inputs: tuple[int, int], outputs: tuple[int, int]) -> tuple[int, int]:
    """The least and most a call can cost, from bounds on its tokens. Rounded outwards."""
    if len(prices) == 1:  # saves the frames of every call whose usage is estimated
        (one,) = prices
        picos = inputs[0] * min(one.input, one.cached, one.written) + outputs[0] * min(one.output, one.reasoning)
        most = inputs[1] * max(one.input, one.cached, one.written) + outputs[1] * max(one.output, one.reasoning)
        return picos // PICOS_PER_NANO, -(-most // PICOS_PER_NANO)
    low = cheapest_within(prices, *inputs)
    least = (inputs[0] * low.input + outputs[0] * low.output) // PICOS_PER_NANO
    return least, call_nanos(dearest_at(prices, inputs[1]), inputs[1], outputs[1])


def adds_up(usage: Usage) -> bool:
    """True if no part of a usage is negative or exceeds the whole."""
    fresh = usage.input - usage.cached - usage.written - usage.audio
    brief = usage.written - usage.written_hour
    answer = usage.output - usage.reasoning
    return min(usage.cached, usage.written_hour, brief, usage.audio, usage.reasoning, fresh, answer) >= 0


def affordable_output(price: Price, input_tokens: int, room_nanos: int) -> int:
    """Output tokens the room pays for after the input; negative if it does not cover the input."""
    room_picos = room_nanos * PICOS_PER_NANO - input_tokens * price.input
    if room_picos < 0:
        return -1
    return room_picos // price.output if price.output else 1 << 53


class PromptCache(NamedTuple):
    """A vendor's rules for caching prompt prefixes of a model."""

    lifetime_s: float = 300.0
    """Since the last use."""
    minimum: int = 1_024
    """The shortest cached prefix, in tokens."""
    by_marks: bool = False
    """Only requests with ``cache_control`` marks write and read the cache; otherwise it is automatic."""


HOUR_S = 3_600.0
_AUTOMATIC = PromptCache()
_CLAUDE = PromptCache(by_marks=True)
_OPENAI = ((r"gpt-(5\.[6-9]|[6-9]|1\d)(?!\d)", PromptCache(1_800.0)), ("", _AUTOMATIC))
_TABLE: dict[str, tuple[tuple[str, PromptCache | None], ...]] = {
    # developers.openai.com/api/docs/guides/prompt-caching: "5 to 10 minutes of inactivity", "the ttl defaults to 30m"
    "openai": _OPENAI,
    "azure": _OPENAI,
    # platform.claude.com/docs/en/build-with-claude/prompt-caching
    "anthropic": ((r"haiku-4-5|opus-4-[567]", _CLAUDE._replace(minimum=4_096)), ("", _CLAUDE)),
    # openrouter.ai/docs/features/prompt-caching
    "openrouter": ((r"anthropic/", _CLAUDE), ("", _AUTOMATIC)),
    # ai.google.dev/gemini-api/docs/caching: "implicit caching is enabled by default", with no lifetime
    "google": ((r"gemini-2\.5", PromptCache(minimum=2_048)), ("", PromptCache(minimum=4_096))),
    # api-docs.deepseek.com/guides/kv_cache: "cleared, usually within a few hours to a few days"
    "deepseek": (("", PromptCache(2 * HOUR_S)),),
    # console.groq.com/docs/prompt-caching: "expires after 2 hours without use"
    "groq": (("", PromptCache(2 * HOUR_S)),),
    # docs.mistral.ai/studio-api/conversations/advanced/prompt-caching: needs a ``prompt_cache_key``, which is not sent
    "mistral": (("", None),),
}
"""By provider, then by a pattern of the model's id. Other providers are assumed to cache automatically."""


@lru_cache(1_024)
def prompt_cache_of(provider: str, model: str) -> PromptCache | None:
    """The prompt cache of a model, by its id; None if nothing is cached. Does not check for a cache price."""
    return next(cache for name, cache in _TABLE.get(provider, (("", _AUTOMATIC),)) if re.search(name, model))
