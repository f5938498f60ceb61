"""The power is cut while money is spent: what was told of as committed is there once, and the books add up."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import NamedTuple
from unittest.mock import patch

import anyio
import pytest

from routewright.backends.storage.sqlite import SqliteStorage, writer
from routewright.backends.storage.sqlite.connection import Connection, connect
from routewright.backends.storage.sqlite.upkeep import check
from routewright.backends.storage.sqlite.writer import Writer
from routewright.testing.storage.samples import AT, EVENTS, NOW, Till, claim, end, make_key, make_row, reservation
from routewright.wire import ClaimByKey, LedgerRow, LedgerRows, Settle, Stands

from .power import Disk, Files, fill

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the names of files are synced as Linux does")

NAME = "traces.db"
CALLS = 120
LOG_BYTES = 60_000
"""The log is moved into the file every few calls."""
CHARGE = 7


class Ended(NamedTuple):
    """A call, and how much had happened to the disk when its settlement was handed over, and when it was told of."""

    call: str
    begun: int
    told: int


class Life:
    """Calls of one account, some at once, each reserved, claimed and settled."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._storage = SqliteStorage(disk.folder / NAME, connect=disk.connect)
        self.opened = sys.maxsize
        """How much had happened when the account was there."""
        self.ended: list[Ended] = []

    async def live(self, chance: Random) -> None:
        await Till(self._storage).open(make_key(), monthly_nanos=CALLS * CHARGE)
        self.opened = len(self._disk.events)
        numbers = iter(range(CALLS))
        while some := [number for _, number in zip(range(chance.choice((1, 1, 3, 8))), numbers, strict=False)]:
            async with anyio.create_task_group() as group:
                for number in some:
                    group.start_soon(self._call, f"c{number}")
        await self._storage.aclose()

    async def _call(self, call: str) -> None:
        await self._storage.apply("acme", [claim(call, key=call)])
        await self._storage.apply("acme", [reservation(call, CHARGE, key_id="k")])
        begun = len(self._disk.events)
        settle = Settle(id=call, at=AT, rows=(make_row(call, charge=CHARGE),), event_ids=EVENTS)
        await self._storage.apply("acme", [settle, end(call, call.encode(), key=call)])
        self.ended.append(Ended(call, begun, len(self._disk.events)))


async def found(path: Path) -> tuple[list[LedgerRow], set[str], int, int]:
    """Rows, calls whose results are kept, what the month has spent and holds."""
    storage = SqliteStorage(path)
    rows: list[LedgerRow] = await storage.scan("acme", LedgerRows(), after=None, limit=10_000)
    results = {
        f"c{number}" for number in range(CALLS)
        if (kept := await storage.read("acme", ClaimByKey(f"c{number}", "production", 0.0, NOW))) and kept.result
    }  # fmt: skip
    purses = (await storage.read("acme", Stands(AT))).purses
    await storage.aclose()
    month = purses[-1] if purses else None
    return rows, results, 0 if month is None else month.spent_nanos, 0 if month is None else month.reserved_nanos


def check_cut(folder: Path, files: Files, life: Life, place: int) -> int:
    """Open what a cut left, and hold it to what was told before. Says how many calls are there."""
    folder.mkdir()
    fill(folder, files)
    if NAME not in files:
        rmtree(folder)
        assert life.opened > place
        return 0
    rows, results, spent, reserved = anyio.run(found, folder / NAME)
    assert check(folder / NAME).problems == []
    with closing(connect(str(folder / NAME))) as connection:
        held = connection.execute("SELECT count(*) FROM hold").fetchone()[0]
    rmtree(folder)
    there = Counter(row.request_id for row in rows)
    assert set(there.values()) <= {1}
    assert {each.call for each in life.ended if each.told <= place} <= set(there), "what was told of is gone"
    assert set(there) <= {each.call for each in life.ended if each.begun <= place}
    assert results == set(there), "a result is there with its settlement, or not at all"
    assert (spent, reserved) == (len(rows) * CHARGE, held * CHARGE)
    return len(rows)


def cut_power(folder: Path, seed: int, cuts: int) -> list[int]:
    chance = Random(seed)
    disk = Disk(folder / f"life-{seed}")
    life = Life(disk)
    with patch.object(writer, "WAL_BYTES", LOG_BYTES):
        anyio.run(life.live, chance)
    disk.close()
    told = [each.told for each in life.ended]
    kinds = (range(len(disk.events) + 1), told, range(life.opened + 20))
    places = [chance.choice(kinds[number % len(kinds)]) for number in range(cuts)]
    return [check_cut(folder / f"cut-{seed}", files, life, place) for place, files in disk.cuts(places, chance)]


def test_a_power_cut_takes_no_settlement_that_was_told_of_and_the_books_add_up(tmp_path: Path, full: bool) -> None:
    seeds, cuts = (10, 100) if full else (1, 10)
    there = [count for seed in range(seeds) for count in cut_power(tmp_path, seed, cuts)]
    print(sorted(there))
    assert len(there) == seeds * cuts
    assert {0, CALLS} <= set(there) or len(set(there)) > (10 if full else 3)


def test_a_store_that_syncs_less_than_it_says_is_found_out_by_a_settlement_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync_less(self: Writer, connection: Connection, _: str) -> None:
        connection.execute("PRAGMA synchronous = NORMAL")

    monkeypatch.setattr(Writer, "_sync", sync_less)
    with pytest.raises(AssertionError, match="what was told of is gone"):
        cut_power(tmp_path, 0, 100)
