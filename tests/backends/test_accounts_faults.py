"""Cancellations and faults: nothing stays held, no unsaved result is reported, and no other account pays."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from routewright._core.accounts import eviction
from routewright.backends.storage.sqlite import SqliteStorage, log, sync, transaction, writer
from routewright.backends.storage.sqlite.file import connect
from routewright.backends.storage.sqlite.upkeep import check
from routewright.errors import InternalError, RouterTimeoutError, StorageFull, StorageUnavailable
from routewright.testing import FakeClock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    HealthSnapshot,
    LedgerRow,
    PutAccount,
    RateLimits,
    Replay,
    SnapshotById,
)
from tests.contracts.storage.samples import (
    AT_S,
    MONTH,
    RUN,
    Draft,
    Till,
    make_account,
    make_facts,
    make_row,
    make_trace,
)

from .faulty_connection import Failing, Watched

pytestmark = pytest.mark.anyio

WRITER = "routewright-sqlite"
PATIENCE_S = 20.0
TURNS = 25
"""A call is cancelled after each of so many turns of the loop."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the contract suite runs on trio, too


class Gate:
    """``connect`` of a storage whose writer stops before it begins, or before it commits, until it is let go."""

    def __init__(self) -> None:
        self.at = ""
        """The statement before which it stops; none where it is empty."""
        self.reached = threading.Event()
        self._go = threading.Event()

    def __call__(self, path: str) -> Any:
        return Watched(connect(path), lambda sql: self.pass_by(sql))

    def open(self) -> None:
        """Let it go."""
        self.at = ""
        self._go.set()

    def pass_by(self, sql: str) -> None:
        """Stop there."""
        if self.at and sql == self.at and threading.current_thread().name == WRITER:
            self.reached.set()
            assert self._go.wait(PATIENCE_S)


class Scene:
    """A storage with its thread, stopped at the gate while calls queue."""

    def __init__(self, path: Path) -> None:
        self.gate = Gate()
        self.storage = SqliteStorage(path, connect=self.gate)
        self.till = Till(self.storage)

    @asynccontextmanager
    async def stopped(self, at: str) -> AsyncIterator[anyio.abc.TaskGroup]:
        """The writer stands before a statement, in a transaction of its own. It goes on at the end."""
        self.gate.at = at
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self.till.standing)
                assert await anyio.to_thread.run_sync(self.gate.reached.wait, PATIENCE_S)
                yield group
                self.gate.open()
        finally:
            self.gate.open()

    async def queued(self, count: int) -> None:
        """Wait until so many requests are behind it."""
        while self.storage._writer._requests.qsize() < count:
            await checkpoint()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path / "traces.db")
    yield made
    await made.storage.aclose()
    assert check(made.storage.path).problems == []


async def reserved(till: Till) -> int:
    return (await till.purses())[MONTH][1]


# Whoever leaves


Leaver = Callable[[Till, str], Awaitable[Any]]


async def _ask(till: Till, call: str) -> None:
    await till.admit(call, 100, key="k", run=RUN, same=call)


async def _wait_for_money(till: Till, call: str) -> None:
    await till.ask(call, 1_000, key="k", waits_s=60.0)


async def _wait_for_a_key(till: Till, call: str) -> None:
    await till.ask(call, 10, same="taken", waits_s=60.0)


async def _ask_and_widen(till: Till, call: str) -> None:
    grant = await till.admit(call, 100)
    try:
        await till.accounts.widen(grant, 200)
    finally:
        till.release(call)


async def _ask_and_settle(till: Till, call: str) -> None:
    grant = await till.admit(call, 100)
    facts = make_facts(call, make_row(call, charge=1))
    with anyio.CancelScope(shield=True):  # as the engine does: what was begun is told
        try:
            await till.accounts.settle(grant, facts)
        finally:
            await till.accounts.settle(None, facts)


LEAVERS: list[Leaver] = [_ask, _wait_for_money, _wait_for_a_key, _ask_and_widen, _ask_and_settle]


