"""A store upgrades completely or not at all, and each program refuses versions that it does not know."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from routewright._core.accounts.log import Tick
from routewright.backends.storage.sqlite import SqliteStorage, log, schema, upkeep
from routewright.backends.storage.sqlite.file import connect
from routewright.backends.storage.sqlite.upkeep import check, upgrade
from routewright.backends.storage.sqlite.writer import Request
from routewright.backends.storage.tables.ledger import SETTLE
from routewright.errors import StorageVersion
from routewright.testing import FakeClock
from routewright.wire import PutTrace, Replay
from tests.contracts.storage.samples import Till, make_row, make_trace

pytestmark = pytest.mark.anyio

RECORDED_S = 1_795_338_000.0
"""2026-11-22T09:00:00Z"""
NEXT = """
CREATE TABLE wide (n INTEGER PRIMARY KEY, trace BLOB NOT NULL, content BLOB, rollup_keys TEXT, mood TEXT);
INSERT INTO wide (n, trace, content, rollup_keys) SELECT n, trace, content, rollup_keys FROM body;
DROP TABLE body;
ALTER TABLE wide RENAME TO body;
CREATE INDEX body_mood ON body (mood) WHERE mood IS NOT NULL;
UPDATE purse SET told = told + 1;
UPDATE ledger SET note = 'rewritten';
DELETE FROM event;
"""
"""A migration that rebuilds a table."""
STATEMENTS = [each for each in NEXT.split(";\n") if each.strip()]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with some traces and money, as a program newer by one migration finds it."""
    path = tmp_path / "store.db"
    anyio.run(_fill, path)
    with closing(connect(str(path))) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    monkeypatch.setattr(schema, "MIGRATIONS", (NEXT,))
    return path


async def _fill(path: Path) -> None:
    async with aclosing(storage_of(path)) as storage:
        till = await Till(storage).open_full()
        await till.admit("c", 100, key="k")
        await till.settle("c", make_row("c", charge=7))
        await storage.apply("default", [PutTrace(make_trace(number)) for number in range(3)])


def ask(path: Path, sql: str) -> list[Any]:
    with closing(connect(str(path))) as connection:
        return connection.execute(sql).fetchall()


def storage_of(path: Path) -> SqliteStorage:
    return SqliteStorage(path, clock=FakeClock(RECORDED_S))


