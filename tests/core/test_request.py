"""Reading requests: what is accepted, what it becomes, and what each error says."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections import OrderedDict, UserDict
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import wire
from routewright._core.request.read import as_request, check_request, decode_request, needs_of
from routewright._core.request.rules import MAX_PROBLEMS, _check_fields, check_ids
from routewright.errors import InvalidJson, Problem, ValidationFailed
from routewright.wire.conversion import rebuild
from routewright.wire.problems import nearest
from tests.tables import table

HELLO: dict[str, Any] = {"role": "user", "content": "Hello"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
SCHEMA: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "sky", "schema": {"type": "object"}}}
FULL: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is it? \u4f60"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "a cat", "tool_call_id": "c1"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}}]},
    ],
    "goal": "stability",
    "strategy": "cost-optimized",
    "policy_id": "house",
    "models": ["a/x", "b/y"],
    "fallback": {"models": ["b/y"], "maxRetries": 2, "on_partial": "error"},
    "budget": {"maxCostUsd": 0.01, "maxTokens": 2000},
    "cache": {"mode": "exact", "threshold": 0.9, "ttl_seconds": 60, "explore": 0, "namespace": "n"},
    "stream": True,
    "tools": [TOOL, {"type": "function", "name": "flat", "strict": True}],
    "tool_choice": {"type": "function", "function": {"name": "flat"}},
    "params": {
        "temperature": 0.5,
        "top_p": 1,
        "max_output_tokens": 9,
        "stop": ["a"],
        "seed": -7,
        "response_format": SCHEMA,
    },
    "metadata": {"tenant": "t", "deep": [{"a": [1, 2.5, None, True]}]},
    "timeout_ms": 2000,
    "idempotency_key": "k",
}


def wrong(value: Any) -> Any:
    """Hide a wrong type from the type checker: callers have none."""
    return value


def problems(value: Any, **overrides: Any) -> list[Problem]:
    with pytest.raises(ValidationFailed) as caught:
        as_request(value, overrides)
    assert type(caught.value) is ValidationFailed
    return caught.value.problems


def refusals(**fields: Any) -> list[str]:
    """What is wrong with a request of these fields: the same as a dict, as a body, and in keyword arguments."""
    request = {"messages": [HELLO], **fields}
    said = problems(request)
    with pytest.raises(ValidationFailed) as caught:
        decode_request(json.dumps(request).encode())
    assert caught.value.problems == said
    if not fields.keys() & {"messages", "stream"}:
        assert problems("Hello", **fields) == said
    return [str(problem) for problem in said]


# What goes in


@table(
    "value",
    [
        "Hello",
        [HELLO],
        (wire.Message("user", "Hello"),),
        {"messages": [HELLO]},
        {"messages": [wire.Message("user", "Hello")]},
        UserDict(messages=[OrderedDict(HELLO)]),
        wire.RouteRequest([wire.Message("user", "Hello")]),
    ],
)
def test_each_shape_becomes_the_same_request(value: Any) -> None:
    assert as_request(value, {}) == wire.RouteRequest([wire.Message("user", "Hello")], goal="cost", strategy="balanced")


def test_a_full_body_and_a_full_dict_are_the_same_request() -> None:
    assert decode_request(json.dumps(FULL).encode()) == as_request(FULL, {})


def test_keyword_arguments_override_fields() -> None:
    base = as_request({"messages": [HELLO], "goal": "cost", "models": ["a"]}, {})
    assert as_request(base, {"goal": "quality"}).goal == "quality"
    assert (
        as_request({"messages": [HELLO], "goal": "cost"}, {"goal": None, "strategy": "quality-first"}).goal == "quality"
    )
    assert as_request(base, {"models": ("b", "c")}).models == ["b", "c"]


def test_metadata_is_copied_from_the_callers_object() -> None:
    metadata: dict[str, Any] = {"tags": ["a"]}
    made = as_request("Hello", {"metadata": metadata})
    metadata["tags"].append("b")
    assert made.metadata == {"tags": ["a"]}


def test_later_changes_of_the_callers_list_have_no_effect() -> None:
    messages = [wire.Message("user", "hi")]
    request = as_request(wire.RouteRequest(messages), {})
    messages.append(messages[0])
    assert len(request.messages) == 1


def test_no_tools_is_the_same_as_none() -> None:
    assert as_request("Hello", {"tools": [], "tool_choice": "auto"}).tools is None


def test_str_subclasses_become_plain() -> None:
    class Markup(str):
        __slots__ = ()

    class Goals(StrEnum):
        BEST = "quality"

    made = as_request(Markup("Hello"), {"goal": Goals.BEST})
    assert type(made.messages[0].content) is str
    assert type(made.goal) is str


# What is refused: the same in a body, a dict and keyword arguments


@table(
    ("fields", "message"),
    [
        (
            {"messages": []},
            'messages: must hold at least one message; for example [{"role": "user", "content": "Hello"}]',
        ),
        ({"messages": [HELLO] * 1_001}, "messages: has 1001 messages, at most 1000 are allowed"),
        (
            {"messages": "my secret"},
            'messages: must be a list, got a string; for example [{"role": "user", "content": "Hello"}]',
        ),
        ({"messages": [HELLO, {"role": "user", "content": []}]}, "messages[1].content: must hold at least one part"),
        (
            {"goal": "quality-first"},
            "goal: must be one of cost, quality, stability, got 'quality-first'; did you mean 'quality'?",
        ),
        ({"models": []}, "models: must name at least one model; leave it out to allow every model"),
        ({"models": ["a", "a"]}, "models[1]: lists 'a' again; list each model once"),
        ({"prefer": ["a/x", "b/y", "a/x"]}, "prefer[2]: lists 'a/x' again; list each model once"),
        ({"prefer": 3}, "prefer: must be a string or a list, got 3"),
        ({"fallback": {"maxRetries": 6}}, "fallback.maxRetries: must be a whole number from 0 to 5, got 6"),
        (
            {"fallback": {"max_retries": 1}},
            "fallback.max_retries: is not a field; it is spelled 'maxRetries' in a dict",
        ),
        ({"budget": {"max_cost_usd": 1}}, "budget.max_cost_usd: is not a field; it is spelled 'maxCostUsd' in a dict"),
        ({"budget": {"maxCostUsd": -0.5}}, "budget.maxCostUsd: must be a number from 0 to 1000000000, got -0.5"),
        ({"budget": {"maxCostUsd": True}}, "budget.maxCostUsd: must be a number, got True"),
        ({"budget": {"maxTokens": 0}}, "budget.maxTokens: must be a whole number of at least 1, got 0"),
        (
            {"models": "openai/gpt-4.1"},
            "models: must be a list, got 'openai/gpt-4.1'; for example [\"openai/gpt-6-luna\"]",
        ),
        ({"budget": 5}, 'budget: must be a dict, got 5; for example {"maxCostUsd": 0.01}'),
        ({"cache": "yes"}, "cache: must be a bool or a dict, got 'yes'"),
        ({"cache": {"threshold": 1.1}}, "cache.threshold: must be a number from 0 to 1, got 1.1"),
        (
            {"cache": {"threshold": 1, "max_error": 0}},
            "cache: has both max_error and threshold; set 'max_error' to learn the threshold, or 'threshold' to fix it",
        ),
        (
            {"tools": [{"type": "function"}]},
            'tools[0]: has no name; a tool is {"type": "function", "function": {"name": ...}}',
        ),
        (
            {"tools": [{**TOOL, "name": "f"}]},
            "tools[0]: mixes the nested and the flat form; "
            "put name, description, parameters and strict into 'function', or leave 'function' out",
        ),
        ({"tools": [{"name": "f"}, {"name": "f"}]}, "tools[1]: declares 'f' again; give each tool its own name"),
        (
            {"tools": [{"function": {"name": "f g"}}]},
            "tools[0].function.name: must be a name, got 'f g'; "
            "use 1 to 64 ASCII letters, digits, underscores and dashes",
        ),
        (
            {"tools": [TOOL], "tool_choice": "lookup"},
            "tool_choice: names the tool 'lookup', which is not declared (declared: 'look_up'); "
            "did you mean 'look_up'?",
        ),
        (
            {"tool_choice": {"function": {"name": "nope"}}},
            "tool_choice.function.name: names the tool 'nope', which is not declared (there are no tools); "
            "declare it in 'tools'",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "look_up"}},
            'tool_choice.name: is not a field; write {"type": "function", "function": {"name": ...}}, '
            "or the name alone",
        ),
        ({"tool_choice": "required"}, "tool_choice: is 'required', but there are no tools; declare 'tools'"),
        (
            {"metadata": {"k": "x" * 16_377}},
            "metadata: takes 16385 bytes as JSON, at most 16384 are allowed; "
            "keep long values elsewhere and put a reference here",
        ),
        ({"timeout_ms": 0}, "timeout_ms: must be a whole number from 1 to 3600000, got 0"),
        (
            {"idempotency_key": "\u00e9" * 33},
            "idempotency_key: is 66 bytes long in UTF-8, must be 1 to 64; hash a longer one",
        ),
        ({"cache": {"namespace": ""}}, "cache.namespace: must not be empty"),
        ({"models": [""]}, "models[0]: must not be empty"),
        ({"policy_id": ""}, "policy_id: must not be empty"),
    ],
)
def test_a_refusal_has_path_value_and_hint(fields: dict[str, Any], message: str) -> None:
    (said,) = refusals(**fields)
    assert said.startswith(message)


@table(
    ("message", "problem"),
    [
        (
            {"role": "usr", "content": ""},
            "role: must be one of system, developer, user, assistant, tool, got 'usr'; did you mean 'user'?",
        ),
        ({"role": "user", "content": 5}, "content: must be a string or a list, got a number"),
        (
            {"role": "assistant", "content": None},
            "content: is missing; only an assistant message with tool_calls may have none",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "ftp://x/secret"}}]},
            "content[0].image_url.url: must begin with https://, http:// or data:image/",
        ),
        (
            {"role": "tool", "content": "x"},
            "tool_call_id: is missing; a tool message names the id of the call it answers",
        ),
        ({**HELLO, "tool_call_id": "c"}, "tool_call_id: is not allowed in a message with role 'user'; use 'tool'"),
        ({**HELLO, "tool_calls": []}, "tool_calls: must hold at least one call; leave it out if none"),
        ({**HELLO, "name": ""}, "name: must not be empty"),
        ({**HELLO, "tool_calls": [CALL]}, "tool_calls: is not allowed in a message with role 'user'; use 'assistant'"),
    ],
)
def test_a_refused_message_has_path_value_and_hint(message: dict[str, Any], problem: str) -> None:
    (said,) = refusals(messages=[message])
    assert said.startswith(f"messages[0].{problem}")


@table(
    ("params", "problem"),
    [
        ({"top_k": 5}, "top_k: is not a field; send it to one provider, as 'params.extra': {\"<provider>\": {...}}"),
        (
            {"reasoning": "xhigh"},
            "reasoning: must be one of none, minimal, low, medium, high, max, got 'xhigh'; did you mean 'max'?",
        ),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort: is not a field; write reasoning: 'high'"),
        ({"temperature": 2.1}, "temperature: must be a number from 0 to 2, got 2.1"),
        ({"seed": 0.5}, "seed: must be a whole number from -9007199254740991 to 9007199254740991, got 0.5"),
        ({"stop": ["a"] * 5}, "stop: has 5 strings, at most 4 are allowed"),
        (
            {"max_tokens": 1},
            "max_tokens: is not a field; 'params.max_output_tokens' caps the answer, 'budget.maxTokens' the whole call",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            'response_format.json_schema: must be a dict, got None; pass {"name": ..., "schema": {...}}',
        ),
        (
            {"response_format": {**SCHEMA, "type": "text"}},
            "response_format.json_schema: is only for type 'json_schema'",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema: must be a JSON schema object, got None",
        ),
        (
            {"response_format": {"type": "json"}},
            "response_format.type: must be one of text, json_object, json_schema, got 'json'",
        ),
        ({"stop": ["a", ""]}, "stop[1]: must not be empty"),
    ],
)
def test_a_refused_parameter_has_path_value_and_hint(params: dict[str, Any], problem: str) -> None:
    (said,) = refusals(params=params)
    assert said.startswith(f"params.{problem}")


@table(
    ("name", "hint"),
    [
        ("timeoutMs", "it is spelled 'timeout_ms'"),
        ("temprature", "did you mean params.temperature?"),
        ("max_cost_usd", "it is 'budget.maxCostUsd' here"),
        ("max_tokens", "'params.max_output_tokens' caps the answer, 'budget.maxTokens' the whole call"),
        ("prompt", "it is 'messages' here"),
        ("system", 'pass a message with the role "system"'),
    ],
)
def test_an_unknown_name_gets_the_nearest_known_one(name: str, hint: str) -> None:
    assert problems({"messages": [HELLO], name: 1}) == [(name, "is not a field", hint)]
    first = "it is the first argument here: route([...]) or route('...')"
    mine = {"maxRetries": "it is spelled 'max_retries'", "prompt": first}.get(name, hint)
    assert problems("Hello", **{name: 1}) == [(name, "is not an argument", mine)]


@table("value", [None, 5, b"Hello", wire.Message("user", "Hello"), {1, 2}])
def test_an_invalid_request_is_refused_with_a_hint(value: Any) -> None:
    [(path, problem, hint)] = problems(value)
    assert (path, hint) == ("", "pass a string, a list of messages, a dict or a RouteRequest")
    assert problem.endswith("is not a request")


def test_all_problems_are_listed_up_to_a_limit() -> None:
    assert len(problems("Hello", goal="x", strategy="y", models=[], timeout_ms=0)) == 4
    assert len(problems([{"role": "user"}] * 100)) == MAX_PROBLEMS


def test_no_error_contains_text_or_image_of_a_message() -> None:
    for value in (
        {"messages": "my secret"},
        {"messages": [{"role": "user", "content": {"my secret": 1}}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ["my secret"]}]}]},
        [wire.Message("user", "my secret\ud800")],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:text/html;base64,my secret"}}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64,my secret"}]}],
    ):
        assert "secret" not in str(problems(value))


def test_a_number_out_of_range_is_refused_with_its_path() -> None:
    for number in ("1e400", "9" * 5_000):
        body = f'{{"messages":[{{"role":"user","content":""}}],"budget":{{"maxCostUsd":{number}}}}}'
        with pytest.raises(ValidationFailed) as caught:
            decode_request(body.encode())
        assert caught.value.problems == [("budget.maxCostUsd", "number out of range", "for example 0.01")]


def test_checking_stops_at_the_limit_of_problems() -> None:
    found: list[Problem] = []
    check_ids("models", ["a"] * 1_000, found)
    assert len(found) == MAX_PROBLEMS


def test_a_body_that_is_not_json_is_invalid_json() -> None:
    with pytest.raises(InvalidJson):
        decode_request(b'{"messages": [')


# Structs check nothing when they are made: the door does


@table(
    ("request_", "path", "problem"),
    [
        (wire.RouteRequest([]), "messages", "must hold at least one message"),
        (wire.RouteRequest(wrong("Hello")), "messages", "must be a list, got a string"),
        (
            wire.RouteRequest([wire.Message("user", wrong(5))]),
            "messages[0].content",
            "must be a string or a list, got a number",
        ),
        (wire.RouteRequest([wire.Message("user", wrong(object()))]), "messages[0].content", "object is not JSON"),
    ],
)
def test_a_struct_of_wrong_types_is_refused(request_: wire.RouteRequest, path: str, problem: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        check_request(request_)
    assert [(p.path, p.problem) for p in caught.value.problems] == [(path, problem)]


@table(
    ("overrides", "path", "problem"),
    [
        ({"budget": wire.Budget(math.nan)}, "budget.max_cost_usd", "must be a number from 0 to 1000000000, got nan"),
        ({"budget": wire.Budget(wrong("1"))}, "budget.max_cost_usd", "must be a number, got '1'"),
        (
            {"budget": wire.Budget(max_tokens=10**400)},
            "budget.max_tokens",
            "must be a whole number of at least 1, got a huge number",
        ),
        ({"budget": wire.Params(seed=1)}, "budget.seed", "is not a field"),
        ({"metadata": {"a": [math.nan]}}, "metadata.a[0]", "nan is not JSON"),
        ({"metadata": {1: 2}}, "metadata", "has a key that is not a string but int"),
        ({"metadata": {"at": datetime.date(2026, 1, 1)}}, "metadata.at", "date is not JSON"),
        ({"metadata": {"row": np.array([1])}}, "metadata.row", "ndarray is not JSON"),
        ({"metadata": {"n": 10**5_000}}, "metadata.n", "is a number with too many digits"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(overrides: dict[str, Any], path: str, problem: str) -> None:
    assert [found[:2] for found in problems("Hello", **overrides)] == [(path, problem)]


def test_numpy_numbers_become_plain() -> None:
    made = as_request("Hello", {"budget": {"maxCostUsd": np.float64(0.5), "maxTokens": np.int64(900)}})
    assert made.budget == wire.Budget(0.5, 900)
    assert type(made.budget.max_cost_usd) is float
    made = as_request("Hello", {"metadata": {"n": np.int64(5), "x": np.float32(0.5)}, "timeout_ms": np.int64(9)})
    assert made.metadata == {"n": 5, "x": 0.5}
    assert (type(made.metadata["n"]), type(made.timeout_ms)) == (int, float)


@table("value", [range(3), np.int64(3), np.float64(0.01), np.arange(3)], ids=lambda value: type(value).__name__)
@table(
    "at",
    [
        lambda value: {"budget": value},
        lambda value: {"metadata": value},
        lambda value: {"params": {"response_format": value}},
        lambda value: {"tools": [{"type": "function", "name": "a", "parameters": value}]},
    ],
)
def test_a_mapping_lookalike_is_refused(at: Callable[[Any], dict[str, Any]], value: Any) -> None:
    fields = at(value)
    for refused in (problems({"messages": [HELLO], **fields}), problems("Hello", **fields)):
        assert len(refused) == 1
        assert refused[0].path.startswith(next(iter(fields)))
        assert "must be" in refused[0].problem or "is not JSON" in refused[0].problem


def test_a_mapping_that_raises_is_refused_with_the_exception_type() -> None:
    class Lazy(UserDict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise LookupError("canary")

    (problem,) = problems("Hello", budget=Lazy(maxCostUsd=1))
    assert str(problem) == "budget: holds a value that raised LookupError; pass plain dicts, strings and numbers"


def test_an_unpaired_surrogate_is_refused_in_every_text() -> None:
    bad = "x\ud800"
    for value, overrides in (
        (bad, {}),
        ([{"role": "user", "content": [{"type": "text", "text": bad}]}], {}),
        ([{"role": "assistant", "tool_calls": [{**CALL, "id": bad}]}], {}),
        ("x", {"models": [bad]}),
        ("x", {"tools": [{"name": "f", "parameters": {"a": bad}}]}),
        ("x", {"params": {"stop": bad}}),
        ("x", {"cache": {"namespace": bad}}),
        ("x", {"metadata": {"a": bad}}),
        ("x", {"metadata": {bad: 1}}),
        ("x", {"idempotency_key": bad}),
        ("x", {"goal": bad}),
        ({"messages": [HELLO], "goal": bad}, {}),
        ({"messages": [HELLO], bad: 1}, {}),
    ):
        [(path, problem, hint)] = problems(value, **overrides)
        f"{path}{problem}{hint}".encode()  # an error can always be sent


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    assert "contains itself" in str(problems("Hello", metadata=loop))


# What a checked request needs


def picture(url: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


@table(
    ("fields", "needs"),
    [
        ({}, wire.Need.NONE),
        ({"messages": FULL["messages"]}, wire.Need.IMAGE | wire.Need.IMAGE_URL),
        ({"messages": [picture("data:image/png;base64,AAAA")]}, wire.Need.IMAGE),
        ({"tools": [TOOL]}, wire.Need.TOOLS),
        ({"tools": [TOOL], "tool_choice": "required"}, wire.Need.TOOLS | wire.Need.TOOL_CHOICE),
        ({"params": {"temperature": 1, "top_p": 1.0, "stop": []}}, wire.Need.NONE),
        ({"params": {"temperature": 0}}, wire.Need.TEMPERATURE),
        ({"params": {"stop": "END"}}, wire.Need.STOP),
        ({"params": {"response_format": {"type": "json_object"}}}, wire.Need.JSON | wire.Need.JSON_OBJECT),
        ({"params": {"response_format": SCHEMA}}, wire.Need.JSON | wire.Need.JSON_SCHEMA),
        ({"tools": [TOOL], "params": {"stop": "END"}}, wire.Need.TOOLS | wire.Need.STOP | wire.Need.TOOLS_STOP),
        ({"tools": [TOOL], "params": {"seed": 0}}, wire.Need.TOOLS | wire.Need.SEED | wire.Need.TOOLS_STOP),
        (FULL, wire.Need.TOOLS_STOP | (2 * wire.Need.JSON_SCHEMA - 1) & ~wire.Need.TOP_P & ~wire.Need.JSON_OBJECT),
    ],
)
def test_needs_follow_from_the_request(fields: dict[str, Any], needs: int) -> None:
    assert needs_of(as_request({"messages": [HELLO], **fields}, {})) == needs


def test_nearest_finds_close_names_and_no_others() -> None:
    known = ["openai/gpt-4o", "anthropic/claude-sonnet-4.5"]
    assert nearest("OpenAI/gpt4o", known) == "openai/gpt-4o"
    assert nearest("gpt-4o", known) == "openai/gpt-4o"
    assert nearest("mistral", known) is None
    assert nearest("x" * 1_000_000, known) is None


def test_a_hint_among_thousands_of_names_compares_some_of_the_same_first_letter() -> None:
    known = ["other/large", *(f"mine/model-{n}" for n in range(10_000)), "Quite/another", "mine/zebra"]
    assert nearest("Othr/large", known) == "other/large"
    assert nearest("quite/anothr", known) == "Quite/another"
    assert nearest("mine/model-7", known) == "mine/model-7"
    assert nearest("mine/xebra", known) != "mine/zebra"


def test_hints_are_computed_only_for_listed_problems() -> None:
    found: list[Problem] = []
    _check_fields("params.response_format", {f"field_{n}": 1 for n in range(1_000)}, found)
    assert len(found) == MAX_PROBLEMS


# Anything at all

NAMES = sorted(
    {*FULL, *FULL["params"], *FULL["cache"], "maxCostUsd", "max_cost_usd", "role", "content", "type", "x - at `$.y"}
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["user", "text", "a/x", ""])
)
JSON = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(NAMES), v, max_size=3))
STRUCTS = st.sampled_from(
    [
        wire.Budget(True),
        wire.Message("user", "x"),
        wire.Message("tool", [wire.ImagePart(wire.ImageUrl(wrong(5)))]),
        wire.Message("assistant", None, [wire.ToolCall("x", wire.FunctionCall(wrong(None), wrong({})))]),
        wire.Tool(function=wrong(5)),
        wire.NamedToolChoice(wrong("f")),
        wire.Params(stop=wrong(5)),
        wire.CacheOpts(mode=wrong([])),
    ]
)
STRANGE = st.sampled_from(
    [
        {wire.Budget(): 1},
        b"x",
        object(),
        10**5_000,
        "\udc00",
        math.nan,
        (1,),
        {1: 2},
        {"\ud800": 1},
        {5},
        decimal.Decimal(1),
    ]
)


@st.composite
def bent(draw: st.DrawFn) -> Any:
    """The full request with one to three places changed."""
    request: Any = json.loads(json.dumps(FULL))
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = request
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(holder[key], (dict, list)) and draw(st.booleans()):
                holder = holder[key]
                continue
            if draw(st.booleans()):
                holder[key] = draw(JSON)
            elif isinstance(holder, dict):
                holder[draw(st.sampled_from(NAMES))] = holder.pop(key)
            break
    return request


def outcome(value: Any, **overrides: Any) -> wire.RouteRequest | None:
    try:
        return as_request(value, overrides)
    except ValidationFailed as error:
        problems = error.problems
    assert problems
    "".join(map(str, problems)).encode()
    return None


def decoded(body: bytes) -> wire.RouteRequest | None:
    try:
        return decode_request(body)
    except ValidationFailed as error:
        problems = error.problems
    assert problems
    return None


@given(JSON | bent())
def test_any_value_is_a_request_or_a_validation_error(value: Any) -> None:
    outcome(value)


ARGUMENTS = st.dictionaries(
    st.sampled_from(sorted(FULL)), JSON | STRUCTS | STRANGE | st.lists(STRUCTS | STRANGE, max_size=2)
)


@given(ARGUMENTS)
def test_any_arguments_are_a_request_or_a_validation_error(fields: dict[str, Any]) -> None:
    outcome({"messages": [HELLO], **fields})
    outcome(wire.RouteRequest(**{"messages": [wire.Message("user", "x")], **fields}))
    fields.pop("messages", None)
    outcome("Hello", **fields)


@given(bent().map(json.dumps).map(str.encode) | st.binary(max_size=30), st.integers(0), st.binary(max_size=2))
def test_any_bytes_are_a_request_or_a_validation_error(body: bytes, at: int, splice: bytes) -> None:
    at %= len(body) + 1
    decoded(body[:at] + splice + body[at:])


@given(bent())
def test_checking_is_idempotent_and_survives_a_round_trip(value: Any) -> None:
    once = outcome(value)
    if once is not None:
        assert check_request(once) == once
        assert decode_request(msgspec.json.encode(once)) == once


@given(bent())
def test_a_body_and_a_dict_are_checked_the_same(value: Any) -> None:
    body = msgspec.json.encode(value)  # NaN becomes null
    assert decoded(body) == outcome(json.loads(body))


ADD = wire.ToolCall("call_1", wire.FunctionCall("add", "{}"))
CHAT = [
    wire.Message("user", "2+1?"),
    wire.Message("assistant", None, [ADD]),
    wire.Message("tool", "3", tool_call_id="call_1"),
]


@table(
    "message",
    [
        wire.Message("robot", "Hi"),  # type: ignore[arg-type]
        wire.Message("user", "\ud800"),
        wire.Message("assistant", None, [ADD, "x"]),  # type: ignore[list-item]
        wire.Message("assistant", None, [msgspec.structs.replace(ADD, type="tool")]),
        wire.Message("assistant", None, [wire.ToolCall("a", wire.FunctionCall("add", 3))]),  # type: ignore[arg-type]
    ],
)
def test_a_misfit_in_a_chat_of_structs_gets_the_error_of_a_full_check(message: wire.Message) -> None:
    request = wire.RouteRequest([*CHAT, message])
    with pytest.raises(ValidationFailed) as full:
        rebuild(request, wire.RouteRequest, "")
    with pytest.raises(ValidationFailed) as checked:
        check_request(request)
    assert str(checked.value) == str(full.value)


def test_a_chat_of_structs_keeps_the_calls_that_it_was_checked_with() -> None:
    calls = [ADD]
    request = check_request(wire.RouteRequest([CHAT[0], wire.Message("assistant", None, calls), CHAT[2]]))
    calls.clear()
    assert request.messages == CHAT
