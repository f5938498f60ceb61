"""May money be set aside for a call, and where does it go when the call is over? The rules of an account's ledger.

    Reserve ─┬─ held ──┬─ Settle: booked, what was held beyond that is free again
             │         └─ its owner is gone: over, a row says that nobody knows what it came to, until a Settle does
             └─ NoRoom: others hold what it needs (``waits``), or it is spent

A reservation is held at all levels or at none: request ⊂ agent run ⊂ key ⊂ account ⊂ month (contract 7). Where things
are kept is a ``Shelf``'s business; whoever calls sees to it that no other does meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from routewright.wire import (
    Account,
    AddCredit,
    Key,
    LedgerRow,
    Level,
    Purse,
    Reserve,
    RunLimit,
    Settle,
    Standing,
    StoredEvent,
    ThresholdCrossed,
)

from .money import usd

THRESHOLDS = (50, 80, 100)
"""Percent of the monthly limit at which an account is notified of what it was charged (spec 6.1)."""
_MONTH = len("2026-11")
_RUN, _OF_MONTH = "run:", "month:"
_LEVELS: dict[str, Level] = {"run": "agent_run", "key": "key", "account": "account", "month": "month"}


class Sums(Struct, frozen=True):
    """What is kept of a purse."""

    spent: int = 0
    reserved: int = 0
    granted: int = 0
    """Credit of an account, or the limit of a run."""
    told: int = 0
    """The highest threshold that was told of; kept apart for each limit of a month (``_told_of``)."""


class Hold(Struct, frozen=True):
    """A reservation. ``purses`` are the names of those that it is held in."""

    id: str
    nanos: int
    purses: tuple[str, ...]
    owner: str
    at: str
    key_id: str | None


class Expired(NamedTuple):
    """A reservation that is over, and nobody knows what its call came to."""

    most: int
    """What it can have cost, which runs count."""
    purses: Sequence[str]


class NoRoom(Exception):
    """A purse has no room for a reservation. ``waits``: it has once others have settled."""

    def __init__(self, purse: Purse, *, waits: bool) -> None:
        super().__init__(purse.name)
        self.purse = purse
        self.waits = waits


class Shelf(Protocol):
    """What an account's ledger is kept in."""

    def account(self) -> Account | None:
        """The account, if it was set up."""
        ...

    def key(self, key_id: str) -> Key | None:
        """One of its keys."""
        ...

    def sums(self, purse: str) -> Sums:
        """Those of a purse; of a new one none."""
        ...

    def put_sums(self, purse: str, sums: Sums) -> None:
        """Keep them."""
        ...

    def hold(self, hold_id: str) -> Hold | None:
        """A reservation."""
        ...

    def put_hold(self, hold: Hold) -> None:
        """Keep one, in place of that of its id."""
        ...

    def drop_hold(self, hold_id: str) -> None:
        """Forget one."""
        ...

    def abandoned(self, clock_s: float) -> Sequence[Hold]:
        """Reservations whose owners are gone."""
        ...

    def book(self, row: LedgerRow, purses: Sequence[str]) -> bool:
        """Keep a row, and the names of the purses that it counts in. False: it was there."""
        ...

    def unbook(self, request_id: str) -> Expired | None:
        """Forget the row that says of a call that nobody knows what it came to. None: there is none."""
        ...

    def tell(self, event: StoredEvent) -> None:
        """Keep an event."""
        ...


def limits(account: Account | None, key: Key | None, at: str, run: RunLimit | None) -> dict[str, int | None]:
    """The purses that a call is paid from, the innermost first, with their limits but for an account's balance.

    Those of a key count without a limit, too: it may get one later, of all that was ever charged for it.
    """
    month, found = at[:_MONTH], dict[str, int | None]()
    if run is not None:
        found[f"run:{run.id}"] = run.limit_nanos
    if key is not None:
        found[f"key:{key.id}"] = key.budget_nanos
        found[f"key:{key.id}:{month}"] = key.monthly_nanos
    if account is not None:
        found["account"] = None
        found[f"month:{month}"] = account.monthly_nanos
    return found


