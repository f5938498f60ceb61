"""Tables of webhook endpoints and deliveries. A trigger creates the deliveries of each new event."""

from __future__ import annotations

import msgspec

from routewright import wire
from routewright._core.webhooks.outbox import HISTORY_S, OF_WEBHOOKS
from routewright.wire import Written
from routewright.wire.timestamps import timestamp

from .ledger import encode, event_of
from .statements import Statements, upsert

_endpoint = msgspec.json.Decoder(wire.Endpoint).decode
_attempts = msgspec.json.Decoder(tuple[wire.DeliveryAttempt, ...]).decode

DUE = "SELECT id, account FROM endpoint INDEXED BY endpoint_due WHERE due <= ? ORDER BY turn, id"
ANY = "SELECT 1 FROM endpoint LIMIT 1"
ENDPOINT = "SELECT body FROM endpoint WHERE id = ?"
TURN = "SELECT coalesce(max(turn), 0) FROM endpoint"
SET_TURN = "UPDATE endpoint SET turn = ? WHERE id = ?"
NEXT = "SELECT id, due FROM endpoint INDEXED BY endpoint_due WHERE due IS NOT NULL ORDER BY due, id LIMIT ?"
_PUT = upsert("endpoint", "id", "account body")
_CLAIM = """
UPDATE delivery SET state = 'in_flight', due = ?, lease = ? WHERE endpoint = ? AND event IN (
    SELECT event FROM delivery INDEXED BY delivery_pending
    WHERE endpoint = ? AND due IS NOT NULL AND due <= ? ORDER BY event LIMIT ?
) RETURNING event, tries
"""
ENDPOINTS = "SELECT body FROM endpoint"
EVENT = "SELECT body FROM event WHERE id = ? AND account IN (?, '_system')"
"""The statements so far look at all accounts."""
_END = """
UPDATE delivery SET state = ?, due = ?, lease = NULL, tries = tries + ?, ended_at = ?,
    attempts = CASE WHEN CAST(? AS INTEGER) = 0 THEN attempts
    ELSE substr(attempts, 1, length(attempts) - 1) || substr(?, CASE WHEN length(attempts) > 2 THEN 1 ELSE 2 END) END
WHERE endpoint = ? AND event = ? AND lease = ? RETURNING 1
"""
_STOP = """
UPDATE delivery SET state = 'failed_delivery', due = NULL, lease = NULL, ended_at = ?
WHERE endpoint = ? AND due IS NOT NULL
"""
_FAIL = """
UPDATE delivery SET state = 'failed_delivery', due = NULL, lease = NULL, ended_at = ? WHERE endpoint = ? AND event = ?
"""
_REPLAY = """
UPDATE delivery SET state = 'waiting', tries = 0, ended_at = NULL, due = ?
WHERE endpoint = ? AND account = ? AND (ended_at IS NULL OR ended_at > ?) AND state <> 'in_flight' AND {}
AND endpoint IN (SELECT endpoint FROM subscription) RETURNING 1
"""
_PAGE = """
SELECT event, type, endpoint, state, attempts, due, ended_at FROM delivery INDEXED BY delivery_by_account
WHERE account = ? AND (CAST(? AS TEXT) IS NULL OR endpoint = ?) AND (CAST(? AS TEXT) IS NULL OR state = ?)
AND (event, endpoint) < (?, ?)
ORDER BY event DESC, endpoint DESC LIMIT ?
"""
FORGET = (
    """DELETE FROM delivery WHERE account = ? AND endpoint IN (
    SELECT id FROM endpoint WHERE json_extract(CAST(body AS TEXT), '$.environment') = ?)""",
    "DELETE FROM event WHERE account = ? AND json_extract(CAST(body AS TEXT), '$.environment') = ?",
)
"""Deletes the data of an account and environment."""


def read_endpoints(connection: Statements, account: str, query: wire.Endpoints) -> list[wire.Endpoint]:
    """The account's endpoints, oldest first; with ``of_all`` under ``SYSTEM_ACCOUNT`` those of all accounts."""
    if query.of_all and account == wire.SYSTEM_ACCOUNT:
        rows = connection.execute(ENDPOINTS).fetchall()
    else:
        rows = connection.execute("SELECT body FROM endpoint WHERE account = ?", (account,)).fetchall()
    return sorted((_endpoint(body) for (body,) in rows), key=lambda endpoint: (endpoint.created_at, endpoint.id))


def endpoint_by_id(connection: Statements, id: str) -> wire.Endpoint | None:
    """The endpoint with an id, of any account."""
    row = connection.execute(ENDPOINT, (id,)).fetchone()
    return None if row is None else _endpoint(row[0])


