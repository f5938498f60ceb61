"""Translating a chat completions body to a route request, or to an error in the client's terms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routewright.errors import InvalidJson, RouterError, ValidationFailed
from routewright.server.openai import ChatCall
from routewright.wire import Budget, Params
from tests.tables import table

from .body_reader import KNOWN, fault, ignored, made, refused, request
from .clients import CHAT, TOOL

# The fields.


def test_every_honoured_field_is_translated() -> None:
    found = request(
        model="gpt-4.1",
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        stop=["a", "b"],
        seed=3,
        response_format={"type": "json_object"},
        reasoning_effort="xhigh",
        parallel_tool_calls=False,
        service_tier="flex",
        verbosity="low",
        user="ann",
        top_k=4,
        tools=[TOOL],
        tool_choice="auto",
        stream=True,
        metadata={"team": "blue"},
        routewright={"strategy": "balanced", "timeout_ms": 900},
    )
    assert found.models == ["openai/gpt-4.1"]
    assert found.params is not None
    assert msgspec.structs.asdict(found.params) == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 7,
        "stop": ["a", "b"],
        "seed": 3,
        "response_format": {"type": "json_object"},
        "reasoning": "max",
        "parallel_tool_calls": False,
        "service_tier": "flex",
        "verbosity": "low",
        "extra": {"openai": {"user": "ann", "top_k": 4}},
    }
    assert found.tools is not None
    assert found.tools[0].function_spec.name == "weather"
    assert (found.tool_choice, found.stream, found.metadata) == ("auto", True, {"team": "blue"})
    assert (found.strategy, found.timeout_ms) == ("balanced", 900)
    assert request(routewright={"budget": {"maxCostUsd": 0.5}}).budget == Budget(max_cost_usd=0.5)


@table(
    ("model", "field", "value"),
    [
        ("auto", "models", None),
        ("auto:quality", "goal", "quality"),
        ("policy:house", "policy_id", "house"),
        ("gpt-4.1", "models", ["openai/gpt-4.1"]),
        ("fast", "models", ["fast"]),
    ],
)
def test_a_model_is_an_id_or_leaves_the_choice(model: str, field: str, value: object) -> None:
    assert getattr(request(model=model), field) == value


def test_max_tokens_means_max_completion_tokens() -> None:
    for fields in ({"max_tokens": 9}, {"max_tokens": 9, "max_completion_tokens": 9}):
        assert request(**fields).params == Params(max_output_tokens=9)


def test_metadata_of_both_fields_is_merged() -> None:
    assert request(metadata={"a": "1", "b": "1"}, routewright={"metadata": {"b": 2}}).metadata == {"a": "1", "b": 2}


def test_usage_is_streamed_on_request() -> None:
    assert made({**CHAT, "stream": True, "stream_options": {"include_usage": True}})[1].wants_usage
    assert not made({**CHAT, "stream": True, "stream_options": {"include_usage": False}})[1].wants_usage
    assert not made({**CHAT, "stream": True})[1].wants_usage


# What counts for nothing.


def test_ignored_fields_are_listed() -> None:
    fields: dict[str, Any] = {
        "logprobs": True,
        "prediction": {"type": "content", "content": "x"},
        "service_tier": "scale",
        "store": True,
        "something_new": {"deep": [1]},
        "functions": None,
    }
    assert ignored(**fields) == {*fields} - {"functions"}


@table(
    ("model", "wishes", "extra", "named"),
    [
        ("auto", None, {"openai": {"user": "ann"}}, {"plugins", "top_k"}),
        ("gpt-4.1", None, {"openai": {"user": "ann", "top_k": 5}}, {"plugins"}),
        ("deepseek/chat", None, {"deepseek": {"user": "ann", "top_k": 5}}, {"plugins"}),
        ("anthropic/claude-x", None, None, {"plugins", "top_k", "user"}),
    ],
)
def test_vendor_fields_go_to_the_named_model_or_to_openai(model: str, wishes: Any, extra: Any, named: set[str]) -> None:
    found, asked = made({**CHAT, "model": model, "user": "ann", "top_k": 5, "plugins": [], "routewright": wishes})
    assert (None if found.params is None else found.params.extra) == extra
    assert asked.ignored == named


def test_values_that_change_nothing_are_not_listed_as_ignored() -> None:
    for name, values in ChatCall.no_effect.items():
        for value in (*values, None):
            assert ignored(**{name: value}) == set()


# Errors name what the client wrote.


@table(
    ("fields", "path"),
    [
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"n": True}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"model": None}, "model"),
        ({"model": "auto:best"}, "model"),
        ({"model": "auto:cost", "routewright": {"goal": "quality"}}, "model"),
        ({"model": "gpt-4.1", "routewright": {"models": ["a/b"]}}, "model"),
        ({"routewright": {"models": ["a/b", "a/b"]}}, "routewright.models[1]"),
        ({"routewright": {"fallback": {"maxRetries": 9}}}, "routewright.fallback.maxRetries"),
    ],
)
def test_an_error_names_the_field_that_the_client_wrote(fields: dict[str, Any], path: str) -> None:
    problem = fault(**fields)
    assert problem.path == path
    assert "params." not in str(problem)


def test_a_body_is_one_strict_object() -> None:
    assert "an array" in str(refused([]))
    for body in (b"", b"{", b'{"model": NaN}', b"\xff\xfe{}"):
        with pytest.raises(InvalidJson):
            ChatCall(KNOWN).decode(body)
    for body in (b'{"model": "a", "model": "b"}', b'{"x": 1e999}', b'{"x": "\\ud800"}', b"[" * 70 + b"]" * 70):
        with pytest.raises(ValidationFailed):
            ChatCall(KNOWN).decode(body)


def test_errors_repeat_no_text_of_a_message() -> None:
    secret = "the prompt that nobody is to see"
    for message in (
        {"role": "user", "content": {"x": secret}},
        {"role": "user", "content": [secret]},
        {"role": "user", "content": [{"type": "text", "text": [secret]}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": secret}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": [secret]}]},
        {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": [secret]}}]},
        secret,
    ):
        assert secret not in str(fault(messages=[message]))


@table(
    ("ours", "theirs"),
    [
        ("lower params.max_output_tokens to 5", "lower max_tokens to 5"),
        ("raise budget.maxCostUsd to 1", "raise routewright.budget.maxCostUsd to 1"),
        ("no answer within timeout_ms=5;", "no answer within routewright.timeout_ms=5;"),
        ("add 'a/b' to 'models' to admit a/b", "add 'a/b' to 'routewright.models' to admit a/b"),
        ("add 'a/b' to models of policy 'x'", "add 'a/b' to models of policy 'x'"),
        ("the word models alone", "the word models alone"),
    ],
)
def test_error_messages_name_the_clients_fields(ours: str, theirs: str) -> None:
    words = made({**CHAT, "max_tokens": 5})[1].words
    assert words is not None
    assert words.text(ours) == theirs
    assert words.text(theirs) == theirs
    error = RouterError(ours, detail={"suggestion": ours})
    told = words.error(error)
    assert (told.message, told.detail) == (theirs, {"suggestion": theirs})
    assert (error.message, error.detail) == (ours, {"suggestion": ours}), "others may hold it, too"


# Any body.
