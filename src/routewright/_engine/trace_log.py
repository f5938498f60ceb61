"""The trace log: ends calls, and keeps what they leave behind until it is in the storage.

A storage that never waits is written before the answer is returned. For any other, calls are queued and written in
batches (``TraceWriter``). Reads look in the queue first, so a trace can be read as soon as its call has ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakSet

import msgspec

from routewright import errors, wire
from routewright._core.agent.record import Recorded
from routewright._core.alerts import HITS_WINDOW_S, WINDOW_S
from routewright._core.attempts.machine import End
from routewright._core.call import Call, Outcome, Serving
from routewright._core.outcome import Ending, build_failure, event_of, facts_of
from routewright._core.routing.decide import exceeds_windows
from routewright._runtime.fork import Guard
from routewright._runtime.identity import Ids
from routewright._runtime.loop import Signal, at_once
from routewright._runtime.worker import Job, Worker
from routewright.protocols import Clock, ImmediateStorage, Storage
from routewright.wire import SYSTEM_ACCOUNT
from routewright.wire.json_scan import quoted

from .answer import Answer
from .capture import Capturing, redacting
from .prompt_caches import Warmth
from .storage import GuardedStorage, checked_written, read_trace
from .trace_writer import Pending, TraceWriter, events_in, text_of

DELAY_S = 0.01
"""How long traces are collected into a batch. An idle storage has each within 50 ms."""
CROWD = 100
"""Above this number of queued traces the next pass starts at once."""
REST_S = 0.0001
"""Above ``2 * CROWD`` queued traces each call releases the GIL for this long when it ends: otherwise a busy event loop
would starve the writer's thread. Neither happens while the storage fails."""
LONGEST_DELAY_S = 5.0
"""The longest pause between two tries at an unavailable storage."""
GIVE_BACK_S = 0.5
"""How long a call that ends after the close waits for its write."""
FIND_S = 0.25
DAY_S = 24 * 3600.0
"""Equal changes of a policy within this time are one event."""
TRACELESS = errors.InsufficientBalance, errors.QuotaExhausted, errors.RateLimited, errors.ValidationFailed
"""Refusals that leave no trace (contract 9)."""

_log = logging.getLogger(__name__)


class Drop(NamedTuple):
    """A call whose stream or steps were dropped before their end, at a monotonic time."""

    call: Call
    execution: Ending
    at: float


