"""Answers to queries and scans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from routewright import wire
from routewright._core.accounts.ledger import INCIDENTS
from routewright._core.analytics.rollup import METADATA, sum_buckets
from routewright._core.policy import in_order
from routewright._core.snapshot_delta import HealthChange, apply_change
from routewright._core.trace.decision_record import record_of
from routewright._core.trace.spans import CallLine, item_of, trace_of
from routewright.errors import StorageCorrupt, UnsupportedWrite
from routewright.wire import SYSTEM_ACCOUNT, Trace, TraceItem

from . import webhooks
from .ledger import ROW, account_of, event_of, incident_of, key_of, row_of
from .selection import CREATED_AT_CHARS, rows_of
from .statements import Row, Statements, select_rows

T = TypeVar("T")
Item = TypeVar("Item", bound=TraceItem)

DAY_S = 24 * 3600.0
RETENTION = wire.SetRetention(production_s=30 * DAY_S, sandbox_s=DAY_S)
"""The default (contract 9)."""
SETTING = "retention"
POLICIES = "policies"
"""Setting with all policy records by name, so that looking for a change reads one row."""
TEXT = "policy_version:"
"""Prefix of the settings with complete policy versions. Settings need no change of the schema."""

REPORTS = wire.UsageCounts, wire.CacheCounts, wire.FallbackCounts, wire.LatencyCounts, wire.RollupKeys
"""Queries that need all traces to be counted."""

_line = msgspec.msgpack.Decoder(CallLine).decode
_json_trace = msgspec.json.Decoder(Trace).decode
_json_item = msgspec.json.Decoder(TraceItem).decode
_content = msgspec.json.Decoder(wire.Content).decode
_present_snapshot = msgspec.json.Decoder(wire.Snapshot).decode
_change = msgspec.json.Decoder(HealthChange).decode
_feedback = msgspec.json.Decoder(wire.PutFeedback).decode
_retention = msgspec.json.Decoder(wire.SetRetention).decode
_version = msgspec.json.Decoder(wire.PolicyVersion).decode
_record = msgspec.json.Decoder(wire.PolicyRecord).decode
raw_policies = msgspec.json.Decoder(dict[str, dict[str, msgspec.Raw]]).decode
decode_learned = msgspec.json.Decoder(wire.LearnedModel).decode

_SINCE = "(SELECT compromised_from FROM key WHERE key.account = trace.account AND key.id = trace.key_id)"
"""Time from which on traces of a trace's key are compromised, or NULL."""
_TRACE = f"""
SELECT trace.id, body.trace, {_SINCE}, body.content, environment
FROM trace INDEXED BY trace_by_id JOIN body USING (n) WHERE account = ? AND trace.id = ?
"""
BODY = "(SELECT body.trace FROM body WHERE body.n = trace.n)"
CONTENT = "(SELECT body.content FROM body WHERE body.n = trace.n)"
_FEEDBACK = """
SELECT feedback.body, trace.environment
FROM feedback LEFT JOIN trace INDEXED BY trace_by_id ON trace.account = feedback.account AND trace.id = trace_id
WHERE feedback.account = ? AND trace_id = ?
"""
_FEEDBACKS = "SELECT body FROM feedback WHERE account = ? AND trace_id IN ({})"
_SNAPSHOTS = "SELECT id, body, base FROM snapshot WHERE id IN ({})"
_SUMS = ", ".join(f"sum({name})" for name in wire.UsageCount.__struct_fields__[2:])
_OF_DAYS = "account = ? AND environment IN ({}) AND day BETWEEN ? AND ?"
_USED = "account = ? AND per = ? AND group_by = ? AND environment IN ({}) AND start BETWEEN ? AND ?"
_USAGE = f"""
WITH largest AS (
    SELECT value FROM usage WHERE {_USED} GROUP BY value ORDER BY sum(requests) DESC, value LIMIT ?
), counted AS (
    SELECT 0 AS of_all, start, CASE WHEN value IN (SELECT value FROM largest) THEN value END AS grouped, {_SUMS}
    FROM usage WHERE {_USED} GROUP BY start, grouped
    UNION ALL
    SELECT 1, start, NULL, {_SUMS} FROM usage WHERE {_USED} GROUP BY start
    UNION ALL
    SELECT 2, '', name, sum(total), 0, 0, 0, 0, 0, 0 FROM fallback_use WHERE {_OF_DAYS} AND kind = 'run' GROUP BY name
)
SELECT * FROM counted ORDER BY of_all, start, grouped IS NULL, grouped
"""
"""One statement for a consistent answer."""
_KEYS = """
WITH RECURSIVE names(name) AS (
    SELECT min(group_by) FROM usage WHERE account = ? AND per = 'day'
    UNION ALL
    SELECT (SELECT min(group_by) FROM usage WHERE account = ? AND per = 'day' AND group_by > name)
    FROM names WHERE name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL
"""
_BY_CONTENT = "SELECT content, label, created_at FROM policy_version WHERE content IN ({})"
_BY_NAME = "SELECT content, label, created_at FROM policy_version WHERE name = ?"
_TEXTS = "SELECT name, body FROM setting WHERE name IN ({})"
_SETTING = "SELECT body FROM setting WHERE name = ?"
_LEARNED = "SELECT body FROM learned WHERE fleet = ? AND epoch >= ? ORDER BY model"
BY_DIGEST = "SELECT body FROM key WHERE digest = ?"
ACCOUNTS = "SELECT body FROM account ORDER BY account"
"""These two look at all accounts."""

