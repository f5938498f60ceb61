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
    """What is known of the routing before the first token."""

    selected_model: str
    """The one that is asked first."""
    fallback_chain: list[str]
    policy_version: str
    ignored_params: list[str] = []
    """Wishes that the vendor of this model has no field for."""


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


class ReasoningData(Struct, frozen=True, omit_defaults=True):
    """What the model thought before what follows, and the attempt it belongs to."""

    text: str
    """The readable part, perhaps empty."""
    items: list[dict[str, Any]]
    """The vendor's own items, as ``reasoning.items`` of the response will have them."""
    provider: str
    attempt: int


class ReasoningDelta(Struct, frozen=True):
    """What the model thought, told once the first word or tool call after it comes."""

    event: ClassVar[str] = "reasoning.delta"
    id: int
    data: ReasoningData


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
    """Each model that was ruled out: ``model``, ``reason`` and ``estimated_cost_usd``."""
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
