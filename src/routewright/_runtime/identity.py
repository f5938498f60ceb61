"""Makes ids from a clock and random numbers; safe across threads and forks."""

from __future__ import annotations

from routewright.protocols import Clock, Rng
from routewright.wire.ids import ALPHABET, LENGTH, TIME_LENGTH

from .fork import Guard, renew_in_children

CHANCE_LENGTH = LENGTH - TIME_LENGTH - 2  # random letters: 70 bits
DRAWN = 320
"""Ids per draw of random numbers: a draw from the system releases the GIL, and waits to get it back."""
_SIZE = DRAWN * CHANCE_LENGTH
_PAIRS = [first + second for first in ALPHABET for second in ALPHABET]
_LETTERS = ALPHABET.encode() * 8


def letters_of(chance: bytes) -> str:
    """Encode each random byte as a letter."""
    return chance.translate(_LETTERS).decode()


class Ids:
    """``ids("tr_")`` returns the next trace id: milliseconds, a counter, random letters.

    The ids of a process increase, across prefixes. If the clock steps back, the last time is used until it catches up.
    After 1,024 ids in a millisecond the next millisecond is used."""

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock = clock
        self._rng = rng
        self._guard = Guard()
        self._milliseconds = -1
        self._within = self._at = 0
        self._high = self._lead = ""
        self._chance = ""
        renew_in_children(self)  # a child must not go on with its parent's sequence

    def __call__(self, prefix: str) -> str:
        """Make an id."""
        with self._guard.lock:
            chance = self._chance
            at = self._at
            if at == len(chance):
                self._chance = chance = letters_of(self._rng.getrandbits(8 * _SIZE).to_bytes(_SIZE, "big"))
                at = 0
            self._at = end = at + CHANCE_LENGTH
            milliseconds, within = int(self._clock.time() * 1000), 0
            if milliseconds <= self._milliseconds:
                milliseconds, within = self._milliseconds, self._within + 1
                if within == len(_PAIRS):
                    milliseconds, within = milliseconds + 1, 0
            self._within = within
            if milliseconds != self._milliseconds:
                if milliseconds >> 20 != self._milliseconds >> 20:
                    self._high = "".join([_PAIRS[milliseconds >> bits & 1023] for bits in (40, 30, 20)])
                self._milliseconds = milliseconds
                self._lead = f"{self._high}{_PAIRS[milliseconds >> 10 & 1023]}{_PAIRS[milliseconds & 1023]}"
            return f"{prefix}{self._lead}{_PAIRS[within]}{chance[at:end]}"

    def renew(self) -> None:
        """Start a new sequence with new random numbers."""
        self._milliseconds = -1
        self._chance = ""
        self._at = 0
