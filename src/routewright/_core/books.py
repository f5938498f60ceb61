"""What a storage in memory keeps of one account besides its traces: its terms and keys, its ledger, who has which
idempotency key, its events. One thread at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from routewright.errors import PreconditionFailed, UnsupportedWrite
from routewright.wire import (
    Account,
    AddCredit,
    ClaimByKey,
    ClaimKey,
    DeleteResults,
    EndClaim,
    Environment,
    Events,
    Incident,
    Incidents,
    Key,
    KeyClaim,
    Keys,
    LedgerRow,
    LedgerRows,
    LedgerSum,
    LedgerSums,
    PutAccount,
    PutEvent,
    PutIncident,
    PutKey,
    Reserve,
    RevokeKey,
    RowKind,
    Settle,
    Stands,
    StoredEvent,
    Tokens,
    Written,
)

from .idempotency import KEPT_S, StoredClaim, put_back
from .lease import Owners
from .ledger import Expired, Hold, NoRoom, Sums, credit, expire, reserve, settle, standing
from .moment import timestamp
from .newest import Newest
from .rows import key_of, summed

T = TypeVar("T")
INCIDENTS = 100
"""So many are kept, the newest."""
WEEK_S = 7 * 24 * 3600.0
"""How long events are kept, and when they were last told."""
BOOKED = (
    PutAccount
    | PutKey
    | RevokeKey
    | AddCredit
    | Reserve
    | Settle
    | ClaimKey
    | EndClaim
    | DeleteResults
    | PutIncident
    | PutEvent
)
"""The kinds of write that ``Books`` take."""


class Books:
    """Those of one account. Of rows, events, runs and idempotency keys the newest ``newest`` are kept, besides all runs
    that have something reserved, all keys of calls that run, and all sums.

    It is the ``Shelf`` of its ledger.
    """

    def __init__(self, owners: Owners, newest: int) -> None:
        self._owners = owners
        self._newest = newest
        self._account: Account | None = None
        self._keys: dict[str, Key] = {}
        self._purses: dict[str, Sums] = {}
        self._runs: Newest[str, Sums] = Newest(newest, _has_reserved)
        self._holds: dict[str, Hold] = {}
        self._rows: OrderedDict[tuple[str, int], LedgerRow] = OrderedDict()
        self._expired: OrderedDict[str, Expired] = OrderedDict()
        self._sums: dict[tuple[str, str, str, RowKind], LedgerSum] = {}
        self._claims: Newest[tuple[Environment, str], StoredClaim] = Newest(newest, _runs)
        self._events: OrderedDict[str, StoredEvent] = OrderedDict()
        self._told: dict[str, tuple[float, float]] = {}
        """When each ``once`` was told last, and from when on it may be forgotten."""
        self._incidents: dict[str, Incident] = {}

    @property
    def is_set_up(self) -> bool:
        """Whether anything is in them that must not be forgotten for want of room."""
        return self._account is not None or bool(self._keys)

    def before(self, write: object) -> object:
        """What there is of that which a write is about (``batch.Booked``)."""
        match write:
            case PutAccount():
                return self._account
            case PutKey(key):
                return self._keys.get(key.id)
            case PutIncident(incident):
                return self._incidents.get(incident.id)
            case AddCredit(id):
                return None if (id, 0) in self._rows else self.sums("account").granted
            case EndClaim(key=key, environment=environment):
                claim = self._claims.get((environment, key))
                return None if claim is None else claim.call
        return None

    def put(self, write: BOOKED) -> Written:
        """Apply one write that was checked. Raises ``PreconditionFailed`` for a reservation that has no room."""
        match write:
            case PutAccount(account):
                created, self._account = self._account is None, account
                return Written(created)
            case PutKey(key):
                return self._put_key(key)
            case RevokeKey(key_id, at):
                return self._revoke(key_id, at)
            case AddCredit():
                return Written(credit(self, write))
            case Reserve():
                return self._reserve(write)
            case Settle():
                created, events = settle(self, write)
                return Written(created, events=tuple(events))
            case ClaimKey():
                return self._claim(write)
            case EndClaim():
                return self._end(write)
            case DeleteResults(environment):
                return self._delete_results(environment)
            case PutIncident(incident):
                return self._put_incident(incident)
            case PutEvent():
                return self._put_event(write)

    def answer(self, query: object) -> Any:
        """Answer a query. Raises ``UnsupportedWrite`` for one that is not about these things."""
        match query:
            case Stands(at, key_id, run):
                return standing(self, at, key_id, run)
            case Keys():
                return sorted(self._keys.values(), key=_by_age)
            case ClaimByKey(key, environment, clock_s, at):
                claim = self._claims.get((environment, key))
                if claim is None or not claim.holds(at, owned=self._owners.lives(claim.owner, clock_s)):
                    return None
                return KeyClaim(claim.fingerprint, claim.call, claim.result)
            case LedgerSums(first, last):
                return [each for _, each in sorted(self._sums.items()) if first <= each.day <= last]
            case Incidents():
                return sorted(self._incidents.values(), key=_by_start, reverse=True)
        raise UnsupportedWrite(f"no query {type(query).__name__} is known")

    def scan(self, query: LedgerRows | Events, after: str | None, limit: int) -> list[Any]:
        """Up to ``limit`` rows or events, newest first, from just behind the key ``after``."""
        if isinstance(query, Events):
            return _page(self._events.values(), lambda event: event.id, after, limit)
        return _page([row for row in self._rows.values() if _is_asked(row, query)], key_of, after, limit)

    def revoked_since(self, key_id: str | None) -> str | None:
        """When a key was revoked, if it was."""
        key = None if key_id is None else self._keys.get(key_id)
        return None if key is None else key.revoked_at

    def sweep(self, at: float) -> int:
        """Forget results and events that are past their time (Unix seconds), and say how many; end what was
        abandoned."""
        old = [name for name, claim in self._claims.items() if claim.until <= at and not self._runs_still(claim)]
        results = sum(claim is not None and claim.result is not None for claim in map(self._claims.pop, old))
        before = timestamp(max(0.0, at - WEEK_S))
        told = [event.id for event in self._events.values() if event.created_at < before]
        for event_id in told:
            del self._events[event_id]
        self._told = {once: mark for once, mark in self._told.items() if mark[1] > at}
        for hold in self.abandoned(self._owners.clock_s):
            expire(self, hold)
        return results + len(told)

    # the shelf

    def account(self) -> Account | None:
        """As ``Shelf`` says."""
        return self._account

    def key(self, key_id: str) -> Key | None:
        """As ``Shelf`` says."""
        return self._keys.get(key_id)

    def sums(self, purse: str) -> Sums:
        """As ``Shelf`` says."""
        return (self._runs if purse.startswith("run:") else self._purses).get(purse) or Sums()

    def put_sums(self, purse: str, sums: Sums) -> None:
        """As ``Shelf`` says."""
        if purse.startswith("run:"):
            self._runs.put(purse, sums)
        else:
            self._purses[purse] = sums

    def hold(self, hold_id: str) -> Hold | None:
        """As ``Shelf`` says."""
        return self._holds.get(hold_id)

    def put_hold(self, hold: Hold) -> None:
        """As ``Shelf`` says."""
        self._holds[hold.id] = hold

    def drop_hold(self, hold_id: str) -> None:
        """As ``Shelf`` says."""
        self._holds.pop(hold_id, None)

    def abandoned(self, clock_s: float) -> Sequence[Hold]:
        """As ``Shelf`` says."""
        return [hold for hold in self._holds.values() if not self._owners.lives(hold.owner, clock_s)]

    def book(self, row: LedgerRow, purses: Sequence[str] = ()) -> bool:
        """As ``Shelf`` says."""
        name = row.request_id, row.attempt
        if name in self._rows:
            return False
        if row.cost_range_nanos is not None and row.kind == "expired":
            _put(self._expired, row.request_id, Expired(row.cost_range_nanos[1], purses), self._newest)
        _put(self._rows, name, row, self._newest)
        self._sum(row, 1)
        return True

    def unbook(self, request_id: str) -> Expired | None:
        """As ``Shelf`` says."""
        row = self._rows.get((request_id, 0))
        if row is None or row.kind != "expired":
            return None
        del self._rows[request_id, 0]
        self._sum(row, -1)
        return self._expired.pop(request_id)

    def tell(self, event: StoredEvent) -> None:
        """As ``Shelf`` says."""
        _put(self._events, event.id, event, self._newest)

    def _put_key(self, key: Key) -> Written:
        before = self._keys.get(key.id)
        if before is not None and before.revoked_at is not None:
            key = replace(key, revoked_at=before.revoked_at)
        self._keys[key.id] = key
        return Written(before is None)

    def _revoke(self, key_id: str, at: str) -> Written:
        key = self._keys.get(key_id)
        if key is None or key.revoked_at is not None:
            return Written(created=False, count=int(key is not None))
        self._keys[key_id] = replace(key, revoked_at=at)
        return Written(created=True)

    def _reserve(self, write: Reserve) -> Written:
        created = write.id not in self._holds
        try:
            reserve(self, write)
        except NoRoom as full:
            raise no_room(full) from None
        self._owners.keep(write.owner, write.lease_s, write.clock_s)
        return Written(created)

    def _runs_still(self, claim: StoredClaim) -> bool:
        return _runs(claim) and self._owners.lives(claim.owner, self._owners.clock_s)

    def _claim(self, write: ClaimKey) -> Written:
        name = write.environment, write.key
        there = self._claims.get(name)
        if there is not None and there.refuses(write, owned=self._owners.lives(there.owner, write.clock_s)):
            return Written(created=False)
        self._owners.keep(write.owner, write.lease_s, write.clock_s)
        claim = StoredClaim(write.fingerprint, write.call, write.owner, until=write.at + KEPT_S)
        self._claims.put(name, claim)
        return Written(created=True)

    def _end(self, write: EndClaim) -> Written:
        name = write.environment, write.key
        claim = self._claims.get(name)
        if claim is None and (back := put_back(write)) is not None:
            self._claims.put(name, back)
            return Written(created=True)
        if claim is None or claim.call != write.call:
            return Written(created=False, count=0)
        if _runs(claim) and write.result is None:
            self._claims.pop(name)
        elif _runs(claim):
            self._claims.put(name, claim._replace(result=write.result, until=write.until))
        return Written(created=False)

    def _delete_results(self, environment: Environment | None) -> Written:
        old = [
            name for name, each in self._claims.items() if each.result is not None and environment in (None, name[0])
        ]
        for name in old:
            self._claims.pop(name)
        return Written(created=False, count=len(old))

    def _put_incident(self, incident: Incident) -> Written:
        created = incident.id not in self._incidents
        self._incidents[incident.id] = incident
        if len(self._incidents) > INCIDENTS:
            del self._incidents[min(self._incidents.values(), key=_by_start).id]
        return Written(created)

    def _put_event(self, write: PutEvent) -> Written:
        last = None if write.once is None else self._told.get(write.once)
        if write.event.id in self._events or (last is not None and is_quiet(last[0], write)):
            return Written(created=False)
        if write.once is not None:
            self._told[write.once] = write.at, forgotten_at(write)
        self.tell(write.event)
        return Written(created=True, events=(write.event,))

    def _sum(self, row: LedgerRow, sign: int) -> None:
        day = row.at[:10]
        name = day, row.provider, row.model, row.kind
        there = self._sums.get(name) or LedgerSum(day, row.provider, row.model, row.kind, 0, Tokens(), 0, 0, 0, 0, 0)
        added = summed(there, row, sign)
        if added.rows:
            self._sums[name] = added
        else:
            del self._sums[name]


def is_quiet(last: float, write: PutEvent) -> bool:
    """Whether an event comes too soon after the last of its ``once``."""
    return write.at < last + write.quiet_s


def forgotten_at(write: PutEvent) -> float:
    """From when on nobody need know that an event was told."""
    return write.at + max(write.quiet_s, WEEK_S)


def no_room(full: NoRoom) -> PreconditionFailed:
    """What a storage raises for a reservation that has no room."""
    purse = full.purse
    said = f"{purse.name} has no room for the reservation"
    return PreconditionFailed(said, detail={**asdict(purse), "waits": full.waits})


def _has_reserved(run: Sums) -> bool:
    return run.reserved > 0


def _runs(claim: StoredClaim) -> bool:
    return claim.result is None


def _is_asked(row: LedgerRow, query: LedgerRows) -> bool:
    if query.request_id not in (None, row.request_id):
        return False
    return (query.since is None or row.at >= query.since) and (query.until is None or row.at < query.until)


def _by_age(key: Key) -> tuple[str, str]:
    return key.created_at, key.id


def _by_start(incident: Incident) -> tuple[str, str]:
    return incident.started_at, incident.id


def _page(things: Any, key: Callable[[T], str], after: str | None, limit: int) -> list[T]:
    behind: Iterator[T] = (each for each in sorted(things, key=key, reverse=True) if after is None or key(each) < after)
    return [*islice(behind, max(0, limit))]


def _put(kept: OrderedDict[Any, T], name: Any, value: T, newest: int) -> bool:
    created = name not in kept
    kept[name] = value
    kept.move_to_end(name)
    if len(kept) > newest:
        kept.popitem(last=False)
    return created
