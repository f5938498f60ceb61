"""Where finished calls leave their traces. A store that answers at once is written before the answer goes out; any
other is written in batches behind it, and the queue is read before the store, so that a trace can be read at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from routewright._core.scan import quoted
from routewright.errors import InternalError, NotFound, PreconditionFailed, RouterError, StorageUnavailable
from routewright.fork import Guard, renew_in_children
from routewright.protocols import ImmediateStorage, Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Caller,
    Event,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    Snapshot,
    SnapshotById,
    Trace,
    TraceById,
    Write,
)

from .crew import Job
from .loop import Signal, is_cancelled, is_closed, this_loop
from .outcome import Facts
from .worker import Worker

BATCH = 256
QUEUE = 10_000
"""Traces that may wait for a storage: some 20 MB, and what metadata they bring."""
DELAY_S = 0.02
LONGEST_DELAY_S = 5.0
"""Between two tries at a storage that is unavailable."""
_SEEMS_DOWN = 3
"""So many accounts in a row that cannot be written to: the others need not be tried."""
_REMEMBERED = 1_000

_log = logging.getLogger(__name__)


class Waiting(NamedTuple):
    """A finished call on its way into the storage."""

    account: str
    facts: Facts
    snapshots: list[Snapshot]
    events: Sequence[Event]


class TraceCounts(NamedTuple):
    """What became of traces that are not in the storage, in this process."""

    waiting: int
    """Still to be written."""
    refused: int
    """Given up because the storage would not take them."""
    lost: int
    """Given up because too many waited, or because the Router was closed before they could be written."""


class TraceLog:
    """The way from a finished call into the storage. Safe to use from several loops and threads.

    One pass writes at a time, wherever it runs. What it could not write for now stays, what was refused goes; both are
    told by the next ``flush``, and logged when they begin. What was written is handed to ``tell``.
    """

    def __init__(self, storage: Storage, worker: Worker, tell: Callable[[Facts, Sequence[Event]], None]) -> None:
        self._storage = storage
        self._tell = tell
        self._immediate = storage if isinstance(storage, ImmediateStorage) else None
        self._guard = Guard()
        self._kept: set[str] = set()
        self._job = Job(worker, self._drain, DELAY_S)
        self.retries = True
        """Whether the background tries again what failed; in the last seconds a try is enough."""
        self._closed = False
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing: what waited at a fork is the parent's to write."""
        self._queue: dict[str, Waiting] = {}  # by trace id, in the order of their ends; out only when written
        self._pass: _Pass | None = None
        self._refused = self._lost = self._told = 0
        self._failed: Exception | None = None
        self._faults = 0
        self._in_trouble = False

    @property
    def counts(self) -> TraceCounts:
        """What is not in the storage."""
        return TraceCounts(len(self._queue), self._refused, self._lost)

    def put(self, facts: Facts, snapshots: list[Snapshot], events: Sequence[Event] = ()) -> None:
        """Keep a call's trace, with the snapshots that its decision names. Never fails a call, nor holds it up."""
        account = facts.admitted.caller.account
        if self._immediate is None:
            self._put_behind(Waiting(account, facts, snapshots, events))
            return
        try:
            self._immediate.keep(account, facts, snapshots)
        except Exception as error:
            self._refuse(error)
        else:
            self._in_trouble = False
            self._tell(facts, events)

    async def flush(self) -> None:
        """Write all that waits. Raises ``StorageUnavailable`` if some of it still does, and ``InternalError`` if some
        was given up since the last time."""
        waits = await self.write()
        told, self._told = self._told, self._refused + self._lost
        if not waits and told == self._told:
            return
        failed, (waiting, refused, lost) = self._failed, self.counts
        said = f"not all traces are in the storage: {waiting} wait, {refused} were refused, {lost} are lost"
        kind = StorageUnavailable if waits else InternalError
        raise kind(f"{said}; the last fault was {type(failed).__name__}: {failed}") from failed

    def close(self) -> None:
        """Take nothing more, and give up what still waits."""
        with self._guard.lock:
            self._closed = True
            left, self._queue = len(self._queue), {}
            self._lost += left
        if left:
            _log.warning("the router was closed; traces that could not be written before, and are lost: %d", left)

    async def trace(self, caller: Caller, trace_id: str) -> Trace:
        """Read one trace. Raises ``NotFound`` alike for an unknown one and one of another account or environment."""
        waiting = self._find(caller, trace_id)
        if waiting is not None:
            return waiting.facts.trace
        with storage_faults():
            found = await self._storage.read(caller.account, TraceById(trace_id, caller.environment))
        return checked_trace(found, trace_id)

    async def feedback(self, caller: Caller, feedback: PutFeedback) -> None:
        """Keep what a user thought of an answer. Raises ``NotFound`` if the caller has no such trace."""
        waiting = self._find(caller, feedback.trace_id)
        writes: list[Write] = [] if waiting is None else [PutTrace(waiting.facts.trace)]
        try:
            with storage_faults():
                await self._storage.apply(caller.account, [*writes, feedback])
        except PreconditionFailed as error:
            raise NotFound(f"no trace {quoted(feedback.trace_id)}") from error

    async def snapshot(self, snapshot_id: str) -> Snapshot | None:
        """Read a snapshot by its id."""
        with storage_faults():
            return await self._storage.read(SYSTEM_ACCOUNT, SnapshotById(snapshot_id))

    def _find(self, caller: Caller, trace_id: str) -> Waiting | None:
        waiting = self._queue.get(trace_id)
        if waiting is None or (waiting.account, waiting.facts.environment) != (caller.account, caller.environment):
            return None
        return waiting

    def _put_behind(self, ended: Waiting) -> None:
        with self._guard.lock:
            fits = len(self._queue) < QUEUE and not self._closed
            if fits:
                self._queue[ended.facts.id] = ended
            else:
                self._lost += 1
        writing = self._pass
        if writing is not None and writing.is_lost:
            self._end(writing)  # else those who wait for it already would wait for ever
        if fits:
            self._job.poke()
        else:
            self._trouble(InternalError("the router is closed" if self._closed else f"{QUEUE} traces wait already"))

    async def _drain(self) -> None:
        """Write in the background; where the storage is unavailable, again and again, ever less often."""
        waits = await self.write()
        self._job.delay = min(self._job.delay * 2, LONGEST_DELAY_S) if waits else DELAY_S
        if waits and self.retries:
            self._job.poke()

    async def write(self) -> bool:
        """Try to write what waits now. True: some of it still does, since the storage is unavailable."""
        mine = await self._begin()
        faults = self._faults
        try:
            down: set[str] = set()
            wrote = False
            for batch in self._batches():
                account = batch[0].account
                if account in down or (len(down) >= _SEEMS_DOWN and not wrote):
                    continue
                try:
                    await self._write(batch)
                    wrote = True
                except StorageUnavailable as error:
                    down.add(account)
                    self._trouble(error)
            self._in_trouble = self._in_trouble and self._faults > faults
            return bool(down)
        finally:
            self._end(mine)

    def _batches(self) -> Iterable[list[Waiting]]:
        by_account: dict[str, list[Waiting]] = {}
        with self._guard.lock:
            for waiting in self._queue.values():
                by_account.setdefault(waiting.account, []).append(waiting)
        for waiting_here in by_account.values():
            left = iter(waiting_here)
            while batch := list(islice(left, BATCH)):
                yield batch

    async def _write(self, batch: list[Waiting]) -> None:
        """Write traces of one account; where they are refused, one by one, to find those that are to blame."""
        await self._keep({snapshot.id: snapshot for waiting in batch for snapshot in waiting.snapshots})
        try:
            await self._apply(batch[0].account, [PutTrace(waiting.facts.trace) for waiting in batch])
        except StorageUnavailable:
            raise
        except Exception as error:
            if len(batch) > 1:
                for waiting in batch:
                    await self._write([waiting])
                return
            self._refuse(error)
            self._forget(batch)
            return
        self._forget(batch)
        for waiting in batch:
            self._tell(waiting.facts, waiting.events)

    async def _keep(self, snapshots: dict[str, Snapshot]) -> None:
        new = [snapshot for snapshot in snapshots.values() if snapshot.id not in self._kept]
        if not new:
            return
        try:
            await self._apply(SYSTEM_ACCOUNT, [PutSnapshot(snapshot) for snapshot in new])
        except StorageUnavailable:
            raise
        except Exception as error:
            self._trouble(error)  # a trace without them is still a trace; it cannot be replayed
        if len(self._kept) > _REMEMBERED:
            self._kept.clear()
        self._kept.update(snapshot.id for snapshot in new)

    async def _apply(self, account: str, writes: list[Write]) -> None:
        try:
            await self._storage.apply(account, writes)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise StorageUnavailable(f"{type(self._storage).__name__} cancelled itself") from error

    def _forget(self, batch: list[Waiting]) -> None:
        with self._guard.lock:
            for waiting in batch:
                if self._queue.get(waiting.facts.id) is waiting:
                    del self._queue[waiting.facts.id]

    def _refuse(self, error: Exception) -> None:
        with self._guard.lock:
            self._refused += 1
        self._trouble(error)

    def _trouble(self, error: Exception) -> None:
        """Remember a fault for ``flush``, and log it unless the last pass had one too."""
        self._faults += 1
        self._failed = error.with_traceback(None)  # its frames would stay
        if not self._in_trouble:
            self._in_trouble = True
            _log.warning("traces cannot be written: %s: %s", type(error).__name__, error)

    async def _begin(self) -> _Pass:
        """Wait until no other pass writes, whichever loop and thread it runs in."""
        mine = _Pass()
        while (other := self._become(mine)) is not mine:
            await other.ended.wait()
        return mine

    def _become(self, mine: _Pass) -> _Pass:
        """The pass that writes now: this one, unless another does."""
        with self._guard.lock:
            other = self._pass
            if other is not None and not other.is_lost:
                return other
            self._pass = mine
        if other is not None:
            other.ended.set()
        return mine

    def _end(self, ended: _Pass) -> None:
        with self._guard.lock:
            if self._pass is ended:
                self._pass = None
        ended.ended.set()


class _Pass:
    """One go through the queue, in one event loop."""

    def __init__(self) -> None:
        self._loop = this_loop()
        self.ended = Signal()

    @property
    def is_lost(self) -> bool:
        """Its loop was closed under it, so it will never end."""
        return is_closed(self._loop)


@contextmanager
def storage_faults() -> Iterator[None]:
    """Make of what a storage raises, and should not, an ``InternalError`` that names its kind."""
    try:
        yield
    except RouterError:
        raise
    except Exception as error:  # its words stay there
        raise InternalError(f"the storage failed with {type(error).__name__}") from error


def checked_trace(found: object, trace_id: str) -> Trace:
    """The trace that a storage gave. Raises ``NotFound`` for none, and ``InternalError`` for what is no trace."""
    if found is None:
        raise NotFound(f"no trace {quoted(trace_id)}")
    if not isinstance(found, Trace):
        raise InternalError(f"the storage gave {type(found).__name__} in the place of a trace")
    return found
