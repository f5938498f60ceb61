"""How long does one call take, how many are done in a second, what does an import cost?

Calls are timed one by one with ``perf_counter_ns``, in rounds; a figure is the median over the rounds, so that one
burst of other people's work does not make it. Imports the standard library alone: peers run it in their environments.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import islice
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, TypeVar

T = TypeVar("T")
Unit = Literal["µs", "per s", "per core-s", "ms", "MB", "bytes", "%"]
Sample = tuple[float, float, float]
"""p50, p99 and mean of one round, in microseconds."""


class Figure(NamedTuple):
    """What came out. ``p50`` alone is given for things that have no distribution worth telling."""

    unit: Unit
    p50: float
    p99: float | None = None
    mean: float | None = None
    """Of an untimed loop, so without the cost of looking at the clock."""


class Effort(NamedTuple):
    """How hard to try."""

    rounds: int
    round_s: float
    """About how long a round takes."""
    least: int
    """Calls a round, however slow they are."""
    most: int
    runs: int
    """Fresh interpreters for each import."""

    def calls(self, one_s: float) -> int:
        """Calls a round, each of which takes about ``one_s`` seconds."""
        return max(self.least, min(self.most, int(self.round_s / max(one_s, 1e-9))))

    def width(self, number: int) -> int:
        """How many to have under way in place of ``number``."""
        return number if self.runs > 1 else min(number, self.least)


FULL = Effort(rounds=7, round_s=0.25, least=100, most=3_000, runs=15)
BRIEF = Effort(rounds=1, round_s=0.0, least=5, most=5, runs=1)


def sample(call: Callable[[T], object], source: Iterator[T], effort: Effort, *, loop: bool = True) -> Figure:
    """Time ``call`` on what ``source`` gives. Without ``loop`` the mean is that of the timed calls."""
    calls = effort.calls(_warm(call, source, effort))
    rounds: list[Sample] = []
    for _ in range(effort.rounds):
        items = list(islice(source, calls))
        gc.collect()
        times = _time_each(call, items)
        rounds.append(_summary(times, _time_loop(call, items) / calls if loop else fmean(times)))
    return _figure(rounds)


async def sample_async(call: Callable[[T], Awaitable[object]], source: Iterator[T], effort: Effort) -> Figure:
    """Time ``call`` one after another on what ``source`` gives, inside the running event loop."""
    calls = effort.calls(await _warm_async(call, source, effort))
    clock = time.perf_counter_ns
    rounds: list[Sample] = []
    for _ in range(effort.rounds):
        items = list(islice(source, calls))
        gc.collect()
        times = []
        for item in items:
            started = clock()
            await call(item)
            times.append(clock() - started)
        started = clock()
        for item in items:
            await call(item)
        rounds.append(_summary(times, (clock() - started) / calls))
    return _figure(rounds)


async def sample_paced(
    call: Callable[[T], Awaitable[object]], source: Iterator[T], effort: Effort, *, per_s: float
) -> Figure:
    """Time ``call`` at a steady, low pace, as a quiet service sees it: caches go cold between two calls."""
    clock = time.perf_counter_ns
    await _warm_async(call, source, effort)
    times = []
    for item in islice(source, effort.least):
        await asyncio.sleep(1 / per_s)
        started = clock()
        await call(item)
        times.append(clock() - started)
    return _figure([_summary(times, fmean(times))])


async def sample_after(
    prepare: Callable[[T], Awaitable[object]],
    call: Callable[[T], Awaitable[object]],
    source: Iterator[T],
    effort: Effort,
) -> Figure:
    """Time ``call``, each time after ``prepare`` on the same item, which is not. The mean is that of the timed."""

    async def both(item: T) -> None:
        await prepare(item)
        await call(item)

    calls = effort.calls(await _warm_async(both, source, effort))
    clock = time.perf_counter_ns
    rounds: list[Sample] = []
    for _ in range(effort.rounds):
        gc.collect()
        times = []
        for item in islice(source, calls):
            await prepare(item)
            started = clock()
            await call(item)
            times.append(clock() - started)
        rounds.append(_summary(times, fmean(times)))
    return _figure(rounds)


async def sample_over(
    call: Callable[[T], Awaitable[object]],
    base: Callable[[T], Awaitable[object]],
    source: Iterator[T],
    effort: Effort,
) -> Figure:
    """How much longer ``call`` takes than ``base``, which are timed by turns on the same items."""

    async def both(item: T) -> None:
        await base(item)
        await call(item)

    calls = effort.calls(await _warm_async(both, source, effort))
    clock = time.perf_counter_ns
    rounds = []
    for _ in range(effort.rounds):
        gc.collect()
        times = []
        for item in islice(source, calls):
            started = clock()
            await base(item)
            between = clock()
            await call(item)
            times.append((clock() - between) - (between - started))
        rounds.append(median(times) / 1e3)
    return Figure("µs", median(rounds))


async def sample_first(pieces: Callable[[T], AsyncIterator[object]], source: Iterator[T], effort: Effort) -> Figure:
    """Time how long the first of some pieces takes to come. The others are read and not timed."""
    clock = time.perf_counter_ns
    calls = effort.calls(await _warm_async(reading(pieces), source, effort))
    rounds: list[Sample] = []
    for _ in range(effort.rounds):
        gc.collect()
        times = []
        for item in islice(source, calls):
            started = clock()
            given = pieces(item)
            await anext(given)
            times.append(clock() - started)
            async for _ in given:
                pass
        rounds.append(_summary(times, fmean(times)))
    return _figure(rounds)


async def sample_cpu(
    call: Callable[[T], Awaitable[object]], source: Iterator[T], effort: Effort, *, parts: int = 1
) -> Figure:
    """Processor time of a call, or of each of its ``parts``. Waiting costs none of it, nor does another process."""
    calls = effort.calls(await _warm_async(call, source, effort))
    means = []
    for _ in range(effort.rounds):
        items = list(islice(source, calls))
        gc.collect()
        started = time.process_time_ns()
        for item in items:
            await call(item)
        means.append((time.process_time_ns() - started) / calls / parts / 1e3)
    return Figure("µs", median(means))


async def in_flight(call: Callable[[T], Awaitable[object]], source: Iterator[T], width: int, effort: Effort) -> Figure:
    """Requests a second with ``width`` of them under way at any time."""
    calls = max(2 * width, effort.calls(await _warm_async(call, source, effort)))
    rates = []
    for _ in range(effort.rounds):
        items = iter(list(islice(source, calls)))
        gc.collect()
        started = time.perf_counter()
        await asyncio.gather(*(_drain(call, items) for _ in range(width)))
        rates.append(calls / (time.perf_counter() - started))
    return Figure("per s", median(rates))


def reading(pieces: Callable[[T], AsyncIterator[object]]) -> Callable[[T], Awaitable[None]]:
    """What reads all pieces and keeps none."""

    async def read(item: T) -> None:
        async for _ in pieces(item):
            pass

    return read


class Loaded(NamedTuple):
    """What importing something cost a fresh interpreter."""

    ms: Figure
    mb: Figure
    """Growth of the peak of resident memory; Linux tells it."""


def load(python: str, statements: list[str], effort: Effort) -> list[Loaded]:
    """Run each import in fresh interpreters, by turns, so that all of them meet the same weather."""
    with TemporaryDirectory() as bytecode:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        for statement in statements:
            _load_once(python, statement, environment)  # compiles, and fills the page cache
        runs = [[_load_once(python, each, environment) for each in statements] for _ in range(effort.runs)]
    return [
        Loaded(Figure("ms", median(ms for ms, _ in of_one)), Figure("MB", median(mb for _, mb in of_one)))
        for of_one in zip(*runs, strict=True)
    ]


_LOADER = """
import time
def peak_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
before = peak_kb()
started = time.perf_counter()
{statement}
spent = time.perf_counter() - started
print([spent * 1e3, (peak_kb() - before) / 1024])
"""


def _load_once(python: str, statement: str, environment: dict[str, str]) -> tuple[float, float]:
    command = [python, "-c", _LOADER.format(statement=statement)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    ms, mb = json.loads(done.stdout.splitlines()[-1])
    return ms, mb


def _warm(call: Callable[[T], object], source: Iterator[T], effort: Effort) -> float:
    """Call until everything is compiled and cached. Gives the seconds of one call."""
    spent = []
    ends = time.perf_counter() + 2 * effort.round_s
    for item in islice(source, effort.most):
        started = time.perf_counter()
        call(item)
        spent.append(time.perf_counter() - started)
        if time.perf_counter() > ends:
            break
    return median(spent)


async def _warm_async(call: Callable[[T], Awaitable[object]], source: Iterator[T], effort: Effort) -> float:
    spent = []
    ends = time.perf_counter() + 2 * effort.round_s
    for item in islice(source, effort.most):
        started = time.perf_counter()
        await call(item)
        spent.append(time.perf_counter() - started)
        if time.perf_counter() > ends:
            break
    return median(spent)


def _time_each(call: Callable[[T], object], items: list[T]) -> list[int]:
    clock = time.perf_counter_ns
    times = []
    for item in items:
        started = clock()
        call(item)
        times.append(clock() - started)
    return times


def _time_loop(call: Callable[[T], object], items: list[T]) -> int:
    started = time.perf_counter_ns()
    for item in items:
        call(item)
    return time.perf_counter_ns() - started


async def _drain(call: Callable[[T], Awaitable[object]], items: Iterator[T]) -> None:
    for item in items:
        await call(item)


def _summary(times_ns: list[int], mean_ns: float) -> Sample:
    ordered = sorted(times_ns)
    p99 = ordered[-(-99 * len(ordered) // 100) - 1]
    return median(ordered) / 1e3, p99 / 1e3, mean_ns / 1e3


def _figure(rounds: list[Sample]) -> Figure:
    p50, p99, mean = (median(column) for column in zip(*rounds, strict=True))
    return Figure("µs", p50, p99, mean)
