"""Readiness probes of the storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf

from routewright import wire
from routewright._runtime.worker import Detached, Worker
from routewright.errors import RouterError, UnsupportedWrite
from routewright.protocols import Clock, Storage

from .storage import storage_faults
from .trace_writer import TraceWriter

LEFT_S = 10.0
"""Time-out of a probe; then a new one may start."""
WRITE_EVERY_S = 5.0
"""Least interval between two test writes."""
_PROBE = wire.CatalogueSnapshot("snapshot_of_readiness", "", ())
"""No trace names it, so it is swept a day after the last probe."""


class Readiness:
    """Probes if a storage can be read and written. A hanging probe continues in the background."""

    def __init__(self, storage: Storage, writer: TraceWriter, worker: Worker, clock: Clock) -> None:
        """``writer`` says how the last write went."""
        self._storage = storage
        self._writer = writer
        self._worker = worker
        self._clock = clock
        worker.renewals.add(self)

    def renew(self) -> None:
        """Start anew: after a fork a running probe is the parent's."""
        self._probe: Detached[str | None] | None = None
        """The last probe; no other starts while it runs."""
        self._step = "read"
        self._tried_at = -inf
        self._unwritten: str | None = None

    async def find_problem(self, within_s: float) -> str | None:
        """The problem in a sentence without details; None if there is none. Raises ``RouterClosed``."""
        with self._clock.deadline(self._clock.monotonic() + within_s):
            if self._probe is None or self._probe.has_ended:
                self._probe = Detached(partial(self._ask, max(within_s, LEFT_S)), self._worker)
            return await self._probe.result()
        return self._late(within_s)

    async def _ask(self, longest_s: float) -> str | None:
        with self._clock.deadline(self._clock.monotonic() + longest_s):
            self._step = "read"
            unread = await _fault("read", partial(self._storage.read, wire.SYSTEM_ACCOUNT, wire.CurrentRetention()))
            if unread is not None:
                return unread
            now = self._clock.monotonic()
            has_written = self._writer.last_write
            self._writer.last_write = None
            if has_written is not None:
                self._unwritten = None if has_written else "the storage cannot be written: the last write failed"
                self._tried_at = now
            elif now - self._tried_at >= WRITE_EVERY_S:
                self._step = "written"
                self._unwritten = await _fault("written", self._write)
                self._tried_at = now
            return self._unwritten
        return self._late(longest_s)

    async def _write(self) -> None:
        """Store a small row anew: a write that changes nothing needs no room, and succeeds on a full disk."""
        probe = wire.PutSnapshot(_PROBE, at=self._clock.time(), durability="committed")
        with suppress(UnsupportedWrite):  # a storage that keeps only traces; it answers all the same
            await self._storage.apply(wire.SYSTEM_ACCOUNT, [probe])

    def _late(self, seconds: float) -> str:
        return f"the storage was not {self._step} within {seconds:g} s"


async def _fault(done: str, ask: Callable[[], Awaitable[object]]) -> str | None:
    try:
        with storage_faults:
            await ask()
    except RouterError as error:  # the message is not for outsiders
        return f"the storage cannot be {done}: {error.code}"
    return None