_KEYS_OF = "SELECT body FROM key WHERE account = ? ORDER BY created_at, id"
_INCIDENTS = "SELECT body FROM incident ORDER BY started_at DESC, id DESC LIMIT ?"
_AMOUNTS = "input output cached cost charge credit coalesce(least,cost) coalesce(most,cost)".split()
_LOW_BITS = 31
_HALVES = ", ".join(f"sum({amount} >> {_LOW_BITS}), sum({amount} & {2**_LOW_BITS - 1})" for amount in _AMOUNTS)
"""Separate sums of high and low bits, since SQLite fails on sums over 63 bits."""
_LEDGER_SUMS = f"""
SELECT substr(at, 1, 10) AS day, provider, model, kind, count(*), {_HALVES} FROM ledger
WHERE account = ? AND at >= ? AND at < ? GROUP BY day, provider, model, kind ORDER BY day, provider, model, kind
"""
_AFTER_ANY = "U"
"""Sorts after the ``T`` in timestamps of a day, and after every digit."""


def answer(account: str, query: wire.Query, connection: Statements) -> Any:
    """Answer a query. Raises ``UnsupportedWrite`` for an unknown kind."""

    def rows(sql: str, *parameters: Any) -> list[Any]:
        return connection.execute(sql, parameters).fetchall()

    is_system = account == SYSTEM_ACCOUNT
    match query:
        case wire.TraceById():
            return trace_by_id(connection, account, query)
        case wire.FeedbackByTrace(trace_id, environment):
            matches = rows(_FEEDBACK, account, trace_id)
            return _feedback(matches[0][0]) if matches and environment in (None, matches[0][1]) else None
        case wire.FeedbackByTraces(trace_ids):
            return [_feedback(body) for (body,) in select_rows(connection, _FEEDBACKS, trace_ids, account)]
        case wire.SnapshotById(id):
            return next(iter(_read_snapshots(connection, (id,))), None) if is_system else None
        case wire.SnapshotsById(ids):
            return _read_snapshots(connection, ids) if is_system else []
        case wire.PolicyVersions():
            return read_versions(connection, query) if is_system else []
        case wire.PolicyRecords():
            return list(policies_of(policies_body(connection)).values()) if is_system else []
        case wire.LearnedSince():
            return [decode_learned(body) for (body,) in rows(_LEARNED, query.fleet, query.epoch)] if is_system else []
        case wire.CurrentRetention():
            return retention_of(connection)
        case wire.RollupKeys():
            names = [name for (name,) in rows(_KEYS, account, account)]
            return [name.removeprefix(METADATA) for name in names if name.startswith(METADATA)]
        case wire.UsageCounts():
            return _read_usage(connection, account, query)
        case wire.CacheCounts():
            sums = "age, sum(lookups), sum(saved_nanos)"
            return [wire.CacheCount(*row) for row in _add_up(connection, account, query, "cache_use", sums, "age")]
        case wire.FallbackCounts():
            keys = "kind, name"
            sums = f"{keys}, sum(total), sum(counted)"
            return [wire.FallbackCount(*row) for row in _add_up(connection, account, query, "fallback_use", sums, keys)]
        case wire.LatencyCounts():
            parts: dict[tuple[str, str], list[bytes]] = {}
            days = _add_up(connection, account, query, "latency", "model, strategy, buckets", "")
            for model, strategy, buckets in days:
                parts.setdefault((model, strategy), []).append(buckets)
            return [wire.LatencyCount(*key, sum_buckets(parts[key])) for key in sorted(parts)]
        case wire.LedgerSums(first, last):
            return [_sum_of(row) for row in rows(_LEDGER_SUMS, account, first, last + _AFTER_ANY)]
        case wire.KeyByDigest(digests):
            holders = (rows(BY_DIGEST, digest) for digest in digests) if is_system else ()
            return next((key_of(match[0][0]) for match in holders if match), None)
        case wire.AgentState():
            return _read_agent_state(connection, account, query)
        case wire.Endpoints():
            return webhooks.read_endpoints(connection, account, query)
        case wire.Keys():
            return [key_of(body) for (body,) in rows(_KEYS_OF, account)]
        case wire.AllAccounts():
            return [account_of(body) for (body,) in rows(ACCOUNTS)] if is_system else []
        case wire.Incidents():
            return [incident_of(body) for (body,) in rows(_INCIDENTS, INCIDENTS)] if is_system else []
    raise UnsupportedWrite(f"SqliteStorage knows no query {type(query).__name__}")


