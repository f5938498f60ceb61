"""Thoughts that servers leave before JSON, kind M: taken off where an ``output_type`` is requested."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright import CallableProvider, Model, Pricing, Router
from routewright._core.structured_output import Fit, Form, split_thought
from routewright.wire import Delta, Finish, Usage
from routewright.wire.json_scan import is_json
from tests.tables import table

pytestmark = pytest.mark.anyio
JSON = '{"x": 1}'
THOUGHTS: list[Any] = [
    pytest.param(f"<think>hm</think>{JSON}", "hm", id="M DeepSeek: with text"),
    pytest.param(f"<think>\n\n</think>\n\n{JSON}", "", id="M Qwen: empty"),
    pytest.param(f"<think>hm</think>\n```json\n{JSON}\n```", "hm", id="M Perplexity: before a fence"),
    pytest.param(f"hm\n</think>\n{JSON}", "hm", id="M vLLM: only the end tag"),
    pytest.param(f"</think>{JSON}", "", id="M SGLang: nothing but the end tag"),
    pytest.param(f"<think>{JSON}", "", id="M llama.cpp: only the start tag"),
    pytest.param(f'<think>a {{"y": 2}} or </think>{JSON}', 'a {"y": 2} or', id="M any: JSON in the thought"),
    pytest.param(f"<think>the </think> tag</think>{JSON}", "the  tag", id="M any: a tag in the thought"),
    pytest.param('<think>hm</think>{"x": "</think>"}', "hm", id="M any: a tag in the JSON"),
    pytest.param('{"x": "<think>hm</think>"}', "", id="M any: a tag only in the JSON"),
    pytest.param(f"<think>a</think><think>b</think>{JSON}", "ab", id="M any: two thoughts"),
    pytest.param(f"Sure!<think>hm</think>{JSON}", "Sure!hm", id="M any: words before"),
    pytest.param(f"<think>hm</think><answer>{JSON}</answer>", "hm", id="M R1 prompts: an answer tag"),
    *(pytest.param(f"<{tag}>hm</{tag}>\n{JSON}", "hm", id=f"M any: {tag}") for tag in
        "thinking thought thoughts reasoning reflection analysis THINK seed:think".split()),
    pytest.param(f"[THINK]hm[/THINK]{JSON}", "hm", id="M Mistral"),
    pytest.param(f"◁think▷hm◁/think▷{JSON}", "hm", id="M Kimi"),
    pytest.param(
        f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>{JSON}<|return|>",
        "hm<|end|><|start|>assistant", id="M gpt-oss"),
    pytest.param(f"<|channel|>final <|constrain|>json<|message|>{JSON}", "", id="M gpt-oss: constrained"),
    pytest.param(f"analysishmassistantfinal{JSON}", "analysishm", id="M gpt-oss without its special tokens"),
    pytest.param(f"<think>hm</think><|begin_of_box|>{JSON}<|end_of_box|>", "hm", id="M GLM: a box"),
    pytest.param(f"<|begin_of_box|>{JSON}<|end_of_box|>", "", id="M GLM: nothing but a box"),
    pytest.param(f"<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>{JSON}<|END_RESPONSE|>", "hm", id="M Cohere"),
]  # fmt: skip


@table(("answer", "thought"), THOUGHTS)
def test_thoughts_before_json_are_taken_off(answer: str, thought: str) -> None:
    schema = {"type": "object", "properties": {"x": {}}}
    value = json.loads(split_thought(answer)[1])
    assert list(value) == ["x"]
    assert Form("X", schema, json.loads).read(answer) == Fit(value, thought)


def test_many_tags_take_linear_time() -> None:
    began = time.process_time()
    for text in ("<think></think>", "</think>{", "<|x|> ", "</answer>\n" + " " * 99):
        split_thought(text * 50_000)
    assert time.process_time() - began < 5.0  # where it is squared, hours


@given(st.text(alphabet="<>/think{}1`", max_size=30))
def test_text_without_json_is_split_nowhere(text: str) -> None:
    thought, rest = split_thought(text)
    assert rest in text
    assert not thought or is_json(rest)


def scripted(answer: list[Any]) -> Router:
    """A Router over a function."""
    model = Model(
        id="x/m", quality=0.5, pricing_per_1m=Pricing(1.0, 1.0), context_window=10_000, structured_output=True
    )
    return Router(providers=[CallableProvider(lambda call: answer, models=[model])])


@dataclasses.dataclass
class Point:
    x: int


async def test_a_thought_before_json_is_kept_as_reasoning_and_not_repaired() -> None:
    said = [Delta("<think>hm"), Delta(f"</think>{JSON}"), Usage(9, 3), Finish("stop")]
    async with scripted(said) as router:
        answer = await router.route("hi", output_type=Point)
    assert (answer.data, answer.output) == (Point(1), f"<think>hm</think>{JSON}")
    assert answer.reasoning is not None
    assert answer.reasoning.text == "hm"
    async with scripted(said) as router:
        plain = await router.route("hi")
    assert (plain.output, plain.reasoning) == (f"<think>hm</think>{JSON}", None)
