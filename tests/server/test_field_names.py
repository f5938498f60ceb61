"""Errors of vendor-compatible routes name fields as the client wrote them, never as in the route request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from docs._doors import OF_COMPLETIONS, OF_MESSAGES, OF_RESPONSES

from routewright import Caller, Router
from routewright.errors import Problem, RouterError, RouterTimeoutError, ValidationFailed
from routewright.server import anthropic, create_app, openai, responses
from routewright.server.anthropic import MessageFrames
from routewright.server.vendor_requests import PLACES, Directory, RoutingOptions, Words, places_of
from routewright.testing import FakeClock
from tests.tables import table

from .asgi_client import ask, scope_of

HI = {"role": "user", "content": "Hi"}
BODY: dict[str, Any] = {"model": "auto", "max_tokens": 9, "messages": [HI]}
LONG = {"x": "y" * 20_000}
WISHES: dict[str, tuple[dict[str, Any], str]] = {
    "goal": ({"goal": "best"}, "goal"),
    "strategy": ({"strategy": "best"}, "strategy"),
    "policy_id": ({"policy_id": "none"}, "policy_id"),
    "models": ({"models": ["none/such"]}, "models[0]"),
    "prefer": ({"prefer": "none/such"}, "prefer[0]"),
    "fallback": ({"fallback": {"models": ["none/such"]}}, "fallback.models[0]"),
    "budget": ({"budget": {"maxCostUsd": -1}}, "budget.maxCostUsd"),
    "cache": ({"cache": {"ttl_seconds": 0}}, "cache.ttl_seconds"),
    "metadata": ({"metadata": LONG}, "metadata"),
    "timeout_ms": ({"timeout_ms": 0}, "timeout_ms"),
}
"""What only we know: one wrong value each, and its place in the field ``routewright``."""
OPENAI: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": ""}, "model"),
    "messages": ({"messages": [HI, {"role": "user", "content": []}]}, "messages[1].content"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "max_completion_tokens": ({"max_tokens": None, "max_completion_tokens": 0}, "max_completion_tokens"),
    "temperature": ({"temperature": 3}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "stop": ({"stop": ["a", ""]}, "stop[1]"),
    "seed": ({"seed": 0.5}, "seed"),
    "response_format": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    "reasoning_effort": ({"reasoning_effort": "some"}, "reasoning_effort"),
    "verbosity": ({"verbosity": "some"}, "verbosity"),
    "parallel_tool_calls": ({"parallel_tool_calls": "some"}, "parallel_tool_calls"),
    "service_tier": ({"service_tier": 5}, "service_tier"),
    "tools": ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    "tool_choice": ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
    "stream": ({"stream": "yes"}, "stream"),
    "stream_options": ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    "metadata": ({"metadata": LONG}, "metadata"),
    "n": ({"n": 2}, "n"),
    "functions": ({"functions": [{"name": "a"}]}, "functions"),
    "function_call": ({"function_call": "auto"}, "function_call"),
    "routewright": ({"routewright": 5}, "routewright"),
}
FORM = {"type": "json_schema", "schema": 5}
ANTHROPIC: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": "policy:none"}, "model"),
    "messages": ({"messages": [HI] * 1_001}, "messages"),
    "system": ({"system": [{"type": "image"}]}, "system[0].type"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "temperature": ({"temperature": 3}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "stop_sequences": ({"stop_sequences": list("abcde")}, "stop_sequences"),
    "output_config": ({"output_config": {"format": FORM}}, "output_config.format.schema"),
    "output_format": ({"output_format": FORM}, "output_format.schema"),
    "thinking": ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    "cache_control": ({"cache_control": {"type": "ephemeral", "ttl": "1d"}}, "cache_control.ttl"),
    "service_tier": ({"service_tier": "flex"}, "service_tier"),
    "tools": ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    "tool_choice": ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
    "stream": ({"stream": "yes"}, "stream"),
    "metadata": ({"metadata": {"user_id": "x" * 20_000}}, "metadata"),
    "routewright": ({"routewright": 5}, "routewright"),
}
RESPONSES: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": "policy:none"}, "model"),
    "input": ({"input": [HI] * 1_001}, "input"),
    "instructions": ({"instructions": 5}, "instructions"),
    "max_output_tokens": ({"max_output_tokens": 0}, "max_output_tokens"),
    "temperature": ({"temperature": 3}, "temperature"),
    "top_p": ({"top_p": 0}, "top_p"),
    "text": ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    "reasoning": ({"reasoning": {"effort": "some"}}, "reasoning.effort"),
    "tools": ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    "tool_choice": ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
    "parallel_tool_calls": ({"parallel_tool_calls": 5}, "parallel_tool_calls"),
    "service_tier": ({"service_tier": 5}, "service_tier"),
    "stream": ({"stream": "yes"}, "stream"),
    "stream_options": ({"stream_options": 5}, "stream_options"),
    "metadata": ({"metadata": LONG}, "metadata"),
    "include": ({"include": "x"}, "include"),
    "routewright": ({"routewright": 5}, "routewright"),
}
DOORS = {
    "/openai/v1/responses": (responses.WORDS, RESPONSES),
    "/openai/v1/chat/completions": (openai.WORDS, OPENAI),
    "/anthropic/v1/messages": (anthropic.WORDS, ANTHROPIC),
}
CASES = [(at, *case) for at, (_, cases) in DOORS.items() for case in cases.values()]
CASES += [(at, {"routewright": wish}, f"routewright.{place}") for at in DOORS for wish, place in WISHES.values()]
CASES += [("/anthropic/v1/messages", {"tools": [{"name": "a", "input_schema": {}}] * 2}, "tools[1]")]
APP = create_app(Router.sandbox(), authenticate=lambda scope: Caller())

pytestmark = pytest.mark.anyio


def body_at(at: str, **fields: Any) -> dict[str, Any]:
    """A body for a door."""
    return {"model": "auto", "input": [HI], **fields} if at.endswith("responses") else {**BODY, **fields}


async def refused(at: str, fields: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = await ask(APP, scope_of(path=at, headers=headers), body_at(at, **fields))
    assert answer.status in (400, 422)
    error: dict[str, Any] = answer.json["error"]
    return error


async def problem_of(at: str, fields: dict[str, Any], **headers: str) -> Problem:
    error = await refused(at, fields, **headers)
    (problem,) = (error.get("details") or error["detail"])["problems"]
    assert error["message"] == str(Problem(**problem))
    assert error.get("param", problem["path"]) == problem["path"]
    return Problem(**problem)


@table(("at", "fields", "place"), CASES, ids=[f"{at[1]}-{place}" for at, _, place in CASES])
async def test_a_wrong_value_is_refused_at_the_clients_field(at: str, fields: dict[str, Any], place: str) -> None:
    problem = await problem_of(at, fields)
    assert problem.path == place
    words = DOORS[at][0]
    assert words.problem(problem) == problem, "a name of ours is left"


def test_every_field_has_a_case() -> None:
    assert WISHES.keys() == {*RoutingOptions.__struct_fields__}
    assert OPENAI.keys() == OF_COMPLETIONS | openai.ChatCall.refusals.keys()
    assert ANTHROPIC.keys() == OF_MESSAGES
    assert RESPONSES.keys() == OF_RESPONSES


@pytest.mark.parametrize("at", DOORS)
async def test_the_idempotency_key_is_named_as_its_header(at: str) -> None:
    assert (await problem_of(at, {}, **{"idempotency-key": "k" * 65})).path == "Idempotency-Key"
    for fields in ({"idempotency_key": "k"}, {"routewright": {"idempotency_key": "k"}}):
        assert (await problem_of(at, fields)).hint == "send it as the header Idempotency-Key"


@pytest.mark.parametrize("at", DOORS)
async def test_a_pattern_in_place_of_a_model_is_refused_as_one(at: str) -> None:
    hint = "a request names ids or aliases; patterns are for policies and keys"
    problem = await problem_of(at, {"routewright": {"models": ["openai/*"]}})
    assert problem == Problem("routewright.models[0]", "'openai/*' is a pattern", hint)


@pytest.mark.parametrize("at", DOORS)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": 10**9}, "lower max_tokens to "),
        ({"routewright": {"budget": {"maxCostUsd": 1e-9}}}, "raise routewright.budget.maxCostUsd to "),
        ({"routewright": {"budget": {"maxTokens": 1}}}, "raise routewright.budget.maxTokens to "),
    ],
)
async def test_suggestions_name_the_clients_fields(at: str, fields: dict[str, Any], said: str) -> None:
    if at.endswith("responses") and "max_tokens" in fields:
        fields, said = {"max_output_tokens": fields["max_tokens"]}, "lower max_output_tokens to "
    error = await refused(at, fields)
    assert said in error["message"]
    assert said in (error.get("details") or error["detail"])["suggestion"]


@table("at", DOORS)
@table(
    ("wishes", "hint"),
    [
        ({"gaol": 1}, "did you mean 'goal'?"),
        ({"zzzz": 1}, f"known: {', '.join(RoutingOptions.__struct_fields__)}"),
        ({"fallback": {"model": ["a"]}}, "did you mean 'models'?"),
        ({"max_tokens": 1}, "'max_tokens' caps the answer, 'routewright.budget.maxTokens' the whole call"),
        ({"temperature": 1}, "it is 'temperature' here"),
        ({"temprature": 1}, "did you mean temperature?"),
        ({"model": "x"}, "it is 'routewright.models' here, an array of ids"),
        ({"maxCostUsd": 1}, "it is 'routewright.budget.maxCostUsd' here"),
        ({"budget": {"max_cost_usd": 1}}, "it is spelled 'maxCostUsd' in an object"),
    ],
)
async def test_an_unknown_option_gets_a_suggestion(at: str, wishes: dict[str, Any], hint: str) -> None:
    if at.endswith("responses"):
        hint = hint.replace("'max_tokens'", "'max_output_tokens'")
    assert (await problem_of(at, {"routewright": wishes})).hint == hint


def test_the_longest_known_prefix_of_a_path_is_replaced() -> None:
    words = Words(
        {"params": "", "params.stop": "stop_sequences", "models[0]": "model", "goal": "x.goal"}, "GET /models"
    )
    told = {
        "params.seed": "seed",
        "params.stop[1]": "stop_sequences[1]",
        "params.stopper": "stopper",
        "models[0]": "model",
        "models[1]": "models[1]",
        "goals": "goals",
        "": "",
    }
    assert {ours: words.path(ours) for ours in told} == told


def test_merged_messages_are_named_by_their_original_path() -> None:
    body = b"""{"model": "auto", "max_tokens": 9, "system": "Be brief.", "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}, {"type": "text", "text": "So?"}]}]}"""
    reading = anthropic.MessageCall(Directory({}, list))
    made = reading.decode(body)
    assert reading.words is not None
    assert [reading.words.path(f"messages[{place}].content[0]") for place in range(len(made.messages))] == [
        "system",
        "messages[0]",
        "messages[1]",
        "messages[2].content[0]",
        "messages[2]",
    ]


def test_the_clients_values_are_not_translated() -> None:
    words = Words(PLACES, "GET /models").having(places_of("gpt-x"))
    problem = Problem("models[0]", "unknown model 'params.models'", "did you mean 'params.model'?")
    assert words.error(ValidationFailed.of(problem)).problems == [problem._replace(path="model")]
    for said in (
        "openai/params.seed fails",
        "since policy 'budget' allows none",
        "the idempotency key 'idempotency_key' was used with a different request",
        "the models of a budget",
        "x.params.seed",
        "see http://a/timeout_ms",
    ):
        assert words.error(RouterError(said)).message == said


def test_an_error_that_ends_a_stream_names_the_clients_fields() -> None:
    idle = SimpleNamespace(request_id="req_1", clock=FakeClock(), expect_text=lambda: None)
    prepared = SimpleNamespace(stream=lambda: idle, tokens=SimpleNamespace(estimate=0))
    reading = anthropic.MessageCall(Directory({}, list))
    reading.words = anthropic.WORDS
    frames = MessageFrames(cast("Any", idle), cast("Any", prepared), reading)
    assert b"no answer within routewright.timeout_ms=5" in frames.error_frame(
        RouterTimeoutError("no answer within timeout_ms=5")
    )
