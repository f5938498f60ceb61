"""Performs a plan: calls the models that the machine names, and reports how each attempt ended. One path for plain and
streamed calls, and for hosts that make the calls themselves (``steps.py``), who use what does not wait.

    Execution ── machine: Attempts             decides which model comes next
              ── exchange: ProviderExchange    the provider that is being called
              ── hedge: Performer              calls a second model beside a silent one, if the policy asks for it
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Sequence
from typing import Any, Protocol

import anyio.lowlevel
from msgspec import Struct
from msgspec.structs import replace

from routewright._core.attempts.faults import FAULTS, Fault
from routewright._core.attempts.machine import Attempts, End, Wait
from routewright._core.attempts.record import Attempt
from routewright._core.attempts.statistics import Entry
from routewright._core.attempts.timeouts import Pace
from routewright._core.call import Call
from routewright._core.routing.budget import Amount, worst_of_leg
from routewright._core.structured_output import Fit, Form, Repair
from routewright._runtime.loop import current_task, in_plain_code
from routewright.errors import RouterError
from routewright.protocols import Clock, Guardrail, Rng
from routewright.wire import FaultKind, Finish, Thought

from .admission import Admission
from .cache import Lookup
from .classify import CUT_SHORT, FILTERED, TOO_SLOW, fault_of, misfit
from .context import CancelWatch, Onward, raise_cancelled
from .fleet import Fleet
from .guardrails import GuardrailFailed, Screen, rest
from .provider_exchange import FAREWELL_S, AttemptStarted, Blocked, OutputChunk, ProviderExchange, upstream_call

YIELD_EVERY = 64
"""Number of chunks between two checkpoints: some providers never wait."""


class Performer(Protocol):
    """Performs an attempt in its own way (``hedge.py``)."""

    async def perform(self, exchange: ProviderExchange) -> OutputChunk | AttemptStarted | None:
        """``Execution.perform``."""

    def interrupt(self, now: float) -> None:
        """``ProviderExchange.interrupt`` of all that it performs."""


class Execution(Struct, eq=False):
    """A running plan. Not safe to use from two tasks or threads at once."""

    call: Call
    machine: Attempts
    fleet: Fleet
    clock: Clock
    rng: Rng
    deadline: float
    """When all waiting ends: the call's deadline, or earlier if the reader left."""
    is_sandbox: bool
    admission: Admission | None = None
    """What the call holds of limits and money. None: nothing limits it."""
    payer: Admission | None = None
    """Reserves money for the call, which may not cost more."""
    lookup: Lookup | None = None
    """Its look-up in the response cache."""
    form: Form | None = None
    guardrails: Sequence[Guardrail] = ()
    onward: Onward | None = None
    """The trace context sent to providers."""
    hedge: Performer | None = None
    exchange: ProviderExchange | None = None
    error: RouterError | None = None
    cause: BaseException | None = None
    """``Ending.cause``: what a provider raised instead of a ``ProviderFault``, or one with the vendor's message."""
    quotes: dict[int, str] = {}
    """``Ending.quotes``."""
    data: Any = None
    pause_s: float = 0.0
    """What to wait before the next attempt."""
    repair: Repair | None = None
    """Messages that ask the present model to repair its last answer."""
    is_interrupted: bool = False

    async def run(self) -> None:
        """Perform the plan to its end, for a caller that wants the whole answer."""
        machine, performer = self.machine, self.hedge or self
        while machine.end is None:
            if self.exchange is None and not self.pause_s:
                if self.payer is not None and self.call.attempts:
                    await self.widen()
                if self.advance() is None:
                    return
            if self.exchange is not None:
                await performer.perform(self.exchange)
            else:
                await self._pause()

    async def next(self) -> OutputChunk | AttemptStarted | None:
        """Advance by one chunk, for a reader. None if there is none for the caller, and whenever ``end`` is set."""
        exchange = self.exchange
        if exchange is None:
            if self.pause_s:
                await self._pause()
                return None
            if self.payer is not None and self.call.attempts:
                await self.widen()
            step = self.advance()
            if not isinstance(step, ProviderExchange):
                return None
            if step.attempt.number > 1 or step.attempt.place:
                return AttemptStarted.of(step.attempt, self.machine.plan.legs[0].id)
            exchange = step  # ``route.started`` has announced it
        elif exchange.ready:
            return exchange.ready.popleft()
        elif exchange.context is None:
            exchange.begin_again(self.clock.monotonic())
            if (pool := self.call.board.pool).dated:
                exchange.attempt.prices_of_day = pool.prices_on(exchange.attempt.leg.row, self.fleet.today())
        else:
            exchange.wait(self.clock.monotonic())
        chunk = await (self.hedge or self).perform(exchange)
        if chunk is not None and self.exchange is not None:  # the faster of two, if they raced
            attempt = self.exchange.attempt
            attempt.delivered = attempt.characters > 0
        return chunk

    def advance(self) -> ProviderExchange | Wait | None:
        """Start the machine's next step; None at the end."""
        now = self.clock.monotonic()
        step = self.machine.next(now)
        if isinstance(step, Attempt):
            self.exchange = exchange = self.open(step, now)
            return exchange
        if step is not None:
            self.pause_s = step.seconds
        return step

    def open(self, attempt: Attempt, now: float) -> ProviderExchange:
        """The exchange of an attempt that begins now."""
        call = self.call
        pool = call.board.pool
        row = attempt.leg.row
        provider = self.fleet.server[row]
        assert provider is not None, "constraints admit served models only"
        name = provider.name
        if name != attempt.leg.provider:
            attempt.server = name
        if self.guardrails:
            form = None if call.request.params is None else call.request.params.response_format
            is_json = form is not None and form.get("type") != "text"
            attempt.screen = Screen(self.guardrails, as_json=is_json, resting=self._rest)
        call.attempts = (*call.attempts, attempt)
        upstream = upstream_call(call, attempt, self.repair, self.deadline, is_streamed=not self.machine.whole)
        if self.onward is not None:
            upstream = replace(upstream, traceparent=self.onward.header(name, attempt.number))
        if pool.dated:
            attempt.prices_of_day = pool.prices_on(row, self.fleet.today())
        return ProviderExchange(
            attempt,
            provider,
            upstream,
            self.machine,
            self.clock,
            self.deadline,
            self.fleet.needs_scope[row],
            None if self.machine.whole else Pace(self.machine.rules.limits, attempt.leg.us_per_token),
            attempt.wake_at,
            now,
        )

    async def _pause(self) -> None:
        pause_s, self.pause_s = self.pause_s, 0.0
        with self.clock.deadline(self.deadline):
            await self.clock.sleep(pause_s)

    async def widen(self) -> None:
        """Reserve enough money for the next model, if the call has a reservation."""
        payer, machine = self.payer, self.machine
        leg = machine.chain.leg
        if payer is None or leg is None or not self.call.attempts:
            return
        await payer.widen(machine.spent.nanos + worst_of_leg(machine.plan.decision_input, leg, self.call.bounds).nanos)
        machine.cover(payer.nanos)

    async def perform(self, exchange: ProviderExchange) -> OutputChunk | AttemptStarted | None:
        """Pull the attempt within its time-out."""
        # The alarm rings by cancelling this task: one that rings late would end the next model's wait, or the caller's
        # own code. So a plain call has one per attempt, which chunks only move, since a timer for each would cost more
        # than the chunk; a stream has one per chunk, so that none runs while the reader works; and a silent attempt is
        # booked and closed once it is gone. An answer that is complete when it rings counts (P5).
        # test_a_provider_that_converts_its_time_limit_does_not_take_the_fallback_along,
        # test_an_answer_that_comes_with_the_alarm_counts_if_it_is_whole
        with self.clock.deadline(exchange.wake_at, scoped=exchange.scoped) as limit:
            exchange.limit = limit
            try:
                return await self._pull(exchange)
            finally:
                exchange.limit = None
        assert limit.expired, "an alarm swallows nothing but its own cancellation"
        await exchange.watch.drop_stray()
        if not exchange.is_over and not self.is_interrupted:
            # an attempt that is cut off may have been billed once its context was entered
            fault = exchange.silence()._replace(answered=exchange.is_entered)
            try:
                self.end_attempt(exchange, fault, abandoned=True)
            finally:
                await exchange.leave(self.deadline, abandoned=True)
        return None

    async def _pull(self, exchange: ProviderExchange) -> OutputChunk | None:
        """Take chunks until one is for a reader; None when the attempt has ended."""
        # Plain calls and streams share this loop, so that a fault falls back alike in both (P6). Whatever ends it, the
        # attempt is booked before it is closed, since a close may hang or fail. A cancellation of the caller passes,
        # even if the provider swallows it (test_a_cancelled_reader_ends_though_the_provider_swallows_it).
        attempt, abandoned = exchange.attempt, False
        try:
            task = current_task(get_running_loop())
        except RuntimeError:  # trio
            task = None
        before = 0 if task is None else task.cancelling()
        exchange.watch = watch = CancelWatch(task, before)  # ``here()``, without a frame per chunk
        if before:
            await anyio.lowlevel.checkpoint()  # deliver a pending cancellation here, outside of the attempt
        try:
            if exchange.chunks is None:
                context = exchange.provider.open(exchange.upstream)
                chunks = await context.__aenter__()
                exchange.context = context
                exchange.is_entered = True
                exchange.chunks = chunks if hasattr(chunks, "__anext__") else aiter(chunks)
                exchange.waits_since = self.clock.monotonic()
            following = exchange.chunks.__anext__
            pace = exchange.pace
            whole = self.machine.whole
            screen = attempt.screen
            while not (abandoned := pace is not None and pace.is_slow and self.machine.may_leave(attempt)):
                exchange.count += 1
                if exchange.count > YIELD_EVERY:
                    exchange.count = 0
                    await self.clock.sleep(0)
                chunk = exchange.take(await following())
                if chunk is None or (whole and screen is None):
                    continue
                if screen is not None:
                    exchange.ready = ready = await exchange.screen(chunk)
                    chunk = ready.popleft() if ready else None
                elif type(chunk) is Finish and attempt.delivered and not self.is_interrupted:
                    continue  # not for the reader
                if chunk is not None and not whole:
                    if task is not None and task.cancelling() > before:  # the provider swallowed a cancellation
                        await raise_cancelled()
                    return chunk
            fault = TOO_SLOW
        except StopAsyncIteration:
            fault = CUT_SHORT
        except Blocked as blocked:
            fault = blocked.fault
            abandoned = True
        except GuardrailFailed as error:
            self.end_with(error)
            await self.abandon(exchange)
            return None
        except BaseException as error:
            if watch.must_propagate(error):
                raise
            fault = fault_of(error, attempt.provider, answered=exchange.is_entered)
        # whatever the provider turned a cancellation into. A scope that was cancelled in this turn of the loop has not
        # cancelled the task yet; asking for that takes microseconds, which a complete answer need not pay.
        is_cancelled = task is not None and task.cancelling() > before
        if is_cancelled or (attempt.finish_reason is None and watch.is_cancelling()):
            await raise_cancelled()
        try:
            self.end_attempt(exchange, fault, abandoned=abandoned)
        finally:
            await exchange.leave(self.deadline, abandoned=abandoned)
        return None

    def end_attempt(self, exchange: ProviderExchange, fault: Fault, *, abandoned: bool = False) -> None:
        """End an attempt whose provider has nothing more, or was ``abandoned``: price the answer, book health, and
        report to the machine. After a complete answer ``fault`` is ignored."""
        attempt = exchange.attempt
        if self.exchange is exchange:
            self.exchange = None
        reason = attempt.finish_reason
        if self.machine.end is not None:  # a hedged attempt has just won
            return self.drop(exchange)
        if reason is None or exchange.is_screening:
            return self._book_fault(exchange, fault, abandoned=abandoned)
        if reason == "content_filter":
            return self._book_fault(exchange, FILTERED, abandoned=abandoned)
        if self.form is not None and (unfit := self._unfit(exchange, self.form)) is not None:
            return self._book_fault(exchange, unfit, abandoned=abandoned)
        if attempt.usage is not None and attempt.usage.tier:
            self._apply_tier(attempt, attempt.usage.tier)
        usage = attempt.settle(self.call.bounds)
        if attempt.overrun is not None:
            self._report_overrun(attempt)
        self.call.served = attempt
        self.cause = None
        if self.is_sandbox:
            attempt.unslept_ms = float(attempt.leg.expected_ms)
            if attempt.number == 1:
                self.fleet.count_request(attempt.ended_at)
        else:
            call = self.call
            row, pool = attempt.leg.row, call.board.pool
            first_at = attempt.first_at
            assert first_at is not None, "it has a finish reason"
            began = attempt.started_at
            delay_s = 0.0
            is_usual = reason == "stop" or reason == "tool_calls"  # other answers were cut off
            if pool.usual_output is not pool.output:  # health is learned for calls without an effort setting
                delay_s = pool.delay_ms[row] / 1000
                usage = pool.dials.as_usual(usage)
                is_usual = is_usual and pool.dials.effort != "none" and row not in pool.quiet
            entry = Entry(
                row,
                attempt.ended_at,
                max(attempt.ended_at - began - delay_s, 0.0),
                None if self.machine.whole else max(first_at - began - delay_s, 0.0),  # unknown unless streamed
                usage,
                is_usual and not attempt.usage_estimated,
                (call.caller.account, call.caller.environment, call.snapshot_ids[2], *call.workload_values),
                attempt.number == 1,
            )
            self.fleet.record_answer(entry, probe=attempt.probe)
            if attempt.place and (kind := call.attempts[0].fault) is not None:
                self.fleet.record_rescue(call.attempts[0].provider, kind, attempt.model)
        return self.machine.record_success(attempt)

    def _unfit(self, exchange: ProviderExchange, form: Form) -> Fault | None:
        """Parse the answer as the requested type. Returns a fault if it does not fit. Tool calls are not parsed."""
        attempt = exchange.attempt
        if attempt.pieces is not None:
            return None
        result = form.read(attempt.answer)
        if isinstance(result, Fit):
            self.data = result.value
            if result.thought:
                exchange.take(Thought(result.thought))
            return None
        if self.is_sandbox:
            attempt.unslept_ms = float(attempt.leg.expected_ms)
        return misfit(attempt.answer, result, attempt.finish_reason)

    def _book_fault(self, exchange: ProviderExchange, fault: Fault, *, abandoned: bool) -> None:
        attempt = exchange.attempt
        now = self.clock.monotonic()
        attempt.ended_at = now
        attempt.fault_text, attempt.fault_public = fault.text, fault.public
        self.quotes[attempt.number] = fault.quote
        attempt.hint = fault.hint
        self.cause = fault.cause
        if fault.bug:
            self.fleet.warn_once(fault.bug)
        self.repair = fault.repair or self.repair
        is_hurried = exchange.is_screening or (abandoned and fault is not TOO_SLOW and exchange.is_hurried(now))
        exchange.wake(min(self.deadline, now + FAREWELL_S))
        rule = FAULTS[fault.kind]
        is_touched = attempt.first_at is not None or fault.answered
        if attempt.number == 1:
            self.fleet.count_request(now)
        self.machine.record_fault(attempt, fault, now, touched=is_touched, jitter=self.rng.random())
        if not self.is_sandbox:
            if rule.blames and not is_hurried:
                self.fleet.record_fault(
                    attempt.leg.row,
                    probe=attempt.probe,
                    retry_after=fault.retry_after,
                    credential=rule.opens_credential,
                    alone=not self.machine.pause_s,
                    kind=fault.kind,
                )
            elif attempt.probe:
                self.fleet.release_probe(attempt.leg.row)
        if attempt.produced or (fault.kind is FaultKind.INVALID_OUTPUT and attempt.finish_reason is not None):
            self._price(attempt)
        elif is_touched or rule.billed:
            attempt.doubt()

    def drop(self, exchange: ProviderExchange) -> None:
        """Price an abandoned attempt, and report it without a fault."""
        attempt = exchange.attempt
        if self.exchange is exchange:
            self.exchange = None
        is_touched = attempt.first_at is not None or exchange.is_entered
        self.machine.abandon(attempt, touched=is_touched and not attempt.counted)
        self._settle(exchange)
        if attempt.probe and not self.is_sandbox:
            self.fleet.release_probe(attempt.leg.row)

    def settle_rest(self) -> None:
        """Price what the present attempt, if any, has produced so far."""
        if self.exchange is not None:
            self._settle(self.exchange)

    def _settle(self, exchange: ProviderExchange) -> None:
        attempt = exchange.attempt
        attempt.ended_at = self.clock.monotonic()
        if attempt.produced:
            self._price(attempt)
        elif exchange.is_entered:
            attempt.doubt()

    def _price(self, attempt: Attempt) -> None:
        if attempt.usage is not None and attempt.usage.tier:
            self._apply_tier(attempt, attempt.usage.tier)
        attempt.settle(self.call.bounds)
        if attempt.overrun is not None:
            self._report_overrun(attempt)

    def _report_overrun(self, attempt: Attempt) -> None:
        """Cover later calls. Input above its bound matters to budgets only: many servers add tokens to a prompt."""
        overrun = attempt.overrun
        if overrun is not None and not self.is_sandbox and (overrun.output or self.machine.room is not None):
            self.fleet.record_overrun(attempt, overrun)

    def _apply_tier(self, attempt: Attempt, tier: str) -> None:
        """Price it as the tier that served it."""
        attempt.prices_of_day = self.call.board.pool.prices_served(attempt.leg.row, tier, self.fleet.today())

    @property
    def used(self) -> Amount:
        """Upper bound for the budget used."""
        return self.call.most_used(self.machine.spent)

    @property
    def broke_off(self) -> bool:
        """True if it failed because a delivered part of the answer could not be taken back."""
        attempts = self.call.attempts
        return bool(attempts) and attempts[-1].delivered and self.machine.on_partial == "error"

    def end_with(self, error: RouterError | None) -> None:
        """End with an error that is not a provider's fault, unless it has ended. None has no effect."""
        if error is not None and self.machine.end is None:
            self.error = error
            self.machine.end = End.FAILED

    def expect_text(self) -> None:
        """From now on a fault after content is an error: plain text cannot be voided."""
        self.machine.on_partial = "error"

    def interrupt(self) -> None:
        """End the wait of a reader in another task, so that the call can be closed."""
        self.is_interrupted = True
        self.deadline = now = self.clock.monotonic()
        if self.exchange is not None:
            self.exchange.interrupt(now)
        if self.hedge is not None:
            self.hedge.interrupt(now)

    async def aclose(self) -> None:
        """Abandon the present attempt, if any, even if the caller is cancelled."""
        if self.exchange is not None:
            await self.abandon(self.exchange)

    async def abandon(self, exchange: ProviderExchange) -> None:
        """End an attempt without a fault, and close its connection."""
        exchange.watch = watch = CancelWatch.here()
        watch.before = 0
        try:
            self.drop(exchange)
        finally:
            await exchange.leave(self.deadline, abandoned=True)

    async def _rest(self) -> None:
        """Let others go on while a long answer is checked. Plain code cannot wait."""
        if not in_plain_code():
            await rest(self.clock)
