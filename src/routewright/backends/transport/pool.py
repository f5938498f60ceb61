"""One pool of connections an event loop, which ends with its loop where nobody closes it.

The tie is an async generator that is suspended as long as the loop lives: both asyncio and trio close such generators
as their last act. What ends without that act (a plain ``loop.close()``, a fork, a transport that is dropped) is let go
by hand, so that nothing warns and nothing is touched that belongs to another loop or process.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

Loop = Any
"""An asyncio loop, or the token of a trio run."""


class LoopPool(ABC):
    """The connections of one event loop in one process."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.closed = False
        self._pid = os.getpid()
        self._keeper: AsyncGenerator[None, None] | None = None

    def keep(self, forget: Callable[[Loop, None], object]) -> None:
        """Tie the pool to the loop that runs now; ``forget`` is called as that ends."""
        self._keeper = _until_loop_ends(self, forget)
        with suppress(StopIteration):  # it does not wait before its yield
            self._keeper.asend(None).send(None)

    @property
    def is_stale(self) -> bool:
        """The loop is over, or was left behind by a fork."""
        return self._pid != os.getpid() or self.loop_is_over()

    async def aclose(self) -> None:
        """Close in the loop that it belongs to."""
        if self.is_stale:
            self.end()
        elif not self.closed:
            self.closed = True
            self._let_loop_go()
            await self.close_connections()

    def end(self) -> None:
        """Let go, from any thread: at once where the loop allows it, else as soon as it runs."""
        self._let_loop_go()
        if self.closed or self._end_in_loop():
            return
        self.closed = True
        if self.is_stale or not self.loop_runs_here():
            self.abandon_connections()
        else:
            self.abort_connections()

    def _end_in_loop(self) -> bool:
        if self.is_stale or self.loop_runs_here():
            return False
        try:
            self.call_in_loop(self.end)
        except RuntimeError:  # it closed meanwhile
            return False
        return True

    def _let_loop_go(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            with suppress(StopIteration, RuntimeError):  # RuntimeError: it is what closes us
                keeper.aclose().send(None)

    def __del__(self) -> None:
        # only a pool whose `end` was put into a loop that never ran again gets here unclosed
        if not self.closed:
            self.closed = True
            self.abandon_connections()

    @abstractmethod
    def loop_is_over(self) -> bool:
        """Nothing can run in it any more."""

    @abstractmethod
    def loop_runs_here(self) -> bool:
        """It is the one that runs in this thread."""

    @abstractmethod
    def call_in_loop(self, callback: Callable[[], None]) -> None:
        """Thread-safe. Raises ``RuntimeError`` once the loop is over."""

    @abstractmethod
    async def close_connections(self) -> None:
        """Close them, inside the loop."""

    @abstractmethod
    def abort_connections(self) -> None:
        """Close them without waiting, inside the loop."""

    @abstractmethod
    def abandon_connections(self) -> None:
        """Free them without their loop, and without a word to the peer, who may still talk to the parent process."""


async def _until_loop_ends(pool: LoopPool, forget: Callable[[Loop, None], object]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        if pool._keeper is not None:  # else it is not the loop's end but our own doing
            forget(pool.loop, None)
            await pool.aclose()


P = TypeVar("P", bound=LoopPool)


class LoopPools(Generic[P]):
    """Finds or makes the pool of the running loop. Thread-safe; dropping it closes its pools."""

    def __init__(self, make: Callable[[Loop], P], running_loop: Callable[[], Loop]) -> None:
        self._make = make
        self._running_loop = running_loop
        # strong keys: a pool refers to its loop anyway, so weak ones would never let go; `_make_here` sweeps instead
        self._pools: dict[Loop, P] = {}
        weakref.finalize(self, _end_all, self._pools)

    def get(self) -> P:
        """The pool of the running loop."""
        loop = self._running_loop()
        pool = self._pools.get(loop)
        return pool if pool is not None else self._make_here(loop)

    async def aclose(self) -> None:
        """Close every pool: the running loop's now, those of others in theirs. A later request opens a new one."""
        here = self._pools.pop(self._running_loop(), None)
        _end_all(self._pools)
        if here is not None:
            await here.aclose()

    def _make_here(self, loop: Loop) -> P:
        for other, pool in list(self._pools.items()):
            if pool.is_stale and self._pools.pop(other, None) is not None:  # else another thread swept it
                pool.end()
        pool = self._pools[loop] = self._make(loop)
        pool.keep(self._pools.pop)
        return pool


def _end_all(pools: dict[Loop, P]) -> None:
    while pools:
        with suppress(KeyError):  # its loop may end at this moment, in another thread
            pools.popitem()[1].end()
