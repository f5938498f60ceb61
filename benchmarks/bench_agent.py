"""What does an agent add to its model calls: 8 of them and 7 tool calls, alone, with a budget, and 100 at once?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any

import pytest

from routewright import Agent, Catalogue, Delta, Finish, Model, Pricing, Router, Usage
from routewright.wire import Chunk, RouteRequest, ToolDelta, UpstreamCall

from .conftest import Peer, TimedAsync
from .floors import LeastAgent
from .measure import Effort, sample_over
from .report import Question, Report, Who
from .script import (
    ANSWER,
    ARGUMENTS,
    CALLS,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    SYSTEM,
    TASK,
    TOOL,
    Prepare,
    Run,
    Tool,
    What,
    add,
    figure,
)

MODEL = Model(
    id="test/one", quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000, modalities=("text", "tool")
)
RUN = Question("an agent's run of 8 model calls and 7 tool calls", "1,000")
ASKED: dict[Question, tuple[What, int]] = {
    RUN: ("alone", 1),
    Question("100 runs at once, CPU of a run"): ("at once", 100),
    Question("memory of a run among 1,000 that wait in a tool"): ("waiting", 1_000),
}
BUDGET = Question("the same within a budget")
BARE = Question("the 8 calls of such a run, by the Router alone")
OVER = Question("what the run takes longer than its 8 calls")
PEERS: dict[Who, str] = {"pydantic-ai": "pydantic_ai_agent", "openai-agents": "openai_agents_run"}


class Scripted:
    """Asks for a tool seven times, then answers. Keeps the calls of it, if given where."""

    name = "test"

    def __init__(self, calls: list[UpstreamCall] | None = None) -> None:
        self._calls = calls

    def models(self) -> list[Model]:
        return [MODEL]

    @asynccontextmanager
    async def open(self, call: UpstreamCall) -> AsyncIterator[AsyncIterator[Chunk]]:
        if self._calls is not None:
            self._calls.append(call)
        yield chunks(sum(message.role == "tool" for message in call.messages))

    async def aclose(self) -> None:
        """Nothing is held."""


async def chunks(told: int) -> AsyncIterator[Chunk]:
    yield Delta(ANSWER) if told == CALLS - 1 else ToolDelta(0, ARGUMENTS, f"call_{told}", TOOL)
    yield Usage(INPUT_TOKENS, OUTPUT_TOKENS)
    yield Finish("stop" if told == CALLS - 1 else "tool_calls")


def floor(tool: Tool) -> Run:
    def ask(messages: list[dict[str, Any]]) -> AsyncIterator[Chunk]:
        return chunks(sum(message["role"] == "tool" for message in messages))

    agent = LeastAgent(ask, {TOOL: tool}, SYSTEM)
    return lambda: agent.run(TASK)


def ours(router: Router, budget: float | None = None) -> Prepare:
    def prepare(tool: Tool) -> Run:
        agent = Agent(router, tools=[tool], max_steps=20, system=SYSTEM, total_budget_usd=budget)

        async def run() -> str:
            return (await agent.run(TASK)).output

        return run

    return prepare


@pytest.fixture
def router(loop: asyncio.Runner) -> Iterator[Router]:
    made = Router(providers=[Scripted()], catalogue=Catalogue(()))
    yield made
    loop.run(made.aclose())


@pytest.fixture
def requests(loop: asyncio.Runner) -> list[RouteRequest]:
    """What a run asks the Router for."""
    calls = list[UpstreamCall]()

    async def once() -> None:
        async with Router(providers=[Scripted(calls)], catalogue=Catalogue(())) as router:
            await ours(router)(add)()

    loop.run(once())
    assert len(calls) == CALLS
    return [RouteRequest(call.messages, tools=call.tools, timeout_ms=30_000) for call in calls]


@pytest.mark.parametrize("question", ASKED, ids=lambda question: question.what)
class TestRun:
    def test_floor(self, loop: asyncio.Runner, report: Report, effort: Effort, question: Question) -> None:
        report.add(question, "floor", loop.run(figure(floor, *ASKED[question], effort)))

    def test_ours(
        self, router: Router, loop: asyncio.Runner, report: Report, effort: Effort, question: Question
    ) -> None:
        report.add(question, "routewright", loop.run(figure(ours(router), *ASKED[question], effort)))


@pytest.mark.parametrize("who", PEERS)
def test_peer(peer: Peer, report: Report, who: Who) -> None:
    report.add(RUN, who, peer(who, PEERS[who], "alone", "1"))


def test_within_a_budget(router: Router, loop: asyncio.Runner, report: Report, effort: Effort) -> None:
    report.add(BUDGET, "routewright", loop.run(figure(ours(router, budget=1.0), "alone", 1, effort)))


class TestItsCalls:
    """The same requests, with the messages and tools that the run's have, made beforehand."""

    def test_alone(self, router: Router, timed_async: TimedAsync, requests: list[RouteRequest]) -> None:
        async def calls(_: None) -> None:
            for request in requests:
                await router.route(request)

        timed_async(BARE, "routewright", calls, repeat(None))

    def test_beside_the_run(
        self,
        router: Router,
        loop: asyncio.Runner,
        report: Report,
        effort: Effort,
        requests: list[RouteRequest],
    ) -> None:
        run = ours(router)(add)

        async def calls(_: None) -> None:
            for request in requests:
                await router.route(request)

        report.add(OVER, "routewright", loop.run(sample_over(lambda _: run(), calls, repeat(None), effort)))
