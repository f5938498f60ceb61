"""Has the client left? Then what is done for it ends, and is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from routewright.loop import this_loop

from .exchange import ClientLeft, Exchange

T = TypeVar("T")

WATCH_AFTER_S = 0.01
"""Most answers are there sooner, so that nobody need watch."""


async def while_connected(exchange: Exchange, work: Callable[[], Awaitable[T]]) -> T:
    """What the work brings. It is cancelled when the client leaves, and ``ClientLeft`` raised."""
    loop = this_loop()
    if isinstance(loop, asyncio.AbstractEventLoop) and not exchange.clock.virtual:
        return await _Watch(exchange, loop).over(work)
    return await _watched(exchange, work)


class _Watch:
    """Watches for a client to leave, in asyncio, where a task group costs as much as a decision. It begins late."""

    def __init__(self, exchange: Exchange, loop: asyncio.AbstractEventLoop) -> None:
        self._exchange = exchange
        self._loop = loop
        self._watcher: asyncio.Task[None] | None = None
        self._left = False
        task = asyncio.current_task()
        assert task is not None, "a request is served in a task"
        self._task: asyncio.Task[Any] = task

    async def over(self, work: Callable[[], Awaitable[T]]) -> T:
        timer = self._loop.call_later(WATCH_AFTER_S, self._begin)
        try:
            return await work()
        except asyncio.CancelledError:
            if self._left and not self._task.uncancel():
                raise ClientLeft from None
            raise
        finally:
            timer.cancel()
            if self._watcher is not None:
                self._watcher.cancel()

    def _begin(self) -> None:
        self._watcher = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        await self._exchange.disconnected()
        self._left = True
        self._task.cancel()


async def _watched(exchange: Exchange, work: Callable[[], Awaitable[T]]) -> T:
    """The same in any loop."""
    ended: list[T | Exception] = []

    async def watch() -> None:
        await exchange.disconnected()
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            ended.append(await work())
        except Exception as error:  # a group would wrap it
            ended.append(error)
        group.cancel_scope.cancel()
    if not ended:
        raise ClientLeft
    if isinstance(ended[0], Exception):
        raise ended[0]
    return ended[0]
