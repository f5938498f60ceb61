"""What a call that runs holds, how that ends, and a line of the log that says so: facts, never decisions."""

from __future__ import annotations

from msgspec import Struct

from routewright.wire import RunLimit


class Hold(Struct, array_like=True, gc=False):
    """What a call that runs holds."""

    id: str
    account: str
    key_id: str | None
    came_at: float
    """Unix seconds when the call came: its month pays."""
    ends_at: float
    """Time of the log by which the call ends."""
    parties: tuple[str, ...]
    """Whose windows it counts in."""
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
    """What agent runs count."""
    account: str = ""
    purses: tuple[str, ...] = ()
    """Those that pay where the hold has none, had ended before, or there never was one."""


class Widened(Struct, array_like=True, gc=False):
    """A hold has another amount reserved."""

    id: str
    nanos: int


class Tick(Struct, array_like=True, gc=False):
    """What one owner did at one time, in this order."""

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
