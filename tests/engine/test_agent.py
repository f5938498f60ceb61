"""Agents: steps, limits, tools, budgets and resumption. Every model call goes through the Router."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import (
    Agent,
    Caller,
    Catalogue,
    MemoryStorage,
    Model,
    Pricing,
    ProviderFault,
    RateLimited,
    RateLimits,
    Router,
    Settings,
    SqliteStorage,
    ValidationFailed,
)
from routewright.errors import IdempotencyKeyReused, NotFound, PermissionDenied, QuotaExhausted
from routewright.protocols import ToolFailed
from routewright.testing import FakeClock, ScriptedProvider
from routewright.tools import FunctionTool
from routewright.wire import Account as TheAccount
from routewright.wire import (
    DecisionSpan,
    Delta,
    Events,
    Finish,
    ModelSpan,
    PutAccount,
    StepSpan,
    SubTraceSpan,
    ToolDelta,
    ToolSpan,
    UpstreamCall,
    Usage,
)
from routewright.wire import Tool as Declaration
from tests.billing import skip_days
from tests.tables import table

from .faulty_storage import Behind
from .scripted_router import to_close

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("closing")]
ABLE: dict[str, Any] = {"structured_output": True, "modalities": ("text", "tool"), "context_window": 100_000}
ONE = Model(id="test/one", quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), **ABLE)
STRONG = Model(id="test/strong", quality=0.9, pricing_per_1m=Pricing(100.0, 100.0), **ABLE)


def asks(*calls: tuple[str, Any], text: str = "") -> list[Any]:
    """An answer that calls tools."""
    pieces: list[Any] = [Delta(text)] if text else []
    for place, (name, arguments) in enumerate(calls):
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
        pieces.append(ToolDelta(place, raw, f"call_{name}_{place}", name))
    return [*pieces, Usage(100, 10), Finish("tool_calls")]


def router(script: Any, **given: Any) -> Router:
    """Closed at the end of the test."""
    models = given.pop("models", [ONE])
    made = Router(providers=[ScriptedProvider(script, models=models)], catalogue=Catalogue(()), **given)
    to_close.append(made)
    return made


def acme(**terms: Any) -> PutAccount:
    return PutAccount(TheAccount(name="acme", created_at="2026-01-01T00:00:00.000Z", **terms))


def calls_of(made: Router) -> list[UpstreamCall]:
    """What the provider was asked."""
    provider = made._parts.fleet("production").providers[0]
    assert isinstance(provider, ScriptedProvider)
    return provider.calls


class Wait:
    """The tool ``wait``, which takes its time: a minute each, unless ``takes_s`` lists how long."""

    def __init__(self, *takes_s: float) -> None:
        self.begun = anyio.Event()
        self._takes_s = list(takes_s)

    async def wait(self) -> None:
        self.begun.set()
        await anyio.sleep(self._takes_s.pop(0) if self._takes_s else 60.0)

    async def interrupt(self, agent: Agent, task: str = "go", **options: Any) -> None:
        """Begin a run and leave it once the tool has begun."""
        async with anyio.create_task_group() as group:
            group.start_soon(partial(agent.run, task, **options))
            await self.begun.wait()
            group.cancel_scope.cancel()


def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    Args:
        a: the first
    """
    return a + b


async def test_a_run_calls_tools_and_answers() -> None:
    made = router([asks(("add", {"a": 2, "b": 3})), "It is 5."])
    answer = await Agent(made, tools=[add]).run("2 + 3?")
    assert (answer.status, answer.output, answer.marker) == ("completed", "It is 5.", None)
    first, second, third = answer.steps
    assert (first.action, first.model, first.finish_reason) == ("llm_call", "test/one", "tool_calls")
    assert (second.action, second.tool, second.input, second.output) == (
        "tool_call", "add", {"a": 2, "b": 3}, {"result": 5},
    )  # fmt: skip
    assert [step.number for step in answer.steps] == [1, 2, 3]
    assert answer.summary.total_steps == 3
    assert answer.summary.tools_used == ["add"]
    assert answer.summary.total_cost_usd == pytest.approx(first.cost_usd + third.cost_usd)
    *_, assistant, told = calls_of(made)[1].messages
    assert assistant.tool_calls is not None
    assert assistant.tool_calls[0].function.name == "add"
    assert (told.role, told.content) == ("tool", "5")


