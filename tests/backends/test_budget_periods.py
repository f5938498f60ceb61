"""Limits of an account and of tags turn over exactly at midnight in UTC, in four processes that share a store."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import SqliteStorage
from routewright.backends.storage.postgres import PostgresStorage
from routewright.storage import open_storage
from routewright.wire import Stands, TagLimit
from routewright.wire.timestamps import timestamp
from tests.contracts.storage.samples import DAY_S, NEXT_MONTH_S, Till
from tests.database_servers import PostgresServer
from tests.programs import Program

from .postgres_stores import new_store

PROCESSES, DAYS, CALLS = 4, 3, 12
DAILY, WEEKLY, CHARGE = 100, 250, 10
OF_TEAM = 60
TERMS: dict[str, Any] = {
    "daily_nanos": DAILY, "weekly_nanos": WEEKLY, "tag_limits": (TagLimit(key="team", daily_nanos=OF_TEAM),),
}  # fmt: skip
TEAMS = ("team", "a"), ("team", "b")
SUNDAY = NEXT_MONTH_S - 2 * DAY_S
CHILD = """
import sys
import anyio
from routewright.storage import open_storage
from routewright.wire import Grant
from routewright.wire.timestamps import timestamp
from tests.contracts.storage.samples import Till, make_row

async def main(url, name, moments, charge):
    till = Till(open_storage(url))
    print("ready", flush=True)
    sys.stdin.readline()
    for index, at in enumerate(moments):
        call = f"{name} {index}"
        tags = (("team", "ab"[index // 2 % 2]),)
        if isinstance(await till.ask(call, charge, at=at, tags=tags), Grant):
            await till.settle(call, make_row(call, charge=charge, at=timestamp(at)), created_at=timestamp(at))
    await till.storage.aclose()

name, url, charge, *moments = sys.argv[1:]
anyio.run(main, url, name, [float(at) for at in moments], int(charge))
"""


def play(url: str) -> dict[str, int]:
    """What four processes are charged by day and week, whose calls come at both sides of each midnight."""
    moments = [
        SUNDAY + day * DAY_S + at for day in range(DAYS) for _ in range(CALLS // 2) for at in (0.0, DAY_S - 0.001)
    ]
    with ExitStack() as stack:
        arguments = url, str(CHARGE), *map(str, moments)
        children = [stack.enter_context(Program("-c", CHILD, str(number), *arguments)) for number in range(PROCESSES)]
        for child in children:
            assert child.heard() == "ready"
        for child in children:
            child.tell()
        for child in children:
            child.end()

    async def spent() -> dict[str, int]:
        till = Till(open_storage(url))
        purses: dict[str, int] = {}
        for day in range(DAYS):
            at = timestamp(SUNDAY + day * DAY_S)
            standing = await till.storage.read(till.account, Stands(at, tags=TEAMS))
            purses |= {purse.name: purse.spent_nanos for purse in standing.purses}
        await till.storage.aclose()
        return purses

    return anyio.run(spent)


def judge(purses: dict[str, int]) -> None:
    """Sunday is of the week before. Each process asks twelve times a day, for far more than the limits."""
    days = {name: purses[name] for name in ("day:2026-11-29", "day:2026-11-30", "day:2026-12-01")}
    assert days == dict.fromkeys(days, DAILY)
    for day in ("2026-11-29", "2026-11-30", "2026-12-01"):  # both teams compete for the account's limit
        teams = [purses[f"tag:team={team}:day:{day}"] for team in "ab"]
        assert (sum(teams), max(teams) <= OF_TEAM) == (DAILY, True)
    assert (purses["week:2026-11-23"], purses["week:2026-11-30"]) == (DAILY, 2 * DAILY)


async def test_days_turn_over_exactly_in_four_processes_in_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    storage = SqliteStorage(tmp_path / "store.db")
    await Till(storage).open(**TERMS)
    await storage.aclose()
    judge(await anyio.to_thread.run_sync(play, url))


@pytest.mark.full
async def test_days_turn_over_exactly_in_four_processes_in_postgresql(postgres_server: PostgresServer) -> None:
    url = new_store(postgres_server)
    storage = PostgresStorage(url)
    await Till(storage).open(**TERMS)
    await storage.aclose()
    judge(await anyio.to_thread.run_sync(play, url))


pytestmark = pytest.mark.anyio
