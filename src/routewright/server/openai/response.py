"""Answers and models in the shapes of OpenAI."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from routewright._core.trace.ids import milliseconds_of
from routewright.wire import Model, RouteResponse, Tokens, ToolCall

FinishReason = Literal["stop", "length", "tool_calls"]
FINISH: dict[str | None, FinishReason] = {"length": "length", "budget": "length", "tool_calls": "tool_calls"}
"""Why an answer ended, in OpenAI's words; else it stopped of itself."""
_COUNTS = ("X-RateLimit-Limit", "X-RateLimit-Remaining")


class CachedTokens(Struct, frozen=True):
    """Of the input, what the provider had in its prompt cache."""

    cached_tokens: int


class Usage(Struct, frozen=True):
    """What an answer took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class ChatMessage(Struct, frozen=True, kw_only=True):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """Null only beside tool calls."""
    refusal: None = None
    """A refusal is an error here."""
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Choice(Struct, frozen=True, kw_only=True):
    """The one answer."""

    index: Literal[0] = 0
    message: ChatMessage
    logprobs: None = None
    finish_reason: FinishReason


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """What ``POST /openai/v1/chat/completions`` answers."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    """When the call began, in Unix seconds."""
    model: str
    """The one that served it."""
    choices: list[Choice]
    usage: Usage


class OpenAIModel(Struct, frozen=True, kw_only=True):
    """One entry of the list of models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """When it came out, in Unix seconds; 0: not known."""
    owned_by: str
    shutdown_date: str | None = None
    """From when on its vendor serves it no more."""


class ModelList(Struct, frozen=True, kw_only=True):
    """What ``GET /openai/v1/models`` answers."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


def completion_of(response: RouteResponse) -> ChatCompletion:
    """An answer."""
    trace_id, calls = response.trace_id, response.tool_calls
    content = None if calls and not response.output else response.output
    message = ChatMessage(content=content, tool_calls=calls or UNSET)
    return ChatCompletion(
        id=completion_id(trace_id),
        created=created_at(trace_id),
        model=response.routing.selected_model,
        choices=[Choice(message=message, finish_reason=finish_of(response))],
        usage=usage_of(response.routing.tokens),
    )


def finish_of(response: RouteResponse) -> FinishReason:
    """Why it ended. Who calls tools waits for them, whatever word its host has for that."""
    reason = FINISH.get(response.finish_reason, "stop")
    return "tool_calls" if response.tool_calls and reason == "stop" else reason


def usage_of(tokens: Tokens) -> Usage:
    """Tokens of a whole call."""
    return Usage(tokens.input, tokens.output, tokens.input + tokens.output, CachedTokens(tokens.cached))


def completion_id(trace_id: str) -> str:
    """The id of the answer that a trace is of."""
    return f"chatcmpl-{trace_id.removeprefix('tr_')}"


def created_at(trace_id: str) -> int:
    """When a call began, in Unix seconds: of an answer that is told again, when it was made."""
    return milliseconds_of(trace_id) // 1000


def model_of(model: Model) -> OpenAIModel:
    """A model as OpenAI lists it."""
    return OpenAIModel(
        id=model.id,
        created=_seconds(model.released_at),
        owned_by=model.provider,
        shutdown_date=model.deprecated_at,
    )


def limit_headers(told: Mapping[str, str], now: float) -> dict[str, str]:
    """The window that our headers speak of, which is of requests or of tokens, as OpenAI's clients read it."""
    resource, reset = told.get("X-RateLimit-Resource"), told.get("X-RateLimit-Reset")
    if resource is None or reset is None:
        return {}
    headers = {f"{name}-{resource.title()}": told[name] for name in _COUNTS}
    return headers | {f"X-RateLimit-Reset-{resource.title()}": f"{max(0, int(reset) - int(now))}s"}


def _seconds(released_at: str | None) -> int:
    """The day on which a model came out; 0: not known."""
    if not released_at:
        return 0
    day = released_at if len(released_at) > len("YYYY-MM") else f"{released_at}-01"
    try:
        return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return 0
