"""Redis addresses: single server, cluster, sentinels; with hidden passwords, and over faulty networks."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from redis import Redis

from routewright.backends.cache.redis import RedisCache
from routewright.backends.coordination.redis import RedisCoordination
from routewright.errors import RouterError, StorageUnavailable, ValidationFailed
from routewright.storage import open_cache, open_coordination
from routewright.wire import CacheSelection, Notice, RateLimits, Takes
from tests.contracts.cache import key_of, make_entry
from tests.database_servers import HOST, RedisServer, at_port, find, free_port
from tests.database_servers import Server as Started
from tests.fault_proxy import FaultProxy
from tests.tables import table

from .redis_child import until_taken

pytestmark = pytest.mark.anyio
SECRET = "s3cret canary"
PARTIES = (("account:production:acme", RateLimits(requests_per_min=5)), ("key:acme\0k", RateLimits()))


def takes(call: str, account: str = "acme") -> Takes:
    return Takes(call, account, PARTIES, 1, 1, 60.0)


async def assert_serves(url: str) -> None:
    """Limits, news and the cache work there, with keys of several accounts at a time."""
    coordination, cache = open_coordination(url), open_cache(url)
    assert isinstance(coordination, RedisCoordination)
    taken = []

    async def take(account: str) -> None:
        taken.append(await coordination.take(takes(account, account)))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(take, f"account {number}")
    assert [each.windows[0].remaining for each in taken] == [4] * 20
    for each in taken:
        coordination.end(each, 0)
    last = (await coordination.hear(None)).last
    await coordination.announce(Notice("a", "b"))
    assert (await coordination.hear(last)).notices == (Notice("a", "b"),)
    for name in "abcdef":
        await cache.put(make_entry(name, time.time()))
    assert await cache.get(key_of("c"), time.time()) is not None
    assert (await cache.stats("acme", time.time())).entries == 6
    assert isinstance(cache, RedisCache)
    assert await cache.lead(b"k", 9.0)
    assert not await cache.lead(b"k", 9.0)
    await cache.lead(b"k", 0.0)
    assert await cache.remove(CacheSelection(account="acme")) == 6
    await coordination.aclose()
    await cache.aclose()
    await cache.aclose()


async def test_a_url_selects_a_database_by_number(redis: RedisServer) -> None:
    await assert_serves(redis.url.removesuffix("/0") + "/3")


async def test_a_cluster_is_supported(redis: RedisServer) -> None:
    with RedisServer(cluster=True) as server:
        await assert_serves(f"redis+cluster://{HOST}:{server.port}")


class SentinelServer(Started):
    """Watches one master, and promotes its replica by itself."""

    def __init__(self, of: RedisServer) -> None:
        super().__init__()
        watch = f"sentinel monitor main {HOST} {of.port} 1\nsentinel down-after-milliseconds main 300\n"
        self._files = {"conf": f"port {self.port}\nbind {HOST}\n{watch}sentinel failover-timeout main 2000\n"}
        self._command = [find("redis-server"), "conf", "--sentinel"]
        self._probe = ["PONG", find("redis-cli"), "-p", str(self.port), "PING"]


async def test_sentinels_name_the_master_also_after_a_failover(redis: RedisServer) -> None:
    with RedisServer(repl_diskless_sync_delay=0) as first, RedisServer() as second:
        replica = Redis(port=second.port)
        replica.replicaof(HOST, str(first.port))
        with SentinelServer(first) as sentinel:
            url = f"redis+sentinel://{HOST}:1,{HOST}:{sentinel.port}/main"
            await assert_serves(url)
            coordination = open_coordination(url)
            assert isinstance(coordination, RedisCoordination)
            await coordination.take(takes("c"))
            watcher, master = Redis(port=sentinel.port), Redis(port=first.port)
            with anyio.fail_after(15.0):
                while not watcher.sentinel_slaves("main"):  # noqa: ASYNC110
                    await anyio.sleep(0.1)
            master.set("the last", "write")
            assert master.wait(1, 15_000) == 1, "the replica has it"
            watcher.close()
            master.close()
            first.kill()
            taken = await until_taken(coordination, takes("d"))
            assert taken.windows[0].remaining <= 3, "the replica knows what was counted"
            await coordination.aclose()
        replica.close()


@pytest.fixture(scope="module")
def guarded(redis_server: RedisServer) -> Iterator[RedisServer]:
    with RedisServer(requirepass=SECRET) as server:
        yield server


@pytest.mark.parametrize("place", ["url", "environment", "file"])
async def test_the_password_comes_from_the_url_the_environment_or_a_file(
    guarded: RedisServer, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    guarded.flush()
    url, file = f"redis://{HOST}:{guarded.port}", tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    if place == "environment":
        monkeypatch.setenv("REDIS_PASSWORD", SECRET)
    urls = {"url": f"redis://:s3cret%20canary@{HOST}:{guarded.port}", "file": f"{url}?password_file={file}"}
    await assert_serves(urls.get(place, url))


@pytest.mark.parametrize("there", [True, False])
async def test_passwords_are_never_shown(guarded: RedisServer, there: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []
    port = guarded.port if there else 1
    for url in (f"redis://u:s3cret%20canary@{HOST}:{port}", f"redis+cluster://:s3cret%20canary@{HOST}:{port}"):
        coordination, cache = RedisCoordination(url), RedisCache(url)
        seen += [repr(coordination), repr(cache), str(vars(cache._server).get("_address"))]
        for asked in (coordination.take(takes("c")), coordination.hear(None), cache.get(b"k", 0.0)):
            with pytest.raises(StorageUnavailable) as error:
                await asked
            seen += [repr(error.value), *traceback.format_exception(error.value)]
        await coordination.aclose()
    assert not [text for text in [*seen, caplog.text] if "s3cret" in text]


@table(
    "url",
    [
        "redis://:s3cret@", "redis://:s3cret@h/x", "redis://:s3cret@h:99999", "redis://:s3cret@a,b", "redis://:s3cret@[::1",
        "redis+cluster://:s3cret@h/1", "redis+sentinel://:s3cret@h", "redis+nobody://:s3cret@h", "redis:s3cret",
        "redis://:s3cret@h?pasword_file=x", "redis://:s3cret@h?x", "sqlite:///s3cret", "s3cret", None, "memory", 5,
    ],
)  # fmt: skip
def test_an_invalid_url_is_refused_with_a_hint_and_not_shown(url: Any) -> None:
    with pytest.raises(ValidationFailed, match="write") as error:
        open_coordination(url)
    assert "s3cret" not in "".join(traceback.format_exception(error.value)).replace(repr(url), "")


def test_open_coordination_takes_a_url() -> None:
    kinds = [type(open_coordination(url)).__name__ for url in ("memory:", "redis://h", "rediss+sentinel://a,b/main")]
    assert kinds == ["MemoryCoordination", "RedisCoordination", "RedisCoordination"]


def test_a_missing_extra_is_named_in_one_sentence() -> None:
    code = """
