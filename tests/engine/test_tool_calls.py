"""One tool call: whatever a model, a tool or ``approve`` does, it produces a step and an observation."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any

import anyio
import msgspec
import pytest
from pydantic import BaseModel

from routewright import Caller, ValidationFailed
from routewright._engine.tool_calls import MOST_CHARACTERS, run_tool, shown_text
from routewright.backends.clock import SystemClock
from routewright.protocols import Clock, Tool, ToolContext, ToolFailed
from routewright.testing import FakeClock
from routewright.tools import MOST_THREADS, Calculator, CodeExec, FunctionTool, WebSearch
from routewright.wire import FunctionCall, FunctionSpec, Step, ToolCall
from tests.tables import table

pytestmark = pytest.mark.anyio


class Returns:
    """A tool that returns a value, or raises it."""

    spec = FunctionSpec("t", None, {"type": "object", "properties": {"a": {"type": "integer"}}})

    def __init__(self, value: Any) -> None:
        self.value = value
        self.ran: list[dict[str, Any]] = []

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        self.ran.append(arguments)
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


async def call(
    tool: Tool | Callable[..., Any],
    arguments: str = "{}",
    *,
    approve: Any = None,
    clock: Clock | None = None,
    timeout_s: float = 60.0,
) -> tuple[Step, str]:
    """The step of a call, and what the model sees. Both can be stored."""
    clock = clock or SystemClock()
    tool = tool if isinstance(tool, Tool) else FunctionTool(tool, name="t")
    context = ToolContext(run_id="r", step=2, caller=Caller("acme"), deadline=clock.monotonic() + timeout_s)
    asked = ToolCall("c", FunctionCall("t", arguments))
    step, observation = await run_tool({"t": tool}, asked, context, clock, approve)
    assert msgspec.json.decode(msgspec.json.encode(step), type=Step) == step
    observation.text.encode()
    assert len(observation.text) < MOST_CHARACTERS + 100
    return step, observation.text


class Point(BaseModel):
    x: int
    at: datetime


@dataclasses.dataclass
class Pair:
    left: int
    right: date


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        (None, None),
        (Point(x=1, at=NOON), {"x": 1, "at": "2026-01-01T12:00:00Z"}),
        ([Point(x=1, at=NOON)], [{"x": 1, "at": "2026-01-01T12:00:00Z"}]),
        ({"p": (Pair(1, date(2026, 1, 2)),)}, {"p": [{"left": 1, "right": "2026-01-02"}]}),
        ("half \ud83d of a pair", "half ? of a pair"),
        ("[cut off: 3 characters in all]", "[cut off: 3 characters in all]"),
    ],
)
async def test_a_result_is_stored_as_json(value: Any, shown: Any) -> None:
    step, text = await call(Returns(value))
    assert step.output == {"result": shown}
    assert text == shown if isinstance(shown, str) else json.loads(text) == shown


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def circle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (circle(), "the result is of type list, which JSON cannot hold"),
        (object(), "the result is of type object, which JSON cannot hold"),
        (["\ud800"], "the result is of type list, which JSON cannot hold"),
        (ToolFailed("half \ud83d"), "half ?"),
        (ToolFailed("x" * 1_000_000), "x" * MOST_CHARACTERS + "\n[cut off: 1000000 characters in all]"),
        (ZeroDivisionError("a secret"), "the tool failed with ZeroDivisionError"),
    ],
)
async def test_an_error_of_a_tool_is_an_observation_and_costs_nothing(value: Any, said: str) -> None:
    step, text = await call(Returns(value))
    assert (step.output, step.cost_usd) == ({"error": said}, 0.0)
    assert json.loads(text) == {"error": said}


@pytest.mark.parametrize("cost", [math.nan, math.inf, -5.0, 1e300, None, "1"])
async def test_an_invalid_cost_is_an_observation_and_costs_nothing(cost: Any) -> None:
    def spends(context: ToolContext) -> str:
        context.spent_usd = cost
        return "well"

    step, text = await call(spends)
    assert (step.output, step.cost_usd) == ({"error": f"the tool reported a cost of {cost}"}, 0.0)
    assert "well" not in text


async def test_an_approval_takes_no_longer_than_a_step() -> None:
    async def never(name: str, arguments: dict[str, Any]) -> bool:
        await anyio.sleep(600)
        return True

    step, _ = await call(lambda: 1, approve=never, clock=FakeClock(), timeout_s=30)
    assert step.output == {"error": "this call was not approved within 300 s"}


@pytest.mark.parametrize("how", ["fails", "is late", "has no JSON form"])
async def test_the_cost_of_a_tool_counts_however_it_ends(how: str) -> None:
    async def spends(context: ToolContext) -> object:
        context.spent_usd, context.trace_id = 0.5, "tr_1"
        if how == "fails":
            raise ToolFailed("no")
        await anyio.sleep(60 if how == "is late" else 0)
        return object()

    step, _ = await call(spends, clock=FakeClock(), timeout_s=1)
    assert "error" in step.output
    assert (step.cost_usd, step.trace_id) == (0.5, "tr_1")


@pytest.mark.parametrize("levels", [65, 500, 950, 3_000])
async def test_a_result_nested_too_deep_is_shown_as_text(levels: int) -> None:
    arguments = '{"a":' * levels + "1" + "}" * levels
    step, _ = await call(lambda a: 1, arguments)
    assert step.input == {"text": arguments}
    step, text = await call(Returns(nested(levels)))
    assert step.output in ({"result": text}, {"error": "the result is of type list, which JSON cannot hold"})


async def test_a_long_result_is_cut_once() -> None:
    step, text = await call(Returns(["x" * 20_000]))
    assert step.output == {"result": text}
    assert text == '["' + "x" * (MOST_CHARACTERS - 2) + "\n[cut off: 20004 characters in all]"
    assert shown_text(["x" * 20_000]) == text


async def test_arguments_are_checked_before_approval_is_asked() -> None:
    asked: list[Any] = []

    def approve(name: str, arguments: dict[str, Any]) -> bool:
        asked.append(arguments)
        return True

    def meet(day: date, hours: int = 1) -> str:
        return f"{day:%d %b} {hours}"

    step, _ = await call(meet, '{"day": "tomorrow"}', approve=approve)
    assert "day: Input should be a valid date" in step.output["error"]
    step, _ = await call(Returns(1), '{"a": "x"}', approve=approve)
    assert step.output == {"error": "bad arguments: a must be an integer"}
    assert asked == []
    step, _ = await call(meet, '{"day": "2026-01-02"}', approve=approve)
    assert step.output == {"result": "02 Jan 1"}
    assert asked == [{"day": date(2026, 1, 2)}]


async def test_the_time_of_a_tool_begins_when_it_is_approved() -> None:
    clock, seen = FakeClock(), list[float]()

    async def approve(name: str, arguments: dict[str, Any]) -> bool:
        await clock.sleep(100)
        return True

    async def work(seconds: float, context: ToolContext) -> str:
        seen.append(context.deadline)
        await clock.sleep(seconds)
        return "done"

    step, _ = await call(work, '{"seconds": 0.2}', approve=approve, clock=clock, timeout_s=0.3)
    assert step.output == {"result": "done"}
    assert seen == [100.3]
    step, _ = await call(work, '{"seconds": 0.4}', clock=clock, timeout_s=0.3)
    assert step.output == {"error": "timed out after 300 ms"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (False, "the user did not approve this call"),
        ("no", "this call was not approved: approve returned str instead of bool"),
        (None, "this call was not approved: approve returned NoneType instead of bool"),
        (1, "this call was not approved: approve returned int instead of bool"),
        (KeyError("secret"), "this call was not approved: approve failed with KeyError"),
    ],
)
async def test_a_tool_runs_only_on_a_plain_yes(answer: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async def approve(name: str, arguments: dict[str, Any]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    tool = Returns(1)
    step, _ = await call(tool, approve=approve)
    assert step.output == {"error": said}
    assert tool.ran == []
    assert bool(caplog.records) == (answer is not False)


async def test_exceptions_of_a_tool_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "routewright"):
        await call(Returns(ToolFailed("no such city")))
        assert not caplog.records
        await call(Returns(ValueError("secret")))
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("routewright._engine.tool_calls", "tool t failed")
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "secret"


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_a_function_that_gets_no_thread_in_time_does_not_run(release: threading.Event) -> None:
    ran: list[str] = []

    def stuck() -> None:
        ran.append("stuck")
        release.wait(20)

    def ninth() -> None:
        ran.append("ninth")

    steps: list[Step] = []

    async def run(function: Callable[[], None]) -> None:
        steps.append((await call(function, timeout_s=0.3))[0])

    async with anyio.create_task_group() as group:
        for _ in range(MOST_THREADS):
            group.start_soon(run, stuck)
        await anyio.sleep(0.1)
        group.start_soon(run, ninth)
    *held, waited = (step.output for step in steps)
    assert [output["still_running"] for output in held] == [True] * MOST_THREADS
    assert all(output["error"].endswith(" ms, but it is still running") for output in held)
    assert waited["error"].endswith(" ms while waiting for a thread; it did not run")
    assert "still_running" not in waited
    release.set()
    assert (await call(ninth))[0].output == {"result": None}
    assert ran == ["stuck"] * MOST_THREADS + ["ninth"]


async def test_an_awaitable_returned_by_a_plain_function_is_awaited_in_time() -> None:
    clock = FakeClock()

    async def slow(seconds: float = 0.0) -> str:
        await clock.sleep(seconds)
        return "done"

    @functools.wraps(slow)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return slow(*args, **kwargs)

    real = SystemClock()
    assert (await call(FunctionTool(wrapped, name="t")))[0].output == {"result": "done"}
    assert (await call(lambda: slow()))[0].output == {"result": "done"}

    async def sleeps() -> None:
        await real.sleep(60)

    step, _ = await call(lambda: sleeps(), clock=real, timeout_s=0.3)
    assert step.output["error"].startswith("timed out after ")
    assert step.output["error"].endswith(" ms")
    assert "still_running" not in step.output


async def agen() -> AsyncIterator[int]:
    yield 1


def gen() -> Iterator[int]:
    yield 1


@table("function", [gen, agen])
def test_a_generator_is_not_a_tool(function: Any) -> None:
    with pytest.raises(ValidationFailed, match=f"{function.__name__} is a generator"):
        FunctionTool(function)


async def test_validated_arguments_are_not_validated_again() -> None:
    seen: list[Point] = []

    def f(point: Point) -> int:
        seen.append(point)
        return point.x

    tool = FunctionTool(f)
    context = ToolContext(run_id="r", step=1, caller=Caller("acme"), deadline=0.0)
    raw = {"point": {"x": 1, "at": "2026-01-01T12:00:00Z"}}
    given = tool.validated(raw)
    assert await tool.run(given, context) == await tool.run(raw, context) == 1
    assert seen[0] is given["point"]
    with pytest.raises(ToolFailed, match="point: Field required"):
        await tool.run({}, context)


async def test_code_is_refused_without_a_sandbox() -> None:
    context = ToolContext(run_id="r", step=1, caller=Caller("acme"), deadline=0.0)
    with pytest.raises(ToolFailed, match=r"^code_exec is off: the agent was given no code sandbox$"):
        await CodeExec(None, lambda: 0.0).run({"code": "print(1)"}, context)


@pytest.mark.parametrize("tool", [Calculator, WebSearch, CodeExec])
def test_the_schema_of_a_built_in_tool_is_closed_and_described(tool: Any) -> None:
    schema: Mapping[str, Any] = tool.spec.parameters
    assert schema["additionalProperties"] is False
    assert schema["required"] == [next(iter(schema["properties"]))]
    assert all(each["description"] for each in schema["properties"].values())
