"""A process's view of a shared store follows the store's log."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from routewright._core.accounts.log import dump
from routewright.backends.storage.sqlite import log, sync, upkeep
from routewright.errors import RouterError, StorageCorrupt, StorageUnavailable
from routewright.wire import (
    AddCredit,
    DeleteResults,
    DeleteTraces,
    Grant,
    PutAccount,
    PutTrace,
    RateLimits,
    Replay,
    RunLimit,
    TraceById,
)
from tests.contracts.storage.samples import (
    AT,
    AT_S,
    EVENT_IDS,
    MONTH,
    RUN,
    Draft,
    Till,
    make_account,
    make_row,
    make_trace,
)

from .shared_file import LEASE_S, Machine, Site, desk_of

pytestmark = pytest.mark.anyio

LONG_S = 100_000.0
"""A call that lasts as long is never overdue."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A file whose log is folded and pruned with every tick."""
    monkeypatch.setattr(log, "FOLD_S", 0.0)
    monkeypatch.setattr(log, "SHARE", 0)
    made = Site(tmp_path / "traces.db", monkeypatch)
    yield made
    made.close()


async def spend(till: Till, call: str, nanos: int, **given: Any) -> None:
    """A call that costs what it reserved."""
    await till.admit(call, nanos, **given)
    await till.settle(call, make_row(call, charge=nanos))


# The rules


async def test_an_idle_process_knows_what_others_spent(site: Site) -> None:
    idle, busy = site.process(), site.process()
    await idle.open_full()
    await spend(idle, "first", 1)
    for number in range(9):
        await spend(busy, f"c{number}", 100)
        await site.machine.advance(1.0)  # not so long that it forgets
    assert (await idle.short("more", 100)).purse.spent_nanos == 901


async def test_tick_numbers_are_not_reused(site: Site) -> None:
    first, second = site.process(), site.process()
    await first.open_full()
    for number in range(8):
        await spend((first, second)[number % 2], f"c{number}", 1)
        await site.machine.advance(1.0)
        site.look()


async def rebooted(site: Site, up_s: float, name: str = "second") -> None:
    """Holds end by name, windows go on, and the log's time does not jump."""
    before = await site.process().open_full()
    await before.put(PutAccount(make_limited(requests=3, concurrency=1)))
    await before.admit("lost", 800, key="k", run=RUN, lasts_s=LONG_S)
    site.start(Machine(up_s, AT_S + 10, name))
    after = site.process()
    await after.admit("c", 300)
    after.release("c")
    assert await after.purses() == dict.fromkeys(("key:k", "key:k:2026-11", "account", MONTH), (0, 0)) | {
        "run:r": (800, 0)
    }
    (row,) = await after.rows(request_id="lost")
    assert (row.kind, row.cost_range_nanos) == ("expired", (0, 800))
    await spend(after, "d", 1)
    refused = await after.limited()
    assert refused["remaining"] == 0, "windows are carried on"
    assert 0 < refused["retry_after_seconds"] <= 60
    await site.machine.advance(60.0)
    await spend(after, "e", 1)
    site.look()


async def test_answers_wait_for_the_disk(site: Site) -> None:
    first, second = site.process(), site.process()
    await first.open_full()
    await first.admit("c", same="i")
    await first.settle("c", result=b"answer", durability="buffered")
    synced: list[int] = []
    site.patch.setattr(sync, "true_sync", synced.append)
    assert await second.ask("d", same="i") == Replay(b"answer")
    assert synced, "an answer was given that a power cut could take back"


async def test_syncs_use_the_current_log(site: Site) -> None:
    synced: list[bool] = []

    def look(descriptor: int) -> None:
        mine, there = os.fstat(descriptor), os.stat(f"{site.path}-wal")
        synced.append((mine.st_nlink, mine.st_ino, mine.st_dev) == (1, there.st_ino, there.st_dev))

    till = await site.process().open_full()
    await spend(till, "c", 1)
    site.patch.setattr(sync, "true_sync", look)
    till.storage._connections.close()  # type: ignore[attr-defined]  # as after a fault of the disk: the log is removed
    await spend(till, "d", 1)
    assert synced == [True], "another file than the log in use was synced"


def test_a_log_that_was_removed_or_replaced_is_not_synced(tmp_path: Path) -> None:
    wal = tmp_path / "traces.db-wal"
    wal.touch()
    sync_log = sync.Sync(tmp_path / "traces.db")
    sync_log()
    for change in (wal.unlink, wal.touch):
        change()
        with pytest.raises(StorageUnavailable, match="was removed while it was in use"):
            sync_log()


