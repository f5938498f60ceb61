"""The servers that tests start end with them; a missing one is named; a proxy counts what goes through it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.database_servers import HOST, NotInstalled, PostgresServer, RedisServer, at_port, need

from .fault_proxy import FaultProxy

PATIENCE_S = 10.0


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    redis_server.flush()
    with FaultProxy(HOST, redis_server.port) as proxy:
        yield proxy


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


def test_no_server_runs_as_root(postgres_server: PostgresServer, redis_server: RedisServer) -> None:
    postgres = (postgres_server.folder / "data" / "postmaster.pid").read_text().split()[0]
    with client(redis_server.url) as redis:
        for pid in (postgres, redis.info("server")["process_id"]):
            assert Path(f"/proc/{pid}").stat().st_uid != 0
    assert postgres_server.folder.stat().st_mode & 0o77 == 0, "nobody else looks into it"


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(redis_server: RedisServer) -> None:
    server = RedisServer(maxmemory="much")
    with pytest.raises(RuntimeError, match=r"did not start:(.|\n)*maxmemory"), server:
        pass
    assert not server.folder.exists()


def test_a_server_ends_with_the_process_that_started_it(redis_server: RedisServer) -> None:
    code = """
import os
from tests.database_servers import RedisServer
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
