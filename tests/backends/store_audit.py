"""Reads a store's file and checks that all derived data matches its traces."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from routewright._core.analytics.rollup import Rollups, merge_buckets, unpack_buckets
from routewright._core.trace.filter import text_of
from routewright.backends.storage.sqlite.file import connect
from routewright.backends.storage.sqlite.upkeep import check
from routewright.backends.storage.tables.rollup import roll
from routewright.backends.storage.tables.traces import STORED, Stored
from routewright.errors import RouterError
from routewright.protocols import Storage
from routewright.wire import PutTrace, Trace, TraceById, TraceItems
from tests.contracts.storage.samples import make_trace

Table = dict[tuple[Any, ...], Any]

_KEYS = {"usage": 6, "cache_use": 4, "fallback_use": 5, "latency": 5}
"""How many columns say what a row of a roll-up is about; those behind them are its sums."""


def names_of(trace: Trace) -> Iterator[str]:
    """Ids of the snapshots that a trace names."""
    given = trace.decision_input
    if given is not None:
        yield from (name for name in (given.catalogue, given.health, given.policy) if name is not None)


def assert_sound(path: Path) -> None:
    """The file is whole, every trace in it can be read, and what is derived is as if it were made anew."""
    assert check(path).problems == []
    with closing(connect(str(path))) as connection:
        connection.create_function("merged", 2, merge_buckets)
        connection.execute("BEGIN IMMEDIATE")
        while roll(connection):  # what is not counted yet; it is rolled back
            pass
        found = connection.execute(f"SELECT account, {STORED} FROM trace").fetchall()
        rows = [(account, Stored.of(*row)) for account, *row in found]
        assert len({(account, row.id) for account, row in rows}) == len(rows), "a trace is there twice"
        due = _due(rows)
        for table, there in _there(connection).items():
            assert there == due[table], f"{table} is not what the traces make"


async def refusal_of(storage: Storage, kind: type[RouterError], match: str) -> RouterError:
    """The error of every use of a storage, also of the second one."""
    for _ in range(2):
        for asked in (
            storage.apply("default", [PutTrace(make_trace(1))]),
            storage.read("default", TraceById("tr_1")),
            storage.scan("default", TraceItems(), after=None, limit=5),
            storage.sweep(0.0),
        ):
            with pytest.raises(kind, match=match) as raised:
                await asked
    return raised.value


def _there(connection: sqlite3.Connection) -> dict[str, Table]:
    found: dict[str, Table] = {}
    for table, keys in _KEYS.items():
        rows = connection.execute(f"SELECT * FROM {table}").fetchall()
        found[table] = {row[:keys]: [*row[keys:]] for row in rows}
    found["latency"] = {key: unpack_buckets(buckets) for key, (buckets,) in found["latency"].items()}
    tags = connection.execute("SELECT account, key, value, created_at, id FROM tag").fetchall()
    found["tag"] = dict.fromkeys(tags)
    named = connection.execute("SELECT id, named FROM snapshot WHERE named <> 0").fetchall()
    found["snapshot"] = {(name,): count for name, count in named}
    return found


def _due(rows: list[tuple[str, Stored]]) -> dict[str, Table]:
    due: dict[str, Table] = {table: {} for table in (*_KEYS, "tag")}
    by_account: dict[str, Rollups] = {}
    named: Counter[str] = Counter()
    for account, row in rows:
        trace = row.trace
        assert trace is not None, f"{row.id} is damaged"
        named.update(names_of(trace))
        by_account.setdefault(account, Rollups()).add(trace, row.rollup_keys)
        for key, value in trace.metadata.items():
            text = text_of(value)
            if text is not None:
                due["tag"][account, key, text, trace.created_at, trace.id] = None
    for account, sums in by_account.items():
        for per, usage in (("hour", sums.usage), ("day", sums.days())):
            for use, amounts in usage.items():
                due["usage"][account, per, use.group_by, use.environment, use.start, use.value] = [*amounts]
        due["cache_use"] |= {(account, *key[:3]): [*amounts] for key, amounts in sums.cache.items()}
        due["fallback_use"] |= {(account, *key): [*amounts] for key, amounts in sums.fallback.items()}
        due["latency"] |= {(account, *key): dict(buckets) for key, buckets in sums.latency.items()}
    due["snapshot"] = {(name,): count for name, count in named.items()}
    return due
