"""Chooses the next model of a plan (contract 4): the chain, models with open circuits, and probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from routewright._core.routing.plan import Leg
from routewright.wire import TokenBounds

from .breaker import Circuits


class Traffic(Protocol):
    """State shared by all requests: circuits and the retry budget."""

    @property
    def circuits(self) -> Circuits:
        """Only rows in ``circuits.tripped`` need ``admits``."""

    def admits(self, row: int, now: float) -> bool | None:
        """True if a model may be called now; None if it may be, as the only probe."""

    @property
    def is_whole(self) -> Sequence[bool]:
        """Per row, True if the model sends whole answers even when streamed."""

    def due(self, row: int) -> float:
        """The time from which a model with an open circuit may be called again."""

    def spares(self, now: float) -> bool:
        """True if the retry budget allows one more retry or hedge, which is then taken out."""


class Chain(Struct, eq=False):
    """The models of a plan, in order, and the one that is tried at present."""

    legs: Sequence[Leg]
    place: int = 0
    failed_places: frozenset[int] = frozenset()
    """Places of attempts that failed while another ran on; they are not tried again."""
    is_forced: bool = False
    """A model with an open circuit was called because there was no other."""

    @property
    def leg(self) -> Leg | None:
        """The present model; None at the end of the chain."""
        return self.legs[self.place] if self.place < len(self.legs) else None

    def is_last(self, place: int) -> bool:
        """True if no model comes after this place."""
        return place + 1 >= len(self.legs)

    def move_on(self, overflow: TokenBounds | None = None) -> None:
        """Step to the next model. ``overflow``: the prompt was too long for the present one, so models whose declared
        window is certainly too small are skipped; the fault does not say how many tokens were too many."""
        self.place += 1
        while overflow is not None and (leg := self.leg) is not None:
            if leg.declared_window is None or leg.length(overflow)[0] <= leg.declared_window:
                break
            self.place += 1

    def force(self, closed: Sequence[int], traffic: Traffic) -> bool:
        """Return to the model whose circuit lets a probe pass soonest, once, if only open circuits are in the way.
        ``closed``: their places."""
        if not closed or self.is_forced:
            return False
        self.is_forced = True
        self.place = min(closed, key=lambda place: traffic.due(self.legs[place].row))
        return True
