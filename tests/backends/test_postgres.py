"""The storage in PostgreSQL keeps what the contract says, on a real server."""

from __future__ import annotations

import pytest

from routewright.backends.storage.postgres import PostgresStorage
from routewright.testing import FakeClock
from routewright.testing.storage import AccountsContract, BooksContract, StorageContract
from routewright.testing.storage.admission import AccountsSuite


class TestPostgresStorage(StorageContract, BooksContract):
    @pytest.fixture(autouse=True)
    def _url(self, postgres: str) -> None:
        self.url = postgres

    def make(self) -> PostgresStorage:
        return PostgresStorage(self.url)


class InDatabase(AccountsSuite):
    @pytest.fixture(autouse=True)
    def _url(self, postgres: str) -> None:
        self.url = postgres

    def make(self, clock: FakeClock) -> PostgresStorage:
        return PostgresStorage(self.url, clock=clock)

    def other(self, clock: FakeClock) -> PostgresStorage:
        return PostgresStorage(self.url, clock=clock)


class TestPostgresAccounts(InDatabase, AccountsContract):
    pass
