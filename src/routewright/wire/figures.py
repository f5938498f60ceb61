"""Money, times and counts for people. Nothing is billed by these: ledgers count whole nano-dollars."""

from __future__ import annotations

from decimal import Decimal

from .response import Tokens

NANOS_PER_USD = 1_000_000_000


def in_usd(nanos: int | None) -> float | None:
    """An amount in dollars; of none none."""
    return None if nanos is None else nanos / NANOS_PER_USD


def usd_short(dollars: float) -> str:
    """Write dollars for sentences: cents from a dollar up, else two significant digits."""
    if dollars >= 1:
        return f"${dollars:,.2f}"
    return f"${dollars:.2g}" if dollars >= 0.0001 or not dollars else f"${Decimal(f'{dollars:.2g}'):f}"


def usd_between(dollars: float, between: tuple[float, float] | None) -> str:
    """Write what something cost; where that was estimated, also what it can have cost."""
    if between is None:
        return usd_short(dollars)
    low, high = map(usd_short, between)
    return f"{usd_short(dollars)} ({low} to {high})"


def time_short(ms: float) -> str:
    """Write a time: milliseconds below a second, else seconds."""
    if ms >= 999.5:
        return f"{ms / 1000:,.1f} s"
    return f"{ms:.0f} ms" if ms >= 9.95 or not ms else f"{ms:.1f} ms"


def counted(count: int, one: str) -> str:
    """Write how many: ``1 span``, ``1,200 spans``."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def tokens_short(tokens: Tokens) -> str:
    """Write what a call used: ``10 tokens in (4 cached), 23 out``."""
    cached = f" ({tokens.cached:,} cached)" if tokens.cached else ""
    return f"{counted(tokens.input, 'token')} in{cached}, {tokens.output:,} out"
