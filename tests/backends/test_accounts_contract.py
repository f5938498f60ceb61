"""Storages that keep accounts keep what the contract says."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from routewright.backends.storage.memory import MemoryStorage, accounts
from routewright.backends.storage.sqlite import SqliteStorage
from routewright.errors import RateLimited
from routewright.testing import FakeClock
from routewright.testing.storage import AccountsContract
from routewright.wire import Ask, Caller, Claim


class TestMemoryAccounts(AccountsContract):
    def make(self, clock: FakeClock) -> MemoryStorage:
        return MemoryStorage(clock=clock)


class TestSqliteAccounts(AccountsContract):
    path: Path

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def make(self, clock: FakeClock) -> SqliteStorage:
        return SqliteStorage(self.path, clock=clock)

    def other(self, clock: FakeClock) -> SqliteStorage:
        return SqliteStorage(self.path, clock=clock)


@pytest.mark.anyio
async def test_a_call_that_finds_too_many_waiting_is_told_when_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MOST_WAITING", 1)
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
