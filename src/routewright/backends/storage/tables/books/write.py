"""Applies writes about accounts, money, idempotency keys and events to the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from routewright._core.account import compromised_from
from routewright._core.accounts.books import BOOKED, INCIDENTS, MONEY, forgotten_at, is_quiet
from routewright._core.accounts.ledger import before
from routewright._core.webhooks.outbox import OF_WEBHOOKS
from routewright.backends.storage.tables.connection import Statements
from routewright.protocols import Facts
from routewright.wire import (
    AddCredit,
    Correct,
    DeleteResults,
    Environment,
    Key,
    PutAccount,
    PutAgentState,
    PutEndpoint,
    PutEvent,
    PutIncident,
    PutKey,
    RevokeKey,
    Write,
    Written,
)

from . import outbox
from .ledger import TableShelf, encode

_PUT_ACCOUNT = """
INSERT INTO account (account, body) VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET body = excluded.body
"""
_PUT_KEY = """
INSERT INTO key (account, id, digest, created_at, compromised_from, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (account, id) DO UPDATE SET digest = excluded.digest, created_at = excluded.created_at,
    compromised_from = excluded.compromised_from, body = excluded.body
"""
HOLDER = "SELECT account, id FROM key WHERE digest = ?"
_TOLD = "SELECT at FROM told WHERE account = ? AND once = ?"
_PUT_TOLD = """
INSERT INTO told (account, once, at, until) VALUES (?, ?, ?, ?)
ON CONFLICT (account, once) DO UPDATE SET at = excluded.at, until = excluded.until
"""
_ADD_EVENT = """
INSERT INTO event (account, id, created_at, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING n
"""
_INCIDENT = "SELECT 1 FROM incident WHERE id = ?"
_PUT_INCIDENT = """
INSERT INTO incident (id, started_at, body) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET started_at = excluded.started_at, body = excluded.body
"""
_OLD_INCIDENTS = """
DELETE FROM incident WHERE id NOT IN (SELECT id FROM incident ORDER BY started_at DESC, id DESC LIMIT ?)
"""


def holder_of(connection: Statements, digest: str) -> tuple[str, str] | None:
    """Account and id of the key with a digest, of any account."""
    row = connection.execute(HOLDER, (digest,)).fetchone()
    return None if row is None else (row[0], row[1])


class AccountTransaction(Protocol):
    """The accounts, inside a transaction of the caller's."""

    deletes: bool
    """True if this transaction deletes traces or answers."""

    @property
    def shelf(self) -> TableShelf:
        """The ledger."""
        ...

    def changed(self, account: str, key_id: str | None = None) -> None:
        """Called after the terms of an account or key have changed."""
        ...

    def credit(self, account: str, given: AddCredit) -> bool:
        """Add to a balance. False: already done."""
        ...

    def correct(self, account: str, write: Correct) -> Written:
        """Book a correction."""
        ...

    def settle(self, facts: Facts) -> object:
        """Book a call."""
        ...


class BookWrites:
    """Applies the checked writes of one batch."""

    def __init__(self, connection: Statements, account: str, transaction: AccountTransaction) -> None:
        self._connection = connection
        self._account = account
        self._transaction = transaction

    def before(self, write: Write) -> object:
        """The present state of a write's subject (``write_batch.Booked``)."""
        if isinstance(write, PutIncident):
            return self._connection.execute(_INCIDENT, (write.incident.id,)).fetchone()
        if isinstance(write, PutEndpoint):
            return outbox.taken(self._connection, write.endpoint.id)
        return before(self._transaction.shelf, self._account, write)

    def put(self, write: BOOKED | MONEY | OF_WEBHOOKS) -> Written:
        """Apply one."""
        match write:
            case PutAccount(account):
                created = self._transaction.shelf.account(self._account) is None
                self._connection.execute(_PUT_ACCOUNT, (self._account, encode(account)))
                self._transaction.changed(self._account)
                return Written(created)
            case PutKey(key):
                return self._put_key(key)
            case RevokeKey(key_id, at):
                return self._revoke(key_id, at)
            case AddCredit():
                return Written(self._transaction.credit(self._account, write))
            case Correct():
                return self._transaction.correct(self._account, write)
            case DeleteResults(environment):
                return self._delete_results(environment)
            case PutIncident(incident):
                created = self._connection.execute(_INCIDENT, (incident.id,)).fetchone() is None
                self._connection.execute(_PUT_INCIDENT, (incident.id, incident.started_at, encode(incident)))
                self._connection.execute(_OLD_INCIDENTS, (INCIDENTS,))
                return Written(created)
            case PutEvent():
                return put_event(self._connection, self._account, write)
            case PutAgentState():
                return self._put_state(write)
            case _:
                return outbox.write(self._connection, self._account, write)

    def _put_key(self, key: Key) -> Written:
        there = self._transaction.shelf.key(self._account, key.id)
        if there is not None and there.revoked_at is not None:
            key = replace(key, revoked_at=there.revoked_at)
        self._write_key(key)
        return Written(there is None)

    def _revoke(self, key_id: str, at: str) -> Written:
        key = self._transaction.shelf.key(self._account, key_id)
        if key is None or key.revoked_at is not None:
            return Written(created=False, count=int(key is not None))
        self._write_key(replace(key, revoked_at=at))
        return Written(created=True)

    def _write_key(self, key: Key) -> None:
        since = None if key.revoked_at is None else compromised_from(key.revoked_at)
        self._connection.execute(_PUT_KEY, (self._account, key.id, key.digest, key.created_at, since, encode(key)))
        self._transaction.changed(self._account, key.id)

    def _delete_results(self, environment: Environment | None) -> Written:
        asked: Sequence[Environment] = ("production", "sandbox") if environment is None else (environment,)
        found = self._transaction.shelf.delete_results(self._account, asked)
        sql = (
            f"DELETE FROM agent_state WHERE account = ? AND environment IN ({', '.join('?' * len(asked))}) RETURNING 1"
        )
        states = self._connection.execute(sql, (self._account, *asked)).fetchall()
        for sql in outbox.FORGET:
            self._connection.executemany(sql, [(self._account, each) for each in asked])
        self._transaction.deletes = self._transaction.deletes or bool(found)
        return Written(created=False, count=found + len(states))

    def _put_state(self, write: PutAgentState) -> Written:
        gone = "DELETE FROM agent_state WHERE account = ? AND environment = ? AND id = ? RETURNING 1"
        there = self._connection.execute(gone, (self._account, write.environment, write.id)).fetchall()
        if write.body is not None:
            row = self._account, write.environment, write.id, write.claim, write.until, write.body
            self._connection.execute("INSERT INTO agent_state VALUES (?, ?, ?, ?, ?, ?)", row)
        return Written(created=not there and write.body is not None)


def put_event(connection: Statements, account: str, write: PutEvent) -> Written:
    """Keep an event, unless it is kept already or comes too soon."""
    event = write.event
    if write.once is not None:
        last = connection.execute(_TOLD, (account, write.once)).fetchone()
        if last is not None and is_quiet(last[0], write):
            return Written(created=False)
    row = account, event.id, event.created_at, encode(event)
    if not connection.execute(_ADD_EVENT, row).fetchall():
        return Written(created=False)
    if write.once is not None:
        connection.execute(_PUT_TOLD, (account, write.once, write.at, forgotten_at(write)))
    return Written(created=True, events=(event,))
