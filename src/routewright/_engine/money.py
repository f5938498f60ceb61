"""Reserves the worst-case cost of a call at every level of the ledger before it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import NamedTuple, assert_never

import msgspec

from routewright._core.call import Call
from routewright._core.moment import timestamp
from routewright._core.money import PICOS_PER_NANO
from routewright._core.paying import Choose, Free, Look, Paying, Queue, Refuse, Wait
from routewright._core.routing.budget import Room, own_room, plan_output, within, worst_of_call, worst_wanted
from routewright._core.routing.decide import least_nanos, pays_for_any
from routewright._core.routing.plan import Plan
from routewright._core.shortage import held_by_others, without_money
from routewright.errors import InternalError, NoCandidates, PreconditionFailed, RouterError
from routewright.protocols import Clock
from routewright.wire import Caller, DecisionInput, Purse, Reserve, RunLimit, Settle, Standing

from .account import Accounts
from .leases import Leases
from .retry_queue import RetryQueue
from .storage import GuardedStorage, in_time
from .turn import Turns

Choosing = Callable[[Call, DecisionInput], Awaitable[Plan]]


class Payer(NamedTuple):
    """The caller, and the agent run, that a call is charged to."""

    caller: Caller
    run: RunLimit | None = None


class Reservation:
    """Money reserved for one call."""

    def __init__(self, id: str, at: str, payer: Payer, nanos: int, until: float) -> None:
        self.id = id
        self.at = at
        """When the call was admitted: that month pays for it."""
        self.payer = payer
        self.nanos = nanos
        self.until = until
        """Its deadline, on the monotonic scale."""


class Paid(NamedTuple):
    """A plan, and the money reserved for it."""

    plan: Plan
    reservation: Reservation | None
    """None: only the call's own budget limits its cost."""


