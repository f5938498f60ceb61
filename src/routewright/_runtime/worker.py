"""Background work: one daemon thread per Router, and one for all storages in files, each with its own asyncio loop.

The thread starts on first use, and again in a forked child. It ends with ``close``, when the Worker is collected, or
within two seconds of the interpreter's exit; also whenever it has no work, if that may be dropped. Under a virtual
clock there is no thread: the work runs as tasks of the caller's loop, in a deterministic order."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextvars
import logging
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Generic, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

from routewright.errors import RouterClosed
from routewright.protocols import Clock

from . import fork
from .fork import Guard, Renewals, importing
from .loop import Signal, is_cancelled, is_closed, this_loop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Call = Callable[[], Awaitable[object]]

CLOSE_S = 2.0
GRACE_S = 0.1
"""Time for cancelled work to end."""
CLOSED = "the router is closed; make a new one"
NO_RESULT = "the router was closed before the call had a result"
NEVER = -1

_logger = logging.getLogger(__name__)


class Worker:
    """Runs async functions in the background. Safe to use from any thread, event loop and forked child.

    Running work keeps alive what it refers to. Daemons must not refer to the Worker's owner: an owner dropped without
    ``close`` would stay alive. ``may_be_dropped``: its thread ends when it has no work, and nothing waits for it."""

    def __init__(self, clock: Clock, name: str = "routewright-worker", *, may_be_dropped: bool = False) -> None:
        self.name = name
        """The name of its thread."""
        self.may_be_dropped = may_be_dropped
        self.renewals = Renewals()
        """State of the Worker's owner that a forked child makes anew."""
        self._clock = clock
        self._home: _Thread | _CallersLoop | None = None
        self._on_drop: weakref.finalize[..., Worker] | None = None
        self._daemons: list[Call] = []
        self._closed = False

    def run(self, async_fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Run the function in the background, in the caller's context, and block until it returns or raises; this also
        blocks an event loop in this thread. ``KeyboardInterrupt`` cancels the call. Under a virtual clock no loop may
        be running."""
        return self.home().run(partial(async_fn, *args))

    def start(self, async_fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run the function in the background, in the caller's context. Closing waits for it; an error is logged."""
        call = partial(async_fn, *args)
        context = contextvars.copy_context()
        self.home().submit(lambda tasks: tasks.start(call, context))

    def start_if_open(self, async_fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """As ``start``; does nothing once the Worker is closed."""
        with suppress(RouterClosed):
            self.start(async_fn, *args)

    def start_daemon(self, async_fn: Callable[[*Ts], Awaitable[object]], *args: *Ts) -> None:
        """Run a function that never returns: closing cancels it, and forked children start it again."""
        home = self.home()
        daemon = partial(async_fn, *args)
        self._daemons.append(daemon)
        home.submit(lambda tasks: tasks.start_daemon(daemon))

    def home(self) -> _Thread | _CallersLoop:
        """The thread or loop for work in this process; started, with its daemons, if need be. Raises
        ``RouterClosed``."""
        home = self._home
        if home is not None and home.forks == fork.count and not home.is_over:
            return home
        with _moving.lock:
            if self._home is None or self._home.forks != fork.count or self._home.is_over:
                if self._closed:
                    raise RouterClosed(CLOSED)
                if self._clock.virtual:
                    self._home = _CallersLoop(self._clock, self._daemons)
                else:
                    if self._on_drop is not None:
                        self._on_drop.detach()  # it refers to the thread of the parent process
                    self._home = thread = _Thread(self._clock, self._daemons, self.name, self.may_be_dropped)
                    self._on_drop = weakref.finalize(self, thread.begin_close, CLOSE_S)
                    self._on_drop.atexit = False
            return self._home

    @property
    def present(self) -> _Thread | None:
        """The thread that was started last, if in this process."""
        home = self._home
        return home if isinstance(home, _Thread) and home.forks == fork.count else None

    def check_blocking(self) -> None:
        """Raise ``RuntimeError`` if blocking until the background has ended would deadlock."""
        if (thread := self.present) is not None:
            thread.check_blocking()
        elif self._clock.virtual:
            _check_no_loop("use aclose")

    def close(self, timeout: float = CLOSE_S) -> None:
        """Block until all started and due work is done; cancel it after ``timeout`` seconds. Safe to call twice."""
        if (home := self._leave()) is not None:
            home.close(timeout)

    async def aclose(self, timeout: float = CLOSE_S) -> None:
        """As ``close``, without blocking the event loop."""
        if (home := self._leave()) is not None:
            await home.aclose(timeout)

    def _leave(self) -> _Thread | _CallersLoop | None:
        with _moving.lock:
            self._closed = True
            return self._home if self._home is not None and self._home.forks == fork.count else None


class Job:
    """Coalesced background work: many requests, one run.

    A run starts ``delay`` seconds after the first ``poke``, or at once when the Worker closes, in an empty context.
    Runs do not overlap. A run sees everything done before the ``poke``. Closing drops a due run that may be dropped."""

    def __init__(self, worker: Worker, async_fn: Callable[[], Awaitable[object]], delay: float) -> None:
        self.may_be_dropped = worker.may_be_dropped
        self.async_fn = async_fn
        self.delay = delay
        self.due_since = NEVER
        """The process, numbered by forks, that has a run scheduled. Until that starts, ``poke`` does nothing."""
        self._worker = worker

    def poke(self) -> bool:
        """Request a run, from any thread; nearly free while one is due. False: the Worker is closed."""
        for _ in range(2):  # the thread may just have ended
            if self.due_since == fork.count:
                return True
            try:
                home = self._worker.home()
                self.due_since = home.due_since  # before submitting, since the run resets it
                home.submit(lambda tasks: tasks.poke(self))
                return True
            except RouterClosed:
                self.due_since = NEVER
        return False

    def drop(self) -> None:
        """Drop a due run, from any thread. If it was the last one, wait a moment for the end of the thread."""
        home = self._worker.present
        if home is not None:
            is_last = concurrent.futures.Future[bool]()
            with suppress(TimeoutError):
                try:
                    home.submit(lambda tasks: is_last.set_result(tasks.drop(self)))
                except RouterClosed:
                    is_last.set_result(True)
                if is_last.result(GRACE_S):
                    home.join(GRACE_S)


class Detached(Generic[T]):
    """A call that continues in the background if its caller is cancelled (contract 7)."""

    def __init__(self, work: Callable[[], Awaitable[T]], worker: Worker) -> None:
        self._work = work
        self._ended = Signal()
        self._result: Any = None
        self._error: BaseException | None = RouterClosed(NO_RESULT)
        worker.start(self._run)

    @property
    def has_ended(self) -> bool:
        """True once the result is known."""
        return self._ended.is_set

    async def result(self) -> T:
        """Wait for the result; raises what the call raised. Cancelling the wait does not cancel the call."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result

    async def _run(self) -> None:
        try:
            self._result = await self._work()
            self._error = None
        except Exception as error:  # raised again for the caller
            self._error = error
        finally:
            self._ended.set()


class _Thread:
    """A daemon thread with an event loop. It does not refer to its Worker, so that the Worker can be collected."""

    def __init__(self, clock: Clock, daemons: list[Call], name: str, may_be_dropped: bool) -> None:
        self.forks = self.due_since = fork.count
        self.may_be_dropped = may_be_dropped
        self._tasks = _Tasks(clock)
        self._loop = asyncio.new_event_loop()
        self._has_ended = self.is_over = False
        """The second: because it had no more work."""
        self._submitted = self._begun = 0
        """Actions so far; the second is counted in the thread."""
        self._submitting = threading.RLock()  # reentrant: a finaliser may submit while it is held
        for daemon in daemons:
            self.submit(partial(_Tasks.start_daemon, daemon=daemon))
        with importing.lock:  # a child forked during the thread's import would see a partial module
            import_module("anyio._backends._asyncio")
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # such as: the interpreter exits
            self._loop.close()
            raise RouterClosed(f"the thread for background work cannot start: {error}") from error
        _threads.add(self)

    def run(self, call: Callable[[], Awaitable[T]]) -> T:
        # This thread blocks in ``answer.result()``, so whatever happens to the call must set the answer: ``settle``
        # catches its cancellation, too, or closing would leave this thread blocked for ever. And an interrupt such as
        # Ctrl-C reaches this thread, not the call, which would go on and be billed with nobody to read it. So it is
        # cancelled by its scope. That scope exists only in the other thread, once the task was started; ``cancel`` is
        # submitted behind the start, so it finds it.
        # Tests: test_closing_ends_a_call_that_another_thread_waits_for,
        # test_keyboard_interrupt_of_the_wait_cancels_the_call.
        self.check_blocking()
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        scopes: list[anyio.CancelScope] = []

        async def settle() -> None:
            try:
                answer.set_result(await call())
            except BaseException as error:
                answer.set_exception(error)
                if isinstance(error, asyncio.CancelledError):
                    raise

        def cancel(tasks: _Tasks) -> None:
            for scope in scopes:
                scope.cancel()

        try:
            self.submit(lambda tasks: scopes.append(tasks.start(settle, contextvars.copy_context())))
            return answer.result()
        except asyncio.CancelledError:
            raise RouterClosed(NO_RESULT) from None
        except BaseException:
            if not answer.done():  # an interrupt of the wait, such as KeyboardInterrupt
                with suppress(RouterClosed):
                    self.submit(cancel)
            raise

    def submit(self, action: Callable[[_Tasks], object]) -> None:
        """Call ``action`` in the thread, in a copy of the present context."""
        with self._submitting:
            if self._has_ended:
                raise RouterClosed(CLOSED)
            self._submitted += 1
            self._loop.call_soon_threadsafe(self._begin, action)

    def _begin(self, action: Callable[[_Tasks], object]) -> None:
        self._begun += 1
        action(self._tasks)

    def check_blocking(self) -> None:
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("this code runs in the background already and would wait for itself; await the call")

    def begin_close(self, timeout: float) -> None:
        """Ask the thread to end. Takes no lock, since the garbage collector calls it, too."""
        if self.forks == fork.count:
            with suppress(RuntimeError):  # ended
                self._loop.call_soon_threadsafe(self._tasks.begin_close, timeout)

    def close(self, timeout: float) -> None:
        self.begin_close(timeout)
        self.join(timeout + 2 * GRACE_S)

    async def aclose(self, timeout: float) -> None:
        self.begin_close(timeout)
        if threading.get_ident() != self._thread.ident:
            join = partial(self.join, timeout + 2 * GRACE_S)
            await anyio.to_thread.run_sync(join, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))

    def join(self, timeout: float) -> None:
        """Wait for the thread's end, unless this is the thread."""
        if threading.get_ident() == self._thread.ident:
            return
        self._thread.join(min(timeout, GRACE_S) if self.may_be_dropped else timeout)
        if self._thread.is_alive() and not self.may_be_dropped:
            _logger.warning("background work blocks its thread; stopped waiting after %.1f s", timeout)

    def _serve(self) -> None:
        sniffio = sys.modules.get("sniffio")
        if sniffio is not None:  # the context may be copied from trio: the thread-local overrides it
            sniffio.thread_local.name = "asyncio"
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        try:
            await self._tasks.drain(self._ends_idle)
        finally:
            with self._submitting:
                self._has_ended = True
        await asyncio.sleep(0)  # actions submitted until now become tasks
        await asyncio.sleep(0)  # and start, so that they notice when the runner cancels them

    def _ends_idle(self) -> bool:
        """True if the work is done. From then on, work needs a new thread."""
        # The thread must not end between two steps of ``submit``: an action that is queued after the last look would
        # stay in a loop that nobody runs, and a trace would not be written. So both hold the same lock, and the thread
        # ends only if every action submitted so far has begun and no task runs. After the mark ``submit`` raises
        # RouterClosed, upon which ``Job.poke`` starts a new thread. A thread without any action so far waits for its
        # first.
        # Test: test_a_thread_whose_work_may_be_dropped_ends_without_it_and_starts_again.
        with self._submitting:
            if self.may_be_dropped and 0 < self._submitted == self._begun and self._tasks.is_idle:
                self._has_ended = self.is_over = True
        return self.is_over


class _CallersLoop:
    """Runs work in the event loop that requests it. Work requested outside of any loop starts in the next one."""

    is_over = False

    def __init__(self, clock: Clock, daemons: list[Call]) -> None:
        self.forks = fork.count
        self.due_since = NEVER  # a loop may end before a due job has run
        self._clock = clock
        self._daemons = daemons
        self._tasks_by_loop: weakref.WeakKeyDictionary[object, _Tasks] = weakref.WeakKeyDictionary()
        self._postponed: list[Callable[[_Tasks], object]] = []
        self._is_closed = False

    def run(self, call: Callable[[], Awaitable[T]]) -> T:
        async def run_to_the_end() -> T:
            self._tasks()
            try:
                return await call()
            finally:
                await self._drain(CLOSE_S)  # the loop ends here, with all tasks in it

        self._refuse_if_closed()
        _check_no_loop("await the call here")
        return anyio.run(run_to_the_end)

    def submit(self, action: Callable[[_Tasks], object]) -> None:
        self._refuse_if_closed()
        if this_loop() is None:
            self._postponed.append(action)
        else:
            action(self._tasks())

    def close(self, timeout: float) -> None:
        _check_no_loop("use aclose")
        anyio.run(self.aclose, timeout)

    async def aclose(self, timeout: float) -> None:
        if not self._is_closed:
            await self._drain(timeout)
            self._is_closed = True

    async def _drain(self, timeout: float) -> None:
        tasks = self._tasks()
        tasks.begin_close(timeout)
        await tasks.drain()

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise RouterClosed(CLOSED)

    def _tasks(self) -> _Tasks:
        loop = this_loop()
        if (tasks := self._tasks_by_loop.get(loop)) is None:
            for closed in [old for old in self._tasks_by_loop if is_closed(old)]:
                del self._tasks_by_loop[closed]  # tasks may refer to their loop
            tasks = self._tasks_by_loop[loop] = _Tasks(self._clock)
            for daemon in self._daemons:
                tasks.start_daemon(daemon)
        with _moving.lock:
            postponed, self._postponed = self._postponed, []
        for action in postponed:
            action(tasks)
        return tasks


class _Tasks:
    """Background tasks of one event loop: those that closing awaits, those that it cancels, and jobs. Used in that loop
    only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[anyio.CancelScope, object] = {}  # loops hold their tasks weakly
        self._awaited: set[anyio.CancelScope] = set()
        self._daemons: set[Call] = set()
        self._due: set[Job] = set()
        self._in_cycle: set[Job] = set()
        self._changed: anyio.Event | None = None
        self._timeout = 0.0
        self._is_closing = False

    @property
    def is_idle(self) -> bool:
        """True if no task runs."""
        return not self._tasks

    def start(self, call: Call, context: contextvars.Context) -> anyio.CancelScope:
        """Run a task that closing awaits. Cancelling the scope ends it."""
        scope = anyio.CancelScope()
        self._awaited.add(scope)
        self._spawn(call, context, scope)
        return scope

    def start_daemon(self, daemon: Call) -> None:
        """Run a task that closing cancels, once per loop."""
        if daemon not in self._daemons:
            self._daemons.add(daemon)
            self._spawn(daemon, contextvars.Context(), anyio.CancelScope())

    def poke(self, job: Job) -> None:
        """Run the job soon, unless a run is due already."""
        self._due.add(job)
        if job not in self._in_cycle:
            self._in_cycle.add(job)
            self.start(partial(self._cycle, job), contextvars.Context())

    def drop(self, job: Job) -> bool:
        """Drop a due run. True: no other is due."""
        self._due.discard(job)
        job.due_since = NEVER
        self._notify()
        return not self._due

    def begin_close(self, timeout: float) -> None:
        """Start ``drain``; due jobs run at once."""
        if not self._is_closing:
            self._is_closing = True
            self._timeout = timeout
            self._notify()

    async def drain(self, ends_idle: Callable[[], bool] = lambda: False) -> None:
        """Wait until closing begins or ``ends_idle``, then for the awaited tasks, then cancel all."""
        await self._until(lambda: self._is_closing or ends_idle())
        with self._clock.deadline(self._clock.monotonic() + self._timeout):
            await self._until(lambda: not self._awaited)
        if self._awaited:
            _logger.warning("closing cancels background work: %d left after %.1f s", len(self._awaited), self._timeout)
        for scope in list(self._tasks):
            scope.cancel()
        with self._clock.deadline(self._clock.monotonic() + GRACE_S):
            await self._until(lambda: not self._tasks)

    def _spawn(self, call: Call, context: contextvars.Context, scope: anyio.CancelScope) -> None:
        async def run() -> None:
            try:
                with scope:
                    await _contain(call)
            finally:
                del self._tasks[scope]
                self._awaited.discard(scope)
                self._notify()

        self._tasks[scope] = None
        task = spawn(run, context)
        if scope in self._tasks:  # an eager task may have ended
            self._tasks[scope] = task

    async def _cycle(self, job: Job) -> None:
        try:
            await self._pause(job)
            while job in self._due and not (self._is_closing and job.may_be_dropped):
                self._due.remove(job)
                job.due_since = NEVER
                await _contain(job.async_fn)
                if job in self._due:
                    # closing skips the delay once per job: a job that pokes itself must not spin
                    await (self._clock.sleep(job.delay) if self._is_closing else self._pause(job))
        finally:
            self._in_cycle.remove(job)
            self._due.discard(job)
            job.due_since = NEVER

    async def _pause(self, job: Job) -> None:
        with self._clock.deadline(self._clock.monotonic() + job.delay):
            await self._until(lambda: self._is_closing or job not in self._due)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._changed is None:
                self._changed = anyio.Event()
            await self._changed.wait()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


async def _contain(call: Call) -> None:
    try:
        await call()
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        fn = call.func if isinstance(call, partial) else call
        _logger.exception("background work failed: %s", getattr(fn, "__qualname__", fn))


def spawn(async_fn: Callable[[], Coroutine[object, object, None]], context: contextvars.Context) -> object:
    """Run a task outside of any task group."""
    loop = this_loop()
    if isinstance(loop, asyncio.AbstractEventLoop):
        return loop.create_task(async_fn(), context=context)
    import trio  # an extra; installed if its loop runs

    return trio.lowlevel.spawn_system_task(async_fn, context=context)


def _check_no_loop(advice: str) -> None:
    if this_loop() is not None:
        raise RuntimeError(f"a virtual clock stands still while its event loop is blocked; {advice}")


def _close_all() -> None:
    threads = [thread for thread in _threads if thread.forks == fork.count]
    for thread in threads:
        thread.begin_close(CLOSE_S - 2 * GRACE_S)
    end = time.monotonic() + CLOSE_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


_moving = Guard()
_threads: weakref.WeakSet[_Thread] = weakref.WeakSet()
atexit.register(_close_all)
