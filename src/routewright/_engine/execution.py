"""Performs a plan: calls what the machine says, and tells it how that ended. One path for plain and streamed calls.

A plain call enters one deadline an attempt and collects all inside it; a stream one a piece, so that no scope is ever
open while the caller holds the pen. No scope outlives its attempt: one that has run out would kill the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from math import inf

import anyio.lowlevel

from routewright.wire import Chunk

from .cancel import CancelWatch
from .course import FAREWELL_S, Course
from .fault import CUT_SHORT, TOO_SLOW, Told
from .guardrail import LARGE_CHARACTERS, GuardrailFailed
from .line import Blocked, Line, Part

LATE_S = 0.01
"""How much later than its deadline a call may end for the sake of leaving."""
TURN = 64
"""After so many chunks other tasks have their turn, and the time is looked at: some answers never wait."""

_log = logging.getLogger(__name__)


class Execution(Course):
    """One plan being carried out. Not safe to pull from two tasks at once."""

    _interrupted = False

    async def run(self) -> None:
        """Carry the plan out to its end, keeping all that comes."""
        while self.end is None:
            if self.line is None and not self._pause_s:
                await self.widen()
                if self.advance() is None:
                    return
            await self._move()

    async def next_part(self) -> Part | None:
        """Move on by one piece; None where there is nothing to hand on, or, once ``end`` is set, at all."""
        line = self.line
        if line is not None and line.parts:
            return line.parts.popleft()
        if line is None and not self._pause_s:
            await self.widen()
            step = self.advance()
            return self.started(step.attempt) if isinstance(step, Line) else None
        if line is not None:
            if line.context is None:
                self._set_off(line)  # the reader may have taken its time since it was told
            else:
                self._wait(line, self._clock.monotonic())
        return await self._move()

    async def _move(self) -> Part | None:
        """Pause, or pull the present attempt, as long as it may take."""
        line = self.line
        if line is None:
            await self._pause()
            return None
        return await self._within(line)

    async def _within(self, line: Line) -> Part | None:
        """Pull an attempt within its time."""
        with self._clock.deadline(line.wake_at) as limit:
            line.limit = limit
            try:
                return await self._pull(line)
            finally:
                line.limit = None
        assert limit.expired, "a deadline swallows nothing but its own cancellation"
        if not line.over and not self._interrupted:
            # what is cut off may have cost anything once the context was entered
            await self._ended(line, self._silence(line)._replace(answered=line.context is not None), abandoned=True)
        return None

    async def _pause(self) -> None:
        pause_s, self._pause_s = self._pause_s, 0.0
        with self._clock.deadline(self.deadline):
            await self._clock.sleep(pause_s)

    def interrupt(self) -> None:
        """End the wait of a reader in another task, so that the call can be left."""
        self._interrupted = True
        self.deadline = self._clock.monotonic()
        if self.line is not None:
            self.line.wake(self.deadline)

    def expect_text(self) -> None:
        """From now on a fault after content is an error: plain text cannot say that what came before is void."""
        self._machine.on_partial = "error"

    async def aclose(self) -> None:
        """Leave the present attempt, if any, whatever happens around."""
        if self.line is not None:
            await self._abandon(self.line)

    async def _abandon(self, line: Line) -> None:
        """Leave an attempt for no fault of its own."""
        line.watch = CancelWatch.begin()._replace(before=0)
        try:
            self._leave_behind(line)
        finally:
            await self._leave(line, abandoned=True)

    def _entered(self, line: Line) -> bool:
        return line.context is not None

    @property
    def _aside_from(self) -> float:
        return inf if self._clock.virtual else LARGE_CHARACTERS

    async def _pull(self, line: Line) -> Part | None:
        """Take chunks until one is for a reader; None when the attempt has ended."""
        attempt, abandoned = line.attempt, False
        line.watch = watch = CancelWatch.begin()
        if watch.before:
            await anyio.lowlevel.checkpoint()  # a call that was not delivered yet is delivered here, and not counted in
        try:
            chunks = line.chunks or await self._open(line)
            while not (abandoned := line.pace.is_slow and self._is_too_slow(line)):
                line.taken += 1
                if line.taken > TURN:
                    line.taken = 0
                    await self._clock.sleep(0)
                part = self._take(line, await anext(chunks))
                if attempt.screen is not None and part is not None:
                    line.parts.extend(await self._screened(line, part))
                    part = line.parts.popleft() if line.parts else None
                if part is not None and not self._whole:
                    if watch.is_on(by_scopes=False):  # and the provider made nothing of it
                        raise asyncio.CancelledError
                    attempt.delivered = attempt.spoke
                    return part
            fault = TOO_SLOW
        except StopAsyncIteration:
            fault = CUT_SHORT
        except Blocked as blocked:
            fault, abandoned = blocked.told, True
        except GuardrailFailed as error:
            self.fail(error)
            await self._abandon(line)
            return None
        except BaseException as error:
            if watch.passes(error):
                raise
            fault = self._told(error, attempt, entered=line.context is not None)
        if watch.is_on(by_scopes=attempt.finish_reason is None):  # what the provider made of it does not count
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise asyncio.CancelledError
        await self._ended(line, fault, abandoned=abandoned)
        return None

    async def _open(self, line: Line) -> AsyncIterator[Chunk]:
        """Begin the call."""
        context = line.provider.open(line.upstream)
        chunks = await context.__aenter__()
        line.context = context
        line.chunks = opened = aiter(chunks)
        line.since = self._clock.monotonic()
        return opened

    async def _ended(self, line: Line, fault: Told, *, abandoned: bool = False) -> None:
        try:
            self.ended(line, fault, abandoned=abandoned)
        finally:
            await self._leave(line, abandoned=abandoned)
        self.end = self._machine.end

    async def _leave(self, line: Line, *, abandoned: bool) -> None:
        """Free an attempt's connection. An abandoned one gets a moment of its own, since its scope is cancelled."""
        context, line.over = line.context, True
        line.context = line.chunks = None
        if self.line is line:
            self.line = None
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
            if line.watch.passes(error):
                raise
            # the answer is there or the fault is known: a bad good-bye changes neither
            _log.warning("provider %s raised %s on leaving", line.attempt.provider, type(error).__name__)
