"""All account storages meet the contract."""

from __future__ import annotations

from functools import partial
from math import inf
from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel
import pytest

from routewright._core.accounts import wait_queue
from routewright.backends.storage.memory import MemoryStorage
from routewright.backends.storage.sqlite import SqliteStorage
from routewright.backends.storage.sqlite.upkeep import check
from routewright.errors import RateLimited
from routewright.protocols import LimitingStorage
from routewright.testing import FakeClock
from routewright.wire import Ask, Caller, Claim
from tests.contracts.storage.accounts_model import AccountsWalk
from tests.contracts.storage.admission import AccountsSuite, Budgets, Windows
from tests.contracts.storage.owners import Owners
from tests.contracts.storage.samples import AT_S, DAY_S, Till
from tests.contracts.storage.settlement import Accounting, Histories, Idempotency, Settling
from tests.contracts.storage.suites import AccountsContract

from .account_storages import KINDS, Place, at_once, empty_store, tills_of
from .shared_file import desk_of


class TestMemoryAccounts(AccountsContract):
    def make(self, clock: FakeClock) -> MemoryStorage:
        return MemoryStorage(clock=clock)


class InFile(AccountsSuite):
    path: Path

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"
        self.path.write_bytes(empty_store())

    def make(self, clock: FakeClock) -> SqliteStorage:
        return SqliteStorage(self.path, clock=clock)

    def other(self, clock: FakeClock) -> SqliteStorage:
        return SqliteStorage(self.path, clock=clock)


@pytest.mark.anyio
async def test_a_full_queue_refuses_with_a_retry_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_queue, "MOST_WAITING", 1)
    clock = FakeClock(autojump=False)
    mine = MemoryStorage(clock=clock).accounts

    def ask(call: str) -> Ask:
        return Ask(id=call, caller=Caller("acme"), at=0.0, lasts_s=60.0, waits_s=60.0, claim=Claim("key", "body"))

    await mine.admit(ask("runs"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mine.admit, ask("waits"))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RateLimited) as error:
            await mine.admit(ask("is one too many"))
        assert error.value.headers == {"Retry-After": "1"}
        tasks.cancel_scope.cancel()


class TestSqliteAccounts(InFile, AccountsContract):
    pass


class InThreads(InFile):
    """With the threads of the storage. Not for ``Queues``: while a thread works, the clock of the tests takes its
    caller for idle."""

    def make(self, clock: FakeClock) -> SqliteStorage:
        clock.virtual = False
        return super().make(clock)


@pytest.mark.full
class TestTheRestOfSqliteAccountsInThreads(InThreads, Idempotency, Accounting):
    """What does not race."""


class TestSqliteAccountsInThreads(InThreads, Windows, Budgets, Settling, Histories, Owners):
    """What may race."""

    async def test_money_freed_in_another_process_goes_to_waiting_calls(
        self, full: Till, second: Till, clock: FakeClock
    ) -> None:
        await full.admit("c", 1_000)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(partial(second.admit, "a", 500, waits_s=50.0))
                while not len(desk_of(second).queue):
                    await anyio.lowlevel.checkpoint()
                full.release("c")

    async def test_holds_of_a_silent_process_go_to_waiting_calls(
        self, full: Till, second: Till, clock: FakeClock
    ) -> None:
        """Nobody else writes anything that could wake them."""
        await full.admit("lost", 800, same="i", lasts_s=600.0)
        desk_of(full).beat_s = inf  # it was killed
        given = partial(second.admit, "a", 500, same="i", waits_s=50.0)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(given)
                while not len(desk_of(second).queue):
                    await anyio.lowlevel.checkpoint()
                await clock.advance(self.lease_s + 1.0)
        assert (await second.purses())["account"] == (0, 500)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_long_random_histories_match_the_model(kind: str, tmp_path: Path) -> None:
    async def walk(seed: int) -> None:
        clock, path = FakeClock(AT_S, autojump=False), tmp_path / f"{seed}.db"
        storages: list[LimitingStorage] = [MemoryStorage(clock=clock)]
        if kind == "sqlite":
            storages = [SqliteStorage(path, clock=clock) for _ in range(2)]
        await AccountsWalk(storages[0], clock, Random(seed), other=(*storages, None)[1]).go(500)
        for storage in storages:
            await storage.aclose()
        assert kind == "memory" or check(path).problems == []

    for seed in range(1_000):
        anyio.run(walk, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_removes_expired_answers_after_the_clock_was_set_back(kind: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path / "traces.db")
    till = tills_of(place, "acme")[0]
    for key, step_s in (("first", 0.0), ("second", -DAY_S)):
        place.clock.step_s = step_s
        at_once(till.admit(key, same=key))
        at_once(till.settle(key, result=b"answer"))
    now = place.clock.time() + DAY_S
    assert [at_once(till.storage.sweep(each)) for each in (now - 1.0, now, now + DAY_S)] == [0, 1, 1]
    place.close()
