"""Is it this task that is being cancelled, or has a provider made a cancellation up?"""

from __future__ import annotations

import asyncio
from math import inf

import anyio

from routewright.loop import current_task


class CancelWatch:
    """What is known of a task's cancellation when a wait in it begins."""

    __slots__ = ("before", "task")

    def __init__(self) -> None:
        try:
            self.task = task = current_task(asyncio.get_running_loop())
        except RuntimeError:  # trio, which has only scopes
            self.task = task = None
        self.before = 0 if task is None else task.cancelling()
        """Calls of ``Task.cancel`` on it that came earlier and were not taken back."""

    def is_on(self, *, by_scopes: bool = True) -> bool:
        """Whether the task is being cancelled, by a scope around it or by calls since the wait began."""
        if self.task is not None and self.task.cancelling() > self.before:
            return True
        return by_scopes and anyio.current_effective_deadline() == -inf

    async def drop_stray(self) -> None:
        """Take in a cancellation that nobody sent: a task group of Python 3.13 that a deadline ended sends its parent
        the one that came before the deadline again."""
        if self.task is None or not self.task._must_cancel:
            return
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self.task.cancelling() > self.before:
                raise

    def passes(self, error: BaseException) -> bool:
        """Whether it is no provider's doing: it ends the program, this task or the coroutine that runs here."""
        if isinstance(error, Exception):
            return False
        if isinstance(error, BaseExceptionGroup):  # a cancellation in it is still on afterwards
            return error.subgroup((KeyboardInterrupt, SystemExit)) is not None
        if isinstance(error, asyncio.CancelledError):
            return self.is_on()
        if isinstance(error, GeneratorExit):  # by the frames it came through, a provider raised it
            return error.__traceback__ is None or error.__traceback__.tb_next is None
        return isinstance(error, KeyboardInterrupt | SystemExit | anyio.get_cancelled_exc_class())
