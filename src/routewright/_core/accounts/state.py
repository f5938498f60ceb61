"""Rules of admission: idempotency keys, rate limits, budgets, holds and leases (contract 7).

    Ask ─┬─ Hold ──┬─ settled: the cost is booked, the rest of the hold is free again
         │         ├─ released: free again
         │         └─ expired: its owner was silent for a lease; a ledger row says that the cost is unknown
         ├─ Replay: the stored answer of its idempotency key
         ├─ Wait: other calls hold the money or the idempotency key
         └─ Short: not enough money

``State`` is the reference model and the memory storage. A shared storage keeps a log of ``Tick``; every process that
folds the log arrives at the same state. Decisions (``admit``, ``end``, ``expire``) change the state through ``Hold``
and ``End``, the facts in the log; ``fold`` repeats them. Use it from one thread at a time, with times that never
decrease.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, Protocol

from routewright._core.limits import Window
from routewright.errors import IdempotencyKeyReused, RateLimited, RouterTimeoutError
from routewright.wire import (
    WINDOW_S,
    Account,
    Ask,
    Caller,
    Claim,
    Grant,
    Key,
    Left,
    Purse,
    Replay,
    RunLimit,
    Short,
    Standing,
    Stands,
    WindowState,
)
from routewright.wire.json_scan import quoted
from routewright.wire.timestamps import timestamp

from .payer import (
    BALANCE,
    MONTH,
    RUN,
    End,
    Hold,
    Payer,
    Sums,
    Tick,
    Widened,
    check_key,
    level_of,
    parties_of,
    purses_of,
    refused,
)

KEPT_S = 24 * 3600  # how long an answer is kept under its idempotency key, from the end of its call
LATE_S = 3_600.0  # how long after its hold expired a call may still settle
IDLE_S = 60.0  # callers, windows and purses that are unused for this long and hold nothing leave memory
EVICTION_STEP = 64  # entries that one eviction step visits
_DAY_S = 86_400

PurseName = tuple[str, str]  # account, name of its purse
FreedName = PurseName | bytes  # a purse with more room, or an idempotency key that is free or has an answer


class Wait(NamedTuple):
    """Other calls hold what an ask needs."""

    on: FreedName
    short: Short | None
    """The answer after the wait times out. None: it waits for an idempotency key."""

    def give_up(self) -> Short | RouterTimeoutError:
        """The answer after the wait times out."""
        return self.short or RouterTimeoutError(
            "another call with the same idempotency key is still running; retry with the same key to get its answer"
        )

    def turn_away(self) -> Short | RateLimited:
        """The answer if the queue is full."""
        message = "another call with the same idempotency key is running, and too many calls are waiting; retry in 1 s"
        return self.short or RateLimited(message, detail={"retry_after_seconds": 1})


class KeptResult(NamedTuple):
    """A stored answer of an idempotency key."""

    fingerprint: str
    call: str
    result: bytes


class Expired(NamedTuple):
    """An expired hold, whose call's cost is unknown."""

    most: int
    """Highest possible cost, which agent runs count as spent."""
    purses: tuple[str, ...]


