"""What a budget still buys: the output cap of the next call, what is kept back for a fallback, and how many calls share
one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from routewright._core.catalogue.prices import affordable_output, call_nanos, dearest_at
from routewright._core.money import PICOS_PER_NANO, budget_nanos, nanos
from routewright._core.tokens.estimate import Length
from routewright.wire import Budget, DecisionInput, TokenBounds

from .plan import Leg, OutputPlan, Plan


class RoomTooSmall(Exception):
    """What is left of the budget does not pay for a call."""


class Amount(NamedTuple):
    """What was used, or may be."""

    nanos: int = 0
    tokens: int = 0

    def plus(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(self.nanos + other.nanos, self.tokens + other.tokens)

    def without(self, other: Amount) -> Amount:
        """What this has beyond the other; negative where that is more."""
        return Amount(self.nanos - other.nanos, self.tokens - other.tokens)


class Room(NamedTuple):
    """What is left of a budget. None: no limit."""

    nanos: int | None
    tokens: int | None

    def holds(self, amount: Amount) -> bool:
        """Whether there is so much of it."""
        return self.most(amount) == amount

    def most(self, amount: Amount) -> Amount:
        """Of an amount what there is room for."""
        return Amount(
            amount.nanos if self.nanos is None else max(0, min(self.nanos, amount.nanos)),
            amount.tokens if self.tokens is None else max(0, min(self.tokens, amount.tokens)),
        )

    def without(self, nanos: int, tokens: int) -> Room:
        """The room once something was spent or kept back."""
        return Room(
            None if self.nanos is None else self.nanos - nanos,
            None if self.tokens is None else self.tokens - tokens,
        )


class Share(NamedTuple):
    """What one call may use of the budget."""

    number: int
    room: Room


class SharedBudget:
    """One budget for many calls: what is spent and what is reserved never come to more than it.

        reserve(worst) ─┬─ Share ── settle(it, used), or release(it)
                        └─ None: others hold what it needs; ask again when one of them has settled

    A call that uses more than it reserved is booked in full, and nothing is left for others.
    """

    def __init__(self, limit: Room) -> None:
        self.limit = limit
        self.spent = Amount()
        self.reserved = Amount()
        self._held: dict[int, Amount] = {}
        self._number = 0

    @property
    def left(self) -> Room:
        """What is not spent; some of it may be reserved."""
        return self.limit.without(*self.spent)

    def reserve(self, worst: Amount) -> Share | None:
        """Put aside the most that a call may use; where nobody else holds any, of a larger amount all there is."""
        free = self.left.without(*self.reserved)
        if self._held and not free.holds(worst):
            return None
        self._number += 1
        granted = self._held[self._number] = free.most(worst)
        self.reserved = self.reserved.plus(granted)
        nanos, tokens = self.limit
        room = Room(None if nanos is None else granted.nanos, None if tokens is None else granted.tokens)
        return Share(self._number, room)

    def settle(self, share: Share, used: Amount) -> None:
        """Book what a call has used. Raises ``KeyError`` for one that was settled before."""
        self.release(share)
        self.spent = self.spent.plus(used)

    def release(self, share: Share) -> None:
        """Give back what a call reserved, since it used none of it."""
        self.reserved = self.reserved.without(self._held.pop(share.number))


def room_of(budget: Budget) -> Room:
    """The room of a checked budget of which nothing is spent."""
    return Room(
        None if budget.max_cost_usd is None else budget_nanos(budget.max_cost_usd),
        None if budget.max_tokens is None else int(budget.max_tokens),
    )


def own_room(given: DecisionInput) -> Room:
    """The room that an input's own budget leaves."""
    return Room(given.budget_nanos, given.budget_tokens)


def within(given: DecisionInput, room: Room) -> DecisionInput:
    """The input under a budget from outside, where its own is not smaller."""
    return replace(
        given,
        budget_nanos=_smaller(given.budget_nanos, room.nanos),
        budget_tokens=_smaller(given.budget_tokens, room.tokens),
    )


def worst_of_call(leg: Leg, tokens: TokenBounds, cap: int) -> Amount:
    """The most that one call of a priced model can use."""
    high = leg.length(tokens)[1]
    return Amount(call_nanos(leg.worst_price(high), high, cap), high + cap)


def worst_wanted(given: DecisionInput, leg: Leg, tokens: TokenBounds) -> Amount:
    """The most that one call of a priced model can use that no budget keeps short."""
    return worst_of_call(leg, tokens, _capped(given, leg, leg.length(tokens), 1 << 53))


def worst_of_plan(plan: Plan, tokens: TokenBounds, room: Room, tries: int) -> Amount:
    """The most that a plan under a budget can use, if every one of its models is called so often."""
    worst = Amount()
    for leg in plan.legs:
        once = worst_wanted(plan.given, leg, tokens)
        worst = worst.plus(Amount(once.nanos * tries, once.tokens * tries))
    return room.most(worst)


