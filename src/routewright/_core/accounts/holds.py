"""What running calls hold, and what others wait for."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from routewright.errors import RateLimited, RouterTimeoutError
from routewright.wire import RunLimit, Short, Tags

PurseName = tuple[str, str]  # account, name of its purse
FreedName = PurseName | bytes  # a purse with more room, or an idempotency key that is free or has an answer


class Hold(Struct, array_like=True, gc=False):
    """Limits, money and idempotency key held by a running call."""

    id: str
    account: str
    key_id: str | None
    came_at: float
    """Unix seconds of the call's arrival. Determines the day, week and month it is charged to."""
    ends_at: float
    """Log time by which the call ends."""
    parties: tuple[str, ...]
    """Accounts and keys whose windows count it."""
    tokens: int
    slots: int
    nanos: int
    purses: tuple[str, ...]
    """Purses that hold the reservation and are charged."""
    claim: bytes | None
    fingerprint: str
    owner: int = 0
    taken_at: float = 0.0
    """Log time of admission."""
    run: RunLimit | None = None
    """Agent run of the call."""
    tags: Tags = ()


class Wait(NamedTuple):
    """Other calls hold what an ask needs."""

    on: FreedName
    short: Short | None
    """The answer after the wait times out. None: it waits for an idempotency key."""

    def give_up(self) -> Short | RouterTimeoutError:
        """The answer after the wait times out."""
        return self.short or RouterTimeoutError(
            "another call with the same idempotency key is still running; retry with the same key to get its answer"
        )

    def turn_away(self) -> Short | RateLimited:
        """The answer if the queue is full."""
        message = "another call with the same idempotency key is running, and too many calls are waiting; retry in 1 s"
        return self.short or RateLimited(message, detail={"retry_after_seconds": 1})