import sys
sys.modules["redis"] = None
from routewright import ValidationFailed
from routewright.storage import open_cache, open_coordination
for open_url in (open_cache, open_coordination):
    try:
        open_url("redis://h")
    except ValidationFailed as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    sentence = "url: needs the extra redis, which is not installed; run: pip install 'routewright[redis]'\n"
    assert (done.stdout, done.stderr) == (2 * sentence, "")


async def test_the_scheme_selects_tls(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    made = authority.issue_cert(HOST).private_key_and_cert_chain_pem.bytes()
    with RedisServer() as server, Redis(port=server.port) as administrator:
        pem, port = server.folder / "pem", free_port()  # which the server's user may read
        pem.write_bytes(made)
        administrator.config_set("tls-cert-file", str(pem), "tls-key-file", str(pem), "tls-auth-clients", "no")
        administrator.config_set("tls-port", port)
        url = f"rediss://{HOST}:{port}"
        with pytest.raises(RouterError):
            await RedisCache(url).get(b"k", 0.0)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        await assert_serves(url)


# Networks


async def test_concurrent_calls_share_a_round_trip(redis: RedisServer) -> None:
    with FaultProxy(HOST, redis.port) as proxy:
        proxy.delay_s = {"client": 0.0005, "server": 0.0005}
        coordination = RedisCoordination(at_port(redis.url, proxy.port))
        await coordination.take(takes("first", "first"))
        before, wide = proxy.round_trips, (("p", RateLimits(requests_per_min=10_000)),)
        calls = 1_000

        async def work(number: int) -> None:
            for turn in range(calls // 50):
                taken = await coordination.take(Takes(f"{number} {turn}", "acme", wide, 1, 1, 60.0))
                await anyio.sleep(0.001)
                coordination.end(taken, 1)

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(work, number)
        assert (proxy.round_trips - before) / calls < 0.2
        await coordination.aclose()


@pytest.mark.parametrize("fault", ["drop", "reset", "refuse", "half close", "slow"])
async def test_calls_are_answered_in_time_on_any_network_fault_and_recover(redis: RedisServer, fault: str) -> None:
    with FaultProxy(HOST, redis.port) as proxy:
        coordination = RedisCoordination(at_port(redis.url, proxy.port))
        await coordination.take(takes("c"))
        match fault:
            case "drop":
                proxy.drops |= {"client"}
            case "reset":
                proxy.refuse()
                proxy.reset()
            case "refuse":
                proxy.refuse()
                proxy.half_close("client")
            case "half close":
                proxy.refuse()
                proxy.half_close("server")
            case _:
                proxy.delay_s = {"client": 0.6, "server": 0.6}
        began = time.monotonic()
        with pytest.raises(StorageUnavailable):
            await coordination.take(takes("d"))
        assert time.monotonic() - began < 1.1  # the slow answer would come after 1.2
        proxy.restore()
        await until_taken(coordination, takes("e"))
        await coordination.aclose()


async def test_an_unacknowledged_end_counts_once(redis: RedisServer) -> None:
    with FaultProxy(HOST, redis.port) as proxy:
        coordination = RedisCoordination(at_port(redis.url, proxy.port))
        party = (("p", RateLimits(tokens_per_min=100, concurrency=1)),)
        taken = await coordination.take(Takes("c", "acme", party, 50, 1, 60.0))
        proxy.drops |= {"client"}  # it arrives, and its answer does not
        coordination.end(taken, 10)
        await anyio.sleep(0.7)
        proxy.restore()
        again = await until_taken(coordination, Takes("d", "acme", party, 0, 1, 60.0))
        assert again.windows[0].remaining == 90
        await coordination.aclose()
