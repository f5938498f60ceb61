"""Processes share one account and one idempotency key and are killed: nothing is spent twice."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import anyio
import msgspec
import pytest

from routewright import SqliteStorage
from routewright.wire import Account, LedgerRow, LedgerRows, PutAccount, Standing, Stands, UsageCounts
from tests.programs import Program

from .router_child import ACCOUNT, Child, Order, Report

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there processes share the monotonic clock")
LEASE_S = 1.0
DOLLAR = 10**9
WORST = 200 * 40_000
"""Nano-dollars that the output of a call may cost; its input comes to some hundreds of thousands more."""


class Payer:
    """A process that makes calls."""

    def __init__(self, process: Program) -> None:
        self._process = process
        self.heard = process.heard
        self.kill = process.kill

    def begin(self, order: Order) -> None:
        self._process.tell(msgspec.json.encode(order).decode())

    def report(self) -> Report:
        return msgspec.json.decode(self.heard(), type=Report)


@contextmanager
def payer(path: Path, seed: int, lease_s: float = LEASE_S) -> Iterator[Payer]:
    """Start a process that makes calls; it ends in good order, or is killed."""
    child = msgspec.json.encode(Child(str(path), seed, lease_s)).decode()
    with Program("-m", "tests.engine.router_child", child) as process:
        assert process.heard() == "ready"
        yield Payer(process)
        process.close()


@contextmanager
def payers(path: Path, count: int) -> Iterator[Sequence[Payer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(payer(path, seed)) for seed in range(count)]


def opened(path: Path, limit_nanos: int) -> SqliteStorage:
    """A store in which the account has a limit a month."""
    storage = SqliteStorage(path, busy_s=30.0)
    account = Account(name=ACCOUNT, created_at="2026-01-01T00:00:00.000Z", plan="unlimited", monthly_nanos=limit_nanos)
    anyio.run(storage.apply, ACCOUNT, [PutAccount(account)])
    return storage


async def found(storage: SqliteStorage) -> tuple[Standing, list[LedgerRow], int]:
    """How the account stands, its rows, and what its traces add up to, in nano-dollars."""
    standing: Standing = await storage.read(ACCOUNT, Stands(_month()))
    rows: list[LedgerRow] = await storage.scan(ACCOUNT, LedgerRows(), after=None, limit=1_000_000)
    day = _month()[:10]
    counts = await storage.read(
        ACCOUNT, UsageCounts(first=f"{day[:4]}-01-01", last=f"{day[:4]}-12-31", group_by="model")
    )
    return standing, rows, sum(row.charged_nanos for row in counts.all)


def _month() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())


def assert_accounts_agree(storage: SqliteStorage) -> tuple[int, list[LedgerRow]]:
    """Purses, ledger and traces say the same, to the nano-dollar, and nothing is held. Gives what was spent."""
    standing, rows, traced = anyio.run(found, storage)
    spent = {purse.spent_nanos for purse in standing.purses}
    assert spent == {sum(row.charge_nanos for row in rows)} == {traced}
    assert all(purse.reserved_nanos == 0 for purse in standing.purses)
    return spent.pop(), rows


async def swept(storage: SqliteStorage, until: float) -> None:
    """Sweep until nothing is held any more, which takes no longer than a lease."""
    while any(purse.reserved_nanos for purse in (await found(storage))[0].purses):
        assert time.monotonic() < until + 1.0, "what a process held that was killed is still held"
        await storage.sweep(time.time())
        await anyio.sleep(0.05)


class Watch:
    """Looks at the account all the time."""

    def __init__(self, storage: SqliteStorage) -> None:
        self.most = self.looks = 0
        self._storage = storage
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: anyio.run(self._look))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _look(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stop.is_set()  # all calls have ended by then
            standing: Standing = await self._storage.read(ACCOUNT, Stands(_month()))
            self.most = max(self.most, *(each.spent_nanos + each.reserved_nanos for each in standing.purses))
            self.looks += 1
            await anyio.sleep(0.001)


def test_calls_of_four_processes_spend_a_dollar_and_no_more(tmp_path: Path, full: bool) -> None:
    calls, limit = (125, DOLLAR) if full else (30, DOLLAR // 4)
    storage = opened(tmp_path / "traces.db", limit)
    with Watch(storage) as watch, payers(tmp_path / "traces.db", 4) as all_of_them:
        for each in all_of_them:
            each.begin(Order(calls, in_flight=calls))
        reports = [each.report() for each in all_of_them]
    spent, rows = assert_accounts_agree(storage)
    assert watch.looks
    assert spent <= watch.most <= limit
    answered = sum(len(report.responses) for report in reports)
    refused = sum(sum(report.refused.values()) for report in reports)
    assert answered == len(rows) == sum(report.upstream for report in reports)
    assert answered + refused == 4 * calls
    assert all(set(report.refused) <= {"quota_exhausted"} for report in reports), "others wait for what is held"
    assert refused, "there is not enough for all"
    assert limit - spent < WORST + 1_000_000, "what is left pays for no further call"
    anyio.run(storage.aclose)


def test_calls_of_four_processes_with_one_idempotency_key_are_one_call(tmp_path: Path, full: bool) -> None:
    storage = opened(tmp_path / "traces.db", 10**15)
    rounds = 1_000 if full else 2
    with payers(tmp_path / "traces.db", 4) as all_of_them:
        for number in range(rounds):
            for each in all_of_them:
                each.begin(Order(50, in_flight=50, key=f"key-{number}"))
            reports = [each.report() for each in all_of_them]
            assert sum(report.upstream for report in reports) == 1
            assert [len(report.responses) for report in reports] == [50] * 4
            assert len({response for report in reports for response in report.responses}) == 1
    _, rows = assert_accounts_agree(storage)
    assert len(rows) == rounds
    anyio.run(storage.aclose)


def test_a_killed_process_holds_nothing_past_its_lease_and_is_not_billed(tmp_path: Path, full: bool) -> None:
    """The next with its key succeeds, and is the only bill."""
    storage, chance = opened(tmp_path / "traces.db", 10**15), Random(6)
    lease_s, billed = 0.4, 0
    for number in range(200 if full else 2):
        order = Order(1, in_flight=1, key=f"key-{number}", takes_s=0.05)
        with payer(tmp_path / "traces.db", number, lease_s) as killed, payer(tmp_path / "traces.db", -1) as other:
            killed.begin(order)
            time.sleep(chance.random() * 0.08)
            killed.kill()
            other.begin(order)
            report = other.report()
            assert (report.refused, len(report.responses)) == ({}, 1)
            other.begin(Order(3, in_flight=3))
            assert len(other.report().responses) == 3
        anyio.run(swept, storage, time.monotonic() + lease_s)
        billed += 4
        _, rows = assert_accounts_agree(storage)
        assert sum(row.charge_nanos > 0 for row in rows) == billed
        assert len({row.request_id for row in rows if row.charge_nanos}) == billed
    anyio.run(storage.aclose)