def test_a_function_becomes_a_tool_by_its_signature() -> None:
    spec = FunctionTool(add).spec
    assert (spec.name, spec.description) == ("add", "Adds two numbers.")
    assert spec.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer", "description": "the first"}, "b": {"type": "integer", "default": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }


@table(
    ("call", "said"),
    [
        (("ad", {"a": 1}), "there is no tool 'ad'"),
        (("add", '{"a": '), "not one JSON object"),
        (("add", [1]), "not one JSON object"),
        (("add", {}), "a: Field required"),
        (("add", {"a": "x"}), "a: Input should be a valid integer"),
        (("add", {"a": 1, "c": 1}), "c: Extra inputs are not permitted"),
        (("fails", {}), "the tool failed with ZeroDivisionError"),
        (("refuses", {}), "no such city"),
    ],
)
async def test_the_model_is_told_the_error_of_a_tool(call: tuple[str, Any], said: str) -> None:
    def fails() -> None:
        raise ZeroDivisionError("a secret")

    async def refuses() -> None:
        raise ToolFailed("no such city")

    made = router([asks(call), "done"])
    answer = await Agent(made, tools=[add, fails, refuses]).run("go")
    assert answer.status == "completed"
    assert said in answer.steps[1].output["error"]
    assert "secret" not in str(answer.response)
    assert said in str(calls_of(made)[1].messages[-1].content)


async def test_a_budget_ends_a_run_before_the_step_that_would_exceed_it() -> None:
    made = router(lambda call: asks(("add", {"a": 1})))
    cap = 0.0125
    answer = await Agent(made, tools=[add], max_steps=1_000, total_budget_usd=cap).run("go")
    assert answer.status == "budget_exceeded"
    assert 0 < answer.summary.total_cost_usd <= cap
    assert answer.response.error is not None
    assert answer.response.error["code"] == "quota_exhausted"


async def test_in_the_sandbox_a_spent_budget_is_the_one_of_the_run() -> None:
    made = Router.sandbox(answers=lambda call: asks(("add", {"a": 1})))
    answer = await Agent(made, tools=[add], max_steps=1_000, total_budget_usd=0.0003).run("go")
    assert answer.status == "budget_exceeded"
    left = f"{0.0003 - answer.summary.total_cost_usd:.9f}".rstrip("0")
    assert answer.error is not None
    assert answer.error["code"] == "quota_exhausted"
    assert answer.error["message"].startswith(f"the run has ${left} left of its total_budget_usd of $0.0003, and the ")


async def test_a_failed_step_is_tried_once_more() -> None:
    fault = ProviderFault("request", "bad")
    made = router([ProviderFault("server")] * 2 + ["well"])
    answer = await Agent(made).run("go")
    assert answer.status == "completed"
    made = router(lambda call: fault)
    answer = await Agent(made).run("go")
    assert answer.response.error is not None
    assert (answer.status, answer.response.error["code"]) == ("failed", "router.upstream_failed")


async def test_calls_of_client_tools_wait_for_the_client(tmp_path: Path) -> None:
    for storage in (MemoryStorage(), SqliteStorage(tmp_path / "store.db")):
        made = router([asks(("add", {"a": 1}), ("ask_user", {"q": "?"})), "thanks"], storage=storage)
        agent = Agent(made, tools=[add, Declaration(name="ask_user")])
        answer = await agent.run("go")
        assert (answer.status, answer.marker) == ("partial", "tool_calls_pending")
        (pending,) = answer.pending_tool_calls
        assert pending.function.name == "ask_user"
        with pytest.raises(ValidationFailed, match="lacks"):
            await agent.resume(answer)
        done = await agent.resume(answer, {pending.id: "blue"})
        assert (done.status, done.output, done.trace_id) == ("completed", "thanks", answer.trace_id)
        assert [step.tool for step in done.steps] == [None, "add", "ask_user", None]
        with pytest.raises(NotFound):
            await agent.resume(answer, {pending.id: "blue"})


async def test_a_run_is_one_trace_with_its_calls_below() -> None:
    made = router([asks(("add", {"a": 2})), "5"])
    answer = await Agent(made, tools=[add]).run("go", metadata={"team": "a"})
    trace = await made.trace(answer.trace_id)
    assert (trace.kind, trace.status, trace.metadata) == ("agent", "completed", {"team": "a"})
    assert trace.children == [step.trace_id for step in answer.steps if step.trace_id]
    assert trace.cost_usd == answer.summary.total_cost_usd
    assert [type(span) for span in trace.spans] == [
        *(StepSpan, SubTraceSpan, DecisionSpan, ModelSpan), *(StepSpan, ToolSpan),
        *(StepSpan, SubTraceSpan, DecisionSpan, ModelSpan),
    ]  # fmt: skip
    for child in trace.children:
        assert (await made.trace(child)).metadata == {"team": "a"}
    usage = await made.traces.usage()
    assert usage.totals.requests == 2


