"""Stream events of a call (spec 4.1, contract 5), pushed events (spec 6.3, contract 11), and incidents (spec 6.1)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import msgspec
from msgspec.structs import replace

from .account import Durability, Environment, Expect
from .agent import AgentRunCompleted
from .plain import Struct
from .request import Budget
from .response import RouteResponse
from .trace import copied


class StartedRouting(Struct, frozen=True, omit_defaults=True):
    """Routing facts known before the first token."""

    selected_model: str
    """The model called first."""
    fallback_chain: list[str]
    policy_version: str
    ignored_params: list[str] = []
    """Parameters that this model's vendor does not support."""


class StartedData(Struct, frozen=True):
    """The plan."""

    trace_id: str
    routing: StartedRouting


class RouteStarted(Struct, frozen=True):
    """The decision is made and the first model is being called."""

    event: ClassVar[str] = "route.started"
    id: int
    data: StartedData


class OutputData(Struct, frozen=True, gc=False):
    """A piece of text and its attempt."""

    text: str
    attempt: int


class OutputDelta(Struct, frozen=True):
    """A piece of output. A later ``route.fallback`` with ``restart`` voids those of earlier attempts."""

    event: ClassVar[str] = "output.delta"
    id: int
    data: OutputData


class ReasoningData(Struct, frozen=True, omit_defaults=True):
    """Reasoning that precedes the next output, and its attempt."""

    text: str
    """The readable part; may be empty."""
    items: list[dict[str, Any]]
    """The vendor's own items, as in ``reasoning.items`` of the response."""
    provider: str
    attempt: int


class ReasoningDelta(Struct, frozen=True):
    """The model's reasoning, sent when the first text or tool call after it arrives."""

    event: ClassVar[str] = "reasoning.delta"
    id: int
    data: ReasoningData


class ToolCallData(Struct, frozen=True, gc=False):
    """A piece of a tool call and its attempt."""

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
    """Which model replaces which; ``restart``: earlier deltas are void."""

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


RouteEvent = RouteStarted | OutputDelta | ReasoningDelta | ToolCallDelta | RouteFallback | RouteCompleted | StreamError


FallbackReason = Literal["upstream_5xx", "timeout", "budget", "safety"]


class FallbackTriggered(Struct, frozen=True):
    """The primary model failed and a fallback served the request."""

    type: ClassVar[str] = "router.fallback_triggered"
    trace_id: str
    """The trace of the request."""
    primary_model: str
    """The model that was chosen."""
    fallback_model: str
    """The model that answered."""
    reason: FallbackReason
    """Why the primary model did not answer: ``upstream_5xx``, ``timeout``, ``budget`` or ``safety``."""
    primary_latency_ms: float
    """Time of all attempts with the primary model."""
    metadata: dict[str, Any]
    """The request's tags."""


class BudgetRefused(Struct, frozen=True):
    """A request was rejected by its budget (422). A refusal for want of balance or quota (402) is no event."""

    type: ClassVar[str] = "router.budget_exceeded"
    trace_id: str
    """The trace of the request."""
    rejected_candidates: list[dict[str, Any]]
    """Each rejected model: ``model``, ``reason`` and ``estimated_cost_usd``."""
    budget: Budget | None
    """The request's own budget, if it had one: ``maxCostUsd``, ``maxTokens``."""
    metadata: dict[str, Any]
    """The request's tags."""


class ErrorBurst(Struct, frozen=True):
    """More than 5 % of an account's calls in five minutes, at least 20, failed. Sent once in five minutes."""

    type: ClassVar[str] = "router.error_burst"
    window_seconds: int
    """Length of the window."""
    requests: int
    """Calls in the window."""
    errors: int
    """Calls that ended in a 5xx for their caller. One that a fallback rescued does not count."""
    error_rate: float
    """``errors`` / ``requests``."""


