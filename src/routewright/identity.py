"""Makes ids from a clock and a source of chance; safe over threads and forks."""

from __future__ import annotations

from routewright._core.trace.ids import RANDOM_BITS, IdSequence
from routewright.fork import Guard, renew_in_children
from routewright.protocols import Clock, Rng

DRAWN = 64
"""New milliseconds for which chance is drawn at once: asking the system for it lets other threads have Python's lock,
and waits to get it back."""
_MASK = (1 << RANDOM_BITS) - 1


class Ids:
    """``ids("tr_")`` gives the next trace id. Later ids of a process are greater, whatever their prefix."""

    _chance: int
    _left: int

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock = clock
        self._rng = rng
        self._guard = Guard()
        renew_in_children(self)  # a child must not go on with its parent's sequence

    def __call__(self, prefix: str) -> str:
        """Make an id."""
        now, chance = int(self._clock.time() * 1000), 0
        with self._guard.lock:
            if now > self._sequence.milliseconds:
                if not self._left:
                    self._chance, self._left = self._rng.getrandbits(RANDOM_BITS * DRAWN), DRAWN
                chance = self._chance & _MASK
                self._chance >>= RANDOM_BITS
                self._left -= 1
            return self._sequence.next(prefix, now, chance)

    def renew(self) -> None:
        """Begin a new sequence, with chance that nobody else has."""
        self._sequence = IdSequence()
        self._chance = self._left = 0
