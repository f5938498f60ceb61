"""What one call costs, item by item: what ``Catalogue.bill`` gives."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .money import NANOS_PER_USD

CostPart = Literal["input", "cached", "written", "output", "reasoning"]
"""Kinds of tokens that are priced apart. ``input`` is what was neither read from a cache nor written to it,
``output`` what was not thought before the answer."""


class BillLine(Struct, frozen=True):
    """The tokens of one kind. ``usd`` is not rounded; the sum is."""

    what: CostPart
    tokens: int
    usd_per_1m: float
    usd: float


class Bill(Struct, frozen=True):
    """What one call of a model costs."""

    model: str
    day: str
    """Whose prices hold, ``YYYY-MM-DD``."""
    batch: bool
    above_tokens: int | None
    """The size from which the prices of the input's tier hold; None: those of short inputs do."""
    lines: tuple[BillLine, ...]
    """Kinds of which there were tokens."""
    total_nanos: int
    """Nano-dollars, rounded up once."""

    @property
    def total_usd(self) -> float:
        """The sum in dollars."""
        return self.total_nanos / NANOS_PER_USD
