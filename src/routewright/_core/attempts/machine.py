"""Walks a plan: decides which attempt comes next, by the table in ``faults.py``. Does no I/O.

    next() -> Attempt ─── record_success() ─────────────────────────────> end
                    └──── record_fault() ─┬─ answer can be repaired ────> Attempt, same model, once, with the error
                                          ├─ retryable, tries left ─────> [Wait] Attempt, same model
                                          ├─ another model may help ────> Attempt, next affordable model
                                          └─ refused, late, exhausted ──> end

A second attempt may run beside a silent one: ``hedge`` starts it, ``abandon`` ends the loser.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from routewright._core.attempts.record import Attempt
from routewright._core.catalogue.prices import call_nanos, dearest_at, usage_nanos
from routewright._core.routing.budget import Amount, Room, RoomTooSmall, output_cap, plan_output
from routewright._core.routing.plan import Plan
from routewright._core.tokens.estimate import lengthen
from routewright.wire import FaultKind, OnPartial, TokenBounds

from .fallback import Chain, Traffic
from .faults import FAULTS, Fault
from .retry import Retries
from .timeouts import FALLBACK_SHARE, ExecutionLimits, is_too_late

_REFUSED_ELSEWHERE = FAULTS[FaultKind.REFUSED]._replace(fall_back=True)  # if the policy falls back on refusals


class End(StrEnum):
    """How a request ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    BLOCKED = "blocked"
    """Every answer was blocked by a guardrail."""


_ENDS = {FaultKind.BLOCKED: End.BLOCKED, FaultKind.REFUSED: End.REFUSED}
"""How a request ends with nothing left to try, by its last fault; default ``FAILED``."""


class Rules(NamedTuple):
    """How to execute one request."""

    limits: ExecutionLimits
    on_partial: OnPartial = "restart"
    on_refusal_fall_back: bool = False
    hedged: bool = False
    retries: Sequence[int | None] | None = None
    """Retries per row, set by its provider; None: as in the decision's input."""


class Wait(NamedTuple):
    """Pause, then call ``next`` again."""

    seconds: float


