"""Makes ids from a clock and random numbers; safe across threads and forks."""

from __future__ import annotations

from routewright._core.trace.ids import CHANCE_LENGTH, IdSequence, letters_of
from routewright.fork import Guard, renew_in_children
from routewright.protocols import Clock, Rng

DRAWN = 320
"""Ids per draw of random numbers: a draw from the system releases the GIL, and waits to get it back."""
_SIZE = DRAWN * CHANCE_LENGTH


class Ids:
    """``ids("tr_")`` returns the next trace id. The ids of a process increase, across prefixes."""

    _chance: str
    _at: int

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock = clock
        self._rng = rng
        self._guard = Guard()
        renew_in_children(self)  # a child must not go on with its parent's sequence

    def __call__(self, prefix: str) -> str:
        """Make an id."""
        with self._guard.lock:
            chance, at = self._chance, self._at
            if at == len(chance):
                self._chance = chance = letters_of(self._rng.getrandbits(8 * _SIZE).to_bytes(_SIZE, "big"))
                at = 0
            self._at = end = at + CHANCE_LENGTH
            return self._sequence.next(prefix, int(self._clock.time() * 1000), chance[at:end])

    def renew(self) -> None:
        """Start a new sequence with new random numbers."""
        self._sequence = IdSequence()
        self._chance, self._at = "", 0