class TraceLog:
    """Ends the calls of one Router. Safe to use from several loops and threads.

    A call with limits settles itself; if that fails, it is settled from the queue. A call that cannot be written yet
    stays in the queue. A refused trace is dropped; a refused settlement is tried with ever less detail. The next
    ``flush`` raises for both; the first of several failures is logged."""

    def __init__(
        self, writer: TraceWriter, worker: Worker, ids: Ids, capture: Capturing | None, warmth: Warmth | None
    ) -> None:
        storage = writer.storage
        self.writer = writer
        self.clock = writer.clock
        self.capture = capture
        self.warmth = warmth
        self._immediate = storage if isinstance(storage, ImmediateStorage) else None
        self.commits = writer.durability == "committed" and self._immediate is None
        """True if calls wait until their traces are committed."""
        self.retries = True
        """False while the Router closes: failed writes are not tried again."""
        self._storage = FreshStorage(storage, writer.clock)
        self._ids = ids
        self._job = Job(worker, self._write_soon, DELAY_S)
        self._urgent = Job(worker, self._write_soon, 0.0)
        self._ending = Job(worker, self._end_dropped, 0.0)
        worker.renewals.add(self)
        with _registering.lock:
            _writers.add(writer)

    def renew(self) -> None:
        """Start empty: after a fork the parent records the calls that began before."""
        self.writer.renew()
        self._since = self.clock.monotonic()
        self.under_way: set[Call] = set()
        self.dropped = deque[Drop]()
        self.refusals = Counter[str]()
        """Refused calls and requests, by code."""
        self._over: Signal | None = None
        """Set when a call ends; ``all_ended`` waits for it."""

    # The end of a call

    def conclude(
        self,
        call: Call,
        execution: Ending | None,
        *,
        error: errors.RouterError | None = None,
        left: bool = False,
        behind: bool = False,
        at: float | None = None,
    ) -> tuple[Answer, errors.RouterError | None]:
        """End a call and keep its trace. Returns the answer, and the error if the call failed.

        ``left``: the plan was abandoned. ``error``: the call failed before it had a plan. The caller must ``commit``,
        except with ``left`` or ``behind``. ``at``: monotonic seconds; None: now."""
        served = call.served
        fleet = call.fleet
        admission = None if execution is None else execution.admission
        lookup = None if execution is None else execution.lookup
        grant = None if admission is None else admission.grant
        used = None
        if execution is not None:
            if call.request.budget is not None or (admission is not None and admission.run is not None):
                used = execution.used
            end = execution.machine.end
            if not left and end is not None and end is not End.SUCCEEDED:
                error = execution.error or self._failure(call, execution)
        if error is not None:
            error.trace_id = call.id
            error.request_id = self._ids("req_")
            if call.attempts:
                error.is_counted = True  # its trace says so
            self.count_refusal(error)
        # a redactor need not read a prompt that no model can take
        is_unfit = isinstance(error, errors.NoCandidates) and exceeds_windows(call.decision_input, call.board)
        capture = None if is_unfit else self.capture
        captured = None if capture is None else capture.of(call.request.messages, served)
        if call.warm is not None and self.warmth is not None and served is not None and call.attempts:
            self.warmth.learn(call, served)
        ended_at = self.clock.monotonic() if at is None else at
        outcome = call.end(error, ended_at, used=used, captured=captured, is_booked=grant is not None)
        if error is not None:
            error.cost_nanos = call.cost_nanos
        data = None if execution is None else execution.data
        answer = Answer(call, outcome.board, outcome.output, outcome.tool_calls, data, outcome.reasoning)
        evicted = None
        if lookup is not None:
            lookup.ended(call, outcome.output, outcome.tool_calls)
            evicted = lookup.evicted
        self.under_way.discard(call)
        if call.started_at < self._since:  # it began before a fork: the parent records it
            return answer, error
        facts = None
        if admission is not None and grant is not None:
            admission.grant = None
            keeps = admission.claim is not None and served is not None and error is None
            result = msgspec.json.encode(answer.response) if keeps else None
            facts = facts_of(call, admission, call.used.nanos, result)
        events: Sequence[wire.PutEvent] = ()
        sandbox = call.caller.environment == "sandbox"
        if error is not None or served is None or served.place or sandbox or not call.attempts or evicted is not None:
            events = self._events(call, error, outcome, fleet, evicted)
        self.put(Pending(call, outcome.snapshots, events, grant, facts), behind=behind or left)
        if self._over is not None:
            self._over.set()
        return answer, error

    def count_refusal(self, error: errors.RouterError) -> None:
        """Count a refusal, once. Calls whose attempts failed, or that a storage failed, are in their traces."""
        if not error.is_counted and (error.status < 500 or error.trace_id is None):
            error.is_counted = True
            with _registering.lock:
                self.refusals[error.code] += 1

    def _failure(self, call: Call, execution: Ending) -> errors.RouterError:
        error, hidden = build_failure(call, execution)
        if hidden:
            _log.warning("call %s: %s", call.id, hidden)
        if any(execution.quotes.values()) and call.caller.key_id is None:
            error.outside = error.outside or (error.message, {"attempts": [*map(dict, error.detail["attempts"])]})
            for entry in error.detail["attempts"]:
                if message := execution.quotes.get(entry["attempt"]):
                    entry["provider_message"] = message
        if execution.cause is not None:
            if call.caller.key_id is None or not isinstance(execution.cause, errors.ProviderFault):
                error.__cause__ = execution.cause
            execution.cause = None
        return error

    def _events(
        self,
        call: Call,
        error: errors.RouterError | None,
        outcome: Outcome,
        fleet: Serving,
        evicted: wire.CacheEvicted | None,
    ) -> list[wire.PutEvent]:
        caller, durability = call.caller, self.writer.durability
        now = self.clock.time()
        happened: list[tuple[wire.PushedEvent, str | None, float]]
        happened = [(event, None, 0.0) for event in call.events(error, outcome.budget)]
        # calls that were left do not count; answers outside the sandbox are counted with the model's health
        if error is not None or (call.served is not None and (caller.environment == "sandbox" or not call.attempts)):
            failed = error is not None and error.status >= 500
            burst = fleet.count_end((caller.account, caller.environment), error=failed)
            if burst is not None:
                happened.append((burst, f"{burst.type}:{caller.environment}", WINDOW_S))
        if evicted is not None:
            happened.append((evicted, f"{evicted.type}:{caller.environment}", HITS_WINDOW_S))
        return [
            wire.PutEvent(event_of(data, caller, self._ids("evt_"), now).stored, once, quiet_s, now, durability)
            for data, once, quiet_s in happened
        ]

    def conclude_undecided(self, call: Call, error: BaseException) -> None:
        """End a call that has no plan."""
        failed = error if isinstance(error, errors.RouterError) else None  # None: the caller left
        if failed is None and isinstance(error, Exception):
            failed = errors.InternalError(type(error).__name__)
        self.conclude(call, None, error=failed)

    def drop(self, call: Call, execution: Ending) -> None:
        """Queue a call that was dropped before its end. Takes no lock, since finalisers call it; the background or the
        next call records it."""
        if call.started_at < self._since:  # as in ``conclude``
            return
        execution.settle_rest()
        if self.writer.is_closed:  # there is no next call
            self.conclude(call, execution, behind=True)
            self.writer.lose(call.id)
            return
        self.dropped.append(Drop(call, execution, self.clock.monotonic()))
        if execution.admission is not None:
            self._ending.poke()
        if self._over is not None:
            self._over.set()

    def keep_dropped(self) -> None:
        """End the calls that were dropped."""
        while self.dropped:
            try:
                drop = self.dropped.popleft()
            except IndexError:  # another thread took it
                return
            admission = drop.execution.admission
            try:
                self.conclude(drop.call, drop.execution, behind=True, at=drop.at)
            finally:
                if admission is not None:
                    admission.release()

    async def _end_dropped(self) -> None:
        self.keep_dropped()

    async def all_ended(self) -> None:
        """Wait until no call is running."""
        while True:
            self._over = over = Signal()
            self.keep_dropped()
            if not self.under_way:
                return
            await over.wait()

    # What it leaves behind

    def put(self, pending: Pending, *, behind: bool = False) -> None:
        """Store a call's trace, the snapshots of its decision, and its events; with ``facts``, settle it. Never fails
        or delays a call.

        The call settles itself by ``commit``; with ``behind`` the background does."""
        call = pending.call
        facts = pending.facts
        writer = self.writer
        storage = self._immediate
        if facts is not None:
            facts.snapshots = pending.snapshots
            facts.events = pending.events
        if storage is not None:
            account = call.caller.account
            events: Sequence[wire.Event] = ()
            try:
                if facts is not None:
                    assert writer.accounts is not None, "they gave a grant"
                    if stored := at_once(writer.accounts.settle(pending.grant, facts)):
                        events = [event.event for event in stored]
                else:
                    if pending.events:
                        written = at_once(storage.apply(account, pending.events))
                        events = events_in(checked_written(storage, pending.events, written))
                    storage.keep(account, call, pending.snapshots)
            except (Exception, asyncio.CancelledError) as error:  # a custom storage may raise anything
                # one that never waits cannot have been cancelled from outside
                fault = (
                    error if isinstance(error, Exception) else errors.StorageUnavailable("the storage cancelled itself")
                )
                if facts is None and not isinstance(fault, errors.UnsupportedWrite):
                    writer.refuse(fault)
                    return
                writer.note(fault)
            else:
                if writer.fails:
                    writer.recover()
                if events or writer.hooks.any:
                    writer.emit(call, events)
                return
        waited_for = self.commits or facts is not None
        pending.tried = Signal() if self.commits and facts is None else None
        pending.is_settling = facts is not None and not behind and storage is None
        if not writer.put(pending) or pending.is_settling:
            return
        crowd = 0 if writer.fails else len(writer.queue)
        (self._urgent if waited_for or crowd > CROWD else self._job).poke()
        if crowd > 2 * CROWD and not self.clock.virtual:
            time.sleep(REST_S)

    async def commit(self, call: Recorded) -> None:
        """Settle a call and write its trace. Returns after one try, at the latest at the call's deadline; then the
        background goes on."""
        writer = self.writer
        pending = writer.queue.get(call.id)
        if pending is not None and pending.facts is not None:
            try:
                if await writer.settle(pending, call.deadline) and writer.fails:
                    writer.recover()
            except errors.StorageUnavailable as error:
                if self.clock.monotonic() < call.deadline:  # else the call's time has run out, not the storage's
                    writer.note(error)
            finally:
                pending.is_settling = False
                if writer.queue.get(call.id) is pending:
                    self._urgent.poke()
        elif pending is not None and pending.tried is not None:
            with self.clock.deadline(call.deadline):
                if writer.is_closed:
                    await writer.write()
                await pending.tried.wait()
        call.record_wait(self.clock.monotonic())

    async def _write_soon(self) -> None:
        """Write in the background. While the storage is unavailable, repeat with growing delay."""
        down = await self.writer.run(everything=False)
        self._job.delay = min(self._job.delay * 2, LONGEST_DELAY_S) if down else DELAY_S
        if down and self.retries:
            self._job.poke()

    async def write_last(self, trace_id: str) -> None:
        """Write the trace of a call whose Router was closed while it ran, or drop it: the background has stopped."""
        pending = self.writer.queue.get(trace_id)
        if self.writer.is_closed and pending is not None:
            try:
                with self.clock.deadline(self.clock.monotonic() + GIVE_BACK_S, shield=True):
                    await self.writer.write()
            finally:
                await self.writer.abandon(pending)

    def announce(self, changes: Sequence[wire.PolicyChanged], environment: wire.Environment) -> None:
        """Store events of policy changes, and call the hooks. Never fails or waits. Processes that publish the same
        policies store one event."""
        now = self.clock.time()
        caller = wire.Caller(SYSTEM_ACCOUNT, environment)
        events = [event_of(change, caller, self._ids("evt_"), now) for change in changes]
        puts = list[wire.PutEvent]()
        for event, change in zip(events, changes, strict=True):
            once = f"{change.type}:{change.policy_id}:{change.from_version}:{change.to_version}"
            puts.append(wire.PutEvent(event.stored, once, DAY_S, now))
        if puts and self._immediate is not None:
            try:
                at_once(self._immediate.apply(SYSTEM_ACCOUNT, puts))
            except Exception as error:  # a custom storage may raise anything
                _log.warning("events of policies cannot be stored: %s", text_of(error))
            self.writer.wake()
        elif puts:
            self.writer.announce(puts)
            self._job.poke()
        self.writer.hooks.put(None, events)

    async def trace(self, caller: wire.Caller, trace_id: str) -> wire.Trace:
        """A trace of the caller. Raises ``NotFound``."""
        return await read_trace(self._storage, caller.account, wire.TraceById(trace_id, caller.environment))

    async def find(self, caller: wire.Caller, trace_id: str) -> wire.Trace | None:
        """A trace of the caller, if it can be read quickly."""
        with suppress(errors.RouterError), self.clock.deadline(self.clock.monotonic() + FIND_S):
            return await self.trace(caller, trace_id)
        return None

    async def feedback(self, caller: wire.Caller, feedback: wire.PutFeedback) -> None:
        """Keep a user's rating of an answer. Raises ``NotFound`` if the caller has no such trace."""
        pending = self.writer.find(caller.account, wire.TraceById(feedback.trace_id, caller.environment))
        try:
            traces = [] if pending is None else await self.writer.traces_of([pending])
            await GuardedStorage(self.writer.storage).apply(caller.account, [*traces, feedback])
        except errors.PreconditionFailed as error:
            raise errors.NotFound(f"no trace {quoted(feedback.trace_id)}") from error

    async def snapshot(self, snapshot_id: str) -> wire.Snapshot | None:
        """A snapshot, if it is stored."""
        snapshot: wire.Snapshot | None = await self._storage.read(SYSTEM_ACCOUNT, wire.SnapshotById(snapshot_id))
        return snapshot


