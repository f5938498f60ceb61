"""Agents under random faults: models that do anything, and processes killed at any time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec
import pytest

from routewright import Agent, Catalogue, Model, Pricing, ProviderFault, Router, SqliteStorage
from routewright.testing import ScriptedProvider
from routewright.wire import AgentResponse, Delta, Events, Finish, LedgerRows, ToolDelta, Usage
from tests.programs import Program

from .agent_child import LEASE_S, Child

ONE = Model(
    id="test/one", quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), context_window=100_000, modalities=("text", "tool")
)
ARGUMENTS = [
    "{}",
    '{"a": 1}',
    '{"a": "x"}',
    '{"a": ',
    "[]",
    "null",
    '{"a": 1, "b": 2}',
    '{"a": "' + "x" * 5_000 + '"}',
    "",
]


class Anything:
    """A model that does whatever chance says."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)

    def __call__(self, call: Any) -> Any:
        rng = self.rng
        match rng.randrange(8):
            case 0:
                return rng.choice(["done", "", "x" * 2_000])
            case 1:
                return ProviderFault(rng.choice(["server", "timeout", "refused", "request", "rate_limit"]))
            case 2:
                return [Delta("half"), ProviderFault("server")]
        names = ["add", "fails", "nope", "slow", "add"]
        calls = [
            ToolDelta(place, rng.choice(ARGUMENTS), f"call_{place}", rng.choice(names))
            for place in range(rng.choice((1, 1, 2, 5, 12)))
        ]
        return [*([Delta("thinking")] if rng.random() < 0.2 else []), *calls, Usage(100, 10), Finish("tool_calls")]


async def run_one(seed: int, storage: Any) -> None:
    rng = Random(seed)
    most, budget = rng.randint(1, 15), rng.choice((None, 0.0, 0.001, 0.005, 1.0))

    def add(a: int) -> int:
        return a

    async def fails() -> None:
        raise ValueError("no")

    async def slow() -> None:
        await anyio.sleep(0.02)

    provider = ScriptedProvider(Anything(seed), models=[ONE])
    router = Router(providers=[provider], catalogue=Catalogue(()), storage=storage)
    step_ms = rng.choice((10, 5_000))
    agent = Agent(
        router, tools=[add, fails, slow], max_steps=most, total_budget_usd=budget, per_step_timeout_ms=step_ms
    )
    told = [event async for event in _events(agent)]
    response = told[-1].data
    assert [event.event for event in told].count("run.completed") == 1
    assert told[-1].event == "run.completed"
    assert len(response.steps) <= most
    assert [step.number for step in response.steps] == list(range(1, len(response.steps) + 1))
    if budget is not None:
        assert response.summary.total_cost_usd <= budget
    assert (response.status == "partial") == (response.marker is not None)
    await router.flush()
    stored = await router.storage.scan("default", Events(), after=None, limit=100)
    mine = [each for each in stored if each.data.get("trace_id") == response.trace_id]
    assert [each.type for each in mine] == ["agent.run_completed"]
    trace = await router.trace(response.trace_id)
    assert trace.status == response.status
    assert trace.cost_usd == response.summary.total_cost_usd
    await router.aclose()


async def _events(agent: Agent) -> Any:
    async with agent.stream("go") as events:
        async for event in events:
            yield event


@pytest.mark.anyio
async def test_every_run_ends_within_its_limits_whatever_the_model_says(full: bool) -> None:
    for seed in range(1_000 if full else 60):
        try:
            await run_one(seed, None)
        except AssertionError as error:
            raise AssertionError(f"run_one({seed})") from error


def begin(child: Child) -> Program:
    program = Program("-m", "tests.engine.agent_child", msgspec.json.encode(child).decode())
    assert program.heard() == "ready"
    return program


def test_a_run_that_is_killed_goes_on_and_pays_for_each_step_once(tmp_path: Path, full: bool) -> None:
    """Asked again under its key, it goes on after its last finished step."""
    chance = Random(3)
    for number in range(100 if full else 1):
        path = tmp_path / f"{number}.db"
        child, kills, answer = Child(str(path), "key", 4), 0, ""
        while not answer:
            with begin(child) as process:
                if kills < 3:
                    time.sleep(chance.random() * 0.12)
                    process.kill()
                    kills += 1
                answer = process.stdout.readline()
            time.sleep(LEASE_S)  # until what it held is free
        response = msgspec.json.decode(answer, type=AgentResponse)
        assert (response.status, response.output) == ("completed", "done after 4")
        assert [step.tool for step in response.steps] == [None, "note"] * 4 + [None]
        anyio.run(check_bill, path, response)


async def check_bill(path: Path, response: AgentResponse) -> None:
    storage = SqliteStorage(path)
    rows = await storage.scan("acme", LedgerRows(), after=None, limit=1_000)
    charged = [row for row in rows if row.charge_nanos]
    paid = [step for step in response.steps if step.action == "llm_call"]
    assert len({row.request_id for row in charged}) == len(charged) == len(paid)
    assert {row.request_id for row in charged} == {step.trace_id for step in paid}
    events = await storage.scan("acme", Events(), after=None, limit=100)
    assert [json.loads(msgspec.json.encode(each.data))["status"] for each in events] == ["completed"]
    await storage.aclose()
