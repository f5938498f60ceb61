"""Contract suite of coordinations: inherit ``CoordinationContract``, override ``make``, and run pytest."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from routewright.protocols import Coordination
from routewright.testing import FakeClock
from routewright.wire import Heard, Notice

FIRST, SECOND = Notice("revoked", "key_1"), Notice("policies", "")


class Subject:
    """The coordination under test, with its clock."""

    def __init__(self, coordination: Coordination, clock: FakeClock) -> None:
        self.coordination = coordination
        self.clock = clock
        self.announce = coordination.announce

    async def heard(self, after: int | None) -> tuple[Notice, ...]:
        """The notices since a position."""
        return (await self.coordination.hear(after)).notices

    async def last(self) -> int:
        """The present position."""
        return (await self.coordination.hear(None)).last


@pytest.mark.anyio
class CoordinationContract:
    """Inherit it and override ``make``. Each test makes a coordination, uses it in one event loop, and closes it.

    class TestMyCoordination(CoordinationContract):
        def make(self, clock):
            return MyCoordination(clock=clock)

    Time is that of the clock passed to ``make``. The tests use anyio's pytest plug-in, on asyncio, and on trio if it is
    installed.
    """

    def make(self, clock: FakeClock) -> Coordination:
        """Make a coordination without notices, which uses ``clock``."""
        raise NotImplementedError("override make(clock) to return a coordination that uses the clock")

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        """A coordination without notices, closed afterwards."""
        clock = FakeClock()
        coordination = self.make(clock)
        yield Subject(coordination, clock)
        await coordination.aclose()

    async def test_the_first_hear_returns_the_current_position_at_once(self, subject: Subject) -> None:
        await subject.announce(FIRST)
        asked = subject.clock.monotonic()
        heard = await subject.coordination.hear(None)
        assert (heard.notices, subject.clock.monotonic()) == ((), asked)
        await subject.announce(SECOND)
        assert await subject.heard(heard.last) == (SECOND,)

    async def test_notices_are_heard_in_order_and_once(self, subject: Subject) -> None:
        start = await subject.last()
        for notice in (FIRST, FIRST, SECOND):
            await subject.announce(notice)
        heard = await subject.coordination.hear(start)
        assert heard.notices == (FIRST, FIRST, SECOND)
        await subject.announce(SECOND)
        assert await subject.heard(heard.last) == (SECOND,)

    async def test_all_waiting_listeners_are_woken(self, subject: Subject) -> None:
        start, heard = await subject.last(), list[Heard]()

        async def listen() -> None:
            heard.append(await subject.coordination.hear(start))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(listen)
            await subject.clock.sleep(1.0)
            said_at = subject.clock.monotonic()
            await subject.announce(FIRST)
        assert [each.notices for each in heard] == [(FIRST,)] * 3
        assert subject.clock.monotonic() - said_at < 1.0

    async def test_an_empty_wait_ends_and_a_cancelled_one_misses_nothing(self, subject: Subject) -> None:
        start, asked = await subject.last(), subject.clock.monotonic()
        heard = await subject.coordination.hear(start)
        waited_s = subject.clock.monotonic() - asked
        assert heard.notices == ()
        assert 0 < waited_s < 30.0
        with subject.clock.deadline(subject.clock.monotonic() + waited_s / 2) as deadline:
            await subject.heard(start)
        assert deadline.expired
        await subject.announce(FIRST)
        assert [await subject.heard(after) for after in (start, heard.last)] == [(FIRST,)] * 2