async def cancel_at_every_step(till: Till, leaver: Leaver) -> list[str]:
    """Cancel calls after more and more turns of the loop. Those that ended are released."""
    ended: list[str] = []
    for turn in range(TURNS):
        call = f"{leaver.__name__}{turn}"
        async with anyio.create_task_group() as group:

            async def go(call: str = call) -> None:
                await leaver(till, call)
                ended.append(call)

            group.start_soon(go)
            for _ in range(turn):
                await checkpoint()
            group.cancel_scope.cancel()
        if call in ended and call in till.grants:
            till.release(call)
    return ended


@pytest.mark.parametrize("leaver", LEAVERS, ids=lambda leaver: leaver.__name__)
async def test_a_cancelled_call_holds_nothing(scene: Scene, leaver: Leaver) -> None:
    till = await scene.till.open_full()
    limits = RateLimits(concurrency=3)
    await till.put(PutAccount(make_account(prepaid=True, monthly_nanos=1_000, limits=limits)))
    await till.admit("taken", 10, same="taken")
    await cancel_at_every_step(till, leaver)
    assert await reserved(till) == 10
    till.release("taken")
    assert await reserved(till) == 0
    assert len(scene.storage._writer.transaction.queue) == 0
    for number in range(3):
        await till.admit(f"slot{number}", 10)
    for number in range(3):
        till.release(f"slot{number}")


async def cancel_during_its_tick(scene: Scene) -> None:
    """A call whose grant is committed when it is cancelled, and was not told yet."""
    till = await scene.till.open_full()
    scene.gate.at = "COMMIT"
    async with anyio.create_task_group() as group:
        group.start_soon(partial(till.ask, "c", 900, key="k", run=RUN, same="i"))
        assert await anyio.to_thread.run_sync(scene.gate.reached.wait, PATIENCE_S)
        group.cancel_scope.cancel()
        scene.gate.open()
    assert await reserved(till) == 0, "it is given back"
    await till.admit("d", 900, same="i")
    till.release("d")


async def test_a_call_cancelled_during_its_tick_returns_its_hold(scene: Scene) -> None:
    await cancel_during_its_tick(scene)


async def test_a_call_cancelled_before_its_tick_is_not_admitted(scene: Scene) -> None:
    till = await scene.till.open_full()
    async with scene.stopped("BEGIN IMMEDIATE") as group:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as asking:
                asking.start_soon(till.ask, "c", 900)
                await scene.queued(1)
                scope.cancel()
        group.cancel_scope.shield = True
    assert await reserved(till) == 0
    assert not await till.rows(request_id="c")


async def test_a_call_cancelled_while_widening_keeps_its_hold(scene: Scene) -> None:
    till = await scene.till.open_full()
    await till.admit("c", 100, key="k")
    await till.admit("other", 850)
    async with anyio.create_task_group() as group:
        group.start_soon(partial(till.ask, "c", 500, key="k", waits_s=60.0))
        while not len(scene.storage._writer.transaction.queue):
            await checkpoint()
        group.cancel_scope.cancel()
    till.release("other")
    assert await reserved(till) == 100
    scene.gate.at = "COMMIT"
    scene.gate.reached.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(till.ask, "c", 200, key="k"))
        assert await anyio.to_thread.run_sync(scene.gate.reached.wait, PATIENCE_S)
        group.cancel_scope.cancel()
        scene.gate.open()
    assert await reserved(till) == 200, "its call goes on"
    till.release("c")
    assert await reserved(till) == 0


async def test_a_key_settled_and_requested_in_one_tick_is_replayed(scene: Scene) -> None:
    till = await scene.till.open_full()
    await till.admit("c", 100, same="i")
    found: list[Any] = []

    async def again(call: str) -> None:
        found.append(await till.ask(call, 100, same="i"))

    async with scene.stopped("BEGIN IMMEDIATE") as group:
        group.start_soon(again, "d")
        group.start_soon(partial(till.settle, "c", make_row("c", charge=7), result=b"answer"))
        group.start_soon(again, "e")
        await scene.queued(3)
    assert found == [Replay(b"answer")] * 2
    assert (await till.purses())[MONTH] == (7, 0)


