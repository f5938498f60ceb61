"""What the log says of a part that fails and works again: one line for a change, none for a call."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

WORKS_S, FAILS_S = 1800.0, 300.0
"""A part that fails again within ``WORKS_S`` flaps: the next line follows once it has worked, or failed, that long."""


class Outage:
    """The outages of one part. Times are monotonic seconds. Use it under a lock, or from one thread."""

    # Two lines for an outage are right until a vendor flaps: a circuit that opens and closes every 20 seconds would
    # write 8,640 lines a day, and hide the others. To leave some of them out would be worse: the last line could say
    # that it works while it does not. So the second failure within half an hour says that it flaps, and the next line
    # follows once it is steady, either way. test_the_last_line_is_true_whatever_happens

    __slots__ = ("_began", "_count", "_log", "_works", "flaps", "is_on", "since", "text")

    def __init__(self, log: Callable[[str], object], works: str) -> None:
        """``log`` takes a line. ``works`` is the line that says that it works again."""
        self._log = log
        self._works = works
        self.is_on = False
        """True while it fails."""
        self.flaps = False
        """True while its changes are not logged."""
        self.since = self._began = -inf
        """When it began to fail, or to work again."""
        self._count = 0
        self.text = ""
        """What was said of the last failure; empty if it never failed."""

    def begin(self, now: float, text: str) -> None:
        """It fails; ``text`` says so, and why. Call it for every failure, or for changes only."""
        self.settle(now)
        if self.is_on:
            return
        is_again = now - self.since < WORKS_S
        self.is_on = True
        self.since, self.text = now, text
        self._count += 1
        if not is_again:
            self._began = now
            self._count = 1
            self._log(text)
        elif not self.flaps:
            self.flaps = True
            steady = f"failed for {period(FAILS_S)} or worked for {period(WORKS_S)}"
            self._log(f"{text}; it flaps, so the next line follows once it has {steady}")

    def end(self, now: float, note: str = "") -> None:
        """It works. ``note`` is added to the line."""
        self.settle(now)
        if not self.is_on:
            return
        if not self.flaps:
            self._log(f"{self._works}, after {period(now - self.since)}{note}")
        self.is_on = False
        self.since = now

    def settle(self, now: float) -> None:
        """Log how it is if it flapped and is steady now."""
        if now < self.steady_at:
            return
        self.flaps = False
        state = self.text if self.is_on else self._works
        lasts = f"this has lasted for {period(now - self.since)}"
        self._log(f"{state}; {lasts}, after {self._count} outages in {period(self.since - self._began)}")

    @property
    def steady_at(self) -> float:
        """When ``settle`` has something to log; infinity if it does not flap."""
        return self.since + (FAILS_S if self.is_on else WORKS_S) if self.flaps else inf


def period(seconds: float) -> str:
    """A duration for people: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3570 else f"{seconds / 3600:.1f} h".replace(".0 h", " h")
