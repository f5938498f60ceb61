"""Several keys of one provider: which of them is asked, and how long one that was refused is put aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from routewright.errors import ProviderFault
from routewright.fork import Guard
from routewright.protocols import Clock
from routewright.wire import FaultKind
from routewright.wire.secret import Secret

REFUSED_S = 300.0
"""How long a key is put aside that the host does not take, or that is out of credit (401, 402, 403)."""
LIMITED_S = 10.0
"""How long after a 429 that does not say itself."""
MOST_ASKED = 8
"""Keys that one call asks at most: a host that refuses so many refuses the caller."""
LONGEST_S = 300.0
"""No Retry-After puts a key aside for longer."""


class KeyRing:
    """Keys in turn. Safe to use from several threads, and after a fork.

    One key is asked until it is refused, since hosts keep their prompt caches by it; then the next that is not aside.
    """

    def __init__(self, keys: Sequence[Secret], clock: Clock) -> None:
        self.keys = tuple(keys)
        self.sole = self.keys[0] if len(self.keys) == 1 else None
        """The only key, whose faults are nobody else's business."""
        self._clock = clock
        self._guard = Guard()
        self._place = 0
        self._due = dict.fromkeys(self.keys, clock.monotonic())
        """When each is asked again."""

    def turn(self) -> Iterator[Secret]:
        """Give the keys that one call may ask until one is taken: those not aside, from the one in use on; at last the
        one that is due soonest, if it was not among them."""
        asked: set[Secret] = set()
        while len(asked) < MOST_ASKED and (key := self._free(asked)) is not None:
            asked.add(key)
            yield key
        soonest = self._soonest()
        if len(asked) < MOST_ASKED and soonest not in asked:
            yield soonest

    def refuse(self, key: Secret, fault: ProviderFault) -> bool:
        """Put a key aside if the fault is about it, and say whether it is."""
        seconds = aside_s(fault)
        if seconds is None:
            return False
        now = self._clock.monotonic()
        with self._guard.lock:
            self._due[key] = now + seconds
        return True

    def told(self, faults: Mapping[Secret, ProviderFault]) -> ProviderFault:
        """Of the faults of all keys that were asked, that of the one due soonest, with the time until then."""
        fault = faults.get(self._soonest()) or [*faults.values()][-1]
        if fault.kind == FaultKind.RATE_LIMITED:
            fault.retry_after = max(min(self._due.values()) - self._clock.monotonic(), 0.0)
        return fault

    def _free(self, asked: set[Secret]) -> Secret | None:
        """The key in use, or the next that is neither aside nor asked by this call; it is then the one in use."""
        now, count = self._clock.monotonic(), len(self.keys)
        with self._guard.lock:
            for place in range(self._place, self._place + count):
                key = self.keys[place % count]
                if key not in asked and self._due[key] <= now:
                    self._place = place % count
                    return key
        return None

    def _soonest(self) -> Secret:
        with self._guard.lock:
            return min(self.keys, key=self._due.__getitem__)


def aside_s(fault: ProviderFault) -> float | None:
    """How long the key of a call that ended so is put aside; None if another key would not have helped."""
    if fault.kind == FaultKind.AUTH:
        return REFUSED_S
    if fault.kind == FaultKind.RATE_LIMITED and fault.status == 429:
        return LIMITED_S if fault.retry_after is None else min(fault.retry_after, LONGEST_S)
    return None
