"""A step takes of all its limits or of none."""

from __future__ import annotations

from routewright.protocols import Coordination
from routewright.testing.clock import FakeClock
from routewright.wire import Take, WindowState

from .suite import Suite, denied, requests, slots, taken, tokens


class Steps(Suite):
    """Several limits at once."""

    async def test_what_is_refused_by_one_takes_of_none(self, coordination: Coordination) -> None:
        for full in (requests("key", 1), tokens("key", 5, 5), slots("key", 1)):
            await taken(coordination, full)
            others = [Take("account", "requests", 2), Take("account", "tokens", 10, 10), Take("account", "slots", 1)]
            assert (await denied(coordination, [*others, *full])).by == 3
            assert (await denied(coordination, [*full, *others])).by == 0
        step = await taken(coordination, others)
        assert [state.remaining for state in step.states] == [1, 0, 0]

    async def test_a_step_of_several_takes_of_each(self, coordination: Coordination) -> None:
        takes = [Take(name, resource, 9, 2) for name in ("a", "b") for resource in ("requests", "tokens", "slots")]
        step = await taken(coordination, takes)
        assert step.states == 2 * (
            WindowState("requests", 9, 7, 60.0),
            WindowState("tokens", 9, 7, 60.0),
            WindowState("slots", 9, 7, 0.0),
        )
        await coordination.end(step, 5)
        assert [state.remaining for state in (await taken(coordination, takes)).states] == [5, 2, 7] * 2

    async def test_of_several_that_refuse_the_one_is_named_that_is_to_be_waited_for_longest(
        self, coordination: Coordination, clock: FakeClock
    ) -> None:
        await taken(coordination, requests("a", 1))
        await clock.advance(30.0)
        await taken(coordination, [*requests("b", 1), *slots("c", 1)])
        await clock.advance(5.0)
        takes = [*requests("a", 1), *requests("b", 1), *slots("c", 1), *requests("d", 1)]
        refused = await denied(coordination, takes)
        assert (refused.by, refused.retry_after_s) == (1, 55.0)
        assert [state.remaining for state in refused.states] == [0, 0, 0, 1]

    async def test_a_limit_that_is_named_twice_holds_all_the_same(self, coordination: Coordination) -> None:
        assert (await denied(coordination, [*requests("a", 1), *requests("a", 1)])).retry_after_s > 0
        await taken(coordination, [*requests("a", 2), *requests("a", 2)])
        await denied(coordination, requests("a", 2))

    async def test_a_step_of_nothing_is_taken(self, coordination: Coordination) -> None:
        step = await taken(coordination, [])
        await coordination.end(step)

    async def test_each_step_has_an_id_of_its_own(self, coordination: Coordination) -> None:
        ids = [(await taken(coordination, requests("a", 100))).id for _ in range(50)]
        assert len(set(ids)) == 50
