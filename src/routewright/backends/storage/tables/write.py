"""Applies writes to the tables inside a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import asdict, replace

from routewright import wire
from routewright._core.accounts.keys import compromised_from
from routewright._core.accounts.ledger import BOOKED, INCIDENTS, MONEY, before, forgotten_at, is_quiet
from routewright._core.attempts.statistics import added
from routewright._core.policy import next_label, version_of
from routewright._core.snapshot_delta import find_change
from routewright._core.webhooks.outbox import OF_WEBHOOKS
from routewright._core.write_batch import check_batch, check_digests, check_place, ids_of
from routewright.protocols import Facts
from routewright.wire import Environment, Trace, Write, Written

from . import webhooks
from .ledger import PUT_EVENT, PUT_ROWS, TableShelf, columns_of
from .read import POLICIES, SETTING, TEXT, decode_learned, policies_body, policies_of, raw_policies, read_versions
from .statements import Row, Statements, insert, select_rows, upsert
from .traces import BY_IDS, TraceRows, add_traces, delete, put_traces

LONGEST_CHAIN = 32
"""Longest chain of health snapshots that are stored as changes."""
_encode = msgspec.json.Encoder().encode
_PUT_SNAPSHOT = upsert("snapshot", "id", "body base depth at")
_TOUCH_SNAPSHOT = """
UPDATE snapshot SET at = CASE WHEN at > ? THEN at ELSE ? END WHERE id = ? AND body IS NOT NULL RETURNING 1
"""
_DEPTH = "SELECT depth FROM snapshot WHERE id = ? AND body IS NOT NULL"
"""Nothing for a snapshot whose batch has failed."""
_PRESENT = "SELECT id FROM snapshot WHERE body IS NOT NULL AND id IN ({}) ORDER BY id /* FOR UPDATE OF snapshot */"
_DELETE_FEEDBACK = "DELETE FROM feedback WHERE account = ? AND trace_id = ? RETURNING 1"
_PUT_FEEDBACK = "INSERT INTO feedback (account, trace_id, body) VALUES (?, ?, ?)"
_PUT_SETTING = upsert("setting", "name", "body")
_LABELS = "SELECT label FROM policy_version WHERE name = ?"
_PUT_VERSION = "INSERT INTO policy_version (content, name, label, created_at) VALUES (?, ?, ?, ?)"
_OF_MODEL = "SELECT body FROM learned WHERE fleet = ? AND model = ?"
_PUT_LEARNED = upsert("learned", "fleet model", "epoch body")
_PUT_ACCOUNT = upsert("account", "account", "body")
_PUT_KEY = upsert("key", "account id", "digest created_at compromised_from body")
HOLDER = "SELECT account, id FROM key WHERE digest = ?"
_LAST_NOTICE = "SELECT at FROM told WHERE account = ? AND once = ?"
_PUT_NOTICE = upsert("told", "account once", "at until")
_ADD_EVENT = f"{PUT_EVENT} RETURNING n"
_INCIDENT = "SELECT 1 FROM incident WHERE id = ?"
_PUT_INCIDENT = upsert("incident", "id", "started_at body")
_DELETE_STATE = "DELETE FROM agent_state WHERE account = ? AND environment = ? AND id = ? RETURNING 1"
_DELETE_STATES = "DELETE FROM agent_state WHERE account = ? AND environment = ? RETURNING 1"
_OLD_INCIDENTS = """
DELETE FROM incident WHERE id NOT IN (SELECT id FROM incident ORDER BY started_at DESC, id DESC LIMIT ?)
"""


def is_durable(writes: Sequence[Write]) -> bool:
    """True if a batch must survive a power cut."""
    return any(getattr(write, "durability", None) == "committed" for write in writes)  # invalid ones are refused later


class AccountTransaction(Protocol):
    """The accounts, inside a transaction of the caller's."""

    deletes: bool
    """True if this transaction deletes traces or answers."""

    @property
    def shelf(self) -> TableShelf:
        """The ledger."""

    def refresh_terms(self, account: str, key_id: str | None = None) -> None:
        """Called after the terms of an account or key have changed."""

    def credit(self, account: str, credit: wire.AddCredit) -> bool:
        """Add to a balance. False: already done."""

    def settle(self, facts: Facts) -> object:
        """Book a call."""


