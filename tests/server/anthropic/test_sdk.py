"""The official SDK, unmodified except for its base URL."""

from __future__ import annotations

from typing import Any

import anthropic

from routewright import Message
from routewright.testing import ScriptedProvider
from routewright.testing.provider import Turn
from routewright.wire import Delta, Finish, ToolDelta, UpstreamCall, Usage
from tests.tables import table

from .clients import ASKED, WEATHER, model, sandbox, scripted, sdk

RAIN = "It rains in Oslo."


def weather(call: UpstreamCall) -> Turn:
    """Asks for the weather, and tells it once it knows."""
    if call.messages[-1].role == "tool":
        return [Delta(RAIN), Usage(20, 5, 4), Finish("stop")]
    asked = [ToolDelta(0, "", "call_1", "weather"), ToolDelta(0, '{"city": '), ToolDelta(0, '"Oslo"}')]
    return [Delta("Let me look."), *asked, Usage(10, 5), Finish("tool_calls")]


def test_the_raw_stream_has_the_events_in_their_order() -> None:
    with sdk(sandbox({"Hi": "Hello there"})) as client:
        kinds = [event.type for event in client.messages.create(**ASKED, stream=True)]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@table("streams", [False, True])
def test_a_tool_loop_ends_with_the_answer(streams: bool) -> None:
    provider = ScriptedProvider(weather, models=[model()])
    site = scripted(provider)
    turns: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    asked: dict[str, Any] = {"model": "auto", "max_tokens": 100, "messages": turns, "tools": [WEATHER]}
    with sdk(site, site.key()) as client:
        first = said(client, asked, streams)
        assert first.stop_reason == "tool_use"
        text, call = first.content
        assert (text.type, call.type) == ("text", "tool_use")
        assert (call.name, call.input) == ("weather", {"city": "Oslo"})
        turns.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]})
        turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Rain"}]})
        last = said(client, asked, streams)
    assert last.content[0].text == RAIN
    assert (last.usage.input_tokens, last.usage.cache_read_input_tokens, last.usage.output_tokens) == (16, 4, 5)
    shown = provider.calls[-1].messages
    assert [message.role for message in shown] == ["user", "assistant", "tool"]
    assert shown[-1] == Message("tool", "Rain", tool_call_id="call_1")


def said(client: anthropic.Anthropic, asked: dict[str, Any], streams: bool) -> Any:
    if not streams:
        return client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        return stream.get_final_message()


def test_the_beta_client_is_answered() -> None:
    with sdk(sandbox({"Hi": "Hello"})) as client:
        message = client.beta.messages.create(**ASKED, betas=["interleaved-thinking-2025-05-14"])
    assert message.content[0].type == "text"


def test_tokens_are_counted_before_a_call() -> None:
    asked = {name: value for name, value in ASKED.items() if name != "max_tokens"}
    with sdk(sandbox()) as client:
        few = client.messages.count_tokens(**{**asked, "model": "openai/gpt-4.1"})
        many = client.messages.count_tokens(**{**asked, "model": "openai/gpt-4.1", "tools": [WEATHER]})
        chosen = client.messages.with_raw_response.count_tokens(**asked)
        claude = client.messages.with_raw_response.count_tokens(**{**asked, "model": "claude-opus-4-6"})
        exact = client.messages.with_raw_response.count_tokens(**{**asked, "model": "openai/gpt-4.1"})
    assert few.input_tokens == 8  # "Hi" is one token, around it are seven
    assert many.input_tokens > 30
    assert chosen.headers["X-Routewright-Model"]
    assert exact.headers["X-Routewright-Input-Tokens"] == "8"
    low, high = map(int, claude.headers["X-Routewright-Input-Tokens"].split("-"))
    assert low <= claude.parse().input_tokens <= high
