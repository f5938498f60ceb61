"""``POST /v1/agents/run``: every row of the specification's tables (2.4, 2.5), plain and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routewright import Agent, Caller, Catalogue, Model, Pricing, ProviderFault, Router
from routewright.server import create_app
from routewright.testing import ScriptedProvider
from routewright.wire import Delta, Finish, ToolDelta, Usage

from .asking import Told, ask

pytestmark = pytest.mark.anyio
ABLE: dict[str, Any] = {"modalities": ("text", "tool"), "context_window": 100_000}
ONE = Model(id="test/one", quality=0.8, pricing_per_1m=Pricing(1.0, 1.0), **ABLE)


def asks(name: str, arguments: Any) -> list[Any]:
    return [ToolDelta(0, json.dumps(arguments), "call_1", name), Usage(100, 10), Finish("tool_calls")]


class Site:
    def __init__(self, script: Any) -> None:
        self.router = Router(providers=[ScriptedProvider(script, models=[ONE])], catalogue=Catalogue(()))

        def add(a: int, b: int) -> int:
            return a + b

        agent = Agent(self.router, tools=[add])
        self.app = create_app(self.router, authenticate=lambda scope: Caller(), agent=agent)

    async def run(self, headers: dict[str, str] | None = None, **body: Any) -> Told:
        told = await ask(self.app, "/v1/agents/run", "POST", body=body, headers=headers)
        assert told is not None
        return told


async def test_a_run_over_http_has_all_fields_of_the_specification() -> None:
    site = Site([asks("add", {"a": 1, "b": 2}), "three"])
    told = await site.run(task="1 + 2?", tools=["add"], max_steps=5, metadata={"team": "a"}, total_budget_usd=0.5)
    assert told.status == 200
    body = told.json
    assert body["trace_id"].startswith("tr_")
    assert (body["status"], body["output"], body["marker"], body["pending_tool_calls"]) == (
        "completed",
        "three",
        None,
        [],
    )
    assert body["steps"][0] | {"duration_ms": 0, "trace_id": ""} == {
        "number": 1, "action": "llm_call", "input": {"messages": 2}, "output": {"text": "", "tool_calls": ["add"]},
        "duration_ms": 0, "cost_usd": 0.00011, "model": "test/one",
        "tokens": {"input": 100, "output": 10, "cached": 0}, "finish_reason": "tool_calls", "trace_id": "",
    }  # fmt: skip
    assert body["steps"][1] | {"duration_ms": 0} == {
        "number": 2, "action": "tool_call", "tool": "add", "input": {"a": 1, "b": 2}, "output": {"result": 3},
        "duration_ms": 0, "cost_usd": 0.0,
    }  # fmt: skip
    assert body["summary"].keys() == {"total_steps", "total_cost_usd", "total_latency_ms", "tools_used"}
    trace = await ask(site.app, f"/v1/traces/{body['trace_id']}")
    assert trace is not None
    assert (trace.json["kind"], trace.json["status"]) == ("agent", "completed")
    assert [(span["type"], span["parent_id"]) for span in trace.json["spans"]] == [
        ("step", None), ("sub_trace", 1), ("decision", 2), ("model", 2), ("step", None), ("tool", 5),
        ("step", None), ("sub_trace", 7), ("decision", 8), ("model", 8),
    ]  # fmt: skip


async def test_a_streamed_run_tells_each_step_and_ends_once() -> None:
    site = Site([asks("add", {"a": 1, "b": 2}), "three"])
    told = await site.run(task="1 + 2?", tools=["add"], stream_steps=True)
    assert told.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [block.split("\n") for block in told.body.decode().strip().split("\n\n")]
    assert [lines[0].removeprefix("event: ") for lines in events] == [
        "run.started", *["step.started", "step.completed"] * 3, "run.completed",
    ]  # fmt: skip
    assert [lines[1] for lines in events] == [f"id: {number}" for number in range(1, 9)]
    assert json.loads(events[-1][2].removeprefix("data: "))["output"] == "three"


async def test_a_tool_that_is_not_registered_is_left_to_the_client() -> None:
    site = Site([asks("weather", {"city": "Rome"})])
    weather = {
        "name": "weather", "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }  # fmt: skip
    body = (await site.run(task="Rome?", tools=[weather])).json
    assert (body["status"], body["marker"]) == ("partial", "tool_calls_pending")
    (pending,) = body["pending_tool_calls"]
    assert pending["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "task"),
        ({"task": ""}, "task"),
        ({"task": 3}, "task"),
        ({"task": "x", "max_steps": 0}, "max_steps"),
        ({"task": "x", "max_steps": 1001}, "max_steps"),
        ({"task": "x", "max_steps": 1.5}, "max_steps"),
        ({"task": "x", "max_steps": True}, "max_steps"),
        ({"task": "x", "per_step_timeout_ms": 0}, "per_step_timeout_ms"),
        ({"task": "x", "total_budget_usd": -1}, "total_budget_usd"),
        ({"task": "x", "model_strategy": {"goal": "best"}}, "model_strategy.goal"),
        ({"task": "x", "tools": ["nope"]}, "tools[0]"),
        ({"task": "x", "tools": ["add", "add"]}, "tools"),
        ({"task": "x", "tools": [{"name": "calculator"}]}, "tools[0]"),
        ({"task": "x", "tools": [{"description": "x"}]}, "tools[0]"),
        ({"task": "x", "extra": 1}, "extra"),
        ({"task": "x", "metadata": {"a": "x" * 20_000}}, "metadata"),
    ],
)
async def test_a_wrong_request_is_refused_by_name(body: dict[str, Any], path: str) -> None:
    told = await Site([]).run(**body)
    assert told.status == 400
    assert path in [problem["path"] for problem in told.json["error"]["detail"]["problems"]]


async def test_under_one_key_a_run_is_made_once_and_another_body_is_refused() -> None:
    site = Site(["one"])
    key = {"idempotency-key": "k"}
    first, again = await site.run(key, task="x"), await site.run(key, task="x")
    assert first.json == again.json
    assert (await site.run(key, task="y")).status == 409
    assert (await site.run(key, task="x", idempotency_key="other")).status == 400


async def test_a_run_that_fails_says_why() -> None:
    fault = ProviderFault("request", "http://10.0.0.1/secret", public="it was refused")
    body = (await Site(lambda call: fault).run(task="x")).json
    assert (body["status"], body["error"]["code"]) == ("failed", "router.upstream_failed")
    assert "10.0.0.1" not in json.dumps(body)


async def test_the_step_limit_leaves_a_partial_result() -> None:
    body = (await Site(lambda call: [Delta("so far"), *asks("add", {"a": 1, "b": 1})]).run(task="x", max_steps=2)).json
    assert (body["status"], body["marker"], body["output"]) == ("partial", "max_steps_reached", "so far")
