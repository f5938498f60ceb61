"""PostgreSQL stores are created, upgraded and checked; other schemas are left alone, and passwords never shown."""

from __future__ import annotations

import gzip
import logging
import sys
import traceback
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import psycopg
import pytest

from routewright import Budget, Console, Router, open_storage
from routewright.backends.storage.postgres import schema
from routewright.backends.storage.postgres.connections import Address
from routewright.backends.storage.postgres.schema import VERSION, check, create, upgrade
from routewright.cli import main
from routewright.errors import RouterError, StorageCorrupt, StorageUnavailable, StorageVersion, ValidationFailed
from routewright.wire import PutAccount, Replay
from tests.contracts.storage.samples import PURSES, RUN, Till, make_account, make_row
from tests.database_servers import PostgresServer

from .postgres_stores import new_schema

Patch = pytest.MonkeyPatch
CANARY = "c4n4ry-pa55word"
ROOT = "0123456789abcdef" * 4
OLD = Path(__file__).parent.parent / "data" / "old_store" / "postgres_1.sql.gz"
"""``accounts.sql`` of version 1."""

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return new_schema(postgres_server)


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server that asks for passwords, with a role that owns nothing."""
    with PostgresServer(durable=False, auth="scram-sha-256") as server:
        server.sql(f"CREATE ROLE app LOGIN PASSWORD '{CANARY}'")
        yield server


def run(url: str, *statements: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def tables(url: str) -> list[tuple[object, ...]]:
    sql = "SELECT relname, reltuples FROM pg_class WHERE relnamespace = current_schema()::regnamespace ORDER BY 1"
    return run(url, sql)


def as_app(owner: str) -> str:
    """The same as the role with few rights."""
    at = urlsplit(owner)
    return f"postgresql://app:{CANARY}@{at.hostname}:{at.port}{at.path}?{at.query}"


# create


def test_a_store_is_created_once_and_then_left_unchanged(url: str) -> None:
    assert create(Address(url))
    made, ids = tables(url), run(url, "SELECT id FROM store")
    assert not create(Address(url))
    assert (tables(url), run(url, "SELECT id FROM store")) == (made, ids)


@pytest.mark.parametrize("others", ["CREATE TABLE customer (name text)", "CREATE TABLE store (address text)"])
def test_another_programs_database_is_left_unchanged(others: str, url: str) -> None:
    run(url, others)
    before = tables(url)
    for change in (create, upgrade):
        with pytest.raises((StorageCorrupt, StorageVersion)):
            change(Address(url))
    assert tables(url) == before
    assert run(url, "SELECT count(*) FROM pg_proc WHERE pronamespace = current_schema()::regnamespace") == [(0,)]


# a role with few rights


async def test_a_restricted_role_can_do_everything_a_server_does(guarded: PostgresServer) -> None:
    owner = new_schema(guarded)
    create(Address(owner), grant_to="app")
    url = as_app(owner)
    storage = open_storage(url)
    async with Router.sandbox(storage=storage) as router:
        await Console(storage, secret=ROOT).create_account("acme", plan="pro")
        answer = await router.route("Hello", budget=Budget(max_cost_usd=1), metadata={"team": "search"})
        assert (await router.traces.get(answer.trace_id)).metadata == {"team": "search"}
        await storage.sweep(4e9)
    for refused in (
        "DROP TABLE trace",
        "CREATE TABLE mine (n int)",
        "ALTER TABLE ledger DROP COLUMN charge",
        "UPDATE store SET version = 9",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(url, refused)


def test_other_roles_cannot_drop_partitions(guarded: PostgresServer) -> None:
    owner = guarded.database()
    create(Address(owner))
    url = as_app(owner)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(url, "SELECT drop_day('trace', '2026-11-22')")


def test_a_role_cannot_make_the_owner_act_on_its_own_tables(guarded: PostgresServer) -> None:
    owner = new_schema(guarded)
    create(Address(owner), grant_to="app")
    url = as_app(owner)
    own = "CREATE TEMP TABLE trace (created_at text) PARTITION BY RANGE (created_at)"
    run(url, own, "SELECT make_days(ARRAY['2026-11-22'])")
    assert run(owner, "SELECT count(*) FROM trace_2026_11_22") == [(0,)]


# versions


async def stands(url: str) -> None:
    storage = open_storage(url)
    try:
        await Console(storage, secret=ROOT).accounts()
    finally:
        await storage.aclose()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE store SET version = 9, oldest = 9", "of version 9, which needs a newer routewright"),
        ("UPDATE store SET version = 0", "of version 0; run 'routewright store upgrade'"),
        ("DELETE FROM store", "run the same 'routewright store copy' again"),
        ("ALTER TABLE store DROP COLUMN oldest", "the database belongs to another program"),
        ("DROP TABLE store", "there is no store yet; run 'routewright store create'"),
    ],
)
async def test_an_unknown_store_version_is_refused(change: str, said: str, url: str) -> None:
    create(Address(url))
    await stands(url)
    run(url, change)
    with pytest.raises(StorageUnavailable, match=said):
        await stands(url)


async def test_an_upgrade_runs_while_the_previous_version_is_in_use(
    guarded: PostgresServer, monkeypatch: Patch
) -> None:
    url = new_schema(guarded)
    create(Address(url), grant_to="app")
    storage = open_storage(url)
    async with Router.sandbox(storage=storage) as router:
        first = await router.route("Hello")
        with monkeypatch.context() as newer:
            more = "ALTER TABLE purse ADD COLUMN mood text; CREATE TABLE further (n int)"
            newer.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, more))
            newer.setattr(schema, "VERSION", VERSION + 1)
            assert upgrade(Address(url))
            assert not upgrade(Address(url))
        second = await router.route("Hello again")
        assert {item.id for item in (await router.traces.query()).data} == {first.trace_id, second.trace_id}
    assert run(url, "SELECT version, oldest FROM store") == [(VERSION + 1, 1)]
    assert run(url, "SELECT has_table_privilege('app', 'further', 'INSERT')") == [(True,)]


def test_an_upgrade_that_fails_changes_nothing(url: str, monkeypatch: Patch) -> None:
    create(Address(url))
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE further (n int); SELECT 1 / 0"))
    monkeypatch.setattr(schema, "VERSION", VERSION + 1)
    before = tables(url)
    with pytest.raises(RouterError):
        upgrade(Address(url))
    assert (tables(url), run(url, "SELECT version FROM store")) == (before, [(VERSION,)])


def make_old(url: str) -> None:
    """Make a store one of version 1, with the columns and functions of that time."""
    functions = "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = current_schema()::regnamespace"
    gone = [f"DROP FUNCTION {name} CASCADE" for (name,) in run(url, functions)]
    gone += [f"DROP TYPE {name}" for name in ("ask", "payer", "held", "used_window", "used_purse")]
    gone += ["ALTER TABLE account DROP daily, DROP weekly, DROP tag_limits", "ALTER TABLE key DROP daily, DROP weekly"]
    there = resources.files(schema.__package__)
    run(url, *gone, gzip.decompress(OLD.read_bytes()).decode(), there.joinpath("cache.sql").read_text())
    run(url, "UPDATE store SET version = 1")


async def test_a_store_of_version_1_is_used_and_may_be_upgraded_meanwhile(url: str) -> None:
    create(Address(url))
    storage = open_storage(url)
    till = await Till(storage).open_full()
    make_old(url)
    assert check(Address(url))[0].problems == []
    await till.admit("before", 400, key="k", run=RUN, same="i")
    await till.short("refused", 700)
    terms = PutAccount(make_account(prepaid=True, monthly_nanos=1_000, daily_nanos=300))
    with pytest.raises(StorageVersion, match="store upgrade"):
        await till.put(terms)
    assert upgrade(Address(url))
    await till.settle("before", make_row("before", charge=100), result=b"answer")
    assert await till.ask("again", same="i") == Replay(b"answer")
    await till.short("refused", 901)
    await till.admit("after", 900, key="k", run=RUN)
    till.release("after")
    await till.put(terms)
    await till.short("by day", 301)
    await storage.aclose()  # nobody waits for a release, but closing does
    reopened = open_storage(url)
    assert await Till(reopened).purses() == dict.fromkeys(PURSES, (100, 0)) | {"day:2026-11-21": (0, 0)}
    await reopened.aclose()
    found, _ = check(Address(url))
    assert (found.version, found.problems) == (VERSION, [])


# addresses and passwords


@pytest.mark.parametrize(
    ("broken", "kind", "said"),
    [
        ("postgresql://app:{0}@{1}/nope", StorageUnavailable, 'database "nope" does not exist'),
        ("postgresql://app:x{0}@{1}/postgres", StorageUnavailable, 'password authentication failed for user "app"'),
        ("postgresql://app:{0}@127.0.0.1:1/postgres", StorageUnavailable, "Connection refused"),
        ("postgresql://app:{0}@nowhere.invalid/postgres", StorageUnavailable, "failed to resolve host"),
        ("postgresql://app:{0}@{1}/postgres?sslmode=require", StorageUnavailable, "does not support SSL"),
        ("postgresql://app:{0}@{1}/postgres", StorageVersion, "store create"),
        ("postgresql://app:{0}@[::1/postgres", ValidationFailed, "is not the address of a PostgreSQL database"),
        ("postgresql://app:{0}@host/db?bogus={0}", ValidationFailed, "is not the address of a PostgreSQL database"),
        ("postgresql://app:p@{0}@{1}/postgres", ValidationFailed, "%40 for @"),
        ("postgresql://app:p/{0}@{1}/postgres", ValidationFailed, "%2F for /"),
        ("postgresq://app:{0}@{1}/postgres", ValidationFailed, "did you mean 'postgresql'"),
        ("postgresql:/app:{0}@{1}/postgres", ValidationFailed, "write"),
        ("postgresq://{1}/postgres?password={0}", ValidationFailed, "did you mean"),
    ],
)
def test_errors_never_contain_the_password(
    broken: str,
    kind: type[RouterError],
    said: str,
    guarded: PostgresServer,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    url = broken.format(CANARY, f"127.0.0.1:{guarded.port}")
    with pytest.raises(kind, match=said) as raised:
        anyio.run(stands, url)
    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value.__dict__)
    if kind is not ValidationFailed:
        storage = open_storage(url)
        shown += repr(storage) + repr(Address(url)) + str(Address(url))
        answer = Router.sandbox(storage=storage).blocking.route("Hello")
        shown += repr(answer)
    assert main(["accounts", "ls", "--store", url]) != 0
    assert main(["store", "create", url, "--json"]) != 0
    out = capsys.readouterr()
    assert CANARY not in shown + caplog.text + out.out + out.err


@pytest.mark.parametrize("by", ["PGPASSWORD", "PGPASSFILE"])
def test_a_password_may_be_in_the_environment_or_a_file(
    by: str, guarded: PostgresServer, monkeypatch: Patch, tmp_path: object
) -> None:
    at = f"127.0.0.1:{guarded.port}"
    with pytest.raises(StorageUnavailable, match="no password supplied"):
        Address(f"postgresql://app@{at}/postgres").connect()
    if by == "PGPASSFILE":
        file = tmp_path / "passwords"  # type: ignore[operator]
        file.write_text(f"*:*:*:app:{CANARY}\n")
        file.chmod(0o600)
        monkeypatch.setenv(by, str(file))
    else:
        monkeypatch.setenv(by, CANARY)
    Address(f"postgresql://app@{at}/postgres").connect().close()


def test_a_missing_extra_is_one_sentence(monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith(("psycopg", "routewright.backends.storage.postgres"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert main(["accounts", "ls", "--store", "postgresql://host/db"]) == 2
    said = "--store: needs the extra postgres, which is not installed; run: pip install 'routewright[postgres]'"
    assert capsys.readouterr() == ("", f"routewright: {said}\n")
