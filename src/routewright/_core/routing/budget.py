"""Budget arithmetic: the output cap of the next call, the reserve for a fallback, and one budget for many calls."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from routewright._core.catalogue.prices import affordable_output, call_nanos, dearest_at
from routewright._core.money import PICOS_PER_NANO, budget_nanos, nanos
from routewright._core.tokens.estimate import Length
from routewright.wire import Budget, DecisionInput, TokenBounds

from .plan import Ample, Leg, OutputPlan, Plan


class RoomTooSmall(Exception):
    """The rest of the budget does not pay for a call."""


class Amount(Struct, frozen=True, gc=False):
    """Money and tokens used or reserved."""

    nanos: int = 0
    tokens: int = 0

    def plus(self, other: Amount) -> Amount:
        """The sum."""
        return Amount(self.nanos + other.nanos, self.tokens + other.tokens)

    def without(self, other: Amount) -> Amount:
        """The difference, which may be negative."""
        return Amount(self.nanos - other.nanos, self.tokens - other.tokens)


class Room(Struct, frozen=True, gc=False):
    """The rest of a budget. None means no limit."""

    nanos: int | None
    tokens: int | None

    def holds(self, amount: Amount) -> bool:
        """True if the amount fits."""
        return self.most(amount) == amount

    def most(self, amount: Amount) -> Amount:
        """The part of an amount that fits."""
        return Amount(
            amount.nanos if self.nanos is None else max(0, min(self.nanos, amount.nanos)),
            amount.tokens if self.tokens is None else max(0, min(self.tokens, amount.tokens)),
        )

    def within(self, nanos: int) -> Room:
        """The room that this much money leaves."""
        if self.nanos is not None and self.nanos < nanos:
            return self
        return Room(max(0, nanos), self.tokens)

    def without(self, amount: Amount) -> Room:
        """The room left after spending or reserving this much."""
        return Room(
            None if self.nanos is None else self.nanos - amount.nanos,
            None if self.tokens is None else self.tokens - amount.tokens,
        )


UNLIMITED = Room(None, None)


class Share(NamedTuple):
    """The part of a shared budget reserved for one call."""

    number: int
    room: Room


class SharedBudget:
    """One budget for many calls. Spent plus reserved never exceeds the limit.

        reserve(worst) ─┬─ Share ── settle(share, used), or release(share)
                        └─ None: other calls hold the rest; try again after one of them settles

    A call that uses more than it reserved is booked in full. ``within``: a budget that pays as well.
    """

    def __init__(self, limit: Room, within: SharedBudget | None = None) -> None:
        self.limit = limit
        self._outer: tuple[SharedBudget, ...] = () if within is None else (within, *within._outer)
        self.spent = Amount()
        self.reserved = Amount()
        self._shares = 0
        """Shares held from it, also by budgets within it."""
        self._held: dict[int, Amount] = {}
        self._number = 0

    @property
    def left(self) -> Room:
        """The unspent room, including what is reserved."""
        left = self.limit.without(self.spent)
        return least_room(left, self._outer[0].left) if self._outer else left

    @property
    def free(self) -> Room:
        """The room that is neither spent nor reserved."""
        free = self.limit.without(self.spent.plus(self.reserved))
        return least_room(free, self._outer[0].free) if self._outer else free

    def reserve(self, worst: Amount) -> Share | None:
        """Reserve the most a call may use. If no other call holds a share, a larger amount gets all that is left."""
        budgets = (self, *self._outer)
        free = self.free
        if not free.holds(worst) and any(budget._shares for budget in budgets):
            return None
        self._number += 1
        grant = self._held[self._number] = free.most(worst)
        for budget in budgets:
            budget.reserved = budget.reserved.plus(grant)
            budget._shares += 1
        nanos = None if free.nanos is None else grant.nanos
        return Share(self._number, Room(nanos, None if free.tokens is None else grant.tokens))

    def settle(self, share: Share, used: Amount) -> None:
        """Book what a call used. Raises ``KeyError`` if the share was already settled."""
        self.release(share)
        self.spend(used)

    def spend(self, used: Amount) -> None:
        """Book what was used without a share."""
        for budget in (self, *self._outer):
            budget.spent = budget.spent.plus(used)

    def release(self, share: Share) -> None:
        """Return an unused share."""
        grant = self._held.pop(share.number)
        for budget in (self, *self._outer):
            budget.reserved = budget.reserved.without(grant)
            budget._shares -= 1


def room_of(budget: Budget) -> Room:
    """The room of an unspent, checked budget."""
    return Room(
        None if budget.max_cost_usd is None else budget_nanos(budget.max_cost_usd),
        None if budget.max_tokens is None else int(budget.max_tokens),
    )


def least_room(room: Room, other: Room) -> Room:
    """The smaller of two rooms, for money and tokens each; nothing below 0."""
    nanos, tokens = room.nanos, room.tokens
    if nanos is None or (other.nanos is not None and other.nanos < nanos):
        nanos = other.nanos
    if tokens is None or (other.tokens is not None and other.tokens < tokens):
        tokens = other.tokens
    return Room(None if nanos is None else max(0, nanos), None if tokens is None else max(0, tokens))


def own_room(inputs: DecisionInput) -> Room:
    """The room of an input's own budget."""
    return Room(inputs.budget_nanos, inputs.budget_tokens)


