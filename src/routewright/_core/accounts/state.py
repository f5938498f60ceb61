"""Rules of admission: idempotency keys, rate limits, budgets, holds and leases (contract 7).

    Ask ─┬─ Hold ──┬─ settled: the cost is booked, the rest of the hold is free again
         │         ├─ released: free again
         │         └─ expired: its owner was silent for a lease; a ledger row says that the cost is unknown
         ├─ Replay: the stored answer of its idempotency key
         ├─ Wait: other calls hold the money or the idempotency key
         └─ Short: not enough money

``State`` is the reference model and the memory storage. It is made of the windows of ``limits.py``, the claims of
``idempotency.py`` and the purses of ``purses.py``; how a hold ends is in ``settlement.py``. A shared storage keeps a
log of ``Tick`` (``log.py``); every process that folds the log arrives at the same state. Decisions (``admit``,
``end_hold``, ``expire_hold``) change the state through ``Hold`` and ``End``, the facts in the log; ``fold`` repeats
them. Use it from one thread at a time, with times that never decrease.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from routewright import wire
from routewright._core.idempotency import Claims, StoredResults, scope_of
from routewright._core.limits import Window, limit_error
from routewright.wire import WINDOW_S, Account, Ask, Caller, Grant, Key, Left, Period, Purse, Replay, RunLimit, Short
from routewright.wire.timestamps import timestamp

from .holds import FreedName, Hold, Wait
from .keys import check_key
from .payer import Payer, parties_of
from .purses import BALANCE, DAY, RUN, LimitedPurse, Sums, level_of, purses_of, spent_shares, tag_purses

_DAY_S = 86_400


class StoredAccounts(StoredResults, Protocol):
    """Stored data that the state reads, as of the last folded tick."""

    def account(self, name: str) -> Account | None:
        """An account, if it is set up."""

    def key(self, account: str, key_id: str) -> Key | None:
        """A key of an account."""

    def sums(self, account: str, purse: str) -> tuple[int, int]:
        """Money spent from a purse, and credit granted to it."""


class State:
    """Current use of limits and money by all accounts. Loads entries from ``books`` on first use."""

    def __init__(self, books: StoredAccounts) -> None:
        self._books = books
        self.queued: dict[FreedName, int] = {}  # number of waiting calls; later ones queue behind them
        self.clear()

    def clear(self) -> None:
        """Forget everything except the waiting calls."""
        self.at = self._until = 0.0  # time of the last tick, and the end of its owner's lease
        self.windows: dict[str, Window] = {}
        self.sums: dict[str, dict[str, Sums]] = {}  # by account and purse name
        self.claims = Claims(self._books)
        self.holds: dict[str, Hold] = {}
        self.owners: dict[int, dict[str, Hold]] = {}
        self.heard: dict[int, float] = {}  # end of the lease of each owner with holds
        self.freed: dict[FreedName, None] = dict.fromkeys(self.queued)
        """Purses and keys that may now have room for waiting calls."""
        self.charged: list[Sums] = []
        """Purses with charges not yet in the books. Call ``booked`` after writing them."""
        self.expired: dict[str, float] = {}  # expired holds, and when they expired
        self.payers: dict[str, dict[tuple[str, str | None], Payer]] = {}
        self._groups: dict[str, dict[tuple[str, ...], tuple[Sums, ...]]] = {}
        """Purses by account and ``Hold.purses``."""

    def begin(self, owner: int, at: float, until: float) -> None:
        """Start a tick of an owner, and extend its lease to ``until``."""
        self.at = at
        self._until = until
        if owner in self.owners:
            self.heard[owner] = until

    # Terms and money of a caller

    def payer(self, caller: Caller, at: float) -> Payer:
        """Terms of a caller for a call that arrived ``at`` (Unix seconds)."""
        name = caller.environment, caller.key_id
        day = int(at) // _DAY_S
        if (payers := self.payers.get(caller.account)) is None:
            payers = self.payers[caller.account] = {}
        payer = payers.get(name)
        if payer is None or payer.day != day:
            if payer is not None:
                payer.release()
            payer = payers[name] = self._resolve(caller, day)
        payer.used_at = self.at
        return payer

    def _resolve(self, caller: Caller, day: int) -> Payer:
        account = self._books.account(caller.account)
        key = None if caller.key_id is None else self._books.key(caller.account, caller.key_id)
        windows = [(name, self.window(name), limits) for name, limits in parties_of(caller, account, key)]
        purses: list[LimitedPurse] = []
        if caller.environment == "production":
            limits = purses_of(account, key, timestamp(day * _DAY_S)[:DAY])
            purses = [(self.purse(caller.account, name), limit) for name, limit in limits.items()]
        return Payer(account, key, day, windows, purses)

    def account(self, name: str) -> Account | None:
        """An account, if it is set up."""
        mine = self.payers.get(name)
        return next(iter(mine.values())).account if mine else self._books.account(name)

    def left(self, caller: Caller, at: float, run: RunLimit | None) -> Left | None:
        """Money that a caller has left, if in memory. Thread-safe."""
        mine = self.payers.get(caller.account)
        payer = None if mine is None else mine.get((caller.environment, caller.key_id))
        if payer is None or payer.day != int(at) // _DAY_S:
            return None
        purses = payer.purses
        minimum = None
        if run is not None and caller.environment == "production":
            spent = self.sums.get(caller.account, {}).get(RUN + run.id)
            if spent is None or not spent.is_known:
                return None
            purses = [(spent, run.limit_nanos), *purses]
        for sums, limit in purses:
            if limit is not None:
                left = (sums.granted if limit == BALANCE else limit) - sums.spent
                minimum = left if minimum is None or left < minimum else minimum
        return Left(payer.account, payer.key, minimum)

    def spent_shares(self, caller: Caller, at: float) -> Mapping[Period, int] | None:
        """Millionths spent of the limits by day, week and month (``purses.spent_shares``), if in memory.
        Thread-safe."""
        payer = self.payers.get(caller.account, {}).get((caller.environment, caller.key_id))
        if payer is None or payer.day != int(at) // _DAY_S:
            return None
        return spent_shares((sums.name, limit, sums.spent) for sums, limit in payer.purses)

    def look(self, caller: Caller, at: float, run: RunLimit | None) -> Left:
        """Like ``left``, loading from the books what is not in memory."""
        payer = self.payer(caller, at)
        if caller.key_id is not None:
            check_key(payer.key, caller.key_id)
        if run is not None:
            self.purse(caller.account, RUN + run.id)
        left = self.left(caller, at, run)
        assert left is not None, "just loaded"
        return left

    def standing(self, account: str, query: wire.Stands) -> wire.Standing:
        """Terms of an account and the purses that would pay for a call, innermost first."""
        terms = self._books.account(account)
        key = None if query.key_id is None else self._books.key(account, query.key_id)
        purses = []
        for name, limit in purses_of(terms, key, query.at[:DAY], query.run, query.tags).items():
            sums = self.purse(account, name)
            most = sums.granted if limit == BALANCE else limit
            purses.append(Purse(level_of(name), name, most, sums.spent, sums.reserved))
        return wire.Standing(terms, key, tuple(purses))

    def grant(self, ask: Ask, hold: Hold) -> Grant:
        """The grant of a call that was just admitted or widened."""
        caller = ask.caller
        mine = self.payers.get(caller.account)
        payer = None if mine is None else mine.get((caller.environment, caller.key_id))
        payer = payer or self.payer(caller, ask.at)  # terms may have changed since the admission
        states: list[wire.WindowState] = []
        for _, window, limits in payer.windows if ask.windows else ():
            states += window.states(limits, self.at)
        limited = payer.limited or bool((ask.run is not None or ask.tags) and self._inner(ask, payer))
        return Grant(id=hold.id, caller=ask.caller, nanos=hold.nanos, is_limited=limited, windows=tuple(states))

    # Admission

    def admit(self, ask: Ask, owner: int, now: float) -> Hold | Replay | Wait | Short:
        """Take everything that a call asks for at time ``self.at``, or nothing. ``now`` in Unix seconds. Raises
        ``AuthenticationFailed``, ``IdempotencyKeyReused`` and ``RateLimited``."""
        # The plain way checks and takes one limit after the other. Then two calls pass the same check, and a call that
        # the last limit refuses has already used up the first ones. Here everything is checked before anything is
        # taken, in one step of one thread, so a refused call counts nowhere (P2, P3; test_refusals_change_nothing) and
        # a batch cannot overdraw (test_a_batch_equals_single_calls_and_never_overdraws). The order matters, too. The
        # idempotency key comes first (spec 4.1): a repeated call gets its stored answer even if the limits are used up
        # (test_the_key_is_checked_before_limits_and_money). Rate limits come before money, because a call that they
        # refuse must not join the queue for money. A call that is already admitted only widens its reservation.
        if (hold := self.holds.get(ask.id)) is not None:
            return self.widen(hold, ask.nanos) or hold
        caller = ask.caller
        payer = self.payer(caller, ask.at)
        if caller.key_id is not None and (payer.key is None or payer.key.revoked_at is not None):
            check_key(payer.key, caller.key_id)
        scope = None
        if ask.claim is not None:
            scope = scope_of(caller, ask.claim.key)
            owner_of_key = self.claims.taken(caller.account, scope, ask.claim, now)
            if owner_of_key is not None:
                return owner_of_key if isinstance(owner_of_key, Replay) else Wait(scope, None)
        slots = 1 if ask.slot and ask.windows else 0
        cut = self.at - WINDOW_S
        for _, window, limits in payer.windows if ask.windows else ():
            times = window.times
            if times and times[window.head] <= cut:
                window.age(cut)
            if not window.admits(limits, ask.tokens, slots):
                raise limit_error(payer.windows, ask.tokens, self.at, now, slots=ask.slot)
        purses = payer.purses
        names = payer.names
        nanos = ask.nanos
        inner = self._inner(ask, payer) if ask.run is not None or ask.tags else ()
        if inner:
            purses = [*inner, *purses]
            names = tuple([sums.name for sums, _ in purses])
        if inner or payer.limited:
            short = self._short(purses, nanos)
            if short is not None:
                return short
        else:
            nanos = 0
        hold = Hold(
            ask.id,
            caller.account,
            caller.key_id,
            ask.at,
            self.at + ask.lasts_s,
            payer.parties if ask.windows else (),
            ask.tokens,
            slots,
            nanos,
            names,
            scope,
            "" if ask.claim is None else ask.claim.fingerprint,
            owner,
            self.at,
            ask.run if inner else None,
            ask.tags,
        )
        self.take(hold, [sums for sums, _ in purses] if inner else payer.all)
        return hold

    def _inner(self, ask: Ask, payer: Payer) -> list[LimitedPurse]:
        """Purses of an ask's agent run and tags, with their limits."""
        caller = ask.caller
        if caller.environment != "production":
            return []
        limits = {} if ask.run is None else {RUN + ask.run.id: ask.run.limit_nanos}
        if ask.tags and payer.account is not None:
            limits.update(tag_purses(payer.account, timestamp(ask.at)[:DAY], ask.tags))
        return [(self.purse(caller.account, name), limit) for name, limit in limits.items()]

    def widen(self, hold: Hold, nanos: int) -> Wait | Short | None:
        """Change the reservation of a running call to ``nanos``. None: done."""
        account = self._books.account(hold.account)
        key = None if hold.key_id is None else self._books.key(hold.account, hold.key_id)
        limits = purses_of(account, key, timestamp(hold.came_at)[:DAY], hold.run, hold.tags)
        purses = [(self.purse(hold.account, name), limits.get(name)) for name in hold.purses]
        if all(limit is None for _, limit in purses):
            return None
        short = None if nanos <= hold.nanos else self._short(purses, nanos, hold)
        if short is None:
            self.reserve(hold, nanos)
        return short

    def _short(self, purses: Sequence[LimitedPurse], nanos: int, hold: Hold | None = None) -> Wait | Short | None:
        """Why an amount is not available. None: it is. ``hold``: of a running call, which queues behind nobody."""
        # "Not enough" has two meanings. Spent money is gone, so the refusal is final; reserved money may come back, so
        # the call waits for it. The purse with the least left decides, since that one has to change. A call that would
        # fit still queues behind waiting ones, or small calls would overtake a large one for ever
        # (test_a_new_call_queues_behind_waiting_ones_and_learns_the_limit). A running call does not: it may hold what
        # the others wait for, and then nobody would go on (test_a_running_call_does_not_queue_behind_waiting_ones).
        own_nanos = 0 if hold is None else hold.nanos
        lowest: Sums | None = None
        contended: Sums | None = None
        lowest_left = contended_left = 0
        for sums, limit in purses:
            if limit is None:
                continue
            left = (sums.granted if limit == BALANCE else limit) - sums.spent
            if left - sums.reserved + own_nanos < nanos:
                if lowest is None or left < lowest_left:
                    lowest, lowest_left = sums, left
            elif self.queued and nanos and hold is None and (sums.account, sums.name) in self.queued:
                contended, contended_left = sums, left
        if lowest is None:
            if contended is None:
                return None
            lowest, lowest_left = contended, contended_left
        purse = Purse(level_of(lowest.name), lowest.name, lowest_left + lowest.spent, lowest.spent, lowest.reserved)
        if lowest_left < nanos:
            return Short(purse, waits=False)
        return Wait((lowest.account, lowest.name), Short(purse, waits=True))

    # Holds

    def take(self, hold: Hold, purses: Iterable[Sums], *, counts: bool = True) -> None:
        """Take what a hold says. ``counts``: in the windows, too."""
        for party in hold.parties:
            window = self.windows.get(party) or self.window(party)
            window.slots += hold.slots
            if counts:
                window.take(hold.taken_at, hold.tokens)
        if hold.nanos:
            for sums in purses:
                sums.reserved += hold.nanos
        if hold.claim is not None:
            self.claims.running[hold.claim] = hold
        self.holds[hold.id] = hold
        if (holds := self.owners.get(hold.owner)) is None:
            holds = self.owners[hold.owner] = {}
            self.heard[hold.owner] = self._until
        holds[hold.id] = hold

    def free(self, hold: Hold, purses: Iterable[Sums]) -> None:
        """Release what a hold holds, except its counts in the windows."""
        held = self.owners[hold.owner]
        del held[hold.id]
        if not held:
            del self.owners[hold.owner]
            self.heard.pop(hold.owner, None)
        if hold.slots:
            for party in hold.parties:
                self.windows[party].slots -= 1
        if hold.nanos:
            for sums in purses:
                sums.reserved -= hold.nanos
                if self.queued:
                    self._free_up((hold.account, sums.name))
        if hold.claim is not None:
            self.claims.running.pop(hold.claim, None)
            if self.queued:
                self._free_up(hold.claim)

    def reserve(self, hold: Hold, nanos: int) -> None:
        """Change the reservation of a hold."""
        for sums in self.group(hold.account, hold.purses):
            sums.reserved += nanos - hold.nanos
            self._free_up((hold.account, sums.name))
        hold.nanos = nanos

    def silent(self, but: int, at: float) -> list[int]:
        """Owners with holds, other than ``but``, whose leases ended before ``at``."""
        return [owner for owner, until in self.heard.items() if until < at and owner != but]

    def overdue(self, owner: int, lease_s: float) -> list[Hold]:
        """Holds of an owner whose calls should have ended more than a lease ago."""
        return [hold for hold in self.owners.get(owner, {}).values() if hold.ends_at < (self.at - lease_s)]

    # Memory

    def forget(self, account: str) -> None:
        """Reload the terms and sums of an account from the books on next use."""
        for payer in self.payers.pop(account, {}).values():
            payer.release()
        for purse, sums in self.sums.get(account, {}).items():
            sums.is_known = False
            self._free_up((account, purse))

    @property
    def size(self) -> int:
        """Number of windows, callers and purses in memory."""
        return len(self.windows) + sum(map(len, self.payers.values())) + sum(map(len, self.sums.values()))

    def _free_up(self, name: FreedName) -> None:
        if name in self.queued:
            self.freed[name] = None

    def window(self, name: str) -> Window:
        """The window of an account or key."""
        if (window := self.windows.get(name)) is None:
            window = self.windows[name] = Window()
        return window

    def purse(self, account: str, name: str) -> Sums:
        """A purse with its sums loaded."""
        mine = self.sums.get(account)
        sums = None if mine is None else mine.get(name)
        if sums is None:
            (sums,) = self.group(account, (name,))
        if not sums.is_known:
            sums.spent, sums.granted = self._books.sums(account, name)
            sums.spent += sums.charged or 0
            sums.is_known = True
        return sums

    def group(self, account: str, names: tuple[str, ...]) -> tuple[Sums, ...]:
        """Purses of an account. Their sums may not be loaded yet."""
        if (groups := self._groups.get(account)) is None:
            groups = self._groups[account] = {}
        if (purses := groups.get(names)) is None:
            by_name = self.sums.setdefault(account, {})
            for name in names:
                if name not in by_name:
                    by_name[name] = Sums(account, name)
            purses = groups[names] = tuple([by_name[name] for name in names])
        return purses

    def drop_idle_purses(self, account: str) -> None:
        """Drop the purses of an account that nobody uses."""
        purses = self.sums.get(account, {})
        idle = [sums for sums in purses.values() if not (sums.payers or sums.reserved or sums.charged is not None)]
        for sums in idle:
            del purses[sums.name]
        if idle:
            self._groups.pop(account, None)
        if not purses:
            self.sums.pop(account, None)

    def booked(self) -> None:
        """Note that the books contain all charges."""
        for sums in self.charged:
            sums.charged = None
        self.charged.clear()
