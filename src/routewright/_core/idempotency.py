"""Is a request the same as one before? (spec 4.1, contract 7)"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

_encode = msgspec.json.Encoder(order="deterministic").encode
_EXACT = 2**53  # below it every whole float is just one integer


def fingerprint(method: str, path: str, body: Any) -> str:
    """Identifies a request whatever its JSON spelling. The ``idempotency_key`` of ``body`` does not count."""
    told = {key: value for key, value in body.items() if key != "idempotency_key"} if isinstance(body, dict) else body
    content = _encode([method, path, told])
    if b".0" in content:  # a whole number that is written as a float, perhaps
        content = _encode([method, path, _plain(told)])
    return blake2b(content, digest_size=20).hexdigest()


def _plain(value: Any) -> Any:
    """The value with one way of writing a number: 2000.0 is 2000."""
    match value:
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case float() if value.is_integer() and abs(value) < _EXACT:
            return int(value)
    return value