def write(connection: Statements, account: str, write: OF_WEBHOOKS) -> Written:
    """Apply a checked write."""
    match write:
        case wire.PutEndpoint(endpoint):
            created = endpoint_by_id(connection, endpoint.id) is None
            connection.execute(_PUT, (endpoint.id, account, encode(endpoint)))
            connection.execute("DELETE FROM subscription WHERE endpoint = ?", (endpoint.id,))
            if endpoint.disabled_at is None:
                rows = [(type, account, endpoint.environment, endpoint.id) for type in endpoint.events]
                connection.executemany("INSERT INTO subscription VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)
            else:
                connection.execute(_STOP, (write.at, endpoint.id))
            return Written(created)
        case wire.DeleteEndpoint(id):
            sql = "DELETE FROM endpoint WHERE id = ? AND account = ? RETURNING 1"
            deleted = connection.execute(sql, (id, account)).fetchall()
            for table in ("subscription", "delivery") if deleted else ():
                connection.execute(f"DELETE FROM {table} WHERE endpoint = ?", (id,))
            return Written(created=False, count=len(deleted))
        case wire.ClaimDeliveries():
            if connection.execute(ANY).fetchone() is None:
                return Written(created=False, count=0)
            claimed = _claim(connection, write)
            return Written(created=False, count=len(claimed.deliveries), claimed=claimed)
        case wire.EndAttempt():
            attempt = b"" if write.attempt is None else b",%b]" % encode(write.attempt)
            ended_at = write.at if write.next_at is None else None
            key = (write.endpoint_id, write.event_id, write.lease)
            tried = int(write.attempt is not None)
            row = (write.state, write.next_at, tried, ended_at, tried, attempt, *key)
            return Written(created=False, count=len(connection.execute(_END, row).fetchall()))
        case wire.ReplayDeliveries(endpoint_id, event_id, at):
            condition = "state <> 'delivered'" if event_id is None else "event = ?"
            values = (at, endpoint_id, account, at - HISTORY_S, *(() if event_id is None else (event_id,)))
            return Written(created=False, count=len(connection.execute(_REPLAY.format(condition), values).fetchall()))


def read_deliveries(
    connection: Statements, account: str, query: wire.Deliveries, after: str | None, limit: int
) -> list[wire.Delivery]:
    """Deliveries after the key ``after``, newest event first."""
    key = ("~", "") if after is None else after.partition("/")[::2]  # event and endpoint
    filters = query.endpoint_id, query.endpoint_id, query.state, query.state
    values = (account, *filters, *key, max(0, limit))
    return [
        wire.Delivery(
            event_id=event, event_type=type, endpoint_id=endpoint, state=state, attempts=_attempts(attempts),
            next_attempt_at=timestamp(due) if state == "waiting" and due else None,
            ended_at=None if ended_at is None else timestamp(ended_at),
        )
        for event, type, endpoint, state, attempts, due, ended_at in connection.execute(_PAGE, values).fetchall()
    ]  # fmt: skip


def _claim(connection: Statements, request: wire.ClaimDeliveries) -> wire.Claimed:
    """Lease due deliveries to a dispatcher."""
    # A dispatcher that is killed gives nothing back, and every event must still arrive (P9). So a claim is a lease: the
    # statement that marks a delivery also moves its `due` to the end of the lease, when anybody may claim it again. The
    # end of an attempt names its lease (`_END`), so one that comes too late changes nothing
    # (`test_a_delivery_is_leased_to_one_process_at_a_time`). The oldest deliveries of all endpoints together would all
    # belong to an endpoint with a long backlog. So endpoints take turns by `turn`, each within its room, and those that
    # fail share `failing_limit` (`test_a_claim_takes_the_earliest_due_within_its_limits`). An account may have many
    # endpoints, so it has a share of its own, larger only while no other account waits
    # (`test_no_account_has_more_than_its_share_while_others_wait`).
    # `test_every_event_arrives_even_if_dispatchers_are_killed` plays it with processes.
    deliveries: list[wire.ClaimedDelivery] = []
    blocked: set[str] = set()
    failing_left = request.failing_limit
    turn = connection.execute(TURN).fetchone()[0]
    due_endpoints = connection.execute(DUE, (request.at,)).fetchall()
    spare = request.limit - request.per_account if len({account for _, account in due_endpoints}) == 1 else 0
    shares = request.account_room.copy()
    for id, account in due_endpoints:
        share = max(shares.get(account, request.per_account), spare - len(deliveries))
        room = min(request.room.get(id, request.per_endpoint), request.limit - len(deliveries), share)
        if id in request.failing:
            room = min(room, failing_left)
        if room <= 0:
            blocked.add(id)
            continue
        endpoint = _endpoint(connection.execute(ENDPOINT, (id,)).fetchone()[0])
        rows = connection.execute(_CLAIM, (request.until, request.lease, id, id, request.at, room)).fetchall()
        failing_left -= len(rows) if id in request.failing else 0
        shares[account] = share - len(rows)
        turn += 1
        connection.execute(SET_TURN, (turn, id))
        for event, tries in sorted(rows):
            body = connection.execute(EVENT, (event, endpoint.account)).fetchone()
            if body is None:  # older than a week, and removed
                connection.execute(_FAIL, (request.at, id, event))
            else:
                deliveries.append(wire.ClaimedDelivery(event_of(body[0]), endpoint, tries))
    others = connection.execute(NEXT, (len(blocked) + 1,)).fetchall()
    return wire.Claimed(tuple(deliveries), next((due for id, due in others if id not in blocked), None))
