"""Asks a second model beside one that shows no life, and goes on with the first that answers (contract 4)."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from routewright._core.fault import FAULTS

from .execution import Execution
from .line import AttemptStarted, Line, Part


class _Race:
    """Two attempts under way at most, until one brings something or none is left."""

    def __init__(self) -> None:
        self.decided = anyio.Event()
        self.running = 0
        self.winner: Line | None = None
        self.part: Part | None = None

    def left(self, line: Line, part: Part | None, *, all_over: bool) -> None:
        """An attempt brought its first piece, or has ended."""
        self.running -= 1
        if self.decided.is_set():
            return
        if not line.over:
            self.winner, self.part = line, part
        if not line.over or all_over or self.running == 0:
            self.decided.set()


class HedgedExecution(Execution):
    """A plan whose first model may be given company."""

    _racing: Sequence[Line] = ()

    def interrupt(self) -> None:
        """End the wait of a reader in another task (``Execution.interrupt``)."""
        super().interrupt()
        for line in self._racing:
            line.wake(self.deadline)

    async def _within(self, line: Line) -> Part | None:
        if line.attempt.call.hedge_s is None or line.context is not None:
            return await super()._within(line)
        self.line, self._racing, race = None, (line,), _Race()
        try:
            second = await self._race(line, line.attempt.call.hedge_s, race)
            if self._machine.end is not None:  # the other was refused in the moment in which this one began
                race.winner = race.part = None
        except BaseException as error:
            race.winner = None
            if isinstance(error, BaseExceptionGroup):  # of one task or two; what ends the program ends it
                raise error.exceptions[0] from None
            raise
        finally:
            await self._leave_losers(race.winner)
        self.line = race.winner
        if second is None or race.winner is not second:
            return race.part
        if race.part is not None:
            second.parts.appendleft(race.part)  # what the reader has next, once he knows whose it is
        fault = line.attempt.fault
        reason = "timeout" if fault is None else FAULTS[fault].reason
        return AttemptStarted(second.attempt, line.attempt.model, reason, restart=False)

    async def _race(self, first: Line, hedge_s: float, race: _Race) -> Line | None:
        """Run them until it is decided; the one that lost is left. Gives the second, if there was one."""
        second = None
        async with anyio.create_task_group() as group:
            race.running = 1
            group.start_soon(self._lead, first, race)
            with self._clock.deadline(first.attempt.started_at + hedge_s):
                await race.decided.wait()
            if not race.decided.is_set() and not first.over and first.attempt.first_at is None:
                second = self._second()
                if second is not None:
                    race.running += 1
                    group.start_soon(self._lead, second, race)
            await race.decided.wait()
            group.cancel_scope.cancel()
        return second

    def _second(self) -> Line | None:
        call = self._machine.hedge(self._clock.monotonic())
        if call is None:
            return None
        line = self._begin(call)
        self._racing = (*self._racing, line)
        return line

    async def _leave_losers(self, winner: Line | None) -> None:
        """Leave what is not left yet, since it came to its first piece in the moment in which all was decided."""
        racing, self._racing = self._racing, ()
        for line in racing:
            if line is not winner and not line.over:
                line.attempt.delivered = False
                await self._abandon(line)

    async def _lead(self, line: Line, race: _Race) -> None:
        """Pull an attempt to its first piece, or to its end."""
        try:
            part = await super()._within(line)
        except BaseException:
            if not line.over:
                await self._abandon(line)
            raise
        race.left(line, part, all_over=self._machine.end is not None)
