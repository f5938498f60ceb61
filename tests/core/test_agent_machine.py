"""The run machine: whatever happens, in any order, a run ends in exactly one state, within its steps."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.agent.arguments import misfits
from routewright._core.agent.history import FULL, KEPT, fitted, tokens_of
from routewright._core.agent.machine import AgentRun, CallModel, Ended, Observation, RunTools
from routewright.errors import ContentRefused, UpstreamFailed
from routewright.wire import (
    AgentRequest,
    Checkpoint,
    FunctionCall,
    Message,
    RouteResponse,
    Routing,
    Step,
    Tokens,
    ToolCall,
    WindowUsage,
)


def state() -> Checkpoint:
    return Checkpoint(
        trace_id="tr_1",
        created_at=0.0,
        request=AgentRequest(task="x"),
        messages=[Message("user", "x")],
        prefix=1,
        steps=[],
    )


def response(output: str = "", *tools: str) -> RouteResponse:
    calls = [ToolCall(f"c{place}", FunctionCall(name, "{}")) for place, name in enumerate(tools)]
    routing = Routing("a/one", [], "", "", 0.0, 0.0, False, Tokens(1, 1, 0))
    return RouteResponse(
        trace_id="tr_2", output=output, routing=routing, usage=WindowUsage(0, 0), primary_model="a/one",
        fallback_model=None, cache_hit=False, tool_calls=calls or None, finish_reason="stop",
    )  # fmt: skip


def results(todo: RunTools) -> list[tuple[Step, Observation]]:
    return [
        (
            Step(number=0, action="tool_call", tool=call.function.name, duration_ms=0.0, cost_usd=0.0),
            Observation(call.id, "ok"),
        )
        for call in todo.calls
    ]


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_any_order_of_events_ends_in_one_state_within_the_steps(most: int, rng: Random) -> None:
    run = AgentRun(state(), most, {"ask_user"}, escalates=rng.random() < 0.5)
    for _ in range(200):
        todo = run.next()
        assert run.next() == todo, "asked again it says the same"
        if isinstance(todo, Ended):
            break
        if isinstance(todo, RunTools):
            assert len(run.steps) + len(todo.calls) <= most
            run.observed(results(todo))
            continue
        match rng.randrange(6):
            case 0:
                run.answered(response("done"), 1.0, 5)
            case 1 | 2:
                run.answered(response("", *rng.choices(["add", "ask_user"], [9, 1], k=rng.randint(1, 5))), 1.0, 5)
            case 3:
                run.failed(UpstreamFailed("x"), 1.0, 1)
            case 4:
                run.failed(ContentRefused("x"), 1.0, 1)
            case _:
                run.failed(ContentRefused("x"), 0.0, 0, is_budget=rng.random() < 0.3)
    assert run.ended is not None
    assert len(run.steps) <= most
    assert [step.number for step in run.steps] == list(range(1, len(run.steps) + 1))
    before = run.ended
    run.give_up(None)
    assert run.ended is before, "the end of a run is never left"
    if before.status == "partial":
        assert before.marker in ("max_steps_reached", "tool_calls_pending")
    asked = {call.id for message in run.state.messages for call in message.tool_calls or ()}
    told = {message.tool_call_id for message in run.state.messages if message.role == "tool"}
    assert told <= asked


def test_a_step_is_tried_twice_and_no_more() -> None:
    run = AgentRun(state(), 5, escalates=False)
    assert run.failed(UpstreamFailed("x"), 1.0, 3) is None
    assert run.tries == 1
    step = run.failed(UpstreamFailed("x"), 1.0, 3 + 4)
    assert step is not None
    assert (run.next(), run.state.spent_nanos) == (Ended("failed"), 7)


def test_every_call_has_a_result_before_a_model_is_asked_again() -> None:
    run = AgentRun(state(), 4, escalates=False)
    run.answered(response("", "add", "add", "add", "add"), 1.0, 1)
    todo = run.next()
    assert isinstance(todo, RunTools)
    assert len(todo.calls) == 3
    assert "not run" in str(run.state.messages[-1].content)
    run.observed(results(todo))
    assert run.next() == Ended("partial", "max_steps_reached")
    assert [message.role for message in run.state.messages] == ["user", "assistant", "tool", "tool", "tool", "tool"]


def test_a_checkpoint_goes_on_where_it_was() -> None:
    run = AgentRun(state(), 9, escalates=False)
    run.answered(response("", "add"), 1.0, 1)
    again = AgentRun(run.state, 9, escalates=False)
    assert again.next() == run.next()
    assert isinstance(again.next(), RunTools)


def test_a_history_is_cut_from_the_oldest_on_and_keeps_the_task() -> None:
    messages = [Message("system", "s"), Message("user", "the task")]
    for number in range(30):
        call = ToolCall(f"c{number}", FunctionCall("add", "{}"))
        messages += [Message("assistant", None, [call]), Message("tool", "word " * 200, tool_call_id=call.id)]
    window = sum(map(tokens_of, messages)) // 2
    cut = fitted(messages, window, 2)
    assert cut[:2] == messages[:2]
    assert cut[-4:] == messages[-4:]
    assert sum(map(tokens_of, cut)) <= window * KEPT
    assert fitted(messages, 10**9, 2) == messages
    assert fitted(cut, window, 2) == cut, "what was cut has room for a while"
    asked = {call.id for message in cut for call in message.tool_calls or ()}
    assert {message.tool_call_id for message in cut if message.role == "tool"} <= asked
    assert FULL > KEPT


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"city": "Rome"}, []),
        ({"city": "Rome", "days": 3, "kind": "rain", "tags": ["a"]}, []),
        ({}, ["city is missing"]),
        ({"city": 3}, ["city must be a string"]),
        ({"city": "x", "days": "3"}, ["days must be an integer"]),
        ({"city": "x", "days": True}, ["days must be an integer"]),
        ({"city": "x", "days": 9}, ["days is beyond its maximum 7"]),
        ({"city": "x", "kind": "snow"}, ["kind must be one of ['rain', 'sun']"]),
        ({"city": "x", "tags": ["a", 1]}, ["tags[1] must be a string"]),
        ({"city": "x", "more": 1}, ["more is not known; known are city, days, kind, tags, either"]),
        ({"city": "x", "either": []}, ["either fits none of its alternatives"]),
    ],
)
def test_arguments_are_held_to_their_schema(value: dict[str, Any], said: list[str]) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7},
            "kind": {"enum": ["rain", "sun"]}, "tags": {"type": "array", "items": {"type": "string"}},
            "either": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}]},
        },
        "required": ["city"], "additionalProperties": False, "$defs": {"n": {"type": "null"}},
    }  # fmt: skip
    assert misfits(value, schema) == said


def test_the_checks_of_arguments_are_bounded() -> None:
    bomb = {"anyOf": [{"$ref": "#/$defs/n"}] * 5, "type": "string"}
    began = time.process_time()
    misfits({"x": "y"}, {"properties": {"x": {"$ref": "#/$defs/n"}}, "$defs": {"n": bomb}})
    assert misfits([1] * 9_000 + [""], {"items": {"type": "integer"}}) == ["[9000] must be an integer"]
    assert misfits([1] * 11_000 + [""], {"items": {"type": "integer"}}) == []
    assert time.process_time() - began < 1


def test_a_model_is_asked_first() -> None:
    assert AgentRun(state(), 1, escalates=False).next() == CallModel(1, [Message("user", "x")])
