"""What each kind of write about accounts, money, idempotency keys and events does to the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from routewright._core.account import compromised_from
from routewright._core.books import BOOKED, INCIDENTS, forgotten_at, is_quiet, no_room
from routewright._core.idempotency import KEPT_S, StoredClaim, put_back
from routewright._core.ledger import NoRoom, credit, reserve, settle
from routewright.backends.storage.sqlite.connection import Connection
from routewright.wire import (
    AddCredit,
    ClaimKey,
    DeleteResults,
    EndClaim,
    Environment,
    Incident,
    KeepLease,
    Key,
    PutAccount,
    PutEvent,
    PutIncident,
    PutKey,
    Reserve,
    RevokeKey,
    Settle,
    Write,
    Written,
)

from .bodies import account_of, encode, key_of, name_of
from .owners import keep, lives
from .shelf import TableShelf

_ACCOUNT = "SELECT body FROM account WHERE account = ?"
_PUT_ACCOUNT = "INSERT OR REPLACE INTO account (account, body) VALUES (?, ?)"
_KEY = "SELECT body FROM key WHERE account = ? AND id = ?"
_PUT_KEY = """
INSERT INTO key (account, id, digest, created_at, compromised_from, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (account, id) DO UPDATE SET digest = excluded.digest, created_at = excluded.created_at,
    compromised_from = excluded.compromised_from, body = excluded.body
"""
HOLDER = "SELECT account, id FROM key WHERE digest = ?"
_OF_CLAIM = "account = ? AND environment = ? AND key = ?"
_CLAIM = f"SELECT fingerprint, call, owner, result IS NOT NULL, until FROM claim WHERE {_OF_CLAIM}"
_PUT_CLAIM = """
INSERT OR REPLACE INTO claim (account, environment, key, fingerprint, call, owner, until, result)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_END_CLAIM = f"UPDATE claim SET result = ?, until = ? WHERE {_OF_CLAIM} AND result IS NULL"
_DROP_CLAIM = f"DELETE FROM claim WHERE {_OF_CLAIM} AND result IS NULL"
_DROP_RESULTS = "DELETE FROM claim WHERE account = ? AND result IS NOT NULL AND environment IN ({}) RETURNING n"
_TOLD = "SELECT at FROM told WHERE account = ? AND once = ?"
_PUT_TOLD = "INSERT OR REPLACE INTO told (account, once, at, until) VALUES (?, ?, ?, ?)"
_ADD_EVENT = "INSERT OR IGNORE INTO event (account, id, created_at, body) VALUES (?, ?, ?, ?) RETURNING n"
_CREDIT = """
SELECT coalesce((SELECT granted FROM purse WHERE account = ? AND name = 'account'), 0)
WHERE NOT EXISTS (SELECT 1 FROM ledger INDEXED BY ledger_by_name WHERE account = ? AND name = ?)
"""
_INCIDENT = "SELECT 1 FROM incident WHERE id = ?"
_PUT_INCIDENT = "INSERT OR REPLACE INTO incident (id, started_at, body) VALUES (?, ?, ?)"
_OLD_INCIDENTS = """
DELETE FROM incident WHERE id NOT IN (SELECT id FROM incident ORDER BY started_at DESC, id DESC LIMIT ?)
"""


def things_before(connection: Connection, account: str) -> Callable[[Write], object]:
    """Tells what there is of that which a write is about (``batch.Booked``)."""

    def booked(write: Write) -> object:
        match write:
            case PutAccount():
                row = connection.execute(_ACCOUNT, (account,)).fetchone()
                return None if row is None else account_of(row[0])
            case PutKey(key):
                return _key(connection, account, key.id)
            case PutIncident(incident):
                return connection.execute(_INCIDENT, (incident.id,)).fetchone()
            case AddCredit(id):
                row = connection.execute(_CREDIT, (account, account, name_of(id, 0))).fetchone()
                return None if row is None else row[0]
            case EndClaim(key=key, environment=environment):
                claim = _claim(connection, account, environment, key)
                return None if claim is None else claim.call
        return None

    return booked


def holder_of(connection: Connection, digest: str) -> tuple[str, str] | None:
    """The account and the id of the key that has a digest, whichever account it is of."""
    row = connection.execute(HOLDER, (digest,)).fetchone()
    return None if row is None else (row[0], row[1])


class BookWrites:
    """Applies those of one batch, which were checked. ``flush`` ends it."""

    def __init__(self, connection: Connection, account: str, writes: Sequence[Write]) -> None:
        self._connection = connection
        self._account = account
        self._shelf = TableShelf(connection, account)
        self._shelf.look_up(writes)

    def put(self, write: BOOKED | KeepLease) -> Written:
        """Apply one. Raises ``PreconditionFailed`` for a reservation that has no room."""
        match write:
            case Reserve():
                return self._reserve(write)
            case Settle(at=at):
                self._shelf.at = at
                created, events = settle(self._shelf, write)
                return Written(created, events=tuple(events))
            case PutAccount(account):
                return self._put_account(encode(account))
            case PutKey(key):
                return self._put_key(key)
            case RevokeKey(key_id, at):
                return self._revoke(key_id, at)
            case AddCredit():
                return Written(credit(self._shelf, write))
            case KeepLease(owner, lease_s, clock_s):
                keep(self._connection, owner, lease_s, clock_s)
                return Written(created=False)
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

    def flush(self) -> None:
        """Write what was gathered."""
        self._shelf.flush()

    def _put_account(self, body: bytes) -> Written:
        created = self._connection.execute(_ACCOUNT, (self._account,)).fetchone() is None
        self._connection.execute(_PUT_ACCOUNT, (self._account, body))
        self._shelf.forget_terms()
        return Written(created)

    def _put_key(self, key: Key) -> Written:
        before = _key(self._connection, self._account, key.id)
        if before is not None and before.revoked_at is not None:
            key = replace(key, revoked_at=before.revoked_at)
        self._write_key(key)
        return Written(before is None)

    def _revoke(self, key_id: str, at: str) -> Written:
        key = _key(self._connection, self._account, key_id)
        if key is None or key.revoked_at is not None:
            return Written(created=False, count=int(key is not None))
        self._write_key(replace(key, revoked_at=at))
        return Written(created=True)

    def _write_key(self, key: Key) -> None:
        since = None if key.revoked_at is None else compromised_from(key.revoked_at)
        self._connection.execute(_PUT_KEY, (self._account, key.id, key.digest, key.created_at, since, encode(key)))
        self._shelf.forget_terms()

    def _reserve(self, write: Reserve) -> Written:
        self._shelf.at = write.at
        created = self._shelf.hold(write.id) is None
        try:
            reserve(self._shelf, write)
        except NoRoom as full:
            raise no_room(full) from None
        keep(self._connection, write.owner, write.lease_s, write.clock_s)
        return Written(created)

    def _claim(self, write: ClaimKey) -> Written:
        there = _claim(self._connection, self._account, write.environment, write.key)
        if there is not None and there.refuses(write, owned=lives(self._connection, there.owner, write.clock_s)):
            return Written(created=False)
        keep(self._connection, write.owner, write.lease_s, write.clock_s)
        self._put_claim(write, StoredClaim(write.fingerprint, write.call, write.owner, until=write.at + KEPT_S))
        return Written(created=True)

    def _put_claim(self, write: ClaimKey | EndClaim, claim: StoredClaim) -> None:
        said = claim.fingerprint, claim.call, claim.owner, claim.until, claim.result
        self._connection.execute(_PUT_CLAIM, (self._account, write.environment, write.key, *said))

    def _end(self, write: EndClaim) -> Written:
        there = _claim(self._connection, self._account, write.environment, write.key)
        if there is None and (back := put_back(write)) is not None:
            self._put_claim(write, back)
            return Written(created=True)
        if there is None or there.call != write.call:
            return Written(created=False, count=0)
        named = self._account, write.environment, write.key
        if write.result is None:
            self._connection.execute(_DROP_CLAIM, named)
        else:
            self._connection.execute(_END_CLAIM, (write.result, write.until, *named))
        return Written(created=False)

    def _delete_results(self, environment: Environment | None) -> Written:
        asked = ("production", "sandbox") if environment is None else (environment,)
        sql = _DROP_RESULTS.format(", ".join("?" * len(asked)))
        gone = self._connection.execute(sql, (self._account, *asked)).fetchall()
        return Written(created=False, count=len(gone))

    def _put_incident(self, incident: Incident) -> Written:
        created = self._connection.execute(_INCIDENT, (incident.id,)).fetchone() is None
        self._connection.execute(_PUT_INCIDENT, (incident.id, incident.started_at, encode(incident)))
        self._connection.execute(_OLD_INCIDENTS, (INCIDENTS,))
        return Written(created)

    def _put_event(self, write: PutEvent) -> Written:
        event = write.event
        if write.once is not None:
            last = self._connection.execute(_TOLD, (self._account, write.once)).fetchone()
            if last is not None and is_quiet(last[0], write):
                return Written(created=False)
        row = self._account, event.id, event.created_at, encode(event)
        if not self._connection.execute(_ADD_EVENT, row).fetchall():
            return Written(created=False)
        if write.once is not None:
            self._connection.execute(_PUT_TOLD, (self._account, write.once, write.at, forgotten_at(write)))
        return Written(created=True, events=(event,))


def _key(connection: Connection, account: str, key_id: str) -> Key | None:
    row = connection.execute(_KEY, (account, key_id)).fetchone()
    return None if row is None else key_of(row[0])


def _claim(connection: Connection, account: str, environment: Environment, key: str) -> StoredClaim | None:
    """What is kept of an idempotency key, but not the result itself."""
    row = connection.execute(_CLAIM, (account, environment, key)).fetchone()
    if row is None:
        return None
    fingerprint, call, owner, has_result, until = row
    return StoredClaim(fingerprint, call, owner, b"" if has_result else None, until)
