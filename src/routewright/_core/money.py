"""Money as integers: prices in pico-dollars per token, amounts in nano-dollars (contract 7). Dollars only in the
API."""

from __future__ import annotations

from decimal import Context, Decimal

from routewright.wire.money import NANOS_PER_USD

PICOS_PER_NANO = 1_000
_DIGITS = 12  # significant digits of a price; further digits in price lists are float errors
PICOS_PER_USD_1M = 1_000_000  # pico-dollars per token at a price of one dollar per million
MOST_USD_PER_1M = 10_000  # larger prices are mistakes
LEAST_USD_PER_1M = 0.001  # lower prices, except 0, are prices per token
MOST_TOKENS = 100_000_000
"""Larger than any context window, so a limit on the tokens of a call. At the highest price a call costs at most two
million dollars, so 64 bits hold the sum of thousands of calls."""


def budget_nanos(usd: float) -> int:
    """Convert a limit in dollars to nano-dollars, rounded down so that it does not grow."""
    numerator, denominator = _exact(usd)
    return numerator * NANOS_PER_USD // denominator


def price_picos(usd_per_1m: float) -> int:
    """Convert a price per million tokens to pico-dollars per token, rounded up."""
    numerator, denominator = _exact(usd_per_1m)
    return -(-numerator * PICOS_PER_USD_1M // denominator)


def per_million(usd_per_token: float) -> float:
    """Convert a finite price per token to one per million tokens: 1.25e-06 to exactly 1.25."""
    context = Context(prec=_DIGITS, traps=[])  # independent of the application's decimal context
    return float(context.scaleb(context.create_decimal(repr(usd_per_token)), 6))


def nanos(picos: int) -> int:
    """Convert an attempt's pico-dollars to nano-dollars, rounded up. This is its only rounding."""
    return -(-picos // PICOS_PER_NANO)


def usd(amount_nanos: float) -> float:
    """Convert an amount to dollars."""
    return amount_nanos / NANOS_PER_USD


def sayable(amount_nanos: int) -> int:
    """Round up to 15 digits, so that an amount survives a round trip as a float in dollars."""
    step: int = 10 ** max(0, len(str(amount_nanos)) - 15)
    return -(-amount_nanos // step) * step


def _exact(dollars: float) -> tuple[int, int]:
    """A float's shortest decimal spelling as a fraction. ``Decimal`` arithmetic would depend on the caller's
    context."""
    return Decimal(dollars if type(dollars) is int else float.__repr__(float(dollars))).as_integer_ratio()
