"""Filters: values reach SQL only as bound parameters, and malformed terms are refused."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from routewright.backends.storage.memory import MemoryStorage
from routewright.backends.storage.sqlite import SqliteStorage
from routewright.errors import UnsupportedWrite
from routewright.wire import DeleteTraces, PutTrace, Term, TraceItems, Traces
from tests.contracts.storage.samples import make_trace
from tests.tables import table

pytestmark = pytest.mark.anyio

OPS: tuple[Any, ...] = ("= '' OR 1=1 --", "IS NOT", "LIKE", "<>", "", "= ?1); DELETE FROM trace; --")
KEYS = ("1=1 OR trace.status", "body", "rowid", "status = 'x' OR trace.status", "")
COMPARED: tuple[tuple[str, Any], ...] = (("status", "x"), ("cost_usd", 1.0), ("metadata.team", 1.0))
WRONG = [
    *(Term(key, op, value) for op in OPS for key, value in COMPARED),
    *(Term(key, "!=", "x") for key in KEYS),
    Term("account", "!=", "x"),
    Term("metadata.team", OPS[0], "x"),
]
"""Terms that no parser makes."""


@table("term", WRONG, ids=repr)
async def test_sqlite_refuses_a_term_that_no_parser_made(term: Term, tmp_path: Path) -> None:
    trace = make_trace(1, metadata={"team": 2.0})
    async with aclosing(SqliteStorage(tmp_path / "traces.db")) as storage:
        for account in ("default", "other"):
            await storage.apply(account, [PutTrace(trace)])
        asked: list[Any] = [TraceItems(terms=(term,)), Traces(terms=(Term("metadata.team", "=", "2"), term))]
        for query in asked:
            with pytest.raises(UnsupportedWrite, match="SqliteStorage knows no term with"):
                await storage.scan("default", query, after=None, limit=5)
        with pytest.raises(UnsupportedWrite):
            await storage.apply("default", [DeleteTraces(terms=(term,))])
        for account in ("default", "other"):
            assert len(await storage.scan(account, TraceItems(), after=None, limit=5)) == 1


@table("term", WRONG, ids=repr)
async def test_memory_refuses_a_term_that_no_parser_made(term: Term) -> None:
    storage = MemoryStorage()
    await storage.apply("default", [PutTrace(make_trace(1, metadata={"team": 2.0}))])
    with pytest.raises(UnsupportedWrite, match="MemoryStorage knows no term with"):
        await storage.scan("default", TraceItems(terms=(term,)), after=None, limit=5)
    with pytest.raises(UnsupportedWrite):
        await storage.apply("default", [DeleteTraces(terms=(term,))])


@pytest.mark.parametrize("key", ["x' OR 1=1 --", "?", "", "a\0b", "{}", "team') OR ('1'='1"])
async def test_a_key_of_metadata_is_a_value_whatever_it_holds(key: str, tmp_path: Path) -> None:
    async with aclosing(SqliteStorage(tmp_path / "traces.db")) as storage:
        await storage.apply("default", [PutTrace(make_trace(1, metadata={"team": "search"}))])
        name = f"metadata.{key}"
        for term, many in [(Term(name, "=", "search"), 0), (Term(name, "!=", "search"), 1), (Term(name, ">", 0.0), 0)]:
            assert len(await storage.scan("default", TraceItems(terms=(term,)), after=None, limit=5)) == many