class Writes:
    """Applies batches. For one thread at a time."""

    def __init__(self, add: Callable[[Statements, Sequence[TraceRows]], None] = add_traces) -> None:
        self._add = add
        """Inserts new traces."""
        self._health: wire.HealthSnapshot | None = None
        """The last put. The next is stored as changes to it."""

    def batch(
        self, account: str, writes: Sequence[Write], transaction: AccountTransaction, connection: Statements
    ) -> list[Written]:
        """Apply a batch. Raises ``PreconditionFailed`` and ``UnsupportedWrite`` before anything is written."""
        traces, snapshots = ids_of(writes)
        environments = _read_environments(connection, account, traces)
        present = {snapshot_id for (snapshot_id,) in select_rows(connection, _PRESENT, snapshots)}
        read = partial(_read_before, connection, account, transaction)
        check_batch("SqliteStorage", account, writes, environments, present, read)
        check_digests(account, writes, lambda digest: connection.execute(HOLDER, (digest,)).fetchone())
        results: list[Written] = []
        for run in _split_runs(writes):
            match run[0]:
                case wire.PutTrace():
                    results += put_traces(connection, account, run, environments, self._add)
                    _book(connection, account, run, transaction)
                case wire.PutFeedback() as feedback:
                    rows = connection.execute(_DELETE_FEEDBACK, (account, feedback.trace_id)).fetchall()
                    connection.execute(_PUT_FEEDBACK, (account, feedback.trace_id, _encode(feedback)))
                    results.append(Written(not rows))
                case wire.PutSnapshot(snapshot, at=at):
                    results.append(self.put_snapshot(connection, snapshot, at))
                case wire.PutPolicyVersion() as version:
                    results.append(_put_version(connection, version))
                case wire.PutPolicyRecord(record):
                    stored = raw_policies(policies_body(connection))
                    results.append(Written(record.name not in stored))
                    fields = asdict(record)
                    if record.draft is None and record.drafted_at is not None:  # this version cannot read the draft
                        del fields["draft"]
                    records = {**stored, record.name: {**stored.get(record.name, {}), **fields}}
                    connection.execute(_PUT_SETTING, (POLICIES, _encode(dict(sorted(records.items())))))
                case wire.AddLearned(fleet, models):
                    for model, more in models.items():
                        row = connection.execute(_OF_MODEL, (fleet, model)).fetchone()
                        new = added(model, None if row is None else decode_learned(row[0]), more)
                        connection.execute(_PUT_LEARNED, (fleet, model, new.epoch, _encode(new)))
                    results.append(Written(created=False, count=len(models)))
                case wire.DeleteTraces() as selection:
                    results.append(delete(connection, account, selection))
                    transaction.deletes = transaction.deletes or results[-1].count < selection.limit  # the last of many
                case wire.SetRetention() as retention:
                    connection.execute(_PUT_SETTING, (SETTING, _encode(retention)))
                    results.append(Written(created=False))
                case other:
                    results.append(_write(connection, account, transaction, other))
        return results

    def replaced(self, connection: Statements, account: str, rows: TraceRows) -> list[str]:
        """The id of an existing trace that a new one replaces. Raises ``PreconditionFailed`` if the environments
        differ."""
        environments = _read_environments(connection, account, [rows.id])
        for environment in environments.values():
            check_place(rows.id, rows.environment, environment)
        return [*environments]

    def put_snapshot(self, connection: Statements, snapshot: wire.Snapshot, at: float) -> Written:
        """Store a snapshot, if possible as changes to the last one of health."""
        if connection.execute(_TOUCH_SNAPSHOT, (at, at, snapshot.id)).fetchall():
            return Written(created=False)
        body = _encode(snapshot)
        row: Row = (snapshot.id, body, None, 0, at)
        if isinstance(snapshot, wire.HealthSnapshot):
            last = self._health
            self._health = snapshot
            if last is not None and last.id != snapshot.id:
                depth = connection.execute(_DEPTH, (last.id,)).fetchone()
                changes = _encode(find_change(last, snapshot))
                if depth is not None and depth[0] < LONGEST_CHAIN and len(changes) * 2 <= len(body):
                    row = snapshot.id, changes, last.id, depth[0] + 1, at
        connection.execute(_PUT_SNAPSHOT, row)
        return Written(created=True)


def _put_version(connection: Statements, version: wire.PutPolicyVersion) -> Written:
    """Give a content a version, unless it has one."""
    if read_versions(connection, wire.PolicyVersions((version.content,))):
        return Written(created=False)
    labels = (label for (label,) in connection.execute(_LABELS, (version.name,)).fetchall())
    label = next_label(version.name, version.created_at, labels)
    connection.execute(_PUT_VERSION, (version.content, version.name, label, version.created_at))
    if version.policy is not None:
        connection.execute(_PUT_SETTING, (TEXT + version.content, _encode(version_of(version, label))))
    return Written(created=True)


def _read_before(connection: Statements, account: str, transaction: AccountTransaction, write: Write) -> object:
    """The present state of a write's subject (``write_batch.Booked``)."""
    if isinstance(write, wire.PutIncident):
        return connection.execute(_INCIDENT, (write.incident.id,)).fetchone()
    if isinstance(write, wire.PutEndpoint):
        return webhooks.endpoint_by_id(connection, write.endpoint.id)
    if isinstance(write, wire.PutPolicyRecord):
        body = policies_body(connection)
        return policies_of(body).get(write.record.name) or raw_policies(body).get(write.record.name)
    return before(transaction.shelf, account, write)


