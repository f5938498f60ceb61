"""Several processes spend one account's money at once, with the clocks of the machine, and some of them are killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from time import monotonic, sleep, time
from typing import IO, Any

import anyio
import msgspec
import pytest

from routewright.backends.storage.sqlite import SqliteStorage
from routewright.backends.storage.sqlite.connection import connect
from routewright.backends.storage.sqlite.upkeep import check
from routewright.testing.storage.samples import AT, Till, make_key
from routewright.wire import ClaimByKey, KeepLease, LedgerRow, LedgerRows, LedgerSums, Purse, RunLimit, Stands

from .ledger_child import KEYS, NESTED, OF_RUN, RUN_LIMIT, WORST, Orders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there processes share the monotonic clock")

DOLLAR = 1_000_000_000
PATIENCE_S = 60.0
LEASE_S = 0.4
"""Of those that are killed."""
MOST_CALLS, A_CALL_S = 60, 0.005
"""One is killed after so many calls at most, at any point of the next."""


class Spender:
    """A process that spends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.said: list[str] = []
        self._process = process
        self._ready = threading.Event()
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._reader.start()

    def begin(self) -> None:
        assert self._ready.wait(PATIENCE_S)
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def wait(self, lines: int) -> None:
        """Wait until it has said so much."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.said) >= lines, PATIENCE_S)

    @property
    def goes_on(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Wait for its end, which has to be a good one."""
        assert self._process.wait(3_600) == 0
        self._reader.join(PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)  # what it wrote until then is still in the pipe
        assert not self._reader.is_alive()

    def _read(self, out: IO[bytes]) -> None:
        for line in out:
            if line == b"ready\n":
                self._ready.set()
                continue
            with self._changed:
                self.said.append(line.decode().strip())
                self._changed.notify_all()


