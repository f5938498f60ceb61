"""``routewright serve`` on a PostgreSQL store: several servers act as one, and report a part that is down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from routewright import Console, RateLimits
from routewright.backends.storage.postgres.connections import Address
from routewright.backends.storage.postgres.schema import create
from routewright.cli import main
from tests.database_servers import PostgresServer, RedisServer

from .serve_process import Server, serving

CANARY = "c4n4ry-pa55word"
ROOT = "0123456789abcdef" * 4

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


def test_servers_share_a_database_and_limits_in_redis(
    url: str, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_server.flush()
    second_folder = tmp_path / "second"
    second_folder.mkdir()
    config = second_folder / "serve.toml"
    config.write_text(f'store = "{url}"\ncoordination = "{redis_server.url}"\ncache = "{redis_server.url}"\n')
    flags = ("--store", url, "--coordination", redis_server.url, "--cache", redis_server.url)
    with serving(tmp_path, *flags, ROUTEWRIGHT_SECRET=ROOT) as first:
        key = first.keys["test"]
        assert first.ask(key).status == 200
        monkeypatch.setenv("ROUTEWRIGHT_SECRET", ROOT)
        console = Console(url).blocking
        console.create_account("acme", limits=RateLimits(requests_per_min=10))
        limited = console.create_key("acme", name="site", environment="sandbox").secret.reveal()
        console.close()
        with serving(second_folder, "--config", str(config), ROUTEWRIGHT_SECRET=ROOT) as second:
            assert second.keys == {}
            assert second.ask(key).status == 200
            assert "another key: routewright keys create main --name NAME --store postgresql://" in second.page
            found = [server.ask(limited).status for _ in range(6) for server in (first, second)]
            texts = [first.page, first.log, second.page, second.log]
    assert found == [200] * 10 + [429] * 2
    assert CANARY not in "".join(texts)


def test_readyz_says_which_part_is_away_and_what_that_means(
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
        said = "the coordination did not answer the last call; this process uses 1/4 of every rate limit"
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
