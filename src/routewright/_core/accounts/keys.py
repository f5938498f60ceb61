"""API keys: format, digests, scopes, and which keys are refused (spec 8, contract 7)."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import NamedTuple, get_args

from routewright._core.crypto import mac
from routewright.errors import AuthenticationFailed
from routewright.wire import Environment, Key, Scope
from routewright.wire.ids import AFTER_PREFIX
from routewright.wire.timestamps import moment

OPERATOR_SCOPES: tuple[Scope, ...] = ("console:read", "console:write")
"""Scopes of keys of ``SYSTEM_ACCOUNT``."""
SCOPES: tuple[Scope, ...] = tuple(scope for scope in get_args(Scope) if scope not in OPERATOR_SCOPES)
"""Scopes of keys of accounts."""
PREFIXES: dict[Environment, str] = {"production": "sk_live_", "sandbox": "sk_test_"}
RANDOM_BYTES = 24  # 192 bits
SHOWN = 12
COMPROMISED_FOR = timedelta(hours=24)  # before revocation (spec 5.4)
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LENGTH = 33  # characters of base 62 for 192 bits
_KEY = re.compile(rf"sk_(?:live|test)_[0-9A-Za-z]{{{_LENGTH}}}", re.ASCII)
_KEY_ID = re.compile(f"key_{AFTER_PREFIX}")
_MARK_BYTES = 4  # of the identifier
_BEARER = re.compile(r"bearer +([!-~]+) *", re.ASCII | re.IGNORECASE)
_LONGEST = 200
_MISSING = "an API key is missing; send 'Authorization: Bearer sk_...'"
_UNKNOWN = "the API key is unknown or revoked; create one with Console.create_key"


class SentKey(NamedTuple):
    """A key as sent by a caller."""

    key: str
    environment: Environment


def new_key(environment: Environment, chance: bytes) -> str:
    """Format ``RANDOM_BYTES`` random bytes as a key."""
    text = PREFIXES[environment]
    number = int.from_bytes(chance)
    for _ in range(_LENGTH):
        number, digit = divmod(number, len(_LETTERS))
        text += _LETTERS[digit]
    return text


class Pepper:
    """The secret for key digests."""

    __slots__ = ("_mark", "_secret")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._mark = mac(secret, b"mark")[:_MARK_BYTES].hex() + ":"

    def digest(self, key: str) -> str:
        """HMAC-SHA-256 of a key, for storage and look-up, after an identifier of the pepper."""
        return self._mark + mac(self._secret, key.encode()).hex()

    def matches(self, digest: str) -> bool:
        """True for a digest of this pepper."""
        return digest.startswith(self._mark)


def parse_authorization(authorization: object, environment: Environment | None) -> SentKey:
    """Read the key from an ``Authorization`` header. ``environment``: the one that may use this address; None: both.
    Raises ``AuthenticationFailed``."""
    if not isinstance(authorization, str) or not authorization.strip():
        raise AuthenticationFailed(_MISSING)
    match = _BEARER.fullmatch(authorization) if len(authorization) <= _LONGEST else None
    if match is None:
        raise AuthenticationFailed(f"the Authorization header is not 'Bearer <API key>'; {_MISSING}")
    key = match[1]
    if not _KEY.fullmatch(key):
        raise unknown_key_error()
    owner: Environment = "production" if key.startswith(PREFIXES["production"]) else "sandbox"
    if environment is not None and environment != owner:
        hint = f"send the {PREFIXES[owner]}... key to the {owner} address"
        raise AuthenticationFailed(f"this address takes {PREFIXES[environment]}... keys; {hint}")
    return SentKey(key, owner)


def unknown_key_error() -> AuthenticationFailed:
    """The error for an unknown or revoked key."""
    return AuthenticationFailed(_UNKNOWN)


def stray_key_error(key_id: str) -> AuthenticationFailed:
    """The error for a key that a Console created in another storage."""
    problem = f"the API key {key_id} is not in this Router's storage, so its limits are unknown"
    return AuthenticationFailed(f"{problem}; give the Router the storage of its Console")


def is_issued(key_id: str) -> bool:
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


def check_key(key: Key | None, key_id: str) -> None:
    """Raise ``AuthenticationFailed`` for a revoked key, or one that a Console created in another storage. Other unknown
    ids are the host's own keys, without limits."""
    if key is None and is_issued(key_id):
        raise stray_key_error(key_id)
    if key is not None and not is_live(key):
        raise unknown_key_error()
