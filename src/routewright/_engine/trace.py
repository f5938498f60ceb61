"""Where finished calls leave their traces. A store that answers at once is written before the answer goes out; any
other is written in batches behind it, and the queue is read before the store, so that a trace can be read at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

from routewright._core.call import Call
from routewright._core.scan import quoted
from routewright.errors import InternalError, NotFound, PreconditionFailed, StorageUnavailable
from routewright.fork import Guard, renew_in_children
from routewright.loop import Signal
from routewright.protocols import Clock, ImmediateStorage, Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Caller,
    Durability,
    Environment,
    Event,
    PutFeedback,
    Snapshot,
    SnapshotById,
    Trace,
    TraceById,
)

from .capture import redacting
from .crew import Job
from .stored import found_trace, storage_faults
from .trouble import TraceCounts, Trouble
from .waiting import Happening, Pass, Round, Waiting, keep_now, release
from .worker import Worker
from .writing import Writing

if TYPE_CHECKING:
    from .ending import Ending

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

_log = logging.getLogger(__name__)


class TraceLog:
    """The way from a finished call into the storage. Safe to use from several loops and threads.

    One pass writes at a time, wherever it runs. What it could not write for now stays, what was refused goes; both are
    told by the next ``flush``, and logged when they begin. What was written is handed to ``tell``.
    """

    def __init__(
        self,
        storage: Storage,
        worker: Worker,
        tell: Callable[[Call, Sequence[Event]], None],
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
        self._trouble = Trouble()
        self._writing = Writing(storage, clock, durability, self._trouble, tell, self._forget)
        self._job = Job(worker, self._drain, self._delay_s)
        self._urgent = Job(worker, self._drain, 0.0)
        self._later = Job(worker, self._drain, DELAY_S)
        self.retries = True
        """Whether the background tries again what failed; in the last seconds a try is enough."""
        self.is_closed = False
        """Nobody writes any more but who says so."""
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing: what waited at a fork is the parent's to write."""
        self._queue: dict[str, Waiting] = {}  # by trace id, in the order of their ends; out only when written
        self._pass: Pass | None = None
        self._text_bytes = self._bills = 0
        self._wrote_nothing = False

    @property
    def counts(self) -> TraceCounts:
        """What is not in the storage."""
        return self._trouble.counts(len(self._queue))

    @property
    def is_full(self) -> bool:
        """So many bills wait that no call should be let in that makes another."""
        return self._bills >= QUEUE

    @property
    def is_stuck(self) -> bool:
        """Traces wait, and of none the storage was available when they were tried last."""
        return self._wrote_nothing and bool(self._queue)

    def put(
        self,
        call: Call,
        snapshots: list[Snapshot],
        happened: Sequence[Happening] = (),
        ending: Ending | None = None,
    ) -> None:
        """Keep a call's trace, with the snapshots that its decision names and what else its ``ending`` needs. Never
        fails a call, nor holds it up."""
        account, storage = call.caller.account, self._immediate
        if storage is not None and ending is None and not happened:
            try:
                storage.keep(account, call, snapshots)
            except (Exception, asyncio.CancelledError) as error:
                self._trouble.refuse(_kept_at_once(error))
            else:
                self._trouble.lasts = False
                self._tell(call, ())
            return
        tried = Signal() if self.commits or ending is not None else None
        ended = Waiting(account, call, snapshots, happened, ending, self._clock.time(), tried)
        if storage is None:
            self._put_behind(ended)
            return
        try:
            events = keep_now(storage, ended, self._durability)
        except (Exception, asyncio.CancelledError) as error:
            fault = _kept_at_once(error)
            if ending is None:
                self._trouble.refuse(fault)
            else:
                self._trouble.note(fault)
                self._put_behind(ended)
            return
        self._trouble.lasts = False
        self._tell(call, events)
        ended.written()

    async def commit(self, trace_id: str | None, until: float) -> None:
        """Wait until a trace is written, could not be for now, or was given up, but no longer than ``until`` on the
        clock."""
        waiting = None if trace_id is None else self._queue.get(trace_id)
        if waiting is None or waiting.tried is None:
            return
        with self._clock.deadline(until):
            if self.is_closed:  # nobody else writes any more
                await self.write()
            await waiting.tried.wait()

    async def write_last(self, trace_id: str) -> None:
        """Write what a call leaves that ends after the close: nobody else does any more. What cannot be is lost."""
        try:
            await self.write()
        finally:
            self.lose(trace_id)

    def lose(self, trace_id: str) -> None:
        """Give a trace up that still waits, and say so."""
        with self._guard.lock:
            waiting = self._queue.get(trace_id)
            if waiting is not None:
                self._take_out(waiting)
        if waiting is not None:
            self._lose([waiting])

    async def flush(self) -> None:
        """Write all that waits. Raises ``StorageUnavailable`` if some of it still does, and ``InternalError`` if some
        was given up since the last time."""
        self._writing.forgive()
        waits = await self.write()
        self._trouble.tell(len(self._queue), waits=waits)

    def close(self) -> None:
        """Take nothing more, and give up what still waits."""
        with self._guard.lock:
            self.is_closed = True
            left = list(self._queue.values())
            for waiting in left:
                self._take_out(waiting)
        self._lose(left)
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
        try:
            writes = [] if waiting is None else await self._writing.traces_of([waiting])
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
        if found is not None and found.call.caller.key_id is not None:
            await self.write()  # whether its key was revoked only the storage knows
            found = self._find(account, trace_id, environment)
        if found is None:
            return None
        return await redacting(lambda: found.call.trace, [found.call.captured], self._clock)

    def _take_out(self, waiting: Waiting) -> None:
        del self._queue[waiting.call.id]
        self._text_bytes -= waiting.call.text_bytes
        self._bills -= waiting.ending is not None

    def _lose(self, left: Sequence[Waiting]) -> None:
        self._trouble.lose(len(left))
        for waiting in left:
            if waiting.ending is not None and not waiting.ending.is_booked:
                self._trouble.lose_bill(waiting.call, waiting.account, "the router was closed before it could be")
            waiting.written()
        release(left)

    def _find(self, account: str, trace_id: str, environment: Environment | None) -> Waiting | None:
        found = self._queue.get(trace_id)
        if found is None or found.account != account or environment not in (None, found.call.environment):
            return None
        return found

    def _put_behind(self, ended: Waiting) -> None:
        with self._guard.lock:
            # a bill is kept however many wait; ``is_full`` lets no call in that would make another
            fits = ended.ending is not None or not (len(self._queue) >= QUEUE or self.is_closed)
            if fits:
                self._shorten(ended.call)
                self._queue[ended.call.id] = ended
                self._bills += ended.ending is not None
        writing = self._pass
        if writing is not None and writing.is_lost:
            self._end(writing)  # else those who wait for it already would wait for ever
        if fits:
            (self._job if ended.tried is None else self._urgent).poke()
            if len(self._queue) > CROWD and not self._trouble.lasts and not self._clock.virtual:
                time.sleep(REST_S)
        else:
            self._trouble.lose(1)
            why = "the router is closed" if self.is_closed else f"{QUEUE} traces wait already"
            self._trouble.note(InternalError(why))

    async def _drain(self) -> None:
        """Write in the background; where the storage is unavailable, again and again, ever less often."""
        round = await self._write(self._clock.monotonic())
        self._job.delay = min(max(self._job.delay, DELAY_S) * 2, LONGEST_DELAY_S) if round.down else self._delay_s
        if self.retries:
            if round.down:
                self._job.poke()
            self._come_back()

    def _come_back(self) -> None:
        """Try bills again that were refused, when the first of them is due."""
        with self._guard.lock:
            due = [waiting.again_at for waiting in self._queue.values() if waiting.again_at > -inf]
        if due:
            self._later.delay = max(min(due) - self._clock.monotonic(), DELAY_S)
            self._later.poke()

    async def write_of(self, account: str) -> int:
        """Try to write what waits now. Says how many traces that an account had there still wait."""
        with self._guard.lock:
            before = [waiting for waiting in self._queue.values() if waiting.account == account]
        await self.write()
        return sum(self._queue.get(waiting.call.id) is waiting for waiting in before)

    async def write(self) -> bool:
        """Try to write what waits now. True: some of it still does."""
        return (await self._write(inf)).waits

    async def _write(self, by: float) -> Round:
        """Try to write what is due by then."""
        mine = await self._begin()
        faults, round = self._trouble.faults, Round(patient=self.retries)
        try:
            await self._writing.write(self._queues(by), round)
            self._trouble.lasts = self._trouble.lasts and self._trouble.faults > faults
            if round.down or round.wrote:
                self._wrote_nothing = not round.wrote
            return round
        finally:
            self._end(mine)

    def _queues(self, by: float) -> list[list[Waiting]]:
        """What waits and is due by then, by account."""
        by_account: dict[str, list[Waiting]] = {}
        with self._guard.lock:
            for waiting in self._queue.values():
                if waiting.again_at <= by:
                    by_account.setdefault(waiting.account, []).append(waiting)
        return [*reversed(by_account.values())]

    def _forget(self, batch: Sequence[Waiting]) -> None:
        with self._guard.lock:
            for waiting in batch:
                if self._queue.get(waiting.call.id) is waiting:
                    self._take_out(waiting)

    def _shorten(self, call: Call) -> None:
        """Take the words out of a call's trace where too many wait already."""
        if self._text_bytes + call.text_bytes > QUEUE_TEXT_BYTES:
            call.captured, call.text_bytes = None, 0
            self._trouble.shorten()
        self._text_bytes += call.text_bytes

    async def _begin(self) -> Pass:
        """Wait until no other pass writes, whichever loop and thread it runs in."""
        mine = Pass()
        while (other := self._become(mine)) is not mine:
            await other.ended.wait()
        return mine

    def _become(self, mine: Pass) -> Pass:
        """The pass that writes now: this one, unless another does."""
        with self._guard.lock:
            other = self._pass
            if other is not None and not other.is_lost:
                return other
            self._pass = mine
        if other is not None:
            other.ended.set()
        return mine

    def _end(self, ended: Pass) -> None:
        with self._guard.lock:
            if self._pass is ended:
                self._pass = None
        ended.ended.set()


def _kept_at_once(error: BaseException) -> Exception:
    """The fault of a storage that never waits, so that nobody has cancelled it."""
    return error if isinstance(error, Exception) else StorageUnavailable("the storage cancelled itself")