def limit_to(inputs: DecisionInput, room: Room) -> DecisionInput:
    """The input with its budget reduced to a room."""
    rest = least_room(own_room(inputs), room)
    return replace(inputs, budget_nanos=rest.nanos, budget_tokens=rest.tokens)


def worst_of_call(leg: Leg, tokens: TokenBounds, cap: int) -> Amount:
    """The most one call of a priced model can use."""
    high = leg.length(tokens)[1]
    if leg.overrun is not None:
        high, cap = leg.overrun.billed(high, cap)
    return Amount(call_nanos(leg.worst_price(high), high, cap), high + cap)


def worst_of_leg(inputs: DecisionInput, leg: Leg, tokens: TokenBounds) -> Amount:
    """The most one call of a priced model can use without a budget."""
    return worst_of_call(leg, tokens, _capped(inputs, leg, leg.length(tokens), 1 << 53))


def worst_of_plan(plan: Plan, tokens: TokenBounds, room: Room, tries: int) -> Amount:
    """The most a plan can use within ``room`` if each of its models is called ``tries`` times."""
    worst = Amount()
    for leg in plan.legs:
        amount = worst_of_leg(plan.decision_input, leg, tokens)
        worst = worst.plus(Amount(amount.nanos * tries, amount.tokens * tries))
    return room.most(worst)


def output_cap(inputs: DecisionInput, leg: Leg, tokens: TokenBounds, room: Room) -> int | None:
    """The output cap to send to a model; None for no cap. Raises ``RoomTooSmall`` if the room does not cover the
    requested output, or the expected 90th percentile."""
    if room.nanos is None and room.tokens is None:
        return inputs.max_output_tokens
    length = leg.length(tokens)
    affordable = _affordable(leg, length[1], room)
    reserve = _held(inputs, leg)
    if affordable < reserve:
        raise RoomTooSmall(f"room for {affordable} output tokens, {reserve} needed")
    return _capped(inputs, leg, length, affordable)


