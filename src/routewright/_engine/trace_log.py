"""Queue of finished calls in front of the storage, and the writer that empties it.

A storage that never waits is written before the answer goes out. Any other is written in batches, one pass at a time;
reads look into the queue first, so that a trace can be read as soon as its call has ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from math import inf
from typing import Any, NamedTuple

import anyio

from routewright._core.call import Call
from routewright._core.money import usd_text
from routewright._core.request.json_scan import quoted
from routewright._core.salvage import Part, is_lost, next_part
from routewright.errors import (
    InternalError,
    NotFound,
    PreconditionFailed,
    RouterError,
    StorageUnavailable,
    UnsupportedWrite,
)
from routewright.fork import Guard, renew_in_children
from routewright.loop import Signal, at_once, is_cancelled, is_closed, this_loop
from routewright.protocols import Clock, ImmediateStorage, Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Caller,
    DeleteTraces,
    Durability,
    Environment,
    Event,
    PutEvent,
    PutFeedback,
    PutTrace,
    Query,
    Scan,
    Snapshot,
    SnapshotById,
    Trace,
    TraceById,
    Write,
    Written,
)

from .capture import redacting
from .hooks import Hooks
from .retention import Snapshots
from .settlement import Settlement, settle
from .storage import GuardedStorage, checked_written, found_trace
from .worker import Job, Worker

QUEUE = 10_000
"""Traces that may be queued: some 20 MB, and their metadata."""
QUEUE_TEXT_BYTES = 64 * 1024 * 1024
"""Captured prompts and answers that may be queued; beyond, traces are kept without theirs."""
DELAY_S = 0.01
"""How long traces are gathered. Each is in the storage within 50 ms, if that has nothing else to do."""
CROWD = 100
"""From so many queued traces on, each call that ends lets go of Python's lock ..."""
REST_S = 0.0001
"""... for this moment: the writer's thread could not get it otherwise from an event loop that is never idle. No call
rests for a storage that fails."""
LONGEST_DELAY_S = 5.0
"""Between two tries at a storage that is unavailable."""
BATCH = 256
AT_ONCE = 32
"""Accounts that are written to at a time."""
LONGEST_S = 10.0
"""A batch that takes longer is given up and tried again, as any write may be."""
PROBE_S, PAUSE_S = 2.0, 3.0
"""An account whose batch was never answered is left alone for ``PAUSE_S``; then one call is tried for ``PROBE_S``. So
it holds others up for little, and its recovery is noticed within five seconds. Each further probe takes twice as long,
as the storage may be slow."""
SEEMS_DOWN = 3
"""After so many failed accounts and no success a pass tries no others."""

_log = logging.getLogger(__name__)


class TraceCounts(NamedTuple):
    """Traces of this process that are not in the storage."""

    waiting: int
    """Still to be written."""
    refused: int
    """Given up because the storage would not take them."""
    lost: int
    """Given up because too many waited, or because the Router was closed before they could be written."""
    shortened: int = 0
    """Kept without their prompts and answers, since too much text waited."""
    unbilled: int = 0
    """Of those refused and lost, calls whose cost is not in the ledger either: the log names them."""


class _Pending(NamedTuple):
    """A finished call in the queue."""

    call: Call
    snapshots: Sequence[Snapshot]
    events: Sequence[PutEvent]
    settlement: Settlement | None
    tried: Signal | None
    """Set once it was written, could not be for now, or was given up."""


class _Pass:
    """One pass of the writer over the queue, in one event loop."""

    def __init__(self) -> None:
        self.loop = this_loop()
        self.ended = Signal()
        self.is_last = False
        """No other pass will try again."""
        self.down: set[str] = set()
        """Accounts that cannot be written to."""
        self.wrote = False
        self.postponed = False
        """A refused settlement is tried again later."""


