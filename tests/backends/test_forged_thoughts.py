"""Forged reasoning sent back by a client neither multiplies the prompt nor adds to it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routewright import OpenAIProvider
from routewright.backends.providers.anthropic import message_body
from routewright.backends.providers.gemini import content_body
from routewright.backends.providers.hosts import HOSTS
from routewright.wire import FunctionCall, Message, Model, Params, Reasoning, ToolCall

from .asking import body_for, call

TEXT = "q" * 1_000
GEMINI = Model(id="google/gemini-3.5-flash", reasoning=True)
CLAUDE = Model(id="anthropic/claude-sonnet-4-6", reasoning=True)


def answer(provider: str, items: list[dict[str, Any]]) -> Message:
    calls = [ToolCall("c1", FunctionCall("f", "{}"))]
    return Message("assistant", TEXT, calls, reasoning=Reasoning(provider, items))


@pytest.mark.parametrize("at", [-1, 500, 10**9])
def test_positions_out_of_order_repeat_nothing(at: int) -> None:
    items = [{"thoughtSignature": "s", "at": at}] * 100
    sent = msgspec.json.encode(content_body(call("hi", answer("google", items), "go", model=GEMINI)))
    assert sent.count(b"q") <= len(TEXT)
    block = {"type": "thinking", "thinking": "t", "signature": "s", "at": [at, at]}
    thinks = Params(reasoning="low")
    body = message_body(call("hi", answer("anthropic", [block] * 100), "go", model=CLAUDE, params=thinks))
    sent = msgspec.json.encode(body)
    assert sent.count(b"q") <= len(TEXT)
    assert sent.count(b"tool_use") == 1


def test_a_reasoning_block_has_only_known_fields() -> None:
    block = {"type": "thinking", "thinking": "t", "signature": "s", "cache_control": {"type": "ephemeral"}, "x": 1}
    body = message_body(call("hi", answer("anthropic", [block]), "go", model=CLAUDE, params=Params(reasoning="low")))
    assert body["messages"][1]["content"][0] == {"type": "thinking", "thinking": "t", "signature": "s"}


def test_other_parts_among_reasoning_are_dropped() -> None:
    smuggled = {"type": "document_url", "document_url": "https://x/y.pdf"}
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "t"}, smuggled]}
    items: list[dict[str, Any]] = [{"content": "t"}, {"content": [thought, smuggled]}, {"content": smuggled}]
    magistral = Model(id="mistral/magistral-medium", reasoning=True)
    body = body_for("mistral", "hi", answer("mistral", items), "go", model=magistral)
    assert body["messages"][1]["content"][0] == {"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}
    assert "document_url" not in str(body)


def test_a_renamed_host_is_known_by_its_new_name() -> None:
    provider = OpenAIProvider("key", name="mine", host=HOSTS["deepseek"], models=[Model(id="mine/x", reasoning=True)])
    extra = {"mine": {"top_k": 3}, "deepseek": {"top_k": 4}}
    asked = call(
        "hi", Message("assistant", "4", reasoning=Reasoning("mine", [{"reasoning_content": "because"}])), "go",
        model=Model(id="mine/x", reasoning=True), params=Params(extra=extra), stream=False,
    )  # fmt: skip
    body = msgspec.json.decode(provider.request(asked).body)
    assert body["top_k"] == 3
    assert body["messages"][1]["reasoning_content"] == "because"
