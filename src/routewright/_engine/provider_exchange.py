"""The exchange with one provider during one attempt: its connection, its chunks, and how long to wait for the next."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from routewright._core.attempts.faults import FAULTS, Fault
from routewright._core.attempts.machine import Attempts
from routewright._core.attempts.record import Attempt
from routewright._core.attempts.timeouts import FALLBACK_SHARE, Pace, idle_until
from routewright._core.call import Call
from routewright._core.guardrails.screen import Hit
from routewright._core.structured_output import Repair
from routewright.protocols import Clock, Deadline, Provider
from routewright.wire import Chunk, Delta, FallbackReason, FaultKind, Finish, Params, ToolDelta, UpstreamCall
from routewright.wire.json_scan import quoted

from .classify import WITH_GUARDRAILS, no_answer, silence
from .context import CancelWatch
from .guardrails import Screen

FAREWELL_S = 0.5
"""How long closing an attempt may take. A clean close of a complete one keeps its connection for the next call."""
LEAST_WAIT_S = 0.001
"""Chunks at shorter intervals count as one burst, timed by its first."""


LATE_S = 0.01
"""How much later than its deadline a call may end to close a provider."""

_log = logging.getLogger(__name__)
_NO_PARAMS = Params()


class AttemptStarted(NamedTuple):
    """A model is being called."""

    attempt: Attempt
    from_model: str | None
    reason: FallbackReason
    restart: bool
    """The text delivered so far is void."""

    @classmethod
    def of(cls, attempt: Attempt, chosen: str) -> Self:
        """The event of a new attempt, with the model it replaces; that is the chosen one if it was skipped."""
        after = attempt.after
        if after is not None and after.fault is not None:
            return cls(attempt, after.model, FAULTS[after.fault].reason, attempt.restart)
        return cls(attempt, None if attempt.model == chosen else chosen, "upstream_5xx", restart=False)


OutputChunk = Delta | ToolDelta | Finish
"""A chunk that is for the caller."""


class Blocked(Exception):
    """A guardrail blocks the answer."""

    def __init__(self, hit: Hit) -> None:
        super().__init__(hit.guardrail)
        text = f"blocked: by guardrail {quoted(hit.guardrail)}, rule {quoted(hit.rule)}"
        self.fault = Fault(FaultKind.BLOCKED, text, answered=True)


def upstream_call(
    call: Call, attempt: Attempt, repair: Repair | None, deadline: float, *, is_streamed: bool
) -> UpstreamCall:
    """What a provider is asked in an attempt. ``repair``: messages that ask it to repair its last answer."""
    pool = call.board.pool
    row = attempt.leg.row
    params = call.request.params or _NO_PARAMS
    repairs = () if repair is None or attempt.repair is None else repair.messages
    return UpstreamCall(
        pool.models[row],
        [*call.request.messages, *repairs] if repairs else call.request.messages,
        replace(params, reasoning="none") if row in pool.quiet else params,
        call.request.tools,
        call.request.tool_choice,
        attempt.cap,
        deadline,
        is_streamed,
        None,
        call.repeats,
    )


class ProviderExchange(Struct, eq=False):
    """The exchange of an attempt. Times are on the monotonic scale."""

    attempt: Attempt
    provider: Provider
    upstream: UpstreamCall
    machine: Attempts
    clock: Clock
    deadline: float
    """When all waiting ends: the call's deadline, or earlier if the reader left."""
    scoped: bool
    """Waits are limited by cancel scopes."""
    pace: Pace | None
    """None unless streamed."""
    wake_at: float
    """When the present wait ends at the latest."""
    waits_since: float = 0.0
    """When the present wait began: at the last chunk, or when a reader asked for the next."""
    context: AbstractAsyncContextManager[AsyncIterator[Chunk]] | None = None
    chunks: AsyncIterator[Chunk] | None = None
    limit: Deadline | None = None
    """The alarm of the present wait."""
    watch: CancelWatch = None  # type: ignore[assignment]  # set when a wait begins
    """The task that waits."""
    ready: deque[OutputChunk] | None = None
    """Chunks that passed the guardrails together and are delivered one by one."""
    is_entered: bool = False
    """The provider may have started to work."""
    is_screening: bool = False
    """A guardrail is checking a chunk."""
    is_over: bool = False
    """The provider's context was left."""
    count: int = 0
    """Chunks since the last checkpoint."""

    def __repr__(self) -> str:
        # without text, since a repr ends up in logs
        return f"<ProviderExchange of {self.attempt}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """For ``rich``, without text as well."""
        return [("attempt", self.attempt)]

    def wake(self, at: float) -> None:
        """Set when the present wait ends, and later ones."""
        self.wake_at = at
        if self.limit is not None:
            self.limit.move(at)

    def begin_again(self, now: float) -> None:
        """Restart the times of an attempt that has been announced, since the reader may have been slow."""
        attempt, latest = self.attempt, self.machine.latest
        # computed as in `is_hurried`: with a rounding difference a silent model would count as hurried
        self.wake_at = latest if self.machine.is_last(attempt) else min(now + attempt.patience_s, latest)
        attempt.started_at = now

    def is_hurried(self, now: float) -> bool:
        """True if a silent provider had less time than usual because the caller's ran out. It is not blamed."""
        attempt = self.attempt
        patient_until = self.waits_since + self.machine.rules.limits.idle_s
        if attempt.first_at is None:
            patient_until = attempt.started_at + attempt.patience_s
        return min(now, self.wake_at) < patient_until

    def interrupt(self, now: float) -> None:
        """End the present wait, and all later ones."""
        self.deadline = now
        self.wake(now)

    def take(self, chunk: Chunk) -> OutputChunk | None:
        """Record a chunk and its time. Returns it if it is for the caller."""
        attempt, now = self.attempt, self.clock.monotonic()
        characters = attempt.characters
        output = attempt.take(chunk)
        if attempt.finish_reason is None:
            waited_s = now - self.waits_since
            if self.pace is not None:
                self.pace.chunk(attempt.characters - characters, waited_s)
            if attempt.first_at is None:
                attempt.first_at = now
            elif waited_s < LEAST_WAIT_S:
                return output
            if output is None or self.machine.whole:  # otherwise the wait starts when the reader asks for more
                self.wait(now)
        elif output is not None:  # the answer is complete; the provider only has to close
            if attempt.first_at is None:
                attempt.first_at = now
            attempt.ended_at = now
            self.wake_at = wake_at = min(self.deadline, now + FAREWELL_S)
            if self.limit is not None:
                self.limit.move(wake_at)
        return output

    def wait(self, now: float) -> None:
        """Start to wait for the next chunk. If time is short, leave the next model its share."""
        # A stream that stalls after its first words could use up the call's time, and a fallback that starts then is
        # no rescue. To cut each wait at a fixed share of the deadline would kill lively streams late in a call. So the
        # limit is the usual one between two chunks, until what remains of the time is short: then a wait may take so
        # much of it that the next model keeps its share (P5, P6), and a model cut off that way is not blamed.
        # test_a_stalled_stream_leaves_a_quarter_of_a_short_time_to_the_next_model,
        # test_a_lively_stream_is_not_cut_for_the_sake_of_the_next_model
        attempt = self.attempt
        self.waits_since = now
        if attempt.first_at is None or attempt.finish_reason is not None:
            return
        idle_s = self.machine.rules.limits.idle_s
        wake_at = now + idle_s
        if wake_at > self.deadline - FALLBACK_SHARE * (self.deadline - now):
            wake_at = idle_until(now, self.deadline, idle_s, may_move_on=self.machine.may_move_on(attempt))
        self.wake_at = wake_at
        if self.limit is not None:
            self.limit.move(wake_at)

    async def screen(self, chunk: OutputChunk) -> deque[OutputChunk]:
        """The chunks that the guardrails let pass. Raises ``Blocked`` and ``GuardrailFailed``."""
        attempt = self.attempt
        wake_at = self.wake_at
        began = self.clock.monotonic()
        screen = attempt.screen
        passed = deque[OutputChunk]()
        assert isinstance(screen, Screen), "the answer is guarded"
        self.is_screening = True
        self.wake(self.deadline)  # the provider's time-out is suspended
        match chunk:
            case Delta(text):
                text = await screen.feed(text)
                if text:
                    passed.append(Delta(text))
            case Finish():
                passed.extend(await screen.end(attempt.output, attempt.tool_calls or (), chunk))
        if screen.blocked is not None:
            raise Blocked(screen.blocked)
        took_s = self.clock.monotonic() - began
        self.is_screening = False
        self.waits_since += took_s
        self.wake(min(self.deadline, wake_at + took_s))
        return passed

    def silence(self) -> Fault:
        """The fault of a provider that has not sent the next chunk in time."""
        attempt, now = self.attempt, self.clock.monotonic()
        if self.is_screening:
            return WITH_GUARDRAILS
        if attempt.first_at is not None:
            return silence(now - self.waits_since, begun=True)
        waited_s = now - attempt.started_at
        return no_answer(waited_s) if self.machine.whole else silence(waited_s, begun=False)

    async def leave(self, deadline: float, *, abandoned: bool) -> None:
        """Close the connection. For an abandoned attempt this is shielded, since the task may be cancelled."""
        context, self.context = self.context, None
        self.chunks = None
        self.is_over = True
        if context is None:
            return
        try:
            if not abandoned:
                await context.__aexit__(None, None, None)
                return
            now = self.clock.monotonic()
            with self.clock.deadline(min(now + FAREWELL_S, max(now, deadline) + LATE_S), shield=True):
                await context.__aexit__(None, None, None)
        except BaseException as error:
            if self.watch.must_propagate(error):
                raise
            # the answer or the fault is known; an error on closing changes neither
            _log.debug("provider %s raised %s on closing", self.attempt.provider, type(error).__name__)
