"""Fingerprints of requests, to compare them under an idempotency key (spec 4.1, contract 7).

``accounts/state.py`` has the rule: who gets a key, who waits, and what is replayed."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

_encode = msgspec.json.Encoder(order="deterministic").encode
_EXACT = 2**53  # below this, floats represent integers exactly


def fingerprint(method: str, path: str, body: Any) -> str:
    """Hash of a request, independent of its JSON spelling and its ``idempotency_key``."""
    told = {key: value for key, value in body.items() if key != "idempotency_key"} if isinstance(body, dict) else body
    content = _encode([method, path, told])
    if b".0" in content:  # may be an integer written as a float
        content = _encode([method, path, _plain(told)])
    return blake2b(content, digest_size=20).hexdigest()


def _plain(value: Any) -> Any:
    """Convert whole floats to integers: 2000.0 to 2000."""
    match value:
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case float() if value.is_integer() and abs(value) < _EXACT:
            return int(value)
    return value