class StoredAccounts(Protocol):
    """Stored data that the state reads, as of the last folded tick."""

    def account(self, name: str) -> Account | None:
        """An account, if it is set up."""

    def key(self, account: str, key_id: str) -> Key | None:
        """A key of an account."""

    def sums(self, account: str, purse: str) -> tuple[int, int]:
        """Money spent from a purse, and credit granted to it."""

    def kept(self, account: str, claim: bytes, now: float) -> KeptResult | None:
        """The stored answer of an idempotency key. ``now`` in Unix seconds."""


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
        self.holds: dict[str, Hold] = {}
        self.claims: dict[bytes, Hold] = {}
        self.owners: dict[int, dict[str, Hold]] = {}
        self.heard: dict[int, float] = {}  # end of the lease of each owner with holds
        self.freed: dict[FreedName, None] = dict.fromkeys(self.queued)
        """Purses and keys that may now have room for waiting calls."""
        self.charged: list[Sums] = []
        """Purses with charges not yet in the books. Call ``booked`` after writing them."""
        self.expired: dict[str, float] = {}  # expired holds, and when they expired
        self._payers: dict[str, dict[tuple[str, str | None], Payer]] = {}
        self._groups: dict[str, dict[tuple[str, ...], tuple[Sums, ...]]] = {}
        """Purses by account and ``Hold.purses``."""
        self._eviction = self._evict_idle()
        self._evicted_at, self._evicts_at = -IDLE_S, 0.0

    def begin(self, owner: int, at: float, until: float) -> None:
        """Start a tick of an owner, and extend its lease to ``until``."""
        self.at, self._until = at, until
        if owner in self.owners:
            self.heard[owner] = until

    # Terms and money of a caller

    def payer(self, caller: Caller, at: float) -> Payer:
        """Terms of a caller for a call that arrived ``at`` (Unix seconds)."""
        mine, name, day = self._payers.get(caller.account), (caller.environment, caller.key_id), int(at) // _DAY_S
        if mine is None:
            mine = self._payers[caller.account] = {}
        found = mine.get(name)
        if found is None or found.day != day:
            if found is not None:
                _drop_payer(found)
            account = self._books.account(caller.account)
            key = None if caller.key_id is None else self._books.key(caller.account, caller.key_id)
            found = mine[name] = Payer(account, key, day)
            found.windows = [(each, self._window(each), limits) for each, limits in parties_of(caller, account, key)]
            found.parties = tuple(each for each, _, _ in found.windows)
            if caller.environment == "production":
                purses = purses_of(account, key, timestamp(day * _DAY_S)[:MONTH])
                found.purses = [(self.purse(caller.account, each), limit) for each, limit in purses.items()]
            for _, window, _ in found.windows:
                window.payers += 1
            for sums, _ in found.purses:
                sums.payers += 1
            found.names = tuple([sums.name for sums, _ in found.purses])
            found.all = tuple([sums for sums, _ in found.purses])
            found.limited = any(limit is not None for _, limit in found.purses)
        found.used_at = self.at
        return found

    def account(self, name: str) -> Account | None:
        """An account, if it is set up."""
        mine = self._payers.get(name)
        return next(iter(mine.values())).account if mine else self._books.account(name)

    def left(self, caller: Caller, at: float, run: RunLimit | None) -> Left | None:
        """Money that a caller has left, if in memory. Thread-safe."""
        mine = self._payers.get(caller.account)
        payer = None if mine is None else mine.get((caller.environment, caller.key_id))
        if payer is None or payer.day != int(at) // _DAY_S:
            return None
        purses, least = payer.purses, None
        if run is not None and caller.environment == "production":
            spent = self.sums.get(caller.account, {}).get(RUN + run.id)
            if spent is None or not spent.is_known:
                return None
            purses = [(spent, run.limit_nanos), *purses]
        for sums, limit in purses:
            if limit is not None:
                left = (sums.granted if limit == BALANCE else limit) - sums.spent
                least = left if least is None or left < least else least
        return Left(payer.account, payer.key, least)

    def look(self, caller: Caller, at: float, run: RunLimit | None) -> Left:
        """Like ``left``, loading from the books what is not in memory."""
        payer = self.payer(caller, at)
        if caller.key_id is not None:
            check_key(payer.key, caller.key_id)
        if run is not None:
            self.purse(caller.account, RUN + run.id)
        found = self.left(caller, at, run)
        assert found is not None, "just loaded"
        return found

    def standing(self, account: str, asked: Stands) -> Standing:
        """Terms of an account and the purses that would pay for a call, innermost first."""
        terms = self._books.account(account)
        key = None if asked.key_id is None else self._books.key(account, asked.key_id)
        purses = []
        for name, limit in purses_of(terms, key, asked.at[:MONTH], asked.run).items():
            sums = self.purse(account, name)
            most = sums.granted if limit == BALANCE else limit
            purses.append(Purse(level_of(name), name, most, sums.spent, sums.reserved))
        return Standing(terms, key, tuple(purses))

    def grant(self, ask: Ask, hold: Hold) -> Grant:
        """The grant of a call that was just admitted or widened."""
        caller = ask.caller
        mine = self._payers.get(caller.account)
        payer = None if mine is None else mine.get((caller.environment, caller.key_id))
        payer = payer or self.payer(caller, ask.at)  # terms may have changed since the admission
        states: list[WindowState] = []
        for _, window, limits in payer.windows if ask.windows else ():
            states += window.states(limits, self.at)
        limited = payer.limited or (ask.run is not None and ask.caller.environment == "production")
        return Grant(id=hold.id, caller=ask.caller, nanos=hold.nanos, is_limited=limited, windows=tuple(states))

    # Admission

    def admit(self, ask: Ask, owner: int, now: float) -> Hold | Replay | Wait | Short:
        """Take everything that a call asks for at time ``self.at``, or nothing. ``now`` in Unix seconds. Raises
        ``AuthenticationFailed``, ``IdempotencyKeyReused`` and ``RateLimited``."""
        hold = self.holds.get(ask.id)
        if hold is not None:
            return self.widen(hold, ask.nanos) or hold
        caller = ask.caller
        payer = self.payer(caller, ask.at)
        if caller.key_id is not None and (payer.key is None or payer.key.revoked_at is not None):
            check_key(payer.key, caller.key_id)
        claim = None
        if ask.claim is not None:
            claim = scope_of(caller, ask.claim.key)
            taken = self._taken(caller.account, claim, ask.claim, now)
            if taken is not None:
                return taken
        slots = 1 if ask.slot and ask.windows else 0
        cut = self.at - WINDOW_S
        for _, window, limits in payer.windows if ask.windows else ():
            times = window.times
            if times and times[window.head] <= cut:
                window.age(cut)
            if not window.admits(limits, ask.tokens, slots):
                raise refused(payer.windows, ask.tokens, self.at, now, slots=ask.slot)
        run = ask.run if caller.environment == "production" else None
        purses, nanos = payer.purses, ask.nanos
        if run is not None:
            purses = [(self.purse(caller.account, RUN + run.id), run.limit_nanos), *purses]
        if run is not None or payer.limited:
            short = self._short(purses, nanos, 0)
            if short is not None:
                return short
        else:
            nanos = 0
        names = payer.names if ask.run is None else tuple([sums.name for sums, _ in purses])
        fingerprint = "" if ask.claim is None else ask.claim.fingerprint
        hold = Hold(
            ask.id, caller.account, caller.key_id, ask.at, self.at + ask.lasts_s,
            payer.parties if ask.windows else (), ask.tokens, slots, nanos, names, claim, fingerprint, owner, self.at,
            run,
        )  # fmt: skip
        self._hold(hold, payer.all if ask.run is None else [sums for sums, _ in purses])
        return hold

    def widen(self, hold: Hold, nanos: int) -> Wait | Short | None:
        """Change the reservation of a running call to ``nanos``. None: done."""
        account = self._books.account(hold.account)
        key = None if hold.key_id is None else self._books.key(hold.account, hold.key_id)
        limits = purses_of(account, key, timestamp(hold.came_at)[:MONTH], hold.run)
        purses = [(self.purse(hold.account, name), limits.get(name)) for name in hold.purses]
        if all(limit is None for _, limit in purses):
            return None
        short = None if nanos <= hold.nanos else self._short(purses, nanos, hold.nanos)
        if short is None:
            self._widen(Widened(hold.id, nanos))
        return short

    def _taken(self, account: str, claim: bytes, asked: Claim, now: float) -> Replay | Wait | None:
        """A replay of the key's answer, or a wait for its call. None: the key is free. Raises
        ``IdempotencyKeyReused``."""
        running = self.claims.get(claim)
        kept = None if running is not None else self._books.kept(account, claim, now)
        fingerprint = running.fingerprint if running is not None else kept.fingerprint if kept is not None else None
        if fingerprint is None:
            return None
        if fingerprint != asked.fingerprint:
            raise IdempotencyKeyReused(
                f"the idempotency key {quoted(asked.key)} was used with a different request in the last 24 hours; "
                "use a new key for a new request"
            )
        return Wait(claim, None) if kept is None else Replay(kept.result)

    def _short(self, purses: Sequence[tuple[Sums, int | None]], nanos: int, own: int) -> Wait | Short | None:
        """Why an amount is not available. None: it is. ``own`` is already held by the call."""
        least: Sums | None = None
        queued: Sums | None = None
        least_left = least_limit = queued_limit = 0
        for sums, limit in purses:
            if limit is None:
                continue
            if limit == BALANCE:
                limit = sums.granted
            left = limit - sums.spent
            if left - sums.reserved + own < nanos:
                if least is None or left < least_left:
                    least, least_left, least_limit = sums, left, limit
            elif self.queued and nanos and not own and (sums.account, sums.name) in self.queued:
                queued, queued_limit = sums, limit
        if least is None:
            if queued is None:
                return None
            least, least_left, least_limit = queued, nanos, queued_limit
        purse = Purse(level_of(least.name), least.name, least_limit, least.spent, least.reserved)
        short = Short(purse, least_left >= nanos)
        return Wait((least.account, least.name), short) if short.waits else short

    # The end of a hold

    def end(self, end: End) -> Hold | None:
        """End a hold and charge its cost. None: there was no hold, and ``end.purses`` were charged."""
        hold = self.holds.pop(end.id, None)
        purses: tuple[Sums, ...] = ()
        account, names = end.account, end.purses
        if hold is not None:
            account, names = hold.account, hold.purses or names
        if end.charge or end.run_nanos or (hold is not None and hold.nanos):
            purses = self._purses(account, names)
        if hold is not None:
            self._free(hold, purses)
            if end.tokens is not None and end.tokens != hold.tokens:
                for party in hold.parties:
                    window = self.windows.get(party)
                    if window is not None:
                        window.correct(hold.taken_at, end.tokens - hold.tokens)
        if end.charge or end.run_nanos:
            for sums in purses:
                nanos = end.run_nanos if sums.is_of_run else end.charge
                sums.spent += nanos
                if sums.charged is None:
                    sums.charged = nanos
                    self.charged.append(sums)
                else:
                    sums.charged += nanos
        return hold

    def booked(self) -> None:
        """Note that the books contain all charges."""
        for sums in self.charged:
            sums.charged = None
        self.charged.clear()

    def expire(self, hold_id: str) -> Hold | None:
        """End a hold whose owner is gone. Nobody is charged; agent runs count it as spent."""
        hold = self.holds.get(hold_id)
        if hold is None:
            return None
        self.expired[hold_id] = self.at
        return self.end(End(hold_id, None, 0, hold.nanos))

    def silent(self, but: int, at: float) -> list[int]:
        """Owners with holds, other than ``but``, whose leases ended before ``at``."""
        return [owner for owner, until in self.heard.items() if until < at and owner != but]

    def overdue(self, owner: int, lease_s: float) -> list[Hold]:
        """Holds of an owner whose calls should have ended more than a lease ago."""
        before = self.at - lease_s
        return [hold for hold in self.owners.get(owner, {}).values() if hold.ends_at < before]

    # The log

    def fold(self, owner: int, at: float, until: float, tick: Tick) -> None:
        """Repeat a tick of an owner, and extend its lease to ``until``."""
        self.begin(owner, at, until)
        for account in tick.changed:
            self.forget(account)
        for hold_id in tick.expired:
            self.expire(hold_id)
        for end in tick.ends:
            self.end(end)
        for widened in tick.widened:
            self._widen(widened)
        for hold in tick.admits:
            hold.owner, hold.taken_at = owner, at
            self._hold(hold, self._purses(hold.account, hold.purses))
        self.booked()  # its owner wrote the charges to the books

    def forget(self, account: str) -> None:
        """Reload the terms and sums of an account from the books on next use."""
        for payer in self._payers.pop(account, {}).values():
            _drop_payer(payer)
        for purse, sums in self.sums.get(account, {}).items():
            sums.is_known = False
            self._free_up((account, purse))

    @property
    def size(self) -> int:
        """Number of windows, callers and purses in memory."""
        return len(self.windows) + sum(map(len, self._payers.values())) + sum(map(len, self.sums.values()))

    def evict(self, at: float) -> bool:
        """Do one step of dropping entries idle for a minute. False: a full pass was finished recently."""
        if at < self._evicted_at + IDLE_S / 2:
            return False
        self._evicts_at = at
        if len([*islice(self._eviction, EVICTION_STEP)]) < EVICTION_STEP:
            self._eviction, self._evicted_at = self._evict_idle(), at
        return True

    def _evict_idle(self) -> Iterator[None]:
        """One eviction pass. Yields after each account and window."""
        for hold_id in list(self.expired):
            if self.expired[hold_id] < self._evicts_at - LATE_S and hold_id not in self.holds:
                del self.expired[hold_id]
        for account in list(self._payers):
            mine = self._payers.get(account, {})
            for name in [name for name, payer in mine.items() if payer.used_at < self._evicts_at - IDLE_S]:
                _drop_payer(mine.pop(name))
            if not mine:
                self._payers.pop(account, None)
            yield
        for party in list(self.windows):
            window = self.windows.get(party)
            if window is not None and not window.payers:
                window.age(self._evicts_at - WINDOW_S)
                if not window.times and not window.slots:
                    del self.windows[party]
            yield
        for account in list(self.sums):
            purses = self.sums.get(account, {})
            idle = [sums for sums in purses.values() if not (sums.payers or sums.reserved or sums.charged is not None)]
            for sums in idle:
                del purses[sums.name]
            if idle:
                self._groups.pop(account, None)
            if not purses:
                self.sums.pop(account, None)
            yield

    def dump(self) -> Any:
        """The state that follows from the log, as plain data."""
        cut = self.at - WINDOW_S
        windows = {
            name: (window.times[window.head :], window.requests[window.head :], window.tokens[window.head :])
            for name, window in self.windows.items()
            if window.times and window.times[-1] > cut
        }
        return self.at, list(self.heard.items()), windows, list(self.holds.values())

    def load(self, at: float, heard: Iterable[tuple[int, float]], windows: Any, holds: Iterable[Hold]) -> None:
        """Load the result of ``dump`` into an empty state."""
        self.at = at
        for name, (times, requests, tokens) in windows.items():
            window = self._window(name)
            window.times, window.requests, window.tokens = list(times), list(requests), list(tokens)
            window.used_requests, window.used_tokens = sum(requests), sum(tokens)
        for hold in holds:
            self._hold(hold, self._purses(hold.account, hold.purses), counts=False)
        self.heard.update(heard)

    def _hold(self, hold: Hold, purses: Iterable[Sums], *, counts: bool = True) -> None:
        for party in hold.parties:
            window = self.windows.get(party) or self._window(party)
            window.slots += hold.slots
            if counts:
                window.take(hold.taken_at, hold.tokens)
        if hold.nanos:
            for sums in purses:
                sums.reserved += hold.nanos
        if hold.claim is not None:
            self.claims[hold.claim] = hold
        self.holds[hold.id] = hold
        held = self.owners.get(hold.owner)
        if held is None:
            held = self.owners[hold.owner] = {}
            self.heard[hold.owner] = self._until
        held[hold.id] = hold

    def _free(self, hold: Hold, purses: Iterable[Sums]) -> None:
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
            self.claims.pop(hold.claim, None)
            if self.queued:
                self._free_up(hold.claim)

    def _widen(self, widened: Widened) -> None:
        hold = self.holds.get(widened.id)
        if hold is None:
            return
        for sums in self._purses(hold.account, hold.purses):
            sums.reserved += widened.nanos - hold.nanos
            self._free_up((hold.account, sums.name))
        hold.nanos = widened.nanos

    def _free_up(self, name: FreedName) -> None:
        if name in self.queued:
            self.freed[name] = None

    def _window(self, name: str) -> Window:
        window = self.windows.get(name)
        if window is None:
            window = self.windows[name] = Window()
        return window

    def purse(self, account: str, name: str) -> Sums:
        """A purse with its sums loaded."""
        mine = self.sums.get(account)
        sums = None if mine is None else mine.get(name)
        if sums is None:
            (sums,) = self._purses(account, (name,))
        if not sums.is_known:
            sums.spent, sums.granted = self._books.sums(account, name)
            sums.spent += sums.charged or 0
            sums.is_known = True
        return sums

    def _purses(self, account: str, names: tuple[str, ...]) -> tuple[Sums, ...]:
        """Purses of an account. Their sums may not be loaded yet."""
        groups = self._groups.get(account)
        if groups is None:
            groups = self._groups[account] = {}
        found = groups.get(names)
        if found is None:
            mine = self.sums.setdefault(account, {})
            for name in names:
                if name not in mine:
                    mine[name] = Sums(account, name)
            found = groups[names] = tuple([mine[name] for name in names])
        return found


def _drop_payer(payer: Payer) -> None:
    """Drop a payer's references to its windows and purses, so that they can be evicted."""
    for _, window, _ in payer.windows:
        window.payers -= 1
    for sums, _ in payer.purses:
        sums.payers -= 1


@lru_cache(maxsize=256)
def scope_of(caller: Caller, key: str) -> bytes:
    """Hash of account, environment and idempotency key. Cached, since each call needs it three times."""
    return blake2b(f"{caller.account}\0{caller.environment}\0{key}".encode(), digest_size=16).digest()
