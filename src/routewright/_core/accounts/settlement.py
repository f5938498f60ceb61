"""Settlement: how a hold ends, what its call is charged, and what is booked (spec 5, contract 7).

A call is booked once, however often and late its outcome is reported:

    with its hold ──── charged to the purses of the hold; the rest is free again, and the windows count the tokens used
    after it expired ─ charged to the purses of that hold; the row of its unknown cost goes. Its agent run has counted
                       the most that it could cost, and counts what it did
    without any ────── charged to the purses that would pay now
    booked before ──── no new rows, no charge

If another call took its idempotency key after it expired, that one is billed: the rows are booked without a charge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from routewright._core.idempotency import RESULT_TTL_S, KeptResult, scope_of
from routewright._core.money import usd
from routewright.protocols import Facts
from routewright.wire import Account, Environment, LedgerRow, StoredEvent, ThresholdCrossed
from routewright.wire.timestamps import timestamp

from .holds import Hold
from .purses import DAY, RUN, Sums, purses_of
from .state import State, StoredAccounts

THRESHOLDS = (50, 80, 100)
"""Percentages of the monthly limit at which an event is sent (spec 6.1)."""
_OF_MONTH = "month:"
_CUT = "the storage refused to book it as it was"


class End(Struct, array_like=True, gc=False):
    """The end of a hold."""

    id: str
    tokens: int | None
    """Actual tokens. None: the count at admission stays."""
    charge: int = 0
    run_nanos: int = 0
    """Cost that the agent run counts."""
    account: str = ""
    purses: tuple[str, ...] = ()
    """Purses to charge if there is no hold, or it names none."""


class Expired(NamedTuple):
    """An expired hold, whose call's cost is unknown."""

    max_cost_nanos: int
    """Highest possible cost, which agent runs count as spent."""
    purses: tuple[str, ...]


class Shelf(StoredAccounts, Protocol):
    """Stored data with the operations that a settlement needs."""

    def attempts(self, account: str, call: str) -> set[int]:
        """``attempt`` numbers of a call's rows."""

    def unbook(self, account: str, call: str) -> Expired | None:
        """Remove a call's ``expired`` row. None: there is none."""

    def read_threshold(self, account: str, name: str) -> int:
        """Highest threshold with an event under a name."""

    def put_threshold(self, account: str, name: str, threshold: int) -> None:
        """Store that threshold."""


class Booked(Struct, eq=False, gc=False):
    """Settlement writes of a call."""

    end: End
    rows: Sequence[LedgerRow]
    """New rows only."""
    purses: tuple[str, ...]
    """Purses that they are charged to."""
    keeps: tuple[bytes, Environment, float, KeptResult] | None
    """Idempotency key (``scope_of``), environment, expiry in Unix seconds, and the answer to store."""
    is_void: bool
    """True: another call took the idempotency key and is billed instead."""
    events: list[StoredEvent]


def end_hold(state: State, end: End) -> Hold | None:
    """End a hold and charge its cost. None: there was no hold, and ``end.purses`` were charged."""
    hold = state.holds.pop(end.id, None)
    purses: tuple[Sums, ...] = ()
    if end.charge or end.run_nanos or (hold is not None and hold.nanos):
        purses = state.group(end.account if hold is None else hold.account, (hold and hold.purses) or end.purses)
    if hold is not None:
        state.free(hold, purses)
        if end.tokens is not None and end.tokens != hold.tokens:
            for party in hold.parties:
                if (window := state.windows.get(party)) is not None:
                    window.correct(hold.taken_at, end.tokens - hold.tokens)
    if end.charge or end.run_nanos:
        for sums in purses:
            nanos = end.run_nanos if sums.is_of_run else end.charge
            sums.spent += nanos
            if sums.charged is None:
                sums.charged = nanos
                state.charged.append(sums)
            else:
                sums.charged += nanos
    return hold