class Money:
    """Reserves in the ledger. Safe to use from several loops and threads."""

    def __init__(
        self,
        storage: GuardedStorage,
        leases: Leases,
        retry_queue: RetryQueue,
        accounts: Accounts,
        turns: Turns,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._leases = leases
        self._retry_queue = retry_queue
        self._accounts = accounts
        self._turns = turns
        self._clock = clock

    async def afford(
        self, call: Call, payer: Payer, standing: Standing, choose: Choosing, *, hedged: bool, until: float
    ) -> Paid:
        """Choose within what is left at every level, and reserve what the chosen model can cost; if ``hedged``, the
        next model too. Waits ``until`` then, on the monotonic scale, for money that other calls hold.

        Raises ``InsufficientBalance`` and ``QuotaExhausted`` where it is spent, ``RateLimited`` where others held it
        too long, and what ``choose`` raises.
        """
        paying = Paying(standing, self._waited_for(payer.caller.account, standing))
        async with AsyncExitStack() as turn:
            while True:
                match paying.next:
                    case Free():
                        return Paid(await choose(call, call.given), None)
                    case Choose(tightest):
                        plan = await self._plan(call, tightest, choose)
                        if plan is None:
                            paying.short()
                            continue
                        nanos = worst_of_start(plan, 2 if hedged else 1)
                        full = await self._reserve(call, payer, nanos)
                        if full is None:
                            at = timestamp(call.created_at)
                            return Paid(plan, Reservation(call.id, at, payer, nanos, call.deadline))
                        if full.waits:
                            paying.held(full.purse)
                        else:
                            paying.full(full.purse)
                    case Look():
                        paying.looked(await self._standing(call, payer))
                    case Queue(purse):
                        await turn.aclose()
                        await self._queue(turn, call, purse, until)
                        paying.first(purse)
                    case Wait(purse):
                        await self._wait(call, purse, until)
                        paying.waited()
                    case Refuse(purse):
                        await choose(call, call.given)  # what refuses it however much there is, is told
                        raise without_money(purse, least_nanos(call.given, call.board))
                    case other:
                        assert_never(other)

    async def widen(self, reservation: Reservation, nanos: int) -> None:
        """Raise the reservation of a running call, if there is room."""
        if nanos <= reservation.nanos:
            return
        asking = self._apply(reservation.id, reservation.at, reservation.payer, nanos)
        with suppress(RouterError):  # then what is set aside has to do
            if await in_time(asking, self._clock, reservation.until) is None:
                reservation.nanos = nanos

    def release(self, reservation: Reservation) -> None:
        """Release the reservation of a call that came to nothing."""
        account = reservation.payer.caller.account
        self._retry_queue.put(account, [Settle(id=reservation.id, at=timestamp(self._clock.time()))])
        self._turns.changed(account)

    def settled(self, reservation: Reservation) -> None:
        """Wake the calls that wait for money: a reservation has ended."""
        self._turns.changed(reservation.payer.caller.account)

    async def _plan(self, call: Call, tightest: Purse, choose: Choosing) -> Plan | None:
        """Decide within what the tightest level has left; None where that is too little."""
        own = call.given
        given = within(own, Room(tightest.left_nanos, None))
        if given == own:
            return await choose(call, own)
        if _may_be_short(given, call) and not pays_for_any(given, call.board):
            return None
        try:
            return await choose(call, given)
        except NoCandidates:
            return None

    async def _standing(self, call: Call, payer: Payer) -> Standing:
        """How a payer stands by now."""
        return await in_time(self._accounts.standing(payer.caller, payer.run), self._clock, call.deadline)

    async def _reserve(self, call: Call, payer: Payer, nanos: int) -> _Full | None:
        try:
            asking = self._apply(call.id, timestamp(call.created_at), payer, nanos)
            if not self._storage.is_immediate:
                return await in_time(asking, self._clock, call.deadline)
            return await asking
        except BaseException:
            self._retry_queue.put(payer.caller.account, [Settle(id=call.id, at=timestamp(self._clock.time()))])
            raise

    async def _apply(self, id: str, at: str, payer: Payer, nanos: int) -> _Full | None:
        """Reserve; what has no room is given back."""
        write = Reserve(
            id=id,
            nanos=nanos,
            owner=self._leases.id,
            lease_s=self._leases.lease_s,
            clock_s=self._clock.monotonic(),
            at=at,
            key_id=payer.caller.key_id,
            run=payer.run,
        )
        try:
            await self._storage.apply(payer.caller.account, [write])
        except PreconditionFailed as error:
            try:
                return msgspec.convert({"purse": error.detail, "waits": error.detail["waits"]}, _Full)
            except (LookupError, TypeError, ValueError):  # of a storage of the host's own
                raise InternalError("the storage refused a reservation without saying which purse is short") from None
        return None

    def _waited_for(self, account: str, standing: Standing) -> Purse | None:
        """A purse that the call needs, and others wait for."""
        limited = (purse for purse in standing.purses if purse.limit_nanos is not None)
        return next((purse for purse in limited if self._turns.is_waited_for(account, purse.name)), None)

    async def _queue(self, turn: AsyncExitStack, call: Call, purse: Purse, until: float) -> None:
        """Wait until nobody of this process is before it."""
        self._check_time(call, purse, until)
        with self._clock.deadline(until):
            await turn.enter_async_context(self._turns.first(call.caller.account, purse.name))
            return
        self._check_time(call, purse, until)

    async def _wait(self, call: Call, purse: Purse, until: float) -> None:
        """Wait until something may have been given back."""
        self._check_time(call, purse, until)
        with self._clock.deadline(until):
            await self._turns.change(call.caller.account)
        self._check_time(call, purse, until)

    def _check_time(self, call: Call, purse: Purse, until: float) -> None:
        """Raise ``RateLimited`` for who can wait no longer, or may not."""
        if self._clock.monotonic() >= until:
            given_up = call.given.timeout_ms if until >= call.deadline else None
            raise held_by_others(purse, given_up)


class Cover:
    """What a call that runs is covered for, and the way to more."""

    def __init__(self, money: Money, reservation: Reservation) -> None:
        self._money = money
        self._reservation = reservation

    @property
    def nanos(self) -> int:
        """What is set aside."""
        return self._reservation.nanos

    async def widen(self, nanos: int) -> None:
        """Have so much set aside, if there is room."""
        await self._money.widen(self._reservation, nanos)


class _Full(msgspec.Struct, frozen=True):
    """A level that has no room. ``waits``: others only hold it."""

    purse: Purse
    waits: bool


def _may_be_short(given: DecisionInput, call: Call) -> bool:
    """Whether there may be models that a budget does not pay for, at first sight."""
    picos = (given.budget_nanos or 0) * PICOS_PER_NANO
    return not call.board.outlook.costs_at_most(given.tokens.high, given.max_output_tokens, picos)


def worst_of_start(plan: Plan, calls: int) -> int:
    """The most that the first calls of a plan can cost that are made at once, in nano-dollars."""
    given = plan.given
    cap, _ = plan_output(plan, given.tokens, own_room(given))
    assert cap is not None, "where money is limited a cap is sent"
    first = worst_of_call(plan.legs[0], given.tokens, cap).nanos
    together = first + sum(worst_wanted(given, leg, given.tokens).nanos for leg in plan.legs[1:calls])
    return min(together, max(first, given.budget_nanos or 0))
