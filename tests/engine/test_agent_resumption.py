"""Resuming runs after a pause or an interruption, one at a time; and nested runs."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import (
    Agent,
    Caller,
    Capture,
    MemoryStorage,
    Model,
    Pricing,
    RateLimits,
    Router,
    Settings,
    SqliteStorage,
    ValidationFailed,
)
from routewright.errors import NotFound
from routewright.protocols import Storage
from routewright.tools import FunctionTool
from routewright.wire import (
    AgentRequest,
    Events,
    LedgerRows,
    RunStarted,
    SubTraceSpan,
    ToolSpan,
    UpstreamCall,
)
from routewright.wire import Tool as Declaration
from tests.tables import table

from .test_agent import ABLE, Wait, acme, add, asks, calls_of, router

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("closing")]
STORAGES = pytest.mark.parametrize("kind", ["memory", "sqlite"])
ASK_USER = Declaration(name="ask_user")


def storage_of(kind: str, folder: Path) -> Storage:
    return MemoryStorage() if kind == "memory" else SqliteStorage(folder / "store.db")


class Sending:
    """The tool ``send``, which waits until it may go on."""

    def __init__(self) -> None:
        self.goes_on, self.begun, self.sent = anyio.Event(), anyio.Event(), list[str]()

    async def send(self) -> str:
        self.sent.append("mail")
        self.begun.set()
        await self.goes_on.wait()
        return "sent"


@STORAGES
async def test_a_resumed_run_is_one_trace_in_the_order_of_its_steps(kind: str, tmp_path: Path) -> None:
    made = router([asks(("add", {"a": 1}), ("ask_user", {})), "thanks"], storage=storage_of(kind, tmp_path))
    agent = Agent(made, tools=[add, ASK_USER])
    paused = await agent.run("go")
    done = await agent.resume(paused, {paused.pending_tool_calls[0].id: "blue"})
    starts = [step.start_ms for step in done.steps]
    assert starts == sorted(starts)
    assert done.summary.total_latency_ms >= done.steps[-1].start_ms + done.steps[-1].duration_ms
    await made.flush()
    trace = await made.trace(done.trace_id)
    assert (trace.status, len(trace.children)) == ("completed", 2)
    page = await made.traces.query(filter="kind=agent")
    assert [item.id for item in page.data] == [done.trace_id]
    stored = await made.storage.scan("default", Events(), after=None, limit=10)
    assert [event.data["status"] for event in stored if event.type == "agent.run_completed"] in (
        ["partial", "completed"], ["completed", "partial"],
    )  # fmt: skip


@STORAGES
async def test_only_one_of_two_resumptions_continues_a_run(kind: str, tmp_path: Path) -> None:
    tool = Sending()
    made = router([asks(("ask_user", {})), asks(("send", {})), "done"], storage=storage_of(kind, tmp_path))
    agent = Agent(made, tools=[tool.send, ASK_USER])
    paused = await agent.run("go")
    results, ends = {paused.pending_tool_calls[0].id: "yes"}, list[Any]()

    async def resume() -> None:
        try:
            ends.append((await agent.resume(paused, results)).status)
        except NotFound:
            ends.append("not found")

    async with anyio.create_task_group() as group:
        group.start_soon(resume)
        group.start_soon(resume)
        await tool.begun.wait()
        await anyio.wait_all_tasks_blocked()
        tool.goes_on.set()
    assert (sorted(ends), tool.sent, len(calls_of(made))) == (["completed", "not found"], ["mail"], 3)


async def test_a_running_run_cannot_be_resumed(tmp_path: Path) -> None:
    tool = Sending()
    made = router([asks(("send", {})), "done"], storage=SqliteStorage(tmp_path / "store.db"))
    agent, ends, all_ended = Agent(made, tools=[tool.send]), list[Any](), anyio.Event()
    events = agent.stream("go")
    async with anyio.create_task_group() as group, events as stream:
        started = await anext(stream)
        assert isinstance(started, RunStarted)

        async def rest() -> None:
            ends.append([event async for event in stream][-1].event)
            all_ended.set()

        async def resume() -> None:
            with pytest.raises(NotFound, match="cannot be resumed"):
                await agent.resume(started.data.trace_id)
            ends.append("not found")

        group.start_soon(rest)
        await tool.begun.wait()
        group.start_soon(resume)
        await anyio.wait_all_tasks_blocked()
        tool.goes_on.set()
        await all_ended.wait()
    assert (sorted(ends), tool.sent) == (["not found", "run.completed"], ["mail"])


@STORAGES
async def test_an_interrupted_run_goes_on_under_its_key_without_paying_twice(kind: str, tmp_path: Path) -> None:
    tool = Wait(60.0, 0.0)
    made = router([asks(("wait", {})), "done"], storage=storage_of(kind, tmp_path))
    agent = Agent(made, tools=[tool.wait])
    await tool.interrupt(agent, idempotency_key="k")
    answer = await agent.run("go", idempotency_key="k")
    assert (answer.output, len(calls_of(made))) == ("done", 2)


async def test_a_tool_call_runs_once_its_client_has_approved_it() -> None:
    paid = list[int]()

    def pay(euros: int) -> str:
        paid.append(euros)
        return "paid"

    made = router([asks(("pay", {"euros": 5}), ("pay", {"euros": 500})), "done"])
    agent = Agent(made, tools=[FunctionTool(pay, needs_approval=True), ASK_USER])
    paused = await agent.run("go")
    small, large = paused.pending_tool_calls
    done = await agent.resume(paused, approved={small.id: True, large.id: False})
    assert (done.output, paid) == ("done", [5])
    assert [step.output for step in done.steps if step.tool] == [
        {"result": '{"error":"the user did not approve this call"}'}, {"result": "paid"},
    ]  # fmt: skip


async def test_a_run_is_not_resumed_by_an_agent_that_lacks_its_tools() -> None:
    made = router([asks(("ask_user", {})), "done"])
    paused = await Agent(made, tools=[add, ASK_USER]).run("go")
    results = {paused.pending_tool_calls[0].id: "x"}
    with pytest.raises(ValidationFailed, match="add"):
        await Agent(made, tools=[ASK_USER]).resume(paused, results)
    with pytest.raises(ValidationFailed, match="is not a pending call"):
        await Agent(made, tools=[add, ASK_USER]).resume(paused, {**results, "call_nobody": "x"})
    with pytest.raises(ValidationFailed, match="JSON cannot hold"):
        await Agent(made, tools=[add, ASK_USER]).resume(paused, dict.fromkeys(results, object()))
    assert (await Agent(made, tools=[add, ASK_USER]).resume(paused, results)).output == "done"


async def test_a_replayed_answer_has_its_type() -> None:
    made = router(['{"value": 3}'])
    agent = Agent(made, output_type=dict[str, int])
    answers = [await agent.run("go", idempotency_key="k") for _ in range(2)]
    assert [answer.data for answer in answers] == [{"value": 3}, {"value": 3}]


async def test_a_stream_has_a_result_after_its_last_event() -> None:
    made = router(['{"value": 3}'])
    async with Agent(made, output_type=dict[str, int]).stream("go") as events:
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = events.result
        async for _ in events:
            pass
    assert events.result.data == {"value": 3}


# Runs within runs


def inner_and_outer(
    script: Callable[[UpstreamCall], Any], outer_usd: float | None, **given: Any
) -> tuple[Router, Agent]:
    """An agent with an agent as its tool ``helper``; the inner one's task begins with ``inner``."""
    limits = given.pop("limits", {})
    made = router(script, **given)
    inner = Agent(made, tools=[add], max_steps=1_000, **limits)
    outer = Agent(made, tools=[inner.as_tool("helper", "helps")], total_budget_usd=outer_usd)
    return made, outer


