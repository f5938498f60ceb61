"""What all agents are asked, whoever made them, and how that is measured. Knows the standard library alone.

A model in process asks seven times for ``add``, then answers. Everybody brings a ``Prepare``: what makes a run of an
agent that has the tool it is given.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from itertools import repeat
from statistics import median
from typing import Literal, get_args

from benchmarks.measure import Effort, Figure, sample_async

What = Literal["alone", "at once", "waiting"]
WHAT: tuple[What, ...] = get_args(What)
"""µs of a run one after another; µs of CPU of one among many at once; bytes of one among many that wait in a tool."""
Tool = Callable[[int, int], Awaitable[int]]
Run = Callable[[], Awaitable[str]]
"""Works on the task to the end, and gives the answer."""
Prepare = Callable[[Tool], Run]

CALLS = 8
SYSTEM = "You work on a task step by step. Use the tools where they help, and answer when you are done."
TASK = "Add one and two, seven times."
TOOL, ARGUMENTS = "add", '{"a": 1, "b": 2}'
ANSWER = "done"
INPUT_TOKENS, OUTPUT_TOKENS = 100, 10
ENOUGH_S = 20.0
"""No round begins later than this after the first."""


class Adding:
    """The tool, with a count of its calls. While it is ``shut`` they wait."""

    def __init__(self) -> None:
        self.calls = 0
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    def shut(self) -> None:
        self._goes_on.clear()

    def open(self) -> None:
        self._goes_on.set()

    def tool(self) -> Tool:
        async def add(a: int, b: int) -> int:
            """Adds two numbers."""
            self.calls += 1
            await self._goes_on.wait()
            return a + b

        return add


async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def figure(prepare: Prepare, what: What, number: int, effort: Effort) -> Figure:
    """One figure of an agent. ``number``: runs at once."""
    await check(prepare)
    if what == "alone":
        return await _alone(prepare(add), effort)
    if what == "at once":
        return await _cpu(prepare(add), effort.width(number), effort)
    return await _bytes(prepare, effort.width(number), effort)


async def check(prepare: Prepare) -> None:
    """Whether it does what it is to do."""
    adding = Adding()
    answer = await prepare(adding.tool())()
    assert (answer, adding.calls) == (ANSWER, CALLS - 1), (answer, adding.calls)


async def _alone(run: Run, effort: Effort) -> Figure:
    return await sample_async(lambda _: run(), repeat(None), effort)


async def _cpu(run: Run, number: int, effort: Effort) -> Figure:
    await asyncio.gather(*[run() for _ in range(min(number, effort.least))])
    began, spent = time.perf_counter(), list[float]()
    while len(spent) < effort.rounds and (not spent or time.perf_counter() - began < ENOUGH_S):
        gc.collect()
        started = time.process_time_ns()
        await asyncio.gather(*[run() for _ in range(number)])
        spent.append((time.process_time_ns() - started) / number / 1e3)
    return Figure("µs", median(spent))


async def _bytes(prepare: Prepare, number: int, effort: Effort) -> Figure:
    """What the interpreter has allocated when all are there; what is made once is made before."""
    adding = Adding()
    run = prepare(adding.tool())
    await asyncio.gather(*[run() for _ in range(min(number, effort.least))])
    adding.calls = 0
    adding.shut()
    gc.collect()
    tracemalloc.start()
    runs = [asyncio.ensure_future(run()) for _ in range(number)]
    while adding.calls < number:
        await asyncio.sleep(0)
        assert not any(each.done() for each in runs), "a run ended early"
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    adding.open()
    await asyncio.gather(*runs)
    return Figure("bytes", kept / number)
