"""What does routing add to a provider that answers at once: per call, many at a time, with and without traces kept?"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from itertools import cycle, islice
from operator import attrgetter
from pathlib import Path

import pytest

from routewright import Answer, CallableProvider, MemoryStorage, Settings, SqliteStorage, UpstreamCall
from routewright.wire import Durability, RouteResponse

from . import data
from .conftest import Peer, TimedAsync
from .data import TODAY
from .doubles import MODELS, TEXT, DropsAll, DropsAtOnce, Instant, Messages, router_over
from .floors import LeastRouter, Row, rows
from .measure import Effort, Figure
from .report import Question, Report

WIDTHS = (50, 200)
KEPT = 10_000
"""Traces in a full memory storage."""

ALONE = Question("route(), nothing stored", "4 × the floor: 25 / 80")
KEEPING = Question("route(), its trace kept in memory", "10 above nothing stored")
FUNCTION = Question("route(), a function as provider, nothing stored")
BEHIND = Question("route(), traces written behind it to a storage that drops them")
STORED = Question("route(), its trace buffered and written to SQLite in the background", "40 / 500")
COMMITTED = Question("route(), its trace in SQLite committed before the answer")
QUIET = Question("route(), 20 calls a second, nothing stored", "3 × the floor")
READ = Question("route() and its response read, nothing stored")
TRACE = Question("memory that a kept trace takes")
AT_ONCE = {width: Question(f"route(), {width} in flight, nothing stored", "0.32 × the floor") for width in WIDTHS}
AT_ONCE_STORED = {width: Question(f"route(), {width} in flight, traces in SQLite") for width in WIDTHS}
AT_ONCE_COMMITTED = {
    width: Question(f"route(), {width} in flight, traces committed before the answers") for width in WIDTHS
}
AT_ONCE_KEEPING = {width: Question(f"route(), {width} in flight, traces kept in memory") for width in WIDTHS}


@pytest.fixture
def chats() -> Iterator[Messages]:
    return cycle(data.conversations())


def least_router(turns: int) -> LeastRouter:
    async def canned(row: Row, messages: Messages) -> tuple[str, int, int]:
        for _ in range(turns):
            await asyncio.sleep(0)
        return TEXT, 42, 9

    best_first = sorted(rows(data.forecast(MODELS), TODAY), key=attrgetter("merit"), reverse=True)
    return LeastRouter(best_first, canned)


class TestOneAfterAnother:
    def test_floor(self, timed_async: TimedAsync, chats: Iterator[Messages]) -> None:
        timed_async(ALONE, "floor", least_router(turns=0).route, chats)

    def test_litellm(self, peer: Peer, report: Report) -> None:
        report.add(ALONE, "litellm", peer("litellm", "litellm_router", "route"))

    def test_pydantic_ai(self, peer: Peer, report: Report) -> None:
        report.add(ALONE, "pydantic-ai", peer("pydantic-ai", "pydantic_ai_direct", "route"))

    def test_nothing_stored(self, timed_async: TimedAsync, chats: Iterator[Messages]) -> None:
        timed_async(ALONE, "routewright", router_over(Instant(), DropsAtOnce()).route, chats)

    def test_a_function_as_provider(self, timed_async: TimedAsync, chats: Iterator[Messages]) -> None:
        async def answer(call: UpstreamCall) -> str:
            return TEXT

        provider = CallableProvider(answer, models=MODELS)
        timed_async(FUNCTION, "routewright", router_over(provider, DropsAtOnce()).route, chats)

    def test_response_read(self, timed_async: TimedAsync, chats: Iterator[Messages]) -> None:
        router = router_over(Instant(), DropsAtOnce())

        async def route(messages: Messages) -> RouteResponse:
            return (await router.route(messages)).response

        timed_async(READ, "routewright", route, chats)

    def test_traces_kept(
        self, timed_async: TimedAsync, loop: asyncio.Runner, effort: Effort, chats: Iterator[Messages]
    ) -> None:
        router = router_over(Instant(), MemoryStorage(newest=KEPT))
        loop.run(call_all(router.route, islice(chats, min(KEPT, effort.most * 4))))
        timed_async(KEEPING, "routewright", router.route, chats)

    def test_traces_written_behind(
        self, timed_async: TimedAsync, loop: asyncio.Runner, chats: Iterator[Messages]
    ) -> None:
        router = router_over(Instant(), DropsAll())
        timed_async(BEHIND, "routewright", router.route, chats)
        loop.run(router.aclose())

    @pytest.mark.parametrize(("question", "durability"), [(STORED, "buffered"), (COMMITTED, "committed")])
    def test_traces_in_sqlite(
        self,
        timed_async: TimedAsync,
        loop: asyncio.Runner,
        chats: Iterator[Messages],
        tmp_path: Path,
        question: Question,
        durability: Durability,
    ) -> None:
        router = router_over(Instant(), SqliteStorage(tmp_path / "traces.db"), Settings(durability=durability))
        timed_async(question, "routewright", router.route, chats)
        loop.run(router.flush())  # raises if any was lost
        loop.run(router.aclose())

    def test_memory_of_a_trace(
        self, loop: asyncio.Runner, effort: Effort, report: Report, chats: Iterator[Messages]
    ) -> None:
        router = router_over(Instant(), MemoryStorage(newest=KEPT))
        loop.run(call_all(router.route, islice(chats, data.INPUTS)))  # what is made once
        tracemalloc.start()
        loop.run(call_all(router.route, islice(chats, effort.most)))
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        report.add(TRACE, "routewright", Figure("bytes", grown / effort.most))


class TestTwentyASecond:
    """Health that was learned is published between any two calls, so none finds an order made for it."""

    def test_floor(self, timed_async: TimedAsync, chats: Iterator[Messages]) -> None:
        timed_async.paced(QUIET, "floor", least_router(turns=0).route, chats, per_s=20)

    def test_routewright(self, timed_async: TimedAsync, chats: Iterator[Messages]) -> None:
        timed_async.paced(QUIET, "routewright", router_over(Instant(), DropsAtOnce()).route, chats, per_s=20)


@pytest.mark.parametrize("width", WIDTHS)
class TestManyAtOnce:
    """The provider lets other tasks run once, so that the calls really overlap."""

    def test_floor(self, timed_async: TimedAsync, chats: Iterator[Messages], width: int) -> None:
        timed_async.in_flight(AT_ONCE[width], "floor", least_router(turns=1).route, chats, width)

    def test_litellm(self, peer: Peer, report: Report, width: int) -> None:
        report.add(AT_ONCE[width], "litellm", peer("litellm", "litellm_router", "route", str(width)))

    def test_pydantic_ai(self, peer: Peer, report: Report, width: int) -> None:
        report.add(AT_ONCE[width], "pydantic-ai", peer("pydantic-ai", "pydantic_ai_direct", "route", str(width)))

    def test_nothing_stored(self, timed_async: TimedAsync, chats: Iterator[Messages], width: int) -> None:
        router = router_over(Instant(turns=1), DropsAtOnce())
        timed_async.in_flight(AT_ONCE[width], "routewright", router.route, chats, width)

    def test_traces_kept(self, timed_async: TimedAsync, chats: Iterator[Messages], width: int) -> None:
        router = router_over(Instant(turns=1), MemoryStorage(newest=KEPT))
        timed_async.in_flight(AT_ONCE_KEEPING[width], "routewright", router.route, chats, width)

    @pytest.mark.parametrize(
        ("questions", "durability"), [(AT_ONCE_STORED, "buffered"), (AT_ONCE_COMMITTED, "committed")]
    )
    def test_traces_in_sqlite(
        self,
        timed_async: TimedAsync,
        loop: asyncio.Runner,
        chats: Iterator[Messages],
        tmp_path: Path,
        width: int,
        questions: dict[int, Question],
        durability: Durability,
    ) -> None:
        router = router_over(Instant(turns=1), SqliteStorage(tmp_path / "traces.db"), Settings(durability=durability))
        timed_async.in_flight(questions[width], "routewright", router.route, chats, width)
        loop.run(router.flush())
        loop.run(router.aclose())


async def call_all(route: Callable[[Messages], Awaitable[Answer]], chats: Iterator[Messages]) -> None:
    for messages in chats:
        await route(messages)
