"""Request options that change a model's cost, length or time: effort, service tier, cache marks, audio. Each set of
these dials in use has a pool of its own: effort changes the expected reasoning, tiers and marks change prices."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from routewright._core.catalogue.prices import Prices, hour_price
from routewright._core.money import MOST_TOKENS
from routewright._core.request.read import BITS
from routewright.wire import DecisionInput, Effort, Need, Pricing, Usage

EFFORT_PERCENT: dict[Effort, int] = {"none": 0, "minimal": 10, "low": 35, "medium": 100, "high": 250, "max": 500}
"""Reasoning tokens per effort, in per cent of the model's default."""
WISHES = {  # the request fields of the wishes: features that do not exclude a model without them
    Need.FLEX: "service_tier",
    Need.PRIORITY: "service_tier",
    Need.VERBOSITY: "verbosity",
    Need.CACHE_CONTROL: "cache_control",
}


class RequestOptions(NamedTuple):
    """One set of dials. ``thinking_tokens`` is rounded up to a power of two, to keep the sets few."""

    effort: Effort | None = None
    thinking_tokens: int | None = None
    tier: str = ""
    """``flex`` or ``priority``."""
    marks: bool = False
    """``cache_control`` marks are set."""
    hour: bool = False
    """A mark asks for an hour."""
    audio: bool = False
    tools: bool = False
    """There are tools and no effort: models that cannot combine tools and reasoning do not reason."""

    def thought(self, usual: int) -> int:
        """Expected reasoning tokens of a model whose default is ``usual``."""
        if self.thinking_tokens is not None:
            return min(self.thinking_tokens, max(usual, self.thinking_tokens // 2))
        return usual if self.effort is None else usual * EFFORT_PERCENT[self.effort] // 100

    def as_usual(self, usage: Usage) -> Usage:
        """Estimates the usage the model would have had without a requested effort."""
        percent = 100 if self.effort is None else EFFORT_PERCENT[self.effort]
        thought = usage.reasoning * 100 // percent if percent else 0
        return replace(usage, output=min(usage.output - usage.reasoning + thought, MOST_TOKENS), reasoning=thought)

    def held(self, listed: Pricing | None, prices: Prices) -> Prices:
        """The prices a budget must cover."""
        if self.audio and (listed is None or listed.audio_input_usd is None):
            return ()
        if not (self.hour or self.audio):
            return prices
        held_prices = []
        for price in prices:
            input_picos = price.input if price.audio is None or not self.audio else max(price.input, price.audio)
            written_picos = max(price.written, hour_price(price) if self.hour else 0)
            held_prices.append(price._replace(input=input_picos, written=written_picos))
        return tuple(held_prices)


PLAIN = RequestOptions()


class Requirements(NamedTuple):
    """The requirements of a request beyond text. Part of the key of its class."""

    needs: int = 0
    """Bits of ``Need``."""
    max_output_tokens: int | None = None
    wishes: int = 0
    effort: Effort | None = None
    thinking_tokens: int | None = None
    hour_cache: bool = False

    def ignored_by(self, able: int) -> list[str]:
        """Request fields that a model's vendor does not support and ignores."""
        ignored = self.wishes & ~able
        return [param for need, param in WISHES.items() if ignored & need] if ignored else []


def request_options_of(inputs: DecisionInput | Requirements) -> RequestOptions:
    """The dials of a request."""
    needs = inputs.needs
    wishes = inputs.wishes
    bound = inputs.thinking_tokens
    if not (wishes or inputs.effort or bound or needs & (BITS.AUDIO | BITS.TOOLS)):
        return PLAIN
    return RequestOptions(
        inputs.effort,
        None if bound is None else 1 << max(bound - 1, 0).bit_length(),
        "flex" if wishes & BITS.FLEX else "priority" if wishes & BITS.PRIORITY else "",
        bool(wishes & BITS.CACHE_CONTROL),
        inputs.hour_cache,
        bool(needs & BITS.AUDIO),
        bool(needs & BITS.TOOLS) and inputs.effort is None and bound is None,
    )
