"""Accounts, keys and plans, and what a caller is told of its rate limits (spec 8, contract 7)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import NamedTuple, get_args

from routewright.errors import AuthenticationFailed, RateLimited
from routewright.wire import (
    Account,
    Denied,
    Environment,
    Key,
    PlanName,
    RateLimits,
    Resource,
    Scope,
    Take,
    WindowState,
    WindowUsage,
)

from .derive import mac
from .timestamps import moment
from .trace.ids import AFTER_PREFIX

SCOPES: tuple[Scope, ...] = get_args(Scope)
PLANS: dict[PlanName, RateLimits] = {
    "free": RateLimits(requests_per_min=60, tokens_per_min=60_000, concurrency=5),
    "pro": RateLimits(requests_per_min=600, tokens_per_min=600_000, concurrency=25),
    "team": RateLimits(requests_per_min=3_000, tokens_per_min=3_000_000, concurrency=100),
    "enterprise": RateLimits(),  # as its contract says: Account.limits
    "unlimited": RateLimits(),
}
PREFIXES: dict[Environment, str] = {"production": "sk_live_", "sandbox": "sk_test_"}
RANDOM_BYTES = 24  # of a key: 192 bits
SHOWN = 12
COMPROMISED_FOR = timedelta(hours=24)  # so long before it was revoked a key may have been in other hands (spec 5.4)
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LENGTH = 33  # of 62 letters, for 192 bits
_KEY = re.compile(rf"sk_(?:live|test)_[0-9A-Za-z]{{{_LENGTH}}}", re.ASCII)
_KEY_ID = re.compile(f"key_{AFTER_PREFIX}")
_KEY_IN_TEXT = re.compile(r"sk_(?:live|test)_[0-9A-Za-z]{8}")
_KEYS_IN_TEXT = re.compile(r"(sk_(?:live|test)_)[0-9A-Za-z]{8,}")
_MARK_BYTES = 4
_BEARER = re.compile(r"bearer +([!-~]+) *", re.ASCII | re.IGNORECASE)
_LONGEST = 200
_MISSING = "an API key is missing: send 'Authorization: Bearer sk_...'"
_UNKNOWN = "the API key is unknown or was revoked: create one with Console.create_key"


class Told(NamedTuple):
    """A key as a caller sent it."""

    key: str
    environment: Environment


def limits_of(account: Account | None) -> RateLimits:
    """The rate limits of an account: its plan's, but for those of its own."""
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
    """A key of ``RANDOM_BYTES`` random bytes."""
    number, letters = int.from_bytes(chance), []
    for _ in range(_LENGTH):
        number, rest = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[rest])
    return PREFIXES[environment] + "".join(letters)


def digest_of(key: str, pepper: bytes) -> str:
    """HMAC-SHA-256 of a key."""
    return mac(pepper, key.encode()).hex()


class Pepper:
    """What keys are digested with. It shows itself to nobody."""

    __slots__ = ("_mark", "_secret")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._mark = mac(secret, b"mark")[:_MARK_BYTES].hex() + ":"

    def digest(self, key: str) -> str:
        """What is kept of a key, and what it is found by. It begins with a mark of the pepper."""
        return self._mark + digest_of(key, self._secret)

    def made(self, digest: str) -> bool:
        """Whether a digest was made with it."""
        return digest.startswith(self._mark)


def holds_key(text: str) -> bool:
    """Whether a text that is to be kept or shown holds a key."""
    return _KEY_IN_TEXT.search(text) is not None


def without_keys(text: str) -> str:
    """A text that may be shown: of keys in it there is left what kind they are of."""
    return _KEYS_IN_TEXT.sub(r"\1***", text)


def told_key(authorization: object, environment: Environment | None) -> Told:
    """The key in an ``Authorization`` header, of an environment (None: both). Raises ``AuthenticationFailed``."""
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
    """What is raised for a key that is unknown, and just so for one that was revoked."""
    return AuthenticationFailed(_UNKNOWN)


