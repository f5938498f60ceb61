"""``Accounts`` in memory: the rules of ``State``, over the books of a ``MemoryStorage``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from routewright._core.accounts.books import KEPT_S, MONEY, Books
from routewright._core.accounts.hold import End, Hold
from routewright._core.accounts.ledger import correct, expired_row, settle
from routewright._core.accounts.payer import RUN
from routewright._core.accounts.state import Expired, Kept, PurseName, State, Wait, scope_of
from routewright._core.accounts.waiting import Waiting
from routewright.errors import RouterError
from routewright.fork import renew_in_children
from routewright.loop import Signal
from routewright.protocols import Facts
from routewright.wire import (
    Account,
    AddCredit,
    Ask,
    Caller,
    Correct,
    Grant,
    Key,
    LedgerRow,
    Left,
    PutAccount,
    PutKey,
    Replay,
    RevokeKey,
    RunLimit,
    Short,
    Standing,
    Stands,
    StoredEvent,
    Written,
)

if TYPE_CHECKING:
    from . import MemoryStorage

LEASE_S = 30.0
"""A call that should have ended so long ago is ended by name: its hold was lost by a defect."""
EVICT_EVERY = 16
"""Steps until the next part of what nobody uses is dropped."""
TIDY_EVERY = 1_024
"""Asks after which memory is tidied."""
MOST_WAITING = 10_000


class _Asking:
    """An ask that waits for what others hold."""

    __slots__ = ("answered", "ask", "found")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.answered = Signal()
        self.found: Grant | Replay | Short | RouterError | None = None


class _Spent(Struct):
    spent: int = 0
    granted: int = 0


_NOTHING = _Spent()


class MemoryAccounts:
    """Holds of limits, budgets and idempotency keys. A forked child begins with none."""

    owner = 1
    """The owner of all holds: this process."""

    def __init__(self, storage: MemoryStorage, newest: int) -> None:
        self._storage = storage
        self._newest = newest
        self._clock = storage.clock
        self._lock = storage.guard
        self._spent: dict[PurseName, _Spent] = {}
        self._runs: OrderedDict[PurseName, None] = OrderedDict()
        """Those of ``_spent`` that are of agent runs, the one used last at the end."""
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing held: the parent's calls go on there."""
        self.state = State(self)
        self._waiting: Waiting[_Asking] = Waiting(self.state)
        self._asks = 0

    # Accounts

    async def admit(self, ask: Ask) -> Grant | Replay | Short:
        """As ``protocols.Accounts`` says."""
        with self._lock.lock:
            self._begin()
            found = self.state.admit(ask, self.owner, self._clock.time())
            if isinstance(found, Hold):
                return self.state.grant(ask, found)
            if not isinstance(found, Wait):
                return found
            if len(self._waiting) >= MOST_WAITING:
                return found.turn_away()
            if ask.waits_s <= 0:
                return found.give_up()
            asking = _Asking(ask)
            self._waiting.join(asking, found.on)
        return await self._wait(asking)

    async def _wait(self, asking: _Asking) -> Grant | Replay | Short:
        """Wait in a queue, as long as the ask may."""
        try:
            with self._clock.deadline(self._clock.monotonic() + asking.ask.waits_s):
                await asking.answered.wait()
        except BaseException:
            self._leave(asking)
            if isinstance(asking.found, Grant):
                self.release(asking.found)
            raise
        if asking.found is None:
            self._leave(asking, answer=True)
        if isinstance(asking.found, RouterError):
            raise asking.found
        assert asking.found is not None, "it was answered"
        return asking.found

    def _leave(self, asking: _Asking, *, answer: bool = False) -> None:
        """Let an ask leave its queue, if it was not answered; perhaps with what there is to say to it by now."""
        with self._lock.lock:
            self._begin()
            self._waiting.leave(asking)
            if answer and asking.found is None:
                self._answer(asking, self._tried(asking))
            self._again()

    def _answer(self, asking: _Asking, found: Hold | Replay | Wait | Short | RouterError) -> None:
        if isinstance(found, Hold):
            asking.found = self.state.grant(asking.ask, found)
        elif isinstance(found, Wait):
            try:
                asking.found = found.give_up()
            except RouterError as error:
                asking.found = error
        else:
            asking.found = found
        asking.answered.set()

    async def settle(self, grant: Grant | None, facts: Facts) -> Sequence[StoredEvent]:
        """As ``protocols.Accounts`` says."""
        with self._lock.lock:
            self._begin()
            kept = self._storage.account_of(facts.caller.account)
            if facts.trace is not None:  # it may be refused: then nothing else is done
                self._storage.keep_trace(kept, facts.trace, facts.snapshots)
            booked = settle(self.state, self, facts, self._clock.time())
            for row in booked.rows:
                kept.books.book(row, booked.purses)
            if booked.keeps and facts.claim is not None and facts.result is not None:
                self._keep(kept.books, facts)
            if facts.trace is not None and facts.trace.is_void != booked.is_void:
                facts.trace.void(booked.is_void)
            for event in booked.events:
                kept.books.emit(event)
            events = booked.events
            for put in facts.events:
                events += kept.books.put(put).events
            self._end()
        return events

    async def widen(self, grant: Grant, nanos: int) -> bool:
        """As ``protocols.Accounts`` says."""
        with self._lock.lock:
            self._begin()
            hold = self.state.holds.get(grant.id)
            widened = hold is not None and self.state.widen(hold, nanos) is None
            self._end()
        if widened:
            grant.nanos = nanos
        return widened

    def release(self, grant: Grant, tokens: int | None = 0) -> None:
        """As ``protocols.Accounts`` says."""
        with self._lock.lock:
            if grant.id in self.state.holds:
                self._begin()
                self.state.end(End(grant.id, tokens))
                self._end()

    def left(self, caller: Caller, run: RunLimit | None = None) -> Left | None:
        """As ``protocols.Accounts`` says."""
        return self.state.left(caller, self._clock.time(), run)

    async def look(self, caller: Caller, run: RunLimit | None = None) -> Left:
        """As ``protocols.Accounts`` says."""
        with self._lock.lock:
            return self.state.look(caller, self._clock.time(), run)

    # What the storage asks of it, under its lock

    def stands(self, account: str, query: Stands) -> Standing:
        """How an account stands."""
        return self.state.standing(account, query)

    def change(self, account: str, write: MONEY) -> Written:
        """Apply a write that changes what the callers of an account may take."""
        self._begin()
        books = self._storage.account_of(account).books
        match write:
            case AddCredit(id, nanos, at, note):
                row = LedgerRow(request_id=id, attempt=0, kind="credit", at=at, credit_nanos=nanos, note=note)
                written = Written(books.book(row))
                if written.created:
                    self._entry((account, "account")).granted += nanos
            case Correct():
                booked = correct(self.state, self, account, write)
                for row in booked.rows:
                    books.book(row)
                for event in booked.events:
                    books.emit(event)
                written = Written(bool(booked.rows), events=tuple(booked.events))
            case PutAccount() | PutKey() | RevokeKey():
                written = books.put(write)
        self._end()
        self.state.forget(account)
        self._again()
        return written

    def granted(self, account: str) -> int:
        """All the credit that an account was given."""
        return self._spent.get((account, "account"), _NOTHING).granted

    # The shelf

    def account(self, name: str) -> Account | None:
        """As ``Books`` says."""
        return self._storage.look_up(name).books.account

    def key(self, account: str, key_id: str) -> Key | None:
        """As ``Books`` says."""
        return self._storage.look_up(account).books.key(key_id)

    def sums(self, account: str, purse: str) -> tuple[int, int]:
        """As ``Books`` says."""
        found = self._spent.get((account, purse), _NOTHING)
        return found.spent, found.granted

    def kept(self, account: str, claim: bytes, now: float) -> Kept | None:
        """As ``Books`` says."""
        return self._storage.look_up(account).books.kept(claim, now)

    def attempts(self, account: str, call: str) -> set[int]:
        """As ``Shelf`` says."""
        return self._storage.look_up(account).books.attempts(call)

    def unbook(self, account: str, call: str) -> Expired | None:
        """As ``Shelf`` says."""
        return self._storage.account_of(account).books.unbook(call)

    def told(self, account: str, name: str) -> int:
        """As ``Shelf`` says."""
        return self._storage.look_up(account).books.thresholds.get(name, 0)

    def put_told(self, account: str, name: str, threshold: int) -> None:
        """As ``Shelf`` says."""
        self._storage.account_of(account).books.thresholds[name] = threshold

    def _keep(self, books: Books, facts: Facts) -> None:
        assert facts.claim is not None
        assert facts.result is not None
        claim = scope_of(facts.caller, facts.claim.key)
        kept = Kept(facts.claim.fingerprint, facts.id, facts.result)
        books.keep(claim, facts.caller.environment, self._clock.time() + KEPT_S, kept)

    def _begin(self) -> None:
        """A step: its time, and now and then what is to be forgotten."""
        at = max(self.state.at, self._clock.monotonic())
        self.state.begin(self.owner, at, at + LEASE_S)
        self._asks += 1
        if not self._asks % EVICT_EVERY:
            self.state.evict(at)
            if not self._asks % TIDY_EVERY:
                self._tidy()

    def tidy(self) -> None:
        """Forget what nobody uses, and end holds that were lost. Called under the lock."""
        self._begin()
        self._tidy()
        self._end()

    def _tidy(self) -> None:
        for hold_id in self.state.overdue(self.owner, LEASE_S):
            self._expire(hold_id)

    def _expire(self, hold_id: str) -> None:
        hold = self.state.expire(hold_id)
        if hold is not None:
            before = self.unbook(hold.account, hold.id)
            row = expired_row(hold, before)
            if row is not None:
                self._storage.account_of(hold.account).books.book(row, hold.purses)

    def _end(self) -> None:
        """Keep what was charged, and give others what was freed."""
        if self.state.charged:
            for each in self.state.charged:
                name = each.account, each.name
                there = self._spent.get(name)
                if there is None or each.is_of_run:
                    there = self._entry(name)
                there.spent += each.charged or 0
                each.charged = None
            self.state.charged.clear()
        if self.state.freed:
            self._again()

    def _again(self) -> None:
        while self.state.freed:
            self._waiting.retry(self._tried, self._answer)

    def _tried(self, asking: _Asking) -> Hold | Replay | Wait | Short | RouterError:
        try:
            return self.state.admit(asking.ask, self.owner, self._clock.time())
        except RouterError as error:
            return error

    def _entry(self, name: PurseName) -> _Spent:
        """The sums of a purse, to be changed. Of agent runs the newest are kept."""
        there = self._spent.setdefault(name, _Spent())
        if name[1].startswith(RUN):
            self._runs[name] = None
            self._runs.move_to_end(name)
            if len(self._runs) > self._newest:
                del self._spent[self._runs.popitem(last=False)[0]]
        return there
