"""What does it cost to take of the limits of an account and a key, of 10,000 of each, in memory and over processes?"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Awaitable, Iterator
from itertools import cycle
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from routewright import MemoryCoordination, SqliteCoordination
from routewright._core.limiter import Limiter
from routewright.protocols import Coordination
from routewright.wire import Resource, Take, Taken

from .conftest import Peer, Timed, TimedAsync
from .crowd import PLENTY, crowd
from .floors import LeastLimiter
from .measure import Effort, Figure
from .report import Question, Report

NAMES = 10_000
LIMIT = 600
AMOUNTS: tuple[tuple[Resource, int], ...] = (("requests", 1), ("tokens", 800), ("slots", 1))
LEASE_S = 30.0
ME = "me"

STEP = Question("both tiers of requests, 10,000 keys: the step alone", "1.2")
REFUSED = Question("the same, where the account is full")
MEMORY = Question("both tiers of requests, in memory")
ALL = Question("requests, tokens and a slot of both tiers, taken and ended, in memory")
SQLITE = Question("both tiers of requests, in SQLite")
SQLITE_ALL = Question("requests, tokens and a slot of both tiers, taken and ended, in SQLite")
PACED = Question("both tiers of requests, in SQLite, 4 processes with 2 ms between any two of theirs")
CROWDED = Question("both tiers of requests, in SQLite, 4 processes as often as they can")
TOGETHER = Question("the same, all of them together")
BYTES = Question("memory of a key that was used once")


def requests() -> Iterator[list[Take]]:
    """Of each account and key in turn."""
    each = [(f"account:{number}", f"key:{number}") for number in range(NAMES)]
    return cycle([[Take(account, "requests", LIMIT), Take(key, "requests", LIMIT)] for account, key in each])


def everything() -> Iterator[list[Take]]:
    """Of one account and each key in turn, as a call takes it."""
    return cycle(
        [
            [
                Take(name, resource, PLENTY, amount)
                for name in ("account:a", f"key:{number}")
                for resource, amount in AMOUNTS
            ]
            for number in range(NAMES)
        ]
    )


def used(limiter: Limiter) -> Limiter:
    """One that has met every name."""
    for takes in zip(range(NAMES), requests(), strict=False):
        limiter.take(takes[1], ME, time.monotonic())
    return limiter


class TestStep:
    def test_floor(self, timed: Timed) -> None:
        limiter = LeastLimiter(LIMIT)
        pairs = cycle([(f"account:{number}", f"key:{number}") for number in range(NAMES)])
        for _ in range(NAMES):
            account, key = next(pairs)
            limiter.admit(account) and limiter.admit(key)
        timed(STEP, "floor", lambda pair: limiter.admit(pair[0]) and limiter.admit(pair[1]), pairs)

    def test_routewright(self, timed: Timed) -> None:
        limiter = used(Limiter(LEASE_S))
        timed(STEP, "routewright", lambda takes: limiter.take(takes, ME, time.monotonic()), requests())

    def test_refused(self, timed: Timed) -> None:
        limiter = used(Limiter(LEASE_S))
        full = cycle(
            [[Take(each[0].name, "requests", 1), each[1]] for _, each in zip(range(NAMES), requests(), strict=False)]
        )
        timed(REFUSED, "routewright", lambda takes: limiter.take(takes, ME, time.monotonic()), full)

    def test_limits(self, peer: Peer, report: Report) -> None:
        report.add(STEP, "limits", peer("limits", "limits_window", str(NAMES)))


def take(coordination: Coordination, takes: list[Take]) -> Awaitable[object]:
    return coordination.take(takes, ME)


async def take_and_end(coordination: Coordination, takes: list[Take]) -> None:
    taken = await coordination.take(takes, ME)
    assert isinstance(taken, Taken)
    await coordination.end(taken, 500)


async def meet(coordination: Coordination, source: Iterator[list[Take]]) -> None:
    """Let it have met every name."""
    for _ in range(NAMES):
        await take_and_end(coordination, next(source))


class TestMemory:
    def test_requests(self, loop: asyncio.Runner, timed_async: TimedAsync) -> None:
        coordination, source = MemoryCoordination(), requests()
        loop.run(meet(coordination, source))
        timed_async(MEMORY, "routewright", lambda takes: take(coordination, takes), source)

    def test_everything(self, loop: asyncio.Runner, timed_async: TimedAsync) -> None:
        coordination, source = MemoryCoordination(), everything()
        loop.run(meet(coordination, source))
        timed_async(ALL, "routewright", lambda takes: take_and_end(coordination, takes), source)

    def test_bytes(self, report: Report, effort: Effort) -> None:
        source = requests()
        given = [next(source)[1:] for _ in range(NAMES)]
        limiter = Limiter(LEASE_S)
        tracemalloc.start()
        for number, takes in enumerate(given):
            limiter.take(takes, ME, number / NAMES)
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        report.add(BYTES, "routewright", Figure("bytes", kept / NAMES))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


class TestSqlite:
    @pytest.mark.parametrize(
        ("question", "call", "source"), [(SQLITE, take, requests), (SQLITE_ALL, take_and_end, everything)]
    )
    def test_alone(
        self, loop: asyncio.Runner, timed_async: TimedAsync, path: Path, question: Question, call: Any, source: Any
    ) -> None:
        coordination, inputs = SqliteCoordination(path), source()
        loop.run(meet(coordination, inputs))
        timed_async(question, "routewright", lambda takes: call(coordination, takes), inputs)
        loop.run(coordination.aclose())

    @pytest.mark.parametrize("pause_s", [0.0, 0.002], ids=["as often as they can", "at a pace"])
    def test_shared(self, report: Report, effort: Effort, path: Path, pause_s: float) -> None:
        seconds = 3.0 if effort.runs > 1 else 0.1
        times = sorted(crowd(str(path), 4, seconds, pause_s))
        figure = Figure("µs", median(times), times[len(times) * 99 // 100], fmean(times))
        if pause_s:
            report.add(PACED, "routewright", figure)
        else:
            report.add(CROWDED, "routewright", figure)
            report.add(TOGETHER, "routewright", Figure("per s", len(times) / seconds))
