"""Names of litellm, OpenAI's SDK and pydantic-ai are answered with what they are here."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from routewright import Agent, AnthropicProvider, Catalogue, OpenAIProvider, Router, ValidationFailed
from routewright._core.request.read import ROUTE_ARGUMENTS
from routewright.policies import read_policies
from routewright.wire import RouteRequest
from routewright.wire.foreign import HINTS
from tests.tables import table

ROUTER = Router.sandbox()
ANSWER = ROUTER.blocking.route("hi")
FIRST = "it is the first argument here: route([...]) or route('...')"
DOORS: Mapping[str, Callable[..., object]] = {
    "route": ROUTER.blocking.route,
    "decide": ROUTER.decide,
    "stream": ROUTER.stream,
    "Router": Router,
    "sandbox": Router.sandbox,
    "OpenAI": OpenAIProvider,
    "Anthropic": AnthropicProvider,
    "Agent": lambda **options: Agent(ROUTER, **options),
    "run": lambda **options: Agent(ROUTER).blocking.run("hi", **options),
}


@table(
    ("door", "name", "hint"),
    [
        ("route", "messages", FIRST),
        ("decide", "output_type", "it is an argument of route(); elsewhere set params={'response_format': ...}"),
        ("route", "response_format", "it is 'params.response_format' here"),
        ("route", "max_tokens", "'params.max_output_tokens' caps the answer, 'budget.maxTokens' the whole call"),
        ("route", "instructions", 'pass a message with the role "system"'),
        ("route", "fallbacks", "it is 'fallback' here: {\"models\": [...]}"),
        ("route", "timeuot", "did you mean 'timeout'?"),
        ("Agent", "max_turns", "it is 'max_steps' here"),
        ("Agent", "stream", "call agent.stream(...)"),
        ("run", "prompt", "it is 'task' here"),
        ("Router", "model_list", "models come with the providers; route(models=[...]) or a Policy chooses from them"),
        ("sandbox", "num_retries", "it is 'max_retries' here"),
        ("Router", "provider", "did you mean 'providers'?"),
        ("OpenAI", "api_base", "it is 'base_url' here"),
    ],
)
def test_an_argument_of_another_library_is_answered_with_ours(door: str, name: str, hint: str) -> None:
    with pytest.raises((ValidationFailed, TypeError)) as refused:
        DOORS[door](**{name: "x"})
    assert str(refused.value).endswith(f"; {hint}")
    assert isinstance(refused.value, TypeError) == (door in ("Router", "sandbox", "OpenAI", "Anthropic"))


@pytest.mark.parametrize(
    ("door", "absent"),
    [
        ("route", set[str]()),
        ("decide", set[str]()),
        ("Agent", {"idempotency_key", "metadata", "timeout_ms", "timeout", "budget", "tool_choice", "caller"}),
    ],
)
def test_known_arguments_are_all_listed(door: str, absent: set[str]) -> None:
    with pytest.raises(ValidationFailed) as refused:
        DOORS[door](nonsense="x")
    known = {*str(refused.value).partition("known: ")[2].split(", ")}
    own = {"system", "max_steps", "tools", "approve", "escalate"} if door == "Agent" else set()
    assert known >= ({*ROUTE_ARGUMENTS, "output_type", "caller"} | own) - absent
    assert not known & absent


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("text", "output"),
        ("cost", "routing.cost_usd"),
        ("model_dump", "to_dict()"),
    ],
)
def test_an_attribute_of_another_library_is_answered_with_ours(name: str, ours: str) -> None:
    with pytest.raises(AttributeError) as missing:
        getattr(ANSWER, name)
    assert str(missing.value) == f"'Answer' object has no attribute {name!r}; it is {ours!r} here"
    value: Any = ANSWER
    for step in ours.removesuffix("()").split("."):
        value = getattr(value, step)  # there is one


def test_an_attribute_of_an_agents_answer_is_answered_with_ours() -> None:
    answer = Agent(ROUTER).blocking.run("hi")
    for name, ours in (("final_output", "output"), ("text", "output"), ("cost", "summary.total_cost_usd")):
        with pytest.raises(
            AttributeError, match=f"^'AgentAnswer' object has no attribute '{name}'; it is '{ours}' here$"
        ):
            getattr(answer, name)
        assert attrgetter(ours)(answer) is not None
    assert copy.copy(answer).output == answer.output


def test_tokens_are_not_looked_for_in_the_request_window() -> None:
    for name in ("total_tokens", "prompt_tokens"):
        with pytest.raises(AttributeError, match=r"; it is the request window; use 'answer\.routing\.tokens'"):
            getattr(ANSWER.usage, name)


def test_other_attributes_are_missing_as_usual() -> None:
    assert not hasattr(ANSWER, "text")
    assert getattr(ANSWER, "nonsense", 1) == 1
    with pytest.raises(AttributeError, match=r"^'Answer' object has no attribute 'nonsense'$"):
        ANSWER.nonsense  # type: ignore[attr-defined]  # noqa: B018
    assert copy.copy(ANSWER).output == ANSWER.output
    assert copy.deepcopy(ANSWER.usage) == pickle.loads(pickle.dumps(ANSWER.usage)) == ANSWER.usage


def test_no_name_of_ours_is_called_foreign() -> None:
    assert not HINTS["request"].keys() & {*RouteRequest.__struct_fields__}
    assert not HINTS["arguments"].keys() & {*ROUTE_ARGUMENTS}
    assert not [name for name in HINTS["Answer"] if name in dir(ANSWER)]


def test_an_unknown_model_says_how_to_add_one() -> None:
    added = "add a new one by models=[Model(id=...)] of its provider, or in a catalogue file"
    for name, near in [
        ("openai/gpt-4.1-mimi", "did you mean 'openai/gpt-4.1-mini'?"),
        ("mine/none", "Router.models() lists the known ids;"),
    ]:
        with pytest.raises(ValidationFailed) as refused:
            ROUTER.decide("hi", models=[name])
        assert str(refused.value) == f"models[0]: unknown model {name!r}; {near} {added}"


@pytest.mark.parametrize(
    ("table", "key", "hint"),
    [
        ("[policies.budget]", "max_cost", "did you mean 'max_cost_usd'?"),
        ("[policies.budget]", "goal", "it belongs in another table"),
        ("[[policies.classes]]\nmatch = {}", "gaol", "did you mean 'goal'?"),
    ],
)
def test_a_wrong_key_of_a_policy_is_compared_with_those_of_its_table(
    table: str, key: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "policies.toml"
    path.write_text(f'[[policies]]\nname = "a"\n{table}\n{key} = 1\n')
    with pytest.raises(ValidationFailed) as refused:
        read_policies(path)
    assert f"{key}: unknown key; {hint}" in str(refused.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("input_us = 1", "input_us: unknown key; did you mean 'input_usd'?"),
        ("input_cost_per_token = 1", "input_cost_per_token: unknown key; it is 'input_usd' here, per million tokens"),
        ("pricing_per_1m = 1", "pricing_per_1m: unknown key; it is 'prices' in a file"),
    ],
)
def test_a_wrong_key_of_a_price_is_compared_with_those_of_prices(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(f'[prices."openai/gpt-4.1"]\ninput_usd = 1\noutput_usd = 1\n{line}\n')
    with pytest.raises(ValidationFailed) as refused:
        Catalogue.load(path)
    assert f"models.toml: prices['openai/gpt-4.1'].{said}" in str(refused.value)


def test_prices_of_a_model_of_your_own_are_sent_to_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[prices."mine/mistral-large"]\ninput_usd = 1\noutput_usd = 1\n')
    with pytest.raises(
        ValidationFailed, match=r"; did you mean 'mistral/.*'\? or give it an entry under \[\[models\]\]"
    ):
        Catalogue.load(path)
