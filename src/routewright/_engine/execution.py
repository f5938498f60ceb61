"""Performs a plan: calls what the machine says, and tells it how that ended. One path for plain and streamed calls.

A plain call enters one deadline an attempt and collects all inside it; a stream one a piece, so that no scope is ever
open while the caller holds the pen. No scope outlives its attempt: one that has run out would kill the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from math import inf
from typing import Any, NamedTuple, assert_never

import anyio
import anyio.lowlevel

from routewright._core.attempt import FAULTS, IDLE_S, Attempts, Call, Done, End, Failed, Succeeded, Wait
from routewright._core.output import Fit, Form, Repair
from routewright._core.plan import Plan
from routewright.protocols import Clock, Deadline, Rng
from routewright.wire import (
    Chunk,
    Delta,
    FaultKind,
    Finish,
    OnPartial,
    Params,
    RouteRequest,
    ToolDelta,
    UpstreamCall,
)

from .attempt import Attempt
from .fault import CUT_SHORT, FILTERED, TOO_LATE, Told, misfit, told
from .fleet import Fleet

FAREWELL_S = 0.5
"""How long a provider may take to leave an attempt, which keeps the connection of a complete one for the next call."""
LATE_S = 0.01
"""How much later than its deadline a call may end for the sake of leaving."""
TURN = 64
"""After so many chunks other tasks have their turn, and the time is looked at: some answers never wait."""

_log = logging.getLogger(__name__)
_NO_PARAMS = Params()


class AttemptStarted(NamedTuple):
    """A model is being called."""

    attempt: Attempt
    after: Failed | None
    restart: bool


OpenCall = Callable[[], AbstractAsyncContextManager[AsyncIterator[Chunk]]]
Part = AttemptStarted | Delta | ToolDelta | Finish


class Execution:
    """One plan being carried out. Not safe to pull from two tasks at once."""

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
        on_partial: OnPartial = "restart",
        on_refusal_fall_back: bool = False,
        sandbox: bool = False,
        form: Form | None = None,
    ) -> None:
        self.request = request
        self.plan = plan
        self.attempts: list[Attempt] = []
        self.end: End | None = None
        self.data: Any = None
        """The answer as a value of the type that was asked for."""
        self.deadline = deadline
        self.wake_at = deadline
        """When the present wait is over at the latest."""
        self._limit: Deadline | None = None
        self._pause_s = 0.0
        self._interrupted = False
        self._since = 0.0
        """When the last chunk had come, or a reader asked for the next."""
        self._taken = 0
        self._task: asyncio.Task[object] | None = None
        self._cancels = 0
        """Calls of ``Task.cancel`` on it that came before."""
        self._fleet = fleet
        self._clock = clock
        self._rng = rng
        self._whole = whole
        self._sandbox = sandbox
        self._form = form
        self._repair: Repair | None = None
        """What the present model is shown of its last answer, if it is to mend it."""
        self._machine = Attempts(
            plan, deadline=deadline, whole=whole, on_partial=on_partial, on_refusal_fall_back=on_refusal_fall_back
        )
        self._open: OpenCall | None = None
        """Set while an attempt runs."""
        self._context: AbstractAsyncContextManager[AsyncIterator[Chunk]] | None = None
        self._chunks: AsyncIterator[Chunk] | None = None

    async def run(self) -> None:
        """Carry the plan out to its end, keeping all that comes."""
        while self.end is None and self.advance() is not None:
            with self._clock.deadline(self.wake_at) as limit:
                self._limit = limit
                await (self._pause() if self._open is None else self._pull(self._open))
            if limit.expired:
                await self._expire()

    async def next_part(self) -> Part | None:
        """Move on by one piece; None where there is nothing to hand on, or, once ``end`` is set, at all."""
        if self._open is None and not self._pause_s:
            step = self.advance()
            return step if isinstance(step, AttemptStarted) else None
        if self._open is not None and self._context is None:
            self._set_off(self.attempts[-1])  # the reader may have taken its time since it was told
        with self._clock.deadline(self.wake_at) as limit:
            self._limit = limit
            return await (self._pause() if self._open is None else self._pull(self._open))
        assert limit.expired, "a deadline swallows nothing but its own cancellation"
        await self._expire()
        return None

    def advance(self) -> AttemptStarted | Wait | None:
        """Ask the machine what comes next, and begin it; None at the end."""
        match self._machine.next(self._clock.monotonic()):
            case Call() as call:
                return self._begin(call)
            case Wait() as wait:
                self.wake_at = self.deadline
                self._pause_s = wait.seconds
                return wait
            case Done(end):
                self.end = end
                return None
            case other:
                assert_never(other)

    async def _pause(self) -> None:
        pause_s, self._pause_s = self._pause_s, 0.0
        await self._clock.sleep(pause_s)

    async def _expire(self) -> None:
        """``wake_at`` has passed."""
        self._limit = None
        if self._open is not None and not self._interrupted:
            await self._ended(TOO_LATE, abandoned=True)

    def _set_off(self, attempt: Attempt) -> None:
        """Let the attempt's time begin."""
        attempt.started_at = now = self._clock.monotonic()
        self.wake_at = attempt.call.due(now)

    def interrupt(self) -> None:
        """End the wait of a reader in another task, so that the call can be left."""
        self._interrupted = True
        self.deadline = self._clock.monotonic()
        self._wake(self.deadline)

    def expect_text(self) -> None:
        """From now on a fault after content is an error: plain text cannot say that what came before is void."""
        self._machine.on_partial = "error"

    async def aclose(self) -> None:
        """Leave the present attempt, if any, whatever happens around."""
        if self._open is None:
            return
        self._task, self._cancels = _cancels()[0], 0
        try:
            self.settle()
        finally:
            await self._leave(abandoned=True)

    def settle(self) -> None:
        """Price what the present attempt, if any, has brought so far."""
        if self._open is None:
            return
        attempt = self.attempts[-1]
        attempt.ended_at = self._clock.monotonic()
        if attempt.produced:
            attempt.settle(self.plan)

    def _begin(self, call: Call) -> AttemptStarted:
        provider = self._fleet.server[call.row]
        assert provider is not None, "constraints let a model through that nobody serves"
        request, repair = self.request, None if call.repair is None else self._repair
        attempt = Attempt(call, self.plan, provider)
        self.attempts.append(attempt)
        self._set_off(attempt)
        upstream = UpstreamCall(
            self.plan.pool.models[call.row],
            request.messages if repair is None else [*request.messages, *repair.messages],
            request.params or _NO_PARAMS,
            request.tools,
            request.tool_choice,
            call.output_cap,
            self.deadline,
            not self._whole,
        )
        self._open = partial(provider.open, upstream)
        return AttemptStarted(attempt, call.after, call.restart)

    async def _pull(self, open_call: OpenCall) -> Part | None:
        """Take chunks until one is for a reader; None when the attempt has ended."""
        attempt = self.attempts[-1]
        self._task, self._cancels = _cancels()
        if self._cancels:
            await anyio.lowlevel.checkpoint()  # a call that was not delivered yet is delivered here, and not counted in
        try:
            if self._chunks is None:
                context = open_call()
                chunks = await context.__aenter__()
                self._context = context
                self._chunks = aiter(chunks)
            chunks = self._chunks
            while True:
                self._since = self._clock.monotonic()
                self._taken += 1
                if self._taken > TURN:
                    self._taken = 0
                    await self._clock.sleep(0)
                part = self._take(attempt, await anext(chunks))
                if part is not None and not self._whole:
                    if self._is_cancelled(by_scopes=False):  # and the provider made nothing of it
                        raise asyncio.CancelledError
                    attempt.delivered = attempt.spoke
                    return part
        except StopAsyncIteration:
            fault = CUT_SHORT
        except BaseException as error:
            if self._passes(error):
                raise
            fault = told(error) or self._odd(error, attempt)
        if self._is_cancelled(by_scopes=attempt.finish_reason is None):  # what the provider made of it does not count
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise asyncio.CancelledError
        await self._ended(fault)
        return None

    def _odd(self, error: BaseException, attempt: Attempt) -> Told:
        """What a provider must not raise; if it does, it alone is to blame."""
        name = type(error).__name__
        _log.warning("provider %s raised %s instead of ProviderFault", attempt.provider, name)
        return Told(FaultKind.SERVER, f"server: {name} in the provider", answered=self._context is not None)

    def _passes(self, error: BaseException) -> bool:
        """Whether it is no provider's doing: it ends the program, this task or the coroutine that runs here."""
        if isinstance(error, Exception):
            return False
        if isinstance(error, BaseExceptionGroup):  # a cancellation in it is still on afterwards
            return error.subgroup((KeyboardInterrupt, SystemExit)) is not None
        if isinstance(error, asyncio.CancelledError):
            return self._is_cancelled()
        if isinstance(error, GeneratorExit):  # by the frames it came through, a provider raised it
            return error.__traceback__ is None or error.__traceback__.tb_next is None
        return isinstance(error, KeyboardInterrupt | SystemExit | anyio.get_cancelled_exc_class())

    def _is_cancelled(self, *, by_scopes: bool = True) -> bool:
        """Whether this task is being cancelled, by a scope around it or by calls since the wait began."""
        if self._task is not None and self._task.cancelling() > self._cancels:
            return True
        return by_scopes and anyio.current_effective_deadline() == -inf

    def _take(self, attempt: Attempt, chunk: Chunk) -> Part | None:
        """Note what a chunk says, and when; give it back if the caller is to have it."""
        if attempt.first_at is None:
            self._alive(attempt)
        part = attempt.take(chunk)
        if isinstance(part, Finish):
            self._complete(attempt)
        return part

    def _alive(self, attempt: Attempt) -> None:
        """The first sign of life ends the wait for it; from there the whole call's deadline holds."""
        attempt.first_at = self._clock.monotonic()
        self._wake(self.deadline)

    def _complete(self, attempt: Attempt) -> None:
        """The answer is whole; what is left is the provider's good-bye."""
        attempt.ended_at = now = self._clock.monotonic()
        self._wake(min(self.deadline, now + FAREWELL_S))

    async def _ended(self, fault: Told, *, abandoned: bool = False) -> None:
        """The provider has nothing more. Once the answer is whole, it matters no longer how it takes its leave."""
        attempt = self.attempts[-1]
        if attempt.finish_reason is None:
            await self._failed(fault, abandoned=abandoned)
        elif attempt.finish_reason == "content_filter":
            await self._failed(FILTERED, abandoned=abandoned)
        elif self._form is not None and (unfit := self._unfit(attempt, self._form)) is not None:
            await self._failed(unfit, abandoned=abandoned)
        else:
            await self._succeeded(attempt, abandoned=abandoned)

    def _unfit(self, attempt: Attempt, form: Form) -> Told | None:
        """Read the answer as what was asked for; say what does not fit. Calls of tools are left to the caller."""
        if attempt.tool_calls:
            return None
        found = form.read(attempt.output)
        if isinstance(found, Fit):
            self.data = found.value
            return None
        if self._sandbox:
            attempt.unslept_ms = float(self.plan.expected_ms[attempt.call.row])
        return misfit(attempt.output, found, attempt.finish_reason)

    async def _succeeded(self, attempt: Attempt, *, abandoned: bool) -> None:
        try:
            usage = attempt.settle(self.plan)
            if self._sandbox:
                attempt.unslept_ms = float(self.plan.expected_ms[attempt.call.row])
            else:
                ended_itself = attempt.finish_reason in ("stop", "tool_calls") and not attempt.usage_estimated
                self._fleet.answered(attempt.call.row, usage.output if ended_itself else None)
            self._machine.feed(Succeeded(usage), now=attempt.ended_at)
        finally:
            await self._leave(abandoned=abandoned)
        self.end = self._machine.end

    async def _failed(self, fault: Told, *, abandoned: bool = False) -> None:
        attempt = self.attempts[-1]
        attempt.ended_at = now = self._clock.monotonic()
        attempt.fault = fault.kind
        attempt.fault_text = fault.text
        self._repair = fault.repair or self._repair
        reported, counted = attempt.usage, attempt.counted
        # what we cut off may have cost anything once the context was entered; of other faults the provider says it
        touched = attempt.first_at is not None or fault.answered or (abandoned and self._context is not None)
        hurried = abandoned and self.wake_at < self._blamed_from(attempt)
        self._wake(min(self.deadline, now + FAREWELL_S))
        try:
            if attempt.produced or attempt.fault is FaultKind.INVALID_OUTPUT:
                attempt.settle(self.plan)
            if not self._sandbox and FAULTS[attempt.fault].blames and not hurried:
                self._fleet.failed(attempt.call.row)
            ended = Failed(
                attempt.call.row,
                attempt.fault,
                usage=reported,
                final=counted,
                touched=touched,
                delivered=attempt.delivered,
                retry_after=fault.retry_after,
                repair=None if fault.repair is None else fault.repair.bounds,
            )
            self._machine.feed(ended, now=now, jitter=self._rng.random() / 2)
        finally:
            await self._leave(abandoned=abandoned)

    def _blamed_from(self, attempt: Attempt) -> float:
        """Until when a provider may be silent before that is its own fault, whatever time the caller gave."""
        return attempt.started_at + attempt.call.patience_s if attempt.first_at is None else self._since + IDLE_S

    def _wake(self, at: float) -> None:
        """Set when the wait is over, for the deadline in force as for those to come."""
        self.wake_at = at
        if self._limit is not None:
            self._limit.move(at)

    async def _leave(self, *, abandoned: bool = False) -> None:
        """Free the attempt's connection. An abandoned one gets a moment of its own, since its scope is cancelled."""
        context = self._context
        self._open = self._context = self._chunks = None
        if context is None:
            return
        try:
            if not abandoned:
                await context.__aexit__(None, None, None)
                return
            now = self._clock.monotonic()
            with self._clock.deadline(min(now + FAREWELL_S, max(now, self.deadline) + LATE_S), shield=True):
                await context.__aexit__(None, None, None)
        except BaseException as error:
            if self._passes(error):
                raise
            # the answer is there or the fault is known: a bad good-bye changes neither
            _log.warning("provider %s raised %s on leaving", self.attempts[-1].provider, type(error).__name__)


def _cancels() -> tuple[asyncio.Task[object] | None, int]:
    """This task, and how often ``cancel`` was called on it and not taken back; trio has only scopes."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None, 0
    return task, 0 if task is None else task.cancelling()
