"""Compares two ways of doing the same, by turns and by the processor's clock. Prints medians in microseconds as JSON:
``{"call": [theirs, ours], "agent": [theirs, ours]}``."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median

Run = Callable[[], Awaitable[object]]


def compare(call: tuple[Run, Run], agent: tuple[Run, Run]) -> None:
    """Measure a call and an agent's run, each by the framework's own model and by ours. The arguments of the program
    are the numbers of rounds, and of calls in a round."""
    rounds, calls = map(int, sys.argv[1:])
    figures = {"call": (call, calls), "agent": (agent, max(1, calls // 20))}
    print(json.dumps({name: asyncio.run(_medians(pair, rounds, repeats)) for name, (pair, repeats) in figures.items()}))


async def _medians(pair: tuple[Run, Run], rounds: int, repeats: int) -> list[float]:
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for run, measured in zip(pair, times, strict=True):
            gc.collect()
            started = time.process_time_ns()
            for _ in range(repeats):
                await run()
            if number:  # the first round warms up
                measured.append((time.process_time_ns() - started) / repeats / 1e3)
    return [median(measured) for measured in times]