def standing(shelf: Shelf, at: str, key_id: str | None, run: RunLimit | None) -> Standing:
    """How an account stands, with those of its purses that a call would be paid from, the innermost first."""
    account, key = shelf.account(), None if key_id is None else shelf.key(key_id)
    found = limits(account, key, at, run)
    if account is not None and account.prepaid:
        found["account"] = shelf.sums("account").granted
    return Standing(account, key, tuple(_purse(name, limit, shelf.sums(name)) for name, limit in found.items()))


def reserve(shelf: Shelf, asked: Reserve) -> None:
    """Hold money for a call, or as much in the place of what it holds. What others abandoned is taken for it where it
    is needed. Raises ``NoRoom``, and nothing has changed."""
    own = shelf.hold(asked.id)
    try:
        purses = _with_room(shelf, asked, own)
    except NoRoom:
        lost = [hold for hold in shelf.abandoned(asked.clock_s) if asked.id != hold.id and asked.owner != hold.owner]
        purses = _with_room(shelf, asked, own, lost)
        for hold in lost:
            expire(shelf, hold)
    if own is not None:
        _add(shelf, own.purses, reserved=-own.nanos)
    _add(shelf, purses, reserved=asked.nanos)
    shelf.put_hold(Hold(asked.id, asked.nanos, purses, asked.owner, asked.at, asked.key_id))


def settle(shelf: Shelf, ended: Settle) -> tuple[bool, list[StoredEvent]]:
    """Book what a call came to and end its reservation. Says whether anything is new, and what is to be told."""
    hold = shelf.hold(ended.id)
    expired = None if any(row.kind == "correction" for row in ended.rows) else shelf.unbook(ended.id)
    names = _paid_from(shelf, ended, hold or expired)
    rows = [row for row in _with_overrun(ended, names, hold, expired) if shelf.book(row, names)]
    if hold is not None:
        shelf.drop_hold(hold.id)
        _add(shelf, names, reserved=-hold.nanos)
    if expired is not None:
        _add(shelf, _of_runs(expired.purses), spent=-expired.most)
    _add(shelf, _of_runs(names), spent=_run_nanos(rows, ended.run_nanos))
    _add(shelf, _but_runs(names), spent=_charge(rows))
    told = [event for name in names if rows and name.startswith(_OF_MONTH) for event in _crossed(shelf, name, ended)]
    return bool(rows) or hold is not None or expired is not None, told


def credit(shelf: Shelf, given: AddCredit) -> bool:
    """Add to the balance. False: that was done before."""
    row = LedgerRow(request_id=given.id, attempt=0, kind="credit", at=given.at, credit_nanos=given.nanos)
    if not shelf.book(replace(row, note=given.note), ["account"]):
        return False
    sums = shelf.sums("account")
    shelf.put_sums("account", replace(sums, granted=sums.granted + given.nanos))
    return True


def expire(shelf: Shelf, hold: Hold) -> None:
    """End a reservation whose owner is gone. It is charged to nobody; a run counts it as spent, since it may be."""
    before = shelf.unbook(hold.id)
    most = hold.nanos if before is None else hold.nanos + before.most
    shelf.drop_hold(hold.id)
    _add(shelf, hold.purses, reserved=-hold.nanos)
    if before is not None:
        _add(shelf, _of_runs(before.purses), spent=-before.most)
    _add(shelf, _of_runs(hold.purses), spent=most)
    row = LedgerRow(
        request_id=hold.id,
        attempt=0,
        kind="expired",
        at=hold.at,
        key_id=hold.key_id,
        cost_range_nanos=(0, most),
        note="its process ended before it did",
    )
    shelf.book(row, hold.purses)


def level_of(purse: str) -> Level:
    """Whose money a purse holds, by its name."""
    return _LEVELS[purse.partition(":")[0]]


def _paid_from(shelf: Shelf, ended: Settle, reserved: Hold | Expired | None) -> Sequence[str]:
    """The names of the purses that a call is paid from: those in which it was reserved for."""
    if reserved is not None:
        return reserved.purses
    key = None if ended.key_id is None else shelf.key(ended.key_id)
    return [*limits(shelf.account(), key, ended.at, ended.run)]


def _purse(name: str, limit: int | None, sums: Sums) -> Purse:
    return Purse(level_of(name), name, limit, sums.spent, sums.reserved)


