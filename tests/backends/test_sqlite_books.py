"""What a file promises besides about money and keys: few statements, by index; damage is found; what goes is gone."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright._core.books import INCIDENTS
from routewright.backends.storage.sqlite import SqliteStorage, schema, upkeep
from routewright.backends.storage.sqlite.books import owners, read, shelf, write
from routewright.backends.storage.sqlite.books import upkeep as sweep
from routewright.backends.storage.sqlite.connection import connect
from routewright.errors import InternalError, PreconditionFailed, StorageCorrupt
from routewright.testing.storage import make_trace
from routewright.testing.storage.accounts import INCIDENT, writes_of
from routewright.testing.storage.samples import (
    AT,
    EVENTS,
    NOW,
    RUN,
    Till,
    claim,
    end,
    make_account,
    make_key,
    make_row,
    reservation,
)
from routewright.wire import (
    SYSTEM_ACCOUNT,
    Accounts,
    ClaimByKey,
    DeleteResults,
    EndClaim,
    Events,
    Incidents,
    KeepLease,
    KeyByDigest,
    Keys,
    LedgerRows,
    PutAccount,
    PutIncident,
    PutKey,
    PutTrace,
    Reserve,
    RevokeKey,
    Settle,
    Stands,
    Term,
    TraceItems,
    Write,
)

pytestmark = pytest.mark.anyio
WEEK_S = 7 * 86_400.0
AT_S = 1_795_253_400.0
"""``AT`` in Unix seconds."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the contract suite runs on trio, too


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


@pytest.fixture
async def storage(path: Path) -> AsyncIterator[SqliteStorage]:
    storage = SqliteStorage(path)
    yield storage
    await storage.aclose()


def execute(path: Path, sql: str) -> list[Any]:
    with closing(connect(str(path))) as connection:
        return connection.execute(sql).fetchall()


# How it is asked


PLANS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": sql
    for module in (shelf, write, read, sweep, owners)
    for name, sql in vars(module).items()
    if isinstance(sql, str) and re.match(r"\s*(SELECT|UPDATE|DELETE)\b", sql)
}
OF_FEW = {
    *("read.ACCOUNTS", "read._INCIDENTS", "read._KEYS", "upkeep.HOLDING", "write._OLD_INCIDENTS", "shelf._HOLDS_OF"),
    *("owners._ALL", "owners._LAST", "shelf._ACCOUNT", "write._ACCOUNT"),
}
"""What has a row for each account, key or call that runs, a hundred incidents, or a few processes."""
OF_ALL = {"read.SUMS_OF_ALL"}
"""What is asked once a month."""


@pytest.mark.parametrize("name", sorted(PLANS))
def test_every_statement_finds_its_rows_by_an_index(name: str) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.migrate(connection, 0)
        sql = PLANS[name].replace("{}", "?, ?")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("?"))]
    steps = [step for step in plan if step.startswith(("SCAN", "SEARCH"))]
    assert steps or name == "IS_DUE"
    if name not in OF_FEW | OF_ALL:
        assert not [step for step in steps if step.startswith("SCAN") and step != "SCAN CONSTANT ROW"]
        assert not [step for step in steps if step.endswith("(account=?)")], "and not by reading all of an account"


@pytest.mark.parametrize("asked", [{}, {"since": AT}, {"until": AT}, {"request_id": "c"}], ids=str)
async def test_a_page_of_the_ledger_walks_along_an_index(path: Path, asked: dict[str, str]) -> None:
    counting = Counting()
    storage = SqliteStorage(path, connect=counting)
    await storage.scan("acme", LedgerRows(**asked), after=f"{AT}c/1", limit=9)
    (sql,) = [each for each in counting.seen if "FROM ledger" in each]
    steps = [row[3] for row in execute(path, f"EXPLAIN QUERY PLAN {sql}")]
    index = (
        "INDEX ledger_by_name (account=? AND name>? AND name<?)" if "request_id" in asked else "PRIMARY KEY (account"
    )
    assert f"SEARCH ledger USING {index}" in steps[0]
    assert len(steps) == 1 or "request_id" in asked
    await storage.aclose()


