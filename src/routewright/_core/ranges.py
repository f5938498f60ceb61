"""Which numbers may each field hold? Those of requests, policies and catalogues, from files and structs alike."""

from __future__ import annotations

from sys import float_info
from typing import NamedTuple

import msgspec
from msgspec.structs import fields

from routewright.errors import Problem
from routewright.wire import (
    Budget,
    CacheOpts,
    Fallback,
    Model,
    Params,
    Policy,
    PolicyFallback,
    PolicyWeights,
    PriceTier,
    Pricing,
    RouteRequest,
)

from .money import MOST_TOKENS, MOST_USD_PER_1M
from .problem import EXACT, Problems, shown


class Range(NamedTuple):
    """The numbers that a field takes. ``above``: the lower bound itself is out."""

    low: float
    high: float = float_info.max
    whole: bool = False
    above: bool = False

    def admits(self, value: float) -> bool:
        """Say whether a number is in the range; NaN and infinities never are."""
        if not self.low <= value <= self.high or (self.above and value == self.low):
            return False
        return not self.whole or value % 1 == 0

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.above:
            return f"{kind} above {self.low}" if self.high >= EXACT else f"{kind} above {self.low}, at most {self.high}"
        is_open = self.high >= EXACT and self.low >= 0
        return f"{kind} of at least {self.low}" if is_open else f"{kind} from {self.low} to {self.high}"


COUNT = Range(1, EXACT, whole=True)
_SHARE = Range(0, 1)
LONGEST_TIMEOUT_MS = 3_600_000
_TIMEOUT = Range(1, LONGEST_TIMEOUT_MS, whole=True)
_RETRIES = Range(0, 5, whole=True)
_TOKENS = Range(1, MOST_TOKENS, whole=True)
_USD_PER_1M = Range(0, MOST_USD_PER_1M)

NUMBERS: dict[type[msgspec.Struct], dict[str, Range]] = {
    RouteRequest: {"timeout_ms": _TIMEOUT},
    Fallback: {"max_retries": _RETRIES},
    Budget: {"max_cost_usd": Range(0), "max_tokens": COUNT},
    CacheOpts: {"max_error": _SHARE, "threshold": _SHARE, "ttl_seconds": Range(0, above=True), "explore": _SHARE},
    Params: {
        "temperature": Range(0, 2),
        "top_p": Range(0, 1, above=True),
        "max_output_tokens": COUNT,
        "seed": Range(-EXACT, EXACT, whole=True),
    },
    Policy: {"min_quality": _SHARE, "max_latency_ms": _TIMEOUT, "timeout_ms": _TIMEOUT},
    PolicyWeights: dict.fromkeys(PolicyWeights.__struct_fields__, Range(0, 100, whole=True)),
    PolicyFallback: {"max_retries": _RETRIES},
    Model: {
        "context_window": _TOKENS,
        "max_output_tokens": _TOKENS,
        "quality": _SHARE,
        "ttft_s": Range(0, 3_600, above=True),
        "tokens_per_s": Range(0.001, 1_000_000),
    },
    Pricing: {name: _USD_PER_1M for name in Pricing.__struct_fields__ if name.endswith("_usd")},
    PriceTier: {
        "above_tokens": _TOKENS,
        **{name: _USD_PER_1M for name in PriceTier.__struct_fields__ if name.endswith("_usd")},
    },
}
"""What every number of the interface may be, and of files and structs alike."""

_NUMBERS = {
    kind: tuple((f.name, f.encode_name, ranges[f.name]) for f in fields(kind) if f.name in ranges)
    for kind, ranges in NUMBERS.items()
}


def check_numbers(kind: type[msgspec.Struct], prefix: str, holder: object, found: Problems) -> None:
    """Hold the numbers of a struct of some ``kind`` to their ranges."""
    for name, wire_name, allowed in _NUMBERS[kind]:
        value = getattr(holder, name)
        if value is not None and not allowed.admits(value):
            found.append(Problem(prefix + wire_name, f"must be {allowed}, got {shown(value)}", ""))
