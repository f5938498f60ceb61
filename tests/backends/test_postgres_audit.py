"""``store check`` on a database reports missing, unreadable and inconsistent data."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from routewright import Budget, Console, Router, open_storage
from routewright.backends.storage.postgres.connections import Address
from routewright.backends.storage.postgres.schema import VERSION, check, create
from routewright.cli import main
from routewright.wire import Ask, Caller
from tests.database_servers import PostgresServer

from .postgres_stores import new_schema
from .test_postgres_schema import ROOT, run

pytestmark = pytest.mark.anyio


@pytest.fixture
async def url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """A store with an account that paid for a call, and a call that runs."""
    url = new_schema(postgres_server)
    create(Address(url))
    storage: Any = open_storage(url)
    async with Router.sandbox(storage=storage) as router:
        console = Console(storage, secret=ROOT)
        await console.create_account("acme", plan="pro", prepaid=True)
        await console.credit("acme", 5.0)
        await console.create_key("acme", name="site")
        await router.route("Hello", budget=Budget(max_cost_usd=1))
        await router.flush()
        ask = Ask(id="runs", caller=Caller("acme"), at=0.0, lasts_s=60.0, nanos=1_000, slot=True)
        grant = await storage.accounts.admit(ask)
        yield url
        storage.accounts.release(grant)


async def test_a_sound_store_has_no_problems_while_it_is_used(url: str) -> None:
    found, digests = check(Address(url))
    assert found[:2] == (VERSION, 1)
    assert found.problems == []
    assert found.bytes > 0
    assert len(digests) == 1


DAMAGES = [  # to different rows, and what is said of each
    {
        "DROP TABLE told": "the table told is missing",
        "DROP FUNCTION end_calls": "the function end_calls is missing",
        "DROP TRIGGER event_out ON event": "the trigger event_out is missing",
        "DROP INDEX ledger_by_name": "the index ledger_by_name is missing",
    },
    {
        "UPDATE body SET trace = 'x'": "trace 'tr_",
        "UPDATE account SET body = 'x'": "account 'acme' of 'acme' cannot be read",
        "UPDATE key SET digest = 'x'": "key 'key_",
        "UPDATE purse SET granted = granted + 1 WHERE name = 'account'": (
            "purse 'account' of 'acme' has granted 5000000001, but the ledger sums to 5000000000"
        ),
        "UPDATE purse SET reserved = 7": "of 'acme' has reserved 7, and its calls hold 1000",
        "UPDATE party SET slots = 7": "has 7 slots in use, and its calls hold 1",
    },
    {
        "DELETE FROM body": "trace 'tr_",
        "DELETE FROM hold": "purse 'account' of 'acme' has reserved 1000, and its calls hold 0",
        "UPDATE purse SET spent = 7 WHERE name = 'account'": "has spent 7, but the ledger sums to 0",
        "INSERT INTO purse (account, name, spent, granted) "
        "SELECT 'acme', 'x' || n, 7, 0 FROM generate_series(1, 99) AS n": (
            "purse 'x1' of 'acme' has spent 7, but the ledger sums to 0"
        ),
    },
]


@pytest.mark.parametrize("damages", DAMAGES, ids=["missing", "changed", "removed"])
async def test_a_check_reports_each_damage(damages: dict[str, str], url: str) -> None:
    for sql in damages:
        run(url, sql)
    found, _ = check(Address(url))
    for said in damages.values():
        assert any(said in problem for problem in found.problems), found.problems


def test_the_command_checks_and_upgrades_a_database(
    postgres_server: PostgresServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", ROOT)
    url = new_schema(postgres_server)
    place = str(Address(url))
    assert main(["store", "create", url]) == 0
    assert main(["store", "create", url]) == 0
    assert capsys.readouterr().err == f"created the store {place}\nthe store {place} exists already\n"
    assert main(["store", "create", url, "--grant-to", "nobody-there"]) == 1
    assert "nobody-there" in capsys.readouterr().err
    monkeypatch.setenv("ROUTEWRIGHT_STORE", url)
    assert main(["store", "check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["store"], found["version"], found["problems"]) == (place, VERSION, [])
    assert main(["store", "upgrade", url]) == 0
    assert capsys.readouterr().err == f"{place} is up to date\n"
    assert main(["keys", "create", "acme", "--name", "site"]) != 0
    assert main(["accounts", "create", "acme", "--plan", "pro"]) == 0
    assert main(["keys", "create", "acme", "--name", "site"]) == 0
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", "fedcba9876543210" * 4)
    assert main(["store", "check", url]) == 1
    assert "1 of 1 live keys belong to another root secret" in capsys.readouterr().out
    monkeypatch.delenv("ROUTEWRIGHT_SECRET")
    assert main(["store", "check", url]) == 0
    out = capsys.readouterr().out
    assert "\nlive keys    1\nnot checked  the keys: ROUTEWRIGHT_SECRET is not set\n" in out
    assert out.endswith("\nsound\n")
    assert main(["store", "check", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keys"] == {"live": 1, "of_another_secret": None}
    run(url, "DROP TABLE told")
    assert main(["store", "check", url]) == 1
    assert capsys.readouterr().out.endswith("is missing\ndamaged: restore a backup\n")
    assert main(["store", "backup", "copy.db"]) == 2
    assert "back up databases in PostgreSQL with pg_dump" in capsys.readouterr().err
    assert main(["store", "create", "traces.db"]) == 2
    said = "URL: is not a database in PostgreSQL; a file needs no such step; write postgresql://..."
    assert capsys.readouterr().err == f"routewright: {said}\n"
