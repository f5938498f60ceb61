"""A plan on its way: which attempt comes next, what it brought, and how it ended.

Nothing here waits or calls anybody. An ``Execution`` awaits providers and tells of them; ``Steps`` let a host do that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf
from typing import Any, assert_never

from routewright._core.attempt import FALLBACK_SHARE, Attempts
from routewright._core.budget import Amount, worst_of_call, worst_wanted
from routewright._core.call import Call, Done, End, Failed, Left, Rules, Succeeded, Wait
from routewright._core.fault import FAULTS
from routewright._core.output import Fit, Form, Repair
from routewright._core.pace import Pace
from routewright._core.plan import Plan
from routewright.errors import RouterError
from routewright.protocols import Clock, Guardrail, Rng
from routewright.wire import (
    Chunk,
    Delta,
    FaultKind,
    Finish,
    Params,
    RouteRequest,
    ToolDelta,
    UpstreamCall,
)

from .attempt import Attempt
from .fault import FILTERED, TOO_SLOW, WITH_GUARDRAILS, Told, misfit, no_answer, silence, told
from .fleet import Fleet
from .guardrail import Screen
from .line import AttemptStarted, Blocked, Line, Part
from .money import Cover
from .traceparent import Onward

FAREWELL_S = 0.5
"""How long a provider may take to leave an attempt, which keeps the connection of a complete one for the next call."""

LEAST_IDLE_S = 1.0
"""No shorter silence in the middle of an answer ends it for the sake of the next model."""

_log = logging.getLogger(__name__)
_NO_PARAMS = Params()


class Course:
    """One plan on its way. Not safe to use from two tasks or threads at once."""

    def __init__(
        self,
        request: RouteRequest,
        plan: Plan,
        fleet: Fleet,
        *,
        clock: Clock,
        rng: Rng,
        deadline: float,
        whole: bool,
        rules: Rules,
        sandbox: bool = False,
        form: Form | None = None,
        guardrails: Sequence[Guardrail] = (),
        cover: Cover | None = None,
        onward: Onward | None = None,
    ) -> None:
        """``guardrails``: those that check answers. ``cover``: the money that is set aside for it. ``onward``: the
        trace that providers hear of."""
        self.request = request
        self.plan = plan
        self.attempts: list[Attempt] = []
        self.served: Attempt | None = None
        """The attempt that brought the answer."""
        self.end: End | None = None
        self.error: RouterError | None = None
        """What ended it that is no provider's fault."""
        self.data: Any = None
        """The answer as a value of the type that was asked for."""
        self.deadline = deadline
        self.line: Line | None = None
        """The attempt that runs, if any."""
        self._pause_s = 0.0
        self._fleet = fleet
        self._clock = clock
        self._rng = rng
        self._whole = whole
        self._sandbox = sandbox
        self._form = form
        self._guardrails = guardrails
        self._repair: Repair | None = None
        """What the present model is shown of its last answer, if it is to mend it."""
        self.limits = rules.limits
        self._machine = Attempts(plan, deadline=deadline, whole=whole, traffic=fleet, rules=rules)
        self._cover = cover
        self._onward = onward
        if cover is not None:
            self._machine.cover(cover.nanos)

    def advance(self) -> Line | Wait | None:
        """Ask the machine what comes next, and begin it; None at the end."""
        match self._machine.next(self._clock.monotonic()):
            case Call() as call:
                self.line = line = self._begin(call)
                return line
            case Wait() as wait:
                self._pause_s = wait.seconds
                return wait
            case Done(end):
                self.end = end
                return None
            case other:
                assert_never(other)

    def fail(self, error: RouterError | None) -> None:
        """End it for what is no provider's fault, unless it has ended; None ends nothing."""
        if error is not None and self.end is None:
            self.error, self.end = error, End.FAILED

    @property
    def used(self) -> Amount:
        """What may be gone of its budget. An answer whose provider did not tell the usage is taken at its worst."""
        used, served = self._machine.spent, self.served
        if served is None or served.usage is None or served.call.output_cap is None:
            return used
        if served.counted and not served.usage_estimated:
            return used
        worst = worst_of_call(self.plan.ask, served.call.row, served.call.output_cap)
        booked = Amount(served.cost_nanos, served.usage.input + served.usage.output)
        return used.plus(worst.without(booked))

    async def widen(self) -> None:
        """Where money is set aside for the call: have enough of it for the next model."""
        cover, row = self._cover, self._machine.next_row
        if cover is None or row is None or not self.attempts:
            return
        await cover.widen(self._machine.spent.nanos + worst_wanted(self.plan.ask, row).nanos)
        self._machine.cover(cover.nanos)

    @property
    def broke_off(self) -> bool:
        """It failed because a part of the answer had been read that could not be taken back."""
        return bool(self.attempts) and self.attempts[-1].delivered and self._machine.on_partial == "error"

    def settle(self) -> None:
        """Price what the present attempt, if any, has brought so far."""
        if self.line is not None:
            self._settle(self.line)

    def ended(self, line: Line, fault: Told, *, abandoned: bool = False) -> None:
        """The provider has nothing more, or was ``abandoned``. Once the answer is whole, it matters no longer how it
        takes its leave."""
        attempt = line.attempt
        if self._machine.end is not None:  # the other of two was quicker, by a moment
            self._leave_behind(line)
        elif attempt.finish_reason is None or line.screening:
            self._failed(line, fault, abandoned=abandoned)
        elif attempt.finish_reason == "content_filter":
            self._failed(line, FILTERED, abandoned=abandoned)
        elif self._form is not None and (unfit := self._unfit(attempt, self._form)) is not None:
            self._failed(line, unfit, abandoned=abandoned)
        else:
            self._succeeded(attempt)

    def _settle(self, line: Line) -> None:
        attempt = line.attempt
        attempt.ended_at = self._clock.monotonic()
        if attempt.produced:
            attempt.settle(self.plan)
        elif self._entered(line):
            attempt.doubt(self.plan)

    def _entered(self, line: Line) -> bool:
        """Whether the provider may have begun to work for an attempt."""
        return True

    @property
    def _aside_from(self) -> float:
        """Characters from which on guardrails look aside: never, where nobody can wait for that."""
        return inf

    def _unfit(self, attempt: Attempt, form: Form) -> Told | None:
        """Read the answer as what was asked for; say what does not fit. Calls of tools are left to the caller."""
        if attempt.tool_calls:
            return None
        found = form.read(attempt.answer)
        if isinstance(found, Fit):
            self.data = found.value
            return None
        if self._sandbox:
            attempt.unslept_ms = float(self.plan.expected_ms[attempt.call.row])
        return misfit(attempt.answer, found, attempt.finish_reason)

    def _begin(self, call: Call) -> Line:
        provider = self._fleet.server[call.row]
        assert provider is not None, "constraints let a model through that nobody serves"
        request, repair = self.request, None if call.repair is None else self._repair
        attempt = Attempt(call, self.plan, provider)
        if self._guardrails:
            attempt.screen = Screen(self._guardrails, as_json=_is_json(request), aside_from=self._aside_from)
        self.attempts.append(attempt)
        upstream = UpstreamCall(
            self.plan.pool.models[call.row],
            request.messages if repair is None else [*request.messages, *repair.messages],
            request.params or _NO_PARAMS,
            request.tools,
            request.tool_choice,
            call.output_cap,
            self.deadline,
            not self._whole,
            None if self._onward is None else self._onward.header(attempt.provider, call.number),
        )
        line = Line(attempt, provider, upstream, Pace(self.limits, self.plan.us_per_token(call.row)))
        self._set_off(line)
        return line

    def started(self, attempt: Attempt) -> AttemptStarted:
        """Say that a model is called, and in whose place: the chosen one's, too, if that was not called at all."""
        after, chosen = attempt.call.after, self.plan.pool.ids[self.plan.rows[0]]
        if after is not None:
            from_model = self.plan.pool.ids[after.row]
            return AttemptStarted(attempt, from_model, FAULTS[after.kind].reason, attempt.call.restart)
        passed_over = None if attempt.model == chosen else chosen
        return AttemptStarted(attempt, passed_over, "upstream_5xx", restart=False)

    def _set_off(self, line: Line) -> None:
        """Let an attempt's time begin."""
        attempt = line.attempt
        attempt.started_at = now = self._clock.monotonic()
        if self.plan.pool.dated:
            attempt.day = self._fleet.today()
        line.wake_at = attempt.call.due(now)

    def _take(self, line: Line, chunk: Chunk) -> Part | None:
        """Note what a chunk says, and when; give it back if the caller is to have it."""
        attempt, before = line.attempt, line.attempt.characters
        now = self._clock.monotonic()
        part = attempt.take(chunk)
        if attempt.first_at is None:
            attempt.first_at = now
        if isinstance(part, Finish):
            self._complete(line, now)
        elif attempt.finish_reason is None:
            if not self._whole:
                line.pace.chunk(attempt.characters - before, now - line.since)
            if part is None or self._whole:  # else the reader begins to wait when he asks for more
                self._wait(line, now)
        return part

    def _wait(self, line: Line, now: float) -> None:
        """Begin to wait for the next chunk."""
        line.since = now
        if line.attempt.first_at is not None and line.attempt.finish_reason is None:
            until, left_s = now + self.limits.idle_s, self.deadline - now
            line.wake(until if until <= self.deadline - FALLBACK_SHARE * left_s else self._short_wait(line, now))

    def _short_wait(self, line: Line, now: float) -> float:
        """Until when the next chunk is waited for where time is short: the next model, if there is one, has its share
        of what is left."""
        until = min(now + self.limits.idle_s, self.deadline)
        if not self._may_move_on(line):
            return until
        share_s = FALLBACK_SHARE * (self.deadline - now)
        return min(until, max(self.deadline - share_s, now + LEAST_IDLE_S))

    def _may_move_on(self, line: Line) -> bool:
        """Whether another model may take over: not from the last of the chain, nor where an answer cannot be void."""
        if line.attempt.call.last:
            return False
        return self._whole or not (line.attempt.delivered and self._machine.on_partial == "error")

    async def _screened(self, line: Line, part: Part | None) -> list[Delta | ToolDelta | Finish]:
        """What of a part may go on to the caller. Raises ``Blocked``, and ``GuardrailFailed``."""
        attempt, parts = line.attempt, list[Delta | ToolDelta | Finish]()
        screen, wake_at = attempt.screen, line.wake_at
        assert screen is not None, "the answer is guarded"
        line.screening, asked_at = True, self._clock.monotonic()
        line.wake(self.deadline)  # the provider's own limits rest
        match part:
            case Delta(text):
                passed = await screen.feed(text)
                parts = [Delta(passed)] if passed else []
            case Finish():
                parts = await screen.end(attempt.output, attempt.calls() or (), part)
        attempt.hits = screen.hits
        if screen.blocked is not None:
            raise Blocked(screen.blocked)
        line.screening, took_s = False, self._clock.monotonic() - asked_at
        line.since += took_s
        line.wake(min(self.deadline, wake_at + took_s))
        return parts

    def _complete(self, line: Line, now: float) -> None:
        """The answer is whole; what is left is the provider's good-bye."""
        line.attempt.ended_at = now
        line.wake(min(self.deadline, now + FAREWELL_S))

    def _is_too_slow(self, line: Line) -> bool:
        """Whether to leave it for its pace."""
        return line.pace.is_slow and line.attempt.finish_reason is None and self._may_move_on(line)

    def _succeeded(self, attempt: Attempt) -> None:
        usage = attempt.settle(self.plan)
        self.served = attempt
        if self._sandbox:
            attempt.unslept_ms = float(self.plan.expected_ms[attempt.call.row])
        else:
            self._fleet.answered(attempt.call.row, attempt.seen(self.plan, whole=self._whole), probe=attempt.call.probe)
        self._machine.feed(Succeeded(usage, attempt.day), now=attempt.ended_at, number=attempt.call.number)

    def _failed(self, line: Line, fault: Told, *, abandoned: bool) -> None:
        attempt, call = line.attempt, line.attempt.call
        attempt.ended_at = now = self._clock.monotonic()
        attempt.fault = fault.kind
        attempt.fault_text = fault.text
        self._repair = fault.repair or self._repair
        reported, counted = attempt.usage, attempt.counted
        hurried = abandoned and fault is not TOO_SLOW and min(now, line.wake_at) < self._blamed_from(line)
        hurried = hurried or line.screening
        line.wake(min(self.deadline, now + FAREWELL_S))
        touched = attempt.first_at is not None or fault.answered
        whole = attempt.fault is FaultKind.INVALID_OUTPUT and attempt.finish_reason is not None
        if attempt.produced or whole:
            attempt.settle(self.plan)
        elif touched or FAULTS[attempt.fault].billed:
            attempt.doubt(self.plan)
        if not self._sandbox:
            self._book(call, fault, hurried=hurried)
        ended = Failed(
            call.row,
            attempt.fault,
            day=attempt.day,
            usage=reported,
            final=counted,
            touched=touched,
            delivered=attempt.delivered,
            retry_after=fault.retry_after,
            repair=None if fault.repair is None else fault.repair.bounds,
        )
        self._machine.feed(ended, now=now, jitter=self._rng.random(), number=call.number)

    def _book(self, call: Call, fault: Told, *, hurried: bool) -> None:
        """Tell the model's health of a fault that is its provider's; of others only that a probe is over."""
        rule = FAULTS[fault.kind]
        if rule.blames and not hurried:
            credential = rule.opens_credential
            self._fleet.failed(call.row, probe=call.probe, retry_after=fault.retry_after, credential=credential)
        elif call.probe:
            self._fleet.left(call.row)

    def _leave_behind(self, line: Line) -> None:
        """Price an attempt that is left for no fault of its own, and say so."""
        attempt, call = line.attempt, line.attempt.call
        reported = attempt.usage
        self._settle(line)
        touched = attempt.first_at is not None or self._entered(line)
        self._machine.left(call.number, Left(attempt.day, reported, touched and not attempt.counted))
        if call.probe and not self._sandbox:
            self._fleet.left(call.row)

    def _told(self, error: BaseException, attempt: Attempt, *, entered: bool) -> Told:
        """What a provider's fault says. Of anything else it alone is to blame for raising it; it had been ``entered``,
        or not."""
        said = told(error)
        if said is not None:
            return said
        name = type(error).__name__
        _log.warning("provider %s raised %s instead of ProviderFault", attempt.provider, name)
        return Told(FaultKind.SERVER, f"server: {name} in the provider", answered=entered)

    def _silence(self, line: Line) -> Told:
        """What is said of an attempt whose time is over."""
        now, attempt = self._clock.monotonic(), line.attempt
        if line.screening:
            return WITH_GUARDRAILS
        if attempt.first_at is not None:
            return silence(now - line.since, begun=True)
        waited_s = now - attempt.started_at
        return no_answer(waited_s) if self._whole else silence(waited_s, begun=False)

    def _blamed_from(self, line: Line) -> float:
        """Until when a provider may be silent before that is its own fault, whatever time the caller gave."""
        attempt = line.attempt
        if attempt.first_at is None:
            return attempt.started_at + attempt.call.patience_s
        return line.since + self.limits.idle_s


def _is_json(request: RouteRequest) -> bool:
    """Whether the answer is asked for as JSON, of which no part can be judged alone."""
    form = None if request.params is None else request.params.response_format
    return form is not None and form.get("type") != "text"