class PolicyChanged(Struct, frozen=True):
    """A policy was published for the first time or in another version, or was removed."""

    type: ClassVar[str] = "router.policy_changed"
    policy_id: str
    """``pol_...``."""
    name: str
    """The name of the policy."""
    from_version: str | None
    """Null for a new policy."""
    to_version: str | None
    """Null for a removed policy."""


class CacheEvicted(Struct, frozen=True):
    """Too few of an account's look-ups in the response cache in an hour, at least 100, were hits."""

    type: ClassVar[str] = "cache.evicted"
    window_seconds: int
    """Length of the window."""
    hit_rate: float
    """Share of the look-ups in the window that were hits, 0..1."""
    threshold: float
    """The event is sent below this share."""


class ThresholdCrossed(Struct, frozen=True):
    """An account's charges of a month reached 50, 80 or 100 % of its limit. Sent once a month for each."""

    type: ClassVar[str] = "billing.threshold_crossed"
    period: str
    """``YYYY-MM``."""
    threshold_percent: int
    """50, 80 or 100."""
    spent_usd: float
    """Charges of the month so far."""
    limit_usd: float
    """The account's monthly limit."""


class IncidentCreated(Struct, frozen=True):
    """An incident was opened."""

    type: ClassVar[str] = "incident.created"
    incident_id: str
    """``inc_...``."""
    title: str
    """What happened, for the public."""
    severity: str
    """``minor``, ``major`` or ``critical``."""
    started_at: str
    """RFC 3339, UTC, milliseconds."""
    status_url: str | None
    """A page with updates, if there is one."""


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
    """A pushed event. ``type`` is its kind, ``data`` its particulars."""

    id: str
    """``evt_...``, increasing with time; the same in every delivery of the event."""
    type: str
    created_at: str
    """RFC 3339, UTC, milliseconds."""
    api_version: Literal["v1"] = "v1"
    data: PushedEvent
    account: str
    """``_system``: belongs to no call."""
    environment: Environment

    def copy(self) -> Event:
        """A copy that shares nothing mutable with this event."""
        return replace(self, data=copied(self.data))

    @property
    def stored(self) -> StoredEvent:
        """The event as it is stored."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return StoredEvent(**fields | {"data": msgspec.to_builtins(self.data)})


class StoredEvent(Struct, frozen=True, kw_only=True):
    """An event as it is stored: ``data`` in plain types."""

    id: str
    type: str
    created_at: str
    api_version: Literal["v1"] = "v1"
    data: dict[str, Any]
    account: str
    environment: Environment

    @property
    def event(self) -> Event:
        """The event. Raises ``KeyError`` for an unknown type."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return Event(**fields | {"data": msgspec.convert(self.data, _BY_TYPE[self.type])})


_BY_TYPE: dict[str, Any] = {each.type: each for each in get_args(PushedEvent)}


class PutEvent(Struct, frozen=True, tag=True):
    """Store an event for a week. If it exists, or another with the same ``once`` was stored less than ``quiet_s``
    before, nothing is stored and ``Written.created`` is False."""

    event: StoredEvent
    once: str | None = None
    quiet_s: float = 0.0
    at: float = 0.0
    """Unix seconds."""
    durability: Durability = "buffered"


Severity = Literal["minor", "major", "critical"]


class Incident(Struct, frozen=True, kw_only=True):
    """A problem that affects many accounts."""

    id: str
    """``inc_...``."""
    title: str
    """Public description."""
    severity: Severity
    started_at: str
    """RFC 3339, UTC, milliseconds."""
    resolved_at: str | None = None
    """None: it is still open."""
    status_url: str | None = None
    """URL of a page with updates."""


class PutIncident(Struct, frozen=True, tag=True):
    """Store an incident, replacing its earlier state. Written under ``SYSTEM_ACCOUNT``."""

    incident: Incident
    expect: Expect | None = None
    durability: Durability = "committed"


class Incidents(Struct, frozen=True, tag=True):
    """Returns a list of the 100 latest incidents, newest first. Queried under ``SYSTEM_ACCOUNT``."""
