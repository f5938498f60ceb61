"""A version 0.1 store upgrades completely or not at all, and each program refuses the other's version."""

from __future__ import annotations

import gzip
import os
import sqlite3
import subprocess
import sys
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routewright._core.accounts.payer import Tick
from routewright.backends.storage.sqlite import SqliteStorage, log, schema, upkeep
from routewright.backends.storage.sqlite.connection import connect
from routewright.backends.storage.sqlite.transaction import SETTLE
from routewright.backends.storage.sqlite.upkeep import check, upgrade
from routewright.backends.storage.sqlite.writer import Request
from routewright.errors import AuthenticationFailed, StorageVersion
from routewright.testing import FakeClock
from routewright.wire import Caller, Claim, Grant, Replay, RunLimit, Stands
from tests.contracts.storage.samples import Till, make_facts, make_row

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parents[1] / "data" / "old_store"
RECORDED_S = 1_795_338_000.0
"""2026-11-22T09:00:00Z, a moment after its process was killed."""
STATEMENTS = [each for each in schema.SECOND.split(";\n") if each.strip()]
WHEN = "2026-11-22T09:00:02.000Z"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The recorded store, as its process left it."""
    for name in ("store.db", "store.db.limits"):
        (tmp_path / name).write_bytes(gzip.decompress((FOLDER / f"{name}.gz").read_bytes()))
    return tmp_path / "store.db"


def ask(path: Path, sql: str) -> list[Any]:
    with closing(connect(str(path))) as connection:
        return connection.execute(sql).fetchall()


def storage_of(path: Path) -> SqliteStorage:
    return SqliteStorage(path, clock=FakeClock(RECORDED_S))


SAME = {
    "ledger": "SELECT account, name, charge, cost, credit, purses FROM ledger ORDER BY account, name",
    "purses": "SELECT account, name, spent, granted, told FROM purse ORDER BY account, name",
    "accounts": "SELECT account, body FROM account ORDER BY account",
    "keys": "SELECT account, id, digest, compromised_from, body FROM key ORDER BY account, id",
    "events": "SELECT account, id, body FROM event ORDER BY account, id",
    "usage": "SELECT * FROM usage",
    "tags": "SELECT * FROM tag",
}
"""What an upgrade leaves as it is, reservations aside."""


async def test_an_upgrade_keeps_sums_rows_answers_and_revocations_and_ends_reservations(path: Path) -> None:
    before = {name: ask(path, sql) for name, sql in SAME.items()}
    traces = ask(path, "SELECT account, id, body, content FROM trace ORDER BY n")
    held = ask(path, "SELECT account, id, nanos, purses FROM hold WHERE nanos > 0")
    kept = ask(path, "SELECT account, environment, key, fingerprint, result FROM claim WHERE result IS NOT NULL")
    running = ask(path, "SELECT account, environment, key FROM claim WHERE result IS NULL")
    revoked = ask(path, "SELECT account, id FROM key WHERE compromised_from IS NOT NULL")
    assert held
    assert kept
    assert running
    assert revoked
    assert upgrade(path) is not None
    after = {name: ask(path, sql) for name, sql in SAME.items()}
    expired = {(account, f"{call}/0", 0, 0, 0, purses) for account, call, _, purses in held}
    assert {*after["ledger"]} == {*before["ledger"]} | expired
    assert {name: rows for name, rows in after.items() if name != "ledger"} == {
        name: rows for name, rows in before.items() if name != "ledger"
    }
    assert ask(path, "SELECT account, id, trace, content FROM trace JOIN body USING (n) ORDER BY n") == traces
    assert check(path).problems == []
    async with aclosing(storage_of(path)) as storage:
        for account, environment, key, fingerprint, result in kept:
            till, caller = Till(storage, account), Caller(account, environment)
            assert await till.ask("again", caller=caller, same=Claim(key, fingerprint)) == Replay(result)
        for account, environment, key in running:
            found = await Till(storage, account).ask("new", caller=Caller(account, environment), same=Claim(key, "f"))
            assert isinstance(found, Grant), "its call is gone"
            Till(storage, account).accounts.release(found)
        for account, key in revoked:
            with pytest.raises(AuthenticationFailed):
                await Till(storage, account).ask("revoked", key=key)
        for account, call, nanos, _ in held:
            (row,) = await Till(storage, account).rows(request_id=call)
            assert (row.kind, row.charge_nanos, row.cost_range_nanos) == ("expired", 0, (0, nanos))
            standing = await storage.read(account, Stands(WHEN))
            assert [purse.reserved_nanos for purse in standing.purses] == [0] * len(standing.purses)


async def test_a_call_that_ran_through_the_upgrade_is_booked_once(path: Path) -> None:
    (account, call, key), *_ = ask(path, "SELECT account, id, key_id FROM hold WHERE nanos > 0")
    (spent,) = ask(path, f"SELECT spent FROM purse WHERE account = '{account}' AND name = 'month:2026-11'")[0]
    upgrade(path)
    async with aclosing(storage_of(path)) as storage:
        facts = make_facts(call, make_row(call, charge=7, key_id=key), caller=Caller(account, key_id=key))
        for _ in range(2):
            await storage.accounts.settle(None, facts)
        till = Till(storage, account)
        assert (await till.purses(WHEN, key=key, run=None))["month:2026-11"] == (spent + 7, 0)
        assert [row.kind for row in await till.rows(request_id=call)] == ["attempt"]
    assert check(path).problems == []


async def test_an_upgrade_counts_the_reservation_of_a_run_as_spent(path: Path) -> None:
    run = "run:run_9"
    with closing(connect(str(path))) as connection:
        connection.execute("INSERT INTO purse VALUES ('acme', ?, 5, 30, 0, 0, NULL)", (run,))
        connection.execute(
            "INSERT INTO hold VALUES ('acme', 'tr_9', 30, ?, 'own', ?, NULL)",
            (msgspec.json.encode([run, "account"]).decode(), WHEN),
        )
        connection.execute("UPDATE purse SET reserved = reserved + 30 WHERE account = 'acme' AND name = 'account'")
    upgrade(path)
    async with aclosing(storage_of(path)) as storage:
        assert (await Till(storage).purses(WHEN, key=None, run=RunLimit("run_9", 100)))[run] == (35, 0)


async def test_an_upgrade_keeps_rate_limit_windows(path: Path) -> None:
    limits = path.with_name("store.db.limits")
    upgrade(path)
    assert not limits.exists()
    (copies,) = ask(path, "SELECT count(*) FROM fold")[0]
    assert copies <= 1
    async with aclosing(storage_of(path)) as storage:
        assert isinstance(await Till(storage).ask("c"), Grant)
    assert check(path).problems == []


def test_an_upgrade_erases_prompts_from_where_they_were(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(path: str) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("PRAGMA secure_delete = OFF")  # as some builds of SQLite begin
        return connection

    monkeypatch.setattr(upkeep, "connect", careless)
    with closing(connect(str(path))) as connection:
        connection.execute("UPDATE trace SET content = ?", (b'"' + b"CANARY" * 2_000 + b'"',))
    before = path.read_bytes().count(b"CANARY")
    upgrade(path)
    assert 0 < path.read_bytes().count(b"CANARY") <= before


# Killed in the midst of it

KILLED = """
import os, sqlite3, sys
from pathlib import Path
from routewright.backends.storage.sqlite import upkeep