def output_cap(given: DecisionInput, leg: Leg, tokens: TokenBounds, room: Room) -> int | None:
    """Output tokens to ask a model for at most; None: no cap is sent. ``given``: a plan's, perhaps a template. Raises
    ``RoomTooSmall`` if the room does not cover the output asked for, or else the 90th percentile expected."""
    if room.nanos is None and room.tokens is None:
        return given.max_output_tokens
    length = leg.length(tokens)
    affordable, held = _affordable(leg, length[1], *room), _held(given, leg)
    if affordable < held:
        raise RoomTooSmall(f"room for {affordable} output tokens, {held} needed")
    return _capped(given, leg, length, affordable)


def plan_output(plan: Plan, tokens: TokenBounds, room: Room) -> OutputPlan:
    """Cap a primary that fits so that the cheapest fallback stays affordable where the budget allows."""
    given, (primary, *chain) = plan.given, plan.legs
    if room.nanos is None and room.tokens is None:
        return OutputPlan(given.max_output_tokens, True)
    if room.nanos is not None and room.tokens is None and not (tokens.counted or tokens.images):
        high, (per_token, most, whole) = tokens.high, plan.ample or _ample(plan)
        if high * per_token + most <= room.nanos * PICOS_PER_NANO and (whole.cap or 0) <= primary.window - high:
            return whole
    length = primary.length(tokens)
    if chain:
        affordable = _affordable(primary, length[1], *_without_cheapest(given, chain, tokens, room))
        if affordable >= _held(given, primary):
            return OutputPlan(_capped(given, primary, length, affordable), True)
    affordable = _affordable(primary, length[1], *room)
    return OutputPlan(_capped(given, primary, length, affordable), not chain)


def worst_of_start(plan: Plan, tokens: TokenBounds, room: Room, calls: int = 1) -> int:
    """The most that the first calls of a plan under a budget can cost that are made at once, in nano-dollars."""
    cap, leg = plan_output(plan, tokens, room).cap, plan.legs[0]
    assert cap is not None, "where money is limited a cap is sent"
    price = leg.dearest
    if price is None or tokens.counted or tokens.images:
        first = worst_of_call(leg, tokens, cap).nanos
    else:
        first = -(-(tokens.high * price.input + cap * price.output) // PICOS_PER_NANO)
    if calls == 1:
        return first
    together = first + sum(worst_wanted(plan.given, leg, tokens).nanos for leg in plan.legs[1:calls])
    return min(together, max(first, room.nanos or 0))


def _ample(plan: Plan) -> tuple[int, int, OutputPlan]:
    given, (primary, *chain) = plan.given, plan.legs
    wanted = given.max_output_tokens
    if wanted is None:
        wanted = max(given.default_output_cap, primary.held)
    cap = max(1, min(wanted, primary.max_output))
    if not all(leg.prices_held for leg in plan.legs):
        plan.ample = 0, 1 << 200, OutputPlan(cap, True)
        return plan.ample
    price = dearest_at(primary.prices_held, 1 << 53)
    dearest = [(leg, dearest_at(leg.prices_held, 1 << 53)) for leg in chain]
    kept = max([each.input for _, each in dearest], default=0)
    held = max([_held(given, leg) * each.output for leg, each in dearest], default=0)
    most = cap * price.output + held + PICOS_PER_NANO
    plan.ample = price.input + kept, most, OutputPlan(cap, True)
    return plan.ample


def _smaller(own: int | None, room: int | None) -> int | None:
    if room is None:
        return own
    return max(0, room if own is None else min(own, room))


def _held(given: DecisionInput, leg: Leg) -> int:
    """Output tokens for which a budget must have room: what was asked for, else the 90th percentile."""
    return leg.held if given.max_output_tokens is None else given.max_output_tokens


def _affordable(leg: Leg, high: int, nanos: int | None, tokens: int | None) -> int:
    """Output tokens that a room pays for beside an input; negative if not even that fits."""
    affordable = 1 << 53 if tokens is None else tokens - high
    if nanos is None:
        return affordable
    return min(affordable, affordable_output(leg.worst_price(high), high, nanos))


def _capped(given: DecisionInput, leg: Leg, length: Length, affordable: int) -> int:
    wanted = given.max_output_tokens
    if wanted is None:
        wanted = max(given.default_output_cap, leg.held)
    return max(1, min(affordable, wanted, leg.max_output, leg.window - length[2]))


def _without_cheapest(given: DecisionInput, chain: Sequence[Leg], tokens: TokenBounds, room: Room) -> Room:
    """The room that is left when one member of the chain is kept affordable."""
    fewest = least = 1 << 200
    for leg in chain:
        high, held = leg.length(tokens)[1], _held(given, leg)
        fewest = min(fewest, high + held)
        if room.nanos is not None:
            price = leg.worst_price(high)
            least = min(least, high * price.input + held * price.output)
    return room.without(nanos(least), fewest)