async def test_refusals_use_the_current_state(site: Site) -> None:
    first, second = site.process(), site.process()
    await first.open_full()
    await first.put(PutAccount(make_limited(concurrency=1)))
    await first.admit("c", 900)
    await second.limited()
    first.release("c")
    await second.admit("d", 900)
    await first.limited()
    second.release("d")
    await first.put(PutAccount(make_limited()))
    await first.admit("e", 900)
    await second.short("f", 200)
    first.release("e")
    await second.admit("f", 200)


async def test_credit_arrives_through_the_log(site: Site) -> None:
    first, second = site.process(), site.process()
    await first.open(prepaid=True, credit=101)
    await spend(second, "b", 1)
    await second.short("c", 101)
    await first.put(AddCredit("more", 1, AT))
    await second.admit("c", 101)


async def test_holds_end_only_once(site: Site) -> None:
    gone, first, second = (site.process() for _ in range(3))
    await gone.open_full()
    await gone.admit("lost", 800, key="k", run=RUN, lasts_s=LONG_S)
    await second.purses()
    await site.machine.advance(LEASE_S + 1)
    for till in (first, second, first):
        await spend(till, f"c{id(till)}{site.machine.monotonic()}", 1)
        await site.machine.advance(1.0)
    rows = await first.rows(request_id="lost")
    assert [(row.kind, row.cost_range_nanos) for row in rows] == [("expired", (0, 800))], "a hold ended twice"
    for till in (first, second):
        assert (await till.purses())["run:r"] == (800, 0)


def make_limited(**limits: Any) -> Any:
    """The account of ``open_full``, with rate limits."""
    requests = limits.pop("requests", None)
    return make_account(prepaid=True, monthly_nanos=1_000, limits=RateLimits(requests_per_min=requests, **limits))


# Starts of the machine, clocks, restored files


@pytest.mark.parametrize("up_s", [0.0, 5.0, 1_000.5, 1e7])
async def test_a_reboot_ends_all_holds_whatever_the_clock_says(site: Site, up_s: float) -> None:
    await rebooted(site, up_s)


async def test_without_boot_ids_a_younger_clock_reveals_a_reboot(site: Site) -> None:
    site.machine.name = ""
    await rebooted(site, 3.0, name="")


@pytest.mark.parametrize("step_s", [3_600.0, -3_600.0])
async def test_wall_clock_steps_change_no_limit_or_lease(site: Site, step_s: float) -> None:
    first, second = await site.process().open_full(), site.process()
    await first.put(PutAccount(make_limited(requests=3)))
    await first.admit("c", 800, lasts_s=LONG_S, same="i")
    await spend(second, "d", 1)
    site.machine.step_s = step_s
    await spend(second, "e", 1)
    assert (await first.limited())["retry_after_seconds"] == 60
    assert not await first.rows(request_id="c"), "it is held on"
    await first.settle("c", make_row("c", charge=800), result=b"answer")
    assert await second.ask("f", same="i") == Replay(b"answer")
    await site.machine.advance(60.0)
    await spend(second, "g", 1)
    site.look()


async def test_a_restored_backup_is_folded_from_scratch(site: Site) -> None:
    """Closed at the time: what is there then is the file, and nothing of what was known before may get into it."""
    first = await site.process().open_full()
    await spend(first, "c", 100)
    await first.storage.aclose()
    kept = site.path.with_name("kept.db")
    upkeep.backup(site.path, kept)
    for number in range(5):
        await spend(first, f"d{number}", 100)
    await first.admit("held", 200, lasts_s=LONG_S)
    await first.storage.aclose()
    shutil.copy(kept, site.path)
    assert (await first.purses())[MONTH] == (100, 0)
    await spend(first, "e", 1)
    await spend(first, "f", 1)
    other = site.process()
    assert (await other.purses())[MONTH] == (102, 0)
    await spend(other, "g", 898)
    await first.short("h", 1)


async def test_a_backup_restored_under_an_open_store_is_refused(site: Site) -> None:
    idle, busy = await site.process().open_full(), site.process()
    await spend(busy, "c", 100)
    kept = site.path.with_name("kept.db")
    upkeep.backup(site.path, kept)
    await idle.admit("d", 800)
    kept.replace(site.path)
    for till in (idle, busy):
        with pytest.raises(StorageUnavailable, match="was replaced while it was in use"):
            await till.ask("e", 100)
    site._storages.clear()


