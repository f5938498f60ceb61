"""Tables of traces: narrow rows with the filterable columns, separate bodies, and uncounted rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from routewright import wire
from routewright._core.analytics.rollup import amounts_of, counted_of, group_of, shape_of
from routewright._core.money import usd
from routewright._core.routing.board import LruCache
from routewright._core.trace.filter import number_of, text_of
from routewright._core.trace.spans import CallLine, item_of
from routewright.errors import StorageCorrupt
from routewright.protocols import TraceDraft
from routewright.wire import Counted, DecisionInput, Environment, Trace, TraceItem, Written

from .read import BODY, decode_trace
from .selection import rows_of
from .statements import Row, Statements, insert, select_rows

KEYS = "trace.created_at, trace.id, trace.n"
STORED = (
    f"trace.n, trace.created_at, trace.id, trace.model, {BODY}, "
    "(SELECT body.rollup_keys FROM body WHERE body.n = trace.n)"
)
"""The columns of a ``Stored``."""
_encode = msgspec.json.Encoder().encode
_shapes: LruCache[Hashable, bytes] = LruCache(4_096)
"""Encoded shapes by ``group_of``: an hour has few."""
_pack = msgspec.msgpack.Encoder().encode
_decode = msgspec.json.decode
COLUMNS = (
    "account created_at id environment status kind model "
    "provider policy_id goal strategy error cache_hit "
    "fallback_used compromised cost_usd duration_ms key_id"
).split()
_PUT_TRACE = f"INSERT INTO trace (n, {', '.join(COLUMNS)}) VALUES {{}}"
_PUT_BODY = "INSERT INTO body (n, trace, content, rollup_keys) VALUES {}"
_LAST = "SELECT max(coalesce((SELECT max(n) FROM trace), 0), coalesce((SELECT max(n) FROM body), 0))"
_COUNT = "INSERT INTO uncounted (account, shape, traces, cost, charged, input, output, cached) VALUES {}"
_PUT_TAG = "INSERT INTO tag (account, key, value, created_at, id, number) VALUES {} ON CONFLICT DO NOTHING"
_DELETE_TAG = "DELETE FROM tag WHERE account = ? AND key = ? AND value = ? AND created_at = ? AND id = ?"
_NAME = """
INSERT INTO snapshot (id, depth, named, at) VALUES {}
ON CONFLICT (id) DO UPDATE SET named = snapshot.named + excluded.named
"""
BY_IDS = "FROM trace INDEXED BY trace_by_id WHERE account = ? AND id IN ({})"
_IN_ORDER = "ORDER BY created_at, id /* FOR UPDATE OF trace */"
"""Locks rows in the order of time, so that deletions cannot deadlock. Rows that others have removed meanwhile are not
returned, so each trace is subtracted once."""


class TraceRows(NamedTuple):
    """The rows of a trace, without its number."""

    id: str
    environment: Environment
    columns: Row
    body: tuple[bytes, bytes | None, bytes | None]
    tags: list[Row]
    named: tuple[str, ...]
    """Its snapshots."""
    counted: Row


class Stored(NamedTuple):
    """A row of ``trace``."""

    n: int
    created_at: str
    id: str
    model: str
    """The model that it was counted for; empty for failed calls of version 0.1."""
    trace: Trace | None
    """The trace without its content. None: it is damaged, so it cannot be subtracted."""
    rollup_keys: tuple[str, ...]

    @classmethod
    def of(cls, n: int, created_at: str, trace_id: str, model: str, body: bytes, keys: bytes | None) -> Stored:
        """Read ``STORED`` columns."""
        try:
            trace = decode_trace(trace_id, body)
        except StorageCorrupt:
            return cls(n, created_at, trace_id, model, None, ())
        return cls(n, created_at, trace_id, model, trace, () if keys is None else tuple(_decode(keys)))


def forget(connection: Statements, account: str, keys: Sequence[tuple[str, str, int]]) -> list[Stored]:
    """Remove the traces with these ``KEYS`` and their other rows, in the order of time. They stay counted. Returns the
    removed ones, without those that have been replaced meanwhile."""
    numbers = {n for _, _, n in keys}
    sql = f"SELECT {STORED} {BY_IDS} AND created_at IN ({{}}) {_IN_ORDER}"
    candidates = select_rows(connection, sql, [(name, at) for at, name, _ in keys], account)
    rows = [Stored.of(*row) for row in candidates if row[0] in numbers]
    sql = "DELETE FROM feedback WHERE account = ? AND trace_id = ?"
    connection.executemany(sql, [(account, row.id) for row in rows])
    _remove(connection, account, rows)
    return rows


def _remove(connection: Statements, account: str, rows: Sequence[Stored]) -> None:
    """Remove traces, but not their feedback."""
    traces = [row.trace for row in rows if row.trace is not None]
    connection.executemany(_DELETE_TAG, [tag[:5] for trace in traces for tag in _make_tags(account, trace)])
    damaged = [(account, row.id) for row in rows if row.trace is None]
    connection.executemany("DELETE FROM tag WHERE account = ? AND id = ?", damaged)
    sql = "DELETE FROM trace WHERE account = ? AND created_at = ? AND id = ?"
    connection.executemany(sql, [(account, row.created_at, row.id) for row in rows])
    connection.executemany("DELETE FROM body WHERE n = ?", [(row.n,) for row in rows])
    _count_uses(connection, [_find_snapshots(trace.decision_input) for trace in traces], -1)


def _count_out(connection: Statements, account: str, rows: Sequence[Stored]) -> None:
    counted = [_count_row(account, counted_of(row.trace, row.model), row.rollup_keys, -1) for row in rows if row.trace]
    insert(connection, _COUNT, counted)


def put_traces(
    connection: Statements,
    account: str,
    writes: Sequence[wire.PutTrace],
    known: dict[str, Environment],
    add: Callable[[Statements, Sequence[TraceRows]], None],
) -> list[Written]:
    """Put traces with different ids. ``known``: the existing ones, to which these are added."""
    results = [Written(write.trace.id not in known) for write in writes]
    replaced = [write.trace.id for write in writes if write.trace.id in known]
    if replaced:
        remove_traces(connection, account, replaced)
    known.update((write.trace.id, write.trace.environment) for write in writes)
    inputs: list[tuple[Any, tuple[str, ...]]] = [(write.trace, write.rollup_keys) for write in writes]
    rows = [  # or drafts (``SqliteStorage.takes_drafts``)
        rows_of_trace(account, trace, keys) if isinstance(trace, Trace) else rows_of_draft(account, trace)
        for trace, keys in inputs
    ]
    add(connection, rows)
    return results


def remove_traces(connection: Statements, account: str, ids: Sequence[str]) -> None:
    """Remove traces that are being replaced, and subtract them."""
    candidates = select_rows(connection, f"SELECT {STORED} {BY_IDS} {_IN_ORDER}", ids, account)
    stored = [Stored.of(*row) for row in candidates]
    _remove(connection, account, stored)
    _count_out(connection, account, stored)


def add_traces(connection: Statements, traces: Sequence[TraceRows]) -> None:
    """Insert new traces."""
    columns: list[Row] = []
    bodies: list[Row] = []
    tags: list[Row] = []
    for number, rows in enumerate(traces, connection.execute(_LAST).fetchone()[0] + 1):
        columns.append((number, *rows.columns))
        bodies.append((number, *rows.body))
        tags += rows.tags
    insert(connection, _PUT_TRACE, columns)
    insert(connection, _PUT_BODY, bodies)
    if tags:
        insert(connection, _PUT_TAG, tags)
    insert(connection, _COUNT, [*map(attrgetter("counted"), traces)])
    _count_uses(connection, map(attrgetter("named"), traces), 1)


def rows_of_trace(account: str, trace: Trace, rollup_keys: Sequence[str], counted: Counted | None = None) -> TraceRows:
    """A trace as it goes into its tables."""
    content = trace.content
    if content is not None:
        trace = replace(trace, content=None)
    columns = (
        account, trace.created_at, trace.id, trace.environment, trace.status, trace.kind, trace.model or "",
        trace.provider or "", trace.policy_id or "", trace.goal, trace.strategy, trace.error or "", trace.cache_hit,
        trace.fallback_used, trace.compromised, trace.cost_usd, trace.duration_ms, trace.key_id,
    )  # fmt: skip
    keys = _encode(rollup_keys) if rollup_keys else None
    body = _encode(trace), None if content is None else _encode(content), keys
    tags = [*_make_tags(account, trace)] if trace.metadata else []
    counts = _count_row(account, counted_of(trace) if counted is None else counted, rollup_keys, 1)
    return TraceRows(trace.id, trace.environment, columns, body, tags, _find_snapshots(trace.decision_input), counts)


def rows_of_draft(account: str, draft: TraceDraft) -> TraceRows:
    """The rows of a call that has just ended, without building its trace."""
    line = draft.line
    rollup_keys = draft.rollup_keys
    if not isinstance(line, CallLine) or draft.text_bytes:
        return rows_of_trace(account, draft.trace, rollup_keys, draft.counted)
    try:
        packed_line = _pack(line)
    except OverflowError:  # a number over 64 bits, such as a caller's budget
        return rows_of_trace(account, draft.trace, rollup_keys, draft.counted)
    decision_input = line.decision_input
    model = line.model or ""
    columns = (
        account, line.created_at, line.id, line.environment, line.status, "route", model,
        model.partition("/")[0], line.policy_id or "", decision_input.goal, decision_input.strategy, line.error or "",
        line.looked is not None and line.looked.hit, line.fallback_used, False, usd(line.cost_nanos),
        line.duration_ms, line.key_id,
    )  # fmt: skip
    body = packed_line, None, _encode(rollup_keys) if rollup_keys else None
    tags = [] if line.metadata is None else [*_make_tags(account, item_of(line))]
    counts = _count_row(account, draft.counted, rollup_keys, 1)
    return TraceRows(line.id, line.environment, columns, body, tags, _find_snapshots(decision_input), counts)


def _count_row(account: str, counted: Counted, rollup_keys: Sequence[str], sign: int) -> Row:
    """A row of ``uncounted``: the shape of a trace and its amounts."""
    group = group_of(counted, rollup_keys)
    shape = _shapes[group]
    if shape is None:
        shape = _encode((shape_of(counted, rollup_keys), rollup_keys))
        _shapes.put(group, shape)
    amounts = amounts_of(counted)
    return account, shape, sign, *(amounts if sign == 1 else [sign * amount for amount in amounts])


def _make_tags(account: str, trace: TraceItem) -> Iterator[Row]:
    for key, value in trace.metadata.items():
        text = text_of(value)
        if text is not None:
            yield account, key, text, trace.created_at, trace.id, number_of(value)


def delete(connection: Statements, account: str, selection: wire.DeleteTraces) -> Written:
    """Remove traces, oldest first, and subtract them."""
    count = 0
    while True:
        room = selection.limit - count
        keys = rows_of(connection, KEYS, account, selection, room, trace_id=selection.id, order="ASC")
        removed = forget(connection, account, keys)
        _count_out(connection, account, removed)
        count += len(removed)
        if len(keys) < room or count >= selection.limit:  # else others removed some, and there are more
            return Written(created=False, count=count)


def _find_snapshots(decision_input: DecisionInput | None) -> tuple[str, ...]:
    """Ids of the snapshots of a decision."""
    if decision_input is None:
        return ()
    names = decision_input.catalogue, decision_input.health
    return names if decision_input.policy is None else (*names, decision_input.policy)


def _count_uses(connection: Statements, snapshots: Iterable[tuple[str, ...]], sign: int) -> None:
    """Count the traces that name each snapshot."""
    counts: dict[str, int] = {}
    for snapshot_id in chain.from_iterable(snapshots):
        counts[snapshot_id] = counts.get(snapshot_id, 0) + sign
    insert(connection, _NAME, [(snapshot_id, 0, count, 0.0) for snapshot_id, count in sorted(counts.items())])