def expire_hold(state: State, hold_id: str) -> Hold | None:
    """End a hold whose owner is gone. Nobody is charged; agent runs count it as spent. None: there is none."""
    # Nobody knows what the calls of a dead process cost. To keep the reservation would lock that money for ever, and to
    # charge the maximum would bill answers that nobody got. So the money is free again, and a ledger row states the
    # range (``expired_row``). An agent run must stay within its budget whatever happened, so it counts the maximum
    # (test_an_expired_hold_is_freed_except_for_windows_and_its_run). The owner may only have been slow: the id stays in
    # ``expired``, and a late settlement replaces the row (test_an_expired_hold_of_a_run_pays_for_the_late_settlement).
    if (hold := state.holds.get(hold_id)) is None:
        return None
    state.expired[hold_id] = state.at
    return end_hold(state, End(hold_id, None, 0, hold.nanos))


def settle(state: State, shelf: Shelf, facts: Facts, now: float) -> Booked:
    """End the hold of a call and book its cost, once. ``now`` in Unix seconds."""
    # A settlement may come twice, because the storage's reply was lost, or late, when others have taken the call's
    # money and key. Charging what is reported would bill it twice (P1, P8). Without a hold the books decide: only rows
    # that they lack are booked (test_a_booked_settlement_is_never_booked_twice). If another call took the idempotency
    # key meanwhile, that one is billed, because one key is billed once (spec 4.1); the agent run still counts the cost
    # of both (test_an_expired_call_whose_key_was_taken_is_not_charged). Whatever may raise comes before the first
    # change: a damaged account must not lose the hold or the expired row (test_an_unreadable_account_is_not_charged,
    # test_an_unreadable_account_keeps_its_expired_rows).
    call = facts.id
    account = facts.caller.account
    hold = state.holds.get(call)
    payer = state.account(account) if facts.event_id is not None else None  # first, because a damaged record raises
    purses = (hold and hold.purses) or _paying_purses(shelf, facts)  # the account may have been set up during the call
    expired = shelf.unbook(account, call) if hold is None or call in state.expired else None
    keeps = None
    if facts.claim is not None and facts.result is not None:
        result = KeptResult(facts.claim.fingerprint, call, facts.result)
        keeps = scope_of(facts.caller, facts.claim.key), facts.caller.environment, now + RESULT_TTL_S, result
    rows = facts.rows
    is_void = False
    if hold is None:
        booked = shelf.attempts(account, call)
        rows = tuple([row for row in rows if row.attempt not in booked])
        purses = purses if expired is None else expired.purses
        owner_of_key = None if keeps is None else state.claims.owner_of(account, keeps[0], now)
        if owner_of_key is not None:
            keeps = None
            is_void = owner_of_key != call
        if is_void:
            rows = tuple([replace(row, charge_nanos=0) for row in rows])
    is_of_run = bool(purses) and purses[0].startswith(RUN)
    charge = compute_charge(rows, facts, 0 if hold is None else hold.nanos, expired, is_of_run=is_of_run)
    counted_before = expired.max_cost_nanos if is_of_run and expired is not None else 0
    end = End(call, facts.tokens, charge.nanos, charge.run_nanos - counted_before)
    if hold is None or not hold.purses:
        end.account = account
        end.purses = purses
    end_hold(state, end)
    events = [] if payer is None or not charge.nanos else _events_of(state, shelf, facts, payer, purses)
    return Booked(end, charge.rows, purses, keeps, is_void, events)


class Charge(NamedTuple):
    """What a call is charged."""

    rows: Sequence[LedgerRow]
    """With the overrun in the last one."""
    nanos: int
    run_nanos: int
    """Cost that its agent run counts."""


