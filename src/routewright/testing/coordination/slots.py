"""Slots are their owner's while he is heard of."""

from __future__ import annotations

import anyio
from anyio.lowlevel import checkpoint

from routewright.protocols import Coordination
from routewright.testing.clock import FakeClock
from routewright.wire import Denied, Taken, WindowState

from .suite import ME, OTHER, Suite, denied, requests, slots, taken, tokens

CANCELLED_AFTER = 20
"""So many moments are tried: with each, other tasks had one turn more."""

EACH = 20
"""So often each of them: in which order tasks have their turns is chance on trio."""


class Slots(Suite):
    """Leases."""

    async def test_a_slot_is_taken_until_it_is_given_back(self, coordination: Coordination, clock: FakeClock) -> None:
        steps = [await taken(coordination, slots("a", 2), owner) for owner in (ME, OTHER)]
        refused = await denied(coordination, slots("a", 2))
        assert (refused.retry_after_s, refused.states) == (1.0, (WindowState("slots", 2, 0, 0.0),))
        await coordination.end(steps[0])
        assert (await taken(coordination, slots("a", 2))).states == (WindowState("slots", 2, 0, 0.0),)

    async def test_it_is_given_back_once(self, coordination: Coordination) -> None:
        first, second = [await taken(coordination, slots("a", 2)) for _ in range(2)]
        await coordination.end(first)
        await coordination.end(first)
        await taken(coordination, slots("a", 2))
        await denied(coordination, slots("a", 2))
        await coordination.end(second)

    async def test_it_is_free_when_its_owner_was_not_heard_of_for_a_lease(
        self, coordination: Coordination, clock: FakeClock
    ) -> None:
        await taken(coordination, slots("a", 2), ME)
        await clock.advance(self.lease_s / 4)
        await taken(coordination, slots("a", 2), OTHER)
        await clock.advance(self.lease_s / 4 * 3 - 0.001)
        await denied(coordination, slots("a", 2), OTHER)
        await clock.advance(0.001)
        assert (await taken(coordination, slots("a", 2), OTHER)).states[0].remaining == 0

    async def test_renewing_keeps_all_of_an_owners_slots_and_nobody_elses(
        self, coordination: Coordination, clock: FakeClock
    ) -> None:
        for name in ("a", "b"):
            await taken(coordination, slots(name, 2), ME)
        await taken(coordination, slots("a", 2), OTHER)
        for _ in range(5):
            await clock.advance(self.lease_s * 0.9)
            await coordination.renew(ME)
        assert (await taken(coordination, slots("a", 2), OTHER)).states[0].remaining == 0
        await denied(coordination, slots("b", 1), OTHER)

    async def test_one_who_takes_a_slot_is_heard_of(self, coordination: Coordination, clock: FakeClock) -> None:
        await taken(coordination, slots("a", 1), ME)
        await clock.advance(self.lease_s - 1.0)
        await taken(coordination, slots("b", 1), ME)
        await clock.advance(self.lease_s - 1.0)
        await denied(coordination, slots("a", 1), OTHER)
        await clock.advance(1.0)
        await taken(coordination, slots("a", 1), OTHER)

    async def test_what_is_lost_is_not_renewed_and_its_end_frees_nobody_elses(
        self, coordination: Coordination, clock: FakeClock
    ) -> None:
        lost = await taken(coordination, [*slots("a", 1), *tokens("a", 10, 10)], ME)
        await clock.advance(self.lease_s)
        await coordination.renew(ME)
        await taken(coordination, slots("a", 1), OTHER)
        await coordination.end(lost, 3)
        await denied(coordination, slots("a", 1), ME)

    async def test_a_take_that_is_cancelled_has_taken_nothing(
        self, coordination: Coordination, clock: FakeClock
    ) -> None:
        takes, found = [*slots("a", 1_000), *requests("b", 1_000)], list[Taken | Denied]()

        async def take() -> None:
            found.append(await coordination.take(takes, ME))

        for steps in [*range(CANCELLED_AFTER)] * EACH:
            async with anyio.create_task_group() as group:
                group.start_soon(take)
                for _ in range(steps):
                    await checkpoint()
                group.cancel_scope.cancel()
        states = (await taken(coordination, takes)).states
        assert [state.remaining for state in states] == [999 - len(found)] * 2, "only what was answered is taken"

    async def test_it_does_not_age(self, coordination: Coordination, clock: FakeClock) -> None:
        await taken(coordination, slots("a", 1))
        for _ in range(20):
            await clock.advance(self.lease_s / 2)
            await coordination.renew(ME)
        await denied(coordination, slots("a", 1))

    async def test_more_than_all_of_them_are_let_in_alone(self, coordination: Coordination) -> None:
        step = await taken(coordination, slots("a", 2, 3))
        await denied(coordination, slots("a", 2))
        await coordination.end(step)
        await taken(coordination, slots("a", 2))
        await denied(coordination, slots("a", 2, 3))

    async def test_one_without_slots_may_renew(self, coordination: Coordination) -> None:
        await coordination.renew("nobody")
