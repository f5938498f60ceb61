"""Decides for a call: counts tokens where their bounds leave the outcome open, asks the host's predictor, and keeps
within the money that the caller has left. The rules are pure (``_core/routing``); this file awaits between them."""

from __future__ import annotations

from contextlib import suppress

from routewright._core.accounts.purses import money_error, reserved_error
from routewright._core.call import Call
from routewright._core.request.rules import check_costs_nothing
from routewright._core.routing.budget import UNLIMITED, Amount, Share, room_of, worst_of_plan, worst_of_start
from routewright._core.routing.choice import class_choice, input_of_call, limit_to_money
from routewright._core.routing.constraints import CountTokens
from routewright._core.routing.decide import Choice, choose, choose_vocabularies, decide, least_nanos
from routewright._core.routing.inputs import Defaults
from routewright._runtime.loop import at_once
from routewright.errors import BudgetExceeded, NoCandidates, StorageUnavailable
from routewright.wire import DecisionInput, Grant, Overrun, Replay

from .admission import TRIES, Admission
from .counting import Counting
from .fleet import Fleet


class Deciding:
    """Decides for calls. Safe to use from several loops and threads."""

    def __init__(self, counting: Counting, defaults: Defaults) -> None:
        self.counting = counting
        self._defaults = defaults

    async def afford(self, admission: Admission, call: Call) -> Choice | bytes:
        """Decide within the money that the caller has left, and reserve the most that the plan can cost."""
        # To read the balance, decide within it and call would spend one balance many times: the figure in memory is old
        # once another process, or another call, is admitted. So it only guides the first decision. What counts is the
        # storage's answer to `take`, which checks and reserves in one step (contract 7; P2: spent and reserved never
        # exceed the limit). If that is short, the decision is made again within what the storage says is left, and a
        # cheaper model may fit; a call is refused only if none does. A figure that is too low refuses nothing either:
        # without a choice the call asks for one nano-dollar more than it knows of, and the storage corrects it.
        # test_cached_balances_neither_admit_nor_refuse, test_a_cheaper_model_answers_if_the_balance_covers_no_other
        left_nanos = (admission.left or await admission.look()).nanos
        own_input = None
        if left_nanos is not None and call.asks is not None:
            check_costs_nothing(call.request.params)
        own_budget = None if call.request.budget is None else room_of(call.request.budget)
        fallback = None if call.policy is None else call.policy_fallback
        calls = 2 if fallback is not None and fallback.hedge else 1
        for _ in range(TRIES):
            choice = None
            nanos = 0
            if own_input is None:
                budget = own_budget
                if left_nanos is not None:
                    budget = (own_budget or UNLIMITED).within(left_nanos)
                choice = class_choice(call, budget, self._defaults)
                if choice is None:
                    own_input = self.input_of(call)
            if own_input is not None:
                choice = await self._choose_within(call, own_input, left_nanos)
            if left_nanos is not None:
                nanos = max(left_nanos + 1, 1)  # the least that any model can need
                if choice is not None:
                    bounds = call.bounds if choice.own_input is None else choice.own_input.tokens
                    nanos = worst_of_start(choice.plan, bounds, choice.budget or UNLIMITED, calls)
            reply = await admission.take(nanos)
            if isinstance(reply, Replay):
                return reply.result
            if isinstance(reply, Grant):
                if choice is not None and (left_nanos is not None or not reply.is_limited):
                    if not self._is_outdated(call, choice):
                        return choice
                    own_input = None
                    await admission.take()  # else two that widen at once would wait for one another
                left_nanos = (await admission.look()).nanos
            elif reply.waits:
                raise reserved_error(reply.purse, call.timeout_ms if admission.is_patient else None)
            elif choice is None:
                counted = await self.counting.count(call, own_input or self.input_of(call))
                raise money_error(reply.purse, least_nanos(counted, call.board))
            else:
                left_nanos = reply.purse.left_nanos
        raise StorageUnavailable(f"the caller's balance changed during each of {TRIES} decisions; try again")

    async def reserve(self, admission: Admission, call: Call) -> None:
        """Limit a call to what it can reserve of its run's budget: room for all its attempts, or else for the first.
        Waits within the call's time for money that other calls hold. Raises ``QuotaExhausted`` if the rest of the
        budget is too little, and ``RateLimited``."""
        in_run = admission.in_run
        assert in_run is not None, "`enter` has looked"
        run = in_run.inside.scope
        assert run.budget is not None, "`enter` has looked"
        assert run.purse is not None, "it has a budget"
        own_budget = call.request.budget
        while True:
            call.limit(run.budget.left)
            try:
                choice = await self.choice(call)
            except BudgetExceeded:
                if call.request.budget == own_budget:
                    raise
                counted = await self.counting.count(call, self.input_of(call))
                raise money_error(run.purse, least_nanos(counted, call.board)) from None
            tokens = call.bounds if choice.own_input is None else choice.own_input.tokens
            whole = worst_of_plan(choice.plan, tokens, UNLIMITED, choice.plan.decision_input.max_retries + 1)
            start = Amount(worst_of_start(choice.plan, tokens, choice.budget or UNLIMITED))
            share = in_run.reserve(whole, start)
            if isinstance(share, Share):
                call.limit(share.room)
                return
            if not await admission.await_room(share):
                raise reserved_error(run.purse, call.timeout_ms if admission.is_patient else None)

    def _is_outdated(self, call: Call, choice: Choice) -> bool:
        """True if the decision reserves less than a provider of the plan has billed since. The call then has newer
        snapshots."""
        # A call may wait for money between its decision and its grant, often for the very call whose provider then
        # bills too much. Admitted with the old reservation, it would overspend with full knowledge
        # (test_a_call_that_waited_for_money_is_covered_by_what_it_waited_for).
        fleet = call.fleet
        assert isinstance(fleet, Fleet), "`make_call` took one"
        overruns = fleet.health.overruns
        if not overruns or all((leg.overrun or Overrun()).covers(overruns.get(leg.row)) for leg in choice.plan.legs):
            return False
        call.renew(fleet.board().with_dials(call.board.pool.dials))
        return True

    async def choice(self, call: Call) -> Choice:
        """Decide within the call's own budget. Long prompts are counted in a worker thread; in plain code this blocks.
        Raises ``NoCandidates``."""
        budget = None if call.request.budget is None else room_of(call.request.budget)
        return class_choice(call, budget, self._defaults) or await self.choose(call, self.input_of(call))

    def input_of(self, call: Call) -> DecisionInput:
        """The input of a decision for the call alone, with the host's predicted qualities, if any."""
        decision_input = input_of_call(call, self._defaults)
        return decision_input if self.counting.predictor is None else self.counting.with_qualities(call, decision_input)

    async def choose(self, call: Call, decision_input: DecisionInput) -> Choice:
        """Decide by an input of the call's own, and count tokens if their bounds leave the outcome open."""
        with suppress(CountTokens):  # so that it is not in the chain of a later refusal
            return choose(decision_input, call.board, call.applied_policy)
        vocabularies = choose_vocabularies(decision_input, call.board)  # those whose counts can change the decision
        counted = await self.counting.count(call, decision_input, vocabularies)
        return choose(counted, call.board, call.applied_policy)

    async def _choose_within(self, call: Call, own_input: DecisionInput, left_nanos: int | None) -> Choice | None:
        """Decide within the money that is left. None if that is too little. A refusal that has nothing to do with the
        balance is raised."""
        decision_input = own_input if left_nanos is None else limit_to_money(call, own_input, left_nanos)
        if decision_input is not None:
            try:
                return await self.choose(call, decision_input)
            except NoCandidates:
                if decision_input is own_input:
                    raise
        await self.choose(call, own_input)
        return None

    def count_tokens(self, call: Call) -> DecisionInput:
        """The decision's input, with tokens counted."""
        return at_once(self.counting.count(call, self.input_of(call)))

    async def refuse_too_long(self, call: Call) -> None:
        """Raise the decision's refusal of a prompt that no model can take, before guardrails spend time on it. The
        decision repeats the check, since guardrails may change the prompt."""
        refused = await self.counting.find_excess(call, input_of_call(call, self._defaults))
        if refused is not None:
            decide(refused, call.board, call.applied_policy)
