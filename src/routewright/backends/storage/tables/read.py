"""Answers to queries and scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from routewright._core.analytics.rollup import METADATA, summed
from routewright._core.snapshot_delta import HealthChange, changed
from routewright._core.trace.spans import CallLine, item_of, trace_of
from routewright.errors import StorageCorrupt, UnsupportedWrite
from routewright.wire import (
    SYSTEM_ACCOUNT,
    CacheCount,
    CacheCounts,
    Content,
    CurrentRetention,
    Deliveries,
    Events,
    FallbackCount,
    FallbackCounts,
    FeedbackByTrace,
    GroupedUsage,
    HealthSnapshot,
    LatencyCount,
    LatencyCounts,
    LearnedSince,
    LedgerRows,
    PolicyVersions,
    PutFeedback,
    Query,
    RollupKeys,
    Scan,
    SetRetention,
    Snapshot,
    SnapshotById,
    Trace,
    TraceById,
    TraceItem,
    TraceItems,
    Traces,
    UsageCount,
    UsageCounts,
)

from .books import read as books
from .books.outbox import deliveries_page
from .connection import Statements
from .selection import rows_of
from .shared import learned, versions

T = TypeVar("T")
Item = TypeVar("Item", bound=TraceItem)

DAY_S = 24 * 3600.0
RETENTION = SetRetention(production_s=30 * DAY_S, sandbox_s=DAY_S)
"""The default (contract 9)."""
SETTING = "retention"

_line = msgspec.msgpack.Decoder(CallLine).decode
_json_trace = msgspec.json.Decoder(Trace).decode
_json_item = msgspec.json.Decoder(TraceItem).decode
_content = msgspec.json.Decoder(Content).decode
_snapshot = msgspec.json.Decoder(Snapshot).decode
_change = msgspec.json.Decoder(HealthChange).decode
_feedback = msgspec.json.Decoder(PutFeedback).decode
_retention = msgspec.json.Decoder(SetRetention).decode

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
_SUMS = ", ".join(f"sum({name})" for name in UsageCount.__struct_fields__[2:])
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
WITH RECURSIVE found(name) AS (
    SELECT min(group_by) FROM usage WHERE account = ? AND per = 'day'
    UNION ALL
    SELECT (SELECT min(group_by) FROM usage WHERE account = ? AND per = 'day' AND group_by > name)
    FROM found WHERE name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL
"""


def answer(account: str, query: Query, connection: Statements) -> Any:
    """Answer a query. Raises ``UnsupportedWrite`` for an unknown kind."""
    match query:
        case TraceById():
            return trace_by_id(connection, account, query)
        case FeedbackByTrace(trace_id, environment):
            row = connection.execute(_FEEDBACK, (account, trace_id)).fetchone()
            return None if row is None or environment not in (None, row[1]) else _feedback(row[0])
        case SnapshotById(id):
            return snapshot_of(connection, id) if account == SYSTEM_ACCOUNT else None
        case PolicyVersions(contents):
            return versions(connection, contents) if account == SYSTEM_ACCOUNT else []
        case LearnedSince():
            return learned(connection, query) if account == SYSTEM_ACCOUNT else []
        case CurrentRetention():
            return retention_of(connection)
        case RollupKeys():
            found = [name for (name,) in connection.execute(_KEYS, (account, account)).fetchall()]
            return [name.removeprefix(METADATA) for name in found if name.startswith(METADATA)]
        case UsageCounts():
            return _usage(connection, account, query)
        case CacheCounts():
            sums = "age, sum(lookups), sum(saved_nanos)"
            return [CacheCount(*row) for row in _days(connection, account, query, "cache_use", sums, "age")]
        case FallbackCounts():
            names = "kind, name"
            sums = f"{names}, sum(total), sum(counted)"
            return [FallbackCount(*row) for row in _days(connection, account, query, "fallback_use", sums, names)]
        case LatencyCounts():
            return _latency(connection, account, query)
    return books.answer(account, query, connection)


def trace_by_id(
    connection: Statements, account: str, asked: TraceById, between: tuple[str, str] | None = None
) -> Trace | None:
    """A trace by id. ``between``: times of its creation, for a faster search."""
    sql = _TRACE if between is None else f"{_TRACE} AND trace.created_at >= ? AND trace.created_at < ?"
    row = connection.execute(sql, (account, asked.id, *(between or ()))).fetchone()
    return None if row is None or asked.environment not in (None, row[4]) else whole(*row[:4])


def whole(trace_id: str, body: bytes, since: str | None = None, content: bytes | None = None) -> Trace:
    """Decode a trace. Compromised if it was created at ``since`` or later. Raises ``StorageCorrupt``."""
    trace = _seen(_read(_trace, trace_id, body), since)
    return trace if content is None else replace(trace, content=_read(_content, trace_id, content))


