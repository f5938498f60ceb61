"""Storages that keep accounts keep what the contract says."""

from __future__ import annotations

from pathlib import Path

import pytest

from routewright.backends.storage.memory import MemoryStorage
from routewright.backends.storage.sqlite import SqliteStorage
from routewright.testing import FakeClock
from routewright.testing.storage import AccountsContract


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
