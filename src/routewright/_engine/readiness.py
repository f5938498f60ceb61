"""Readiness probe: can the storage be read and written in time?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf

from routewright.errors import RouterError, UnsupportedWrite
from routewright.fork import renew_in_children
from routewright.protocols import Clock, Storage
from routewright.wire import SYSTEM_ACCOUNT, CurrentRetention, DeleteResults

from .storage import storage_faults
from .worker import Detached, Worker

LEFT_S = 10.0
"""A storage that has not answered by then is left and asked again."""
WRITE_EVERY_S = 5.0
"""The shortest time between two test writes."""


class Readiness:
    """Probes whether a storage can be read and written. One that is stuck is left behind."""

    def __init__(self, storage: Storage, is_stuck: Callable[[], bool], worker: Worker, clock: Clock) -> None:
        """``is_stuck``: traces wait and cannot be written."""
        self._storage = storage
        self._is_stuck = is_stuck
        self._worker = worker
        self._clock = clock
        renew_in_children(self)

    def renew(self) -> None:
        """Start anew: a probe that was under way at a fork is the parent's."""
        self._probe: Detached[str | None] | None = None
        """The last probe; no other begins while it runs."""
        self._step = "read"
        self._tried_at = -inf
        self._unwritten: str | None = None

    async def problem(self, within_s: float) -> str | None:
        """The problem in a sentence without details; None if there is none. Raises ``RouterClosed``."""
        with self._clock.deadline(self._clock.monotonic() + within_s):
            if self._probe is None or self._probe.has_ended:
                self._probe = Detached(partial(self._ask, max(within_s, LEFT_S)), self._worker)
            return await self._probe.result()
        return self._late(within_s)

    async def _ask(self, longest_s: float) -> str | None:
        with self._clock.deadline(self._clock.monotonic() + longest_s):
            self._step = "read"
            unread = await _fault("read", partial(self._storage.read, SYSTEM_ACCOUNT, CurrentRetention()))
            if unread is not None:
                return unread
            if self._is_stuck():
                return "the storage cannot be written: traces wait"
            now = self._clock.monotonic()
            if now - self._tried_at >= WRITE_EVERY_S:
                self._step = "written"
                self._unwritten = await _fault("written", self._write)
                self._tried_at = now
            return self._unwritten
        return self._late(longest_s)

    async def _write(self) -> None:
        nothing = DeleteResults()  # nobody's calls have idempotency keys there
        with suppress(UnsupportedWrite):  # a storage that keeps traces alone, and answers
            await self._storage.apply(SYSTEM_ACCOUNT, [nothing])

    def _late(self, seconds: float) -> str:
        return f"the storage was not {self._step} within {seconds:g} s"


async def _fault(done: str, ask: Callable[[], Awaitable[object]]) -> str | None:
    try:
        with storage_faults:
            await ask()
    except RouterError as error:  # its message stays out
        return f"the storage cannot be {done}: {error.code}"
    return None
