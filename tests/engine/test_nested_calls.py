"""Calls that the tools of an agent make of its Router are part of the run: in its budget, its sum and its trace."""

from __future__ import annotations

import contextvars
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from routewright import (
    Agent,
    Answer,
    Caller,
    Catalogue,
    MemoryStorage,
    Model,
    Pricing,
    Router,
    RouterError,
    SqliteStorage,
)
from routewright.protocols import ToolContext
from routewright.testing import ScriptedProvider
from routewright.wire import (
    Account,
    Delta,
    Finish,
    LedgerRows,
    PutAccount,
    RateLimits,
    SubTraceSpan,
    ToolDelta,
    ToolSpan,
    UpstreamCall,
    Usage,
)
from tests.tables import table

from .scripted_router import to_close

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("closing")]
ONE = Model(
    id="test/one",
    quality=0.8,
    pricing_per_1m=Pricing(1.0, 1.0),
    structured_output=True,
    modalities=("text", "tool"),
    context_window=100_000,
)
ACME = Caller("acme")
STEP = 105_000
"""Nano-dollars of a model call."""
CAP: Any = {"max_output_tokens": 100}


def answer(call: UpstreamCall) -> list[Any]:
    """The agent's first call asks for the tool; the last message of all others is answered."""
    if call.tools and call.messages[-1].role == "user":
        return [ToolDelta(0, "{}", "call_1", "work"), Usage(5, 100), Finish("tool_calls")]
    return [Delta("done"), Usage(5, 100), Finish("stop")]


def router_of(storage: Any = None, **options: Any) -> Router:
    router = Router(
        providers=[ScriptedProvider(answer, models=[ONE])], catalogue=Catalogue(()), storage=storage, **options
    )
    to_close.append(router)
    return router


async def run(router: Router, tool: Any, **options: Any) -> Any:
    tool.__name__ = "work"
    return await Agent(router, tools=[tool], **options.pop("limits", {})).run("go", **options)


async def children_of(router: Router, trace_id: str, caller: Caller | None = None) -> list[str]:
    """The traces under the tool's step."""
    trace = await router.trace(trace_id, caller=caller)
    spans = [span for span in trace.spans if isinstance(span, SubTraceSpan)]
    (tool,) = [span for span in trace.spans if isinstance(span, ToolSpan)]
    assert {span.trace_id for span in spans} >= set(trace.children)
    return [span.trace_id for span in spans if span.parent_id == tool.parent_id]


async def route(router: Router) -> None:
    await router.route("hi")


async def stream(router: Router) -> None:
    async with router.stream("hi") as pieces:
        async for _ in pieces.text():
            pass


async def many(router: Router) -> None:
    (one,) = await router.route_many(["hi"], budget={"maxCostUsd": 0.1})
    assert isinstance(one, Answer), one


async def prepared(router: Router) -> None:
    await router.prepare("hi").run()


async def in_a_task(router: Router) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(router.route, "hi")


async def to_thread(router: Router) -> None:
    await anyio.to_thread.run_sync(router.blocking.route, "hi")


async def in_an_own_thread(router: Router) -> None:
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(router.blocking.route, "hi"))
    thread.start()
    await anyio.to_thread.run_sync(thread.join)


async def an_agent(router: Router) -> None:
    inner = await Agent(router).run("go")
    assert inner.status == "completed"


WAYS = [route, stream, many, prepared, in_a_task, to_thread, in_an_own_thread, an_agent]


@table("limited", [False, True], ids=["free", "limited"])
@table("way", WAYS, ids=lambda way: way.__name__)
async def test_a_call_within_a_tool_is_in_the_budget_sum_and_tree_of_the_run(way: Any, limited: bool) -> None:
    storage = MemoryStorage()
    router = router_of(storage)
    if limited:
        terms = Account(name="acme", created_at="2026-01-01T00:00:00.000Z", limits=RateLimits(concurrency=1))
        await storage.apply("acme", [PutAccount(terms)])

    async def tool() -> str:
        await way(router)
        return "worked"

    limits = {"total_budget_usd": 1.0} if limited else {}
    result = await run(router, tool, limits=limits, caller=ACME if limited else None)
    assert [step.output.get("error") for step in result.steps] == [None] * 3
    assert [round(step.cost_usd * 1e9) for step in result.steps] == [STEP] * 3
    assert round(result.summary.total_cost_usd * 1e9) == 3 * STEP
    (child,) = await children_of(router, result.trace_id, ACME if limited else None)
    trace = await router.trace(child, caller=ACME if limited else None)
    assert round(trace.cost_usd * 1e9) == STEP
    if limited:
        rows = await storage.scan("acme", LedgerRows(), after=None, limit=10)
        assert sum(row.charge_nanos for row in rows) == 3 * STEP


async def test_a_call_that_would_cross_the_budget_of_the_run_is_refused() -> None:
    router = router_of()
    errors: list[RouterError] = []

    async def tool() -> str:
        for _ in range(6):
            try:
                await router.route("hi", params=CAP)
            except RouterError as error:
                errors.append(error)
        return "worked"

    result = await run(router, tool, limits={"total_budget_usd": 0.0006, "params": CAP})
    assert {error.detail.get("level") for error in errors} == {"agent_run"}
    assert result.status == "budget_exceeded"
    assert result.summary.total_cost_usd <= 0.0006


async def test_a_tool_that_reports_its_own_cost_is_not_counted_twice() -> None:
    router = router_of()

    async def tool(context: ToolContext) -> str:
        context.spent_usd = 0.0005
        await router.route("hi", params=CAP)
        return "worked"

    result = await run(router, tool, limits={"total_budget_usd": 0.0012, "params": CAP})
    assert result.status == "completed", result.error
    assert [round(step.cost_usd * 1e9) for step in result.steps] == [STEP, STEP + 500_000, STEP]
    assert round(result.summary.total_cost_usd * 1e9) == 3 * STEP + 500_000


async def test_a_resumed_run_keeps_the_sum_of_nested_calls(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "store.db")
    router = router_of(storage)
    began = anyio.Event()
    tries: list[int] = []

    def script(call: UpstreamCall) -> list[Any]:
        names = [message.role for message in call.messages].count("tool")
        if call.tools and names < 2:
            return [
                ToolDelta(0, "{}", f"call_{names}", ["first", "second"][names]),
                Usage(5, 100),
                Finish("tool_calls"),
            ]
        return [Delta("done"), Usage(5, 100), Finish("stop")]

    router = Router(providers=[ScriptedProvider(script, models=[ONE])], catalogue=Catalogue(()), storage=storage)
    to_close.append(router)

    async def first() -> str:
        await router.route("hi")
        return "worked"

    async def second() -> str:
        tries.append(1)
        if len(tries) == 1:
            began.set()
            await anyio.sleep(60.0)
        return "worked"

    agent = Agent(router, tools=[first, second], total_budget_usd=1.0)
    async with anyio.create_task_group() as group:

        async def leave() -> None:
            await began.wait()
            group.cancel_scope.cancel()

        group.start_soon(leave)
        await agent.run("go", idempotency_key="k")
    result = await agent.run("go", idempotency_key="k")
    assert result.status == "completed"
    assert [round(step.cost_usd * 1e9) for step in result.steps] == [STEP, STEP, STEP, 0, STEP]
    assert round(result.summary.total_cost_usd * 1e9) == 4 * STEP
    trace = await router.trace(result.trace_id)
    assert len(trace.children) == 4
