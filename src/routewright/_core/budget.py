"""What a budget still buys: the output cap of the next call, and what is kept back for a fallback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .constraints import Ask
from .cost import affordable_output
from .money import nanos


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
    affordable, held = _affordable(ask, row, room.nanos, room.tokens), ask.held_output(row)
    if affordable < held:
        raise RoomTooSmall(f"room for {affordable} output tokens, {held} needed")
    return _capped(ask, row, affordable)


def plan_output(ask: Ask, primary: int, chain: Sequence[int]) -> OutputPlan:
    """Cap a primary that fits so that the cheapest fallback stays affordable where the budget allows."""
    if not ask.limited:
        return OutputPlan(ask.output, True)
    if chain:
        affordable = _affordable(ask, primary, *_without_cheapest(ask, chain))
        if affordable >= ask.held_output(primary):
            return OutputPlan(_capped(ask, primary, affordable), True)
    affordable = _affordable(ask, primary, ask.budget_nanos, ask.budget_tokens)
    return OutputPlan(_capped(ask, primary, affordable), not chain)


def _affordable(ask: Ask, row: int, nanos: int | None, tokens: int | None) -> int:
    """Output tokens that a room pays for beside the input; negative if not even that fits."""
    high = ask.high(row)
    affordable = 1 << 53 if tokens is None else tokens - high
    if nanos is None:
        return affordable
    return min(affordable, affordable_output(ask.outlook.pool.dearest(row, high), high, nanos))


def _capped(ask: Ask, row: int, affordable: int) -> int:
    pool = ask.outlook.pool
    wanted = max(ask.default_cap, ask.held_output(row)) if ask.output is None else ask.output
    return max(1, min(affordable, wanted, pool.max_output[row], ask.room(row)))


def _without_cheapest(ask: Ask, chain: Sequence[int]) -> tuple[int | None, int | None]:
    """Nano-dollars and tokens of the budget that are left when one member of the chain is kept affordable."""
    budget_nanos, budget_tokens = ask.budget_nanos, ask.budget_tokens
    if budget_tokens is not None:
        budget_tokens -= min([ask.high(row) + ask.held_output(row) for row in chain])
    if budget_nanos is not None:
        budget_nanos -= nanos(min([ask.worst_picos(row, ask.high(row)) for row in chain]))
    return budget_nanos, budget_tokens
