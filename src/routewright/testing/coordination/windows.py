"""No window of a minute holds more than its limit, and nobody is refused who fits."""

from __future__ import annotations

from math import ceil

import pytest

from routewright.protocols import Coordination
from routewright.testing.clock import FakeClock
from routewright.wire import Resource, Take, Taken, WindowState

from .suite import ME, Suite, denied, requests, taken, tokens


class Windows(Suite):
    """Requests and tokens over the last minute."""

    async def test_as_many_are_let_in_as_the_limit_says_and_no_more(self, coordination: Coordination) -> None:
        for left in (2, 1, 0):
            assert (await taken(coordination, requests("a", 3))).states == (WindowState("requests", 3, left, 60.0),)
        refused = await denied(coordination, requests("a", 3))
        assert refused.states == (WindowState("requests", 3, 0, 60.0),)
        assert (refused.by, refused.retry_after_s) == (0, 60.0)

    async def test_a_window_slides_and_is_open_at_its_beginning(
        self, coordination: Coordination, clock: FakeClock
    ) -> None:
        await clock.advance(0.7)
        await taken(coordination, requests("a", 2))
        await clock.advance(45.0)
        await taken(coordination, requests("a", 2))
        await clock.advance(15.0 - 1e-9)
        await denied(coordination, requests("a", 2))
        await clock.advance(2e-9)
        await taken(coordination, requests("a", 2))
        assert (await denied(coordination, requests("a", 2))).retry_after_s == pytest.approx(45.0)

    @pytest.mark.parametrize("resource", ["requests", "tokens"])
    async def test_one_who_waits_as_long_as_he_is_told_is_let_in(
        self, coordination: Coordination, clock: FakeClock, resource: Resource
    ) -> None:
        take = Take("a", resource, 7, 2)
        for turn in range(40):
            while isinstance(refused := await coordination.take([take], ME), Taken):
                await clock.advance(0.1 + turn / 7)
            seconds = refused.retry_after_s if turn % 2 else ceil(refused.retry_after_s)
            await clock.advance(seconds)
            await taken(coordination, [take])

    async def test_the_wait_is_for_as_many_to_leave_as_stand_in_the_way(
        self, coordination: Coordination, clock: FakeClock
    ) -> None:
        for _ in range(5):
            await taken(coordination, tokens("a", 100, 20))
            await clock.advance(1.0)
        assert (await denied(coordination, tokens("a", 100, 50))).retry_after_s == 57.0
        assert (await denied(coordination, tokens("a", 40, 20))).retry_after_s == 58.0

    async def test_more_than_the_whole_limit_is_let_in_alone(
        self, coordination: Coordination, clock: FakeClock
    ) -> None:
        await taken(coordination, tokens("a", 100, 1))
        assert (await denied(coordination, tokens("a", 100, 500))).retry_after_s == 60.0
        await clock.advance(60.0)
        assert (await taken(coordination, tokens("a", 100, 500))).states[0].remaining == 0
        await clock.advance(59.0)
        assert (await denied(coordination, tokens("a", 100, 1))).retry_after_s == 1.0
        await clock.advance(1.0)
        await taken(coordination, tokens("a", 100, 1))

    async def test_a_limit_of_nothing_lets_nothing_in(self, coordination: Coordination) -> None:
        for resource in ("requests", "tokens", "slots"):
            assert (await denied(coordination, [Take("a", resource, 0)])).retry_after_s == 60.0

    async def test_nothing_is_always_let_in(self, coordination: Coordination) -> None:
        await taken(coordination, tokens("a", 10, 10))
        assert (await taken(coordination, tokens("a", 10, 0))).states[0].remaining == 0
        await taken(coordination, tokens("a", 0, 0))

    async def test_a_limit_is_what_it_is_in_each_step(self, coordination: Coordination) -> None:
        for _ in range(3):
            await taken(coordination, requests("a", 3))
        assert (await denied(coordination, requests("a", 1))).states[0] == WindowState("requests", 1, 0, 60.0)
        assert (await taken(coordination, requests("a", 5))).states[0].remaining == 1

    async def test_requests_may_weigh_more_than_one(self, coordination: Coordination, clock: FakeClock) -> None:
        await taken(coordination, requests("a", 5))
        await clock.advance(10.0)
        await taken(coordination, requests("a", 5, 3))
        assert (await denied(coordination, requests("a", 5, 2))).retry_after_s == 50.0
        await taken(coordination, requests("a", 5))

    async def test_windows_are_told_apart_by_name_and_by_what_they_count(self, coordination: Coordination) -> None:
        for name in ("account:a", "key:a", "key:A", "key:a ", "", "'; --"):
            for resource in ("requests", "tokens", "slots"):
                await taken(coordination, [Take(name, resource, 1)])
                await denied(coordination, [Take(name, resource, 1)])
