"""Real servers start, are killed, rest and come back; a proxy delays and breaks what goes through it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import AuthenticationError, Redis, RedisError, ResponseError
from redis import ConnectionError as RedisGone
from redis import TimeoutError as RedisSilent
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import HOST, NotInstalled, PgBouncer, PostgresServer, RedisServer, at_port, need

from .fault_proxy import FaultProxy

PATIENCE_S = 10.0


@pytest.fixture(scope="module")
def durable(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server that tests may stop; the fixture of the session says whether there is one at all."""
    with PostgresServer(auth="scram-sha-256", max_connections=40) as server:
        yield server


@pytest.fixture(scope="module")
def kept(redis_server: RedisServer) -> Iterator[RedisServer]:
    with RedisServer(appendonly="yes", appendfsync="always", requirepass="secret") as server:
        yield server


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    redis_server.flush()
    with FaultProxy(HOST, redis_server.port) as proxy:
        yield proxy


def ask(url: str, statement: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row[0]


def client(url: str, patience_s: float = PATIENCE_S) -> Redis:
    """A client that tries once."""
    return Redis.from_url(url, socket_timeout=patience_s, retry=Retry(NoBackoff(), 0), decode_responses=True)


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def assert_rests(server: PostgresServer | RedisServer, question: Callable[[], object]) -> None:
    """A question is answered only once the server goes on."""
    with ThreadPoolExecutor(1) as pool:
        server.pause()
        try:
            answer = pool.submit(question)
            with pytest.raises(TimeoutError):
                answer.result(0.2)
        finally:
            server.resume()
        answer.result(PATIENCE_S)


def test_a_database_is_empty_and_of_its_own(postgres_server: PostgresServer) -> None:
    first, second = postgres_server.database(), postgres_server.database()
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE kept (a int)")
    assert ask(first, "SELECT count(*) FROM pg_class WHERE relname = 'kept'") == 1
    assert ask(second, "SELECT count(*) FROM pg_class WHERE relname = 'kept'") == 0
    assert ask(second, "SHOW server_encoding") == "UTF8"
    assert ask(second, "SHOW lc_collate") == "C"


def test_postgres_listens_on_loopback_alone_and_syncs_where_it_is_durable(
    postgres_server: PostgresServer, durable: PostgresServer
) -> None:
    settings = ("SHOW fsync", "SHOW full_page_writes", "SHOW listen_addresses", "SHOW unix_socket_directories")
    assert postgres_server.sql(*settings).split("\n") == ["off", "off", HOST]  # no folder is the empty line at the end
    assert durable.sql(*settings).split("\n") == ["on", "on", HOST]
    assert durable.sql("SHOW max_connections") == "40"


def test_no_server_runs_as_root(postgres_server: PostgresServer, redis_server: RedisServer) -> None:
    postgres = (postgres_server.folder / "data" / "postmaster.pid").read_text().split()[0]
    with client(redis_server.url) as redis:
        for pid in (postgres, redis.info("server")["process_id"]):
            assert Path(f"/proc/{pid}").stat().st_uid != 0
    assert postgres_server.folder.stat().st_mode & 0o77 == 0, "nobody else looks into it"


def test_a_password_is_asked_for(durable: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(durable.url.replace("routewright", "wrong"))


def test_postgres_keeps_what_was_committed_when_it_is_killed_or_stopped(durable: PostgresServer) -> None:
    url = durable.database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept (a int)")
    for end in (durable.kill, durable.stop):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("INSERT INTO kept VALUES (1)")
            end()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(url)
        durable.start()
    durable.pause()
    durable.kill()
    durable.start()
    assert ask(url, "SELECT count(*) FROM kept") == 2


def test_postgres_that_is_paused_answers_when_it_goes_on(durable: PostgresServer) -> None:
    with psycopg.connect(durable.url, autocommit=True) as connection:
        assert_rests(durable, lambda: connection.execute("SELECT 1"))


def test_a_replica_follows_and_is_promoted(durable: PostgresServer) -> None:
    durable.sql("CREATE TABLE followed (a int)")
    with durable.replica() as replica:
        assert replica.sql("SELECT pg_is_in_recovery()") == "t"
        durable.sql("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        eventually(lambda: durable.sql("SELECT sync_state FROM pg_stat_replication") == "sync")
        assert_rests(replica, lambda: durable.sql("INSERT INTO followed VALUES (1)"))
        durable.sql("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        eventually(lambda: replica.sql("SELECT count(*) FROM followed") == "1")
        with pytest.raises(RuntimeError, match="read-only transaction"):
            replica.sql("INSERT INTO followed VALUES (2)")
        durable.kill()
        replica.promote()
        replica.sql("INSERT INTO followed VALUES (2)")
        assert replica.sql("SELECT count(*) FROM followed") == "2"
    durable.start()


@pytest.mark.parametrize("which", ["postgres_server", "durable"])
def test_clients_of_pgbouncer_share_a_connection_from_one_transaction_to_the_next(
    which: str, request: pytest.FixtureRequest
) -> None:
    need("pgbouncer")
    server: PostgresServer = request.getfixturevalue(which)
    with PgBouncer(server, default_pool_size=1) as bouncer:
        url = at_port(server.database(), bouncer.port)
        with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as other:
            pids = [each.execute("SELECT pg_backend_pid()").fetchone() for each in (one, other, one)]
        assert len({*pids}) == 1
        bouncer.kill()
        bouncer.start()
        assert ask(bouncer.url, "SELECT 1") == 1


def test_redis_forgets_when_it_is_flushed_or_killed(redis_server: RedisServer) -> None:
    with client(redis_server.url) as redis:
        for end in (redis_server.flush, redis_server.kill):
            redis.set("key", "value")
            end()
            if end == redis_server.kill:
                with pytest.raises(RedisGone):
                    redis.get("key")
                redis_server.start()
            assert redis.get("key") is None


def test_redis_with_its_file_keeps_what_it_confirmed(kept: RedisServer) -> None:
    with client(kept.url) as redis:
        for end in (kept.kill, kept.stop):
            redis.incr("count")
            end()
            kept.start()
        assert redis.get("count") == "2"


def test_redis_that_is_paused_answers_when_it_goes_on(kept: RedisServer) -> None:
    with client(kept.url) as redis:
        assert_rests(kept, redis.ping)
    with client(kept.url.replace("secret", "wrong")) as stranger, pytest.raises(AuthenticationError):
        stranger.ping()


def test_a_cluster_refuses_keys_of_several_slots(redis_server: RedisServer) -> None:
    with RedisServer(cluster=True) as server, client(server.url) as redis:
        redis.mset({"{account}a": "1", "{account}b": "2"})
        with pytest.raises(ResponseError, match="same slot"):
            redis.mset({"a": "1", "b": "2"})


@pytest.mark.skipif(shutil.which("valkey-server") is None, reason="valkey-server is not packaged everywhere")
def test_valkey_is_redis_by_another_name() -> None:
    with RedisServer("valkey-server") as server, client(server.url) as redis:
        assert redis.ping()


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(redis_server: RedisServer) -> None:
    server = RedisServer(maxmemory="much")
    with pytest.raises(RuntimeError, match=r"did not start:(.|\n)*maxmemory"), server:
        pass
    assert not server.folder.exists()


def test_a_server_ends_with_the_process_that_started_it(redis_server: RedisServer) -> None:
    code = """
import os
from tests.servers import RedisServer
server = RedisServer().__enter__()
print(server.folder, server.port, flush=True)
os.kill(os.getpid(), 9)
"""
    folder, port = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    eventually(lambda: not Path(folder).exists())
    eventually(lambda: not is_open(int(port)))


def test_where_a_program_is_missing_tests_are_skipped_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    said = "redis-server is not installed: apt install redis-server"
    with pytest.raises(NotInstalled, match=said):
        RedisServer()
    monkeypatch.delenv("TEST_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=said):
        need("redis-server")
    monkeypatch.setenv("TEST_SERVERS", "required")
    with pytest.raises(pytest.fail.Exception, match=said):
        need("redis-server")


def test_a_proxy_counts_connections_and_round_trips(proxy: FaultProxy, redis_server: RedisServer) -> None:
    with socket.create_connection((HOST, proxy.port), PATIENCE_S) as one:
        for number in range(3):
            one.sendall(b"PING\r\nPING\r\n")
            assert one.recv(14, socket.MSG_WAITALL) == b"+PONG\r\n" * 2
            assert (proxy.connections, proxy.round_trips) == (1, number + 1)
        with client(at_port(redis_server.url, proxy.port)) as other:
            other.ping()
            assert proxy.connections == 2
            before = proxy.round_trips
            other.ping()
            assert proxy.round_trips == before + 1


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_proxy_delays_what_is_sent_to_a_side(proxy: FaultProxy, side: Any, redis_server: RedisServer) -> None:
    with client(at_port(redis_server.url, proxy.port)) as redis:
        redis.ping()
        proxy.delay_s[side] = 0.2
        start = time.perf_counter()
        redis.ping()
        assert 0.2 <= time.perf_counter() - start < 2
        proxy.restore()
        start = time.perf_counter()
        redis.ping()
        assert time.perf_counter() - start < 0.2


@pytest.mark.parametrize(("side", "arrives"), [("client", "1"), ("server", None)])
def test_a_proxy_drops_what_is_sent_to_a_side(
    proxy: FaultProxy, side: Any, arrives: str | None, redis_server: RedisServer
) -> None:
    with client(redis_server.url) as direct, client(at_port(redis_server.url, proxy.port), 0.5) as redis:
        redis.ping()
        held = socket.create_connection((HOST, proxy.port), PATIENCE_S)
        proxy.drops.add(side)
        held.sendall(b"PING\r\n")
        with pytest.raises(RedisSilent):
            redis.incr("count")
        assert direct.get("count") == arrives
        proxy.restore()
        with held, pytest.raises(ConnectionResetError):
            held.recv(1)
        assert redis.ping()


def test_a_proxy_refuses_and_resets(proxy: FaultProxy, redis_server: RedisServer) -> None:
    with socket.create_connection((HOST, proxy.port), PATIENCE_S) as open_one:
        open_one.sendall(b"PING\r\n")
        assert open_one.recv(7) == b"+PONG\r\n"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, proxy.port), PATIENCE_S)
        open_one.sendall(b"PING\r\n")
        assert open_one.recv(7) == b"+PONG\r\n"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            open_one.recv(1)
    proxy.restore()
    with client(at_port(redis_server.url, proxy.port)) as redis:
        assert redis.ping()


def test_a_proxy_half_closes(proxy: FaultProxy, redis_server: RedisServer) -> None:
    with socket.create_connection((HOST, proxy.port), PATIENCE_S) as half, client(redis_server.url) as direct:
        half.sendall(b"PING\r\n")
        assert half.recv(7) == b"+PONG\r\n"
        proxy.half_close("client")
        assert half.recv(1) == b""
        half.sendall(b"SET key value\r\n")
        eventually(lambda: direct.get("key") == "value")


def test_a_proxy_passes_on_the_end_of_either_side(proxy: FaultProxy, redis_server: RedisServer) -> None:
    with socket.create_connection((HOST, proxy.port), PATIENCE_S) as leaves:
        leaves.sendall(b"PING\r\n")
        leaves.shutdown(socket.SHUT_WR)
        assert leaves.recv(8, socket.MSG_WAITALL) == b"+PONG\r\n"


def test_behind_a_proxy_a_dead_server_closes(redis_server: RedisServer) -> None:
    with FaultProxy(HOST, 1) as proxy, client(f"redis://{HOST}:{proxy.port}") as redis, pytest.raises(RedisError):
        redis.ping()
