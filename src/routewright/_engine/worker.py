"""Where does background work run? In one daemon thread a Router, with an asyncio loop of its own.

The thread starts on first need, again in a child after ``fork``, and ends with ``close``, with the Worker itself, or
within two seconds of the interpreter's exit. Under a virtual clock there is no thread: the same work runs as tasks of
the caller's loop, and a test sees it happen in one order only.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextvars
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Generic, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

from routewright.errors import RouterClosed
from routewright.fork import Guard, importing
from routewright.loop import is_closed, this_loop
from routewright.protocols import Clock

from .tasks import GRACE_S, NEVER, Call, Job, Tasks

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CLOSE_S = 2.0
CLOSED = "the router is closed; make a new one"

_logger = logging.getLogger(__name__)


class Worker:
    """Runs coroutine functions in the background; usable from any thread, event loop and forked child.

    What runs keeps alive what it refers to. Work that does not end by itself must not refer to the Worker's owner, or
    an owner that is dropped without being closed stays.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._home: _Thread | _CallersLoop | None = None
        self._on_drop: weakref.finalize[..., Worker] | None = None
        self._daemons: list[Call] = []
        self._closed = False

    def run(self, async_fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Run it in the background, in the caller's context, and block until its result is there.

        Blocks the event loop too where one runs in this thread. Raises what the function raises. An interrupt of the
        wait (``KeyboardInterrupt``) cancels the call. Under a virtual clock it needs a thread where no loop runs.
        """
        return self._home_here().run(partial(async_fn, *args))

    def start(self, async_fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run it in the background, in the caller's context. Closing waits for it; an error is logged."""
        self._home_here().start(partial(async_fn, *args), contextvars.copy_context())

    def start_daemon(self, async_fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run what does not end by itself. Closing cancels it; wherever the background begins anew, so does it."""
        home = self._home_here()
        daemon = partial(async_fn, *args)
        self._daemons.append(daemon)
        home.start_daemon(daemon)

    def begin(self) -> None:
        """Have the background begin with its daemons, if it has not in this process."""
        self._home_here()

    def poke(self, job: Job) -> bool:
        """Ask for a run of the job. False: closed, none will come."""
        if job.due_since == _forks:
            return True
        try:
            self._home_here().poke(job)
        except RouterClosed:
            return False
        return True

    def check_blocking(self) -> None:
        """Raise ``RuntimeError`` in code that would wait for itself if it blocked until the background has ended."""
        home = self._home
        if isinstance(home, _Thread) and home.forks == _forks:
            home.check_blocking()
        elif self._clock.virtual:
            _check_no_loop()

    def close(self, timeout: float = CLOSE_S) -> None:
        """Block until all that was started or poked is done; cancel it after ``timeout`` seconds. Twice is once."""
        home = self._leave()
        if home is not None:
            home.close(timeout)

    async def aclose(self, timeout: float = CLOSE_S) -> None:
        """Do the same without blocking the event loop."""
        home = self._leave()
        if home is not None:
            await home.aclose(timeout)

    def _home_here(self) -> _Thread | _CallersLoop:
        home = self._home
        return home if home is not None and home.forks == _forks else self._move_in()

    def _move_in(self) -> _Thread | _CallersLoop:
        with _moving.lock:
            if self._home is None or self._home.forks != _forks:
                if self._closed:
                    raise RouterClosed(CLOSED)
                self._home = self._make_home()
            return self._home

    def _make_home(self) -> _Thread | _CallersLoop:
        if self._clock.virtual:
            return _CallersLoop(self._clock, self._daemons)
        if self._on_drop is not None:
            self._on_drop.detach()  # it is for the thread of the process that this one was forked from
        thread = _Thread(self._clock, self._daemons)
        self._on_drop = weakref.finalize(self, thread.begin_close, CLOSE_S)
        self._on_drop.atexit = False
        return thread

    def _leave(self) -> _Thread | _CallersLoop | None:
        with _moving.lock:
            self._closed = True
            return self._home if self._home is not None and self._home.forks == _forks else None


class _Thread:
    """A daemon thread with an event loop. It does not know its Worker, whose end is its own."""

    def __init__(self, clock: Clock, daemons: list[Call]) -> None:
        self.forks = _forks
        self._tasks = Tasks(clock)
        self._loop = asyncio.new_event_loop()
        self._has_ended = False
        self._submitting = threading.RLock()  # a finaliser that the garbage collector runs in here may submit as well
        for daemon in daemons:
            self.start_daemon(daemon)
        with importing.lock:  # a child that is forked while the thread does it would find it half imported
            import_module("anyio._backends._asyncio")
        self._thread = threading.Thread(target=self._serve, name="routewright-worker", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # such as: the interpreter exits
            self._loop.close()
            raise RouterClosed(f"no thread for background work: {error}") from error
        _threads.add(self)

    def run(self, call: Callable[[], Awaitable[T]]) -> T:
        self.check_blocking()
        waiter = _Waiter(call)
        try:
            self._submit(partial(waiter.begin, self._tasks), contextvars.copy_context())
            return waiter.answer.result()
        except asyncio.CancelledError:
            raise RouterClosed("the router was closed before the call had a result") from None
        except BaseException:
            if not waiter.answer.done():  # so it comes from outside, such as KeyboardInterrupt
                with suppress(RouterClosed):
                    self._submit(waiter.cancel)
            raise

    def start(self, call: Call, context: contextvars.Context) -> None:
        self._submit(partial(self._tasks.start, call, context))

    def start_daemon(self, call: Call) -> None:
        self._submit(partial(self._tasks.start_daemon, call))

    def poke(self, job: Job) -> None:
        job.due_since = self.forks  # before the thread can hear of it, and undo it
        try:
            self._submit(partial(self._tasks.poke, job))
        except RouterClosed:
            job.due_since = NEVER
            raise

    def check_blocking(self) -> None:
        if self._is_this_thread():
            raise RuntimeError("this code runs in the background already and would wait for itself; await the call")

    def begin_close(self, timeout: float) -> None:
        """Ask the thread to end. Called by the garbage collector too, so it must not take a lock."""
        if self.forks == _forks:
            with suppress(RuntimeError):  # ended
                self._loop.call_soon_threadsafe(self._tasks.begin_close, timeout)

    def close(self, timeout: float) -> None:
        self.begin_close(timeout)
        if not self._is_this_thread():
            self.join(timeout + 2 * GRACE_S)

    async def aclose(self, timeout: float) -> None:
        self.begin_close(timeout)
        if not self._is_this_thread():
            join = partial(self.join, timeout + 2 * GRACE_S)
            await anyio.to_thread.run_sync(join, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))

    def join(self, timeout: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            _logger.warning("background work blocks its thread and was left behind after %.1f s", timeout)

    def _submit(self, action: Callable[[], object], context: contextvars.Context | None = None) -> None:
        with self._submitting:
            if self._has_ended:
                raise RouterClosed(CLOSED)
            self._loop.call_soon_threadsafe(action, context=context)

    def _is_this_thread(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def _serve(self) -> None:
        _mark_thread_as_asyncio()
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        try:
            await self._tasks.drain()
        finally:
            with self._submitting:
                self._has_ended = True
        await asyncio.sleep(0)  # what was submitted until now becomes tasks,
        await asyncio.sleep(0)  # and they begin, so that they notice when the runner cancels them


class _Waiter(Generic[T]):
    """A call in the thread that another thread waits for."""

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self.answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._call = call
        self._scope: anyio.CancelScope | None = None

    def begin(self, tasks: Tasks) -> None:
        self._scope = tasks.start(self._settle, contextvars.copy_context())

    def cancel(self) -> None:
        if self._scope is not None:  # else it never began
            self._scope.cancel()

    async def _settle(self) -> None:
        try:
            result = await self._call()
        except BaseException as error:
            self.answer.set_exception(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            self.answer.set_result(result)


class _CallersLoop:
    """Whatever loop runs where work is asked for. What is asked for outside of any begins in the next one."""

    def __init__(self, clock: Clock, daemons: list[Call]) -> None:
        self.forks = _forks
        self._clock = clock
        self._daemons = daemons
        self._tasks_by_loop: weakref.WeakKeyDictionary[Any, Tasks] = weakref.WeakKeyDictionary()  # by loop
        self._postponed: list[Callable[[Tasks], object]] = []
        self._is_closed = False

    def run(self, call: Callable[[], Awaitable[T]]) -> T:
        self._refuse_if_closed()
        if this_loop() is not None:
            raise RuntimeError("a virtual clock stands still while its event loop is blocked; await the call here")
        return anyio.run(self._run_to_the_end, call)

    def start(self, call: Call, context: contextvars.Context) -> None:
        self._with_tasks(lambda tasks: tasks.start(call, context))

    def start_daemon(self, call: Call) -> None:
        self._refuse_if_closed()
        loop = this_loop()
        if loop in self._tasks_by_loop:
            self._tasks_by_loop[loop].start_daemon(call)
        elif loop is not None:
            self._tasks()  # starts all

    def poke(self, job: Job) -> None:
        self._with_tasks(lambda tasks: tasks.poke(job))

    def close(self, timeout: float) -> None:
        _check_no_loop()
        anyio.run(self.aclose, timeout)

    async def aclose(self, timeout: float) -> None:
        if not self._is_closed:
            await self._drain(timeout)
            self._is_closed = True

    async def _run_to_the_end(self, call: Callable[[], Awaitable[T]]) -> T:
        self._tasks()
        try:
            return await call()
        finally:
            await self._drain(CLOSE_S)  # this loop ends here, and nobody else would finish what was begun in it

    async def _drain(self, timeout: float) -> None:
        tasks = self._tasks()
        tasks.begin_close(timeout)
        await tasks.drain()

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise RouterClosed(CLOSED)

    def _with_tasks(self, action: Callable[[Tasks], object]) -> None:
        self._refuse_if_closed()
        if this_loop() is None:
            self._postponed.append(action)
        else:
            action(self._tasks())

    def _tasks(self) -> Tasks:
        loop = this_loop()
        tasks = self._tasks_by_loop.get(loop)
        if tasks is None:
            for closed in [old for old in self._tasks_by_loop if is_closed(old)]:
                del self._tasks_by_loop[closed]  # its tasks may have been dropped before they could end
            tasks = self._tasks_by_loop[loop] = Tasks(self._clock)
            for daemon in self._daemons:
                tasks.start_daemon(daemon)
        with _moving.lock:
            postponed, self._postponed = self._postponed, []
        for action in postponed:
            action(tasks)
        return tasks


def _check_no_loop() -> None:
    if this_loop() is not None:
        raise RuntimeError("a virtual clock stands still while its event loop is blocked; use aclose")


def _mark_thread_as_asyncio() -> None:
    # a caller's context may say that trio runs: sniffio believes it, unless the thread itself knows better
    sniffio = sys.modules.get("sniffio")
    if sniffio is not None:
        sniffio.thread_local.name = "asyncio"


def _close_all() -> None:
    threads = [thread for thread in _threads if thread.forks == _forks]
    for thread in threads:
        thread.begin_close(CLOSE_S - 2 * GRACE_S)
    end = time.monotonic() + CLOSE_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def _after_fork() -> None:
    global _forks  # the parent's threads are not here
    _forks += 1


_forks = 0  # in which process this is, seen from the one that imported the module
_moving = Guard()
_threads: weakref.WeakSet[_Thread] = weakref.WeakSet()
atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
