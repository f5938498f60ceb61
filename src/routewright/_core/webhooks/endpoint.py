"""Webhook endpoints: allowed URLs, subscriptions, secrets, headers, and sample events.

Names are not resolved here; the transport checks the addresses of a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

from msgspec.structs import replace

from routewright import wire
from routewright._core.accounts.terms import describe
from routewright._core.addresses import is_loopback, is_public
from routewright._core.crypto import seal, unseal
from routewright.errors import ValidationFailed
from routewright.wire import Endpoint, EventType, SealedSecret, StoredEvent
from routewright.wire.problems import one_of

from .signature import HEADER, MAX_SECRETS, decode_key, encode_key, header_of, headers_of, keys_of

_WRONG = (
    (r"[\s\S]{2049}", "is too long", "take at most 2,048 characters"),
    (r"[\s\S]*?[^A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]", "has a character that no URL may have", "percent-encode it"),
    (r"(?![Hh][Tt][Tt][Pp][Ss]?://[^/?#])", "is not an HTTPS URL", "begin with https:// and a host"),
    (r".*#", "has a fragment", "leave out # and what follows"),
    (r"[^/]*//[^/?]*@", "has user information", "verify the signature of deliveries instead"),
)
_NAME = r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*"
_PARTS = re.compile(rf"([^:]*)://(\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]|{_NAME})(?::([0-9]{{1,5}}))?(?:[/?].*)?")
_ADDRESS = re.compile(r"\[.*|(.*\.)?([0-9]+|0x[0-9a-f]*)")  # every spelling that resolvers take for an address


def check_url(url: object, *, allow_loopback: bool) -> None:
    """Raise ``ValidationFailed`` unless webhooks may go to ``url``. ``allow_loopback`` permits loopback, also over
    HTTP."""
    if not isinstance(url, str):
        raise ValidationFailed.at("url", f"is {type(url).__name__}", "pass a string")
    for pattern, problem, hint in _WRONG:
        if re.match(pattern, url):
            raise ValidationFailed.at("url", problem, hint)
    parts = _PARTS.fullmatch(url)
    if parts is None or not 1 <= int(parts[3] or 443) <= 65_535:
        raise ValidationFailed.at(
            "url", "has no valid host and port", "use a host without a final dot, and a port up to 65535"
        )
    host = parts[2].lower()
    is_address = _ADDRESS.fullmatch(host)
    address = host.strip("[]")
    is_local = is_loopback(address) if is_address else host == "localhost" or host.endswith(".localhost")
    if not (allow_loopback if is_local else not is_address or is_public(address)):
        hint = "use a host on the public Internet; allow_loopback is for development"
        raise ValidationFailed.at("url", "has a host that is not public", hint)
    if not is_local and 443 != int(parts[3] or 443) < 1024:  # those ports are for other protocols
        raise ValidationFailed.at("url", "has a port that belongs to another protocol", "take 443, or 1024 and above")
    if parts[1].lower() == "http" and not is_local:
        raise ValidationFailed.at("url", "is plain HTTP", "begin with https://")


_LETTERS = "01M820F8M1PPDB3PTA889S3Z63"
_TRACE_ID = f"tr_{_LETTERS}"
_PRIMARY = "openai/gpt-6.1-sol"
_FALLBACK = "anthropic/claude-sonnet-5-5"
_REJECTED = {"model": _PRIMARY, "reason": "budget_cost", "estimated_cost_usd": 0.0421}
_TAGS = {"team": "search"}

SAMPLES: dict[wire.EventType, wire.PushedEvent] = {
    "router.fallback_triggered": wire.FallbackTriggered(_TRACE_ID, _PRIMARY, _FALLBACK, "upstream_5xx", 812.4, _TAGS),
    "router.budget_exceeded": wire.BudgetRefused(_TRACE_ID, [_REJECTED], wire.Budget(max_cost_usd=0.01), _TAGS),
    "router.error_burst": wire.ErrorBurst(window_seconds=300, requests=240, errors=18, error_rate=0.075),
    "router.policy_changed": wire.PolicyChanged(
        f"pol_{_LETTERS}", "support", "support@2026-11-20", "support@2026-11-22"
    ),
    "agent.run_completed": wire.AgentRunCompleted(
        _TRACE_ID, "completed", wire.RunSummary(5, 0.0184, 6420.5, ["web_search", "calculator"]), _TAGS
    ),
    "cache.evicted": wire.CacheEvicted(window_seconds=3600, hit_rate=0.031, threshold=0.05),
    "billing.threshold_crossed": wire.ThresholdCrossed("2026-11", 80, spent_usd=400.12, limit_usd=500.0),
    "incident.created": wire.IncidentCreated(
        f"inc_{_LETTERS}", "Answers are slow", "major", "2026-11-22T09:30:00.000Z", "https://status.example.com/7"
    ),
}

PURPOSE = "webhook secrets, AES-256-GCM"  # for deriving the sealing key from the root secret
OVERLAP_S = 24 * 3600.0  # how long a replaced secret still signs
MAX_OVERLAP_S = 30 * OVERLAP_S


_PLACE = re.compile(r"evt_\w{1,40}(/whe_\w{1,40})?")


class OpenSecrets(NamedTuple):
    """Opened secrets of an endpoint."""

    secrets: list[str]
    """Newest first."""
    endpoint: Endpoint | None
    """The endpoint with its secrets resealed, if a previous root secret had sealed some."""


def open_secrets(endpoint: Endpoint, keys: Sequence[bytes], now: float, nonce: Callable[[], bytes]) -> OpenSecrets:
    """Open the live secrets. ``keys`` are of the live root secrets, current first. Secrets of other keys or endpoints
    are skipped. Raises ``ModuleNotFoundError`` without the extra ``webhooks``."""
    owner = _owner(endpoint)
    texts: list[str] = []
    sealed: list[SealedSecret] = []
    for secret in endpoint.secrets:
        if secret.expires_at is not None and secret.expires_at <= now:
            continue
        opened_texts = [unseal(key, secret.sealed, owner) for key in keys]
        text = next(filter(None, opened_texts), None)
        if text is not None:
            texts.append(text)
            if opened_texts[0] is None:
                secret = replace(secret, sealed=seal(keys[0], text, owner, nonce()))
        sealed.append(secret)
    resealed = tuple(sealed) if any(secret not in endpoint.secrets for secret in sealed) else None
    return OpenSecrets(texts, None if resealed is None else replace(endpoint, secrets=resealed))


def unreadable(endpoint_id: str) -> str:
    """The sentence for an endpoint none of whose secrets can be opened."""
    hint = "set ROUTEWRIGHT_SECRET to the root secret it was made with, or rotate the endpoint's secret"
    return f"the signing secret of webhook endpoint {endpoint_id} cannot be read; {hint}"


def _owner(endpoint: Endpoint) -> str:
    return f"{endpoint.account}/{endpoint.id}"


def check_events(events: object) -> tuple[EventType, ...]:
    """Validate selected event types. None: all. Raises ``ValidationFailed``."""
    event_types: tuple[EventType, ...] = get_args(EventType)
    if events is None:
        return event_types
    selection = events if isinstance(events, Sequence) and not isinstance(events, str) else [events]
    for event in selection:
        if event not in event_types:
            raise ValidationFailed.at("events", f"{describe(event)} is not an event type", one_of(event, event_types))
    if not selection:
        raise ValidationFailed.at("events", "is empty", "leave it out for all events, or disable the endpoint")
    return tuple(event for event in event_types if event in selection)


def build_headers(
    endpoint: Endpoint, event: StoredEvent, body: bytes, secrets: Sequence[str], at: float
) -> dict[str, str]:
    """Headers of one attempt (spec 6.2), signed with each secret."""
    headers = {
        "Content-Type": "application/json",
        "Service-Event-Id": event.id,
        "Service-Event-Type": event.type,
        "Service-Idempotency-Key": event.id,
    }
    if endpoint.profile == "standard":
        return headers | headers_of(keys_of(secrets, decode_key), body, at, event.id)
    return headers | {HEADER: header_of(keys_of(secrets, encode_key), body, at)}


def is_delivery_key(value: object) -> bool:
    """True for an event id or the key of a delivery."""
    return isinstance(value, str) and _PLACE.fullmatch(value) is not None


def add_secret(
    endpoint: Endpoint, secret: str, key: bytes, nonce: bytes, *, now: float = 0.0, overlap_s: float = 0.0
) -> Endpoint:
    """Seal and add a new secret. The previous one still signs for ``overlap_s``; 0 ends all others now. Raises
    ``ModuleNotFoundError`` without the extra ``webhooks``."""
    live = [old for old in endpoint.secrets if old.expires_at is None or old.expires_at > now]
    before = [replace(live[0], expires_at=now + overlap_s), *live[1:]] if live and overlap_s > 0 else []
    sealed = SealedSecret(seal(key, secret, _owner(endpoint), nonce))
    return replace(endpoint, secrets=(sealed, *before)[:MAX_SECRETS])
