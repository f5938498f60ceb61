"""Replies and signals between threads and event loops, and worker threads by kind of work."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel
import anyio.to_thread

from . import fork
from .fork import Guard

if sys.version_info >= (3, 12):
    from asyncio import current_task
else:  # the public function is written in Python there
    from asyncio.tasks import _current_tasks  # type: ignore[attr-defined,unused-ignore]

    current_task = _current_tasks.get

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def this_loop() -> object | None:
    """The running asyncio loop or the token of the running trio; None outside of both."""
    try:
        if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
            return asyncio.get_running_loop()
        import trio  # an extra; installed if its loop runs

        return trio.lowlevel.current_trio_token()
    except RuntimeError:  # also where a context from another thread names the wrong kind of loop
        return None


def this_task() -> asyncio.Task[object] | None:
    """The running asyncio task; None under trio, also as a guest of an asyncio loop."""
    try:
        task: asyncio.Task[object] | None = current_task(asyncio.get_running_loop())
    except RuntimeError:
        return None
    return task


def is_cancelled() -> bool:
    """True if this task is being cancelled. If not, a ``CancelledError`` is a fault of the code that raised it."""
    task = this_task()
    return (task is not None and task.cancelling() > 0) or anyio.current_effective_deadline() == -inf


def is_closed(loop: object) -> bool:
    """True if the loop never runs again. Trio ends with its tasks, so only asyncio loops leave some behind."""
    return isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed()


class Signal:
    """An event for any loop and thread. It takes no lock, so finalisers may set it, too."""

    def __init__(self) -> None:
        self.is_set = False
        self._wake: list[Callable[[], object]] = []

    def set(self) -> None:
        """Wake all waiters, now and later."""
        self.is_set = True
        while self._wake:
            with suppress(IndexError, RuntimeError):  # another thread took it; its loop is gone
                self._wake.pop()()

    async def wait(self) -> None:
        """Wait in this loop."""
        here = anyio.Event()
        wake = from_elsewhere(here.set)
        self._wake.append(wake)
        try:
            if not self.is_set:  # checked after the line above, so that it cannot be missed
                await here.wait()
        finally:
            with suppress(ValueError):
                self._wake.remove(wake)

    def block(self, timeout: float) -> None:
        """Block this thread until it is set, or for ``timeout`` seconds."""
        here = threading.Event()
        self._wake.append(here.set)
        if not self.is_set:
            here.wait(timeout)


class Reply(Generic[T]):
    """A result that a task waits for and another thread sets. ``give`` sets many in one wake-up of a loop."""

    __slots__ = ("error", "future", "here", "is_awaited", "is_delivered", "is_left", "loop", "result")

    def __init__(self, *, awaited: bool = True) -> None:
        self.future: asyncio.Future[None] | None = None
        """Awaited by an asyncio task."""
        self.here: Any = None
        """Awaited by any other task. Without a loop a ``Signal`` or None."""
        self.loop: Any = None
        """The loop of the task that waits. None: no task does, or there is no loop."""
        self.is_awaited = awaited
        """False if it is given before anyone waits, or nobody does."""
        self.result: T | None = None
        self.error: Exception | None = None
        self.is_delivered = False
        """True once passed to ``give``; it must not change any more."""
        self.is_left = False
        """The waiter is gone; a later result is dropped."""
        if not awaited:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not None and current_task(loop) is not None:
            self.loop = loop
            self.future = asyncio.Future(loop=loop)
        else:
            self.loop = this_loop()
            self.here = None if self.loop is None else anyio.Event()

    async def wait(self) -> T:
        """Wait in the loop that it was made in. Raises ``RuntimeError`` if nothing could wake the caller."""
        try:
            if self.loop is not None:
                await (self.here.wait() if self.future is None else self.future)
            elif not self.is_delivered:
                raise RuntimeError("no event loop runs here; await this in one")
        except BaseException:
            self.is_left = True
            raise
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


def give(replies: Iterable[Reply[Any]]) -> list[Reply[Any]]:
    """Wake the tasks whose results are there, each loop once. Returns the replies whose loops are gone."""
    lost: list[Reply[Any]] = []
    by_loop: dict[Any, list[Reply[Any]]] = {}
    for reply in replies:
        reply.is_delivered = True
        if reply.loop is not None:
            by_loop.setdefault(reply.loop, []).append(reply)
        elif reply.here is not None:
            reply.here.set()
    for loop, replies_here in by_loop.items():
        try:
            if replies_here[0].future is not None:
                loop.call_soon_threadsafe(_wake, replies_here)
            else:
                loop.run_sync_soon(_wake, replies_here)
        except RuntimeError:
            lost += replies_here
    return lost


def _wake(replies: Sequence[Reply[Any]]) -> None:
    for reply in replies:
        if reply.future is None:
            reply.here.set()
        elif not reply.future.done():
            reply.future.set_result(None)


class Mutex:
    """A lock for the tasks of all loops and threads. It is free again when the loop of its holder was closed, and in
    forked children."""

    def __init__(self) -> None:
        self._guard = Guard()
        self._holder: tuple[int, object | None, Signal] | None = None

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait for the lock, and hold it."""
        # A lock of anyio belongs to one event loop, and nobody could free it if that loop is closed, or stayed behind
        # in the parent of a fork: no trace would be written any more. So a holder is recorded with its process and
        # loop, and whoever waits frees the lock of a holder that cannot return.
        ticket = fork.count, this_loop(), Signal()
        while self._holder is not ticket:
            with self._guard.lock:
                self.free_lost()
                holder = self._holder = self._holder or ticket
            if holder is not ticket:
                await holder[2].wait()
        try:
            yield
        finally:
            self._free(ticket)

    def free_lost(self) -> None:
        """Free it if its holder runs in the parent process, or the holder's loop is closed."""
        holder = self._holder
        if holder is not None and (holder[0] != fork.count or is_closed(holder[1])):
            self._free(holder)

    def _free(self, holder: tuple[int, object | None, Signal]) -> None:
        with self._guard.lock:
            if self._holder is holder:
                self._holder = None
        if holder[0] == fork.count:  # the waiters of another process are not here
            holder[2].set()


