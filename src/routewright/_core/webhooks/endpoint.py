"""What an endpoint receives, and its signing secrets: sealed when stored, opened to sign, replaced by newer ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, get_args

from msgspec.structs import replace

from routewright._core.derive import seal, unseal
from routewright._core.request.problems import one_of
from routewright._core.terms import told
from routewright.errors import ValidationFailed
from routewright.wire import Endpoint, EventType, SealedSecret, StoredEvent

from .signature import HEADER, MAX_SECRETS, decoded, header_of, headers_of, keys_of, whole

PURPOSE = "webhook secrets"  # what the key that seals them is derived for from the root secret
OVERLAP_S = 24 * 3600.0  # how long a replaced secret still signs
MAX_OVERLAP_S = 30 * OVERLAP_S


_PLACE = re.compile(r"evt_\w{1,40}(/whe_\w{1,40})?")


class Opened(NamedTuple):
    """The secrets of an endpoint."""

    secrets: list[str]
    """Newest first."""
    endpoint: Endpoint | None
    """The same with its secrets sealed by the present root secret, where the one before it had sealed them."""


def opened(endpoint: Endpoint, keys: Sequence[bytes], now: float, nonce: Callable[[], bytes]) -> Opened:
    """Open the live secrets. ``keys``: of the live root secrets, current first. Others' secrets are left out."""
    texts: list[str] = []
    sealed: list[SealedSecret] = []
    for each in endpoint.secrets:
        if each.expires_at is not None and each.expires_at <= now:
            continue
        found = [text for key in keys if (text := unseal(key, each.sealed)) is not None]
        texts += found
        is_old = found and unseal(keys[0], each.sealed) is None
        sealed.append(replace(each, sealed=seal(keys[0], found[0], nonce())) if is_old else each)
    resealed = tuple(sealed) if any(each not in endpoint.secrets for each in sealed) else None
    return Opened(texts, None if resealed is None else replace(endpoint, secrets=resealed))


def checked_events(given: object) -> tuple[EventType, ...]:
    """The event types that an endpoint selects; of None all. Raises ``ValidationFailed``."""
    known: tuple[EventType, ...] = get_args(EventType)
    if given is None:
        return known
    asked = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    for each in asked:
        if each not in known:
            raise ValidationFailed.at("events", f"{told(each)} is no event type", one_of(each, known))
    if not asked:
        raise ValidationFailed.at("events", "are none", "leave them out for all, or disable the endpoint")
    return tuple(each for each in known if each in asked)


def headers_for(
    endpoint: Endpoint, event: StoredEvent, body: bytes, secrets: Sequence[str], at: float
) -> dict[str, str]:
    """The headers of one attempt (spec 6.2), signed with each secret."""
    headers = {
        "Content-Type": "application/json",
        "Service-Event-Id": event.id,
        "Service-Event-Type": event.type,
        "Service-Idempotency-Key": event.id,
    }
    if endpoint.profile == "standard":
        return headers | headers_of(keys_of(secrets, decoded), body, at, event.id)
    return headers | {HEADER: header_of(keys_of(secrets, whole), body, at)}


def is_place(given: object) -> bool:
    """True for an event's id, and for the key of a delivery."""
    return isinstance(given, str) and _PLACE.fullmatch(given) is not None


def rotated(endpoint: Endpoint, sealed: str, now: float, overlap_s: float) -> Endpoint:
    """The endpoint with a new secret. The last one signs for ``overlap_s`` more; 0 ends all others now."""
    live = [each for each in endpoint.secrets if each.expires_at is None or each.expires_at > now]
    before = [replace(live[0], expires_at=now + overlap_s), *live[1:]] if live and overlap_s > 0 else []
    return replace(endpoint, secrets=(SealedSecret(sealed), *before)[:MAX_SECRETS])