def compute_charge(
    rows: Sequence[LedgerRow], facts: Facts, reserved: int, expired: Expired | None = None, *, is_of_run: bool
) -> Charge:
    """Add up the rows of a call whose hold reserved ``reserved``. ``is_of_run``: an agent run counts it, too."""
    # A provider may bill more than the cap that it was sent, so a cost can exceed its reservation. Less must not be
    # booked than was spent, so it is charged in full, and the last row says by how much it overran. An agent run counts
    # the cost, not the charge: attempts that nobody is charged for use up its budget, too. If an earlier hold of the
    # call expired, the run has counted it already, and only what exceeds both holds is an overrun
    # (test_expired_and_new_holds_of_a_run_pay_together).
    charge = cost = 0
    run_nanos = 0
    for row in rows:
        charge += row.charge_nanos
        cost += row.cost_nanos
    if is_of_run and rows:
        run_nanos = max(cost, facts.run_nanos or 0)
    if rows and (expired is not None or (reserved and (is_of_run or charge > reserved))):
        excess = charge - reserved
        if is_of_run:  # the run still counts the expired hold
            excess = max(excess, run_nanos - reserved - (0 if expired is None else expired.max_cost_nanos))
        rows = [*rows[:-1], replace(rows[-1], overrun_nanos=excess)] if excess > 0 else rows
    return Charge(rows, charge, run_nanos)


def expired_row(hold: Hold, before: Expired | None) -> LedgerRow | None:
    """``expired`` row for a call whose owner is gone. None: it held no money."""
    maximum = hold.nanos + (0 if before is None else before.max_cost_nanos)
    if not maximum:
        return None
    return LedgerRow(
        request_id=hold.id,
        attempt=0,
        kind="expired",
        at=timestamp(hold.came_at),
        key_id=hold.key_id,
        cost_range_nanos=(0, maximum),
        note="its process ended before it did",
    )


def _paying_purses(shelf: Shelf, facts: Facts) -> tuple[str, ...]:
    """Names of the purses that pay for a call without a reservation."""
    caller = facts.caller
    if caller.environment == "sandbox":
        return ()
    key = None if caller.key_id is None else shelf.key(caller.account, caller.key_id)
    return tuple(purses_of(shelf.account(caller.account), key, facts.created_at[:DAY], facts.run, facts.tags))


def _events_of(state: State, shelf: Shelf, facts: Facts, account: Account, purses: Sequence[str]) -> list[StoredEvent]:
    """Events for newly reached thresholds. Each is sent once per month and limit, so again after a new limit."""
    limit = account.monthly_nanos
    event_id = facts.event_id
    if event_id is None or not limit or not purses[-1].startswith(_OF_MONTH):
        return []
    month = purses[-1]
    spent = state.purse(account.name, month).spent
    if spent * 100 < THRESHOLDS[0] * limit:
        return []
    name = f"told:{month}:{limit}"
    threshold = shelf.read_threshold(account.name, name)
    reached = [percent for percent in THRESHOLDS if threshold < percent and spent * 100 >= percent * limit]
    if not reached:
        return []
    shelf.put_threshold(account.name, name, reached[-1])
    return [
        StoredEvent(
            id=event_id(event.threshold_percent),
            type=event.type,
            created_at=facts.created_at,
            data=to_builtins(event),
            account=account.name,
            environment="production",
        )
        for event in [ThresholdCrossed(month.partition(":")[2], percent, usd(spent), usd(limit)) for percent in reached]
    ]


def without_trace(facts: Facts) -> Facts:
    """Only its ledger rows and its answer."""
    return replace(facts, trace=None, snapshots=(), events=())


def limit_cost(facts: Facts, most_nanos: int) -> Facts:
    """Only its costs, together at most ``most_nanos``."""
    run_nanos = None if facts.run_nanos is None else min(facts.run_nanos, most_nanos)
    rows: list[LedgerRow] = []
    for row in facts.rows:
        cost = min(row.cost_nanos, most_nanos)
        most_nanos -= cost
        plain = LedgerRow(request_id=row.request_id, attempt=row.attempt, at=row.at, key_id=row.key_id, note=_CUT)
        rows.append(replace(plain, cost_nanos=cost, charge_nanos=min(row.charge_nanos, cost)))
    return replace(without_trace(facts), rows=tuple(rows), run_nanos=run_nanos, claim=None, result=None, event_id=None)
