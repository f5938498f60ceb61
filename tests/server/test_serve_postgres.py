"""``routewright serve`` on a PostgreSQL store: several servers act as one, and report a part that is down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from routewright.backends.storage.postgres.connection import Address
from routewright.backends.storage.postgres.schema import create
from routewright.cli import main
from routewright.testing.servers import PostgresServer, RedisServer

from .command import Server, serving

CANARY = "c4n4ry-pa55word"
ROOT = "r" * 64

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes as Linux shows them")


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    with PostgresServer(durable=False, auth="scram-sha-256") as server:
        server.sql(f"CREATE ROLE app LOGIN PASSWORD '{CANARY}'")
        yield server


@pytest.fixture
def url(database: PostgresServer) -> str:
    """A new store, as a server with few rights names it."""
    owner = database.database()
    create(Address(owner), grant_to="app")
    return f"postgresql://app:{CANARY}@127.0.0.1:{database.port}/{owner.rpartition('/')[2]}"


def get(server: Server, path: str) -> tuple[int, dict[str, str]]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_servers_share_a_database(url: str, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with serving(tmp_path, "--store", url, "--workers", "2", ROUTEWRIGHT_SECRET=ROOT) as first:
        key = first.keys["test"]
        assert first.ask(key).status == 200
        second_folder = tmp_path / "second"
        config = second_folder / "serve.toml"
        config.write_text(f'store = "{url}"\n')
        with serving(second_folder, "--config", str(config), ROUTEWRIGHT_SECRET=ROOT) as second:
            assert second.keys == {}
            assert second.ask(key).status == 200
            assert "another key: routewright keys create main --name NAME --store postgresql://" in second.page
            texts = [first.page, first.log, second.page, second.log]
    assert CANARY not in "".join(texts)


def test_a_check_names_the_database_without_its_password(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", ROOT)
    assert main(["serve", "--check", "--store", url]) == 0
    out = capsys.readouterr().out
    assert f"\nstore    postgresql://{url.rpartition('@')[2]}\n" in out
    assert CANARY not in out


def test_a_database_needs_the_secret_in_the_environment(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROUTEWRIGHT_SECRET", raising=False)
    assert main(["serve", "--store", url]) == 2
    said = "is not set, but a store in PostgreSQL needs it: API keys depend on it"
    hint = "set the same on all machines ('openssl rand -hex 32')"
    assert capsys.readouterr() == ("", f"routewright: ROUTEWRIGHT_SECRET: {said}; {hint}\n")


def test_a_database_without_a_store_is_refused_at_the_start(
    database: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path, "--store", database.database(), ROUTEWRIGHT_SECRET=ROOT) as server:
        assert server.ended() == 1
    assert "there is no store yet: run 'routewright store create'" in server.log
    assert "Traceback" not in server.log


def test_a_part_that_is_away_is_said_with_what_that_means(
    database: PostgresServer, url: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    secret = f"redis://:{CANARY}@127.0.0.1:1/0"  # where nothing listens
    config = tmp_path / "serve.toml"
    config.write_text(f'store = "{url}"\ncoordination = "{secret}"\nprocesses = 4\nhealth = true\ncache = "{secret}"\n')
    with serving(tmp_path, "--config", str(config), ROUTEWRIGHT_SECRET=ROOT) as server:
        key = server.keys["test"]
        assert get(server, "/readyz") == (200, {"status": "ok"})
        assert main_changes(url, "--plan", "free") == 0
        server.until(lambda: server.ask(key).status == 200 and get(server, "/readyz")[1]["status"] == "degraded")
        said = "the coordination did not answer the last call: this process goes on with 1/4 of every rate limit"
        assert get(server, "/readyz") == (200, {"status": "degraded", "problem": said})
        database.pause()
        try:
            status, told = get(server, "/readyz")
        finally:
            database.resume()
        assert (status, told["status"]) == (503, "unavailable")
        assert told["problem"].startswith("the storage ")
        assert told["means"] == "requests are refused or wait"
        server.until(lambda: get(server, "/readyz")[0] == 200)
        texts = [server.page, server.log]
    assert CANARY not in "".join(texts)


def main_changes(url: str, *terms: str) -> int:
    return main(["accounts", "change", "main", *terms, "--store", url])


def test_servers_share_limits_in_redis(
    url: str,
    redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis_server.flush()
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", ROOT)
    monkeypatch.setenv("ROUTEWRIGHT_STORE", url)
    assert main(["accounts", "create", "acme", "--requests-per-min", "10"]) == 0
    capsys.readouterr()
    assert main(["keys", "create", "acme", "--name", "site", "--environment", "sandbox"]) == 0
    key = capsys.readouterr().out.strip()
    (tmp_path / "second").mkdir()
    flags = ("--store", url, "--coordination", redis_server.url, "--cache", redis_server.url)
    with (
        serving(tmp_path, *flags, ROUTEWRIGHT_SECRET=ROOT) as first,
        serving(tmp_path / "second", *flags, ROUTEWRIGHT_SECRET=ROOT) as second,
    ):
        found = [server.ask(key).status for _ in range(6) for server in (first, second)]
    assert found == [200] * 10 + [429] * 2


def test_addresses_of_redis_are_checked_before_anything_starts(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", ROOT)
    assert main(["serve", "--check", "--store", url, "--coordination", f"redis://u:{CANARY}@host/x"]) == 2
    assert capsys.readouterr().err.startswith("routewright: --coordination: is not an address of Redis; write redis://")
    assert main(["serve", "--check", "--store", url, "--coordination", f"redis://u:{CANARY}@host/1"]) == 0
    assert capsys.readouterr().out.count("redis://host/1") == 1
