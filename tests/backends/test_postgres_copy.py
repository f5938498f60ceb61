"""``store copy`` copies all lasting data to a database, resumes after a stop, and reports differences."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from routewright import Budget, Capture, Console, Router, Settings, SqliteStorage, open_storage
from routewright.backends.storage.postgres import copy as copying
from routewright.backends.storage.postgres.connections import Address
from routewright.backends.storage.postgres.schema import check, create
from routewright.cli import main
from routewright.errors import IdempotencyKeyReused, StorageVersion
from routewright.wire import Ask, Caller
from tests.database_servers import PostgresServer

from .postgres_stores import new_schema
from .test_postgres_schema import ROOT, run

SPARE: dict[str, list[tuple[Any, ...]]] = {
    "learned": [("fleet", f"model{n}", n, b"{}") for n in range(2)],
    "agent_state": [("acme", "sandbox", f"run{n}", None, 4e9, b"{}") for n in range(2)],
    "told": [("acme", f"once{n}", 1.0, 4e9) for n in range(2)],
    "policy_version": [(f"pos_{n}", "cheap\0", f"v{n}", "2026-11-22T00:00:00.000Z") for n in range(2)],
    "feedback": [("acme", f"tr_{n}", b"{}") for n in range(2)],
    "tag": [("acme", "k\0\1", f"ü{n}", "2026-11-22T00:00:00.000Z", f"tr_{n}", n) for n in range(2_500)],
    "fallback_use": [("acme", "sandbox", "2026-11-22", "x", f"{n}", 1, 1) for n in range(2)],
    "cache_use": [("acme", "sandbox", "2026-11-22", f"{n}", 1, 1) for n in range(2)],
    "delivery": [
        (f"we_{n}", "evt_1", "acme", "incident.created", "waiting", 5.0, None, 0, text, None)
        for n, text in enumerate(("[]", b"[]"))
    ],
    "endpoint": [(f"we_{n}", "acme", b"{}", 5.0, n) for n in range(2)],
    "subscription": [("incident.created", "acme", "sandbox", f"we_{n}") for n in range(2)],
}
"""Rows for tables into which few calls write."""


async def fill(storage: Any) -> str:
    """Use a store, and give a key of it."""
    settings = Settings(capture=Capture(prompts=True, answers=True))
    async with Router.sandbox(storage=storage, settings=settings) as router:
        console = Console(storage, secret=ROOT)
        await console.create_account("acme", plan="pro", prepaid=True)
        for account in ("ä", "zeta"):
            await console.create_account(account, plan="free", monthly_limit_usd=3)
        await console.credit("acme", 2.0)
        await console.credit("acme", 3.0)
        await console.credit("zeta", 1.0)
        key = await console.create_key("acme", name="site", budget_usd=1)
        await console.create_key("_system", name="ada", scopes=["console:read"])
        for number in range(3):
            more: Any = {"metadata": {"team": "a", "n": number}, "budget": Budget(max_cost_usd=1)}
            answer = await router.route(f"Hello {number}", idempotency_key=f"k{number}", **more)
            await router.traces.feedback(answer.trace_id, score=1.0)
        await console.open_incident("It burns", severity="minor")
        await router.flush()
        return key.secret.reveal()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "traces.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROUTEWRIGHT_SECRET", ROOT)
        anyio.run(fill, SqliteStorage(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM feedback")
        for table, rows in SPARE.items():
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        connection.execute("INSERT INTO trace SELECT * FROM trace WHERE false")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def source(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", ROOT)
    return Path(shutil.copy(filled, tmp_path))


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return new_schema(postgres_server)


def rows_of(place: str | Path, table: str) -> list[tuple[Any, ...]]:
    """All of a table that both kinds of stores keep, in order."""
    where = "WHERE name <> 'id'" if table == "setting" else ""
    columns = copying_columns(table)
    sql = f"SELECT {columns} FROM {table} {where}"
    if isinstance(place, Path):
        with closing(sqlite3.connect(place)) as connection:
            found = connection.execute(sql).fetchall()
    else:
        with Address(place).connect() as connection:
            found = connection.execute(sql.encode()).fetchall()
    return sorted((tuple(each.encode() if isinstance(each, str) else each for each in row) for row in found), key=repr)


def copying_columns(table: str) -> str:
    with closing(sqlite3.connect(":memory:")) as connection:
        from routewright.backends.storage.sqlite.schema import migrate

        migrate(connection, 0)
        named = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    return ", ".join(name for name in named if name != "n" or table in ("event", "uncounted"))


def copy(source: Path | str, target: str) -> int:
    return main(["store", "copy", str(source), target])


def test_a_copy_is_the_store(source: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert copy(source, url) == 0
    assert capsys.readouterr().out.startswith("copied and compared: ")
    for table in copying._KEYS:
        there = rows_of(source, table)
        assert len(there) >= 2 or table in ("setting", "incident", "latency", "key", "uncounted", "event"), table
        assert rows_of(url, table) == [
            tuple(bool(each) if place in _flags(table) else each for place, each in enumerate(row)) for row in there
        ], table


def _flags(table: str) -> set[int]:
    return {12, 13, 14} if table == "trace" else set()


async def used(url: str) -> None:
    """A copy is used as if nothing had happened."""
    storage = open_storage(url)
    async with Router.sandbox(storage=storage) as router:
        traces = (await router.traces.query()).data
        assert len(traces) == 3
        more: Any = {"metadata": {"team": "a", "n": 1}, "budget": Budget(max_cost_usd=1)}
        again = await router.route("Hello 1", idempotency_key="k1", **more)
        assert again.trace_id in {each.id for each in traces}
        with pytest.raises(IdempotencyKeyReused):
            await router.route("Hello 2", idempotency_key="k1", **more)
        await router.route("Hello anew")
        await router.flush()
        assert len((await router.traces.query(filter="metadata.team=a")).data) == 3
        assert len((await router.traces.query()).data) == 4
        standing = await Console(storage).standing("acme")
        assert standing.balance is not None
        assert standing.balance.limit_nanos == 5_000_000_000


def test_a_copy_can_be_used_like_its_source(source: Path, url: str) -> None:
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        for table in ("learned", "policy_version", "subscription", "delivery", "endpoint"):
            connection.execute(f"DELETE FROM {table}")
    assert copy(source, url) == 0
    anyio.run(used, url)
    found, digests = check(Address(url))
    assert (found.problems, len(digests)) == ([], 2)
    assert run(url, "SELECT requests, monthly FROM account WHERE account = 'zeta'") == [(60, 3_000_000_000)]
    assert run(url, "SELECT account, budget FROM key ORDER BY account") == [("_system", None), ("acme", 1_000_000_000)]


def test_a_copy_stopped_anywhere_continues(
    source: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces, row = 0, copying._row

    def stops(*given: Any) -> list[Any]:
        nonlocal pieces
        pieces += 1
        if pieces % 617 == 0:
            raise psycopg.OperationalError("it was stopped")
        return row(*given)

    monkeypatch.setattr(copying, "PIECE", 200)
    monkeypatch.setattr(copying, "_row", stops)
    tries = 1
    while copy(source, url) != 0:
        tries += 1
        with pytest.raises(StorageVersion, match="run the same 'routewright store copy' again"):
            anyio.run(used, url)
    assert tries > 3
    for table in ("tag", "ledger", "trace"):
        assert len(rows_of(url, table)) == len(rows_of(source, table))
    assert run(url, "SELECT to_regclass('copying')") == [(None,)]


def test_changes_during_a_copy_are_reported(
    source: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(copying, "_compare", lambda *_: ["it is not whole yet"])
        assert copy(source, url) == 1
    capsys.readouterr()
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.execute("UPDATE purse SET spent = spent + 7 WHERE account = 'acme' AND name = 'account'")
        connection.execute("DELETE FROM told")
    assert main(["store", "copy", str(source), url, "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert problems[0] == "told has 0 rows, but 2 in the copy: the source was changed meanwhile"
    assert problems[1].startswith("purse of 'acme' sums to [7, ")
    with pytest.raises(StorageVersion):
        anyio.run(used, url)


def test_a_target_that_is_not_empty_is_left_unchanged(
    source: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(Address(url))
    run(url, "INSERT INTO told VALUES ('acme', 'x', 1, 2)")
    assert copy(source, url) == 2
    assert "TO: " in (err := capsys.readouterr().err)
    assert "is not empty: it has rows in told; name an empty one" in err
    assert run(url, "SELECT count(*) FROM store") == [(1,)]


def test_an_unfinished_copy_of_another_store_is_left_unchanged(
    source: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copying, "_compare", lambda *_: ["it is not whole yet"])
    assert copy(source, url) == 1
    other = tmp_path / "other.db"
    assert main(["accounts", "create", "acme", "--store", str(other)]) == 0
    assert copy(other, url) == 2
    assert "is an unfinished copy of another store" in capsys.readouterr().err


def test_a_source_in_use_is_refused(source: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def use() -> None:
        storage = SqliteStorage(source)
        ask = Ask(id="runs", caller=Caller("acme"), at=0.0, lasts_s=60.0, nanos=1_000)
        grant = await storage.accounts.admit(ask)
        assert await anyio.to_thread.run_sync(copy, source, url) == 1
        storage.accounts.release(grant)  # type: ignore[arg-type]
        await storage.aclose()

    anyio.run(use)
    assert f"{source} is in use: 1 calls hold money or limits; stop what uses it" in capsys.readouterr().err
    assert copy(source, url) == 0


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("none.db", "postgresql://host/db", "there is no store none.db"),
        ("none.db", "copy.db", "TO: is not a database in PostgreSQL"),
        ("memory:", "postgresql://host/db", "FROM: is memory:"),
        (
            "postgresql://host/db",
            "postgresql://host/db",
            "FROM: is a database in PostgreSQL, and only files are copied",
        ),
        ("", "postgresql://host/db", "FROM: is empty"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    source: str,
    target: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert copy(source, target) == 2
    assert said in capsys.readouterr().err
