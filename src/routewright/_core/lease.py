"""Is it still alive, who holds something? Leases that owners renew for as long as they live (contract 7)."""

from __future__ import annotations

LATE_S = 600.0
"""How old somebody's word of the time may be: it had to wait for others who write, or its process stood still. Without
this, who comes late would take those for gone who spoke meanwhile, and spend what they hold."""


def is_held(until: float, lease_s: float, clock_s: float) -> bool:
    """Whether a lease still runs. One that ends later than it could is of a time before the clock began anew, with the
    machine; so its owner is gone. (It may seem to run once more when the clock comes by there again: what is held by it
    then is held that much longer.)"""
    return clock_s < until <= clock_s + lease_s + LATE_S


class Owners:
    """Whose leases run, over all accounts."""

    def __init__(self) -> None:
        self._leases: dict[str, tuple[float, float]] = {}
        self.clock_s = 0.0
        """What the clock said when somebody last spoke."""

    def keep(self, owner: str, lease_s: float, clock_s: float) -> None:
        """Let a lease begin anew."""
        self._leases[owner] = clock_s + lease_s, lease_s
        self.clock_s = clock_s

    def lives(self, owner: str, clock_s: float) -> bool:
        """Whether the lease of an owner runs."""
        until, lease_s = self._leases.get(owner, (0.0, 0.0))
        return is_held(until, lease_s, clock_s)

    def sweep(self) -> None:
        """Forget those whose leases are over."""
        for owner in [each for each in self._leases if not self.lives(each, self.clock_s)]:
            del self._leases[owner]
