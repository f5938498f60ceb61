"""A console over a store in memory."""

from __future__ import annotations

import pytest

from routewright import Console, MemoryStorage
from routewright.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def console(clock: FakeClock) -> Console:
    return Console(MemoryStorage(clock=clock), clock=clock, secret="0123456789abcdef" * 4)
