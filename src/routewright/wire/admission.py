"""Admission records: what a call asks of the accounts, and the grant or refusal (contract 7)."""

from __future__ import annotations

from msgspec import Struct

from .account import Account, Caller, Key
from .ledger import Purse, RunLimit, Tags
from .limits import WindowState


class Claim(Struct, frozen=True, gc=False):
    """An idempotency key that a call takes, unique within the caller's account and environment."""

    key: str
    fingerprint: str
    """Hash of the request. A different request with the same key is refused."""


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """The most that one call may use. Admission takes all of it or nothing.

    An ask with the id of an admitted call only changes that call's reservation.
    """

    id: str
    """Trace id of the call."""
    caller: Caller
    at: float
    """Unix seconds of the call's arrival. Determines the day, week and month it is charged to."""
    lasts_s: float
    """Time limit of the call. What it still holds one lease later is taken back."""
    tokens: int = 0
    """Highest number of input and output tokens."""
    nanos: int = 0
    """Highest cost, reserved at every level with a limit."""
    waits_s: float = 0.0
    """How long to wait for money or an idempotency key held by other calls."""
    claim: Claim | None = None
    run: RunLimit | None = None
    """The agent run that the call belongs to."""
    slot: bool = True
    """False for calls of an agent run, which holds one slot for all of them."""
    windows: bool = True
    """False: rate limits and slot are counted elsewhere."""
    tags: Tags = ()
    """For the limits of tags."""


class Grant(Struct, kw_only=True, gc=False):
    """An admitted call. ``settle`` or ``release`` ends it once."""

    id: str
    caller: Caller
    nanos: int = 0
    """Reserved."""
    is_limited: bool = False
    """True if a balance, plan or budget limits its cost."""
    windows: tuple[WindowState, ...] = ()
    """Rate limits, this call included."""


class Replay(Struct, frozen=True, gc=False):
    """The stored answer for the same idempotency key."""

    result: bytes


class Short(Struct, frozen=True, gc=False):
    """A level does not have enough money. Nothing was taken."""

    purse: Purse
    waits: bool
    """True if other calls' reservations were the cause and did not end while the ask could wait."""


class Left(Struct, frozen=True, gc=False):
    """A caller's remaining money as known to this process. Approximate, for decisions; ``admit`` is exact."""

    account: Account | None
    """None: the account is not set up, so nothing limits it."""
    key: Key | None
    nanos: int | None
    """Left at the tightest level. None: no limit."""
