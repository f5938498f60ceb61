"""The queue of finished calls to be written, and a storage view that includes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from weakref import WeakSet

from msgspec import Struct

from routewright._core.agent.record import Recorded
from routewright.errors import StorageUnavailable
from routewright.fork import Guard
from routewright.loop import Signal
from routewright.protocols import Clock, Facts, Storage
from routewright.wire import (
    DeleteTraces,
    Environment,
    Grant,
    PutEvent,
    Query,
    Scan,
    Snapshot,
    TraceById,
    Write,
    Written,
)

from .capture import redacting
from .storage import GuardedStorage

QUEUE = 10_000
"""The most calls in the queue: some 20 MB, and their metadata. Calls to settle are queued beyond it."""
QUEUE_TEXT_BYTES = 64 * 1024 * 1024
"""The most captured text in the queue; further traces are kept without text."""


class Pending(Struct, eq=False):
    """A finished call, and the writes for it."""

    call: Recorded
    snapshots: Sequence[Snapshot]
    events: Sequence[PutEvent]
    grant: Grant | None
    facts: Facts | None
    """Its settlement, if it has one."""
    tried: Signal | None
    """Set after the first try to write it, or when it is dropped. None: no call waits for that."""
    trace_only: bool = False
    """The storage keeps only its trace."""
    is_settling: bool = False
    """Its own call is settling it."""

    def release(self) -> None:
        """Wake the call that waits for ``tried``."""
        if self.tried is not None:
            self.tried.set()


class Queue:
    """Pending calls of a Router, oldest first. Safe to use from several threads. Empty in a forked child."""

    def __init__(self, storage: Storage, write: Callable[[str], Awaitable[int]]) -> None:
        """``write`` tries to write the queue; returns how many calls of an account remain."""
        self.storage, self.write = storage, write
        self.is_closed = False
        """Accepts only calls to settle."""
        self._guard = Guard()
        self.renew()
        with _registering.lock:
            _queues.add(self)

    def renew(self) -> None:
        """Start empty."""
        self.calls: dict[str, Pending] = {}
        """By trace id; changed by this class only."""
        self.shortened = 0
        """Calls whose captured text was dropped."""
        self.is_full = False
        """No call with limits should be admitted."""
        self._text_bytes = self._settlements = 0

    def put(self, pending: Pending) -> str | None:
        """Add a call. Returns the reason if it is refused; a call to settle never is."""
        call, settles = pending.call, pending.facts is not None
        with self._guard.lock:
            if self.is_closed and not settles:
                return "the router is closed"
            if len(self.calls) >= QUEUE and not settles:
                return f"{QUEUE} traces wait already"
            if self._text_bytes + call.text_bytes > QUEUE_TEXT_BYTES:
                call.captured, call.text_bytes = None, 0
                self.shortened += 1
            self._text_bytes += call.text_bytes
            self._settlements += settles
            self.is_full = self._settlements >= QUEUE
            self.calls[call.id] = pending
        return None

    def remove(self, pending: Pending) -> bool:
        call = pending.call
        with self._guard.lock:
            if self.calls.get(call.id) is not pending:
                return False
            del self.calls[call.id]
            self._text_bytes -= call.text_bytes
            self._settlements -= pending.facts is not None
            self.is_full = self._settlements >= QUEUE
        return True

    def all(self) -> list[Pending]:
        with self._guard.lock:
            return list(self.calls.values())

    def find(self, account: str, trace_id: str, environment: Environment | None) -> Pending | None:
        found = self.calls.get(trace_id)
        if found is None or found.call.caller.account != account or environment not in (None, found.call.environment):
            return None
        return found


class FreshStorage(GuardedStorage):
    """A storage whose reads include traces that Routers of this process have queued."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        super().__init__(storage)
        self._clock = clock

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``). A deletion raises ``StorageUnavailable`` while queued traces of
        the account cannot be written: they would reappear."""
        left = await self._write(account)
        if left and any(isinstance(write, DeleteTraces) for write in writes):
            problem = f"traces of this account that cannot be written for now: {left}"
            raise StorageUnavailable(f"{problem}; deletion waits for them, so try again later")
        return await super().apply(account, writes)

    async def read(self, account: str, query: Query) -> Any:
        if not isinstance(query, TraceById):
            await self._write(account)
            return await super().read(account, query)
        queued = self._find(account, query)
        if queued is not None and queued.call.caller.key_id is not None:
            await self._write(account)  # only the storage knows if its key was revoked
            queued = self._find(account, query)
        if queued is None:
            return await super().read(account, query)
        call = queued.call
        return await redacting(lambda: call.trace, [call.captured], self._clock)

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> Any:
        await self._write(account)
        return await super().scan(account, query, after=after, limit=limit)

    def _find(self, account: str, query: TraceById) -> Pending | None:
        found = (queue.find(account, query.id, query.environment) for queue in self._queues())
        return next((pending for pending in found if pending is not None), None)

    async def _write(self, account: str) -> int:
        """Try to write the queues. Returns how many calls of the account remain."""
        return sum([await queue.write(account) for queue in self._queues() if queue.calls])

    def _queues(self) -> list[Queue]:
        with _registering.lock:
            return [queue for queue in _queues if queue.storage is self._storage]


_queues: WeakSet[Queue] = WeakSet()
"""The queues of all Routers of this process."""
_registering = Guard()
