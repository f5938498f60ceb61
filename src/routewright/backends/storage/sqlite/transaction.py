"""Accounts inside a transaction: admissions and settlements, as one tick of the log.

A tick first folds the ticks of others, then writes its own changes. It is rolled back as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from pathlib import Path

from routewright._core.accounts.eviction import Eviction
from routewright._core.accounts.holds import Hold
from routewright._core.accounts.log import Tick, Widened
from routewright._core.accounts.settlement import Booked, End, end_hold
from routewright._core.accounts.wait_queue import WaitQueue
from routewright._core.idempotency import scope_of
from routewright.backends.storage.tables.ledger import PendingAsk, TableShelf
from routewright.backends.storage.tables.traces import TraceRows, add_traces
from routewright.errors import RouterError
from routewright.protocols import Clock, Facts
from routewright.wire import AddCredit, Grant, Snapshot
from routewright.wire.timestamps import timestamp

from .file import Connection
from .log import Log

MAX_UNUSED = 1_000
"""Unused accounts, keys and purses that stay in memory, some 3 MB."""

_log = logging.getLogger(__name__)


class AccountTransaction:
    """The accounts of one process and file. For one thread at a time, in transactions with the write lock."""

    def __init__(self, path: Path, clock: Clock, lease_s: float) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self.beat_s = lease_s / 4
        """Interval of this owner's signs of life while it has holds."""
        self.shelf = TableShelf()
        self.log = Log(path, self.shelf, clock, lease_s)
        self.state = self.shelf.state = self.log.state
        self._eviction = Eviction(self.state)
        self.queue: WaitQueue[PendingAsk] = WaitQueue(self.state, self.log.owner)
        self._new_asks: list[PendingAsk] = []
        """Asks that began to wait in this transaction."""
        self._order = count()
        self._tick = Tick()
        self.traces: list[TraceRows] = []
        """New traces, to be written with the tick."""
        self.snapshots: Sequence[Snapshot] = ()
        """Stored snapshots of the last call."""
        self.put_at: dict[str, float] = {}
        """Time of each snapshot's last put."""
        self.current_at = -inf
        """Monotonic time at which the state was last current."""
        self._deadlines: list[tuple[float, int, PendingAsk]] = []
        """Waiting asks by their deadline."""
        self.is_careful = False
        """True while requests run one by one after a failure: their rows may exist already."""
        self.deletes = False
        """True if this transaction deletes traces or answers: the log must not name their calls any more."""
        self._is_open = False
        self._ticked_at = 0.0
        self._looked_at = -inf
        """Time of the last search for overdue holds."""

    def open(self, connection: Connection) -> None:
        """Begin the tick of this transaction, once."""
        if self._is_open:
            return
        self.shelf.begin(connection)
        holds = self.log.catch_up(connection)
        self._is_open = True
        for owner in self.state.silent(self.log.owner, self.state.at):
            holds += self.state.owners.get(owner, {}).values()
        now = self.current_at = self._clock.monotonic()
        self._eviction.step(self.state.at)
        overdue: list[Hold] = []
        if now >= self._looked_at + self.beat_s:
            self._looked_at = now
            overdue = self.state.overdue(self.log.owner, self._lease_s)
            self.snapshots = ()
        for hold in overdue:
            _log.error("call %s held money or limits long after its end; it is released, please report it", hold.id)
        for hold in holds + overdue:
            self._tick.expired.append(hold.id)
            self.shelf.expire(hold)

    def evict(self) -> bool:
        """Evict some unused state. False: nothing is left to evict."""
        return self._eviction.step(self.log.now)

    @property
    def is_idle(self) -> bool:
        """True if it has no holds, and little state in memory."""
        return self.log.owner not in self.state.owners and self.state.size <= MAX_UNUSED

    @property
    def is_due(self) -> bool:
        """True if a sign of life is due."""
        return self.log.owner in self.state.owners and self._clock.monotonic() - self._ticked_at >= self.beat_s

    @property
    def is_ready(self) -> bool:
        """True if waiting asks may be answered: something was freed, a deadline has passed, or a process with holds is
        gone."""
        return bool(self.state.freed) or self._gives_up or bool(self.state.silent(self.log.owner, self.log.now))

    @property
    def gives_up_in_s(self) -> float:
        """Seconds until the first deadline of a waiting ask."""
        return self._deadlines[0][0] - self._clock.monotonic() if self._deadlines else inf

    @property
    def _gives_up(self) -> bool:
        return bool(self._deadlines) and self._deadlines[0][0] <= self._clock.monotonic()

    def finish(self, connection: Connection, asks: Sequence[PendingAsk]) -> None:
        """Admit asks, answer waiting ones if possible, and write the tick."""
        if not self._is_open:
            return
        now = self._clock.time()
        if asks:
            claims: dict[str, list[bytes]] = {}
            for pending in asks:
                if pending.ask.claim is not None:
                    caller = pending.ask.caller
                    claims.setdefault(caller.account, []).append(scope_of(caller, pending.ask.claim.key))
            for account, keys in claims.items():  # at once, to save statements
                self.shelf.look_up(account, keys)
            for pending in asks:
                if not pending.is_left:
                    self.queue.admit(pending, now)
                    if pending.waits is not None:
                        pending.until = self._clock.monotonic() + pending.ask.waits_s
                        self._new_asks.append(pending)
                        heappush(self._deadlines, (pending.until, next(self._order), pending))
        if self.state.freed:
            self.queue.retry(now)
        if self._deadlines:
            for pending in self._pop_late():
                self.queue.give_up(pending, now)
        for pending in self.queue.answered:
            if pending.takes:
                self._tick.admits.append(self.state.holds[pending.ask.id])
            elif isinstance(pending.result, Grant):
                self._tick.widened.append(Widened(pending.ask.id, pending.result.nanos))
        if self.traces:
            add_traces(connection, self.traces)
            self.traces = []
        if not self._tick.is_empty or self.is_due:
            self.shelf.flush(timestamp(now))
            self.log.append(connection, self._tick)
            self._ticked_at = self._clock.monotonic()
            self._tick = Tick()
        if self.deletes:
            self.log.clear(connection)
        self._is_open = self.deletes = False

    def take_answered(self) -> list[PendingAsk]:
        """Called after the commit. Returns the answered asks."""
        answered = self.queue.answered
        self.queue.answered = []
        self._new_asks = []
        return answered

    def fail(self) -> None:
        """Called after a failed transaction: resets the state. Asks that waited before it continue to wait."""
        self.log.forget()
        self.state.freed.clear()  # all are tried once the state is folded again
        self.shelf.drop()
        self._tick = Tick()
        self._is_open = self.deletes = False
        self.traces = []
        self.snapshots = ()
        self.put_at.clear()
        for pending in self._new_asks:
            self.queue.leave(pending)
            pending.waits = None
        for pending in reversed(self.take_answered()):  # the answers were not committed
            pending.result = pending.error = None
            pending.takes = False
            if pending.waits is not None:
                self.queue.join(pending, pending.waits.on, first=True)
                heappush(self._deadlines, (pending.until, next(self._order), pending))

    def refuse(self, fault: Callable[[], RouterError]) -> None:
        """Fail asks whose deadline has passed, while the file cannot be used."""
        for pending in self._pop_late():
            self.queue.leave(pending)
            pending.error = fault()
            self.queue.answered.append(pending)

    def _pop_late(self) -> Iterator[PendingAsk]:
        """Asks whose deadline has passed."""
        while self._gives_up:
            pending = heappop(self._deadlines)[2]
            if pending.waits is not None and not pending.is_left and pending.result is None and pending.error is None:
                yield pending

    # Work inside a transaction, after ``open``

    def leave(self, pending: PendingAsk, _: Connection, *, takes: bool = False) -> None:
        """Remove an ask from its queue and release its hold. ``takes``: it may have had one that was undone."""
        self.queue.leave(pending)
        if takes or pending.takes:
            self.release(pending.ask.id, 0)

    def settle(self, facts: Facts) -> Booked:
        """Book a call (``ledger.settle``). The caller writes its trace."""
        booking = self.shelf.settle(facts, self._clock.time())
        self._tick.ends.append(booking.end)
        return booking

    def release(self, call: str, tokens: int | None) -> None:
        """Release a call without a settlement."""
        end = End(call, tokens)
        if end_hold(self.state, end) is not None:
            self._tick.ends.append(end)

    def widen(self, call: str, nanos: int) -> bool:
        """Change the reservation of a running call."""
        hold = self.state.holds.get(call)
        if hold is None or self.state.widen(hold, nanos) is not None:
            return False
        self._tick.widened.append(Widened(hold.id, hold.nanos))
        return True

    def refresh_terms(self, account: str, _: str | None = None) -> None:
        """Make all processes read the terms of an account again."""
        self.state.forget(account)
        self._tick.changed.append(account)

    def credit(self, account: str, credit: AddCredit) -> bool:
        """Add to a balance. False: already done."""
        if not self.shelf.credit(account, credit):
            return False
        self.refresh_terms(account)
        return True
