"""What does it cost to set money aside for a call at every level, and to settle it: the rule, in memory, in SQLite?"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from routewright import MemoryStorage, SqliteStorage
from routewright.protocols import Storage
from routewright.wire import Durability, LedgerRow, Reserve, Settle, Tokens

from .accounts import AT, KEY, PLENTY, open_account
from .conftest import Timed, TimedAsync
from .report import Question

WIDTHS = (50, 200)
WORST, COST = 800_000, 300_000

RULE = Question("one level, reserved and settled: the arithmetic")
MEMORY = Question("five purses, reserved and settled, in memory")
BUFFERED = Question("five purses, reserved and settled in SQLite, not synced")
COMMITTED = Question("five purses, reserved in SQLite, and settled with a sync")
AT_ONCE = {width: Question(f"the same, {width} calls at a time") for width in WIDTHS}


def calls() -> Iterator[str]:
    return (f"tr_{number}" for number in count())


def row(call: str) -> LedgerRow:
    return LedgerRow(
        request_id=call, attempt=1, at=AT, key_id=KEY.id, model="a/one", provider="a", tokens=Tokens(42, 9),
        cost_nanos=COST, charge_nanos=COST,
    )  # fmt: skip


class Payer:
    """Pays for calls from an account with everything on."""

    def __init__(self, storage: Storage, durability: Durability) -> None:
        self._storage = storage
        self._durability: Durability = durability

    async def pay(self, call: str) -> None:
        clock_s = time.monotonic()
        reserve = Reserve(id=call, nanos=WORST, owner="own_1", lease_s=30.0, clock_s=clock_s, at=AT, key_id=KEY.id)
        await self._storage.apply("acme", [reserve])
        settle = Settle(id=call, at=AT, rows=(row(call),), key_id=KEY.id, durability=self._durability)
        await self._storage.apply("acme", [settle])


class LeastLedger:
    """One limit, and who holds how much of it."""

    def __init__(self) -> None:
        self._spent = self._reserved = 0
        self._held: dict[str, int] = {}

    def pay(self, call: str) -> None:
        """Reserve, and settle."""
        if self._spent + self._reserved + WORST > PLENTY:
            raise ValueError("spent")
        self._reserved += WORST
        self._held[call] = WORST
        self._reserved -= self._held.pop(call)
        self._spent += COST


class LeastTable:
    """The same as a conditional update and an update of one row, each a transaction."""

    def __init__(self, path: Path, level: str) -> None:
        self._connection = connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE purse (spent INTEGER, reserved INTEGER)")
        connection.execute("INSERT INTO purse VALUES (0, 0)")
        self._level = level

    def pay(self, call: str) -> None:
        """Reserve without a sync, and settle at the level of sync."""
        execute = self._connection.execute
        execute("PRAGMA synchronous = NORMAL")
        execute("UPDATE purse SET reserved = reserved + ? WHERE spent + reserved + ? <= ?", (WORST, WORST, PLENTY))
        execute(f"PRAGMA synchronous = {self._level}")
        execute("UPDATE purse SET spent = spent + ?, reserved = reserved - ?", (COST, WORST))


class TestInMemory:
    def test_floor(self, timed: Timed) -> None:
        timed(RULE, "floor", LeastLedger().pay, calls())

    def test_routewright(self, timed_async: TimedAsync, loop: asyncio.Runner) -> None:
        storage = MemoryStorage()
        loop.run(open_account(storage))
        timed_async(MEMORY, "routewright", Payer(storage, "buffered").pay, calls())


@pytest.mark.parametrize(("question", "durability"), [(BUFFERED, "buffered"), (COMMITTED, "committed")])
class TestInSqlite:
    def test_floor(self, timed: Timed, tmp_path: Path, question: Question, durability: Durability) -> None:
        level = "FULL" if durability == "committed" else "NORMAL"
        timed(question, "floor", LeastTable(tmp_path / "floor.db", level).pay, calls())

    def test_routewright(
        self,
        timed_async: TimedAsync,
        loop: asyncio.Runner,
        tmp_path: Path,
        question: Question,
        durability: Durability,
    ) -> None:
        storage = SqliteStorage(tmp_path / "ledger.db")
        loop.run(open_account(storage))
        timed_async(question, "routewright", Payer(storage, durability).pay, calls())
        loop.run(storage.aclose())


@pytest.mark.parametrize("width", WIDTHS)
def test_many_at_once(timed_async: TimedAsync, loop: asyncio.Runner, tmp_path: Path, width: int) -> None:
    storage = SqliteStorage(tmp_path / "ledger.db")
    loop.run(open_account(storage))
    timed_async.in_flight(AT_ONCE[width], "routewright", Payer(storage, "committed").pay, calls(), width)
    loop.run(storage.aclose())
