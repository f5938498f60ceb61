"""What each kind of write does to the tables, inside a transaction of the writer's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from routewright._core.analytics.rollup import Rollups, packed
from routewright._core.batch import check_batch, check_digests, ids_of
from routewright._core.changes import change
from routewright._core.trace.filter import number_of, text_of
from routewright.errors import StorageCorrupt
from routewright.wire import (
    DeleteTraces,
    Environment,
    HealthSnapshot,
    PutFeedback,
    PutSnapshot,
    PutTrace,
    SetRetention,
    Snapshot,
    Trace,
    TraceItem,
    Write,
    Written,
)

from .books.write import BookWrites, holder_of, things_before
from .connection import Connection
from .many import insert, rows_where
from .read import SETTING, whole
from .selection import rows_of

LONGEST_CHAIN = 32
"""Changes of health that are stored one upon the other."""
STORED = "trace.n, trace.id, trace.model, trace.body, trace.rollup_keys"
"""The columns of a ``Stored``."""

_OF_TRACES = (PutTrace, PutFeedback, PutSnapshot, DeleteTraces, SetRetention)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode
_COLUMNS = (
    "account created_at id environment status kind model provider policy_id goal strategy error cache_hit "
    "fallback_used compromised cost_usd duration_ms key_id body rollup_keys content"
).split()
_PUT_TRACE = f"INSERT INTO trace ({', '.join(_COLUMNS)}) VALUES {{}}"
_PUT_TAG = "INSERT OR REPLACE INTO tag (account, key, value, created_at, id, number) VALUES {}"
_DELETE_TAG = "DELETE FROM tag WHERE account = ? AND key = ? AND value = ? AND created_at = ? AND id = ?"
_NAME = """
INSERT INTO snapshot (id, depth, named, at) VALUES {}
ON CONFLICT (id) DO UPDATE SET named = named + excluded.named
"""
_PUT_SNAPSHOT = """
INSERT INTO snapshot (id, body, base, depth, at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET body = excluded.body, base = excluded.base, depth = excluded.depth, at = excluded.at
"""
_BY_IDS = "FROM trace INDEXED BY trace_by_id WHERE account = ? AND id IN ({})"


class Sums(NamedTuple):
    """A roll-up as SQL."""

    add: str
    """Adds to a row, or makes it."""
    drop: str
    """Removes a row of which nothing is left."""


def _sums(table: str, keys: str, amounts: str, *, merge: bool = False) -> Sums:
    names, columns = keys.split(), amounts.split()
    added = (f"merged({each}, excluded.{each})" if merge else f"{each} + excluded.{each}" for each in columns)
    sets = ", ".join(f"{column} = {value}" for column, value in zip(columns, added, strict=True))
    where = " AND ".join(f"{name} = ?" for name in names)
    nothing = f"length({columns[0]}) = 0" if merge else f"{columns[0]} = 0"
    return Sums(
        f"INSERT INTO {table} ({', '.join([*names, *columns])}) VALUES {{}} "
        f"ON CONFLICT ({', '.join(names)}) DO UPDATE SET {sets}",
        f"DELETE FROM {table} WHERE {where} AND {nothing}",
    )


_USAGE = _sums(
    "usage",
    "account per group_by environment start value",
    "requests errors cost_nanos charged_nanos input_tokens output_tokens cached_tokens",
)
_CACHE = _sums("cache_use", "account environment day age", "lookups saved_nanos")
_FALLBACK = _sums("fallback_use", "account environment day kind name", "total counted")
_LATENCY = _sums("latency", "account environment day model strategy", "buckets", merge=True)


class Stored(NamedTuple):
    """A row of ``trace``."""

    n: int
    id: str
    model: str
    """Whose usage it was counted as; of what version 0.1 wrote that is nobody's where the call failed."""
    trace: Trace | None
    """Without its content. None: it is damaged, and nobody knows any more what it was counted as."""
    rollup_keys: tuple[str, ...]

    @classmethod
    def of(cls, row: Sequence[Any]) -> Stored:
        """The row of ``STORED`` columns."""
        n, trace_id, model, body, keys = row
        try:
            return cls(n, trace_id, model, whole(trace_id, body), () if keys is None else tuple(_decode(keys)))
        except StorageCorrupt:
            return cls(n, trace_id, model, None, ())


class Writes:
    """Applies batches. To be used by one thread at a time."""

    def __init__(self) -> None:
        self._health: HealthSnapshot | None = None
        """The last that was put: the next is stored as what changed since."""

    def batch(self, account: str, writes: Sequence[Write], connection: Connection) -> list[Written]:
        """Apply a batch. Raises ``PreconditionFailed`` and ``UnsupportedWrite`` before anything is done."""
        traces, snapshots = ids_of(writes)
        environments = _environments(connection, account, traces)
        booked = things_before(connection, account)
        check_batch("SqliteStorage", account, writes, environments, _present(connection, snapshots), booked)
        check_digests(account, writes, partial(holder_of, connection))
        books = BookWrites(connection, account, [each for each in writes if not isinstance(each, _OF_TRACES)])
        results: list[Written] = []
        for run in _runs(writes):
            match run[0]:
                case PutTrace():
                    results += _put_traces(connection, account, run, environments)
                case PutFeedback() as feedback:
                    results.append(_put_feedback(connection, account, feedback))
                case PutSnapshot(snapshot, at=at):
                    results.append(self._put_snapshot(connection, snapshot, at))
                case DeleteTraces() as which:
                    results.append(_delete(connection, account, which))
                case SetRetention() as retention:
                    sql = "INSERT OR REPLACE INTO setting (name, body) VALUES (?, ?)"
                    connection.execute(sql, (SETTING, _encode(retention)))
                    results.append(Written(created=False))
                case other:
                    results.append(books.put(other))
        books.flush()
        return results

    def _put_snapshot(self, connection: Connection, snapshot: Snapshot, at: float) -> Written:
        sql = "UPDATE snapshot SET at = max(at, ?) WHERE id = ? AND body IS NOT NULL RETURNING 1"
        if connection.execute(sql, (at, snapshot.id)).fetchall():
            return Written(created=False)
        base, depth, body = None, 0, _encode(snapshot)
        if isinstance(snapshot, HealthSnapshot):
            base, depth, body = self._since_last(connection, snapshot, body)
            self._health = snapshot
        connection.execute(_PUT_SNAPSHOT, (snapshot.id, body, base, depth, at))
        return Written(created=True)

    def _since_last(
        self, connection: Connection, snapshot: HealthSnapshot, body: bytes
    ) -> tuple[str | None, int, bytes]:
        """What to store of a health snapshot: its base, the length of the chain to a whole one, its body."""
        last = self._health
        if last is None or last.id == snapshot.id:
            return None, 0, body
        sql = "SELECT depth FROM snapshot WHERE id = ? AND body IS NOT NULL"
        row = connection.execute(sql, (last.id,)).fetchone()  # the batch that put it may have failed
        changes = _encode(change(last, snapshot))
        if row is None or row[0] >= LONGEST_CHAIN or len(changes) * 2 > len(body):
            return None, 0, body
        return last.id, row[0] + 1, changes


def forget(connection: Connection, account: str, rows: Sequence[Stored]) -> None:
    """Remove traces and what belongs to them. They stay counted."""
    owned = [(account, row.id) for row in rows]
    connection.executemany("DELETE FROM feedback WHERE account = ? AND trace_id = ?", owned)
    _remove(connection, account, rows)


def _remove(connection: Connection, account: str, rows: Sequence[Stored]) -> None:
    """Remove traces, but not what was said of them."""
    traces = [row.trace for row in rows if row.trace is not None]
    connection.executemany(_DELETE_TAG, [tag[:5] for trace in traces for tag in _tags(account, trace)])
    damaged = [(account, row.id) for row in rows if row.trace is None]
    connection.executemany("DELETE FROM tag WHERE account = ? AND id = ?", damaged)
    connection.executemany("DELETE FROM trace WHERE account = ? AND n = ?", [(account, row.n) for row in rows])
    _name(connection, traces, -1)


def _count_out(connection: Connection, account: str, rows: Sequence[Stored]) -> None:
    rollups = Rollups()
    for row in rows:
        if row.trace is not None:
            rollups.add(row.trace, row.rollup_keys, sign=-1, model=row.model)
    _add(connection, account, rollups, may_empty=True)


def _runs(writes: Sequence[Write]) -> Iterator[Sequence[Any]]:
    """Writes one by one, but traces as many as follow each other, each of another id."""
    run: dict[str, PutTrace] = {}
    for write in writes:
        if run and not (isinstance(write, PutTrace) and write.trace.id not in run):
            yield [*run.values()]
            run = {}
        if isinstance(write, PutTrace):
            run[write.trace.id] = write
        else:
            yield [write]
    if run:
        yield [*run.values()]


def _put_traces(
    connection: Connection, account: str, writes: Sequence[PutTrace], known: dict[str, Environment]
) -> list[Written]:
    """Put traces of different ids; ``known`` are those that are there, and then also these."""
    results = [Written(write.trace.id not in known) for write in writes]
    replaced = [write.trace.id for write in writes if write.trace.id in known]
    if replaced:
        rows = rows_where(connection, f"SELECT {STORED} {_BY_IDS}", replaced, account)
        before = [Stored.of(row) for row in rows]
        _remove(connection, account, before)
        _count_out(connection, account, before)
    rollups = Rollups()
    for write in writes:
        known[write.trace.id] = write.trace.environment
        rollups.add(write.trace, write.rollup_keys)
    insert(connection, _PUT_TRACE, [_row(account, write) for write in writes])
    insert(connection, _PUT_TAG, [tag for write in writes for tag in _tags(account, write.trace)])
    _name(connection, (write.trace for write in writes), 1)
    _add(connection, account, rollups, may_empty=False)
    return results


def _row(account: str, write: PutTrace) -> tuple[Any, ...]:
    trace, content = write.trace, write.trace.content
    if content is not None:
        trace = replace(trace, content=None)
    return (
        account,
        trace.created_at,
        trace.id,
        trace.environment,
        trace.status,
        trace.kind,
        trace.model or "",
        trace.provider or "",
        trace.policy_id or "",
        trace.goal,
        trace.strategy,
        trace.error or "",
        trace.cache_hit,
        trace.fallback_used,
        trace.compromised,
        trace.cost_usd,
        trace.duration_ms,
        trace.key_id,
        _encode(trace),
        _encode(write.rollup_keys) if write.rollup_keys else None,
        None if content is None else _encode(content),
    )


def _tags(account: str, trace: TraceItem) -> Iterator[tuple[Any, ...]]:
    for key, value in trace.metadata.items():
        text = text_of(value)
        if text is not None:
            yield account, key, text, trace.created_at, trace.id, number_of(value)


def _put_feedback(connection: Connection, account: str, feedback: PutFeedback) -> Written:
    gone = "DELETE FROM feedback WHERE account = ? AND trace_id = ? RETURNING 1"
    created = not connection.execute(gone, (account, feedback.trace_id)).fetchall()
    sql = "INSERT INTO feedback (account, trace_id, body) VALUES (?, ?, ?)"
    connection.execute(sql, (account, feedback.trace_id, _encode(feedback)))
    return Written(created)


def _delete(connection: Connection, account: str, which: DeleteTraces) -> Written:
    rows = rows_of(connection, STORED, account, which, which.limit, trace_id=which.id, order="ASC")
    found = [Stored.of(row) for row in rows]
    forget(connection, account, found)
    _count_out(connection, account, found)
    return Written(created=False, count=len(found))


def _name(connection: Connection, traces: Iterable[Trace], by: int) -> None:
    """Count the traces that name each snapshot."""
    named: Counter[str] = Counter()
    for trace in traces:
        given = trace.decision_input
        if given is not None:
            named.update(name for name in (given.catalogue, given.health, given.policy) if name is not None)
    insert(connection, _NAME, [(snapshot_id, 0, by * count, 0.0) for snapshot_id, count in named.items()])


def _add(connection: Connection, account: str, rollups: Rollups, *, may_empty: bool) -> None:
    """Add sums to the roll-ups. ``may_empty``: some are negative, and rows of which nothing is left go."""
    usage = [
        ((account, per, key.group_by, key.environment, key.start, key.value), sums)
        for per, rows in (("hour", rollups.usage), ("day", rollups.days()))
        for key, sums in rows.items()
    ]
    cache = [((account, *key[:3]), sums) for key, sums in rollups.cache.items()]
    fallback = [((account, *key), sums) for key, sums in rollups.fallback.items()]
    latency = [((account, *key), [packed(buckets)]) for key, buckets in rollups.latency.items()]
    for sql, rows in ((_USAGE, usage), (_CACHE, cache), (_FALLBACK, fallback), (_LATENCY, latency)):
        insert(connection, sql.add, [(*key, *sums) for key, sums in rows])
        if may_empty:
            connection.executemany(sql.drop, [key for key, _ in rows])


def _environments(connection: Connection, account: str, ids: Sequence[str]) -> dict[str, Environment]:
    return dict(rows_where(connection, f"SELECT id, environment {_BY_IDS}", ids, account))


def _present(connection: Connection, ids: Sequence[str]) -> set[str]:
    sql = "SELECT id FROM snapshot WHERE body IS NOT NULL AND id IN ({})"
    return {found for (found,) in rows_where(connection, sql, ids)}
