"""Makes ids from a clock and a source of chance; safe over threads and forks."""

from __future__ import annotations

from routewright._core.ids import RANDOM_BITS, IdSequence
from routewright.fork import Guard, renew_in_children
from routewright.protocols import Clock, Rng


class Ids:
    """``ids("tr_")`` gives the next trace id. Later ids of a process are greater, whatever their prefix."""

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock = clock
        self._rng = rng
        self._guard = Guard()
        renew_in_children(self)  # a child must not go on with its parent's sequence

    def __call__(self, prefix: str) -> str:
        """Make an id."""
        now = int(self._clock.time() * 1000)
        with self._guard.lock:
            if not self._sequence.at(now):
                self._sequence.begin(now, self._rng.getrandbits(RANDOM_BITS))
            return self._sequence.next(prefix)

    def renew(self) -> None:
        """Begin a new sequence."""
        self._sequence = IdSequence()