class Killed(sqlite3.Connection):
    def execute(self, sql, *given):
        global left
        left -= bool(began)
        if left < 0:
            os.kill(os.getpid(), 9)
        began.extend([sql] if sql == "BEGIN EXCLUSIVE" else [])
        return super().execute(sql, *given)

path, began, left = Path(sys.argv[1]), [], 0
kept = {name: path.with_name(name).read_bytes() for name in ("store.db", "store.db.limits")}
upkeep.connect = lambda path: sqlite3.connect(path, isolation_level=None, factory=Killed)
for at in map(int, sys.argv[2].split()):
    child = os.fork()
    if not child:
        path = path.parent / str(at) / "store.db"
        path.parent.mkdir()
        for name, data in kept.items():
            path.with_name(name).write_bytes(data)
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
def test_an_upgrade_killed_at_any_statement_leaves_the_old_or_the_new_store(path: Path, full: bool) -> None:
    places = range(len(STATEMENTS) + 12)
    chosen = places if full else [*places[::2], *places[-5::2]]
    assert len(chosen) >= 20
    old = contents(path)
    program = [sys.executable, "-c", KILLED, str(path), " ".join(map(str, sorted({*chosen})))]
    subprocess.run(program, check=True, timeout=100)
    upgrade(path)
    new, versions = contents(path), list[int]()
    for at in chosen:
        left = path.parent / str(at) / "store.db"
        (version,) = ask(left, "PRAGMA user_version")[0]
        versions.append(version)
        assert contents(left) == (old if version == 1 else new), f"killed at {at}"
        assert ask(left, "PRAGMA integrity_check") == [("ok",)]
    assert {*versions} == {1, 2}
    assert upgrade(path.parent / str(chosen[5]) / "store.db") is not None, "it may be tried again"
    assert contents(path.parent / str(chosen[5]) / "store.db") == new


# Programs of two versions


async def test_the_old_version_refuses_a_new_file_with_one_sentence(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(path)
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
    async with aclosing(storage_of(path)) as storage:
        with pytest.raises(StorageVersion, match=r"is of version 2, and this routewright knows versions up to 1"):
            await Till(storage).ask("c")
    assert ask(path, "SELECT count(*) FROM tick") == [(0,)]


async def test_an_old_file_is_refused_with_one_sentence(path: Path) -> None:
    async with aclosing(storage_of(path)) as storage:
        with pytest.raises(StorageVersion, match="routewright store upgrade"):
            await Till(storage).ask("c")


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
