"""Processes that all take of the same limits in one file, each for itself as often as it can or at a pace."""

from __future__ import annotations

import asyncio
import time
from multiprocessing import get_context
from typing import Any

from routewright import SqliteCoordination
from routewright.wire import Take

PLENTY = 10**12
PATIENCE_S = 60.0


def crowd(path: str, processes: int, seconds: float, pause_s: float) -> list[float]:
    """How long each took of all that any of them took, in microseconds."""
    context = get_context("spawn")
    together, told = context.Barrier(processes), context.Queue()
    started = [
        context.Process(target=_run, args=[path, number, seconds, pause_s, together, told])
        for number in range(processes)
    ]
    for process in started:
        process.start()
    times = [each for _ in started for each in told.get(timeout=PATIENCE_S + seconds)]
    for process in started:
        process.join()
    return times


def _run(path: str, number: int, seconds: float, pause_s: float, together: Any, told: Any) -> None:
    told.put(asyncio.run(_taken(path, number, seconds, pause_s, together)))


async def _taken(path: str, number: int, seconds: float, pause_s: float, together: Any) -> list[float]:
    coordination, times = SqliteCoordination(path, busy_s=PATIENCE_S), list[float]()
    await coordination.renew("me")
    together.wait(PATIENCE_S)
    ends = time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        takes = [Take("account:a", "requests", PLENTY), Take(f"key:{number}:{len(times) % 1_000}", "requests", PLENTY)]
        await coordination.take(takes, "me")
        times.append((time.perf_counter() - began) * 1e6)
        if pause_s:
            await asyncio.sleep(pause_s)
    await coordination.aclose()
    return times
