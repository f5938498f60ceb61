"""``decode_run``: errors in a run request name the fields of that request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routewright import ValidationFailed
from routewright._core.agent.request import check_run, decode_run
from routewright.wire import AgentRequest
from tests.tables import table


@table(
    ("field", "hint"),
    [
        ("goal", "it is 'model_strategy.goal' here"),
        ("strategy", "it is 'model_strategy.strategy' here"),
        ("stream", "it is 'stream_steps' here"),
        ("budget", "it is 'total_budget_usd' here"),
        ("timeout_ms", "it is 'per_step_timeout_ms' here"),
        ("conversation", "it is 'metadata.conversation' here"),
        ("messages", "it is 'task' here"),
        ("maxSteps", "did you mean 'max_steps'?"),
        ("other", f"known: {', '.join(AgentRequest.__struct_fields__)}"),
    ],
)
def test_an_unknown_field_gets_a_hint(field: str, hint: str) -> None:
    assert refusal(task="hi", **{field: "quality"}) == [(field, "is not a field", hint)]


@table(
    ("given", "problem", "hint"),
    [
        ({"goal": "x"}, "must be one of cost, quality, stability, got 'x'", "for example 'cost'"),
        ({"strategy": "quality"}, "must be one of balanced, ", "did you mean 'quality-first'?"),
        ({"gaol": "cost"}, "is not a field", "did you mean 'goal'?"),
    ],
)
def test_the_strategy_is_checked_as_in_a_route_request(given: dict[str, str], problem: str, hint: str) -> None:
    ((path, said, hinted),) = refusal(task="hi", model_strategy=given)
    assert path == f"model_strategy.{next(iter(given))}"
    assert said.startswith(problem)
    assert hinted == hint


def refusal(**body: Any) -> list[tuple[str, str, str]]:
    with pytest.raises(ValidationFailed) as caught:
        decode_run(json.dumps(body).encode(), None)
    return [(each.path, each.problem, each.hint) for each in caught.value.problems]


def test_many_tools_are_checked_in_one_pass() -> None:
    names = [f"t{number}" for number in range(200_000)]  # the square of that would take minutes
    with pytest.raises(ValidationFailed, match="names 't7' twice"):
        check_run(AgentRequest(task="x", tools=[*names, "t7"]))


@table("given", [{"task": "half \ud83d"}, {"task": "x", "idempotency_key": "half \ud83d"}])
def test_an_unpaired_surrogate_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationFailed):
        check_run(AgentRequest(**given))


@table("task", ["", " \t\r\n"])
def test_a_task_of_json_white_space_is_refused(task: str) -> None:
    assert [path for path, _, _ in refusal(task=task)] == ["task"]


@table("task", ["\x85", "\u3000", " a "])
def test_any_other_task_is_accepted_as_in_the_schema(task: str) -> None:
    assert check_run(AgentRequest(task=task)).task == task
