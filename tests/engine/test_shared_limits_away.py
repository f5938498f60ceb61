"""While Redis is down, each process uses its share of every limit, nothing hangs, and it recovers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from routewright._engine import shared_limits
from routewright._engine.shared_limits import SharedLimits
from routewright.backends.clock import SystemClock
from routewright.backends.coordination.redis import RedisCoordination
from routewright.backends.storage.memory import MemoryStorage
from routewright.errors import RateLimited
from routewright.testing import FakeClock
from routewright.wire import Grant, PutAccount, RateLimits, Taken, Takes
from tests.contracts.storage.samples import make_account, make_ask, make_facts
from tests.servers import RedisServer

pytestmark = pytest.mark.anyio
LIMIT, PROCESSES, MOST_S = 40, 4, 0.5


class Office:
    """An account with limits that are counted in Redis, on this machine's clock."""

    def __init__(self, server: RedisServer) -> None:
        self.storage = MemoryStorage()
        self.coordination = RedisCoordination(server.url, processes=PROCESSES)
        self.accounts = SharedLimits(self.storage.accounts, self.coordination, SystemClock())
        self.number = 0

    async def open(self, **limits: int) -> None:
        await self.storage.apply("acme", [PutAccount(make_account(limits=RateLimits(**limits), plan="enterprise"))])

    async def ask(self) -> Grant | None:
        """Ask for a call; None: refused."""
        self.number += 1
        ask = make_ask(f"c{self.number}", at=time.time(), lasts_s=60.0, tokens=1)
        began = time.monotonic()
        try:
            found = await self.accounts.admit(ask)
        except RateLimited:
            found = None
        self.took_s = time.monotonic() - began
        assert self.took_s < MOST_S
        assert found is None or isinstance(found, Grant)
        return found

    async def until_back(self) -> float:
        """Ask until the coordination is back, and say how long that took."""
        began = time.monotonic()
        while self.accounts.is_away:
            assert time.monotonic() - began < 5.0
            grant = await self.ask()
            if grant is not None:
                self.accounts.release(grant)
            await anyio.sleep(0.05)
        return time.monotonic() - began


@contextmanager
def gone(server: RedisServer) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@pytest.fixture
async def office(redis: RedisServer, anyio_backend: str) -> AsyncIterator[Office]:
    made = Office(redis)
    yield made
    await made.coordination.aclose()


