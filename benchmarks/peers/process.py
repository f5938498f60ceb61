"""What a peer's program is told on its standard input, and how it answers. Knows the standard library alone."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from typing import Any, TypeVar

from benchmarks.measure import Effort, Figure, in_flight, sample, sample_async
from benchmarks.script import WHAT, Prepare, figure

T = TypeVar("T")
Messages = list[dict[str, Any]]


def measure(prepare: Callable[[], Callable[[Messages], Awaitable[object]]], *, width: int = 1) -> None:
    """Measure the coroutine function that ``prepare`` makes, one call after another or ``width`` at a time."""
    given = json.load(sys.stdin)
    with asyncio.Runner(loop_factory=_uvloop() if given["uvloop"] else None) as runner:
        figure = runner.run(_measure(prepare, given["conversations"], Effort(*given["effort"]), width))
    print(json.dumps(figure))


def measure_plain(call: Callable[[T], object], inputs: Sequence[T]) -> None:
    """Measure a plain function on inputs of its own, taken in turn."""
    given = json.load(sys.stdin)
    print(json.dumps(sample(call, cycle(inputs), Effort(*given["effort"]))))


def measure_agent(prepare: Prepare) -> None:
    """Measure an agent's runs: the arguments of the program say what of them, and how many at once."""
    given = json.load(sys.stdin)
    what = WHAT[WHAT.index(sys.argv[1])]
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with asyncio.Runner(loop_factory=_uvloop() if given["uvloop"] else None) as runner:
        measured = runner.run(figure(prepare, what, number, Effort(*given["effort"])))
    print(json.dumps(measured))


async def _measure(
    prepare: Callable[[], Callable[[Messages], Awaitable[object]]],
    conversations: list[Messages],
    effort: Effort,
    width: int,
) -> Figure:
    call = prepare()
    if width == 1:
        return await sample_async(call, cycle(conversations), effort)
    return await in_flight(call, cycle(conversations), width, effort)


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    return uvloop.new_event_loop
