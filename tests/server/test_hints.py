"""Every problem has a hint, in Python terms for Python callers and in JSON terms over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from random import Random
from string import ascii_lowercase
from typing import Any

import pytest

import routewright
from routewright import Agent, Console, Policy, Router, TraceStore, ValidationFailed
from routewright.errors import Problem, RouterError
from routewright.server import App, create_app
from routewright.storage import open_storage
from routewright.wire import Budget, Fallback, Params, RouteRequest
from routewright.wire.problems import in_json, known_places, nearest, no_choice
from tests.tables import table

from .asgi_request import ask

pytestmark = pytest.mark.anyio

HI: dict[str, Any] = {"role": "user", "content": "Hi"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
WHOLE: dict[str, Any] = {
    "messages": [
        HI,
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
                {"type": "image_url", "image_url": {"url": "https://x/y"}},
                {"type": "file", "file": {"file_data": "https://x/y.pdf"}},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "r", "tool_call_id": "c1"},
    ],
    "goal": "cost",
    "strategy": "balanced",
    "policy_id": "p",
    "models": ["openai/gpt-4.1"],
    "fallback": {"models": ["openai/gpt-4.1"], "maxRetries": 1, "on_partial": "error"},
    "budget": {"maxCostUsd": 1, "maxTokens": 9_000},
    "cache": {"mode": "exact", "threshold": 0.9, "ttl_seconds": 60, "explore": 0.1, "namespace": "n"},
    "stream": False,
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "look_up"}},
    "params": {
        "temperature": 1,
        "top_p": 0.5,
        "max_output_tokens": 9,
        "stop": ["a"],
        "seed": 1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "reasoning": {"max_tokens": 2_000},
        "parallel_tool_calls": True,
        "service_tier": "auto",
        "verbosity": "low",
        "extra": {"openai": {"store": False}},
    },
    "metadata": {"a": 1},
    "timeout_ms": 1_000,
    "idempotency_key": "k",
    "prefer": ["openai/gpt-4.1"],
}
BAD: tuple[Any, ...] = (
    None,
    True,
    "",
    "zzz",
    "none/such",
    -1,
    0.5,
    2**60,
    [],
    ["", ""],
    [5],
    {},
    {"zzz": 1},
)
CHOICES = known_places().choices
PYTHON, JSON = (
    r"\b(None|True|False|a dict|a list|a bool|max_cost_usd|max_retries)\b",
    r"\b(null|true|false|an object|an array|a boolean)\b",
)


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a request but the top."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if not (at and at[-1] in ("metadata", "parameters", "schema")):
            yield (*at, key)
            if isinstance(inner, dict | list):
                yield from places(inner, (*at, key))


def changed(whole: Any, at: tuple[str | int, ...], value: Any) -> Any:
    """A copy with another value at a place."""
    made = json.loads(json.dumps(whole))
    inside = made
    for key in at[:-1]:
        inside = inside[key]
    inside[at[-1]] = value
    return made


def requests() -> list[Any]:
    """One bad value at each place, each field left out, and a field too many in every object."""
    found = [changed(WHOLE, at, bad) for at in places(WHOLE) for bad in BAD]
    for at in [(), *places(WHOLE)]:
        made = json.loads(json.dumps(WHOLE))
        holder, inside = None, made
        for key in at:
            holder, inside = inside, inside[key]
        if isinstance(inside, dict):
            inside["tempratur"] = 1
            found.append(made)
        elif isinstance(holder, dict):
            del holder[at[-1]]
            found.append(made)
    return found


def wordless(text: str) -> str:
    """A text without what it quotes."""
    return re.sub(r"""(?<!\w)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)""", "", text)


def check(problem: Problem, strange: str) -> None:
    """What holds for every problem. ``strange``: words of the other language."""
    path, said, hint = problem
    assert hint.strip(), problem
    assert hint != said, problem
    assert hint not in said, problem
    assert said not in hint, problem
    for part in (said, hint):
        assert not re.search(strange, wordless(part)), problem
    asked = re.search(r"must be one of (.*), got", said)
    meant = re.search(r"did you mean '([^']*)'", hint)
    if asked and meant:  # a hint that names what the problem rules out contradicts it
        assert meant[1] in asked[1].split(", "), problem
    if said == "is missing" or "must not be empty" in said or ("at least one" in said and path == "messages"):
        assert "leave it out" not in hint, problem


@pytest.fixture(scope="module")
def router() -> Router:
    return Router.sandbox(policies=[Policy(name="p")])


@pytest.fixture(scope="module")
def app(router: Router) -> App:
    return create_app(router, authenticate=lambda scope: routewright.Caller())


def test_every_rule_of_a_request_has_a_hint_in_python_terms(router: Router) -> None:
    refused = 0
    for request in requests():
        try:
            router.decide(request)
        except ValidationFailed as error:
            refused += 1
            for problem in error.problems:
                check(problem, JSON)
        except RouterError:
            pass
    assert refused > 400


async def test_every_rule_of_a_request_has_a_hint_in_json_terms(app: App) -> None:
    refused = 0
    for request in requests():
        told = await ask(app, "/v1/decide", "POST", body=request)
        if told.status == 400:
            refused += 1
            for problem in told.json["error"]["detail"]["problems"]:
                check(Problem(**problem), PYTHON)
    assert refused > 400


async def test_every_parameter_of_a_query_has_a_hint(app: App) -> None:
    asked = {
        "/v1/analytics/usage": ("bucket=fortnight", "group_by=colour", "start_date=soon", "bucket=daily", "zzz=1"),
        "/v1/traces": ("limit=0", "limit=x", "from=soon", "filter=zzz=1", "filter=status=done", "filter=cost_usd=x"),
    }
    for path, queries in asked.items():
        for query in queries:
            told = await ask(app, path, query=query.encode())
            assert told.status == 400
            for problem in told.json["error"]["detail"]["problems"]:
                check(Problem(**problem), PYTHON)


@table("place", [each for each in CHOICES if not each.startswith(("models[]", "bucket"))])
def test_a_wrong_word_names_the_allowed_ones(place: str) -> None:
    problem, allowed = no_choice(place, "zzz"), CHOICES[place]
    assert all(word in problem.problem for word in allowed)


async def test_other_python_functions_use_python_terms(router: Router) -> None:
    store, console = TraceStore(open_storage("memory:")), Console(open_storage("memory:"))
    wrong: Any = None
    many: Any = "many"
    nothing: Any = []
    doors: list[Callable[[], Any]] = [
        lambda: Agent(router).run("x", max_steps=many),
        lambda: store.usage(bucket=many),
        lambda: store.query(limit=wrong),
        lambda: console.create_account("acme", plan=wrong),
        lambda: router.stream("x", cache=nothing, params={"temperature": True}),
    ]
    for door in doors:
        with pytest.raises(ValidationFailed) as refused:
            await door()
        for problem in refused.value.problems:
            check(problem, JSON)
    with pytest.raises(ValidationFailed, match="got None") as limited:
        await store.query(limit=wrong)
    assert limited.value.problems


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"budget": {"maxCostUsd": -1}}, "budget.maxCostUsd"),
        ({"budget": Budget(max_cost_usd=-1)}, "budget.max_cost_usd"),
        ({"fallback": {"maxRetries": 9}}, "fallback.maxRetries"),
        ({"fallback": Fallback(max_retries=9)}, "fallback.max_retries"),
    ],
)
def test_problems_name_attributes_of_structs_and_keys_of_dicts(
    given: dict[str, Any], path: str, router: Router
) -> None:
    with pytest.raises(ValidationFailed) as refused:
        router.decide("hi", **given)
    assert [each.path for each in refused.value.problems] == [path]
    whole = {"messages": [HI], **given} if isinstance(next(iter(given.values())), dict) else RouteRequest([], **given)
    if isinstance(whole, dict):
        with pytest.raises(ValidationFailed) as refused:
            router.decide(whole)
        assert [each.path for each in refused.value.problems] == [path]


async def test_a_budget_refusal_uses_the_callers_terms(router: Router, app: App) -> None:
    poor: dict[str, Any] = {"messages": [HI], "models": ["openai/gpt-4.1"], "budget": {"maxCostUsd": 0}}
    with pytest.raises(routewright.BudgetExceeded) as refused:
        router.decide(poor)
    assert "raise budget.max_cost_usd (maxCostUsd in a dict) to 0.0" in refused.value.detail["suggestion"]
    assert "1 requested" in str(refused.value)
    told = await ask(app, "/v1/route", "POST", body=poor)
    for said in (told.json["error"]["message"], told.json["error"]["detail"]["suggestion"]):
        assert "raise budget.maxCostUsd to 0.0" in said
        assert "max_cost_usd" not in said
        assert "in an object" not in said


@table(
    ("python", "told"),
    [
        ("must be a list, got None", "must be an array, got null"),
        ("must be a bool or a dict, got 'None'", "must be a boolean or an object, got 'None'"),
        ('is True, "True" it says', 'is true, "True" it says'),
        ("raise budget.max_cost_usd to 1, the request's own", "raise budget.maxCostUsd to 1, the request's own"),
        ("raise budget.max_tokens (maxTokens in a dict) to 1", "raise budget.maxTokens to 1"),
        ("the policy's budget.max_tokens, 'a dict'", "the policy's budget.maxTokens, 'a dict'"),
        ("Nonesuch, a listing, got 'it\\'s None'", "Nonesuch, a listing, got 'it\\'s None'"),
    ],
)
def test_quoted_text_is_not_translated(python: str, told: str) -> None:
    assert in_json(python) == told


def test_random_words_get_no_suggestion(router: Router) -> None:
    fields = [name for names in known_places().fields.values() for name in names]
    for known in ([*router.model_names()], fields, *CHOICES.values()):
        chance = Random(5)  # the words of one list do not depend on how many lists there are
        for _ in range(60):
            word = "".join(chance.choice(ascii_lowercase) for _ in range(chance.randint(5, 14)))
            assert nearest(word, known) is None, word
        for word in ("lowvh", "ylowa", "zzz", "best", "asdf", "hello world", "none/such", "foo/bar", "?", "/", "..."):
            assert nearest(word, known) is None, word


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("openai/gtp-4.1", "openai/gpt-4.1"),
        ("gpt-4.1-mimi", "openai/gpt-4.1-mini"),
        ("foo/gpt-4.1", "openai/gpt-4.1"),
        ("claude-sonnet", "anthropic/claude-sonnet-5"),
        ("openai", None),
    ],
)
def test_a_misspelt_model_gets_a_suggestion(word: str, meant: str | None, router: Router) -> None:
    assert nearest(word, [*router.model_names(), "ollama/llama3.2"]) == meant


# Nulls, and numbers.

NULLS: tuple[dict[str, Any], ...] = (
    {"cache": {"mode": None, "ttl_seconds": None, "explore": None}},
    {"tools": [{"type": None, "name": "a"}, {"type": None, "name": "b", "strict": None}]},
    {"tools": [TOOL], "tool_choice": {"type": None, "function": {"name": "look_up"}}},
    dict.fromkeys([*WHOLE.keys() - {"messages"}]),
    {"messages": [HI, {"role": "assistant", "content": None, "tool_calls": [{**CALL, "type": None}], "name": None}]},
)


@pytest.mark.parametrize("given", NULLS, ids=range(len(NULLS)))
def test_null_means_absent_at_every_level(given: dict[str, Any], router: Router) -> None:
    body = {"messages": [HI], **given}

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(each) for key, each in value.items() if each is not None}
        return [without(each) for each in value] if isinstance(value, list) else value

    plain = router.decide(without(body) | {"messages": body["messages"]})
    assert router.decide(body).digest == plain.digest
    assert router.prepare(json.dumps(body).encode()).request.stream is False
    assert (
        router.prepare(json.dumps(body).encode()).request == router.prepare(json.dumps(without(body)).encode()).request
    )


@pytest.mark.parametrize("seed", [2**53, 2**53 + 1, -(2**53), 2**60, 10**30])
async def test_a_seed_that_a_float_would_round_is_refused(seed: int, router: Router, app: App) -> None:
    given: tuple[Any, ...] = ({"seed": seed}, Params(seed=seed))
    for params in given:
        with pytest.raises(ValidationFailed, match=r"params\.seed: must be a whole number from -9007199254740991"):
            router.decide("hi", params=params)
    bodies = {
        "/v1/decide": {"messages": [HI], "params": {"seed": seed}},
        "/openai/v1/chat/completions": {"model": "auto", "messages": [HI], "seed": seed},
    }
    for path, body in bodies.items():
        told = await ask(app, path, "POST", body=body)
        assert told.status == 400
        assert "9007199254740991, got" in told.json["error"]["message"]
        assert "e+15" not in told.json["error"]["message"]


# Small truths.
