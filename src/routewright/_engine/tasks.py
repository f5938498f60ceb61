"""Background tasks of one event loop: tasks that closing waits for, tasks that it cancels, and jobs."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

import anyio

from routewright.loop import is_cancelled, this_loop
from routewright.protocols import Clock

Call = Callable[[], Awaitable[Any]]

GRACE_S = 0.1  # for what was cancelled to end
NEVER = -1

_logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Runs jobs: the ``Worker``."""

    def poke(self, job: Job) -> bool:
        """Ask for a run of the job. False: closed, none will come."""
        ...


class Job:
    """Work that many ask for and that is done once for all of them: a queue to write out, figures to publish.

    It begins ``delay`` seconds after the first ``poke``, or at once when the Worker closes; never twice at a time, and
    in nobody's context. It sees what was there before each ``poke``.
    """

    def __init__(self, worker: Runner, async_fn: Callable[[], Awaitable[object]], delay: float) -> None:
        self.async_fn = async_fn
        self.delay = delay
        self.due_since = NEVER
        """In which process, counted in forks, a thread is about to begin it; pokes until then have nothing to do."""
        self._worker = worker

    def poke(self) -> bool:
        """Ask for a run, from any thread; nearly free while one is due. False: the Worker is closed, none will come."""
        return self._worker.poke(self)


class Tasks:
    """The background tasks of one event loop. To be used in that loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[anyio.CancelScope, object] = {}  # loops hold their tasks weakly
        self._awaited: set[anyio.CancelScope] = set()
        self._due: set[Job] = set()
        self._in_cycle: set[Job] = set()
        self._changed: anyio.Event | None = None
        self._timeout = 0.0
        self._is_closing = False

    def start(self, call: Call, context: contextvars.Context) -> anyio.CancelScope:
        """Run it as a task that closing waits for. Cancelling the scope ends it."""
        scope = anyio.CancelScope()
        self._awaited.add(scope)
        self._spawn(call, context, scope)
        return scope

    def start_daemon(self, call: Call) -> None:
        """Run it as a task that closing cancels."""
        self._spawn(call, contextvars.Context(), anyio.CancelScope())

    def poke(self, job: Job) -> None:
        """Run it soon, unless that is about to happen anyway."""
        self._due.add(job)
        if job not in self._in_cycle:
            self._in_cycle.add(job)
            self.start(partial(self._cycle, job), contextvars.Context())

    def begin_close(self, timeout: float) -> None:
        """Let ``drain`` begin, and jobs that are due not wait for their time."""
        if not self._is_closing:
            self._is_closing = True
            self._timeout = timeout
            self._tell()

    async def drain(self) -> None:
        """Once closing began: wait for those that closing waits for, then cancel all."""
        await self._until(lambda: self._is_closing)
        with self._clock.deadline(self._clock.monotonic() + self._timeout):
            await self._until(lambda: not self._awaited)
        if self._awaited:
            _logger.warning("closing cancels background work: %d left after %.1f s", len(self._awaited), self._timeout)
        for scope in list(self._tasks):
            scope.cancel()
        with self._clock.deadline(self._clock.monotonic() + GRACE_S):
            await self._until(lambda: not self._tasks)

    def _spawn(self, call: Call, context: contextvars.Context, scope: anyio.CancelScope) -> None:
        self._tasks[scope] = None
        task = _spawn(partial(self._run, scope, call), context)
        if scope in self._tasks:  # an eager task may be done
            self._tasks[scope] = task

    async def _run(self, scope: anyio.CancelScope, call: Call) -> None:
        try:
            with scope:
                await _contain(call)
        finally:
            del self._tasks[scope]
            self._awaited.discard(scope)
            self._tell()

    async def _cycle(self, job: Job) -> None:
        try:
            await self._pause(job.delay)
            while job in self._due:
                self._due.remove(job)
                job.due_since = NEVER
                await _contain(job.async_fn)
                if job in self._due:
                    # closing hurries each once: one that pokes itself must not spin
                    await (self._clock.sleep if self._is_closing else self._pause)(job.delay)
        finally:
            self._in_cycle.remove(job)
            self._due.discard(job)
            job.due_since = NEVER

    async def _pause(self, seconds: float) -> None:
        with self._clock.deadline(self._clock.monotonic() + seconds):
            await self._until(lambda: self._is_closing)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            if self._changed is None:
                self._changed = anyio.Event()
            await self._changed.wait()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


async def _contain(call: Call) -> None:
    try:
        await call()
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        _logger.exception("background work failed: %s", _name_of(call))


def _name_of(call: Call) -> str:
    fn = call.func if isinstance(call, partial) else call
    return str(getattr(fn, "__qualname__", fn))


def _spawn(async_fn: Callable[[], Coroutine[Any, Any, None]], context: contextvars.Context) -> object:
    """Run it as a task of this loop that ends with the loop, and with nothing else."""
    loop = this_loop()
    if isinstance(loop, asyncio.AbstractEventLoop):
        return loop.create_task(async_fn(), context=context)
    import trio  # an extra: only there when it runs

    return trio.lowlevel.spawn_system_task(async_fn, context=context)
