"""Power cuts while money is spent: reported results are stored once and whole, and the books add up."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any, NamedTuple

import anyio
import pytest

from routewright.backends.storage.sqlite import SqliteStorage, log, sync
from routewright.backends.storage.sqlite import background as keeper
from routewright.backends.storage.sqlite.file import Connection, connect
from routewright.backends.storage.sqlite.upkeep import check
from routewright.wire import Claim, LedgerRow, Replay, TraceById
from tests.contracts.storage.samples import AT, MONTH, Draft, Till, make_key, make_trace

from .disk import Disk, Files, fill
from .store_audit import assert_sound

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the names of files are synced as Linux does")

NAME = "traces.db"
CALLS = 150
LOG_BYTES = 80_000
"""The log is moved into the file every few calls."""
CHARGE = 7
Patch = pytest.MonkeyPatch


class Ended(NamedTuple):
    """A call, and how much had happened to the disk when its settlement was handed over, and when it was told of."""

    call: str
    begun: int
    told: int


class Life:
    """Calls of one account, some at once, each with a trace, a row and an answer under its key."""

    def __init__(self, disk: Disk, connect: Callable[[str], Connection]) -> None:
        self._disk = disk
        self._storage = SqliteStorage(disk.folder / NAME, connect=connect, busy_s=60)  # Python does each write
        self._till = Till(self._storage)
        self.opened = sys.maxsize
        """How much had happened when the account was there."""
        self.ended: list[Ended] = []
        self.shown: list[tuple[str, int]] = []
        """Answers and traces that were shown again, by call, and how much had happened then."""

    async def live(self, chance: Random) -> None:
        await self._till.open(make_key(), monthly_nanos=CALLS * CHARGE)
        self.opened = len(self._disk.events)
        numbers = iter(range(CALLS))
        while some := [number for _, number in zip(range(chance.choice((1, 1, 3, 8, 20))), numbers, strict=False)]:
            durability = "buffered" if chance.random() < 0.2 else "committed"
            async with anyio.create_task_group() as group:
                for number in some:
                    group.start_soon(self._call, f"tr_{number}", durability)
            if chance.random() < 0.2:
                await self._look(f"tr_{chance.choice(some)}")
            if chance.random() < 0.3:
                await anyio.sleep(0.02)  # let the log be moved
        await self._storage.aclose()

    async def _call(self, call: str, durability: Any) -> None:
        await self._till.admit(call, CHARGE, key="k", same=call)
        begun = len(self._disk.events)
        trace = Draft(make_trace(0, id=call, account="acme", cost_usd=CHARGE / 1e9, charged_usd=CHARGE / 1e9))
        await self._till.settle(call, row_of(call), result=call.encode(), trace=trace, durability=durability)
        told = len(self._disk.events) if durability == "committed" else sys.maxsize
        self.ended.append(Ended(call, begun, told))

    async def _look(self, call: str) -> None:
        """Show an answer, or a trace. From then on it has to stay."""
        if call[-1] in "02468":
            assert await self._till.ask("again", same=Claim(call, "of it")) == Replay(call.encode())
        else:
            assert (await self._storage.read("acme", TraceById(call))).id == call
        self.shown.append((call, len(self._disk.events)))


def row_of(call: str) -> LedgerRow:
    """What each of them comes to."""
    return LedgerRow(request_id=call, attempt=1, at=AT, model="a/one", provider="a", key_id="k",
                     cost_nanos=CHARGE, charge_nanos=CHARGE)  # fmt: skip


async def found(path: Path) -> tuple[list[LedgerRow], set[str], tuple[int, int]]:
    """Rows, calls whose answers are kept, and what the month has spent and holds, after the start that follows."""
    storage = SqliteStorage(path)
    till = Till(storage)
    await storage.sweep(0.0)
    rows = await till.rows()
    kept = {row.request_id for row in rows if row.kind == "attempt"}
    answers = {call for call in kept if await till.ask("again", same=call) == Replay(call.encode())}
    month = (await till.purses(key="k", run=None)).get(MONTH, (0, 0))
    await storage.aclose()
    return rows, answers, month


def check_cut(folder: Path, files: Files, life: Life, place: int) -> int:
    """Open what a cut left, and hold it to what was told before. Says how many calls are there."""
    folder.mkdir()
    fill(folder, files)
    if NAME not in files:
        rmtree(folder)
        assert life.opened > place
        return 0
    rows, answers, month = anyio.run(found, folder / NAME)
    assert check(folder / NAME).problems == [], "the store is damaged"
    assert_sound(folder / NAME)
    with closing(connect(str(folder / NAME))) as connection:
        traces = {call for (call,) in connection.execute("SELECT id FROM trace").fetchall()}
    rmtree(folder)
    there = Counter(row.request_id for row in rows if row.kind == "attempt")
    assert set(there.values()) <= {1}
    answered = {each.call for each in life.ended if each.told <= place}
    shown = {call for call, told in life.shown if told <= place}
    assert answered | shown <= set(there), "what was told of is gone"
    assert set(there) <= {each.call for each in life.ended if each.begun <= place}
    assert answers == traces == set(there), "rows, answers and traces are there together, or not at all"
    assert month == (len(there) * CHARGE, 0)
    return len(there)


def as_it_is(disk: Disk) -> Callable[[str], Connection]:
    return disk.connect


def cut_power(folder: Path, patch: Patch, seed: int, cuts: int, change: Callable[[Disk], Any] = as_it_is) -> list[int]:
    """Live, and look at what is left of it wherever the power is cut."""
    chance = Random(seed)
    disk = Disk(folder / f"life-{seed}")
    patch.setattr(sync, "true_sync", disk.sync)
    patch.setattr(keeper, "LOG_BYTES", LOG_BYTES)
    patch.setattr(keeper, "EVERY_S", 0.002)
    patch.setattr(log, "FOLD_S", 0.01)
    life = Life(disk, change(disk))
    anyio.run(life.live, chance)
    disk.close()
    patch.undo()
    patch.setattr(log, "read_boot_name", lambda: f"behind {seed}")
    told = [each.told for each in life.ended if each.told < sys.maxsize] + [told for _, told in life.shown]
    kinds = (range(len(disk.events) + 1), told, told, range(life.opened + 20))
    places = [chance.choice(kinds[number % len(kinds)]) for number in range(cuts)]
    return [check_cut(folder / f"cut-{seed}", files, life, place) for place, files in disk.cuts(places, chance)]


def test_a_power_cut_loses_no_answered_call_and_the_sums_match(tmp_path: Path, monkeypatch: Patch, full: bool) -> None:
    seeds, cuts = (10, 100) if full else (1, 12)
    there = [count for seed in range(seeds) for count in cut_power(tmp_path, monkeypatch, seed, cuts)]
    print(sorted(there))
    assert len(there) == seeds * cuts
    assert len(set(there)) > 3
