"""An answer as a message of the Messages API."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from routewright.wire import RouteResponse, Tokens, ToolCall

StopReason = Literal["end_turn", "max_tokens", "tool_use", "refusal"]

UNREAD = "INVALID_JSON"
"""The name under which arguments that are no JSON object are told: Anthropic has clients say it so, too."""
_REASONS: dict[str | None, StopReason] = {
    "length": "max_tokens",
    "budget": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
"""Any other is a natural end. That a stop sequence ended it is not known here: most vendors do not say."""
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class MessageUsage(Struct, frozen=True):
    """Token counts. Those of the input are told in parts that have nothing in common."""

    input_tokens: int
    """Neither read from a cache of the provider's nor, as far as it said so, written to one."""
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    """What the model said."""

    text: str


class ToolUseBlock(Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A tool that the model wants called."""

    id: str
    name: str
    input: dict[str, Any]


class ModelMessage(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """What ``POST /v1/messages`` answers."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    """The one that served the request."""
    content: list[TextBlock | ToolUseBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None = None
    usage: MessageUsage


def message_of(response: RouteResponse) -> ModelMessage:
    """The whole answer."""
    said = [TextBlock(response.output)] if response.output else []
    return ModelMessage(
        id=message_id(response.trace_id),
        model=response.routing.selected_model,
        content=[*said, *map(_tool_use, response.tool_calls or ())],
        stop_reason=stop_reason_of(response),
        usage=usage_of(response.routing.tokens),
    )


def message_id(trace_id: str) -> str:
    """The id of a message, by which its trace is found again."""
    return f"msg_{trace_id.partition('_')[2]}"


def stop_reason_of(response: RouteResponse) -> StopReason:
    """Why the answer ended. With calls in it clients look for ``tool_use``, whatever the vendor calls its end."""
    reason = _REASONS.get(response.finish_reason, "end_turn")
    return "tool_use" if reason == "end_turn" and response.tool_calls else reason


def usage_of(tokens: Tokens) -> MessageUsage:
    """Token counts of an answer. What was written to a cache of the provider's counts as input like any other."""
    return MessageUsage(tokens.input - tokens.cached, tokens.output, tokens.cached)


def input_of(arguments: str) -> dict[str, Any] | None:
    """The arguments of a call; None: they are no JSON object."""
    try:
        return _decode(arguments.strip() or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _tool_use(call: ToolCall) -> ToolUseBlock:
    arguments = call.function.arguments
    given = input_of(arguments)
    return ToolUseBlock(call.id, call.function.name, {UNREAD: arguments} if given is None else given)
