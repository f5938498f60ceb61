"""One key, one call, one bill: what is kept of calls that may be repeated (spec 4.1, contract 7)."""

from __future__ import annotations

from msgspec import Struct

from .batch import Durability
from .environment import Environment


class ClaimKey(Struct, frozen=True, kw_only=True, tag=True):
    """Take an idempotency key for a call that is about to begin. ``Written.created`` is False where another has it:
    one that runs, or one that was completed not yet 24 hours ago. A call that runs may take its own again."""

    key: str
    environment: Environment
    fingerprint: str
    """Of the request: another one may not have the same key."""
    call: str
    """Names the claim: the call's trace id."""
    owner: str
    lease_s: float
    clock_s: float
    """As in ``wire/ledger.py``."""
    at: float
    """Unix seconds."""
    durability: Durability = "buffered"


class EndClaim(Struct, frozen=True, kw_only=True, tag=True):
    """Say how the call of a claim ended: keep its result, or let others have the key.

    Fails the batch with ``PreconditionFailed`` where there is a result and the key is another call's by now. Where
    it is nobody's any more, as after one that took it over and failed, the result is put back: ``Written.created``;
    without a ``fingerprint`` that fails, too. Said again by the same call it does nothing.
    """

    key: str
    environment: Environment
    call: str
    result: bytes | None
    """None: it failed."""
    until: float = 0.0
    """Unix seconds: from then on the key may be used anew."""
    fingerprint: str | None = None
    """Of the request, as its ``ClaimKey`` had it: with it the result can be put back."""
    durability: Durability = "committed"


class DeleteResults(Struct, frozen=True, tag=True):
    """Remove the results of all keys of the account."""

    environment: Environment | None = None
    """None: of either."""
    durability: Durability = "committed"


class ClaimByKey(Struct, frozen=True, tag=True):
    """The ``KeyClaim`` of an idempotency key that holds, or None."""

    key: str
    environment: Environment
    clock_s: float
    at: float


class KeyClaim(Struct, frozen=True):
    """Who has an idempotency key."""

    fingerprint: str
    call: str
    result: bytes | None
    """None: it runs."""
