"""Worker threads by kind of work. Each kind has its own, so that one kind never waits for another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel
import anyio.to_thread

from .loop import from_elsewhere

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Abandoned(Exception):
    """The caller no longer waits for the work of this thread."""


class Threads:
    """At most ``most`` threads of each event loop for one kind of work.

    A cancelled caller stops waiting; work that has begun keeps its thread until it ends, so that the number is never
    exceeded. Long work calls ``check_wanted`` now and then."""

    def __init__(self, kind: str, most: int) -> None:
        self._most = most
        self._limiter = anyio.lowlevel.RunVar[anyio.CapacityLimiter](f"threads for {kind}")

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, work: Work | None = None) -> T:
        """Call it in a thread, once one is free. ``work`` records how far the call came."""
        limiter = self._limiter.get(None)
        if limiter is None:
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
                _here.work, work.has_ended = None, True
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


_here = _Here()