async def test_while_redis_is_down_each_process_has_its_share_and_logs_it_once(
    office: Office, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await office.open(requests_per_min=LIMIT)
    for left in range(LIMIT - 1, LIMIT - 4, -1):
        grant = await office.ask()
        assert grant is not None
        assert grant.windows[0].remaining == left
    with gone(redis):
        admitted = [await office.ask() for _ in range(LIMIT)]
        took_s = office.took_s
    assert sum(each is not None for each in admitted) == LIMIT // PROCESSES - 3, "what it took before counts"
    assert took_s < 0.05
    assert await office.until_back() < 5.0
    texts = [record.message for record in caplog.records if record.name == shared_limits.__name__]
    assert [text.partition(" is ")[2].partition(" ")[0] for text in texts] == ["away", "back:"]
    grant = await office.ask()
    assert grant is not None


async def test_while_redis_hangs_one_call_waits_briefly_and_slots_come_back(office: Office, redis: RedisServer) -> None:
    await office.open(concurrency=8)
    grants = [await office.ask() for _ in range(8)]
    assert None not in grants
    redis.pause()
    try:
        for grant in grants:
            assert grant is not None
            await office.accounts.settle(grant, make_facts(grant.id))
        assert [await office.ask() is None for _ in range(3)] == [False, False, True], "two of eight slots are its part"
        assert office.took_s < 0.05
        await anyio.sleep(1.5)
    finally:
        redis.resume()
    assert await office.until_back() < 5.0
    await anyio.sleep(0.2)
    grants = [await office.ask() for _ in range(8)]
    assert None not in grants, "what was ended meanwhile was sent, and what was asked is held by nobody"


async def test_a_slot_granted_without_redis_is_released_without_it(office: Office, redis: RedisServer) -> None:
    await office.open(concurrency=4, requests_per_min=1_000)
    with gone(redis):
        for _ in range(10):
            grant = await office.ask()
            assert grant is not None
            assert await office.ask() is None
            office.accounts.release(grant)


TOO_SMALL: list[tuple[dict[str, int], str]] = [
    ({"requests_per_min": 3}, "3 requests a minute"),
    ({"tokens_per_min": 3}, "3 tokens a minute"),
    ({"concurrency": 1}, "1 call at a time"),
    ({"requests_per_min": 3, "tokens_per_min": 40, "concurrency": 40}, "3 requests a minute"),
]


async def test_a_limit_too_small_to_share_admits_nothing_while_redis_is_down(
    office: Office, redis: RedisServer
) -> None:
    away = "of which each of 4 processes has 0 while the coordination is away"
    with gone(redis):
        for limits, said in TOO_SMALL:
            await office.open(**limits)
            with pytest.raises(RateLimited) as refused:
                await office.accounts.admit(make_ask("c", at=time.time(), lasts_s=60.0, tokens=1))
            assert str(refused.value) == f"the account is limited to {said}, {away}: try again in 5 s"
            assert refused.value.headers["Retry-After"] == "5"
            assert refused.value.detail is not None
            assert (refused.value.detail["limit"], refused.value.detail["remaining"]) == (int(said.split()[0]), 0)
    assert await office.until_back() < 5.0
    assert await office.ask() is not None


async def test_a_refusal_names_the_limit_and_the_share_of_this_process(office: Office, redis: RedisServer) -> None:
    await office.open(requests_per_min=LIMIT)
    with gone(redis):
        for _ in range(LIMIT // PROCESSES):
            assert await office.ask() is not None
        part = (
            r"limited to 40 requests a minute, of which each of 4 processes has 10 while .* away, and 0 are left: try"
        )
        with pytest.raises(RateLimited, match=part):
            await office.accounts.admit(make_ask("c", at=time.time(), lasts_s=60.0))


async def test_a_call_with_more_tokens_than_the_share_is_admitted_alone(office: Office, redis: RedisServer) -> None:
    await office.open(tokens_per_min=LIMIT)
    with gone(redis):
        big = make_ask("big", at=time.time(), lasts_s=60.0, tokens=LIMIT // PROCESSES + 1)
        assert isinstance(await office.accounts.admit(big), Grant)
        assert await office.ask() is None


class Broken:
    """A coordination that fails with what it should not raise, or never answers."""

    processes = 1

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def take(self, takes: Takes) -> Taken:
        if self.error is None:
            await anyio.sleep(60.0)
        assert self.error is not None
        raise self.error


@pytest.mark.parametrize("error", [KeyError("redis://:secret@host"), None], ids=["fails", "hangs"])
async def test_a_broken_coordination_makes_no_call_fail_or_hang(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    await storage.apply("acme", [PutAccount(make_account(limits=RateLimits(requests_per_min=1), plan="enterprise"))])
    accounts = SharedLimits(storage.accounts, Broken(error), SystemClock())  # type: ignore[arg-type]
    with anyio.fail_after(5.0):
        assert isinstance(await accounts.admit(make_ask("c", at=time.time())), Grant)
        with pytest.raises(RateLimited):
            await accounts.admit(make_ask("d", at=time.time()))
    assert "secret" not in caplog.text


class Refusing:
    """A coordination that fails, or refuses all calls."""

    processes = PROCESSES
    fails = True

    async def take(self, takes: Takes) -> Taken:
        if self.fails:
            raise ConnectionError
        raise RateLimited("full", detail={"retry_after_seconds": 1.0})

    def end(self, taken: Taken, tokens: int | None, *, void: bool = False) -> None:
        """Nothing was taken."""


async def test_a_refusal_shows_that_the_coordination_is_back() -> None:
    clock, storage, coordination = FakeClock(), MemoryStorage(), Refusing()
    accounts: Any = SharedLimits(storage.accounts, coordination, clock)  # type: ignore[arg-type]
    await storage.apply("acme", [PutAccount(make_account(limits=RateLimits(requests_per_min=LIMIT)))])
    assert isinstance(await accounts.admit(make_ask("c1", at=clock.time(), tokens=1)), Grant)
    assert accounts.is_away
    coordination.fails = False
    await clock.advance(shared_limits.RETRY_S)
    with pytest.raises(RateLimited, match="full"):
        await accounts.admit(make_ask("c2", at=clock.time(), tokens=1))
    assert not accounts.is_away