async def test_closing_fails_no_call_that_is_ending(scene: Scene) -> None:
    till = await scene.till.open_full()
    for round_ in range(20):
        calls = [f"c{round_}-{number}" for number in range(5)]
        for call in calls:
            await till.admit(call, 1)
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(till.settle, call, make_row(call, charge=1))
            group.start_soon(scene.storage.aclose)
    assert (await till.purses())[MONTH] == (100, 0)


# One that is to blame among many


async def test_only_the_faulty_settlement_of_a_tick_fails(scene: Scene) -> None:
    for number, guilty in enumerate((
        make_row("c3", charge=2**70),
        make_row("c3", charge=1, note="\ud800"),
        make_row("c3", charge=1, cost_range_nanos=(0, 2**64)),
    )):  # fmt: skip
        till = await Till(scene.storage, f"a{number}").open(monthly_nanos=1_000)
        failed: list[str] = []

        async def settle(call: str, row: LedgerRow, till: Till = till, failed: list[str] = failed) -> None:
            try:
                await till.settle(call, row, result=call.encode())
            except InternalError:
                failed.append(call)

        for call in (calls := [f"c{number}" for number in range(10)]):
            await till.admit(call, 10, same=call)
        scene.gate.reached.clear()
        scene.gate._go.clear()
        async with scene.stopped("BEGIN IMMEDIATE") as group:
            for call in calls:
                group.start_soon(settle, call, guilty if call == "c3" else make_row(call, charge=7))
            await scene.queued(10)
        assert failed == ["c3"]
        assert (await till.purses(key=None, run=None))[MONTH] == (63, 10)
        for call in calls:
            if call != "c3":
                assert await till.ask("again", same=call) == Replay(call.encode())
        with pytest.raises(RouterTimeoutError):
            await till.ask("again", same="c3")
        till.release("c3")


# A disk that fails


@pytest.fixture
async def failing() -> Failing:
    return Failing()


@pytest.fixture
async def clock() -> FakeClock:
    return FakeClock(AT_S)


@pytest.fixture
async def till(tmp_path: Path, failing: Failing, clock: FakeClock) -> AsyncIterator[Till]:
    storage = SqliteStorage(tmp_path / "traces.db", connect=failing, clock=clock)
    yield await Till(storage).open_full()
    failing.at = 0
    await storage.aclose()
    assert check(storage.path).problems == []


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR])
async def test_if_any_statement_fails_a_call_is_admitted_and_booked_completely_or_not_at_all(
    till: Till, failing: Failing, code: int
) -> None:
    failing.code = code
    failures = 0
    for at in range(1, 40):
        call = f"c{at}"
        failing.at = at
        try:
            await till.admit(call, 10, key="k", run=RUN, same=call)
        except StorageUnavailable:
            failures += 1
            failing.at = 0
            assert await reserved(till) == 0, f"statement {at} of an ask"
            await till.admit(call, 10, key="k", run=RUN, same=call)
        failing.at = at
        try:
            await till.settle(call, make_row(call, charge=7, key_id="k"), result=b"answer")
        except StorageUnavailable:
            failures += 1
            failing.at = 0
            assert (await till.purses())[MONTH][1] == 10, f"statement {at} of a settlement"
            await till.settle(call, make_row(call, charge=7, key_id="k"), result=b"answer")
        failing.at = 0
        assert await till.ask("again", same=call) == Replay(b"answer")
        assert await till.purses() == dict.fromkeys(
            ("run:r", "key:k", "key:k:2026-11", "account", MONTH), (7 * at, 0)
        ), f"statement {at}"
    assert failures > 15


async def test_a_call_that_queued_in_a_failed_tick_holds_nothing(
    till: Till, failing: Failing, clock: FakeClock
) -> None:
    await till.admit("c", 1_000)
    failing.at, failing.only = 1, "COMMIT"
    with pytest.raises(StorageFull):
        await till.ask("d", 500, waits_s=60.0)
    till.release("c")
    assert (await till.purses())[MONTH] == (0, 0)
    await till.admit("e", 1_000)


