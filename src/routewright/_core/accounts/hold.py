"""Holds of running calls, how they end, and the log entries that record both: facts, never decisions."""

from __future__ import annotations

from msgspec import Struct

from routewright.wire import RunLimit


class Hold(Struct, array_like=True, gc=False):
    """Limits, money and idempotency key held by a running call."""

    id: str
    account: str
    key_id: str | None
    came_at: float
    """Unix seconds when the call came: its month pays."""
    ends_at: float
    """Time of the log by which the call ends."""
    parties: tuple[str, ...]
    """Accounts and keys whose windows it counts in."""
    tokens: int
    slots: int
    nanos: int
    purses: tuple[str, ...]
    """In which it is reserved, and which pay."""
    claim: bytes | None
    fingerprint: str
    owner: int = 0
    taken_at: float = 0.0
    """Time of the log when it was admitted."""
    run: RunLimit | None = None
    """The agent run it belongs to."""


class End(Struct, array_like=True, gc=False):
    """How a hold ended."""

    id: str
    tokens: int | None
    """None: what was taken stays taken."""
    charge: int = 0
    run_nanos: int = 0
    """The amount that agent runs count."""
    account: str = ""
    purses: tuple[str, ...] = ()
    """Purses to charge if there is no hold, or it names none."""


class Widened(Struct, array_like=True, gc=False):
    """A hold has another amount reserved."""

    id: str
    nanos: int


class Tick(Struct, array_like=True, gc=False):
    """The changes of one owner in one transaction, in this order."""

    changed: list[str] = []
    """Accounts whose terms, keys or sums were changed otherwise."""
    expired: list[str] = []
    ends: list[End] = []
    widened: list[Widened] = []
    admits: list[Hold] = []

    @property
    def is_empty(self) -> bool:
        """True if it says nothing but that its owner lives."""
        return not (self.ends or self.admits or self.expired or self.widened or self.changed)