def stray_key(key_id: str) -> AuthenticationFailed:
    """What is raised for a key that a Console made, but not in the storage where the call is to be paid."""
    said = f"the API key {key_id} is not in this Router's storage, which cannot tell what limits it"
    return AuthenticationFailed(f"{said}: give the Router the storage of its Console")


def is_made(key_id: str) -> bool:
    """Whether an id is of a key that a Console made, not of a host's own."""
    return _KEY_ID.fullmatch(key_id) is not None


def is_compromised(created_at: str, revoked_at: str) -> bool:
    """Whether a call that a key made is among those that another may have made with it."""
    return created_at >= compromised_from(revoked_at)


def compromised_from(revoked_at: str) -> str:
    """The moment from which on calls of a revoked key are compromised, as a timestamp."""
    return moment("revoked_at", datetime.fromisoformat(revoked_at) - COMPROMISED_FOR)


def is_live(key: Key) -> bool:
    """Whether it was not revoked."""
    return key.revoked_at is None


UNLIMITED = 2**53 - 1  # what is left where there is no limit
AWAY_S = 5  # when to ask again where a process has no part of a limit: nobody knows when they count together again
OUTPUT_TOKENS = 256  # of a call that names no cap, until it is known what it came to
_NOUNS: dict[Resource, tuple[str, str]] = {
    "requests": ("request", "a minute"),
    "tokens": ("token", "a minute"),
    "slots": ("call", "at a time"),
}
_LIMIT_OF: dict[Resource, str] = {  # what a limit is called in ``RateLimits``
    "requests": "requests_per_min",
    "tokens": "tokens_per_min",
    "slots": "concurrency",
}


def usage_of(states: Sequence[WindowState], now: float) -> WindowUsage:
    """The requests that are left, of several limits by the one with the fewest. ``now`` in Unix seconds."""
    least = None
    for state in states:
        if state.resource == "requests" and (least is None or state.remaining < least.remaining):
            least = state
    if least is None:
        return WindowUsage(UNLIMITED, int(now) // 60 * 60 + 60)
    return WindowUsage(least.remaining, ceil(now + least.reset_s))


def headers_of(states: Sequence[WindowState], now: float) -> dict[str, str]:
    """The headers of an answer: of the window that has the smallest share left; of none, where nothing is limited."""
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


def refusal(takes: Sequence[Take], denied: Denied, now: float, processes: int = 1) -> RateLimited:
    """The error for a call without room in its limits, or in this process's part of them."""
    take, state = takes[denied.by], denied.states[denied.by]
    whose = take.name.partition(":")[0]
    has_part = state.limit > 0 or take.limit == 0
    wait_s = max(1, ceil(denied.retry_after_s)) if has_part else AWAY_S
    noun, per = _NOUNS[take.resource]
    said = f"the {whose} is limited to {take.limit} {noun}{'' if take.limit == 1 else 's'} {per}"
    if processes > 1 and take.limit:
        said += f", of which each of {processes} processes has {state.limit} while the coordination is away"
    if not take.limit:
        said += ", which lets nothing in: it has to be raised first"
    elif not has_part:
        said += f": try again in {wait_s} s"
    else:
        said += f", and {state.remaining} {'is' if state.remaining == 1 else 'are'} left: try again in {wait_s} s"
    detail = {
        "level": whose,
        # a call more at a time is a request too many: the specification knows two resources
        "resource": "tokens" if take.resource == "tokens" else "requests",
        "limit_of": _LIMIT_OF[take.resource],
        "limit": take.limit,
        "remaining": state.remaining,
        "asked": take.amount,
        "retry_after_seconds": wait_s,
        # not before the wait is over: slots have no window, and one that is empty lets nothing in at a limit of 0
        "reset_unix": ceil(now + max(state.reset_s, wait_s)),
    }
    return RateLimited(said, detail=detail)
