"""Budgets of calls: one shared by many is never exceeded, and exploration costs at most its share."""

from __future__ import annotations

import pytest
from hypothesis import given as given_by
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
from msgspec.structs import astuple, replace

from routewright._core.routing.budget import (
    Amount,
    Room,
    Share,
    SharedBudget,
    limit_to,
    own_room,
    plan_output,
    worst_of_call,
    worst_of_plan,
)
from routewright._core.routing.constraints import PASSES, FitCheck
from routewright._core.routing.decide import decide, least_nanos, pays_for_any
from routewright.errors import NoCandidates
from routewright.wire import Model, Pricing
from tests.tables import table

from .pools import board, healths, inputs, pools
from .test_decision import simple

amounts = st.builds(Amount, st.integers(0, 50), st.integers(0, 50))
limits = st.none() | st.integers(0, 100)


class Sharing(RuleBasedStateMachine):
    """Calls in any order, none of which uses more than it may."""

    held = Bundle("held")

    @initialize(limit=st.builds(Room, limits, limits))
    def begin(self, limit: Room) -> None:
        self.budget = SharedBudget(limit)
        self.open: dict[int, Amount] = {}
        self.spent = Amount()

    @rule(target=held, worst=amounts)
    def reserve(self, worst: Amount) -> Share | None:
        left = Room(
            *(
                None if most is None else most - spent - sum(astuple(amount)[place] for amount in self.open.values())
                for place, (most, spent) in enumerate(zip(astuple(self.budget.limit), astuple(self.spent), strict=True))
            )
        )
        got = self.budget.reserve(worst)
        fits = all(most is None or each <= most for most, each in zip(astuple(left), astuple(worst), strict=True))
        assert (got is None) == (bool(self.open) and not fits)
        if got is not None:
            self.open[got.number] = Amount(*(0 if each is None else each for each in astuple(got.room)))
            for most, asked, each in zip(astuple(left), astuple(worst), astuple(got.room), strict=True):
                assert each == (None if most is None else min(asked, most))
        return got

    @rule(held=consumes(held), part=st.floats(0, 1))
    def settle(self, held: Share | None, part: float) -> None:
        if held is not None:
            amount = self.open.pop(held.number)
            used = Amount(int(amount.nanos * part), int(amount.tokens * part))
            self.spent = self.spent.plus(used)
            self.budget.settle(held, used)

    @rule(held=consumes(held))
    def release(self, held: Share | None) -> None:
        if held is not None:
            del self.open[held.number]
            self.budget.release(held)

    @precondition(lambda self: not self.open)
    @rule(worst=amounts)
    def nobody_waits_for_nobody(self, worst: Amount) -> None:
        alone = self.budget.reserve(worst)
        assert alone is not None
        self.budget.release(alone)

    @invariant()
    def never_above_the_budget(self) -> None:
        together = self.budget.spent.plus(self.budget.reserved)
        for most, each in zip(astuple(self.budget.limit), astuple(together), strict=True):
            assert most is None or each <= most
        assert self.budget.spent == self.spent


TestSharing = Sharing.TestCase


def test_a_share_settles_once() -> None:
    budget = SharedBudget(Room(10, None))
    share = budget.reserve(Amount(5, 5))
    assert share == Share(1, Room(5, None))
    budget.settle(share, Amount(3, 3))
    with pytest.raises(KeyError):
        budget.settle(share, Amount(3, 3))
    assert budget.left == Room(7, None)


def test_a_call_beyond_its_share_is_booked_in_full() -> None:
    budget = SharedBudget(Room(10, None))
    first = budget.reserve(Amount(10, 0))
    assert first is not None
    budget.settle(first, Amount(15, 0))
    assert budget.spent == Amount(15, 0)
    assert budget.reserve(Amount(1, 0)) == Share(2, Room(0, None))


GIVEN = simple(goal="quality")


@table(("own", "room", "left"), [(None, None, None), (None, 5, 5), (5, None, 5), (5, 3, 3), (3, 5, 3), (5, -2, 0)])
def test_the_smaller_of_two_budgets_applies(own: int | None, room: int | None, left: int | None) -> None:
    for name, place in (("budget_nanos", 0), ("budget_tokens", 1)):
        got = limit_to(replace(GIVEN, **{name: own}), Room(*(room if place == each else None for each in (0, 1))))
        assert getattr(got, name) == left


def test_the_worst_case_of_a_plan_is_every_try_at_its_cap_within_the_budget() -> None:
    pool = [
        Model(id="a/one", provider="a", quality=0.9, context_window=100_000, pricing_per_1m=Pricing(1.0, 4.0)),
        Model(id="b/two", provider="b", quality=0.5, context_window=100_000, pricing_per_1m=Pricing(2.0, 8.0)),
    ]

    def worst(budget_nanos: int) -> Amount:
        given = limit_to(GIVEN, Room(budget_nanos, None))
        plan = decide(given, board(pool))
        assert len(plan.legs) == 2
        return worst_of_plan(plan, given.tokens, own_room(given), 2)

    once = (40 * 1_000 + 4_096 * 4_000) + (40 * 2_000 + 4_096 * 8_000)
    assert worst(10**9) == Amount(2 * once, 2 * 2 * (40 + 4_096))
    assert worst(2 * once - 1).nanos == 2 * once - 1


@given_by(st.data())
def test_a_request_that_fits_all_models_at_once_fits_each(data: st.DataObject) -> None:
    models = data.draw(pools())
    given = data.draw(inputs(models))
    amounts = st.integers(0, 10**12) | st.integers(0, 10**18)
    given = replace(given, budget_nanos=data.draw(amounts), budget_tokens=None)
    ask = FitCheck(given, board(models).forecast)
    if ask.fits_all():
        assert {ask.failure(row) for row in range(len(models))} == {PASSES}


@given_by(st.data())
def test_least_nanos_is_the_smallest_admitting_budget(data: st.DataObject) -> None:
    pool = data.draw(pools())
    given, its = data.draw(inputs(pool)), board(pool, data.draw(healths(pool)))
    least = least_nanos(given, its)
    if least is None:
        with pytest.raises(NoCandidates):
            decide(replace(given, budget_nanos=10**18), its)
        return
    within_it = replace(given, budget_nanos=least)
    assert pays_for_any(within_it, its)
    plan = decide(within_it, its)
    cap, _ = plan_output(plan, given.tokens, own_room(within_it))
    assert worst_of_call(plan.legs[0], given.tokens, cap or 0).nanos <= least, "what is reserved is no more"
    if least:
        with pytest.raises(NoCandidates):
            decide(replace(given, budget_nanos=least - 1), its)
