"""Money as integers: prices in pico-dollars a token, amounts in nano-dollars (contract 7). Dollars only at the door."""

from __future__ import annotations

from decimal import Context, Decimal

from routewright.wire.analytics import NANOS_PER_USD as NANOS_PER_USD

PICOS_PER_NANO = 1_000
_DIGITS = 12  # of a price; what others' lists write beyond them is the dust of float arithmetic
PICOS_PER_USD_1M = 1_000_000  # of a token, where a million of them costs a dollar
MOST_USD_PER_1M = 10_000  # no list price is as large: such a figure is a slip
MOST_TOKENS = 100_000_000
"""No window is as large, so no call has more tokens of a kind. At the dearest price one comes to two million dollars:
within 64 bits, of which thousands of such calls do not run out."""


def budget_nanos(usd: float) -> int:
    """Turn a limit in dollars into nano-dollars, rounded down: a promise never grows by rounding."""
    numerator, denominator = _exact(usd)
    return numerator * NANOS_PER_USD // denominator


def price_picos(usd_per_1m: float) -> int:
    """Turn a list price per million tokens into pico-dollars a token, rounded up."""
    numerator, denominator = _exact(usd_per_1m)
    return -(-numerator * PICOS_PER_USD_1M // denominator)


def per_million(usd_per_token: float) -> float:
    """Turn a price a token into one per million tokens: 1.25e-06 is exactly 1.25. Takes what is finite."""
    context = Context(prec=_DIGITS, traps=[])  # our own: the application's may round otherwise, or trap
    return float(context.scaleb(context.create_decimal(repr(usd_per_token)), 6))


def nanos(picos: int) -> int:
    """Round an attempt's pico-dollars up to nano-dollars; the only rounding an attempt sees."""
    return -(-picos // PICOS_PER_NANO)


def usd(amount_nanos: int) -> float:
    """Show an amount in dollars."""
    return amount_nanos / NANOS_PER_USD


def nanos_of(dollars: float) -> int:
    """Read an amount back that was shown in dollars."""
    return round(dollars * NANOS_PER_USD)


def usd_text(amount_nanos: int) -> str:
    """Write an amount in dollars with every digit it has: ``0.0021``."""
    if amount_nanos < 0:
        return f"-{usd_text(-amount_nanos)}"
    dollars, rest = divmod(amount_nanos, NANOS_PER_USD)
    return f"{dollars}.{rest:09}".rstrip("0").rstrip(".")


def sayable(amount_nanos: int) -> int:
    """Round up to 15 digits, so that the amount is the same when it was written in dollars and read as a float."""
    step: int = 10 ** max(0, len(str(amount_nanos)) - 15)
    return -(-amount_nanos // step) * step


def _exact(dollars: float) -> tuple[int, int]:
    """The decimal fraction a float was written as. ``Decimal`` arithmetic would obey the caller's context."""
    return Decimal(dollars if type(dollars) is int else float.__repr__(float(dollars))).as_integer_ratio()
