"""Rate limits counted in Redis meet the account contract, in one process and in several."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from routewright._engine.shared_limits import SharedLimits
from routewright.backends.coordination.redis import RedisCoordination
from routewright.backends.storage.memory import MemoryStorage
from routewright.backends.storage.postgres import PostgresStorage
from routewright.protocols import CountingCoordination
from routewright.testing import FakeClock
from routewright.wire import Ask
from tests.backends.databases import empty_store
from tests.contracts.storage import accounts_model
from tests.contracts.storage.accounts_model import AccountsWalk
from tests.contracts.storage.admission import Budgets, Windows
from tests.contracts.storage.samples import Till
from tests.contracts.storage.suites import AccountsContract
from tests.servers import PostgresServer, RedisServer


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

        def first_time(model: Any) -> Ask:
            while model.call((ask := chosen(model)).id) is not None:
                pass
            return ask

        self.chance.ask = first_time  # type: ignore[method-assign]
        await super().ask()
        self.chance.ask = chosen  # type: ignore[method-assign]


class TestSharedLimits(AccountsContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis: RedisServer) -> None:
        self.redis = redis

    def make(self, clock: FakeClock) -> Any:
        return Limited(RedisCoordination(self.redis.url, clock=clock), clock)

    @pytest.mark.parametrize("seed", range(10))
    async def test_a_random_history_matches_the_model(self, till: Till, clock: FakeClock, seed: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                accounts_model, "PAUSES", [round(pause * 8) / 8 for pause in accounts_model.PAUSES]
            )  # whole units of Redis
            await Walk(till.limiting, clock, Random(seed)).go(300)


class TestSharedLimitsBesidePostgres(Windows, Budgets):
    @pytest.fixture(autouse=True)
    def _servers(self, redis: RedisServer, postgres_server: PostgresServer) -> None:
        self.redis, self.url = redis, empty_store(postgres_server)

    def make(self, clock: FakeClock) -> Any:
        inner = PostgresStorage(self.url, clock=clock)
        return Limited(RedisCoordination(self.redis.url, clock=clock), clock, inner)

    async def test_threads_with_their_own_loops_stay_within_the_limits(self) -> None:  # type: ignore[override]  # none
        pytest.skip("a slot and money are freed one after the other, so that one may have the slot and wait for money")
