"""Performs a plan: calls the models that the machine names, and reports how each attempt ended. One path for plain and
streamed calls.

A plain call enters one deadline per attempt and collects the answer inside it. A stream enters one per piece, so that
none runs while the reader works. No deadline outlives its attempt: an expired one would cancel the next attempt."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import anyio.lowlevel

from routewright.wire import Finish

from .classify import CUT_SHORT, TOO_SLOW
from .context import CancelWatch
from .guardrail import GuardrailFailed, rest
from .progress import FAREWELL_S, Blocked, Exchange, Part, Progress

LATE_S = 0.01
"""How much later than its deadline a call may end to close a provider."""
YIELD_EVERY = 64
"""Number of chunks between two checkpoints: some providers never wait."""

_log = logging.getLogger(__name__)


class Execution(Progress):
    """A running plan that awaits its providers. Not safe to pull from two tasks at once."""

    _interrupted: bool = False

    async def run(self) -> None:
        while self.end is None:
            if self.exchange is None and not self._pause_for_s:
                if self.payer is not None and self.call.attempts:
                    await self.widen()
                if self.advance() is None:
                    return
            if self.exchange is not None:
                await self._within(self.exchange)
            else:
                await self._pause()

    async def next_part(self) -> Part | None:
        """Advance by one part. None if it is not for the caller, and whenever ``end`` is set."""
        exchange = self.exchange
        if exchange is not None:
            if exchange.parts:
                return exchange.parts.popleft()
            if exchange.context is None:
                # restart the times, since the reader may have been slow
                pool, now = self.call.board.pool, self.clock.monotonic()
                attempt = exchange.attempt
                # recomputed as in `_book_fault`: with a rounding difference a silent model would count as hurried
                exchange.wake_at = self.latest if self.is_last(attempt) else min(now + attempt.patience_s, self.latest)
                attempt.started_at = now
                if pool.dated:
                    attempt.prices_of_day = pool.prices_on(attempt.leg.row, self.fleet.today())
            else:
                self._wait(exchange, self.clock.monotonic())
            return await self._within(exchange)
        if self._pause_for_s:
            await self._pause()
            return None
        if self.payer is not None and self.call.attempts:
            await self.widen()
        step = self.advance()
        if not isinstance(step, Exchange):
            return None
        if step.attempt.number == 1 and not step.attempt.place:  # ``route.started`` has announced it
            return await self._within(step)
        return self.started(step.attempt)

    async def _pause(self) -> None:
        pause_s, self._pause_for_s = self._pause_for_s, 0.0
        with self.clock.deadline(self.until):
            await self.clock.sleep(pause_s)

    async def _within(self, exchange: Exchange) -> Part | None:
        """Pull the attempt within its time-out."""
        with self.clock.deadline(exchange.wake_at, scoped=exchange.scoped) as limit:
            exchange.limit = limit
            try:
                return await self._pull(exchange)
            finally:
                exchange.limit = None
        assert limit.expired, "a deadline swallows nothing but its own cancellation"
        await exchange.watch.drop_stray()
        if not exchange.over and not self._interrupted:
            # an attempt that is cut off may have been billed once its context was entered
            fault = self._silence(exchange)._replace(answered=exchange.context is not None)
            try:
                self.ended(exchange, fault, abandoned=True)
            finally:
                await self._leave(exchange, abandoned=True)
        return None

    async def _pull(self, exchange: Exchange) -> Part | None:
        """Take chunks until one is for a reader; None when the attempt has ended."""
        attempt, abandoned = exchange.attempt, False
        exchange.watch = watch = CancelWatch()
        if watch.before:
            await anyio.lowlevel.checkpoint()  # deliver a pending cancellation here, outside of the attempt
        try:
            if exchange.chunks is None:
                context = exchange.provider.open(exchange.upstream)
                chunks = await context.__aenter__()
                exchange.context = context
                exchange.chunks = chunks if hasattr(chunks, "__anext__") else aiter(chunks)
                exchange.since = self.clock.monotonic()
            following = exchange.chunks.__anext__
            pace, whole, screen = exchange.pace, self.whole, attempt.screen
            while not (abandoned := pace is not None and pace.is_slow and self._may_leave(exchange)):
                exchange.taken += 1
                if exchange.taken > YIELD_EVERY:
                    exchange.taken = 0
                    await self.clock.sleep(0)
                part: Part | None
                part = taken = self._take(exchange, await following())
                if taken is None or (whole and screen is None):
                    continue
                if type(taken) is Finish and attempt.delivered and screen is None and not self._interrupted:
                    continue  # not for the reader
                if screen is not None:
                    exchange.parts = parts = deque(await self._screened(exchange, taken))
                    part = parts.popleft() if parts else None
                if part is not None and not whole:
                    if watch.is_on(by_scopes=False):  # the provider swallowed a cancellation
                        raise asyncio.CancelledError
                    attempt.delivered = attempt.characters > 0
                    return part
            fault = TOO_SLOW
        except StopAsyncIteration:
            fault = CUT_SHORT
        except Blocked as blocked:
            fault, abandoned = blocked.fault, True
        except GuardrailFailed as error:
            self.end_with(error)
            await self._abandon(exchange)
            return None
        except BaseException as error:
            if watch.passes(error):
                raise
            fault = self._fault_of(error, attempt, entered=exchange.context is not None)
        if watch.is_on(by_scopes=attempt.finish_reason is None):  # whatever the provider turned it into
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise asyncio.CancelledError
        try:
            self.ended(exchange, fault, abandoned=abandoned)
        finally:
            await self._leave(exchange, abandoned=abandoned)
        return None

    async def _leave(self, exchange: Exchange, *, abandoned: bool) -> None:
        """Close an attempt's connection. For an abandoned one this is shielded, since the task may be cancelled."""
        context, exchange.over = exchange.context, True
        exchange.context = exchange.chunks = None
        if self.exchange is exchange:
            self.exchange = None
        if context is None:
            return
        try:
            if not abandoned:
                await context.__aexit__(None, None, None)
                return
            now = self.clock.monotonic()
            with self.clock.deadline(min(now + FAREWELL_S, max(now, self.until) + LATE_S), shield=True):
                await context.__aexit__(None, None, None)
        except BaseException as error:
            if exchange.watch.passes(error):
                raise
            # the answer or the fault is known; an error on closing changes neither
            _log.warning("provider %s raised %s on closing", exchange.attempt.provider, type(error).__name__)

    async def aclose(self) -> None:
        """Abandon the present attempt, if any, even if the caller is cancelled."""
        if self.exchange is not None:
            await self._abandon(self.exchange)

    async def _abandon(self, exchange: Exchange) -> None:
        exchange.watch = watch = CancelWatch()
        watch.before = 0
        try:
            self._leave_behind(exchange)
        finally:
            await self._leave(exchange, abandoned=True)

    def interrupt(self) -> None:
        """End the wait of a reader in another task, so that the call can be closed."""
        self._interrupted = True
        self.until = self.clock.monotonic()
        if self.exchange is not None:
            self.exchange.wake(self.until)

    def expect_text(self) -> None:
        """From now on a fault after content is an error: plain text cannot be voided."""
        self.on_partial = "error"

    def _entered(self, exchange: Exchange) -> bool:
        return exchange.context is not None

    async def _resting(self) -> None:
        await rest(self.clock)
