"""A running plan: starts attempts, collects their chunks, prices them, books health, and reports to the machine.

It calls no provider and never waits for one: an ``Execution`` does, or, with ``Steps``, the host."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from routewright._core.attempt import Attempt
from routewright._core.attempts.budgets import Pace
from routewright._core.attempts.faults import FAULTS, hint_of
from routewright._core.attempts.machine import FALLBACK_SHARE, Attempts, End, Wait
from routewright._core.call import Call
from routewright._core.guardrails.screen import Hit
from routewright._core.routing.budget import Amount, worst_of_call, worst_wanted
from routewright._core.structured_output import Fit, Form, Repair
from routewright.errors import ProviderFault, RouterError
from routewright.protocols import Clock, Deadline, Guardrail, Provider, Rng
from routewright.wire import Chunk, Delta, FallbackReason, FaultKind, Finish, Params, ToolDelta, UpstreamCall, Usage
from routewright.wire.json_scan import quoted

from .admission import Admission
from .classify import FILTERED, TOO_SLOW, WITH_GUARDRAILS, Fault, fault_of, misfit, no_answer, silence
from .context import CancelWatch, Onward
from .fleet import Fleet
from .guardrail import Screen

FAREWELL_S = 0.5
"""How long closing an attempt may take. A clean close of a complete one keeps its connection for the next call."""
LEAST_IDLE_S = 1.0
"""A shorter silence never ends an answer in favour of the next model."""

LEAST_WAIT_S = 0.001
"""Chunks at shorter intervals count as one burst, timed by its first."""

_log = logging.getLogger(__name__)
_NO_PARAMS = Params()


class AttemptStarted(NamedTuple):
    """A model is being called."""

    attempt: Attempt
    from_model: str | None
    reason: FallbackReason
    restart: bool
    """The text delivered so far is void."""


Part = AttemptStarted | Delta | ToolDelta | Finish


class Blocked(Exception):
    """A guardrail blocks the answer."""

    def __init__(self, hit: Hit) -> None:
        super().__init__(hit.guardrail)
        said = f"blocked: by guardrail {quoted(hit.guardrail)}, rule {quoted(hit.rule)}"
        self.fault = Fault(FaultKind.BLOCKED, said, answered=True)


class Exchange(Struct, eq=False):
    """The exchange with a provider during an attempt. Times are on the monotonic scale."""

    attempt: Attempt
    provider: Provider
    upstream: UpstreamCall
    scoped: bool
    """Waits are limited by cancel scopes."""
    pace: Pace | None
    """None unless streamed."""
    wake_at: float
    """When the present wait ends at the latest."""
    since: float = 0.0
    """When the present wait began: at the last chunk, or when a reader asked for the next."""
    context: AbstractAsyncContextManager[AsyncIterator[Chunk]] | None = None
    chunks: AsyncIterator[Chunk] | None = None
    limit: Deadline | None = None
    """The deadline of the present wait."""
    watch: CancelWatch = None  # type: ignore[assignment]  # set when a wait begins
    """The task that waits."""
    parts: deque[Part] | None = None
    screening: bool = False
    """A guardrail is checking a part."""
    over: bool = False
    """The provider's context was left."""
    taken: int = 0
    """Chunks since the last checkpoint."""

    def __repr__(self) -> str:
        # without text, since a repr ends up in logs
        return f"<Exchange of {self.attempt}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """For ``rich``, without text as well."""
        return [("attempt", self.attempt)]

    def wake(self, at: float) -> None:
        """Set when the present wait ends, and later ones."""
        self.wake_at = at
        if self.limit is not None:
            self.limit.move(at)


class Progress(Attempts, kw_only=True):
    """A running plan. Not safe to use from two tasks or threads at once."""

    call: Call
    fleet: Fleet
    clock: Clock
    rng: Rng
    until: float
    """When all waiting ends: the deadline, or earlier if the reader left."""
    sandbox: bool
    form: Form | None = None
    guardrails: Sequence[Guardrail] = ()
    onward: Onward | None = None
    """The trace context sent to providers."""
    exchange: Exchange | None = None
    error: RouterError | None = None
    cause: BaseException | None = None
    """The exception that the last attempt's provider raised instead of a ``ProviderFault``."""
    data: Any = None
    payer: Admission | None = None
    """Reserves money for the call, which may not cost more."""
    _pause_for_s: float = 0.0
    _repair_with: Repair | None = None
    """Messages that ask the present model to repair its last answer."""

    def advance(self) -> Exchange | Wait | None:
        """Start the machine's next step; None at the end."""
        now = self.clock.monotonic()
        step = self.next(now)
        if isinstance(step, Attempt):
            self.exchange = exchange = self._open_for(step, now)
            return exchange
        if step is not None:
            self._pause_for_s = step.seconds
        return step

    def end_with(self, error: RouterError | None) -> None:
        """End with an error that is not a provider's fault, unless it has ended. None has no effect."""
        if error is not None and self.end is None:
            self.error, self.end = error, End.FAILED

    @property
    def used(self) -> Amount:
        """Upper bound for the budget used. An answer without reported usage counts with the most it can cost."""
        used, served = self.spent, self.call.served
        if served is None or served.usage is None or served.cap is None:
            return used
        if served.counted and not served.usage_estimated:
            return used
        worst = worst_of_call(served.leg, self.call.bounds, served.cap)
        booked = Amount(served.cost_nanos, served.usage.input + served.usage.output)
        return used.plus(worst.without(booked))

    async def widen(self) -> None:
        """Reserve enough money for the next model, if the call has a reservation."""
        payer, leg = self.payer, self.next_leg
        if payer is None or leg is None or not self.call.attempts:
            return
        await payer.widen(self.spent.nanos + worst_wanted(self.plan.given, leg, self.call.bounds).nanos)
        self.cover(payer.nanos)

    @property
    def broke_off(self) -> bool:
        """True if it failed because a delivered part of the answer could not be taken back."""
        attempts = self.call.attempts
        return bool(attempts) and attempts[-1].delivered and self.on_partial == "error"

    def started(self, attempt: Attempt) -> AttemptStarted:
        """The event of a new attempt, with the model it replaces; that is the chosen one if it was skipped."""
        after, chosen = attempt.after, self.plan.legs[0].id
        if after is not None and after.fault is not None:
            return AttemptStarted(attempt, after.model, FAULTS[after.fault].reason, attempt.restart)
        passed_over = None if attempt.model == chosen else chosen
        return AttemptStarted(attempt, passed_over, "upstream_5xx", restart=False)

    def settle(self) -> None:
        """Price what the present attempt, if any, has produced so far."""
        if self.exchange is not None:
            self._settle(self.exchange)

    def ended(self, exchange: Exchange, fault: Fault, *, abandoned: bool = False) -> None:
        """End an attempt whose provider has nothing more, or was ``abandoned``: price the answer, book health, and
        report to the machine. After a complete answer ``fault`` is ignored."""
        attempt, call = exchange.attempt, self.call
        reason = attempt.finish_reason
        if self.end is not None:  # a hedged attempt has just won
            return self._leave_behind(exchange)
        if reason is None or exchange.screening:
            return self._book_fault(exchange, fault, abandoned=abandoned)
        if reason == "content_filter":
            return self._book_fault(exchange, FILTERED, abandoned=abandoned)
        if self.form is not None and (unfit := self._unfit(attempt, self.form)) is not None:
            return self._book_fault(exchange, unfit, abandoned=abandoned)
        usage = self._priced(attempt)
        call.served, self.cause = attempt, None
        if self.sandbox:
            attempt.unslept_ms = float(attempt.leg.expected_ms)
            if attempt.number == 1:
                self.fleet.asked(attempt.ended_at)
        else:
            caller, ended_at, started_at, first_at = call.caller, attempt.ended_at, attempt.started_at, attempt.first_at
            assert first_at is not None, "it has a finish reason"
            row, pool = attempt.leg.row, call.board.pool
            delay_s, tells = 0.0, reason == "stop" or reason == "tool_calls"  # other answers were cut off
            if pool.usual_output is not pool.output:  # health is learned for calls without an effort setting
                delay_s = pool.delay_ms[row] / 1000
                usage, told = pool.dials.as_usual(usage), pool.dials.effort != "none" and row not in pool.quiet
                tells = tells and told
            entry = (
                row,
                ended_at,
                max(ended_at - started_at - delay_s, 0.0),
                # unknown unless streamed
                None if self.whole else max(first_at - started_at - delay_s, 0.0),
                usage,
                tells and not attempt.usage_estimated,
                (caller.account, caller.environment, call.snapshot_ids[2], *call.workload_values),
                attempt.number == 1,
            )
            self.fleet.answered(entry, probe=attempt.probe)
        return self.succeeded(attempt)

    def _open_for(self, attempt: Attempt, now: float) -> Exchange:
        leg, call, fleet = attempt.leg, self.call, self.fleet
        row, request, pool = leg.row, call.request, call.board.pool
        provider = fleet.server[row]
        assert provider is not None, "constraints admit served models only"
        repair = None if attempt.repair is None else self._repair_with
        name = provider.name
        if name != leg.provider:
            attempt.server = name
        if self.guardrails:
            form = None if request.params is None else request.params.response_format
            attempt.screen = Screen(
                self.guardrails, as_json=form is not None and form.get("type") != "text", resting=self._resting
            )
        call.attempts = (*call.attempts, attempt)
        params = request.params or _NO_PARAMS
        upstream = UpstreamCall(
            pool.models[row],
            request.messages if repair is None else [*request.messages, *repair.messages],
            replace(params, reasoning="none") if row in pool.quiet else params,
            request.tools,
            request.tool_choice,
            attempt.cap,
            self.until,
            not self.whole,
            None if self.onward is None else self.onward.header(name, attempt.number),
            call.repeats,
        )
        if pool.dated:
            attempt.prices_of_day = pool.prices_on(row, fleet.today())
        pace = None if self.whole else Pace(self.rules.limits, leg.us_per_token)
        return Exchange(attempt, provider, upstream, fleet.scoped[row], pace, attempt.due_at, now)

    def _take(self, exchange: Exchange, chunk: Chunk) -> Delta | ToolDelta | Finish | None:
        """Record a chunk and its time. Returns it if it is for the caller."""
        attempt, now = exchange.attempt, self.clock.monotonic()
        before = attempt.characters
        part = attempt.take(chunk)
        if attempt.finish_reason is None:
            waited_s = now - exchange.since
            if exchange.pace is not None:
                exchange.pace.chunk(attempt.characters - before, waited_s)
            if attempt.first_at is None:
                attempt.first_at = now
            elif waited_s < LEAST_WAIT_S:
                return part
            if part is None or self.whole:  # otherwise the wait starts when the reader asks for more
                self._wait(exchange, now)
        elif part is not None:  # the answer is complete; the provider only has to close
            if attempt.first_at is None:
                attempt.first_at = now
            attempt.ended_at = now
            exchange.wake_at = wake_at = min(self.until, now + FAREWELL_S)
            if exchange.limit is not None:
                exchange.limit.move(wake_at)
        return part

    def _wait(self, exchange: Exchange, now: float) -> None:
        """Start to wait for the next chunk. If time is short, leave the next model its share."""
        exchange.since, attempt = now, exchange.attempt
        if attempt.first_at is None or attempt.finish_reason is not None:
            return
        wake_at, share_s = now + self.rules.limits.idle_s, FALLBACK_SHARE * (self.until - now)
        if wake_at > self.until - share_s:
            wake_at = min(wake_at, self.until)
            if self._may_move_on(exchange):
                wake_at = min(wake_at, max(self.until - share_s, now + LEAST_IDLE_S))
        exchange.wake_at = wake_at
        if exchange.limit is not None:
            exchange.limit.move(wake_at)

    def _may_move_on(self, exchange: Exchange) -> bool:
        """True if another model may take over: there is one, and the text delivered so far can be voided."""
        if self.is_last(exchange.attempt):
            return False
        return self.whole or not (exchange.attempt.delivered and self.on_partial == "error")

    def _may_leave(self, exchange: Exchange) -> bool:
        """True if an answer below the minimum throughput may be abandoned; a complete one is kept."""
        return exchange.attempt.finish_reason is None and self._may_move_on(exchange)

    async def _screened(self, exchange: Exchange, part: Delta | ToolDelta | Finish) -> list[Part]:
        """The parts that the guardrails let pass. Raises ``Blocked`` and ``GuardrailFailed``."""
        attempt, parts = exchange.attempt, list[Part]()
        screen, wake_at = attempt.screen, exchange.wake_at
        assert isinstance(screen, Screen), "the answer is guarded"
        exchange.screening, asked_at = True, self.clock.monotonic()
        exchange.wake(self.until)  # the provider's time-out is suspended
        match part:
            case Delta(text):
                passed = await screen.feed(text)
                parts = [Delta(passed)] if passed else []
            case Finish():
                parts = [*await screen.end(attempt.output, attempt.tool_calls or (), part)]
        attempt.hits = screen.hits
        if screen.blocked is not None:
            raise Blocked(screen.blocked)
        exchange.screening, took_s = False, self.clock.monotonic() - asked_at
        exchange.since += took_s
        exchange.wake(min(self.until, wake_at + took_s))
        return parts

    async def _resting(self) -> None:
        """Let others go on while a long answer is checked; does nothing here, since plain code cannot wait."""

    def _unfit(self, attempt: Attempt, form: Form) -> Fault | None:
        """Parse the answer as the requested type. Returns a fault if it does not fit. Tool calls are not parsed."""
        if attempt.pieces is not None:
            return None
        found = form.read(attempt.answer)
        if isinstance(found, Fit):
            self.data = found.value
            return None
        if self.sandbox:
            attempt.unslept_ms = float(attempt.leg.expected_ms)
        return misfit(attempt.answer, found, attempt.finish_reason)

    def _book_fault(self, exchange: Exchange, fault: Fault, *, abandoned: bool) -> None:
        attempt = exchange.attempt
        attempt.ended_at = now = self.clock.monotonic()
        attempt.fault_text, attempt.fault_public, attempt.hint = fault.text, fault.public, fault.hint
        self.cause = fault.cause
        self._repair_with = fault.repair or self._repair_with
        # a provider that had less time than usual, because the caller's ran out, is not blamed
        blamed_from = attempt.started_at + attempt.patience_s
        if attempt.first_at is not None:
            blamed_from = exchange.since + self.rules.limits.idle_s
        hurried = abandoned and fault is not TOO_SLOW and min(now, exchange.wake_at) < blamed_from
        hurried = hurried or exchange.screening
        exchange.wake(min(self.until, now + FAREWELL_S))
        rule = FAULTS[fault.kind]
        touched = attempt.first_at is not None or fault.answered
        if attempt.number == 1:
            self.fleet.asked(now)
        self.failed(
            attempt,
            fault.kind,
            now,
            touched=touched,
            retry_after=fault.retry_after,
            retry=fault.retry,
            repair=None if fault.repair is None else fault.repair.bounds,
            jitter=self.rng.random(),
        )
        if not self.sandbox:
            if rule.blames and not hurried:
                self.fleet.failed(
                    attempt.leg.row,
                    probe=attempt.probe,
                    retry_after=fault.retry_after,
                    credential=rule.opens_credential,
                    alone=not self._pause_s,
                )
            elif attempt.probe:
                self.fleet.left(attempt.leg.row)
        if attempt.produced or (fault.kind is FaultKind.INVALID_OUTPUT and attempt.finish_reason is not None):
            self._priced(attempt)
        elif touched or rule.billed:
            attempt.doubt()

    def _leave_behind(self, exchange: Exchange) -> None:
        """Price an abandoned attempt, and report it without a fault."""
        attempt = exchange.attempt
        touched = attempt.first_at is not None or self._entered(exchange)
        self.left(attempt, touched=touched and not attempt.counted)
        self._settle(exchange)
        if attempt.probe and not self.sandbox:
            self.fleet.left(attempt.leg.row)

    def _settle(self, exchange: Exchange) -> None:
        attempt = exchange.attempt
        attempt.ended_at = self.clock.monotonic()
        if attempt.produced:
            self._priced(attempt)
        elif self._entered(exchange):
            attempt.doubt()

    def _priced(self, attempt: Attempt) -> Usage:
        usage = attempt.usage
        if usage is not None and usage.tier:
            pool, row = self.call.board.pool, attempt.leg.row
            attempt.prices_of_day = pool.prices_served(row, usage.tier, self.fleet.today())
        return attempt.settle(self.call.bounds)

    def _entered(self, exchange: Exchange) -> bool:
        """True if the provider may have started to work on an attempt."""
        return True

    def _fault_of(self, error: BaseException, attempt: Attempt, *, entered: bool) -> Fault:
        """Classify what a provider raised. Anything but a ``ProviderFault`` is a bug in the provider. ``entered``: its
        context was."""
        fault = fault_of(error)
        if fault is not None:
            return fault
        name = type(error).__name__
        _log.warning("provider %s raised %s instead of ProviderFault", attempt.provider, name)
        if error.__traceback__ is not None:
            error = error.with_traceback(error.__traceback__.tb_next)  # drop the frame that refers to `self`
        said, cause = f"server: {name} in the provider", None if isinstance(error, ProviderFault) else error
        return Fault(FaultKind.SERVER, said, answered=entered, hint=hint_of(error), cause=cause)

    def _silence(self, exchange: Exchange) -> Fault:
        now, attempt = self.clock.monotonic(), exchange.attempt
        if exchange.screening:
            return WITH_GUARDRAILS
        if attempt.first_at is not None:
            return silence(now - exchange.since, begun=True)
        waited_s = now - attempt.started_at
        return no_answer(waited_s) if self.whole else silence(waited_s, begun=False)