class Attempts(Struct, eq=False):
    """Walks one decision's plan."""

    plan: Plan
    bounds: TokenBounds
    """Of the prompt."""
    budget: Room | None
    """The call's own budget, if any."""
    room: Room | None
    """The rest of the budget, or of the amount given to ``cover``."""
    deadline: float
    timeout_s: float
    whole: bool
    """The caller wants the whole answer, not a stream."""
    traffic: Traffic
    rules: Rules
    on_partial: OnPartial
    """The reaction to a fault after content was delivered."""
    chain: Chain
    running: list[Attempt] = []
    """The current attempt, then its hedge."""
    end: End | None = None
    """Set when the request has ended."""
    spent: Amount = Amount()
    """The most that may have been spent."""
    latest: float = 0.0
    """The time by which the latest attempt must show a first token, to leave the next model its share of the time. For
    the last model it is the deadline."""
    pause_s: float = 0.0
    """The pause before the next attempt."""
    _number: int = 0
    _retries: Retries = field(default_factory=Retries)
    _last: Attempt | None = None
    """The attempt that failed last."""
    _repair: TokenBounds | None = None

    def __repr__(self) -> str:
        # without texts, such as the answer to repair: tracebacks may show this
        return f"<{type(self).__name__} of {self.plan}: {self.end or 'under way'}>"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """For ``rich``; without texts."""
        return [("plan", self.plan), ("end", self.end)]

    def next(self, now: float) -> Attempt | Wait | None:
        """The next action at ``now`` (monotonic seconds); None at the end."""
        # The order of the checks is the rule. The deadline comes before the pause and before any model (P5:
        # ``timeout_ms`` bounds the whole call, ``test_the_deadline_ends_the_request_in_any_state``). Too little time is
        # a reason not to try again, but never a reason not to try at all: the first attempt is made however late it is
        # (``test_the_first_attempt_is_made_however_late_and_its_fault_decides_the_end``). Circuits come last. If
        # nothing but open circuits is left, skipping them all would turn a short outage into a refusal, so the model
        # that is due soonest is called (contract 4), once, or two dead models would be called in turns until the
        # deadline (``test_if_all_circuits_are_open_the_model_due_soonest_is_called_once``).
        if self.end is not None:
            return None
        if now >= self.deadline or (self._last is not None and self._too_late(now)):
            self.end = End.TIMED_OUT
            return None
        if self.pause_s:
            wait = Wait(self.pause_s)
            self.pause_s = 0.0
            return wait
        refused_places: list[int] = []
        attempt = self._reach(now, refused_places)
        if attempt is None and self.chain.force(refused_places, self.traffic):
            cap = self.plan.decision_input.max_output_tokens if self.room is None else self._affordable_cap(self.room)
            attempt = self._begin(now, cap, probe=True)
        if attempt is None:
            self.end = self._failure
        elif attempt.place and 0 in refused_places:
            attempt.past_circuit = True
        return attempt

    def record_success(self, attempt: Attempt) -> None:
        """Record a complete answer. The attempt's usage is set."""
        self.running.remove(attempt)
        room = self.room
        usage = attempt.usage
        if room is not None and usage is not None:
            tokens = usage.input + usage.output
            self.spent = Amount(self.spent.nanos + attempt.cost_nanos, self.spent.tokens + tokens)
            self.room = Room(
                None if room.nanos is None else room.nanos - attempt.cost_nanos,
                None if room.tokens is None else room.tokens - tokens,
            )
        if self.end is None:  # else the other attempt was faster
            self.end = End.SUCCEEDED

    def record_fault(self, attempt: Attempt, fault: Fault, now: float, *, touched: bool, jitter: float = 0.0) -> None:
        """Record a fault, before the attempt's usage is estimated. ``touched``: the provider had begun to answer, so it
        may bill. ``jitter`` in [0, 1) spreads the retries of many callers."""
        self.running.remove(attempt)
        attempt.fault = fault.kind
        rule = FAULTS[fault.kind]
        if fault.kind is FaultKind.REFUSED and self.rules.on_refusal_fall_back:
            rule = _REFUSED_ELSEWHERE
        self._pay(attempt, broke_off=not attempt.counted and (touched or rule.billed))
        if self.end is not None:  # the other attempt ended the request
            return
        self._last = attempt
        if rule.reason == "safety" and not rule.fall_back:
            self.end = End.REFUSED
        elif self.running:
            self.chain.failed_places |= {attempt.place}
            self._go_on_with(self.running[0])
        elif now >= self.deadline:
            self.end = End.TIMED_OUT
        elif attempt.delivered and self.on_partial == "error":
            self.end = self._failure
        elif (  # once per model, and not in the time reserved for the next one
            rule.repair
            and fault.repair is not None
            and self._repair is None
            and (self.chain.is_last(self.chain.place) or now < self._share(now))
        ):
            self._repair = fault.repair.bounds
        elif (rule.retry if fault.retry is None else fault.retry) and self._may_retry(fault, now, jitter):
            pass
        elif rule.fall_back:
            self._move_on()
        else:
            self.end = self._failure

    def abandon(self, attempt: Attempt, *, touched: bool) -> None:
        """Record that an attempt was abandoned. Call it before its usage is estimated."""
        self.running.remove(attempt)
        self._pay(attempt, broke_off=touched)
        if self.running:
            self._go_on_with(self.running[0])

    def hedge(self, now: float) -> Attempt | None:
        """Start an attempt at the next model beside a silent one, if the budget and the retry budget allow it."""
        present = self.running[0]
        room = self.room
        if room is not None:
            self.room = room.without(self._worst(present))
        self._move_on()
        attempt = self._reach(now, []) if not self._too_late(now) and self.traffic.spares(now) else None
        self.room = room
        if attempt is None:
            self._go_on_with(present)
        else:
            attempt.hedge = True
        return attempt

    def hedge_after_s(self, attempt: Attempt) -> float | None:
        """Seconds of silence before a hedge; None for no hedge."""
        if not self.rules.hedged or self.is_last(attempt) or self._last is not None or attempt.hedge:
            return None
        usual_ms = attempt.leg.latency_p95_ms if self.whole else attempt.leg.ttft_p95_ms
        return None if usual_ms is None else usual_ms / 1000

    def is_last(self, attempt: Attempt) -> bool:
        """True if its model is the last of the chain."""
        return self.chain.is_last(attempt.place)

    def may_move_on(self, attempt: Attempt) -> bool:
        """True if another model may take over: there is one, and the text delivered so far can be voided."""
        if self.is_last(attempt):
            return False
        return self.whole or not (attempt.delivered and self.on_partial == "error")

    def may_leave(self, attempt: Attempt) -> bool:
        """True if an answer below the minimum throughput may be abandoned; a complete one is kept."""
        return attempt.finish_reason is None and self.may_move_on(attempt)

    def cover(self, nanos: int) -> None:
        """Limit the total cost of all attempts to ``nanos``, or to the call's budget if that is smaller."""
        budget = self.budget or Room(None, None)
        limit = nanos if budget.nanos is None else min(nanos, budget.nanos)
        self.room = Room(limit - self.spent.nanos, (self.room or budget).tokens)

    @property
    def _failure(self) -> End:
        """The end of a request with nothing left to try."""
        return End.FAILED if self._last is None or self._last.fault is None else _ENDS.get(self._last.fault, End.FAILED)

    def _too_late(self, now: float) -> bool:
        """True if there are models left, but too little time for another attempt."""
        return self.chain.leg is not None and is_too_late(now, self.deadline, self.timeout_s, self.rules.limits)

    def _reach(self, now: float, refused_places: list[int]) -> Attempt | None:
        """Start an attempt at the first model, from the current place on, that is affordable and may be called. Adds
        places with open circuits to ``refused_places``."""
        chain = self.chain
        legs = chain.legs
        tripped = self.traffic.circuits.tripped
        cap = self.plan.decision_input.max_output_tokens
        while (position := chain.place) < len(legs):
            if self.room is not None:
                try:
                    cap = self._affordable_cap(self.room)
                except RoomTooSmall:
                    self._move_on()
                    continue
            if position not in chain.failed_places:
                row = legs[position].row
                if row not in tripped:
                    return self._begin(now, cap)
                admitted = self.traffic.admits(row, now)
                if admitted is not False:
                    return self._begin(now, cap, probe=admitted is None)
                refused_places.append(position)
            self._move_on()
        return None

    def _affordable_cap(self, room: Room) -> int | None:
        """The output cap for the current model. Raises ``RoomTooSmall``."""
        if self._number == self.chain.place == 0:
            return plan_output(self.plan, self.bounds, self.budget or room).cap
        return output_cap(self.plan.decision_input, self.chain.legs[self.chain.place], self._shown(self._repair), room)

    def _begin(self, now: float, cap: int | None, *, probe: bool = False) -> Attempt:
        """Start an attempt at the current model, with its time limits."""
        chain = self.chain
        deadline = self.deadline
        position = chain.place
        leg = chain.legs[position]
        self._number = number = self._number + 1
        self._retries.count += 1
        is_whole = self.whole or self.traffic.is_whole[leg.row]
        patience_s = max(leg.whole_patience_s if is_whole else leg.patience_s, self.rules.limits.first_token_s)
        if position + 1 >= len(chain.legs):
            latest = wake_at = deadline
        else:
            left_s = deadline - now if position else self.timeout_s  # all of it, whenever the first attempt begins
            latest = max(now, deadline - FALLBACK_SHARE * left_s)
            wake_at = min(now + patience_s, latest)
        self.latest = latest
        attempt = Attempt(number, leg, cap, patience_s, wake_at, now)
        if position:
            attempt.place = position
        if number > 1:
            attempt.after = self._last
            attempt.repair = self._repair
        if self.budget is not None and cap is not None:
            attempt.budget_capped = cap < (self.plan.decision_input.max_output_tokens or leg.max_output)
        if probe:
            attempt.probe = True
        self.running.append(attempt)
        return attempt

    def _share(self, now: float) -> float:
        """The deadline, minus the time reserved for the next model."""
        left_s = self.deadline - now if self.chain.place else self.timeout_s
        return max(now, self.deadline - FALLBACK_SHARE * left_s)

    def _may_retry(self, fault: Fault, now: float, jitter: float) -> bool:
        """Set the pause before a retry of the same model. False if the next model should be tried instead."""
        retries = None if self.rules.retries is None else self.rules.retries[self.chain.legs[self.chain.place].row]
        if retries is None:
            retries = self.plan.decision_input.max_retries
        pause_s = self._retries.pause_s(self.rules.limits, retries, fault.retry_after, jitter)
        if pause_s is None or self._too_late(now + pause_s) or not self.traffic.spares(now):
            return False
        self.pause_s = pause_s
        return True

    def _move_on(self) -> None:
        """Step to the next model."""
        is_overflow = self._last is not None and self._last.fault is FaultKind.CONTEXT_OVERFLOW
        self._repair = None
        self._retries = Retries()
        self.chain.move_on(self.bounds if is_overflow else None)

    def _go_on_with(self, running: Attempt) -> None:
        """Return to the place of the attempt that runs on alone."""
        self.chain.place = running.place
        self._repair = running.repair
        self._retries = Retries(1)

    def _pay(self, attempt: Attempt, *, broke_off: bool) -> None:
        """Deduct an attempt's usage from the room; if it broke off, the most it can have used."""
        # The sum of what providers reported is not what they bill. An attempt that broke off reports nothing, or early
        # counts, and the vendor goes on writing after we have hung up; the fallback would then spend money that is
        # gone. A budget is a promise over all attempts (P2: spent + reserved never exceeds the limit), so such an
        # attempt counts as its worst case: the longest input it may have had, a repair's included, and its whole cap,
        # or what it reported, if that is more. One that never began to answer is free (contract 4).
        # ``test_usage_is_deducted_as_reported_at_the_end_and_else_as_the_worst_case``;
        # ``test_any_order_of_events_ends_once_within_the_budget`` tries random orders.
        if self.room is None:
            return
        amount = Amount()
        if attempt.usage is not None:
            amount = Amount(usage_nanos(attempt.prices, attempt.usage), attempt.usage.input + attempt.usage.output)
        if broke_off:
            worst = self._worst(attempt)
            amount = Amount(max(amount.nanos, worst.nanos), max(amount.tokens, worst.tokens))
        self.room = self.room.without(amount)
        self.spent = self.spent.plus(amount)

    def _worst(self, attempt: Attempt) -> Amount:
        """The most nano-dollars and tokens an attempt can have used."""
        prices = attempt.leg.prices_held if attempt.leg.is_dialled else attempt.prices
        high = attempt.leg.length(self._shown(attempt.repair))[1]
        cap = attempt.cap or attempt.leg.max_output
        if attempt.leg.overrun is not None:
            high, cap = attempt.leg.overrun.billed(high, cap)
        return Amount(call_nanos(dearest_at(prices, high), high, cap) if prices else 0, high + cap)

    def _shown(self, repair: TokenBounds | None) -> TokenBounds:
        """Token bounds of the prompt, including a repair request."""
        return self.bounds if repair is None else lengthen(self.bounds, repair)
