"""How figures are written: money, tokens, shares."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from routewright._core.money import nanos_of, usd_text
from routewright.wire import ModelSpan, Tokens, TraceItem
from routewright.wire.figures import usd_short

LIST_PRICE = " (list price; the sandbox bills nobody)"
USUAL_TIME = " (the model's usual; the sandbox does not wait)"


def dollars(usd: float) -> str:
    """Every digit down to the nano-dollar in which money is counted."""
    return f"${usd_text(nanos_of(usd))}"


def exact(nanos: int | None) -> str:
    """The same of nano-dollars, which may be fewer than none; of None nothing."""
    if nanos is None:
        return ""
    return f"-${usd_text(-nanos)}" if nanos < 0 else f"${usd_text(nanos)}"


def about(usd: float) -> str:
    """Dollars and cents; below a dollar two digits that say something, and cents at least."""
    text = usd_short(usd)
    return f"{text}0" if text[-2:-1] == "." else text


def cost(billed: TraceItem | ModelSpan) -> str:
    """What it cost; where that was estimated, also what it can have cost."""
    if billed.cost_range_usd is None:
        return dollars(billed.cost_usd)
    low, high = map(dollars, billed.cost_range_usd)
    return f"{dollars(billed.cost_usd)} ({low} to {high})"


def tokens(used: Tokens) -> str:
    """How many came in and went out."""
    cached = f" ({used.cached:,} cached)" if used.cached else ""
    return f"{used.input:,} in{cached}, {used.output:,} out"


def percent(share: float) -> str:
    """A share in per cent, with one decimal; what is not nothing is not shown as nothing."""
    if share <= 0 or share >= 1:
        return f"{share:.0%}"
    return f"{min(max(share, 0.001), 0.999):.1%}"


def aligned(values: Sequence[float | None]) -> list[str]:
    """Numbers of a column with as many decimals as the smallest needs for two digits, two at least."""
    smallest = min((value for value in values if value), default=1.0)
    decimals = max(2, 1 - floor(log10(smallest)))
    return ["unknown" if value is None else f"{value:.{decimals}f}" for value in values]
