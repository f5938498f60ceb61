"""Rate limits counted in Redis: the contract of accounts, Routers on two machines, and outages."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import anyio
import pytest
from benchmarks.doubles import MODELS

from routewright import (
    CallableProvider,
    Catalogue,
    Console,
    MemoryStorage,
    RateLimited,
    Router,
    SqliteStorage,
    UpstreamCall,
)
from routewright._engine import shared_limits
from routewright._engine.shared_limits import PATIENCE_S, SharedLimits
from routewright.backends.clock import SystemClock
from routewright.backends.coordination.redis import RedisCoordination
from routewright.backends.storage.postgres import PostgresStorage
from routewright.errors import StorageUnavailable
from routewright.protocols import CountingCoordination, Storage
from routewright.testing import FakeClock
from routewright.wire import Ask, Caller, Grant, PutAccount, RateLimits, Taken, Takes
from tests.backends.postgres_stores import empty_store
from tests.contracts.storage import accounts_model
from tests.contracts.storage.accounts_model import AccountsWalk
from tests.contracts.storage.admission import THREADS, Budgets, Windows
from tests.contracts.storage.samples import Till, make_account, make_ask, make_facts, make_key, make_row
from tests.contracts.storage.suites import AccountsContract
from tests.database_servers import PostgresServer, RedisServer

pytestmark = pytest.mark.anyio


class Limited:
    """A storage whose rate limits are counted by a coordination."""

    def __init__(
        self, coordination: CountingCoordination, clock: FakeClock, inner: MemoryStorage | PostgresStorage | None = None
    ) -> None:
        inner = inner or MemoryStorage(clock=clock)
        self.apply, self.read, self.scan, self.sweep = inner.apply, inner.read, inner.scan, inner.sweep
        self.accounts = SharedLimits(inner.accounts, coordination, clock)
        self._coordination, self._inner = coordination, inner

    async def aclose(self) -> None:
        await self._coordination.aclose()
        await self._inner.aclose()


class Walk(AccountsWalk):
    """A call that asks for another amount of money is told no windows: nothing of them is taken."""

    async def ask(self) -> None:
        chosen = self.chance.ask

        def first_time(running: Sequence[Ask], at: float) -> Ask:
            return chosen([], at)

        self.chance.ask = first_time  # type: ignore[method-assign]
        await super().ask()
        self.chance.ask = chosen  # type: ignore[method-assign]


class TestSharedLimits(AccountsContract):
    most_paid = THREADS  # a slot and money are freed one after the other: who has the slot must not wait for money

    @pytest.fixture(autouse=True)
    def _server(self, redis: RedisServer) -> None:
        self.redis = redis

    def make(self, clock: FakeClock) -> Any:
        return Limited(RedisCoordination(self.redis.url, clock=clock), clock)

    @pytest.mark.parametrize("seed", range(3))
    async def test_a_random_history_matches_the_model(self, till: Till, clock: FakeClock, seed: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                accounts_model, "PAUSES", [round(pause * 8) / 8 for pause in accounts_model.PAUSES]
            )  # whole units of Redis
            await Walk(till.limiting, clock, Random(seed)).go(300)


async def test_limits_in_redis_and_money_in_postgresql_are_taken_together(
    redis: RedisServer, postgres: str, clock: FakeClock
) -> None:
    storage: Any = Limited(RedisCoordination(redis.url, clock=clock), clock, PostgresStorage(postgres, clock=clock))
    windows = RateLimits(requests_per_min=2, concurrency=1)
    till = await Till(storage).open(make_key(budget_nanos=500), limits=windows)
    await till.short("too dear", 501, key="k")
    grant = await till.admit("c", 500, key="k")
    assert [window.remaining for window in grant.windows] == [1], "it took no request and no slot"
    assert (await till.limited(key="k"))["limit_of"] == "concurrency"
    assert (await till.purses(run=None))["key:k"] == (0, 500)
    await till.settle("c", make_row("c", charge=300))
    await till.admit("last", 200, key="k")
    assert (await till.purses(run=None))["key:k"] == (300, 200)
    await storage.aclose()


@pytest.mark.full
class TestSharedLimitsBesidePostgres(Windows, Budgets):
    most_paid = THREADS

    @pytest.fixture(autouse=True)
    def _servers(self, redis: RedisServer, postgres_server: PostgresServer) -> None:
        self.redis, self.url = redis, empty_store(postgres_server)

    def make(self, clock: FakeClock) -> Any:
        inner = PostgresStorage(self.url, clock=clock)
        return Limited(RedisCoordination(self.redis.url, clock=clock), clock, inner)


# Routers on two machines with separate storages


ACME = Caller("acme")


class Machine:
    def __init__(self, server: RedisServer, storage: Storage) -> None:
        self.coordination = RedisCoordination(server.url, processes=2)
        self.storage, self.calls = storage, 0
        provider = CallableProvider(self._answer, models=MODELS[:1])
        self.router = Router(
            providers=[provider], catalogue=Catalogue(()), storage=storage, coordination=self.coordination
        )

    async def _answer(self, call: UpstreamCall) -> str:
        self.calls += 1
        await anyio.sleep(0.01)
        return "yes"

    async def open(self, **limits: int) -> None:
        console = Console(self.storage, secret="0123456789abcdef" * 4)
        await console.create_account("acme", plan="enterprise", limits=RateLimits(**limits))

    async def ask(self, **options: Any) -> bool:
        try:
            await self.router.route("hi", caller=ACME, **options)
        except RateLimited:
            return False
        return True

    async def until_served(self) -> None:
        """What another ended is free a moment later."""
        with anyio.fail_after(5.0):
            while not await self.ask():  # noqa: ASYNC110  # nothing tells
                await anyio.sleep(0.01)
        await anyio.sleep(0.1)  # so is what this one held


@pytest.fixture(params=["memory", "sqlite"])
async def pair(
    redis: RedisServer, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[tuple[Machine, Machine]]:
    def storage() -> Storage:
        folder = tmp_path_factory.mktemp("store")
        return MemoryStorage() if request.param == "memory" else SqliteStorage(folder / "store.db")

    made = Machine(redis, storage()), Machine(redis, storage())
    yield made
    for each in made:
        await each.router.aclose()


async def test_two_processes_together_stay_within_the_limit(pair: tuple[Machine, Machine]) -> None:
    for each in pair:
        await each.open(requests_per_min=10)
    found = [await pair[number % 2].ask() for number in range(16)]
    assert found == [True] * 10 + [False] * 6
    with pytest.raises(RateLimited) as refused:
        await pair[0].router.route("hi", caller=ACME)
    assert 0 < int(refused.value.headers["Retry-After"]) <= 60


async def test_a_slot_is_released_however_a_call_ends(pair: tuple[Machine, Machine]) -> None:
    for each in pair:
        await each.open(concurrency=1)
    mine, other = pair
    for delay_s in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.006, 0.009, 0.012):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mine.ask)
            await anyio.sleep(delay_s)
            tasks.cancel_scope.cancel()
        await other.until_served()
    async with mine.router.stream("hi", caller=ACME) as stream:
        async for _ in stream:
            assert not await other.ask()
            break
    await other.until_served()


async def test_a_replay_counts_against_no_limit(pair: tuple[Machine, Machine]) -> None:
    mine, other = pair
    for each in pair:
        await each.open(requests_per_min=2)
    assert await mine.ask(idempotency_key="k")
    assert await other.ask()
    assert not await other.ask()
    for _ in range(3):
        assert await mine.ask(idempotency_key="k")
    assert mine.calls == 1
    assert not await mine.ask(idempotency_key="another")


# While Redis is down, each process uses its share of every limit


LIMIT, PROCESSES, MOST_S = 40, 4, 1.0


class Office:
    """An account with limits that are counted in Redis, on this machine's clock."""

    def __init__(self, server: RedisServer, processes: int = PROCESSES) -> None:
        self.storage = MemoryStorage()
        self.coordination = RedisCoordination(server.url, processes=processes)
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
    assert took_s < PATIENCE_S, "it does not ask"
    assert await office.until_back() < 5.0
    texts = [record.message for record in caplog.records if record.name == shared_limits.__name__]
    assert [text.partition(" is ")[2].partition(" ")[0] for text in texts] == ["away", "back:"]
    grant = await office.ask()
    assert grant is not None


async def test_while_redis_is_down_limits_are_shared_by_the_processes_that_were_seen(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Although each of three servers is configured for its one worker."""
    offices = [Office(redis, 1) for _ in range(3)]
    redis.flush()
    for _ in range(2):
        for office in offices:
            await office.coordination.hear(None)
    assert [office.coordination.processes for office in offices] == [3] * 3
    with gone(redis):
        admitted = 0
        for office in offices:
            with pytest.raises(StorageUnavailable):
                await office.coordination.hear(None)
            await office.open(requests_per_min=LIMIT)
            admitted += sum([await office.ask() is not None for _ in range(LIMIT)])
    assert admitted == LIMIT // 3 * 3
    assert "this process goes on with 1/3 of every rate limit" in caplog.text
    for office in offices:
        await office.coordination.aclose()


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
        assert office.took_s < PATIENCE_S, "it does not ask"
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
            assert str(refused.value) == f"the account is limited to {said}, {away}; try again in 5 s"
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
            r"limited to 40 requests a minute, of which each of 4 processes has 10 while .* away, and 0 are left; try"
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
