"""How do many requests run side by side, out of one budget? They start in their order, so many at a time, each once the
budget holds the worst that it can cost; what it did not use is there for those behind it."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from msgspec.structs import replace

from routewright._core.call import Call
from routewright._core.money import usd, usd_text
from routewright._core.routing.budget import (
    Amount,
    Room,
    Share,
    SharedBudget,
    own_room,
    within,
    worst_of_plan,
)
from routewright._core.routing.decide import pays_for_any
from routewright._core.routing.plan import Plan
from routewright.errors import BudgetExceeded, RouterError
from routewright.wire import Budget, Caller, DecisionInput

from .answer import Answer
from .execute import Execution
from .reading import Asked, Read
from .route import Engine

T = TypeVar("T")


class _End:
    """Stands for no further request."""


class Start(NamedTuple):
    """A request that may start."""

    read: Read
    call: Call
    share: Share | None


class Many(Generic[T]):
    """One run over many requests. ``asked`` says what each of the things that stand for one asks."""

    def __init__(
        self,
        engine: Engine,
        caller: Caller,
        asked: Callable[[T], Asked],
        *,
        limit: int,
        budget: SharedBudget | None,
    ) -> None:
        self._engine = engine
        self._caller = caller
        self._asked = asked
        self._limit = limit
        self._budget = budget
        self._results: dict[int, Answer | RouterError] = {}
        self._running = 0
        self._changed = anyio.Event()
        self._failed: BaseException | None = None

    async def run(self, requests: Iterable[T] | AsyncIterable[T]) -> list[Answer | RouterError]:
        """Answer them all, and give what became of each, in their order. Raises what is no ``RouterError``, and what
        the requests themselves raise, once all that ran has ended."""
        async with anyio.create_task_group() as group:
            try:
                await self._start_all(_iterator(requests), group)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                self._fail(error, group)
        if self._failed is not None:
            raise self._failed
        return [self._results[place] for place in range(len(self._results))]

    async def _start_all(self, requests: Iterator[T] | AsyncIterator[T], group: TaskGroup) -> None:
        place = 0
        while not isinstance(request := await self._next(requests), _End):
            try:
                start = await self._admit(request)
            except RouterError as error:
                self._results[place] = error
            else:
                self._running += 1
                group.start_soon(self._run, place, start, group)
            place += 1

    async def _next(self, requests: Iterator[T] | AsyncIterator[T]) -> T | _End:
        """The next request, once there is a place for it."""
        await anyio.lowlevel.checkpoint()
        while self._running >= self._limit:
            await self._changed.wait()
        if isinstance(requests, Iterator):
            return next(requests, _End())
        return await anext(requests, _End())

    async def _admit(self, request: T) -> Start:
        """Let a request in as soon as the budget has room for it. Its time begins then."""
        read = await self._engine.read(self._asked(request))
        while True:
            call = self._engine.admit(read, self._caller)
            await self._engine.guard(call)
            if self._budget is None:
                return Start(read, call, None)
            # refused here it fits not even if those who run use nothing of what they hold
            plan = await self._plan(call, self._budget)
            given = call.given
            worst = worst_of_plan(plan, given.tokens, own_room(given), given.max_retries + 1)
            share = self._budget.reserve(worst)
            if share is not None:
                _limit(call, within(given, share.room))
                return Start(read, call, share)
            await self._changed.wait()

    async def _plan(self, call: Call, budget: SharedBudget) -> Plan:
        """Decide within what is left. Where that is what refuses a request, it is said without a word on each model:
        there may be very many such requests, and no change of theirs helps."""
        own = self._engine.give(call)
        given = within(own, budget.left)
        _limit(call, given)
        if given == own:
            await self._engine.choose(call)
            return _plan_of(call)
        if not pays_for_any(given, call.board) and pays_for_any(own, call.board):
            self._engine.refuse(call, _spent(budget.left))
        try:
            await self._engine.choose(call)
            return _plan_of(call)
        except BudgetExceeded as error:
            told = _spent(budget.left)
            told.trace_id, told.request_id = error.trace_id, error.request_id
        raise told

    async def _run(self, place: int, start: Start, group: TaskGroup) -> None:
        execution: Execution | None = None

        def began(mine: Execution) -> None:
            nonlocal execution
            execution = mine

        try:
            self._results[place] = await self._engine.carry_out(start.read, start.call, began)
        except RouterError as error:
            self._results[place] = error
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            self._fail(error, group)
        finally:
            self._settle(start.share, execution)

    def _settle(self, share: Share | None, execution: Execution | None) -> None:
        if self._budget is not None and share is not None:
            self._budget.settle(share, Amount() if execution is None else execution.used)
        self._running -= 1
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _fail(self, error: BaseException, group: TaskGroup) -> None:
        """End everything."""
        self._failed = self._failed or error
        group.cancel_scope.cancel()


def _plan_of(call: Call) -> Plan:
    assert call.plan is not None, "it was decided"
    return call.plan


def _limit(call: Call, given: DecisionInput) -> None:
    """Give a call another input, whose budget its request is said to have."""
    cost = None if given.budget_nanos is None else usd(given.budget_nanos)
    call.given, call.request = given, replace(call.request, budget=Budget(cost, given.budget_tokens))


def _spent(left: Room) -> BudgetExceeded:
    money = [] if left.nanos is None else [f"${usd_text(max(left.nanos, 0))}"]
    rest = " and ".join(money + ([] if left.tokens is None else [f"{max(left.tokens, 0)} tokens"]))
    suggestion = "give route_many a larger budget, or fewer requests"
    said = f"the budget over all requests has {rest} left, which does not pay for this one; {suggestion}"
    return BudgetExceeded(said, detail={"rejected_candidates": [], "suggestion": suggestion})


def _iterator(requests: Iterable[T] | AsyncIterable[T]) -> Iterator[T] | AsyncIterator[T]:
    return aiter(requests) if isinstance(requests, AsyncIterable) else iter(requests)
