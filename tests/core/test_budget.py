"""One budget for many calls: whatever they reserve, use and give back, they never have more than it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from routewright import Budget
from routewright._core.budget import Amount, Purse, Reservation, Room, room_of, within, worst_of_plan
from routewright._core.intake import RULES
from routewright._core.plan import build_plan
from routewright.wire import DecisionInput, Model, Pricing, TokenBounds

from .pools import TODAY, board

amounts = st.builds(Amount, st.integers(0, 50), st.integers(0, 50))
limits = st.none() | st.integers(0, 100)


class SharedPurse(RuleBasedStateMachine):
    """Calls in any order, none of which uses more than it may."""

    held = Bundle("held")

    @initialize(limit=st.builds(Room, limits, limits))
    def begin(self, limit: Room) -> None:
        self.purse = Purse(limit)
        self.open: dict[int, Amount] = {}
        self.spent = Amount()

    @rule(target=held, worst=amounts)
    def reserve(self, worst: Amount) -> Reservation | None:
        left = Room(
            *(
                None if most is None else most - spent - sum(amount[place] for amount in self.open.values())
                for place, (most, spent) in enumerate(zip(self.purse.limit, self.spent, strict=True))
            )
        )
        got = self.purse.reserve(worst)
        fits = all(most is None or each <= most for most, each in zip(left, worst, strict=True))
        assert (got is None) == (bool(self.open) and not fits)
        if got is not None:
            self.open[got.number] = Amount(*(0 if each is None else each for each in got.room))
            for most, asked, each in zip(left, worst, got.room, strict=True):
                assert each == (None if most is None else min(asked, most))
        return got

    @rule(held=consumes(held), share=st.floats(0, 1))
    def settle(self, held: Reservation | None, share: float) -> None:
        if held is not None:
            amount = self.open.pop(held.number)
            used = Amount(int(amount.nanos * share), int(amount.tokens * share))
            self.spent = self.spent.plus(used)
            self.purse.settle(held, used)

    @rule(held=consumes(held))
    def release(self, held: Reservation | None) -> None:
        if held is not None:
            del self.open[held.number]
            self.purse.release(held)

    @precondition(lambda self: not self.open)
    @rule(worst=amounts)
    def nobody_waits_for_nobody(self, worst: Amount) -> None:
        alone = self.purse.reserve(worst)
        assert alone is not None
        self.purse.release(alone)

    @invariant()
    def never_above_the_budget(self) -> None:
        together = self.purse.spent.plus(self.purse.reserved)
        for most, each in zip(self.purse.limit, together, strict=True):
            assert most is None or each <= most
        assert self.purse.spent == self.spent


TestSharedPurse = SharedPurse.TestCase


def test_what_was_settled_is_not_settled_again() -> None:
    purse = Purse(Room(10, None))
    reservation = purse.reserve(Amount(5, 5))
    assert reservation == Reservation(1, Room(5, None))
    purse.settle(reservation, Amount(3, 3))
    with pytest.raises(KeyError):
        purse.settle(reservation, Amount(3, 3))
    assert purse.left == Room(7, None)


def test_a_call_that_uses_more_than_it_may_is_booked_in_full_and_leaves_nothing() -> None:
    purse = Purse(Room(10, None))
    first = purse.reserve(Amount(10, 0))
    assert first is not None
    purse.settle(first, Amount(15, 0))
    assert purse.spent == Amount(15, 0)
    assert purse.reserve(Amount(1, 0)) == Reservation(2, Room(0, None))


def test_a_budget_rounds_down_to_nano_dollars() -> None:
    assert room_of(Budget(0.0000000019, 100.0)) == Room(1, 100)
    assert room_of(Budget()) == Room(None, None)


GIVEN = DecisionInput(
    catalogue="c", health="h", as_of=TODAY, tokens=TokenBounds(40, 40, 20), rules=RULES, goal="quality"
)


@pytest.mark.parametrize(
    ("own", "room", "left"), [(None, None, None), (None, 5, 5), (5, None, 5), (5, 3, 3), (3, 5, 3), (5, -2, 0)]
)
def test_of_two_budgets_the_smaller_holds(own: int | None, room: int | None, left: int | None) -> None:
    given = DecisionInput(catalogue="c", health="h", as_of=TODAY, tokens=TokenBounds(1, 1, 1), rules=RULES)
    for name, place in (("budget_nanos", 0), ("budget_tokens", 1)):
        mine = DecisionInput(**{**{f: getattr(given, f) for f in given.__struct_fields__}, name: own})
        got = within(mine, Room(*(room if place == each else None for each in (0, 1))))
        assert getattr(got, name) == left


def test_the_worst_of_a_plan_is_every_try_of_every_model_at_its_cap_but_no_more_than_its_budget() -> None:
    pool = [
        Model(id="a/one", provider="a", quality=0.9, context_window=100_000, pricing_per_1m=Pricing(1.0, 4.0)),
        Model(id="b/two", provider="b", quality=0.5, context_window=100_000, pricing_per_1m=Pricing(2.0, 8.0)),
    ]

    def worst(budget_nanos: int) -> Amount:
        given = within(GIVEN, Room(budget_nanos, None))
        plan = build_plan(given, board(pool))
        assert len(plan.rows) == 2
        return worst_of_plan(plan.ask, plan.rows, 2)

    once = (40 * 1_000 + 4_096 * 4_000) + (40 * 2_000 + 4_096 * 8_000)
    assert worst(10**9) == Amount(2 * once, 2 * 2 * (40 + 4_096))
    assert worst(2 * once - 1).nanos == 2 * once - 1
