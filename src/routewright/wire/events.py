"""Stream events of a call (spec 4.1, contract 5), pushed events (spec 6.3, contract 11), and incidents (spec 6.1)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .account import Durability, Environment, Expect
from .agent import AgentRunCompleted
from .request import Budget
from .response import RouteResponse
from .trace import copied


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


FallbackReason = Literal["upstream_5xx", "timeout", "budget", "safety"]


class FallbackTriggered(Struct, frozen=True):
    """The primary model failed and a fallback served the request."""

    type: ClassVar[str] = "router.fallback_triggered"
    trace_id: str
    primary_model: str
    fallback_model: str
    reason: FallbackReason
    primary_latency_ms: float
    metadata: dict[str, Any]


class BudgetRefused(Struct, frozen=True):
    """A request was rejected by a budget."""

    type: ClassVar[str] = "router.budget_exceeded"
    trace_id: str
    rejected_candidates: list[dict[str, Any]]
    budget: Budget | None
    metadata: dict[str, Any]


class ErrorBurst(Struct, frozen=True):
    """Too many calls of an account failed of late (5xx)."""

    type: ClassVar[str] = "router.error_burst"
    window_seconds: int
    requests: int
    errors: int
    error_rate: float


class PolicyChanged(Struct, frozen=True):
    """A policy was published, in another version than before or for the first time, or it was taken away."""

    type: ClassVar[str] = "router.policy_changed"
    policy_id: str
    name: str
    from_version: str | None
    """None: it is new."""
    to_version: str | None
    """None: it is gone."""


class CacheEvicted(Struct, frozen=True):
    """Too few look-ups in the response cache of an account were hits of late."""

    type: ClassVar[str] = "cache.evicted"
    window_seconds: int
    hit_rate: float
    threshold: float


class ThresholdCrossed(Struct, frozen=True):
    """What an account was charged in a month has reached a share of its limit."""

    type: ClassVar[str] = "billing.threshold_crossed"
    period: str
    """``YYYY-MM``."""
    threshold_percent: int
    spent_usd: float
    limit_usd: float


class IncidentCreated(Struct, frozen=True):
    """An incident was opened."""

    type: ClassVar[str] = "incident.created"
    incident_id: str
    title: str
    severity: str
    started_at: str
    status_url: str | None


PushedEvent = (
    FallbackTriggered
    | BudgetRefused
    | ErrorBurst
    | PolicyChanged
    | AgentRunCompleted
    | CacheEvicted
    | ThresholdCrossed
    | IncidentCreated
)


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened, and in whose call. ``type`` says what, ``data`` the particulars."""

    id: str
    """``evt_...``, later ones greater; it stays the same however often the event is told."""
    type: str
    created_at: str
    """RFC 3339, UTC, milliseconds."""
    api_version: Literal["v1"] = "v1"
    data: PushedEvent
    account: str
    """``_system``: of no call."""
    environment: Environment

    def copy(self) -> Event:
        """The same event, of which nothing that can be changed is shared with this one."""
        return replace(self, data=copied(self.data))

    @property
    def stored(self) -> StoredEvent:
        """As it is kept."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return StoredEvent(**fields | {"data": msgspec.to_builtins(self.data)})


class StoredEvent(Struct, frozen=True, kw_only=True):
    """An event as it is kept: ``data`` in plain types."""

    id: str
    type: str
    created_at: str
    api_version: Literal["v1"] = "v1"
    data: dict[str, Any]
    account: str
    environment: Environment

    @property
    def event(self) -> Event:
        """The event itself. Raises ``KeyError`` for one of an unknown type."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return Event(**fields | {"data": msgspec.convert(self.data, _BY_TYPE[self.type])})


_BY_TYPE: dict[str, Any] = {each.type: each for each in get_args(PushedEvent)}


class PutEvent(Struct, frozen=True, tag=True):
    """Keep an event, unless it is kept already, or another was under the same ``once`` less than ``quiet_s`` before:
    then ``Written.created`` is False. Events are kept for a week."""

    event: StoredEvent
    once: str | None = None
    quiet_s: float = 0.0
    at: float = 0.0
    """Unix seconds."""
    durability: Durability = "buffered"


Severity = Literal["minor", "major", "critical"]


class Incident(Struct, frozen=True, kw_only=True):
    """Something that goes wrong for many."""

    id: str
    """``inc_...``."""
    title: str
    """What the public is told."""
    severity: Severity
    started_at: str
    """RFC 3339, UTC, milliseconds."""
    resolved_at: str | None = None
    """None: it goes on."""
    status_url: str | None = None
    """Where more is said of it."""


class PutIncident(Struct, frozen=True, tag=True):
    """Keep an incident, in place of what was said of it before. Said under ``SYSTEM_ACCOUNT``."""

    incident: Incident
    expect: Expect | None = None
    durability: Durability = "committed"


class Incidents(Struct, frozen=True, tag=True):
    """A list of the 100 incidents that began last, newest first. Asked under ``SYSTEM_ACCOUNT``."""
