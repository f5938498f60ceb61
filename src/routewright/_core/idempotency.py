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
        content = _encode(_decode(content))
    return blake2b(content, digest_size=20).hexdigest()


def _number(text: str) -> float:
    """A float; an integer if it is whole: 2000.0 is 2000."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


_decode = msgspec.json.Decoder(float_hook=_number).decode