class FreshStorage(GuardedStorage):
    """A storage whose reads include traces that Routers of this process have queued."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        super().__init__(storage)
        self._clock = clock

    async def apply(self, account: str, writes: Sequence[wire.Write]) -> list[wire.Written]:
        """Apply all or none (``protocols.Storage``). A deletion raises ``StorageUnavailable`` while queued traces of
        the account cannot be written: they would reappear."""
        left = await self._write(account)
        if left and any(isinstance(write, wire.DeleteTraces) for write in writes):
            raise errors.StorageUnavailable(
                f"{left} of this account's traces wait for the storage; delete again once it is back"
            )
        return await super().apply(account, writes)

    async def read(self, account: str, query: wire.Query) -> Any:
        if not isinstance(query, wire.TraceById):
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

    async def scan(self, account: str, query: wire.Scan, *, after: str | None, limit: int) -> Any:
        await self._write(account)
        return await super().scan(account, query, after=after, limit=limit)

    def _find(self, account: str, query: wire.TraceById) -> Pending | None:
        return next((pending for writer in self._writers() if (pending := writer.find(account, query))), None)

    async def _write(self, account: str) -> int:
        """Try to write the queues. Returns how many calls of the account remain."""
        return sum([await writer.write(account) for writer in self._writers() if writer.queue])

    def _writers(self) -> list[TraceWriter]:
        with _registering.lock:
            return [writer for writer in _writers if writer.storage is self._storage]


_writers: WeakSet[TraceWriter] = WeakSet()
"""Those of all Routers of this process."""
_registering = Guard()