def trace_by_id(
    connection: Statements, account: str, query: wire.TraceById, between: tuple[str, str] | None = None
) -> Trace | None:
    """A trace by id. ``between``: times of its creation, for a faster search."""
    sql = _TRACE if between is None else f"{_TRACE} AND trace.created_at >= ? AND trace.created_at < ?"
    row = connection.execute(sql, (account, query.id, *(between or ()))).fetchone()
    return None if row is None or query.environment not in (None, row[4]) else decode_trace(*row[:4])


def decode_trace(trace_id: str, body: bytes, since: str | None = None, content: bytes | None = None) -> Trace:
    """Decode a trace. Compromised if it was created at ``since`` or later. Raises ``StorageCorrupt``."""
    trace = _mark_compromised(_read(_decode_body, trace_id, body), since)
    return trace if content is None else replace(trace, content=_read(_content, trace_id, content))


def read_page(account: str, query: wire.Scan, after: str | None, limit: int, connection: Statements) -> list[Any]:
    """A page of rows after a key, newest first. Raises ``UnsupportedWrite`` for an unknown kind."""
    match query:
        case wire.TraceItems():
            rows = rows_of(connection, f"trace.id, {BODY}, {_SINCE}", account, query, limit, after=after)
            return [_mark_compromised(_read(_decode_item, trace_id, body), since) for trace_id, body, since in rows]
        case wire.Traces():
            columns = f"trace.id, {BODY}, {_SINCE}, {CONTENT}"
            return [decode_trace(*row) for row in rows_of(connection, columns, account, query, limit, after=after)]
        case wire.Decisions():
            columns = f"trace.id, trace.created_at, {BODY}"
            order: Literal["ASC", "DESC"] = "DESC" if query.newest_first else "ASC"
            rows = rows_of(connection, columns, account, query, limit, after=after, order=order)
            return [_decode_record(*row) for row in rows]
        case wire.LedgerRows():
            return _read_ledger(connection, account, query, after, limit)
        case wire.Events():
            behind, key = ("", ()) if after is None else (" AND id < ?", (after,))
            sql = f"SELECT body FROM event WHERE account = ?{behind} ORDER BY id DESC LIMIT ?"
            return [event_of(body) for (body,) in connection.execute(sql, (account, *key, max(0, limit))).fetchall()]
        case wire.Deliveries():
            return webhooks.read_deliveries(connection, account, query, after, limit)
    raise UnsupportedWrite(f"SqliteStorage knows no scan {type(query).__name__}")