async def outcome_of(awaitable: Awaitable[T]) -> T | Exception:
    """What it returns or raises: a task group would wrap an error."""
    try:
        return await awaitable
    except Exception as error:  # whatever it raises is for the caller
        return error


def at_once(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine in plain code, inside or outside of a loop. Raises ``RuntimeError`` if it has to wait."""
    before = _here.plain_in
    _here.plain_in = _get_running_loop() or ("trio" in sys.modules and this_loop()) or False
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        _here.plain_in = before
    coroutine.close()
    raise RuntimeError("a coroutine waited in plain code, where nothing may wait")


def in_plain_code() -> bool:
    """True inside ``at_once``, where nothing can wait; False in a loop that was started inside it."""
    here = _get_running_loop() or ("trio" in sys.modules and this_loop())
    return _here.plain_in is not None and (not here or here is _here.plain_in)


class _Clock(Protocol):
    @property
    def virtual(self) -> bool: ...


async def in_thread(clock: _Clock, function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call it in a worker thread; inline on a virtual clock, which no thread can wait for. A cancelled caller stops
    waiting."""
    if clock.virtual:
        return function(*args)
    return await anyio.to_thread.run_sync(function, *args, abandon_on_cancel=True)


def in_new_loop(async_fn: Callable[[], Coroutine[object, object, T]], timeout_s: float) -> T:
    """Run it in a new event loop, and block until it ends: in this thread, or in another if a loop runs here. Raises
    ``TimeoutError`` if the other takes longer than ``timeout_s``; neither that nor an interrupt ends it."""
    if this_loop() is None:  # the present context may name another kind of loop
        return contextvars.Context().run(anyio.run, async_fn)
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(anyio.run(async_fn))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="routewright-aside", daemon=True).start()
    return answer.result(timeout_s)


def from_elsewhere(action: Callable[[], object]) -> Callable[[], object]:
    """Wrap an action of this loop for use from any thread. The wrapper raises ``RuntimeError`` if the loop is gone."""
    loop: Any = this_loop()
    if isinstance(loop, asyncio.AbstractEventLoop):
        return partial(loop.call_soon_threadsafe, action)
    return partial(loop.run_sync_soon, action)


class Abandoned(Exception):
    """The caller no longer waits for the work of this thread."""


class Threads:
    """At most ``most`` threads of each event loop for one kind of work.

    A cancelled caller stops waiting; work that has begun keeps its thread until it ends, so that the number is never
    exceeded. Long work calls ``check_wanted`` now and then."""

    def __init__(self, kind: str, maximum: int) -> None:
        self._most = maximum
        self._limiter = anyio.lowlevel.RunVar[anyio.CapacityLimiter](f"threads for {kind}")

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, work: Work | None = None) -> T:
        """Call it in a thread, once one is free. ``work`` records how far the call came."""
        # The plain way is run_sync(function, limiter=limiter, abandon_on_cancel=True). It frees the place as soon as
        # the caller is cancelled, although the function still runs: a tool that blocks would get one more thread with
        # every time-out. So the place is taken for the work instead of the task, and the thread frees it when the
        # function ends. A caller that is cancelled before the thread begins frees it itself. ``begins`` is true for the
        # first of the two that calls it, so the place is freed exactly once.
        # Tests: test_work_keeps_its_thread_after_its_caller_was_cancelled, test_a_cancelled_caller_takes_no_thread.
        if (limiter := self._limiter.get(None)) is None:
            limiter = anyio.CapacityLimiter(self._most)
            self._limiter.set(limiter)
        work = work or Work()
        await limiter.acquire_on_behalf_of(work)
        release = partial(limiter.release_on_behalf_of, work)
        release_from_thread = from_elsewhere(release)

        def do() -> T:
            if not work.begins():
                raise Abandoned
            _here.work = work
            try:
                return function(*args)
            finally:
                _here.work = None
                work.has_ended = True
                with suppress(RuntimeError):  # its loop is gone
                    release_from_thread()

        try:  # a limiter given to anyio would be released when the caller is cancelled
            return await anyio.to_thread.run_sync(do, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        finally:
            work.is_left = True
            work.has_begun = not work.begins()
            if not work.has_begun:  # and never will
                release()


def check_wanted() -> None:
    """Raises ``Abandoned`` if this thread works for a caller of ``Threads.run`` that was cancelled."""
    work = _here.work
    if work is not None and work.is_left:
        raise Abandoned


class Work:
    """One call in a thread."""

    def __init__(self) -> None:
        self.is_left = self.has_ended = False
        self.has_begun = False
        """Known once the caller has left."""
        self._unbegun = [None]

    def begins(self) -> bool:
        """True for the first caller only. Atomic."""
        try:
            self._unbegun.pop()
        except IndexError:
            return False
        return True


class _Here(threading.local):
    work: Work | None = None
    plain_in: object = None
    """The loop around the innermost ``at_once``, or False. None outside of it."""


_here = _Here()