async def test_the_tags_of_the_router_are_those_of_a_run() -> None:
    made = router([asks(("add", {"a": 2})), "5"])
    with made.tags(team="b", shift="late"):
        answer = await Agent(made, tools=[add]).run("go", metadata={"team": "a"})
    for trace_id in (answer.trace_id, *(step.trace_id for step in answer.steps if step.trace_id)):
        assert (await made.trace(trace_id)).metadata == {"team": "a", "shift": "late"}


async def test_the_end_of_a_run_is_an_event_once() -> None:
    heard: list[Any] = []
    made = router([asks(("add", {"a": 2})), "5"])
    made.on_event(heard.append)
    answer = await Agent(made, tools=[add]).run("go")
    await made.flush()
    stored = await made.storage.scan("default", Events(), after=None, limit=10)
    (event,) = (each for each in stored if each.type == "agent.run_completed")
    assert event.data["trace_id"] == answer.trace_id
    assert [each.type for each in heard] == ["agent.run_completed"]


async def test_another_task_with_the_key_does_not_resume_an_interrupted_run(tmp_path: Path) -> None:
    tool = Wait()
    made = router([asks(("wait", {})), "done", "done"], storage=SqliteStorage(tmp_path / "store.db"))
    agent = Agent(made, tools=[tool.wait])
    await tool.interrupt(agent, "first", idempotency_key="k")
    answer = await agent.run("second", idempotency_key="k")
    assert [step.action for step in answer.steps] == ["llm_call"]
    assert [message.content for message in calls_of(made)[-1].messages if message.role == "user"] == ["second"]


async def test_a_run_that_waited_a_day_for_its_client_starts_again() -> None:
    clock = FakeClock()
    storage = Behind(MemoryStorage(clock=clock), clock)  # as any that keeps checkpoints
    made = router([asks(("ask_user", {})), "anew"], storage=storage, settings=Settings(clock=clock))
    agent = Agent(made, tools=[Declaration(name="ask_user")])
    first = await agent.run("go", idempotency_key="k")
    assert (await agent.run("go", idempotency_key="k")).response == first.response
    skip_days(clock, 1.01)  # and nobody has swept
    again = await agent.run("go", idempotency_key="k")
    assert (first.marker, again.output) == ("tool_calls_pending", "anew")
    assert again.trace_id != first.trace_id


async def test_a_started_stream_has_ended_its_first_step_and_has_all_events() -> None:
    made = router([asks(("add", {"a": 2})), "5"])
    stream = Agent(made, tools=[add]).stream("go")
    for _ in range(2):
        await stream.start()
    assert len(calls_of(made)) == 1
    pieces = [piece async for piece in stream.sse()]
    assert [piece.split(b"\n")[1] for piece in pieces] == [b"id: %d" % number for number in range(1, len(pieces) + 1)]
    assert pieces[0].startswith(b"event: run.started\n")
    assert pieces[-1].startswith(b"event: run.completed\n")
    assert stream.result.output == "5"


async def test_a_run_that_is_refused_is_refused_at_its_start() -> None:
    async with Agent(router([]), models=["no/model"]).stream("go") as stream:
        with pytest.raises(ValidationFailed):
            await stream.start()
        with pytest.raises(RuntimeError, match="make a new one"):
            await stream.start()


async def test_a_stream_has_events_for_each_step() -> None:
    made = router([asks(("add", {"a": 2})), "5"])
    async with Agent(made, tools=[add]).stream("go") as events:
        told = [event async for event in events]
    assert [event.event for event in told] == [
        "run.started", *["step.started", "step.completed"] * 3, "run.completed",
    ]  # fmt: skip
    assert [event.id for event in told] == list(range(1, 9))


async def test_a_run_with_a_key_is_replayed_event_by_event() -> None:
    made = router([asks(("add", {"a": 2})), "5"])
    told = list[Any]()
    for _ in range(2):
        async with Agent(made, tools=[add]).stream("go", idempotency_key="k") as events:
            told.append([event async for event in events])
    assert told[0] == told[1]


