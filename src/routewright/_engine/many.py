"""Runs many requests concurrently within one budget.

They start in order, a limited number at a time, each once the budget covers its worst case. Unused budget is available
to later requests."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from routewright._core.call import Call
from routewright._core.request.read import STREAMED
from routewright._core.request.rules import check_costs_nothing
from routewright._core.routing.budget import UNLIMITED, Room, Share, SharedBudget, limit_to, worst_of_plan
from routewright._core.routing.choice import input_of_call
from routewright._core.routing.decide import Choice, pays_for_any
from routewright.errors import BudgetExceeded, RouterError, ValidationFailed
from routewright.wire import Caller
from routewright.wire.money import usd_text

from .answer import Answer
from .request_input import RawRequest, Read
from .route import Engine

T = TypeVar("T")
_END: Any = object()
"""Marks the end of the requests."""


class Many(Generic[T]):
    """One run over many requests. ``to_request`` reads each."""

    def __init__(
        self,
        engine: Engine,
        caller: Caller,
        to_request: Callable[[T], RawRequest | Read],
        *,
        limit: int,
        budget: SharedBudget | None,
    ) -> None:
        self._engine = engine
        self._caller = caller
        self._to_request = to_request
        self._limit = limit
        self._budget = budget
        self._results: dict[int, Answer | RouterError] = {}
        self._running = 0
        self._changed = anyio.Event()
        self._failed: BaseException | None = None

    async def run(self, requests: Iterable[T] | AsyncIterable[T]) -> list[Answer | RouterError]:
        """Answer all; returns the answer or ``RouterError`` of each, in order. Any other exception, also of the
        iterable itself, cancels all and is raised."""
        async with anyio.create_task_group() as group:
            with self._ending(group):
                await self._start_all(aiter(requests) if isinstance(requests, AsyncIterable) else iter(requests), group)
        if self._failed is not None:
            raise self._failed
        return [self._results[index] for index in range(len(self._results))]

    async def _start_all(self, requests: Iterator[T] | AsyncIterator[T], group: TaskGroup) -> None:
        index = 0
        while True:
            await anyio.lowlevel.checkpoint()
            while self._running >= self._limit:
                await self._changed.wait()
            if isinstance(requests, Iterator):
                request = next(requests, _END)
            else:
                request = await anext(requests, _END)
            if request is _END:
                return
            try:
                started = await self._admit(request)
            except RouterError as error:
                self._results[index] = error
            else:
                self._running += 1
                group.start_soon(self._run, index, group, *started)
            index += 1

    async def _admit(self, request: T) -> tuple[Read, Call, Share | None]:
        """Admit a request once the budget has room for it. Its time starts then."""
        read = await self._engine.read(self._to_request(request))
        if read.request.stream:
            raise ValidationFailed.of(STREAMED)
        screening = None
        caller = await self._engine.admissions.find_rights(read, self._caller)
        while True:
            call = self._engine.make_call(read, caller)
            if screening is None:  # once: a host's guardrails may be slow, or cost something
                await self._engine.guard(call)
                screening = call.request, call.hits, call.bounds
            else:
                call.pass_guardrails(*screening)
            if self._budget is None:
                return read, call, None
            if self._budget.left.nanos is not None:
                check_costs_nothing(call.request.params)
            # refused here if it does not fit even when running requests use nothing of their reservations
            choice = await self._choose(call, self._budget.left)
            decision_input = choice.plan.decision_input if choice.own_input is None else choice.own_input
            tokens = call.bounds if choice.own_input is None else choice.own_input.tokens
            tries = decision_input.max_retries + 1
            share = self._budget.reserve(worst_of_plan(choice.plan, tokens, choice.budget or UNLIMITED, tries))
            if share is not None:
                call.limit(share.room)
                return read, call, share
            await self._changed.wait()

    async def _choose(self, call: Call, left: Room) -> Choice:
        """Decide within the rest of the shared budget. A refusal for that budget does not list the models, since very
        many requests may be refused alike."""
        own_input = input_of_call(call, self._engine.defaults)
        decision_input = limit_to(own_input, left)
        call.limit(left)
        is_less = decision_input != own_input
        try:
            if is_less and not pays_for_any(decision_input, call.board) and pays_for_any(own_input, call.board):
                raise _budget_spent(left)
            return await self._engine.deciding.choice(call)
        except BaseException as error:
            self._engine.conclude_undecided(call, error)
            if not (isinstance(error, BudgetExceeded) and is_less):
                raise
            spent = _budget_spent(left)
            spent.trace_id, spent.request_id = error.trace_id, error.request_id
        raise spent

    async def _run(self, index: int, group: TaskGroup, read: Read, call: Call, share: Share | None) -> None:
        with self._ending(group):
            try:
                self._results[index] = await self._engine.carry_out(read, call)
            except RouterError as error:
                self._results[index] = error
            finally:
                if self._budget is not None and share is not None:
                    self._budget.settle(share, call.used)
                self._running -= 1
                changed, self._changed = self._changed, anyio.Event()
                changed.set()

    @contextmanager
    def _ending(self, group: TaskGroup) -> Iterator[None]:
        """Cancel the run on an exception; ``run`` raises the first."""
        try:
            yield
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            self._failed = self._failed or error
            group.cancel_scope.cancel()


def _budget_spent(left: Room) -> BudgetExceeded:
    money = [] if left.nanos is None else [f"${usd_text(max(left.nanos, 0))}"]
    amounts = " and ".join(money + ([] if left.tokens is None else [f"{max(left.tokens, 0)} tokens"]))
    suggestion = "give route_many a larger budget, or fewer requests"
    problem = f"the budget over all requests has {amounts} left, which does not pay for this one; {suggestion}"
    return BudgetExceeded(problem, detail={"rejected_candidates": [], "suggestion": suggestion})
