"""Webhook deliveries: schedule, retries, end states, and the in-memory outbox (spec 6.5, contract 11)."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import nsmallest
from itertools import islice, takewhile
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from routewright import wire
from routewright.wire.timestamps import timestamp

DELAYS_S = (60.0, 300.0, 900.0, 3_600.0, 14_400.0)  # seconds from failed attempt 1, 2 ... to the next
MAX_ATTEMPTS = 5
ATTEMPT_S = 10.0  # timeout of an attempt

_BY_STATUS: dict[int, wire.DeliveryState] = {408: "waiting", 429: "waiting"}
_BY_CLASS: dict[int, wire.DeliveryState] = {2: "delivered", 3: "rejected", 4: "rejected", 5: "waiting"}


def body_of(event: wire.StoredEvent | wire.Event) -> bytes:
    """Body of an event's deliveries (spec 6.3)."""
    shown = ("id", "type", "created_at", "api_version", "data")
    return msgspec.json.encode({name: getattr(event, name) for name in shown})


class Step(NamedTuple):
    """State of a delivery after an attempt."""

    state: wire.DeliveryState
    delay_s: float | None = None
    """Seconds until the next attempt, if ``waiting``."""


def after_attempt(
    number: int, status: int | None, retry_after_s: float | None = None, max_attempts: int = MAX_ATTEMPTS
) -> Step:
    """Decide what follows attempt ``number`` (1, 2 ...). ``status`` is None if no answer came within ``ATTEMPT_S``.
    Redirects are final. With 429, ``retry_after_s`` can lengthen the delay, up to twice the next one."""
    answer = 500 if status is None else status
    state = _BY_STATUS.get(answer) or _BY_CLASS.get(answer // 100, "waiting")
    if state != "waiting":
        return Step(state)
    if number >= max_attempts:
        return Step("failed_delivery")
    delay = DELAYS_S[min(number, len(DELAYS_S)) - 1]
    if status == 429 and retry_after_s is not None:
        delay = max(delay, min(retry_after_s, 2 * DELAYS_S[min(number, len(DELAYS_S) - 1)]))
    return Step(state, delay)


HISTORY_S = 24 * 3600.0  # how long an ended delivery can be inspected and replayed (spec 6.5)
OF_WEBHOOKS = wire.PutEndpoint | wire.DeleteEndpoint | wire.ClaimDeliveries | wire.EndAttempt | wire.ReplayDeliveries
"""Writes that ``Outbox.write`` accepts."""


class _Row(Struct, eq=False):
    event: wire.StoredEvent
    endpoint: wire.Endpoint
    state: wire.DeliveryState = "waiting"
    due: float | None = None
    """Unix seconds of its next attempt, or the end of its lease. None: ended."""
    lease: str | None = None
    tries: int = 0
    attempts: tuple[wire.DeliveryAttempt, ...] = ()
    ended_at: float | None = None

    @property
    def delivery(self) -> wire.Delivery:
        return wire.Delivery(
            event_id=self.event.id,
            event_type=self.event.type,
            endpoint_id=self.endpoint.id,
            state=self.state,
            attempts=self.attempts,
            next_attempt_at=timestamp(self.due) if self.state == "waiting" and self.due else None,
            ended_at=None if self.ended_at is None else timestamp(self.ended_at),
        )


class Outbox:
    """The outbox of one storage. Keeps the ``newest`` latest deliveries of each account."""

    def __init__(self, newest: int) -> None:
        self._newest = newest
        self._endpoints: dict[str, wire.Endpoint] = {}
        self._rows: dict[str, dict[tuple[str, str], _Row]] = {}  # by the endpoint's account, then by endpoint and event
        self._due: dict[str, list[tuple[float, str, _Row]]] = {}
        """By endpoint: due time, event id and row of pending deliveries, sorted."""
        self._served: dict[str, int] = {}  # by endpoint: number of its last turn
        self._turn = 0

    @property
    def has_endpoints(self) -> bool:
        """True if there is any endpoint."""
        return bool(self._endpoints)

    def emit(self, event: wire.StoredEvent) -> None:
        """Create the deliveries of a new event."""
        for endpoint in self._endpoints.values():
            ours = event.account == wire.SYSTEM_ACCOUNT  # events of no account go to all
            ours = ours or (event.account, event.environment) == (endpoint.account, endpoint.environment)
            if ours and event.type in endpoint.events and endpoint.disabled_at is None:
                rows = self._rows.setdefault(endpoint.account, {})
                rows[endpoint.id, event.id] = row = _Row(event, endpoint)
                self._schedule(row, 0.0)
                if len(rows) > self._newest:
                    self._drop(next(iter(rows.values())))

    def write(self, account: str, write: OF_WEBHOOKS) -> wire.Written:
        """Apply one checked write."""
        match write:
            case wire.PutEndpoint(endpoint):
                created = endpoint.id not in self._endpoints
                self._endpoints[endpoint.id] = endpoint
                for row in self._of(account, endpoint.id):
                    row.endpoint = endpoint
                    if endpoint.disabled_at is not None and row.due is not None:
                        self._end(row, "failed_delivery", write.at)
                return wire.Written(created)
            case wire.DeleteEndpoint(id):
                there = self.taken(id)
                if there is None or there.account != account:
                    return wire.Written(created=False, count=0)
                self._drop(*self._of(account, id))
                del self._endpoints[id]
                self._served.pop(id, None)
                self._due.pop(id, None)
                return wire.Written(created=False)
            case wire.ClaimDeliveries():
                claimed = self._claim(write)
                return wire.Written(created=False, count=len(claimed.deliveries), claimed=claimed)
            case wire.EndAttempt():
                held = self._endpoints.get(write.endpoint_id)
                ended = held and self._rows.get(held.account, {}).get((held.id, write.event_id))
                if not ended or ended.lease != write.lease:
                    return wire.Written(created=False, count=0)
                ended.lease = None
                if write.attempt is not None:
                    ended.attempts = (*ended.attempts, write.attempt)
                    ended.tries += 1
                if write.next_at is None:
                    self._end(ended, write.state, write.at)
                else:
                    ended.state = write.state
                    self._schedule(ended, write.next_at)
                return wire.Written(created=False, count=1)
            case wire.ReplayDeliveries():
                return wire.Written(created=False, count=self._replay(account, write))

    def taken(self, id: str) -> wire.Endpoint | None:
        """The endpoint with an id, of any account."""
        return self._endpoints.get(id)

    def endpoints(self, account: str, query: wire.Endpoints) -> list[wire.Endpoint]:
        """The account's endpoints, oldest first; with ``of_all`` under ``SYSTEM_ACCOUNT``, those of all accounts."""
        of_all = query.of_all and account == wire.SYSTEM_ACCOUNT
        mine = [endpoint for endpoint in self._endpoints.values() if of_all or endpoint.account == account]
        return sorted(mine, key=lambda endpoint: (endpoint.created_at, endpoint.id))

    def deliveries(self, account: str, query: wire.Deliveries, after: str | None, limit: int) -> list[wire.Delivery]:
        """A page of deliveries, newest event first."""
        deliveries = [
            row.delivery
            for row in self._of(account, query.endpoint_id)
            if query.state in (None, row.state) and (after is None or f"{row.event.id}/{row.endpoint.id}" < after)
        ]
        return [*islice(sorted(deliveries, key=lambda delivery: delivery.key, reverse=True), max(0, limit))]

    def sweep(self, now: float) -> int:
        """Remove deliveries that ended a day ago. Returns their number."""
        rows = [row for rows in self._rows.values() for row in rows.values()]
        return self._drop(*[row for row in rows if row.ended_at is not None and row.ended_at <= now - HISTORY_S])

    def delete(self, account: str, environment: wire.Environment | None) -> int:
        """Remove an account's deliveries. Returns their number."""
        return self._drop(*[row for row in self._of(account) if environment in (None, row.endpoint.environment)])

    def _of(self, account: str, endpoint: str | None = None) -> list[_Row]:
        return [row for row in self._rows.get(account, {}).values() if endpoint in (None, row.endpoint.id)]

    def _claim(self, claim: wire.ClaimDeliveries) -> wire.Claimed:
        # Taking what is due first lets one endpoint with a long backlog fill every claim while the others wait. So
        # endpoints take turns, the one whose turn is longest ago first, each up to its room
        # (test_a_claim_takes_the_earliest_due_within_its_limits), and failing endpoints share a limit. A claimed
        # delivery stays in the outbox and is due again at the end of its lease: if the process dies, another one
        # delivers it, and the process that was only slow can no longer end it (P9;
        # test_a_delivery_is_leased_to_one_process_at_a_time). ``next_at`` leaves out endpoints without room, or the
        # caller would come back at once and in vain. An account may have many endpoints, so it has a share of its own,
        # larger only while no other account waits (test_no_account_has_more_than_its_share_while_others_wait).
        deliveries: list[wire.ClaimedDelivery] = []
        blocked: set[str] = set()
        failing_room = claim.failing_limit
        due_first = sorted((due[0][0], id) for id, due in self._due.items() if due)
        due_here = [id for _, id in takewhile(lambda first: first[0] <= claim.at, due_first)]
        spare = claim.limit - claim.per_account if len({self._endpoints[id].account for id in due_here}) == 1 else 0
        shares = claim.account_room.copy()
        for id in sorted(due_here, key=lambda id: self._served.get(id, 0)):
            account = self._endpoints[id].account
            share = max(shares.get(account, claim.per_account), spare - len(deliveries))
            room = min(claim.room.get(id, claim.per_endpoint), claim.limit - len(deliveries), share)
            if id in claim.failing:
                room = min(room, failing_room)
            if room <= 0:
                blocked.add(id)
                continue
            due = takewhile(lambda entry: entry[0] <= claim.at, self._due[id])
            rows = nsmallest(room, (row for _, _, row in due), key=lambda row: row.event.id)
            for row in rows:
                row.state = "in_flight"
                row.lease = claim.lease
                self._schedule(row, claim.until)
                deliveries.append(wire.ClaimedDelivery(row.event, row.endpoint, row.tries))
            failing_room -= len(rows) if id in claim.failing else 0
            shares[account] = share - len(rows)
            self._turn += 1
            self._served[id] = self._turn
        next_at = min((due[0][0] for id, due in self._due.items() if due and id not in blocked), default=None)
        return wire.Claimed(tuple(deliveries), next_at)

    def _replay(self, account: str, write: wire.ReplayDeliveries) -> int:
        rows = [
            row
            for row in self._of(account, write.endpoint_id)
            if (row.state != "delivered" if write.event_id is None else row.event.id == write.event_id)
            and row.state != "in_flight"
            and (row.ended_at is None or row.ended_at > write.at - HISTORY_S)
            and row.endpoint.disabled_at is None
        ]
        for row in rows:
            row.state = "waiting"
            row.ended_at = None
            row.tries = 0
            self._schedule(row, write.at)
        return len(rows)

    def _end(self, row: _Row, state: wire.DeliveryState, at: float) -> None:
        self._unschedule(row)
        row.state = state
        row.lease = None
        row.ended_at = at

    def _drop(self, *rows: _Row) -> int:
        for row in rows:
            self._unschedule(row)
            del self._rows[row.endpoint.account][row.endpoint.id, row.event.id]
        return len(rows)

    def _schedule(self, row: _Row, at: float) -> None:
        self._unschedule(row)
        row.due = at
        insort(self._due.setdefault(row.endpoint.id, []), (at, row.event.id, row))

    def _unschedule(self, row: _Row) -> None:
        if row.due is not None:
            due: list[Any] = self._due[row.endpoint.id]
            del due[bisect_left(due, (row.due, row.event.id))]
        row.due = None
