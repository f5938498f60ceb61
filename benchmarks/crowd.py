"""Processes that make calls on one store: how many a second, after how long, for how much of the processors?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from .load import Load

PATIENCE_S = 60.0

Call = Callable[[str], Awaitable[object]]
Calling = Callable[[Path], AbstractAsyncContextManager[Call]]
"""Opens the store in a folder, and gives what makes a call of an id. A function of a module, since it is sent over."""


class _Worked(NamedTuple):
    """What came of one process."""

    times_us: list[float]
    took_s: float
    cpu_s: float
    """Of all its threads."""


def crowd(calling: Calling, folder: Path, processes: int, widths: Sequence[int], seconds: float) -> dict[int, Load]:
    """Have some processes make calls for so long, with each of some widths in flight in each of them."""
    context = get_context("spawn")
    together, told = context.Barrier(processes), context.Queue()
    started = [
        context.Process(target=_run, args=[calling, folder, number, widths, seconds, together, told])
        for number in range(processes)
    ]
    for process in started:
        process.start()
    patience_s = PATIENCE_S + 2 * seconds * len(widths)
    worked: list[list[_Worked]] = [told.get(timeout=patience_s) for _ in started]
    for process in started:
        process.join()
    return {width: _load(processes * width, each) for width, *each in zip(widths, *worked, strict=True)}


def _load(connections: int, worked: list[_Worked]) -> Load:
    times = sorted(each for one in worked for each in one.times_us)
    return Load(
        connections,
        per_s=sum(len(one.times_us) / one.took_s for one in worked),
        p50_us=times[len(times) // 2],
        p99_us=times[len(times) * 99 // 100],
        cpu_us=sum(one.cpu_s for one in worked) * 1e6 / len(times),
    )


def _run(
    calling: Calling, folder: Path, number: int, widths: Sequence[int], seconds: float, together: Any, told: Any
) -> None:
    async def work() -> list[_Worked]:
        ids = (f"tr_{number}_{each}" for each in count())
        async with calling(folder) as call:
            await _work(call, ids, widths[0], seconds / 2)  # everything is compiled and cached then
            worked = []
            for width in widths:
                together.wait(PATIENCE_S)
                worked.append(await _work(call, ids, width, seconds))
            together.wait(PATIENCE_S)
        return worked

    told.put(asyncio.run(work()))


async def _work(call: Call, ids: Iterator[str], width: int, seconds: float) -> _Worked:
    times = list[float]()
    began, spent = time.perf_counter(), time.process_time()
    ends = began + seconds

    async def one_after_another() -> None:
        while (started := time.perf_counter()) < ends:
            await call(next(ids))
            times.append((time.perf_counter() - started) * 1e6)

    await asyncio.gather(*(one_after_another() for _ in range(width)))
    return _Worked(times, time.perf_counter() - began, time.process_time() - spent)
