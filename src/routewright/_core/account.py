"""Accounts, API keys and plans, and rate limit headers and errors (spec 8, contract 7)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple, get_args

from routewright import wire
from routewright.errors import AuthenticationFailed, RateLimited
from routewright.wire import Account, Environment, Key, PlanName, RateLimits, Resource, Scope, WindowState
from routewright.wire.ids import AFTER_PREFIX
from routewright.wire.timestamps import moment

from .crypto import mac

SCOPES: tuple[Scope, ...] = get_args(Scope)
PLANS: dict[PlanName, RateLimits] = {
    "free": RateLimits(requests_per_min=60, tokens_per_min=60_000, concurrency=5),
    "pro": RateLimits(requests_per_min=600, tokens_per_min=600_000, concurrency=25),
    "team": RateLimits(requests_per_min=3_000, tokens_per_min=3_000_000, concurrency=100),
    "enterprise": RateLimits(),  # by contract, in Account.limits
    "unlimited": RateLimits(),
}
PREFIXES: dict[Environment, str] = {"production": "sk_live_", "sandbox": "sk_test_"}
RANDOM_BYTES = 24  # 192 bits
SHOWN = 12
COMPROMISED_FOR = timedelta(hours=24)  # before revocation (spec 5.4)
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LENGTH = 33  # characters of base 62 for 192 bits
_KEY = re.compile(rf"sk_(?:live|test)_[0-9A-Za-z]{{{_LENGTH}}}", re.ASCII)
_KEY_ID = re.compile(f"key_{AFTER_PREFIX}")
_MARK_BYTES = 4
_BEARER = re.compile(r"bearer +([!-~]+) *", re.ASCII | re.IGNORECASE)
_LONGEST = 200
_MISSING = "an API key is missing: send 'Authorization: Bearer sk_...'"
_UNKNOWN = "the API key is unknown or was revoked: create one with Console.create_key"


class Told(NamedTuple):
    """A key as sent by a caller."""

    key: str
    environment: Environment


def limits_of(account: Account | None) -> RateLimits:
    """Rate limits of an account: its own, else those of its plan."""
    if account is None:
        return PLANS["unlimited"]
    plan, own = PLANS[account.plan], account.limits
    if own is None:
        return plan
    return RateLimits(
        requests_per_min=plan.requests_per_min if own.requests_per_min is None else own.requests_per_min,
        tokens_per_min=plan.tokens_per_min if own.tokens_per_min is None else own.tokens_per_min,
        concurrency=plan.concurrency if own.concurrency is None else own.concurrency,
    )


def new_key(environment: Environment, chance: bytes) -> str:
    """Format ``RANDOM_BYTES`` random bytes as a key."""
    number, letters = int.from_bytes(chance), []
    for _ in range(_LENGTH):
        number, rest = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[rest])
    return PREFIXES[environment] + "".join(letters)


class Pepper:
    """The secret for key digests."""

    __slots__ = ("_mark", "_secret")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._mark = mac(secret, b"mark")[:_MARK_BYTES].hex() + ":"

    def digest(self, key: str) -> str:
        """HMAC-SHA-256 of a key, for storage and look-up, after an identifier of the pepper."""
        return self._mark + mac(self._secret, key.encode()).hex()

    def made(self, digest: str) -> bool:
        """True if a digest was made with this pepper."""
        return digest.startswith(self._mark)


def told_key(authorization: object, environment: Environment | None) -> Told:
    """The key in an ``Authorization`` header for an environment (None: both). Raises ``AuthenticationFailed``."""
    if not isinstance(authorization, str) or not authorization.strip():
        raise AuthenticationFailed(_MISSING)
    found = _BEARER.fullmatch(authorization) if len(authorization) <= _LONGEST else None
    if found is None:
        raise AuthenticationFailed(f"the Authorization header is not 'Bearer <API key>'; {_MISSING}")
    key = found[1]
    if not _KEY.fullmatch(key):
        raise unknown_key()
    told: Environment = "production" if key.startswith(PREFIXES["production"]) else "sandbox"
    if environment not in (None, told):
        kind, here = PREFIXES[told] + "...", PREFIXES["production" if told == "sandbox" else "sandbox"] + "..."
        raise AuthenticationFailed(f"this address takes {here} keys: send the {kind} key to the {told} address")
    return Told(key, told)


def unknown_key() -> AuthenticationFailed:
    """The error for an unknown or revoked key."""
    return AuthenticationFailed(_UNKNOWN)


def stray_key(key_id: str) -> AuthenticationFailed:
    """The error for a key that a Console created in another storage."""
    said = f"the API key {key_id} is not in this Router's storage, so its limits are unknown"
    return AuthenticationFailed(f"{said}: give the Router the storage of its Console")


def is_made(key_id: str) -> bool:
    """True for the id of a key created by a Console."""
    return _KEY_ID.fullmatch(key_id) is not None


def is_compromised(created_at: str, revoked_at: str) -> bool:
    """True for calls of a revoked key that somebody else may have made."""
    return created_at >= compromised_from(revoked_at)


def compromised_from(revoked_at: str) -> str:
    """Timestamp from which calls of a revoked key count as compromised."""
    return moment("revoked_at", datetime.fromisoformat(revoked_at) - COMPROMISED_FOR)


def is_live(key: Key) -> bool:
    """True unless the key is revoked."""
    return key.revoked_at is None


UNLIMITED = 2**53 - 1  # remaining requests without a limit
AWAY_S = 5  # retry delay if a process has no share of a limit while the coordination is away
OUTPUT_TOKENS = 256  # assumed for a call without a cap, until its usage is known
_LIMITS: dict[Resource, tuple[str, str, str]] = {  # with the field of ``RateLimits``
    "requests": ("request", "a minute", "requests_per_min"),
    "tokens": ("token", "a minute", "tokens_per_min"),
    "slots": ("call", "at a time", "concurrency"),
}


def usage_of(states: Sequence[WindowState], now: float) -> wire.WindowUsage:
    """Remaining requests of the tightest limit. ``now`` in Unix seconds."""
    least = None
    for state in states:
        if state.resource == "requests" and (least is None or state.remaining < least.remaining):
            least = state
    if least is None:
        return wire.WindowUsage(UNLIMITED, int(now) // 60 * 60 + 60)
    return wire.WindowUsage(least.remaining, ceil(now + least.reset_s))


def headers_of(states: Sequence[WindowState], now: float) -> dict[str, str]:
    """Rate limit headers for the window with the smallest share left. Empty without limits."""
    least, least_share = None, 0.0
    for state in states:
        share = state.remaining / state.limit if state.limit else 0.0
        if state.resource != "slots" and (least is None or share < least_share):
            least, least_share = state, share
    if least is None:
        return {}
    return {
        "X-RateLimit-Limit": str(least.limit),
        "X-RateLimit-Remaining": str(least.remaining),
        "X-RateLimit-Reset": str(ceil(now + least.reset_s)),
        "X-RateLimit-Resource": least.resource,
    }


def refusal(takes: Sequence[wire.Take], denied: wire.Denied, now: float, processes: int = 1) -> RateLimited:
    """The error for a call that exceeds a limit, or this process's share of it."""
    take, state = takes[denied.by], denied.states[denied.by]
    whose = take.name.partition(":")[0]
    has_part = state.limit > 0 or take.limit == 0
    wait_s = max(1, ceil(denied.retry_after_s)) if has_part else AWAY_S
    noun, per, field = _LIMITS[take.resource]
    said = f"the {whose} is limited to {take.limit} {noun}{'' if take.limit == 1 else 's'} {per}"
    if processes > 1 and take.limit:
        said += f", of which each of {processes} processes has {state.limit} while the coordination is away"
    if not take.limit:
        said += ", which refuses every call: raise it first"
    elif not has_part:
        said += f": try again in {wait_s} s"
    else:
        said += f", and {state.remaining} {'is' if state.remaining == 1 else 'are'} left: try again in {wait_s} s"
    detail = {
        "level": whose,
        # the specification has two resources; concurrency counts as requests
        "resource": "tokens" if take.resource == "tokens" else "requests",
        "limit_of": field,
        "limit": take.limit,
        "remaining": state.remaining,
        "asked": take.amount,
        "retry_after_seconds": wait_s,
        # not before the wait is over, because slots have no window and a limit of 0 has an empty one
        "reset_unix": ceil(now + max(state.reset_s, wait_s)),
    }
    return RateLimited(said, detail=detail)
