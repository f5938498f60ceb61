"""All coordinations keep what every coordination must keep."""

from __future__ import annotations

from routewright import MemoryCoordination
from routewright.testing import FakeClock
from routewright.testing.coordination import CoordinationContract


class TestMemoryCoordination(CoordinationContract):
    def make(self, clock: FakeClock) -> MemoryCoordination:
        return MemoryCoordination(clock=clock)
