"""What does routing add to a stream: until its first text, to each piece of it, and with a thousand under way?

Beside each row stands the floor, the same events read by the bare transport and the parser alone, and where there is
one the provider with no Router in front of it.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import cycle, islice
from statistics import median

import pytest

from routewright import CallableProvider, Router, UpstreamCall
from routewright.backends.transport.aiohttp import AiohttpTransport

from . import data
from .conftest import TimedStream
from .doubles import MODELS, DropsAtOnce, Messages, router_over
from .loopback import Pieces, chunks, events, openai
from .measure import Effort, Figure, reading
from .report import Question, Report, Who
from .upstream import PIECES, TOGETHER_PIECES, WORD, Upstream

STREAMS = 1_000
CHUNKS = PIECES + 2
"""Of a stream: the end and the usage are chunks, too."""

FIRST = Question("first text of a stream, a generator as provider")
FIRST_HTTP = Question("first text of a stream, server-sent events over loopback")
PIECE = {
    "text()": Question(f"CPU of a piece of stream().text(), of {PIECES} from a generator", "2.5"),
    "events": Question(f"CPU of an event of stream(), of {PIECES} pieces from a generator"),
}
PIECE_HTTP = Question(f"CPU of a piece of stream().text(), of {PIECES} over loopback in a burst")
WALL = Question(f"{STREAMS:,} streams of {TOGETHER_PIECES} pieces under way together, all of them")
CPU = Question("the same, CPU a piece")
MEMORY = Question("the same, peak memory a stream")


async def generated(call: UpstreamCall) -> AsyncIterator[str]:
    for _ in range(PIECES):
        yield WORD


async def generator_alone(messages: Messages) -> AsyncIterator[object]:
    for _ in range(PIECES):
        yield WORD


def texts(router: Router) -> Pieces:
    async def pieces(messages: Messages) -> AsyncIterator[object]:
        async with router.stream(messages) as stream:
            async for text in stream.text():
                yield text

    return pieces


def route_events(router: Router) -> Pieces:
    async def pieces(messages: Messages) -> AsyncIterator[object]:
        async with router.stream(messages) as stream:
            async for event in stream:
                yield event

    return pieces


HOW: dict[str, Callable[[Router], Pieces]] = {"text()": texts, "events": route_events}


@pytest.fixture
def chats() -> Iterator[Messages]:
    return cycle(data.conversations())


@pytest.fixture
def transport(loop: asyncio.Runner) -> Iterator[AiohttpTransport]:
    made = AiohttpTransport()
    yield made
    loop.run(made.aclose())


def over_generator() -> Router:
    return router_over(CallableProvider(generated, models=MODELS), DropsAtOnce())


def over_loopback(server: Upstream, transport: AiohttpTransport, does: str) -> Router:
    return router_over(openai(server.url(does), transport), DropsAtOnce())


class TestFirstText:
    def test_generator(self, timed_stream: TimedStream, chats: Iterator[Messages]) -> None:
        timed_stream.first(FIRST, "floor", generator_alone, chats)
        timed_stream.first(FIRST, "provider", chunks(CallableProvider(generated, models=MODELS)), chats)
        timed_stream.first(FIRST, "routewright", texts(over_generator()), chats)

    def test_loopback(
        self, timed_stream: TimedStream, server: Upstream, transport: AiohttpTransport, chats: Iterator[Messages]
    ) -> None:
        """Of short streams: who has just used the processor for long waits for it where others want it, too."""
        url = server.url("short")
        timed_stream.first(FIRST_HTTP, "floor", events(transport, url), chats)
        timed_stream.first(FIRST_HTTP, "provider", chunks(openai(url, transport)), chats)
        timed_stream.first(FIRST_HTTP, "routewright", texts(over_loopback(server, transport, "short")), chats)


class TestEachPiece:
    @pytest.mark.parametrize("how", HOW)
    def test_generator(self, timed_stream: TimedStream, chats: Iterator[Messages], how: str) -> None:
        question, provider = PIECE[how], CallableProvider(generated, models=MODELS)
        timed_stream.cpu(question, "floor", generator_alone, chats, CHUNKS)
        timed_stream.cpu(question, "provider", chunks(provider), chats, CHUNKS)
        timed_stream.cpu(question, "routewright", HOW[how](over_generator()), chats, CHUNKS)

    def test_loopback(
        self, timed_stream: TimedStream, server: Upstream, transport: AiohttpTransport, chats: Iterator[Messages]
    ) -> None:
        url = server.url("v1")
        timed_stream.cpu(PIECE_HTTP, "floor", events(transport, url), chats, CHUNKS)
        timed_stream.cpu(PIECE_HTTP, "provider", chunks(openai(url, transport)), chats, CHUNKS)
        timed_stream.cpu(PIECE_HTTP, "routewright", texts(over_loopback(server, transport, "v1")), chats, CHUNKS)


class TestManyTogether:
    """The server goes on with none before all have begun."""

    def test_floor(self, loop: asyncio.Runner, server: Upstream, effort: Effort, report: Report) -> None:
        together(loop, effort, report, "floor", lambda transport, does: events(transport, server.url(does)))

    def test_provider(self, loop: asyncio.Runner, server: Upstream, effort: Effort, report: Report) -> None:
        def of_provider(transport: AiohttpTransport, does: str) -> Pieces:
            return chunks(openai(server.url(does), transport))

        together(loop, effort, report, "provider", of_provider)

    def test_routewright(self, loop: asyncio.Runner, server: Upstream, effort: Effort, report: Report) -> None:
        def of_router(transport: AiohttpTransport, does: str) -> Pieces:
            return texts(over_loopback(server, transport, does))

        together(loop, effort, report, "routewright", of_router)


Reader = Callable[[AiohttpTransport, str], Pieces]
ReadAll = Callable[[], Awaitable[None]]


def together(loop: asyncio.Runner, effort: Effort, report: Report, who: Who, reader: Reader) -> None:
    """Report what it takes to read many streams at once."""
    width = min(STREAMS, effort.most)
    wall_s, cpu_s = loop.run(times_together(reader, width, effort.rounds))
    report.add(WALL, who, Figure("ms", wall_s * 1e3))
    report.add(CPU, who, Figure("µs", cpu_s * 1e6 / width / (TOGETHER_PIECES + 2)))
    report.add(MEMORY, who, Figure("bytes", loop.run(memory_together(reader, width)) / width))


async def times_together(reader: Reader, width: int, rounds: int) -> tuple[float, float]:
    """Seconds by the clock on the wall and the processor's, with connections that are there already."""
    async with read_together(reader, width) as read_all:
        await read_all()
        times = [await _timed(read_all) for _ in range(rounds)]
    walls, cpus = zip(*times, strict=True)
    return median(walls), median(cpus)


async def memory_together(reader: Reader, width: int) -> int:
    """Bytes at the peak, new connections and all."""
    async with read_together(reader, 1) as read_one:
        await read_one()  # what is made once
    async with read_together(reader, width) as read_all:
        gc.collect()
        tracemalloc.start()
        await read_all()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@asynccontextmanager
async def read_together(reader: Reader, width: int) -> AsyncIterator[ReadAll]:
    transport = AiohttpTransport()
    read = reading(reader(transport, f"together-{width}"))

    async def read_all() -> None:
        await asyncio.gather(*map(read, islice(cycle(data.conversations()), width)))

    yield read_all
    await transport.aclose()


async def _timed(read_all: ReadAll) -> tuple[float, float]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    await read_all()
    return time.perf_counter() - wall, time.process_time() - cpu
