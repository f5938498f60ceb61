"""Where finished calls leave their traces. A store that answers at once is written before the answer goes out; any
other is written in batches behind it, and the queue is read before the store, so that a trace can be read at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from routewright._core.scan import quoted
from routewright.errors import InternalError, NotFound, PreconditionFailed, RouterError, StorageUnavailable
from routewright.fork import Guard, renew_in_children
from routewright.loop import Signal, is_cancelled, is_closed, this_loop
from routewright.protocols import Clock, ImmediateStorage, Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Caller,
    Durability,
    Environment,
    Event,
    PutFeedback,
    PutTrace,
    Snapshot,
    SnapshotById,
    Trace,
    TraceById,
    Write,
)

from .capture import redacting
from .crew import Job
from .outcome import Facts
from .snapshot import Snapshots
from .worker import Worker

BATCH = 256
QUEUE = 10_000
"""Traces that may wait for a storage: some 20 MB, and what metadata they bring."""
QUEUE_TEXT_BYTES = 64 * 1024 * 1024
"""Captured prompts and answers that may wait; beyond, traces are kept without theirs."""
DELAY_S = 0.01
"""How long traces are gathered. Within 50 ms each is in the storage, if that has nothing else to do."""
CROWD = 100
"""From so many waiting traces on, each call that ends lets go of Python's lock ..."""
REST_S = 0.0001
"""... for this moment: the writer's thread could not get it otherwise from an event loop that is never idle. Not where
the storage is in trouble: no call waits for that."""
LONGEST_DELAY_S = 5.0
"""Between two tries at a storage that is unavailable."""
_SEEMS_DOWN = 3
"""So many accounts in a row that cannot be written to: the others need not be tried."""

_log = logging.getLogger(__name__)


class Waiting(NamedTuple):
    """A finished call on its way into the storage."""

    account: str
    facts: Facts
    snapshots: list[Snapshot]
    events: Sequence[Event]
    tried: Signal | None
    """Set once it was written, could not be for now, or was given up: for who waits for that."""


class TraceCounts(NamedTuple):
    """What became of traces that are not in the storage, in this process."""

    waiting: int
    """Still to be written."""
    refused: int
    """Given up because the storage would not take them."""
    lost: int
    """Given up because too many waited, or because the Router was closed before they could be written."""
    shortened: int = 0
    """Kept without their prompts and answers, since too much text waited."""


