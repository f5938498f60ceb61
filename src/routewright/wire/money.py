"""Money is kept in nano-dollars, and shown in dollars."""

from __future__ import annotations

NANOS_PER_USD = 1_000_000_000


def in_usd(nanos: int | None) -> float | None:
    """An amount in dollars; of none none."""
    return None if nanos is None else nanos / NANOS_PER_USD
