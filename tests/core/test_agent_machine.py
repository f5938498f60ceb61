"""The run machine: any order of events ends in exactly one terminal state, within the step limit."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routewright import wire
from routewright._core.agent.machine import AgentRun, Ended, Observation, RunTools
from routewright._core.agent.request import FULL, TARGET, find_misfits, fit_messages, tokens_of
from routewright.errors import ContentRefused, UpstreamFailed
from tests.tables import table

NUMBERS = count()


def state() -> wire.Checkpoint:
    return wire.Checkpoint(
        trace_id="tr_1",
        created_at=0.0,
        request=wire.AgentRequest(task="x"),
        messages=[wire.Message("user", "x")],
        steps=[],
    )


def response(output: str = "", *tools: str) -> wire.RouteResponse:
    calls = [wire.ToolCall(f"c{next(NUMBERS)}", wire.FunctionCall(name, "{}")) for name in tools]
    routing = wire.Routing("a/one", [], "", "", 0.0, 0.0, False, wire.Tokens(1, 1, 0))
    return wire.RouteResponse(
        trace_id="tr_2", output=output, routing=routing, usage=wire.WindowUsage(0, 0), primary_model="a/one",
        fallback_model=None, cache_hit=False, tool_calls=calls or None, finish_reason="stop",
    )  # fmt: skip


def results(todo: RunTools) -> list[tuple[wire.Step, Observation]]:
    return [
        (
            wire.Step(
                number=0, action="tool_call", tool=call.function.name, start_ms=0.0, duration_ms=0.0, cost_usd=0.0
            ),
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
            assert len(run.state.steps) + len(todo.calls) <= most
            run.record_results(results(todo), 0.0)
            continue
        match rng.randrange(6):
            case 0:
                run.record_answer(response("done"), 0.0, 1.0, 5)
            case 1 | 2:
                run.record_answer(
                    response("", *rng.choices(["add", "ask_user"], [9, 1], k=rng.randint(1, 5))), 0.0, 1.0, 5
                )
            case 3:
                run.record_failure(UpstreamFailed("x"), 0.0, 1.0, 1)
            case 4:
                run.record_failure(ContentRefused("x"), 0.0, 1.0, 1)
            case _:
                run.record_failure(ContentRefused("x"), 0.0, 0.0, 0, is_budget=rng.random() < 0.3)
    assert run.ended is not None
    assert len(run.state.steps) <= most
    assert [step.number for step in run.state.steps] == list(range(1, len(run.state.steps) + 1))
    before = run.ended
    run.give_up(None)
    assert run.ended is before, "the end of a run is never left"
    if before.status == "partial":
        assert before.marker in ("max_steps_reached", "tool_calls_pending")
    asked = [call.id for message in run.state.messages for call in message.tool_calls or ()]
    known = [message.tool_call_id or "" for message in run.state.messages if message.role == "tool"]
    assert sorted(known + [call.id for call in run.state.pending]) == sorted(asked), "each call has one result"


def test_a_step_has_the_cost_of_all_tries_and_records_their_traces() -> None:
    run = AgentRun(state(), 9, escalates=False)
    run.record_failure(UpstreamFailed("x", trace_id="tr_a"), 0.0, 1.0, 3)
    run.record_answer(response("", "add"), 0.0, 1.0, 4)
    assert run.state.steps[-1].cost_usd == 7e-9
    todo = run.next()
    assert isinstance(todo, RunTools)
    run.record_results(results(todo), 0.0)
    run.record_failure(UpstreamFailed("x", trace_id="tr_b"), 0.0, 1.0, 5)
    run.record_failure(UpstreamFailed("x", trace_id="tr_c"), 0.0, 1.0, 6)
    step = run.state.steps[-1]
    assert (step.cost_usd, step.trace_id) == (11e-9, "tr_c")
    assert run.state.failed_tries == ["tr_a", "tr_b"]
    assert run.state.spent_nanos == 18


def test_every_call_has_a_result_before_a_model_is_asked_again() -> None:
    run = AgentRun(state(), 4, escalates=False)
    run.record_answer(response("", "add", "add", "add", "add"), 0.0, 1.0, 1)
    todo = run.next()
    assert isinstance(todo, RunTools)
    assert len(todo.calls) == 3
    assert "not run" in str(run.state.messages[-1].content)
    run.record_results(results(todo), 0.0)
    assert run.next() == Ended("partial", "max_steps_reached")
    assert [message.role for message in run.state.messages] == ["user", "assistant", "tool", "tool", "tool", "tool"]


@table("ids", [["", ""], ["c", "c"], ["c", ""]])
def test_each_call_has_an_id_of_its_own(ids: list[str]) -> None:
    run = AgentRun(state(), 9, escalates=False)
    made = response("", "add", "add")
    calls = [wire.ToolCall(id, wire.FunctionCall("add", "{}")) for id in ids]
    run.record_answer(replace(made, tool_calls=calls), 0.0, 1.0, 1)
    todo = run.next()
    assert isinstance(todo, RunTools)
    assert len({call.id for call in todo.calls}) == 2
    run.record_results(results(todo), 0.0)
    assert run.state.messages[1].tool_calls == todo.calls


def test_a_resumed_run_takes_results_and_runs_approved_calls() -> None:
    run = AgentRun(state(), 9, {"ask_user", "pay"}, escalates=False)
    run.record_answer(response("", "ask_user", "pay", "pay"), 0.0, 1.0, 1)
    assert run.next() == Ended("partial", "tool_calls_pending")
    asked, paid, _ = run.pending
    again = AgentRun(run.state, 9, {"ask_user", "pay"}, escalates=False)
    again.resume({asked.id: "yes"}, [paid.id], 7.0)
    todo = again.next()
    assert todo == RunTools(3, [paid])
    again.record_results(results(RunTools(3, [paid])), 8.0)
    assert again.next() == Ended("partial", "tool_calls_pending"), "one call has neither"
    assert [(step.tool, step.start_ms) for step in again.state.steps] == [(None, 0.0), ("ask_user", 7.0), ("pay", 8.0)]


def test_a_run_continues_from_its_checkpoint() -> None:
    run = AgentRun(state(), 9, escalates=False)
    run.record_answer(response("", "add"), 0.0, 1.0, 1)
    again = AgentRun(run.state, 9, escalates=False)
    assert again.next() == run.next()
    assert isinstance(again.next(), RunTools)


def test_the_oldest_messages_are_cut_first_and_never_the_task() -> None:
    messages = [wire.Message("system", "s"), wire.Message("user", "the task")]
    for number in range(30):
        call = wire.ToolCall(f"c{number}", wire.FunctionCall("add", "{}"))
        messages += [wire.Message("assistant", None, [call]), wire.Message("tool", "word " * 200, tool_call_id=call.id)]
    window = sum(map(tokens_of, messages)) // 2
    cut = fit_messages(messages, window)
    assert cut[:2] == messages[:2]
    assert cut[-4:] == messages[-4:]
    assert sum(map(tokens_of, cut)) <= window * TARGET
    assert fit_messages(messages, 10**9) == messages
    assert fit_messages(cut, window) == cut, "what was cut has room for a while"
    asked = {call.id for message in cut for call in message.tool_calls or ()}
    assert {message.tool_call_id for message in cut if message.role == "tool"} <= asked
    assert FULL > TARGET


def test_earlier_turns_of_a_conversation_are_cut_before_the_task() -> None:
    messages = [wire.Message("system", "s")]
    for _ in range(20):
        messages += [wire.Message("user", "word " * 100), wire.Message("assistant", "word " * 100)]
    messages += [wire.Message("user", "the task"), *[wire.Message("assistant", "word " * 100)] * 5]
    window = sum(map(tokens_of, messages)) // 2
    cut = fit_messages(messages, window)
    assert cut[0] == messages[0]
    assert sum(map(tokens_of, cut)) <= window * TARGET
    assert wire.Message("user", "the task") in cut
    assert cut[-4:] == messages[-4:]
    assert cut == [message for message in messages if message in cut][:1] + messages[-len(cut) + 1 :]


@table(
    ("value", "said"),
    [
        ({"city": "Rome"}, []),
        ({"city": "Rome", "days": 3, "kind": "rain", "tags": ["a"]}, []),
        ({}, ["city is missing"]),
        ({"city": 3}, ["city must be a string"]),
        ({"city": "x", "days": "3"}, ["days must be an integer"]),
        ({"city": "x", "days": True}, ["days must be an integer"]),
        ({"city": "x", "kind": "snow"}, ["kind must be one of ['rain', 'sun']"]),
        ({"city": "x", "days": 2.0, "either": []}, []),
        ({"city": "x", "tags": "a"}, ["tags must be an array or a null"]),
        ({"city": "x", "more": 1}, ["more is not known; use one of: city, days, kind, tags, either"]),
    ],
)
def test_arguments_are_checked_against_their_schema(value: dict[str, Any], said: list[str]) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7},
            "kind": {"enum": ["rain", "sun"]}, "tags": {"type": ["array", "null"], "items": {"type": "string"}},
            "either": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}]},
        },
        "required": ["city"], "additionalProperties": False, "$defs": {"n": {"type": "null"}},
    }  # fmt: skip
    assert find_misfits(value, schema) == said
