"""Whether a Router can serve: it is open, and its storage can be read and written in time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf

from routewright.errors import RouterError, UnsupportedWrite
from routewright.fork import renew_in_children
from routewright.protocols import Clock, Storage
from routewright.wire import SYSTEM_ACCOUNT, CurrentRetention, KeepLease

from .storage import storage_faults
from .worker import Detached, Worker

LEFT_S = 10.0
"""A storage that has not answered by then is left, and asked again."""
WRITE_EVERY_S = 5.0
"""So often a write is tried, at most."""
_LEASE = "own_readiness"


class Readiness:
    """Asks a storage whether it can be read and written; one that is stuck is left behind."""

    def __init__(self, storage: Storage, is_stuck: Callable[[], bool], worker: Worker, clock: Clock) -> None:
        """``is_stuck``: traces wait, and cannot be written."""
        self._storage = storage
        self._is_stuck = is_stuck
        self._worker = worker
        self._clock = clock
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing: what was being asked at a fork is the parent's."""
        self._asking: Detached[str | None] | None = None
        """The storage as it is, or was, asked: no second time while the first lasts."""
        self._step = "read"
        self._tried_at = -inf
        self._unwritten: str | None = None

    async def problem(self, within_s: float) -> str | None:
        """What is wrong, in words that tell nothing else; None: nothing is. Raises ``RouterClosed``."""
        with self._clock.deadline(self._clock.monotonic() + within_s):
            if self._asking is None or self._asking.has_ended:
                self._asking = Detached(partial(self._ask, max(within_s, LEFT_S)), self._worker)
            return await self._asking.result()
        return self._late(within_s)

    async def _ask(self, longest_s: float) -> str | None:
        with self._clock.deadline(self._clock.monotonic() + longest_s):
            self._step = "read"
            return await _fault("read", self._read) or await self._not_written()
        return self._late(longest_s)

    def _late(self, seconds: float) -> str:
        return f"the storage was not {self._step} within {seconds:g} s"

    async def _not_written(self) -> str | None:
        """Why nothing can be written: that traces wait is known; else it is tried, now and then."""
        if self._is_stuck():
            return "the storage cannot be written: traces wait"
        now = self._clock.monotonic()
        if now - self._tried_at >= WRITE_EVERY_S:
            self._step = "written"
            self._unwritten = await _fault("written", self._write)
            self._tried_at = now
        return self._unwritten

    async def _read(self) -> None:
        await self._storage.read(SYSTEM_ACCOUNT, CurrentRetention())

    async def _write(self) -> None:
        """Keep a lease under which nothing is held, in the place of the last."""
        lease = KeepLease(_LEASE, WRITE_EVERY_S, self._clock.monotonic())
        with suppress(UnsupportedWrite):  # a storage that keeps traces alone, and answers
            await self._storage.apply(SYSTEM_ACCOUNT, [lease])


async def _fault(done: str, ask: Callable[[], Awaitable[None]]) -> str | None:
    try:
        with storage_faults():
            await ask()
    except RouterError as error:  # its words stay there
        return f"the storage cannot be {done}: {error.code}"
    return None
