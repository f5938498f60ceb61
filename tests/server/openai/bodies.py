"""Strategies for chat completion bodies: most are valid, and many have one error."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from .clients import TOOL

_text = st.text(max_size=8)
_number = st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | _number | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def mostly(right: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Something else one time in forty."""
    return st.integers(0, 39).flatmap(lambda number: right if number else _json)


def _object(known: dict[str, SearchStrategy[Any]], optional: dict[str, SearchStrategy[Any]]) -> SearchStrategy[Any]:
    chosen = {name: mostly(each) for name, each in optional.items()}
    return mostly(st.fixed_dictionaries({name: mostly(each) for name, each in known.items()}, optional=chosen))


_more: dict[str, SearchStrategy[Any]] = {"cache_control": _json, "refusal": st.none(), "audio": st.none()}
_image = _object({"url": st.just("https://x/y")}, {"detail": st.sampled_from(["low", "original"])})
_part = st.one_of(
    _object({"type": st.just("text"), "text": _text}, _more),
    _object({"type": st.just("image_url"), "image_url": _image}, _more),
    _object({"type": st.just("refusal"), "refusal": _text}, {}),
)
_content = _text | st.lists(_part, min_size=1, max_size=3)
_called = _object({"name": st.just("weather"), "arguments": _text}, {"parsed_arguments": _json})
_call = _object({"id": st.just("c1"), "type": st.just("function"), "function": _called}, {"index": st.just(0)})
_message = st.one_of(
    _object({"role": st.sampled_from(["system", "developer", "user"]), "content": _content}, _more),
    _object({"role": st.just("assistant"), "content": _content}, {**_more, "function_call": st.none()}),
    _object({"role": st.just("assistant"), "tool_calls": st.lists(_call, min_size=1, max_size=2)}, _more),
    _object({"role": st.just("tool"), "tool_call_id": st.just("c1"), "content": _content}, {}),
)
_messages = st.lists(_message, min_size=1, max_size=4)
_allowed = _object({"mode": st.sampled_from(["auto", "required"]), "tools": st.just([TOOL])}, {})
_named = _object({"name": st.just("weather")}, {})
_choice = st.one_of(
    st.sampled_from(["auto", "none", "required", "weather"]),
    _object({"type": st.just("allowed_tools"), "allowed_tools": _allowed}, {}),
    _object({"type": st.just("function"), "function": _named}, {}),
)
_schema = _object({"name": st.just("answer"), "schema": st.just({"type": "object"})}, {"strict": st.booleans()})
_format = st.one_of(
    _object({"type": st.sampled_from(["text", "json_object"])}, {}),
    _object({"type": st.just("json_schema"), "json_schema": _schema}, {}),
)
_wishes = _object(
    {},
    {
        "goal": st.just("cost"),
        "models": st.just(["openai/gpt-4.1"]),
        "budget": st.just({"maxCostUsd": 1}),
        "metadata": st.just({"team": "blue"}),
        "timeout_ms": st.just(9_000),
    },
)
_fields: dict[str, SearchStrategy[Any]] = {
    "max_tokens": st.integers(1, 9),
    "max_completion_tokens": st.integers(1, 9),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.1, 1),
    "seed": st.integers(0, 9),
    "n": st.just(1),
    "stream": st.booleans(),
    "stream_options": _object({}, {"include_usage": st.booleans()}),
    "metadata": st.dictionaries(_text, _text, max_size=2),
    "functions": st.none(),
    "stop": st.text(min_size=1, max_size=8) | st.lists(st.just("END"), max_size=4),
    "response_format": _format,
    "user": _json,
    "routewright": _wishes,
}
_optional = {name: mostly(each) for name, each in _fields.items()}
_required = {"model": mostly(st.sampled_from(["auto", "auto:cost", "gpt-4.1"])), "messages": mostly(_messages)}
BODIES: SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries(_required, optional=_optional),
    st.fixed_dictionaries({**_required, "tools": st.just([TOOL]), "tool_choice": mostly(_choice)}, optional=_optional),
)