async def test_waiting_calls_are_answered_once_a_full_disk_has_space(
    till: Till, failing: Failing, clock: FakeClock
) -> None:
    await till.admit("c", 1_000)
    got: list[str] = []

    async def wait() -> None:
        got.append((await till.admit("d", 500, waits_s=60.0)).id)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await clock.sleep(1.0)
        failing.at, failing.only, failing.times = 1, "COMMIT", 5
        till.release("c")  # it does not fail, and is done again when it can be
        await clock.sleep(1.0)
        assert not got
        till.release("c")
    assert got == ["d"]


async def test_waiting_calls_give_up_in_time_while_the_disk_fails(
    till: Till, failing: Failing, clock: FakeClock
) -> None:
    await till.admit("c", 1_000)
    began = clock.monotonic()

    async def wait() -> None:
        with pytest.raises(StorageFull):
            await till.ask("d", 500, waits_s=10.0)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await clock.sleep(1.0)
        failing.at, failing.only, failing.times = 1, "BEGIN IMMEDIATE", 10**6
    assert clock.monotonic() - began < 11.0
    failing.at = 0
    till.release("c")
    assert await reserved(till) == 0


def failed_sync(descriptor: int) -> None:
    raise OSError(errno.EIO, "as the test will have it")


async def test_no_answer_precedes_its_sync(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    await till.admit("c", 100, same="i")
    await till.settle("c", make_row("c", charge=7), result=b"answer", durability="buffered")
    await till.admit("d", 100)
    monkeypatch.setattr(sync, "true_sync", failed_sync)
    with pytest.raises(StorageUnavailable, match="failed to sync"):
        await till.ask("e", same="i")
    monkeypatch.undo()  # what it lost is lost: a sync that succeeds now says nothing
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="failed to sync"):
            await till.settle("d", make_row("d", charge=7))
        with pytest.raises(StorageUnavailable, match="failed to sync"):
            await till.admit("f", 1)
        with pytest.raises(StorageUnavailable, match="failed to sync"):
            await till.rows()
    await till.storage.aclose()
    await till.settle("d", make_row("d", charge=7))
    assert await till.ask("e", same="i") == Replay(b"answer")
    assert (await till.purses())[MONTH] == (14, 0)


