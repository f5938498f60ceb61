"""Hypothesis strategies for bodies of the Messages API."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .clients import PIXEL

IDS = st.text("abcXYZ019_-", min_size=1, max_size=20)
WORDS = st.text(st.characters(codec="utf-8"), max_size=30)
CACHED = st.booleans().map(lambda is_marked: {"cache_control": {"type": "ephemeral"}} if is_marked else {})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(WORDS, JSON, max_size=3)


def block(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    whole = st.fixed_dictionaries({"type": st.just(kind), **fields})
    return st.builds(lambda one, more: {**one, **more}, whole, CACHED)


def nullable(what: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | what


TEXT = block("text", text=WORDS)
SOURCE = st.sampled_from(
    [
        {"type": "base64", "media_type": "image/png", "data": PIXEL},
        {"type": "url", "url": "https://example.com/a.jpg"},
    ]
)
IMAGE = block("image", source=SOURCE)
RESULT = block(
    "tool_result",
    tool_use_id=IDS,
    content=nullable(WORDS | st.lists(TEXT | IMAGE, max_size=3)),
    is_error=nullable(st.booleans()),
)
CALL = block("tool_use", id=IDS, name=IDS, input=OBJECTS)
THOUGHT = block("thinking", thinking=WORDS, signature=WORDS) | block("redacted_thinking", data=WORDS)
USER = st.fixed_dictionaries(
    {
        "role": st.just("user"),
        "content": WORDS
        | st.builds(
            lambda results, said: results + said,
            st.lists(RESULT, max_size=2),
            st.lists(TEXT | IMAGE, min_size=1, max_size=3),
        ),
    }
)
ASSISTANT = st.fixed_dictionaries(
    {
        "role": st.just("assistant"),
        "content": WORDS
        | st.builds(
            lambda thought, said, calls: thought + said + calls,
            st.lists(THOUGHT, max_size=1),
            st.lists(TEXT, max_size=2),
            st.lists(CALL, max_size=2),
        ),
    }
)
MESSAGES = st.builds(
    lambda first, pairs: [first, *(turn for pair in pairs for turn in pair)],
    USER,
    st.lists(st.tuples(ASSISTANT, USER), max_size=3),
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "name": IDS,
            "input_schema": st.builds(lambda more: {**more, "type": "object"}, OBJECTS),
            "description": nullable(WORDS),
        }
    ),
    max_size=3,
    unique_by=lambda tool: str(tool["name"]),
)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A valid body."""
    tools = draw(TOOLS)
    choices: list[Any] = [None, {"type": "auto"}, {"type": "none"}]
    if tools:
        choices += [{"type": "any"}, {"type": "tool", "name": tools[0]["name"]}]
    more = {
        "system": draw(nullable(WORDS | st.lists(TEXT, max_size=3))),
        "temperature": draw(nullable(st.floats(0, 1) | st.integers(0, 1))),
        "stop_sequences": draw(nullable(st.lists(WORDS.filter(str.strip), max_size=4))),
        "tool_choice": draw(st.sampled_from(choices)),
        "metadata": draw(nullable(st.fixed_dictionaries({"user_id": WORDS}))),
        "stream": draw(nullable(st.booleans())),
        "top_k": draw(nullable(st.integers(1, 9))),
    }
    told = {"model": "auto", "max_tokens": draw(st.integers(1, 100_000)), "messages": draw(MESSAGES), "tools": tools}
    return {**told, **more}


@st.composite
def broken(draw: st.DrawFn) -> Any:
    """A body that was valid before something came into it that does not belong there."""
    body = draw(bodies())
    _break(draw, body)
    return body


def _break(draw: st.DrawFn, tree: Any) -> None:
    places = [*tree] if isinstance(tree, dict) else [*range(len(tree))]
    if not places:
        return
    place = draw(st.sampled_from(places))
    if isinstance(tree[place], dict | list) and tree[place] and draw(st.integers(0, 3)):
        _break(draw, tree[place])
    else:
        tree[place] = draw(JSON)
