"""What is taken wherever a request is."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from .wire import (
    Budget,
    CacheOpts,
    Fallback,
    Goal,
    Message,
    NamedToolChoice,
    Params,
    RouteRequest,
    Strategy,
    Tool,
)

RequestLike = str | Sequence[Message | Mapping[str, Any]] | Mapping[str, Any] | RouteRequest
"""What is taken wherever a request is: a prompt, messages, a dict in wire spelling, a ``RouteRequest``."""


RequestsLike = Iterable[RequestLike] | AsyncIterable[RequestLike]
"""Many of them, perhaps made while the first are answered."""


class SharedOptions(TypedDict, total=False):
    """Fields of the route request that hold for each of many alike; dicts among them are in wire spelling."""

    goal: Goal | None
    strategy: Strategy | None
    policy_id: str | None
    models: Sequence[str] | None
    prefer: str | Sequence[str] | None
    fallback: Fallback | Mapping[str, Any] | None
    cache: bool | CacheOpts | Mapping[str, Any] | None
    tools: Sequence[Tool | Mapping[str, Any]] | None
    tool_choice: str | NamedToolChoice | Mapping[str, Any] | None
    params: Params | Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    timeout_ms: float | None


class Options(SharedOptions, total=False):
    """Fields of the route request as keywords (spec 2.1); dicts among them are in wire spelling."""

    budget: Budget | Mapping[str, Any] | None
    idempotency_key: str | None