@contextmanager
def spender(orders: Orders) -> Iterator[Spender]:
    """Start a process that spends."""
    program = [sys.executable, "-W", "error", "-m", "tests.backends.ledger_child", msgspec.json.encode(orders).decode()]
    root = Path(__file__).parents[2]
    with subprocess.Popen(program, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Spender(process)
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces.db"


def watched(path: Path, spenders: Sequence[Spender], asked: Sequence[Stands]) -> int:
    """Look at the purses for as long as they spend: none is ever above its limit. Says how often that was."""

    async def watch() -> int:
        storage, looks = SqliteStorage(path), 0
        while any(each.goes_on for each in spenders):
            for query in asked:
                for purse in (await storage.read("acme", query)).purses:
                    assert_within(purse)
                    looks += 1
            await anyio.sleep(0.001)
        await storage.aclose()
        return looks

    return anyio.run(watch)


def assert_within(purse: Purse) -> None:
    assert purse.limit_nanos is None or purse.spent_nanos + purse.reserved_nanos <= purse.limit_nanos, purse


def open_account(path: Path, *keys: Any, **terms: Any) -> None:
    async def write() -> None:
        storage = SqliteStorage(path)
        await Till(storage).open(*keys, **terms)
        await storage.aclose()

    anyio.run(write)


def standings(path: Path, asked: Sequence[Stands]) -> list[dict[str, Purse]]:
    async def read() -> list[dict[str, Purse]]:
        storage = SqliteStorage(path)
        found = [(await storage.read("acme", query)).purses for query in asked]
        await storage.aclose()
        return [{purse.name: purse for purse in purses} for purses in found]

    return anyio.run(read)


def rows_of(path: Path) -> list[LedgerRow]:
    async def read() -> list[LedgerRow]:
        storage = SqliteStorage(path)
        rows: list[LedgerRow] = await storage.scan("acme", LedgerRows(), after=None, limit=10_000_000)
        sums = await storage.read("acme", LedgerSums("2026-11-01", "2026-11-30"))
        assert sum(each.charge_nanos for each in sums) == sum(row.charge_nanos for row in rows)
        assert sum(each.cost_nanos for each in sums) == sum(row.cost_nanos for row in rows)
        await storage.aclose()
        return rows

    return anyio.run(read)


def holds_in(path: Path) -> int:
    with closing(connect(str(path))) as connection:
        return int(connection.execute("SELECT count(*) FROM hold").fetchone()[0])


def test_500_calls_at_once_of_four_processes_never_spend_more_than_a_dollar_and_leave_no_room(path: Path) -> None:
    open_account(path, monthly_nanos=DOLLAR, prepaid=True, credit=DOLLAR)
    orders = [Orders(str(path), "spend", seed, tasks=125) for seed in range(4)]
    with ExitStack() as stack:
        spenders = [stack.enter_context(spender(each)) for each in orders]
        for each in spenders:
            each.begin()
        looks = watched(path, spenders, [Stands(AT)])
        for each in spenders:
            each.end()
    said = [line.split() for each in spenders for line in each.said]
    paid = [int(nanos) for what, nanos in said if what == "paid"]
    refused = [int(nanos) for what, nanos in said if what == "refused"]
    month = standings(path, [Stands(AT)])[0]["month:2026-11"]
    assert len(paid) + len(refused) == 500
    assert len(refused) > 100
    assert (month.spent_nanos, month.reserved_nanos, holds_in(path)) == (sum(paid), 0, 0)
    assert month.left_nanos is not None
    assert 0 <= month.left_nanos < min(refused) <= max(WORST)
    assert sum(row.charge_nanos for row in rows_of(path)) == sum(paid)
    assert check(path).problems == []
    assert looks > 20
    print(f"{len(paid)} paid {sum(paid)}, {len(refused)} refused, {month.left_nanos} left, {looks} looks")


def test_64_workers_with_nested_calls_overshoot_at_no_level(path: Path, full: bool) -> None:
    calls = 10_000 if full else 15
    expected = 64 * calls * NESTED // 4
    keys = [
        make_key(id=key, digest=key, budget_nanos=expected // 32 * place or None, monthly_nanos=expected // 10)
        for place, key in enumerate(KEYS)
    ]
    open_account(path, *keys, prepaid=True, credit=expected * 3 // 10, monthly_nanos=expected)
    orders = [Orders(str(path), "nest", seed, tasks=16, calls=calls, durability="buffered") for seed in range(4)]
    with ExitStack() as stack:
        spenders = [stack.enter_context(spender(each)) for each in orders]
        for each in spenders:
            each.begin()
        runs = [RunLimit(f"{seed}-{nr}", RUN_LIMIT) for seed in range(4) for nr in range(calls // OF_RUN)]
        looks = watched(path, spenders, [Stands(AT, key, run) for key, run in zip(KEYS, runs, strict=False)])
        for each in spenders:
            each.end()
    asked = [*(Stands(AT, key) for key in KEYS), *(Stands(AT, run=run) for run in runs)]
    purses = {name: purse for query in standings(path, asked) for name, purse in query.items()}
    for purse in purses.values():
        assert_within(purse)
        assert purse.reserved_nanos == 0
    rows = rows_of(path)
    spent = {name: purse.spent_nanos for name, purse in purses.items()}
    assert holds_in(path) == 0
    assert spent["account"] == spent["month:2026-11"] == sum(row.charge_nanos for row in rows)
    assert check(path).problems == []
    assert not any(row.overrun_nanos for row in rows)
    full_up = {line for each in spenders for line in each.said}
    assert {"full account", "full key:k1"} <= full_up, "or nothing is shown"
    print(f"{len(rows)} rows, {spent['account']} spent, {len(full_up)} of {len(purses)} purses full, {looks} looks")


# Kills


class Scene:
    """Processes that are killed one after another while they spend the money of one account."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._chance = Random(seed)
        self.told: dict[str, str] = {}
        """Calls whose settlements were told of as committed, by their idempotency keys."""

    def kill_one(self, number: int) -> None:
        """One begins with the last keys of the one before it, and is killed."""
        reached = max((int(key.partition("-")[2]) for key in self.told), default=0)
        first = max(0, reached - 10)
        orders = Orders(str(self._path), "work", number, tasks=4, calls=1_000_000, first=first, lease_s=LEASE_S)
        with spender(orders) as one:
            one.begin()
            one.wait(self._chance.randint(1, MOST_CALLS))
            sleep(self._chance.random() * A_CALL_S)
            one.kill()
        killed_at = monotonic()
        for line in one.said:
            call, key = line.split(" ")
            assert key not in self.told, "one call a key"
            self.told[key] = call
        sleep(max(0.0, killed_at + LEASE_S - monotonic()))
        anyio.run(self._check)

    async def _check(self) -> None:
        """After the lease nothing is held, and what was told of is there, once."""
        storage = SqliteStorage(self._path)
        await storage.apply("_system", [KeepLease("own_checker", LEASE_S, monotonic())])
        await storage.sweep(time())
        (account, month) = (await storage.read("acme", Stands(AT))).purses
        assert account.reserved_nanos == month.reserved_nanos == 0
        rows: list[LedgerRow] = await storage.scan("acme", LedgerRows(), after=None, limit=10_000_000)
        attempts = {row.note: row for row in rows if row.kind == "attempt"}
        assert len(attempts) == sum(row.kind == "attempt" for row in rows), "a key is charged once"
        assert month.spent_nanos == sum(row.charge_nanos for row in attempts.values())
        for key, call in self.told.items():
            assert attempts[key].request_id == call
            found = await storage.read("acme", ClaimByKey(key, "production", monotonic(), time()))
            assert found is not None
            assert found.result == call.encode()
        await storage.aclose()
        assert check(self._path).problems == []
        self.rows = len(rows)


def test_a_kill_leaves_nothing_held_after_the_lease_and_takes_nothing_that_was_told_of(path: Path, full: bool) -> None:
    open_account(path, monthly_nanos=1_000 * DOLLAR)
    scene, kills = Scene(path, 7), 200 if full else 2
    for number in range(kills):
        scene.kill_one(number)
    assert len(scene.told) >= kills
    print(f"{kills} kills, {len(scene.told)} calls told of, {scene.rows} rows")
