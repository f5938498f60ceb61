"""``POST /v1/agents/run``: every row of spec tables 2.4 and 2.5, plain, streamed and with an idempotency key."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import anyio
import pytest

from routewright import ProviderFault, RateLimits
from routewright.testing.provider import Script
from tests.tables import table

from .agent_runs import (
    CALL_NANOS,
    HOWS,
    PLAIN,
    PLAIN_KEY,
    SLOW_S,
    STREAMED,
    STREAMED_KEY,
    House,
    How,
    Outcome,
    asks,
    says,
    slowly,
)

pytestmark = pytest.mark.anyio
hows = pytest.mark.parametrize("how", HOWS.values(), ids=HOWS)
streams = pytest.mark.parametrize("how", [PLAIN, STREAMED], ids=["plain", "streamed"])
ADDS = asks("add", {"a": 1, "b": 2})
WEATHER = {
    "name": "weather", "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip
WORDS = ("output", "marker", "pending_tool_calls", "error")


def secret_fault(_: Any) -> ProviderFault:
    return ProviderFault("request", "http://10.0.0.1/secret", public="it was refused")


# 2.4: the request


@hows
async def test_a_run_has_all_fields_of_the_specification(how: How) -> None:
    house = await House([ADDS, says("three")]).open()
    told = await house.run(
        how, task="1 + 2?", tools=["add"], max_steps=5, per_step_timeout_ms=20_000, total_budget_usd=0.5,
        model_strategy={"goal": "quality", "strategy": "balanced"}, metadata={"team": "a"},
    )  # fmt: skip
    assert told.status == 200
    body = told.body
    assert re.fullmatch(r"tr_[0-9A-HJKMNP-TV-Z]{26}", body["trace_id"])
    assert body["status"] == "completed"
    assert [body[word] for word in WORDS] == ["three", None, [], None]
    assert body["steps"][0] | {"trace_id": ""} == {
        "number": 1, "action": "llm_call", "input": {"messages": 2}, "output": {"text": "", "tool_calls": ["add"]},
        "start_ms": 0.0, "duration_ms": 0.0, "cost_usd": CALL_NANOS / 1e9, "model": "test/one",
        "tokens": {"input": 100, "output": 10, "cached": 0}, "finish_reason": "tool_calls", "trace_id": "",
    }  # fmt: skip
    assert body["steps"][1] == {
        "number": 2, "action": "tool_call", "tool": "add", "input": {"a": 1, "b": 2}, "output": {"result": 3},
        "start_ms": 0.0, "duration_ms": 0.0, "cost_usd": 0.0,
    }  # fmt: skip
    assert body["steps"][2]["output"] == {"text": "three", "tool_calls": []}
    assert body["summary"] == {
        "total_steps": 3, "total_cost_usd": 2 * CALL_NANOS / 1e9, "total_latency_ms": 0.0, "tools_used": ["add"],
    }  # fmt: skip


@table(
    ("body", "path"),
    [
        ({"task": None}, "task"),
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": 1.5}, "max_steps"),
        ({"per_step_timeout_ms": 0}, "per_step_timeout_ms"),
        ({"total_budget_usd": -1}, "total_budget_usd"),
        ({"model_strategy": {"goal": "best"}}, "model_strategy.goal"),
        ({"model_strategy": {"gaol": "cost"}}, "model_strategy.gaol"),
        ({"tools": ["nope"]}, "tools[0]"),
        ({"tools": ["add", "add"]}, "tools"),
        ({"tools": [{"name": "calculator"}]}, "tools[0]"),
        ({"extra": 1}, "extra"),
        ({"metadata": {"a": "x" * 20_000}}, "metadata"),
        ({"idempotency_key": "x" * 65}, "idempotency_key"),
    ],
)
@streams
async def test_a_wrong_request_is_refused_at_its_path(how: How, body: dict[str, Any], path: str) -> None:
    house = await House([]).open()
    told = await house.run(how, **body)
    assert (told.status, told.body["error"]["code"]) == (400, "validation_failed")
    problems = {problem["path"]: problem["hint"] for problem in told.body["error"]["detail"]["problems"]}
    assert path in problems
    await check_refused(house)


# 2.5: how a run ends


class Ending(NamedTuple):
    script: Script
    body: dict[str, Any]
    status: str
    marker: str | None
    code: str | None
    output: str
    steps: list[str | None]
    """The tools of its steps."""
    starts: int
    """Steps that a stream says have begun."""


ENDINGS = {"completed": Ending([ADDS, says("three")], {}, "completed", None, None, "three", [None, "add", None], 3),
"too many steps": Ending(
        lambda _: asks("add", {"a": 1, "b": 1}, text="so far"), {"max_steps": 3},
        "partial", "max_steps_reached", None, "so far", [None, "add", None], 3,
    ),
"a tool of the client": Ending(
        [asks("add", {"a": 1, "b": 1}, ("weather", {"city": "Rome"}))], {"tools": ["add", WEATHER]},
        "partial", "tool_calls_pending", None, "", [None, "add"], 2,
    ),
"a fault": Ending(secret_fault, {}, "failed", None, "router.upstream_failed", "", [None], 1),
"no money for the next step": Ending(
        lambda _: ADDS, {"total_budget_usd": 0.00155, "max_steps": 1_000},
        "budget_exceeded", None, "quota_exhausted", "", [None, "add"], 3,
    ),
}  # fmt: skip


@hows
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
async def test_each_ending_is_reported_alike_plain_streamed_and_replayed(how: How, ending: Ending) -> None:
    house = await House(ending.script).open()
    told = await house.run(how, metadata={"team": "a"}, **ending.body)
    body, steps = told.body, told.body["steps"]
    assert (told.status, body["status"], body["marker"], body["output"]) == (
        200, ending.status, ending.marker, ending.output
    )  # fmt: skip
    assert (body["error"] or {}).get("code") == ending.code
    assert [step.get("tool") for step in steps] == ending.steps
    assert b"10.0.0.1" not in told.raw
    check_figures(body)
    if how.stream:
        check_events(told, ending.starts)
    (event,) = await house.ends()
    assert event.data == {
        "trace_id": body["trace_id"], "status": ending.status, "summary": body["summary"], "metadata": {"team": "a"},
    }  # fmt: skip
    await house.check_nothing_is_held()


def check_figures(body: dict[str, Any]) -> None:
    """Steps and summary agree."""
    steps, summary = body["steps"], body["summary"]
    assert [step["number"] for step in steps] == list(range(1, len(steps) + 1))
    assert summary["total_steps"] == len(steps)
    assert summary["total_cost_usd"] == pytest.approx(sum(step["cost_usd"] for step in steps))
    assert summary["tools_used"] == list(dict.fromkeys(step["tool"] for step in steps if "tool" in step))
    for step in steps:
        is_call = step["action"] == "llm_call"
        assert ("tool" in step, "tokens" in step, "trace_id" in step) == (not is_call, is_call, is_call)
        assert step.keys() >= {"number", "action", "input", "output", "duration_ms", "cost_usd"}


def check_events(told: Outcome, starts: int) -> None:
    """The stream says of each step that it begins, then what came of it, and the whole at its end."""
    body = told.body
    assert told.names[0] == "run.started"
    assert told.events[0].data["trace_id"] == body["trace_id"]
    begun = [each.data for each in told.events if each.event == "step.started"]
    done = [each.data for each in told.events if each.event == "step.completed"]
    assert done == body["steps"]
    assert [each["number"] for each in begun] == list(range(1, starts + 1))
    for start, step in zip(begun, done, strict=False):
        assert (start["action"], start.get("tool")) == (step["action"], step.get("tool"))
        place = {(each.event, each.data.get("number")): each.id for each in told.events}
        assert place["step.started", step["number"]] < place["step.completed", step["number"]]
    assert len(told.events) == 2 + len(begun) + len(done)


# Refusals before the first step


async def check_refused(house: House) -> None:
    """Nothing was asked of a model, and nothing is left of the run."""
    assert house.provider.calls == []
    assert await house.runs() == []
    assert await house.ends() == []
    await house.check_nothing_is_held()


@hows
@table(
    ("terms", "of_key", "code"),
    [
        ({"prepaid": True}, {}, "insufficient_balance"),
        ({"prepaid": True, "storage_s": 1.0}, {}, "insufficient_balance"),  # late, but before a stream's status
        ({}, {"budget_usd": 1e-6}, "quota_exhausted"),
    ],
)
async def test_without_balance_a_run_is_402(how: How, terms: dict[str, Any], of_key: dict[str, Any], code: str) -> None:
    house = await House([], **terms).open(**of_key)
    told = await house.run(how)
    assert (told.status, told.body["error"]["code"]) == (402, code)
    assert told.body["error"]["request_id"] == told.headers["x-request-id"]
    await check_refused(house)


# Server-sent events


async def test_steps_are_streamed_as_they_end() -> None:
    house = await House([slowly(asks("wait", {})), slowly(says("done"))]).open()
    client = house.client(STREAMED)
    async with anyio.create_task_group() as group:
        group.start_soon(client.ask)
        for number in (1, 2, 3):
            done = b'event: step.completed\nid: %d\ndata: {"number":%d,' % (2 * number + 1, number)
            await client.until(lambda it, done=done: done in it.body)  # type: ignore[misc]
            assert house.clock.monotonic() == number * SLOW_S
            assert client.is_whole == (number == 3)


# Idempotency keys

REPEATED = [name for name, ending in ENDINGS.items() if ending.status != "failed"]


@pytest.mark.parametrize("how", [PLAIN_KEY, STREAMED_KEY], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", REPEATED)
async def test_a_repeated_key_replays_the_run_unchanged(how: How, name: str) -> None:
    ending = ENDINGS[name]
    house = await House(ending.script).open()
    first = await house.run(how, **ending.body)
    calls, rows = len(house.provider.calls), await house.rows()
    again = await house.run(how, **ending.body)
    assert again.body == first.body
    if how.stream:
        assert [each for each in again.events if each.event != "step.started"] == [
            each._replace(id=place) for each, place in settled(first, again)
        ]
        check_events(again, len(first.body["steps"]))
    else:
        assert again.raw == first.raw
    assert (len(house.provider.calls), await house.rows()) == (calls, rows)
    assert len(await house.ends()) == len(await house.runs()) == 1
    await house.check_nothing_is_held()


def settled(first: Outcome, again: Outcome) -> list[tuple[Any, int]]:
    """The events of the first stream but for the starts of steps, with their ids in the second."""
    ids = [each.id for each in again.events if each.event != "step.started"]
    return [*zip([each for each in first.events if each.event != "step.started"], ids, strict=True)]


@pytest.mark.parametrize("how", [PLAIN_KEY, STREAMED_KEY], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    "other",
    [
        {"task": "other"},
        {"metadata": {"a": 1}},
    ],
)
async def test_a_reused_key_with_another_body_is_409(how: How, other: dict[str, Any]) -> None:
    house = await House([says("one")]).open()
    await house.run(how)
    told = await house.run(how, **other)
    assert (told.status, told.body["error"]["code"]) == (409, "idempotency_key_reused_with_different_body")
    assert len(house.provider.calls) == 1


async def test_the_key_may_be_in_the_header_or_the_body() -> None:
    house = await House([says("one")]).open()
    first = await house.run(PLAIN_KEY)
    assert (await house.run(PLAIN, idempotency_key="k")).raw == first.raw
    assert (await house.run(PLAIN_KEY, idempotency_key="k")).raw == first.raw
    assert (await house.run(PLAIN_KEY, idempotency_key="other")).status == 400


# The sandbox


# The limits of the account


@hows
async def test_the_headers_describe_the_request_window(how: How) -> None:
    limits = RateLimits(requests_per_min=10)
    house = await House([asks("add", {"a": 1, "b": 1}), says("two"), says("other")], limits=limits).open()
    told = await house.run(how)
    sent = {name: value for name, value in told.headers.items() if name.startswith("x-ratelimit-")}
    assert sent == {
        "x-ratelimit-limit": "10", "x-ratelimit-remaining": "9", "x-ratelimit-resource": "requests",
        "x-ratelimit-reset": str(round(house.clock.time()) + 60),
    }  # fmt: skip
    again = await house.run(PLAIN, task="other")  # after the run and its two calls
    assert again.headers["x-ratelimit-remaining"] == "6"
