"""Dollars of the API and nano-dollars inside, and amounts for people."""

from __future__ import annotations

from decimal import Decimal

NANOS_PER_USD = 1_000_000_000


def in_usd(nanos: int | None) -> float | None:
    """Convert nano-dollars to dollars. None stays None."""
    return None if nanos is None else nanos / NANOS_PER_USD


def nanos_of(dollars: float) -> int:
    """Convert dollars to nano-dollars, rounded to nearest."""
    return round(dollars * NANOS_PER_USD)


def usd_text(amount_nanos: int) -> str:
    """Format an amount in dollars with all digits: ``0.0021``."""
    if amount_nanos < 0:
        return f"-{usd_text(-amount_nanos)}"
    dollars, rest = divmod(amount_nanos, NANOS_PER_USD)
    return f"{dollars}.{rest:09}".rstrip("0").rstrip(".")


def usd_short(dollars: float) -> str:
    """Format dollars: cents from one dollar up, else two significant digits."""
    if dollars >= 1:
        return f"${dollars:,.2f}"
    return f"${dollars:.2g}" if dollars >= 0.0001 or not dollars else f"${Decimal(f'{dollars:.2g}'):f}"