def read_versions(connection: Statements, query: wire.PolicyVersions) -> list[wire.PolicyVersion]:
    """The versions of a name or of contents."""
    if query.name is None:
        rows = select_rows(connection, _BY_CONTENT, query.contents)
    else:
        rows = connection.execute(_BY_NAME, (query.name,)).fetchall()
    versions = {row[0]: wire.PolicyVersion(*row) for row in rows}
    # in a statement of its own, since PostgreSQL joins slowly
    for name, text in select_rows(connection, _TEXTS, [TEXT + content for content in versions]):
        with suppress(msgspec.MsgspecError):  # else a later version of the library wrote it
            versions[name.removeprefix(TEXT)] = _version(text)
    return [*versions.values()] if query.name is None else sorted(versions.values(), key=in_order, reverse=True)


@lru_cache(2)  # every Router reads them every two seconds, and they seldom change
def policies_of(body: bytes) -> Mapping[str, wire.PolicyRecord]:
    """The policy records, by name. Those that this version cannot read are left out; of others, the draft."""
    # While servers are upgraded, a newer one may store a draft with rules that an older one cannot read. There, what is
    # in force must stay readable, to be served and rolled back; `drafted_at` shows that there is a draft.
    # test_a_draft_of_a_later_version_hides_nothing_else
    records: dict[str, wire.PolicyRecord] = {}
    for name, fields in raw_policies(body).items():
        for readable in ({**fields, "draft": None}, fields):
            with suppress(msgspec.ValidationError):
                records[name] = _record(msgspec.json.encode(readable))
    return records


def policies_body(connection: Statements) -> bytes:
    """The policy records, as they are stored."""
    return (connection.execute(_SETTING, (POLICIES,)).fetchone() or (b"{}",))[0]


def _read_snapshots(connection: Statements, ids: Sequence[str]) -> list[wire.Snapshot]:
    """The stored snapshots of these ids, built from the last complete ones and later changes."""
    rows: dict[str, tuple[bytes, str | None]] = {}
    wanted = {*ids}
    while wanted:
        chain = select_rows(connection, _SNAPSHOTS, sorted(wanted))
        rows |= {snapshot_id: (body, base) for snapshot_id, body, base in chain if body is not None}
        wanted = {base for _, _, base in chain if base is not None and base not in rows}
    snapshots: dict[str, wire.Snapshot] = {}

    def build(snapshot_id: str) -> wire.Snapshot:
        if snapshot_id not in snapshots:
            body, base = rows[snapshot_id]
            if base is None:
                snapshots[snapshot_id] = _decode_snapshot(body)
            else:
                before = build(base)
                assert isinstance(before, wire.HealthSnapshot), "only these are stored as changes"
                snapshots[snapshot_id] = apply_change(before, _change(body), snapshot_id)
        return snapshots[snapshot_id]

    for snapshot_id in ids:
        with suppress(msgspec.MsgspecError, KeyError):  # it, or one that it builds on, is damaged or gone
            build(snapshot_id)
    return [snapshots[snapshot_id] for snapshot_id in ids if snapshot_id in snapshots]


def _decode_snapshot(body: bytes) -> wire.Snapshot:
    """A stored snapshot, also one from before policies lost some fields."""
    snapshot: wire.Snapshot
    try:
        snapshot = _present_snapshot(body)
    except msgspec.ValidationError:
        document = msgspec.json.decode(body)
        _drop_lost_fields(document)
        snapshot = msgspec.convert(document, wire.Snapshot)
    return snapshot


def _drop_lost_fields(snapshot: dict[str, Any]) -> None:
    """Drop fields that policies no longer have. Classes that matched only by the prompt lose their conditions."""
    policy = snapshot.get("policy", {})
    for rules in (policy, *(policy.get("classes") or ())):
        rules.pop("explore_models", None)
        if "match" in rules:
            rules["match"] = {"metadata": rules["match"].get("metadata", {})}
    for child in snapshot.get("classes", ()):
        _drop_lost_fields(child)


def retention_of(connection: Statements) -> wire.SetRetention:
    """Read how long traces are kept."""
    row = connection.execute(_SETTING, (SETTING,)).fetchone()
    return RETENTION if row is None else _retention(row[0])


def _mark_compromised(trace: Item, since: str | None) -> Item:
    return trace if since is None or trace.created_at < since else replace(trace, compromised=True)


def _decode_body(body: bytes) -> Trace:
    return _json_trace(body) if body[:1] == b"{" else trace_of(_line(body))


def _decode_item(body: bytes) -> TraceItem:
    return _json_item(body) if body[:1] == b"{" else item_of(_line(body))