def _write(
    connection: Statements, account: str, transaction: AccountTransaction, write: BOOKED | MONEY | OF_WEBHOOKS
) -> Written:
    """Apply a checked write about accounts, money, idempotency keys or events."""
    shelf = transaction.shelf

    def put_key(key: wire.Key) -> None:
        since = None if key.revoked_at is None else compromised_from(key.revoked_at)
        connection.execute(_PUT_KEY, (account, key.id, key.digest, key.created_at, since, _encode(key)))
        transaction.refresh_terms(account, key.id)

    match write:
        case wire.PutAccount(terms):
            created = shelf.account(account) is None
            connection.execute(_PUT_ACCOUNT, (account, _encode(terms)))
            transaction.refresh_terms(account)
            return Written(created)
        case wire.PutKey(key):
            stored = shelf.key(account, key.id)
            if stored is not None and stored.revoked_at is not None:
                key = replace(key, revoked_at=stored.revoked_at)
            put_key(key)
            return Written(stored is None)
        case wire.RevokeKey(key_id, at):
            stored = shelf.key(account, key_id)
            if stored is None or stored.revoked_at is not None:
                return Written(created=False, count=int(stored is not None))
            put_key(replace(stored, revoked_at=at))
            return Written(created=True)
        case wire.AddCredit():
            return Written(transaction.credit(account, write))
        case wire.DeleteResults(environment):
            environments: Sequence[Environment] = ("production", "sandbox") if environment is None else (environment,)
            count = shelf.delete_results(account, environments)
            transaction.deletes = transaction.deletes or bool(count)
            for name in environments:
                count += len(connection.execute(_DELETE_STATES, (account, name)).fetchall())
                for sql in webhooks.FORGET:
                    connection.execute(sql, (account, name))
            return Written(created=False, count=count)
        case wire.PutIncident(incident):
            created = connection.execute(_INCIDENT, (incident.id,)).fetchone() is None
            connection.execute(_PUT_INCIDENT, (incident.id, incident.started_at, _encode(incident)))
            connection.execute(_OLD_INCIDENTS, (INCIDENTS,))
            return Written(created)
        case wire.PutEvent():
            return put_event(connection, account, write)
        case wire.PutAgentState(id, environment):
            removed = connection.execute(_DELETE_STATE, (account, environment, id)).fetchall()
            if write.body is not None:
                row = account, environment, id, write.claim, write.until, write.body
                connection.execute("INSERT INTO agent_state VALUES (?, ?, ?, ?, ?, ?)", row)
            return Written(created=not removed and write.body is not None)
        case _:
            return webhooks.write(connection, account, write)


def put_event(connection: Statements, account: str, write: wire.PutEvent) -> Written:
    """Store an event, unless it exists or follows the last one of its kind too soon."""
    event = write.event
    if write.once is not None:
        last = connection.execute(_LAST_NOTICE, (account, write.once)).fetchone()
        if last is not None and is_quiet(last[0], write):
            return Written(created=False)
    row = account, event.id, event.created_at, _encode(event)
    if not connection.execute(_ADD_EVENT, row).fetchall():
        return Written(created=False)
    if write.once is not None:
        connection.execute(_PUT_NOTICE, (account, write.once, write.at, forgotten_at(write)))
    return Written(created=True, events=(event,))


def _split_runs(writes: Sequence[Write]) -> Iterator[Sequence[Any]]:
    """Single writes, and runs of traces with different ids."""
    run: dict[str, wire.PutTrace] = {}
    for write in writes:
        if run and not (isinstance(write, wire.PutTrace) and write.trace.id not in run):
            yield [*run.values()]
            run = {}
        if isinstance(write, wire.PutTrace):
            run[write.trace.id] = write
        else:
            yield [write]
    if run:
        yield [*run.values()]


def _book(
    connection: Statements, account: str, writes: Sequence[wire.PutTrace], transaction: AccountTransaction
) -> None:
    """Book the cost of traces whose calls had no hold. Accounts that were created since are charged."""
    rows = [row for write in writes for row in write.rows]
    if rows and connection.execute("SELECT 1 FROM account WHERE account = ?", (account,)).fetchone() is None:
        sql = f"INSERT {PUT_ROWS} ON CONFLICT DO NOTHING"
        insert(connection, sql, [(account, *columns_of(row), None) for row in rows])
        return
    for write in writes:
        if write.rows:
            source: Any = write.trace
            trace = source if isinstance(source, Trace) else source.line
            caller = wire.Caller(account, trace.environment, trace.key_id)
            transaction.settle(Facts(trace.id, caller, trace.created_at, rows=write.rows))


def _read_environments(connection: Statements, account: str, ids: Sequence[str]) -> dict[str, Environment]:
    return dict(select_rows(connection, f"SELECT id, environment {BY_IDS}", ids, account))