def page(account: str, query: Scan, after: str | None, limit: int, connection: Statements) -> list[Any]:
    """A page of rows after a key. Raises ``UnsupportedWrite`` for an unknown kind."""
    match query:
        case TraceItems():
            rows = rows_of(connection, f"trace.id, {BODY}, {_SINCE}", account, query, limit, after=after)
            return [_seen(_read(_item, trace_id, body), since) for trace_id, body, since in rows]
        case Traces():
            columns = f"trace.id, {BODY}, {_SINCE}, {CONTENT}"
            return [whole(*row) for row in rows_of(connection, columns, account, query, limit, after=after)]
        case LedgerRows():
            return books.rows_page(account, query, after, limit, connection)
        case Events():
            return books.events_page(account, after, limit, connection)
        case Deliveries():
            return deliveries_page(connection, account, query, after, limit)
    raise UnsupportedWrite(f"SqliteStorage knows no scan {type(query).__name__}")


def snapshot_of(connection: Statements, snapshot_id: str) -> Snapshot | None:
    """A snapshot, built from the last complete one and later changes."""
    changes: list[tuple[str, bytes]] = []
    wanted: str | None = snapshot_id
    while wanted is not None:
        row = connection.execute("SELECT body, base FROM snapshot WHERE id = ?", (wanted,)).fetchone()
        if row is None or row[0] is None:
            return None
        changes.append((wanted, row[0]))
        wanted = row[1]
    _, body = changes.pop()
    found: Snapshot = _snapshot(body)
    for changed_id, body in reversed(changes):
        assert isinstance(found, HealthSnapshot), "only these are stored as changes"
        found = changed(found, _change(body), changed_id)
    return found


def retention_of(connection: Statements) -> SetRetention:
    """How long traces are kept."""
    row = connection.execute("SELECT body FROM setting WHERE name = ?", (SETTING,)).fetchone()
    return RETENTION if row is None else _retention(row[0])


def _seen(trace: Item, since: str | None) -> Item:
    return trace if since is None or trace.created_at < since else replace(trace, compromised=True)


def _trace(body: bytes) -> Trace:
    return _json_trace(body) if body[:1] == b"{" else trace_of(_line(body))


def _item(body: bytes) -> TraceItem:
    return _json_item(body) if body[:1] == b"{" else item_of(_line(body))


def _read(decode: Callable[[bytes], T], trace_id: str, body: bytes) -> T:
    try:
        return decode(body)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        hint = "delete it by its id, or restore a backup; 'routewright store check' lists all damage"
        raise StorageCorrupt(f"trace {trace_id!r} is damaged: {hint}") from error


def _usage(connection: Statements, account: str, query: UsageCounts) -> GroupedUsage:
    environments, marks = _environments(query.environment)
    last = query.last + "T24" if query.hourly else query.last
    of, when = (account, "hour" if query.hourly else "day"), (*environments, query.first, last)
    used = (*of, query.group_by, *when)
    days = (account, *environments, query.first, query.last)
    given = (*used, query.groups, *used, *of, "model", *when, *days)
    parts: tuple[list[UsageCount], ...] = ([], [], [])  # of the groups, of all, of runs
    for part, *row in connection.execute(_USAGE.replace("{}", marks), given).fetchall():
        parts[part].append(UsageCount(*row))
    groups, of_all, runs = parts
    return GroupedUsage(groups, of_all, {str(run.group): run.requests for run in runs})


def _days(
    connection: Statements,
    account: str,
    query: CacheCounts | FallbackCounts | LatencyCounts,
    table: str,
    columns: str,
    names: str,
) -> list[Any]:
    """Sums of a roll-up over days by name; without names its rows."""
    environments, marks = _environments(query.environment)
    grouped = f"GROUP BY {names} ORDER BY {names}" if names else ""
    sql = f"SELECT {columns} FROM {table} WHERE {_OF_DAYS.replace('{}', marks)} {grouped}"
    return connection.execute(sql, (account, *environments, query.first, query.last)).fetchall()


def _latency(connection: Statements, account: str, query: LatencyCounts) -> list[LatencyCount]:
    parts: dict[tuple[str, str], list[bytes]] = {}
    for model, strategy, buckets in _days(connection, account, query, "latency", "model, strategy, buckets", ""):
        parts.setdefault((model, strategy), []).append(buckets)
    return [LatencyCount(*names, summed(parts[names])) for names in sorted(parts)]


def _environments(asked: str | None) -> tuple[tuple[str, ...], str]:
    """The selected environments and their placeholders."""
    return (("production", "sandbox"), "?, ?") if asked is None else ((asked,), "?")
