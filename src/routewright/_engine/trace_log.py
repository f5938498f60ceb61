"""Writes finished calls to the storage.

A storage that never waits is written before the answer is returned. Any other is written in batches, one pass over the
queue at a time; reads look in the queue first, so a trace can be read as soon as its call has ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from math import inf
from typing import Any, NamedTuple, TypeVar

import anyio

from routewright._core.accounts.ledger import bounded, without_trace
from routewright._core.agent.record import Recorded
from routewright.errors import (
    InternalError,
    NotFound,
    PreconditionFailed,
    RouterError,
    StorageUnavailable,
    UnsupportedWrite,
)
from routewright.fork import Guard
from routewright.loop import Mutex, Signal, at_once, is_cancelled
from routewright.protocols import Accounts, BaseStorage, Clock, Facts, ImmediateStorage, Storage, options_of
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Caller,
    Durability,
    Event,
    Grant,
    PutEvent,
    PutFeedback,
    PutTrace,
    Snapshot,
    SnapshotById,
    StoredEvent,
    Trace,
    TraceById,
    Write,
    Written,
)
from routewright.wire.json_scan import quoted
from routewright.wire.money import usd_text
from routewright.worker import Job, Worker

from .capture import redacting
from .hooks import Hooks
from .retention import Snapshots
from .storage import GuardedStorage, checked_written, read_trace, unfit
from .trace_queue import FreshStorage, Pending, Queue

DELAY_S = 0.01
"""How long traces are collected into a batch. An idle storage has each within 50 ms."""
CROWD = 100
"""Above this number of queued traces the next pass starts at once."""
REST_S = 0.0001
"""Above ``2 * CROWD`` queued traces each call releases the GIL for this long when it ends: otherwise a busy event loop
would starve the writer's thread. Neither happens while the storage fails."""
LONGEST_DELAY_S = 5.0
"""The longest pause between two tries at an unavailable storage."""
BATCH = 256
AT_ONCE = 32
"""Accounts written at a time."""
LONGEST_S = 10.0
"""Time-out of a batch, which is then tried again."""
PROBE_S, PAUSE_S = 2.0, 3.0
"""An account whose batch timed out is skipped for ``PAUSE_S``; then one call is tried for ``PROBE_S``. This delays
other accounts little, and notices recovery within five seconds. The time-out of further probes doubles, since the
storage may only be slow."""
SEEMS_DOWN = 3
"""A pass stops after this many accounts failed and none succeeded."""

GIVE_BACK_S = 0.5
"""How long a call that ends after the close waits for its write."""
T = TypeVar("T")

_log = logging.getLogger(__name__)


class TraceCounts(NamedTuple):
    """Traces of this process that are not in the storage."""

    waiting: int
    """Not written yet."""
    refused: int
    """Dropped because the storage refused them."""
    lost: int
    """Dropped because the queue was full, or the Router was closed before they could be written."""
    shortened: int = 0
    """Kept without prompts and answers, because too much text was queued."""
    unbilled: int = 0
    """Refused or lost calls whose cost is not in the ledger either; the log names them."""


