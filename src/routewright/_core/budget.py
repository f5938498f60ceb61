"""What a budget still buys: the output cap of the next call, and what is kept back for a fallback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .constraints import Ask
from .cost import affordable_output, call_nanos, dearest_at


class RoomTooSmall(Exception):
    """What is left of the budget does not pay for a call."""


class Room(NamedTuple):
    """What is left of a budget. None: no limit."""

    nanos: int | None
    tokens: int | None

    def without(self, nanos: int, tokens: int) -> Room:
        """The room once something was spent or kept back."""
        return Room(
            None if self.nanos is None else self.nanos - nanos,
            None if self.tokens is None else self.tokens - tokens,
        )


class OutputPlan(NamedTuple):
    """Cap for the primary's output, and whether the budget then still pays for a fallback."""

    cap: int | None
    fallback_affordable: bool


def output_cap(ask: Ask, row: int, room: Room) -> int | None:
    """Output tokens to ask a model for at most; None: no cap is sent.

    Raises ``RoomTooSmall`` if the room does not cover the output asked for, or else the 90th percentile expected.
    """
    if room.nanos is None and room.tokens is None:
        return ask.output
    high = ask.high(row)
    affordable = 1 << 53
    if room.tokens is not None:
        affordable = room.tokens - high
    if room.nanos is not None:
        price = dearest_at(ask.outlook.pool.prices[row], high)
        affordable = min(affordable, affordable_output(price, high, room.nanos))
    held = ask.held_output(row)
    if affordable < held:
        raise RoomTooSmall(f"room for {affordable} output tokens, {held} needed")
    wanted = max(ask.default_cap, held) if ask.output is None else ask.output
    pool = ask.outlook.pool
    return max(1, min(affordable, wanted, pool.max_output[row], pool.window[row] - high))


def plan_output(ask: Ask, primary: int, chain: Sequence[int], room: Room) -> OutputPlan:
    """Cap the primary so that the cheapest fallback stays affordable where the budget allows."""
    if not ask.limited or not chain:
        return OutputPlan(output_cap(ask, primary, room), True)
    try:
        return OutputPlan(output_cap(ask, primary, room.without(*_cheapest(ask, chain))), True)
    except RoomTooSmall:
        return OutputPlan(output_cap(ask, primary, room), False)


def _cheapest(ask: Ask, chain: Sequence[int]) -> tuple[int, int]:
    """Nano-dollars and tokens that keep one member of the chain affordable."""
    held = [(row, ask.high(row), ask.held_output(row)) for row in chain]
    tokens = min(high + output for _, high, output in held)
    if ask.budget_nanos is None:
        return 0, tokens
    prices = ask.outlook.pool.prices
    return min(call_nanos(dearest_at(prices[row], high), high, output) for row, high, output in held), tokens
