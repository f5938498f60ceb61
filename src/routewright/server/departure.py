"""Cancels the work for a client that leaves, so that it ends and is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from math import inf
from time import monotonic
from typing import Any, TypeVar

import anyio

from routewright.backends.alarms import Entry, alarms_of, here
from routewright.loop import current_task

from .exchange import ClientLeft, Exchange

T = TypeVar("T")

WATCH_AFTER_S = 0.01
"""Most answers are there sooner, without a task that watches."""


async def while_connected(exchange: Exchange, work: Callable[[], Awaitable[T]]) -> T:
    """The result of the work, which is cancelled when the client leaves. Raises ``ClientLeft``."""
    try:
        task = None if exchange.clock.virtual else current_task(asyncio.get_running_loop())
    except RuntimeError:  # trio
        task = None
    if task is None:
        return await _watched(exchange, work)
    watch = _Watch()
    watch.exchange, watch.task, watch.context = exchange, task, copy_context()
    alarms = here.alarms
    if alarms is None or alarms.loop() is not task.get_loop():
        alarms = alarms_of(task.get_loop())
    alarms.add(monotonic() + WATCH_AFTER_S, watch)
    try:
        return await work()
    except asyncio.CancelledError:
        if watch.left and not task.uncancel():
            raise ClientLeft from None
        raise
    finally:
        watch.entry = None
        if watch.watcher is not None:
            watch.watcher.cancel()


class _Watch:
    """Watches for a client to leave, on asyncio, where a task group would cost as much as a decision. It begins late,
    and waits until then among the deadlines of the loop, which share one timer."""

    entry: Entry | None
    exchange: Exchange
    task: asyncio.Task[Any]
    context: Context
    watcher: asyncio.Task[None] | None = None
    left = False

    def ring(self, now: float) -> float:
        """Begin to watch (``Waiting``)."""
        self.watcher = self.task.get_loop().create_task(self._watch(), context=self.context)
        return inf

    async def _watch(self) -> None:
        await self.exchange.disconnected()
        self.left = True
        self.task.cancel()


async def _watched(exchange: Exchange, work: Callable[[], Awaitable[T]]) -> T:
    """The same on any loop."""
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