def is_inner(call: UpstreamCall) -> bool:
    return any(message.role == "user" and message.content == "inner" for message in call.messages)


CALLS_HELPER = asks(("helper", {"task": "inner"}))


def helped(call: UpstreamCall) -> Any:
    return "helped" if is_inner(call) else CALLS_HELPER if len(call.messages) < 4 else "done"


async def spent(made: Router) -> float:
    return (await made.traces.usage()).totals.cost_usd


async def test_an_agent_used_as_a_tool_spends_the_outer_budget_however_it_ends() -> None:
    def script(call: UpstreamCall) -> Any:
        return asks(("add", {"a": 1})) if is_inner(call) else CALLS_HELPER

    made, outer = inner_and_outer(script, 0.01)
    answer = await outer.run("go")
    assert answer.status == "budget_exceeded"
    assert await spent(made) <= 0.01
    assert answer.summary.total_cost_usd == pytest.approx(await spent(made))


async def test_what_an_agent_spent_before_it_ran_out_of_time_counts() -> None:
    calls = list[int]()

    def script(call: UpstreamCall) -> Any:
        if not is_inner(call):
            return CALLS_HELPER if not calls else "done"
        calls.append(1)
        return asks(("add", {"a": 1}) if len(calls) < 20 else ("slow", {}))

    made = router(script)

    async def slow() -> None:
        await anyio.sleep(60)

    inner = Agent(made, tools=[add, slow], max_steps=1_000)
    outer = Agent(made, tools=[inner.as_tool("helper", "helps")], total_budget_usd=0.5, per_step_timeout_ms=400)
    answer = await outer.run("go")
    assert "timed out" in str(answer.steps[1].output["error"])
    assert answer.summary.total_cost_usd == pytest.approx(await spent(made))
    assert answer.steps[1].cost_usd > 0


async def test_an_agent_used_as_a_tool_shares_the_tags_and_trace_of_the_outer_run() -> None:
    made, outer = inner_and_outer(helped, None)
    answer = await outer.run("go", metadata={"tenant": "t1", "conversation": "c"})
    assert answer.status == "completed"
    usage = await made.traces.usage(group_by="tenant")
    assert [(row.group, row.requests) for row in usage.data] == [("t1", 3)]
    trace = await made.traces.get(answer.trace_id)
    runs = [span for span in trace.spans if isinstance(span, SubTraceSpan) and span.name == "helper"]
    assert [span.trace_id for span in runs] == [answer.steps[1].trace_id]
    below = {span.parent_id for span in trace.spans}
    assert runs[0].id in below, "the inner run's steps stand below it"
    assert sum(step.cost_usd for step in answer.steps) == pytest.approx(await spent(made))


