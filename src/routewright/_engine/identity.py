"""Makes ids from a clock and a source of chance; safe over threads and forks."""

from __future__ import annotations

import os
import threading

from routewright._core.ids import RANDOM_BITS, IdSequence
from routewright.protocols import Clock, Rng


class Ids:
    """``ids("tr_")`` gives the next trace id. Later ids of a process are greater, whatever their prefix."""

    def __init__(self, clock: Clock, rng: Rng) -> None:
        self._clock = clock
        self._rng = rng
        self._start()

    def __call__(self, prefix: str) -> str:
        """Make an id."""
        if os.getpid() != self._pid:
            self._start()  # a fork would go on with its parent's sequence
        now = int(self._clock.time() * 1000)
        with self._lock:
            if not self._sequence.at(now):
                self._sequence.begin(now, self._rng.getrandbits(RANDOM_BITS))
            return self._sequence.next(prefix)

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sequence = IdSequence()