def test_an_upgrade_erases_prompts_from_where_they_were(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(path: str) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("PRAGMA secure_delete = OFF")  # as some builds of SQLite begin
        return connection

    monkeypatch.setattr(upkeep, "connect", careless)
    with closing(connect(str(path))) as connection:
        connection.execute("UPDATE body SET content = ?", (b'"' + b"CANARY" * 2_000 + b'"',))
    before = path.read_bytes().count(b"CANARY")
    upgrade(path)
    assert 0 < path.read_bytes().count(b"CANARY") <= before


# Killed in the midst of it

KILLED = """
import os, sqlite3, sys
from pathlib import Path
from routewright.backends.storage.sqlite import schema, upkeep

class Killed(sqlite3.Connection):
    def execute(self, sql, *given):
        global left
        left -= bool(began)
        if left < 0:
            os.kill(os.getpid(), 9)
        began.extend([sql] if sql == "BEGIN EXCLUSIVE" else [])
        return super().execute(sql, *given)

path, schema.MIGRATIONS, began, left = Path(sys.argv[1]), (sys.argv[3],), [], 0
kept = path.read_bytes()
upkeep.connect = lambda path: sqlite3.connect(path, isolation_level=None, factory=Killed)
for at in map(int, sys.argv[2].split()):
    child = os.fork()
    if not child:
        path = path.parent / str(at) / "store.db"
        path.parent.mkdir()
        path.write_bytes(kept)
        left = at
        try:
            upkeep.upgrade(path)
        except BaseException as error:
            print(repr(error))
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] in (0, 9)
"""


def contents(path: Path) -> list[str]:
    """All that a file holds, as SQL: of two that hold the same it is the same, but for the id of the store."""
    with closing(sqlite3.connect(path)) as connection:
        return [line for line in connection.iterdump() if '"setting"' not in line]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_an_upgrade_killed_at_any_statement_leaves_the_old_or_the_new_store(path: Path) -> None:
    chosen = range(len(STATEMENTS) + 8)
    old = contents(path)
    program = [sys.executable, "-c", KILLED, str(path), " ".join(map(str, sorted({*chosen}))), NEXT]
    subprocess.run(program, check=True, timeout=100)
    upgrade(path)
    new, versions = contents(path), list[int]()
    for at in chosen:
        left = path.parent / str(at) / "store.db"
        (version,) = ask(left, "PRAGMA user_version")[0]
        versions.append(version)
        assert contents(left) == (old if version == 2 else new), f"killed at {at}"
        assert ask(left, "PRAGMA integrity_check") == [("ok",)]
    assert {*versions} == {2, 3}
    assert upgrade(path.parent / str(chosen[2]) / "store.db") is not None, "it may be tried again"
    assert contents(path.parent / str(chosen[2]) / "store.db") == new


# Programs of two versions


async def test_a_file_too_old_to_upgrade_is_refused_unchanged(path: Path) -> None:
    ask(path, "PRAGMA user_version = 1")
    before = contents(path)
    said = "is of version 1, and the oldest version that can be upgraded is 2"
    for program in (upgrade, check):
        with pytest.raises(StorageVersion, match=said):
            program(path)
    async with aclosing(storage_of(path)) as storage:
        with pytest.raises(StorageVersion, match=said):
            await Till(storage).ask("c")
    assert contents(path) == before


def plant(path: Path, version: int, ops: bytes) -> None:
    """Add a tick of another process."""
    sql = "INSERT INTO tick (owner, at, until, format, ops) SELECT 1, at, until, ?, ? FROM tick ORDER BY n DESC LIMIT 1"
    with closing(connect(str(path))) as connection:
        connection.execute(sql, (version, ops))


async def test_a_tick_of_a_newer_program_stops_this_one_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    async with aclosing(storage_of(path)) as storage, aclosing(storage_of(path)) as other:
        till, second = await Till(storage).open_full(), Till(other)
        await till.admit("c", 100, key="k", same="i")
        await second.admit("d", 100)
        plant(path, log.FORMAT + 1, b"who knows")
        before = contents(path)
        for _ in range(3):
            for each in (till, second):
                with pytest.raises(StorageVersion, match="written by a newer routewright"):
                    await each.ask("e", 1)
                with pytest.raises(StorageVersion, match="written by a newer routewright"):
                    await each.settle("c", make_row("c", charge=7))
        async with aclosing(storage_of(path)) as new:
            with pytest.raises(StorageVersion, match="written by a newer routewright"):
                await Till(new).settle("c", make_row("c", charge=7))
        assert contents(path) == before
        ask(path, f"DELETE FROM tick WHERE format > {log.FORMAT}")  # as if it had been another's
        plant(path, log.FORMAT, msgspec.msgpack.encode(Tick()))
        await till.settle("c", make_row("c", charge=7), result=b"answer")
        assert await second.ask("f", same="i") == Replay(b"answer")
        assert (await second.purses())["month:2026-11"] == (7, 100)


async def test_all_settlements_of_a_transaction_stop_at_a_newer_programs_tick(tmp_path: Path) -> None:
    """The first of them finds it; those behind it must not go on with half of the state."""
    path = tmp_path / "traces.db"
    async with aclosing(storage_of(path)) as storage:
        till = await Till(storage).open_full()
        await till.admit("c", 100)
        plant(path, log.FORMAT + 1, b"who knows")
        before, transaction, writer = contents(path), storage._writer.transaction, storage._writer
        requests = [Request(lambda _: transaction.release("c", 0), SETTLE) for _ in range(3)]
        writer._run(requests)
        assert [type(request.error) for request in requests] == [StorageVersion] * 3
        assert contents(path) == before
