"""Hedged calls: if the first model does not respond in time, calls a second one, and takes the first to answer
(contract 4). ``Attempts.hedge_after_s`` in ``_core/attempts/machine.py`` decides when."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import anyio

from routewright._core.attempts.faults import FAULTS

from .execute import Execution
from .provider_exchange import AttemptStarted, OutputChunk, ProviderExchange


class _Race:
    """At most two running attempts, until one produces something or none is left."""

    def __init__(self) -> None:
        self.decided = anyio.Event()
        self.running = 0
        self.winner: ProviderExchange | None = None
        self.chunk: OutputChunk | AttemptStarted | None = None

    def left(self, exchange: ProviderExchange, chunk: OutputChunk | AttemptStarted | None, *, is_end: bool) -> None:
        """Record that an attempt produced its first chunk, or ended."""
        self.running -= 1
        if self.decided.is_set():
            return
        if not exchange.is_over:
            self.winner = exchange
            self.chunk = chunk
        if not exchange.is_over or is_end or self.running == 0:
            self.decided.set()


class Hedge:
    """Performs the first attempt of a plan beside a second one, if it stays silent."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._racing: Sequence[ProviderExchange] = ()

    def interrupt(self, now: float) -> None:
        """End the waits of both attempts (``Execution.interrupt``)."""
        for exchange in self._racing:
            exchange.interrupt(now)

    async def perform(self, exchange: ProviderExchange) -> OutputChunk | AttemptStarted | None:
        """Pull the attempt within its time-out (``Execution.perform``)."""
        # A race must end with one winner and no open connection, in whatever order chunks, faults, a refusal, the
        # deadline and a cancellation come, also if two come in one turn of the event loop. To cancel the loser when the
        # first result arrives is not enough: in that turn it may have its own first chunk, or have ended the plan, and
        # the cancellation comes too late. So `_Race.left` notes the winner without awaiting, whatever comes later is
        # abandoned here, with its cost as a range, and a plan that has ended has no winner (contract 4: a refusal of
        # either model ends both). test_if_both_end_at_once_one_serves_and_both_are_closed tries the pairs;
        # test_a_refusal_of_either_ends_both, test_the_trace_has_both_costs_and_the_losers_as_a_range
        execution = self._execution
        hedge_s = execution.machine.hedge_after_s(exchange.attempt)
        if hedge_s is None or exchange.context is not None:
            return await execution.perform(exchange)
        race = _Race()
        execution.exchange = None
        self._racing = (exchange,)
        try:
            second = await self._race(exchange, hedge_s, race)
            if execution.machine.end is not None:  # one was refused at the moment in which the other began
                race.winner = race.chunk = None
        except BaseException as error:
            race.winner = None
            if isinstance(error, BaseExceptionGroup):  # of the task group
                raise error.exceptions[0] from None
            raise
        finally:
            racing, self._racing = self._racing, ()
            for runner in racing:
                if runner is not race.winner and not runner.is_over:  # it began to answer just after the winner
                    await execution.abandon(runner)
        execution.exchange = race.winner
        if second is None or race.winner is not second:
            return race.chunk
        if race.chunk is not None and not isinstance(race.chunk, AttemptStarted):
            second.ready = deque([race.chunk, *(second.ready or ())])  # after the event that names the model
        fault = exchange.attempt.fault
        reason = "timeout" if fault is None else FAULTS[fault].reason
        return AttemptStarted(second.attempt, exchange.attempt.model, reason, restart=False)

    async def _race(self, first: ProviderExchange, hedge_s: float, race: _Race) -> ProviderExchange | None:
        """Run the attempts until one wins, and leave the other. Returns the second, if there was one."""
        execution = self._execution
        second = None
        async with anyio.create_task_group() as group:
            race.running = 1
            group.start_soon(self._run, first, race)
            with execution.clock.deadline(first.attempt.started_at + hedge_s):
                await race.decided.wait()
            if not race.decided.is_set() and not first.is_over and first.attempt.first_at is None:
                now = execution.clock.monotonic()
                if (attempt := execution.machine.hedge(now)) is not None:
                    second = execution.open(attempt, now)
                    self._racing = (*self._racing, second)
                    race.running += 1
                    group.start_soon(self._run, second, race)
            await race.decided.wait()
            group.cancel_scope.cancel()
        return second

    async def _run(self, exchange: ProviderExchange, race: _Race) -> None:
        execution = self._execution
        try:
            chunk = await execution.perform(exchange)
        except BaseException:
            if not exchange.is_over:
                await execution.abandon(exchange)
            raise
        race.left(exchange, chunk, is_end=execution.machine.end is not None)
