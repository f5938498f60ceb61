"""How does a call come by its money? The machine that the engine obeys: it says what to do, and is told what came.

              ┌──────────────────────── looked ────────────────────────┐
              v                                                        │
    Queue -> Look    Choose ── short ──> Look, or Refuse where that is as new as can be
              ^       │
              │       ├─ full, others only hold it ──> Queue for that purse, or Wait as the first there
              │       └─ full, it is spent ──> Choose anew, within what was just heard
              └── first in the queue, or waited

A call queues behind those alone who wait for a purse that it needs, too, so that none that is short keeps others out.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from routewright.wire import Purse, Standing


class Choose(NamedTuple):
    """Decide within what is left there, and set aside what that can cost."""

    within: Purse


class Free(NamedTuple):
    """Decide: nothing limits what it may cost."""


class Look(NamedTuple):
    """Ask how the payer stands by now."""


class Queue(NamedTuple):
    """Leave the queue it is in, if any, and wait to be the first in another."""

    purse: Purse


class Wait(NamedTuple):
    """Wait until some of it may have been given back."""

    purse: Purse


class Refuse(NamedTuple):
    """It is spent."""

    purse: Purse


PayStep = Choose | Free | Look | Queue | Wait | Refuse


class Paying:
    """One call on its way to its money."""

    def __init__(self, standing: Standing, waited_for: Purse | None) -> None:
        """``standing``: as it was known, perhaps not quite of late. ``waited_for``: a purse of it that others wait
        for."""
        self._standing = standing
        self._fresh: set[str] = set()
        """Purses that were heard of since the call began."""
        self._queued: str | None = None
        self.next: PayStep = self._choose() if waited_for is None else Queue(waited_for)

    def looked(self, standing: Standing) -> None:
        """The payer stands so by now."""
        self._standing = standing
        self._fresh = {purse.name for purse in standing.purses}
        self.next = self._choose()

    def first(self, purse: Purse) -> None:
        """Nobody is before it in that purse's queue any more."""
        self._queued = purse.name
        self.next = Look()

    def waited(self) -> None:
        """Something may have been given back."""
        self.next = Look()

    def short(self) -> None:
        """No model can be had for what is left."""
        tightest = _tightest(self._standing)
        assert tightest is not None, "what is not limited is not short"
        self.next = Refuse(tightest) if tightest.name in self._fresh else Look()

    def full(self, purse: Purse) -> None:
        """A purse had not enough left for what was chosen."""
        if purse.name in self._fresh and purse in self._standing.purses:  # it says so twice, of the same
            self.next = Refuse(purse)
            return
        others = tuple(each for each in self._standing.purses if each.name != purse.name)
        self._standing = replace(self._standing, purses=(*others, purse))
        self._fresh.add(purse.name)
        self.next = self._choose()

    def held(self, purse: Purse) -> None:
        """A purse had enough left, but others hold it."""
        self.next = Wait(purse) if self._queued == purse.name else Queue(purse)

    def _choose(self) -> PayStep:
        tightest = _tightest(self._standing)
        return Free() if tightest is None else Choose(tightest)


def _tightest(standing: Standing) -> Purse | None:
    """The level that has least left; None: none is limited."""
    limited = [purse for purse in standing.purses if purse.limit_nanos is not None]
    return min(limited, key=lambda purse: purse.left_nanos or 0) if limited else None