async def test_a_settlement_is_not_answered_without_a_sync(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    await till.admit("d", 100)
    monkeypatch.setattr(sync, "true_sync", failed_sync)
    with pytest.raises(StorageUnavailable, match="failed to sync"):
        await till.settle("d", make_row("d", charge=7))
    monkeypatch.undo()
    await till.storage.aclose()
    await till.settle("d", make_row("d", charge=7))  # from the spool: it is booked once
    assert (await till.purses())[MONTH] == (7, 0)


# A process that stands still with the lock


async def test_calls_wait_a_quarter_of_a_second_for_a_stopped_process_and_settlements_longer(
    scene: Scene,
) -> None:
    till, path = await scene.till.open_full(), scene.storage.path
    await till.admit("running", 100)
    found: list[str] = []

    async def settle() -> None:
        await till.settle("running", make_row("running", charge=30))
        found.append("settled")

    with closing(connect(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as group:
            group.start_soon(settle)
            began = time.monotonic()
            with pytest.raises(StorageUnavailable, match="another process has been writing"):
                await till.admit("asking", 100)
            assert 0.1 < time.monotonic() - began < 2.0
            with pytest.raises(StorageUnavailable):
                await till.admit("later", 100)
            assert found == []
            other.execute("COMMIT")
    assert found == ["settled"]
    assert await reserved(till) == 0
    await till.admit("asking", 100)
    till.release("asking")


async def test_calls_wait_for_processes_that_write_all_the_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    till = await scene.till.open_full()
    with closing(connect(str(scene.storage.path))) as other:
        busy = sqlite3.OperationalError("database is locked")
        busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
        gate, left = scene.gate, 5

        def refuse(sql: str) -> None:
            nonlocal left
            if left and sql == "BEGIN IMMEDIATE" and threading.current_thread().name == WRITER:
                left -= 1
                other.execute("UPDATE boot SET ahead = ahead + 0.001")  # another process commits
                raise busy

        monkeypatch.setattr(gate, "pass_by", refuse)
        await till.admit("asking", 100)
    assert left == 0
    till.release("asking")


async def test_releases_on_a_full_disk_take_effect_once_it_has_space(tmp_path: Path) -> None:
    failing = Failing()
    storage = SqliteStorage(tmp_path / "traces.db", connect=failing)
    till = await Till(storage).open_full()
    await till.admit("c", 1_000)
    failing.only, failing.times, failing.at = "COMMIT", 3, 1
    till.release("c")
    while failing.times > 0:  # noqa: ASYNC110  # another thread counts
        await anyio.sleep(0.001)
    assert await reserved(till) == 0
    await storage.aclose()


async def test_a_snapshot_is_put_again_when_its_transaction_failed(till: Till, failing: Failing) -> None:
    snapshots = (HealthSnapshot("h", {}),)
    await till.admit("c", 10)
    failing.at, failing.only = 1, "COMMIT"
    with pytest.raises(StorageFull):
        await till.settle("c", make_row("c"), snapshots=snapshots)
    await till.settle("c", make_row("c"), snapshots=snapshots)
    assert await till.storage.read(SYSTEM_ACCOUNT, SnapshotById("h")) == snapshots[0]


async def test_waiting_calls_keep_their_place_when_a_transaction_fails(
    till: Till, failing: Failing, clock: FakeClock
) -> None:
    await till.admit("c", 1_000)
    got: list[str] = []

    async def wait(call: str) -> None:
        got.append((await till.admit(call, 1_000, waits_s=60.0)).id)

    async with anyio.create_task_group() as group:
        for call in ("first", "second"):
            group.start_soon(wait, call)
            await clock.sleep(0.5)
        failing.at, failing.only = 1, "COMMIT"
        till.release("c")  # "first" is answered in the transaction that fails
        till.release("c")
        await clock.sleep(1.0)
        assert got == ["first"]
        till.release("first")
    assert got == ["first", "second"]
    till.release("second")


async def test_an_idle_process_evicts_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "MAX_UNUSED", 10)
    monkeypatch.setattr(writer, "IDLE_S", 0.05)
    storage = SqliteStorage(tmp_path / "traces.db")
    for number in range(100):
        till = await Till(storage, f"a{number}").open(monthly_nanos=9)
        await till.admit("c", 1)
        till.release("c")
    known = storage._writer.transaction.state
    assert known.size >= 200
    monkeypatch.setattr(eviction, "IDLE_S", 0.2)
    with anyio.fail_after(PATIENCE_S):
        while known.size > 10:  # noqa: ASYNC110  # another thread forgets
            await anyio.sleep(0.05)
    await storage.aclose()


async def test_a_refused_call_is_not_admitted_when_the_transaction_then_fails(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    till = await scene.till.open_full()
    await till.admit("bad", 100)
    found: list[str] = []
    reached, go, begun = threading.Event(), threading.Event(), 0

    async def ask(call: str) -> None:
        with pytest.raises(StorageUnavailable):
            await till.ask(call, 100)
        found.append(call)

    async def fail() -> None:
        with pytest.raises(InternalError):
            await till.settle("bad", make_row("bad", charge=2**70))

    with closing(connect(str(scene.storage.path))) as other:

        def pass_by(sql: str) -> None:
            nonlocal begun
            if sql == "BEGIN IMMEDIATE" and threading.current_thread().name == WRITER:
                begun += 1
                if begun == 1:  # until the others are queued behind it
                    reached.set()
                    assert go.wait(PATIENCE_S)
                elif begun == 2:
                    other.execute("BEGIN IMMEDIATE")

        monkeypatch.setattr(scene.gate, "pass_by", pass_by)
        async with anyio.create_task_group() as group:
            group.start_soon(till.standing)
            assert await anyio.to_thread.run_sync(reached.wait, PATIENCE_S)
            group.start_soon(fail)
            for call in "abc":
                group.start_soon(ask, call)
            await scene.queued(4)
            go.set()
            with anyio.fail_after(PATIENCE_S):
                while len(found) < 3:  # noqa: ASYNC110  # another thread answers
                    await anyio.sleep(0.01)
            other.execute("COMMIT")
    assert await reserved(till) == 100
    till.release("bad")


async def test_an_unexpected_error_fails_its_calls_but_not_the_thread(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    till = await scene.till.open_full()
    with monkeypatch.context() as patch:
        patch.setattr(log.Log, "copy", lambda self: 1 / 0)
        with pytest.raises(InternalError, match="ZeroDivisionError"):
            await till.admit("c", 100)
    assert "the writer of" in caplog.text
    await till.admit("c", 100)
    till.release("c")


async def test_a_settlement_that_was_void_in_a_transaction_that_failed_is_charged_when_its_key_is_free(
    till: Till, failing: Failing, clock: FakeClock
) -> None:
    trace = Draft(make_trace(0, id="late", account="acme"))
    await till.admit("late", 100, same="i")
    await clock.advance(120)  # its hold is overdue by more than a lease
    await till.admit("other", 100, same="i")
    failing.at, failing.only = 1, "COMMIT"
    with pytest.raises(StorageFull):
        await till.settle("late", make_row("late", charge=7), trace=trace, result=b"late")
    assert trace.is_void
    till.release("other")
    await till.settle("late", make_row("late", charge=7), trace=trace, result=b"late")
    assert not trace.is_void
    assert (await till.purses())[MONTH] == (7, 0)


async def test_failing_to_open_the_log_for_a_sync_is_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = SqliteStorage(tmp_path / "traces.db")
    till = await Till(storage).open_full()
    with monkeypatch.context() as patch:

        def refuse(*given: Any) -> int:
            raise OSError(errno.EMFILE, "too many open files")

        patch.setattr(sync.Sync, "is_needed", True)
        patch.setattr("os.open", refuse)
        with pytest.raises(StorageUnavailable, match="cannot be synced now"):
            storage._writer.sync.sync_for_readers()
    await till.admit("c", 100)
    till.release("c")
    await storage.aclose()


def test_a_waiter_whose_loop_is_closed_is_granted_nothing(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "traces.db")
    till = Till(storage)
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Task[Any]:
        await till.open_full()
        await till.admit("c", 1_000)
        waiting = asyncio.ensure_future(till.ask("waiter", 1_000, waits_s=60.0))
        while not len(storage._writer.transaction.queue):  # noqa: ASYNC110  # another thread queues it
            await asyncio.sleep(0.001)
        return waiting

    waiting = loop.run_until_complete(begin())
    loop.close()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # it is what the test is about

    async def go_on() -> None:
        till.release("c")
        with anyio.fail_after(PATIENCE_S):
            while len(storage._writer.transaction.queue) or await reserved(till):  # noqa: ASYNC110  # another thread ends it
                await anyio.sleep(0.01)
        await till.admit("next", 1_000)
        till.release("next")
        await storage.aclose()

    asyncio.run(go_on())


async def test_a_stalled_disk_does_not_stop_admissions(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    till, stalls, goes_on = await scene.till.open_full(), threading.Event(), threading.Event()
    await till.admit("running", 100)
    settled: list[str] = []

    def stall(descriptor: int) -> None:
        stalls.set()
        assert goes_on.wait(30)

    async def settle() -> None:
        await till.settle("running", make_row("running", charge=30))
        settled.append("running")

    monkeypatch.setattr(sync, "true_sync", stall)
    async with anyio.create_task_group() as group:
        group.start_soon(settle)
        await anyio.to_thread.run_sync(stalls.wait, 30)
        for call in "abc":
            await till.admit(call, 100)
        transaction, before = scene.storage._writer.transaction, scene.storage._writer.transaction.log._last_tick
        transaction.beat_s = 0.01
        while transaction.log._last_tick == before:  # noqa: ASYNC110  # the writer says that this process lives
            await anyio.sleep(0.001)
        assert settled == []
        goes_on.set()
    assert settled == ["running"]
    for call in "abc":
        till.release(call)
    assert await reserved(till) == 0


async def test_releases_take_effect_later_if_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = SqliteStorage(tmp_path / "traces.db")
    till = await Till(storage).open_full()
    await till.admit("c", 1_000)
    storage._writer._thread, mine = None, storage._writer._thread  # as it is once it has ended
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        till.release("c")
    storage._writer._thread = mine
    await till.admit("d", 1_000)
    till.release("d")
    await storage.aclose()