def _with_room(shelf: Shelf, asked: Reserve, own: Hold | None, lost: Sequence[Hold] = ()) -> tuple[str, ...]:
    """The names of the purses that a reservation is held in, where these ones are over. Raises ``NoRoom``."""
    purses = [_without(purse, lost) for purse in standing(shelf, asked.at, asked.key_id, asked.run).purses]
    held = {} if own is None else dict.fromkeys(own.purses, own.nanos)
    short = [each for each in purses if _left(each) - each.reserved_nanos + held.get(each.name, 0) < asked.nanos]
    if not short:
        return tuple(purse.name for purse in purses)
    least = min(short, key=_left)
    raise NoRoom(least, waits=_left(least) >= asked.nanos)


def _without(purse: Purse, lost: Sequence[Hold]) -> Purse:
    """A purse as it would be if reservations had expired."""
    nanos = sum(hold.nanos for hold in lost if purse.name in hold.purses)
    if not nanos:
        return purse
    spent = purse.spent_nanos + nanos if purse.level == "agent_run" else purse.spent_nanos
    return replace(purse, spent_nanos=spent, reserved_nanos=purse.reserved_nanos - nanos)


def _left(purse: Purse) -> float:
    left = purse.left_nanos
    return float("inf") if left is None else left


def _add(shelf: Shelf, purses: Iterable[str], *, spent: int = 0, reserved: int = 0) -> None:
    if not spent and not reserved:
        return
    for name in purses:
        sums = shelf.sums(name)
        shelf.put_sums(name, Sums(sums.spent + spent, sums.reserved + reserved, sums.granted, sums.told))


def _of_runs(purses: Sequence[str]) -> Sequence[str]:
    return [name for name in purses if name.startswith(_RUN)]


def _but_runs(purses: Sequence[str]) -> Sequence[str]:
    return [name for name in purses if not name.startswith(_RUN)]


def _charge(rows: Iterable[LedgerRow]) -> int:
    return sum(row.charge_nanos for row in rows)


def _run_nanos(rows: Sequence[LedgerRow], most: int | None) -> int:
    """What an agent run counts for rows: their cost, or what they may have cost at most."""
    cost = sum(row.cost_nanos for row in rows)
    return max(cost, most) if rows and most is not None else cost


def _with_overrun(
    ended: Settle, names: Sequence[str], hold: Hold | None, expired: Expired | None
) -> Sequence[LedgerRow]:
    """The rows of a call; the last says by how much they come to more than was held for them, in any purse."""
    rows = ended.rows
    if not rows or not names or (hold is None and expired is None):
        return rows
    held = 0 if hold is None else hold.nanos
    excess = _charge(rows) - held
    if _of_runs(names):  # which kept what had expired
        kept = 0 if expired is None else expired.most
        excess = max(excess, _run_nanos(rows, ended.run_nanos) - held - kept)
    return [*rows[:-1], replace(rows[-1], overrun_nanos=excess)] if excess > 0 else rows


def _crossed(shelf: Shelf, month: str, ended: Settle) -> list[StoredEvent]:
    """Events of the thresholds that what was spent has reached now: each once for a month and its limit, so that who
    raises the limit is notified of the new one, too."""
    account, spent = shelf.account(), shelf.sums(month).spent
    limit = None if account is None else account.monthly_nanos
    if account is None or not limit or len(ended.event_ids) < len(THRESHOLDS):
        return []
    passed, name = [percent for percent in THRESHOLDS if spent * 100 >= percent * limit], _told_of(month, limit)
    reached = [percent for percent in passed if percent > shelf.sums(name).told]
    if not reached:
        return []
    shelf.put_sums(name, Sums(told=reached[-1]))
    period = month.partition(":")[2]
    events = [
        _event(
            ended.event_ids[THRESHOLDS.index(percent)],
            ThresholdCrossed(period, percent, usd(spent), usd(limit)),
            ended.at,
            account.name,
        )
        for percent in reached
    ]
    for event in events:
        shelf.tell(event)
    return events


def _told_of(month: str, limit_nanos: int) -> str:
    """The name under which it is kept what was told of one limit of a month. It is nobody's purse."""
    return f"told:{month}:{limit_nanos}"


def _event(event_id: str, crossed: ThresholdCrossed, at: str, account: str) -> StoredEvent:
    return StoredEvent(
        id=event_id,
        type=crossed.type,
        created_at=at,
        data=to_builtins(crossed),
        account=account,
        environment="production",
    )
