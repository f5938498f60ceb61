"""What does an agent add to its model calls: 8 of them and 7 tool calls, alone, with a budget, many runs at once?"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import repeat

import pytest

from routewright import Agent, Catalogue, Delta, Finish, Model, Pricing, Router, ToolDelta, Usage
from routewright.wire import Chunk, UpstreamCall

from .conftest import TimedAsync
from .measure import Effort, Figure
from .report import Question, Report

CALLS = 8
MODEL = Model(
    id="test/one", quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000, modalities=("text", "tool")
)
ALONE = Question("an agent's run: 8 model calls, 7 tool calls", "1,200")
BUDGET = Question("the same within a budget")
BARE = Question("8 such calls of the Router alone")
AT_ONCE = {number: Question(f"{number} runs at once, a run") for number in (100, 1_000)}
MEMORY = Question("memory of a run among 1,000 that wait in a tool")


class Scripted:
    """Asks for a tool seven times, then answers."""

    name = "test"

    def models(self) -> list[Model]:
        return [MODEL]

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:
        yield self._chunks(sum(message.role == "tool" for message in call.messages))

    async def _chunks(self, told: int) -> AsyncIterator[Chunk]:
        yield Delta("done") if told == CALLS - 1 else ToolDelta(0, '{"a": 1, "b": 2}', f"call_{told}", "add")
        yield Usage(100, 10)
        yield Finish("stop" if told == CALLS - 1 else "tool_calls")

    async def aclose(self) -> None:
        """Nothing is held."""


async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@pytest.fixture
def router(loop: asyncio.Runner) -> Iterator[Router]:
    made = Router(providers=[Scripted()], catalogue=Catalogue(()))
    yield made
    loop.run(made.aclose())


def test_one_after_another(router: Router, timed_async: TimedAsync) -> None:
    for question, budget in ((ALONE, None), (BUDGET, 1.0)):
        agent = Agent(router, tools=[add], max_steps=20, total_budget_usd=budget)
        timed_async(question, "routewright", agent.run, repeat("go"))


def test_the_calls_alone(router: Router, timed_async: TimedAsync) -> None:
    async def calls(text: str) -> None:
        for _ in range(CALLS):
            await router.route(text)

    timed_async(BARE, "routewright", calls, repeat("go"))


@pytest.mark.parametrize("number", AT_ONCE)
def test_at_once(router: Router, loop: asyncio.Runner, report: Report, effort: Effort, number: int) -> None:
    agent = Agent(router, tools=[add], max_steps=20)

    async def run() -> float:
        began = time.process_time()
        await asyncio.gather(*[agent.run("go") for _ in range(number if effort.runs > 1 else 3)])
        return (time.process_time() - began) / number * 1e6

    loop.run(run())
    report.add(AT_ONCE[number], "routewright", Figure("µs", loop.run(run())))


def test_memory(router: Router, loop: asyncio.Runner, report: Report, effort: Effort) -> None:
    number = 1_000 if effort.runs > 1 else 3

    async def measure() -> float:
        goes_on = asyncio.Event()

        async def add(a: int, b: int) -> int:
            await goes_on.wait()
            return a + b

        agent = Agent(router, tools=[add], max_steps=20)
        await asyncio.sleep(0)
        tracemalloc.start()
        runs = [asyncio.create_task(agent.run("go")) for _ in range(number)]
        for _ in range(200):
            await asyncio.sleep(0)
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        goes_on.set()
        await asyncio.gather(*runs)
        return kept / number

    report.add(MEMORY, "routewright", Figure("bytes", loop.run(measure())))
