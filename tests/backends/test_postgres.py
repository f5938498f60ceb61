"""The storage in PostgreSQL keeps what the contract says, on a real server."""

from __future__ import annotations

from random import Random

import anyio
import pytest

from routewright.backends.storage.postgres import PostgresStorage
from routewright.testing import FakeClock
from routewright.testing.storage import AccountsContract, BooksContract, StorageContract
from routewright.testing.storage.admission import AccountsSuite
from routewright.testing.storage.walk import walk


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


def test_a_long_walk_of_two_accounts_shows_neither_what_is_the_others(postgres: str, full: bool) -> None:
    async def steps() -> None:
        storage = PostgresStorage(postgres)
        await walk(storage, Random(20261127), steps=100_000 if full else 100, accounts=("one", "one's"))
        await storage.aclose()

    anyio.run(steps)
