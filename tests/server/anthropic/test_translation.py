"""Every body is translated or refused, and a translated one reaches Anthropic with its meaning unchanged."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from routewright import Model, Params, Router
from routewright._core.request.compatibility import complete_tool
from routewright._core.request.rules import complete_request
from routewright._core.tokens.estimate import bounds_of
from routewright.backends.providers.anthropic import message_body
from routewright.errors import ProviderFault, ValidationFailed
from routewright.server.anthropic import FAILED, MessageCall
from routewright.server.vendor_requests import Directory, ModelNotFound
from routewright.wire import RouteRequest, Tool, UpstreamCall

from .bodies import JSON, bodies, broken

ROUTER = Router.sandbox()
KNOWN = Directory(ROUTER.model_names(), ROUTER.models, ROUTER.caller_extra)
CLAUDE = Model(id="anthropic/claude-sonnet-4-5")


def translated(body: Any) -> RouteRequest:
    request = complete_request(MessageCall(KNOWN).decode(msgspec.json.encode(body)))
    bounds_of(request)
    return request


@given(bodies())
def test_every_valid_body_translates(body: dict[str, Any]) -> None:
    translated(body)


@given(broken() | JSON | st.dictionaries(st.sampled_from(["model", "messages", "max_tokens", "tools"]), JSON))
def test_every_invalid_body_is_refused_as_invalid(body: Any) -> None:
    reading = MessageCall(KNOWN)
    try:
        bounds_of(complete_request(reading.decode(msgspec.json.encode(body))))
    except (ModelNotFound, ValidationFailed) as error:
        if reading.words is not None:
            reading.words.error(error)


@given(bodies())
def test_a_body_reaches_anthropic_unchanged(body: dict[str, Any]) -> None:
    request = translated(body)
    params = request.params or Params()
    cap = int(params.max_output_tokens or 0)
    call = UpstreamCall(
        CLAUDE, request.messages, params, request.tools, request.tool_choice, cap, 0.0, stream=request.stream
    )
    try:
        sent = msgspec.json.decode(msgspec.json.encode(message_body(call)))
    except ProviderFault:
        assert not meant(body)["messages"]  # nothing but blanks: the API itself would refuse it
        return
    assert words(blocks(sent.get("system"))) == words(blocks(meant(body).get("system")))
    assert turns(sent["messages"]) == with_ids_as_sent(meant(body)["messages"], sent["messages"])
    for name in ("max_tokens", "stream", "tools"):
        assert sent.get(name) == meant(body).get(name), name
    assert sent.get("temperature") == body["temperature"]
    assert sent.get("stop_sequences") == (body["stop_sequences"] or None)
    assert sent.get("tool_choice") == (body["tool_choice"] if body["tools"] else None)


def meant(body: dict[str, Any]) -> dict[str, Any]:
    """What a body says, in one of the several ways in which it may be said."""
    told: dict[str, Any] = {"max_tokens": body["max_tokens"], "messages": turns(body["messages"])}
    texts = "\n\n".join(each["text"] for each in blocks(body["system"]))
    if texts.strip():
        told["system"] = texts
    if body["stream"]:
        told["stream"] = True
    if body["tools"]:
        told["tools"] = [{name: value for name, value in tool.items() if value is not None} for tool in body["tools"]]
        for tool in told["tools"]:
            schema = {"type": "object"} | tool["input_schema"]
            tool["input_schema"] = complete_tool(Tool(name="f", parameters=schema)).parameters
    return told


def with_ids_as_sent(turns: list[dict[str, Any]], sent: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns, with the ids that were sent where calls share one, which the API refuses."""
    ids = [block["id"] for turn in turns for block in turn["content"] if block["type"] == "tool_use"]
    if len({*ids}) < len(ids):
        for turn, other in zip(turns, sent, strict=True):
            for block, its in zip(turn["content"], other["content"], strict=True):
                block |= {name: its[name] for name in ("id", "tool_use_id") if name in block}
    return turns


def turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    merged: list[dict[str, Any]] = []
    for message in messages:
        content = [said for each in blocks(message["content"]) if (said := plain(each)) is not None]
        if content and merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += content
        elif content:
            merged.append({"role": message["role"], "content": content})
    for turn in merged:
        turn["content"].sort(key=lambda each: each["type"] != "tool_result")
    if merged and merged[-1]["role"] == "assistant" and merged[-1]["content"][-1]["type"] == "text":
        last = merged[-1]["content"][-1]
        last["text"] = last["text"].rstrip()  # the API refuses words to go on with that end with white space
    return merged


def words(content: list[dict[str, Any]]) -> list[str]:
    """What is said, however it is cut and spaced."""
    return " ".join(each["text"] for each in content).split()


def blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def plain(block: dict[str, Any]) -> dict[str, Any] | None:
    """A block without what is ignored; None for what says nothing."""
    match block["type"]:
        case "text" if block["text"].strip():
            return {"type": "text", "text": block["text"]}
        case "text" | "thinking" | "redacted_thinking":
            return None
        case "tool_result":
            told = {"type": "tool_result", "tool_use_id": block["tool_use_id"]}
            content = failed(blocks(block.get("content"))) if block.get("is_error") else blocks(block.get("content"))
            inner = [said for each in content if (said := plain(each)) is not None]
            return {**told, "content": inner} if inner else told
        case _:
            return {name: value for name, value in block.items() if name != "cache_control"}


def failed(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if content and content[0].get("text"):
        return [{"type": "text", "text": f"{FAILED}: {content[0]['text']}"}, *content[1:]]
    return [{"type": "text", "text": f"{FAILED}."}, *content]
