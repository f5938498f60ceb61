"""Performs a plan: calls what the machine says, and tells it how that ended. One path for plain and streamed calls.

A plain call enters one deadline an attempt and collects all inside it; a stream one a piece, so that no scope is ever
open while the caller holds the pen. No scope outlives its attempt: one that has run out would kill the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from math import inf

import anyio
import anyio.lowlevel

from routewright._core.attempt import End
from routewright._core.budget import Amount, worst_of_call
from routewright.protocols import Deadline
from routewright.wire import Chunk, UpstreamCall

from .course import FAREWELL_S, AttemptStarted, Course, Part
from .fault import CUT_SHORT, TOO_LATE, Told

LATE_S = 0.01
"""How much later than its deadline a call may end for the sake of leaving."""
TURN = 64
"""After so many chunks other tasks have their turn, and the time is looked at: some answers never wait."""

_log = logging.getLogger(__name__)


class Execution(Course):
    """One plan being carried out. Not safe to pull from two tasks at once."""

    _limit: Deadline | None = None
    _interrupted = False
    _taken = 0
    _task: asyncio.Task[object] | None = None
    _cancels = 0
    """Calls of ``Task.cancel`` on it that came before."""
    _context: AbstractAsyncContextManager[AsyncIterator[Chunk]] | None = None
    _chunks: AsyncIterator[Chunk] | None = None

    @property
    def used(self) -> Amount:
        """What may be gone of its budget. An answer whose provider did not tell the usage is taken at its worst."""
        given, room = self.plan.given, self._machine.room
        used = Amount((given.budget_nanos or 0) - (room.nanos or 0), (given.budget_tokens or 0) - (room.tokens or 0))
        served = self.attempts[-1] if self.end is End.SUCCEEDED else None
        if served is None or served.usage is None or served.call.output_cap is None:
            return used
        if served.counted and not served.usage_estimated:
            return used
        worst = worst_of_call(self.plan.ask, served.call.row, served.call.output_cap)
        booked = Amount(served.cost_nanos, served.usage.input + served.usage.output)
        return used.plus(worst.without(booked))

    async def run(self) -> None:
        """Carry the plan out to its end, keeping all that comes."""
        while self.end is None and self.advance() is not None:
            with self._clock.deadline(self.wake_at) as limit:
                self._limit = limit
                await (self._pause() if self.upstream is None else self._pull(self.upstream))
            if limit.expired:
                await self._expire()

    async def next_part(self) -> Part | None:
        """Move on by one piece; None where there is nothing to hand on, or, once ``end`` is set, at all."""
        if self.upstream is None and not self._pause_s:
            step = self.advance()
            return step if isinstance(step, AttemptStarted) else None
        if self.upstream is not None and self._context is None:
            self._set_off(self.attempts[-1])  # the reader may have taken its time since it was told
        with self._clock.deadline(self.wake_at) as limit:
            self._limit = limit
            return await (self._pause() if self.upstream is None else self._pull(self.upstream))
        assert limit.expired, "a deadline swallows nothing but its own cancellation"
        await self._expire()
        return None

    async def _pause(self) -> None:
        pause_s, self._pause_s = self._pause_s, 0.0
        await self._clock.sleep(pause_s)

    async def _expire(self) -> None:
        """``wake_at`` has passed."""
        self._limit = None
        if self.upstream is not None and not self._interrupted:
            # what is cut off may have cost anything once the context was entered
            await self._ended(TOO_LATE._replace(answered=self._context is not None), abandoned=True)

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
        if self.upstream is None:
            return
        self._task, self._cancels = _cancels()[0], 0
        try:
            self.settle()
        finally:
            await self._leave(abandoned=True)

    @property
    def _entered(self) -> bool:
        return self._context is not None

    async def _pull(self, upstream: UpstreamCall) -> Part | None:
        """Take chunks until one is for a reader; None when the attempt has ended."""
        attempt = self.attempts[-1]
        self._task, self._cancels = _cancels()
        if self._cancels:
            await anyio.lowlevel.checkpoint()  # a call that was not delivered yet is delivered here, and not counted in
        try:
            if self._chunks is None:
                assert self._provider is not None, "an attempt runs"
                context = self._provider.open(upstream)
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
            fault = self._told(error, attempt, entered=self._context is not None)
        if self._is_cancelled(by_scopes=attempt.finish_reason is None):  # what the provider made of it does not count
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise asyncio.CancelledError
        await self._ended(fault)
        return None

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

    async def _ended(self, fault: Told, *, abandoned: bool = False) -> None:
        try:
            self.ended(fault, abandoned=abandoned)
        finally:
            await self._leave(abandoned=abandoned)
        self.end = self._machine.end

    def _wake(self, at: float) -> None:
        """Set when the wait is over, for the deadline in force as for those to come."""
        self.wake_at = at
        if self._limit is not None:
            self._limit.move(at)

    async def _leave(self, *, abandoned: bool = False) -> None:
        """Free the attempt's connection. An abandoned one gets a moment of its own, since its scope is cancelled."""
        context = self._context
        self.upstream = self._context = self._chunks = None
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