async def test_runs_with_one_key_run_once() -> None:
    made = router([asks(("add", {"a": 2})), "5"])
    agent = Agent(made, tools=[add])
    first = await agent.run("go", idempotency_key="k")
    again = await agent.run("go", idempotency_key="k")
    assert again.response == first.response
    with pytest.raises(IdempotencyKeyReused):
        await agent.run("something else", idempotency_key="k")


async def test_a_slow_tool_is_abandoned() -> None:
    ends = threading.Event()

    async def slow() -> None:
        await anyio.sleep(60)

    def stuck() -> None:
        ends.wait(30)

    made = router([asks(("slow", {}), ("stuck", {})), "done"])
    answer = await Agent(made, tools=[slow, stuck], per_step_timeout_ms=300).run("go")
    ends.set()
    assert answer.status == "completed"
    by_name = {step.tool: step.output for step in answer.steps if step.tool}
    assert "timed out" in by_name["slow"]["error"]
    assert "still_running" not in by_name["slow"]
    assert by_name["stuck"]["still_running"] is True


async def test_any_whole_number_of_milliseconds_is_a_step_timeout() -> None:
    """In seconds and back, 262,143 ms are a fraction."""
    made = router(["done"])
    answer = await Agent(made, tools=[add], per_step_timeout_ms=262_143).run("go")
    assert answer.status == "completed"


async def test_a_run_that_makes_no_progress_asks_a_stronger_model() -> None:
    def script(call: Any) -> Any:
        return "well" if call.model.id == "test/strong" else asks(("add", {"a": 1}))

    made = router(script, models=[ONE, STRONG])
    answer = await Agent(made, tools=[add], max_steps=20, escalate=True, goal="cost").run("go")
    assert (answer.status, answer.steps[-1].model) == ("completed", "test/strong")
    assert [step.tool for step in answer.steps].count("add") == 3


async def test_approval_is_asked_before_a_tool_runs() -> None:
    asked: list[Any] = []

    async def approve(name: str, arguments: dict[str, Any]) -> bool:
        asked.append((name, arguments))
        return bool(arguments["a"] == 1)

    made = router([asks(("add", {"a": 1}), ("add", {"a": 2})), "done"])
    answer = await Agent(made, tools=[add], approve=approve).run("go")
    assert sorted(asked, key=str) == [("add", {"a": 1}), ("add", {"a": 2})]
    assert answer.steps[1].output == {"result": 2}
    assert "did not approve" in answer.steps[2].output["error"]


async def test_a_tool_that_needs_approval_pauses_the_run_without_an_approver() -> None:
    tool = FunctionTool(add, needs_approval=True)
    made = router([asks(("add", {"a": 1})), "done"])
    answer = await Agent(made, tools=[tool]).run("go")
    assert (answer.marker, [call.function.name for call in answer.pending_tool_calls]) == (
        "tool_calls_pending",
        ["add"],
    )
    answer = await Agent(made, tools=[tool]).resume(answer, {answer.pending_tool_calls[0].id: 2})
    assert answer.output == "done"
    made = router([asks(("add", {"a": 1})), "done"])
    answer = await Agent(made, tools=[tool], approve=lambda name, arguments: True).run("go")
    assert answer.steps[1].output == {"result": 2}


async def test_the_same_key_joins_a_run_that_is_under_way() -> None:
    goes_on, begun = anyio.Event(), anyio.Event()

    async def wait() -> str:
        begun.set()
        await goes_on.wait()
        return "waited"

    made = router([asks(("wait", {})), "done"])
    agent, answers = Agent(made, tools=[wait]), list[Any]()

    async def run() -> None:
        answers.append(await agent.run("go", idempotency_key="k"))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await begun.wait()
        group.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        goes_on.set()
    assert answers[0].response == answers[1].response
    assert len(calls_of(made)) == 2


async def test_a_run_holds_one_slot_and_its_calls_count_in_the_windows() -> None:
    storage = MemoryStorage()
    await storage.apply("acme", [acme(limits=RateLimits(requests_per_min=3, concurrency=1))])
    made = router([asks(("add", {"a": 1})), "done", "more"], storage=storage)
    answer = await Agent(made, tools=[add]).run("go", caller=Caller("acme"))
    assert answer.status == "completed"
    with pytest.raises(RateLimited):
        await made.route("hi", caller=Caller("acme"))