class Counting:
    """``connect`` that counts statements, those of transactions aside."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, path: str) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_trace_callback(self._note)
        return connection

    def _note(self, sql: str) -> None:
        if sql.split()[0] not in ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "PRAGMA"):
            self.seen.append(sql)


async def test_a_reservation_and_its_settlement_take_seven_statements_each(path: Path) -> None:
    counting = Counting()
    storage = SqliteStorage(path, connect=counting)
    till = await Till(storage).open_full()
    for call in ("c", "d"):
        counting.seen.clear()
        await till.reserve(call, 10, key_id="k", run=RUN)
        assert len(counting.seen) <= 8, counting.seen
        counting.seen.clear()
        await till.settle(call, make_row(call, charge=5), event_ids=EVENTS)
        assert len(counting.seen) <= 8, counting.seen
    await storage.aclose()


async def test_calls_that_nobody_limits_are_booked_many_a_statement(path: Path) -> None:
    counting = Counting()
    storage = SqliteStorage(path, connect=counting)
    calls = [make_trace(number, decision_input=None, metadata={}).id for number in range(256)]
    settles: list[Write] = [Settle(id=call, at=AT, rows=(make_row(call, charge=5),)) for call in calls]
    await storage.apply("default", [])
    counting.seen.clear()
    await storage.apply("default", settles)
    assert len(counting.seen) <= 8, "account, reservations and rows that are there, and 256 rows by 64"
    assert len(await storage.scan("default", LedgerRows(), after=None, limit=999)) == 256
    await storage.aclose()


async def test_accounts_without_revoked_keys_are_filtered_as_if_there_were_no_keys(path: Path) -> None:
    counting = Counting()
    storage = SqliteStorage(path, connect=counting)
    await storage.apply("acme", [PutKey(make_key()), PutTrace(make_trace(1, key_id="k"))])
    counting.seen.clear()
    asked = TraceItems(terms=(Term("compromised", "=", True),))
    assert await storage.scan("acme", asked, after=None, limit=9) == []
    assert not [sql for sql in counting.seen if "EXISTS (SELECT 1 FROM key" in sql]
    await storage.aclose()


async def test_what_another_process_changes_is_seen_at_once(path: Path, storage: SqliteStorage) -> None:
    other = SqliteStorage(path)
    till, theirs = await Till(storage).open(make_key(budget_nanos=100)), Till(other)
    for budget in (100, 50, 70):
        await theirs.put(PutKey(make_key(budget_nanos=budget)))
        await theirs.put(PutAccount(make_account(monthly_nanos=budget + 1)))
        told = await till.refused("c", budget + 1, key_id="k")
        assert (told["name"], told["limit_nanos"]) == ("key:k", budget)
        told = await till.refused("c", budget + 2)
        assert (told["name"], told["limit_nanos"]) == ("month:2026-11", budget + 1)
    await theirs.reserve("c", 60)
    assert (await till.refused("d", 12))["reserved_nanos"] == 60
    await theirs.put(RevokeKey("k", AT))
    found = await storage.read(SYSTEM_ACCOUNT, KeyByDigest((make_key().digest,)))
    assert found is not None
    assert found.revoked_at == AT
    await other.aclose()


async def test_one_request_that_has_no_room_takes_none_of_its_transaction_along(storage: SqliteStorage) -> None:
    till = await Till(storage).open(monthly_nanos=100)
    outcomes: dict[int, str] = {}

    async def reserve(number: int) -> None:
        try:
            await till.reserve(f"c{number}", (10, 1_000, 2**63)[number % 3])
            outcomes[number] = "held"
        except (PreconditionFailed, InternalError) as error:
            outcomes[number] = type(error).__name__

    await till.put(PutAccount(make_account(monthly_nanos=None)))
    await till.put(PutAccount(make_account(monthly_nanos=100)))
    async with anyio.create_task_group() as group:
        for number in range(24):
            group.start_soon(reserve, number)
    assert outcomes == {
        number: ("held", "PreconditionFailed", "PreconditionFailed")[number % 3] for number in range(24)
    }
    assert (await till.purses(key_id=None, run=None))["account"] == (0, 80)


@pytest.mark.parametrize("nanos", [2**63, -(2**63) - 1, 2**100])
async def test_what_no_file_can_hold_is_refused_alone_and_whole(storage: SqliteStorage, nanos: int) -> None:
    till = await Till(storage).open_full()
    before = await till.purses(), await till.rows()
    batch = [Settle(id=call, at=AT, rows=(make_row(call, charge=nanos if call == "d" else 1),)) for call in ("c", "d")]
    with pytest.raises(InternalError):
        await storage.apply("acme", batch)
    assert (await till.purses(), await till.rows()) == before
    await storage.apply("acme", batch[:1])


# Sweep


async def test_what_a_run_spent_is_forgotten_a_week_after_it_was_last_used(storage: SqliteStorage, path: Path) -> None:
    till = await Till(storage).open_full()
    for call, at in (("c", AT), ("d", "2026-11-22T09:30:00.000Z")):
        await till.settle(call, make_row(call, charge=5), run=RUN, at=at)
    await till.reserve("held", 5, run=replace(RUN, id="other"), clock_s=1.0)
    for later_s, spent in ((WEEK_S + 1, 10), (WEEK_S + 86_400.0, 10), (WEEK_S + 86_400.001, 0)):
        await storage.sweep(AT_S + later_s)
        assert (await till.purses())["run:r"] == (spent, 0)
    assert (await till.purses(run=replace(RUN, id="other")))["run:other"] == (0, 5), "what is held stays"
    assert (await till.purses())["account"] == (10, 5)
    assert upkeep.check(path).problems == []


async def test_a_sweep_forgets_owners_and_marks_that_are_past_and_no_others(storage: SqliteStorage, path: Path) -> None:
    till = await Till(storage).open_full()
    for owner, clock_s in (("dead", 0.0), ("also dead", 100.0), ("of the time before", 1e9), ("alive", 131.0)):
        await till.keep(owner, clock_s)
    await till.put(claim("old", key="old", owner="dead", clock_s=140.0, at=NOW - 86_400.0))
    await till.keep("dead", 0.0)
    await till.keep("alive", 140.0)
    assert await storage.sweep(NOW) == 0
    assert execute(path, "SELECT name FROM owner") == [("alive",)]
    assert execute(path, "SELECT count(*) FROM claim") == [(0,)]


async def test_incidents_that_nobody_is_told_of_any_more_go(storage: SqliteStorage, path: Path) -> None:
    puts = [PutIncident(replace(INCIDENT, id=f"inc_{number}")) for number in range(INCIDENTS + 5)]
    await storage.apply(SYSTEM_ACCOUNT, puts)
    assert execute(path, "SELECT count(*) FROM incident") == [(INCIDENTS,)]


async def test_a_sweep_with_nothing_to_do_writes_nothing(path: Path) -> None:
    counting = Counting()
    storage = SqliteStorage(path, connect=counting)
    for each in writes_of("acme"):
        await storage.apply("acme", [each])
    counting.seen.clear()
    assert await storage.sweep(AT_S) == 0
    assert {sql.split()[0] for sql in counting.seen} <= {"SELECT", "WITH", "DELETE"}
    assert [sql for sql in counting.seen if "DELETE" in sql and "snapshot" not in sql] == []
    await storage.aclose()


@pytest.mark.parametrize("how", ["deleted", "swept"])
async def test_results_that_go_leave_nothing_in_the_file(storage: SqliteStorage, path: Path, how: str) -> None:
    for number in range(20):
        key = f"k{number}"
        await storage.apply("acme", [claim(key, key=key)])
        said = b"the secret answer " * 300
        await storage.apply("acme", [end(key, said, key=key, until=NOW)])
    if how == "deleted":
        await storage.apply("acme", [DeleteResults()])
    else:
        await storage.sweep(NOW)
    assert await storage.read("acme", ClaimByKey("k1", "production", 0.0, NOW - 1.0)) is None
    async for file in anyio.Path(path.parent).iterdir():  # the log, too, while others have it open
        assert b"secret answer" not in await file.read_bytes(), file.name


# Damage


async def fill(storage: SqliteStorage) -> None:
    """One thing of each kind."""
    for each in writes_of("acme"):
        await storage.apply("acme", [each])
    await storage.apply(SYSTEM_ACCOUNT, [PutIncident(INCIDENT), KeepLease("own", 30.0, 0.0)])


async def test_books_that_add_up_are_found_sound(storage: SqliteStorage, path: Path) -> None:
    await fill(storage)
    await Till(storage, "b").open(make_key(account="b", digest="b"), credit=7)
    await Till(storage, "b").reserve("lost", 3, owner="dead")
    await storage.apply(SYSTEM_ACCOUNT, [KeepLease("own", 30.0, 40.0)])
    await storage.sweep(AT_S)
    assert upkeep.check(path).problems == []


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("UPDATE purse SET spent = spent + 1 WHERE name = 'account'", "purse 'account' of 'acme' has spent 61"),
        (
            "UPDATE purse SET reserved = 0 WHERE name = 'key:k'",
            "purse 'key:k' of 'acme' has reserved 0, and it comes to",
        ),
        ("UPDATE purse SET granted = 501 WHERE name = 'account'", "purse 'account' of 'acme' has granted 501"),
        ("DELETE FROM purse WHERE name = 'month:2026-11'", "purse 'month:2026-11' of 'acme' has spent 0"),
        ("UPDATE purse SET reserved = 1 WHERE name = 'run:r'", "purse 'run:r' of 'acme' has reserved 1"),
        ("DELETE FROM hold", "has reserved 30, and it comes to 0"),
        ("UPDATE hold SET purses = '[]'", "has reserved 30, and it comes to 0"),
        ("UPDATE hold SET purses = x'ff'", "has reserved 30, and it comes to 0"),
        ("UPDATE ledger SET charge = charge + 1 WHERE kind = 'attempt'", "has spent 60, and it comes to 61"),
        ("DELETE FROM ledger WHERE kind = 'attempt'", "has spent 60, and it comes to 0"),
        ("DELETE FROM ledger WHERE kind = 'credit'", "has granted 500, and it comes to 0"),
        (
            "UPDATE purse SET spent = 'x' WHERE name = 'account'",
            "purse 'account' of 'acme' holds what is no whole number",
        ),
        ("UPDATE purse SET granted = x'ff'", "purse 'account' of 'acme' holds what is no whole number"),
        ("UPDATE purse SET told = 1.5 WHERE name = 'account'", "purse 'account' of 'acme' holds what is no whole"),
        ("UPDATE hold SET nanos = 'much'", "of 'acme' holds what is no whole number"),
        ("UPDATE ledger SET charge = '' WHERE kind = 'attempt'", "of 'acme' holds what is no whole number"),
        ("UPDATE ledger SET credit = 'x' WHERE kind = 'credit'", "of 'acme' holds what is no whole number"),
        ("UPDATE purse SET account = x'00' WHERE name = 'account'", "purse 'account' of bytes holds what is no whole"),
        ("UPDATE account SET body = x'7b7d'", "account 'acme' of 'acme' cannot be read"),
        ("UPDATE account SET account = 'other'", "account 'other' of 'other' cannot be read"),
        ("UPDATE key SET body = x''", "key 'k' of 'acme' cannot be read"),
        ("UPDATE key SET digest = 'x'", "key 'k' of 'acme' cannot be read"),
        ("UPDATE key SET compromised_from = NULL", "key 'k' of 'acme' cannot be read"),
        ("UPDATE event SET body = x'ff' WHERE id = 'evt_1'", "event 'evt_1' of 'acme' cannot be read"),
        ("UPDATE incident SET body = 7", "incident 'inc_1' of '_system' cannot be read"),
    ],
)
async def test_what_is_wrong_with_the_books_is_said(storage: SqliteStorage, path: Path, sql: str, problem: str) -> None:
    await fill(storage)
    execute(path, sql)
    assert [each for each in upkeep.check(path).problems if problem in each]


async def test_a_damaged_account_or_key_lets_no_call_through(storage: SqliteStorage, path: Path) -> None:
    await fill(storage)
    execute(path, "UPDATE account SET body = x'7b7d'")
    execute(path, "UPDATE key SET body = x'7b7d'")
    execute(path, "UPDATE event SET body = x''")
    execute(path, "UPDATE incident SET body = x''")
    for query in (Stands(AT), Stands(AT, "k"), Keys()):
        with pytest.raises(StorageCorrupt, match="is damaged: restore a backup"):
            await storage.read("acme", query)
    with pytest.raises(StorageCorrupt, match="an event is damaged"):
        await storage.scan("acme", Events(), after=None, limit=9)
    with pytest.raises(StorageCorrupt, match="an incident is damaged"):
        await storage.read(SYSTEM_ACCOUNT, Incidents())
    with pytest.raises(StorageCorrupt, match="an account is damaged"):
        await storage.read(SYSTEM_ACCOUNT, Accounts())
    asked: list[Write] = [reservation("new", 1), Settle(id="new", at=AT, rows=(make_row("new"),))]
    for each in asked:
        with pytest.raises(StorageCorrupt):
            await storage.apply("acme", [each])


LOST = [
    *(("account", name, Stands(AT)) for name in ("plan", "limits", "prepaid", "monthly_nanos")),
    *(("key", name, Keys()) for name in ("scopes", "limits", "budget_nanos", "monthly_nanos", "revoked_at")),
]


@pytest.mark.parametrize(("table", "name", "query"), LOST, ids=lambda each: each if isinstance(each, str) else "")
async def test_one_that_has_lost_what_limits_it_is_damaged(
    table: str, name: str, query: Any, storage: SqliteStorage, path: Path
) -> None:
    await fill(storage)
    execute(path, f"UPDATE {table} SET body = CAST(json_remove(body, '$.{name}') AS BLOB)")
    with pytest.raises(StorageCorrupt, match="is damaged: restore a backup"):
        await storage.read("acme", query)
    assert [each for each in upkeep.check(path).problems if f"{table} " in each and "cannot be read" in each]


async def test_one_that_a_later_version_wrote_more_of_can_be_read(storage: SqliteStorage, path: Path) -> None:
    await fill(storage)
    before = await storage.read("acme", Stands(AT))
    execute(path, "UPDATE account SET body = CAST(json_set(body, '$.later', 1) AS BLOB)")
    assert await storage.read("acme", Stands(AT)) == before


async def test_a_backup_holds_the_books_too(storage: SqliteStorage, path: Path) -> None:
    await fill(storage)
    upkeep.backup(path, path.with_name("copy.db"))
    copy = SqliteStorage(path.with_name("copy.db"))
    for query in (Stands(AT, "k", RUN), Keys(), ClaimByKey("i", "production", 0.0, NOW)):
        assert await copy.read("acme", query) == await storage.read("acme", query)
    await Till(copy).settle("runs", make_row("runs", charge=5))
    await copy.aclose()
    assert upkeep.check(path.with_name("copy.db")).problems == []


async def test_reservations_do_not_wait_for_the_disk_and_settlements_do(path: Path) -> None:
    said: list[str] = []

    def noting(path: str) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_trace_callback(said.append)
        return connection

    storage = SqliteStorage(path, connect=noting)
    await fill(storage)
    asked: list[tuple[Write, str]] = [
        (Reserve(id="x", nanos=0, owner="own", lease_s=9.0, clock_s=1.0, at=AT), "NORMAL"),
        (Settle(id="x", at=AT, rows=(make_row("x"),)), "FULL"),
        (claim("y", key="y"), "NORMAL"),
        (EndClaim(key="y", environment="production", call="y", result=b""), "FULL"),
    ]
    for each, level in asked:
        said.clear()
        await storage.apply("acme", [each])
        assert f"PRAGMA synchronous = {level}" in said
    await storage.aclose()