async def test_an_idle_process_recovers_from_pruned_ticks(site: Site) -> None:
    idle, busy, gone = await site.process().open_full(), site.process(), site.process()
    await idle.put(PutAccount(make_limited(requests=20, tokens_per_min=1_000)))
    await idle.admit("mine", 50, tokens=7, lasts_s=LONG_S)
    await gone.admit("lost", 50, tokens=1, lasts_s=LONG_S)
    for number in range(15):
        await spend(busy, f"c{number}", 10, tokens=2)
    await site.machine.advance(LEASE_S / 2)
    await idle.purses()
    await site.machine.advance(LEASE_S / 2 + 1)
    for number in range(3):
        await spend(busy, f"d{number}", 10, tokens=2)
    assert site.ask("SELECT count(*) FROM tick")[0][0] < 5
    assert (await idle.limited())["remaining"] == 0
    assert (await idle.purses())[MONTH] == (180, 50)
    assert [row.kind for row in await idle.rows(request_id="lost")] == ["expired"]


async def test_a_retried_ask_is_counted_once_after_a_full_fold(site: Site) -> None:
    slow, busy = await site.process().open_full(), site.process()
    await slow.admit("slow", 300, run=RUN, lasts_s=LONG_S)
    await site.machine.advance(LEASE_S + 1)
    for number in range(3):
        await spend(busy, f"c{number}", 10)
        await site.machine.advance(1.0)
    assert await busy.kinds() == ["attempt"] * 3 + ["expired"]
    await slow.admit("slow", 200, run=RUN)
    await slow.settle("slow", make_row("slow", charge=150))
    assert (await busy.purses())["run:r"] == (150, 0)
    assert await busy.kinds() == ["attempt"] * 4


async def test_waiting_for_another_processs_key_returns_its_answer(site: Site) -> None:
    first, second = await site.process().open_full(), site.process()
    await first.admit("c", 100, same="i", lasts_s=LONG_S)
    found: list[Any] = []

    async def wait() -> None:
        found.append(await second.ask("d", 100, same="i", waits_s=60.0))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await site.machine.advance(1.0)
        await first.settle("c", make_row("c", charge=7), result=b"answer")
        await site.machine.advance(1.0)
    assert found == [Replay(b"answer")]
    assert (await second.purses())[MONTH] == (7, 0)


@pytest.mark.parametrize("write", [DeleteTraces(limit=100), DeleteResults()], ids=lambda write: type(write).__name__)
async def test_a_deletion_removes_ended_calls_from_the_log(site: Site, write: Any) -> None:
    site.patch.setattr(log, "FOLD_S", 1e9)
    first, second = await site.process().open_full(), site.process()
    await first.admit("held", 100, lasts_s=LONG_S)
    for number in range(5):
        await second.admit(f"ended-{number}", 10, same=f"i{number}")
        await second.settle(f"ended-{number}", make_row(f"ended-{number}", charge=10), result=b"answer")
    await first.put(write)
    ((ticks, named),) = site.ask("SELECT count(*), max(ops) FROM tick")
    ((copy,),) = site.ask("SELECT body FROM fold")
    assert (ticks, b"held" in copy, b"ended" in named + copy) == (1, True, False)
    assert (await second.purses())[MONTH] == (50, 100)
    await first.settle("held", make_row("held", charge=100))
    assert (await second.purses())[MONTH] == (150, 0)
    site.look()


async def test_a_settlement_whose_account_cannot_be_read_changes_nothing(site: Site) -> None:
    trace = make_trace(1, account="acme")
    await (await site.process().open_full()).put(PutTrace(trace))
    ((body,),) = site.ask("SELECT body FROM account")
    site.ask("UPDATE account SET body = 'damaged'")
    till, row = site.process(), make_row(trace.id, charge=1)
    with pytest.raises(StorageCorrupt):
        await till.settle(trace.id, row, trace=Draft(replace(trace, status="failed")), event_id=EVENT_IDS)
    site.ask("UPDATE account SET body = ?", body)
    assert await till.storage.read("acme", TraceById(trace.id)) == trace
    assert (await till.rows(request_id=trace.id), (await till.purses())[MONTH]) == ([], (0, 0))


# Histories