async def test_a_run_without_money_ends_as_budget_exceeded_or_is_refused() -> None:
    storage = MemoryStorage()
    await storage.apply("acme", [acme(plan="pro", monthly_nanos=4_700_000)])
    made = router(lambda call: asks(("add", {"a": 1})), storage=storage)
    agent = Agent(made, tools=[add], max_steps=1_000)
    answer = await agent.run("go", caller=Caller("acme"))
    assert answer.status == "budget_exceeded"
    assert 0 < answer.summary.total_cost_usd <= 0.0047
    while answer.summary.total_steps > 0 and answer.summary.total_cost_usd:
        try:
            answer = await agent.run("go", caller=Caller("acme"))
        except QuotaExhausted:
            break
    assert storage.accounts.state.holds == {}


async def test_a_conversation_is_remembered_only_where_it_is_named() -> None:
    made = router(["Hello Ann.", "You are Ann.", "Who are you?"])
    agent = Agent(made)
    await agent.run("I am Ann.", conversation="c1")
    await agent.run("Who am I?", conversation="c1")
    await agent.run("Who am I?")
    calls = calls_of(made)
    assert [message.content for message in calls[1].messages][1:] == ["I am Ann.", "Hello Ann.", "Who am I?"]
    assert [message.content for message in calls[2].messages][1:] == ["Who am I?"]


async def test_leaving_a_stream_early_ends_the_run() -> None:
    storage = MemoryStorage()
    await storage.apply("acme", [acme(plan="pro")])
    made = router(lambda call: asks(("add", {"a": 1})), storage=storage)
    async with Agent(made, tools=[add], max_steps=50).stream("go", caller=Caller("acme")) as events:
        async for event in events:
            if event.event == "step.completed":
                break
    assert storage.accounts.state.holds == {}
    stored = await storage.scan("acme", Events(), after=None, limit=10)
    assert [(each.type, each.data["status"]) for each in stored] == [("agent.run_completed", "failed")]


async def test_a_key_for_agents_alone_may_run_them() -> None:
    made = router([asks(("add", {"a": 1})), "2"])
    caller = Caller("acme", key_id="k", scopes=("agents",))
    assert (await Agent(made, tools=[add]).run("go", caller=caller)).status == "completed"
    with pytest.raises(PermissionDenied):
        await made.route("hi", caller=caller)


async def test_the_answer_may_have_a_type() -> None:
    made = router([asks(("add", {"a": 2})), '{"value": 3}'])
    answer = await Agent(made, tools=[add], output_type=dict[str, int]).run("go")
    assert answer.data == {"value": 3}


@table(
    ("given", "said"),
    [
        ({"tools": ["calculater"]}, "calculator"),
        ({"tools": [add, add]}, "is a second tool named"),
        ({"max_steps": 0}, "max_steps"),
        ({"total_budget_usd": -1}, "total_budget_usd"),
        ({"timeout_ms": 5}, "timeout_ms: is not an argument; use per_step_timeout_ms"),
        ({"max_step": 5}, "max_step: is not an argument; did you mean 'max_steps'"),
        ({"modles": ["openai/gpt-4.1"]}, "modles: is not an argument; did you mean 'models'"),
        ({"model": "openai/gpt-4.1"}, "model: is not an argument; it is 'models' here"),
        ({"approve": True}, "approve: True is not a function; pass approve"),
        ({"tools": [lambda *a: 1]}, "has a function named"),
        ({"tools": [3]}, "is not a tool"),
    ],
)
def test_a_wrong_agent_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationFailed, match=said):
        Agent(Router.sandbox(), **given)


def test_an_agent_of_a_models_name_is_answered_with_how_to_write_it() -> None:
    makers: list[tuple[Any, str]] = [
        (lambda: Agent("openai:gpt-4.1"), "router: must be a Router, got 'openai:gpt-4.1'"),  # type: ignore[arg-type]
        (lambda: Agent(model="x"), "Agent.__init__() missing 1 required positional argument: 'router'"),  # type: ignore[call-arg]
    ]
    for make, said in makers:
        with pytest.raises((ValidationFailed, TypeError)) as refused:
            make()
        assert str(refused.value) == f"{said}; write Agent(Router(), models=[...])"


def test_code_without_await_has_agents_too() -> None:
    made = router(["well"])
    assert Agent(made).blocking.run("go").output == "well"
    made.blocking.close()
