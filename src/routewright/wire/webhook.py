"""Webhook endpoints, deliveries, and what a receiver gets (spec 6, contract 11)."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from .account import Durability, Environment, Expect, Secret
from .events import StoredEvent

EventType = Literal[
    "router.fallback_triggered",
    "router.budget_exceeded",
    "router.error_burst",
    "router.policy_changed",
    "agent.run_completed",
    "cache.evicted",
    "billing.threshold_crossed",
    "incident.created",
]
SignatureProfile = Literal["service", "standard"]  # ``service``: spec 6.4; ``standard``: Standard Webhooks.
DeliveryState = Literal["in_flight", "waiting", "delivered", "rejected", "failed_delivery"]


class SealedSecret(Struct, frozen=True):
    """A signing secret as it is stored: encrypted with a key derived from the root secret."""

    sealed: str
    """Base64."""
    expires_at: float | None = None
    """Unix seconds; set when the secret has been replaced by a newer one."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """A URL that receives an account's events. Events of no account, such as incidents, go to all that select them."""

    id: str
    """``whe_...``"""
    account: str
    environment: Environment = "production"
    """Receives events of calls in this environment."""
    url: str
    events: tuple[EventType, ...]
    profile: SignatureProfile = "service"
    created_at: str
    disabled_at: str | None = None
    secrets: tuple[SealedSecret, ...]
    """Newest first; every attempt is signed with each that has not expired."""


class NewEndpoint(Struct, frozen=True):
    """An endpoint with the signing secret that was just made for it."""

    secret: Secret
    """For the receiver: hand on what its ``reveal`` gives. It is not shown again."""
    endpoint: Endpoint


class PutEndpoint(Struct, frozen=True, tag=True):
    """Store an endpoint of the account. Disabling one ends its pending deliveries as ``failed_delivery``."""

    endpoint: Endpoint
    expect: Expect | Endpoint | None = None
    """An ``Endpoint``: fail unless the stored one equals it."""
    at: float = 0.0
    """Unix seconds."""
    durability: Durability = "committed"


class DeleteEndpoint(Struct, frozen=True, tag=True):
    """Remove an endpoint of the account and its deliveries."""

    id: str
    durability: Durability = "committed"


class Endpoints(Struct, frozen=True, tag=True):
    """A list of the account's endpoints, oldest first."""

    of_all: bool = False
    """Those of all accounts; asked under ``SYSTEM_ACCOUNT``."""


class DeliveryAttempt(Struct, frozen=True):
    """One POST to an endpoint."""

    at: str
    """RFC 3339, UTC, milliseconds: when it began."""
    duration_ms: float
    status: int | None = None
    """The endpoint's answer, if there was one."""
    error: str | None = None
    """Why there was none."""


class Delivery(Struct, frozen=True, kw_only=True):
    """An event on its way to an endpoint."""

    event_id: str
    event_type: str
    endpoint_id: str
    state: DeliveryState
    attempts: tuple[DeliveryAttempt, ...] = ()
    """Oldest first, those before a replay included."""
    next_attempt_at: str | None = None
    """Of one that is ``waiting``; None: as soon as possible."""
    ended_at: str | None = None

    @property
    def key(self) -> str:
        """Its place in a list."""
        return f"{self.event_id}/{self.endpoint_id}"


class Deliveries(Struct, frozen=True, tag=True):
    """The deliveries to the account's endpoints, newest event first: pending ones and those that ended within a day."""

    endpoint_id: str | None = None
    state: DeliveryState | None = None


class ClaimDeliveries(Struct, frozen=True, tag=True, kw_only=True):
    """Lease deliveries that are due, at most ``limit``: endpoints in turn, oldest event first. Applied under
    ``SYSTEM_ACCOUNT``; the result is in ``Written.claimed``. A lease that has run out is due again."""

    lease: str
    """Unique to this claim."""
    at: float
    """Unix seconds: now."""
    until: float
    """When the lease ends."""
    limit: int
    per_endpoint: int
    """The most for one endpoint."""
    room: dict[str, int] = {}
    """The most for particular endpoints, in place of ``each``."""
    failing: frozenset[str] = frozenset()
    """Endpoints that may have ``failing_limit`` together."""
    failing_limit: int = 0
    per_account: int = 1_000_000
    """The most for one account. Only where no other account has anything due, it may have all but so many of
    ``limit``."""
    account_room: dict[str, int] = {}
    """The most for particular accounts, in place of ``per_account``."""
    durability: Durability = "buffered"


class ClaimedDelivery(Struct, frozen=True):
    """What an attempt needs."""

    event: StoredEvent
    endpoint: Endpoint
    tries: int
    """Attempts since the delivery, or its last replay, began."""


class Claimed(Struct, frozen=True):
    """The deliveries that a claim leased."""

    deliveries: tuple[ClaimedDelivery, ...] = ()
    next_at: float | None = None
    """Unix seconds: when the next delivery or lease is due at an endpoint that there was room for."""


class EndAttempt(Struct, frozen=True, tag=True, kw_only=True):
    """Record an attempt. Applied under ``SYSTEM_ACCOUNT``; ignored unless the delivery is still under this lease."""

    endpoint_id: str
    event_id: str
    lease: str
    state: DeliveryState
    attempt: DeliveryAttempt | None
    """None: no attempt was completed; the delivery is handed back."""
    next_at: float | None = None
    """Unix seconds; of ``waiting``."""
    at: float
    """Unix seconds: now."""
    durability: Durability = "buffered"


class ReplayDeliveries(Struct, frozen=True, tag=True):
    """Start deliveries anew, due at once: all that an endpoint has not accepted, or that of one event, accepted or not.
    Not those that are in flight, nor those that ended a day ago. ``Written.count`` says how many."""

    endpoint_id: str
    event_id: str | None = None
    at: float = 0.0
    """Unix seconds."""
    durability: Durability = "committed"


class WebhookAnswer(Struct, frozen=True):
    """An endpoint's answer to one POST."""

    status: int
    retry_after_s: float | None = None
    """What its ``Retry-After`` asks for."""


class WebhookEvent(Struct, frozen=True, order=True):
    """The body of a delivery (spec 6.3). Events sort by ``created_at``."""

    created_at: str
    """RFC 3339, UTC, milliseconds."""
    id: str
    """The same in every delivery of the event."""
    type: str
    """An ``EventType``, or one that a later version added."""
    data: dict[str, Any]
    """Particulars, by type."""
    api_version: str = "v1"
