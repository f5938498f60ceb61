"""Which threads does slow work run in? Each kind of it has its own, so that none waits behind another kind."""

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
    """Nobody waits any more for what this thread does."""


class Threads:
    """So many threads of each event loop for work of one kind.

    Who is cancelled waits no longer; work that has begun keeps its thread until it ends, so that no more is ever under
    way, whoever comes and goes. Work that takes long asks ``check_wanted`` now and then.
    """

    def __init__(self, kind: str, most: int) -> None:
        self._most = most
        self._places = anyio.lowlevel.RunVar[anyio.CapacityLimiter](f"threads for {kind}")

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call it in a thread, once one is free."""
        places, work = self._places_here(), _Work()
        await places.acquire_on_behalf_of(work)
        leave = partial(places.release_on_behalf_of, work)
        try:  # anyio's own limiter takes the work of a cancelled caller to have ended
            own = anyio.CapacityLimiter(1)
            done = from_elsewhere(leave)
            return await anyio.to_thread.run_sync(work.do, done, function, *args, abandon_on_cancel=True, limiter=own)
        finally:
            work.is_left = True
            if work.begins():  # so it never will
                leave()

    def _places_here(self) -> anyio.CapacityLimiter:
        places = self._places.get(None)
        if places is None:
            places = anyio.CapacityLimiter(self._most)
            self._places.set(places)
        return places


def check_wanted() -> None:
    """Raises ``Abandoned`` where this thread works for a caller of ``Threads.run`` who has left."""
    work = _here.work
    if work is not None and work.is_left:
        raise Abandoned


class _Work:
    """One call in a thread."""

    def __init__(self) -> None:
        self.is_left = False
        self._unbegun = [None]

    def begins(self) -> bool:
        """Say yes to who asks first, in one step."""
        try:
            self._unbegun.pop()
        except IndexError:
            return False
        return True

    def do(self, done: Callable[[], object], function: Callable[[*Ts], T], *args: *Ts) -> T:
        if not self.begins():
            raise Abandoned
        _here.work = self
        try:
            return function(*args)
        finally:
            _here.work = None
            with suppress(RuntimeError):  # its loop is gone
                done()


class _Here(threading.local):
    """What this thread does."""

    work: _Work | None = None


_here = _Here()
