"""Idempotency keys: which requests are the same, and whose a key is (spec 4.1, contract 7).

    free ── taken: its call runs ──┬─ settled with an answer: kept for a day, replayed, then free
                                   ├─ settled without one, or released: free
                                   └─ expired: its process was silent for a lease; free. The call that takes the key
                                      next is billed for it, and the late one is not

A key is unique within an account and environment. While it is taken or its answer is kept, it is refused to a different
request. ``State`` asks ``Claims`` before anything else; ``settlement.py`` asks again for calls without a hold.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import msgspec

from routewright.errors import IdempotencyKeyReused
from routewright.wire import Caller, Claim, Replay
from routewright.wire.json_scan import quoted

RESULT_TTL_S = 24 * 3600  # how long an answer is kept under its key, from the end of its call
_encode = msgspec.json.Encoder(order="deterministic").encode
_EXACT = 2**53  # below this, floats represent integers exactly


def fingerprint(method: str, path: str, body: Any) -> str:
    """Hash of a request, independent of its JSON spelling and its ``idempotency_key``."""
    # A client may repeat a request through another JSON library: other order, other escapes, 2000.0 for 2000. A hash of
    # the bytes would answer it with a 409, so the values are hashed in one spelling (spec 4.1, P1;
    # test_a_fingerprint_depends_on_values_and_not_on_spelling).
    fields = {key: value for key, value in body.items() if key != "idempotency_key"} if isinstance(body, dict) else body
    encoded = _encode([method, path, fields])
    if b".0" in encoded:  # may be an integer written as a float
        encoded = _encode(_decode(encoded))
    return blake2b(encoded, digest_size=20).hexdigest()


def _number(text: str) -> float:
    """A float; an integer if it is whole: 2000.0 is 2000."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


_decode = msgspec.json.Decoder(float_hook=_number).decode


@lru_cache(maxsize=256)
def scope_of(caller: Caller, key: str) -> bytes:
    """Hash of account, environment and idempotency key. Cached, since each call needs it three times."""
    return blake2b(f"{caller.account}\0{caller.environment}\0{key}".encode(), digest_size=16).digest()


class KeptResult(NamedTuple):
    """A stored answer of an idempotency key."""

    fingerprint: str
    call: str
    result: bytes


class StoredResults(Protocol):
    """The stored answers."""

    def read_result(self, account: str, claim: bytes, now: float) -> KeptResult | None:
        """The stored answer of an idempotency key (``scope_of``). ``now`` in Unix seconds."""


class Holder(Protocol):
    """A running call with an idempotency key."""

    id: str
    fingerprint: str


class Claims:
    """Idempotency keys by ``scope_of``."""

    def __init__(self, results: StoredResults) -> None:
        self._results = results
        self.running: dict[bytes, Holder] = {}

    def taken(self, account: str, scope: bytes, claim: Claim, now: float) -> Replay | Holder | None:
        """The answer to replay, or the running call to wait for. None: the key is free. Raises
        ``IdempotencyKeyReused``."""
        owner = self.running.get(scope) or self._results.read_result(account, scope, now)
        if owner is None:
            return None
        if owner.fingerprint != claim.fingerprint:
            raise IdempotencyKeyReused(
                f"the idempotency key {quoted(claim.key)} was used with a different request in the last 24 hours; "
                "use a new key for a new request"
            )
        return Replay(owner.result) if isinstance(owner, KeptResult) else owner

    def owner_of(self, account: str, scope: bytes, now: float) -> str | None:
        """The call that has a key, or whose answer is kept under it. None: the key is free."""
        if (running := self.running.get(scope)) is not None:
            return running.id
        result = self._results.read_result(account, scope, now)
        return None if result is None else result.call
