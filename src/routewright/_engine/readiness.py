"""Readiness probes of the storage, and policy versions, which all processes of a store share."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any
from weakref import WeakMethod

from routewright import wire
from routewright._core.policy import Versions, own_version
from routewright._runtime.loop import at_once, in_new_loop
from routewright._runtime.worker import Detached, Worker
from routewright.errors import InternalError, RouterError, StorageUnavailable, UnsupportedWrite
from routewright.protocols import Clock, Storage

from .storage import GuardedStorage, storage_faults
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


ASK_S = 1.0
"""How long a Router's first use, or a reload of policies, waits for the storage."""
RETRY_S = 5.0
Retry = Callable[[], Coroutine[Any, Any, bool]]

_log = logging.getLogger(__name__)


class PolicyNames:
    """The versions of one Router's policies. ``retry`` asks for the ``provisional`` ones again; False: try later."""

    def __init__(self, storage: Storage, worker: Worker, clock: Clock, retry: WeakMethod[Retry]) -> None:
        self._storage = GuardedStorage(storage)
        self._worker = worker
        self._clock = clock
        self._retry = retry
        self._own: Versions | None = None
        """Versions made here, for a storage that keeps none."""
        self.provisional: list[wire.PutPolicyVersion] = []
        """Policies with provisional versions of this process, because the storage was unavailable."""

    def of(self, writes: list[wire.PutPolicyVersion]) -> list[wire.PolicyVersion]:
        are_retried = bool(self.provisional)
        self.provisional = []
        if not writes:
            return []
        try:
            if self._own is None:
                return self._ask_now(writes)
        except UnsupportedWrite:
            self._own = Versions()
        except RouterError as error:
            _log.warning("policies have provisional versions until the storage is available: %s", error)
            self.provisional = writes
            if not are_retried:
                self._worker.start_daemon(_retry_until_done, self._retry, self._clock)
            return [*map(own_version, writes)]
        return [self._own.put(write)[0] for write in writes]

    async def ask(self, writes: Sequence[wire.PutPolicyVersion]) -> list[wire.PolicyVersion]:
        storage = self._storage
        query = wire.PolicyVersions(tuple(version.content for version in writes))
        versions: dict[str, wire.PolicyVersion] = {
            version.content: version for version in await storage.read(wire.SYSTEM_ACCOUNT, query)
        }
        new = [version for version in writes if version.content not in versions]
        if new:
            await storage.apply(wire.SYSTEM_ACCOUNT, new)
            versions = {version.content: version for version in await storage.read(wire.SYSTEM_ACCOUNT, query)}
        if len(versions) < len(query.contents):
            raise InternalError("the storage did not keep the policy versions that were written")
        return [versions[content] for content in query.contents]

    def _ask_now(self, writes: Sequence[wire.PutPolicyVersion]) -> list[wire.PolicyVersion]:
        """``ask`` for plain code. In a new loop, since this thread may be the worker's."""
        if self._storage.is_immediate or self._clock.virtual:
            try:
                return at_once(self.ask(writes))
            except RuntimeError as error:
                raise StorageUnavailable("the storage waits, but virtual time stands still in plain code") from error

        async def ask_in_time() -> list[wire.PolicyVersion]:
            with self._clock.deadline(self._clock.monotonic() + ASK_S):
                return await self.ask(writes)
            raise StorageUnavailable(f"the storage did not answer within {ASK_S:g} s")

        try:
            return in_new_loop(ask_in_time, ASK_S + 1.0)
        except TimeoutError as error:
            raise StorageUnavailable(f"the storage blocked its event loop for {ASK_S + 1.0:g} s") from error


async def _retry_until_done(retry: WeakMethod[Retry], clock: Clock) -> None:
    """Ask again until the storage has answered, or the Router is gone."""
    while True:
        await clock.sleep(RETRY_S)
        ask = retry()
        if ask is None or await ask():
            return
        del ask