async def test_an_agent_used_as_a_tool_takes_no_slot() -> None:
    storage = MemoryStorage()
    await storage.apply("acme", [acme(limits=RateLimits(concurrency=1))])
    _, outer = inner_and_outer(helped, None, storage=storage)
    answer = await outer.run("go", caller=Caller("acme"))
    assert answer.status == "completed"
    assert answer.steps[1].output == {"result": {"status": "completed", "output": "helped"}}


async def test_an_outer_run_that_is_resumed_does_not_pay_again_for_an_inner_one(tmp_path: Path) -> None:
    tool = Wait(60.0, 0.0)

    def script(call: UpstreamCall) -> Any:
        if is_inner(call):
            return "helped"
        return asks(("helper", {"task": "inner"}), ("wait", {})) if len(call.messages) < 4 else "done"

    made = router(script, storage=SqliteStorage(tmp_path / "store.db"))
    outer = Agent(made, tools=[Agent(made).as_tool("helper", "helps"), tool.wait])
    await tool.interrupt(outer, idempotency_key="k")
    answer = await outer.run("go", idempotency_key="k")
    assert answer.status == "completed"
    rows = await made.storage.scan("default", LedgerRows(), after=None, limit=100)
    assert len(calls_of(made)) == 3
    assert answer.summary.total_cost_usd == pytest.approx(sum(row.cost_nanos for row in rows) / 1e9)


def test_an_agent_that_waits_for_a_client_cannot_be_a_tool() -> None:
    for tools in ([ASK_USER], [FunctionTool(add, needs_approval=True)]):
        with pytest.raises(ValidationFailed, match="would wait for a client"):
            Agent(Router.sandbox(), tools=tools).as_tool("helper", "helps")


# Windows of models, what is kept


async def test_a_history_is_cut_to_the_window_of_the_models_that_may_serve() -> None:
    able = {**ABLE, "context_window": 16_000}
    small = Model(id="test/small", quality=0.7, pricing_per_1m=Pricing(1.0, 1.0), **able)
    large = Model(id="test/large", quality=0.7, pricing_per_1m=Pricing(1.0, 1.0), **{**able, "context_window": 10**6})
    text = json.dumps([{"id": number, "hash": f"{number * 7919:x}"} for number in range(400)])
    asked = count(1)

    async def read() -> str:
        return text

    made = router(lambda call: asks(("read", {})) if next(asked) < 30 else "done", models=[small, large])
    answer = await Agent(made, tools=[read], models=["test/small"], max_steps=100).run("go")
    assert (answer.status, answer.response.error) == ("completed", None)
    assert calls_of(made)[-1].messages[1].content == "go"


async def test_the_trace_of_an_ended_run_has_no_text() -> None:
    storage = MemoryStorage()
    made = router([asks(("add", {"a": 123_454_321})), "done"], storage=storage)
    answer = await Agent(made, tools=[add]).run("a secret prompt")
    kept = [
        each for each in gc.get_objects() if type(each).__name__ == "Checkpoint" and each.trace_id == answer.trace_id
    ]
    assert kept == []
    trace = await made.trace(answer.trace_id)
    assert "123454321" not in str(trace)


async def test_tool_spans_have_text_if_capture_is_on() -> None:
    made = router(
        [asks(("add", {"a": 7, "b": 8})), "done"], settings=Settings(capture=Capture(prompts=True, answers=True))
    )
    answer = await Agent(made, tools=[add]).run("go")
    trace = await made.trace(answer.trace_id)
    (span,) = (span for span in trace.spans if isinstance(span, ToolSpan))
    assert (span.input, span.output) == ({"text": '{"a":7,"b":8}'}, {"text": '{"result":15}'})


async def test_a_server_applies_the_smaller_limit_and_python_the_given_one() -> None:
    made = router(lambda call: asks(("add", {"a": 1})))
    agent = Agent(made, tools=[add], max_steps=4, total_budget_usd=0.01)
    run = agent.prepare(AgentRequest(task="x", max_steps=400, total_budget_usd=5.0))
    assert len((await run.finish()).steps) == 4
    assert len((await agent.prepare(AgentRequest(task="x", max_steps=2)).finish()).steps) == 2
    assert len((await agent.run("x", max_steps=6)).steps) == 6


@table(
    ("options", "said"),
    [
        ({"modles": ["x"]}, "did you mean 'models'"),
        ({"budget": {}}, "use total_budget_usd"),
        ({"goal": "cheap"}, "goal"),
        ({"tools": "calculator"}, "is not a list"),
        ({"tools": [{"name": "x"}]}, "pass routewright.Tool"),
        ({"tools": [FunctionTool(add, name="calculator")]}, "a second tool named"),
    ],
)
def test_a_wrong_option_is_found_when_the_agent_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        Agent(Router.sandbox(), **options)
