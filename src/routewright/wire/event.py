"""Stream events of a route call (spec 4.1, contract 5). Each has ``event``, an increasing ``id`` and ``data``."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct

from .route import RouteResponse


class StartedRouting(Struct, frozen=True):
    """What is known of the routing before the first token."""

    selected_model: str
    """The one that is asked first."""
    fallback_chain: list[str]
    policy_version: str


class StartedData(Struct, frozen=True):
    """The plan."""

    trace_id: str
    routing: StartedRouting


class RouteStarted(Struct, frozen=True):
    """The decision is taken and the first model is being called."""

    event: ClassVar[str] = "route.started"
    id: int
    data: StartedData


class OutputData(Struct, frozen=True, gc=False):
    """Text, and the attempt it belongs to."""

    text: str
    attempt: int


class OutputDelta(Struct, frozen=True):
    """A piece of output. A later ``route.fallback`` with ``restart`` voids those of earlier attempts."""

    event: ClassVar[str] = "output.delta"
    id: int
    data: OutputData


class ToolCallData(Struct, frozen=True, gc=False):
    """A piece of one tool call, and the attempt it belongs to."""

    index: int
    call_id: str
    name: str
    arguments: str
    attempt: int


class ToolCallDelta(Struct, frozen=True):
    """A piece of a tool call."""

    event: ClassVar[str] = "tool_call.delta"
    id: int
    data: ToolCallData


class FallbackData(Struct, frozen=True):
    """Which model takes over from which; ``restart``: the deltas so far are void."""

    from_model: str
    to_model: str
    reason: str
    restart: bool


class RouteFallback(Struct, frozen=True):
    """An attempt failed and another begins."""

    event: ClassVar[str] = "route.fallback"
    id: int
    data: FallbackData


class RouteCompleted(Struct, frozen=True):
    """The end of a stream that succeeded."""

    event: ClassVar[str] = "route.completed"
    id: int
    data: RouteResponse


class StreamError(Struct, frozen=True):
    """The end of a stream that failed; ``data`` is the error envelope (spec 7)."""

    event: ClassVar[str] = "error"
    id: int
    data: dict[str, Any]


RouteEvent = RouteStarted | OutputDelta | ToolCallDelta | RouteFallback | RouteCompleted | StreamError