class TraceLog:
    """Takes finished calls into the storage. Safe to use from several loops and threads.

    A call that cannot be written for now stays in the queue; one that is refused goes, but for its settlement, which
    is tried for longer. Both are raised by the next ``flush``, and logged when they begin.
    """

    def __init__(
        self, storage: Storage, worker: Worker, hooks: Hooks, clock: Clock, durability: Durability = "buffered"
    ) -> None:
        self._storage, self._guarded = storage, GuardedStorage(storage)
        self._immediate = storage if isinstance(storage, ImmediateStorage) else None
        self._hooks = hooks
        self._clock = clock
        self.durability: Durability = durability
        self.commits = durability == "committed" and self._immediate is None
        """Whether calls wait until their traces are committed."""
        self.retries = True
        """Whether the background tries again what failed; false while the Router closes."""
        self.is_closed = False
        """The background no longer writes."""
        self._delay_s = 0.0 if self.commits else DELAY_S
        self._job = Job(worker, self._drain, self._delay_s)
        self._urgent = Job(worker, self._drain, 0.0)
        self._later = Job(worker, self._drain, DELAY_S)
        self._snapshots = Snapshots(partial(self._apply, SYSTEM_ACCOUNT), self._note, clock, durability)
        self._hung: dict[str, tuple[float, float]] = {}
        """Accounts whose last batch was never answered: when to try again, and for how many seconds."""
        self._keeps_all = True
        """The storage keeps more than traces, as far as is known."""
        self._guard = Guard()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing: what was queued at a fork is the parent's to write."""
        self._queue: dict[str, _Pending] = {}  # by trace id, oldest first
        self._pass: _Pass | None = None
        self._text_bytes = self._settlements = 0
        self._wrote_nothing = False
        self._refused = self._lost = self._shortened = self._unbilled = self._raised = self._faults = 0
        self._last_fault: Exception | None = None
        self._fails = False
        """The last pass, or the last write at once, had a fault."""

    @property
    def counts(self) -> TraceCounts:
        """Traces that are not in the storage."""
        return TraceCounts(len(self._queue), self._refused, self._lost, self._shortened, self._unbilled)

    @property
    def is_full(self) -> bool:
        """So many settlements are queued that no call should be admitted that makes another."""
        return self._settlements >= QUEUE

    @property
    def is_stuck(self) -> bool:
        """Traces are queued, and the last pass that tried could write none."""
        return self._wrote_nothing and bool(self._queue)

    def put(
        self,
        call: Call,
        snapshots: Sequence[Snapshot],
        events: Sequence[PutEvent] = (),
        settlement: Settlement | None = None,
    ) -> None:
        """Keep a call's trace, the snapshots that its decision names, its events and its settlement. Never fails a
        call, nor holds it up."""
        storage = self._immediate
        emitted: Sequence[Event] = ()
        if storage is None:
            self._enqueue(call, snapshots, events, settlement)
            return
        try:
            if events or settlement is not None:
                emitted = self._settle_at_once(storage, call, events, settlement)
            storage.keep(call.caller.account, call, snapshots)
        except (Exception, asyncio.CancelledError) as error:
            # nobody has cancelled what never waits
            fault = error if isinstance(error, Exception) else StorageUnavailable("the storage cancelled itself")
            if settlement is None:
                self._refuse(fault)
            else:
                self._note(fault)
                self._enqueue(call, snapshots, events, settlement)
            return
        self._fails = False
        if self._hooks.any:
            self._hooks.put(call, emitted)
        if settlement is not None:
            settlement.end()

    async def commit(self, trace_id: str, until: float) -> None:
        """Wait until a trace is written, could not be for now, or was given up, but no longer than ``until`` on the
        clock."""
        pending = self._queue.get(trace_id)
        if pending is None or pending.tried is None:
            return
        with self._clock.deadline(until):
            if self.is_closed:
                await self.write()
            await pending.tried.wait()

    async def write_last(self, trace_id: str) -> None:
        """Write the trace of a call that ends after the close, or give it up."""
        try:
            await self.write()
        finally:
            self.lose(trace_id)

    async def flush(self) -> None:
        """Write the whole queue. Raises ``StorageUnavailable`` if some of it remains, and ``InternalError`` if traces
        were given up since the last time."""
        self._hung.clear()
        remains = await self.write()
        before, self._raised = self._raised, self._refused + self._lost
        if not remains and before == self._raised:
            return
        kind = StorageUnavailable if remains else InternalError
        left = f"{len(self._queue)} wait, {self._refused} were refused, {self._lost} are lost"
        fault = f"not all traces are in the storage: {left}; the last fault was {_text_of(self._last_fault)}"
        raise kind(fault) from self._last_fault

    def lose(self, trace_id: str) -> None:
        """Give a trace up that is still queued."""
        pending = self._queue.get(trace_id)
        if pending is not None:
            self._lose([pending])

    def close(self) -> None:
        """Take nothing more, and give up what is still queued."""
        with self._guard.lock:
            self.is_closed = True
            left = list(self._queue.values())
        self._lose(left)
        if left:
            _log.warning("the router was closed; traces that could not be written before, and are lost: %d", len(left))

    async def trace(self, caller: Caller, trace_id: str) -> Trace:
        """Read one trace. Raises ``NotFound`` alike for an unknown one and one of another account or environment."""
        trace = await self.queued(caller.account, trace_id, caller.environment)
        if trace is not None:
            return trace
        found = await self._guarded.read(caller.account, TraceById(trace_id, caller.environment))
        return found_trace(found, trace_id)

    async def queued(self, account: str, trace_id: str, environment: Environment | None) -> Trace | None:
        """A trace that is not written yet."""
        found = self._find(account, trace_id, environment)
        if found is not None and found.call.caller.key_id is not None:
            await self.write()  # only the storage knows whether its key was revoked
            found = self._find(account, trace_id, environment)
        if found is None:
            return None
        call = found.call
        return await redacting(lambda: call.trace, [call.captured], self._clock)

    async def feedback(self, caller: Caller, feedback: PutFeedback) -> None:
        """Keep a user's rating of an answer. Raises ``NotFound`` if the caller has no such trace."""
        pending = self._find(caller.account, feedback.trace_id, caller.environment)
        try:
            writes = [] if pending is None else await self._traces_of([pending])
            await self._guarded.apply(caller.account, [*writes, feedback])
        except PreconditionFailed as error:
            raise NotFound(f"no trace {quoted(feedback.trace_id)}") from error

    async def snapshot(self, snapshot_id: str) -> Snapshot | None:
        """Read a snapshot by its id."""
        found: Snapshot | None = await self._guarded.read(SYSTEM_ACCOUNT, SnapshotById(snapshot_id))
        return found

    async def write_of(self, account: str) -> int:
        """Try to write what is queued now. Gives how many traces of an account remain."""
        with self._guard.lock:
            before = [pending for pending in self._queue.values() if pending.call.caller.account == account]
        await self.write()
        return sum(self._queue.get(pending.call.id) is pending for pending in before)

    async def write(self) -> bool:
        """Try to write what is queued now. True: some of it remains."""
        done = await self._write(inf)
        return bool(done.down) or done.postponed

    # The queue.

    def _enqueue(
        self, call: Call, snapshots: Sequence[Snapshot], events: Sequence[PutEvent], settlement: Settlement | None
    ) -> None:
        waited_for = self.commits or settlement is not None
        pending = _Pending(call, snapshots, events, settlement, Signal() if waited_for else None)
        with self._guard.lock:
            # a settlement is kept however many are queued; while ``is_full`` no call is admitted that makes another
            fits = settlement is not None or not (len(self._queue) >= QUEUE or self.is_closed)
            if fits:
                if self._text_bytes + call.text_bytes > QUEUE_TEXT_BYTES:
                    call.captured, call.text_bytes = None, 0
                    self._shortened += 1
                self._text_bytes += call.text_bytes
                self._queue[call.id] = pending
                self._settlements += settlement is not None
            else:
                self._lost += 1
        self._end_lost()
        if not fits:
            why = "the router is closed" if self.is_closed else f"{QUEUE} traces wait already"
            self._note(InternalError(why))
            self._lose_bill(call, why)
            return
        (self._urgent if waited_for else self._job).poke()
        if len(self._queue) > CROWD and not self._fails and not self._clock.virtual:
            time.sleep(REST_S)

    def _find(self, account: str, trace_id: str, environment: Environment | None) -> _Pending | None:
        found = self._queue.get(trace_id)
        if found is None or found.call.caller.account != account or environment not in (None, found.call.environment):
            return None
        return found

    def _due(self, by: float) -> list[list[_Pending]]:
        """The queue by account, without refused settlements that are tried later than ``by``."""
        by_account: dict[str, list[_Pending]] = {}
        with self._guard.lock:
            for pending in self._queue.values():
                if pending.settlement is None or pending.settlement.retry_at <= by:
                    by_account.setdefault(pending.call.caller.account, []).append(pending)
        return [*reversed(by_account.values())]

    def _remove(self, pending: _Pending) -> bool:
        """Take a call out of the queue. False: it was not there."""
        call = pending.call
        with self._guard.lock:
            if self._queue.get(call.id) is not pending:
                return False
            del self._queue[call.id]
            self._text_bytes -= call.text_bytes
            self._settlements -= pending.settlement is not None
            return True

    def _finish(self, pending: _Pending, emitted: Sequence[Event] | None = None) -> None:
        """Take out a call that was written; without ``emitted`` it was given up, and no hook is called."""
        self._remove(pending)
        if pending.settlement is not None:
            pending.settlement.end()
        if emitted is not None and self._hooks.any:
            self._hooks.put(pending.call, emitted)

    def _lose(self, left: Iterable[_Pending]) -> None:
        """Give up calls that are still queued, and count them."""
        for pending in left:
            if self._remove(pending):
                with self._guard.lock:
                    self._lost += 1
                if pending.settlement is None or not pending.settlement.is_booked:
                    self._lose_bill(pending.call, "the router was closed before it could be")
                self._finish(pending)
            _release([pending])

    # The writer.

    async def _drain(self) -> None:
        """Write in the background: again while the storage is unavailable, ever less often, and when the first refused
        settlement is due."""
        done = await self._write(self._clock.monotonic())
        self._job.delay = min(max(self._job.delay, DELAY_S) * 2, LONGEST_DELAY_S) if done.down else self._delay_s
        if not self.retries:
            return
        if done.down:
            self._job.poke()
        with self._guard.lock:
            settlements = [pending.settlement for pending in self._queue.values()]
        due = [each.retry_at for each in settlements if each is not None and each.retry_at > -inf]
        if due:
            self._later.delay = max(min(due) - self._clock.monotonic(), DELAY_S)
            self._later.poke()

    async def _write(self, by: float) -> _Pass:
        """Try to write what is due by then."""
        mine = await self._begin()
        faults, mine.is_last = self._faults, not self.retries
        try:
            await self._write_accounts(self._due(by), mine)
            self._fails = self._fails and self._faults > faults
            if mine.down or mine.wrote:
                self._wrote_nothing = not mine.wrote
            return mine
        finally:
            self._end(mine)

    async def _begin(self) -> _Pass:
        """Wait until no other pass writes, whichever loop and thread it runs in."""
        mine = _Pass()
        while True:
            with self._guard.lock:
                self._end_lost()
                if self._pass is None:
                    self._pass = mine
                    return mine
                ended = self._pass.ended
            await ended.wait()

    def _end_lost(self) -> None:
        """End a pass whose loop was closed under it: those who wait for it would wait for ever."""
        going = self._pass
        if going is not None and is_closed(going.loop):
            self._end(going)

    def _end(self, ended: _Pass) -> None:
        with self._guard.lock:
            if self._pass is ended:
                self._pass = None
        ended.ended.set()

    async def _write_accounts(self, queues: list[list[_Pending]], going: _Pass) -> None:
        """Write queues of one account each: one by one until one is written, then many together."""
        try:
            await self._snapshots.keep(each for queue in queues for pending in queue for each in pending.snapshots)
        except StorageUnavailable as error:
            self._note(error)
            for queue in queues:
                going.down.add(queue[0].call.caller.account)
                _release(queue)
            return
        while queues and not going.wrote:
            await self._write_account(queues.pop(), going)

        async def write_rest() -> None:
            while queues:
                await self._write_account(queues.pop(), going)

        if queues:
            async with anyio.create_task_group() as group:
                for _ in range(min(len(queues), AT_ONCE)):
                    group.start_soon(write_rest)

    async def _write_account(self, queue: list[_Pending], going: _Pass) -> None:
        place, account = 0, queue[0].call.caller.account
        while place < len(queue):
            batch = queue[place : place + (1 if account in self._hung else BATCH)]
            place += len(batch)
            if account not in going.down and (going.wrote or len(going.down) < SEEMS_DOWN):
                try:
                    await self._write_batch(batch, going)
                except StorageUnavailable as error:
                    going.down.add(account)
                    self._note(error)
            _release(batch)  # not if this pass is cancelled: the next one writes what it leaves

    async def _write_batch(self, batch: list[_Pending], going: _Pass) -> None:
        """Write calls of one account. A refused batch is split to find the calls to blame; of each of these as much is
        written as the storage takes."""
        try:
            await self._write_whole(batch)
            going.wrote = True
        except StorageUnavailable:
            raise
        except Exception as error:  # a host's storage may raise anything, and no bill is lost for that
            pending, settlement = batch[0], batch[0].settlement
            if len(batch) > 1:
                for pending in batch:
                    await self._write_batch([pending], going)
            elif settlement is None and self._keeps_all and isinstance(error, UnsupportedWrite):
                self._keeps_all = False
                _log.info("the storage keeps traces alone: %s", error)
                await self._write_batch(batch, going)
            elif settlement is None or settlement.is_booked:
                self._refuse(error)
                self._finish(pending)
            elif isinstance(error, PreconditionFailed) and settlement.lose_claim(pending.call):
                await self._write_batch(batch, going)  # another call took its key over
            else:
                await self._write_settlement(pending, settlement, error, going)

    async def _write_whole(self, batch: list[_Pending]) -> None:
        """Write traces with their settlements and events, all or nothing."""
        traces = await self._traces_of(batch)
        whole = [self._keeps_all or each.settlement is not None for each in batch]
        others = [
            [*settle(each.call, each.settlement, self.durability), *each.events] if is_whole else []
            for each, is_whole in zip(batch, whole, strict=True)
        ]
        more = [write for each in others for write in each]
        writes = [*traces, *more]  # traces first: a storage may write many that follow each other at once
        written = await self._apply(batch[0].call.caller.account, writes)
        rest = iter(checked_written(self._storage, writes, written)[len(traces) :] if more else ())
        for pending, other, is_whole in zip(batch, others, whole, strict=True):
            mine = [*islice(rest, len(other))]
            self._finish(pending, _events_in(mine) if is_whole else _events_of(pending.events))

    async def _write_settlement(
        self, pending: _Pending, settlement: Settlement, error: Exception, going: _Pass
    ) -> None:
        """Settle a call whose whole batch is refused (``next_part``); later, if that is refused too."""
        call, now = pending.call, self._clock.monotonic()
        refused_s = inf if going.is_last else settlement.refused_s(now)
        part, fault = next_part(Part.WHOLE, refused_s), error
        while part is not None:
            try:
                emitted = await self._emitted(call, settle(call, settlement, self.durability, part))
                break
            except StorageUnavailable:
                raise
            except Exception as refused:  # as above: a smaller part is tried
                if isinstance(refused, PreconditionFailed):
                    settlement.lose_claim(call)
                fault = refused
                part = next_part(part, inf if isinstance(fault, UnsupportedWrite) else refused_s)
        if part is None:
            self._note(fault)
            if not going.is_last and not is_lost(refused_s) and not isinstance(fault, UnsupportedWrite):
                settlement.put_off(now)
                going.postponed = True
                return
            self._refuse(fault)
            self._lose_bill(call, _text_of(fault))
            self._finish(pending)
            return
        settlement.booked(part)
        if part is Part.BOUND:
            _log.warning("the bill of call %s was refused as it was: it is booked without detail", call.id)
        try:
            emitted += await self._write_trace(pending)
        except StorageUnavailable:
            raise
        except Exception as refused:  # as above: the trace alone is lost
            self._refuse(refused)
        self._finish(pending, emitted)
        going.wrote = True

    async def _write_trace(self, pending: _Pending) -> list[Event]:
        """Write a trace and its events, or the trace alone if the storage keeps no events."""
        trace = await self._traces_of([pending])
        try:
            return await self._emitted(pending.call, [*trace, *pending.events])
        except UnsupportedWrite:
            if not pending.events:
                raise
        await self._emitted(pending.call, trace)
        return _events_of(pending.events)

    async def _emitted(self, call: Call, writes: Sequence[Write]) -> list[Event]:
        """Apply writes of one call, and give the events that they led to."""
        return _events_in(checked_written(self._storage, writes, await self._apply(call.caller.account, writes)))

    async def _traces_of(self, batch: Sequence[_Pending]) -> list[Write]:
        """Write operations for traces, made in a worker thread where a redactor has to be asked."""
        calls = [pending.call for pending in batch]

        def make() -> list[Write]:
            return [PutTrace(call.trace, rollup_keys=call.rollup_keys, durability=self.durability) for call in calls]

        return await redacting(make, [call.captured for call in calls], self._clock)

    async def _apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply writes in bounded time. Raises ``StorageUnavailable`` at once for an account that hung lately."""
        now, hung = self._clock.monotonic(), account in self._hung
        retry_at, bound_s = self._hung.get(account, (now, LONGEST_S))
        if now < retry_at:
            raise StorageUnavailable(f"the storage stood still for this account {PAUSE_S:g} s ago or less")
        try:
            with self._clock.deadline(now + bound_s):
                done = await self._storage.apply(account, writes)
                self._hung.pop(account, None)
                return done
            self._hung[account] = now + bound_s + PAUSE_S, min(2 * bound_s, LONGEST_S) if hung else PROBE_S
            raise StorageUnavailable(f"the storage took longer than {bound_s:g} s")
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise StorageUnavailable(f"{type(self._storage).__name__} cancelled itself") from error

    def _settle_at_once(
        self, storage: ImmediateStorage, call: Call, events: Sequence[PutEvent], settlement: Settlement | None
    ) -> list[Event]:
        """Settle a call, and keep its events, in a storage that never waits."""
        writes = [*settle(call, settlement, self.durability), *events]
        try:
            written = at_once(storage.apply(call.caller.account, writes))
            return _events_in(checked_written(storage, writes, written))
        except PreconditionFailed:
            if settlement is None or not settlement.lose_claim(call):
                raise
            return self._settle_at_once(storage, call, events, settlement)
        except UnsupportedWrite:
            if settlement is not None:
                raise
            return _events_of(events)

    # Faults.

    def _refuse(self, error: Exception) -> None:
        """Count a trace that the storage would not take."""
        with self._guard.lock:
            self._refused += 1
        self._note(error)

    def _note(self, error: Exception) -> None:
        """Remember a fault for ``flush``, and log it unless the last pass had one too."""
        self._faults += 1
        self._last_fault = error.with_traceback(None)  # its frames would stay
        if not self._fails:
            self._fails = True
            _log.warning("traces cannot be written: %s", _text_of(error))

    def _lose_bill(self, call: Call, why: str) -> None:
        """Count a call that will not be in the ledger, and log what somebody has to book by hand."""
        if not any(row.cost_nanos or row.charge_nanos or row.cost_range_nanos for row in call.ledger_rows):
            return
        with self._guard.lock:
            self._unbilled += 1
        what = "money is lost: call %s of account %s (cost $%s, charge $%s) is not in the ledger: %s"
        _log.error(what, call.id, call.caller.account, usd_text(call.cost_nanos), usd_text(call.charged_nanos), why)


class FreshStorage(GuardedStorage):
    """A Router's storage as its own process sees it: reads include the traces that are still queued."""

    def __init__(self, storage: Storage, log: TraceLog) -> None:
        super().__init__(storage)
        self._log = log

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        """Apply all or none (``protocols.Storage``). A deletion raises ``StorageUnavailable`` while a trace of the
        account cannot be written: it would come back later."""
        left = await self._log.write_of(account)
        if left and any(isinstance(write, DeleteTraces) for write in writes):
            said = f"traces of this account that cannot be written for now: {left}"
            raise StorageUnavailable(f"{said}; nothing is deleted before they are, so try again")
        return await super().apply(account, writes)

    async def read(self, account: str, query: Query) -> Any:
        """Answer a query (``protocols.Storage``)."""
        if isinstance(query, TraceById):
            queued = await self._log.queued(account, query.id, query.environment)
            if queued is not None:
                return queued
        else:
            await self._log.write()
        return await super().read(account, query)

    async def scan(self, account: str, query: Scan, *, after: str | None, limit: int) -> Any:
        """Traces behind the key ``after`` (``protocols.Storage``)."""
        await self._log.write()
        return await super().scan(account, query, after=after, limit=limit)

    async def aclose(self) -> None:
        """Nothing: the Router closes its storage."""


def _release(tried: Iterable[_Pending]) -> None:
    """Wake the calls that wait until their traces were tried."""
    for pending in tried:
        if pending.tried is not None:
            pending.tried.set()


def _events_in(written: Iterable[Written]) -> list[Event]:
    """The events that writes led to."""
    return [stored.event for each in written for stored in each.events]


def _events_of(kept: Iterable[PutEvent]) -> list[Event]:
    return [each.event.event for each in kept]


def _text_of(error: Exception | None) -> str:
    """An error in a log; the message of a storage's own error stays out."""
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, RouterError) else kind