def _decode_record(trace_id: str, created_at: str, body: bytes) -> wire.DecisionRecord:
    try:
        return record_of(body)
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError):  # one damaged trace must not end a simulation
        return wire.DecisionRecord(trace_id, created_at, None, None, False, 0, 0, 0.0, None)


def _read(decode: Callable[[bytes], T], trace_id: str, body: bytes) -> T:
    try:
        return decode(body)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        hint = "delete it by its id, or restore a backup ('routewright store check' lists all damage)"
        raise StorageCorrupt(f"trace {trace_id!r} is damaged; {hint}") from error


def _read_usage(connection: Statements, account: str, query: wire.UsageCounts) -> wire.GroupedUsage:
    environments, marks = _select_environments(query.environment)
    last = query.last + "T24" if query.hourly else query.last
    of = account, "hour" if query.hourly else "day"
    when = (*environments, query.first, last)
    keys = (*of, query.group_by, *when)
    days = (account, *environments, query.first, query.last)
    parameters = (*keys, query.groups, *keys, *of, "model", *when, *days)
    parts: tuple[list[wire.UsageCount], ...] = ([], [], [])  # of the groups, of all, of runs
    for part, *row in connection.execute(_USAGE.replace("{}", marks), parameters).fetchall():
        parts[part].append(wire.UsageCount(*row))
    return wire.GroupedUsage(parts[0], parts[1], {str(run.group): run.requests for run in parts[2]})


def _add_up(
    connection: Statements,
    account: str,
    query: wire.CacheCounts | wire.FallbackCounts | wire.LatencyCounts,
    table: str,
    columns: str,
    names: str,
) -> list[Any]:
    """Sums of a roll-up over days by name; without names its rows."""
    environments, marks = _select_environments(query.environment)
    grouped = f"GROUP BY {names} ORDER BY {names}" if names else ""
    sql = f"SELECT {columns} FROM {table} WHERE {_OF_DAYS.replace('{}', marks)} {grouped}"
    return connection.execute(sql, (account, *environments, query.first, query.last)).fetchall()


def _select_environments(environment: str | None) -> tuple[tuple[str, ...], str]:
    """The selected environments and their placeholders."""
    return (("production", "sandbox"), "?, ?") if environment is None else ((environment,), "?")


def _read_ledger(
    connection: Statements, account: str, query: wire.LedgerRows, after: str | None, limit: int
) -> list[wire.LedgerRow]:
    table = "ledger"
    clauses = [("account = ?", [account])]
    if query.request_id is not None:
        table = "ledger INDEXED BY ledger_by_name"
        name = f"{query.request_id}/"
        clauses.append(("name > ? AND name < ? AND rtrim(name, '-0123456789') = ?", [name, name + _AFTER_ANY, name]))
    for compared, value in (("at >= ?", query.since), ("at < ?", query.until)):
        if value is not None:
            clauses.append((compared, [value]))
    if after is not None:
        clauses.append(("(at, name) < (?, ?)", [after[:CREATED_AT_CHARS], after[CREATED_AT_CHARS:]]))
    where = " AND ".join(sql for sql, _ in clauses)
    values = [value for _, parameters in clauses for value in parameters]
    sql = f"SELECT {ROW} FROM {table} WHERE {where} ORDER BY at DESC, name DESC LIMIT ?"
    return [row_of(row) for row in connection.execute(sql, (*values, max(0, limit))).fetchall()]


def _sum_of(row: Row) -> wire.LedgerSum:
    halves = row[5:]  # after day, provider, model, kind and count
    amounts = [(high << _LOW_BITS) + low for high, low in zip(halves[::2], halves[1::2], strict=True)]
    return wire.LedgerSum(row[0], row[1], row[2], row[3], row[4], wire.Tokens(*amounts[:3]), *amounts[3:])


def _read_agent_state(connection: Statements, account: str, query: wire.AgentState) -> bytes | None:
    """The newest matching state."""
    name, value = ("claim", query.claim) if query.id is None else ("id", query.id)
    environments, marks = _select_environments(query.environment)
    of = f"account = ? AND environment IN ({marks}) AND {name} = ?"
    sql = f"SELECT body FROM agent_state WHERE {of} ORDER BY until DESC LIMIT 1"
    row = connection.execute(sql, (account, *environments, value)).fetchone()
    return None if row is None else row[0]