def plan_output(plan: Plan, tokens: TokenBounds, room: Room) -> OutputPlan:
    """Cap the primary's output so that the cheapest fallback stays affordable, if the budget allows."""
    # A cap that uses up the budget leaves nothing for a fallback: when the first model breaks off half way, its answer
    # counts as paid, and the request fails although a cheap model stands by (contract 3: the cap leaves room for the
    # cheapest of the chain). So the worst case of that one is set aside first
    # (``test_the_output_cap_leaves_room_for_the_cheapest_fallback``), of one and not of all, which would cut answers
    # for fallbacks that hardly ever happen (``test_room_is_reserved_for_one_fallback_and_not_the_most_expensive``).
    # Nearly every budget is ample. ``Plan.ample_output`` says from which sum on the result is the same for all calls of
    # the plan, so that the common call pays for one multiplication instead of the loop.
    inputs = plan.decision_input
    primary, *chain = plan.legs
    if room.nanos is None and room.tokens is None:
        return OutputPlan(inputs.max_output_tokens, True)
    if room.nanos is not None and room.tokens is None and not (tokens.counted or tokens.images):
        ample = plan.ample_output or _ample(plan)
        is_ample = tokens.high * ample.per_token + ample.fixed <= room.nanos * PICOS_PER_NANO
        if is_ample and (ample.value.cap or 0) <= primary.window - tokens.high:
            return ample.value
    length = primary.length(tokens)
    if chain:
        least_tokens = least_picos = 1 << 200  # what the cheapest fallback needs
        for leg in chain:
            high = leg.length(tokens)[1]
            reserve = _held(inputs, leg)
            if leg.overrun is not None:
                high, reserve = leg.overrun.billed(high, reserve)
            least_tokens = min(least_tokens, high + reserve)
            if room.nanos is not None:
                price = leg.worst_price(high)
                least_picos = min(least_picos, high * price.input + reserve * price.output)
        affordable = _affordable(primary, length[1], room.without(Amount(nanos(least_picos), least_tokens)))
        if affordable >= _held(inputs, primary):
            return OutputPlan(_capped(inputs, primary, length, affordable), True)
    affordable = _affordable(primary, length[1], room)
    return OutputPlan(_capped(inputs, primary, length, affordable), not chain)


def worst_of_start(plan: Plan, tokens: TokenBounds, room: Room, calls: int = 1) -> int:
    """The most the first ``calls`` calls of a plan, made at once, can cost within ``room``, in nano-dollars."""
    leg = plan.legs[0]
    cap = plan_output(plan, tokens, room).cap
    assert cap is not None, "a limit on cost implies a cap"
    price = leg.dearest
    if price is None or tokens.counted or tokens.images or leg.overrun is not None:
        first_nanos = worst_of_call(leg, tokens, cap).nanos
    else:
        first_nanos = -(-(tokens.high * price.input + cap * price.output) // PICOS_PER_NANO)
    if calls == 1:
        return first_nanos
    all_nanos = first_nanos + sum(worst_of_leg(plan.decision_input, leg, tokens).nanos for leg in plan.legs[1:calls])
    return min(all_nanos, max(first_nanos, room.nanos or 0))


def _ample(plan: Plan) -> Ample[OutputPlan]:
    """Compute ``Plan.ample_output``."""
    inputs = plan.decision_input
    cap = inputs.max_output_tokens
    if cap is None:
        cap = max(inputs.default_output_cap, plan.legs[0].held)
    cap = max(1, min(cap, plan.legs[0].max_output))
    per_token, fixed = 0, 1 << 200
    if all(leg.prices_held and leg.overrun is None for leg in plan.legs):
        primary_price, *prices = [dearest_at(leg.prices_held, 1 << 53) for leg in plan.legs]
        outputs = [_held(inputs, leg) * price.output for leg, price in zip(plan.legs[1:], prices, strict=True)]
        per_token = primary_price.input + max([price.input for price in prices], default=0)
        fixed = cap * primary_price.output + max(outputs, default=0) + PICOS_PER_NANO
    plan.ample_output = Ample(per_token, fixed, OutputPlan(cap, True))
    return plan.ample_output


def _held(inputs: DecisionInput, leg: Leg) -> int:
    """Output tokens a budget must cover: the requested cap, else the 90th percentile."""
    return leg.held if inputs.max_output_tokens is None else inputs.max_output_tokens


def _affordable(leg: Leg, high: int, room: Room) -> int:
    """Output tokens the room pays for beside the input; negative if it does not cover the input."""
    overrun = leg.overrun
    if overrun is not None:
        high = overrun.billed(high, 0)[0]
    affordable = 1 << 53 if room.tokens is None else room.tokens - high
    if room.nanos is not None:
        affordable = min(affordable, affordable_output(leg.worst_price(high), high, room.nanos))
    return affordable if overrun is None else overrun.cap_within(affordable)


def _capped(inputs: DecisionInput, leg: Leg, length: Length, affordable: int) -> int:
    cap = inputs.max_output_tokens
    if cap is None:
        cap = max(inputs.default_output_cap, leg.held)
    return max(1, min(affordable, cap, leg.max_output, leg.window - length[2]))
