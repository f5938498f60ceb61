"""Calls of all kinds, valid and invalid, for property tests."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from routewright.wire import (
    FunctionCall,
    ImagePart,
    ImageUrl,
    Message,
    Model,
    Params,
    TextPart,
    Tool,
    ToolCall,
    UpstreamCall,
)

words = st.text(max_size=8)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True)
objects = st.dictionaries(names, st.none() | st.booleans() | st.integers() | words | st.lists(words, max_size=2))
_urls = st.sampled_from(["https://x.example/a.webp", "https://x.example/b", "data:image/png;base64,QUJD"])
_images = st.builds(ImagePart, st.builds(ImageUrl, _urls, st.sampled_from([None, "auto", "low", "high"])))
_texts = st.builds(TextPart, words)
_spoken: dict[Any, st.SearchStrategy[Any]] = {
    "user": words | st.lists(_texts | _images, min_size=1, max_size=3),
    "assistant": words | st.lists(_texts, min_size=1, max_size=3),
    "system": words,
    "developer": words,
}


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """System messages anywhere, turns in any order, and results for every call."""
    said = [Message("user", draw(_spoken["user"]))]
    for turn in draw(st.lists(st.sampled_from(["tools", *_spoken]), max_size=6)):
        if turn == "tools":
            ids = draw(st.lists(names, min_size=1, unique=True))
            asked = [ToolCall(id, FunctionCall(draw(names), json.dumps(draw(objects)))) for id in ids]
            said.append(Message("assistant", draw(st.none() | words), asked))
            results = [json.dumps(draw(objects)), draw(words)]
            said += [Message("tool", draw(st.sampled_from(results)), tool_call_id=id) for id in ids]
        else:
            said.append(Message(turn, draw(_spoken[turn])))
    return said


_odd_images = st.builds(ImagePart, st.builds(ImageUrl, st.just("data:image/svg+xml;base64,AA")))
_odd_parts = st.lists(_texts | _images | _odd_images, min_size=1, max_size=3)
_ids = st.sampled_from(["c1", "a.b", "toolu_1"])
_arguments = st.sampled_from(["{}", '{"a": 1}', "[", ""])
_asked = st.lists(st.builds(ToolCall, _ids, st.builds(FunctionCall, names, _arguments)), min_size=1, max_size=2)
scraps = st.lists(
    st.builds(Message, st.just("user"), words | _odd_parts)
    | st.builds(Message, st.sampled_from(["system", "developer"]), words | st.lists(_texts, min_size=1, max_size=3))
    | st.builds(Message, st.just("assistant"), st.none() | words, _asked)
    | st.builds(Message, st.just("tool"), words, tool_call_id=_ids),
    min_size=1,
    max_size=5,
)
"""What need not fit together."""

_TEXT = {"type": "string", "maxLength": 3}
_properties = st.lists(names, max_size=2).map(lambda named: dict.fromkeys(named, _TEXT))
_schemas = st.just({"type": "object"}) | _properties.map(lambda made: {"type": "object", "properties": made})
_params = st.builds(
    Params,
    temperature=st.none() | st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1),
    stop=st.none() | words | st.lists(words, max_size=5),
    seed=st.none() | st.integers(0, 2**31 - 1).map(float),
    response_format=st.none()
    | st.sampled_from([{"type": "text"}, {"type": "json_object"}])
    | _schemas.map(lambda schema: {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}),
)
_strict = st.sampled_from([None, False, True])
_tools = st.builds(Tool, name=names, description=st.none() | words, parameters=st.none() | _schemas, strict=_strict)


def calls(messages: st.SearchStrategy[list[Message]], *models: Model) -> st.SearchStrategy[UpstreamCall]:
    """Calls of some models with such messages, and anything else."""
    return st.builds(
        UpstreamCall,
        model=st.sampled_from(models),
        messages=messages,
        params=_params,
        tools=st.none() | st.lists(_tools, max_size=3),
        tool_choice=st.none() | st.sampled_from(["auto", "none", "required"]) | names,
        max_output_tokens=st.none() | st.integers(1, 10**6),
        deadline=st.just(60.0),
        stream=st.booleans(),
    )
