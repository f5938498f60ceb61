"""What all parts of the suite share: a coordination and a clock of its own for each test, and short words for takes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from routewright.protocols import Coordination
from routewright.testing.clock import FakeClock
from routewright.wire import Denied, Take, Taken

ME, OTHER = "me", "another"


@pytest.mark.anyio
class Suite:
    """Tests of a coordination."""

    lease_s = 30.0
    """How long its leases are."""

    def make(self, clock: FakeClock) -> Coordination:
        """Make one in which nothing is taken, and which goes by ``clock``."""
        raise NotImplementedError("override make(clock) to return a coordination of yours that goes by that clock")

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The clock that it goes by."""
        return FakeClock()

    @pytest.fixture
    async def coordination(self, clock: FakeClock) -> AsyncIterator[Coordination]:
        """One in which nothing is taken, closed afterwards."""
        coordination = self.make(clock)
        yield coordination
        await coordination.aclose()


def requests(name: str, limit: int, amount: int = 1) -> list[Take]:
    """Some requests of one window."""
    return [Take(name, "requests", limit, amount)]


def tokens(name: str, limit: int, amount: int) -> list[Take]:
    """Some tokens of one window."""
    return [Take(name, "tokens", limit, amount)]


def slots(name: str, limit: int, amount: int = 1) -> list[Take]:
    """Some slots."""
    return [Take(name, "slots", limit, amount)]


async def taken(coordination: Coordination, takes: list[Take], owner: str = ME) -> Taken:
    """What was let in, as it had to be."""
    result = await coordination.take(takes, owner)
    assert isinstance(result, Taken), f"{takes} were refused: {result}"
    assert len(result.states) == len(takes), "one state for each take"
    return result


async def denied(coordination: Coordination, takes: list[Take], owner: str = ME) -> Denied:
    """Why it was refused, as it had to be."""
    result = await coordination.take(takes, owner)
    assert isinstance(result, Denied), f"{takes} were let in: {result}"
    assert len(result.states) == len(takes), "one state for each take"
    return result
