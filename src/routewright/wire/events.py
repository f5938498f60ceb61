"""Stream events of a call (spec 4.1, contract 5), pushed events (spec 6.3, contract 11) and incidents (spec 6.1)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import msgspec
from msgspec.structs import replace

from .account import Durability, Environment, Expect
from .agent import AgentRunCompleted
from .plain import StreamEvent, Struct, name_events
from .request import Budget
from .response import ErrorEnvelope, RouteResponse
from .trace import copied


class StartedRouting(Struct, frozen=True, omit_defaults=True):
    """The routing decision."""

    selected_model: str
    """The model that is called first."""
    fallback_chain: list[str]
    policy_version: str
    ignored_params: list[str] = []
    """Optional parameters that this model's vendor does not support."""


class StartedData(Struct, frozen=True):
    """Trace id and routing of the call."""

    trace_id: str
    routing: StartedRouting


class RouteStarted(StreamEvent, frozen=True, tag="route.started"):
    """First event, sent with the first content: the decision, and the model that was called first."""

    data: StartedData


class OutputData(Struct, frozen=True, gc=False):
    """A piece of text and the number of its attempt."""

    text: str
    attempt: int


class OutputDelta(StreamEvent, frozen=True, tag="output.delta"):
    """A piece of output. A later ``route.fallback`` with ``restart`` discards those of earlier attempts."""

    data: OutputData


class ReasoningData(Struct, frozen=True, omit_defaults=True):
    """A model's reasoning and the number of its attempt."""

    text: str
    """The readable part; may be empty."""
    items: list[dict[str, Any]]
    """The vendor's own items, as in ``reasoning.items`` of the response."""
    provider: str
    attempt: int


class ReasoningDelta(StreamEvent, frozen=True, tag="reasoning.delta"):
    """A model's reasoning, sent with the first text or tool call after it."""

    data: ReasoningData


class ToolCallData(Struct, frozen=True, gc=False):
    """A piece of one tool call and the number of its attempt."""

    index: int
    call_id: str
    name: str
    arguments: str
    attempt: int


class ToolCallDelta(StreamEvent, frozen=True, tag="tool_call.delta"):
    """A piece of a tool call."""

    data: ToolCallData


class FallbackData(Struct, frozen=True):
    """A switch of models. If ``restart`` is true, discard all deltas so far."""

    from_model: str
    to_model: str
    reason: str
    restart: bool


class RouteFallback(StreamEvent, frozen=True, tag="route.fallback"):
    """An attempt failed and another one begins."""

    data: FallbackData


class RouteCompleted(StreamEvent, frozen=True, tag="route.completed"):
    """Last event of a successful stream."""

    data: RouteResponse


class StreamError(StreamEvent, frozen=True, tag="error"):
    """Last event of a failed stream. ``data`` is the error envelope (spec 7)."""

    data: ErrorEnvelope


RouteEvent = RouteStarted | OutputDelta | ReasoningDelta | ToolCallDelta | RouteFallback | RouteCompleted | StreamError
name_events(RouteEvent)


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
    """A request was rejected by its budget (422). A refusal for balance or quota (402) sends no event."""

    type: ClassVar[str] = "router.budget_exceeded"
    trace_id: str
    """The trace of the request."""
    rejected_candidates: list[dict[str, Any]]
    """Rejected models: ``model``, ``reason`` and ``estimated_cost_usd``."""
    budget: Budget | None
    """The request's budget, if any: ``maxCostUsd``, ``maxTokens``."""
    metadata: dict[str, Any]
    """The request's tags."""


class ErrorBurst(Struct, frozen=True):
    """More than 5 % of an account's calls failed in five minutes with at least 20 calls. Sent at most once per five
    minutes."""

    type: ClassVar[str] = "router.error_burst"
    window_seconds: int
    """Length of the window."""
    requests: int
    """Calls in the window."""
    errors: int
    """Calls that returned a 5xx to the caller. Calls served by a fallback do not count."""
    error_rate: float
    """``errors`` / ``requests``."""


class PolicyChanged(Struct, frozen=True):
    """A policy was published, changed or removed."""

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
    """The cache hit rate of an account was too low over an hour with at least 100 look-ups."""

    type: ClassVar[str] = "cache.evicted"
    window_seconds: int
    """Length of the window."""
    hit_rate: float
    """Share of look-ups in the window that were hits, 0 to 1."""
    threshold: float
    """The event is sent below this hit rate."""


class ThresholdCrossed(Struct, frozen=True):
    """An account's monthly charges reached 50, 80 or 100 % of its limit. Sent once a month for each threshold."""

    type: ClassVar[str] = "billing.threshold_crossed"
    period: str
    """``YYYY-MM``."""
    threshold_percent: int
    """50, 80 or 100."""
    spent_usd: float
    """Charges so far this month."""
    limit_usd: float
    """The account's monthly limit."""


class IncidentCreated(Struct, frozen=True):
    """An incident was opened."""

    type: ClassVar[str] = "incident.created"
    incident_id: str
    """``inc_...``."""
    title: str
    """Public description of the problem."""
    severity: str
    """``minor``, ``major`` or ``critical``."""
    started_at: str
    """RFC 3339, UTC, milliseconds."""
    status_url: str | None
    """Page with updates, if any."""


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
    """An event of an account. ``data`` has the details for its ``type``."""

    id: str
    """``evt_...``, increasing with time. The same in every delivery of the event."""
    type: str
    created_at: str
    """RFC 3339, UTC, milliseconds."""
    api_version: Literal["v1"] = "v1"
    data: PushedEvent
    account: str
    """``_system`` if the event belongs to no account."""
    environment: Environment

    def copy(self) -> Event:
        """A copy that shares no list or dict with this event."""
        return replace(self, data=copied(self.data))

    @property
    def stored(self) -> StoredEvent:
        """The event in its stored form."""
        return StoredEvent(
            id=self.id,
            type=self.type,
            created_at=self.created_at,
            api_version=self.api_version,
            data=msgspec.to_builtins(self.data),  # copies what the caller may change, such as an error's detail
            account=self.account,
            environment=self.environment,
        )


class StoredEvent(Struct, frozen=True, kw_only=True):
    """An event as stored: ``data`` in plain types."""

    id: str
    type: str
    created_at: str
    api_version: Literal["v1"] = "v1"
    data: dict[str, Any]
    account: str
    environment: Environment

    @property
    def event(self) -> Event:
        """The typed event. Raises ``KeyError`` if its type is unknown."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return Event(**fields | {"data": msgspec.convert(self.data, _BY_TYPE[self.type])})


_BY_TYPE: dict[str, Any] = {kind.type: kind for kind in get_args(PushedEvent)}


class PutEvent(Struct, frozen=True, tag=True):
    """Store an event for a week. ``Written.created`` is False, and nothing is stored, if it exists or another event
    with the same ``once`` was stored less than ``quiet_s`` ago."""

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
    """None: not resolved yet."""
    status_url: str | None = None
    """Page with updates."""


class PutIncident(Struct, frozen=True, tag=True):
    """Create or replace an incident. Applied under ``SYSTEM_ACCOUNT``."""

    incident: Incident
    expect: Expect | None = None
    durability: Durability = "committed"


class Incidents(Struct, frozen=True, tag=True):
    """The 100 latest incidents, newest first. Queried under ``SYSTEM_ACCOUNT``."""
