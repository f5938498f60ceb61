"""Tokens are taken as an estimate and corrected at the end, at the time at which they were taken."""

from __future__ import annotations

import pytest

from routewright.errors import ValidationFailed
from routewright.protocols import Coordination
from routewright.testing.clock import FakeClock
from routewright.wire import Take

from .suite import Suite, denied, requests, taken, tokens


class Tokens(Suite):
    """Corrections."""

    async def test_what_was_not_needed_is_given_back_to_each_window(self, coordination: Coordination) -> None:
        step = await taken(coordination, [Take("a", "tokens", 100, 80), Take("b", "tokens", 50, 40)])
        await denied(coordination, tokens("a", 100, 60))
        await coordination.end(step, 45)
        assert (await taken(coordination, tokens("a", 100, 55))).states[0].remaining == 0
        assert (await taken(coordination, tokens("b", 50, 5))).states[0].remaining == 0

    async def test_a_correction_leaves_the_window_when_what_it_corrects_does(
        self, coordination: Coordination, clock: FakeClock
    ) -> None:
        step = await taken(coordination, tokens("a", 100, 80))
        await clock.advance(50.0)
        await coordination.end(step, 100)
        assert (await denied(coordination, tokens("a", 100, 1))).retry_after_s == 10.0
        await clock.advance(10.0)
        assert (await taken(coordination, tokens("a", 100, 1))).states[0].remaining == 99

    async def test_more_than_was_estimated_counts_though_it_goes_over_the_limit(
        self, coordination: Coordination
    ) -> None:
        step = await taken(coordination, tokens("a", 100, 10))
        await coordination.end(step, 150)
        refused = await denied(coordination, tokens("a", 200, 51))
        assert refused.states[0].remaining == 50
        assert (await denied(coordination, tokens("a", 100, 1))).states[0].remaining == 0

    async def test_what_has_left_its_window_is_corrected_no_more(
        self, coordination: Coordination, clock: FakeClock
    ) -> None:
        step = await taken(coordination, tokens("a", 100, 10))
        await clock.advance(60.0)
        await taken(coordination, tokens("a", 100, 10))
        await coordination.end(step, 90)
        assert (await taken(coordination, tokens("a", 100, 90))).states[0].remaining == 0

    async def test_an_end_without_a_number_leaves_them_and_twice_is_once(self, coordination: Coordination) -> None:
        step = await taken(coordination, tokens("a", 100, 60))
        await coordination.end(step)
        await coordination.end(step, 0)
        assert (await denied(coordination, tokens("a", 100, 41))).states[0].remaining == 40
        again = await taken(coordination, tokens("b", 100, 60))
        await coordination.end(again, 50)
        await coordination.end(again, 0)
        assert (await denied(coordination, tokens("b", 100, 51))).states[0].remaining == 50

    async def test_nothing_may_turn_out_to_be_something(self, coordination: Coordination) -> None:
        step = await taken(coordination, tokens("a", 100, 0))
        await coordination.end(step, 99)
        assert (await denied(coordination, tokens("a", 100, 2))).states[0].remaining == 1

    async def test_requests_stay_whatever_is_ended(self, coordination: Coordination) -> None:
        step = await taken(coordination, requests("a", 1))
        await coordination.end(step, 0)
        await denied(coordination, requests("a", 1))

    async def test_less_than_nothing_is_refused(self, coordination: Coordination) -> None:
        with pytest.raises(ValidationFailed):
            await coordination.take([Take("a", "requests", 1), Take("b", "tokens", 5, -1)], "me")
        step = await taken(coordination, [Take("a", "requests", 1), Take("b", "tokens", 5, 5)])
        with pytest.raises(ValidationFailed):
            await coordination.end(step, -1)