class History:
    """Anything that several processes of one account may do, of a seed."""

    def __init__(self, site: Site, chance: Random, processes: int = 3) -> None:
        self._site = site
        self._chance = chance
        self.tills = [site.process() for _ in range(processes)]
        self._running: list[tuple[Till, str]] = []
        self._made = 0

    async def step(self) -> None:
        chance, till = self._chance, self._chance.choice(self.tills)
        kinds = {"ask": 10, "settle": 8, "release": 2, "widen": 2, "wait": 2, "pause": 1, "credit": 1, "terms": 1}
        match chance.choices([*kinds], [*kinds.values()])[0]:
            case "ask":
                await self._ask(till)
            case "settle" | "release" | "widen" as what if self._running:
                await self._go_on(what, *chance.choice(self._running))
            case "wait":
                await self._site.machine.advance(chance.choice((0.1, 3.0, 20.0)))
            case "pause":
                await self._site.machine.advance(chance.choice((31.0, 61.0, 200.0)))
            case "credit":
                self._made += 1
                await till.put(AddCredit(f"cr{self._made}", 100, AT))
            case "terms":
                await till.put(PutAccount(make_limited(requests=chance.choice((None, 5, 9)), tokens_per_min=200)))

    async def _ask(self, till: Till) -> None:
        chance = self._chance
        self._made += 1
        given: dict[str, Any] = {
            "key": chance.choice((None, "k")), "tokens": chance.randrange(30), "lasts_s": chance.choice((5.0, LONG_S)),
            "run": chance.choice((None, RUN, RunLimit("s", 500))), "slot": chance.random() < 0.8,
            "same": chance.choice((None, None, "i", "j", f"i{self._made}")),
        }  # fmt: skip
        try:
            found = await till.ask(f"c{self._made}", chance.randrange(120), **given)
        except RouterError:
            return
        if isinstance(found, Grant):
            self._running.append((till, found.id))

    async def _go_on(self, what: str, till: Till, call: str) -> None:
        chance = self._chance
        if what == "widen":
            await till.accounts.widen(till.grants[call], chance.randrange(200))
            return
        if chance.random() < 0.9:
            self._running.remove((till, call))  # else it is said again
        if what == "release":
            till.release(call)
            return
        teller = chance.choice((till, till, *self.tills))  # another process settles for one that is gone
        rows = [make_row(call, place, charge=chance.randrange(60)) for place in range(1, chance.randrange(1, 4))]
        known: dict[str, Any] = {
            "caller": till.asks[call].caller,
            "run": till.asks[call].run,
            "claim": till.asks[call].claim,
        }
        await teller.settle(call, *rows, **{"tokens": chance.choice((None, 3)), "result": b"answer"} | known)


def known_to(till: Till, but: int) -> Any:
    """All that a process has in memory, without what lies behind the last minute or is nothing, and until when a lease
    runs: its owner knows better."""
    state = desk_of(till).state
    at, heard, windows, holds = dump(state)
    purses = [each for mine in state.sums.values() for each in mine.values()]
    sums = {(each.account, each.name): (each.spent, each.granted) for each in purses if each.is_known}
    reserved = {(each.account, each.name): each.reserved for each in purses if each.reserved}
    slots = {name: window.slots for name, window in state.windows.items() if window.slots}
    ended = {name: [each for each in zip(*parts, strict=True) if each[0] > at - 60] for name, parts in windows.items()}
    mine = {hold.id: hold for hold in holds}
    others = {owner: until for owner, until in heard if owner != but}
    return {name: parts for name, parts in ended.items() if parts}, mine, others, reserved, slots, sums


async def check_history(site: Site, seed: int, steps: int) -> None:
    """A process that was there from the beginning knows what one knows that has just started."""
    history = History(site, Random(seed))
    await history.tills[0].open_full()
    await history.tills[0].put(PutAccount(make_limited(requests=9, tokens_per_min=200)))
    for number in range(steps):
        await history.step()
        site.look()
        if number % 5:
            continue
        with_log = site.process()
        history.tills.append(with_log)
        for till in [*history.tills] * 2:  # one may say something that those before it have to hear
            await till.purses()
        for till in history.tills[:-1]:
            owner = desk_of(till).log.owner
            *known, sums = known_to(with_log, owner)
            *mine, own = known_to(till, owner)
            assert mine == known, f"seed {seed}, step {number}"
            assert sums.items() <= own.items(), f"seed {seed}, step {number}"
            for (account, name), (spent, granted) in own.items():
                sql = "SELECT spent, granted FROM purse WHERE account = ? AND name = ?"
                assert site.ask(sql, account, name) in ([(spent, granted)], []), f"seed {seed}, step {number}"
        history.tills.pop()


async def test_all_processes_agree_after_any_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    for seed in range(60 if full else 2):
        monkeypatch.setattr(log, "FOLD_S", Random(seed).choice((0.0, 10.0)))
        monkeypatch.setattr(log, "SHARE", 0)
        site = Site(tmp_path / f"{seed}.db", monkeypatch)
        await check_history(site, seed, 200 if full else 60)
        site.close()
