"""Is a request the same as one before, and may it have its key? (spec 4.1, contract 7)"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from routewright.wire import ClaimKey, EndClaim

KEPT_S = 24 * 3600
"""How long a result is kept, from its completion on."""
_EXACT = 2**53
"""Below it every whole float is just one integer."""


class StoredClaim(NamedTuple):
    """What is kept of an idempotency key."""

    fingerprint: str
    call: str
    owner: str
    result: bytes | None = None
    until: float = 0.0
    """Unix seconds: when the result goes, or this where nobody will end it."""

    def holds(self, at: float, *, owned: bool) -> bool:
        """Whether the key is taken ``at`` a time (Unix seconds). ``owned``: its owner lives."""
        return owned if self.result is None else at < self.until

    def refuses(self, asked: ClaimKey, *, owned: bool) -> bool:
        """Whether another may not have the key. A call that runs may ask for its own again."""
        if self.call == asked.call and self.result is None:
            return False
        return self.holds(asked.at, owned=owned)


def put_back(end: EndClaim) -> StoredClaim | None:
    """What is kept of a key that is nobody's where a call ends that had it; None: nothing."""
    if end.result is None or end.fingerprint is None:
        return None
    return StoredClaim(end.fingerprint, end.call, owner="", result=end.result, until=end.until)


def fingerprint(method: str, path: str, body: Any) -> str:
    """What tells a request from others, however its JSON is written. ``body``: as decoded, in plain types; its
    ``idempotency_key`` does not count."""
    told = {key: value for key, value in body.items() if key != "idempotency_key"} if isinstance(body, dict) else body
    content = msgspec.json.encode([method, path, _plain(told)], order="deterministic")
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
