"""An account's ledger in memory: its rows and their sums, with its terms, keys, answers and events (contract 7)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from routewright import wire
from routewright._core.idempotency import KeptResult
from routewright.errors import UnsupportedWrite
from routewright.wire.timestamps import timestamp

from .settlement import Expired, Shelf

T = TypeVar("T")
_amounts = attrgetter("tokens.input", "tokens.output", "tokens.cached", "cost_nanos", "charge_nanos", "credit_nanos")
INCIDENTS = 100  # the newest are kept
WEEK_S = 7 * 24 * 3600.0  # how long events, and the times of their ``once`` keys, are kept
BOOKED = (
    wire.PutAccount
    | wire.PutKey
    | wire.RevokeKey
    | wire.DeleteResults
    | wire.PutIncident
    | wire.PutEvent
    | wire.PutAgentState
)
"""Writes that ``Books.put`` accepts."""
MONEY = wire.PutAccount | wire.PutKey | wire.RevokeKey | wire.AddCredit  # writes that change limits or money of callers


def key_of(row: wire.LedgerRow) -> str:
    """Sort key of a row within its account."""
    return f"{row.at}{row.request_id}/{row.attempt}"


def before(shelf: Shelf, account: str, write: object) -> object:
    """Current state of what a money write changes (``write_batch.Booked``)."""
    match write:
        case wire.PutAccount():
            return shelf.account(account)
        case wire.PutKey(key):
            return shelf.key(account, key.id)
        case wire.AddCredit(id):
            return None if 0 in shelf.attempts(account, id) else shelf.sums(account, "account")[1]
    return None


class Books:
    """Data of one account except traces, in memory. Keeps the ``newest`` latest rows, events and answers, and the sums
    of all rows. Not thread-safe."""

    def __init__(self, newest: int, emitted: Callable[[wire.StoredEvent], object] = bool) -> None:
        """``emitted`` is called with each new event."""
        self._newest = newest
        self._emitted = emitted
        self.account: wire.Account | None = None
        self._keys: dict[str, wire.Key] = {}
        self._rows: OrderedDict[tuple[str, int], wire.LedgerRow] = OrderedDict()
        self._expired: OrderedDict[str, Expired] = OrderedDict()
        self._sums: dict[tuple[str, str, str, wire.RowKind], list[int]] = {}
        """By day, provider, model and kind: the other fields of a ``LedgerSum``, in order."""
        self._results: OrderedDict[bytes, tuple[wire.Environment, float, KeptResult]] = OrderedDict()
        """With environment and expiry in Unix seconds."""
        self._events: OrderedDict[str, wire.StoredEvent] = OrderedDict()
        self._last_events: dict[str, tuple[float, float]] = {}
        """By ``once``: Unix seconds of the last event, and when to forget it."""
        self.thresholds: dict[str, int] = {}  # highest threshold with an event, by month and limit
        self._incidents: dict[str, wire.Incident] = {}
        self._states: OrderedDict[tuple[wire.Environment, str], wire.PutAgentState] = OrderedDict()

    @property
    def is_set_up(self) -> bool:
        """True if the account must not be evicted: it has terms or keys."""
        return self.account is not None or bool(self._keys)

    def put(self, write: BOOKED) -> wire.Written:
        """Apply one checked write."""
        match write:
            case wire.PutAccount(account):
                created = self.account is None
                self.account = account
                return wire.Written(created)
            case wire.PutKey(key):
                stored = self._keys.get(key.id)
                if stored is not None and stored.revoked_at is not None:
                    key = replace(key, revoked_at=stored.revoked_at)
                self._keys[key.id] = key
                return wire.Written(stored is None)
            case wire.RevokeKey(key_id, at):
                stored = self._keys.get(key_id)
                if stored is None or stored.revoked_at is not None:
                    return wire.Written(created=False, count=int(stored is not None))
                self._keys[key_id] = replace(stored, revoked_at=at)
                return wire.Written(created=True)
            case wire.DeleteResults(environment):
                old = _drop(self._results, lambda result: environment in (None, result[0]))
                states = _drop(self._states, lambda state: environment in (None, state.environment))
                _drop(self._events, lambda event: environment in (None, event.environment))
                return wire.Written(created=False, count=old + states)
            case wire.PutIncident(incident):
                created = incident.id not in self._incidents
                self._incidents[incident.id] = incident
                if len(self._incidents) > INCIDENTS:
                    del self._incidents[min(self._incidents.values(), key=_by_start).id]
                return wire.Written(created)
            case wire.PutEvent():
                last = None if write.once is None else self._last_events.get(write.once)
                if write.event.id in self._events or (last is not None and is_quiet(last[0], write)):
                    return wire.Written(created=False)
                if write.once is not None:
                    self._last_events[write.once] = write.at, forgotten_at(write)
                self.emit(write.event)
                return wire.Written(created=True, events=(write.event,))
            case wire.PutAgentState():
                return self._put_state(write)

    def answer(self, query: object) -> Any:
        """Answer a query. Raises ``UnsupportedWrite`` for other kinds."""
        match query:
            case wire.Keys():
                return sorted(self._keys.values(), key=lambda key: (key.created_at, key.id))
            case wire.LedgerSums(first, last):
                rows = sorted((name, sums) for name, sums in self._sums.items() if first <= name[0] <= last)
                return [wire.LedgerSum(*name, sums[0], wire.Tokens(*sums[1:4]), *sums[4:]) for name, sums in rows]
            case wire.AgentState():
                for put in reversed(self._states.values()):
                    by_claim = query.claim is not None and put.claim == query.claim
                    mine = by_claim if query.id is None else put.id == query.id
                    if mine and query.environment in (None, put.environment):
                        return put.body
                return None
            case wire.Incidents():
                return sorted(self._incidents.values(), key=_by_start, reverse=True)
        raise UnsupportedWrite(f"the query {type(query).__name__} is not known")

    def scan(self, query: wire.LedgerRows | wire.Events, after: str | None, limit: int) -> list[Any]:
        """Up to ``limit`` rows or events after the key ``after``, newest first."""
        if isinstance(query, wire.Events):
            return _page(self._events.values(), lambda event: event.id, after, limit)
        rows = [
            row
            for row in self._rows.values()
            if query.request_id in (None, row.request_id)
            and (query.since is None or row.at >= query.since)
            and (query.until is None or row.at < query.until)
        ]
        return _page(rows, key_of, after, limit)

    def revoked_since(self, key_id: str | None) -> str | None:
        """Time when a key was revoked, if it was."""
        key = None if key_id is None else self._keys.get(key_id)
        return None if key is None else key.revoked_at

    def sweep(self, at: float) -> int:
        """Remove answers, events and agent states that expired by ``at`` (Unix seconds). Returns their number."""
        before = timestamp(max(0.0, at - WEEK_S))
        _drop(self._last_events, lambda entry: entry[1] <= at)
        answers = _drop(self._results, lambda result: result[1] <= at)
        states = _drop(self._states, lambda state: state.until <= at)
        return answers + states + _drop(self._events, lambda event: event.created_at < before)

    def incident(self, incident_id: str) -> wire.Incident | None:
        """An incident, if it exists."""
        return self._incidents.get(incident_id)

    def key(self, key_id: str) -> wire.Key | None:
        """A key of the account."""
        return self._keys.get(key_id)

    def attempts(self, call: str) -> set[int]:
        """``attempt`` numbers of a call's rows."""
        return {attempt for request_id, attempt in self._rows if request_id == call}

    def book(self, row: wire.LedgerRow, purses: Sequence[str] = ()) -> bool:
        """Store a row. False: it exists."""
        name = row.request_id, row.attempt
        if name in self._rows:
            return False
        if row.cost_range_nanos is not None and row.kind == "expired":
            _put(self._expired, row.request_id, Expired(row.cost_range_nanos[1], tuple(purses)), self._newest)
        self._rows[name] = row
        if len(self._rows) > self._newest:
            self._rows.popitem(last=False)
        self._sum(row, 1)
        return True

    def unbook(self, request_id: str) -> Expired | None:
        """Remove a call's ``expired`` row. None: there is none."""
        row = self._rows.get((request_id, 0))
        if row is None or row.kind != "expired":
            return None
        del self._rows[request_id, 0]
        self._sum(row, -1)
        return self._expired.pop(request_id)

    def read_result(self, claim: bytes, now: float) -> KeptResult | None:
        """The stored answer of an idempotency key."""
        entry = self._results.get(claim)
        return None if entry is None or entry[1] <= now else entry[2]

    def put_result(self, claim: bytes, environment: wire.Environment, until: float, result: KeptResult) -> None:
        """Store an answer."""
        _put(self._results, claim, (environment, until, result), self._newest)

    def emit(self, event: wire.StoredEvent) -> None:
        """Store an event and call ``emitted``."""
        _put(self._events, event.id, event, self._newest)
        self._emitted(event)

    def _put_state(self, put: wire.PutAgentState) -> wire.Written:
        name = put.environment, put.id
        created = self._states.pop(name, None) is None and put.body is not None
        if put.body is not None:
            self._states[name] = put
            if len(self._states) > self._newest:
                oldest = next((key for key, state in self._states.items() if state.until < inf), name)
                del self._states[oldest]
        return wire.Written(created)

    def _sum(self, row: wire.LedgerRow, sign: int) -> None:
        name = row.at[:10], row.provider, row.model, row.kind
        sums = self._sums.setdefault(name, [0] * 9)
        for place, amount in enumerate((1, *_amounts(row), *(row.cost_range_nanos or [row.cost_nanos] * 2))):
            sums[place] += sign * amount
        if not sums[0]:
            del self._sums[name]


def is_quiet(last: float, write: wire.PutEvent) -> bool:
    """True if an event comes too soon after the last one with its ``once``."""
    return write.at < last + write.quiet_s


def forgotten_at(write: wire.PutEvent) -> float:
    """Unix seconds after which the time of an event's ``once`` may be forgotten."""
    return write.at + max(write.quiet_s, WEEK_S)


def _by_start(incident: wire.Incident) -> tuple[str, str]:
    return incident.started_at, incident.id


def _page(rows: Any, key: Callable[[T], str], after: str | None, limit: int) -> list[T]:
    behind: Iterator[T] = (row for row in sorted(rows, key=key, reverse=True) if after is None or key(row) < after)
    return [*islice(behind, max(0, limit))]


def _put(entries: OrderedDict[Any, T], name: Any, value: T, newest: int) -> None:
    entries[name] = value
    entries.move_to_end(name)
    if len(entries) > newest:
        entries.popitem(last=False)


def _drop(entries: dict[Any, T], is_over: Callable[[T], bool]) -> int:
    """Remove entries by their values. Returns their number."""
    names = [name for name, value in entries.items() if is_over(value)]
    for name in names:
        del entries[name]
    return len(names)