class TraceLog:
    """The way from a finished call into the storage. Safe to use from several loops and threads.

    One pass writes at a time, wherever it runs. What it could not write for now stays, what was refused goes; both are
    told by the next ``flush``, and logged when they begin. What was written is handed to ``tell``.
    """

    def __init__(
        self,
        storage: Storage,
        worker: Worker,
        tell: Callable[[Facts, Sequence[Event]], None],
        clock: Clock,
        durability: Durability = "buffered",
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._durability: Durability = durability
        self._tell = tell
        self._immediate = storage if isinstance(storage, ImmediateStorage) else None
        self._guard = Guard()
        self.commits = durability == "committed" and self._immediate is None
        """Whether calls wait until their traces are committed."""
        self._delay_s = 0.0 if self.commits else DELAY_S
        self._snapshots = Snapshots(partial(self._apply, SYSTEM_ACCOUNT), self._trouble, clock, durability)
        self._job = Job(worker, self._drain, self._delay_s)
        self.retries = True
        """Whether the background tries again what failed; in the last seconds a try is enough."""
        self._closed = False
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing: what waited at a fork is the parent's to write."""
        self._queue: dict[str, Waiting] = {}  # by trace id, in the order of their ends; out only when written
        self._pass: _Pass | None = None
        self._refused = self._lost = self._shortened = self._told = 0
        self._text_bytes = 0
        self._failed: Exception | None = None
        self._faults = 0
        self._in_trouble = False

    @property
    def counts(self) -> TraceCounts:
        """What is not in the storage."""
        return TraceCounts(len(self._queue), self._refused, self._lost, self._shortened)

    def put(self, facts: Facts, snapshots: list[Snapshot], events: Sequence[Event] = ()) -> None:
        """Keep a call's trace, with the snapshots that its decision names. Never fails a call, nor holds it up."""
        account = facts.admitted.caller.account
        if self._immediate is None:
            self._put_behind(Waiting(account, facts, snapshots, events, Signal() if self.commits else None))
            return
        try:
            self._immediate.keep(account, facts, snapshots)
        except Exception as error:
            self._refuse(error)
        else:
            self._in_trouble = False
            self._tell(facts, events)

    async def commit(self, trace_id: str | None, until: float) -> None:
        """Wait until a trace is written, could not be for now, or was given up, but no longer than ``until`` on the
        clock."""
        waiting = None if trace_id is None else self._queue.get(trace_id)
        if waiting is None or waiting.tried is None:
            return
        with self._clock.deadline(until):
            await waiting.tried.wait()

    async def flush(self) -> None:
        """Write all that waits. Raises ``StorageUnavailable`` if some of it still does, and ``InternalError`` if some
        was given up since the last time."""
        waits = await self.write()
        told, self._told = self._told, self._refused + self._lost
        if not waits and told == self._told:
            return
        failed, counts = self._failed, self.counts
        left = f"{counts.waiting} wait, {counts.refused} were refused, {counts.lost} are lost"
        said = f"not all traces are in the storage: {left}"
        kind = StorageUnavailable if waits else InternalError
        raise kind(f"{said}; the last fault was {type(failed).__name__}: {failed}") from failed

    def close(self) -> None:
        """Take nothing more, and give up what still waits."""
        with self._guard.lock:
            self._closed = True
            left, self._queue = list(self._queue.values()), {}
            self._lost += len(left)
        _release(left)
        if left:
            _log.warning("the router was closed; traces that could not be written before, and are lost: %d", len(left))

    async def trace(self, caller: Caller, trace_id: str) -> Trace:
        """Read one trace. Raises ``NotFound`` alike for an unknown one and one of another account or environment."""
        waiting = await self.waiting(caller.account, trace_id, caller.environment)
        if waiting is not None:
            return waiting
        with storage_faults():
            found = await self._storage.read(caller.account, TraceById(trace_id, caller.environment))
        return found_trace(found, trace_id)

    async def feedback(self, caller: Caller, feedback: PutFeedback) -> None:
        """Keep what a user thought of an answer. Raises ``NotFound`` if the caller has no such trace."""
        waiting = self._find(caller.account, feedback.trace_id, caller.environment)
        writes: list[Write] = [] if waiting is None else await self._writes_of([waiting])
        try:
            with storage_faults():
                await self._storage.apply(caller.account, [*writes, feedback])
        except PreconditionFailed as error:
            raise NotFound(f"no trace {quoted(feedback.trace_id)}") from error

    async def snapshot(self, snapshot_id: str) -> Snapshot | None:
        """Read a snapshot by its id."""
        with storage_faults():
            return await self._storage.read(SYSTEM_ACCOUNT, SnapshotById(snapshot_id))

    async def waiting(self, account: str, trace_id: str, environment: Environment | None) -> Trace | None:
        """A trace that is not written yet."""
        found = self._find(account, trace_id, environment)
        if found is None:
            return None
        return await redacting(lambda: found.facts.trace, [found.facts.captured], self._clock)

    def _find(self, account: str, trace_id: str, environment: Environment | None) -> Waiting | None:
        found = self._queue.get(trace_id)
        if found is None or found.account != account or environment not in (None, found.facts.environment):
            return None
        return found

    def _put_behind(self, ended: Waiting) -> None:
        with self._guard.lock:
            fits = len(self._queue) < QUEUE and not self._closed
            if fits:
                self._shorten(ended.facts)
                self._queue[ended.facts.id] = ended
            else:
                self._lost += 1
        writing = self._pass
        if writing is not None and writing.is_lost:
            self._end(writing)  # else those who wait for it already would wait for ever
        if fits:
            self._job.poke()
            if len(self._queue) > CROWD and not self._in_trouble and not self._clock.virtual:
                time.sleep(REST_S)
        else:
            self._trouble(InternalError("the router is closed" if self._closed else f"{QUEUE} traces wait already"))

    async def _drain(self) -> None:
        """Write in the background; where the storage is unavailable, again and again, ever less often."""
        waits = await self.write()
        self._job.delay = min(max(self._job.delay, DELAY_S) * 2, LONGEST_DELAY_S) if waits else self._delay_s
        if waits and self.retries:
            self._job.poke()

    async def write_of(self, account: str) -> int:
        """Try to write what waits now. Says how many traces that an account had there still wait."""
        with self._guard.lock:
            before = [waiting for waiting in self._queue.values() if waiting.account == account]
        await self.write()
        return sum(self._queue.get(waiting.facts.id) is waiting for waiting in before)

    async def write(self) -> bool:
        """Try to write what waits now. True: some of it still does, since the storage is unavailable."""
        mine = await self._begin()
        faults = self._faults
        batches = self._batches()
        try:
            down: set[str] = set()
            wrote = False
            for batch in batches:
                account = batch[0].account
                if account not in down and (wrote or len(down) < _SEEMS_DOWN):
                    try:
                        await self._write(batch)
                        wrote = True
                    except StorageUnavailable as error:
                        down.add(account)
                        self._trouble(error)
                _release(batch)  # not where this pass is cancelled: what it leaves is for the next
            self._in_trouble = self._in_trouble and self._faults > faults
            return bool(down)
        finally:
            self._end(mine)

    def _batches(self) -> list[list[Waiting]]:
        by_account: dict[str, list[Waiting]] = {}
        with self._guard.lock:
            for waiting in self._queue.values():
                by_account.setdefault(waiting.account, []).append(waiting)
        return [here[place : place + BATCH] for here in by_account.values() for place in range(0, len(here), BATCH)]

    async def _write(self, batch: list[Waiting]) -> None:
        """Write traces of one account; where they are refused, one by one, to find those that are to blame."""
        await self._snapshots.keep(snapshot for waiting in batch for snapshot in waiting.snapshots)
        try:
            await self._apply(batch[0].account, await self._writes_of(batch))
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

    async def _writes_of(self, batch: Sequence[Waiting]) -> list[Write]:
        def make() -> list[Write]:
            facts = [waiting.facts for waiting in batch]
            return [PutTrace(each.trace, rollup_keys=each.rollup_keys, durability=self._durability) for each in facts]

        return await redacting(make, [waiting.facts.captured for waiting in batch], self._clock)

    async def _apply(self, account: str, writes: Sequence[Write]) -> None:
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
                    self._text_bytes -= waiting.facts.text_bytes

    def _shorten(self, facts: Facts) -> None:
        """Take the words out of a call's trace where too many wait already."""
        if self._text_bytes + facts.text_bytes > QUEUE_TEXT_BYTES:
            facts.captured = None
            self._shortened += 1
        self._text_bytes += facts.text_bytes

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


def _release(ended: Iterable[Waiting]) -> None:
    """Let calls go on that wait for their traces to be written."""
    for waiting in ended:
        if waiting.tried is not None:
            waiting.tried.set()


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


def found_trace(found: object, trace_id: str) -> Trace:
    """The trace that a storage gave. Raises ``NotFound`` for none, and ``InternalError`` for what is no trace."""
    if found is None:
        raise NotFound(f"no trace {quoted(trace_id)}")
    if not isinstance(found, Trace):
        raise InternalError(f"the storage gave {type(found).__name__} in the place of a trace")
    return found