class TraceLog:
    """Writes finished calls to the storage. Safe to use from several loops and threads.

    A call with limits settles itself; if that fails, it is settled from the queue. A call that cannot be written yet
    stays in the queue. A refused trace is dropped; a refused settlement is tried with ever less detail. The next
    ``flush`` raises for both; the first of several failures is logged."""

    def __init__(
        self,
        storage: Storage,
        worker: Worker,
        hooks: Hooks,
        clock: Clock,
        durability: Durability = "buffered",
        *,
        accounts: Accounts | None = None,
        emitted: Callable[[], object] = bool,
    ) -> None:
        """``emitted`` is called when events have been stored. ``accounts`` replaces the storage's."""
        self._storage = storage
        self._takes_drafts = options_of(storage, BaseStorage).takes_drafts
        self.accounts: Accounts | None = accounts or options_of(storage, BaseStorage).accounts
        self._immediate = storage if isinstance(storage, ImmediateStorage) else None
        self._hooks = hooks
        self._emitted = emitted
        self._clock = clock
        self.durability: Durability = durability
        self.commits = durability == "committed" and self._immediate is None
        """True if calls wait until their traces are committed."""
        self.retries = True
        """False while the Router closes: failed writes are not tried again."""
        self.queue = Queue(storage, self.write)
        self._fresh = FreshStorage(storage, clock)
        self._job = Job(worker, self._drain, DELAY_S)
        self._urgent = Job(worker, self._drain, 0.0)
        self._one_pass = Mutex()
        self._snapshots = Snapshots(partial(self._apply, SYSTEM_ACCOUNT), self._note, clock, durability)
        self._hung: dict[str, tuple[float, float]] = {}
        """Accounts whose last batch timed out: when to try again, and with what timeout in seconds."""
        self._keeps_all = True
        """False once the storage has refused anything but traces."""
        self._guard = Guard()
        worker.renewals.add(self)

    def renew(self) -> None:
        """Start empty: after a fork the parent writes what was queued."""
        self.queue.renew()
        self._announced: list[PutEvent] = []
        self._refused = self._lost = self._unbilled = self._raised = 0
        self._last_fault: Exception | None = None
        self._fails = False
        """The last pass, or the last immediate write, had a fault."""
        self._down: set[str] = set()
        """Accounts that failed in this pass."""
        self._wrote = False
        """This pass wrote something."""
        self.is_stuck = False
        """The last pass that tried to write wrote nothing."""

    @property
    def counts(self) -> TraceCounts:
        return TraceCounts(len(self.queue.calls), self._refused, self._lost, self.queue.shortened, self._unbilled)

    def put(
        self,
        call: Recorded,
        snapshots: Sequence[Snapshot],
        events: Sequence[PutEvent] = (),
        grant: Grant | None = None,
        facts: Facts | None = None,
        *,
        behind: bool = False,
    ) -> None:
        """Store a call's trace, the snapshots of its decision, and its events; with ``facts``, settle it. Never fails
        or delays a call.

        The call settles itself by ``commit``; with ``behind`` the background does."""
        account, storage = call.caller.account, self._immediate
        if facts is not None:
            facts.snapshots, facts.events = snapshots, events
        if storage is not None:
            try:
                emitted: Sequence[Event] = ()
                if facts is not None:
                    assert self.accounts is not None, "they gave a grant"
                    if stored := at_once(self.accounts.settle(grant, facts)):
                        emitted = [each.event for each in stored]
                else:
                    if events:
                        emitted = _events_in(checked_written(storage, events, at_once(storage.apply(account, events))))
                    storage.keep(account, call, snapshots)
            except (Exception, asyncio.CancelledError) as error:
                # a storage that never waits cannot have been cancelled from outside
                fault = error if isinstance(error, Exception) else StorageUnavailable("the storage cancelled itself")
                if facts is None and not isinstance(fault, UnsupportedWrite):
                    self._refuse(fault)
                    return
                self._note(fault)
            else:
                self._fails = False
                if emitted:
                    self._emitted()
                if self._hooks.any:
                    self._hooks.put(call, emitted)
                return
        waited_for = self.commits or facts is not None
        pending = Pending(call, snapshots, events, grant, facts, Signal() if facts is None and waited_for else None)
        pending.is_settling = facts is not None and not behind and storage is None
        refusal = self.queue.put(pending)
        self._one_pass.free_lost()
        if refusal is not None:
            self._note(InternalError(refusal))
            self._give_up(pending, refusal)
            return
        if pending.is_settling:
            return
        crowd = 0 if self._fails else len(self.queue.calls)
        (self._urgent if waited_for or crowd > CROWD else self._job).poke()
        if crowd > 2 * CROWD and not self._clock.virtual:
            time.sleep(REST_S)

    async def commit(self, trace_id: str, until: float) -> None:
        """Settle a call and write its trace. Returns after one try, at the latest at ``until`` on the clock; then the
        background goes on."""
        pending = self.queue.calls.get(trace_id)
        if pending is None:
            return
        if pending.facts is None:
            if pending.tried is None:
                return
            with self._clock.deadline(until):
                if self.queue.is_closed:
                    await self.write()
                await pending.tried.wait()
            return
        try:
            if await self._settle(pending, pending.facts, until):
                self._fails = False
        except StorageUnavailable as error:
            self._note(error)
        finally:
            pending.is_settling = False
            if self.queue.calls.get(trace_id) is pending:
                self._urgent.poke()

    def announce(self, events: Sequence[PutEvent]) -> None:
        """Store events that no call caused. Never fails or waits."""
        if self._immediate is not None:
            try:
                at_once(self._immediate.apply(SYSTEM_ACCOUNT, events))
            except Exception as error:  # a custom storage may raise anything
                _log.warning("events of policies cannot be stored: %s", _text_of(error))
            self._emitted()
            return
        with self._guard.lock:
            self._announced = [*self._announced, *events][-BATCH:]
        self._job.poke()

    async def write(self, account: str | None = None) -> int:
        """Try to write what is queued now: everything, or, for a reader of one account, all but calls that are settling
        themselves, since these are not answered yet. Returns how many remain."""
        calls, queued = self.queue.calls, self.queue.all()
        if account is None:
            before = queued
        else:
            before = [each for each in queued if each.call.caller.account == account and not each.is_settling]
        if before or account is None:
            await self._write(everything=account is None)
        return sum(calls.get(each.call.id) is each for each in before)

    async def write_last(self, trace_id: str) -> None:
        """Write the trace of a call that ends after the close, or drop it: the background has stopped."""
        pending = self.queue.calls.get(trace_id)
        if pending is None:
            return
        try:
            with self._clock.deadline(self._clock.monotonic() + GIVE_BACK_S, shield=True):
                await self.write()
        finally:
            self.lose(trace_id)

    async def flush(self) -> None:
        """Write the whole queue. Raises ``StorageUnavailable`` if some remain, and ``InternalError`` if traces were
        dropped since the last flush."""
        self._hung.clear()
        remains = await self.write()
        before, self._raised = self._raised, self._refused + self._lost
        if not remains and before == self._raised:
            return
        kind = StorageUnavailable if remains else InternalError
        left = f"{len(self.queue.calls)} wait, {self._refused} were refused, {self._lost} are lost"
        fault = f"not all traces are in the storage: {left}; the last fault was {_text_of(self._last_fault)}"
        raise kind(fault) from self._last_fault

    def lose(self, trace_id: str) -> None:
        """Drop a trace that is still queued."""
        pending = self.queue.calls.get(trace_id)
        if pending is not None and self.queue.remove(pending):
            self._give_up(pending, "the router was closed before it could be")

    def close(self) -> None:
        """Accept nothing more, and drop what is still queued."""
        self.queue.is_closed = True
        left = self.queue.all()
        for pending in left:
            self.lose(pending.call.id)
        if left:
            _log.warning("the router was closed; traces lost because they could not be written before: %d", len(left))

    async def trace(self, caller: Caller, trace_id: str) -> Trace:
        return await read_trace(self._fresh, caller.account, TraceById(trace_id, caller.environment))

    async def feedback(self, caller: Caller, feedback: PutFeedback) -> None:
        """Keep a user's rating of an answer. Raises ``NotFound`` if the caller has no such trace."""
        pending = self.queue.find(caller.account, feedback.trace_id, caller.environment)
        try:
            traces = [] if pending is None else await self._traces_of([pending])
            await GuardedStorage(self._storage).apply(caller.account, [*traces, feedback])
        except PreconditionFailed as error:
            raise NotFound(f"no trace {quoted(feedback.trace_id)}") from error

    async def snapshot(self, snapshot_id: str) -> Snapshot | None:
        found: Snapshot | None = await GuardedStorage(self._storage).read(SYSTEM_ACCOUNT, SnapshotById(snapshot_id))
        return found

    # The writer: one pass over the queue at a time.

    async def _drain(self) -> None:
        """Write in the background. While the storage is unavailable, repeat with growing delay."""
        down = await self._write(everything=False)
        self._job.delay = min(self._job.delay * 2, LONGEST_DELAY_S) if down else DELAY_S
        if down and self.retries:
            self._job.poke()

    async def _write(self, *, everything: bool) -> bool:
        """Try to write the queue; calls that settle themselves only with ``everything``. Returns True if some accounts
        failed. Accounts are written one after the other until one succeeds, then many at a time."""
        async with self._one_pass.held():
            self._down, self._wrote, before = set(), False, self._last_fault
            by_account: dict[str, list[Pending]] = {}
            for each in self.queue.all():
                if everything or not each.is_settling:
                    by_account.setdefault(each.call.caller.account, []).append(each)
            if self._announced:
                await self._write_announced()
            try:
                pending = chain.from_iterable(by_account.values())
                await self._snapshots.keep(chain.from_iterable(each.snapshots for each in pending))
            except StorageUnavailable as error:
                self._note(error)
                self._down.update(by_account)
            queues = iter(by_account.values())
            for queue in queues:
                await self._write_account(queue)
                if self._wrote:
                    break

            async def write_rest() -> None:
                for queue in queues:
                    await self._write_account(queue)

            if len(by_account) > 1:
                async with anyio.create_task_group() as group:
                    for _ in range(min(len(by_account) - 1, AT_ONCE)):
                        group.start_soon(write_rest)
            self._fails = self._fails and self._last_fault is not before
            if by_account:
                self.is_stuck = not self._wrote and bool(self._down)
            return bool(self._down)

    async def _write_account(self, queue: list[Pending]) -> None:
        place, account = 0, queue[0].call.caller.account
        while place < len(queue):
            batch = queue[place : place + (1 if account in self._hung else BATCH)]
            place += len(batch)
            if account not in self._down and (self._wrote or len(self._down) < SEEMS_DOWN):
                try:
                    await self._write_some(batch)
                except StorageUnavailable as error:
                    self._down.add(account)
                    self._note(error)
            for pending in batch:  # not if this pass is cancelled: the next one writes the rest
                pending.release()

    async def _write_some(self, batch: list[Pending]) -> None:
        """Settle calls, the first alone, to see if the storage is available. Then write traces."""
        settling = [(each, each.facts) for each in batch if each.facts is not None]
        traces = [each for each in batch if each.facts is None]
        for first in settling[:1]:
            await self._settle(*first)
        faults: list[StorageUnavailable] = []

        async def settle(pending: Pending, facts: Facts) -> None:
            try:
                await self._settle(pending, facts)
            except StorageUnavailable as error:
                faults.append(error)

        if settling[1:]:
            async with anyio.create_task_group() as group:
                for each in settling[1:]:
                    group.start_soon(settle, *each)
        if faults:
            raise faults[0]
        if traces:
            await self._write_batch(traces)

    async def _settle(self, pending: Pending, facts: Facts, until: float = inf) -> bool:
        """Settle a call and store its trace. If that is refused, try without the trace, then without detail and within
        the reserved amount. Raises ``StorageUnavailable``, also after ``until`` on the clock. Returns False if a
        redactor is not done by then."""
        call, grant, fault = pending.call, pending.grant, Exception()
        if (captured := call.captured) is not None:
            with self._clock.deadline(until) as limit:
                await redacting(lambda: captured.content, [captured], self._clock)
            if limit.expired:
                return False
        most = call.cost_nanos if grant is None or not grant.is_limited else grant.nanos
        for shorten in (None, without_trace, partial(bounded, most_nanos=most)):
            part = facts if shorten is None else shorten(facts)
            try:
                assert self.accounts is not None, "they gave a grant"
                settle = partial(self.accounts.settle, grant, part)
                found: object = await self._in_time(call.caller.account, settle, until)
                if not isinstance(found, list | tuple) or (found and {*map(type, found)} != {StoredEvent}):
                    raise unfit(self.accounts, "settle", "a list of StoredEvent", found)
            except StorageUnavailable:
                raise
            except Exception as error:  # a custom storage may raise anything; the bill must not be lost
                fault = error
                if isinstance(error, UnsupportedWrite):
                    break
                continue
            self._wrote = True
            if part is not facts:
                self._refuse(fault)
            if part.claim is not facts.claim:
                _log.warning("the storage refused the bill of call %s: it is booked without detail", call.id)
            self._finish(pending, [each.event for each in found] if found else ())
            return True
        self._refuse(fault)
        self._lose_bill(call, _text_of(fault))
        self._finish(pending)
        return True

    async def _write_announced(self) -> None:
        events = self._announced
        try:
            await self._apply(SYSTEM_ACCOUNT, events)
        except StorageUnavailable as error:
            self._note(error)
            self._down.add(SYSTEM_ACCOUNT)
            return
        except Exception as error:
            if not isinstance(error, UnsupportedWrite):
                _log.warning("events of policies cannot be stored: %s", _text_of(error))
        with self._guard.lock:
            self._announced = self._announced[len(events) :]
        self._emitted()

    async def _write_batch(self, batch: list[Pending]) -> None:
        """Write traces of one account with their rows and events, all or nothing. A refused batch is split to find the
        call at fault."""
        try:
            writes, ends = await self._traces_of(batch), []
            for each in batch:  # events go behind all traces: some storages write successive traces faster
                each.trace_only = each.trace_only or not self._keeps_all
                if not each.trace_only:
                    writes += each.events
                ends.append(len(writes))
            written = await self._apply(batch[0].call.caller.account, writes)
            if len(writes) > len(batch):
                written = checked_written(self._storage, writes, written)
            begin = len(batch)
            for each, end in zip(batch, ends, strict=True):
                kept = [put.event.event for put in each.events]
                self._finish(each, kept if each.trace_only else _events_in(written[begin:end]))
                begin = end
            self._wrote = True
            return
        except StorageUnavailable:
            raise
        except Exception as error:  # a custom storage may raise anything
            fault = error
        if len(batch) > 1:
            for pending in batch:
                await self._write_batch([pending])
            return
        (pending,) = batch
        if isinstance(fault, UnsupportedWrite) and not pending.trace_only:
            pending.trace_only = True
            if self._keeps_all:
                self._keeps_all = False
                _log.info("the storage keeps traces alone: %s", fault)
            await self._write_batch(batch)
        else:
            self._refuse(fault)
            self._finish(pending)

    async def _traces_of(self, batch: Sequence[Pending]) -> list[Write]:
        """Write operations for traces; made in a worker thread if a redactor has to run."""
        calls, takes_drafts = [each.call for each in batch], self._takes_drafts

        def make() -> list[Write]:
            durability, made = self.durability, list[Write]()
            for call in calls:
                trace: Any = call if takes_drafts and call.captured is None else call.trace
                made.append(PutTrace(trace, rollup_keys=call.rollup_keys, rows=tuple(call.rows), durability=durability))
            return made

        return await redacting(make, [call.captured for call in calls], self._clock)

    async def _apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        return await self._in_time(account, partial(self._storage.apply, account, writes))

    async def _in_time(self, account: str, ask: Callable[[], Awaitable[T]], until: float = inf) -> T:
        """Call the storage with a time-out. Raises ``StorageUnavailable``: after the time-out, at ``until``, and at
        once for an account that has just timed out."""
        now, hung = self._clock.monotonic(), account in self._hung
        retry_at, bound_s = self._hung.get(account, (now, LONGEST_S))
        if now < retry_at:
            raise StorageUnavailable(f"the storage stood still for this account {PAUSE_S:g} s ago or less")
        try:
            with self._clock.deadline(min(now + bound_s, until)):
                done = await ask()
                if hung:
                    self._hung.pop(account, None)
                return done
            if until < now + bound_s:
                raise StorageUnavailable("the storage took longer than the call had left")
            self._hung[account] = now + bound_s + PAUSE_S, min(2 * bound_s, LONGEST_S) if hung else PROBE_S
            raise StorageUnavailable(f"the storage took longer than {bound_s:g} s")
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise StorageUnavailable(f"{type(self._storage).__name__} cancelled itself") from error

    def _finish(self, pending: Pending, emitted: Sequence[Event] | None = None) -> None:
        """Remove a written call from the queue and call hooks. Without ``emitted`` it was dropped: no hook is
        called."""
        if not self.queue.remove(pending) or emitted is None:
            return
        if emitted:
            self._emitted()
        if self._hooks.any:
            self._hooks.put(pending.call, emitted)

    def _give_up(self, pending: Pending, why: str) -> None:
        """Count a call that left the queue as lost, with its bill."""
        with self._guard.lock:
            self._lost += 1
        self._lose_bill(pending.call, why)
        pending.release()

    def _refuse(self, error: Exception) -> None:
        with self._guard.lock:
            self._refused += 1
        self._note(error)

    def _note(self, error: Exception) -> None:
        """Remember a fault for ``flush``, and log it unless the last pass had one too."""
        self._last_fault = error.with_traceback(None)  # a traceback would keep its frames alive
        if not self._fails:
            self._fails = True
            _log.warning("traces cannot be written: %s", _text_of(error))

    def _lose_bill(self, call: Recorded, why: str) -> None:
        """Count a call that will not be in the ledger, and log the amounts, to be booked by hand."""
        if not any(row.cost_nanos or row.charge_nanos or row.cost_range_nanos for row in call.ledger_rows):
            return
        with self._guard.lock:
            self._unbilled += 1
        what = "money is lost: call %s of account %s (cost $%s, charge $%s) is not in the ledger: %s"
        _log.error(what, call.id, call.caller.account, usd_text(call.cost_nanos), usd_text(call.charged_nanos), why)


def _events_in(written: Iterable[Written]) -> list[Event]:
    return [stored.event for each in written for stored in each.events]


def _text_of(error: Exception | None) -> str:
    """An error for the log, without the message of a foreign exception."""
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, RouterError) else kind
