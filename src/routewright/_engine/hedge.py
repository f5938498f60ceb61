"""Hedged calls: if the first model does not respond in time, calls a second one, and takes the first to answer
(contract 4). ``Attempts.hedge_after_s`` in ``_core/attempts/machine.py`` decides when."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import anyio

from routewright._core.attempts.faults import FAULTS

from .execute import Execution
from .progress import AttemptStarted, Exchange, Part


class _Race:
    """At most two running attempts, until one produces something or none is left."""

    def __init__(self) -> None:
        self.decided = anyio.Event()
        self.running = 0
        self.winner: Exchange | None = None
        self.part: Part | None = None

    def left(self, exchange: Exchange, part: Part | None, *, all_over: bool) -> None:
        """Record that an attempt produced its first piece, or ended."""
        self.running -= 1
        if self.decided.is_set():
            return
        if not exchange.over:
            self.winner, self.part = exchange, part
        if not exchange.over or all_over or self.running == 0:
            self.decided.set()


class HedgedExecution(Execution):
    """A plan whose first attempt may be hedged."""

    _racing: Sequence[Exchange] = ()

    def interrupt(self) -> None:
        """End the wait of a reader in another task (``Execution.interrupt``)."""
        super().interrupt()
        for exchange in self._racing:
            exchange.wake(self.until)

    async def _within(self, exchange: Exchange) -> Part | None:
        if (hedge_s := self.hedge_after_s(exchange.attempt)) is None or exchange.context is not None:
            return await super()._within(exchange)
        self.exchange, self._racing, race = None, (exchange,), _Race()
        try:
            second = await self._race(exchange, hedge_s, race)
            if self.end is not None:  # one was refused at the moment in which the other began
                race.winner = race.part = None
        except BaseException as error:
            race.winner = None
            if isinstance(error, BaseExceptionGroup):  # of the task group
                raise error.exceptions[0] from None
            raise
        finally:
            racing, self._racing = self._racing, ()
            for each in racing:
                if each is not race.winner and not each.over:  # it produced its first piece just after the winner
                    each.attempt.delivered = False
                    await self._abandon(each)
        self.exchange = race.winner
        if second is None or race.winner is not second:
            return race.part
        if race.part is not None:
            second.parts = deque([race.part, *(second.parts or ())])  # after the event that names the model
        fault = exchange.attempt.fault
        reason = "timeout" if fault is None else FAULTS[fault].reason
        return AttemptStarted(second.attempt, exchange.attempt.model, reason, restart=False)

    async def _race(self, first: Exchange, hedge_s: float, race: _Race) -> Exchange | None:
        """Run the attempts until one wins, and leave the other. Returns the second, if there was one."""
        second = None
        async with anyio.create_task_group() as group:
            race.running = 1
            group.start_soon(self._lead, first, race)
            with self.clock.deadline(first.attempt.started_at + hedge_s):
                await race.decided.wait()
            if not race.decided.is_set() and not first.over and first.attempt.first_at is None:
                now = self.clock.monotonic()
                attempt = self.hedge(now)
                if attempt is not None:
                    second = self._open_for(attempt, now)
                    self._racing = (*self._racing, second)
                    race.running += 1
                    group.start_soon(self._lead, second, race)
            await race.decided.wait()
            group.cancel_scope.cancel()
        return second

    async def _lead(self, exchange: Exchange, race: _Race) -> None:
        try:
            part = await super()._within(exchange)
        except BaseException:
            if not exchange.over:
                await self._abandon(exchange)
            raise
        race.left(exchange, part, all_over=self.end is not None)
