"""Do memory and tasks stay flat over a million calls, with faults of many kinds and one call in ten cancelled?

    python -m benchmarks.soak                                # a million calls, some minutes
    python -m benchmarks.soak --calls 20000 --clock fake     # on virtual time, where calls are slow and time out

One Router, four providers in the process, of which one fails most of the time, so that its circuits open and close;
half the calls are plain and half streams, of which some are left early. Memory is looked at forty times, and a line
laid through what came after the first quarter. The exit status says whether all was as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from statistics import linear_regression
from typing import NamedTuple

from routewright import Catalogue, ExecutionLimits, MemoryStorage, Model, Router, Settings, UpstreamCall
from routewright.backends.clock import SystemClock
from routewright.errors import ProviderFault, RouterError
from routewright.protocols import Clock
from routewright.testing import FakeClock
from routewright.wire import Caller, Chunk, Delta, FaultKind, Finish, Traces, Usage

from . import data
from .doubles import Messages

CALLS = 1_000_000
IN_FLIGHT = 50
NEWEST = 100
"""Traces and snapshots that are kept."""
LOOKS = 40
WARM = 0.25
"""Share of the calls after which memory has to be flat."""
ALLOWED_BYTES = 1_024
"""Growth for each thousand calls, ..."""
SAYS_FROM = 500_000
"""... which fewer calls than this do not show: memory is taken from the system in large pieces."""
CANCELLED = 0.1
LEFT_EARLY = 0.05
FALSE_START = (FaultKind.SERVER, FaultKind.CONNECT, FaultKind.RATE_LIMITED, FaultKind.REFUSED, FaultKind.REQUEST)
BREAK = (FaultKind.RESET, FaultKind.TRUNCATED, FaultKind.MALFORMED)
FAILING = {"alder": 0.05, "beech": 0.15, "cedar": 0.15, "elm": 0.8}
"""How many of a provider's calls fail."""

Pause = Callable[[], Awaitable[None]]


class Soaked(NamedTuple):
    """What a run came to."""

    calls: int
    seconds: float
    bytes_per_1000: float
    """The growth of resident memory after the warm-up."""
    resident_mb: float
    tasks_left: int
    open_calls: int
    traces: int
    outcomes: Counter[str]

    def problems(self) -> list[str]:
        """What is not as it should be."""
        found = []
        if self.calls >= SAYS_FROM and self.bytes_per_1000 >= ALLOWED_BYTES:
            found.append(f"memory grows by {self.bytes_per_1000:.0f} bytes each 1,000 calls")
        if self.tasks_left:
            found.append(f"{self.tasks_left} tasks are left")
        if self.open_calls:
            found.append(f"{self.open_calls} calls of providers are open")
        if self.traces > NEWEST:
            found.append(f"{self.traces} traces are kept, of {NEWEST}")
        return found


class Moody:
    """A provider that answers, fails as it begins, breaks off or falls silent, by the dice."""

    def __init__(self, name: str, failing: float, chance: Random, pause: Pause, clock: Clock) -> None:
        self.name = name
        self.open_calls = 0
        self._failing = failing
        self._chance = chance
        self._pause = pause
        self._clock = clock

    def models(self) -> Sequence[Model]:
        return [model for model in data.models(50) if model.id.startswith(f"{self.name}/")]

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:
        """One call of it."""
        self.open_calls += 1
        try:
            await self._pause()
            yield self._answer(*self._mood())
        finally:
            self.open_calls -= 1

    async def aclose(self) -> None: ...

    def _mood(self) -> tuple[FaultKind | None, int]:
        """A fault, if there is to be one, and how many pieces come before it."""
        if self._chance.random() >= self._failing:
            return None, 3
        if self._clock.virtual and self._chance.random() < 0.1:
            return FaultKind.TIMEOUT, self._chance.randrange(3)
        if self._chance.random() < 0.5:
            return self._chance.choice(FALSE_START), 0
        return self._chance.choice(BREAK), self._chance.randrange(1, 3)

    async def _answer(self, fault: FaultKind | None, pieces: int) -> AsyncIterator[Chunk]:
        for _ in range(pieces):
            yield Delta("some words of an answer ")
            await self._pause()
        if fault is FaultKind.TIMEOUT:
            await self._clock.sleep(3_600)
        if fault is FaultKind.TRUNCATED:
            return
        if fault is not None:
            raise ProviderFault(fault, "as the dice fell", retry_after=self._chance.choice([None, 0.0, 60.0]))
        yield Usage(42, 9)
        yield Finish("stop")


