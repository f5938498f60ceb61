"""Compares two ways of doing the same, by turns and by the processor's clock. Prints the fastest of many rounds in
microseconds, which other programs disturb least: ``{"call": [theirs, ours], "agent": [theirs, ours]}``."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable

Run = Callable[[], Awaitable[object]]


def compare(call: tuple[Run, Run], agent: tuple[Run, Run]) -> None:
    """Measure a call and an agent's run, each by the framework's own model and by ours. The argument of the program is
    the number of rounds."""
    rounds = int(sys.argv[1])
    figures = {"call": asyncio.run(_fastest(call, rounds, repeats=20)), "agent": asyncio.run(_fastest(agent, rounds))}
    print(json.dumps(figures))


async def _fastest(pair: tuple[Run, Run], rounds: int, repeats: int = 1) -> list[float]:
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 3):
        for run, measured in zip(pair, times, strict=True):
            gc.collect()
            started = time.process_time_ns()
            for _ in range(repeats):
                await run()
            if number >= 3:  # after they have warmed up
                measured.append((time.process_time_ns() - started) / repeats / 1e3)
    return [min(measured) for measured in times]
