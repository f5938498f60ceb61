"""What does a call cost with everything on: the rule alone, and ``route()`` in memory and in SQLite?"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.contracts.storage.samples import Draft

from routewright import MemoryStorage, Router, SqliteStorage
from routewright._core.accounts.settlement import settle
from routewright._core.accounts.state import State
from routewright.protocols import Facts
from routewright.wire import Account, Ask, Caller, Claim, LedgerRow, PutAccount, PutKey, RunLimit, Tokens

from . import data
from .accounts import ACCOUNT, AT, AT_S, CALLER, KEY, PLENTY, WIDE, open_account
from .conftest import Timed
from .crowd import Call, Calling, crowd
from .doubles import DropsAtOnce, Instant, Terms, router_over
from .measure import Effort, Figure
from .report import Question, Report, Who
from .stores import traces

WIDTHS = (1, 50)
NEWEST = 10_000
"""Traces, rows and answers in a full memory storage."""
WORST, COST = 800_000, 300_000
RUN = RunLimit("run_1", PLENTY)
TRACE = replace(next(traces(1)), account="acme")
RESULT = b"x" * 600
CHAT = data.conversations()[0]

RULE = Question("a call with everything on, admitted and settled: the rule")
EVERYTHING = "route() with everything on, in SQLite"
IN_MEMORY = "route() with everything on, in memory"
TARGETS = {(50, 1): "6,500", (50, 4): "4,500"}
"""Of everything in SQLite."""
TIMES = Question(f"{IN_MEMORY}, one at a time", "90 / 170")


def ask(call: str) -> Ask:
    """What a call takes: both tiers of limits, five purses, an idempotency key."""
    claim = Claim(call, "a fingerprint")
    return Ask(id=call, caller=CALLER, at=AT_S, lasts_s=30.0, tokens=400, nanos=WORST, claim=claim, run=RUN)


def facts(call: str) -> Facts:
    """What it came to: a row of the ledger, a trace, an answer to keep."""
    row = LedgerRow(
        request_id=call, attempt=1, at=AT, key_id=KEY.id, model="a/one", provider="a", tokens=Tokens(42, 9),
        cost_nanos=COST, charge_nanos=COST,
    )  # fmt: skip
    trace, claim = Draft(replace(TRACE, id=call)), Claim(call, "a fingerprint")
    return Facts(call, CALLER, AT, trace, (row,), tokens=51, run=RUN, claim=claim, result=RESULT)


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


class TestRule:
    def test_floor(self, timed: Timed) -> None:
        timed(RULE, "floor", LeastLedger().pay, (f"tr_{number}" for number in count()))

    def test_routewright(self, timed: Timed) -> None:
        books = Terms(ACCOUNT, KEY)
        state = State(books)

        def pay(given: tuple[Ask, Facts]) -> None:
            at = time.monotonic()
            state.begin(1, at, at + 30.0)
            state.admit(given[0], 1, AT_S)
            settle(state, books, given[1], AT_S)

        timed(RULE, "routewright", pay, given())
        assert not state.holds


def given() -> Iterator[tuple[Ask, Facts]]:
    return ((ask(f"tr_{number}"), facts(f"tr_{number}")) for number in count())


@asynccontextmanager
async def least(folder: Path) -> AsyncIterator[Call]:
    """The floor: a row of a table, updated to reserve, and with a sync to settle."""
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None, timeout=60.0)
    execute = connection.execute
    execute("PRAGMA journal_mode = WAL")
    execute("CREATE TABLE IF NOT EXISTS purse (id INTEGER PRIMARY KEY, spent INTEGER, reserved INTEGER)")
    execute("INSERT OR IGNORE INTO purse VALUES (1, 0, 0)")

    async def pay(call: str) -> None:
        execute("PRAGMA synchronous = NORMAL")
        execute("UPDATE purse SET reserved = reserved + ? WHERE spent + reserved + ? <= ?", (WORST, WORST, PLENTY))
        execute("PRAGMA synchronous = FULL")
        execute("UPDATE purse SET spent = spent + ?, reserved = reserved - ?", (COST, WORST))

    yield pay
    connection.close()


@asynccontextmanager
async def bare(folder: Path) -> AsyncIterator[Call]:
    async with router_over(Instant(turns=1), DropsAtOnce()) as router:
        yield routing(router, None, keyed=False)


@asynccontextmanager
async def limited(folder: Path) -> AsyncIterator[Call]:
    storage = MemoryStorage(newest=NEWEST)
    key = replace(KEY, budget_nanos=None, monthly_nanos=None)
    await storage.apply("acme", [PutAccount(Account(name="acme", created_at=AT, limits=WIDE)), PutKey(key)])
    async with router_over(Instant(turns=1), storage) as router:
        yield routing(router, CALLER, keyed=False)


@asynccontextmanager
async def everything(folder: Path) -> AsyncIterator[Call]:
    storage = SqliteStorage(folder / "store.db", busy_s=60.0)
    await open_account(storage)
    async with router_over(Instant(turns=1), storage) as router:
        yield routing(router, CALLER, keyed=True)


@asynccontextmanager
async def everything_in_memory(folder: Path) -> AsyncIterator[Call]:
    storage = MemoryStorage(newest=NEWEST)
    await open_account(storage)
    async with router_over(Instant(turns=1), storage) as router:
        yield routing(router, CALLER, keyed=True)


def routing(router: Router, caller: Caller | None, *, keyed: bool) -> Call:
    """What routes one chat again and again."""

    async def route(call: str) -> None:
        await router.route(CHAT, caller=caller, idempotency_key=call if keyed else None)

    return route


@pytest.mark.parametrize(
    ("what", "who", "calling", "processes"),
    [
        ("route() with nothing on", "routewright", bare, 1),
        ("route() with limits, in memory", "routewright", limited, 1),
        (IN_MEMORY, "routewright", everything_in_memory, 1),
        (EVERYTHING, "floor", least, 1),
        (EVERYTHING, "routewright", everything, 1),
        (EVERYTHING, "floor", least, 4),
        (EVERYTHING, "routewright", everything, 4),
    ],
)
def test_calls(
    report: Report, effort: Effort, tmp_path: Path, what: str, who: Who, calling: Calling, processes: int
) -> None:
    seconds = 3.0 if effort.runs > 1 else 0.1
    for width, load in crowd(calling, tmp_path, processes, WIDTHS, seconds).items():
        named = f"{what}, {width} in flight" + (f" in each of {processes} processes" if processes > 1 else "")
        target = TARGETS.get((width, processes), "") if what == EVERYTHING else ""
        report.add_load(Question(named, target), who, load)
        if (what, width) == (IN_MEMORY, 1):
            report.add(TIMES, who, Figure("µs", load.p50_us, load.p99_us))
