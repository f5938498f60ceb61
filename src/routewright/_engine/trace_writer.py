"""The queue of finished calls, and the passes that write it to a storage that may refuse, hang or be away.

A pass writes the settlements of an account first, each by itself, then its traces in batches. Of a refused batch only
the call at fault is dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from math import inf
from typing import NamedTuple, cast

import anyio
from msgspec import Struct

from routewright import wire
from routewright._core.accounts.settlement import limit_cost, without_trace
from routewright._core.agent.record import Recorded
from routewright._core.outage import Outage
from routewright._runtime.fork import Guard
from routewright._runtime.loop import Mutex, Signal
from routewright.errors import InternalError, RouterError, StorageUnavailable, UnsupportedWrite
from routewright.protocols import Accounts, BaseStorage, Clock, Facts, Storage, options_of
from routewright.wire import SYSTEM_ACCOUNT
from routewright.wire.money import usd_text

from .capture import redacting
from .hooks import Hooks
from .retention import Snapshots
from .storage import GuardedStorage, Timeouts, checked_written, unfit, write_all

QUEUE = 10_000
"""The most calls in the queue: some 20 MB, and their metadata. Calls to settle are queued beyond it."""
QUEUE_TEXT_BYTES = 64 * 1024 * 1024
"""The most captured text in the queue; further traces are kept without text."""
BATCH = 256
AT_ONCE = 32
"""Accounts written at a time."""
SEEMS_DOWN = 3
"""A pass stops after this many accounts failed and none succeeded."""
LOOK_S = 0.25
"""How long closing looks in the ledger for what was written although the storage did not say so."""

_CLOSED = "the router was closed before it was written"
_log = logging.getLogger(__name__)


class Pending(Struct, eq=False):
    """A finished call, and the writes for it."""

    call: Recorded
    snapshots: Sequence[wire.Snapshot] = ()
    """Those that its trace names."""
    events: Sequence[wire.PutEvent] = ()
    grant: wire.Grant | None = None
    facts: Facts | None = None
    """Its settlement, if it has one."""
    tried: Signal | None = None
    """Set after the first try to write it, or when it is dropped. None: no call waits for that."""
    is_settling: bool = False
    """Its own call is settling it."""

    def release(self) -> None:
        """Wake the call that waits for ``tried``."""
        if self.tried is not None:
            self.tried.set()


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


class TraceWriter:
    """The finished calls of one Router, oldest first. Safe to use from several loops and threads."""

    def __init__(
        self,
        storage: Storage,
        hooks: Hooks,
        clock: Clock,
        durability: wire.Durability,
        accounts: Accounts | None,
        wake: Callable[[], object],
    ) -> None:
        """``wake`` is called when events have been stored."""
        self.storage = storage
        self.accounts = accounts
        self.hooks = hooks
        self.clock = clock
        self.durability: wire.Durability = durability
        self.wake = wake
        self.is_closed = False
        """Accepts only calls to settle."""
        self._takes_drafts = options_of(storage, BaseStorage).takes_drafts
        self._snapshots = Snapshots(partial(self._apply, SYSTEM_ACCOUNT), self.note, clock, durability)
        self._timeouts = Timeouts(storage, clock)
        self._keeps_all = True
        """False once the storage has refused anything but traces."""
        self._one_pass = Mutex()
        self._guard = Guard()
        self.renew()

    def renew(self) -> None:
        """Start empty: after a fork the parent writes what was queued."""
        self.queue: dict[str, Pending] = {}
        """By trace id; changed by this class only."""
        self.is_full = False
        """No call with limits should be admitted."""
        self._text_bytes = self._settlements = 0
        self._announced: list[wire.PutEvent] = []
        self._refused = self._shortened = 0
        self._lost = self._unbilled = 0
        self._raised = 0
        """Calls that ``flush`` has raised for."""
        self._last_fault: Exception | None = None
        self.fails = False
        """The last pass, or the last immediate write, had a fault."""
        self.outage = Outage(_log.warning, "traces are written again")
        self._down: set[str] = set()
        """Accounts that failed in this pass."""
        self._wrote = False
        """This pass wrote something."""
        self.last_write: bool | None = None
        """True if the last write to the storage succeeded; None: there was none since the last readiness probe."""

    @property
    def counts(self) -> TraceCounts:
        return TraceCounts(len(self.queue), self._refused, self._lost, self._shortened, self._unbilled)

    def put(self, pending: Pending) -> bool:
        """Queue a call. False: it is lost, because the queue is full or closed; a call to settle never is."""
        call, settles = pending.call, pending.facts is not None
        self._one_pass.free_lost()
        with self._guard.lock:
            if settles or not (self.is_closed or len(self.queue) >= QUEUE):
                if self._text_bytes + call.text_bytes > QUEUE_TEXT_BYTES:
                    call.shorten()
                    self._shortened += 1
                self._text_bytes += call.text_bytes
                self._settlements += settles
                self.is_full = self._settlements >= QUEUE
                self.queue[call.id] = pending
                return True
        why = "the router is closed" if self.is_closed else f"{QUEUE} traces wait already"
        self.note(InternalError(why))
        self._give_up(pending, why)
        return False

    def _remove(self, pending: Pending) -> bool:
        call = pending.call
        with self._guard.lock:
            if self.queue.get(call.id) is not pending:
                return False
            del self.queue[call.id]
            self._text_bytes -= call.text_bytes
            self._settlements -= pending.facts is not None
            self.is_full = self._settlements >= QUEUE
        return True

    def announce(self, events: Sequence[wire.PutEvent]) -> None:
        """Queue events that no call caused."""
        with self._guard.lock:
            self._announced = [*self._announced, *events][-BATCH:]

    def _all(self) -> list[Pending]:
        with self._guard.lock:
            return list(self.queue.values())

    def find(self, account: str, query: wire.TraceById) -> Pending | None:
        """A queued call of the account."""
        pending = self.queue.get(query.id)
        if pending is None or pending.call.caller.account != account:
            return None
        return pending if query.environment in (None, pending.call.environment) else None

    def lose(self, trace_id: str) -> None:
        """Drop a call if it is still queued; nothing has tried to write it."""
        pending = self.queue.get(trace_id)
        if pending is not None and self._remove(pending):
            self._give_up(pending, _CLOSED)

    async def close(self) -> None:
        """Accept nothing more, and drop what is still queued."""
        self.is_closed = True
        if lost := await self.abandon(*self._all()):
            _log.warning("the router was closed before %d of its traces could be written: these are lost", lost)

    async def abandon(self, *rest: Pending) -> int:
        """Drop calls that are still queued. Returns how many are lost: not those that a hanging or failing write has
        booked after all."""
        lost = 0
        until = self.clock.monotonic() + LOOK_S
        for pending in rest:
            if self._remove(pending):
                is_booked = await self._is_booked(pending.call, until)
                lost += not is_booked
                if not is_booked:
                    self._give_up(pending, _CLOSED, is_certain=is_booked is False)
                pending.release()
        return lost

    async def _is_booked(self, call: Recorded, until: float) -> bool | None:
        """True if the ledger has the rows of a call. None: it cannot be read."""
        with suppress(RouterError), self.clock.deadline(until, shield=True):
            query = wire.LedgerRows(request_id=call.id)
            rows = await GuardedStorage(self.storage).scan(call.caller.account, query, after=None, limit=1)
            return any(row.kind != "expired" for row in rows)
        return None

    async def flush(self) -> None:
        """Write the whole queue. Raises ``StorageUnavailable`` if some remain, ``InternalError`` if some are lost."""
        self._timeouts.hung.clear()
        remains = await self.write()
        before, self._raised = self._raised, self._refused + self._lost
        if not remains and before == self._raised:
            return
        counts = f"{len(self.queue)} wait, {self._refused} were refused, {self._lost} are lost"
        fault = f"not all traces are in the storage: {counts}; the last fault was {text_of(self._last_fault)}"
        raise (StorageUnavailable if remains else InternalError)(fault) from self._last_fault

    async def write(self, account: str | None = None) -> int:
        """Try to write what is queued now: everything, or, for a reader of one account, all but calls that are settling
        themselves, since these are not answered yet. Returns how many remain."""
        before = self._all()
        if account is not None:
            queued = (pending for pending in before if pending.call.caller.account == account)
            before = [pending for pending in queued if not pending.is_settling]
        if before or account is None:
            await self.run(everything=account is None)
        return sum(self.queue.get(pending.call.id) is pending for pending in before)

    async def run(self, *, everything: bool) -> bool:
        """Make a pass; calls that settle themselves are written only with ``everything``. Returns True if some accounts
        failed. Accounts are written one after the other until one succeeds, then many at a time."""
        # One account may be refused, or the storage be away. One after the other, a bad account would hold up all; all
        # at once, a storage that is away would get a hanging write for each. So one success opens the way for the
        # rest, and three failures without one end the pass.
        # test_if_one_account_can_be_written_failing_ones_delay_no_other,
        # test_if_the_first_accounts_all_fail_the_rest_wait_for_the_next_pass
        async with self._one_pass.held():
            self._down = set()
            self._wrote = False
            before = self._last_fault
            by_account: dict[str, list[Pending]] = {}
            for pending in self._all():
                if everything or not pending.is_settling:
                    by_account.setdefault(pending.call.caller.account, []).append(pending)
            if self._announced:
                await self._write_announced()
            try:
                calls = chain.from_iterable(by_account.values())
                await self._snapshots.keep(chain.from_iterable(pending.snapshots for pending in calls))
            except StorageUnavailable as error:
                self.note(error)
                self._down.update(by_account)
            queues = iter(by_account.items())
            for queue in queues:
                await self._write_account(*queue)
                if self._wrote:
                    break

            async def write_rest() -> None:
                for queue in queues:
                    await self._write_account(*queue)

            if len(by_account) > 1:
                async with anyio.create_task_group() as group:
                    for _ in range(min(len(by_account) - 1, AT_ONCE)):
                        group.start_soon(write_rest)
            if self._wrote and self._last_fault is before:
                self.recover()
            return bool(self._down)

    async def _write_announced(self) -> None:
        events = self._announced
        try:
            await self._apply(SYSTEM_ACCOUNT, events)
        except StorageUnavailable as error:
            self._fail(SYSTEM_ACCOUNT, error)
            return
        except Exception as error:  # a custom storage may raise anything; these events are dropped
            if not isinstance(error, UnsupportedWrite):
                _log.warning("events of policies cannot be stored: %s", text_of(error))
        with self._guard.lock:
            self._announced = self._announced[len(events) :]
        self.wake()

    async def _write_account(self, account: str, queue: list[Pending]) -> None:
        """Settle calls, the first alone, to see if the storage is available. Then write traces."""

        async def settle(pending: Pending) -> None:
            try:
                await self.settle(pending)
            except StorageUnavailable as error:
                self._fail(account, error)

        start = 0
        while start < len(queue):
            batch = queue[start : start + (1 if account in self._timeouts.hung else BATCH)]
            start += len(batch)
            settling = [pending for pending in batch if pending.facts is not None]
            traces = [pending for pending in batch if pending.facts is None]
            if settling and self._may_write(account):
                await settle(settling[0])
            if settling[1:] and self._may_write(account):
                async with anyio.create_task_group() as group:
                    for pending in settling[1:]:
                        group.start_soon(settle, pending)
            if traces and self._may_write(account):
                try:
                    await write_all(traces, self._write_traces, self._drop)
                except StorageUnavailable as error:
                    self._fail(account, error)
            for pending in batch:  # not if this pass is cancelled: the next one writes the rest
                pending.release()

    def _may_write(self, account: str) -> bool:
        return account not in self._down and (self._wrote or len(self._down) < SEEMS_DOWN)

    def _fail(self, account: str, error: StorageUnavailable) -> None:
        self._down.add(account)
        self.note(error)

    async def settle(self, pending: Pending, deadline: float = inf) -> bool:
        """Settle a call and store its trace. If that is refused, try without the trace, then without detail and within
        the reserved amount. Raises ``StorageUnavailable``, also after ``deadline`` on the clock. Returns False if a
        redactor is not done by then."""
        # A bill that the storage refuses must not be dropped as a trace is: the reservation would end as if nothing had
        # been used (P8: no bill is lost or doubled). Most refusals are about detail, so each try carries less, at last
        # one row within the reserved amount. To try again is safe, since a storage books an id once.
        # test_a_settlement_booked_without_detail_charges_at_most_the_reservation,
        # test_a_booked_settlement_is_never_booked_twice
        call, facts = pending.call, pending.facts
        fault = Exception()
        assert facts is not None
        assert self.accounts is not None, "they gave a grant"
        captured = call.captured
        if captured is not None:
            with self.clock.deadline(deadline) as limit:
                await redacting(lambda: captured.content, [captured], self.clock)
            if limit.expired:
                return False
        maximum = call.cost_nanos if pending.grant is None or not pending.grant.is_limited else pending.grant.nanos
        for shorten in (None, without_trace, partial(limit_cost, most_nanos=maximum)):
            facts_part = facts if shorten is None else shorten(facts)
            try:
                settle = partial(self.accounts.settle, pending.grant, facts_part)
                stored: object = await self._timeouts.ask(call.caller.account, settle, deadline)
                if not isinstance(stored, list | tuple) or (stored and {*map(type, stored)} != {wire.StoredEvent}):
                    raise unfit(self.accounts, "settle", "a list of StoredEvent", stored)
            except StorageUnavailable:
                raise
            except Exception as error:  # a custom storage may raise anything; the bill must not be lost
                fault = error
                if isinstance(error, UnsupportedWrite):
                    break
                continue
            self._wrote = self.last_write = True
            if facts_part is not facts:
                self.refuse(fault)
            if facts_part.claim is not facts.claim:
                _log.warning("the storage refused the bill of call %s: it is booked without detail", call.id)
            if self._remove(pending) and (stored or self.hooks.any):
                self.emit(call, [event.event for event in stored])
            return True
        is_booked = await self._is_booked(call, self.clock.monotonic() + LOOK_S)
        if not is_booked:
            self._lose_bill(call, text_of(fault), is_certain=is_booked is False)
        self._drop(pending, fault)
        return True

    async def _write_traces(self, batch: Sequence[Pending]) -> None:
        """Write traces of one account with their rows and events, all or nothing."""
        puts = [put for pending in batch for put in pending.events] if self._keeps_all else []
        writes: list[wire.Write] = [*await self.traces_of(batch)]
        writes += puts  # behind all traces: some storages write successive traces faster
        try:
            written = await self._apply(batch[0].call.caller.account, writes)
        except UnsupportedWrite as error:
            if not puts or len(batch) > 1:
                raise
            if self._keeps_all:
                self._keeps_all = False
                _log.info("the storage keeps traces alone: %s", error)
        else:
            results = iter(checked_written(self.storage, writes, written)[len(batch) :] if puts else ())
            self._wrote = self.last_write = True
            for pending in batch:
                events = [put.event.event for put in pending.events]
                if puts:
                    events = events_in(islice(results, len(pending.events)))
                if self._remove(pending):
                    self.emit(pending.call, events)
            return
        await self._write_traces(batch)

    async def traces_of(self, batch: Sequence[Pending]) -> list[wire.PutTrace]:
        """Write operations for traces; made in a worker thread if a redactor has to run."""
        calls = [pending.call for pending in batch]

        def make() -> list[wire.PutTrace]:
            puts = list[wire.PutTrace]()
            for call in calls:
                is_draft = self._takes_drafts and call.captured is None
                trace = cast("wire.Trace", call) if is_draft else call.trace
                puts.append(wire.PutTrace(trace, None, call.rollup_keys, tuple(call.rows), self.durability))
            return puts

        return await redacting(make, [call.captured for call in calls], self.clock)

    async def _apply(self, account: str, writes: Sequence[wire.Write]) -> list[wire.Written]:
        return await self._timeouts.ask(account, partial(self.storage.apply, account, writes))

    def emit(self, call: Recorded, events: Sequence[wire.Event]) -> None:
        """Call the hooks for a call that is in the storage, with its events."""
        if events:
            self.wake()
        if self.hooks.any:
            self.hooks.put(call, events)

    def _drop(self, pending: Pending, error: Exception) -> None:
        self.refuse(error)
        self._remove(pending)

    def refuse(self, error: Exception) -> None:
        """Count a trace that the storage refused."""
        with self._guard.lock:
            self._refused += 1
        self.note(error)

    def _give_up(self, pending: Pending, why: str, *, is_certain: bool = True) -> None:
        """Count a call that left the queue as lost, with its bill."""
        with self._guard.lock:
            self._lost += 1
        self._lose_bill(pending.call, why, is_certain=is_certain)
        pending.release()

    def _lose_bill(self, call: Recorded, why: str, *, is_certain: bool) -> None:
        """Count a call that is not in the ledger, and log the amounts, to be booked by hand. Unless ``is_certain``, a
        write that hangs or failed may have booked it, and the ledger could not be read."""
        if not any(row.cost_nanos or row.charge_nanos or row.cost_range_nanos for row in call.ledger_rows):
            return
        with self._guard.lock:
            self._unbilled += 1
        fate = "is lost: call %s of account %s (cost $%s, charge $%s) is not in the ledger: %s"
        if not is_certain:
            fate = "may be lost: look in the ledger for call %s of account %s (cost $%s, charge $%s): %s"
        amounts = usd_text(call.cost_nanos), usd_text(call.charged_nanos)
        _log.error(f"money {fate}", call.id, call.caller.account, *amounts, why)

    def note(self, error: Exception) -> None:
        """Remember a fault for ``flush``, and log the first of several."""
        self._last_fault = error.with_traceback(None)  # a traceback would keep its frames alive
        if isinstance(error, StorageUnavailable):
            self.last_write = False
        self.fails = True
        self.outage.begin(self.clock.monotonic(), f"traces cannot be written: {text_of(error)}")

    def recover(self) -> None:
        """Log that writes succeed again."""
        self.fails = False
        self.outage.end(self.clock.monotonic())


def events_in(written: Iterable[wire.Written]) -> list[wire.Event]:
    """The events that writes have stored."""
    return [stored.event for result in written for stored in result.events]


def text_of(error: Exception | None) -> str:
    """An error for the log, without the message of a foreign exception."""
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, RouterError) else kind