class Soak:
    """A Router, what it is asked, and what came of it."""

    def __init__(self, calls: int, clock: Clock) -> None:
        self.outcomes: Counter[str] = Counter()
        self.storage = MemoryStorage(newest=NEWEST)
        self._calls = calls
        self._clock = clock
        self._chance = Random(data.SEED)
        self._chats = data.conversations()
        self.providers = [Moody(name, share, self._chance, self._pause, clock) for name, share in FAILING.items()]
        self._router = Router(
            providers=self.providers,
            catalogue=Catalogue(()),
            storage=self.storage,
            settings=Settings(clock=clock, rng=Random(data.SEED), execution=_limits(clock)),
        )
        self._seen: list[tuple[int, int]] = []
        """Calls made and bytes resident."""

    async def run(self) -> Soaked:
        """Make all the calls."""
        before, began = len(asyncio.all_tasks()), time.perf_counter()
        numbers = iter(range(self._calls))
        await asyncio.gather(*(self._work(numbers) for _ in range(IN_FLIGHT)))
        traces = await self.storage.scan(Caller().account, Traces(), after=None, limit=NEWEST + 1)
        await self._router.aclose()  # on the fake clock background work runs in this loop
        await asyncio.sleep(0)
        tasks_left = len(asyncio.all_tasks()) - before
        warm = [(calls, size) for calls, size in self._seen if calls >= self._calls * WARM]
        return Soaked(
            self._calls,
            time.perf_counter() - began,
            linear_regression(*zip(*warm, strict=True)).slope * 1_000,
            self._seen[-1][1] / 2**20,
            tasks_left,
            sum(provider.open_calls for provider in self.providers),
            len(traces),
            self.outcomes,
        )

    async def _work(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            if number % max(1, self._calls // LOOKS) == 0:
                gc.collect()
                self._seen.append((number, resident_bytes()))
            self.outcomes[await self._one(self._chats[number % len(self._chats)])] += 1

    async def _one(self, messages: Messages) -> str:
        """One call, in one of the ways that it can be made and end."""
        call = self._plain if self._chance.random() < 0.5 else self._streamed
        if self._chance.random() >= CANCELLED:
            return await call(messages)
        task = asyncio.ensure_future(call(messages))
        for _ in range(self._chance.randrange(4)):
            await self._pause()
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return "cancelled"

    async def _plain(self, messages: Messages) -> str:
        try:
            await self._router.route(messages)
        except RouterError as error:
            return type(error).__name__
        return "answered"

    async def _streamed(self, messages: Messages) -> str:
        leaves = self._chance.random() < LEFT_EARLY
        try:
            async with self._router.stream(messages) as stream:
                async for _ in stream.text():
                    if leaves:
                        return "left early"
        except RouterError as error:
            return type(error).__name__
        return "answered in pieces"

    async def _pause(self) -> None:
        """Let others run; on virtual time, for up to two seconds."""
        await self._clock.sleep(self._chance.random() * 2 if self._clock.virtual else 0)


def _limits(clock: Clock) -> ExecutionLimits:
    """Those that are shipped; in real time without the pauses, and with circuits that open for moments."""
    if clock.virtual:
        return ExecutionLimits()
    return ExecutionLimits(backoff_s=0.0, longest_backoff_s=0.0, retry_share=1.0, open_s=0.05, longest_open_s=0.2)


def resident_bytes() -> int:
    """Memory of this process that is in use at present. Linux tells it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(calls: int, clock: Clock) -> Soaked:
    """Run it once."""
    return asyncio.run(Soak(calls, clock).run())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it as told, and say what came of it."""
    parser = argparse.ArgumentParser(description="Do memory and tasks stay flat?")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--clock", choices=["real", "fake"], default="real")
    told = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    soaked = soak(told.calls, FakeClock() if told.clock == "fake" else SystemClock())
    for name, value in soaked._asdict().items():
        print(f"{name:15} {dict(value.most_common()) if isinstance(value, Counter) else value}")
    for problem in soaked.problems():
        print(problem, file=sys.stderr)
    return 1 if soaked.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
