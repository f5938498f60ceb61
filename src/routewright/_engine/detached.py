"""A call that goes on when whoever asked has left: in the background, within its time (contract 7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from routewright.errors import RouterClosed
from routewright.loop import Signal

from .worker import Worker

T = TypeVar("T")


class Detached(Generic[T]):
    """Something that is done to its end in the background."""

    def __init__(self, work: Callable[[], Awaitable[T]], worker: Worker) -> None:
        self._work = work
        self._ended = Signal()
        self._result: Any = None
        self._error: BaseException | None = RouterClosed("the router was closed before the call had a result")
        worker.start(self._run)

    @property
    def has_ended(self) -> bool:
        """It is known what it brings."""
        return self._ended.is_set

    async def result(self) -> T:
        """What it brings, or raises. Who is cancelled meanwhile leaves it to itself."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result

    async def _run(self) -> None:
        try:
            self._result, self._error = await self._work(), None
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()
